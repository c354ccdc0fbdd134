"""A base for problems of NumPy arrays: a subclass gives inputs and a reference, the rest has defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import SpecError, UsageError
from harness.kernels.dtypes import BF16, DType
from harness.problems.protocol import Argument, Axes, Reference

# The error allowed by default, relative to the result and to the root mean square of all results: some
# hundred roundings of the type. Integers must be exact.
RTOL = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-13}


class ArrayProblem:
    """A problem with defaults for all that `Problem` asks for but ``axes``, ``inputs`` and ``reference``.

    class Scale(ArrayProblem):
        axes = {"N": 2**20, "factor": 2.5}
        outputs = ("dst",)

        def inputs(self, seed):
            src = np.random.default_rng(seed).standard_normal(self.N, dtype=np.float32)
            return {"src": src, "dst": np.full_like(src, np.nan)}

        def reference(self, inputs):
            return self.factor * inputs["src"].astype(np.float64)

    The arguments are the inputs in their order, then the axes: int32 or float32, or the NumPy type of their
    defaults. `reference` returns the expected array, a dictionary of them by output, or a `Reference` with
    bounds of its own in place of either. `outputs` are written; those of them in `updated` are read first.
    `constants` are ``__constant__`` variables. `rtol` and `atol` are the errors allowed of each element. By
    default `atol` is `rtol` times the root mean square of the expected values. `element_types` names the
    operands whose NumPy type does not tell: ``{"x": "bfloat16"}``.
    """

    axes: ClassVar[Mapping[str, Any]] = {}
    outputs: ClassVar[tuple[str, ...]] = ()
    updated: ClassVar[frozenset[str]] = frozenset()
    constants: ClassVar[tuple[str, ...]] = ()
    element_types: ClassVar[Mapping[str, str]] = {}
    rtol: ClassVar[float | None] = None
    atol: ClassVar[float | None] = None
    # Set for each subclass, where it does not give them itself.
    output: ClassVar[str] = ""
    bench_axes: ClassVar[tuple[Axes, ...]] = ()
    verify_axes: ClassVar[tuple[Axes, ...]] = ()
    _types: ClassVar[Mapping[str, type[np.generic]]] = {}

    def __init_subclass__(cls) -> None:
        given = cls.axes
        cls._types = {n: type(v) for n, v in given.items() if isinstance(v, np.generic)}
        cls.axes = {n: v.item() if isinstance(v, np.generic) else v for n, v in given.items()}
        cls.output = cls.outputs[0] if cls.outputs else ""
        cls.bench_axes = cls.bench_axes or ({},)
        cls.verify_axes = cls.verify_axes or _shapes(cls.axes)

    def __init__(self, **axes: int | float) -> None:
        self.__dict__.update({**self.axes, **axes})

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        """Return the instance of these sizes. Raises UsageError for an integer below 1."""
        if not cls.outputs:
            raise SpecError("outputs is empty: which operands does the kernel write?", where=cls.__qualname__)
        whole = {**cls.axes, **axes}
        for name, value in whole.items():
            if (
                isinstance(value, int)
                and isinstance(cls.axes.get(name), int)
                and value < min(1, cls.axes[name])
            ):
                raise UsageError(f"{name}={value} is out of range", hint="1 or more")
        return cls(**whole)

    @property
    def label(self) -> str:
        """The sizes joined by x, and the scalars that are not at their defaults."""
        sizes = [str(getattr(self, n)) for n, v in self.axes.items() if isinstance(v, int)]
        others = [
            f"{n}={getattr(self, n):g}"
            for n, v in self.axes.items()
            if not isinstance(v, int) and getattr(self, n) != v
        ]
        return " ".join(["x".join(sizes), *others]).strip() or "default"

    @cached_property
    def _operands(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """The shape and the bytes of each operand by name."""
        return {name: (a.shape, a.nbytes) for name, a in self.inputs(0).items()}

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self._operands[self.output][0]

    @property
    def flops(self) -> int:
        """Not counted: 0, so that bandwidth is shown."""
        return 0

    @property
    def bytes(self) -> int:
        """The bytes of all operands, those that are read and written twice."""
        again = sum(self._operands[name][1] for name in self.updated)
        return again + sum(size for _, size in self._operands.values())

    @property
    def buffer_bytes(self) -> int:
        """The bytes of all operands."""
        return sum(size for _, size in self._operands.values())

    @property
    def accumulates(self) -> bool:
        """True if an output is read first."""
        return bool(self.updated)

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return every operand by name, for a subclass to give."""
        raise NotImplementedError("inputs(self, seed) is missing")

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Any:
        """Return what is expected of the outputs, for a subclass to give."""
        raise NotImplementedError("reference(self, inputs) is missing")

    def arguments(self) -> tuple[Argument, ...]:
        """Return the operands but the constants, then the axes."""
        named = [name for name in self._operands if name not in self.constants]
        return (*named, *map(self.scalar, self.axes))

    def scalar(self, name: str) -> np.generic:
        """Return an axis as an argument: int32, float32, or the NumPy type of its default."""
        value = getattr(self, name)
        kind = self._types.get(name, np.int32 if isinstance(self.axes[name], int) else np.float32)
        return kind(value)

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """Return None: FLOP are not counted."""
        return None


def _shapes(axes: Mapping[str, Any]) -> tuple[Axes, ...]:
    """Return what to verify by default: the given sizes, the least, and sizes that divide nothing."""
    sizes = {n: v for n, v in axes.items() if isinstance(v, int)}
    ragged = {n: v // 2 + 2 * i + 3 | 1 for i, (n, v) in enumerate(sizes.items())}
    return ({}, dict.fromkeys(sizes, 1), ragged) if sizes else ({},)


def reference_of(problem: Any, name: str, expected: Any, stored: NDArray[Any]) -> Reference:
    """Return the reference of the output `name`, which holds `stored` before the launch.

    `expected` is what a problem gave: a `Reference`, which is returned as it is, or an array, which gets the
    problem's tolerances as bounds. Raises SpecError for an array that is NaN somewhere.
    """
    if isinstance(expected, Reference) or not isinstance(expected, np.ndarray | np.generic | float | int):
        return expected  # what is neither is refused by its checks
    if np.iscomplexobj(expected):
        raise SpecError(f"reference: {name} is complex, which no output is")
    alone = stored.size == 1 and np.ndim(expected) == 0  # the sum of an array, for an output of one element
    shape = stored.shape if alone else np.shape(expected)
    values = np.ascontiguousarray(expected, dtype=np.float64).reshape(shape)
    if np.isnan(values).any():
        raise SpecError(f"reference: {name} is NaN somewhere: nothing could be right there")
    kind = getattr(problem, "element_types", {}).get(name, stored.dtype.name)
    rtol = getattr(problem, "rtol", None)
    rtol = RTOL.get(kind, 0.0) if rtol is None else rtol
    finite = values[np.isfinite(values)]
    atol = getattr(problem, "atol", None)
    if atol is None:
        atol = rtol * float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    bound = np.where(np.isfinite(values), rtol * np.abs(values) + atol, 0.0)
    return Reference(expected=values, bound=bound, dtype=_element(kind))


def _element(kind: str) -> DType | None:
    """Return the element type that a NumPy type does not tell."""
    return BF16 if kind == "bfloat16" else None
