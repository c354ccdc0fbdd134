"""Read the PTX of a submission for instructions that no matrix product needs, or that few do.

Rules that make a verdict are those for which no honest kernel has a use: a clock, lines of L2 that outlive
the launch, the device's heap. What an honest kernel may have (semaphores in variables of the module, waiting
for another block, the number of the SM) is a warning; whether it is honest, the launches themselves tell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from harness.judging.verdict import CHECKS, FAILED, PASSED, STATIC, WARNING, Check


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A pattern of a PTX statement, the check that it belongs to, its outcome, and why."""

    check: str
    outcome: str
    pattern: re.Pattern[str]
    why: str


def _rule(check: str, outcome: str, pattern: str, why: str) -> Rule:
    return Rule(check=check, outcome=outcome, pattern=re.compile(pattern), why=why)


# 0x14f0... is how CUTLASS writes the policy evict_last; a policy that is a number cannot be read otherwise.
_EVICT_LAST = 0x14F0000000000000
RULES = (
    _rule(
        "clocks",
        FAILED,
        r"%(?:globaltimer(?:_lo|_hi)?|clock(?:64|_hi)?|gridid|pm\d+(?:_64)?)\b",
        "reads {}: work that depends on it cannot be verified",
    ),
    _rule(
        "L2 persistence",
        FAILED,
        rf"L2::evict_last|\bapplypriority\b|\b{_EVICT_LAST}\b|\b0x14[fF]0{{13}}\b",
        "has {}: it asks L2 to keep lines beyond the launch",
    ),
    _rule(
        "device heap",
        FAILED,
        r"\b(?:malloc|free|cudaMalloc\w*|__cudaCDP\w*|cudaLaunchDevice\w*|cudaGetParameterBuffer\w*)\b",
        "calls {}: what it allocates or launches outlives it",
    ),
    _rule("waiting", WARNING, r"\bnanosleep\b", "has {}: it waits for time to pass"),
    _rule("odd instructions", WARNING, r"^\s*(?:@\S+\s+)?(?:trap|brkpt|pmevent)\b", "has {}"),
    _rule("odd instructions", WARNING, r"\bvprintf\b", "prints ({})"),
    _rule("odd instructions", WARNING, r"\bprefetchu?\.|\bcp\.async\.bulk\.prefetch\b", "has {}"),
    _rule("odd instructions", WARNING, r"%(?:smid|nsmid|envreg\d+)\b", "reads {}"),
)
_LINE = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)")
_GLOBAL = re.compile(
    r"^\s*(?:\.visible\s+|\.extern\s+|\.weak\s+)?\.global\s[^;=]*?([\w$]+)\s*(?:\[[^;]*)?(?:=|;)"
)
_WRITES = re.compile(r"\b(?:st|atom|red)\.[\w.:]*\s.*?\[([^\]]+)\]")
_DEFINES = re.compile(r"^\s*(?:@\S+\s+)?[\w.:]+\s+(%\w+)\s*,(.*)")
_WORDS = re.compile(r"[%$\w]+")
_LABEL = re.compile(r"^\s*([$\w]+):")
_BRANCH = re.compile(r"^\s*(?:@\S+\s+)?bra(?:\.uni)?\s+([$\w]+)")
_WATCHES = re.compile(r"\b(?:ld\.(?:volatile|relaxed|acquire)|atom)\.(?!\S*(?:local|shared))\S+")
_SPIN = 24  # statements of a loop that does little but look at memory


def check(ptx: str, allowed: Collection[str] = ()) -> Iterator[Check]:
    """Yield the outcome of each static check on the PTX of a kernel.

    `allowed` names checks whose failures count as warnings.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    number = 0
    for text in _statements(ptx):
        if at := _LINE.match(text):
            number = int(at[1])
            continue
        for rule in RULES:
            if hit := rule.pattern.search(text):
                where = f", line {number}" if number else ""
                what = rule.why.format(" ".join(hit[0].split()))
                found.setdefault(rule.check, []).append((rule.outcome, f"{what}{where}"))
    for name in _written(ptx):
        found.setdefault("state", []).append((WARNING, f"writes {name}, a variable of the module"))
    for loop in _spins(ptx):
        found.setdefault("waiting", []).append((WARNING, f"spins on {loop}"))
    for name in (name for name, (places, _) in CHECKS.items() if name in _OURS and STATIC in places):
        outcomes = [o for o, _ in found.get(name, ())]
        outcome = FAILED if FAILED in outcomes else WARNING if outcomes else PASSED
        if name in allowed and outcome == FAILED:
            outcome = WARNING
        said = list(dict.fromkeys(why for _, why in found.get(name, ())))
        yield Check(name=name, where=STATIC, outcome=outcome, reason="; ".join(said[:3]))


_OURS = frozenset(rule.check for rule in RULES) | {"state"}


def _statements(ptx: str) -> Iterator[str]:
    """Yield the lines of the PTX without comments; a line may hold several statements of inline asm."""
    for raw in re.sub(r"/\*.*?\*/", " ", ptx, flags=re.DOTALL).splitlines():
        yield from raw.partition("//")[0].split(";") if ".loc" not in raw else [raw]


def _written(ptx: str) -> list[str]:
    """Return the variables of the module that the kernel may write, in the order of declaration.

    Registers that are computed from a variable's address are followed without regard to the order of
    statements, so that an address that is passed through a loop is found, too.
    """
    names = [m[1] for m in map(_GLOBAL.match, ptx.splitlines()) if m]
    if not names:
        return []
    statements = list(_statements(ptx))
    defines = [(m[1], set(_WORDS.findall(m[2]))) for m in map(_DEFINES.match, statements) if m]
    written = []
    for name in names:
        tainted = {name}
        while more := {register for register, used in defines if used & tainted} - tainted:
            tainted |= more
        targets = (m[1] for m in map(_WRITES.search, statements) if m)
        if any(tainted & set(_WORDS.findall(target)) for target in targets):
            written.append(name)
    return written


def _spins(ptx: str) -> list[str]:
    """Return the loads and atomics in short loops that look at global memory again and again."""
    statements = [s for s in _statements(ptx) if s.strip() and not _LINE.match(s)]
    labels = {m[1]: i for i, m in enumerate(map(_LABEL.match, statements)) if m}
    found = dict[str, None]()
    for i, text in enumerate(statements):
        jump = _BRANCH.match(text)
        start = labels.get(jump[1], i) if jump else i
        if start < i <= start + _SPIN:
            body = statements[start:i]
            found |= dict.fromkeys(m[0].split()[0] for m in map(_WATCHES.search, body) if m)
    return list(found)
