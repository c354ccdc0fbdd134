"""Every exploit is rejected by the check that its class needs, and no honest kernel is: in the emulator."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.judging import policy, submission
from harness.judging.machines import Emulated
from harness.judging.trials import Trials
from harness.judging.verdict import EMULATOR, FAILED, PASSED, STATIC, WARNING, Check
from harness.kernels import arch, spec
from harness.kernels.spec import Variant
from harness.launch.builds import build_all
from harness.problems.registry import resolve
from harness.support.cache import Cache
from shared.corpus import DATA, EXPLOITS, HONEST, Exploit, checks_table, table
from shared.places import ROOT

QUICK = {"half_k"}


def judged(variant: Variant, cache: Cache, *, seed: int = 5, seconds: float = 900) -> list[Check]:
    """Return the static checks and those of the emulator."""
    target = arch.DEFAULT if variant.kernel.fits(arch.DEFAULT) else variant.kernel.min_arch
    (built,), _ = build_all([variant], [target], cache, lambda _: None)
    until = time.monotonic() + seconds
    trials = Trials(Emulated(built), variant, resolve(variant.kernel), seed, until)
    return [*policy.check(built.cubin.ptx), *trials.run()]


def marked(exploit: Exploit) -> object:
    quick = exploit.name in QUICK or exploit.static
    return pytest.param(exploit, id=exploit.name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("exploit", [marked(e) for e in EXPLOITS])
def test_an_exploit_is_rejected_by_its_check(exploit: Exploit, cache: Cache) -> None:
    variant = spec.load(exploit.path).variant()
    if exploit.static:
        (built,), _ = build_all([variant], [arch.DEFAULT], cache, lambda _: None)
        found = list(policy.check(built.cubin.ptx))
    else:
        found = judged(variant, cache)
    failed = {(c.name, c.where): c.reason for c in found if c.outcome == FAILED}
    expected = {(check, where) for where, check in exploit.checks.items() if where in (STATIC, EMULATOR)}
    assert expected <= failed.keys()
    assert all(len(failed[key]) > 20 for key in expected), "the reason says why"


def test_the_corpus_is_complete() -> None:
    assert {e.path for e in EXPLOITS} == set((DATA / "exploits").glob("*.cu"))
    assert len({e.kind for e in EXPLOITS}) >= 18
    assert len(HONEST) >= 40


def test_every_behaviour_check_rejects_something() -> None:
    """A check that nothing fails might be one that cannot fail."""
    rejecting = {check for e in EXPLOITS for check in e.checks.values()}
    assert rejecting >= {
        "clocks", "L2 persistence", "device heap", "drawn shapes", "values", "spoilt output", "fresh data",
        "near copies", "own output", "launch count", "inputs intact", "stray writes", "races and memory",
        "dead matrix code", "ends",
    }  # fmt: skip


def variants(path: Path) -> list[Variant]:
    return [v for kernel in spec.load(path).each_dtype() for v in _some(kernel)]


def _some(kernel: spec.Kernel) -> list[Variant]:
    """Return the default, and each other value of each parameter beside the defaults."""
    others = [(name, value) for name, values in kernel.params.items() for value in values[1:]]
    return [kernel.variant(), *(kernel.variant(**{name: value}) for name, value in others)]


def sampled(path: Path) -> list[object]:
    quick = path.stem == "tiled"
    return [
        pytest.param(v, id=v.brief, marks=() if quick and v == variants(path)[0] else pytest.mark.exhaustive)
        for v in variants(path)
    ]


@pytest.mark.parametrize("variant", [case for path in HONEST for case in sampled(path)])
def test_an_honest_kernel_is_not_rejected(variant: Variant, cache: Cache) -> None:
    found = judged(variant, cache)
    assert [c for c in found if c.outcome == FAILED] == []
    made = {c.name for c in found if c.outcome in (PASSED, WARNING)}
    if variant.kernel.problem == "gemm":
        assert made >= {"drawn shapes", "fresh data", "values", "launch count"}


@pytest.mark.parametrize("path", [*HONEST, *(e.path for e in EXPLOITS)], ids=lambda p: p.stem)
def test_each_is_self_contained(path: Path) -> None:
    """The corpus may be passed on: it includes only what lies beside it, and harness's own headers."""
    assert path.name in submission.read(path).files


@pytest.mark.parametrize("wanted", [table(), checks_table()], ids=["exploits", "checks"])
def test_the_page_has_the_table(wanted: str) -> None:
    text = (ROOT / "docs" / "judge.md").read_text()
    assert wanted in text, f"put it into docs/judge.md:\n{wanted}"
