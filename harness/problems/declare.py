"""Declare a problem in a few lines: the operands as texts, the reference as a function of NumPy arrays.

    @problem(x="float32[M, N]", y="out float32[M, N]", M=128, N=1000)
    def softmax(x):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

An operand is ``[in|out|inout|const] TYPE[EXTENT, ...] [= CONTENTS]``. ``inout`` is updated in place and set
back before each launch; ``const`` is a ``__constant__`` variable of that name, no argument. Extents are
integer expressions over the axes, which are the other keywords. Contents are ``normal`` (the default of
floats), ``uniform`` from 0 to 1, ``zeros``, ``ones``, ``arange`` or a range of random integers such as
``0..99`` (the default of integers); outputs hold NaN or the largest integer if nothing is said.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import SpecError
from harness.kernels.dtypes import BF16
from harness.kernels.expr import Expr, ExprError
from harness.problems.arrays import ArrayProblem
from harness.problems.protocol import Argument, Axes, Member, Struct

_OPERAND = re.compile(r"(?:(in|out|inout|const)\s+)?([a-z]+[0-9]*)\s*\[([^\[\]]+)\]\s*(?:=\s*(\S+)\s*)?\Z")
_ALIASES = {
    "half": "float16", "fp16": "float16", "float": "float32", "fp32": "float32", "double": "float64",
    "fp64": "float64", "bf16": "bfloat16", "int": "int32", "uint": "uint32", "char": "int8",
}  # fmt: skip
_TYPES = (
    *("float16", "bfloat16", "float32", "float64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)\Z")
_CONTENTS = ("normal", "uniform", "zeros", "ones", "arange")
_DEFAULT_RANGE = (0, 99)


@dataclass(frozen=True, kw_only=True)
class Operand:
    """An operand as declared: its `role` (in, out, inout, const), type, extents and initial contents."""

    name: str
    role: str
    type: str
    extents: tuple[Expr, ...]
    contents: str

    @classmethod
    def parse(cls, name: str, text: str, axes: Sequence[str]) -> Operand:
        """Read a declaration. Raises SpecError that shows the form."""
        match = _OPERAND.match(text.strip())
        kind = _ALIASES.get(match[2], match[2]) if match else ""
        if match is None or kind not in _TYPES:
            raise SpecError(
                f"{name} = {text!r} is no operand",
                hint="such as 'float32[M, N]', 'out float32[M]' or 'inout int32[N] = zeros'; types are "
                f"{', '.join(_TYPES)}",
            )
        try:
            extents = tuple(Expr.parse(part) for part in match[3].split(","))
        except ExprError as e:
            raise SpecError(f"{name} = {text!r}: {e}") from None
        if unknown := sorted({n for e in extents for n in e.names} - set(axes)):
            raise SpecError(f"{name} = {text!r} uses {', '.join(unknown)}, which is no axis", hint="N=1000")
        contents = match[4] or ""
        if contents and contents not in _CONTENTS and not _RANGE.match(contents):
            raise SpecError(f"{name} = {text!r}: no contents {contents!r}", hint=", ".join(_CONTENTS))
        return cls(name=name, role=match[1] or "in", type=kind, extents=extents, contents=contents)

    def size(self, axes: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
        """Return the shape and the bytes of the operand. Raises SpecError where it has none."""
        try:
            shape = tuple(extent(axes) for extent in self.extents)
        except ExprError as e:
            raise SpecError(f"{self.name}: {e}") from None
        if any(n < 0 for n in shape):
            raise SpecError(f"{self.name} would be of shape {shape}")
        return shape, math.prod(shape) * (2 if self.type == "bfloat16" else np.dtype(self.type).itemsize)

    def array(self, axes: Mapping[str, Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return the operand as it is stored before a launch."""
        shape, _ = self.size(axes)
        floating = "float" in self.type
        numeric = np.float32 if self.type == "bfloat16" else np.dtype(self.type)
        if self.role == "out" and not self.contents:
            worst = np.nan if floating else True if self.type == "bool" else np.iinfo(numeric).max
            values = np.full(shape, worst, numeric)
        else:
            values = self._values(shape, floating, rng).astype(numeric)
        return BF16.encode(values) if self.type == "bfloat16" else values

    def _values(self, shape: tuple[int, ...], floating: bool, rng: np.random.Generator) -> NDArray[Any]:
        if found := _RANGE.match(self.contents):
            return rng.integers(int(found[1]), int(found[2]), shape, endpoint=True)
        if not self.contents and not floating:
            low, high = (0, 1) if self.type == "bool" else _DEFAULT_RANGE
            return rng.integers(low, high, shape, endpoint=True)
        made: dict[str, Callable[[], NDArray[Any]]] = {
            "zeros": lambda: np.zeros(shape),
            "ones": lambda: np.ones(shape),
            "arange": lambda: np.arange(int(np.prod(shape))).reshape(shape),
            "uniform": lambda: rng.random(shape),
        }
        return made.get(self.contents, lambda: rng.standard_normal(shape))()

    def widened(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the values for the reference: floats in float64, integers as int64."""
        if self.type == "bfloat16":
            return BF16.decode(stored)
        return stored.astype(np.float64 if "float" in self.type else np.int64)


def problem(
    *,
    arguments: str | Sequence[Any] | None = None,
    bench: Sequence[Axes] = (),
    verify: Sequence[Axes] = (),
    rtol: float | None = None,
    atol: float | None = None,
    flops: str | int = 0,
    **declared: Any,
) -> Callable[[Callable[..., Any]], type[ArrayProblem]]:
    """Make a problem class of a reference function; front matter names it ``file.py:function``.

    `declared` are the operands and the axes in the order of the kernel's parameters, operands as texts, axes
    as numbers: an int is passed as an int32, a float as a float32, a NumPy scalar as its type. The function
    takes those of them that it names, operands in float64 or int64, and returns the expected output: a tuple
    or a dictionary where there are several, a `Reference` with bounds of its own, or arrays, to which `rtol`
    and `atol` apply.

    arguments: the kernel's parameters where they are others: names in order, in a tuple those of a struct
    bench, verify: the sizes that these commands visit by default
    flops: floating-point operations, an expression over the axes
    """
    axes = {name: value for name, value in declared.items() if not isinstance(value, str)}
    if wrong := [
        n for n, v in axes.items() if isinstance(v, bool) or not isinstance(v, int | float | np.generic)
    ]:
        raise SpecError(f"{wrong[0]} = {axes[wrong[0]]!r} is neither a number nor the text of an operand")
    operands = [Operand.parse(n, text, list(axes)) for n, text in declared.items() if isinstance(text, str)]
    by_name = {operand.name: operand for operand in operands}
    constant = tuple(o.name for o in operands if o.role == "const")
    wanted = [n for n in declared if n not in constant] if arguments is None else arguments
    named = wanted.split() if isinstance(wanted, str) else list(wanted)
    work = Expr.parse(flops)
    for name in _flat(named):
        if name not in declared or name in constant:
            raise SpecError(
                f"arguments: {name!r} is no operand or axis", hint=f"there are {', '.join(declared)}"
            )

    def declare(function: Callable[..., Any]) -> type[ArrayProblem]:
        takes = list(inspect.signature(function).parameters)
        if unknown := [name for name in takes if name not in declared]:
            raise SpecError(f"{function.__name__} takes {unknown[0]}, which is neither operand nor axis")

        def inputs(self: Any, seed: int) -> dict[str, NDArray[Any]]:
            rng = np.random.default_rng(seed)
            values = {name: getattr(self, name) for name in axes}
            return {operand.name: operand.array(values, rng) for operand in operands}

        def reference(self: Any, inputs: Mapping[str, NDArray[Any]]) -> Any:
            given = {
                n: by_name[n].widened(inputs[n]) if n in by_name else self.scalar(n).item() for n in takes
            }
            with np.errstate(all="ignore"):
                found = function(**given)
            if not isinstance(found, tuple):
                return found
            if len(found) != len(self.outputs):
                names = ", ".join(self.outputs)
                raise SpecError(f"{function.__name__} returned {len(found)} arrays; the outputs are {names}")
            return dict(zip(self.outputs, found, strict=True))

        def passed(self: Any) -> tuple[Argument, ...]:
            return tuple(_argument(self, name, by_name) for name in named)

        def sizes(self: Any) -> dict[str, tuple[tuple[int, ...], int]]:
            values = {name: getattr(self, name) for name in axes}
            return {operand.name: operand.size(values) for operand in operands}

        members = {
            "_operands": property(sizes),
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "axes": axes,
            "outputs": tuple(o.name for o in operands if o.role in ("out", "inout")),
            "updated": frozenset(
                o.name for o in operands if o.role == "inout" or (o.role == "out" and o.contents)
            ),
            "constants": constant,
            "element_types": {o.name: o.type for o in operands if o.type == "bfloat16"},
            "bench_axes": tuple(bench),
            "verify_axes": tuple(verify),
            "rtol": rtol,
            "atol": atol,
            "flops": property(lambda self: work({n: getattr(self, n) for n in axes})),
            "inputs": inputs,
            "reference": reference,
            "arguments": passed,
        }
        return type(function.__name__, (ArrayProblem,), members)

    return declare


def _flat(names: Sequence[Any]) -> list[str]:
    return [n for name in names for n in ([name] if isinstance(name, str) else _flat(name))]


def _argument(problem: Any, name: Any, operands: Mapping[str, Operand]) -> Member:
    """Return an argument by its name; a struct for a tuple of names."""
    if not isinstance(name, str):
        return Struct({"".join(_flat([n])): _argument(problem, n, operands) for n in name})
    return name if name in operands else problem.scalar(name)
