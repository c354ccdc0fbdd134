"""Kernels in the manner of public ones, compiled twice: for the emulator, and with g++ for this machine.

Contraction is off in both, so that arithmetic, roots, comparisons and conversions agree to the last bit;
where a kernel uses functions that the two libraries round differently, within 4e-6 of the largest value.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness.emulator import Buffer, emulate
from shared.emulator_kernels import compile_ptx

THREADS, BLOCKS, SIZE = 64, 5, 1024
COUNT = 300  # n: the last block has threads to spare

TEXT = (Path(__file__).parents[1] / "data" / "twins.h").read_text()
NAMES = re.findall(r"^(EXACT|NEAR)\((\w+)\)$", TEXT, re.MULTILINE)
SIGNATURE = "(const float* a, const float* b, const int* k, float* o, int* p, int n)"
COMMON = f"""#define W 16
#define SIZE {SIZE}
#define NEAR(name) EXACT(name)
"""
DEVICE = f"""{COMMON}#define EXACT(name) extern "C" __global__ void name{SIGNATURE} {{ \\
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
#define END }}
"""
HOST = f"""{COMMON}#include <math.h>
#define EXACT(name) extern "C" void name{SIGNATURE} {{ for (int i = 0; i < n; i++) {{
#define END }} }}
static float normcdff(float x) {{ return 0.5f * erfcf(-0.70710678f * x); }}
static void atomicAdd(int* at, int v) {{ *at += v; }}
static void atomicMax(int* at, int v) {{ if (v > *at) *at = v; }}
"""


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels as a library of this machine."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here")
    folder: Path = tmp_path_factory.mktemp("twins")
    (folder / "twins.cpp").write_text(HOST + TEXT)
    command = [compiler, "-O1", "-w", "-ffp-contract=off", "-fPIC", "-shared", "twins.cpp", "-o", "twins.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "twins.so"))


def given() -> list[np.ndarray]:
    """The arguments: two arrays of floats, one of whole numbers below `COUNT`, and two for the results."""
    rng = np.random.default_rng(20)
    a, b = (rng.standard_normal(SIZE).astype(np.float32) for _ in range(2))
    k = rng.integers(0, COUNT, SIZE).astype(np.int32)
    return [a, b, k, np.zeros(SIZE, np.float32), np.zeros(SIZE, np.int32)]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "name"), NAMES)
def test_the_emulator_computes_what_this_machine_does(how: str, name: str, twins: ctypes.CDLL) -> None:
    ours, theirs = given(), given()
    ptx = compile_ptx(DEVICE + TEXT, "compute_80", "--fmad=false")
    buffers = [Buffer(array=array, name=label) for array, label in zip(ours, "abkop", strict=True)]
    run = emulate(ptx, name, grid=(BLOCKS,), block=(THREADS,), arguments=[*buffers, np.int32(COUNT)])
    assert run.findings == ()
    getattr(twins, name)(*(array.ctypes.data_as(ctypes.c_void_p) for array in theirs), ctypes.c_int(COUNT))
    assert any(mine.any() for mine in ours[3:]), "nothing was computed"
    assert np.array_equal(ours[4], theirs[4])
    if how == "EXACT":
        assert ours[3].view(np.uint32).tolist() == theirs[3].view(np.uint32).tolist()
    else:
        assert np.abs(ours[3] - theirs[3]).max() <= 4e-6 * np.abs(theirs[3]).max()


def test_another_number_is_seen(twins: ctypes.CDLL) -> None:
    ours, theirs = given(), given()
    text = DEVICE + TEXT.replace("2.5f * a[i] + b[i]", "2.5f * a[i] - b[i]")
    ptx = compile_ptx(text, "compute_80", "--fmad=false")
    emulate(ptx, "saxpy", grid=(BLOCKS,), block=(THREADS,), arguments=[*ours, np.int32(COUNT)])
    twins.saxpy(*(array.ctypes.data_as(ctypes.c_void_p) for array in theirs), ctypes.c_int(COUNT))
    assert not np.array_equal(ours[3], theirs[3])
