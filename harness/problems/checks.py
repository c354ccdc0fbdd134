"""Check that a problem's results follow the `Problem` protocol.

A mistake in a user's class is reported as a SpecError that names the class and the member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from harness.errors import SpecError
from harness.kernels.dtypes import FP32, DType
from harness.problems.arrays import reference_of
from harness.problems.gemm import Gemm
from harness.problems.protocol import (
    Axes,
    Compiled,
    Image,
    Problem,
    Reference,
    Struct,
    Table,
    Tensor,
    constants,
    outputs,
    unverified,
    updated,
)
from harness.problems.registry import blamed


def instance(cls: type[Problem], axes: Axes) -> Problem:
    """Return the instance of `cls` for these axes.

    Raises UsageError for sizes that make no sense, and SpecError if the class breaks the protocol.
    """
    with blamed(cls):
        problem = cls.from_axes(axes)
        if not isinstance(problem, cls):
            _refuse(cls, "from_axes", f"gave {_kind(problem)}, not one of the class")
        label = problem.label
    if not isinstance(label, str):
        _refuse(cls, "label", f"is {_kind(label)}, not a string")
    return problem


def axes(problem: Problem) -> dict[str, Any]:
    """Return the axes of a problem as records have them: those of a layout only where they are not 0."""
    found = {name: getattr(problem, name, None) for name in problem.axes}
    compiled = problem.compiled if isinstance(problem, Compiled) else ()
    return {name: value for name, value in found.items() if value or name not in compiled}


def data(
    problem: Problem, seed: int, kept: Mapping[str, NDArray[Any]] | None = None
) -> tuple[dict[str, NDArray[Any]], Reference | None]:
    """Return every operand by name, and the reference result computed from them.

    The reference is None where the arguments are guesses (`harness.problems.guessed`).

    `kept` has inputs that are taken instead of those made from the seed.

    Raises SpecError if they do not fit the protocol or each other, so that no kernel could be verified by
    them.
    """
    cls = type(problem)
    with blamed(cls):
        inputs = problem.inputs(seed)
        _check_inputs(problem, inputs)
        inputs = {**inputs, **(kept or {})}
        for argument in problem.arguments():
            _check_argument(cls, argument, inputs)
        found: Any = problem.reference(inputs)
        if found is None and unverified(problem):
            return inputs, None
        several = found if isinstance(found, Mapping) else {problem.output: found}
        if set(several) != set(outputs(problem)):
            _refuse(
                cls, "reference", f"gave {', '.join(several)}; the outputs are {', '.join(outputs(problem))}"
            )
        several = {n: reference_of(problem, n, one, inputs[n]) for n, one in several.items()}
        for name, reference in several.items():
            _check_reference(problem, reference, name, inputs[name])
        others = {name: several[name] for name in several if name != problem.output}
    return inputs, replace(several[problem.output], others=others) if others else several[problem.output]


def host_bytes(problem: Problem) -> float:
    """Return how many bytes of host memory `data` takes at its peak, within a factor of 1.5.

    So measured at products and copies: beside the operands the reference and its bounds in float64, and what
    is between. A product has both operands in float64, and the sums of magnitudes that its bounds are from.
    """
    dtype = getattr(problem, "dtype", FP32)
    itemsize = (dtype if isinstance(dtype, DType) else FP32).itemsize  # it may mean anything
    with blamed(type(problem)):
        outputs = math.prod(problem.extents)
        inputs = max(0.0, problem.buffer_bytes / itemsize - outputs)
        of_inputs, of_outputs = (12, 36) if isinstance(problem, Gemm) else (4, 20)
        return problem.buffer_bytes + of_inputs * inputs + of_outputs * outputs


def _check_inputs(problem: Problem, inputs: Any) -> None:
    """Raise SpecError unless the inputs are C-contiguous NumPy arrays and include the output."""
    cls = type(problem)
    if not isinstance(inputs, Mapping):
        _refuse(cls, "inputs", f"gave {_kind(inputs)}, not a dictionary of arrays")
    for name, array in inputs.items():
        if not isinstance(array, np.ndarray):
            _refuse(cls, "inputs", f"{name} is {_kind(array)}, not a NumPy array")
        if not array.flags.c_contiguous:
            _refuse(
                cls, "inputs", f"{name} is not contiguous", hint="np.ascontiguousarray makes a copy that is"
            )
    if unverified(problem):
        return
    for member, wanted in (
        ("output", (problem.output,)),
        ("outputs", outputs(problem)),
        ("updated", updated(problem)),
        ("constants", constants(problem)),
    ):
        for name in wanted:
            if name not in inputs:
                names = ", ".join(inputs) or "none"
                _refuse(cls, member, f"names {name!r}, which inputs does not have", hint=f"it has {names}")
    if problem.output != outputs(problem)[0]:
        _refuse(cls, "outputs", f"must begin with output, {problem.output!r}")
    if extra := updated(problem) - set(outputs(problem)):
        _refuse(cls, "updated", f"names {', '.join(sorted(extra))}, which is no output")


def _check_argument(cls: type[Problem], argument: Any, inputs: Mapping[str, Any]) -> None:
    """Raise SpecError unless the argument is the name of an operand or a NumPy scalar."""
    if isinstance(argument, Struct):
        for member in argument.members.values():
            _check_argument(cls, member, inputs)
    elif isinstance(argument, str | Tensor | Table | Image):
        named = [argument] if isinstance(argument, str) else [argument.operand]
        named += argument.pointers.values() if isinstance(argument, Table) else []
        for name in [name for name in named if name not in inputs]:
            names = ", ".join(inputs)
            _refuse(cls, "arguments", f"there is no operand {name!r}", hint=f"inputs has {names}")
    elif not isinstance(argument, np.generic):
        _refuse(
            cls,
            "arguments",
            f"{argument!r} is {_kind(argument)}: an operand's name or a NumPy scalar is wanted",
            hint="a scalar's type is the parameter's: np.int32(5), np.float32(0.5)",
        )


def _check_reference(problem: Problem, reference: Any, called: str, output: NDArray[Any]) -> None:
    """Raise SpecError unless the reference fits the output and its bounds can tell right from wrong."""
    cls = type(problem)
    if not isinstance(reference, Reference):
        _refuse(
            cls, "reference", f"gave {_kind(reference)}, neither an array nor a harness.problems.Reference"
        )
    for name in ("expected", "bound"):
        array = getattr(reference, name)
        if not isinstance(array, np.ndarray) or array.dtype != np.float64:
            kind = array.dtype if isinstance(array, np.ndarray) else _kind(array)
            _refuse(cls, f"reference: {name}", f"is {kind}, not an array of float64")
    shape, extents = reference.expected.shape, problem.extents
    if reference.bound.shape != shape:
        _refuse(cls, "reference", f"bound has shape {reference.bound.shape}, expected {shape}")
    if len(shape) != output.ndim or any(n > m for n, m in zip(shape, output.shape, strict=True)):
        _refuse(cls, "reference", f"expected has shape {shape}, the output {called} {output.shape}")
    if called == problem.output and math.prod(shape) != math.prod(extents):
        _refuse(cls, "reference", f"expected has shape {shape}, where extents are {tuple(extents)}")
    if not reference.expected.size:
        _refuse(cls, "reference", f"expected has shape {shape}: there is nothing to compare")
    least = float(reference.bound.min())  # NaN if any element is NaN
    if not least >= 0:
        _refuse(cls, "reference: bound", "is negative or NaN somewhere: nothing could be right there")
    if math.isinf(least):
        _refuse(cls, "reference: bound", "is infinite everywhere: anything would be right")
    limit = reference.rms_bound
    if limit is not None and not (isinstance(limit, float | int) and limit >= 0):
        _refuse(cls, "reference: rms_bound", f"is {limit!r}, not a number from 0 on, or None")


def _refuse(cls: type[Problem], member: str, what: str, *, hint: str = "") -> NoReturn:
    """Raise a SpecError about a member of the problem class."""
    raise SpecError(f"{member}: {what}", where=f"problem {cls.__qualname__}", hint=hint)


def _kind(value: object) -> str:
    """Return the type of `value` as it is named in messages."""
    return "None" if value is None else f"of type {type(value).__name__}"
