"""Show what a kernel does by objects that it is given and calls, ``f(i)``: its body, and theirs behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.kernels import text
from harness.kernels.cpp.host.frames import Frame, host
from harness.kernels.cpp.host.launches import Launch

_OPERATOR = re.compile(r"\boperator\s*\(\s*\)\s*(\()")
_BODY = re.compile(r"\)\s*(?:const\b\s*|noexcept\b\s*)*(?:->\s*[\w:<>\s*]+?\s*)?(\{)")
_MADE = re.compile(r"[A-Za-z_][\w:]*\s*(?:<[^;{}]*>)?\s*\{(.*)\}\s*", re.DOTALL)
_WORD = re.compile(r"(?<![\w.>:])[A-Za-z_]\w*")


def unpacked(entry: text.Entry, instance: str) -> text.Entry:
    """Return an instance of a template whose last parameter is a pack, with a parameter for each argument."""
    if not entry.template or "..." not in entry.template[-1] or not entry.parameters:
        return entry
    given = text.split(instance.partition("<")[2].rpartition(">")[0])[len(entry.template) - 1 :]
    *first, last = entry.parameters
    if "..." not in last.type:
        return entry
    kinds = [last.type.replace("...", "").strip()] * len(given)
    name = entry.template[-1].split()[-1]
    own = [
        replace(last, name=f"{last.name}_{n}", type=re.sub(rf"\b{name}\b", kind, declared))
        for n, (kind, declared) in enumerate(zip(given, kinds, strict=True))
    ]
    names = ", ".join(p.name for p in own)
    body = re.sub(rf"\b{last.name}\s*\.\.\.", names, entry.body)
    return replace(entry, parameters=(*first, *own), body=body)


def shown(entry: text.Entry, texts: Sequence[str], types: Mapping[str, str]) -> text.Entry:
    """Return a kernel whose body has those of objects among its parameters behind it, where it calls them.

    Their members are called ``f.x`` there, and their parameters what they are given. types: the template
    arguments of the kernel
    """
    more = "".join(
        part
        for p in entry.parameters
        if not p.pointer
        for part in _bodies(entry.body, p.name, types.get(p.type, p.type), texts)
    )
    if not more or not entry.body.endswith("}"):
        return replace(entry, body=entry.body + more) if more else entry
    return replace(entry, body=entry.body[:-1] + more + "}")


def tied(source: str, entry: text.Entry, launched: Launch | None) -> dict[str, list[str | int | None]]:
    """Return what members of objects by value are given in host code, by parameter and in their order.

    That is the name of another parameter that is given the same, or a number; None where it is neither.
    """
    found = dict[str, list[str | int | None]]()
    if launched is None:
        return found
    code = host(source)
    frame = code.frames(code.place(launched.line))[0]
    arguments = list(zip(entry.parameters, launched.arguments, strict=False))
    for p, argument in arguments:
        meant, there = frame.meant(argument) if not p.pointer else ("", frame)
        if made := _MADE.fullmatch(meant):
            same = {written: q.name for q, a in arguments if (written := _outer(frame, there, a))}
            values = text.split(made[1])
            found[p.name] = [same.get(v.strip()) or there.number(v) for v in values]
    return found


def _outer(frame: Frame, there: Frame, argument: str) -> str:
    """Return what an argument is in the frame of a caller; "" where that is not known."""
    if there is frame:
        return argument
    written, outer = frame.passed(argument)
    return written.strip() if outer is there else ""


def _bodies(body: str, name: str, kind: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield the body of a class's operator for the calls of an object."""
    base = kind.partition("<")[0].rpartition("::")[2].strip()
    if not re.fullmatch(r"[A-Za-z_]\w*", base) or not re.search(rf"\b{name}\s*\(", body):
        return
    for one in texts:
        for at in re.finditer(rf"\b(?:struct|class)\s+{base}\b[^;{{}}()]*\{{", one):
            whole = one[at.end() - 1 : text.closing(one, at.end() - 1) + 1]
            if found := _OPERATOR.search(whole):
                yield from _called(body, name, whole, found)
                return


def _called(body: str, name: str, whole: str, operator: re.Match[str]) -> Iterator[str]:
    """Yield the text of an operator of a class, with what a call gives in place of its parameters."""
    closed = text.closing(whole, operator.start(1))
    opened = _BODY.match(whole, closed)
    if not opened or (end := text.closing(whole, opened.start(1))) < 0:
        return
    parameters = [text.parameter(p, "").name for p in text.split(whole[operator.end() : closed])]
    members = {*_WORD.findall(re.sub(r"\([^;]*", "", whole[1 : operator.start()]))} - {*parameters}
    call = re.search(rf"\b{name}\s*(\()", body)
    given = text.split(body[call.end() : text.closing(body, call.start(1))]) if call else []
    passed = dict(zip(parameters, given, strict=False)) if len(given) == len(parameters) else {}

    def meant(word: re.Match[str]) -> str:
        return passed.get(word[0]) or (f"{name}.{word[0]}" if word[0] in members else word[0])

    inner = whole[opened.start(1) : end + 1]
    yield f" {_WORD.sub(meant, inner)} "
