"""The counts of shipped kernels, line by line, against a recount in plain Python: every address from the
kernel's own index formulas, every warp, sector and bank by hand; nothing of the emulator but its answer.
"""

# ruff: noqa: B023 - every closure is called in the round of the loop that makes it
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from harness.kernels import catalog
from shared.emulator_kernels import line_of

Lanes = dict[int, int]  # lane -> byte address, of the lanes that take part
RAGGED = {"M": 21, "N": 37, "K": 19, "lda": 23, "ldb": 38, "ldc": 41, "beta": 0.5}
SQUARE = {"M": 32, "N": 32, "K": 32, "lda": 32, "ldb": 32, "ldc": 32, "beta": 0.0}


class Recount:
    """By source line: requests and sectors of global memory, requests and wavefronts of shared memory."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def __call__(self, kind: str, text: str, lanes: Lanes, size: int = 4) -> None:
        """One instruction of one warp on the line that holds `text`."""
        if lanes:
            cost = sectors(lanes, size) if kind == "global" else wavefronts(lanes, size)
            self.lines[line_of(self.source, text)] += Counter({f"{kind} requests": 1, kind: cost})


def sectors(lanes: Lanes, size: int) -> int:
    return len({(address + byte) // 32 for address in lanes.values() for byte in range(size)})


def wavefronts(lanes: Lanes, size: int) -> int:
    """Lanes in as many parts as their width takes words, half as many where they agree in pairs; a part costs
    what its busiest bank has different words.
    """
    parts = size // 4
    if parts > 1 and any(all(lanes.get(t ^ by, a) == a for t, a in lanes.items()) for by in (1, 2)):
        parts //= 2
    cost = 0
    for part in range(parts):
        words = {a // 4 + i for t, a in lanes.items() if t // (32 // parts) == part for i in range(size // 4)}
        cost += max(Counter(word % 32 for word in words).values(), default=0)
    return cost


def warps(block: tuple[int, int]) -> Iterator[list[tuple[int, int]]]:
    """(x, y) of the 32 threads of each warp."""
    threads = [(x, y) for y in range(block[1]) for x in range(block[0])]
    return (threads[i : i + 32] for i in range(0, len(threads), 32))


def of(warp: Iterable[tuple[int, int]], address: Callable[[int, int], int | None]) -> Lanes:
    """`address` in elements of four bytes; None where a thread takes no part."""
    found = {lane: address(x, y) for lane, (x, y) in enumerate(warp)}
    return {lane: 4 * element for lane, element in found.items() if element is not None}


def blocks(axes: dict[str, Any], tile: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """(x, y) of every block; `tile` in rows and columns."""
    return ((x, y) for y in range(-(-axes["M"] // tile[0])) for x in range(-(-axes["N"] // tile[1])))


def store(
    count: Recount, warp: Any, axes: dict[str, Any], place: Callable[[int, int], tuple[int, int]]
) -> None:
    """The last line: C read where beta asks for it, and written."""

    def c(x: int, y: int) -> int | None:
        row, col = place(x, y)
        return row * axes["ldc"] + col if row < axes["M"] and col < axes["N"] else None

    for _ in range(1 + (axes["beta"] != 0)):
        count("global", "*c = beta == 0.f", of(warp, c))


def untiled(count: Recount, axes: dict[str, Any], BX: int, BY: int, *, side_by_side: bool) -> None:
    """01_naive, where threadIdx.x goes down the rows, and 02_coalesced."""
    for bx, by in blocks(axes, (BY, BX) if side_by_side else (BX, BY)):

        def place(x: int, y: int, bx: int = bx, by: int = by) -> tuple[int, int]:
            return (by * BY + y, bx * BX + x) if side_by_side else (by * BX + x, bx * BY + y)

        for warp in warps((BX, BY)):
            there = {t for t in warp if place(*t)[0] < axes["M"] and place(*t)[1] < axes["N"]}
            for k in range(axes["K"]):
                a = of(warp, lambda x, y, k=k: place(x, y)[0] * axes["lda"] + k if (x, y) in there else None)
                b = of(warp, lambda x, y, k=k: k * axes["ldb"] + place(x, y)[1] if (x, y) in there else None)
                count("global", "sum += *a * *b", a)
                count("global", "sum += *a * *b", b)
            store(count, warp, axes, place)


def tiled(
    count: Recount, axes: dict[str, Any], T: int, b_at: Callable[[int, int], int], b_store: str, product: str
) -> None:
    """03_tiled, 06_bank_conflict and 07_bank_padded: `b_at` (k, column) is a place in the tile of B."""
    M, N, K = axes["M"], axes["N"], axes["K"]
    for bx, by in blocks(axes, (T, T)):
        for warp in warps((T, T)):
            for first in range(0, K, T):

                def a(x: int, y: int, first: int = first, by: int = by) -> int | None:
                    row, k = by * T + y, first + x
                    return row * axes["lda"] + k if row < M and k < K else None

                def b(x: int, y: int, first: int = first, bx: int = bx) -> int | None:
                    k, col = first + y, bx * T + x
                    return k * axes["ldb"] + col if k < K and col < N else None

                count("global", "As[ty][tx] = ", of(warp, a))
                count("global", b_store, of(warp, b))
                count("shared", "As[ty][tx] = ", of(warp, lambda x, y: y * T + x))
                count("shared", b_store, of(warp, lambda x, y: b_at(y, x)))
                for k in range(T):
                    count("shared", product, of(warp, lambda x, y, k=k: y * T + k))
                    count("shared", product, of(warp, lambda x, y, k=k: b_at(k, x)))
            store(count, warp, axes, lambda x, y, bx=bx, by=by: (by * T + y, bx * T + x))


def vectorised(  # noqa: PLR0912 - a branch for each of the kernel's own
    count: Recount, axes: dict[str, Any], T: int, BK: int
) -> None:
    """10_vectorized with a tile of T x T and 8 x 8 outputs a thread. Global memory in quads where a whole
    tile and all rows allow it, else word by word; shared memory in quads but for the writes of A.
    """
    M, N, K, ldc = (axes[x] for x in ("M", "N", "K", "ldc"))
    side = T // 8
    threads = side * side
    aligned = axes["lda"] % 4 == 0 and axes["ldb"] % 4 == 0
    for bx, by in blocks(axes, (T, T)):
        row, col = by * T, bx * T
        for warp in warps((side, side)):
            for first in range(0, K, BK):
                quads = aligned and row + T <= M and col + T <= N and first + BK <= K
                for i in range(T * BK // 4 // threads):

                    def a(x: int, y: int, i: int = i) -> tuple[int, int]:
                        """(row, column) of this thread's quad in the tile of A."""
                        self = y * side + x
                        return self // (BK // 4) + i * (threads // (BK // 4)), self % (BK // 4) * 4

                    def b(x: int, y: int, i: int = i) -> tuple[int, int]:
                        self = y * side + x
                        return self // (T // 4) + i * (threads // (T // 4)), self % (T // 4) * 4

                    if quads:
                        whole_a = of(warp, lambda x, y: (row + a(x, y)[0]) * axes["lda"] + first + a(x, y)[1])
                        whole_b = of(warp, lambda x, y: (first + b(x, y)[0]) * axes["ldb"] + col + b(x, y)[1])
                        count("global", "a4[i] = *(const float4*)a", whole_a, 16)
                        count("global", "b4[i] = *(const float4*)b", whole_b, 16)
                    for e in range(0 if quads else 4):

                        def one_a(x: int, y: int, e: int = e) -> int | None:
                            m, k = row + a(x, y)[0], first + a(x, y)[1] + e
                            return m * axes["lda"] + k if m < M and k < K else None

                        def one_b(x: int, y: int, e: int = e) -> int | None:
                            k, n = first + b(x, y)[0], col + b(x, y)[1] + e
                            return k * axes["ldb"] + n if k < K and n < N else None

                        count("global", "a4[i] = load4(a,", of(warp, one_a))
                        count("global", "b4[i] = load4(b,", of(warp, one_b))
                    for e, text in enumerate(("s[0] = a4", "s[BM] = a4", "s[2 * BM] = a4", "s[3 * BM] = a4")):
                        count("shared", text, of(warp, lambda x, y, e=e: (a(x, y)[1] + e) * T + a(x, y)[0]))
                    count("shared", "= b4[i];", of(warp, lambda x, y: b(x, y)[0] * T + b(x, y)[1]), 16)
                for k in range(BK):
                    for half in range(2):
                        down = of(warp, lambda x, y, k=k, h=half: k * T + 4 * y + h * 4 * side)
                        right = of(warp, lambda x, y, k=k, h=half: k * T + 4 * x + h * 4 * side)
                        count("shared", "&As[k][4 * ty", down, 16)
                        count("shared", "&Bs[k][4 * tx", right, 16)
            for i in range(8):
                for j in (0, 4):

                    def c(x: int, y: int, i: int = i, j: int = j) -> tuple[int, int]:
                        return row + 4 * y + i // 4 * 4 * side + i % 4, col + 4 * x + j * side

                    line = "store4(C + "
                    inside = [(x, y) for x, y in warp if c(x, y)[0] < M]
                    whole = {t for t in inside if ldc % 4 == 0 and N - c(*t)[1] >= 4}
                    for _ in range(1 + (axes["beta"] != 0)):
                        quad = of(
                            warp, lambda x, y: c(x, y)[0] * ldc + c(x, y)[1] if (x, y) in whole else None
                        )
                        count("global", line, quad, 16)
                        for e in range(4):
                            rest = {t for t in inside if t not in whole and c(*t)[1] + e < N}
                            word = of(
                                warp,
                                lambda x, y, e=e: (
                                    c(x, y)[0] * ldc + c(x, y)[1] + e if (x, y) in rest else None
                                ),
                            )
                            count("global", line, word)


B_PLAIN, B_TRANSPOSED = "Bs[ty][tx] = ", "Bs[tx][ty] = "
PRODUCT, TRANSPOSED = "sum += As[ty][k] * Bs[k][tx]", "sum += As[ty][k] * Bs[tx][k]"
RECOUNTS: dict[str, tuple[dict[str, int], Callable[[Recount, dict[str, Any]], None]]] = {
    "01_naive": ({"BX": 16, "BY": 8}, lambda r, axes: untiled(r, axes, 16, 8, side_by_side=False)),
    "02_coalesced": ({"BX": 16, "BY": 8}, lambda r, axes: untiled(r, axes, 16, 8, side_by_side=True)),
    "03_tiled": ({"TILE": 16}, lambda r, axes: tiled(r, axes, 16, lambda k, n: 16 * k + n, B_PLAIN, PRODUCT)),
    "06_bank_conflict": (
        {"TILE": 32},
        lambda r, axes: tiled(r, axes, 32, lambda k, n: 32 * n + k, B_TRANSPOSED, TRANSPOSED),
    ),
    "07_bank_padded": (
        {"TILE": 32},
        lambda r, axes: tiled(r, axes, 32, lambda k, n: 33 * n + k, B_TRANSPOSED, TRANSPOSED),
    ),
    "10_vectorized": ({"BM": 64, "BN": 64, "BK": 16}, lambda r, axes: vectorised(r, axes, 64, 16)),
}
LARGER = {  # whole and cut tiles of 64 in one
    "M": 70, "N": 130, "K": 35, "lda": 36, "ldb": 132, "ldc": 132, "beta": 0.5,
}  # fmt: skip
SHIPPED = {kernel.name for kernel in catalog.ladder()}


@pytest.mark.parametrize(
    "axes",
    [RAGGED, *(pytest.param(axes, marks=pytest.mark.slow) for axes in (SQUARE, LARGER))],
    ids=["ragged", "square", "larger"],
)
@pytest.mark.parametrize("name", RECOUNTS)
def test_counts_line_by_line(name: str, axes: dict[str, Any], emulate: Callable[..., Any]) -> None:
    if name not in SHIPPED:
        pytest.skip(f"no kernel {name}")
    params, recount = RECOUNTS[name]
    expected = Recount(catalog.kernel(name).source)
    recount(expected, axes)
    found = emulate(name, axes, arch="sm_90", **params)
    assert found.right
    got = {
        c.source.line: Counter(
            {
                "global requests": c.global_requests,
                "global": c.sectors,
                "shared requests": c.shared_requests,
                "shared": c.wavefronts,
            }
        )
        for c in found.emulation.lines
        if c.global_requests or c.shared_requests
    }
    assert got == expected.lines


def test_the_conflict_and_its_cure(emulate: Callable[..., Any]) -> None:
    """32 wavefronts a read of Bs, and 1; with 1 for the broadcast of As on the same line."""
    for name, degree in (("06_bank_conflict", 32), ("07_bank_padded", 1)):
        found = emulate(name, SQUARE, arch="sm_90", TILE=32)
        line = line_of(catalog.kernel(name).source, TRANSPOSED)
        (product,) = (c for c in found.emulation.lines if c.source.line == line)
        assert (product.shared_requests, product.wavefronts) == (2 * 32 * 32, (degree + 1) * 32 * 32)
        assert product.conflicts == (degree - 1) * 32 * 32
