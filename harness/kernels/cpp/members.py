"""Read the members of structs in a text: numbers and pointers, without functions and constants."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.kernels import text

_HEAD = (  # the text before its name, and the structs that it is derived from
    r"\b(?:struct|class|union)\b((?:[^;{{}}()=<>:]|::)*(?:\(\s*\d+\s*\))?\s*\b{0})\s*(?:final\s*)?"
    r"(?::(?!:)\s*([^;{{}}()]+))?\{{"
)
_TYPEDEF = re.compile(  # the text before its members
    r"\btypedef\s+(?:struct|union)\b([^;{}()]*(?:\(\s*\d+\s*\))?[^;{}()]*)\{"
)
_TEMPLATE = re.compile(r"\btemplate\s*<([^;{}()]*)>\s*\Z")
_PACK = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+pack\s*\((?:\s*push\s*,)?\s*(\d*)", re.MULTILINE)
_ACCESS = re.compile(r"\s*(?:public|private|protected)\b")
ARRAY = "array_"  # the member of a type that is an array, which is no struct where it is passed
_NO_MEMBER = re.compile(r"(?:static|using|typedef|friend|template|enum)\b")
_LABEL = re.compile(r"\s*(?:(?:public|private|protected)\s*:(?!:)\s*)*")
_TYPE = re.compile(r"\s*(?:struct|class|union|enum)\b")
_NESTED = re.compile(r"\s*(struct|union)\b\s*(\w*)\s*\Z")
ANONYMOUS = "anonymous_"  # how names begin that types and members get which have none
_WIDEST = 16  # bytes of an alignment that no struct asks for
_INITIAL = re.compile(r"=\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)[fF]?\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Members:
    """A struct in a text: what stands before its brace, its members, and the numbers that some begin with.

    `bases` are the structs that it is derived from, and `template` has the parameters of a template with
    their defaults, or "". No member is aligned to more than `pack` bytes. `nested` are the texts of the types
    without a name among the members. Of a `union` all members lie at its beginning.
    """

    head: str
    declared: tuple[str, ...]
    given: dict[str, float]
    bases: tuple[str, ...] = ()
    template: tuple[tuple[str, str], ...] = ()
    pack: int = _WIDEST
    nested: tuple[str, ...] = ()
    union: bool = False

    def instance(self, arguments: Sequence[str]) -> Members | None:
        """Return the struct with template arguments in place of the parameters; None where one is missing."""
        given = [*arguments, *(default for _, default in self.template[len(arguments) :])]
        if len(given) != len(self.template) or not all(given):
            return None
        meant = dict(zip((name for name, _ in self.template), given, strict=True))
        declared, bases, nested = (
            tuple(re.sub(r"\w+", lambda word: meant.get(word[0], word[0]), part) for part in parts)
            for parts in (self.declared, self.bases, self.nested)
        )
        return replace(self, declared=declared, bases=bases, nested=nested, template=())


def of(name: str, texts: Sequence[str]) -> Members | None:
    """Return the members of a struct that one of `texts` defines; None where they are not known.

    So it is with those whose place is not that of numbers one after another: of virtual functions, and where
    one has an alignment of its own. A template that is specialised is not known, either. The only member of
    ``typedef int Four[4];`` is `ARRAY`.
    """
    if any(re.search(rf"\b(?:struct|class)\s+{name}\s*<[^;{{}}]*\{{", whole) for whole in texts):
        return None
    for whole in texts:
        if at := re.search(_HEAD.format(name), whole):
            closed = text.closing(whole, at.end() - 1)
            found = _read(at[0], at[1], whole[at.end() : closed]) if closed > 0 else None
            template = _TEMPLATE.search(whole[: at.start()])
            return found and replace(
                found,
                bases=tuple(_ACCESS.sub("", base).strip() for base in text.split(at[2] or "")),
                template=tuple(map(_parameter, text.split(template[1]))) if template else (),
                pack=_pack(whole[: at.start()]),
            )
        for old in _TYPEDEF.finditer(whole):
            closed = text.closing(whole, old.end() - 1)
            if closed > 0 and re.match(rf"\}}\s*{name}\s*;", whole[closed:]):
                found = _read(old[0].split(None, 1)[1], old[1], whole[old.end() : closed])
                return found and replace(found, pack=_pack(whole[: old.start()]))
        if array := re.search(rf"\btypedef\s+([\w:\s]+?)\s+{name}\s*((?:\[[^]]+\]\s*)+);", whole):
            return Members(head="", declared=(f"{array[1]} {ARRAY}{array[2]}",), given={})
    return None


def aliased(name: str, arguments: Sequence[str], texts: Sequence[str]) -> str:
    """Return what a template of an alias stands for with these arguments, ``Span<float, 2>``; "" for none."""
    for whole in texts:
        for at in re.finditer(rf"\busing\s+{name}\s*=\s*([^;{{}}()]+?)\s*;", whole):
            if template := _TEMPLATE.search(whole[: at.start()]):
                alias = Members(
                    head="",
                    declared=(at[1],),
                    given={},
                    template=tuple(map(_parameter, text.split(template[1]))),
                )
                return "".join(found.declared) if (found := alias.instance(arguments)) else ""
    return ""


def _parameter(written: str) -> tuple[str, str]:
    """Return the name of a template parameter and its default, ``int N = 4``, or ""."""
    name, _, default = written.partition("=")
    return (re.findall(r"\w+", name) or [""])[-1], default.strip()


def _pack(before: str) -> int:
    """Return what the last ``#pragma pack`` of a text says."""
    said = _PACK.findall(before)
    return int(said[-1] or _WIDEST) if said else _WIDEST


def _read(declared: str, head: str, body: str) -> Members | None:
    nested: list[str] = []
    plain = _without_bodies(body, nested)
    if plain is None or "virtual" in body or re.search(r"\balignas\b|__align__|\(\s*\*", plain):
        return None
    members, given = [], {}
    for statement in plain.split(";"):
        member = _LABEL.sub("", statement, count=1).strip()
        if not member or _NO_MEMBER.match(member) or "(" in member:  # a function that is only declared
            continue
        parts = text.split(member)
        for part in parts:
            if (number := _INITIAL.search(part)) and (words := re.findall(r"\w+", part.partition("=")[0])):
                given[words[-1]] = float(number[1])
        members.append(", ".join(part.partition("=")[0].strip() for part in parts))
    union = declared.startswith("union")
    return Members(head=head, declared=tuple(members), given=given, nested=tuple(nested), union=union)


def _without_bodies(body: str, nested: list[str]) -> str | None:
    """Return members without the bodies of functions and of types, and the braces of initial values.

    The texts of structs and unions that have no name go to `nested`. None is returned for other types.
    """
    parts, done = [], 0
    while (opened := body.find("{", done)) >= 0:
        closed = text.closing(body, opened)
        begin = max(body.rfind(mark, done, opened) for mark in ";}") + 1 or done
        statement = _LABEL.sub("", body[begin:opened], count=1)
        if closed < 0:
            return None
        if _TYPE.match(statement):
            found = _declared(statement, body[opened : closed + 1], body[closed + 1 :], nested)
            if found is None:
                return None
            parts += [body[done:begin], found]
        else:
            function = "(" in statement
            parts += [body[done : begin if function else opened], ";" if function else ""]
        done = closed + 1
    return "".join([*parts, body[done:]])


def _declared(head: str, braces: str, rest: str, nested: list[str]) -> str | None:
    """Return by its name a type that is defined among members, ``union {...} u``; None for an enumeration."""
    alone = re.match(r"\s*;", rest)
    if re.match(r"\s*enum\b", head):
        return "" if alone else None
    if not (at := _NESTED.fullmatch(head)):
        return None
    kind, name = at.groups()
    if name:
        return "" if alone else name
    name = f"{ANONYMOUS}{zlib.crc32(braces.encode()):x}"
    nested.append(f"{kind} {name} {braces};")
    return f"{name} {name}_{len(nested)}" if alone else name
