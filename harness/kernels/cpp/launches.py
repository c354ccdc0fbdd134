"""Read the launches in the host code of a file, as far as they are numbers.

They are ``k<<<grid, block, shared>>>`` and ``cudaLaunchKernelEx(&config, k, ...)``, which may have clusters.
A name has the value that the text gave it last before the launch: by ``#define``, ``int threads = 256;`` or
``dim3 block(16, 16);``. What is an argument of a function, computed by one, or changed in a loop is unknown.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.kernels import text
from harness.kernels.expr import Expr, ExprError

_LAUNCH = re.compile(
    r"\b([A-Za-z_][\w:]*)\s*(<(?!\s*<)[^;{}]{0,300}?>)?\s*<<\s*<(.{0,400}?)>>\s*>", re.DOTALL
)
_CONFIGURED = re.compile(
    r"\bcudaLaunchKernelEx\s*\(\s*&?\s*(\w+)\s*,\s*([A-Za-z_][\w:]*)\s*(<[^;{}()]{0,300}?>)?"
    r"\s*,?([^;{}]{0,500}?)\)\s*[;)]"
)
_CLUSTER_DIMS = re.compile(
    r"\b__cluster_dims__\s*\(([^()]*)\)\s*(?:(?:__launch_bounds__\s*\([^()]*\)|\w+)\s+)*?"
    r"(?!__launch_bounds__)(\w+)\s*\("
)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]*)$", re.MULTILINE)
_GIVEN = re.compile(r"(?<![.>\w])([A-Za-z_]\w*)\s*(?:(=)(?!=)|(?:[-+*/%|&^]|<<|>>)=|\+\+|--)")
_ALLOCATED = re.compile(  # cudaMalloc((void**)&x, n * sizeof(float))
    r"\bcudaMalloc(?:Managed|Async)?\s*\(\s*(?:\([\w\s*]+\)\s*)?&\s*(\w+)\s*,"
)
_DIM3 = re.compile(r"\bdim3\s+(?:const\s+)?([^;]{1,300});")
_BRACED = re.compile(r"\bconst(?:expr)?\s+[\w\s:]*?\b(\w+)\s*\{([^{};]+)\}\s*;")
_EXPLICIT = re.compile(r"\btemplate\s+void\s+\w+\s*<\s*(\w+)\s*>")
_PARAMETER = re.compile(r"\b(?:typename|class)\s+(T\w?|\w*(?:[Tt]ype|[Ss]calar|[Ff]loat|[Rr]eal)\w*|\w+_t)\b")
_SET = re.compile(r"\b([A-Za-z_]\w*\.[xyz])\s*=(?!=)\s*([^;]{1,100});")
_DECLARED = re.compile(r"(\w+)\s*=?\s*(?:dim3\b)?(.*)", re.DOTALL)
_MADE = re.compile(r"dim3\s*[({](.*)[)}]\Z", re.DOTALL)
_ARGUMENTS = re.compile(r"\s*\(([^;{}]{0,500}?)\)\s*;")
_WORD = re.compile(r"[A-Za-z_]\w*")
_CAST = re.compile(r"\(\s*(?:unsigned|int|unsigned int|size_t|long)\s*\)|\bstatic_cast\s*<[\w\s:]+>")
_MEMBER = re.compile(r"\b([A-Za-z_]\w*)\s*\.\s*([xyz])\b")
_ROUNDED_UP = re.compile(r"\b\w*(?:[cC]eil|CEIL|[uU]p|UP|cdiv)\w*\s*\(([^(),]+),([^(),]+)\)")  # divUp(n, 256)
_DIVISION = re.compile(r"(\w+)\s*/\s*([^-+/]+)")
_LARGEST_CLUSTER = 16
_KEPT, _TEXTS = 8, 64  # texts: what is read of one, or of its headers, is asked for by each of its kernels
_DEEPEST, _LONGEST = 8, 300  # names in each other, and characters of an expression
_BYTES = {"char": 1, "half": 2, "float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8}
_TYPE = re.compile(
    r"(?:unsigned )?(?:float|double|int|char|short|long|bool|(?:__)?half2?|(?:__)?nv_bfloat162?|u?int\d+_t"
    r"|float[234])|unsigned"
)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch in line `line` of the text.

    `entry` is the kernel, with template arguments if they are known. `block` and `grid` are x, y and z, empty
    where they are not known; `shared` is in bytes, and None where it is not known, or depends on the
    arguments, whose sizes are guessed. `arguments` are the kernel's as they are written, and `blocks` the
    grid in terms of these, ``(n + 128 - 1) // 128``; empty where other names are left. `bytes` has what the
    text allocates for each argument, 0 where that is not known. `threads` has the numbers of arguments of
    which the block is made, ``n`` of ``k<<<1, n>>>(x, n)``, else 0.
    """

    entry: str
    line: int
    block: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    shared: int | None = None
    arguments: tuple[str, ...] = field(default=(), compare=False)
    blocks: tuple[str, ...] = field(default=(), compare=False)
    bytes: tuple[int, ...] = field(default=(), compare=False)
    threads: tuple[int, ...] = field(default=(), compare=False)

    def over(self, parameters: Sequence[str]) -> list[str]:
        """Return the grid in terms of a kernel's parameters, in place of what they are given."""
        names = dict(zip(self.arguments, parameters, strict=False))
        return [_WORD.sub(lambda word: names.get(word[0], word[0]), blocks) for blocks in self.blocks]


def with_headers(source: str, headers: Iterable[bytes]) -> str:
    """Return a text with the numbers to which its headers give names, as macros in lines behind its own."""
    named = {
        name: value
        for header in headers
        for name, value in _named(text.COMMENT.sub(" ", header.decode(errors="replace"))).items()
        if value and "\n" not in value
    }
    own = _named(source)
    return "".join([source, *(f"\n#define {n} {value}" for n, value in named.items() if n not in own)])


def launches(source: str) -> list[Launch]:
    """Return the launches of a text, in its order."""
    return list(_launches(source))


@functools.lru_cache(maxsize=_KEPT)
def _launches(source: str) -> tuple[Launch, ...]:
    plain = text.blank(source)
    defined, given = _defined(source), _given(plain)
    explicit = next(filter(_TYPE.fullmatch, _EXPLICIT.findall(plain)), "float")
    types = dict.fromkeys(_PARAMETER.findall(plain), explicit)

    def before(place: int) -> Values:
        return Values(defined | {name: value for at, name, value in given if at < place})

    sizes = [
        (at.start(), at[1], before(at.start()).number(_value(plain, at.end())) or 0)
        for at in _ALLOCATED.finditer(plain)
    ]
    found = []
    for place, name, template, passed, (grid, block, shared) in sorted(_calls(plain)):
        known = before(place)
        held = {name: size for at, name, size in sizes if at < place}
        arguments = tuple(text.split(passed))
        found.append(
            Launch(
                entry=name + known.arguments(template, types),
                line=plain.count("\n", 0, place) + 1,
                block=known.dimensions(block),
                grid=known.dimensions(grid),
                shared=None if known.mention(arguments, shared) else known.number(shared or "0"),
                arguments=arguments,
                blocks=known.expressions(grid, frozenset(arguments)),
                bytes=tuple(held.get(argument, 0) for argument in arguments),
                threads=known.among(arguments, block),
            )
        )
    return tuple(found)


def _calls(plain: str) -> Iterator[tuple[int, str, str, str, tuple[str, str, str]]]:
    """Yield (place, kernel, template arguments, arguments, (grid, block, shared)) of each launch as text."""
    for at in _LAUNCH.finditer(plain):
        grid, block, shared = (*text.split(at[3]), "", "", "")[:3]
        passed = _ARGUMENTS.match(plain, at.end())
        yield at.start(), at[1], at[2] or "", passed[1] if passed else "", (grid, block, shared)
    for at in _CONFIGURED.finditer(plain):
        grid, block, shared = (
            _last(plain[: at.start()], rf"\b{at[1]}\s*\.\s*{member}")
            for member in ("gridDim", "blockDim", "dynamicSmemBytes")
        )
        yield at.start(), at[2], at[3] or "", at[4], (grid, block, shared)


def _last(plain: str, name: str) -> str:
    """Return what a text assigns last to a name, a pattern; "" for one that it never gives a value."""
    found = [at.end() for at in re.finditer(rf"{name}\s*=(?!=)", plain)]
    return _value(plain, found[-1]) if found else ""


def cluster(source: str, entry: str) -> tuple[int, int, int]:
    """Return the blocks of a cluster of the kernel `entry`, 1s if it has none or their number is not known.

    Either the kernel says so, or the last attribute of its launch.
    """
    plain, name = text.blank(source), entry.partition("<")[0].rpartition("::")[2]
    known = Values(_defined(source) | {n: value for _, n, value in _given(plain)})
    written = next((text.split(at[1]) for at in _CLUSTER_DIMS.finditer(plain) if at[2] == name), [])
    for at in _CONFIGURED.finditer(plain):
        if not written and at[2].rpartition("::")[2] == name:
            before = plain[: at.start()]
            written = [_last(before, rf"\bclusterDim\s*\.\s*{axis}") or "1" for axis in "xyz"]
    x, y, z = (*(known.number(part) for part in written), 1, 1, 1)[:3]
    return (x, y, z) if x and y and z and x * y * z <= _LARGEST_CLUSTER else (1, 1, 1)


def of(source: str, entry: str) -> Launch | None:
    """Return the first launch of a kernel whose block is known: of this very instance, if it is one."""
    found = [launch for launch in launches(source) if launch.block and math.prod(launch.block) <= 1024]
    same = [launch for launch in found if _alone(launch.entry) == _alone(entry)]
    name = _alone(entry).partition("<")[0]
    alike = [launch for launch in found if _alone(launch.entry).partition("<")[0] == name]
    return next(iter(same or alike), None)


def one_block(source: str, entry: str) -> bool | None:
    """Return whether a text launches a kernel with one block only, of however many threads.

    None is returned where it does not launch it.
    """
    name = _alone(entry).partition("<")[0]
    grids = [launch.grid for launch in launches(source) if _alone(launch.entry).partition("<")[0] == name]
    return all(set(grid) == {1} for grid in grids) if grids else None


def _alone(entry: str) -> str:
    """Return a kernel's name without namespaces, with its template arguments."""
    name, begun, arguments = entry.partition("<")
    return "".join(f"{name.rpartition('::')[2]}{begun}{arguments}".split())


def instances(source: str, template: str) -> list[str]:
    """Return the instances of a kernel template that a text launches, ``k<16>``, each once."""
    name = template.rpartition("::")[2]
    found = [launch.entry.partition("<") for launch in launches(source)]
    given = [arguments for called, begun, arguments in found if begun and _alone(called) == name]
    return list(dict.fromkeys(f"{template}<{arguments}" for arguments in given))


def constants(texts: Sequence[str], own: Collection[str], arguments: Mapping[str, str]) -> Values:
    """Return the numbers that texts give names to, all of each, for a kernel's template `arguments`.

    A text has the last word on the names that it has. One that is given several numbers there has none, and
    neither has one of the kernel's `own`.
    """
    known = {name: value for source in reversed(texts) for name, value in _named(source).items()}
    return Values({name: value for name, value in known.items() if name not in own} | dict(arguments))


@functools.lru_cache(maxsize=_TEXTS)
def _named(source: str) -> dict[str, str]:
    """Return what a text gives names to, once each."""
    given: dict[str, set[str]] = {}
    for _, name, value in _given(text.blank(source)):
        given.setdefault(name, set()).add(value)
    return _defined(source) | {name: value.pop() for name, value in given.items() if len(value) == 1}


def _defined(source: str) -> dict[str, str]:
    """Return what macros stand for."""
    return {name: value.partition("//")[0] for name, value in _DEFINE.findall(source)}


def _given(plain: str) -> list[tuple[int, str, str]]:
    """Return (place, name, value) of what a text gives values to, in its order; "" if it only changes it."""
    given = [(at.start(), at[1], _value(plain, at.end()) if at[2] else "") for at in _GIVEN.finditer(plain)]
    given += [(at.start(), at[1], at[2].strip()) for at in _SET.finditer(plain)]
    given += [(at.start(), at[1], at[2].strip()) for at in _BRACED.finditer(plain)]
    for at in _DIM3.finditer(plain):
        parts = (_DECLARED.match(part) for part in text.split(at[1]))
        given += [(at.end(), part[1], f"dim3{part[2].strip()}") for part in parts if part]
    return sorted(given)


def _value(plain: str, begin: int) -> str:
    """Return what is assigned there: up to a semicolon, or to a comma or bracket that is not its own."""
    depth = 0
    for at in range(begin, min(begin + _LONGEST, len(plain))):
        depth += (plain[at] in "([{") - (plain[at] in ")]}")
        if depth < 0 or plain[at] == ";" or (plain[at] == "," and not depth):
            return plain[begin:at].strip()
    return ""


class Values:
    """The values of names, as the text has them."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = {"true": "1", "false": "0"} | texts
        for name in {name.partition(".")[0] for name in texts if "." in name}:  # block.x = 256;
            if texts.get(name, "dim3") == "dim3":
                parts = (texts.get(f"{name}.{axis}", "1") for axis in "xyz")
                self._texts[name] = f"dim3({', '.join(parts)})"
        self._numbers: dict[str, int | None] = {}

    def dimensions(self, written: str) -> tuple[int, ...]:
        """Return one to three positive numbers; none where one of them is not known."""
        written = self._texts.get(written.strip(), written).strip()
        made = _MADE.match(written)
        numbers = [self.number(part) for part in (text.split(made[1]) if made else [written])]
        known = tuple(n for n in numbers if n is not None and n > 0)
        return known if 0 < len(numbers) == len(known) <= 3 else ()

    def number(self, written: str) -> int | None:
        """Return the value of an integer expression, or None."""
        written = re.sub(r"\bsizeof\s*\(\s*([\w ]+?)\s*\)", lambda m: str(_BYTES.get(m[1], "?")), written)
        written = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", written).replace("/", "//")
        try:
            expression = Expr.parse(" ".join(written.split()))
            values = {name: value for name in expression.names if (value := self._named(name)) is not None}
            return expression(values)
        except (ExprError, RecursionError):
            return None

    def expressions(self, written: str, arguments: Collection[str]) -> tuple[str, ...]:
        """Return one to three dimensions as expressions over `arguments`; none where other names are left.

        ``n / 256`` is rounded up: host code that leaves the rest out has sizes without one.
        """
        made = _MADE.match(self._texts.get(written.strip(), written).strip())
        parts = [self._expanded(p, arguments, _DEEPEST) for p in (text.split(made[1]) if made else [written])]
        return tuple(p for p in parts if p) if None not in parts and len(parts) <= 3 else ()

    def _expanded(self, written: str, arguments: Collection[str], depth: int) -> str | None:
        """Return an expression in terms of `arguments` and numbers, or None."""
        plain = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", _CAST.sub("", written)).strip()
        plain = _ROUNDED_UP.sub(r"((\1) + (\2) - 1) / (\2)", _MEMBER.sub(self._member, plain))
        if division := _DIVISION.fullmatch(plain):
            plain = "({0} + ({1}) - 1) / ({1})".format(*division.groups())
        if depth == 0 or len(plain) > _LONGEST:
            return None
        parts = []
        for word in re.split(r"([A-Za-z_]\w*)", plain.replace("/", "//")):
            known = word if word in arguments or not word.isidentifier() else None
            if known is None and (meant := self._texts.get(word)):
                known = self._expanded(meant, arguments, depth - 1)
                known = f"({known})" if known else None
            if known is None:
                return None
            parts.append(known)
        whole = "".join(parts)
        return whole if len(whole) <= _DEEPEST * _LONGEST else None

    def among(self, names: Sequence[str], written: str) -> tuple[int, ...]:
        """Return the numbers of those of `names` that dimensions consist of, and 0 for the others."""
        made = _MADE.match(self._texts.get(written.strip(), written).strip())
        parts = [part.strip() for part in (text.split(made[1]) if made else [written])]
        return tuple(self.number(name) or 0 if name in parts else 0 for name in names)

    def mention(self, names: Collection[str], written: str) -> bool:
        """Return True if one of `names` is in an expression, or in what its names stand for."""
        seen, left = set[str](), [written]
        while left:
            words = set(_WORD.findall(left.pop())) - seen
            seen |= words
            left += (self._texts.get(word, "") for word in words)
        return not seen.isdisjoint(names)

    def _member(self, at: re.Match[str]) -> str:
        """Return the part of a ``dim3`` that ``block.x`` is; itself where it is not known."""
        made = _MADE.match(self._texts.get(at[1], "").strip())
        parts = text.split(made[1]) if made else []
        return f"({(*parts, 1, 1, 1)['xyz'.index(at[2])]})" if parts else at[0]

    def _named(self, name: str) -> int | None:
        """Return the value of a name, or None; one that is defined by itself has none."""
        if name not in self._numbers:
            self._numbers[name] = None
            self._numbers[name] = self.number(self._texts.get(name, ""))
        return self._numbers[name]

    def arguments(self, written: str, types: Mapping[str, str]) -> str:
        """Return template arguments, ``<float, 16>``, with numbers for names; "" if one is not known.

        `types` are what a template of the host may be given.
        """
        found = [
            part if _TYPE.fullmatch(part) else types.get(part) or str(self.number(part))
            for part in text.split(written[1:-1])
        ]
        return f"<{', '.join(found)}>" if found and "None" not in found else ""
