"""How a card's mma.sync adds up: small products on the card or in the emulator, beside candidates for it.

An experiment is one product of random matrices, in which terms differ by so many powers of two, or cancel,
that it shows which of them are added together, and how many bits of them are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import nvrtc
from numpy.typing import NDArray

from harness.driver import Buffer, Context, Module, Stream
from harness.emulator import emulate
from harness.emulator.instructions.matrix.fragments import BITS, Positions, left, right, sums
from harness.emulator.instructions.matrix.sums import MMA, Model, stored, summed
from harness.emulator.numbers.formats import decode, encode
from harness.errors import BuildError

Floats = NDArray[np.float64]
Words = NDArray[np.uint32]
Multiply = Callable[["Form", Words, Words, Words], Words]  # from registers of A, B and C to those of D
SEED = 1
EXPERIMENTS = 256
FRACTIONS = (22, 23, 24, 25, 26, 27)  # bits below the largest exponent that candidates keep
HALF = 7  # exponent of large elements; those of terms are twice that
TERMS = (4, 8, 16, 32)  # products that they add at once


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of ``mma.sync``, with `sparse` of ``mma.sp``; `depth` is that of what is stored of A."""

    depth: int
    to: str
    left: str
    right: str
    sparse: bool = False

    @property
    def opcode(self) -> str:
        what = "mma.sp::ordered_metadata" if self.sparse else "mma"
        shape = f"m16n8k{self.depth * (2 if self.sparse else 1)}"
        return f"{what}.sync.aligned.{shape}.row.col.{self.to}.{self.left}.{self.right}.{self.to}"


def _forms() -> tuple[Form, ...]:
    """Return the forms that the emulator knows, and Hopper has."""
    found = []
    for sparse in (False, True):
        found += [
            Form(depth=depth, to=to, left=kind, right=kind, sparse=sparse)
            for kind in ("bf16", "f16")
            for depth in (8, 16)
            for to in ("f32", "f16")
            if (kind, to) != ("bf16", "f16")
        ]
        found += [Form(depth=d, to="f32", left="tf32", right="tf32", sparse=sparse) for d in (4, 8)]
        found += [
            Form(depth=32, to=to, left=a, right=b, sparse=sparse)
            for a, b in (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"))
            for to in ("f32", "f16")
            if not (sparse and to == "f16")
        ]
    return tuple(found)


FORMS = _forms()


def candidates(form: Form) -> dict[str, Model]:
    """Return the sums that a card might form, by name: all that differ for this form."""
    found = {}
    for terms in (t for t in TERMS if t <= form.depth):
        for fraction in FRACTIONS:
            found[f"{terms} at once, {fraction} bits"] = Model(terms=terms, fraction=fraction)
        if BITS[form.left] == 8:
            narrow = Model(terms=terms, fraction=13, result=13)
            found[f"{terms} at once, 13 bits"] = narrow
        if BITS[form.left] == 8 and terms <= form.depth // 2:
            for fraction in FRACTIONS:
                for apart in (False, True):
                    name = f"{terms} at once by pairs, {fraction} bits{', C apart' if apart else ''}"
                    found[name] = Model(terms=terms, fraction=fraction, pairs=4, apart=apart)
    return found


def chosen(form: Form) -> str:
    """Return the name of the candidate that the emulator has."""
    return next(name for name, model in candidates(form).items() if model == _effective(form))


def _effective(form: Form) -> Model:
    model = MMA[form.left]
    return replace(model, terms=min(model.terms, form.depth // 2 if model.pairs else form.depth))


# -- experiments


def experiments(form: Form, count: int, seed: int = SEED) -> tuple[Floats, Floats, Floats]:
    """Return A, B and C of `count` products: (count, 16, depth), (count, depth, 8) and (count, 16, 8).

    In half of them elements have random sizes; in the others each row has a large term, one that cancels it,
    and two small ones, at any places, of which C is one.
    """
    rng = np.random.default_rng(seed)
    half = count // 2
    size = 3 if form.to == "f16" else 6 if BITS[form.left] == 8 else 9
    shapes = ((half, 16, form.depth), (half, form.depth, 8), (half, 16, 8))
    kinds = (form.left, form.right, form.to)
    drawn = [_numbers(rng, shape, size, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    bits = _single_bits(rng, form.depth, count - half)
    a, b, c = (np.concatenate(pair) for pair in zip(drawn, bits, strict=True))
    return a, b, c


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], size: int, kind: str) -> Floats:
    """Return random numbers that `kind` holds, from 2 to the power of -size to 2 to the power of size."""
    found = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-size, size, shape) * rng.choice([-1, 1], shape)
    return found.astype(np.float32).astype(np.float64) if kind == "f32" else decode(encode(found, kind), kind)


def _single_bits(rng: np.random.Generator, depth: int, count: int) -> tuple[Floats, Floats, Floats]:
    """Return products whose rows have the terms 2^14, -2^14, and two that are up to 2^28 times smaller.

    B has large elements in some rows and small ones in the others, so that those of A fit into 8 bits.
    """
    a, b, c = np.zeros((count, 16, depth)), np.zeros((count, depth, 8)), np.zeros((count, 16, 8))
    for one in range(count):
        large = rng.permutation(depth) < max(2, depth // 2)
        b[one] = np.where(large, 2.0**HALF, 2.0**-HALF)[:, None]
        for row in range(16):
            shift = int(rng.integers(0, 28))
            free = set(range(-1, depth))  # -1 is C
            signs = rng.choice([-1.0, 1.0], 2)
            for less, sign in ((0, 1.0), (0, -1.0), (shift, signs[0]), (shift + 1, signs[1])):
                fitting = [k for k in sorted(free) if k >= 0 and large[k] == (less < 2 * HALF)]
                term = sign * 2.0 ** (2 * HALF - less)
                if -1 in free and (not fitting or rng.random() < 0.25):
                    c[one, row] = term
                    free.discard(-1)
                elif fitting:
                    place = int(rng.choice(fitting))
                    a[one, row, place] = term / b[one, place, 0]
                    free.discard(place)
    return a, b, c


# -- what is multiplied


def differences(form: Form, multiply: Multiply, count: int = EXPERIMENTS) -> dict[str, int]:
    """Return of each candidate how many elements differ from those that `multiply` computes."""
    a, b, c = experiments(form, count)
    places, kinds = _places(form), (form.left, form.right, form.to)
    words = [_packed(m, p, k) for m, p, k in zip((a, b, c), places, kinds, strict=True)]
    theirs = _unpacked(multiply(form, *words), places[2], form.to)
    found, (x, y, z) = {}, (np.moveaxis(m, 0, -1) for m in (a, b, c))
    for name, model in candidates(form).items():
        ours = stored(summed(x, y, z, kinds[:2], form.to, model), form.to)
        found[name] = int(np.count_nonzero(np.moveaxis(ours, -1, 0) != theirs))
    return found


def _places(form: Form) -> tuple[Positions, Positions, Positions]:
    """Return where the elements of A, B (as `experiments` has it) and C lie."""
    bits = BITS[form.left]
    return left(16, form.depth, bits), right(form.depth * (1 + form.sparse), 8, bits), sums(16, 8)


def _codes(values: Floats, kind: str) -> NDArray[np.uint64]:
    if kind == "f32":
        return values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return np.asarray(encode(values, kind)).astype(np.uint64)


def _packed(matrices: Floats, positions: Positions, kind: str) -> Words:
    """Return the registers of each lane: (count, 32, registers)."""
    bits = BITS[kind]
    per = max(1, 32 // bits)
    rows = 1 + max(int(r.max()) for r, _ in positions)
    if rows > matrices.shape[1]:  # B of a sparse product: its rows lie where A's elements are
        matrices = _spread(matrices, kind)
    held = np.stack([_codes(matrices[:, r, c], kind) for r, c in positions], axis=-1)
    held = held.reshape(*held.shape[:2], -1, per)
    found: Words = np.ascontiguousarray((held << (bits * np.arange(per, dtype=np.uint64))).sum(-1), np.uint32)
    return found


def _spread(b: Floats, kind: str) -> Floats:
    """Return B of a sparse product from the rows that A's metadata choose: 0 and 1 of each four, 0 of two."""
    count, depth, columns = b.shape
    found = np.full((count, 2 * depth, columns), 3.0)  # what is not chosen shall not show
    rows = np.arange(2 * depth)
    found[:, rows % 2 == 0 if kind == "tf32" else rows % 4 < 2] = b
    return found


def _unpacked(words: Words, positions: Positions, to: str) -> Floats:
    """Return the matrices (count, 16, 8) whose registers (count, 32, registers) are given."""
    held = np.ascontiguousarray(words).view(np.float32 if to == "f32" else np.float16)
    found = np.zeros((len(words), 16, 8))
    for i, (rows, columns) in enumerate(positions):
        found[:, rows, columns] = held[..., i]
    return found


def source(form: Form) -> str:
    """Return a kernel whose block i multiplies the matrices i, from registers in memory."""
    kinds = form.left, form.right, form.to
    counts = [len(p) * BITS[k] // 32 for p, k in zip(_places(form), kinds, strict=True)]
    counts = [counts[2], *counts]
    starts = np.cumsum([0, *counts]).tolist()
    groups = [", ".join(f"%{i}" for i in range(s, s + n)) for s, n in zip(starts, counts, strict=False)]
    wide = form.to == "f32"
    letter, ctype = ("f", "float") if wide else ("r", "unsigned")
    given = [f'"r"(a[i * {counts[1]} + {j}])' for j in range(counts[1])]
    given += [f'"r"(b[i * {counts[2]} + {j}])' for j in range(counts[2])]
    given += [f'"{letter}"((({ctype}*)c)[i * {counts[3]} + {j}])' for j in range(counts[3])]
    metadata = f", %{starts[4]}, 0" if form.sparse else ""
    given += ['"r"(0x44444444)'] if form.sparse else []
    operands = ", ".join(f"{{{group}}}" for group in groups)
    outputs = ", ".join(f'"={letter}"(o[{j}])' for j in range(counts[0]))
    return f"""extern "C" __global__ void k(const unsigned* a, const unsigned* b,
                                         const unsigned* c, unsigned* d) {{
      int i = blockIdx.x * 32 + threadIdx.x; {ctype} o[{counts[0]}];
      asm volatile("{form.opcode} {operands}{metadata};" : {outputs} : {", ".join(given)});
      for (int j = 0; j < {counts[0]}; j++) (({ctype}*)d)[i * {counts[0]} + j] = o[j]; }}"""


def compiled(form: Form, arch: str) -> tuple[str, bytes]:
    """Return the PTX and the cubin of `source` for an architecture such as sm_90a."""
    program = _checked(nvrtc.nvrtcCreateProgram(source(form).encode(), b"mma_bits.cu", 0, [], []))
    _checked(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={arch}".encode()]))
    texts = []
    for size, get in (
        (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
        (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
    ):
        text = bytes(bytearray(_checked(size(program))))
        _checked(get(program, text))
        texts.append(text)
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return texts[0].rstrip(b"\0").decode(), texts[1]


def _checked(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise BuildError(f"NVRTC: {result[0].name}")
    return result[1] if len(result) > 1 else None


def row(gpu: Context, stream: Stream, arch: str, form: Form) -> dict[str, Any]:
    """Return how many elements of each candidate differ from the card's."""
    differ = differences(form, partial(on_the_card, gpu, stream, arch))
    return {
        "form": form.opcode,
        "elements": EXPERIMENTS * 16 * 8,
        "differ": differ,
        "right": [name for name, count in differ.items() if not count],
        "emulator": chosen(form),
    }


def on_the_card(gpu: Context, stream: Stream, arch: str, form: Form, a: Words, b: Words, c: Words) -> Words:
    """Multiply on a card."""
    out = np.zeros_like(c)
    with contextlib.ExitStack() as stack:
        module = stack.enter_context(Module(gpu, compiled(form, arch)[1]))
        buffers = [stack.enter_context(Buffer(gpu, array.nbytes)) for array in (a, b, c, out)]
        for buffer, array in zip(buffers, (a, b, c, out), strict=True):
            buffer.upload(array, stream)
        module.function("k").prepare(len(a), 32, buffers)(stream)
        buffers[-1].download(out, stream)
    return out


def emulated(form: Form, a: Words, b: Words, c: Words) -> Words:
    """Multiply in the emulator."""
    out = np.zeros_like(c)
    ptx, _ = compiled(form, "sm_90a")
    emulate(ptx, "k", grid=(len(a),), block=(32,), arguments=[a, b, c, out], check=False, count=False)
    return out
