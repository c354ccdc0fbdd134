"""What travels with a unit: a kernel's files in their places, and its builds, made on one machine only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness import kernel
from harness.errors import BuildError
from harness.fleet.parcel import parcel
from harness.fleet.units import FOLDER
from harness.kernels import catalog, compiler
from harness.kernels.compiler import compile_kernel, portable
from harness.support.cache import Cache
from shared.kernels import BODY

FRONT = '// /// kernel\n// entry = "matmul"\n// block = [16, 16]\n// tile = [16, 16]\n{}// ///\n'
ARCH = "sm_90"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A kernel of one's own: a header beside it, one in a folder that it names, and one in a folder of -I."""
    place = tmp_path / "work" / "kernels"
    for folder in (place, tmp_path / "work" / "common", tmp_path / "work" / "given"):
        folder.mkdir(parents=True)
    (place / "tile.h").write_text("#define TILE SIZE\n")
    (tmp_path / "work" / "common" / "size.h").write_text('#include "given.h"\n')
    (tmp_path / "work" / "given" / "given.h").write_text("#define SIZE 16\n")
    text = FRONT.format('// include = ["../common"]\n') + '#include "size.h"\n#include "tile.h"\n' + BODY
    (place / "mine.cu").write_text(text)
    return place / "mine.cu"


def packed(path: Path, cache: Cache, include: list[str]) -> Any:
    (loaded,) = catalog.chosen([kernel(str(path))], None, include)
    compile_kernel(loaded.variant(), ARCH, cache)
    return parcel([loaded.variant()], ARCH, cache, include)


def unpacked(found: Any, folder: Path) -> tuple[Path, list[str]]:
    for name, data in found.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    include = [word.replace(FOLDER, str(folder)) for word in found.include]
    return Path(found.word.replace(FOLDER, str(folder))), include


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise BuildError("compiled again")

    monkeypatch.setattr(compiler, "_nvrtc", refuse)


def test_a_shipped_kernel_goes_by_its_name(tmp_path: Path) -> None:
    variant = kernel("tiled").variant()
    cache = Cache(tmp_path / "cache")
    compile_kernel(variant, ARCH, cache)
    found = parcel([variant], ARCH, cache)
    assert (found.word, found.include, found.files) == ("03_tiled", (), {})
    ((key, entry),) = found.cubins.items()
    assert entry["kernel.cubin"].startswith(b"\x7fELF") and len(key) == 64


def test_ones_own_kernel_compiles_elsewhere_from_what_it_takes_along(tmp_path: Path, mine: Path) -> None:
    found = packed(mine, Cache(tmp_path / "a"), [str(tmp_path / "work" / "given")])
    assert sorted(found.files) == ["common/size.h", "given/given.h", "kernels/mine.cu", "kernels/tile.h"]
    path, include = unpacked(found, tmp_path / "elsewhere")
    mine.parent.rename(tmp_path / "gone")
    (loaded,) = catalog.chosen([kernel(str(path))], None, include)
    assert compile_kernel(loaded.variant(), ARCH, Cache(tmp_path / "b")).code


def test_headers_that_were_found_in_a_repository_come_along(tmp_path: Path) -> None:
    """Elsewhere there is no repository to find them in."""
    for folder in (".git", "src/kernels", "src/common"):
        (tmp_path / "work" / folder).mkdir(parents=True)
    (tmp_path / "work" / "src" / "common" / "size.h").write_text("#define SIZE 16\n")
    path = tmp_path / "work" / "src" / "kernels" / "plain.cu"
    path.write_text('#include "size.h"\n__global__ void k(float* x) { x[threadIdx.x % SIZE] = 1; }\n')
    found = packed(path, Cache(tmp_path / "a"), [])
    assert sorted(found.files) == ["common/size.h", "kernels/plain.cu"]
    path, include = unpacked(found, tmp_path / "elsewhere")
    assert include == [str(tmp_path / "elsewhere" / "common")]
    (loaded,) = catalog.chosen([kernel(str(path))], None, include)
    assert compile_kernel(loaded.variant(), ARCH, Cache(tmp_path / "b")).code


@pytest.mark.usefixtures("no_compiler")
class TestBuilds:
    @pytest.fixture
    def elsewhere(self, tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Cache]:
        """The kernel unpacked in another folder, with a cache that holds what came along."""
        with monkeypatch.context() as here:
            here.setattr(compiler, "_nvrtc", compiler_of_this_machine)
            found = packed(mine, Cache(tmp_path / "a"), [str(tmp_path / "work" / "given")])
        cache = Cache(tmp_path / "b")
        for key, entry in found.cubins.items():
            cache.put(key, entry)
        path, include = unpacked(found, tmp_path / "elsewhere")
        (loaded,) = catalog.chosen([kernel(str(path))], None, include)
        return loaded, cache

    def test_no_machine_makes_them_again(self, elsewhere: tuple[Any, Cache]) -> None:
        loaded, cache = elsewhere
        assert compile_kernel(loaded.variant(), ARCH, cache).code.startswith(b"\x7fELF")

    @pytest.mark.parametrize("changed", ["kernels/mine.cu", "kernels/tile.h", "given/given.h"])
    def test_other_text_is_another_build(
        self, elsewhere: tuple[Any, Cache], tmp_path: Path, changed: str
    ) -> None:
        loaded, cache = elsewhere
        path = tmp_path / "elsewhere" / changed
        path.write_text(path.read_text() + "// more\n")
        (again,) = catalog.chosen([kernel(str(loaded.path))], None, [str(tmp_path / "elsewhere" / "given")])
        with pytest.raises(BuildError, match="compiled again"):
            compile_kernel(again.variant(), ARCH, cache)

    def test_other_parameters_and_architectures_too(self, elsewhere: tuple[Any, Cache]) -> None:
        loaded, cache = elsewhere
        with pytest.raises(BuildError, match="compiled again"):
            compile_kernel(loaded.variant(), "sm_80", cache)


compiler_of_this_machine = compiler._nvrtc


def test_what_was_not_built_does_not_travel(tmp_path: Path) -> None:
    variant = kernel("tiled").variant()
    assert portable(variant, ARCH, Cache(tmp_path / "cache")) is None
    assert parcel([variant], ARCH, Cache(tmp_path / "cache")).cubins == {}


def test_the_file_of_a_problem_travels(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from harness.problems.gemm import Gemm\nclass P(Gemm): pass\n")
    (tmp_path / "k.cu").write_text(FRONT.format('// problem = "own.py:P"\n') + BODY.replace("TILE", "16"))
    found = packed(tmp_path / "k.cu", Cache(tmp_path / "cache"), [])
    assert sorted(found.files) == ["k.cu", "own.py"] and found.word == f"{FOLDER}/k.cu"
    assert os.fspath(tmp_path) not in repr(found.files.keys())


def test_what_was_built_with_headers_of_libraries_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other machine may have others, and so may this one after an upgrade."""
    from harness.kernels.cpp import includes

    original = includes.included

    def with_library(*args: Any) -> Any:
        from dataclasses import replace

        return replace(original(*args), libraries=("cuda_fp16.h",), stamps=("1",))

    variant, cache = kernel("tiled").variant(), Cache(tmp_path / "cache")
    compile_kernel(variant, ARCH, cache)
    assert portable(variant, ARCH, cache) is not None
    monkeypatch.setattr(includes, "included", with_library)
    compile_kernel(variant, ARCH, cache)
    assert portable(variant, ARCH, cache) is None
