"""Plant faults in the modules that decide what is right, and count those that the tests find.

    python scripts/mutate.py                     every fault: a table, and what to do with those not found
    python scripts/mutate.py --sample 50         a sample drawn anew, as .ci/run does; --seed repeats one
    python scripts/mutate.py bench/stats         those of one module, or of several

mutmut makes the faults ("mutants") of the modules that [tool.mutmut] in pyproject.toml names, which names the
tests too. Known survivors stand with their reasons in tests/data/survivors.toml.

Exits with 1 if fewer than 92% are found (in a sample: too few for 92% of all), if a listed survivor is not
made any more, or, but in a sample, if one that is not listed survives or a listed one is found.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import gc
import importlib.abc
import importlib.util
import io
import math
import os
import random
import resource
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
SURVIVORS = "tests/data/survivors.toml"
LEAST = 0.92  # of all mutants, to be found
DOUBT = 0.001  # the probability with which a sample fails although LEAST of all are found
KINDS = ("equivalent", "text", "cost", "unreachable", "open")


@dataclass(frozen=True, order=True)
class Fault:
    """One change of a function: the lines `was`, without indentation, became `now`."""

    file: str
    function: str
    was: str
    now: str

    def __str__(self) -> str:
        lines = [f"- {line}" for line in self.was.splitlines()] + [
            f"+ {line}" for line in self.now.splitlines()
        ]
        return "\n".join([f"{self.file}, {self.function}:", *lines])


@dataclass(frozen=True)
class Reason:
    """Why a mutant may survive. `kind` is one of KINDS, `why` explains it."""

    kind: str
    why: str


def listed(root: Path) -> dict[Fault, Reason]:
    """Read the known survivors. Raises ValueError for an entry that is malformed or given twice."""
    path, found = root / SURVIVORS, dict[Fault, Reason]()
    for entry in tomllib.loads(path.read_text())["survivor"] if path.is_file() else []:
        reason = Reason(entry["kind"], entry["why"])
        if reason.kind not in KINDS or not reason.why:
            raise ValueError(f"{path}: kind is one of {', '.join(KINDS)}, and why is not empty: {entry}")
        for now in entry["now"]:
            fault = Fault(entry["file"], entry["function"], entry["was"].strip(), now.strip())
            if fault in found:
                raise ValueError(f"{path}: given twice: {fault}")
            found[fault] = reason
    return found


def faults(root: Path) -> dict[str, Fault]:
    """Return every mutant that mutmut makes, by the name that it has there."""
    from mutmut.utils.format_utils import get_mutant_name, orig_function_and_class_names_from_key

    found = {}
    for path, made in mutated(root).items():
        lines, spans = made.code.splitlines(), made.line_span_by_function_name

        def body(name: str, lines: list[str] = lines, spans: Mapping = spans) -> list[str]:
            """Return the lines of a generated function under its own name."""
            text = lines[spans[name].start - 1 : spans[name].end]
            return [line.replace(name, "").strip() for line in text]

        for short in made.mutant_names:
            name = get_mutant_name(path, short)
            function, cls = orig_function_and_class_names_from_key(name)
            before, after = body(f"{short.rpartition('_')[0]}_orig"), body(short)
            changed = [line for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ ")]
            was, now = ("\n".join(s[2:] for s in changed if s[0] == sign) for sign in "-+")
            found[name] = Fault(str(path), f"{cls}.{function}" if cls else function, was, now)
    return found


@functools.cache
def mutated(root: Path) -> dict[Path, Any]:
    """Return mutmut's version of every module to mutate, which holds all of its mutants."""
    os.chdir(root)  # mutmut reads pyproject.toml of the working directory
    from mutmut.configuration import config
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.file_utils import walk_mutatable_files

    config()
    paths = sorted(walk_mutatable_files())
    texts = [path.read_text(encoding="utf-8") for path in paths]
    with ProcessPoolExecutor() as pool:  # half a minute's work
        return dict(zip(paths, pool.map(mutate_file_contents, map(str, paths), texts), strict=True))


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports mutmut's version of the modules to mutate; its state says which mutant of a function runs."""

    def __init__(self, root: Path) -> None:
        from mutmut.utils.format_utils import get_mutant_name

        made = mutated(root)
        self._code = {str(root / path): one.code.encode() for path, one in made.items()}
        self._paths = {get_mutant_name(path, "f").rpartition(".")[0]: str(root / path) for path in made}

    def find_spec(self, name: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if name not in self._paths:
            return None
        return importlib.util.spec_from_file_location(name, self._paths[name], loader=self)

    def get_filename(self, name: str) -> str:
        return self._paths[name]

    def get_data(self, path: str) -> bytes:
        return self._code[path]

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("no bytecode is kept")


class Hunt:
    """A plugin of pytest that runs tests against each mutant in a forked process, until one of them fails.

    They are collected once, and run once without a fault: that tells which tests reach which function, and
    how long they take. Of those that reach a mutant's function the shortest are run first.

    found: whether each mutant was found, by name
    reached: whether any test came to a function that is mutated
    failed: the tests that fail without any fault; then no mutant is run
    """

    def __init__(self, names: Iterable[str], jobs: int) -> None:
        self._names = list(names)
        self._jobs = jobs
        self._running: dict[int, str] = {}
        self.found: dict[str, bool] = {}
        self.reached = False
        self.failed: list[str] = []

    def pytest_runtestloop(self, session: Any) -> bool:
        """Run the tests in place of pytest."""
        from mutmut.mutation.trampoline import set_mutant_under_test
        from mutmut.state import state
        from tqdm import tqdm

        reached, seconds = defaultdict[str, list](list), {}
        set_mutant_under_test("stats")
        for item in session.items:
            begin = time.process_time()
            if not _passes(item):
                self.failed.append(item.nodeid)
            seconds[item] = time.process_time() - begin
            for function in state()._stats:
                reached[function].append(item)
            state()._stats.clear()
        set_mutant_under_test("")
        self.reached = bool(reached)
        if self.failed:
            return True
        gc.freeze()
        with tqdm(self._names, disable=None, unit="mutant") as names:
            for name in names:
                tests = sorted(reached[name.rpartition("__mutmut_")[0]], key=seconds.__getitem__)
                while len(self._running) >= self._jobs:
                    self._reap()
                self._begin(name, tests, seconds)
        while self._running:
            self._reap()
        return True

    def _begin(self, name: str, tests: Sequence[Any], seconds: Mapping[Any, float]) -> None:
        """Fork, and run the tests with this mutant; the child ends with 0 if all of them pass."""
        from mutmut.mutation.trampoline import set_mutant_under_test

        sys.stdout.flush()
        if child := os.fork():
            self._running[child] = name
            return
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            set_mutant_under_test(name)
            for item in tests:  # one that never ends is killed: by its processor time, or else by the clock
                limit = int(time.process_time() + 4 * seconds[item]) + 5
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
                signal.alarm(int(20 * seconds[item]) + 120)
                if not _passes(item):
                    os._exit(1)
            os._exit(0)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Wait for a child. One that was killed has found its mutant: whoever runs the tests would notice."""
        child, status = os.wait()
        if child in self._running:
            self.found[self._running.pop(child)] = status != 0


def _passes(item: Any) -> bool:
    """Run one test with its fixtures, of which only those of the session stay; return whether it passes."""
    from _pytest.runner import runtestprotocol

    class Next:
        """Stand in for a test of another module, which shares the session alone."""

        @staticmethod
        def listchain() -> list[Any]:
            return [item.session]

    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=Next))


def verdicts(root: Path, names: Iterable[str], jobs: int) -> dict[str, bool]:
    """Run the tests on each of the mutants, and return whether they found it.

    Raises OSError if the tests do not run, or if one fails without any fault.
    """
    import pytest
    from mutmut.configuration import config

    sys.path[:0] = [str(root)]
    sys.meta_path.insert(0, Mutated(root))
    hunt, said = Hunt(names, jobs), io.StringIO()
    options = [*config().pytest_add_cli_args, *config().pytest_add_cli_args_test_selection]
    # Its rewriting of asserts would take the modules of an installed plugin, all of harness, from `Mutated`.
    with contextlib.redirect_stdout(said):
        code = pytest.main(["-q", "-p", "no:xdist", "--assert=plain", *options], plugins=[hunt])
    if hunt.failed:
        raise OSError("\n".join(["these tests fail without any fault:", *hunt.failed]))
    if hunt.found and not hunt.reached:
        raise OSError("no test reached a function that is mutated: was another copy of it imported?")
    if not hunt.found:
        raise OSError(f"pytest ran no tests and ended with {code}:\n{said.getvalue()}")
    return hunt.found


def fewest(sample: int, share: float = LEAST, doubt: float = DOUBT) -> int:
    """Return the least number of finds in a sample that `share` of all falls below with at most `doubt`."""
    below = 0.0
    for finds in range(sample + 1):
        below += math.comb(sample, finds) * share**finds * (1 - share) ** (sample - finds)
        if below > doubt:
            return finds
    return sample


def table(made: Mapping[str, Fault], found: Mapping[str, bool], known: Mapping[Fault, Reason]) -> str:
    """Return a table of the modules: mutants, how many were found, and the others by kind of reason."""
    rows = []
    for file in [*sorted({made[name].file for name in found}), None]:
        names = [name for name in found if file in (None, made[name].file)]
        left = Counter(
            known[made[n]].kind if made[n] in known else "not listed" for n in names if not found[n]
        )
        finds = sum(found[n] for n in names)
        counts = [left[kind] or "" for kind in (*KINDS, "not listed")]
        rows.append([file or "all", len(names), finds, f"{finds / len(names):.1%}", *counts])
    return tabulate(rows, headers=["module", "mutants", "found", "", *KINDS, "not listed"])


def complaints(
    made: Mapping[str, Fault], found: Mapping[str, bool], known: Mapping[Fault, Reason], *, sampled: bool
) -> list[str]:
    """Return what is wrong: too few finds, survivors without a reason, reasons without a survivor."""
    finds, all_of = sum(found.values()), len(found)
    least = fewest(all_of) if sampled else math.ceil(LEAST * all_of)
    wrong = [] if finds >= least else [f"{finds} of {all_of} found, {least} at least are expected"]
    wrong += [f"listed, but no longer made: {fault}" for fault in sorted(known.keys() - made.values())]
    if not sampled:
        survivors = {made[name]: name for name in found if not found[name]}
        wrong += [f"survives: {f}\n({survivors[f]})" for f in sorted(survivors.keys() - known.keys())]
        ran = {made[name] for name in found}
        wrong += [f"listed, but found: {f}" for f in sorted((known.keys() & ran) - survivors.keys())]
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help="parts of file names; all if none is given")
    parser.add_argument("--sample", type=int, metavar="N", help="run N mutants only")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--root", type=Path, default=ROOT, help="another project with [tool.mutmut]")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("mutmut") is None:
        parser.error("mutmut is not installed: pip install -e '.[mutation]'")
    try:
        return run(options.root.resolve(), options.modules, options.sample, options.seed, options.jobs)
    except (OSError, ValueError) as e:
        print(e, file=sys.stderr)
        return 2


def run(root: Path, modules: Sequence[str], sample: int | None, seed: int, jobs: int) -> int:
    """Do what the command line asks for, and return its exit code."""
    known, made = listed(root), faults(root)
    names = [n for n in made if not modules or any(m in made[n].file for m in modules)]
    if not names:
        raise ValueError(f"no mutants in {', '.join(modules) or root}")
    if sample is not None:
        names = random.Random(seed).sample(names, min(sample, len(names)))
        print(f"{len(names)} of {len(made)} mutants; --sample {sample} --seed {seed} repeats it")
    found = verdicts(root, names, jobs)
    print(table(made, found, known))
    wrong = complaints(made, found, known, sampled=sample is not None)
    print(*wrong, sep="\n\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
