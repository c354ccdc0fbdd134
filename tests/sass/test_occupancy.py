"""Occupancy without a GPU, against a driver's answers, a recount by hand and the compiler's own limits."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.kernels.compiler import supported_archs
from harness.results import record
from harness.sass.occupancy import LIMITS, Limits, Occupancy, limits_of, occupancy
from shared.places import record_file

FULL = "warps"

archs = st.sampled_from([f"sm_{number}" for number in LIMITS])
thread_counts = st.integers(1, 1024)
register_counts = st.integers(0, 255)
shared_sizes = st.integers(0, 240 * 1024)


# --- what the driver of an H200 answered


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "fraction"),
    [
        (256, 60, 32768, 0.5),
        (256, 32, 2048, 1.0),
        (1024, 32, 8192, 1.0),
        (256, 64, 8192, 0.5),
        (256, 40, 0, 0.75),
        (512, 40, 0, 0.75),
        (1024, 42, 0, 0.5),
        (64, 96, 8192, 0.3125),
        (128, 56, 8192, 0.5625),
        (256, 48, 8192, 0.625),
        (512, 38, 8192, 0.75),
        (512, 52, 32768, 0.5),
        (1024, 36, 32768, 0.5),
    ],
)
def test_measured_on_an_h200(threads: int, registers: int, shared: int, fraction: float) -> None:
    assert occupancy("sm_90a", threads=threads, registers=registers, shared=shared).fraction == fraction


def measured(name: str) -> list[dict[str, Any]]:
    rows = record.load(record_file(f"h200/{name}"))["rows"]
    return [row for row in rows if row.get("occupancy") is not None]


@pytest.mark.parametrize(
    "name", ["bench/ladder", "bench/tiles", "bench/copy", "matmul/squares", "scripts/calibrate_emulator"]
)
def test_every_row_of_the_records(name: str) -> None:
    rows = measured(name)
    assert rows
    for row in rows:
        found = occupancy(
            row["arch"], threads=math.prod(row["block"]), registers=row["registers"], shared=row["shared"]
        )
        assert found.fraction == row["occupancy"], row["name"] if "name" in row else row["kernel"]


def test_the_limits_that_the_records_name() -> None:
    gpu = json.loads(record_file("h200/bench/tiles").read_text())["meta"]["gpu"]
    limits = LIMITS[90]
    assert limits.shared == gpu["shared_per_sm"]
    assert limits.max_shared == gpu["shared_per_block_optin"]
    assert limits.registers == gpu["registers_per_sm"]
    assert limits.max_warps * 32 == gpu["max_threads_per_sm"]


# --- limiters


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limiter"),
    [
        ("sm_90", 256, 32, 0, 8, FULL),  # registers run out at the same block
        ("sm_90", 64, 32, 0, 32, FULL),  # so do blocks
        ("sm_90", 768, 16, 0, 2, "warps"),  # 16 slots are left, and a block needs 24
        ("sm_90", 32, 32, 0, 32, "blocks"),
        ("sm_90", 256, 60, 0, 4, "registers"),
        ("sm_90", 256, 32, 100_000, 2, "shared memory"),
        ("sm_90", 256, 60, 45 * 1024, 4, "registers, shared memory"),
        ("sm_90", 768, 40, 0, 2, "warps, registers"),
        ("sm_90", 32, 64, 6 * 1024, 32, "registers, shared memory, blocks"),
        ("sm_90", 1024, 65, 0, 0, "nothing fits"),  # a launch of it would be refused
        ("sm_90", 1024, 64, 0, 1, "registers"),
        ("sm_90", 32, 255, 227 * 1024, 1, "shared memory"),
        ("sm_90", 32, 255, 227 * 1024 + 1, 0, "shared memory"),
        ("sm_90", 1024, 255, 228 * 1024, 0, "shared memory"),
        ("sm_75", 1024, 64, 0, 1, FULL),
        ("sm_75", 64, 16, 64 * 1024, 1, "shared memory"),  # nothing is reserved before sm_80
        ("sm_86", 1024, 32, 0, 1, "warps"),
        ("sm_89", 64, 32, 0, 24, FULL),
        ("sm_86", 64, 32, 0, 16, "blocks"),
        ("sm_120", 32, 16, 99 * 1024, 1, "shared memory"),
    ],
)
def test_limiter(arch: str, threads: int, registers: int, shared: int, blocks: int, limiter: str) -> None:
    found = occupancy(arch, threads=threads, registers=registers, shared=shared)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.warps == blocks * math.ceil(threads / 32)


@pytest.mark.parametrize(
    ("registers", "shared", "blocks"),
    [
        (32, 0, 16),
        (33, 0, 12),  # 33 registers cost as many as 40
        (40, 0, 12),
        (41, 0, 10),
        (0, 13568, 16),  # with the reserved 1024: 16 of 14592 bytes are all there is
        (0, 13569, 15),  # one byte more is 128 more
    ],
)
def test_units_of_allocation(registers: int, shared: int, blocks: int) -> None:
    assert occupancy("sm_90", threads=128, registers=registers, shared=shared).blocks == blocks


@pytest.mark.parametrize(
    ("arch", "shared", "blocks"),
    [
        ("sm_90", 12672, 17),  # 107 units of 128 with the reserved 1024; units of 256 would fit 16 times
        ("sm_90", 12673, 16),
        ("sm_75", 4864, 13),
        ("sm_75", 4865, 12),  # 20 units of 256; 39 units of 128 would fit 13 times
    ],
)
def test_units_of_shared_memory(arch: str, shared: int, blocks: int) -> None:
    assert occupancy(arch, threads=64, registers=16, shared=shared).blocks == blocks


def test_a_partition_holds_whole_warps() -> None:
    """A warp of 96 registers a thread takes 3072: 21 would fit in 64 Ki, but 5 fit in each quarter of it."""
    assert occupancy("sm_90", threads=32, registers=96, shared=0).blocks == 20


# --- refusals


@pytest.mark.parametrize(
    "wrong",
    [
        {"arch": "sm_70"},
        {"arch": "sm_101a"},
        {"arch": "hopper"},
        {"threads": 0},
        {"threads": 1025},
        {"registers": 256},
        {"registers": -1},
        {"shared": -1},
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any]) -> None:
    request: dict[str, Any] = {"arch": "sm_90", "threads": 32, "registers": 32, "shared": 0, **wrong}
    with pytest.raises(UsageError):
        occupancy(request.pop("arch"), **request)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threads": 1025}, "a block of 1025 threads cannot be\n  -> 1 to 1024"),
        ({"registers": 256}, "256 registers a thread cannot be\n  -> 0 to 255"),
        ({"shared": -1}, "-1 bytes of shared memory cannot be\n  -> 0 or more"),
    ],
    ids=range(3),
)
def test_refusals_say_what_can_be(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        occupancy("sm_90", **{"threads": 32, "registers": 32, "shared": 0, **wrong})
    assert str(refused.value) == message
    with pytest.raises(UsageError, match=r"^the limits of sm_70 are not known\n  -> known: sm_75"):
        limits_of("sm_70")


def test_unknown_architecture_names_the_known() -> None:
    with pytest.raises(UsageError, match="sm_75, sm_80, .*sm_107, .*sm_121"):
        limits_of("sm_70")


def test_suffix_makes_no_difference() -> None:
    assert limits_of("sm_90a") is limits_of("sm_90") is LIMITS[90]
    assert limits_of("sm_103f") is LIMITS[103]


def test_results_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        occupancy("sm_90", threads=32, registers=32, shared=0).blocks = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Occupancy(1, 1, 64, FULL)  # type: ignore[call-arg]


# --- the table against the compiler


def test_every_architecture_of_the_compiler_is_known() -> None:
    assert {int(name.removeprefix("sm_")) for name in supported_archs()} <= set(LIMITS)


def accepts(arch: str, threads: int, blocks: int) -> bool:
    """Ask ptxas if so many blocks can be resident: if not it says so, and ignores it."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    source = f'extern "C" __global__ void __launch_bounds__({threads}, {blocks}) k(int* p) {{ *p = 1; }}'
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--ptxas-options=-v"]
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        assert code == nvrtc.nvrtcResult.NVRTC_SUCCESS
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return b"minnctapersm will be ignored" not in log


@pytest.mark.slow
@pytest.mark.parametrize("number", LIMITS)
def test_the_compiler_knows_the_same_warps_and_blocks(number: int) -> None:
    arch = f"sm_{number}"
    if arch not in supported_archs():
        pytest.skip(f"the installed NVRTC does not know {arch}")
    limits = LIMITS[number]
    assert accepts(arch, 32, limits.max_blocks)
    assert not accepts(arch, 32, limits.max_blocks + 1)
    blocks = limits.max_blocks // 2  # so that warps are what runs out
    threads = limits.max_warps * 32 // blocks
    assert accepts(arch, threads, blocks)
    assert not accepts(arch, threads + 32, blocks)


def test_only_one_architecture_is_a_guess() -> None:
    assert [number for number, limits in LIMITS.items() if not limits.verified] == [107]


# --- properties


def by_hand(limits: Limits, threads: int, registers: int, shared: int) -> int:
    """Put blocks on an SM one at a time, each warp into the emptiest of the four partitions."""
    if shared > limits.max_shared:
        return 0
    warps, used = len(range(0, threads, 32)), 0
    warp_registers = next(n for n in range(0, 2**14, limits.register_unit) if n >= 32 * registers)
    block_shared = shared + limits.reserved_shared
    while block_shared % limits.shared_unit:
        block_shared += 1
    if warp_registers * (warps + -warps % 4) > 65536:
        return 0
    free = [limits.registers // 4] * 4
    for blocks in range(limits.max_blocks):
        used += block_shared
        if used > limits.shared or (blocks + 1) * warps > limits.max_warps:
            return blocks
        for _ in range(warps):
            emptiest = free.index(max(free))
            free[emptiest] -= warp_registers
            if free[emptiest] < 0:
                return blocks
    return limits.max_blocks


@given(archs, thread_counts, register_counts, shared_sizes)
def test_the_same_by_hand(arch: str, threads: int, registers: int, shared: int) -> None:
    found = occupancy(arch, threads=threads, registers=registers, shared=shared)
    assert found.blocks == by_hand(limits_of(arch), threads, registers, shared)


@given(archs, thread_counts, register_counts, st.integers(0, 16 * 1024))
def test_the_same_by_hand_with_little_shared(arch: str, threads: int, registers: int, shared: int) -> None:
    found = occupancy(arch, threads=threads, registers=registers, shared=shared)
    assert found.blocks == by_hand(limits_of(arch), threads, registers, shared)


@given(archs, thread_counts, register_counts, shared_sizes)
def test_nothing_is_given_away_twice(arch: str, threads: int, registers: int, shared: int) -> None:
    found, limits = occupancy(arch, threads=threads, registers=registers, shared=shared), limits_of(arch)
    assert 0 <= found.blocks <= limits.max_blocks
    assert found.blocks * threads <= limits.max_warps * 32
    assert found.blocks * threads * registers <= limits.registers
    assert found.blocks * (shared + limits.reserved_shared) <= limits.shared
    assert 0 <= found.fraction <= 1
    assert (found.max_warps, found.warps) == (limits.max_warps, found.blocks * math.ceil(threads / 32))


@given(archs, st.lists(thread_counts, min_size=2, max_size=2), register_counts, shared_sizes)
def test_more_threads_never_fit_more_blocks(
    arch: str, threads: list[int], registers: int, shared: int
) -> None:
    few, many = (occupancy(arch, threads=n, registers=registers, shared=shared) for n in sorted(threads))
    assert few.blocks >= many.blocks


@given(archs, thread_counts, st.lists(register_counts, min_size=2, max_size=2), shared_sizes)
def test_more_registers_never_fit_more(arch: str, threads: int, registers: list[int], shared: int) -> None:
    few, many = (occupancy(arch, threads=threads, registers=n, shared=shared) for n in sorted(registers))
    assert few.blocks >= many.blocks
    assert few.fraction >= many.fraction


@given(archs, thread_counts, register_counts, st.lists(shared_sizes, min_size=2, max_size=2))
def test_more_shared_memory_never_fits_more(
    arch: str, threads: int, registers: int, shared: list[int]
) -> None:
    few, many = (occupancy(arch, threads=threads, registers=registers, shared=n) for n in sorted(shared))
    assert few.blocks >= many.blocks
    assert few.fraction >= many.fraction


@given(archs, thread_counts, register_counts, shared_sizes)
def test_the_limiter_is_what_runs_out(arch: str, threads: int, registers: int, shared: int) -> None:
    """More blocks fit without the limiter, registers or shared memory."""
    found = occupancy(arch, threads=threads, registers=registers, shared=shared)
    names = set(found.limiter.split(", "))
    assert names <= {"warps", "registers", "shared memory", "blocks"} or names == {"nothing fits"}
    if names == {"nothing fits"}:
        assert found.blocks == 0
    if names == {"registers"}:
        assert occupancy(arch, threads=threads, registers=0, shared=shared).blocks > found.blocks
    if names == {"shared memory"} and found.blocks:
        assert occupancy(arch, threads=threads, registers=registers, shared=0).blocks > found.blocks
    if found.fraction == 1:
        assert names == {"warps"}
