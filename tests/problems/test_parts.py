"""Buffers that others divide into parts: right kernels are clean, and the ends of parts show faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.kernels.cpp.host.values import Values
from harness.problems.guessed import contents
from shared.checking import check

THREAD = "int r = blockIdx.x * blockDim.x + threadIdx.x; if (r >= n) return;"
LENGTHS = f"""
__global__ void lengths(const int* begin, const int* length, const float* x, float* y, int n)
{{
    {THREAD}
    int first = begin[r], many = length[r];
    for (int i = 0; i < many; i++) y[first + i] = 2 * x[first + i];
}}
"""
COLUMNS = f"""
__global__ void columns(const int* rays, const float* density, float* weight, float* sums, unsigned n)
{{
    {THREAD}
    unsigned ray = rays[r * 3];
    unsigned place = rays[r * 3 + 1];
    unsigned steps = rays[r * 3 + 2];
    density += place;
    weight += place;
    float sum = 0;
    for (unsigned step = 0; step < steps; ++step) {{
        weight[step] = density[step] * 0.5f;
        sum += density[step];
    }}
    sums[ray] = sum;
}}
"""
ENDS = f"""
__global__ void ends(const long long* from, const long long* to, float* y, int n)
{{
    {THREAD}
    const long long a = from[r], b = to[r];
    for (long long k = a; k < b; ++k) y[k] = r;
}}
"""
BATCHES = f"""
__global__ void batches(const float* x, const int* count, float* y, int batches, int n)
{{
    {THREAD}
    int before = 0, own = 0;
    for (int b = 0; b < batches && r >= before; b++) {{ own = before; before += count[b]; }}
    y[r] = x[r] - x[own];
}}
"""
PLACES = """
__global__ void places(const float* x, const int* count, float* y, int rows, int n)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x, at = 0;
    if (r >= rows) return;
    for (int k = 0; k < r; k++) at += count[k];
    for (int i = 0; i < count[r]; i++) if (at + i < n) y[at + i] = x[at + i];
}
"""
ROWS = f"""
__global__ void rows(const int* begin, const int* column, const float* x, float* y, int n)
{{
    {THREAD}
    float sum = 0;
    for (int k = begin[r]; k < begin[r + 1]; k++) sum += x[column[k]];
    y[r] = sum;
}}
"""
FOUND = "out of bounds|hazard|global race"


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (LENGTHS, "i < many", "i <= many"),
        pytest.param(COLUMNS, "step < steps", "step <= steps", marks=pytest.mark.slow),
        pytest.param(COLUMNS, "weight += place;", "", marks=pytest.mark.slow),
        (ROWS, "k < begin", "k <= begin"),
        pytest.param(ENDS, "k < b", "k <= b", marks=pytest.mark.slow),
        (PLACES, "x[at + i];", "x[at + i + 1];"),
        pytest.param(BATCHES, "x[own];", "x[own - 1];", marks=pytest.mark.slow),
    ],
    ids=["lengths", "columns", "place", "rows", "ends", "places", "batches"],
)
def test_parts_are_apart_and_end_where_their_buffer_does(
    tmp_path: Path, source: str, old: str, new: str
) -> None:
    code, said = check(tmp_path, source)
    assert (code, "FAILED" in said) == (0, False), said
    assert old in source
    code, said = check(tmp_path, source.replace(old, new, 1))
    assert code == 1 and re.search(FOUND, said), said


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("int s = p[i], m = q[i]; for (k = 0; k < m; k++) y[s + k] = 1;", [("p", 0, "q", 0, False)]),
        ("int s = p[i * 4], m = p[i * 4 + 3]; x += s * C; while (k < m) k++;", [("p", 0, "p", 3, False)]),
        ("int s = p[i], e = q[i]; for (k = s + t; k < e; k += B) y[k] = 1;", [("p", 0, "q", 0, True)]),
        ("int s = p[2 * i], e = p[2 * i + 1]; for (k = s; k < e; k++) y[k] = 1;", [("p", 0, "p", 1, True)]),
        ("int s = p[i][1], m = p[i][2]; int e = s + m - 1;", [("p", 1, "p", 2, False)]),
        ("int s = p[i], e = p[i + 1]; for (k = s; k < e; k++) y[k] = 1;", []),
        ("int label = p[i], m = q[i]; for (k = 0; k < m; k++) y[label] += x[k];", []),
        ("int s = p[i] + 1, m = q[i]; for (k = 0; k < m; k++) y[s + k] = 1;", []),
        ("int s = p[i][j], m = p[i][2]; y[s + m] = 1;", []),
    ],
    ids=["lengths", "columns", "ends", "pairs", "accessor", "rows", "labels", "more", "unknown column"],
)
def test_where_parts_are(body: str, expected: list[tuple[str, int, str, int, bool]]) -> None:
    found = contents.parts(body, ["p", "q"], {"p": 3}, Values({}))
    assert [(a.pointer, a.place, b.pointer, b.place, until) for a, b, until in found] == expected


@pytest.mark.parametrize(
    ("body", "summed"),
    [
        ("for (k = 0; k < b; k++) at += p[k]; x += at * 3;", True),
        ("int end = p[0]; for (k = 1; k < b; k++) { if (i < end) break; end += p[k]; }", True),
        ("for (k = 0; k < b; k++) sum += p[k]; y[i] = sum;", False),
    ],
    ids=["place", "compared", "a sum"],
)
def test_what_is_added_up_to_a_place(body: str, summed: bool) -> None:
    assert contents.summed(body, "p") == summed
