"""A kernel file and its front matter -> a frozen `Kernel`; parameters chosen -> a `Variant`.

The front matter is TOML in the file's leading ``//`` comments, between ``/// kernel`` and ``///``
(the shape of PEP 723). `KEYS` below is the whole vocabulary; an unknown key is an error.
"""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import SpecError, UsageError
from harness.expr import Expr, ExprError

OPEN, CLOSE = "/// kernel", "///"
MAX_THREADS = 1024  # a block, on every CUDA architecture
MAX_CONFIGS = 100_000  # a space larger than this is a mistake in the front matter, not a space
_SUFFIXES = {".cu": "cuda", ".ptx": "ptx"}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_ARCH = re.compile(r"sm_\d+[af]?\Z")

Params = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel file, read and checked.

    `block` and `tile` are expressions over `params`: threads (x, y, z), and the extents of the output
    that one block covers, outermost first. `loads` is the number of floats a block loads from global
    memory for one step of k, the source of the arithmetic-intensity column. `params` maps a name to
    its tuning space, the default first. `broken` says why a kernel that is wrong on purpose is wrong.
    """

    path: Path
    source: str
    language: str
    title: str
    entry: str
    block: tuple[Expr, ...]
    tile: tuple[Expr, ...]
    problem: str = "gemm"
    min_arch: str = "sm_75"
    shared: Expr
    loads: Expr | None = None
    where: tuple[Expr, ...] = ()
    claim: str = ""
    broken: str = ""
    params: Mapping[str, tuple[int, ...]]

    @property
    def name(self) -> str:
        return self.path.stem

    def variant(self, **chosen: int) -> Variant:
        """This kernel with `chosen` parameters and the first value of every other one."""
        return next(self.variants({name: (value,) for name, value in chosen.items()}, defaults=True))

    def variants(
        self, chosen: Mapping[str, Sequence[int]] | None = None, *, defaults: bool = False
    ) -> Iterator[Variant]:
        """Every parameter set of the space that `where` allows, in the order of the file.

        `chosen` replaces the listed values of a parameter, by any integers (a PTX file is fixed text:
        only its own). With `defaults` the parameters not chosen stay at their first value.
        Raises UsageError for an unknown parameter and where nothing is left.
        """
        chosen = chosen or {}
        for name, values in chosen.items():
            if name not in self.params:
                raise UsageError(
                    f"no parameter {name}", where=str(self.path), hint=_nearest(name, self.params, "it has")
                )
            if self.language == "ptx" and set(values) - set(self.params[name]):
                raise UsageError(
                    f"{name} is {self.params[name][0]} in this PTX text and cannot be changed",
                    where=str(self.path),
                )
        spaces = [
            chosen.get(name, values[:1] if defaults else values) for name, values in self.params.items()
        ]
        found = False
        for values in itertools.product(*spaces):
            params = dict(zip(self.params, values, strict=True))
            if self._allowed(params):
                found = True
                yield Variant(kernel=self, params=params)
        if not found:
            tried = " ".join(f"{n}={list(s)}" for n, s in zip(self.params, spaces, strict=True))
            raise UsageError(
                f"no parameter set of {tried} satisfies where = {[str(w) for w in self.where]}",
                where=str(self.path),
                hint="choose other values with -p, or widen the lists under [params]",
            )

    def _allowed(self, params: Params) -> bool:
        try:
            return all(w(params) for w in self.where)
        except ExprError as e:
            raise SpecError(f"where: {e}", where=str(self.path)) from None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kernel with its parameters chosen: what is compiled, launched and measured."""

    kernel: Kernel
    params: Params

    @property
    def params_label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())

    @property
    def label(self) -> str:
        return f"{self.kernel.name} {self.params_label}".rstrip()

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads (x, y, z) of a block; 1 to 1024 of them in all."""
        shape = self._each("block", self.kernel.block)
        x, y, z = (*shape, 1, 1)[:3]
        if x * y * z > MAX_THREADS:
            self._refuse(f"block is {x} x {y} x {z} threads; a block holds {MAX_THREADS} at most")
        return x, y, z

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z

    @property
    def tile(self) -> tuple[int, ...]:
        """Extents of the output that one block covers, outermost first."""
        return self._each("tile", self.kernel.tile)

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory a block."""
        return self._value("shared", self.kernel.shared, least=0)

    @property
    def loads(self) -> int | None:
        """Floats a block loads from global memory for one step of k, where the file says so."""
        return None if self.kernel.loads is None else self._value("loads", self.kernel.loads, least=1)

    def _each(self, key: str, exprs: tuple[Expr, ...]) -> tuple[int, ...]:
        return tuple(self._value(key, e, least=1) for e in exprs)

    def _value(self, key: str, expr: Expr, *, least: int) -> int:
        try:
            value = expr(self.params)
        except ExprError as e:
            self._refuse(f"{key}: {e}")
        if value < least:
            self._refuse(f"{key} = {expr.text!r} is {value}; {least} is the least")
        return value

    def _refuse(self, what: str) -> NoReturn:
        hint = f"with {self.params_label}" if self.params else ""
        raise SpecError(what, where=str(self.kernel.path), hint=hint)


def load(path: Path | str) -> Kernel:
    """Read and check the kernel at `path` (``.cu`` or ``.ptx``).

    Raises UsageError for a file that cannot be read and SpecError (file, line, key) for front matter
    that is missing or malformed.
    """
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise UsageError("not a kernel file", where=str(path), hint="kernels end in .cu or .ptx")
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError("no such file", where=str(path)) from None
    except UnicodeDecodeError as e:
        raise SpecError(f"not UTF-8 text (byte {e.start})", where=str(path)) from None
    except OSError as e:
        raise UsageError(f"cannot be read: {e.strerror}", where=str(path)) from None
    return parse(source, path)


def parse(source: str, path: Path) -> Kernel:
    """The same for text already read; `path` names it in errors and gives its language and name."""
    title, toml, first_line = _front_matter(source, path)
    reader = _Reader(path, source, toml, first_line)
    fields = {key: read(reader, key) for key, read in KEYS.items() if key in reader.table or key in _REQUIRED}
    language = _SUFFIXES[path.suffix]
    params = fields.setdefault("params", {})
    fields.setdefault("shared", Expr.parse("0"))
    reader.check_names(fields, params)
    if language == "ptx" and any(len(values) > 1 for values in params.values()):
        reader.fail("params", "a PTX file is fixed text: give each parameter one value")
    return Kernel(path=path, source=source, language=language, title=title, **fields)


def _front_matter(source: str, path: Path) -> tuple[str, str, int]:
    """(title, TOML text, line number of its first line) of the leading comment."""
    comments = list(itertools.takewhile(lambda s: s.startswith("//"), source.splitlines()))
    body = [line.removeprefix("//").removeprefix(" ").rstrip() for line in comments]
    opens = [i for i, line in enumerate(comments) if line.removeprefix("//").strip() == OPEN]
    if not opens:
        raise SpecError(
            "no front matter",
            where=str(path),
            hint=f"the file must begin with // comments that hold '// {OPEN}' ... '// {CLOSE}' "
            "with at least entry, block and tile",
        )
    if len(opens) > 1:
        raise SpecError(f"a second '// {OPEN}'", where=f"{path}:{opens[1] + 1}")
    start = opens[0] + 1
    try:
        end = next(i for i in range(start, len(body)) if body[i].strip() == CLOSE)
    except StopIteration:
        raise SpecError(
            f"the front matter opened here is not closed by '// {CLOSE}'", where=f"{path}:{start}"
        ) from None
    title = next((line.strip() for line in body[: opens[0]] if line.strip()), path.stem)
    return title, "\n".join(body[start:end]), start + 1


class _Reader:
    """Typed access to the parsed TOML; every refusal names file, line and key."""

    def __init__(self, path: Path, source: str, toml: str, first_line: int) -> None:
        self.path, self._lines, self._first = path, toml.splitlines(), first_line
        try:
            self.table: dict[str, Any] = tomllib.loads(toml)
        except tomllib.TOMLDecodeError as e:
            at = re.search(r"at line (\d+)", str(e))
            line = first_line + int(at[1]) - 1 if at else first_line + len(self._lines)
            what = re.sub(r" \(at (line \d+, column \d+|end of document)\)", "", str(e))
            raise SpecError(f"front matter is not TOML: {what}", where=f"{path}:{line}") from None
        for key in self.table:
            if key not in KEYS:
                self.fail(key, f"unknown key {key!r}", _nearest(key, KEYS, "known keys:"))
        for key in _REQUIRED:
            if key not in self.table:
                self.fail("", f"the front matter lacks {key}")

    def fail(self, key: str, what: str, hint: str = "") -> NoReturn:
        pattern = re.compile(rf"\s*(\[\s*)?[\"']?{re.escape(key)}\b") if key else re.compile(r"(?!)")
        offset = next((i for i, line in enumerate(self._lines) if pattern.match(line)), 0)
        raise SpecError(what, where=f"{self.path}:{self._first + offset}", hint=hint)

    def text(self, key: str) -> str:
        value = self.table[key]
        if not isinstance(value, str) or not value.strip():
            self.fail(key, f"{key} must be a non-empty string, not {value!r}")
        return value.strip()

    def identifier(self, key: str) -> str:
        value = self.text(key)
        if not _IDENTIFIER.match(value):
            self.fail(key, f"{key} = {value!r} is not a C identifier")
        return value

    def arch(self, key: str) -> str:
        value = self.text(key)
        if not _ARCH.match(value):
            self.fail(key, f"{key} = {value!r} is not an architecture", "such as sm_75, sm_80 or sm_90a")
        return value

    def expr(self, key: str) -> Expr:
        return self._parse(key, self.table[key])

    def exprs(self, key: str) -> tuple[Expr, ...]:
        value = self.table[key]
        items = value if isinstance(value, list) else [value]
        if not items or (key in _DIMENSIONS and len(items) > _DIMENSIONS[key]):
            self.fail(key, f"{key} takes 1 to {_DIMENSIONS.get(key, 'n')} expressions, not {len(items)}")
        return tuple(self._parse(key, item) for item in items)

    def _parse(self, key: str, value: Any) -> Expr:
        if isinstance(value, bool) or not isinstance(value, str | int):
            self.fail(key, f"{key} must hold integer expressions, not {value!r}")
        try:
            return Expr.parse(value)
        except ExprError as e:
            self.fail(key, f"{key}: {e}")

    def params(self, key: str) -> dict[str, tuple[int, ...]]:
        table = self.table[key]
        if not isinstance(table, dict):
            self.fail(key, "params must be a table: [params]")
        spaces: dict[str, tuple[int, ...]] = {}
        size = 1
        for name, listed in table.items():
            if name in KEYS:
                self.fail(name, f"{name!r} stands under [params]", "move it above: [params] comes last")
            if not _IDENTIFIER.match(name):
                self.fail(name, f"parameter {name!r} is not a C identifier: it becomes a macro")
            values = listed if isinstance(listed, list) else [listed]
            if not values or any(type(v) is not int for v in values):
                self.fail(name, f"parameter {name} must be an integer or a list of integers, not {listed!r}")
            if len(set(values)) < len(values):
                self.fail(name, f"parameter {name} lists a value twice: {listed}")
            spaces[name] = tuple(values)
            size *= len(values)
        if size > MAX_CONFIGS:
            self.fail(key, f"{size} parameter sets; {MAX_CONFIGS} at most")
        return spaces

    def check_names(self, fields: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Every name an expression uses must be a parameter."""
        for key in ("block", "tile", "where", "shared", "loads"):
            value = fields.get(key, ())
            for expr in (value,) if isinstance(value, Expr) else value:
                for name in sorted(expr.names - set(params)):
                    hint = _nearest(name, params, "parameters:")
                    self.fail(key, f"{key} uses {name}, which is not under [params]", hint)


# Every key of the front matter and how it is read, in the order of the documentation.
KEYS: dict[str, Callable[[_Reader, str], Any]] = {
    "entry": _Reader.identifier,
    "problem": _Reader.text,
    "min_arch": _Reader.arch,
    "block": _Reader.exprs,
    "tile": _Reader.exprs,
    "shared": _Reader.expr,
    "loads": _Reader.expr,
    "where": _Reader.exprs,
    "claim": _Reader.text,
    "broken": _Reader.text,
    "params": _Reader.params,
}
_REQUIRED = ("entry", "block", "tile")
_DIMENSIONS = {"block": 3, "tile": 3}


def _nearest(name: str, known: Mapping[str, Any], otherwise: str) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"{otherwise} {', '.join(known)}" if known else "it has no parameters"
