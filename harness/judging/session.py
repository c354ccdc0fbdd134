"""Judge one submission: the parent, which reads lines that children wrote, and never runs what it judges."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, Interrupted, SpecError, UsageError
from harness.judging import submission
from harness.judging.submission import Submission
from harness.judging.verdict import (
    CHECKS,
    EMULATOR,
    FAILED,
    GPU,
    SKIPPED,
    STATIC,
    Check,
    Timed,
    Verdict,
)
from harness.judging.worker import EMULATE, PREPARE, RUN, Request
from harness.kernels import catalog
from harness.kernels.dtypes import DTYPES
from harness.problems import checks as problem_checks
from harness.problems.gemm import GEMMS
from harness.problems.registry import BUILTIN
from harness.results.record import provenance
from harness.support import signals, tools
from harness.support.children import Ended, watch

REGIMES = ("cold", "hot", "graph")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The resources that a submission may take.

    `emulator` and `trials` are seconds for launches in the emulator and on the GPU before the timing, and
    `alone` is in place of `emulator` where there is no GPU;
    `compiling` and `quiet` are seconds without any progress after which a child is killed; `memory` is in
    bytes of host memory for each child, `written` in bytes for each file that it writes.
    """

    emulator: float = 8.0
    alone: float = 30.0
    trials: float = 4.0
    compiling: float = 60.0
    quiet: float = 20.0
    memory: int = 8 << 30
    written: int = 64 << 20


def judge(
    kernel: str | os.PathLike[str],
    *,
    problem: str = "gemm",
    dtype: str = "fp32",
    ref: str | os.PathLike[str] | None = None,
    axes: Sequence[Mapping[str, int | float]] = (),
    regime: str = "cold",
    device: str | None = None,
    seed: int | None = None,
    params: Mapping[str, int] | None = None,
    allow: Collection[str] = (),
    limits: Limits = Limits(),
) -> Verdict:
    """Judge the kernel file `kernel`, which need not be trusted, and return the verdict.

    problem, dtype: what it has to compute; a file that computes something else is rejected
    ref: the kernel, by name or path, that it is timed against; cuBLAS where it is None
    axes: the sizes to time at, by default two of the problem's own
    regime: ``cold``, ``hot`` or ``graph``, as in ``harness bench``
    device: a GPU by number or UUID, or ``emulator``; the first GPU by default, and the emulator without one
    seed: draws sizes and data; by default a new one, which the verdict has
    allow: static checks (`harness.judging.policy`) that only warn

    Nothing that the kernel does raises: a crash, a hang or a fault is a verdict. Raises UsageError for a
    request that makes no sense, such as a file that is not there, and HarnessError where the machine lacks
    something that judging needs.
    """
    began = time.monotonic()
    request = _request(problem, dtype, ref, axes, regime, device, seed, params, allow, limits)
    path = Path(kernel)
    verdict = Verdict(
        kernel=path.stem,
        sha256="",
        problem=problem,
        dtype=dtype if problem == "gemm" else "",
        seed=request.seed,
        checks=(),
        about=provenance(seed=request.seed),
    )
    try:
        sealed = submission.read(path)
    except SpecError as e:
        verdict = replace(
            verdict, checks=(Check(name="sealed", where=STATIC, outcome=FAILED, reason=str(e)),)
        )
    else:
        with _Judging(request, limits, sealed) as judging:
            verdict = judging.verdict(replace(verdict, sha256=sealed.sha256))
    return replace(verdict, seconds=round(time.monotonic() - began, 2))


def _request(
    problem: str,
    dtype: str,
    ref: Any,
    axes: Any,
    regime: str,
    device: Any,
    seed: Any,
    params: Any,
    allow: Any,
    limits: Limits,
) -> Request:
    """Return the request for the children. Raises UsageError for one that makes no sense."""
    if problem not in BUILTIN:
        raise UsageError(
            f"no problem {problem!r} to judge by",
            hint=f"there are {', '.join(BUILTIN)}; problems of your own: `harness check`",
        )
    if dtype not in DTYPES:
        raise UsageError(f"no element type {dtype!r}", hint=f"there are {', '.join(DTYPES)}")
    if regime not in REGIMES:
        raise UsageError(f"no regime {regime!r}", hint=f"there are {', '.join(REGIMES)}")
    if unknown := sorted(set(allow) - {n for n, (where, _) in CHECKS.items() if where == (STATIC,)}):
        raise UsageError(f"cannot allow {unknown[0]!r}", hint="only the static checks, such as 'clocks'")
    cls = GEMMS[dtype] if problem == "gemm" else BUILTIN[problem]
    for point in axes:
        problem_checks.instance(cls, point)
    reference = str(catalog.kernel(os.fspath(ref)).path.absolute()) if ref else ""
    return Request(
        task=PREPARE,
        kernel="",
        cache="",
        out="",
        problem=problem,
        dtype=dtype,
        seed=secrets.randbits(31) if seed is None else seed,
        params=dict(params or {}),
        device=device,
        axes=[dict(point) for point in axes],
        regime=regime,
        ref=reference,
        allow=list(allow),
        memory=limits.memory,
        written=limits.written,
    )


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The output of a child: the contents of its lines by kind, and how it ended."""

    lines: Sequence[tuple[str, Any]]
    ended: Ended

    def all(self, kind: str) -> list[Any]:
        return [content for what, content in self.lines if what == kind]

    @property
    def checks(self) -> list[Check]:
        return [Check(**content) for content in self.all("check")]

    @property
    def about(self) -> dict[str, Any]:
        return {key: value for content in self.all("about") for key, value in content.items()}

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The steps that it began, in order: a "step" launches the kernel, an "own" one does not."""
        return [(what, content) for what, content in self.lines if what in ("step", "own")]

    @property
    def died(self) -> str:
        """The reason that it did not do its task to the end; empty if it did."""
        if self.all("done"):
            return ""
        if errors := self.all("error"):
            return str(errors[0])
        at = f" at: {self.steps[-1][1]}" if self.steps else ""
        said = [line for line in self.ended.said.splitlines() if line.strip()][-1:]
        return f"{self.ended.why or f'its process ended with code {self.ended.code}'}{at}" + (
            f" ({said[0]})" if said and not self.ended.why else ""
        )

    def is_fault(self, where: str) -> bool:
        """Return True if the kernel is to blame for its death, for one that an error did not end.

        One that is slow in the emulator or in a step of its own, or that fails by itself, does not blame it.
        """
        own = bool(self.steps) and self.steps[-1][0] == "own"
        return self.ended.code < 0 and not (self.ended.hung and (own or where == EMULATOR))


class _Judging:
    """The private folder of a submission, and the children that work in it."""

    def __init__(self, request: Request, limits: Limits, sealed: Submission) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="harness-judge-")
        self._stop = threading.Event()
        self._limits = limits
        root = Path(self._folder.name)
        (root / "kernel").mkdir()
        self._request = replace(request, kernel=str(sealed.copy(root / "kernel")), cache=str(root / "cache"))

    def __enter__(self) -> _Judging:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._folder.cleanup()

    def verdict(self, begun: Verdict) -> Verdict:
        """Return the verdict `begun` with what the children find."""
        prepared = self._child(self._request, self._limits.compiling)
        checks, about = prepared.checks, {**begun.about, **prepared.about}
        if prepared.died:
            if prepared.all("error"):
                raise HarnessError(prepared.died)
            name = "compiles" if any(c.name == "sealed" for c in checks) else "sealed"
            checks.append(Check(name=name, where=STATIC, outcome=FAILED, reason=prepared.died))
        requires = tuple(about.pop("requires", ()))
        begun = replace(
            begun,
            checks=tuple(checks),
            about=about,
            requires=requires,
            kernel=about.pop("label", begun.kernel),
        )
        if any(c.outcome == FAILED and c.name in ("sealed", "compiles") for c in checks):
            return begun
        return self._launched(begun)

    def _launched(self, begun: Verdict) -> Verdict:
        """Return the verdict with the trials in the emulator, and meanwhile on the GPU if there is one."""
        there = replace(self._request, arch=str(begun.about["arch"]))
        tasks = {EMULATOR: replace(there, task=EMULATE, seconds=self._limits.alone)}
        if begun.about.get("gpu"):
            tasks = {EMULATOR: replace(there, task=EMULATE, seconds=self._limits.emulator)}
            uuid = begun.about["gpu"]["uuid"]
            tasks[GPU] = replace(there, task=RUN, seconds=self._limits.trials, device=uuid)
        with ThreadPoolExecutor(len(tasks)) as pool:
            futures = {
                where: pool.submit(self._child, task, self._limits.quiet) for where, task in tasks.items()
            }
            try:
                told = {where: signals.awaited(future) for where, future in futures.items()}
            except BaseException:
                self._stop.set()
                raise
        checks = [*begun.checks]
        for where, one in told.items():
            checks += self._made(where, one)
        if GPU not in told:
            why = str(begun.about.get("no_gpu", ""))
            checks += [Check(name=n, where=GPU, outcome=SKIPPED, reason=why) for n in _of(GPU)]
        return replace(
            begun,
            checks=tuple(checks),
            times=tuple(
                Timed(
                    **{**t, "protections": tuple(t["protections"]), "ratio": t["ratio"] and tuple(t["ratio"])}
                )
                for t in told[GPU].all("timed")
            )
            if GPU in told
            else (),
            shapes=tuple(
                dict.fromkeys(s for one in told.values() for listed in one.all("shapes") for s in listed)
            ),
        )

    def _made(self, where: str, told: _Told) -> list[Check]:
        """Return a child's checks, with those that it did not come to."""
        checks, died = told.checks, told.died
        if died and not told.all("error"):
            outcome = FAILED if told.is_fault(where) else SKIPPED
            checks = [c for c in checks if c.name != "ends"]
            checks.append(Check(name="ends", where=where, outcome=outcome, reason=died))
        have = {c.name for c in checks}
        missing = died or "not come to"
        checks += [
            Check(name=n, where=where, outcome=SKIPPED, reason=missing) for n in _of(where) if n not in have
        ]
        order = list(CHECKS)
        return sorted(checks, key=lambda c: order.index(c.name))

    def _child(self, request: Request, quiet: float) -> _Told:
        """Run one child to its end, and return what it told.

        -P keeps the working directory, which may be the submission's, off the path of Python's modules.
        """
        out = Path(self._folder.name, f"{request.task}.jsonl")
        out.touch()
        order = Path(self._folder.name, f"{request.task}.json")
        order.write_text(json.dumps(asdict(replace(request, out=str(out)))))
        ended = watch(
            [sys.executable, "-P", "-m", "harness.judging.worker", str(order)],
            quiet,
            env=tools.environment(),
            captured=True,
            progress=lambda: out.stat().st_size,
            memory=request.memory,
            stop=self._stop.is_set,
        )
        if ended.interrupted:
            raise Interrupted("interrupted", signals.exit_code())
        text = out.read_text(errors="replace")
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return _Told(lines=[(kind, content) for kind, content in lines], ended=ended)


def _of(where: str) -> tuple[str, ...]:
    """Return the names of the checks that are made in a place."""
    return tuple(name for name, (places, _) in CHECKS.items() if where in places)
