"""A small kernel in CUDA C++ and in PTX, and what compiles it or refuses to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import BuildError
from harness.kernels import spec
from harness.kernels.compiler import Cubin, compile_kernel
from harness.support.cache import Cache

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")
NO_CACHE = Cache(None)
KERNEL = """\
extern "C" __global__ void matmul(const float* A, float* C, int n)
{
    C[threadIdx.x] = A[threadIdx.x] + VALUE;
}
"""
PTX = """\
// Adds nothing
//
// /// kernel
// entry = "matmul"
// block = 32
// tile  = 32
// ///
.version 6.3
.target sm_75
.address_size 64
.visible .entry matmul(.param .u64 A)
{
    .reg .u64 %a;
    ld.param.u64 %a, [A];
    ret;
}
"""

INDEXED = """\
extern "C" __global__ void matmul(float* c, int n)
{
    float s[64];
    for (int i = 0; i < 64; ++i) s[i] = c[i];
    for (int i = 0; i < n; ++i) s[i * 7 & 63] += c[i];
    c[threadIdx.x] = s[n & 63];
}
"""
Write = Callable[..., Path]


def compile_file(path: Path | str, arch: str = "sm_80", cache: Cache = NO_CACHE, **params: int) -> Cubin:
    return compile_kernel(spec.load(path).variant(**params), arch, cache)


def refusal(path: Path | str, arch: str = "sm_80") -> BuildError:
    with pytest.raises(BuildError) as e:
        compile_file(path, arch)
    return e.value


def line_of(path: Path, text: str) -> int:
    """The 1-based number of the only line that holds `text`."""
    (found,) = (n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)
    return found
