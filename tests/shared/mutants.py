"""Mutation testing of the emulator: it makes mutants of a kernel, one small fault each, and hunts them.

PYTHONPATH=tests python -m shared.mutants tiled cp_async my/kernel.cu --each 5 --seed 7

runs five mutants of each of these kernels, drawn with this seed; every one without --each, and the whole
ladder where no kernel is named.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import math
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.bench import emulation
from harness.bench.row import ERROR, OK, REFUSED, Measurement
from harness.errors import BuildError, HarnessError
from harness.kernels import catalog
from harness.kernels.cpp.compilers.nvjitlink import link_ptx
from harness.kernels.cpp.compilers.nvrtc import source_text
from harness.kernels.cpp.includes import folders
from harness.kernels.spec import LAYOUT, Kernel, Variant, load
from harness.launch.builds import Built
from harness.problems import checks
from harness.problems.gemm import Gemm
from harness.problems.protocol import Axes, Problem
from harness.problems.registry import resolve
from shared.emulator_kernels import compile_ptx, ptx_only

ARCH = "sm_90a"
_BUDGET = 200_000  # instructions a batch: several times what the largest right run takes
_ENDLESS = ("has not ended after", "the kernel hangs", "more turns")

# (operator, pattern, replacement): one mutant for each match in a line of code
_CUDA = (
    ("barrier dropped", r"__syncthreads\(\);", ";"),
    ("barrier dropped", r"__syncwarp\([^()]*\);", ";"),
    ("fence dropped", r"__threadfence(?:_block)?\(\);", ";"),
    ("fence weakened", r"__threadfence\(\);", "__threadfence_block();"),
    ("atomic becomes plain", r"\batomicAdd\(([^,]+), ([^;]+)\);", r"*(\1) += \2;"),
    ("volatile dropped", r"\bvolatile ", ""),
    ("mask of a warp", r"0x[fF]{8}u?", "0x7FFFFFFFu"),
    ("mask of a warp", r"0x[fF]{8}u?", "0xFFFFu"),
    ("shuffle dropped", r"__shfl\w*_sync\([^,]+, ([^,]+), [^()]+\)", r"\1"),
    ("wait dropped", r"cp_async_wait_group<[^>]*>\(\);", ";"),
    ("wait for one group less", r"cp_async_wait_group<([^>]*)>\(\);", r"cp_async_wait_group<\1 + 1>();"),
    ("commit dropped", r"cp_async_commit_group\(\);", ";"),
    ("not initialised", r"(float \w+(?:\[\w+\])*) = (?:0\.f|\{\});", r"\1;"),
    ("0 becomes 1", r"\b0\.f\b", "1.f"),
    ("index + 1", r"\[(?!&)([^\[\]]+)\]", r"[\1 + 1]"),
    ("index - 1", r"\[(?!&)([^\[\]]+)\]", r"[\1 - 1]"),
    ("subscripts swapped", r"\[([^\[\]]+)\]\[([^\[\]]+)\]", r"[\2][\1]"),
    ("bound weakened", r" < ", " <= "),
    ("bound weakened", r" > ", " >= "),
    ("bound strengthened", r" <= ", " < "),
    ("bound strengthened", r" >= ", " > "),
    ("comparison inverted", r" == ", " != "),
    ("condition dropped", r" && ", " && true || false && "),  # A && true || false && B is A
    ("condition dropped", r" && ", " && false || "),
    ("condition dropped", r" \|\| ", " || false && "),
    ("condition dropped", r" \|\| ", " && false || "),
    ("loop start + 1", r"(for \([^;]*? = [^;,]+)", r"\1 + 1"),
    ("loop stop - 1", r"(for \([^;]*;[^;]* < [^;]+);", r"\1 - 1;"),
    ("loop stop + 1", r"(for \([^;]*;[^;]* > [^;]+);", r"\1 + 1;"),
    ("loop step + 1", r"(for \([^;]*;[^;]*;.*?)\+\+(\w+)", r"\1\2 += 2"),
    ("loop step + 1", r"(for \([^;]*;[^;]*; *\w+ [-+]= [^,)]+)", r"\1 + 1"),
    ("alpha dropped", r"alpha \* ", ""),
    ("beta dropped", r"beta \* ", ""),
    ("C read at beta == 0", r"beta == 0\.f \? [^:]* : ", ""),
    ("C read at beta == 0", r"beta != 0\.f", "true"),
    ("statement dropped", r"[\w.*\[\]]+ [-+*]?= [^{};]*;$", ";"),
    ("+ becomes -", r" \+ ", " - "),
    ("- becomes +", r" - ", " + "),
    ("/ becomes %", r" / ", " % "),
    ("% becomes /", r" % ", " / "),
    ("literal + 1", r"(?<![\w.#])(\d+)(?![\w.])", r"(\1 + 1)"),
)
_PTX: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("barrier dropped", r"bar\.sync\s+0;", ""),
    ("bound weakened", r"\bsetp\.lt\b", "setp.le"),
    ("bound weakened", r"\bsetp\.gt\b", "setp.ge"),
    ("bound strengthened", r"\bsetp\.le\b", "setp.lt"),
    ("bound strengthened", r"\bsetp\.ge\b", "setp.gt"),
    ("comparison inverted", r"\bsetp\.eq\b", "setp.ne"),
    ("condition dropped", r"@!?%\w+\s+(?!bra)", ""),
    ("index + 1", r"(\[%\w+)(?:\+(\d+))?\]", lambda m: f"{m[1]}+{int(m[2] or 0) + 4}]"),
    ("operands swapped", r"\b((?:sub|shl|shr)\.\w+\s+[^,]+), ([^,]+), ([^,;]+);", r"\1, \3, \2;"),
    ("statement dropped", r"^\s*(?:add|mul|mad|fma|mov|sub|shl|shr|and|or|selp|cvt)\.[^;]*;$", ""),
    ("literal + 1", r", (\d+);", lambda m: f", {int(m[1]) + 1};"),
)
_PARTNERS = {
    "cuda": (
        *("As/Bs", "A/B", "a4/b4", "lda/ldb", "ldb/ldc", "row/col", "M/N", "N/K", "tx/ty", "am/ak", "bk/bn"),
        *("now/next", "threadIdx.x/threadIdx.y", "blockIdx.x/blockIdx.y"),
    ),
    "ptx": (
        *("As/Bs", "%M/%N", "%N/%K", "%tx/%ty", "%row/%col", "%lda/%ldb", "%ldb/%ldc"),
        *("%alpha/%beta", "%ctaid.x/%ctaid.y"),
    ),
}
_LEFT_ALONE = re.compile(r'^\s*[#.":]|__shared__|__global__|\basm\b|matmul\(')  # text of an asm among it


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A kernel with one fault. `line` and `changed` are its line before and after, `source` the whole."""

    operator: str
    line: str
    changed: str
    source: str = field(repr=False)

    @property
    def key(self) -> str:
        """A digest that sorts mutants in no meaningful order, and is stable while this line of code is."""
        return hashlib.sha256(f"{self.line}\0{self.changed}".encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.operator}: {self.line}  ->  {self.changed}"


def mutants(kernel: Kernel) -> Iterator[Mutant]:
    """Yield every mutant of a kernel's text and of the headers that it includes."""
    lines = flat(kernel).split("\n")
    for number, whole in enumerate(lines):
        code = re.sub(r"\s*//.*", "", whole)
        if _LEFT_ALONE.search(code):
            continue
        changes = {
            changed: operator for operator, changed in _changes(code, kernel.language) if changed != code
        }
        for changed, operator in changes.items():
            text = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
            yield Mutant(operator=operator, line=code.strip(), changed=changed.strip(), source=text)


def _changes(code: str, language: str) -> Iterator[tuple[str, str]]:
    for operator, pattern, replacement in _CUDA if language == "cuda" else _PTX:
        for match in re.finditer(pattern, code):
            text = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
            yield operator, code[: match.start()] + text + code[match.end() :]
    for pair in _PARTNERS[language]:
        for name, other in (pair.split("/"), reversed(pair.split("/"))):
            for match in re.finditer(rf"(?<![\w.%]){re.escape(name)}(?!\w)", code):
                yield f"{pair} swapped", code[: match.start()] + other + code[match.end() :]


def flat(kernel: Kernel) -> str:
    """Return the source with its own headers in place of their #include, each once."""
    seen: set[str] = set()

    def inlined(text: str) -> str:
        return re.sub(r'#include "([^"]+)"', header, text)

    def header(match: re.Match[str]) -> str:
        if match[1] in seen:
            return ""
        seen.add(match[1])
        places = (folder / match[1] for folder in folders(kernel.path))
        return inlined(next(p for p in places if p.is_file()).read_text())

    return inlined(kernel.source).replace("#pragma once", "")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kernel as it is run here: its smallest tile, and shapes on which no part of it is idle."""

    variant: Variant
    points: tuple[Axes, ...]

    @staticmethod
    def of(kernel: Kernel) -> Subject:
        sets = [v for v in kernel.variants() if not any(v.params.get(name) for name in LAYOUT)]
        variant = min(sets, key=lambda v: (min(v.tile, default=4) < 4, math.prod(v.tile), v.threads))
        m, n = variant.tile[:2] if len(variant.tile) > 1 else (8, 8)  # one extent is of elements
        step = (
            variant.params.get("BK")
            or variant.params.get("TILE")
            or (32 if kernel.language == "ptx" else 128)
        )
        cls = resolve(kernel)
        if not issubclass(cls, Gemm):
            return Subject(variant=variant, points=tuple(cls.verify_axes))
        points = _points(m, n, step)
        if kernel.requires:  # those sizes that it takes, and more of them: whole tiles
            points += tuple({"M": m * i, "N": n * i, "K": 2 * step * i} for i in (1, 2))
            points += ({"M": m, "N": 2 * n, "K": 3 * step, "alpha": 0.75, "beta": 0.5},)
            full = {"alpha": 1.0, "beta": 0.0}
            points = tuple(p for p in points if not variant.unmet(full | _leading(p) | p))
        return Subject(variant=variant, points=points)

    def built(self, source: str) -> Built | None:
        """Compile; return None where the source does not compile."""
        kernel = replace(self.variant.kernel, source=source)
        variant = replace(self.variant, kernel=kernel)
        try:
            if kernel.language == "cuda":
                ptx = compile_ptx.__wrapped__(source_text(variant), f"compute_{ARCH[3:]}")
            else:
                ptx = source
                link_ptx(ptx.encode("ascii", "replace"), ARCH, kernel.path, variant.label)
        except (BuildError, RuntimeError):
            return None
        return ptx_only(variant, ptx, arch=ARCH, entry=_entry(ptx, variant.kernel.entry))

    def data(self, axes: tuple[tuple[str, float], ...]) -> tuple[Problem, Any, Any]:
        """Return a problem with its inputs and their reference; those of the last sizes are kept."""
        problem = checks.instance(resolve(self.variant.kernel), dict(axes))
        return problem, *_data(problem)

    def run(self, built: Built, axes: Axes) -> Measurement:
        """Emulate one problem; raise HarnessError where the emulator cannot run it."""
        problem, inputs, reference = self.data(tuple(axes.items()))
        options = emulation.Options(count=False, budget=_BUDGET)
        row = emulation.row(built, problem, inputs, reference, options)
        if row.status == REFUSED or (row.status == ERROR and not any(text in row.error for text in _ENDLESS)):
            raise HarnessError(row.error)
        return row

    def fault(self, built: Built) -> str:
        """Return what is wrong in the first shape where something is; "" for nothing."""
        rows = (self.run(built, axes) for axes in self.points)
        return next((f"{row.problem.label}: {row.error}" for row in rows if row.status != OK), "")


def _entry(ptx: str, name: str) -> str:
    """Return the name that an entry has in PTX: mangled, unless the source says otherwise."""
    found: list[str] = re.findall(rf"\.entry\s+((?:_Z\d+)?{name}\b\w*|_Z\d+{name}\w*)", ptx)
    return found[0] if found else name


@functools.lru_cache(maxsize=32)
def _data(problem: Problem) -> tuple[Any, Any]:
    return checks.data(problem, 1)


def _leading(point: Axes) -> dict[str, float]:
    """Return the leading dimensions of a point that names none."""
    return {"lda": point["K"], "ldb": point["N"], "ldc": point["N"]}


def _points(m: int, n: int, step: int) -> tuple[Axes, ...]:
    """Three steps of k and two blocks or more in most; tiles that are whole, and cut in each quarter of m and
    of `step`; N and K of every remainder by 4, and each leading dimension in turn one without float4.
    """
    whole = {"M": m, "N": n, "K": 3 * step}
    a, k = m // 4, step // 4

    def odd(least: int) -> int:
        return least + (5 - least) % 10  # a multiple of 5 too

    points: tuple[Axes, ...] = (
        {
            "M": m + 5,
            "N": 2 * n + 3,
            "K": 3 * step + 5,
            "lda": 3 * step + 9,
            "ldb": 2 * n + 6,
            "ldc": 2 * n + 4,
        }
        | {"beta": 0.5},
        {"M": 2 * m, "N": 2 * n, "K": 4 * step, "lda": 4 * step + 4, "ldb": 2 * n + 8, "ldc": 2 * n + 12},
        {"M": m + a + 4, "N": n + 2, "K": 2 * step + k + 1, "ldc": n + 4},
        {"M": 2 * n + 2 * a + 4, "N": n + 4, "K": 8 * step},
        {"M": m + 4, "N": 2 * n, "K": 3 * step + 2 * k + 4},
        {"M": m + 4, "N": 2 * n, "K": 3 * step},
        {"M": m, "N": n, "K": 3 * step + 3 * k + 3, "lda": 4 * step + 4, "beta": 1.0},
        {**whole, "K": 3 * step - 4, "lda": odd(3 * step)},
        {**whole, "ldb": odd(n)},
        {**whole, "ldc": odd(n), "beta": 0.25},
        {**whole, "lda": odd(3 * step), "ldb": odd(n), "ldc": odd(n)},
        {"M": 3 * a + 4, "N": n + 1, "K": step + 2},
        {"M": 2, "N": 3, "K": 3 * step + 1, "beta": 2.0},
        {"M": 1, "N": 1, "K": 1},
    )
    return tuple({"alpha": 0.75} | axes for axes in points)


@dataclass
class Tally:
    """The fates of one kernel's mutants."""

    tried: int = 0
    uncompiled: int = 0
    identical: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    survivors: list[Mutant] = field(default_factory=list)


def hunt(subject: Subject, chosen: Sequence[Mutant]) -> Tally:
    """Compile and run each; the original itself must be right. Equal code is run once."""
    original = subject.built(flat(subject.variant.kernel))
    if original is None or (fault := subject.fault(original)):
        raise AssertionError(
            f"{subject.variant.label} itself: {'does not compile' if original is None else fault}"
        )
    right, verdicts = _code(original), dict[str, str]()
    tally = Tally(tried=len(chosen))
    for mutant in chosen:
        built = subject.built(mutant.source)
        if built is None:
            tally.uncompiled += 1
            continue
        code = _code(built)
        if code == right:
            tally.identical += 1
            continue
        if code not in verdicts:
            try:
                verdicts[code] = subject.fault(built)
            except HarnessError as e:
                raise AssertionError(f"{subject.variant.label}, {mutant}: {e}") from e
        if verdicts[code]:
            tally.killed[mutant.operator] += 1
        else:
            tally.survivors.append(mutant)
    return tally


def _code(built: Built) -> str:
    """Return a digest of the PTX without its debug information."""
    text = re.sub(
        r"^\s*\.(?:loc|file)\b.*|\.section\b[^{]*\{[^}]*\}", "", built.cubin.ptx, flags=re.MULTILINE
    )
    return hashlib.sha256(text.encode()).hexdigest()


def drawn(kernel: Kernel, count: int, seed: int) -> list[Mutant]:
    """Return `count` of the mutants of a kernel, of as many operators as can be, as the seed has it."""
    dice = random.Random(f"{seed} {kernel.name}")
    every = list(mutants(kernel))
    dice.shuffle(every)
    seen: Counter[str] = Counter()
    ranks = []
    for mutant in every:
        ranks.append(seen[mutant.operator])
        seen[mutant.operator] += 1
    return [every[i] for i in sorted(range(len(every)), key=lambda i: ranks[i])[:count]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--each", type=int, help="mutants of each kernel")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    named = [k for name in options.kernels for k in ([load(name)] if "." in name else catalog.find(name))]
    sums: Counter[str] = Counter()
    for kernel in named or catalog.ladder():
        if kernel.broken:
            continue
        start = time.perf_counter()
        chosen = drawn(kernel, options.each, options.seed) if options.each else list(mutants(kernel))
        try:
            tally = hunt(Subject.of(kernel), chosen)
        except (AssertionError, HarnessError) as error:
            print(f"{kernel.name}: {str(error).splitlines()[0]}", flush=True)
            continue
        killed, seconds = tally.killed.total(), time.perf_counter() - start
        run = killed + len(tally.survivors)
        sums += Counter(killed=killed, run=run)
        print(
            f"{kernel.name}: {tally.tried} mutants, {tally.uncompiled} do not compile, {tally.identical} "
            f"give the same PTX, {killed} of {run} killed ({killed / max(1, run):.1%}), {seconds:.0f} s",
            flush=True,
        )
        for mutant in tally.survivors:
            print(f"    {mutant}", flush=True)
    print(f"seed {options.seed}: {sums['killed']} of {sums['run']} killed")


if __name__ == "__main__":
    main()
