"""The kernels that `harness.matmul` runs for given products, compiled and made a `Runnable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from harness.dispatch import choose, prepared
from harness.dispatch.split import Part, brief, divided
from harness.errors import UsageError
from harness.kernels.compiler import Cubin
from harness.launch.builds import Built, Progress, Skipped, build_all
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.support.cache import Cache


@dataclass(frozen=True, kw_only=True)
class Chosen(Built):
    """The dispatcher's choice of kernels for one or more products, as one `Runnable`.

    A product is computed by one launch, or by several that each compute a part of the output. `parts` maps
    each product to its launches, the largest first. The variant, cubin and machine code are those of the
    first launch's kernel; `others` has the cubins of the other launches' kernels.
    """

    parts: Mapping[Gemm, tuple[Part, ...]]
    others: tuple[Cubin, ...] = ()

    @property
    def label(self) -> str:
        """The kernels behind the dispatcher's name, such as ``matmul -> 15_split_k SPLIT=4``."""
        return f"{choose.NAME} -> {self.brief}"

    @property
    def dtype(self) -> str:
        """The type that was asked for: a kernel of true fp32 may serve products in bf16x6."""
        return next(iter(self.parts)).dtype.name

    @property
    def brief(self) -> str:
        """The kernels of all launches, with those parameters that differ from the defaults."""
        return brief([self.variant, *(cubin.variant for cubin in self.others)])

    def serves(self, problem: Problem) -> bool:
        """Return True if this is what the dispatcher chose for `problem`."""
        return problem in self.parts

    def check(self, problem: Problem, *, sms: int) -> None:
        """Raise UsageError if this was not chosen for `problem`."""
        self._launches(problem)

    def prepare(self, operands: Operands) -> Launch:
        """Bind all launches of the product to `operands`, as `harness.matmul` does.

        Raises UsageError if this was not chosen for the operands' problem.
        """
        launches, cubins = self._launches(operands.problem), (self.cubin, *self.others)
        return prepared.prepare(list(zip(cubins, launches, strict=True)), operands)

    def _launches(self, problem: Problem) -> tuple[Part, ...]:
        """Return the launches of `problem`. Raises UsageError if this was not chosen for it."""
        if not (isinstance(problem, Gemm) and problem in self.parts):
            raise UsageError(f"{self.label} was not chosen for {problem.label}")
        return self.parts[problem]

    def same_code(self, other: Built) -> bool:
        """Return True if this is a single kernel with the same code; False if it has several.

        See `Built.same_code`. With several kernels, the parts left to the others may differ.
        """
        return not self.others and super().same_code(other)


def build_chosen(
    problems: Sequence[Gemm], arch: str, cache: Cache, progress: Progress, *, gpu: str, **card: Any
) -> tuple[list[Chosen], list[Skipped]]:
    """Compile what `harness.matmul` runs for each of these products on a `card` (see `cost.card`).

    Products of a type for which it runs the same kernels share one `Chosen`. A variant that cannot be built
    is skipped with its reason, and so is every choice that needs it. Raises UsageError where no kernel serves
    a product.
    """
    chosen: dict[tuple[str, str], dict[Gemm, tuple[Part, ...]]] = {}
    for problem in problems:
        shape = problem.M, problem.N, problem.K
        made = divided(*shape, arch=arch, gpu=gpu, **{**card, **choose.about(problem)})
        alike = problem.dtype.name, brief(part.variant for part in made)
        chosen.setdefault(alike, {})[problem] = made
    variants = {p.variant.label: p.variant for by in chosen.values() for made in by.values() for p in made}
    built, skipped = build_all(list(variants.values()), [arch], cache, progress)
    known = {one.variant.label: one for one in built}
    found = []
    for by in chosen.values():
        labels = [part.variant.label for part in next(iter(by.values()))]
        if all(label in known for label in labels):
            main, *rest = (known[label] for label in labels)
            own = {field.name: getattr(main, field.name) for field in fields(Built)}
            found.append(Chosen(**own, parts=by, others=tuple(one.cubin for one in rest)))
    return found, skipped
