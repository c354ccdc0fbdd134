"""Find NVIDIA's command-line tools, headers and libraries, in their wheels, a CUDA toolkit or the PATH, and
run the tools.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from harness.errors import HarnessError, MissingDependency
from harness.support.files import ROOT
from harness.support.signals import awaited

_PACKAGES = {"nvdisasm": "nvidia-cuda-nvdisasm", "cuobjdump": "nvidia-cuda-cuobjdump"}


@functools.cache
def find(name: str) -> Path | None:
    """Return the path of the executable `name`, preferring a wheel's to the system's, or None."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:  # cuda-pathfinder before 1.3
        found = None
    else:
        try:
            found = find_nvidia_binary_utility(name)
        except Exception:  # it raises for names outside its own list
            found = None
    found = found or shutil.which(name)
    return Path(found) if found else None


@functools.cache
def headers(library: str) -> Path | None:
    """Return the folder with the headers of a library, by cuda-pathfinder's name (``cudart``), or None."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:  # cuda-pathfinder before 1.3
        return None
    try:
        found = find_nvidia_header_directory(library)
    except Exception:  # it raises for names that its version does not know
        return None
    return Path(found) if found else None


def library(name: str, *, hint: str) -> ctypes.CDLL:
    """Load a library by cuda-pathfinder's name (``cublas``).

    One that this process has loaded already is taken, else a wheel's, conda's, or what the system finds.
    Raises MissingDependency, with `hint` as the way to install it, if there is none or it cannot be loaded.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError) as e:  # RuntimeError: not found, or the loader refuses it
        why = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise MissingDependency(f"{name} cannot be loaded: {why}", hint=hint) from None


def require(name: str) -> Path:
    """Return the path of the executable `name`, as `find` does.

    Raises MissingDependency, with the way to install it, if there is none.
    """
    path = find(name)
    if path is None:
        package = _PACKAGES.get(name)
        hint = f"pip install '{package}>=13.4,<14'" if package else f"put {name} on the PATH"
        raise MissingDependency(f"{name} is not installed", hint=hint)
    return path


def run(
    command: Sequence[str | Path],
    where: str,
    *,
    timeout: float = 600,
    env: Mapping[str, str] | None = None,
    raises: type[HarnessError] = HarnessError,
) -> subprocess.CompletedProcess[str]:
    """Run `command` and return its outcome as text, whatever its exit code; see `run_bytes`.

    A ``python -m harness`` that it starts uses the package running here, unless `env` says otherwise.
    """
    done = run_bytes(
        command, where, timeout=timeout, env=environment() if env is None else env, raises=raises
    )
    out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def run_bytes(
    command: Sequence[str | Path],
    where: str,
    *,
    timeout: float = 600,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    raises: type[HarnessError] = HarnessError,
    started: Callable[[subprocess.Popen[bytes]], object] = lambda _: None,
) -> subprocess.CompletedProcess[bytes]:
    """Run `command` in `cwd` and return its outcome, whatever its exit code; `started` is told its process.

    `where` names the object of the call in errors. Raises an error of the type `raises` if the command cannot
    be started or does not end within `timeout` seconds. Then, and when an exception such as Ctrl-C leaves the
    call, all that it has started is killed: a profiled kernel would go on using the GPU.
    """
    name = Path(command[0]).name
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
        ) as child:
            try:
                started(child)
                out, err = child.communicate(timeout=timeout)
            except BaseException:
                _kill(child)
                raise
    except subprocess.TimeoutExpired:
        raise raises(f"{name} gave no answer within {timeout:g} s", where=where) from None
    except OSError as e:
        raise raises(f"{name} cannot be run: {e}", where=where) from None
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def run_each(
    commands: Sequence[Sequence[str | Path]],
    where: str,
    *,
    timeout: float = 600,
    raises: type[HarnessError] = HarnessError,
) -> list[subprocess.CompletedProcess[bytes]]:
    """Run commands beside each other and return their outcomes, in their order; see `run_bytes`.

    Where one cannot be run, and when an exception such as Ctrl-C leaves the call, all of them are killed.
    """
    children: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def started(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        if over.is_set():  # its thread comes too late to be seen below
            _kill(child)

    run = functools.partial(run_bytes, where=where, timeout=timeout, raises=raises, started=started)
    with ThreadPoolExecutor(len(commands)) as pool:
        try:
            return [awaited(future) for future in [pool.submit(run, command) for command in commands]]
        except BaseException:
            over.set()
            for child in children:
                _kill(child)
            raise


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started."""
    with suppress(OSError, AttributeError):  # it has just ended, or this is Windows
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()


def environment() -> dict[str, str]:
    """Return this process's environment variables, changed for a child process whose output is read.

    PYTHONPATH makes Python find this very package, in a bare checkout too. COLUMNS is left out, so that
    harness wraps no lines in its output.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    }
