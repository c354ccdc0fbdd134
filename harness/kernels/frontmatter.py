"""Read the TOML block at the top of a kernel file into checked, typed values.

The block stands in the file's leading ``//`` comments, between ``/// kernel`` and ``///`` (the format of
PEP 723). `KEYS` lists every key. Each error is a SpecError that names the file, the line and the key.
"""

from __future__ import annotations

import itertools
import keyword
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import SpecError, UsageError, nearest
from harness.kernels import expectation, prediction, text
from harness.kernels.arch import Arch
from harness.kernels.cpp.compilers import nvrtc
from harness.kernels.dtypes import DTYPES, ELEMENT, FP32
from harness.kernels.expectation import Expectation
from harness.kernels.expr import AXES, BLOCK_NAMES, GRID_NAMES, TAKEN, Expr, ExprError
from harness.kernels.prediction import Prediction

MAX_CONFIGS = 1_000_000  # a space larger than this is a mistake in the front matter, not a space
BYTES = {"swizzle": (0, 32, 64, 128), "promotion": (256, 0, 64, 128)}  # of a tensor map, the default first
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_ENTRY = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*\s*(?:<[\w\s:,<>()*&+-]*>)?\Z", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """A TMA descriptor of an operand, whose `box`, (rows, columns) in elements, is what one copy moves.

    Of its `sizes` in bytes `swizzle` is that within which the 16-byte units of the box are permuted in shared
    memory, `promotion` that of a fetch of L2, and 0 is for none. Where `where` is 0, no map is taken.
    """

    operand: str
    box: tuple[Expr, Expr]
    sizes: Mapping[str, Expr]
    where: Expr


def read(source: str, path: Path) -> tuple[str, dict[str, Any]]:
    """Return (title, values by key) of the kernel text `source`. `path` is for the messages.

    A key that is absent is left out, except `params`, `tile`, `shared` and `programmatic`, which have
    defaults here. Raises SpecError where the block is missing or malformed.
    """
    title, toml, first_line = text.block(source, path)
    reader = _Reader(path, toml, first_line)
    fields = {key: read_one(reader, key) for key, read_one in KEYS.items() if key in reader.table}
    fields.pop("names", None)  # they stand in the expressions already
    zero = Expr.parse(0)
    fields = {"tile": (), "shared": zero, "programmatic": zero, **fields}
    reader.check_names(fields)
    return title, fields


class _Reader:
    """Typed access to the parsed TOML. A value that is not as it must be raises SpecError."""

    def __init__(self, path: Path, toml: str, first_line: int) -> None:
        self.path, self._lines, self._first = path, toml.splitlines(), first_line
        self._named: dict[str, Expr] = {}
        try:
            self.table: dict[str, Any] = tomllib.loads(toml)
        except tomllib.TOMLDecodeError as e:
            at = re.search(r"at line (\d+)", str(e))
            line = first_line + int(at[1]) - 1 if at else first_line + len(self._lines)
            what = re.sub(r" \(at (line \d+, column \d+|end of document)\)", "", str(e))
            raise SpecError(f"front matter is not TOML: {what}", where=f"{path}:{line}") from None
        except (ValueError, RecursionError) as e:  # thousands of digits, or of brackets
            raise SpecError(f"front matter cannot be read: {e}", where=f"{path}:{first_line}") from None
        for key in self.table:
            if key not in KEYS:
                self.fail(key, f"unknown key {key!r}", nearest(key, KEYS, "known keys:"))
        for key in ("names", "params"):  # what follows a table is part of it
            if not isinstance(self.table.setdefault(key, {}), dict):
                self.fail(key, f"{key} must be a table: [{key}]")
            if own := next((name for name in self.table[key] if name in KEYS), ""):
                self.fail(own, f"{own!r} stands under [{key}]", "move it above: tables come last")
        for key in ("entry", "block"):
            if key not in self.table:
                self.fail("", f"the front matter lacks {key}")
        if not {"tile", "grid"} & set(self.table):
            self.fail(
                "", "the front matter lacks tile", "the output that one block covers; or grid, the blocks"
            )

    def fail(self, key: str, what: str, hint: str = "") -> NoReturn:
        """Raise SpecError with the file and the line on which `key` stands."""
        names = (key, key.rpartition(".")[2], key.partition(".")[0]) if key else ()  # sass.sm_75, sm_75, sass
        patterns = [re.compile(rf"\s*(\[\s*)?[\"']?{re.escape(name)}\b") for name in names]
        offset = next((i for p in patterns for i, line in enumerate(self._lines) if p.match(line)), 0)
        raise SpecError(what, where=f"{self.path}:{self._first + offset}", hint=hint)

    def text(self, key: str) -> str:
        value = self.table[key]
        if not isinstance(value, str) or not value.strip():
            self.fail(key, f"{key} must be a non-empty string, not {value!r}")
        return value.strip()

    def flag(self, key: str) -> bool:
        if not isinstance(value := self.table[key], bool):
            self.fail(key, f"{key} must be true or false, not {value!r}")
        return value

    def entry(self, key: str) -> str:
        value = self.text(key)
        if not _ENTRY.match(value):
            self.fail(key, f"{key} = {value!r} is not a kernel's name", "such as 'matmul' or 'k<float, 16>'")
        return value

    def strings(self, key: str, value: Any, example: str) -> list[str]:
        """Return `value` if it is a list of strings."""
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.fail(key, f"{key} must be a list of strings such as {example!r}, not {value!r}")
        return value

    def include(self, key: str) -> tuple[str, ...]:
        return tuple(self.strings(key, self.table[key], "../include"))

    def options(self, key: str) -> tuple[str, ...]:
        found = self.strings(key, self.table[key], "--use_fast_math")
        for option in found:
            if reason := nvrtc.refusal(option):
                self.fail(key, f"options: {option} is not passed on: {reason}")
        return tuple(found)

    def arch(self, key: str) -> str:
        return self._arch(key, self.text(key), key)

    def _arch(self, key: str, name: str, said: str) -> str:
        try:
            return str(Arch.parse(name))
        except UsageError as e:
            self.fail(key, f"{said}: {e.what}", e.hint)

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
            return Expr.parse(value, self._named)
        except ExprError as e:
            self.fail(key, f"{key}: {e}")

    def names(self, key: str) -> None:
        """Read names for parts of expressions, each of which may use those above it."""
        for name, value in self.table[key].items():
            if not _IDENTIFIER.match(name) or keyword.iskeyword(name) or name in TAKEN:
                self.fail(name, f"{name} cannot name a part of an expression")
            self._named[name] = self._parse(name, value)

    def dtypes(self, key: str) -> tuple[str, ...]:
        """Read one element type or a list of them, the default first."""
        value = self.table[key]
        names = value if isinstance(value, list) and value else [self.text(key)]
        for name in names:
            if not isinstance(name, str) or name not in DTYPES:
                self.fail(key, f"no element type {name!r}", nearest(str(name), DTYPES, "known:"))
        if len(set(names)) < len(names):
            self.fail(key, f"dtype lists a type twice: {value}")
        if self.table.get("problem", "gemm") != "gemm":
            self.fail(key, "dtype is that of the gemm problem; others have their own")
        return tuple(names)

    def word(self, key: str) -> str:
        """Read a kernel's name, or the path of one. Whether there is such a kernel is not checked here."""
        value = self.text(key)
        if re.search(r"[\s*?\[]", value):
            self.fail(key, f"{key} = {value!r} is not one kernel's name", "such as '14_warp_tiles'")
        return value

    def aliases(self, key: str) -> dict[str, str]:
        """Read a table of former names by element type: ``{fp16 = "24_wgmma_fp16"}``."""
        table = self.table[key]
        if not isinstance(table, dict) or not table:
            self.fail(key, f'{key} must be a table such as {{fp16 = "24_wgmma_fp16"}}, not {table!r}')
        types = self.dtypes("dtype") if "dtype" in self.table else (FP32.name,)
        for dtype, name in table.items():
            if dtype not in types:
                self.fail(key, f"{key}: {dtype} is not an element type of this file ({', '.join(types)})")
            if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
                self.fail(key, f"{key}: {name!r} is not a kernel's name", "such as '24_wgmma_fp16'")
        return dict(table)

    def tensormaps(self, key: str) -> tuple[TensorMap, ...]:
        """Read a table of lines such as ``A = {box = ["BM", 64], swizzle = 128}``.

        The order of its lines is the order in which the kernel takes the maps.
        """
        table = self.table[key]
        if not isinstance(table, dict) or not table:
            self.fail(key, "tensormaps must be a table: [tensormaps] with a line for each operand")
        return tuple(self._tensormap(f"{key}.{operand}", operand, entry) for operand, entry in table.items())

    def _tensormap(self, key: str, operand: str, entry: Any) -> TensorMap:
        if self.table.get("problem", "gemm") == "gemm" and operand not in ("A", "B", "C"):
            self.fail(key, f"no operand {operand!r} to map", "operands: A, B, C")
        if not isinstance(entry, dict) or not {"box"} <= set(entry) <= {"box", "where", *BYTES}:
            self.fail(key, f'{operand} must be {{box = ["ROWS", 64], swizzle = 128}}, not {entry!r}')
        box, sizes = entry["box"], {name: entry.get(name, known[0]) for name, known in BYTES.items()}
        if not isinstance(box, list) or len(box) != 2:
            self.fail(key, f"box of {operand} must be [rows, columns], not {box!r}")
        for name, size in sizes.items():
            if isinstance(size, bool) or (size not in BYTES[name] and not isinstance(size, str)):
                self.fail(key, f"{name} of {operand} must be one of {BYTES[name]} bytes, not {size!r}")
        rows, columns, where = (self._parse(key, given) for given in (*box, entry.get("where", 1)))
        read = {name: self._parse(key, size) for name, size in sizes.items()}
        return TensorMap(operand=operand, box=(rows, columns), where=where, sizes=read)

    def sass(self, key: str) -> dict[str, tuple[Expectation, ...]]:
        """Read expectations by architecture, under "" those for every architecture without its own.

        The value is a list, or a table with ``expect`` and a ``[sass.sm_75]`` for each one that differs.
        """
        value = self.table[key]
        table = value if isinstance(value, dict) else {"expect": value}
        found: dict[str, tuple[Expectation, ...]] = {}
        for name, entry in table.items():
            if name == "expect":
                found[""] = self._expectations(key, entry)
            elif not isinstance(entry, dict):
                self.fail(
                    f"sass.{name}", f"sass holds expect = [...] and tables such as [sass.sm_75], not {name}"
                )
            elif set(entry) != {"expect"}:
                self.fail(f"sass.{name}", f"[sass.{name}] holds expect = [...] and nothing else")
            else:
                arch = self._arch(f"sass.{name}", name, f"[sass.{name}]")
                found[arch] = self._expectations(f"sass.{name}", entry["expect"])
        return found

    def _expectations(self, key: str, value: Any) -> tuple[Expectation, ...]:
        texts = self.strings(key, value, "LDS.128 in loop")
        try:
            return tuple(self._expectation(key, text) for text in texts)
        except UsageError as e:
            self.fail(key, f"{key}: {e.what}", e.hint)

    def _expectation(self, key: str, text: str) -> Expectation:
        expected, _, condition = text.partition(" if ")
        found = replace(expectation.parse(expected), text=text)
        return replace(found, condition=self._parse(key, condition)) if condition else found

    def predictions(self, key: str) -> tuple[Prediction, ...]:
        texts = self.strings(key, self.table[key], "conflicts == 0")
        try:
            return tuple(prediction.parse(v) for v in texts)
        except UsageError as e:
            self.fail(key, f"{key}: {e.what}", e.hint)

    def params(self, key: str) -> dict[str, tuple[int, ...]]:
        spaces: dict[str, tuple[int, ...]] = {}
        size = 1
        for name, listed in self.table[key].items():
            if name in self._named:
                self.fail(name, f"{name} is a parameter and a name under [names]")
            if not _IDENTIFIER.match(name) or name in nvrtc.RESERVED or name.startswith("__"):
                self.fail(name, f"parameter {name!r} cannot be a macro's name", "such as TILE or BM")
            if name in (*GRID_NAMES, *BLOCK_NAMES):
                self.fail(name, f"parameter {name}: this name means something else in grid and workspace")
            if name == self.table.get("entry"):
                self.fail(name, f"parameter {name} is the kernel's own name: it becomes a macro")
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

    def check_names(self, fields: Mapping[str, Any]) -> None:
        """Raise SpecError where an expression uses a name that is no parameter."""
        params = fields["params"]
        if len(fields.get("dtype", ())) > 1:
            if ELEMENT in params:
                self.fail(ELEMENT, f"parameter {ELEMENT}: with several types it is the macro of the type")
            if fields["entry"] == ELEMENT:
                self.fail("entry", f"entry = {ELEMENT!r}: with several types it is the macro of the type")
        for key in _EXPRESSIONS:
            value = fields.get(key, ())
            if ":" in fields.get("problem", "") and key in _FURTHER:
                continue  # the axes of a problem in a file: known when it is loaded, looked up at a launch
            known = dict.fromkeys((*params, *_FURTHER.get(key, ())))
            for expr in (value,) if isinstance(value, Expr) else value:
                self._check_names(key, expr, known)
        for expected in itertools.chain(*fields.get("sass", {}).values()):
            self._check_names("sass", expected.condition or Expr.parse(1), params)
        for tensor_map in fields.get("tensormaps", ()):
            for expr in (*tensor_map.box, *tensor_map.sizes.values(), tensor_map.where):
                self._check_names(f"tensormaps.{tensor_map.operand}", expr, params)

    def _check_names(self, key: str, expr: Expr, known: Mapping[str, Any]) -> None:
        for name in sorted(expr.names - set(known)):
            self.fail(key, f"{key} uses {name}, which is not under [params]", nearest(name, known))


# Every key of the front matter and the method that reads it, in the order of the documentation.
KEYS: dict[str, Callable[[_Reader, str], Any]] = {
    "entry": _Reader.entry,
    "problem": _Reader.text,
    "dtype": _Reader.dtypes,
    "aliases": _Reader.aliases,
    "after": _Reader.word,
    "min_arch": _Reader.arch,
    "include": _Reader.include,
    "options": _Reader.options,
    "names": _Reader.names,
    "block": _Reader.exprs,
    "tile": _Reader.exprs,
    "grid": _Reader.exprs,
    "shared": _Reader.expr,
    "workspace": _Reader.expr,
    "cooperative": _Reader.flag,
    "programmatic": _Reader.expr,
    "loads": _Reader.expr,
    "sums": _Reader.text,
    "parts": _Reader.expr,
    "where": _Reader.exprs,
    "requires": _Reader.exprs,
    "sass": _Reader.sass,
    "claim": _Reader.text,
    "predict": _Reader.predictions,
    "broken": _Reader.text,
    "tensormaps": _Reader.tensormaps,
    "params": _Reader.params,
}
_EXPRESSIONS = [key for key, read_one in KEYS.items() if read_one in (_Reader.expr, _Reader.exprs)]
_FURTHER = {"grid": (*GRID_NAMES, *AXES[:3]), "requires": AXES}
_FURTHER["workspace"] = (*_FURTHER["grid"], *BLOCK_NAMES)
_DIMENSIONS = dict.fromkeys(("block", "tile", "grid"), 3)
