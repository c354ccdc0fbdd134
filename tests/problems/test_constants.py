"""Variables in constant memory hold what host code copies there, or what their use suggests."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from shared.sweeps import sweep

PROGRAMS = Path(__file__).parents[1] / "data" / "constants"
SAID = {  # of sizes and blocks
    "gather": "-a rows=1000 -a d_count=24",
    "lattice": "-a f=9216 -a out=9216 -a solid=1024 -a nx=32 -a ny=32",
    "median": "-a width=64 -a height=64 -a radius=3",
    "motif": "-a text=1000 -a hits=1000 -a n=1000",
    "params": "-a count=4096 -a params_numBodies=1000 -a params_gridSize=64",
    "separable": "-a imageW=98 -a imageH=98",
    "sizes": "-a u=2750 -a v=2750 -a NX=50 -a NY=55 -a alpha=1",
    "volume": "-a u=37975 -a v=37975 -a grid__nx=31",
}
QUICK = ("gather", "median", "sizes")
FAULTS = [
    ("separable", "c_Kernel[KERNEL_RADIUS - j]", "c_Kernel[KERNEL_RADIUS - j + 1]", "rows"),
    ("separable", "    __syncthreads();\n", "", "rows"),
    ("separable", "if (x >= imageW) return;", "if (x > imageW) return;", "rows"),
    ("lattice", "(x - cx[k] + nx) % nx", "(x - cx[k] + nx)", "stream"),
    ("lattice", "f[opposite[k] * n", "f[(opposite[k] + 1) * n", "stream"),
    ("lattice", "2, 7, 8, 5, 6}", "2, 7, 9, 5, 6}", "stream"),
    ("sizes", "j >= NY - 1", "j >= NY", "step"),
    ("sizes", "i >= NX - 1 || j >= NY - 1", "i >= NX - 1 || j >= NX", "step"),
    ("sizes", "int at = j * NX + i;", "int at = j * NY + i;", "step"),
    ("params", "i >= params.numBodies", "i > params.numBodies", "hash"),
    ("params", "int at = gy * params.gridSize + gx;", "int at = (gy + 1) * params.gridSize + gx;", "hash"),
    ("params", "atomicAdd(&count[at], 1);", "count[at]++;", "hash"),
    ("gather", "columns[i] = i * STRIDE + 4;", "columns[i] = i * STRIDE + 5;", "pick"),
    ("gather", "d_columns[k]]", "d_columns[k + 1]]", "pick"),
    ("gather", "row >= rows", "row > rows", "pick"),
    ("median", "weights[dx + radius]", "weights[dx - radius]", "blur"),
    ("median", "width - 1);", "width);", "blur"),
    ("median", "int at = min(max(x + dx, 0), width - 1);", "int at = x + dx;", "blur"),
    ("motif", "n - PATTERN + 1", "n - PATTERN + 2", "search"),
    ("motif", "pattern[k])", "pattern[k + 1])", "search"),
    ("motif", "own[failure[threadIdx.x]] = 1", "own[failure[threadIdx.x] + 1] = 1", "table"),
    ("motif", "= 1;\n    __syncthreads();\n", "= 1;\n", "table"),
    ("volume", "int z = RADIUS; z <", "int z = RADIUS - 1; z <", "laplace"),
    ("volume", "z < grid_.nz - RADIUS", "z <= grid_.nz - RADIUS", "laplace"),
    ("volume", "{nx, ny, nz, nx, nx * ny}", "{nx, ny, nz, nx, nx * nz}", "laplace"),
]  # fmt: skip


def check(folder: Path, source: str, *more: str) -> tuple[int, str]:
    """Return the exit code of `harness check` for a text, and what it says."""
    (path := folder / "k.cu").write_text(source, encoding="utf-8")
    ran = CliRunner().invoke(main, ["check", str(path), *more])
    return ran.exit_code, " ".join(ran.output.split())


def program(name: str) -> str:
    return (PROGRAMS / f"{name}.cu").read_text(encoding="utf-8")


def test_all_are_tried() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.cu")} == SAID.keys()


@pytest.mark.parametrize("name", sweep(sorted(SAID), lambda name: name in QUICK))
def test_a_right_program_is_clean(name: str, tmp_path: Path) -> None:
    code, said = check(tmp_path, program(name))
    assert code == 0 and SAID[name] in said, said


@pytest.mark.parametrize(("name", "old", "new", "kernel"), sweep(FAULTS, lambda name, *_: name in QUICK))
def test_a_planted_fault_is_found(name: str, old: str, new: str, kernel: str, tmp_path: Path) -> None:
    source = program(name)
    assert source.count(old) == 1
    code, said = check(tmp_path, source.replace(old, new))
    assert code == 1 and "takes" not in said, said
