"""Choose the variant that `harness.matmul` runs for a product on a GPU: by measurement, or by a cost model.

``table.json`` (`harness.dispatch.shipped_table`) holds the data for both. Each of its entries is for one
element type, fp32 if it names no ``dtype``.

``tuned`` has measurements, written by ``scripts/tune_matmul.py`` from result files: for a GPU, given by its
name and number of multiprocessors, ranges of M, N and K and the variant that was the fastest there. The first
entry whose ranges contain the shape decides. The user's own table (`harness.dispatch.user_table`, written by
``harness choose --write``) is searched before it.

``candidates`` are for shapes that no entry contains. The one with the fewest cycles is taken, by a model and
what was learnt of its errors (`harness.dispatch.model`). For bf16x6, fp16x3 and 3xtf32 those of fp32 are
among them, and for the last two those of bf16x6: no less exact, and faster where splitting the operands, or
writing their parts, takes longer than multiplying. ``trials``, whose constants are guesses, are never taken:
benchmarks/shapes.py times them, and scripts/fit_model.py makes them candidates.

The operands' layout is given as in BLAS: ``"NT"`` says that A is row-major, and that B is stored transposed.
A kernel with the parameters TRANSA and TRANSB reads either kind where it lies, in those combinations that it
allows. For the others an operand is first copied, transposed, which the model counts as the copies above.
Where copying either operand would do, the smaller one is copied.

The choice is deterministic, and the tables are read once: the same shape on the same kind of GPU always runs
the same code, with bitwise the same result. Alpha and beta do not affect it. Leading dimensions do by where
rows begin. Beside that, they and addresses affect only whether there are tensor maps and, in fp32 with a
beta, the order of the last two roundings: rows of C that begin elsewhere are stored in another way.

An `invariant` choice is for all M at once: the bits of a row of the product must not depend on how many rows
there are, nor on which one it is. They depend on the order in which its products are added, which the front
matter of a kernel tells (`order`). So an order is chosen for N and K: the one whose fastest candidates take
the least time, by the geometric mean over `_ROWS`. For each M the fastest variant with that order is taken.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from harness.dispatch import shipped_table, user_table
from harness.dispatch.model import cost
from harness.dispatch.model.cost import NN, Candidate, depth
from harness.dispatch.model.traffic import ALIGNED, DRAM_BYTES, Pitches, unread
from harness.errors import UsageError
from harness.kernels import catalog
from harness.kernels.dtypes import DTYPES, FP32
from harness.kernels.epilogue import PLAIN, Epilogue
from harness.kernels.spec import LAYOUT, Kernel, Variant

if TYPE_CHECKING:
    from harness.problems.gemm import Gemm

Order = tuple[str, str, int, bool, str]  # element type, sums, parts, whether zeros are added, whose parts

NAME = "matmul"  # the name that stands for the dispatcher where a kernel's name is expected
ROWS, COLUMNS = "M", "N"  # of a product: what the bits of each must not depend on the number of
_ROWS = (1, 16, 64, 256, 1024, 4096)  # for which orders of sums are compared
_CONSTANTS = [f.name for f in fields(Candidate) if f.name not in ("variant", "dtype", "batch", "dram")]


def choose(
    M: int,
    N: int,
    K: int,
    *,
    sms: int,
    arch: str,
    gpu: str = "",
    dtype: str = FP32.name,
    layout: str = NN,
    pitches: Pitches = ALIGNED,
    epilogue: Epilogue = PLAIN,
    invariant: str = "",
    dram: float = DRAM_BYTES,
) -> Variant:
    """Return the variant for the product ``(M x K) @ (K x N)`` on a GPU with `sms` multiprocessors.

    `arch` is the architecture to compile for (``"sm_90a"``), and `gpu` the device's name as in the tables; if
    it is empty, the cost model decides. `dtype` is the element type: ``"fp32"``, ``"tf32"``, ``"3xtf32"``,
    ``"fp16x3"``, ``"bf16x6"``, ``"bf16"`` or ``"fp16"``. `layout` is ``"NN"``, ``"NT"``, ``"TN"`` or
    ``"TT"``, as the module's docstring says, and `pitches` say where rows begin. The `epilogue` is compiled
    into the variant. Kernels that cannot have one are left out; among the others the choice is the same as
    without. If `invariant` is "M", a row of the product has the same bits for all M, if it is "N", a column
    has them for all N. `dram` is the bytes per cycle and SM that the GPU copies (`traffic.dram_bytes`), an
    H200's unless it is given. Raises UsageError if no kernel can compute the product there.
    """
    return _choose(M, N, K, sms, arch, gpu, dtype, layout, pitches, epilogue, invariant, dram)


@functools.lru_cache(maxsize=4096)
def _choose(
    M: int,
    N: int,
    K: int,
    sms: int,
    arch: str,
    gpu: str,
    dtype: str,
    layout: str,
    pitches: Pitches,
    epilogue: Epilogue,
    invariant: str,
    dram: float,
) -> Variant:
    """Compute `choose`; its results are cached."""
    if min(M, N, sms) < 1 or K < 0:
        raise UsageError(f"no kernel computes a product of M={M} N={N} K={K} on {sms} multiprocessors")
    made: Any = {"dtype": dtype, "layout": layout, "epilogue": epilogue, "invariant": invariant}
    known = measured(M, N, K, sms=sms, arch=arch, gpu=gpu, **made)
    if known is not None:
        return known
    found = ranked(M, N, K, sms=sms, arch=arch, **made, pitches=pitches, dram=dram)
    if not found:
        kernels = [c.variant.kernel for c in candidates() if c.dtype.name == dtype]
        archs = dict.fromkeys(
            a if a[-1].isalpha() else f"{a} and newer" for a in (k.min_arch for k in kernels)
        )
        fits = any(k.fits(arch) for k in kernels)
        hint = f"its kernels are for {' or '.join(archs)}"
        if fits:
            few = f"on {arch} its kernels are for few rows or columns alone"
            hint = "M may be 8 million" if M > 8e6 else few
        raise UsageError(f"no kernel for {M}x{N}x{K} in {dtype} on {arch}", hint=hint)
    return found[0][0]


def about(problem: Gemm, invariant: str = "", steps: Sequence[int] = (0, 0)) -> dict[str, Any]:
    """Return what of a product, or a batch (`steps`), beside its shape the choice depends on."""
    of_c = {"uneven": problem.uneven, "c_straddled": problem.c_straddled}
    pitches = Pitches(straddled=problem.straddles(steps), unmapped=problem.without_maps(steps), **of_c)
    made = {"dtype": problem.dtype.name, "layout": problem.layout, "epilogue": problem.epilogue}
    return {**made, "pitches": pitches, "invariant": invariant}


def measured(
    M: int,
    N: int,
    K: int,
    *,
    sms: int,
    arch: str,
    gpu: str,
    dtype: str = FP32.name,
    layout: str = NN,
    epilogue: Epilogue = PLAIN,
    invariant: str = "",
) -> Variant | None:
    """Return the fastest variant according to the tables, or None if no entry contains the shape.

    Arguments are those of `choose`. The user's own table is searched before the shipped one. Entries with a
    ``layout`` were measured in that layout and hold for no other. Those without one were measured on
    row-major operands, and hold for other layouts if the kernel reads them where they are: for M x N outputs,
    or for N x M where the layout turns the kernel's tile around.
    """
    asked = gpu, sms, dtype
    wanted = _order(M, N, K, sms, arch, dtype, invariant)
    for entry in (*user_table.entries(), *shipped_table.contents()["tuned"]):
        about = entry["gpu"], entry["sms"], _dtype(entry)
        own = entry.get("layout", "")  # empty: of row-major operands
        inside = [_inside(entry, {"M": m, "N": n, "K": K}) for m, n in ((M, N), (N, M))]
        if about != asked or own not in ("", layout) or not any(inside):
            continue
        given = _variant(entry)
        if not epilogue.serves(given.kernel) or (invariant and order(given, K) != wanted):
            continue
        variant = laid_out(given, layout, _smaller(M, N))
        turned = not own and variant.tile != given.tile
        reads = own or not unread(variant, layout)
        if reads and inside[turned] and variant.kernel.fits(arch):
            return epilogue.compiled(variant)
    return None


def ranked(
    M: int,
    N: int,
    K: int,
    *,
    sms: int,
    arch: str,
    dtype: str = FP32.name,
    layout: str = NN,
    pitches: Pitches = ALIGNED,
    epilogue: Epilogue = PLAIN,
    invariant: str = "",
    dram: float = DRAM_BYTES,
) -> list[tuple[Variant, float]]:
    """Return the candidates that can compute the product, with their cycles, fastest first.

    The first `corrections.MOST` are corrected, and come before the others. Arguments are those of `choose`.
    Empty if there are none.
    """
    from harness.dispatch.model import corrections  # with NumPy

    serving = able(M, N, K, sms, arch, dtype, layout, epilogue, invariant, dram, uneven=pitches.uneven)
    found = corrections.ranked(serving, (M, N, K, sms), arch=arch, layout=layout, pitches=pitches)
    return [(one.variant, cycles) for one, cycles in found]


def able(
    M: int,
    N: int,
    K: int,
    sms: int,
    arch: str,
    dtype: str,
    layout: str,
    epilogue: Epilogue,
    invariant: str,
    dram: float = DRAM_BYTES,
    listed: str = "candidates",
    *,
    uneven: bool = False,
) -> list[Candidate]:
    """Return those `listed` (`candidates`) that can compute the product; others are as of `choose`.

    Tiles that own their sectors are for rows of C that begin anywhere (`uneven`): where rows begin at units
    of 16 bytes, one was the fastest in 4 of 1,306 draws. An invariant order may be theirs alone.
    """
    made = _laid_out(dtype, layout, _smaller(M, N), epilogue, dram, listed)
    owning = uneven or bool(invariant)
    found = [c for c in made if c.serves(M, N, arch) and (owning or not c.variant.params.get("OWN"))]
    if not invariant:
        return found
    wanted = _order(M, N, K, sms, arch, dtype, invariant)
    return [c.fixed for c in found if order(c.fixed.variant, K) == wanted is not None]


def order(variant: Variant, K: int) -> Order | None:
    """Return what the order depends on in which the variant adds K products, None if it depends on M and N.

    Variants for which this is equal compute the same bits. In each part of k products are added one step
    after the other; of a last step that is not whole the rest is zeros, which make a sum of -0 to 0. Parts
    that are not whole steps end elsewhere in another kernel.
    """
    parts = variant.kernel.parts(variant.params) if variant.kernel.sums else 0
    if not parts:
        return None
    step = depth(variant)
    rest = K % (parts * step) > 0
    whose = f"{variant.kernel.name} {step}" if rest and parts > 1 else ""
    return variant.kernel.dtype, variant.kernel.sums, parts, rest, whose


def _order(M: int, N: int, K: int, sms: int, arch: str, dtype: str, invariant: str) -> Order | None:
    """Return the order that an invariant choice is to have; None if there is none, and if it is free."""
    if invariant not in ("", ROWS, COLUMNS):
        raise UsageError(f"invariant={invariant!r}", hint=f"{ROWS!r} or {COLUMNS!r}")
    return _best_order(N if invariant == ROWS else M, K, sms, arch, dtype) if invariant else None


@functools.lru_cache(maxsize=4096)
def _best_order(columns: int, K: int, sms: int, arch: str, dtype: str) -> Order | None:
    """Return the order with the least geometric mean time over `_ROWS`; None if none serves them all.

    Operands are taken to lie as those of a linear layer do, whatever their layout is, and DRAM to be an
    H200's: tables and model have to agree on the order.
    """
    logs: dict[Order, list[float]] = {}
    for M in _ROWS:
        best: dict[Order, float] = {}
        for one in _laid_out(dtype, "NT", _smaller(M, columns), PLAIN):
            found = order(one.fixed.variant, K)
            if found is not None and one.serves(M, columns, arch):
                cycles = one.fixed.cycles(M, columns, K, sms, layout="NT")
                best[found] = min(best.get(found, math.inf), cycles)
        for found, cycles in best.items():
            logs.setdefault(found, []).append(math.log(cycles))
    able = {found: sum(times) for found, times in logs.items() if len(times) == len(_ROWS)}
    return min(able, key=able.__getitem__, default=None)


def laid_out(variant: Variant, layout: str, smaller: str) -> Variant:
    """Return the variant compiled for the layout or, if its kernel is not written for that, for the nearest.

    That takes the fewest copies. Where a copy of either operand would do, it is of the one that is `smaller`:
    "A" or "B".
    """
    names = [name for name in LAYOUT if name in variant.params]
    spaces = itertools.product(*(variant.kernel.params[name] for name in names))
    sets = ({**variant.params, **dict(zip(names, flips, strict=True))} for flips in spaces)
    able = (replace(variant, params=params) for params in sets if not variant.kernel.unmet(params))

    def distance(one: Variant) -> tuple[int, bool]:
        copies = unread(one, layout)
        return len(copies), copies != smaller

    return min(able, key=distance)


def _smaller(M: int, N: int) -> str:
    """Return the operand that has fewer elements, A of equals."""
    return "A" if M <= N else "B"


@functools.cache
def _laid_out(
    dtype: str,
    layout: str,
    smaller: str,
    epilogue: Epilogue,
    dram: float = DRAM_BYTES,
    listed: str = "candidates",
) -> tuple[Candidate, ...]:
    """Return the candidates for an element type, compiled as `laid_out` says, with the epilogue.

    Those of 40_skinny_dots that read B's rows alone are left out where B is stored by columns: another one
    reads them.
    """
    taken = (c for c in candidates(listed) if cost.takes(dtype, c.variant.kernel))
    able = (c for c in taken if epilogue.serves(c.variant.kernel))
    made = (replace(c, variant=laid_out(c.variant, layout, smaller), dram=dram) for c in able)
    by_rows = layout[1] == "T"
    read = (c for c in made if by_rows or not (c.skinny and c.variant.params.get("TRANSB", 0)))
    return tuple(replace(c, variant=epilogue.compiled(c.variant)) for c in read)


@functools.cache
def candidates(listed: str = "candidates") -> tuple[Candidate, ...]:
    """Return the candidates of the shipped table, of all element types, or those `listed` as its "trials"."""
    kernel = functools.cache(catalog.kernel)  # a file is read once, and not for each of its variants
    return tuple(
        Candidate(
            variant=_variant(c, kernel),
            dtype=DTYPES[_dtype(c)],
            **{name: c[name] for name in _CONSTANTS if name in c},
        )
        for c in shipped_table.contents()[listed]
    )


def reread() -> None:
    """Forget the user's own table and all cached choices. Call it after that table has changed."""
    user_table.entries.cache_clear()
    _choose.cache_clear()


def _dtype(entry: Mapping[str, Any]) -> str:
    return str(entry.get("dtype", FP32.name))


def _variant(entry: Mapping[str, Any], kernel: Callable[[str], Kernel] = catalog.kernel) -> Variant:
    return kernel(entry["kernel"]).variant(**entry["params"])


def _inside(entry: Mapping[str, Any], shape: Mapping[str, int]) -> bool:
    """Return True if the entry's ranges, which include both ends, contain the shape."""
    return all(entry[axis][0] <= size <= entry[axis][1] for axis, size in shape.items())
