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
_HARMLESS = {str(0x12F0 << 48), str(0x1000 << 48), "0x12F0000000000000", "0x1000000000000000"}
RULES = (
    _rule(
        "clocks",
        FAILED,
        r"%(?:globaltimer(?:_lo|_hi)?|clock(?:64|_hi)?|gridid|current_graph_exec|pm\d+(?:_64)?)\b",
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
    _rule("odd instructions", WARNING, r"\bdiscard\.(?:global\.)?L2\b", "has {}"),
    _rule("odd instructions", WARNING, r"%(?:n?smid|n?warpid|total_smem_size|envreg\d+)\b", "reads {}"),
)
_LINE = re.compile(
    r"^\s*\.loc\s+\d+\s+(\d+)(?:\s+\d+)?(?:\s*,\s*function_name\s+[^,;%]*,\s*inlined_at(?:\s+\d+){3})?"
)
_COMMENT = re.compile(r'("[^"\n]*")|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)  # the first to begin hides others
_JOINED = re.compile(r"(?<=,)\s*\n|\n\s*(?=[%\[\],])")
_GLOBAL = re.compile(
    r"^\s*(?:\.visible\s+|\.extern\s+|\.weak\s+)?\.global\s[^;=]*?([\w$]+)\s*(?:\[[^;]*)?(?:=|;)"
)
_WRITES = re.compile(r"\b(?:st|atom|red)\.[\w.:]*\s.*?\[([^\]]+)\]")
_DEFINES = re.compile(r"^\s*(?:@\S+\s+)?[\w.:]+\s+(%\w+)\s*,(.*)")
_WORDS = re.compile(r"[%$\w]+")
_LABEL = re.compile(r"^\s*([$\w]+):")
_BRANCH = re.compile(r"^\s*(?:@\S+\s+)?bra(?:\.uni)?\s+([$\w]+)")
_WATCHES = re.compile(r"\b(?:ld\.(?:volatile|relaxed|acquire)|atom)\.(?!\S*(?:local|shared))\S+")
_HINTED = re.compile(r"\.L2::cache_hint\b.*[,\s]([%\w]+)\s*$")
_MADE = re.compile(r"^\s*(?:@\S+\s+)?(createpolicy|mov|selp)\.")
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
    for register in _policies(ptx):
        found.setdefault("L2 persistence", []).append(
            (FAILED, f"has the policy {register}, which may be any")
        )
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
    """Yield the lines of the PTX without comments; a line may hold several statements of inline asm, and a
    statement that goes on in another line is joined.
    """
    for raw in _JOINED.sub(" ", _COMMENT.sub(lambda found: found[1] or " ", ptx)).splitlines():
        at = _LINE.match(raw)
        if at:
            yield at[0]
        yield from raw[at.end() if at else 0 :].split(";")


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


def _policies(ptx: str) -> list[str]:
    """Return policies of L2 that are neither made by `createpolicy` nor the numbers of harmless ones.

    These may be moved, and chosen among several; what is computed may be any policy.
    """
    statements = list(_statements(ptx))
    hinted = dict.fromkeys(m[1] for m in map(_HINTED.search, statements) if m)
    todo = [name for name in hinted if name not in _HARMLESS]
    if not todo:
        return []
    defines: dict[str, list[tuple[str, str]]] = {}
    for text in statements:
        if (defined := _DEFINES.match(text)) and not text.lstrip().startswith(("st.", "red.")):
            defines.setdefault(defined[1], []).append((text, defined[2]))
    seen, computed = set(todo), []
    while todo:
        register = todo.pop()
        made = [(_MADE.match(text), used) for text, used in defines.get(register, ())]
        if not made or any(how is None for how, _ in made):
            computed.append(register)
            continue
        moved = [used for how, used in made if how and how[1] != "createpolicy"]
        further = {name for used in moved for name in _WORDS.findall(used)[:2]} - seen
        seen |= further
        todo += (name for name in further if name.startswith("%"))
        computed += (name for name in further if not name.startswith("%") and name not in _HARMLESS)
    return computed


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
