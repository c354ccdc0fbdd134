"""Templates that a macro, a switch or a class of traits launches are tried with what these give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kernels import catalog, text
from harness.kernels.cpp import calls
from harness.kernels.cpp.source import macros
from shared.checking import check, of_programs, programs
from shared.places import DATA

PROGRAMS = programs("dispatched")
ENTRIES = {
    "callif": ["scale<128, 2>", "scale<64, 4>"],
    "switch": [f"norms<float, {width}, {square}>" for width in (32, 64) for square in (1, 0)],
    "traits": ["butterfly<Traits<32, 6, float>>"],
}
LAUNCHED = {
    "callif": "k:scale<64,4> was launched as by --grid 4,1,1 --block 64,1,1 -a x=1000 -a y=1000 -a n=1000 "
    "(block and grid as in line 19)",
    "switch": "k:norms<float,64,0> was launched as by --grid 1000,1,1 --block 64,1,1 -a x=64000 -a y=1000",
    "traits": "--grid 64,1,1 --block 32,1,1 -a params_x=4096 -a params_out=4096 -a params_dim=64",
}
QUICK = ("callif",)
FAULTS = [
    ("callif", "at < n", "at <= n"),
    ("callif", "first + i * THREADS", "first + i"),
    ("callif", "2 * x[at]", "2 * x[at + 1]"),
    ("switch", "d];\n        __syncthreads();", "d];"),
    ("switch", "x[row * WIDTH", "x[row * WIDTH + 1"),
    ("switch", "threadIdx.x < d", "threadIdx.x <= d"),
    ("switch", "T part[WIDTH]", "T part[WIDTH - 1]"),
    ("traits", "i < params.dim; i", "i <= params.dim; i"),
    ("traits", "        __syncthreads();\n        for", "        for"),
    ("traits", "blockIdx.x * params.out_stride", "blockIdx.x"),
    ("traits", "part[Ktraits::N]", "part[Ktraits::N / 2]"),
]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_each_instance_is_a_kernel(name: str) -> None:
    """Take the first call with the threads of a warp, where several lead to a launch."""
    assert [kernel.entry for kernel in catalog.load_each(DATA / "dispatched" / f"{name}.cu")] == ENTRIES[name]


test_all_are_tried, test_a_right_program_is_clean, test_a_planted_fault_is_found = of_programs(
    PROGRAMS, LAUNCHED, FAULTS, QUICK
)


def test_macros_that_launch_stand_for_their_text_and_lines_stay() -> None:
    for name in ("callif", "switch"):
        made = calls.seen(PROGRAMS[name], ()).texts[0]
        assert made.count("\n") == PROGRAMS[name].count("\n")
    assert "CALL_IF(128" not in calls.seen(PROGRAMS["callif"], ()).texts[0]
    assert text.blank(made).count("norms<float, WIDTH, SQUARE><<<rows, WIDTH>>>(x, y, rows);") == 4


def test_macros_of_headers_launch_too_and_checks_stay() -> None:
    """One that only looks at an error is none of them."""
    header = "#define CHOOSE(N, ...) { using T = float; constexpr int N = 8; __VA_ARGS__(); }\n"
    source = (
        "#define CHECK(call) do { const int e = call; if (e) exit(1); } while (0)\n"
        "void run() { CHOOSE(WIDE, [&] { k<T, WIDE><<<1, WIDE>>>(x);\n }); CHECK(cudaFree(x)); }\n"
    )
    made = macros.launching(source, text.blank(source), [header])
    assert (
        "constexpr int WIDE = 8; [&] { k<T, WIDE><<<1, WIDE>>>(x);" in made and "CHECK(cudaFree(x));" in made
    )
    assert macros.launching(source, text.blank(source), []) == source
    assert macros.launching(header, "", [header]) == header


VOID = """struct Params { int rows, cols, stride; const void* __restrict__ from; void* to; };
template <typename T> struct Kind { using type_t = T; };
template <typename K> __global__ void move(Params p)
{
    using type_t = typename K::type_t;
    int row = blockIdx.x;
    const type_t* from = reinterpret_cast<const type_t*>(p.from) + row * p.stride;
    for (int i = threadIdx.x; i < p.cols; i += blockDim.x) ((type_t*)p.to)[row * p.cols + i] = from[i];
}
template __global__ void move<Kind<float>>(Params p);
"""


def test_a_pointer_to_nothing_leads_to_what_it_is_taken_for(tmp_path: Path) -> None:
    code, said = check(tmp_path, VOID)
    assert code == 0 and "-a p_from=4096 -a p_to=4096 -a p_rows" not in said, said
    code, said = check(tmp_path, VOID.replace("i < p.cols", "i <= p.cols"))
    assert code == 1 and "of p_from, up to 4 bytes past the end" in said, said
