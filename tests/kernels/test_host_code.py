"""Kernels in files with host code: what is left out, what is not, and what their launches tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cli import main
from harness.errors import BuildError
from harness.kernels import catalog, text
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.cpp import brought, calls, includes
from harness.kernels.cpp.compilers import nvrtc
from harness.kernels.cpp.host import deduced, launches
from harness.kernels.cpp.source import items
from harness.support.cache import Cache

DEVICE = """\
#define SCALE 3
namespace own {
template <typename T> __device__ T scaled(T x) { return x * SCALE; }
}
struct Pair { float a, b; __host__ __device__ float sum() const { return a + b; } };
__constant__ float factors[4];
__global__ void scale(float* x, int n, Pair pair)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = own::scaled(x[i]) + pair.sum() * factors[i % 4];
}
"""
HOST = r"""
#include <cstdio>
#include <iostream>
#include <vector>
#include "timer_of_ours.h"
#define CHECK(call) do { if (call) { std::printf("}"); exit(1); } } while (0)
using namespace std;
static std::vector<float> values = {1, 2, 3};
const char* usage = "scale { n // not a comment";
/* } */
namespace own {
struct Timer {
    cudaEvent_t begin, end;
    Timer() : begin{}, end{} { cudaEventCreate(&begin); }
public:
    float stop() { float ms; cudaEventElapsedTime(&ms, begin, end); return ms; }
};
}
template <typename T>
void fill(std::vector<T>& x) { for (auto& y : x) y = rand() / (T)RAND_MAX; }
extern "C" int run(int n);
extern "C" int run(int n)
{
    float* x;
    CHECK(cudaMalloc(&x, n * sizeof(float)));
    const int threads = 128;
    dim3 grid((n + threads - 1) / threads), block(threads);
    auto launch = [&](Pair pair) { scale<<<grid, block>>>(x, n, pair); };
    launch(Pair{1, 2});
    return 0;
}
int main(int argc, char** argv) {
#ifdef TEST
    test();
#endif
    cout << usage << endl;
    return run(argc > 1 ? atoi(argv[1]) : 1 << 20);
}
"""


def compiled(folder: Path, source: str, name: str = "scale.cu") -> Cubin:
    path = folder / name
    path.write_text(source)
    (kernel,) = catalog.load_each(path)
    return compile_kernel(kernel.variant(), "sm_80", Cache(None))


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder: the only one in which CUDA's headers are looked for."""
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.setattr(includes, "libraries", lambda: (folder,))
    return folder


def refused(folder: Path, source: str) -> BuildError:
    with pytest.raises(BuildError) as caught:
        compiled(folder, source)
    return caught.value


@pytest.mark.parametrize("host_first", [False, True])
def test_device_code_is_what_it_is_alone(tmp_path: Path, host_first: bool) -> None:
    """Machine code, and its lines, are those of the file with the host code blanked by hand."""
    blank = re.sub(r"[^\n]", " ", HOST)
    # Host code before device code may not name what is declared there.
    alone, whole = (part + DEVICE if host_first else DEVICE + part for part in (blank, HOST))
    found = compiled(tmp_path, whole)
    assert found.code == compiled(tmp_path, alone).code
    assert found.warnings == (
        "Host code is left out: <iostream>, <vector>, values, usage, Timer, stop and 3 more\n"
        "Not found, and left out: <timer_of_ours.h>"
    )


def test_a_file_that_compiles_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = nvrtc.translate
    monkeypatch.setattr(nvrtc, "translate", lambda *args: seen.append(args) or real(*args))
    assert compiled(tmp_path, DEVICE + "struct Unused { int x; };").warnings == ""
    assert len(seen) == 1 and seen[0][4] == {}


@pytest.mark.parametrize(
    ("device", "line", "said"),
    [
        ("__global__ void k(float* x) { *x = y; }", 1, '"y" is undefined'),
        ("__device__ int f() { return cudaFree(0); }\n__global__ void k(int* x) { f(); }", 1, "cudaFree"),
        ("int f() { return 1; }\n__global__ void k(int* x) { f(); }", 1, "a host function"),
        ("struct P { std::vector<int> v; int n; };\n__global__ void k(P p) {}", 1, "error: "),
        ("static_assert(sizeof(int) == 8, \"eight\");\n__global__ void k(int* x) { *x = 1; }", 1, "eight"),
        ("#error no\n__global__ void k(int* x) { *x = 1; }", 1, "no"),
        ("struct D { __device__ int f(); std::list<int> v; };\n__global__ void k(D d) {}", 1, "error: "),
    ],
    ids=["undefined", "host-call", "unannotated", "member", "static-assert", "error", "class"],
)  # fmt: skip
def test_a_fault_in_device_code_is_told(tmp_path: Path, device: str, line: int, said: str) -> None:
    """And none of the host's, of which there are plenty."""
    error = refused(tmp_path, f"{device}\n{HOST.replace('scale<<<', 'k<<<')}")
    assert re.search(rf"scale\.cu\({line}\): .*{re.escape(said)}", error.log), error.log
    assert "argv" not in error.log and "cudaEventCreate" not in error.log and "<iostream>" not in error.log


def test_what_compiles_without_a_header_that_is_missing_is_tried(tmp_path: Path) -> None:
    """It might define what the kernel depends on, so it is named. Front matter makes it an error."""
    (tmp_path / ".git").mkdir()  # or other tests' folders are searched, which have such a header
    source = '#include "sizes.h"\n__global__ void k(int* x) { *x = SIZE; }\n'
    hosted = source + HOST.replace("scale<<<", "k<<<")
    for whole in (source, hosted):
        error = refused(tmp_path, whole)
        assert 'cannot open source file "sizes.h"' in error.log and '"SIZE" is undefined' in error.log
        assert "headers are looked for beside the kernel" in error.hint
        said = compiled(tmp_path, whole.replace("SIZE", "1")).warnings
        assert "Not found, and left out: <sizes.h>" in said
    front = "// K\n// /// kernel\n// entry = 'k'\n// block = [1]\n// tile = [1]\n// ///\n"
    error = refused(tmp_path, front + source.replace("SIZE", "1"))
    assert 'cannot open source file "sizes.h"' in error.log


def test_a_missing_header_of_a_library_of_the_host_is_the_hosts(tmp_path: Path) -> None:
    """Leave it out without host code beside it, too; what device code uses of it is told."""
    source = "#include <nvml.h>\n#include <stdbool.h>\n__global__ void k(bool* x) { *x = VALUE; }\n"
    assert "<nvml.h>, <stdbool.h>" in compiled(tmp_path, source.replace("VALUE", "true")).warnings
    assert 'cannot open source file "nvml.h"' in refused(tmp_path, source.replace("VALUE", "nvmlInit()")).log


def test_headers_of_ones_own_have_host_code_too(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    header = tmp_path / "own" / "lock.h"
    header.write_text(
        '#include "../report.h"\nstruct Lock { int* taken;\n  Lock() { cudaMalloc(&taken, 4); }\n'
        "  __device__ int get() { return *taken; } };\n"
    )
    (tmp_path / "report.h").write_text("#include <string>\nstd::string report(int code) { return {}; }\n")
    found = compiled(
        tmp_path, '#include "own/lock.h"\n__global__ void k(int* x, Lock lock) { *x = lock.get(); }\n'
    )
    assert found.warnings == "Host code is left out: <string>, Lock, report"
    assert str(header) in found.ptx, "the lines are still the header's own"
    header.write_text(header.read_text().replace("return *taken", "return *given"))
    with pytest.raises(BuildError, match=r"lock\.h\(4\): error: identifier \"given\" is undefined"):
        compiled(
            tmp_path, '#include "own/lock.h"\n__global__ void k(int* x, Lock lock) { *x = lock.get(); }\n'
        )


def test_a_header_with_host_code_keeps_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub/a.h").write_text(
        '#include "b.h"\n#include "deep/c.h"\ninline std::vector<int> host() { return {}; }\n'
    )
    (tmp_path / "sub/b.h").write_text("#define VALUE 1234567\n")
    (tmp_path / "sub/deep/c.h").write_text('#include "../b.h"\nvoid also() { std::string s; }\n')
    source = '#include "sub/a.h"\n__global__ void k(int* x) { *x = VALUE; }\n'
    assert "1234567" in compiled(tmp_path, source).ptx
    (tmp_path / "sub/b.h").unlink()
    assert "b.h" in refused(tmp_path, source).log


@pytest.mark.parametrize(
    "parameter",
    ["uint", "ushort", "uchar", "cufftReal", pytest.param("uint32_t", id="of a header that was left out")],
)
def test_names_that_host_headers_bring_along(tmp_path: Path, parameter: str) -> None:
    body = f"#include <iostream>\n__global__ void k({parameter}* x) {{ *x = 1; }}\n"
    assert compiled(tmp_path, body).resources.registers


def test_of_a_library_for_the_host_the_include_goes(tmp_path: Path, lib: Path) -> None:
    """Its errors lie in a header that the include leads to."""
    (lib / "cublas_v2.h").write_text("#include <cublas_api.h>\n")
    (lib / "cublas_api.h").write_text("int cublasCreate(void**);\n")
    source = "#include <cublas_v2.h>\n__global__ void k(int* x) { *x = 1; }\n"
    assert compiled(tmp_path, source).warnings == "Host code is left out: <cublas_v2.h>"
    (lib / "own.h").write_text("#include <cublas_api.h>\n")
    assert "cublas_api.h(1): error" in refused(tmp_path, source.replace("cublas_v2", "own")).log, (
        "a stranger's"
    )


@pytest.mark.slow
@pytest.mark.skipif(not includes.libraries(), reason="CUDA's headers are not installed")
def test_a_library_that_fails_by_an_error_of_the_file_is_kept(tmp_path: Path) -> None:
    """After what does not parse, a constant is skipped, and a template of the library has no argument."""
    source = (
        "#include <cub/cub.cuh>\nvoid f(Missing* t) {\n g(t);\n}\n\nconst int size = 64;\n"
        "__global__ void k(float* x) { using Sum = cub::BlockReduce<float, size>;\n"
        "__shared__ typename Sum::TempStorage s; *x = Sum(s).Sum(*x); }\n"
    )
    assert compiled(tmp_path, source).warnings == "Host code is left out: f"


@pytest.mark.parametrize(
    "host",
    [
        "#include <torch/extension.h>\nvoid f(torch::Tensor x) {}",
        '#include "bindings_of_ours.h"\n#define RUN(x) \\\n  scale<<<1, 128>>>(x)',
        '#include "bindings_of_ours.h"\nPYBIND11_MODULE(m, n) { n.def("f", &f); }',
        '#include "bindings_of_ours.h"\nvoid f(int* x) { scale << <1, 128 >> > (x); }',
        "#include <sys/time.h>\n#include <memory.h>\n#include <iostream>\n#include <vector>",
    ],
)
def test_headers_of_the_host_are_left_out(tmp_path: Path, host: str) -> None:
    assert compiled(tmp_path, f"{host}\n__global__ void k(int* x) {{ *x = 1; }}\n").resources.registers
    error = refused(tmp_path, f"{host}\n__global__ void k(int* x) {{ *x = SIZE; }}\n")
    assert "SIZE" in error.log


def test_all_headers_that_are_missing_go_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the second kernel of a file begins with what was left out for the first."""
    calls = []
    translate = nvrtc.translate

    def counted(*given: Any) -> nvrtc.Translation:
        calls.append(given[2])
        return translate(*given)

    monkeypatch.setattr(nvrtc, "translate", counted)
    lines = "".join(f"#include <{name}>\n" for name in ("iostream", "vector", "sys/time.h", "torch/a.h"))
    path = tmp_path / "two.cu"
    path.write_text(
        f"{lines}__global__ void a(int* x) {{ *x = 1; }}\n__global__ void also(int* x) {{ *x = 3; }}\n"
        "template <typename T> __global__ void b(T* x) { *x = 2; }\n"
    )
    for kernel in catalog.load_each(path):
        cubin = compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / kernel.name))
        assert "<torch/a.h>" in cubin.warnings
        assert cubin.entry in cubin.ptx and cubin.resources.registers
    assert calls == ["a", "a", "b<float>"], "the code of `a` has that of `also`"


def test_device_code_takes_std_from_cuda(tmp_path: Path, lib: Path) -> None:
    """Where its standard library is installed, and of what it has."""
    folder = lib / "cuda" / "std"
    folder.mkdir(parents=True)
    (folder / "limits").write_text(
        "namespace cuda { namespace std { template <class T> struct numeric_limits\n"
        "{ static constexpr __device__ T max() { return 7; } }; } }\n"
    )
    (lib / "runtime_of_cuda.h").write_text("#pragma once\n")
    source = (
        "#include <runtime_of_cuda.h>\n#include <limits>\n#include <cmath>\n"
        "__global__ void k(int* x) { *x = std::numeric_limits<int>::max(); }\n"
    )
    assert compiled(tmp_path, source).warnings == "Host code is left out: <limits>"
    (folder / "type_traits").touch()  # nvcc has its library without any header of CUDA
    assert compiled(tmp_path, source.partition("\n")[2]).warnings == "Host code is left out: <limits>"
    error = refused(tmp_path, source.replace("numeric_limits<int>::max", "accumulate"))
    assert 'no member "accumulate"' in error.log
    (folder / "limits").unlink()
    assert "numeric_limits" in refused(tmp_path, source).log


@pytest.mark.parametrize(
    ("helper", "kernel", "count"),
    [
        ("int total(const std::vector<int>& x) { return std::max(x[0], 1); }", "*x = 1", 0),
        ("constexpr int TOP = std::max(2, 1);", "*x = 1", 0),
        ("constexpr int TOP = std::max(2, 1);", "*x = TOP", 1),
        ("constexpr int TOP = std::max(2, 1);\nstruct Top { int x[TOP]; };", "*x = Top{}.x[0]", 1),
        ("constexpr int TOP = std::max(2, 1);\n#define MOST TOP", "*x = 1", 1),  # it may be used
        ("constexpr int TOP = std::max(2, 1), LOW = 1;", "*x = LOW", 1),
        ("enum { LOW = 1, TOP = std::max(2, 1) };", "*x = LOW", 1),
    ],
)
def test_what_only_the_host_uses_takes_no_std_from_cuda(
    tmp_path: Path, lib: Path, monkeypatch: pytest.MonkeyPatch, helper: str, kernel: str, count: int
) -> None:
    (lib / "cuda/std").mkdir(parents=True)
    (lib / "cuda/std/type_traits").touch()
    (lib / "cuda/std/algorithm").write_text(
        "namespace cuda { namespace std {\n"
        "__host__ __device__ constexpr int max(int a, int b) { return a > b ? a : b; } } }\n"
    )
    asked, of_std = list[str](), brought.of_std

    def of_cuda(log: str, folders: Any) -> list[str]:
        asked.extend(found := list(of_std(log, folders)))
        return found

    monkeypatch.setattr(brought, "of_std", of_cuda)
    source = f"#include <vector>\n{helper}\n__global__ void k(int* x) {{ {kernel}; }}\n"
    compiled(tmp_path, source)
    assert len(asked) == count


@pytest.mark.parametrize(
    ("header", "name", "used"),
    [("cmath", "log1p", "*x = std::log1p(1)"), ("cstddef", "size_t", "std::size_t n = 3; *x = n")],
)
def test_functions_and_sizes_of_std(tmp_path: Path, lib: Path, header: str, name: str, used: str) -> None:
    folder = lib / "cuda" / "std"
    folder.mkdir(parents=True)
    what = "__device__ int log1p(int x) { return x; }" if name == "log1p" else "typedef int size_t;"
    (folder / header).write_text(f"namespace cuda {{ namespace std {{ {what} }} }}\n")
    (lib / "runtime_of_cuda.h").write_text("#pragma once\n")
    source = f"#include <runtime_of_cuda.h>\n#include <map>\n__global__ void k(int* x) {{ {used}; }}\n"
    assert compiled(tmp_path, source).warnings == "Host code is left out: <map>"
    assert name in refused(tmp_path, source.replace(name, f"{name}_")).log


def test_the_word_for_asm_of_gnu(tmp_path: Path) -> None:
    source = """__global__ void k(int* x) { __asm__ __volatile__("mov.u32 %0, 7;" : "=r"(*x)); }\n"""
    assert "mov.u32" in compiled(tmp_path, source).ptx
    assert "__asm_" in refused(tmp_path, source.replace("__asm__", "__asm_")).log


def test_words_that_only_older_cpp_has(tmp_path: Path) -> None:
    source = "__global__ void k(int* x) { register int i = *x; x[1] = i; }\n"
    assert compiled(tmp_path, source).resources.registers
    assert "registered" in refused(tmp_path, source.replace("register", "registered")).log


def test_a_kernel_that_is_declared_with_other_parameters_too(tmp_path: Path) -> None:
    """Give one of two declarations a body, and have host code left out for a reason of its own."""
    source = (
        '#include "of_the_host.h"\n__global__ void k(int* x, float y);\n'
        "__global__ void k(int* x) { *x = 1; }\nint main() { k<<<1, 1>>>(x); }\n"
    )
    assert compiled(tmp_path, source).warnings.endswith("Not found, and left out: <of_the_host.h>")
    twice = "#define TWO(T) __global__ void k(T* x) { *x = 2; }\n" + source.replace(
        "y);", "y);\nTWO(char)", 1
    )
    assert "no kernel called 'k'" in str(refused(tmp_path, twice))


def test_types_that_headers_of_the_host_bring_along(tmp_path: Path, lib: Path) -> None:
    """As cuBLAS's headers bring bfloat16. A file without host code lacks it."""
    (lib / "cuda_bf16.h").write_text("struct __nv_bfloat16 { unsigned short x; };\n")
    (lib / "runtime_of_cuda.h").write_text("struct __nv_bfloat16;\n")
    kernel = "#include <runtime_of_cuda.h>\n__global__ void k(__nv_bfloat16* x) { x->x = 1; }\n"
    assert compiled(tmp_path, f"#include <vector>\n{kernel}").warnings == "Host code is left out: <vector>"
    assert "incomplete" in refused(tmp_path, kernel).log


def test_a_class_with_an_alignment_keeps_its_device_code(tmp_path: Path) -> None:
    """And of one that went, with what it needs of the host, the reason is told."""
    source = (
        "#include <vector>\ntemplate <class T> struct alignas(sizeof(T) * 2) Pair {\n  T a, b;\n"
        "  void show() { printf_of_host(a); }\n  __device__ T sum() { return a + b; }\n};\n"
        "__global__ void k(int* x, Pair<int> p) { *x = p.sum(); }\n"
    )
    assert compiled(tmp_path, source).warnings == "Host code is left out: <vector>, show"
    plain = source.replace("__device__ T", "T").replace("T a, b;", "T a, b; std::pair<T> c;")
    assert "scale.cu(3): error: qualified name is not allowed" in refused(tmp_path, plain).log


def test_a_tensor_map_needs_no_driver_header(tmp_path: Path, lib: Path) -> None:
    (lib / "cuda.h").write_text("struct alignas(64) CUtensorMap { int x[32]; };\nint cuInit(int);\n")
    (lib / "cudaTypedefs.h").write_text("#include <cuda.h>\n")
    source = "__global__ void k(const __grid_constant__ CUtensorMap map, void** x) { *x = (void*)&map; }\n"
    found = compiled(tmp_path, f"#include <cudaTypedefs.h>\n{source}")
    assert "[128]" in found.ptx and "align 64" in found.ptx
    assert "CUtensorMp" in refused(tmp_path, f"#include <cuda.h>\n{source.replace('Map map', 'Mp map')}").log
    declared = "typedef struct CUtensorMap_st CUtensorMap;\n"  # as <cuda/barrier> does it
    assert "[128]" in compiled(tmp_path, f"#include <cuda.h>\n{declared}{source}").ptx
    assert "[128]" in compiled(tmp_path, f"{declared}{source}").ptx


def test_a_header_of_the_files_own_may_be_called_as_those_of_cuda(tmp_path: Path, lib: Path) -> None:
    """Leave out what leads to the driver's functions, and nothing else that stands in it."""
    (lib / "cuda.h").write_text("int cuInit(int);\n")
    (tmp_path / "cudaSquare.h").write_text(
        "#include <cuda.h>\n__device__ int square(int x) { return x * x; }\n"
    )
    source = '#include "cudaSquare.h"\n__global__ void k(int* x) { *x = square(*x); }\n'
    assert compiled(tmp_path, source).warnings == "Host code is left out: <cuda.h>"
    assert "squared" in refused(tmp_path, source.replace("square(", "squared(")).log


# -- texts


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("int f();", [("f", True)]),
        ("int x = 3; float y[2] = {1, 2};", [("x", True), ("y", True)]),
        ("__device__ int f() { return 1; } void g() { }", [("f", False), ("g", True)]),
        ("namespace a { namespace b { void f() {} } } void g();", [("f", True), ("g", True)]),
        ("extern \"C\" { void f(); } extern \"C\" void g() {}", [("f", True), ("g", True)]),
        ("struct alignas(8) S { int a; }; class __align__(4) T { int a; };", [("S", True), ("T", True)]),
        ("struct S { int a; void f() {} }; enum E { A, B };", [("S", True), ("E", True)]),
        ("template <class T> struct V { T x; }; template <int N> void f() {}", [("V", True), ("f", True)]),
        ("template <int N = 3> __global__ void k() {} void g() {}", [("k", False), ("g", True)]),
        ("template <class T, class = If<(sizeof(T) == 4)>> struct V { T x; };", [("V", True)]),
        ("// f() {\nvoid g() { \"}\"; '}'; /* } */ }\n#define X {\nvoid h() {}", [("g", True), ("h", True)]),
        ("__shared__ int x; static_assert(1, \"\");", [("x", False), ("static_assert", False)]),
        ("auto f = [](int x) { return x; }; void g() {}", [("f", True), ("g", True)]),
        ("void f() {", [("f", True)]),
        ("}}} void f() {} ]) ;", [("f", True)]),
    ],
)  # fmt: skip
def test_declarations_of_a_text(source: str, expected: list[tuple[str, bool]]) -> None:
    plain = text.blank(source)
    found = [(item.name, item.host) for item in items.items(plain, 0, len(plain))]
    assert [one for one in found if one[0]] == expected


PIECES = ["struct S ", "namespace ", "void f", "<<<", ">>>", "\n", *"(){}[];:,<>='/*#", '"', " "]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text_is_taken_apart(source: str) -> None:
    plain = text.blank(source)
    assert len(plain) == len(source)
    end = 0
    for item in items.items(plain, 0, len(plain)):
        assert end <= item.begin < item.end <= len(plain)
        end = item.end
    launches.launches(source)


@pytest.mark.parametrize(
    ("host", "block", "grid", "shared"),
    [
        ("k<<<4, 256>>>(x);", (256,), (4,), 0),
        ("k<<<dim3(2, 3), dim3(16, 8, 2), 1 << 10>>>(x);", (16, 8, 2), (2, 3), 1024),
        ("const int n = 1000, t = 128; k<<<(n + t - 1) / t, t, t * sizeof(float)>>>(x);", (128,), (8,), 512),
        ("dim3 block(8, 8), grid = dim3(1, 1); k<<<grid, block>>>(x);", (8, 8), (1, 1), 0),
        ("dim3 block{8, 8}; k<<<1, block, 0, stream>>>(x);", (8, 8), (1,), 0),
        ("int t = 64; t = 96; k<<<1, t>>>(x); t = 32;", (96,), (1,), 0),
        ("int t = 64; t *= 2; k<<<1, t>>>(x);", (), (1,), 0),
        ("k<<<blocks(n), T>>>(x);", (192,), (), 0),
        ("int a = b, b = a; k<<<a, argc, bytes(a)>>>(x);", (), (), None),
        ("dim3 b, g; b.x = 32; b.y = 4; g.x = 7; k<<<g, b>>>(x);", (32, 4, 1), (7, 1, 1), 0),
        ("dim3 b(8, 8); b.x = 32; k<<<1, b>>>(x);", (8, 8), (1,), 0),
        ("k<<<0, -1>>>(x);", (), (), 0),
        ("k << <1, 64 >> > (x);", (64,), (1,), 0),
        ("k<<<1, 2, 3", (), (), 0),
    ],
)
def test_a_launch_is_read(host: str, block: Any, grid: Any, shared: Any) -> None:
    source = "#define T 192 // threads\n__global__ void k(int* x) {}\nint main() {\n" + host + "\n}"
    found = launches.launches(source)
    if not host.endswith(";"):
        assert found == []
        return
    assert found == [launches.Launch(entry="k", line=4, block=block, grid=grid, shared=shared)]
    assert (launches.of(source, "k") is None) == (block == ())


def test_template_arguments_may_be_true_or_false() -> None:
    source = "int main() { const bool twice = true; k<64, twice, false><<<1, 64>>>(x); }"
    (launched,) = deduced.launched(source, text.Entry(name="k", parameters=()))
    assert launched == (["64", "1", "0"], {})


def test_a_kernel_is_launched_as_host_code_does(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "template <typename T, int N> __global__ void k(T* x, int n)\n"
        "{ extern __shared__ float s[]; s[threadIdx.x] = 1; x[threadIdx.x] = s[threadIdx.x ^ 1]; }\n"
        "__global__ void plain(float* x) { x[threadIdx.x] = 1; }\n"
        "__global__ void unknown(float* x) { x[threadIdx.x] = 1; }\n"
        "constexpr int THREADS = 64;\n"
        "void run(float* x, int n) { const int W = 4; k<float, 2 * W><<<1, THREADS, THREADS * 4>>>(x, n);\n"
        "  k<double, sizeof(x)><<<1, 32>>>(x, n); plain<<<n, 32 * W>>>(x); unknown<<<1, n>>>(x); }\n"
    )
    found = {kernel.entry: kernel for kernel in catalog.load_each(path)}
    assert list(found) == ["k<float, 8>", "plain", "unknown"]
    first = found["k<float, 8>"].variant()
    assert (first.block, first.shared) == ((64, 1, 1), 256)
    assert [str(e) for e in first.kernel.grid] == ["1"] and not found["plain"].grid
    assert found["plain"].variant().block == (128, 1, 1) and found["unknown"].variant().block == (256, 1, 1)
    assert calls.launchable(found["k<float, 8>"]).variant().shared == 256
    assert compile_kernel(first, "sm_80", Cache(None)).entry.startswith("_Z1kIfLi8EE")


def test_the_launch_is_told_unless_the_block_is_given(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(float* x) { x[threadIdx.x] = 1; }\nint main() { k<<<1, 64>>>(0); }\n")

    def checked(*options: str) -> str:
        result = CliRunner().invoke(main, ["check", str(path), *options], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        assert result.stderr == "Host code is left out: main\n"
        return result.stdout

    assert "--grid 1,1,1 --block 64,1,1 -a x=1024 (block and grid as in line 2)" in checked()
    assert "line 2" not in checked("--block", "32")
    assert "-a x=1024 (block as in line 2)" in checked("--grid", "3")


def test_what_only_host_code_uses_is_no_warning(tmp_path: Path) -> None:
    device = "constexpr int B = 64;\n__global__ void k(int* x) { *x = 1; }\n"
    assert compiled(tmp_path, device + "int main() { k<<<1, B>>>(0); }\n").warnings == (
        "Host code is left out: main"
    )
    other = device.replace("*x = 1", "int y; *x = y")
    assert "used before its value" in compiled(tmp_path, other + "int main() { k<<<1, B>>>(0); }\n").warnings


def test_a_file_that_does_not_compile_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other kernels have the same errors: dozens of them took a minute to say so."""
    counted = []
    real = nvrtc.translate
    monkeypatch.setattr(nvrtc, "translate", lambda *a: (counted.append(a[2]), real(*a))[1])
    path = tmp_path / "k.cu"
    path.write_text(
        "#include <vector>\nint host() { return std::vector<int>(3).size(); }\n"
        "#error nothing\n"
        "__global__ void a(int* x) { *x = 1; }\n__global__ void b(int* x) { *x = 2; }\n"
    )
    said = []
    for kernel in catalog.find(str(path)):
        with pytest.raises(BuildError) as e:
            compile_kernel(kernel.variant(), "sm_90a", Cache(tmp_path / "cache"))
        said.append(str(e.value))
    assert all("#error" in one for one in said) and len(said) == 2
    assert "b" not in counted


@pytest.mark.parametrize(
    ("condition", "asked"),
    [
        ("#ifdef WITH_LIBRARY", "WITH_LIBRARY"),
        ("#if WITH_LIBRARY\n#ifndef OTHER\n#if 1\n#endif", "WITH_LIBRARY"),
        ("#define MODE 2\n#if MODE == 1", "NAME"),
    ],
)
def test_a_kernel_in_a_branch_that_is_not_compiled_is_told(
    tmp_path: Path, condition: str, asked: str
) -> None:
    path = tmp_path / "k.cu"
    open_ones = "#endif\n" * (condition.count("#if") - condition.count("#endif"))
    path.write_text(f"{condition}\n__global__ void k(int* x) {{ *x = 1; }}\n{open_ones}")
    (kernel,) = catalog.find(str(path))
    with pytest.raises(BuildError, match=f"its #if or #ifdef leaves it out: -p {asked}=1"):
        compile_kernel(kernel.variant(), "sm_90a", Cache(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("macro", "said"),
    [
        ("template void Host::run<T>(T* x);", "Host code is left out: <vector>, Host, DECLARE"),
        (
            "__global__ void made_##T(T* x) { *x = lost; }",
            "is left out: own::made_float, own::made_double",
        ),
    ],
)
def test_macros_that_are_called_last_may_be_of_host_code(tmp_path: Path, macro: str, said: str) -> None:
    """Explicit instances for a member of a class that only the host has, without a semicolon."""
    path = tmp_path / "k.cu"
    path.write_text(
        "#include <vector>\nnamespace own {\nstruct Host { std::vector<int> x; "
        "template <class T> void run(T*); };\n"
        f"__global__ void k(int* x) {{ *x = 1; }}\n#define DECLARE(T) \\\n  {macro}\n"
        "  DECLARE(float)\n  DECLARE(double)\n}\n"
    )
    kernel = next(kernel for kernel in catalog.find(str(path)) if kernel.entry == "own::k")
    assert said in compile_kernel(kernel.variant(), "sm_90a", Cache(tmp_path / "cache")).log


def test_an_empty_statement_in_a_class_is_no_member(tmp_path: Path) -> None:
    """The class, whose constructor is the host's, keeps its data."""
    source = """struct P {
  float x;
  P(float a = 0) : x(a) {};
};
__global__ void k(P* p) { p[threadIdx.x].x = 2; }
template <class T> void run(T* x) { k<<<1, 32>>>((P*)x); }
template void run<float>(float*);
"""
    (tmp_path / "a.cu").write_text(source)
    result = CliRunner().invoke(main, ["check", str(tmp_path / "a.cu")])
    assert result.exit_code == 0 and "Host code is left out: P, run\n" in result.output
