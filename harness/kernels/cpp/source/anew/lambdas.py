"""Write device lambdas of host code as what they are, classes with what they capture as members.

A kernel cannot be instantiated with a lambda of host code, which is left out. So behind the text stands,
under the line numbers of its own, ``struct lambda_7 { float a; __device__ auto operator()(int i) ... };``.
Host code is read as if it made one: ``lambda_7{a}``.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp.host import launches, values

_LAMBDA = re.compile(r"\[([^][(){};]*)\]\s*(?:__host__\s*)?__device__(?:\s*__host__)?\s*(\()")
_BODY = re.compile(r"\)\s*(?:mutable\b\s*)?(?:noexcept\b\s*)?(?:->\s*([\w:<>\s*]+?)\s*)?(\{)")
_WORD = re.compile(r"(?<![\w.>:])[A-Za-z_]\w*")
_MEMORY = re.compile(
    r"\.\s*(?:mutable_|const_)?data(?:_ptr)?\s*<\s*([\w:]+)\s*>|_cast\s*<\s*([\w:\s]+?)\s*\*\s*>"
)
_KEPT = 8


@dataclass(frozen=True, kw_only=True)
class Lambda:
    """A lambda from `begin` to `end` of a text, with the names that it captures and its class."""

    begin: int
    end: int
    name: str
    captured: tuple[str, ...]
    written: str


def with_classes(source: str) -> str:
    """Return a text with the classes of its device lambdas behind it."""
    return "\n".join([source, *(one.written for one in of(source))]) if "__device__" in source else source


def made(source: str) -> str:
    """Return a text in which host code makes objects of these classes in place of lambdas."""
    for one in reversed(of(source)):
        lines = "\n" * source.count("\n", one.begin, one.end)
        source = f"{source[: one.begin]}{one.name}{{{', '.join(one.captured)}}}{lines}{source[one.end :]}"
    return source


@functools.lru_cache(maxsize=_KEPT)
def of(source: str) -> tuple[Lambda, ...]:
    """Return the device lambdas of a text, those whose captures have types that are known."""
    return tuple(_found(source)) if "__device__" in source and _LAMBDA.search(source) else ()


def _found(source: str) -> Iterator[Lambda]:
    plain = text.blank(source)
    functions, types, done = values.bodies(plain), launches.given_types(plain), 0
    numbers = Counter[int]()
    for at in _LAMBDA.finditer(plain):
        closed = text.closing(plain, at.start(2))
        body = _BODY.match(plain, closed) if closed > 0 else None
        end = text.closing(plain, body.start(2)) + 1 if body else 0
        around = next((f for f in functions if f[1] < at.start() < f[2]), None)
        if not body or end <= 0 or at.start() < done or around is None:
            continue
        members = list(_captured(plain, at, around, plain[body.start(2) : end], types))
        if any(not declared for _, declared in members):
            continue
        line = plain.count("\n", 0, at.start()) + 1
        name, done = f"lambda_{line}" + "b" * numbers[line], end
        numbers[line] += 1
        given, generic = _generic(source[at.end() : closed])
        held = " ".join(f"{declared};" for _, declared in members)
        returned = (body[1] or "auto").strip()
        head = f"struct {name} {{ {held} {generic}__device__ {returned} operator()({given}) const "
        begin = plain.count("\n", 0, body.start(2)) + 1
        whole = head.replace("\n", " ") + source[body.start(2) : end] + " };"
        captured = tuple(name for name, _ in members)
        yield Lambda(
            begin=at.start(), end=end, name=name, captured=captured, written=f"#line {begin}\n{whole}"
        )


def _generic(parameters: str) -> tuple[str, str]:
    """Return parameters with names for types that are ``auto``, and what declares these."""
    names: list[str] = []

    def named(_: re.Match[str]) -> str:
        names.append(f"Auto{len(names)}")
        return names[-1]

    given = re.sub(r"\bauto\b", named, parameters)
    return given, f"template <{', '.join(f'class {name}' for name in names)}> " if names else ""


def _captured(
    plain: str,
    at: re.Match[str],
    around: tuple[int, int, int, tuple[str, ...]],
    body: str,
    types: dict[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield (name, declaration) of what a lambda captures; "" where its type is not known."""
    begin, opened, _, parameters = around
    listed = [part.strip("& ") for part in text.split(at[1])]
    own = {name for part in listed for name in re.findall(r"^\w+", part)}
    inside = dict.fromkeys(_WORD.findall(body))
    head = text.split(plain[begin + 1 : text.closing(plain, begin)])
    before = plain[opened : at.start()]
    everything = at[1].strip()[:1] in ("=", "&") and (at[1].strip() in ("=", "&") or "," in at[1])
    for name in inside:
        if not everything and name not in own:
            continue
        declared = next((p for p in head if re.search(rf"\b{name}\s*\Z", p.partition("=")[0])), "")
        if declared or name in parameters:
            yield name, _member(declared.partition("=")[0], types)
        elif found := _local(before, name):
            yield name, _member(found, types)
        elif name in own or re.search(rf"\bauto\b[^;{{}}]*\b{name}\s*[=({{]", before):
            yield name, ""


def _local(before: str, name: str) -> str:
    """Return how a function declares a variable last, ``const float* x``; "" for none."""
    kind = r"(?:const(?:expr)?\s+)?[A-Za-z_][\w:]*(?:\s*<[^;(){}]*>)?(?:\s+const)?[\s*]*"
    pattern = rf"(?:\A|[;{{}}(])\s*({kind})\b{name}\s*(?=[=;({{,\[])"
    found = [one for one in re.finditer(pattern, before) if one[1].strip() not in ("return", "else")]
    if not found:
        more = re.search(rf"[;{{}}]\s*((?:const\s+)?[\w:]+)\s+[^;{{}}]*,\s*(\**)\s*{name}\s*[;,=]", before)
        return f"{more[1]}{more[2]} {name}" if more else ""
    kind = found[-1][1].strip()
    if re.fullmatch(r"(?:const\s+)?auto\s*\*?", kind):
        value = values.value_at(before, before.find("=", found[-1].end()) + 1)
        memory = _MEMORY.search(value)
        kind = f"{memory[1] or memory[2]}*" if memory else ""
    return f"{kind} {name}" if kind else ""


def _member(declared: str, types: dict[str, str]) -> str:
    """Return a declaration as that of a member: without references, and with what template types mean."""
    plain = re.sub(r"&|\b(?:__restrict__|constexpr|register)\b", " ", declared)
    plain = re.sub(r"\bconst\b(?!.*\*)", " ", plain)
    plain = re.sub(r"[A-Za-z_]\w*", lambda word: types.get(word[0], word[0]), plain)
    return " ".join(plain.split()) if "[" not in plain and "auto" not in plain.split() else ""
