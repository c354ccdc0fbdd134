"""Arrays in shared memory that are too short where another one follows: an access stays in its own."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Finding
from shared.emulator_kernels import launch
from shared.hopper_kernels import PRELUDE

HEAD = 'extern "C" __global__ void k(const int* a, int* out) { int t = threadIdx.x;\n'
# Each with what makes it wrong: within a block's shared memory, and in no race.
CASES = {
    "past the end": (
        """__shared__ int x[32], y[64]; y[t] = a[t]; if (t < 32) x[t] = a[t];
           __syncthreads(); out[t] = y[t] + x[t % 32];""",
        "if (t < 32) x[t]",
        "if (t < 33) x[t]",
    ),
    "before the start": (
        """__shared__ int x[32], y[64]; y[t] = a[t]; if (t < 32) x[t] = 0;
           __syncthreads(); out[t] = y[t] + x[t % 32];""",
        "out[t] = y[t]",
        "out[t] = y[t - 1]",
    ),
    "a row too few": (
        """__shared__ int x[4][17], y[64]; y[t] = 1; x[t / 16][t % 16] = a[t];
           __syncthreads(); out[t] = x[t % 4][t / 4] + y[t];""",
        "x[4][17]",
        "x[3][17]",
    ),
    "a vector": (
        """__shared__ alignas(16) int x[64], y[64]; y[t] = 1; if (t < 16) ((int4*)x)[t] = ((const int4*)a)[t];
           __syncthreads(); out[t] = x[t] + y[t];""",
        "t < 16",
        "t < 17",
    ),
    "a copy": (
        """__shared__ alignas(16) int x[64], y[64]; y[t] = 1;
           if (t < 16) asm volatile("cp.async.ca.shared.global [%0], [%1], 16;"
             :: "r"((unsigned)__cvta_generic_to_shared(x + 4 * t)), "l"(a + 4 * t) : "memory");
           asm volatile("cp.async.wait_all;" ::: "memory"); __syncthreads(); out[t] = x[t] + y[t];""",
        "t < 16",
        "t < 17",
    ),
    "an atomic": (
        """__shared__ int x[8], y[8]; if (t < 8) { x[t] = 0; y[t] = 0; }
           __syncthreads(); atomicAdd(&x[t % 8], a[t]); __syncthreads(); out[t] = x[t % 8] + y[t % 8];""",
        "&x[t % 8]",
        "&x[t % 9]",
    ),
    "a pointer that walks": (
        """__shared__ int x[64], y[64]; x[t] = a[t]; y[t] = a[t]; __syncthreads(); int s = 0;
           for (const int* p = x; p < x + 64; p += 8) s += *p; out[t] = s + y[t];""",
        "p < x + 64",
        "p <= x + 64",
    ),
}
RIGHT = {
    "one of two arrays": """__shared__ int x[64], y[64]; x[t] = a[t]; y[t] = -a[t]; __syncthreads();
      int* p = a[t] & 1 ? x : y; for (int i = 0; i < 64; i += t + 1) out[t] = p[i];""",
    "a swizzle": """__shared__ int x[64], y[64]; x[t ^ 5] = a[t]; y[t] = 1; __syncthreads();
      out[t] = x[t ^ 5] + y[t];""",
    "turns of two buffers": """__shared__ int x[64], y[64]; int *p = x, *q = y; p[t] = a[t];
      for (int i = 0; i < 4; i++) { __syncthreads(); q[t] = p[63 - t]; int* r = p; p = q; q = r; }
      out[t] = p[t];""",
    "the distance of two arrays": """__shared__ int x[64], y[64]; x[t] = y[t] = a[t]; __syncthreads();
      long long d = y - x; out[t] = *(x + d + 63 - t);""",
    "pointers in memory": """__shared__ int x[64], y[64]; __shared__ int* p[2]; if (t < 2) p[t] = t ? x : y;
      x[t] = y[t] = a[t]; __syncthreads(); out[t] = p[a[t] & 1][63 - t];""",
    "halves of an array": """__shared__ int x[128], y[1]; int* p = x + 64; p[t] = a[t]; x[t] = p[t];
      if (t == 0) y[0] = 1; __syncthreads(); out[t] = p[-1 - t] + y[0];""",
    "dynamic memory behind it": """extern __shared__ int more[]; __shared__ int x[32];
      if (t < 32) x[t] = a[t];
      more[t] = a[t]; __syncthreads(); out[t] = x[t / 2] + more[63 - t];""",
}


def found(body: str, prelude: str = "") -> tuple[Finding, ...]:
    a, out = np.arange(80, dtype=np.int32), np.zeros(64, np.int32)
    return launch(prelude + HEAD + body + "}", "k", (1,), (64,), a, out, shared=256).findings


@pytest.mark.parametrize("case", CASES)
def test_an_access_leaves_its_array(case: str) -> None:
    body, old, new = CASES[case]
    assert body.count(old) == 1
    assert not found(body)
    assert "out of bounds" in {finding.kind for finding in found(body.replace(old, new))}


def test_it_is_told_of_the_array_that_was_meant() -> None:
    body, old, new = CASES["past the end"]
    (told,) = [f for f in found(body.replace(old, new)) if f.kind == "out of bounds"]
    assert "writes 4 bytes at offset 128 of x, up to 4 bytes past the end" in told.message


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_pointers_that_may_go_elsewhere_are_left_alone(body: str) -> None:
    assert not found(body)


@pytest.mark.parametrize(
    ("index", "wanted"), [("t & 3", []), ("t & 7", ["at offset 16 of x, up to 4 bytes past"])]
)
def test_the_array_of_another_block_is_as_long(index: str, wanted: list[str]) -> None:
    body = f"""
  __shared__ int x[4], y[4]; if (t < 4) {{ x[t] = 1; y[t] = 2; }}
  cluster_sync(); int v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(far(&x[{index}], rank() ^ 1)) : "memory");
  cluster_sync(); out[t] = v + y[t & 3]; cluster_sync();"""
    text = PRELUDE + HEAD.replace("void k", "void __cluster_dims__(2, 1, 1) k") + body + "}"
    arrays = np.arange(80, dtype=np.int32), np.zeros(64, np.int32)
    told = [f.message for f in launch(text, "k", (2,), (64,), *arrays).findings if f.kind == "out of bounds"]
    assert len(told) == len(wanted) and all(text in one for text, one in zip(wanted, told, strict=True))


def test_a_block_of_a_cluster_has_its_own() -> None:
    body = """
  __shared__ int x[32], y[64]; y[t] = 1; if (t < 32) x[t] = a[t];
  cluster_sync(); out[t] = y[t] + x[t % 32]; cluster_sync();"""
    for bound, kinds in ((32, set()), (33, {"out of bounds"})):
        text = (
            PRELUDE
            + HEAD.replace("void k", "void __cluster_dims__(2, 1, 1) k")
            + body.replace("t < 32", f"t < {bound}")
        )
        arrays = np.arange(80, dtype=np.int32), np.zeros(64, np.int32)
        told = launch(
            text.replace("out[t] =", "if (rank()) out[t] =") + "}", "k", (2,), (64,), *arrays
        ).findings
        assert {f.kind for f in told} - {"RAW hazard", "WAW hazard"} == kinds


@pytest.mark.parametrize(
    ("length", "from_", "wanted"), [(64, 32, []), (48, 0, ["s, which has 192"]), (64, 48, ["s,"])]
)
def test_a_bulk_copy_stays_in_its_array(length: int, from_: int, wanted: list[str]) -> None:
    body = f"""
  __shared__ __align__(128) int s[{length}], r[64]; __shared__ u64 full; r[t] = t;
  if (t == 0) {{ init(&full, 1); fence_init(); }}
  __syncthreads();
  if (t == 0) {{ expect(&full, 256); load(s, a, 256, &full); }}
  wait(&full, 0); out[t] = s[t & 31] + r[63 - t];
  __syncthreads();
  if (t == 0) {{ fence_async(); store(out, s + {from_}, 128); wait_all(); }}"""
    arrays = np.arange(80, dtype=np.int32), np.zeros(64, np.int32)
    run = launch(PRELUDE + HEAD + body + "}", "k", (1,), (64,), *arrays)
    told = [f.message for f in run.findings if f.kind == "out of bounds"]
    assert len(told) == len(wanted) and all(text in one for text, one in zip(wanted, told, strict=True))
