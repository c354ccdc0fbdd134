"""The child of `harness.judging.session`: one task on one submission, with limits on what it may take.

``python -m harness.judging.worker REQUEST.json`` reads a `Request`, sets its own limits before it looks at
the submission, and appends a line of JSON to the request's `out` for each thing found. Lines that a killed
child has written are kept.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import BuildError, HarnessError, MissingDependency, NoGpu, SpecError
from harness.judging import policy, submission
from harness.judging.trials import Trials
from harness.judging.verdict import FAILED, PASSED, STATIC, WARNING, Check
from harness.kernels import arch as arch_names
from harness.kernels import spec
from harness.kernels.arch import Arch
from harness.kernels.expr import Expr
from harness.kernels.spec import Kernel
from harness.launch.builds import Built, Depth, build_all
from harness.problems.registry import BUILTIN, resolve
from harness.support import sandbox
from harness.support.cache import Cache

if TYPE_CHECKING:
    from harness.driver import Device

PREPARE, EMULATE, RUN = "prepare", "emulate", "run"
NO_GPU = "emulator"  # a device's name that asks for none
MOST_SHARED = 232_448
_LOG = 600  # characters of a compiler's log that a verdict quotes


@dataclass(frozen=True, kw_only=True)
class Request:
    """The work of a child.

    `kernel` is the private copy of the submission, `cache` the folder of its builds, `out` the file for
    results. `seconds` are those for trials, `memory` the bytes that the child may hold, `written` those of
    any file that it writes. `axes` are the sizes to time at, `ref` the kernel to time against, empty for
    cuBLAS. `allow` names static checks that only warn.
    """

    task: str
    kernel: str
    cache: str
    out: str
    problem: str
    dtype: str
    seed: int
    params: dict[str, int] = field(default_factory=dict)
    device: str | None = None
    arch: str = ""
    axes: list[dict[str, int | float]] = field(default_factory=list)
    regime: str = "cold"
    ref: str = ""
    allow: list[str] = field(default_factory=list)
    seconds: float = 8.0
    memory: int = 8 << 30
    written: int = 64 << 20


Tell = Callable[[str, Any], None]  # appends a line: what it is, and its content


def main(path: str) -> None:
    """Do what the request in the file at `path` asks for."""
    request = Request(**json.loads(Path(path).read_text()))
    _limit(request)
    out = Path(request.out)

    def tell(kind: str, content: Any) -> None:
        with out.open("a") as file:
            file.write(json.dumps([kind, content]) + "\n")

    task = {PREPARE: _prepare, EMULATE: _emulate, RUN: _run}[request.task]
    try:
        task(request, tell)
        tell("done", True)
    except HarnessError as e:
        tell("error", str(e))


def _limit(request: Request) -> None:
    """Bound memory, the size of files, core dumps and priority of this process and what it starts."""
    for what, most in (
        (resource.RLIMIT_DATA, request.memory),  # not RLIMIT_AS: CUDA reserves far more than it uses
        (resource.RLIMIT_FSIZE, request.written),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    if request.task == EMULATE:
        os.nice(10)


def _confine(request: Request, tell: Tell) -> None:
    """Leave the process the submission's private folder, where Landlock is there to do it."""
    folder = Path(request.out).parent
    sandbox.temporary(folder)
    tell("about", {"file_system": "confined" if sandbox.confine((), (folder,)) else "not confined"})


def _check(tell: Tell, name: str, where: str, outcome: str, reason: str = "") -> None:
    tell("check", asdict(Check(name=name, where=where, outcome=outcome, reason=reason)))


# -- the text, and the compiler


def _prepare(request: Request, tell: Tell) -> None:
    """Read the front matter, compile, and look at the PTX; tell of the GPU, too."""
    gpu = _device(request, tell)
    _confine(request, tell)
    try:
        kernel = _kernel(request)
        variant = kernel.variant(**request.params)
    except HarnessError as e:
        said = str(e).replace(f"{Path(request.kernel).parent}{os.sep}", "")  # a copy's, which nobody knows
        _check(tell, "sealed", STATIC, FAILED, said)
        return
    _check(tell, "sealed", STATIC, PASSED)
    arch = str(Arch.of_capability(*gpu.capability)) if gpu else arch_names.DEFAULT
    if gpu is None and not kernel.fits(arch):
        arch = kernel.min_arch
    tell("about", {"label": variant.label, "arch": arch, "requires": [str(e) for e in kernel.requires]})
    try:
        built = _built(request, arch, "sass" if gpu else "cubin")
    except MissingDependency:
        raise
    except HarnessError as e:
        log = e.log.strip()[:_LOG] if isinstance(e, BuildError) else ""
        _check(tell, "compiles", STATIC, FAILED, f"{e.what}{': ' if log else ''}{log}")
        return
    if built.cubin.shared > MOST_SHARED:
        said = (
            f"{built.cubin.shared:,} bytes of shared memory a block; {MOST_SHARED:,} are the most of any GPU"
        )
        _check(tell, "compiles", STATIC, FAILED, said)
        return
    _check(tell, "compiles", STATIC, PASSED, f"{built.cubin.compiler}, {arch}")
    for check in policy.check(built.cubin.ptx, request.allow):
        tell("check", asdict(check))
    known = submission.read(Path(request.kernel)).targets
    said = f"judged for {arch} alone, and it asks for another: {known}" if known else ""
    _check(tell, "other architectures", STATIC, WARNING if known else PASSED, said)
    _check(tell, "ends", STATIC, PASSED)


def _device(request: Request, tell: Tell) -> Device | None:
    """Return the GPU; None, with the reason told, where there is none or none was asked for."""
    from harness.driver import Device, driver_version

    if request.device == NO_GPU:
        tell("about", {"gpu": None, "no_gpu": "in the emulator, as asked"})
        return None
    try:
        gpu = Device.open(request.device)
    except (NoGpu, MissingDependency) as e:
        if request.device is not None:
            raise
        tell("about", {"gpu": None, "no_gpu": f"no GPU ({e.what})"})
        return None
    tell("about", {"gpu": {**asdict(gpu), "driver": "{}.{}".format(*driver_version())}})
    return gpu


def _kernel(request: Request) -> Kernel:
    """Read the submission, whose launches never begin under the end of the one before: they are timed apart.

    Raises SpecError if it is for another problem, brings Python, or is marked broken.
    """
    kernel = spec.load(request.kernel)
    name = Path(request.kernel).name
    if kernel.problem not in BUILTIN:
        raise SpecError(
            f"problem = {kernel.problem!r}: Python of a submission is not executed",
            where=name,
            hint=f"judged are {', '.join(BUILTIN)}; where you trust this Python: harness check",
        )
    if kernel.problem != request.problem:
        raise SpecError(f"it computes {kernel.problem}, not {request.problem}", where=name)
    submission.check(kernel)
    if kernel.broken:
        raise SpecError("its front matter says that it is broken", where=name)
    if request.problem == "gemm" and request.dtype not in kernel.dtypes:
        raise SpecError(f"it is written for {', '.join(kernel.dtypes)}, not {request.dtype}", where=name)
    kernel = replace(kernel, programmatic=Expr.parse(0))
    return kernel.with_dtype(request.dtype) if request.problem == "gemm" else kernel


def _built(request: Request, arch: str, depth: Depth = "sass") -> Built:
    """Build the submission for `arch`, or take it from its own cache."""
    variant = _kernel(request).variant(**request.params)
    (built,), _ = build_all([variant], [arch], Cache(Path(request.cache)), lambda _: None, depth=depth)
    return built


# -- the trials, in the emulator and on a GPU


def _emulate(request: Request, tell: Tell) -> None:
    """Make the trials in the emulator."""
    from harness.judging.machines import Emulated

    _confine(request, tell)
    built = _built(request, request.arch, "cubin")
    cls = resolve(built.variant.kernel)
    trials = Trials(Emulated(built), built.variant, cls, request.seed, _until(request), _step(tell))
    _try(request, tell, trials)


def _run(request: Request, tell: Tell) -> None:
    """Make the trials on a GPU, then time the kernel in turn with the reference."""
    from harness.driver import Context, Device
    from harness.judging.machines import OnGpu

    built = _built(request, request.arch)
    with Context(Device.open(request.device)) as context:
        with OnGpu(context, built) as machine:
            cls = resolve(built.variant.kernel)
            trials = Trials(machine, built.variant, cls, request.seed, _until(request), _step(tell))
            _try(request, tell, trials)
        if not trials.lost:
            tell("own", "preparing what is timed beside it")
            from harness.judging import times

            for kind, content in times.measured(context, built, request, _step(tell)):
                tell(kind, asdict(content))


def _until(request: Request) -> float:
    return time.monotonic() + request.seconds


def _step(tell: Tell) -> Callable[[str], None]:
    return lambda text: tell("step", text)


def _try(request: Request, tell: Tell, trials: Trials) -> None:
    for check in trials.run():
        tell("check", asdict(check))
    tell("shapes", trials.shapes)


if __name__ == "__main__":
    main(sys.argv[1])
