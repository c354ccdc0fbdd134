"""Options and small steps that several verbs share."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from harness.cli import axes, guide, running, streams
from harness.errors import MissingDependency, NoGpu, SpecError, UsageError
from harness.kernels import arch as arch_names
from harness.kernels import catalog
from harness.kernels.arch import Arch
from harness.kernels.dtypes import DTYPES
from harness.kernels.spec import Kernel, Variant

if TYPE_CHECKING:
    from harness.driver import Device
    from harness.problems.protocol import Axes, Problem
    from harness.support.cache import Cache

EMULATOR = "emulator"  # the value of --device that asks for it
F = TypeVar("F", bound=Callable[..., Any])


class Finite(click.FloatRange):
    """A range of finite numbers: click's own accepts NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Fails if it is NaN, infinite or out of range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Percent(Finite):
    """A percentage, ``2`` or ``2%``, which is converted to a fraction, 0.02."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the fraction."""
        if isinstance(value, str):
            value = value.strip().removesuffix("%")
        return float(super().convert(value, param, ctx)) / 100


class Seconds(Finite):
    """A time, ``120``, ``120s``, ``2m`` or ``1h``, which is converted to seconds."""

    name = "time"
    _units: ClassVar = {"s": 1, "m": 60, "h": 3600}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds."""
        unit = value[-1:] if isinstance(value, str) and value[-1:] in self._units else ""
        number = value.removesuffix(unit) if unit else value
        return super().convert(number, param, ctx) * self._units.get(unit, 1)


kernels = click.argument("kernels", metavar="[KERNEL]...", nargs=-1, shell_complete=guide.complete_kernels)
params = click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A kernel parameter: TILE=32 or TILE=[8,16]; without front matter a macro.",
)
sweep = click.option("--sweep", is_flag=True, help="Every parameter set of the kernel file, not the default.")
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
entry = click.option(
    "--entry",
    metavar="NAME",
    help="Which kernel of a file with several, or which instance of a template: 'k<float, 16>'.",
)
_FOLDER = click.Path(exists=True, file_okay=False)
include = click.option("-I", "--include", multiple=True, type=_FOLDER, help="Headers are there, too.")
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
allow_refused = click.option(
    "--allow-refused", is_flag=True, help="Exit 0, not 3, where the emulator refuses a kernel."
)
budget = click.option(
    "--budget", type=click.IntRange(1), metavar="N", help="Emulated: instructions of a batch of blocks."
)
strict = click.option(
    "--strict", is_flag=True, help="Emulated: stores of the same value by several threads fail, too."
)
sms = click.option(
    "--sms",
    type=click.IntRange(min=1, max=1024),
    metavar="N",
    help="Emulated: multiprocessors of which a persistent kernel makes its grid; 4 by default.",
)
markdown = click.option("--md", "style", flag_value="md", help="Tables as Markdown.")
comma = click.option("--csv", "style", flag_value="csv", help="One CSV table, plain numbers in base units.")


def regime(text: str) -> Callable[[F], F]:
    """Return ``--regime``, explained by `text`."""
    return click.option(
        "--regime",
        type=click.Choice(["cold", "hot", "graph"]),
        default="cold",
        show_default=True,
        help=text,
    )


def threshold(default: str, text: str) -> Callable[[F], F]:
    """Return the option ``--threshold``, the difference that counts, with this default and help text."""
    return click.option("--threshold", type=Percent(min=0), default=default, show_default=True, help=text)


def rule(command: F) -> F:
    """Add the options of a `StopRule` to a command; its parameters have the names of the rule's fields."""
    seconds = Finite(min=0)
    for option in reversed(
        (
            click.option(
                "--min-samples",
                default=10,
                show_default=True,
                type=click.IntRange(min=1, max=1_000_000),
                help="Of each row.",
            ),
            click.option(
                "--min-time", default=0.2, show_default=True, type=seconds, help="Seconds of samples."
            ),
            click.option(
                "--stopping-criterion",
                "criterion",
                type=click.Choice(["stdrel", "entropy"]),
                default="stdrel",
                show_default=True,
                help="When there are enough samples, as in nvbench.",
            ),
            click.option(
                "--max-noise",
                default="0.5%",
                show_default=True,
                type=Percent(min=0),
                help="Relative standard deviation for stdrel; sampling goes on above it.",
            ),
            click.option(
                "--timeout",
                default=2.0,
                show_default=True,
                type=seconds,
                help="Seconds of samples after which the criterion no longer matters.",
            ),
            click.option(
                "--throttle-threshold",
                default="60%",
                show_default=True,
                type=Percent(min=0),
                help="Discard samples below this share of the rated SM clock; power caps alone go down to "
                "70% or so.",
            ),
        )
    ):
        command = option(command)
    return command


json_file = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    callback=streams.or_stdout,
    help="Also write everything, raw samples included, to FILE; for - to stdout, and tables to stderr.",
)


def variants(
    patterns: Sequence[str],
    param_texts: Sequence[str],
    *,
    sweep: bool = False,
    dtypes: Sequence[str] = (),
    strict: bool = True,
    entry: str | None = None,
    include: Sequence[str] = (),
) -> tuple[list[Kernel], list[Variant]]:
    """Return the kernels a command line names and their variants: defaults, `-p` values, or the whole space.

    With several kernels a parameter goes to those that have it; one that none has is an error. `dtypes` and
    `strict` are as in `catalog.select`, `entry` and `include` as in `catalog.chosen`.
    """
    selected = catalog.select(patterns, dtypes, strict=strict)
    if entry is not None and not patterns:
        raise UsageError("--entry is of one file: name it")
    chosen = axes.parse_params(param_texts)
    selected = axes.with_macros(catalog.chosen(selected, entry, include), chosen)
    if entry is None:
        running.tell_templates(selected)
    if not selected:
        raise UsageError("there are no kernels", hint="cu/ and ptx/ are empty or missing")
    for name in chosen:
        if not any(name in k.params for k in selected):
            known = ", ".join(sorted({p for k in selected for p in k.params}))
            hint = f"parameters: {known or 'none; [params] in front matter has them'}"
            raise UsageError(f"no kernel here has a parameter {name}", hint=hint)
    found: list[Variant] = []
    for kernel in selected:
        own = {name: values for name, values in chosen.items() if name in kernel.params}
        found += kernel.variants(own, defaults=not sweep)
    return selected, found


def archs(text: str | None) -> list[str]:
    """Return the architectures in ``sm_75,sm_90a``, each once; empty for None. Raises UsageError for none."""
    if text is None:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--arch names no architecture", hint="such as --arch sm_75,sm_90a")
    return list(dict.fromkeys(str(Arch.parse(name)) for name in names))


def one_arch(text: str | None, gpu: Device | None) -> str:
    """Return the architecture to compile for: the one in `text`, else the GPU's, else the default.

    Raises UsageError if `text` has several.
    """
    names = archs(text)
    if len(names) > 1:
        raise UsageError(f"one architecture at a time here, not {', '.join(names)}")
    if names:
        return names[0]
    return str(Arch.of_capability(*gpu.capability)) if gpu else arch_names.DEFAULT


def points(
    kernels: Sequence[Kernel], texts: Sequence[str], default: str, also: Sequence[type[Problem]] = ()
) -> dict[type[Problem], list[Axes]]:
    """Return the sizes to visit for the problem of each kernel, and for each problem in `also`.

    They come from `texts`, the values of `-a`, or else from the problem's list named `default`. Raises
    UsageError for axes that do not fit, and SpecError for an empty list.
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
            checks.instance(cls, point)  # raises for a size that makes no sense, before anything is compiled
    return found


def typical(listed: Sequence[Axes]) -> Axes:
    """Return the second largest of a problem's sizes, which is large enough to fill a GPU."""
    return listed[max(0, len(listed) - 2)]


def words(text: str) -> list[str]:
    """Split a kernel and its parameters as a shell does, except for the path of a file, which may have
    blanks.

    Raises UsageError if it cannot be split or is empty.
    """
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
    """Return the GPU to use, or None and why the emulator takes its place.

    If a GPU is `required` or named, raises NoGpu where it does not exist and MissingDependency without the
    CUDA bindings. Raises UsageError for a name that cannot be a GPU's.
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
    """Return a record's entry for the GPU on which it was made."""
    from dataclasses import asdict

    from harness.driver import driver_version

    return {**asdict(gpu), "driver": "{}.{}".format(*driver_version())}


def open_cache() -> Cache:
    """Return the cache of compiled kernels."""
    from harness.support.cache import Cache, default_root

    return Cache(default_root())
