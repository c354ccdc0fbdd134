"""Joins the PTX of files that are compiled apart (``-rdc=true``), as a linker does their machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.errors import EmulatorError

_HEAD = re.compile(r"\s*(?:\.(?:version|target|address_size|file)\b|//|$)")
_FUNCTION = re.compile(r"\.(?:entry|func)\s*(?:\(.*?\)\s*)?([\w$]+)", re.DOTALL)
_VARIABLE = re.compile(r"([\w$]+)\s*(?:\[[^\]]*\]\s*)*(?:=|;)")
_OWN = re.compile(r"(?<![\w%$])(?:\$[\w$]+|__unnamed_\d+)")  # labels and texts, which every file has
_FILES = re.compile(r"(\.file\s+|\.loc\s+|inlined_at\s+)(\d+)")


def join(texts: Sequence[str]) -> str:
    """Return one module of several: declarations meet their definitions, and what is weak is there once.

    Raises EmulatorError for what two files define.
    """
    kept: list[str] = []
    defined: dict[str, bool] = {}  # whether it is weak
    declared: dict[str, str] = {}
    files = 0
    for number, text in enumerate(texts):
        apart, before = _OWN.sub(lambda m, n=number: f"{m[0]}_{n}", text), files  # type: ignore[misc]
        for match in re.finditer(r"^\s*\.file\s+(\d+)", text, re.MULTILINE):
            files = max(files, before + int(match[1]))
        apart = _FILES.sub(lambda m, n=before: f"{m[1]}{int(m[2]) + n}", apart)  # type: ignore[misc]
        for statement in _statements(apart):
            if _HEAD.match(statement):
                kept += [statement] if number == 0 or ".file" in statement else []
                continue
            name, weak = _name(statement), ".weak" in statement.partition("(")[0]
            if statement.lstrip().startswith(".extern"):
                declared.setdefault(name, statement)
            elif ".func" in statement and statement.rstrip().endswith(";"):
                kept.append(statement)  # of a function that is defined further on
            elif name not in defined:
                defined[name] = weak
                kept.append(statement)
            elif not (weak and defined[name]):
                raise EmulatorError(f"two files define {name}")
    missing = [one for name, one in declared.items() if name not in defined]
    return "\n".join(sorted([*missing, *kept], key=_rank)) + "\n"


def _rank(statement: str) -> int:
    """Return when a statement comes: heads, variables, functions, kernels, as each may use those before."""
    kinds = (_HEAD.match(statement), ".entry" not in statement and ".func" not in statement)
    return next((rank for rank, is_ in enumerate(kinds) if is_), 2 if ".func" in statement else 3)


def _statements(text: str) -> Iterator[str]:
    """Yield what stands at the top of a module, whole, in order."""
    depth, lines = 0, list[str]()
    for line in text.splitlines():
        if not lines and _HEAD.match(line):
            if line.strip():
                yield line
            continue
        lines.append(line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.rstrip().endswith((";", "}")):
            yield "\n".join(lines)
            lines = []


def _name(statement: str) -> str:
    """Return what a statement defines or declares; the statement itself if that has no name."""
    found = _FUNCTION.search(statement) or _VARIABLE.search(statement)
    return found[1] if found and not statement.lstrip().startswith(".section") else statement
