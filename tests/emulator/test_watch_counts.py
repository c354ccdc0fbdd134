"""Requests, sectors, wavefronts and bytes, warp by warp in plain Python; findings and sums by line."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator import Buffer, Counts, Finding, Index3, Source
from harness.emulator.numbers.values import Affine, Component, mask_of
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch import patterns
from harness.emulator.watch.counts import Counter, by_line, total
from harness.emulator.watch.findings import Findings
from shared.straight_line import Extents, Step, run

Lanes = list[int | None]  # the address of each lane of a warp; None where it takes no part


def sectors(warp: Lanes, size: int) -> int:
    return len({byte // 32 for at in warp if at is not None for byte in (at, at + size - 1)})


def wavefronts(warp: Lanes, size: int) -> tuple[int, int]:
    """Return (wavefronts, conflicts) of one request, after the rule in the docstring of `patterns`."""
    words = max(1, size // 4)

    def agree(apart: int) -> bool:
        pairs = [(warp[lane], warp[lane ^ apart]) for lane in range(32)]
        return all(a == b for a, b in pairs if a is not None and b is not None)

    parts = words // 2 if words > 1 and (agree(1) or agree(2)) else words
    waves = busy = 0
    for part in range(parts):
        lanes = [at for at in warp[part * 32 // parts : (part + 1) * 32 // parts] if at is not None]
        touched = {at // 4 + i for at in lanes for i in range(words)}
        if touched:
            waves += max(collections.Counter(word % 32 for word in touched).values())
            busy += 1
    return waves, waves - busy


def warps(addresses: Sequence[Sequence[int | None]]) -> list[Lanes]:
    """Cut (threads, blocks) into warps in which some lane takes part, the last of a block filled up."""
    found = []
    for block in range(len(addresses[0])):
        column = [row[block] for row in addresses]
        for first in range(0, len(column), 32):
            warp = [*column[first : first + 32], *[None] * 31][:32]
            if any(at is not None for at in warp):
                found.append(warp)
    return found


# ---- one access --------------------------------------------------------------------------------------


@st.composite
def accesses(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray | None, int]:
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    shape = (draw(st.sampled_from([1, 7, 31, 32, 33, 64, 70])), draw(st.integers(1, 3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    thread = np.arange(shape[0])[:, None]
    kind = draw(st.sampled_from(["line", "pairs", "quads", "random", "few", "one"]))
    index = {
        "line": thread * draw(st.integers(0, 40)),
        "pairs": thread // 2 * draw(st.integers(1, 9)),
        "quads": (thread // 4 * 2 + thread % 2) * draw(st.integers(1, 9)),
        "random": rng.integers(0, 500, shape),
        "few": rng.integers(0, 3, shape) * 32,
        "one": thread * 0,
    }[kind]
    apart = draw(st.sampled_from([0, 1, 7]))
    addresses = np.broadcast_to(size * (index + apart * np.arange(shape[1])), shape).astype(np.int64)
    active = draw(st.sampled_from(["all", "half", "few", "none"]))
    chance = {"all": 2.0, "half": 0.5, "few": 0.05, "none": -1.0}[active]
    return addresses, None if active == "all" else rng.random(shape) < chance, size


@settings(max_examples=150, deadline=None)
@given(accesses())
def test_requests_are_counted_as_one_by_one(access: tuple[np.ndarray, np.ndarray | None, int]) -> None:
    addresses, active, size = access
    on = np.ones(addresses.shape, bool) if active is None else active
    requests = warps(
        [
            [int(a) if o else None for a, o in zip(row, lanes, strict=True)]
            for row, lanes in zip(addresses, on, strict=True)
        ]
    )
    assert patterns.sectors(addresses, active, size) == (
        len(requests), sum(sectors(w, size) for w in requests)
    )  # fmt: skip
    waves = [wavefronts(w, size) for w in requests]
    expected = (len(requests), sum(w for w, _ in waves), sum(c for _, c in waves))
    assert patterns.wavefronts(addresses, active, size) == expected
    assert all(type(n) is int for n in patterns.sectors(addresses, active, size))


# ---- what a launch adds up ---------------------------------------------------------------------------

SHAPES = [(40, 3), (8, 3), (33, 1), (64, 2)]


def lanes_of(rng: np.random.Generator, shape: tuple[int, int], mask: str) -> np.ndarray | None:
    """Return which lanes take part, an array that broadcasts to `shape`; None for all."""
    extents = {"thread": (shape[0], 1), "block": (1, shape[1]), "lane": shape}
    if mask not in extents:
        return None
    chosen = rng.random(extents[mask]) < 0.6
    chosen.flat[0], chosen.flat[-1] = True, mask == "block" and shape[1] == 1
    return chosen


@pytest.mark.parametrize("space", ["global", "shared"])
def test_accesses_add_up_whatever_their_address_consists_of(space: str) -> None:
    """A kept pattern serves the next: all are counted by one counter, against whole arrays."""
    rng, total = np.random.default_rng(7), np.zeros(4, np.int64)
    (ins, other) = (
        Instruction(index=i, opcode=(op,), operands=(), source=Source(1), ptx_line=i)
        for i, op in enumerate(("ld", "st"))
    )
    counter = Counter((ins, other), [0, 0], {})
    parts = {
        (threads, blocks): (
            [
                None,
                *(Component(np.arange(threads)[:, None] * step + 40 * step) for step in (1, 5, 16)),
                Component(np.arange(threads)[:, None] % 2 * 125),
            ],
            [None, *(Component(np.arange(blocks)[None, :] * step + step) for step in (4, 25))],
            [None, Component(rng.integers(0, 60, (threads, blocks)))],
        )
        for threads, blocks in SHAPES
    }
    masks = {
        (shape, mask): mask_of(chosen) if (chosen := lanes_of(rng, shape, mask)) is not None else True
        for shape in SHAPES
        for mask in ("all", "thread", "block", "lane")
    }
    for _ in range(600):
        shape = SHAPES[rng.integers(4)]
        size = int(rng.choice([1, 2, 4, 8, 16]))
        thread, block, full = (choice[rng.integers(len(choice))] for choice in parts[shape])
        where = masks[shape, str(rng.choice(["all", "thread", "block", "lane"]))]
        start = int(rng.integers(0, 70))
        base = np.full(shape, start)
        for part in (thread, block, full):
            base = base + (0 if part is None else part.array)
        nothing = thread is None and block is None and full is None
        address = start if nothing else Affine(thread, block, full, start)
        active = None if where is True else np.broadcast_to(where.array, shape)
        if space == "global":
            counter.global_access(ins, address, where, size, shape)
            counts = patterns.sectors(base, active, size)
        else:
            counter.shared_access(ins, address, where, size, shape)
            counts = patterns.wavefronts(base, active, size)
        number = base.size if active is None else int(active.sum())
        total[: len(counts) + 1] += [*counts, size * number]
        found = counter.all()[0]
        assert total.tolist() == (
            [found.global_requests, found.sectors, found.global_bytes, 0]
            if space == "global"
            else [found.shared_requests, found.wavefronts, found.conflicts, found.shared_bytes]
        )
    nobody = counter.all()[1]
    counter.global_access(other, 0, False, 4, (8, 2))
    counter.shared_access(other, 0, False, 4, (8, 2))
    assert (nobody.global_requests, nobody.shared_requests) == (0, 0)
    assert (counter.all()[1].global_bytes, counter.all()[1].shared_bytes) == (0, 0)


def test_bulk_copies_and_products_add_up() -> None:
    opcodes = (
        "mma.sync.aligned",
        "wmma.mma.sync",
        "wgmma.mma_async.sync",
        "wmma.load.a",
        "fma.rn.f32",
        "cp.async.bulk",
    )
    made = tuple(
        Instruction(index=i, opcode=tuple(o.split(".")), operands=(), source=Source(1), ptx_line=i)
        for i, o in enumerate(opcodes)
    )
    counter = Counter(made, [0, 0, 0, 0, 2, 0], {})
    for index in range(5):
        counter.executions[index] = 96 + index
    rows = [
        np.arange(16, 144, 4),
        np.array([], np.int64),
        np.concatenate([np.arange(0, 64, 8), np.arange(256, 264, 8)]),
    ]
    for address, size in zip(rows, (4, 4, 8), strict=True):
        counter.bulk(made[5], address, size)
    found = counter.all()
    assert [c.products for c in found] == [3, 3, 3, 0, 0, 0] and isinstance(found[0].products, int)
    assert [c.flops for c in found] == [0, 0, 0, 0, 200, 0]
    assert (found[5].boxes, found[5].box_sectors, found[5].box_bytes) == (3, 5 + 0 + 3, 128 + 0 + 72)
    assert [c.opcode for c in found] == list(opcodes) and found[4].boxes == 0


def test_lanes_that_agree_in_pairs_halve_the_parts_of_their_own_warp() -> None:
    """Lanes T and T ^ 2 read the same 16 bytes in one warp, in another each lane its own."""
    lane = np.arange(32)[:, None]
    pairs, own = 16 * (lane // 4 * 2 + lane % 2), 16 * lane
    assert patterns.wavefronts(pairs, None, 16) == (1, 2, 0)
    assert patterns.wavefronts(own, None, 16) == (1, 4, 0)
    assert patterns.wavefronts(np.concatenate([pairs, own]), None, 16) == (2, 6, 0)
    crossed = 16 * (lane // 4 * 2 + (lane + 1) // 2 % 2)  # T and T ^ 3
    assert patterns.wavefronts(crossed, None, 16) == (1, 4, 0)


def test_sectors_of_accesses_across_a_boundary() -> None:
    """Accesses that the compiler made wider than in the PTX may begin anywhere."""
    across = np.array([[28], [60]], np.int64)
    assert patterns.sectors(across, None, 8) == (1, 3)
    assert patterns.sectors(across, None, 4) == (1, 2)
    assert patterns.sectors(across, np.array([[True], [False]]), 8) == (1, 2)


@pytest.mark.parametrize(
    ("size", "stride", "waves", "conflicts"),
    [(4, 4, 1, 0), (4, 8, 2, 1), (4, 128, 32, 31), (4, 132, 1, 0), (4, 0, 1, 0), (8, 8, 2, 0), (16, 16, 4, 0),
     (16, 32, 8, 4), (2, 2, 1, 0), (1, 1, 1, 0), (8, 0, 1, 0), (16, 0, 2, 0)],
)  # fmt: skip
def test_wavefronts_of_strides(size: int, stride: int, waves: int, conflicts: int) -> None:
    addresses = stride * np.arange(32, dtype=np.int64)[:, None]
    assert patterns.wavefronts(addresses, None, size) == (1, waves, conflicts)


# ---- a launch ----------------------------------------------------------------------------------------

ROOM = 16384


@st.composite
def steps(draw: st.DrawFn) -> Step:
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    return Step(
        draw(st.sampled_from(["ld", "st"])),
        size,
        thread=size * draw(st.integers(0, 9)),
        block=size * draw(st.sampled_from([0, 1, 8, 5])),
        start=size * draw(st.integers(0, 20)),
        wrap=draw(st.sampled_from([0, 512, ROOM])),
        limit=draw(st.sampled_from([0, 1, 20, 33, 1000])),
        blocks=draw(st.sampled_from([1, 2, 99, 99])),
    )


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["global", "shared"]), st.sampled_from([(3, 1, 1), (2, 2, 1)]),
    st.sampled_from([(32, 1, 1), (8, 5, 1), (64, 1, 1)]), st.lists(steps(), min_size=1, max_size=4),
    st.sampled_from(["lockstep", "warp-serial"]), st.sampled_from([{}, {4: 4, 8: 8}, {4: 8, 2: 4, 16: 0}]),
)  # fmt: skip
def test_counts_of_a_launch(
    space: str, grid: Extents, block: Extents, program: list[Step], schedule: str, wider: dict[int, int]
) -> None:
    """Each access of a line, in the width of the compiled code where that is another one."""
    a = Buffer(array=np.zeros(ROOM // 4, np.uint32), name="a")
    plain = run(space, program, grid=grid, block=block, room=ROOM, a=a, schedule=schedule)
    access = (f"ld.{space}", f"st.{space}")
    at = {c.source.line: c.ptx_line for c in plain.instructions if c.opcode.startswith(access)}
    widths = {at[line]: wider[step.size] for line, step in enumerate(program, 1) if step.size in wider}
    done = run(space, program, grid=grid, block=block, room=ROOM, a=a, schedule=schedule, widths=widths)
    found = {c.ptx_line: c for c in done.instructions}
    for line, step in enumerate(program, 1):
        count, size = found[at[line]], wider.get(step.size, step.size)
        lanes = [
            [step.address(t, b) if t < step.limit and b < step.blocks else None for b in range(prod(grid))]
            for t in range(prod(block))
        ]
        requests = warps(lanes) if size else []
        asked = size * sum(at is not None for row in lanes for at in row)
        waves = [wavefronts(w, size) for w in requests]
        assert count.executions == sum(at is not None for row in lanes for at in row)
        if space == "global":
            expected = (len(requests), sum(sectors(w, size) for w in requests), asked)
            assert (count.global_requests, count.sectors, count.global_bytes) == expected
            assert count.shared_requests == count.wavefronts == count.shared_bytes == count.conflicts == 0
        else:
            sums = (sum(w for w, _ in waves), sum(c for _, c in waves))
            assert (count.shared_requests, count.wavefronts, count.conflicts) == (len(requests), *sums)
            assert (count.shared_bytes, count.global_requests, count.sectors) == (asked, 0, 0)


def test_atomics_are_counted_by_thread() -> None:
    for schedule in ("lockstep", "warp-serial"):
        program = [Step("st", limit=64, value=0), Step("atom", limit=40), Step("atom", limit=3)]
        done = run("shared", program, grid=(3, 1, 1), block=(64, 1, 1), schedule=schedule)
        assert [c.atomics for c in done.lines if c.atomics] == [120, 9] and done.total.atomics == 129


# ---- sums --------------------------------------------------------------------------------------------


def test_sums_are_of_every_number_and_of_nothing_else() -> None:
    names = [f.name for f in fields(Counts)][3:]
    one = Counts(source=Source(3), opcode="ld", ptx_line=9, **{name: i + 1 for i, name in enumerate(names)})
    two = Counts(source=Source(2, "a.cuh"), opcode="st", **dict.fromkeys(names, 100))
    both = total([one, two], Source(7))
    assert (both.source, both.opcode, both.ptx_line) == (Source(7), "", 0)
    assert [getattr(both, name) for name in names] == [101 + i for i in range(len(names))]
    assert total([]) == Counts() and total([one]).source == Source()
    lines = by_line([one, two, one])
    assert [c.source for c in lines] == [Source(2, "a.cuh"), Source(3)]
    assert [c.executions for c in lines] == [100, 2 * one.executions]


def test_ratios_of_counts() -> None:
    none = Counts()
    assert none.intensity is none.sectors_per_request is none.ways is None
    some = Counts(flops=6, global_bytes=4, sectors=9, global_requests=3, wavefronts=8, conflicts=6)
    assert (some.intensity, some.sectors_per_request, some.ways) == (1.5, 3.0, 4.0)


# ---- findings ----------------------------------------------------------------------------------------


def finding(kind: str, *sources: Source) -> Finding:
    return Finding(kind=kind, message="it happened", sources=sources)


def test_a_fault_seen_again_raises_its_count_and_is_described_once() -> None:
    made: list[str] = []

    def make(name: str) -> Finding:
        made.append(name)
        return finding(name, Source(1))

    findings = Findings()
    for kind, key, times in (("a", (1,), 2), ("a", (1,), 3), ("b", (1,), 1), ("a", (2,), 5)):
        findings.add(kind, key, times, lambda kind=kind, key=key: make(f"{kind}{key[0]}"))
    assert made == ["a1", "b1", "a2"]
    assert {(f.kind, f.seen) for f in findings.all()} == {("a1", 5), ("b1", 1), ("a2", 5)}


def test_findings_are_ordered_by_lines_and_kind() -> None:
    findings, places = Findings(), [Source(2), Source(1), Source(1, "a.cuh")]
    for place, kind in product(places, ("z", "b")):
        findings.add(kind, (place,), 1, lambda place=place, kind=kind: finding(kind, place))
    expected = sorted(product(places, ("z", "b")))
    assert [(f.sources[0], f.kind) for f in findings.all()] == expected


def test_findings_as_text() -> None:
    assert str(finding("RAW hazard", Source(3), Source(4, "x.cuh"))) == (
        "RAW hazard: line 3 and x.cuh:4: it happened"
    )
    assert str(finding("misaligned", Source(3))) == "misaligned: line 3: it happened"
    assert str(Index3(1, 2, 3)) == "(1, 2, 3)"
