"""Kernels as their files describe them (`Kernel`), and with their parameters chosen (`Variant`)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import SpecError, UsageError, nearest
from harness.kernels import frontmatter, text
from harness.kernels.arch import Arch
from harness.kernels.dtypes import DTYPES, ELEMENT, FP32, DType
from harness.kernels.expectation import Expectation
from harness.kernels.expr import BLOCK_NAMES, GRID_NAMES, Expr, ExprError, remembered
from harness.kernels.prediction import Prediction

GUESSED = "guessed"  # the problem of a kernel without front matter
MAX_THREADS = 1024  # threads per block, on every CUDA architecture
MAX_BOX = 256  # elements along either side of a box that TMA copies
LAYOUT = ("TRANSA", "TRANSB")  # a GEMM's parameters that say which matrices are stored transposed

Params = Mapping[str, int]
Tiles = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel file for one element type, read and checked.

    `dtype` names the element type of a gemm's matrices, `dtypes` every type the file is written for, the
    default first. `aliases` maps a type to a former name. `after` names the kernel that this one came from.
    `entry` is the kernel's name, with namespace and template arguments if any, which may use `params`.
    `include` lists folders of headers, relative to the file's, and `options` further ones of the compiler.
    `plain` is the name of a kernel without front matter, whose problem, block and tile are guesses; else "".

    `block` and `tile` are expressions over `params`: the threads of a block (x, y, z), and the extents of the
    output that one block covers, outermost first. `grid` and `workspace` may also use the number of tiles
    that cover the output (TILES_X, TILES_Y, TILES_Z), the GPU's number of multiprocessors (SMS), and the axes
    of a problem in a file. Without `grid` there is one block per tile. `workspace` is in bytes; a pointer to
    that memory is the kernel's last argument. The blocks of a `cooperative` kernel wait for each other, so
    all of them must run at the same time. Where `programmatic` is not 0, it may begin before the kernel
    launched before it has ended, and waits for that itself. `loads` is the number of elements that a block
    loads from global memory for one step of k. `sums` names how a gemm's products are added, and `parts` into
    how many parts k is cut (`harness.dispatch.choose.order`). `tensormaps` are passed before all other
    arguments. `params` maps a name to its tuning space, the default first. `requires` limits the sizes that
    it takes. `broken` says why a kernel that is wrong on purpose is wrong.
    """

    path: Path
    source: str
    language: str
    title: str
    entry: str
    block: tuple[Expr, ...]
    tile: tuple[Expr, ...]
    grid: tuple[Expr, ...] = ()
    problem: str = "gemm"
    dtype: str = FP32.name
    dtypes: tuple[str, ...] = (FP32.name,)
    aliases: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    min_arch: str = "sm_75"
    include: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    plain: str = ""
    shared: Expr
    workspace: Expr | None = None
    cooperative: bool = False
    programmatic: Expr = field(default_factory=lambda: Expr.parse(0))
    loads: Expr | None = None
    sums: str = ""
    parts: Expr = field(default_factory=lambda: Expr.parse(1))
    where: tuple[Expr, ...] = ()
    requires: tuple[Expr, ...] = ()
    sass: Mapping[str, tuple[Expectation, ...]] = field(default_factory=dict)
    claim: str = ""
    predict: tuple[Prediction, ...] = ()
    broken: str = ""
    tensormaps: tuple[frontmatter.TensorMap, ...] = ()
    params: Mapping[str, tuple[int, ...]]

    def __repr__(self) -> str:
        return f"<Kernel {self.name}: {self.title or 'no front matter'}>"

    @property
    def name(self) -> str:
        """Return the file's stem, with the element type appended where it is not the file's default."""
        own = self.path.stem if self.dtype == self.dtypes[0] else f"{self.path.stem}_{self.dtype}"
        return self.plain or own

    def with_dtype(self, dtype: str) -> Kernel:
        """Return this kernel for another element type of its file. Raises UsageError for any other type."""
        if dtype not in self.dtypes:
            kinds = f"its element type{'s are' if len(self.dtypes) > 1 else ' is'} {', '.join(self.dtypes)}"
            hint = f"{kinds}: `dtype` in its front matter lists them"
            raise UsageError(f"{self.path.stem} is not written for {dtype}", where=str(self.path), hint=hint)
        return replace(self, dtype=dtype)

    def each_dtype(self) -> tuple[Kernel, ...]:
        """Return this kernel for each element type of its file, the default first."""
        return tuple(replace(self, dtype=dtype) for dtype in self.dtypes)

    def expectations(self, arch: str) -> tuple[Expectation, ...]:
        """Return what the file expects of its machine code for `arch`.

        A list for exactly `arch` comes before one for its number (sm_90 for sm_90a), and that before the one
        for every architecture. Empty where the file has none.
        """
        return next((self.sass[n] for n in (arch, f"sm_{Arch.parse(arch).number}", "") if n in self.sass), ())

    def fits(self, arch: str) -> bool:
        """Return True where ``min_arch`` lets this kernel be compiled for `arch`."""
        return Arch.parse(arch).satisfies(Arch.parse(self.min_arch))

    def variant(self, **chosen: int) -> Variant:
        """Return this kernel with `chosen` parameters and the first value of every other parameter.

        Raises UsageError for an unknown parameter, and for values that the file's `where` does not allow.
        """
        return next(self.variants({name: (value,) for name, value in chosen.items()}, defaults=True))

    def variants(
        self, chosen: Mapping[str, Sequence[int]] | None = None, *, defaults: bool = False
    ) -> Iterator[Variant]:
        """Yield every parameter set that `where` allows, in the order of the file.

        `chosen` replaces the listed values of a parameter by any integers; PTX takes only its own. With
        `defaults`, parameters that are not chosen keep their first value. Raises UsageError for an unknown
        parameter, and where no parameter set is left.
        """
        chosen = chosen or {}
        for name, values in chosen.items():
            if name not in self.params:
                hint = nearest(name, self.params)
                raise UsageError(f"no parameter {name}", where=str(self.path), hint=hint)
            if self.language == "ptx" and set(values) - set(self.params[name]):
                fixed = f"{name} is {self.params[name][0]} in this PTX text and cannot be changed"
                raise UsageError(fixed, where=str(self.path))
        spaces = [chosen.get(name, of[:1] if defaults else of) for name, of in self.params.items()]
        found, broken, where = False, dict[str, None](), {str(w): remembered(w) for w in self.where}
        for params in (dict(zip(self.params, values, strict=True)) for values in itertools.product(*spaces)):
            if fault := self.unmet(params, where):
                broken[fault] = None
            else:
                found = True
                yield Variant(kernel=self, params=params).checked()
        if not found:
            sets = zip(self.params, spaces, strict=True)
            tried = " ".join(f"{n}={s[0] if len(s) == 1 else list(s)}" for n, s in sets)
            raise UsageError(
                f"no parameter set of {tried} satisfies where = {list(broken)}",
                where=str(self.path),
                hint="choose other values with -p, or widen the lists under [params]",
            )

    def unmet(self, params: Params, where: Mapping[str, Callable[[Params], int]] | None = None) -> str:
        """Return the first condition of `where` that these parameters do not meet, or an empty string."""
        try:
            where = where or {str(w): w for w in self.where}
            return next((text for text, met in where.items() if not met(params)), "")
        except ExprError as e:
            raise SpecError(f"where: {e}", where=str(self.path)) from None


@dataclass(frozen=True, kw_only=True)
class Box:
    """A `TensorMap` with its parameters chosen: `rows` and `columns` in elements, the others in bytes."""

    operand: str
    rows: int
    columns: int
    swizzle: int
    promotion: int


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kernel with its parameters chosen. This is what is compiled, launched and measured."""

    kernel: Kernel
    params: Params

    def __repr__(self) -> str:
        return f"<Variant {self.label}>"

    def checked(self) -> Variant:
        """Return this variant. Raises SpecError where an expression has no sensible value for its params."""
        _ = self.block, self.tile, self.shared, self.loads, self.boxes
        return self

    @property
    def entry(self) -> str:
        """Return the kernel's name, with the values of parameters among its template arguments."""
        name, opened, arguments = self.kernel.entry.partition("<")
        values = {**self.params, ELEMENT: DTYPES[self.kernel.dtype].cpp}
        return name + opened + re.sub(r"\w+", lambda found: str(values.get(found[0], found[0])), arguments)

    @property
    def params_label(self) -> str:
        """Return the parameters as ``BM=128 BN=64``."""
        return " ".join(f"{name}={value}" for name, value in self.stated.items())

    @property
    def stated(self) -> dict[str, int]:
        """Return the parameters as records have them: those of the layout only where they are not 0."""
        return {name: value for name, value in self.params.items() if value or name not in LAYOUT}

    @property
    def label(self) -> str:
        """Return the kernel's name and all parameters: ``03_tiled TILE=16``."""
        return f"{self.kernel.name} {self.params_label}".rstrip()

    @property
    def brief(self) -> str:
        """Return the label without the parameters that have their default value."""
        chosen = [f"{n}={v}" for n, v in self.params.items() if (v,) != self.kernel.params.get(n, ())[:1]]
        return " ".join([self.kernel.name, *chosen])

    @cached_property
    def block(self) -> tuple[int, int, int]:
        """Return the threads (x, y, z) of a block, 1 to 1024 in all."""
        x, y, z = (*(self._value("block", e, least=1) for e in self.kernel.block), 1, 1)[:3]
        if x * y * z > MAX_THREADS:
            self._refuse(f"block is {x} x {y} x {z} threads; {MAX_THREADS} at most")
        return x, y, z

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return math.prod(self.block)

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """Return the extents of the output that one block covers, outermost first."""
        return tuple(self._value("tile", e, least=1) for e in self.kernel.tile)

    def grid(self, tiles: Tiles, sms: int, axes: Params | None = None) -> tuple[int, int, int]:
        """Return the blocks (x, y, z) of a launch on `sms` SMs, where `tiles` (x, y, z) cover the output."""
        if not self.kernel.grid:
            return tiles
        values = self._named(tiles, sms, axes)
        x, y, z = (*(self._value("grid", e, least=1, values=values) for e in self.kernel.grid), 1, 1)[:3]
        return x, y, z

    def workspace(self, tiles: Tiles, sms: int, axes: Params | None = None) -> int:
        """Return the bytes of memory, zero before the first launch, that it needs; arguments as of `grid`."""
        if self.kernel.workspace is None:
            return 0
        blocks = dict(zip(BLOCK_NAMES, self.grid(tiles, sms, axes), strict=True))
        return self._value("workspace", self.kernel.workspace, values=self._named(tiles, sms, axes) | blocks)

    def _named(self, tiles: Tiles, sms: int, axes: Params | None) -> dict[str, int]:
        names = dict(zip(GRID_NAMES, (*tiles, sms), strict=True))
        return {**(axes or {}), **self.params, **names}

    def expectations(self, arch: str) -> tuple[Expectation, ...]:
        """Return what the file expects of the machine code of these parameters for `arch`."""
        found = self.kernel.expectations(arch)
        return tuple(e for e in found if e.condition is None or self._value("sass", e.condition))

    def unmet(self, axes: Mapping[str, int | float]) -> str:
        """Return the first of ``requires`` that these axes do not meet; empty where they meet all."""
        try:
            values: Any = {**axes, **self.params}
            return next((str(e) for e in self.kernel.requires if not e(values)), "")
        except ExprError as e:
            self._refuse(f"requires: {e}")

    @cached_property
    def shared(self) -> int:
        """Return the dynamic shared memory of a block in bytes."""
        return self._value("shared", self.kernel.shared)

    @property
    def programmatic(self) -> bool:
        """Return True where it may begin before the kernel launched before it has ended."""
        return self._value("programmatic", self.kernel.programmatic) > 0

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """Return the boxes of the tensor maps that the kernel takes; raises SpecError where TMA copies none.

        Extents are 1 to 256 elements, rows a multiple of 16 bytes, with a swizzle no longer than that.
        """
        taken = (t for t in self.kernel.tensormaps if self._value(f"tensormaps.{t.operand}", t.where))
        return tuple(self._box(t, DTYPES[self.kernel.dtype]) for t in taken)

    def _box(self, tensor_map: frontmatter.TensorMap, dtype: DType) -> Box:
        key = f"tensormaps.{tensor_map.operand}"
        rows, columns = (self._value(key, e, least=1) for e in tensor_map.box)
        inner = columns * dtype.itemsize
        sizes = {name: self._value(key, e) for name, e in tensor_map.sizes.items()}
        if wrong := [f"{n} {size}" for n, size in sizes.items() if size not in frontmatter.BYTES[n]]:
            self._refuse(f"{key}: {', '.join(wrong)}; it takes {frontmatter.BYTES}")
        if max(rows, columns) > MAX_BOX:
            self._refuse(f"{key}: a box of {rows} x {columns}; {MAX_BOX} is the most")
        if inner % 16 or 0 < sizes["swizzle"] < inner:
            limit = f", at most the swizzle's {sizes['swizzle']}" if sizes["swizzle"] else ""
            self._refuse(f"{key}: a row of {columns} {dtype.name} is {inner} bytes; it takes 16s{limit}")
        return Box(operand=tensor_map.operand, rows=rows, columns=columns, **sizes)

    @cached_property
    def loads(self) -> int | None:
        """Return the elements a block loads for one step of k; None where not stated."""
        return None if self.kernel.loads is None else self._value("loads", self.kernel.loads, least=1)

    def _value(self, key: str, expr: Expr, *, least: int = 0, values: Params | None = None) -> int:
        try:
            value = expr(self.params if values is None else values)
        except ExprError as e:
            self._refuse(f"{key}: {e}")
        if value < least:
            self._refuse(f"{key} = {expr.text!r} is {value}; {least} is the least")
        return value

    def _refuse(self, what: str) -> NoReturn:
        hint = f"with {self.params_label}" if self.params else ""
        raise SpecError(what, where=str(self.kernel.path), hint=hint)


def load(path: Path | str) -> Kernel:
    """Read and check the kernel at `path` (``.cu`` or ``.ptx``), which has front matter, for its first type.

    Raises UsageError for a file that cannot be read, and SpecError with file, line and key for front matter
    that is missing or malformed. `harness.kernels.catalog.load_each` also takes files without.
    """
    return parse(text.read(Path(path)), Path(path))


def parse(source: str, path: Path) -> Kernel:
    """Return the kernel of text already read, as `load` does.

    `path` need not exist: it gives the kernel its language and name, and errors their place.
    """
    title, fields = frontmatter.read(source, path)
    dtypes = fields.pop("dtype", (FP32.name,))
    language = text.SUFFIXES[path.suffix]
    fields |= {"dtype": dtypes[0], "dtypes": dtypes, "language": language, "title": title}
    kernel = Kernel(path=path, source=source, **fields)
    if language == "ptx" and any(len(values) > 1 for values in kernel.params.values()):
        raise SpecError("a PTX file is fixed text: give each parameter one value", where=str(path))
    if language == "ptx" and len(dtypes) > 1:
        raise SpecError("a PTX file is fixed text: give it one element type", where=str(path))
    return kernel
