"""Mutation testing of the emulator: of the faults that `mutants` plants in each kernel it may miss few; the
tables below say why: a mutant that computes what the kernel does is no fault.

A few of each kernel's mutants run in each test run, always the same; HARNESS_MUTANTS=all runs every one, and
HARNESS_MUTANTS=50 that many of each kernel.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.kernels import catalog
from shared.mutants import Mutant, Subject, flat, hunt, mutants
from shared.sweeps import sweep

LIMIT = os.environ.get("HARNESS_MUTANTS", "8")
# Those with Hopper's units have faults planted by hand: test_hopper_faults.py.
RUNGS = [
    k.name
    for k in catalog.ladder()
    if not k.broken and not k.tensormaps and not k.cooperative and k.dtype != "bf16x6"
]
FAST = {"03_tiled", "08_tiled_v4"}
LONG = {
    "10_vectorized", "11_conflict_free", "12_prefetch", "13_cp_async", "14_warp_tiles", "33_small_tiles",
    "34_small_tiles_tf32", "37_small_tiles_16_bits", "37_small_tiles_16_bits_fp16", "41_turned_tiles",
    "42_single_floats",
}  # fmt: skip
LEAST = 0.95  # of the mutants that are not equivalent

# Why a mutant computes what the kernel does: (text in the line, what replaces it there).
EQUIVALENT: dict[str, tuple[tuple[str, str], ...]] = {
    "one more step of k, on tiles of nothing but zeros": (
        (" left > 0; left -= ", " left >= 0; left -= "),
        ("setp.gt.s32   %more, %left, 0", "setp.ge.s32   %more, %left, 0"),
    ),
    "what stands outside one matrix is multiplied with the zeros outside the other": (
        ("tx < left ? *a : 0.f", "tx < left ? *a : 1.f"),
        ("col < N ? *b : 0.f", "col < N ? *b : 1.f"),
        ("a[(long long)i * lda] : 0.f", "a[(long long)i * lda] : 1.f"),
        ("b[(long long)i * ldb] : 0.f", "b[(long long)i * ldb] : 1.f"),
        ("A[(long long)m * lda + k] : 0.f", "A[(long long)m * lda + k] : 1.f"),
        ("B[(long long)k * ldb + n] : 0.f", "B[(long long)k * ldb + n] : 1.f"),
        # 17 and 18, whose other factor is a zero that does not come from this line; elsewhere it is killed
        ("? p[0] : 0.f", "? p[0] : 1.f"),
        ("? p[1] : 0.f", "? p[1] : 1.f"),
        ("? p[2] : 0.f", "? p[2] : 1.f"),
        ("? p[3] : 0.f", "? p[3] : 1.f"),
    ),
    "float4 is used less often: the other path computes the same, word by word": (
        ("matrix % 16 == 0", "matrix % 16 != 0"),
        ("matrix % 16 == 0", "matrix / 16 == 0"),
        ("matrix % 16 == 0", "matrix % (16 + 1) == 0"),
        ("matrix % 16 == 0", "matrix % 16 == (0 + 1)"),
        ("ld % (16 / (int)sizeof(T))", "ld % (16 % (int)sizeof(T))"),  # by 0: never equal
        ("col + COLS <= N", "col + COLS < N"),
        ("row + BM <= M", "row + BM < M"),
        ("col + BN <= N", "col + BN < N"),
        ("quads && left >= ", "quads && left > "),
        ("quads && left >= 4", "quads && left >= (4 + 1)"),
        ("quads && count >= 4", "quads && count > 4"),
        ("quads && count >= 4", "quads && count >= (4 + 1)"),
        ("words && count > 1", "words && count > (1 + 1)"),
        ("ldc % 2 == 0", "ldc / 2 == 0"),
    ),
    "float4 is used less often but for rows of 1 to 3 floats, which have none": (
        ("ld % (16 / (int)sizeof(T)) == 0", "ld / (16 / (int)sizeof(T)) == 0"),
    ),
    "16-byte units are used less often but for a K of 1 to 7, and no shape here has aligned rows of that": (
        ("K % 8 == 0", "K / 8 == 0"),
    ),
    "rows are a multiple of 4 apart, so a quad that N cuts ends in the padding, and nobody uses that": (
        ("N % 4 == 0", "N / 4 == 0"),
        ("N % 4 == 0", "N % 4 != 0"),
        ("N % 4 == 0", "N % 4 == (0 + 1)"),
        ("N % 4 == 0", "N % (4 + 1) == 0"),
        ("N % 4 == 0", "M % 4 == 0"),
        ("N % 4 == 0", "K % 4 == 0"),
        ("aligned16(B, ldb) && N", "aligned16(B, ldb) && true || false && N"),
        ("N % 8 == 0", "N / 8 == 0"),
        ("N % 8 == 0", "N % 8 != 0"),
        ("N % 8 == 0", "N % 8 == (0 + 1)"),
        ("N % 8 == 0", "N % (8 + 1) == 0"),
        ("N % 8 == 0", "M % 8 == 0"),
        ("N % 8 == 0", "K % 8 == 0"),
    ),
    "another swizzle, or none: banks conflict, and nobody counts that here": (
        ("? COLUMNS / 8 : 8", "? COLUMNS % 8 : 8"),
    ),
    "only the order of the products of one k differs, each of its own sum": (
        ("j % 2 ? TM", "j % (2 + 1) ? TM"),
        ("j % 2 ? TM", "j / 2 ? TM"),
    ),
    "one group more is waited for than need be": (
        ("cp_async_wait_group<STAGES - 2>", "cp_async_wait_group<STAGES - (2 + 1)>"),
    ),
    "where quads are copied, b_count is a multiple of 4": (("b_count > 0", "b_count > (0 + 1)"),),
    "the two are equal there": (
        ("now = now + 1 ==", "now = next + 1 =="),
        ("0 : now + 1", "0 : next + 1"),
    ),
    "every operand that harness passes starts at a multiple of 256 bytes": (
        ("matrix % 16 == 0 && ld", "matrix % 16 == 0 && false || ld"),
        ("aligned16(A, lda)", "aligned16(B, lda)"),
        ("aligned16(B, ldb)", "aligned16(A, ldb)"),
        ("aligned16(C, ldc)", "aligned16(B, ldc)"),
        ("aligned16(C, ldc)", "aligned16(A, ldc)"),
    ),
    "an element more, which nobody uses": (
        ("sum[TM][TN] = {}", "sum[TM + 1][TN] = {}"),
        ("sum[TM][TN] = {}", "sum[TM][TN + 1] = {}"),
        ("sum[EACH][COLS] = {}", "sum[EACH + 1][COLS] = {}"),
        ("sum[EACH][COLS] = {}", "sum[EACH][COLS + 1] = {}"),
    ),
    "a thread more writes past the tile, into a word of padding": (
        ("i < STEP * COLS;", "i <= STEP * COLS;"),
    ),
    "a tile is fetched of which nothing is there, or put where nobody reads it": (
        ("left > BK) fetch", "left >= BK) fetch"),
        ("ahead > 0) fetch", "ahead >= 0) fetch"),
        ("left > BK) stash", "left >= BK) stash"),
    ),
    "no thread takes a second step": (
        ("i < ROWS * COLS; i += THREADS", "i < ROWS * COLS; i += THREADS + 1"),
        ("i < ROWS * FEW; i += THREADS", "i < ROWS * FEW; i += THREADS + 1"),
    ),
    "lanes 17, 8, 4, 2 and 1 apart meet as all those 16, 8, 4, 2 and 1 apart do": (
        ("int distance = 16;", "int distance = 16 + 1;"),
        ("int distance = 16;", "int distance = (16 + 1);"),
    ),
    "in 33 a thread of the smallest tile has four columns, one vector: none is LANES vectors further on": (
        ("Fragment<TN, 4, TRANSB>", "Fragment<TN, (4 + 1), TRANSB>"),
    ),
    "a block of 40 has one column here: none is past the last": (
        ("min(first + n, few - 1u)", "min(first + n, few + 1u)"),
    ),
    "after the exchange every lane has the sum": (("if (lane == 0) totals", "if (lane == (0 + 1)) totals"),),
}

# Faults that the emulator does not see.
MISSED: dict[str, tuple[tuple[str, str], ...]] = {
    "a cp.async that is told to read more than it copies is undefined; the emulator copies what it can": (
        ("there ? 4 : 0", "there ? (4 + 1) : 0"),
        ("there ? 16 : 0", "there ? (16 + 1) : 0"),
    ),
    "a store past As falls on Bs, and is overwritten at once: shared memory is one space to the emulator": (
        ("i < BM * BK; i += THREADS", "i <= BM * BK; i += THREADS"),
    ),
}


def reason(mutant: Mutant, table: dict[str, tuple[tuple[str, str], ...]]) -> str:
    """Return the reason that the table gives for this one; "" for none."""
    for why, pairs in table.items():
        for old, new in pairs:
            pieces = mutant.line.split(old)
            changes = (old.join(pieces[:i]) + new + old.join(pieces[i:]) for i in range(1, len(pieces)))
            if mutant.changed in changes:
                return why
    return ""


@pytest.mark.parametrize("name", sweep(RUNGS, lambda name: name in FAST, lambda name: name in LONG))
def test_mutants_are_killed(name: str, record_property: Any) -> None:
    kernel = catalog.kernel(name)
    every = sorted(mutants(kernel), key=lambda m: m.key)
    chosen = every if LIMIT == "all" else every[: int(LIMIT)]
    try:
        tally = hunt(Subject.of(kernel), chosen)
    except HarnessError as e:
        if "needs a GPU" not in str(e):
            raise
        pytest.skip(str(e))
    missed = [m for m in tally.survivors if not reason(m, EQUIVALENT)]
    killed, equivalent = tally.killed.total(), len(tally.survivors) - len(missed)
    faults = killed + len(missed)
    record_property(
        "mutation",
        f"{name}: {killed} of {faults} killed; of {tally.tried} mutants {tally.uncompiled} do not compile, "
        f"{tally.identical} give the same PTX, {equivalent} are equivalent",
    )
    unexplained = [str(m) for m in missed if not reason(m, MISSED)]
    assert not unexplained, "\n".join(["survivors that no table explains:", *unexplained])
    assert len(missed) <= max(1, (1 - LEAST) * faults)


def test_the_hunt_lets_a_harmless_change_live_and_drops_what_does_not_matter() -> None:
    """The control: a mutant is not killed for being one."""
    subject = Subject.of(catalog.kernel("03_tiled"))
    source = flat(subject.variant.kernel)

    def mutant(line: str, changed: str) -> Mutant:
        assert source.count(line) == 1
        return Mutant(operator="", line=line, changed=changed, source=source.replace(line, changed))

    same = mutant("a += TILE;", "a += TILE; // the same")
    harmless = mutant("As[TILE][TILE];", "As[TILE][TILE + 1];")
    broken = mutant("a += TILE;", "a += TILE")
    fault = mutant("a += TILE;", "a += TILE - 1;")
    tally = hunt(subject, [same, harmless, broken, fault])
    assert (tally.identical, tally.uncompiled, tally.killed.total(), tally.survivors) == (1, 1, 1, [harmless])
    assert not reason(harmless, EQUIVALENT)
    assert not reason(fault, EQUIVALENT)


@pytest.mark.slow
def test_a_kernel_that_never_ends_is_killed_in_time() -> None:
    subject = Subject.of(catalog.kernel("03_tiled"))
    source = flat(subject.variant.kernel).replace("left > 0; left -= TILE", "left > 0; left -= 0")
    built = subject.built(source)
    assert built is not None
    assert "the kernel hangs" in subject.fault(built)


def test_the_table_explains_no_more_than_it_says() -> None:
    def changed(line: str, text: str) -> Mutant:
        return Mutant(operator="", line=line, changed=text, source="")

    assert reason(changed("x = p[0] ? p[0] : 0.f, q;", "x = p[0] ? p[0] : 1.f, q;"), EQUIVALENT)
    assert not reason(changed("x = p[0] ? p[0] : 0.f, q;", "x = p[0] ? p[0] : 1.f, r;"), EQUIVALENT)
    inverted = changed("for (int left = K; left > 0; left -= 8)", "for (int left = K; left < 0; left -= 8)")
    assert not reason(inverted, EQUIVALENT)
