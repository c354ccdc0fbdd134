"""Options and small steps that several verbs share."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from harness.cli import axes
from harness.errors import (
    INCONCLUSIVE_EXIT,
    HarnessError,
    Interrupted,
    MissingDependency,
    NoGpu,
    SpecError,
    UsageError,
)
from harness.kernels import arch as arch_names
from harness.kernels import catalog
from harness.kernels.arch import Arch
from harness.kernels.dtypes import DTYPES
from harness.kernels.spec import Kernel, Variant
from harness.support import terminal

if TYPE_CHECKING:
    from harness.bench.measure import Measurement
    from harness.driver import Device
    from harness.problems.protocol import Axes, Problem
    from harness.sass.builds import Skipped
    from harness.support.cache import Cache

EMULATOR = "emulator"  # in place of a GPU
T = TypeVar("T")
Record = Mapping[str, Any]


class Finite(click.FloatRange):
    """click lets NaN and infinity through its ranges."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Percent(Finite):
    """``2`` or ``2%``, as a fraction: 0.02."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            value = value.strip().removesuffix("%")
        return float(super().convert(value, param, ctx)) / 100


class Seconds(Finite):
    """``120``, ``120s``, ``2m`` or ``1h``, in seconds."""

    name = "time"
    _units: ClassVar = {"s": 1, "m": 60, "h": 3600}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        unit = value[-1:] if isinstance(value, str) and value[-1:] in self._units else ""
        number = value.removesuffix(unit) if unit else value
        return super().convert(number, param, ctx) * self._units.get(unit, 1)


kernels = click.argument("kernels", metavar="[KERNEL]...", nargs=-1)
params = click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A kernel parameter: TILE=32 or TILE=[8,16].",
)
sweep = click.option(
    "--sweep", is_flag=True, help="Every parameter set that the kernel file lists, not the default."
)
axis = click.option(
    "-a",
    "--axis",
    "axis",
    multiple=True,
    metavar="NAME=VALUE",
    help="A problem size: N=[512,1024] (N alone is the square), M=300, alpha=0.5.",
)
dtype = click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(list(DTYPES)),
    help="Element type of kernels written for several, by default their first, and of matmul, by default "
    "fp32. May be given again.",
)
arch = click.option("--arch", metavar="SM[,SM]...", help="Architectures, such as sm_75,sm_90a.")
device = click.option(
    "-d",
    "--device",
    metavar="N|UUID|emulator",
    help="Which GPU; the first by default, and without a GPU the emulator.",
)
a_gpu = click.option("-d", "--device", metavar="N|UUID", help="Which GPU; the first by default.")
seed = click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(min=0), help="Of the random inputs."
)
require_gpu = click.option("--require-gpu", is_flag=True, help="Fail where there is no GPU.")
markdown = click.option("--md", "style", flag_value="md", help="Tables as Markdown.")
comma = click.option("--csv", "style", flag_value="csv", help="One CSV table, plain numbers in base units.")
json_file = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also write everything, raw samples included, to FILE.",
)


def variants(
    patterns: Sequence[str],
    param_texts: Sequence[str],
    *,
    sweep: bool = False,
    dtypes: Sequence[str] = (),
    strict: bool = True,
) -> tuple[list[Kernel], list[Variant]]:
    """Return the kernels a command line names and their variants: defaults, `-p` values, or the whole space.

    With several kernels a parameter goes to those that have it; one that none has is an error. `dtypes` and
    `strict` are as in `catalog.select`.
    """
    selected = catalog.select(patterns, dtypes, strict=strict)
    if not selected:
        raise UsageError("there are no kernels", hint="cu/ and ptx/ are empty or missing")
    chosen = axes.parse_params(param_texts)
    for name in chosen:
        if not any(name in k.params for k in selected):
            known = sorted({p for k in selected for p in k.params})
            raise UsageError(f"no kernel here has a parameter {name}", hint=f"parameters: {', '.join(known)}")
    found: list[Variant] = []
    for kernel in selected:
        own = {name: values for name, values in chosen.items() if name in kernel.params}
        found += kernel.variants(own, defaults=not sweep)
    return selected, found


def archs(text: str | None) -> list[str]:
    """``sm_75,sm_90a`` -> its names, each once; empty where nothing was asked for."""
    if text is None:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--arch names no architecture", hint="such as --arch sm_75,sm_90a")
    return list(dict.fromkeys(str(Arch.parse(name)) for name in names))


def one_arch(text: str | None, gpu: Device | None) -> str:
    """The architecture to compile for: the one asked for, the GPU's own, or the default without a GPU."""
    names = archs(text)
    if len(names) > 1:
        raise UsageError(f"one architecture at a time here, not {', '.join(names)}")
    if names:
        return names[0]
    return str(Arch.of_capability(*gpu.capability)) if gpu else arch_names.DEFAULT


def points(
    kernels: Sequence[Kernel], texts: Sequence[str], default: str, also: Sequence[type[Problem]] = ()
) -> dict[type[Problem], list[Axes]]:
    """The sizes to visit for each problem that the kernels solve, and each of `also`: from `-a`, else its own
    `default` list.
    """
    from harness.problems import checks
    from harness.problems.registry import by_problem

    found: dict[type[Problem], list[Axes]] = {}
    for cls in dict.fromkeys([*by_problem(kernels), *also]):
        listed = axes.points(texts, cls.axes) if texts else getattr(cls, default)
        found[cls] = list(listed)
        if not found[cls]:
            raise SpecError(f"{default} is empty: no size to visit", where=f"problem {cls.__qualname__}")
        for point in found[cls]:
            checks.instance(cls, point)  # says now, before compilers run, that a size makes no sense
    return found


def typical(listed: Sequence[Axes]) -> Axes:
    """One size of those that a problem is measured at: the second largest, large enough to fill a GPU."""
    return listed[max(0, len(listed) - 2)]


def words(text: str) -> list[str]:
    """A kernel and what goes with it, parted as a shell does; the path of a file may have blanks."""
    if Path(text).is_file():
        return [text]
    try:
        found = shlex.split(text)
    except ValueError as e:
        raise UsageError(f"{text!r}: {str(e).lower()}", hint="such as 'tiled TILE=32'") from None
    if not found:
        raise UsageError("a kernel without a name", hint="such as 'tiled TILE=32'")
    return found


def open_device(name: str | None, *, required: bool = False) -> tuple[Device | None, str]:
    """The GPU asked for; or None and why the emulator takes its place.

    Raises NoGpu where one is required, or was named and is not there, UsageError for what is no name of any.
    """
    from harness.driver import Device

    if name == EMULATOR:
        if required:
            raise UsageError(f"the {EMULATOR} is no GPU, which is needed here", hint="leave --device away")
        return None, "In the emulator, as asked"
    if name is not None and not re.fullmatch(r"-?[0-9]+|gpu.*", name.strip(), re.IGNORECASE):
        others = "" if required else f", or {EMULATOR}"
        raise UsageError(
            f"no GPU is called {name!r}", hint=f"its number, or a UUID that begins so: GPU-5a{others}"
        )
    try:
        return Device.open(name), ""
    except (NoGpu, MissingDependency) as e:
        if required or name is not None:
            raise
        return None, f"No GPU ({e.what}): in the emulator"


def about(gpu: Device) -> dict[str, Any]:
    """What a record says of the GPU that it was made on."""
    from dataclasses import asdict

    from harness.driver import driver_version

    return {**asdict(gpu), "driver": "{}.{}".format(*driver_version())}


def open_cache() -> Cache:
    from harness.support.cache import Cache, default_root

    return Cache(default_root())


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, on a terminal only; yields what to call with the name of each step as it begins."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _step: None
        return
    from tqdm import tqdm

    with tqdm(total=total, leave=False, bar_format="{n_fmt}/{total_fmt} {bar:20} {elapsed} {desc}") as bar:
        begun = False

        def step(name: str) -> None:
            nonlocal begun
            bar.update(begun)  # the step before this one is done
            begun = True
            bar.set_description_str(name)

        yield step


def steps(
    variants: Sequence[Variant], points: Mapping[type[Problem], Sequence[Axes]], rounds: int = 1
) -> int:
    """How many steps a run reports to `progress`: a build each, and inputs, baseline and rows a point."""
    from harness.problems.registry import resolve

    rows = sum(len(points.get(resolve(v.kernel), ())) for v in variants)
    return len(variants) + rounds * (rows + 2 * sum(map(len, points.values())))


def collect(rows: Iterable[T]) -> tuple[list[T], HarnessError | None]:
    """All rows, or those before a fault or Ctrl-C, and what ended them early."""
    found: list[T] = []
    try:
        for row in rows:
            found.append(row)  # one at a time: what was measured is kept
    except HarnessError as e:
        return found, e
    except KeyboardInterrupt:
        return found, Interrupted("interrupted: these are the rows measured before")
    return found, None


def by_kernel(rows: Iterable[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """By what was built, not by name: two files may share theirs."""
    groups: dict[int, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(id(row.built), []).append(row)
    return [(group[0].label, group) for group in groups.values()]


def name_shapes(points: Mapping[type[Problem], Sequence[Axes]]) -> None:
    """Below a table that has no room for them."""
    for cls, axes_list in points.items():
        whole = [cls.from_axes(a).label.replace(" ", "\N{NO-BREAK SPACE}") for a in axes_list]
        text = terminal.fill(f"shapes: {', '.join(whole)}", " " * 8)
        click.echo(text.replace("\N{NO-BREAK SPACE}", " "))


def explain(rows: Sequence[Record], skipped: Sequence[Skipped], *, err: bool = False) -> None:
    """Below a table: every row that is not simply right, and every kernel that has none. What holds for
    several is said once.
    """
    from harness.bench.measure import REFUSED

    said: dict[str, list[Record]] = {}
    for row in rows:
        if row["status"] != "ok" and row["detail"]:
            # Of a refusal only what the emulator has not: which line wants it, another kernel's does not say.
            reason = row["detail"].split("\n")[0] if row["status"] == REFUSED else row["detail"]
            said.setdefault(reason, []).append(row)
    for reason, group in said.items():
        where = f"{row_label(group[0])}, {group[0]['shape']}" if len(group) == 1 else _where(group, rows)
        whole = {row["detail"] for row in group}
        click.echo(terminal.fill(f"{where}: {whole.pop() if len(whole) == 1 else reason}"), err=err)
    why: dict[str, list[str]] = {}
    for s in skipped:
        name, error = (s.variant.label, str(s.error)) if s.failed else (s.variant.kernel.name, s.error.what)
        why.setdefault(f"{s.arch}: {error}", []).append(name)
    for error, names in why.items():
        click.echo(terminal.fill(f"skipped {', '.join(dict.fromkeys(names))}, {error}"), err=err)


def _where(group: Sequence[Record], rows: Sequence[Record]) -> str:
    """``22_wgmma, 23_wgmma_pipeline (2 of 5)``: how many of its rows, where not all."""
    hit, all_ = (Counter(row["kernel"] for row in listed) for listed in (group, rows))
    return ", ".join(name if n == all_[name] else f"{name} ({n} of {all_[name]})" for name, n in hit.items())


def row_label(row: Record) -> str:
    """``03_tiled TILE=16``."""
    return " ".join([row["kernel"], *(f"{k}={v}" for k, v in row["params"].items())])


def finish(rows: Sequence[Record], skipped: Sequence[Skipped], fault: HarnessError | None = None) -> None:
    """The exit code: a fault is raised, and a row or kernel that failed is 1."""
    from harness.bench.measure import FAILURES

    if fault is not None:
        raise fault
    if any(r["status"] in FAILURES for r in rows) or any(s.failed for s in skipped):
        raise SystemExit(1)


def conclude(decisions: Iterable[str | None]) -> None:
    """The exit code of a comparison: 1 where something is slower, 3 where it cannot be told."""
    from harness.bench.stats import INCONCLUSIVE, SLOW

    found = set(decisions)
    if SLOW in found:
        raise SystemExit(1)
    if INCONCLUSIVE in found:
        raise SystemExit(INCONCLUSIVE_EXIT)
