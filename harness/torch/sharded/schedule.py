"""Plan a product of sharded matrices: which GPU multiplies what, and which block travels when.

A GPU is a rank of 0 to P - 1. Each matrix is split along its rows (0), along its columns (1), or lies whole
on every GPU (None). The work is divided in one of three ways, and each multiply-add is done once:

- by rows of C: a GPU has its rows of A. B travels, in pieces, each of which is multiplied as it arrives.
- by columns of C: the same, transposed. A travels.
- by K: a GPU has its columns of A and the rows of B. Partial sums travel, each to the GPU that adds it up.

In round s GPU r works for, or with, GPU (r + s) mod P: it takes the operand's piece from there, and what it
computes goes there. So in each round every GPU sends to one other and receives from one other, and no piece
goes through a third GPU. Of the ways that fit the one that moves the fewest elements is taken.

Nothing here needs PyTorch. Blocks are in the coordinates of the whole matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Split = int | None  # the dimension along which a matrix is split; None if each GPU has it whole
Range = tuple[int, int]  # start and end
BLOCKS, SLICES, TERMS = "blocks", "slices", "terms"


class Block(NamedTuple):
    """A block of a matrix."""

    rows: Range
    columns: Range

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.shape[0] * self.shape[1]

    @property
    def flipped(self) -> Block:
        """The same block of the transposed matrix."""
        return Block(self.columns, self.rows)

    def common(self, other: Block) -> Block:
        """Return what this block has in common with one that it meets."""
        pairs = zip(self, other, strict=True)
        return Block(*[(max(mine[0], theirs[0]), min(mine[1], theirs[1])) for mine, theirs in pairs])

    def holds(self, other: Block) -> bool:
        """Return True if `other` lies within this block."""
        inside = zip(self, other, strict=True)
        return all(mine[0] <= theirs[0] and theirs[1] <= mine[1] for mine, theirs in inside)


class Move(NamedTuple):
    """A block of matrix `name` ("a", "b" or "c") that goes to GPU `peer`, or comes from there."""

    peer: int
    name: str
    block: Block

    @property
    def flipped(self) -> Move:
        """The same move in the transposed product."""
        return Move(self.peer, {"a": "b", "b": "a", "c": "c"}[self.name], self.block.flipped)


Moves = tuple[Move, ...]


class Round(NamedTuple):
    """A product, ``c = a @ b``, and what travels for it.

    Before it blocks of the operands are taken, and given to others; after it `sends` go to others, and `gets`
    come from those that computed in this round.
    """

    a: Block
    b: Block
    c: Block
    takes: Moves = ()
    gives: Moves = ()
    sends: Moves = ()
    gets: Moves = ()

    @property
    def flipped(self) -> Round:
        """The same round of the transposed product."""
        moves = (_flipped(x) for x in (self.takes, self.gives, self.sends, self.gets))
        return Round(self.b.flipped, self.a.flipped, self.c.flipped, *moves)


class Schedule(NamedTuple):
    """All that one GPU does.

    `kind` says what the products are: `BLOCKS` of C; `SLICES`, summands of the block `kept`; or `TERMS`,
    summands of blocks that others keep, while theirs arrive for `kept`. `sends` and `gets` follow at the end.
    """

    kind: str
    kept: Block
    rounds: tuple[Round, ...]
    sends: Moves = ()
    gets: Moves = ()

    @property
    def flipped(self) -> Schedule:
        """The same for the transposed product."""
        rounds = tuple(each.flipped for each in self.rounds)
        return Schedule(self.kind, self.kept.flipped, rounds, _flipped(self.sends), _flipped(self.gets))

    @property
    def received(self) -> int:
        """The number of elements that come from other GPUs."""
        moves = [*self.gets, *(move for each in self.rounds for move in each.takes + each.gets)]
        return sum(move.block.size for move in moves)


class Cuts(NamedTuple):
    """The ranges of M, N and K that belong to each GPU; some may be empty."""

    m: tuple[Range, ...]
    n: tuple[Range, ...]
    k: tuple[Range, ...]


class Splits(NamedTuple):
    """The dimensions along which A, B and C are split."""

    a: Split
    b: Split
    c: Split


def chunks(size: int, count: int) -> tuple[Range, ...]:
    """Return the ranges of ``torch.chunk``, by which DTensor splits: the last may be smaller, or empty."""
    each = -(-size // count)
    return tuple((min(size, i * each), min(size, (i + 1) * each)) for i in range(count))


def held(cuts: Cuts, splits: Splits, rank: int) -> tuple[Block, Block, Block]:
    """Return the blocks of A, B and C that GPU `rank` has."""
    return (
        _piece(cuts.m, cuts.k, splits.a, rank),
        _piece(cuts.k, cuts.n, splits.b, rank),
        _piece(cuts.m, cuts.n, splits.c, rank),
    )


@functools.lru_cache(maxsize=1024)
def plan(cuts: Cuts, a: Split, b: Split, *wanted: Split) -> tuple[Splits, tuple[Schedule, ...]]:
    """Return how C is split, and a schedule for each GPU: what moves the fewest elements.

    C is split as one of `wanted`, by default in any way. Of equals the first of them is taken (by default as
    the operands are, or by rows), and products that need no sums before those that do.
    """
    wanted = wanted or ((None, 0, 1) if a is b is None else (0, 1, None))
    found = [(Splits(a, b, c), way) for c in wanted for way in _ways(cuts, Splits(a, b, c))]

    def cost(one: tuple[Splits, tuple[Schedule, ...]]) -> tuple[int, int]:
        _, way = one
        return sum(each.received for each in way), (BLOCKS, SLICES, TERMS).index(way[0].kind)

    return min(found, key=cost)


def _ways(cuts: Cuts, splits: Splits) -> Iterator[tuple[Schedule, ...]]:
    """Yield the schedules of all GPUs for each division of the work that fits."""
    ranks = range(len(cuts.m))
    if splits == Splits(None, None, None):
        everything = Round(*held(cuts, Splits(None, None, None), 0))
        yield tuple(Schedule(BLOCKS, everything.c, (everything,)) for _ in ranks)
        return
    a, b, c = splits
    if (a, b) != (1, 1):
        yield tuple(_by_rows(cuts, splits, rank) for rank in ranks)
    if (a, b) != (0, 0):
        turned = Cuts(cuts.n, cuts.m, cuts.k)
        across = Splits(*[None if x is None else 1 - x for x in (b, a, c)])
        yield tuple(_by_rows(turned, across, rank).flipped for rank in ranks)
    if not (a == 0 and 1 in (b, c)) and not (b == 1 and c == 0):
        yield tuple(_by_terms(cuts, splits, rank) for rank in ranks)


def _by_rows(cuts: Cuts, splits: Splits, rank: int) -> Schedule:
    """Divide the work by rows of C. Either A or B may be split by columns, not both."""
    a, b, c = splits
    if a == 1 or b == 0:
        return _by_slices(cuts, splits, rank)
    rows, k, n = cuts.m[rank], _all(cuts.k), _all(cuts.n)
    kept = Block(rows, n)
    others = _others(rank, len(cuts.m))
    rounds = []
    if b == 1 or c == 1:  # columns of B arrive, or those of C leave
        for step, (to, of) in _partners(rank, len(cuts.m), own_first=b == 1):
            one = Round(Block(rows, k), Block(k, cuts.n[to]), Block(rows, cuts.n[to]))
            if b == 1 and step:
                given = Move(of, "b", Block(k, cuts.n[rank]))
                one = one._replace(takes=_full([Move(to, "b", one.b)]), gives=_full([given]))
            if c == 1 and step:
                got = Move(of, "c", Block(cuts.m[of], cuts.n[rank]))
                one = one._replace(sends=_full([Move(to, "c", one.c)]), gets=_full([got]))
            if c is None:
                theirs = [Move(x, "c", Block(cuts.m[x], cuts.n[(x + step) % len(cuts.m)])) for x in others]
                one = one._replace(sends=_full([Move(x, "c", one.c) for x in others]), gets=_full(theirs))
            rounds.append(one)
        return Schedule(BLOCKS, kept, tuple(rounds))
    if c == 0:
        return Schedule(BLOCKS, kept, (Round(Block(rows, k), Block(k, n), kept),))
    pieces = [_within(each, len(cuts.m)) for each in cuts.m]  # all want C: each piece leaves under the next
    for i, piece in enumerate(pieces[rank]):
        sends = [Move(x, "c", Block(piece, n)) for x in others]
        gets = [Move(x, "c", Block(pieces[x][i], n)) for x in others]
        product = Block(piece, k), Block(k, n), Block(piece, n)
        rounds.append(Round(*product, sends=_full(sends), gets=_full(gets)))
    return Schedule(BLOCKS, kept, tuple(rounds))


def _by_slices(cuts: Cuts, splits: Splits, rank: int) -> Schedule:
    """Divide the work by rows of C where slices of K arrive, of A, of B or of both."""
    a, b, c = splits
    rows, n = cuts.m[rank], _all(cuts.n)
    kept = Block(rows, n)
    rounds = []
    for step, (to, of) in _partners(rank, len(cuts.m), own_first=True):
        left, right = Block(rows, cuts.k[to]), Block(cuts.k[to], n)
        takes, gives = [], []
        if a == 1 and step:
            takes.append(Move(to, "a", left))
            gives.append(Move(of, "a", Block(cuts.m[of], cuts.k[rank])))
        if b == 0 and step:
            takes.append(Move(to, "b", right))
            gives.append(Move(of, "b", Block(cuts.k[rank], n)))
        rounds.append(Round(left, right, kept, _full(takes), _full(gives)))
    sends: list[Move] = []
    gets: list[Move] = []
    if c != 0:
        others = _others(rank, len(cuts.m))
        sends = [Move(x, "c", Block(rows, n if c is None else cuts.n[x])) for x in others]
        gets = [Move(x, "c", Block(cuts.m[x], n if c is None else cuts.n[rank])) for x in others]
    return Schedule(SLICES, kept, tuple(rounds), _full(sends), _full(gets))


def _by_terms(cuts: Cuts, splits: Splits, rank: int) -> Schedule:
    """Divide the work by K. Sums are kept by rows of C if A is split so, by columns if B is, else as C is."""
    mine = cuts.k[rank]
    a, b, c = splits
    along = 1 if b == 1 or c == 1 else 0
    kept = [_piece(cuts.m, cuts.n, along, x) for x in range(len(cuts.m))]
    others = _others(rank, len(cuts.m))
    rounds = []
    for step, (to, of) in _partners(rank, len(cuts.m), own_first=a == 0 or b == 1):
        one = Round(Block(kept[to].rows, mine), Block(mine, kept[to].columns), kept[to])
        if step:
            takes, gives = [], []
            if a == 0:
                takes.append(Move(to, "a", one.a))
                gives.append(Move(of, "a", Block(cuts.m[rank], cuts.k[of])))
            if b == 1:
                takes.append(Move(to, "b", one.b))
                gives.append(Move(of, "b", Block(cuts.k[of], cuts.n[rank])))
            one = one._replace(takes=_full(takes), gives=_full(gives))
            if mine[0] < mine[1]:
                one = one._replace(sends=_full([Move(to, "c", kept[to])]))
            if cuts.k[of][0] < cuts.k[of][1]:
                one = one._replace(gets=_full([Move(of, "c", kept[rank])]))
        rounds.append(one)
    if c is not None:
        return Schedule(TERMS, kept[rank], tuple(rounds))
    sends, gets = [Move(x, "c", kept[rank]) for x in others], [Move(x, "c", kept[x]) for x in others]
    return Schedule(TERMS, kept[rank], tuple(rounds), _full(sends), _full(gets))


def _partners(rank: int, count: int, own_first: bool) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each round's step, for whom GPU `rank` works in it and who works for it.

    Its own piece comes first where pieces arrive, for it is there, and else last, under what leaves.
    """
    steps = [0, *range(1, count)] if own_first else [*range(1, count), 0]
    for step in steps:
        yield step, ((rank + step) % count, (rank - step) % count)


def _others(rank: int, count: int) -> list[int]:
    return [(rank + step) % count for step in range(1, count)]


def _all(ranges: Sequence[Range]) -> Range:
    return ranges[0][0], ranges[-1][1]


def _within(whole: Range, count: int) -> list[Range]:
    """Return the chunks of a range."""
    return [(whole[0] + start, whole[0] + end) for start, end in chunks(whole[1] - whole[0], count)]


def _piece(down: Sequence[Range], right: Sequence[Range], split: Split, rank: int = 0) -> Block:
    """Return the block that GPU `rank` has of a matrix whose dimensions are cut so."""
    return Block(down[rank] if split == 0 else _all(down), right[rank] if split == 1 else _all(right))


def _full(moves: Sequence[Move]) -> Moves:
    """Return the moves without those of empty blocks."""
    return tuple(move for move in moves if move.block.size)


def _flipped(moves: Moves) -> Moves:
    return tuple(move.flipped for move in moves)
