"""``harness explain``: compare two kernels in figures, or check the claims of kernel files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options, running
from harness.errors import HarnessError, MissingDependency, UsageError
from harness.kernels import catalog

if TYPE_CHECKING:
    from harness.driver import Device
    from harness.kernels.prediction import Figures
    from harness.kernels.spec import Variant
    from harness.launch.builds import Built
    from harness.problems.protocol import Axes
    from harness.results.claims import Outcome, Runs


@click.command(name="explain")
@click.argument("kernels", metavar="[A] B", nargs=-1)
@click.option("--claims", is_flag=True, help="In place of A B: does what each kernel's file predicts hold?")
@options.axis
@options.device
@options.arch
@options.seed
@click.option(
    "--record",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A --json file of bench or profile: times and counters in it are shown, or held against claims.",
)
@options.markdown
@options.json_file
def command(
    kernels: tuple[str, ...],
    claims: bool,
    axis: tuple[str, ...],
    device: str | None,
    arch: str | None,
    seed: int,
    files: tuple[Path, ...],
    style: str | None,
    json_file: Path | None,
) -> None:
    """Say why B is faster than A: what changed in the machine code, in memory requests, in counters.

    A and B are kernels, with parameters in quotes: 'tiled TILE=32'. Without A it is the kernel that B was
    derived from (`after` in B's front matter), with the parameters given for B that it has. Counts are the
    emulator's, at the size of -a. With a GPU both are timed in turn. Exit code 1 where a prediction of a
    kernel's file does not hold.
    """
    from harness.cli.views import explained
    from harness.problems.registry import resolve

    if claims:
        _claims(kernels, _Counted(axis, arch, seed), files, seed, style, json_file)
        return
    if json_file is not None:
        raise UsageError("--json goes with --claims")
    if not 1 <= len(kernels) <= 2:
        raise UsageError(
            f"explain compares two kernels, not {len(kernels)}",
            hint="harness explain coalesced 'tiled TILE=32'; or --claims [KERNEL]...",
        )
    b = _variant(kernels[-1])
    a = _variant(kernels[0]) if len(kernels) == 2 else _predecessor(kernels[0], b)
    contents = [_read(path) for path in files]
    gpu, _ = options.open_device(device) if not files else (None, "")
    counted = _Counted(axis, arch or (str(_arch(gpu)) if gpu else None), seed)
    codes = [_code(counted.built(v)) for v in (a, b)]
    explained.print_head(a, b)
    times = explained.print_times(a, b, [(p.name, c) for p, c in zip(files, contents, strict=True)])
    if gpu is not None and resolve(a.kernel) is resolve(b.kernel):
        times += explained.print_paired(_paired(gpu, counted.built(a), counted.built(b), seed))
    elif gpu is not None and len(kernels) == 1:  # a rung may be derived from one of another element type
        click.echo("not timed in turn: the two solve different problems")
    elif gpu is not None:
        raise UsageError("the two solve different problems: their times cannot be compared")
    explained.print_code(codes[0], codes[1], style)
    figures = counted.figures(a), counted.figures(b)
    explained.print_figures(*figures, style)
    counted.note()
    bound = explained.print_counters(a, b, contents, style)
    listed = counted.outcomes(b, _runs(files, contents))
    explained.print_outcomes(b, listed, style)
    explained.print_conclusion((codes[0], codes[1]), figures, times, bound)
    _conclude(listed)


def _claims(
    kernels: Sequence[str],
    counted: _Counted,
    files: Sequence[Path],
    seed: int,
    style: str | None,
    json_file: Path | None,
) -> None:
    """Check what every kernel's file predicts: by the emulator, and by times and ncu's counters in
    `files`.
    """
    from harness.cli.views import explained
    from harness.results import claims, record

    record.check_writable(json_file, read=files)
    contents = [_read(path) for path in files]
    profiles = [row for c in contents if c["kind"] == "profile" for row in c["rows"]]
    runs = _runs(files, contents)

    def by_ncu(variant: Variant, at: Axes) -> Figures:
        tally = counted.built(variant).tally
        return claims.profiled(variant, at, profiles, copies=tally is None or tally.count("LDGSTS") > 0)

    _, variants = options.variants(kernels, ())
    claiming = [v for v in variants if v.kernel.claim or v.kernel.predict]
    if not claiming:
        raise UsageError(
            f"nothing to check: {', '.join(v.kernel.name for v in variants)} predicts nothing",
            hint="""add predict = ["conflicts == 0"] to a kernel's front matter""",
        )
    found, fault = running.collect(
        (v, counted.outcomes(v, runs), claims.outcomes(v, by_ncu, {})) for v in claiming
    )
    explained.print_claims(found, runs, style)
    if json_file is not None:
        rows = [claims.claim_record(v, counted.figures(v), ours, theirs) for v, ours, theirs in found]
        timed = {name: (content["meta"].get("gpu") or {}).get("name") for name, content in runs.items()}
        meta = record.provenance(seed=seed) | {"emulated": counted.about, "timed": timed}
        record.write_json(json_file, record.document("claims", rows, meta))
    counted.note()
    if fault is not None:
        raise fault
    _conclude([o for _, ours, theirs in found for o in (*ours, *(theirs if profiles else ()))])


class _Counted:
    """Kernels compiled and emulated on demand, each only once."""

    def __init__(self, axis: Sequence[str], arch: str | None, seed: int) -> None:
        self._axis, self._target, self._seed = axis, options.one_arch(arch, None), seed
        self._built: dict[str, Built] = {}
        self._figures: dict[str, Figures] = {}
        self._shapes: dict[str, None] = {}
        self._errors: dict[str, str] = {}

    def built(self, variant: Variant) -> Built:
        """Return the build of a variant."""
        from harness.launch import builds

        key = f"{variant.kernel.path} {variant.label}"
        if key not in self._built:
            (self._built[key],), _ = builds.build_all(
                [variant], [self._target], options.open_cache(), lambda _: None, depth="live"
            )
        return self._built[key]

    def figures(self, variant: Variant, at: Axes | None = None) -> Figures:
        """Return the figures of a variant at a size, or at the command line's where that is empty."""
        from harness.bench import emulation
        from harness.results import claims

        axis = [f"{name}={value}" for name, value in (at or {}).items()] or self._axis
        key = f"{variant.kernel.path} {variant.label} {axis}"
        if key not in self._figures:
            points = options.points([variant.kernel], axis, "verify_axes")
            small = {cls: listed[:1] for cls, listed in points.items()}
            how = emulation.Options(
                seed=self._seed,
                check=claims.predicts_races(variant.kernel),
                as_compiled=True,
                cache=options.open_cache(),
            )
            built = self.built(variant)
            (row,) = emulation.rows([built], small, how, lambda _: None)
            if row.emulation is None:
                self._errors[variant.label] = row.error
            self._shapes[row.problem.label] = None
            self._figures[key] = claims.figures(built, row)
        return self._figures[key]

    def outcomes(self, variant: Variant, runs: Runs) -> list[Outcome]:
        """Return the outcomes of a variant's predictions."""
        from harness.results import claims

        return claims.outcomes(variant, self.figures, runs)

    @property
    def about(self) -> str:
        """The sizes and the architecture at which figures were counted, in words."""
        return f"emulated at {', '.join(self._shapes)}, in the widths of the machine code ({self._target})"

    def note(self) -> None:
        """Print how figures were counted, and which kernels could not be emulated."""
        from harness.support import terminal

        if self._shapes:
            click.echo(terminal.fill(self.about))
        for error in dict.fromkeys(self._errors.values()):
            names = dict.fromkeys(label.split()[0] for label, why in self._errors.items() if why == error)
            click.echo(terminal.fill(f"not counted: {', '.join(names)}: {error}"))


def _variant(text: str) -> Variant:
    """Return the one variant that a text such as ``tiled TILE=32`` names. Raises UsageError if it is not
    one.
    """
    name, *params = options.words(text)
    _, variants = options.variants([name], params)
    if len(variants) != 1:
        raise UsageError(f"{text!r} names {len(variants)} kernels; one is needed")
    return variants[0]


def _predecessor(text: str, b: Variant) -> Variant:
    """Return the variant that B was derived from, with the parameters that `text` chooses and it has."""
    found = catalog.predecessor(b.kernel)
    if found is None:
        raise UsageError(
            f"{b.kernel.name} has no predecessor to be compared with",
            where=str(b.kernel.path),
            hint=f"harness explain A {b.kernel.name}; or name one in its front matter: after = ...",
        )
    chosen = {word.partition("=")[0] for word in options.words(text)[1:]}
    return found.variant(**{name: b.params[name] for name in found.params if name in chosen})


def _read(path: Path) -> Mapping[str, Any]:
    """Load a record of ``harness bench`` or ``harness profile``. Raises UsageError for any other."""
    from harness.results import record

    content = record.load(path)
    if content.get("kind") not in ("bench", "profile"):
        raise UsageError(
            "neither times nor counters in it", where=str(path), hint="a --json of bench or profile"
        )
    return content


def _runs(files: Sequence[Path], contents: Sequence[Mapping[str, Any]]) -> Runs:
    """Return the documents of bench by file name, with the folder if two have the same name."""
    names = [p.name for p in files]
    return {
        p.name if names.count(p.name) == 1 else str(p): dict(c)
        for p, c in zip(files, contents, strict=True)
        if c["kind"] == "bench"
    }


def _arch(gpu: Device) -> object:
    """Return the GPU's architecture."""
    from harness.kernels.arch import Arch

    return Arch.of_capability(*gpu.capability)


def _code(built: Built) -> Any:
    """Return the machine code of a build. Raises MissingDependency without nvdisasm."""
    from harness.sass.code import Code

    if built.sass is None:
        raise MissingDependency("nvdisasm is not installed", hint="pip install nvidia-cuda-nvdisasm")
    return Code.of(built.cubin, built.sass)


def _paired(gpu: Device, a: Built, b: Built, seed: int) -> Any:
    """Return B's row, timed in turn with A at the second largest of the problem's usual sizes.

    Raises UsageError if the two solve different problems.
    """
    from harness.bench.session import Bench
    from harness.bench.stopping import StopRule
    from harness.driver import Context
    from harness.problems.registry import resolve

    cls = resolve(b.variant.kernel)
    with Context(gpu) as context, Bench(context, rule=StopRule(), baseline=a, seed=seed) as session:
        *_, row = session.rows([b], {cls: [options.typical(cls.bench_axes)]}, lambda _: None)
    return row


def _conclude(found: Sequence[Outcome]) -> None:
    """Raise HarnessError if a prediction does not hold."""
    if any(o.holds is False for o in found):
        raise HarnessError(f"{sum(o.holds is False for o in found)} of {len(found)} predictions do not hold")
