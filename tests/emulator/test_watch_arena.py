"""The arena of global memory and the words of shared and local memory, each by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.emulator import Buffer
from harness.emulator.memory import GAP, GLOBAL_BASE, Arena, Scratch
from harness.emulator.numbers.addresses import access
from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.values import array_of, integer_of, shift
from harness.errors import EmulatorError


def buffer(name: str, size: int, dtype: Any = np.uint32, initialised: bool = True) -> Buffer:
    return Buffer(array=np.arange(size).astype(dtype), name=name, initialised=initialised)


# ---- where buffers lie -------------------------------------------------------------------------------


def resident() -> int:
    """Return how many bytes of this machine's memory the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing says what a process has")
def test_what_lies_between_many_buffers_takes_no_memory() -> None:
    """Pages of 2 MiB would make the gaps between 1,000 buffers take 2 GiB."""
    before = resident()
    arena = Arena([buffer(f"x[{i}]", 4) for i in range(1000)])
    assert resident() - before < 2**26
    assert all(
        (arena.raw(np.array([x.start]), 16).view(np.uint32) == range(4)).all() for x in arena.allocations
    )


def test_buffers_lie_apart_and_in_their_order() -> None:
    arena = Arena([buffer("a", 10), buffer("b", GAP // 4 + 1), buffer("c", 3, np.uint8), buffer("d", 0)])
    a, b, c, d = arena.allocations
    assert [x.index for x in arena.allocations] == [0, 1, 2, 3] and [x.name for x in (a, d)] == ["a", "d"]
    assert [x.end - x.start for x in arena.allocations] == [40, GAP + 4, 3, 0]
    wide = Arena([buffer("wide", 3, np.float64)]).allocations[0]
    assert [x.grain for x in (a, c, wide)] == [4, 1, 4]  # bytes in which races are told apart
    assert a.start == GLOBAL_BASE + GAP  # an address a little below the first buffer is nobody's
    for one, two in ((a, b), (b, c), (c, d)):
        assert two.start - one.end >= GAP - 256 * 2 and two.start % 256 == 0
        assert GAP <= two.start - one.start


def test_who_holds_an_address_and_who_is_nearest() -> None:
    arena = Arena([buffer("a", 4), buffer("b", 4)])
    a, b = arena.allocations
    assert arena.holding(a.start, a.end) is a and arena.holding(b.start + 4, b.end) is b
    for low, end in ((a.start - 1, a.end), (a.start, a.end + 1), (a.start, b.end), (0, 4)):
        assert arena.holding(low, end) is None
    assert arena.nearest(a.start - 8, 4) == (a, 8)
    assert arena.nearest(a.end - 2, 4) == (a, 2)
    assert arena.nearest(a.end + 100, 8) == (a, 108)
    assert arena.nearest(b.start - 100, 8) == (b, 100)
    assert arena.nearest(a.start, 4) == (a, -12)  # inside
    assert Arena([]).nearest(5, 4) is None


def test_lanes_inside_of_one_buffer() -> None:
    arena = Arena([buffer("a", 4), buffer("b", 4, initialised=False)])
    a, b = arena.allocations
    at = np.array([a.start - 1, a.start, a.end - 4, a.end - 3, a.end, b.start, b.end - 4, b.end, 0])
    assert arena.inside(at, 4).tolist() == [False, True, True, False, False, True, True, False, False]
    assert arena.inside(at, 1).tolist() == [False, True, True, True, False, True, True, False, False]
    assert not Arena([]).inside(np.array([-1, 0, 1]), 1).any()
    assert arena.undefined(np.array([a.start, a.end - 1, b.start, b.end - 1])).tolist() == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(("size", "dtype"), [(1, np.uint8), (2, np.uint16), (4, np.float32), (8, np.float64)])
def test_units_are_loaded_and_stored_at_their_places(size: int, dtype: Any) -> None:
    arena = Arena([buffer("a", 16, dtype), buffer("b", 16, dtype, initialised=False)])
    a, b = arena.allocations
    index = np.array([[3, 0], [5, 1]])
    assert arena.load(index, a.start, size, None).tolist() == index.tolist()
    out = np.empty((2, 2), dtype)
    assert arena.load(index, a.start + 2 * size, size, out) is out and out.tolist() == (index + 2).tolist()
    assert arena.unwritten(index, b.start, size).all()
    arena.store(index, b.start + size, size, np.array([[1, 2], [3, 4]], dtype), b)
    assert arena.load(np.arange(8), b.start, size, None).tolist() == [0, 2, 4, 3, 1, 5, 3, 7]
    written = ~arena.unwritten(np.arange(8), b.start, size)
    assert written.tolist() == [False, True, True, False, True, False, True, False]
    assert arena.stored == {1}
    arena.store(np.array([0]), a.start, size, dtype(9), None)  # lanes of several buffers
    assert arena.stored == {0, 1}


def test_a_unit_is_written_once_all_its_bytes_are() -> None:
    arena = Arena([buffer("a", 4, initialised=False)])
    (a,) = arena.allocations
    for byte in range(3):
        arena.store(np.array([byte]), a.start, 1, np.uint8(7), a)
        assert arena.unwritten(np.array([0]), a.start, 4).tolist() == [True]
    arena.store(np.array([3]), a.start, 1, np.uint8(7), a)
    assert arena.unwritten(np.array([0, 1]), a.start, 4).tolist() == [False, True]
    assert arena.unwritten(np.array([0]), a.start, 8).tolist() == [True]


def test_what_was_stored_is_copied_back_and_nothing_else() -> None:
    first, second = buffer("a", 4), buffer("b", 4)
    arena = Arena([first, second])
    arena.store(
        np.array([1]), arena.allocations[1].start, 4, np.uint32(99).view(np.float32), arena.allocations[1]
    )
    first.array[:] = 5  # not stored to, so not copied over
    arena.copy_back([first, second])
    assert first.array.tolist() == [5] * 4 and second.array.tolist() == [0, 99, 2, 3]
    table = Buffer(array=np.arange(6, dtype=np.int64).reshape(2, 3), name="table")
    arena = Arena([table])
    arena.store(np.array([4]), arena.allocations[0].start, 8, np.int64(-1).view(np.float64), None)
    assert arena.view(4).nbytes == arena.view(8).nbytes > table.array.nbytes
    arena.copy_back([table])
    assert table.array.tolist() == [[0, 1, 2], [3, -1, 5]]
    arena, second.array[1] = Arena([first, second]), 99
    arena.stored.add(1)
    second.array.flags.writeable = False
    with pytest.raises(EmulatorError, match="^the kernel stores to b, a read-only array$"):
        arena.copy_back([first, second])


def test_arrays_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 100}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(os, "sysconf_names", pages)
    Arena([buffer("a", 750, np.uint8)])
    with pytest.raises(EmulatorError) as refused:
        Arena([buffer("a", 700, np.uint8), buffer("b", 51, np.uint8)])
    assert str(refused.value) == (
        "the kernel's arrays take 751 bytes and this machine has 1,000\n  -> Take a smaller shape."
    )
    monkeypatch.setattr(os, "sysconf_names", {"SC_PAGE_SIZE": 100})  # a system that does not say
    Arena([buffer("a", 700, np.uint8), buffer("b", 51, np.uint8)])

    def none(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", none)
    with pytest.raises(EmulatorError, match="bytes of global memory do not fit this machine"):
        Arena([])


# ---- shared and local memory by itself ---------------------------------------------------------------


@pytest.mark.parametrize(("size", "dtype"), [(1, np.uint8), (2, np.uint16), (4, np.float32), (8, np.float64)])
def test_scratch_keeps_units_at_their_places(size: int, dtype: Any) -> None:
    """Three owners of 1000 bytes each: two lanes of each go to an early and to the last unit."""
    scratch, columns = Scratch(1000, 3), np.arange(3)[None, :]
    assert scratch.written().shape == scratch.flat().shape and len(scratch.flat()) >= 3 * 250
    at = access(Memo(), integer_of(np.array([[24], [1000 - size]])), True, columns, (2, 3))
    assert scratch.unwritten(at, min(size, 4)).all()
    values = np.arange(1, 7, dtype=dtype).reshape(2, 3)
    scratch.store(at, size, values, True)
    assert scratch.load(at, size, None).tolist() == values.tolist()
    out = np.empty((2, 3), dtype)
    assert scratch.load(at, size, out) is out and out.tolist() == values.tolist()
    assert not scratch.unwritten(at, min(size, 4)).any()
    for row, place in enumerate((24, 1000 - size)):
        for owner in range(3):
            raw = scratch.raw(np.array([place]), np.array([owner]), size)
            assert raw.tobytes() == values[row, owner].tobytes()
    beside = scratch.raw(np.array([24 + size]), np.array([0]), 8)
    assert not beside.any()


@pytest.mark.parametrize("base", [integer_of(8 * np.arange(3)[:, None]), 8, integer_of(np.array([[0, 8]]))])
def test_a_pattern_that_moves_keeps_the_place_within_a_word(base: Any) -> None:
    """Patterns are kept by address, and each offset from 0 to 11 is another place for bytes and halves."""
    memo, columns, shape = Memo(), np.arange(2)[None, :], (3, 2)
    starts = np.broadcast_to(array_of(base), shape)
    for size, dtype in ((1, np.uint8), (2, np.uint16), (4, np.float32), (8, np.float64)):
        scratch, model = Scratch(64, 2), np.zeros((2, 64), np.uint8)
        for number, offset in enumerate([*range(0, 12, size), *range(0, 12, size)], 1):
            at = access(memo, shift(base, offset), True, columns, shape)
            scratch.store(at, size, dtype(number), True)
            for owner in range(2):
                for start in starts[:, owner] + offset:
                    model[owner, start : start + size] = np.frombuffer(dtype(number).tobytes(), np.uint8)
            assert (scratch.load(at, size, None) == number).all()
        for owner in range(2):
            found = scratch.raw(np.arange(64), np.full(64, owner), 1)
            assert found.ravel().tolist() == model[owner].tolist()


# ---- bytes as they are -------------------------------------------------------------------------------


def test_raw_bytes_are_those_of_each_address() -> None:
    arena = Arena([buffer("a", 8, np.uint8), buffer("b", 16, np.uint8)])
    at = np.array([arena.allocations[1].start + 3, arena.allocations[0].start])
    assert arena.raw(at, 4).tolist() == [[3, 4, 5, 6], [0, 1, 2, 3]]
    scratch = Scratch(16, 3)
    scratch.flat().view(np.uint8)[:] = (
        np.arange(scratch.flat().nbytes) % 251
    )  # word w of column c is w * 3 + c
    found = scratch.raw(np.array([0, 5, 6]), np.array([0, 1, 2]), 3)
    assert found.tolist() == [[0, 1, 2], [17, 18, 19], [22, 23, 32]]


def test_buffers_of_a_program_lie_at_their_addresses() -> None:
    """Others follow the last of them, as far apart as ever; what was written goes along."""
    far = GLOBAL_BASE + 40 * GAP
    flags = np.array([1, 0, 1, 1, 0, 0, 0, 1], np.uint8)
    first = Buffer(array=np.arange(5, dtype=np.uint32), name="first", address=far)
    part = Buffer(
        array=np.arange(8, dtype=np.uint8),
        name="part",
        initialised=False,
        written=flags,
        address=far + 3 * GAP,
    )
    arena = Arena([first, part, buffer("other", 12)])
    starts = [one.start for one in arena.allocations]
    assert starts == [far, far + 3 * GAP, far + 5 * GAP]
    assert [one.end - one.start for one in arena.allocations] == [20, 8, 48]
    assert arena.load(np.arange(8), far + 3 * GAP, 1, None).tolist() == list(range(8))
    assert arena.unwritten(np.arange(8), far + 3 * GAP, 1).tolist() == [not flag for flag in flags]
    lanes = np.array([far, far + 17, far + 3 * GAP, far + GAP])
    assert arena.inside(lanes, 4).tolist() == [True, False, True, False]


def test_memory_of_a_program_is_taken_as_it_is() -> None:
    """Buffers with addresses lie in it already; only the others are copied, and have to fit."""
    asked = []

    def private(size: int) -> tuple[Any, Any]:
        asked.append(size)
        octets = np.zeros(size, np.uint8)
        octets[2 * GAP : 2 * GAP + 4] = 7
        return octets, np.ones(size, np.uint8)

    lying = Buffer(array=np.zeros(4, np.uint8), name="lying", address=GLOBAL_BASE + 2 * GAP)
    own = Buffer(array=np.full(4, 9, np.uint8), name="own")
    arena = Arena([lying, own], private)
    assert asked == [arena.allocations[1].end - GLOBAL_BASE - 4 + 2 * GAP]
    assert arena.load(np.arange(4), GLOBAL_BASE + 2 * GAP, 1, None).tolist() == [7] * 4
    assert arena.load(np.arange(4), arena.allocations[1].start, 1, None).tolist() == [9] * 4
