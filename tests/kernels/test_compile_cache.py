"""Compiling without a GPU: when the cache answers instead."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.errors import BuildError
from harness.kernels import catalog, compiler, spec
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.cpp.compilers import nvrtc
from harness.support.cache import Cache
from shared import sweeps
from shared.compiling import INDEXED, KERNEL, NO_CACHE, Write, compile_file


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize("language", ["cuda", "ptx"])
def test_the_second_build_compiles_nothing(
    kernel_file: Write, ptx_file: Write, store: Cache, compiled: list[str], language: str
) -> None:
    path = kernel_file() if language == "cuda" else ptx_file()
    first = compile_file(path, cache=store)
    second = compile_file(path, cache=Cache(store.root))
    assert len(compiled) == 1
    assert second == first
    assert first.code[:4] == b"\x7fELF"


def test_what_makes_another_build(kernel_file: Write, store: Cache, compiled: list[str]) -> None:
    builds: list[Cubin] = []

    def build_one(path: Path, arch: str = "sm_80", **params: int) -> None:
        builds.append(compile_file(path, arch, store, **params))
        assert len(compiled) == len(builds), "came from the cache"

    build_one(path := kernel_file())
    build_one(path, TILE=8)
    build_one(path, TILE=7)
    build_one(path, "sm_86")
    build_one(path, "sm_90")
    build_one(path, "sm_90a")
    text = path.read_text()
    path.write_text(text.replace("float sum = 0;", "float sum = 1;"))
    build_one(path)
    path.write_text(text + "\n")
    build_one(path)  # the front matter and the comments are part of the lines
    build_one(kernel_file("other.cu"))  # its line table names another file
    path.write_text(text)
    compile_file(path, cache=store)
    assert len(compiled) == len(builds)


def test_options_and_compiler_are_part_of_the_key(
    kernel_file: Write, store: Cache, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kernel_file()
    compile_file(path, cache=store)
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "--use_fast_math"))
    compile_file(path, cache=store)
    assert len(compiled) == 2
    monkeypatch.setattr(compiler, "compiler_version", lambda _language: "NVRTC 99.0")
    assert compile_file(path, cache=store).compiler == "NVRTC 99.0"
    assert len(compiled) == 3


def test_another_entry_is_another_build(kernel_file: Write, store: Cache) -> None:
    """Each of two kernels in one file has its own resources."""
    body = INDEXED + KERNEL.replace("matmul", "second").replace("VALUE", "1")
    path = kernel_file(body=body)
    stack = [compile_file(path, cache=store).resources.stack]
    path.write_text(path.read_text().replace('entry = "matmul"', 'entry = "second"'))
    stack.append(compile_file(path, cache=store).resources.stack)
    assert stack == [256, 0]


HEADERS = {
    "direct": {"k.cu": '#include "a.h"', "a.h": "{value}"},
    "recursive": {"k.cu": '#include "a.h"', "a.h": '#include "b.h"', "b.h": "{value}"},
    "spaces": {"k.cu": '  #  include  "a.h"', "a.h": "{value}"},
    "after-comment": {"k.cu": '/* x */ #include "a.h"', "a.h": "{value}"},
    "angle-brackets": {"k.cu": "#include <a.h>", "a.h": "{value}"},
    "subfolder": {"k.cu": '#include "sub/a.h"', "sub/a.h": '#include "b.h"', "sub/b.h": "{value}"},
    "up-again": {"k.cu": '#include "sub/a.h"', "sub/a.h": '#include "b.h"', "b.h": "{value}"},
    "parent": {"k/k.cu": '#include "../a.h"', "a.h": "{value}"},
    "latin-1": {"k.cu": '#include "a.h"', "a.h": "// caf\xe9\n{value}"},
    "guarded-circle": {"k.cu": '#include "a.h"', "a.h": '#pragma once\n#include "a.h"\n{value}'},
}


@pytest.mark.parametrize("files", HEADERS.values(), ids=HEADERS)
def test_a_changed_header_is_another_build(
    kernel_file: Write, tmp_path: Path, store: Cache, compiled: list[str], files: dict[str, str]
) -> None:
    (kernel, include), *headers = files.items()
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
    path = kernel_file(kernel, body=f"{include}\n{KERNEL}")

    def build_with(value: str) -> str:
        for name, text in headers:
            defined = text.replace("{value}", f"#define VALUE {value}\n")
            (tmp_path / name).write_text(defined, encoding="latin-1")
        return compile_file(path, cache=store).ptx

    assert "0f3F800000" in build_with("1.0f")
    assert "0f40000000" in build_with("2.0f")
    assert len(compiled) == 2
    assert "0f3F800000" in build_with("1.0f")
    assert len(compiled) == 2


def test_headers_lie_beside_the_file_that_includes_them(
    kernel_file: Write, tmp_path: Path, store: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like nvcc. NVRTC, left to itself, takes what the working directory holds under the same name."""
    for folder, value in (("cwd", "1.0f"), ("k", "2.0f"), ("k/sub", "3.0f")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(f"#define VALUE {value}\n")
    (tmp_path / "k" / "sub" / "a.h").write_text('#include "value.h"\n')
    monkeypatch.chdir(tmp_path / "cwd")
    assert "0f40000000" in compile_file(kernel_file("k/k.cu", body='#include "value.h"\n' + KERNEL)).ptx
    assert "0f40400000" in compile_file(kernel_file("k/k.cu", body='#include "sub/a.h"\n' + KERNEL)).ptx


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sweeps.sweep(
        ["15_split_k", "16_pipeline", "21_mma_sync", "29_wgmma_grid_split"],
        lambda name: name == "21_mma_sync",
    ),
)
def test_a_copy_of_a_rung_finds_the_ladders_headers(tmp_path: Path, store: Cache, name: str) -> None:
    """The code is the same, so it is found in the cache under its own name only."""
    rung = catalog.kernel(name)
    copy = tmp_path / "mine.cu"
    copy.write_text(rung.path.read_text())
    assert "#include" in rung.source
    resources = [
        compiler.compile_kernel(spec.load(p).variant(), "sm_90a", store).resources for p in (rung.path, copy)
    ]
    assert resources[0] == resources[1] and resources[0].registers > 30


def test_headers_beside_a_copy_come_before_the_ladders(
    kernel_file: Write, tmp_path: Path, store: Cache, compiled: list[str]
) -> None:
    """Under a name that the ladder has, too, however it is reached; and a change of either is seen."""
    path = kernel_file(body='#include "stage.cuh"\n' + KERNEL)
    for value, expected in (("1.0f", "0f3F800000"), ("2.0f", "0f40000000")):
        (tmp_path / "stage.cuh").write_text(f"#define VALUE {value}\n")
        assert expected in compile_file(path, cache=store).ptx
    assert len(compiled) == 2


def test_a_header_beside_a_linked_file(
    kernel_file: Write, tmp_path: Path, store: Cache, compiled: list[str]
) -> None:
    """A symbolic link stands for its target, whose folder has the headers."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "value.h").write_text("#define VALUE 1.0f\n")
    link = tmp_path / "link.cu"
    link.symlink_to(kernel_file("real/k.cu", body='#include "value.h"\n' + KERNEL))
    compile_file(link, cache=store)
    (tmp_path / "real" / "value.h").write_text("#define VALUE 2.0f\n")
    assert "0f40000000" in compile_file(link, cache=store).ptx
    assert len(compiled) == 2


def test_many_headers_that_include_each_other(kernel_file: Write, tmp_path: Path) -> None:
    """Each is read once: 2^30 ways lead through these."""
    for i in range(30):
        (tmp_path / f"h{i}.h").write_text(f'#pragma once\n#include "h{i + 1}.h"\n#include "./h{i + 1}.h"\n')
    (tmp_path / "h30.h").write_text("#define VALUE 1.0f\n")
    assert "0f3F800000" in compile_file(kernel_file(body='#include "h0.h"\n' + KERNEL)).ptx


@pytest.mark.parametrize("name", ["kernel.cu", "kernel.cubin", "compiled.ptx", "log.txt", "manifest.json"])
def test_a_torn_entry_is_built_again(
    kernel_file: Write, store: Cache, compiled: list[str], name: str
) -> None:
    path = kernel_file()
    first = compile_file(path, cache=store)
    assert store.root is not None
    (file,) = store.root.rglob(name)
    file.write_bytes(file.read_bytes()[:-5])
    again = compile_file(path, cache=store)
    assert (again.code, again.ptx, again.resources) == (first.code, first.ptx, first.resources)
    assert len(compiled) == 2
    assert compile_file(path, cache=store) == again
    assert len(compiled) == 2


def test_an_entry_that_lacks_a_file_is_not_taken(kernel_file: Write, store: Cache) -> None:
    """Whole by its own account, and still no build: written by another version, say."""
    path = kernel_file()
    first = compile_file(path, cache=store)
    assert store.root is not None
    (file,) = store.root.rglob("kernel.cubin")
    shutil.rmtree(file.parent)
    store.put(file.parent.name, {"kernel.cubin": b"old"})
    assert compile_file(path, cache=store).code == first.code


def test_a_failed_build_is_not_kept(kernel_file: Write, store: Cache, compiled: list[str]) -> None:
    for body in ("int f( {", KERNEL.replace("matmul", "other").replace("VALUE", "1")):
        path = kernel_file(body=body)
        for _ in range(2):
            with pytest.raises(BuildError):
                compile_file(path, cache=store)
    assert len(compiled) == 4


def test_a_cached_warning_names_the_file_as_it_is_given_now(
    kernel_file: Write, tmp_path: Path, store: Cache, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    path = kernel_file(body=KERNEL.replace("{\n", "{\n    int unused;\n").replace("VALUE", "1"))
    (tmp_path / "sub").mkdir()
    for folder, given in ((".", "mine.cu"), ("sub", "../mine.cu"), (".", str(path))):
        monkeypatch.chdir(tmp_path / folder)
        assert compile_file(given, cache=store).warnings.startswith(f"{given}(")
    assert len(compiled) == 1


def test_an_unusable_cache_compiles_all_the_same(kernel_file: Write, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot use the cache"):
        store = Cache(tmp_path / "file")
    assert compile_file(kernel_file(), cache=store).code == compile_file(kernel_file()).code


@pytest.mark.slow
def test_eight_threads_at_once(kernel_file: Write, ptx_file: Write, tmp_path: Path) -> None:
    kernel, ptx = spec.load(kernel_file()), spec.load(ptx_file())
    work = [(kernel.variant(TILE=tile), arch) for tile in (16, 8) for arch in ("sm_80", "sm_90a")]
    work = [*work, (ptx.variant(), "sm_80")] * 8
    one_by_one = [compile_kernel(v, a, NO_CACHE).code for v, a in work[:5]] * 8
    shared = Cache(tmp_path / "shared")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda job: compile_kernel(*job, NO_CACHE).code, work)) == one_by_one
        assert list(pool.map(lambda job: compile_kernel(*job, shared).code, work)) == one_by_one
    assert len(set(one_by_one)) == 5
