"""Tests of what buffers of kernels without front matter hold: rows, counters and places to write to."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp import calls
from harness.kernels.cpp.host import values
from harness.problems.guessed import contents

NUMBERS = values.constants(["#define K 40\nconst int PAIR = 2;"], (), {})
THREAD = "int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;"


@pytest.mark.parametrize(
    ("use", "number"),
    [("atomicAdd(x, 1)", 0), ("atomicAdd(&x[i], 1)", 0), ("atomicInc(&x[i], n)", 0),
     ("atomicMin(&x[i], 1)", None), ("atomicCAS(&x[h], -1, key)", -1),
     ("atomicCAS(&x[h], 0xffffffffu, key)", 2**32 - 1),
     ("atomicCAS(x, K, 1)", 40), ("atomicCAS(x + h, old, key)", None), ("while (x[t - 1] == 0) ;", 0),
     ("while (x[0] < n) { __nanosleep(9); }", 0), ("while (x[i] < n) i++", None),
     ("while (atomicCAS(&y[h], -1, x[i]) >= 0) h = (h + 1)", None),
     ("atomicCAS(x, 017, 1)", 15), ("atomicCAS(x, 08, 1)", 8), ("atomicCAS(x, 0, 1)", 0),
     ("do { j = x[j]; } while (x[j] != i)", None), ("do { if (j) { j--; } } while (x[j] != i)", None),
     ("do { do { j--; } while (x[j] > i); } while (x[j] != i)", None), ("do { } while (x[0] == 0)", 0),
     ("do { __nanosleep(9); } while (x[0] == 0)", 0), ("if (j) { j--; } while (x[0] == 0)", 0),
     ("do { while (x[0] == 0) ; } while (x[j] != i)", 0), ("atomicAdd(&y[x[i]], 1)", None),
     ("atomicAdd((unsigned*)&x[1], 1u)", 0), ("cuda::atomic_ref<int> a(x[i])", 0), ("x[i] = 1", None)],
)  # fmt: skip
def test_numbers_that_counters_begin_with(use: str, number: int | None) -> None:
    assert contents.counts(f"{use};", "x", NUMBERS) == number
    assert contents.counts(re.sub(r"\bx\b", "m.x", f"{use};"), "m.x", NUMBERS) == number


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y[p[i]] = x[i];", True),
        ("y[p[i] * n + j] += x[i];", True),
        ("int t = p[i]; y[t] = x[i];", True),
        ("float* row = y + p[i] * n; row[j] = 0;", True),
        ("y[i] = x[p[i]];", False),
        ("int t = p[i]; y[i] = x[t];", False),
        ("atomicAdd(&y[p[i]], 1);", False),
        ("p[i] = 0;", False),
        ("if (p[i] == y[i]) y[i] = 0;", False),
    ],
)
def test_places_to_write_to(body: str, found: bool) -> None:
    assert contents.targets(body, "p") == found


def test_a_long_body_is_read_in_one_pass() -> None:
    """Blanks, which comments leave, without an assignment: the time was the square of their number."""
    begin = time.process_time()
    assert contents.targets("int t = p[i];" + " " * 100_000 + "f(t); y[t] = 1;", "p")
    assert time.process_time() - begin < 5


def test_a_long_comment_costs_no_time() -> None:
    """Blanks stand for it between the words of a kernel, of which no search may take the square."""
    comment = "/*" + "words " * 10_000 + "*/"
    source = f"""__global__ void k(const float* x, float* y, int n) {{ {comment}
  int i = blockIdx.x {comment} * blockDim.x + threadIdx.x; {comment}
  if (i < n {comment}) y[i] = x[i] {comment};
}}"""
    begin = time.process_time()
    entry = text.entries(source)[0]
    assert calls.reached((source,), entry.body).startswith(entry.body) and "x" not in entry.items
    assert time.process_time() - begin < 5


def test_a_lock_that_a_function_takes_is_free() -> None:
    source = "__device__ void lock(int id, int* m) { while (atomicCAS(m, 7, 1) != 7) ; }"
    assert contents.of("lock(threadIdx.x, x + 1);", "x", NUMBERS, source).counts == 7
    assert contents.of("lock(x[0], y);", "x", NUMBERS, source).counts is None
    assert contents.of("lock(threadIdx.x, x + 1);", "x", NUMBERS).counts is None


@pytest.mark.parametrize(
    ("body", "begins"),
    [
        ("for (int k = p[i]; k < p[i + 1]; ++k) s += x[k];", True),
        ("int a = p[i], b = p[i + 1]; for (int k = a + t; k < b; k += 32) s += x[k];", True),
        ("const int b = __ldg(p + i + 1); int k = p[i]; while (k < b) s += x[k++];", True),
        ("x[i] = p[i + 1] - p[i];", False),  # neighbours in a grid
        ("int b = p[i + 1]; for (int k = 0; k < n; ++k) s += b;", False),
        ("for (int k = 0; k < p[i]; ++k) s += x[k];", False),
        ("for (int k = p[i]; k < p[i + 1]; ++k) s += x[k]; p[i] = 0;", False),
    ],
)
def test_where_rows_begin(body: str, begins: bool) -> None:
    assert contents.begins(f"{THREAD} {body}", "p") == begins


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y[p[i]] = x[i];", {"y"}),
        ("int t = p[i]; y[t] = x[i];", {"y"}),
        ("int t = p[i], u = t / 2; y[u] += x[i];", {"y"}),
        ("float* row = y + p[i] * n; row[j] = x[j];", {"y"}),
        ("y[i] = x[p[i]] + x[y[p[i]]];", {"x", "y"}),
        ("y[i] = p[i] * x[i];", set()),
    ],
)
def test_what_is_indexed_by_what_a_pointer_holds(body: str, found: set[str]) -> None:
    assert {*contents.into(body, "p", ["x", "y"])} == found


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("atomicAdd(&s[p[i]], 1);", 64),
        ("s[(int)p[i * 2]] = 1;", 64),
        ("int k = p[i], j = 0; s[k]++;", 64),
        ("s[p[i]]++; r[p[i]]++;", 32),
        ("int k = p[i] / 2; s[k]++;", None),
        ("s[p[i] >> 24]++; s[p[i] & 255]++;", None),
        ("s[q[i]]++;", None),
        ("y[p[i]] = s[i];", None),
        ("int k = p[i]; if (k < 65) s[k]++;", None),
        ("int k = p[i]; if (n > 0 && 64 >= k) s[k]++;", None),
        ("int k = p[i]; if (0 <= k) s[k]++;", None),
        ("if (p[i] <= 64) s[p[i]]++;", None),
    ],
)
def test_bins_of_a_block_have_room_for_what_a_pointer_holds(body: str, number: int | None) -> None:
    assert contents.room(body, "p", {"s": 64, "r": 32}) == number


@pytest.mark.parametrize(
    ("sync", "guard", "said"),
    [
        ("__syncthreads();", "", "no reference"),
        ("", "", "WAW hazard"),
        ("__syncthreads();", "if (k < 99)", "out of bounds"),
    ],
)
def test_a_histogram_in_shared_memory(tmp_path: Path, sync: str, guard: str, said: str) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "__global__ void k(const int* keys, int* bins, int n, int count) {\n"
        "__shared__ int s[64]; int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"if (threadIdx.x < 64) s[threadIdx.x] = 0; {sync}\n"
        f"if (i < n) {{ int k = keys[i]; {guard} atomicAdd(&s[k], 1); }} __syncthreads();\n"
        "if (threadIdx.x < 64 && threadIdx.x < count) atomicAdd(&bins[threadIdx.x], s[threadIdx.x]); }\n"
    )
    output = CliRunner().invoke(main, ["check", str(path)]).output
    assert said in output and ("out of bounds" in output) is bool(guard), output
