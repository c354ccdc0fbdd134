"""Kernels are launched on what those before them in host code leave, in `tests/data/sequences`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels.cpp.host.order import steps
from harness.launch.sequence import run

PROGRAMS = Path(__file__).parents[1] / "data" / "sequences"
AFTER = {  # what the last kernel of each program is launched after
    "argmax": "first_pass", "bfs": "init", "block_scan": "mark, scan_blocks, scan_sums, add_sums",
    "bucket": "init_heads, insert", "cells": "hash, sort_by_key, cudaMemset, find_cells",
    "compact": "mark, exclusive_scan", "counting_sort": "zero, count, prefix",
    "csr": "cudaMemset, count_rows, row_starts, fill", "edges": "cudaMemset, degrees, scan", "equalise": "",
    "flags": "reset", "kmeans": "cudaMemset, assign, accumulate", "permute": "iota, inverse",
    "radix": "histogram, scan", "segments": "device_vector, heads, inclusive_scan, starts", "softmax": "",
    "sort_by_key": "cudaMemset, keys_of, sort_by_key, ranges", "union_find": "init, link",
}  # fmt: skip
QUICK = ("argmax", "compact", "permute", "radix", "union_find")
FAULTS = [  # program, text, what replaces it, the kernel that has a finding then
    ("radix", "offsets[i] = sum;\n    sum += counts[i];", "sum += counts[i], offsets[i] = sum;", "scatter"),
    ("radix", "t < threadIdx.x; t++", "t <= threadIdx.x; t++", "scatter"),
    ("radix", "cudaMalloc(&d_out, n *", "cudaMalloc(&d_out, (n - 1) *", "scatter"),
    ("radix", "+ blockIdx.x] + rank", "] + rank", "scatter"),
    ("compact", "y[places[i]]", "y[places[i + 1]]", "compact"),
    ("compact", "if (i < n && flags[i])", "if (i < n)", "compact"),
    ("csr", "starts[r] = sum;\n    sum += counts[r];", "sum += counts[r];\n    starts[r] = sum;", "fill"),
    ("csr", "starts[m] = sum;", "starts[m] = sum + 1;", "spmv"),
    ("csr", "cudaMalloc(&starts, (m + 1) *", "cudaMalloc(&starts, m *", "row_starts"),
    ("csr", "cudaMemset(used, 0, m *", "cudaMemset(used, 1, m *", "fill"),
    ("csr", "atomicAdd(&used[rows[i]], 1);", "used[rows[i]]++;", "fill"),
    ("bfs", "size[0] = 1;", "size[0] = n + 1;", "expand"),
    ("counting_sort", "s[t] - counts[t];", "s[t];", "place"),
    ("counting_sort", "counts[i] = 0;", "counts[i] = 1;", "place"),
    ("cells", "end[c] = i + 1;", "end[c] = i + 2;", "density"),
    ("cells", "end[c] = i + 1;", "end[c + 1] = i + 1;", "find_cells"),
    ("argmax", "at[t] = i < n ? i : -1;", "at[t] = n;", "second_pass"),
    ("segments", "begin[ids[i] - 1] = i;", "begin[ids[i] - 2] = i;", "starts"),
    ("segments", "begin[ids[i]] = n;", "begin[ids[i]] = n + 1;", "sums"),
    ("kmeans", "best = c;", "best = c + 1;", "accumulate"),
    ("kmeans", "cudaMalloc(&counts, k *", "cudaMalloc(&counts, (k - 1) *", "accumulate"),
    ("union_find", "parent[i] = i;", "parent[i] = i + 1;", "link"),
    ("block_scan", "sums[b] = total;\n    total += own;", "total += own;\n    sums[b] = total;", "place"),
    ("permute", "order[i] = (i * 7) % n;", "order[i] = i * 7 / 2 % n;", "inverse"),
    ("permute", "back[order[i]] = i;", "back[order[i]] = i + 1;", "gather"),
    ("flags", "if (tile > 0) {", "if (tile >= 0) {", "chained"),
    ("edges", "offset[v] + degree[v];", "offset[v] + degree[v] + 1;", "triangles"),
    ("sort_by_key", "range[key[i]].y = n;", "range[key[i]].y = n + 1;", "blend"),
    ("sort_by_key", "thrust::sort_by_key(thrust::device, key, key + n, id);", "", "ranges"),
    ("csr", "cudaMemset(counts, 0, m * sizeof(int));", "", "count_rows"),  # nobody writes them
    ("equalise", "cudaMemset(d_bins, 0, BINS * sizeof(unsigned int));", "", "histogram"),
    ("counting_sort", "zero<<<1, k>>>(counts, k);", "", "count"),
    ("permute", "if (i < n) order[i]", "if (i < n - 1) order[i]", "inverse"),
    ("bucket", "head[asked[i] % buckets]", "head[asked[i] % buckets + 1]", "lookup"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_defect(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A defect of what prepares launches must not pass for doubt, in which a kernel is launched alone."""
    prepared, defects = run.prepared, list[Exception]()

    def watched(*given: Any) -> run.Prepared | None:
        try:
            return prepared(*given)
        except Exception as e:
            defects.append(e)
            raise

    monkeypatch.setattr(run, "prepared", watched)
    yield
    assert not defects


def check(folder: Path, source: str, *more: str) -> tuple[dict[str, str], str]:
    """Return what `harness check` says of each kernel of a text, and all that it says."""
    path = folder / "k.cu"
    path.write_text(source, encoding="utf-8")
    said = CliRunner().invoke(main, ["check", str(path), *more]).output
    rows = re.findall(r"(?m)^k:(\w+) +- .* (FAILED|error|reference)\s*$", said)
    return dict(rows), " ".join(said.split())


def program(name: str) -> str:
    return (PROGRAMS / f"{name}.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in AFTER]
)
def test_right_programs_have_no_findings(tmp_path: Path, name: str) -> None:
    rows, said = check(tmp_path, program(name))
    assert rows and set(rows.values()) == {"reference"}
    assert f"after {AFTER[name]} on the same buffers" in said or not AFTER[name]


@pytest.mark.parametrize(
    ("name", "old", "new", "kernel"),
    [pytest.param(*f, marks=[] if f[0] in QUICK[1:4] else [pytest.mark.slow]) for f in FAULTS],
)
def test_planted_faults_are_found(tmp_path: Path, name: str, old: str, new: str, kernel: str) -> None:
    source = program(name)
    assert source.count(old) == 1
    rows, _ = check(tmp_path, source.replace(old, new))
    assert rows[kernel] != "reference"


HOST = """
__global__ void make(int* at, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) at[i] = i; }
__global__ void use(const int* at, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[at[i]] = i;
}
void run(int* at, float* y, int n, bool really) {
  make<<<(n + 255) / 256, 256>>>(at, n);
  use<<<(n + 255) / 256, 256>>>(at, y, n);
}
"""
MAKE, USE = "make<<<(n + 255) / 256, 256>>>(at, n);", "use<<<(n + 255) / 256, 256>>>(at, y, n);"

SCAN = "cub::DeviceScan::ExclusiveSum(t, b, y, at, n);"  # of which the first only asks for b


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        (MAKE, MAKE, ["launch"]),
        (MAKE, f"if (really) {{ {MAKE} }}", ["lost"]),
        (MAKE, f"if (really) n = 3; else {MAKE}", ["lost"]),
        (MAKE, f"for (int k = 0; k < 3; k++) {MAKE}", ["launch"]),
        (MAKE, f"for (int k = 0; k < 3; k++) {MAKE.replace(', n)', ', k)')}", ["lost"]),
        (MAKE, f"for (int k = 0; k < 3; k++) {{ {MAKE} std::swap(at, y); }}", ["lost"]),
        (MAKE, f"{MAKE} shuffle(at, n);", ["launch", "lost"]),
        (MAKE, f'{MAKE} printf("%d", n); CHECK(cudaGetLastError());', ["launch"]),
        (MAKE, f"{MAKE} cudaMemcpy(at, h, n * 4, cudaMemcpyHostToDevice);", ["launch", "given"]),
        (MAKE, f"{MAKE} cudaMemcpy(h, at, n * 4, cudaMemcpyDeviceToHost);", ["launch"]),
        (MAKE, "cudaMemset(at, 0, n * 4);", ["fill"]),
        (MAKE, "CHECK(cudaMemsetAsync((void*)at, 0xff, n * sizeof(int), stream));", ["fill"]),
        (MAKE, "thrust::sequence(thrust::device, at, at + n);", ["sequence"]),
        (MAKE, "thrust::device_ptr<int> p(at); thrust::sort(p, p + n);", ["sort"]),
        (MAKE, "thrust::device_ptr<int> q(y), p(at); thrust::sort_by_key(q, q + n, p);", ["sort_by_key"]),
        (MAKE, "auto p = thrust::device_pointer_cast(at); thrust::inclusive_scan(p, p + n, p);",
         ["inclusive_scan"]),
        (MAKE, "thrust::sort(thrust::device, at, at + n, thrust::greater<int>());", ["lost"]),
        (MAKE, "cub::DeviceScan::ExclusiveSum(temp, bytes, y, at, n);", ["exclusive_scan"]),
        (MAKE, f"void* t = nullptr; {SCAN} cudaMalloc(&t, b); {SCAN}", ["exclusive_scan"]),
        (MAKE, f"void *t{{}}; {SCAN} {SCAN.replace('y, at', 'at, y')} allocate(t, b); {SCAN}",
         ["exclusive_scan"]),
        (MAKE, "", []),
        (USE, f"if (really) {USE}", ["launch"]),
        (USE, f"while (n > 0) {{ {USE} n /= 2; }}", ["launch"]),
        ("use<<<(n + 255) / 256, 256>>>(at,", "use<<<(n + 255) / 256, 256>>>(at + 1,", ["launch"]),
    ],
)  # fmt: skip
def test_what_host_code_does_before(old: str, new: str, left: list[str]) -> None:
    assert HOST.count(old) == 1
    *before, last = steps.before(HOST.replace(old, new), "use").steps
    assert ([step.kind for step in before if "at" in step.buffers], last.entry) == (left, "use")


@pytest.mark.parametrize(
    ("before", "fresh"),
    [
        ("", True),
        ("cudaMemset(at, 0, n);", True),  # a part, perhaps
        (f"{MAKE} cudaMemcpy(h, at, n, cudaMemcpyDeviceToHost);", True),
        ("shuffle(at, n);", False),
        ("auto other = at;", False),
        ("cudaMemcpy(at + 1, h, n, cudaMemcpyHostToDevice);", False),
        ("cudaMemset(&at[4], 0, n);", False),
        ("void* args[] = {&at, &n};", False),
        ("if (really) cudaMalloc(&at, n);", True),
    ],
)
def test_buffers_that_nobody_else_writes(before: str, fresh: bool) -> None:
    source = HOST.replace(MAKE, f"cudaMalloc((void**)&at, n * sizeof(int));\n  {before}")
    assert ("at" in steps.before(source, "use").fresh) == fresh
    assert "at" not in steps.before(source.replace("cudaMalloc(", "cudaMallocManaged("), "use").fresh


def test_a_rest_of_a_block_that_nobody_writes_is_no_fault(tmp_path: Path) -> None:
    """Sizes of the host may be multiples of 16, those of the guess are not."""
    source = HOST.replace("int* at, float* y, int n, bool", "float* y, int n, bool")
    source = source.replace(MAKE, f"int* at;\n  cudaMalloc(&at, n * 4);\n  {MAKE}")
    assert check(tmp_path, source)[0]["use"] == "reference"
    assert check(tmp_path, source.replace("if (i < n) at[i]", "if (i < n - 2) at[i]"))[0]["use"] == "FAILED"
    several = "i *= 16; if (i + 15 < n) for (int k = 0; k < 16; k++) at[i + k] = i + k;"
    rows, said = check(tmp_path, source.replace("if (i < n) at[i] = i;", several))
    assert rows["use"] == "reference" and "after make" not in said


def test_what_is_left_unwritten_counts_where_the_launch_is_known(tmp_path: Path) -> None:
    source = HOST.replace("int* at, float* y, int n, bool", "float* y, int n, bool")
    source = source.replace(MAKE, f"int* at;\n  cudaMalloc(&at, n * 4);\n  {MAKE}")
    source = source.replace("y[at[i]] = i;", "y[i] = at[i];").replace("if (i < n) at", "if (i < n - 2) at")
    assert check(tmp_path, source)[0]["use"] == "FAILED"
    rounded = source.replace("make<<<(n + 255) / 256", "make<<<ceil(n / 256.0f)")
    assert check(tmp_path, rounded)[0]["use"] == "FAILED"
    unknown = source.replace("make<<<(n + 255) / 256", "make<<<blocks_of(n)")
    assert check(tmp_path, unknown)[0]["use"] == "reference"
    nothing = source.replace(MAKE, "")  # with no copy from the host at all it is short of more
    assert check(tmp_path, nothing)[0]["use"] == "reference"
    given = nothing.replace("cudaMalloc", "cudaMemcpy(y, h, n * 4, cudaMemcpyHostToDevice);\n  cudaMalloc")
    assert check(tmp_path, given)[0]["use"] == "FAILED"


def test_names_of_helpers_are_those_of_their_caller() -> None:
    fill = "void fill(int* p, int m) { const int blocks = (m + 255) / 256; make<<<blocks, 256>>>(p, m); }"
    helped = HOST.replace(MAKE, "fill(at, n);").replace("void run", f"{fill}\nvoid run")
    made, last = steps.before(helped, "use").steps
    assert (made.entry, made.buffers, last.buffers) == ("make", ("at", "n"), ("at", "y", "n"))
    assert made.values[1] == last.values[2] == "n"
    assert eval(made.grid[0], {}, {"n": 1000}) == 4
    assert steps.before(helped, "make").steps[-1].buffers[0] == "at"


def test_swapped_pointers_mean_each_other() -> None:
    swapped = HOST.replace(MAKE, f"int* old = at; at = next; {MAKE} at = old;", 1)
    made, last = steps.before(swapped, "use").steps
    assert (made.buffers[0], last.buffers[0]) == ("next", "at")


def test_a_text_without_launches_says_nothing() -> None:
    for source in ("", "__global__ void use(int* x) { x[0] = 1; }", "void f() { g(; }"):
        assert steps.before(source, "use") == steps.Before()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (MAKE, f"if (really) {MAKE}"),
        (MAKE, f"{MAKE} shuffle(at, n);"),
        ("(at, y, n);", "(at + 1, y, n);"),
        ("at[i] = i;", "at[i + 1] = i;"),  # the first kernel goes too far: what it leaves is nothing
        (MAKE, ""),
    ],
)
def test_in_doubt_contents_are_guessed(tmp_path: Path, old: str, new: str) -> None:
    rows, said = check(tmp_path, HOST.replace(old, new))
    assert rows["use"] == "reference" and "on the same buffers" not in said


def test_what_a_scan_of_cub_leaves_is_found(tmp_path: Path) -> None:
    """A kernel is right only behind the scan, and what CUB wants of storage is asked before the first one."""
    source = HOST.replace(" at[i] = i;", " at[i] = 1;")
    assert check(tmp_path, source)[0]["use"] == "FAILED"
    scan = SCAN.replace("y, at", "at, at")
    source = source.replace(USE, f"void* t = NULL; {scan} cudaMalloc(&t, b); {scan}\n  {USE}")
    rows, said = check(tmp_path, source)
    assert rows["use"] == "reference" and "after make, ExclusiveSum on the same buffers" in said


def test_a_size_that_is_an_expression_of_large_numbers_is_the_same_for_all(tmp_path: Path) -> None:
    source = HOST.replace("at[i] = i;", "at[i] = n - 1 - i;").replace(
        "(int* at, float* y, int n, bool", "(bool"
    )
    source = source.replace("really) {", "really) {\n  const int w = 1920, h = 1080; int *at; float *y;")
    rows, said = check(tmp_path, source.replace("at, n);", "at, w * h);").replace("y, n);", "y, w * h);"))
    assert rows["use"] == "reference" and "after make on the same buffers" in said


def test_a_size_that_is_a_product_of_small_numbers_is_no_multiple_of_the_block(tmp_path: Path) -> None:
    """A missing guard shows behind other kernels as well."""
    source = HOST.replace("(int* at, float* y, int n, bool", "(int* at, float* y, bool")
    source = source.replace("really) {", "really) {\n  const int w = 640, h = 480;")
    source = (
        source.replace("at, n);", "at, w * h);").replace("y, n);", "y, w * h);").replace("((n +", "((w * h +")
    )
    rows, said = check(tmp_path, source)
    assert rows["use"] == "reference" and "-a n=1000" in said and "after make on the same buffers" in said
    assert check(tmp_path, source.replace("if (i < n) y[at[i]]", "y[at[i]]"))[0]["use"] == "FAILED"


def test_sizes_that_are_given_are_those_of_all(tmp_path: Path) -> None:
    _, said = check(tmp_path, HOST, "--entry", "use", "-a", "n=300")
    assert "-a at=300 -a y=300 -a n=300" in said and "after make on the same buffers" in said


def test_a_fault_that_real_contents_hide_is_found(tmp_path: Path) -> None:
    """A line to which no thread comes after the first kernel, and a race of later rounds of a loop."""
    hidden = HOST.replace("y[at[i]] = i;", "y[at[i] < n ? i : n] = i;").replace("at[i] = i;", "at[i] = 0;")
    rows, _ = check(tmp_path, hidden)
    assert rows["use"] == "reference"
    never = HOST.replace("at[i] = i;", "at[i] = 0;").replace(
        "y[at[i]] = i;", "y[i] = i;\n  if (i < n && at[i] > 2)\n    y[i + n / 2] = at[i];"
    )
    assert check(tmp_path, never)[0]["use"] == "FAILED"
    racy = HOST.replace("y[at[i]] = i;", "y[at[i] / 2] = i;").replace("at[i] = i;", "at[i] = 2 * i % n;")
    loop = racy.replace(USE, f"for (int k = 0; k < 3; k++) {{ {USE} }}")
    assert check(tmp_path, loop)[0]["use"] == "FAILED"
