"""Read the text of a kernel file: where its front matter stands, and what kernels it has.

For the kernels this is no parser. It finds ``__global__`` functions by their shape, without the preprocessor
but for macros that make kernels, as a reader would; the compiler has the last word on every name.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import SpecError, UsageError
from harness.kernels.cpp.source import items, macros
from harness.support import files

OPEN, CLOSE = "/// kernel", "///"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MOST, _KEPT = 2**26, 32  # bytes of a kernel's file, and texts whose kernels are kept: each asks for all
SUFFIXES = {".cu": "cuda", ".cuh": "cuda", ".ptx": "ptx"}  # of kernel files: the language of each
_NOISE = re.compile(  # directives, comments, ends of lines that go on, strings, characters
    r"""(?m:^[ \t]*#[ \t]*[a-z]+\b(?:\\\n|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|[^\n])*)"""
    r"|//[^\n]*|/\*.*?\*/|\\(?=\n)"
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
_GLOBAL = re.compile(r"\b__global__\b")
_TEMPLATE = re.compile(r"\btemplate\s*(<[^;{}()]*>)?(?:[^;{}()]|\([^()]*\))*\Z")  # __launch_bounds__(256)
_ATTRIBUTE = re.compile(r"(?:__launch_bounds__|__attribute__|__cluster_dims__|\bC10_LAUNCH_BOUNDS_\d)\s*\Z")
_BOUNDS = re.compile(r"(?:__launch_bounds__|C10_LAUNCH_BOUNDS_\d)\s*\(\s*([^,()]+)[^()]*\)")
_BOUNDS_BEFORE = re.compile(r"__launch_bounds__\s*\(\s*(\d+)[^()]*\)\s*\Z")
_NAME = re.compile(r"((?:[A-Za-z_]\w*\s*::\s*)*[A-Za-z_]\w*(?:\s*<[^(){};]*>)?)\s*\Z")
_TYPE_WORDS = frozenset(["int", "char", "short", "long", "float", "double", "unsigned", "signed", "bool"])
_HIDDEN = str.maketrans("*&[]", "\0\1\2\3")  # in template arguments, which are no pointers by that
_SHOWN = str.maketrans("\0\1\2\3", "*&[]")
INDICES = "(?:threadIdx|blockIdx)"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter, or a `constant` variable that is read as one: `type` has no qualifiers and stars."""

    type: str
    name: str
    pointer: bool = False
    const: bool = False
    constant: bool = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A ``__global__`` function as the text has it.

    `name` has its namespaces, and the arguments of an explicit instance. `template` has the parameters of
    a template, which is no kernel before it is given arguments, and `defaults` what each is by default,
    or "". `bounds` is the number of threads in ``__launch_bounds__``, where that is a number.
    `dimensions` is 2 or 3 where the body uses the y or z of an index, else 1, and `threads` the same of
    the index of a thread alone. `items` are the axes
    of the grid along which each block has an item of its own, such as a row: nothing multiplies its index
    by the threads of a block. `steps` has (axis, step, whether the thread's index is added) for each product
    of the block's index, (``y``, ``BM``, True) for ``blockIdx.y * BM + threadIdx.y``. `flat` are the axes
    along which no code of the file asks for the index of a block. `body` is empty where the function is
    only declared.
    """

    name: str
    parameters: tuple[Parameter, ...]
    template: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    bounds: int | None = None
    dimensions: int = 1
    threads: int = 1
    items: frozenset[str] = frozenset()
    steps: tuple[tuple[str, str, bool], ...] = ()
    flat: frozenset[str] = frozenset()
    body: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return the name, with the parameters of a template: ``k<typename T, int N>``."""
        return f"{self.name}<{', '.join(self.template)}>" if self.template else self.name

    @property
    def block(self) -> tuple[int, ...]:
        """Return a shape of a block that the kernel may be written for: x, y and z."""
        threads = self.bounds or 256
        if self.threads == 1 or threads % 32:
            return (threads,)
        flat = (16, 16) if self.bounds is None else (32, threads // 32)
        return flat if self.threads == 2 else (*flat[:1], flat[1] // 4 or 1, 4 if flat[1] % 4 == 0 else 1)

    def with_body(self, body: str) -> Entry:
        """Return the function with another body, and what its indices say."""
        values = [p.name for p in self.parameters if not p.pointer]
        return replace(
            self,
            dimensions=dimensions(body, INDICES),
            threads=dimensions(body, "threadIdx"),
            items=frozenset(axis for axis in "xyz" if _an_item(body, axis, values)),
            steps=tuple(step for axis in "xyz" for step in _steps(body, axis)),
            body=body,
        )

    def tile(self, block: Sequence[int]) -> tuple[int, ...]:
        """Return what a block of this shape (x first) covers, innermost last: 1 where it has one item."""
        whole = [*block, *[1] * (self.dimensions - len(block))]
        return tuple(1 if axis in self.items else n for axis, n in zip("xyz", whole, strict=False))[::-1]

    def types(self, arguments: str) -> dict[str, str]:
        """Return the arguments of an instance, ``<float, 16>`` in its name, by template parameter."""
        given = split(arguments.partition("<")[2].rpartition(">")[0])
        return {name.split()[-1]: value for name, value in zip(self.template, given, strict=False)}


def read(path: Path) -> str:
    """Return the text of a kernel file. Raises UsageError for a file that cannot be read, SpecError if it is
    no text. What is not UTF-8 is replaced in one without front matter: comments may be in any encoding.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError("not a kernel file", where=str(path), hint="kernels end in .cu or .ptx")
    try:
        str(path).encode()
        source = files.text(path, most=_MOST)
        source = re.sub(r"\0\s*\Z", "", source)  # NVRTC's PTX ends with one, which some keep
    except FileNotFoundError:
        raise UsageError("no such file", where=str(path)) from None
    except UnicodeEncodeError:
        raise UsageError("its name is not UTF-8", where=repr(str(path)), hint="rename it") from None
    except ValueError as e:  # the name is one that no file can have
        if not isinstance(e, UnicodeDecodeError):
            raise UsageError(f"cannot be read: {e}", where=repr(str(path))) from None
        source = files.text(path, most=_MOST, errors="replace")
        if path.suffix == ".ptx" or "__global__" not in source or has_front_matter(source):
            raise SpecError(f"not UTF-8 text (byte {e.start})", where=str(path)) from None
    except OSError as e:
        raise UsageError(f"cannot be read: {e.strerror}", where=str(path)) from None
    if "\0" in source:
        line = source[: source.index("\0")].count("\n") + 1
        raise SpecError("a NUL byte, where compilers stop reading", where=f"{path}:{line}")
    return source


def has_front_matter(source: str) -> bool:
    """Return True where the text begins with front matter, or with what was meant to be."""
    return any(line.removeprefix("//").strip().startswith("///") for line in _comments(source))


def block(source: str, path: Path) -> tuple[str, str, int]:
    """Return (title, TOML text, line number of the text's first line) of the front matter.

    Raises SpecError where there is none, or it is not closed.
    """
    comments = _comments(source)
    body = [line.removeprefix("//").removeprefix(" ").rstrip() for line in comments]
    opens = [i for i, line in enumerate(comments) if line.removeprefix("//").strip() == OPEN]
    if not opens:
        cuda, declared = path.suffix != ".ptx", "definition of a " * bool(_GLOBAL.search(blank(source)))
        nothing = not has_front_matter(source) and not (entries(source) if cuda else ".entry" in source)
        kernel = f"{declared}__global__ function" if cuda else ".entry"
        raise SpecError(
            f"no front matter{f', and no {kernel} to guess it from' * nothing}",
            where=str(path),
            hint=f"the file must begin with // comments that hold '// {OPEN}' ... '// {CLOSE}' "
            "with at least entry, block and tile",
        )
    if len(opens) > 1:
        raise SpecError(f"a second '// {OPEN}'", where=f"{path}:{opens[1] + 1}")
    start = opens[0] + 1
    end = next((i for i in range(start, len(body)) if body[i].strip() == CLOSE), 0)
    if not end:
        raise SpecError(
            f"the front matter opened here is not closed by '// {CLOSE}'", where=f"{path}:{start}"
        )
    title = next((line.strip() for line in body[: opens[0]] if line.strip()), path.stem)
    return title, "\n".join(body[start:end]), start + 1


def _comments(source: str) -> list[str]:
    """Return the lines of comments with which the text begins."""
    return list(itertools.takewhile(lambda s: s.startswith("//"), source.splitlines()))


def entries(source: str) -> list[Entry]:
    """Return the kernels that a text defines, in its order: functions, templates and explicit instances."""
    return list(_entries(source))


@functools.lru_cache(maxsize=_KEPT)
def _entries(source: str) -> tuple[Entry, ...]:
    text = macros.expanded(source, blank(source))
    read = [e for at in _GLOBAL.finditer(text) if (e := declared_at(text, at.start(), at.end())) is not None]
    templates = [entry for entry in read if entry.template]
    found: dict[str, Entry] = {}
    for entry in (e if e.template or e.body else _instance(e, templates) for e in read):
        found.setdefault(entry.name, entry)  # a declaration and its definition are one kernel
        if len(entry.body) > len(found[entry.name].body):
            found[entry.name] = entry
    return tuple(entry for entry in found.values() if entry.body or "<" in entry.name)


def _instance(entry: Entry, templates: Sequence[Entry]) -> Entry:
    """Return an explicit instance by the whole name of its template, with the arguments that its types tell.

    What is declared, and is an instance of none of the templates, is returned as it is.
    """
    base, _, given = entry.name.partition("<")
    for template in templates:
        if f"::{base}".endswith(f"::{template.name}") or f"::{template.name}".endswith(f"::{base}"):
            types = {p.type: o.type for p, o in zip(template.parameters, entry.parameters, strict=False)}
            known = split(given.rpartition(">")[0])
            known += [types.get(p.split()[-1], "") for p in template.template[len(known) :]]
            whole = f"<{', '.join(filter(None, known))}>" if all(known) or given else ""
            return replace(entry, name=template.name + whole)
    return entry


@functools.lru_cache(maxsize=_KEPT)
def blank(source: str) -> str:
    """Return a text of the same length with spaces for comments, strings and directives."""
    return _NOISE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def find(known: Sequence[Entry], name: str) -> Entry | None:
    """Return the entry that `name` means: the template of which it is an instance, else itself."""
    by_name = {entry.name: entry for entry in known}
    return by_name.get(name.partition("<")[0].strip()) or by_name.get(name)


def declared_at(text: str, begin: int, after: int) -> Entry | None:
    """Return the function whose ``__global__`` stands there, or None where none is declared."""
    head, start = "", after
    bounds = int(early[1]) if (early := _BOUNDS_BEFORE.search(text[:begin])) else None
    while True:  # up to the parameters: past the parentheses of __launch_bounds__ and attributes
        opened = text.find("(", start)
        if opened < 0 or re.search(r"[;{}]", text[after:opened]):
            return None
        head = text[after:opened]
        closed = closing(text, opened)
        if closed < 0:
            return None
        if _ATTRIBUTE.search(head):
            if limit := _BOUNDS.search(text[after : closed + 1]):
                bounds = int(limit[1]) if limit[1].strip().isdigit() else None
            start = closed + 1
            continue
        break
    name = _NAME.search(head)
    if name is None:
        return None
    template = _TEMPLATE.search(text[:begin])
    instance = template is not None and template[1] is None
    body = text[closed + 1 :].lstrip()[:1]
    own = text[closed : closing(text, text.index("{", closed))] if body == "{" else ""
    given = () if template is None or instance else split((template[1] or "")[1:-1])
    parameters = tuple(
        parameter(p, f"p{n}") for n, p in enumerate(split(text[opened + 1 : closed])) if p != "void"
    )
    return Entry(
        name="::".join([*items.namespaces(text[:begin]), re.sub(r"\s*(<|::)\s*", r"\1", name[1])]),
        parameters=parameters,
        template=tuple(p.partition("=")[0].rstrip() for p in given),
        defaults=tuple(p.partition("=")[2].strip() for p in given),
        bounds=bounds,
        flat=items.flat(text),
    ).with_body(items.counted(own))


def dimensions(body: str, index: str) -> int:
    """Return 2 or 3 where a body uses the y or z of an index, else 1."""
    used = (n for n, axis in ((2, "y"), (3, "z")) if re.search(rf"\b{index}\s*\.\s*{axis}\b", body))
    return max([1, *used])


def _an_item(body: str, axis: str, names: Sequence[str]) -> bool:
    """Return True where the index of a block is used, also as ``int row = blockIdx.x;``, and multiplied by
    nothing but parameters, or a part of one. With ``if (row >= rows) return;`` a factor is a row's length.
    """
    names = [*names, *(part for part, whole in divided(body).items() if whole in names)]
    index = rf"blockIdx\s*\.\s*{axis}"
    alike = named(body, index)
    by = re.findall(rf"(?!(?<=\s)\s)([\w.]*)\s*\*\s*(?:{alike})\b|\b(?:{alike})\s*(?:\*|<<)\s*([\w.]*)", body)
    known = all((left or right) in names for left, right in by)
    own = alike.partition("|")[2] or "(?!)"
    known = known or any(n in names for n in re.findall(rf"\b(?:{own})\s*(?:>=|<)\s*(\w+)\s*[);&|]", body))
    return bool(re.search(index, body)) and known and "mul24" not in body


def divided(body: str) -> dict[str, str]:
    """Return the variables that are a part of another name, ``vectors = columns / 4;``, with that."""
    return dict(re.findall(r"\b(\w+)\s*=\s*(\w+)\s*/\s*\w+\s*;", body))


def _steps(body: str, axis: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (axis, step, whether the thread's index is added) for products of the block's index."""
    block, thread = (named(body, rf"{index}\s*\.\s*{axis}") for index in ("blockIdx", "threadIdx"))
    factor = r"(?:\w+(?:\s*\.\s*[xyz]\b)?|\([^()]*\))"
    before, after = rf"(?:{factor}\s*\*\s*)+", rf"(?:\s*\*\s*{factor})+"
    product = rf"(?:({before}\b(?:{block})\b(?:{after})?)|\b(?:{block})\b({after}))"
    own = dict(re.findall(r"\bconst(?:expr)?\s+\w+\s+(\w+)\s*=\s*(\d+)\s*;", body))
    for at in re.finditer(rf"(\b(?:{thread})\s*\+\s*\(?)?{product}(\s*\)?\s*\+\s*(?:{thread})\b)?", body):
        plain = re.sub(rf"\b(?:{block})\b\s*\*?", "", at[2] or at[3]).strip(" \n\t*")
        yield axis, re.sub(r"(?<!\.)\b\w+", lambda w: own.get(w[0], w[0]), plain), bool(at[1] or at[4])


def named(body: str, index: str) -> str:
    """Return a pattern of an index and of the variables that are it, ``int bx = blockIdx.x;``."""
    return "|".join([index, *re.findall(rf"(\w+)\s*=\s*{index}\s*[,;]", body)])


def parameter(text: str, unnamed: str) -> Parameter:
    """Return a parameter from its declaration, ``const float* __restrict__ x``."""
    text = re.sub(r"=.*", "", text)
    words = re.sub(r"__restrict(?:__)?\b|\b(?:restrict|volatile|struct|__(?:grid_)?constant__)\b", " ", text)
    words = re.sub(r"<[^;(){}]*>", lambda given: given[0].translate(_HIDDEN), words)  # Span<float*>
    levels = words.count("*") + words.count("[")
    const = bool(re.search(r"\bconst\b", words.partition("*")[0]))
    plain = re.sub(r"\[.*?\]|[*&]|\bconst\b", " ", words).split()
    named = len(plain) > 1 and plain[-1].isidentifier() and plain[-1] not in _TYPE_WORDS
    kind, name = (plain[:-1], plain[-1]) if named else (plain, unnamed)
    stars = "*" * max(0, levels - 1)  # of a pointer to pointers
    whole, variable = " ".join(kind).translate(_SHOWN) + stars, "__constant__" in text
    return Parameter(type=whole, name=name, pointer=levels > 0, const=const, constant=variable)


def split(text: str) -> list[str]:
    """Return the parts of a list at its commas, those inside of brackets excepted; a shift opens none."""
    parts, depth = [""], 0
    for c in re.findall(r"<<|<=|>=|->|.", text, re.DOTALL):
        depth += (c in list("<([{")) - (c in list(">)]}"))
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def closing(text: str, at: int) -> int:
    """Return where the bracket at `at` is closed; -1 if it is not."""
    pair = {"(": "()", "{": "{}", "[": "[]"}[text[at]]
    depth = 0
    for found in re.compile(f"[{re.escape(pair)}]").finditer(text, at):
        depth += 1 if found[0] == pair[0] else -1
        if not depth:
            return found.start()
    return -1
