"""Find the problem class of a kernel: a built-in one, or a class in a user's file that front matter names."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

from harness.errors import HarnessError, SpecError
from harness.kernels.spec import GUESSED, Kernel
from harness.problems.copy import Copy
from harness.problems.fma import Fma
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.guessed import arguments as guessed
from harness.problems.mma import Mma
from harness.problems.protocol import Problem
from harness.support import cache, files

UNTRUSTED = "HARNESS_UNTRUSTED"  # environment variable: where it is set, no file's Python is executed
BUILTIN: dict[str, type[Problem]] = {"gemm": Gemm, "copy": Copy, "fma": Fma, "mma": Mma}
_GUESSES: dict[tuple[object, ...], type[Problem]] = {}  # by what they were guessed from
_LOG = logging.getLogger(__name__)


def by_problem(kernels: Sequence[Kernel]) -> dict[type[Problem], list[Kernel]]:
    """Group kernels by their problem class, in order of first appearance."""
    groups: dict[type[Problem], list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault(resolve(kernel), []).append(kernel)
    return groups


@contextmanager
def blamed(cls: type[Problem]) -> Iterator[None]:
    """Turn exceptions that a user's problem class raises in this block into a SpecError.

    The error names the class and, if it can be told, the line. HarnessError and MemoryError pass unchanged,
    as does every exception of a built-in problem.
    """
    try:
        yield
    except (HarnessError, MemoryError):
        raise
    except (Exception, SystemExit) as e:
        if cls in (*BUILTIN.values(), *GEMMS.values()):
            raise
        what = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        raise SpecError(what, where=f"problem {cls.__qualname__}{_line(cls, e)}") from e


def _line(cls: type[Problem], error: BaseException) -> str:
    """Return ", line N of FILE" for the last line of the class's own file in the traceback, or ""."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f", line {lines[-1]} of {Path(file).name}" if file and lines else ""


def resolve(kernel: Kernel) -> type[Problem]:
    """Return the class that a kernel's ``problem`` and ``dtype`` name.

    That is a built-in one, or ``file.py:Class``, with a path relative to the folder of the kernel's file. The
    file is Python by the kernel's author and is executed, once per process; its first execution of all is
    logged (INFO), which the command line shows. Raises SpecError if it cannot be loaded, or the class is not
    there or lacks members of the `Problem` protocol.
    """
    name, where = kernel.problem, str(kernel.path)
    if name == "gemm":
        return GEMMS[kernel.dtype]
    if name in BUILTIN:
        return BUILTIN[name]
    if name == GUESSED:
        return _guessed(kernel)
    file, colon, class_name = name.partition(":")
    if not colon:
        raise SpecError(
            f"no problem {name!r}", where=where, hint=f"built in: {', '.join(BUILTIN)}; or 'file.py:Class'"
        )
    folder = kernel.path.parent.resolve()
    path = (folder / file).resolve()
    if not path.is_relative_to(folder):
        raise SpecError(
            f"problem {name!r} lies outside the kernel's folder",
            where=where,
            hint="keep it beside the kernel",
        )
    if os.environ.get(UNTRUSTED):
        raise SpecError(f"problem {name!r}: Python that is not trusted is not executed", where=where)
    if _LOG.isEnabledFor(logging.INFO) and path.is_file() and not path.is_relative_to(files.SHIPPED):
        _log_first(path, kernel.path.parent / file)
    try:
        found = getattr(_module(path), class_name, None)
    except HarnessError:
        raise
    except (Exception, SystemExit) as e:
        raise SpecError(f"problem {name!r} cannot be loaded: {type(e).__name__}: {e}", where=where) from e
    if not isinstance(found, type):
        raise SpecError(f"problem {name!r}: {file} has no class {class_name!r}", where=where)
    missing = [member for member in _members() if not hasattr(found, member)]
    if missing:
        raise SpecError(f"problem {name!r} lacks {', '.join(missing)}", where=where)
    return cast(type[Problem], found)


def _guessed(kernel: Kernel) -> type[Problem]:
    """Return the problem of a kernel without front matter, the same class whenever it is asked for."""
    key = kernel.path, kernel.entry, kernel.source, len(kernel.block)
    if key not in _GUESSES:
        _GUESSES[key] = cast(type[Problem], guessed.problem_of(kernel))
    return _GUESSES[key]


@functools.cache
def _module(path: Path) -> ModuleType:
    """Execute the Python file at `path` once: a class that is loaded twice would be two classes."""
    name = f"harness_problem_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None or not path.is_file():
        raise SpecError("this problem file is not there, or not Python", where=str(path))
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses look up their module there
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def _log_first(path: Path, shown: Path) -> None:
    """Log that the file at `path` is executed, unless that was logged before; the cache remembers it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cache.CacheWarning)  # it comes where kernels are kept
        store, name = cache.Cache(cache.default_root()), os.fsencode(path)
        key = cache.digest("executed", name)
        if store.get(key) is None:
            _LOG.info("executing %s for the first time (--untrusted refuses Python)", shown)
            store.put(key, {"executed": name})


def _members() -> list[str]:
    """Return the names of the members that the `Problem` protocol requires."""
    return sorted({n for n in vars(Problem) if not n.startswith("_")} | set(Problem.__annotations__))
