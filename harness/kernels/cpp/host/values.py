"""Evaluate what a text gives names to: macros, constants, variables and ``dim3``."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from harness.kernels import text
from harness.kernels.cpp.source import inlined
from harness.kernels.expr import Expr, ExprError

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]*)$", re.MULTILINE)
_GIVEN = re.compile(r"(?<![.>\w])([A-Za-z_]\w*)\s*(?:(=)(?!=)|(?:[-+*/%|&^]|<<|>>)=|\+\+|--)")
_ASKED = re.compile(r"\bcu(?:da)?(?:(?:Device|Func|Get|Occupancy)\w*\s*\(|MallocPitch\([^,;]*,)\s*&\s*(\w+)")
_CALL = re.compile(r"\b(?!cu(?:da)?[A-Z])[A-Za-z_]\w*\s*\((?=[^;{}]*&)")
_DIM3 = re.compile(r"\bdim3\s+(?:const\s+)?([^;]{1,300});")
_BRACED = re.compile(r"\bconst(?:expr)?\s+[\w\s:]*?\b(\w+)\s*\{([^{};]+)\}\s*;")
_VECTORS = re.compile(r"\b(?:vector|(?:device|host)_vector)\s*<[\w\s:]+>\s+([^;]{1,300});")
_VECTOR = re.compile(r"(\w+)\s*(?:\((.*)\)|=\s*(\w+))", re.DOTALL)
_RESIZED = re.compile(r"\b(\w+)\s*\.\s*resize\s*\(")
_BEGIN = re.compile(r"(\w+)\s*\.\s*c?begin\s*\(\s*\)")
_ALIAS = re.compile(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;")
_SIZE = re.compile(r"\b(\w+)\.size\((\d?)\)")
_SET = re.compile(r"\b([A-Za-z_]\w*\.[xyz])\s*=(?!=)\s*([^;]{1,100});")
_DECLARED = re.compile(r"(\w+)\s*=?\s*(?:dim3\b)?(.*)", re.DOTALL)
_MADE = re.compile(r"dim3\s*[({](.*)[)}]\Z", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CAST = re.compile(
    r"\(\s*(?:std\s*::\s*)?(?:(?:unsigned|int|long)(?:\s+(?:int|long))*|size_t|u?int(?:32|64)_t)\s*\)"
    r"|\bstatic_cast\s*<[\w\s:]+>|\bsize_t\s*(?=\()"
)
_MEMBER = re.compile(r"\b([A-Za-z_]\w*)\s*\.\s*([xyz])\b")
_PART = re.compile(r"(?<![*-])(?<![*-] )\b([A-Za-z_]\w*)\s*//\s*(\w+)\b")
_DIVISION = re.compile(r"(\w+)\s*/\s*(\w+|\([^()]*\))")
_FUNCTION = re.compile(
    r"\(((?:[^(){};]|\([^(){};]*\))*)\)\s*(?:(?:const|noexcept|override|final)\b\s*)*(?::(?!:)[^;{}]{0,2000})?\{"
)
_TEXTS, _DEEPEST, _LONGEST = 64, 8, 300  # texts that are kept, names in each other, characters of expressions
_BYTES = {
    **dict.fromkeys(("char", "unsigned char", "bool", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8_e5m2", "__nv_fp8_storage_t"), 1),
    **dict.fromkeys(("half", "__half", "short", "unsigned short", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16"), 2),
    **dict.fromkeys(("float", "int", "unsigned", "unsigned int", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("half2", "__half2", "short2", "char4", "uchar4"), 4),
    **dict.fromkeys(("double", "float2", "long", "unsigned long", "long long", "unsigned long long"), 8),
    **dict.fromkeys(("size_t", "int64_t", "uint64_t", "int2", "uint2", "cuComplex", "cufftComplex"), 8),
    **dict.fromkeys(("float3", "int3", "uint3"), 12),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 16),
}
SIZEOF = "SIZEOF_"  # and the name of a type that is none of these; of what a pointer leads to, nothing
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*(\*?\s*[\w :.>-]+?(?:\[0\])?)\s*\)")
_LEAST = re.compile(  # imin(a, b), std::min<int>(a, b)
    r"(?<![\w:])(?:std\s*::\s*|::\s*)?[fiu]?(min|max)\s*(?:<[\w\s]+>\s*)?\(", re.IGNORECASE
)
TYPE = re.compile(
    r"(?:unsigned )?(?:float|double|int|char|short|long|bool|(?:__)?half2?|(?:__)?nv_bfloat162?|u?int\d+_t"
    r"|float[234])|unsigned"
)
_INSTANCE = re.compile(rf"[\w:]+<(?:(?:\d+|{TYPE.pattern})[\s,]*)+>")


def constants(texts: Sequence[str], own: Collection[str], arguments: Mapping[str, str]) -> Values:
    """Return the numbers that texts give names to, all of each, for a kernel's template `arguments`.

    A text has the last word on the names that it has. One that is given several numbers there has none, and
    neither has one of the kernel's `own`.
    """
    known = {name: value for source in reversed(texts) for name, value in named(source).items()}
    return Values({name: value for name, value in known.items() if name not in own} | dict(arguments))


@functools.lru_cache(maxsize=_TEXTS)
def named(source: str) -> dict[str, str]:
    """Return what a text gives names to, once each."""
    found: dict[str, set[str]] = {}
    for _, name, value in given(text.blank(source)):
        found.setdefault(name, set()).add(value)
    return defined(source) | {name: value.pop() for name, value in found.items() if len(value) == 1}


def defined(source: str) -> dict[str, str]:
    """Return what macros stand for."""
    return {name: value.partition("//")[0] for name, value in _DEFINE.findall(source)}


def sized(plain: str) -> str:
    """Return a text with a name in place of a vector's ``x.size()`` or a tensor's ``x.size(0)``, as long."""
    return _SIZE.sub(r"\1_size_\2_", plain)


def vectors(plain: str) -> Iterator[tuple[int, str, str]]:
    """Yield (place, name, number of elements) of the vectors of a text, of Thrust and of the host."""
    for at in _VECTORS.finditer(plain):
        for one in filter(None, map(_VECTOR.fullmatch, text.split(at[1]))):
            first = one[3] or next(iter(text.split(one[2])), "")
            other = _BEGIN.fullmatch(first)
            yield at.start(), one[1], f"{other[1] if other else first}_size__" if other or one[3] else first
    for at in _RESIZED.finditer(plain):
        yield at.start(), at[1], value_at(plain, at.end())


def given(plain: str) -> list[tuple[int, str, str]]:
    """Return (place, name, value) of what a text gives values to, in its order; "" if it only changes it."""
    given = [(at.start(), at[1], value_at(plain, at.end()) if at[2] else "") for at in _GIVEN.finditer(plain)]
    given += [(at.start(), at[1], "") for at in _ASKED.finditer(plain)]
    numbers = {name for _, name, value in given if value.isdecimal()}
    given += [(place, name, "") for place, name in _filled(plain) if name in numbers]
    given += [(at.start(), at[1], at[2].strip()) for at in _SET.finditer(plain)]
    given += [(place, f"{name}_size__", number) for place, name, number in vectors(plain)]
    for at in _ALIAS.finditer(plain):
        if size := _BYTES.get(at[1] or at[4]):
            given.append((at.start(), f"{SIZEOF}{at[2] or at[3]}", str(size)))
    given += [(at.start(), at[1], at[2].strip()) for at in _BRACED.finditer(plain)]
    for at in _DIM3.finditer(plain):
        parts = (_DECLARED.match(part) for part in text.split(at[1]))
        given += [(at.end(), part[1], f"dim3{part[2].strip()}") for part in parts if part]
    return sorted(given)


def _filled(plain: str) -> Iterator[tuple[int, str]]:
    """Yield (place, name) of what a function may give a number, ``load(path, &width)``; none of CUDA's."""
    for at in _CALL.finditer(plain):
        inside = plain[at.end() : text.closing(plain, at.end() - 1)][:_LONGEST]
        parts = (re.fullmatch(r"&\s*(\w+)", part) for part in text.split(inside))
        yield from ((at.start(), part[1]) for part in parts if part)


def bodies(plain: str) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """Return (begin, place of the brace, end, names of the parameters) of the functions of a blank text."""
    found, done = [], 0
    for at in _FUNCTION.finditer(plain):
        if at.end() > done and (closed := text.closing(plain, at.end() - 1)) > 0:
            parts = (re.sub(r"\[[^]]*\]", "", part.partition("=")[0]) for part in text.split(at[1]))
            names = (re.findall(r"\w+", part) for part in parts)
            found.append((at.start(), at.end() - 1, closed, tuple(n[-1] for n in names if n)))
            done = closed
    return found


def outside(plain: str) -> str:
    """Return a blank text with spaces for the bodies of its functions."""
    parts, done = [], 0
    for _, opened, closed, _ in bodies(plain):
        parts += [plain[done:opened], re.sub(r"[^\n]", " ", plain[opened : closed + 1])]
        done = closed + 1
    return "".join([*parts, plain[done:]])


def value_at(plain: str, begin: int) -> str:
    """Return what is assigned there: up to a semicolon, or to a comma or bracket that is not its own."""
    depth = 0
    for at in range(begin, min(begin + _LONGEST, len(plain))):
        depth += (plain[at] in "([{") - (plain[at] in ")]}")
        if depth < 0 or plain[at] == ";" or (plain[at] == "," and not depth):
            return plain[begin:at].strip()
    return ""


def largest(names: Sequence[str]) -> str:
    """Return the expression of the largest of some values."""
    return names[0] if len(names) == 1 else f"max({', '.join(names)})"


def size(kind: str) -> int:
    """Return the bytes of a type; 0 for one that is not known."""
    return _BYTES.get(kind, 0)


def uncast(written: str) -> str:
    """Return ``n`` for ``(int)n`` and ``static_cast<int>(n)``, and other expressions as they are."""
    plain = _CAST.sub("", written).strip()
    return name if (name := plain.removeprefix("(").removesuffix(")").strip()).isidentifier() else written


def _size(at: re.Match[str]) -> str:
    """Return the bytes of a type in ``sizeof``, or a name for them."""
    if at[1].startswith("*") or at[1].endswith("]"):
        return SIZEOF
    return str(_BYTES.get(at[1]) or SIZEOF + re.findall(r"\w+", at[1])[-1])


def _plain(written: str) -> str:
    """Return an expression of integers without suffixes, and with ``min`` and ``max`` by these names."""
    written = _SIZEOF.sub(_size, inlined.ceiled(written))
    return _LEAST.sub(lambda at: f"{at[1].lower()}(", re.sub(r"\b(\d+)[uUlL]+\b", r"\1", written))


class Values:
    """The values of names, as the text has them."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = {"true": "1", "false": "0"} | texts
        for name in {name.partition(".")[0] for name in texts if "." in name}:  # block.x = 256;
            if texts.get(name, "dim3") == "dim3":
                parts = (texts.get(f"{name}.{axis}", "1") for axis in "xyz")
                self.texts[name] = f"dim3({', '.join(parts)})"
        self._numbers: dict[str, int | None] = {}

    @property
    def types(self) -> dict[str, str]:
        """Return the names that stand for types."""
        return {name: value for name, value in self.texts.items() if TYPE.fullmatch(value)}

    def dimensions(self, written: str) -> tuple[int, ...]:
        """Return one to three positive numbers; none where one of them is not known."""
        written = self.texts.get(written.strip(), written).strip()
        made = _MADE.match(written)
        numbers = [self.number(part) for part in (text.split(made[1]) if made else [written])]
        known = tuple(n for n in numbers if n is not None and n > 0)
        return known if 0 < len(numbers) == len(known) <= 3 else ()

    def number(self, written: str) -> int | None:
        """Return the value of an integer expression, or None."""
        plain = _CAST.sub("", _plain(_MEMBER.sub(self._member, written)))
        try:
            expression = Expr.parse(" ".join(inlined.rounded_up(plain).replace("/", "//").split()))
            values = {name: value for name in expression.names if (value := self._named(name)) is not None}
            return expression(values)
        except (ExprError, RecursionError):
            return None

    def literal(self, word: str) -> int | None:
        """Return the number that a word stands for: ``-1``, ``0xffffffffu`` or a name that has one."""
        if at := re.fullmatch(r"(-?)(?:0[xX]([\da-fA-F]+)|0([0-7]+)|(\d+))[uUlL]*", word):
            return next(int(at[1] + at[i], base) for i, base in ((2, 16), (3, 8), (4, 10)) if at[i])
        return self.number(word)

    def expressions(self, written: str, arguments: Mapping[str, str]) -> tuple[str, ...]:
        """Return one to three dimensions as expressions over arguments, by their other names.

        None are returned where further names are left; one of several dimensions that has such is "".
        ``n / 256`` is rounded up: host code that leaves the rest out has sizes without one.
        """
        made = _MADE.match(self.texts.get(written.strip(), written).strip())
        parts = [self._expanded(p, arguments, _DEEPEST) for p in (text.split(made[1]) if made else [written])]
        if not any(parts) or len(parts) > 3:
            return ()
        return tuple(_WORD.sub(lambda word: arguments.get(word[0], word[0]), p or "") for p in parts)

    def called(self, arguments: Collection[str]) -> dict[str, str]:
        """Return which argument a name is, by its own and by the one it was given: ``WIDTH`` of a width."""
        names = {name: name for name in arguments if name.isidentifier()}
        given: dict[str, list[str]] = {}
        for name in names:
            if (value := uncast(self.texts.get(name, ""))).isidentifier():
                given.setdefault(value, []).append(name)
        return {value: largest(called) for value, called in given.items()} | names

    def over(self, written: str, names: Collection[str]) -> str:
        """Return an expression in terms of `names` and numbers, "" where it does not follow from them."""
        return self._expanded(written, names, _DEEPEST, up=False) or ""

    def length(self, written: str, arguments: Mapping[str, str]) -> str:
        """Return bytes as an expression over arguments, by their other names, and sizes of types.

        It is "" where further names are left, or where none is an argument's. ``n / 256`` is rounded up.
        """
        found = self._expanded(written, arguments, _DEEPEST) or ""
        if arguments.keys().isdisjoint(_WORD.findall(found)):
            return ""
        found = _WORD.sub(lambda word: arguments.get(word[0], word[0]), found)
        return _PART.sub(r"((\1 + \2 - 1) // \2)", found)

    def _expanded(
        self, written: str, arguments: Collection[str], depth: int, *, up: bool = True
    ) -> str | None:
        """Return an expression in terms of `arguments` and numbers, or None.

        A division is rounded up, if asked for.
        """
        plain = _CAST.sub("", _plain(written)).strip()
        plain = inlined.rounded_up(_MEMBER.sub(self._member, plain))
        if (division := _DIVISION.fullmatch(plain)) and up:
            plain = "({0} + ({1}) - 1) / ({1})".format(*division.groups())
        if depth == 0 or len(plain) > _LONGEST:
            return None
        parts = []
        for word in re.split(r"([A-Za-z_]\w*)", plain.replace("/", "//")):
            own = word in arguments or word in ("min", "max") or not word.isidentifier()
            own |= word.startswith(SIZEOF) and word not in self.texts
            known = word if own else None
            if known is None and (meant := self.texts.get(word)):
                known = self._expanded(meant, arguments, depth - 1, up=up)
                known = f"({known})" if known else None
            if known is None:
                return None
            parts.append(known)
        whole = "".join(parts)
        return whole if len(whole) <= _DEEPEST * _LONGEST else None

    def among(self, names: Sequence[str], written: str) -> tuple[int, ...]:
        """Return the numbers of those of `names` that dimensions consist of, and 0 for the others.

        One that is a block's only dimension, and no number, is -1.
        """
        made = _MADE.match(self.texts.get(written.strip(), written).strip())
        parts = [part.strip() for part in (text.split(made[1]) if made else [written])]
        unknown = -1 if len(parts) == 1 else 0
        return tuple(self.number(name) or unknown if name in parts else 0 for name in names)

    def mention(self, names: Collection[str], written: str) -> bool:
        """Return True if one of `names` is in an expression, or in what its names stand for."""
        return not self.words(written).isdisjoint(names)

    def words(self, written: str) -> set[str]:
        """Return the names in an expression, and in what they stand for."""
        seen, left = set[str](), [written]
        while left:
            words = set(_WORD.findall(left.pop())) - seen
            seen |= words
            left += (self.texts.get(word, "") for word in words)
        return seen

    def _member(self, at: re.Match[str]) -> str:
        """Return the part of a ``dim3`` that ``block.x`` is; itself where it is not known."""
        made = _MADE.match(self.texts.get(at[1], "").strip())
        parts = text.split(made[1]) if made else []
        return f"({(*parts, 1, 1, 1)['xyz'.index(at[2])]})" if parts else at[0]

    def _named(self, name: str) -> int | None:
        """Return the value of a name, or None; one that is defined by itself has none."""
        if name not in self._numbers:
            self._numbers[name] = None
            self._numbers[name] = self.number(self.texts.get(name, ""))
        return self._numbers[name]

    def arguments(self, written: str, types: Mapping[str, str]) -> str:
        """Return template arguments, ``<float, 16>``, with numbers for names; "" if one is not known.

        `types` are what a template of the host may be given, and the classes of the text: these may have
        arguments of their own, ``<Vec<float, 4>>``.
        """
        found = [self._argument(part, types) for part in text.split(written[1:-1])]
        return f"<{', '.join(found)}>" if found and all(found) else ""

    def _argument(self, written: str, types: Mapping[str, str]) -> str:
        """Return a template argument, or ""."""
        if TYPE.fullmatch(written):
            return written
        name, begun, _ = written.partition("<")
        if begun and types.get(name.strip()) == name.strip():
            inner = self.arguments(written[len(name) :].strip(), types)
            return inner and f"{name.strip()}{inner}"
        number = None if written in types else self.number(written)
        if number is not None:
            return str(number)
        meant = self.texts.get(written, "")  # Traits<128, 64>, where those who call say so
        return types.get(written, "") or (meant if _INSTANCE.fullmatch(meant) else "")
