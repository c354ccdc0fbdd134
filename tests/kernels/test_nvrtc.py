"""Things that NVRTC lacks beside nvcc: headers, options, and hints where something is missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BuildError, SpecError, UsageError
from harness.kernels import catalog, spec
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.cpp import includes
from harness.kernels.cpp.compilers import nvrtc
from harness.support.cache import Cache
from shared.places import ROOT
from shared.speed import Stopwatch

HEADER = '// K\n//\n// /// kernel\n// entry = "k"\n// block = 32\n// tile = 32\n{}// ///\n'
needs_headers = pytest.mark.skipif(not includes.libraries(), reason="CUDA's headers are not installed")
GENERIC_LAMBDA = re.compile(r"\[[&=\w, ]*\]\s*\([^()]*\bauto\b")
Compiled = Callable[..., Cubin]


@pytest.fixture
def compiled(tmp_path: Path, cache: Cache) -> Compiled:
    def build(source: str, front: str = "", cache: Cache = cache, arch: str = "sm_80") -> Cubin:
        path = tmp_path / "k.cu"
        path.write_text(HEADER.format("".join(f"// {line}\n" for line in front.splitlines())) + source)
        return compile_kernel(spec.load(path).variant(), arch, cache)

    return build


# Options


@pytest.mark.parametrize(
    "option",
    [
        *("--use_fast_math", "-std=c++20", "--maxrregcount=64", "--fmad=false", "-DN=4", "-default-device"),
        *("--ptxas-options=-O1", "--extra-device-vectorization", "--std=c++14"),
    ],
)
def test_options_that_are_passed_on(option: str, compiled: Compiled) -> None:
    assert nvrtc.refusal(option) == ""
    cubin = compiled("__global__ void k(float* x) { *x = 1; }", f"options = ['{option}']")
    assert cubin.warnings == "" or "maxrregcount" in option


OPTIONS_OF_ONE = (
    *("--use_fast_math", "--fmad=false", "--ftz=true", "--maxrregcount=24", "--ptxas-options=-O1"),
    *("--extra-device-vectorization", "--std=c++20", "--split-compile=2", "--Ofast-compile=max"),
)


def test_an_option_is_of_one_kernel_only(compiled: Compiled) -> None:
    """NVRTC's -restrict stays for what the process compiles later, which is why it is refused; these go."""
    source = "__global__ void k(float* x, const float* y) { x[threadIdx.x] = y[threadIdx.x] / 3; }"
    before = compiled(source)
    for option in OPTIONS_OF_ONE:
        compiled(source, f"options = ['{option}']")
        again = compiled(source + f"  // not the cached one: {option}")
        assert again.code == before.code, option


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--gpu-architecture=sm_80", "--arch"),
        ("-arch=sm_80", "--arch"),
        ("-G", "debugging"),
        ("--device-debug", "debugging"),
        ("-lineinfo", "line"),
        ("-rdc=true", "whole"),
        ("-dlto", "whole"),
        ("-I/usr/include", "include = "),
        ("--include-path=x", "include = "),
        ("--pre-include=/etc/passwd", "cache"),
        ("-UX", "macros"),
        ("-restrict", "__restrict__"),
        ("--restrict", "later"),
        ("--no-cache", "caches"),
        ("--time=x", "writes files"),
        ("-w", "warnings"),
        ("use_fast_math", "begins with -"),
        ("--maxrregcount 64", "one word"),
        ("--ptxas-options", "one word"),
    ],
)
def test_options_that_would_break_a_promise_are_refused_by_name(
    option: str, why: str, compiled: Compiled
) -> None:
    with pytest.raises(SpecError) as e:
        compiled("__global__ void k() {}", f"options = ['{option}']")
    assert option in str(e.value) and why in str(e.value) and "k.cu:7" in str(e.value)


def test_an_option_that_nvrtc_does_not_know(compiled: Compiled) -> None:
    with pytest.raises(UsageError, match="refuses sm_80 --nonsense(.|\n)*unrecognized option"):
        compiled("__global__ void k() {}", "options = ['--nonsense']")


def test_options_change_the_code_and_the_key_of_the_cache(compiled: Compiled) -> None:
    source = "__global__ void k(float* x) { *x = sinf(*x); }"
    exact, fast = compiled(source), compiled(source, "options = ['--use_fast_math']")
    assert "sin.approx" in fast.ptx and "sin.approx" not in exact.ptx
    assert compiled("__global__ void k(int* x) { *x = __cplusplus; }", "options = ['-std=c++20']").ptx.count(
        "202002"
    )


# Headers


def test_headers_of_the_host_have_stand_ins(compiled: Compiled) -> None:
    names = ["assert", "float", "limits", "math", "stddef", "stdint", "stdio", "stdlib", "string"]
    heads = "".join(f"#include <{n}.h>\n#include <c{n}>\n" for n in names)
    body = """__global__ void k(float* x) {
        assert(*x > 0); constexpr float most = INFINITY; std::size_t u = sizeof(std::uint64_t);
        *x = most + NAN + float(M_PI) + FLT_MAX + INT_MAX + UINT64_MAX + std::sqrt(*x) + u;
        printf("%f", *x); memset(x, 0, 4);
    }"""
    assert compiled(heads + body).warnings == ""


def test_folders_of_headers(compiled: Compiled, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    header = tmp_path / "sub" / "own.h"
    header.write_text("#define VALUE 1234567\n")
    source = "#include <own.h>\n__global__ void k(int* x) { *x = VALUE; }"
    with pytest.raises(BuildError, match=rf"-I {header.parent}, or include = "):
        compiled(source)
    assert "1234567" in compiled(source, "include = ['sub']").ptx
    header.write_text("#define VALUE 7654321\n")  # its contents are part of the key
    assert "7654321" in compiled(source, "include = ['sub']").ptx


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("#include <vector>\n__global__ void k() { std::vector<int> x; }", "cuda::std::vector"),
        ("#include <curand_kernel_x.h>\n__global__ void k() { curandState x; }", "pip install nvidia-curand"),
        ("__global__ void k(float* x) { *x = FLT_MAX; }", "#include <float.h>"),
        ("__global__ void k(uint32_t* x) {}", "#include <stdint.h>"),
        ("__global__ void k(float* x) { half h; }", "#include <cuda_fp16.h>"),
        ("int f() { return 1; }\n__global__ void k(int* x) { *x = f(); }", "write __device__ before"),
        ("__global__ void k(float* x) { *x = std::max(1, 2); }", "cuda::std::max"),
    ],
)
def test_what_is_missing_comes_with_a_hint(source: str, hint: str, compiled: Compiled) -> None:
    with pytest.raises(BuildError) as e:
        compiled(source)
    assert hint in e.value.hint


def test_a_header_elsewhere_in_the_repository_is_named(tmp_path: Path) -> None:
    """Repositories' builds pass -I for their root, or for a folder beside that of the kernel."""
    for folder in ("repository/.git", "repository/src/kernels", "repository/src/common"):
        (tmp_path / folder).mkdir(parents=True)
    root, outside = tmp_path / "repository", tmp_path / "outside.h"
    for header in (outside, root / "src" / "common" / "own.h"):
        header.write_text("")
    log = f'{root}/src/kernels/k.cu(3): catastrophic error: cannot open source file "NAME"\n'
    missing = log.replace("NAME", "none.h")
    assert f"-I {root}/src/common, or include = [...] in front matter: own.h is there" in nvrtc.hint(
        missing + log.replace("NAME", "own.h")
    )
    assert f"-I {root}, or" in nvrtc.hint(log.replace("NAME", "src/common/own.h"))
    for name in ("none.h", "outside.h", "../outside.h", "\0", "common"):
        assert "-I /" not in nvrtc.hint(log.replace("NAME", name)), name
    kernel = root / "src" / "kernels" / "k.cu"
    assert includes.of_repository(kernel, '#include "own.h"') == (str(root / "src" / "common"),)
    for name in ("../outside.h", "../../outside.h", "none.h"):
        assert includes.of_repository(kernel, f'#include "{name}"') == (), name


def test_a_fault_of_another_kind_has_no_hint(compiled: Compiled) -> None:
    with pytest.raises(BuildError) as e:
        compiled("__global__ void k(float* x) { *x = y; }")
    assert e.value.hint == ""


@pytest.mark.parametrize(
    ("header", "package"),
    [
        ("cuda_fp16.h", "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"),
        ("cooperative_groups/reduce.h", "nvidia-cuda-runtime"),
        ("mma.h", "nvidia-cuda-runtime"),
        ("cub/block/block_reduce.cuh", "nvidia-cuda-cccl"),
        ("cuda/barrier", "nvidia-cuda-cccl"),
        ("cute/tensor.hpp", "nvidia-cutlass"),
        ("curand_kernel.h", "nvidia-curand"),
    ],
)
def test_hints_name_the_package_of_a_header(header: str, package: str) -> None:
    assert "pip install " in includes.hint(header) and package in includes.hint(header)


@needs_headers
@pytest.mark.parametrize(
    ("heads", "body"),
    [
        (["cuda_fp16.h"], "half2 h = __float2half2_rn(*x); *x = __low2float(__hmul2(h, h));"),
        (["mma.h"], "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c; "
         "nvcuda::wmma::fill_fragment(c, 1.f); nvcuda::wmma::store_matrix_sync(x, c, 16, "
         "nvcuda::wmma::mem_row_major);"),
    ],
)  # fmt: skip
def test_headers_of_the_toolkit(heads: list[str], body: str, compiled: Compiled) -> None:
    source = "".join(f"#include <{h}>\n" for h in heads) + f"__global__ void k(float* x) {{ {body} }}"
    assert compiled(source).warnings == ""


@needs_headers
@pytest.mark.slow
@pytest.mark.parametrize(
    "heads",
    [
        ["cooperative_groups.h", "cooperative_groups/reduce.h", "cstdint", "cmath", "cfloat", "climits"],
        ["cub/block/block_reduce.cuh", "cuda/std/limits", "math.h"],
        ["cuda/barrier", "cuda/std/span", "stdint.h"],
    ],
)
def test_headers_of_cccl_beside_those_of_the_host(heads: list[str], compiled: Compiled) -> None:
    source = "".join(f"#include <{h}>\n" for h in heads) + "__global__ void k(float* x) { *x = 1; }"
    assert compiled(source).warnings == ""


CUB = """\
#include <cub/cub.cuh>
__global__ void k(float* x)
{
    using Reduce = cub::BlockReduce<float, 64>;
    __shared__ Reduce::TempStorage temp;
    float sum = Reduce(temp).Sum(x[threadIdx.x]);
    if (threadIdx.x == 0) *x = sum;
}
"""
SORTS = "void sort(int* x) { size_t n = 0; cub::DeviceReduce::Sum(nullptr, n, x, x, 1); k<<<1, 64>>>(0); }\n"


@needs_headers
@pytest.mark.slow
def test_cub_as_everybody_includes_it(compiled: Compiled) -> None:
    """The whole of it has host code. Its parts are there, and what does not exist is an error as ever."""
    assert compiled(CUB).warnings == ""
    assert "Host code is left out: sort" in compiled(CUB + SORTS).warnings
    with pytest.raises(BuildError, match='namespace "cub" has no member "BlockReduction"'):
        compiled(CUB.replace("cub::BlockReduce<", "cub::BlockReduction<"))


def test_cub_that_is_not_there_says_what_to_install(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(includes, "libraries", lambda: ())
    with pytest.raises(BuildError) as caught:
        compiled(CUB)
    assert "nvidia-cuda-cccl" in str(caught.value)


@needs_headers
def test_a_library_costs_nothing_once_it_is_compiled(compiled: Compiled) -> None:
    """No header of a library is read again: only names, sizes and dates are looked at."""
    source = "#include <cuda_fp16.h>\n__global__ void k(float* x) { *x = 1; }"
    compiled(source)
    with Stopwatch() as watch:
        compiled(source)
    assert watch.seconds < 0.5  # 5 ms on an idle core


@needs_headers
def test_a_library_that_changes_is_compiled_anew(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "lib.h").write_text("#define VALUE 111222\n")
    monkeypatch.setattr(includes, "libraries", lambda: (folder,))
    source = "#include <lib.h>\n__global__ void k(int* x) { *x = VALUE; }"
    assert "111222" in compiled(source).ptx
    (folder / "lib.h").write_text("#define VALUE 3334445\n")
    assert "3334445" in compiled(source).ptx


def test_stamps_are_those_of_the_files_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(includes, "libraries", lambda: seen.append(1) or ())
    includes.included(tmp_path / "k.cu", "#include <math.h>\n")
    assert seen == []  # nothing is missing: no library is looked for
    found = includes.included(tmp_path / "k.cu", "#include <cuda_fp16.h>\n")
    assert seen == [1] and found.libraries == () and found.stamps == ()


# What another NVRTC refuses


@pytest.mark.parametrize("path", sorted([*(ROOT / "cu").rglob("*.cu*"), *(ROOT / "examples").rglob("*.cu")]))
def test_no_lambda_takes_auto(path: Path) -> None:
    """NVRTC 13.0 takes such a lambda for host code and refuses it; 13.5, which runs here, does not."""
    assert not GENERIC_LAMBDA.search(path.read_text()), path


def test_a_lambda_that_takes_auto_is_seen() -> None:
    assert GENERIC_LAMBDA.search("const auto f = [&](auto rows, int m) { return rows[m]; };")
    assert GENERIC_LAMBDA.search("run([=](int i,\n  const auto& x) {});")
    assert not GENERIC_LAMBDA.search("const auto f = [&](int i) { auto x = i; return x; };")


def test_headers_of_the_repository_are_taken_for_a_file_without_front_matter(tmp_path: Path) -> None:
    """Take what a build passes as -I, also for headers of headers; a folder that -I names comes first."""
    root = tmp_path / "repository"
    for folder in (".git", "src/kernels", "third/party/include/own", "config"):
        (root / folder).mkdir(parents=True)
    (root / "third/party/include/own/values.h").write_text('#include "two.h"\n#define VALUE 1234567\n')
    (root / "config/two.h").write_text("#define AGAIN 2345678\n")
    path = root / "src/kernels/k.cu"
    path.write_text(
        "#include <vector>\n#include <own/values.h>\n"
        "__global__ void k(int* x) { x[0] = VALUE; x[1] = AGAIN; }\nint main() { std::vector<int> v; }\n"
    )

    def ptx(*include: str) -> str:
        (kernel,) = catalog.chosen(catalog.load_each(path), None, include)
        return compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / "cache")).ptx

    assert "1234567" in ptx() and "2345678" in ptx()
    (kernel,) = catalog.load_each(path)
    assert kernel.include == (str(root / "third/party/include"), str(root / "config"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/two.h").write_text("#define AGAIN 3456789\n")
    assert "3456789" in ptx(str(tmp_path / "mine"))
    (root / ".git").rename(root / "git")  # what lies outside of a repository is not searched
    with pytest.raises(BuildError, match="VALUE"):
        ptx()
