"""Plant faults in the modules that decide what is right, and count those that the tests find.

    python scripts/mutate.py                     every fault: a table, and what to do with those not found
    python scripts/mutate.py --sample 50         a sample drawn anew, as .ci/run does; --seed repeats one
    python scripts/mutate.py bench/stats         those of one module, or of several

mutmut makes the faults ("mutants") and runs the tests, as [tool.mutmut] in pyproject.toml says; its command
`mutmut browse` shows them afterwards. Known survivors stand with their reasons in tests/data/survivors.toml.

Exits with 1 if fewer than 92% are found (in a sample: too few for 92% of all), if a listed survivor is not
made any more, or, but in a sample, if one that is not listed survives or a listed one is found.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import math
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
SURVIVORS = "tests/data/survivors.toml"
LEAST = 0.92  # of all mutants, to be found
DOUBT = 0.001  # the probability with which a sample fails although LEAST of all are found
KINDS = ("equivalent", "text", "cost", "unreachable", "open")
# mutmut's words. A mutant that never ends, or ends Python, is noticed by whoever runs the tests.
FOUND = {"killed", "timeout", "segfault"}


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
    os.chdir(root)  # mutmut reads pyproject.toml of the working directory
    from mutmut.configuration import config
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.file_utils import walk_mutatable_files
    from mutmut.utils.format_utils import get_mutant_name, orig_function_and_class_names_from_key

    config()
    found = {}
    for path in sorted(walk_mutatable_files()):
        made = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
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


def verdicts(root: Path, names: Iterable[str], jobs: int) -> dict[str, bool]:
    """Run mutmut on a fresh copy, and return of each mutant whether the tests found it.

    Raises OSError if mutmut fails, as it does where a test fails without any fault.
    """
    shutil.rmtree(root / "mutants", ignore_errors=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    mutmut = Path(sys.executable).with_name("mutmut")  # beside the Python that runs this
    command = [mutmut, "run", "--max-children", str(jobs), *names]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [s for s in done.stdout.splitlines() if " Running" not in s and " Generating" not in s]
        raise OSError("\n".join(["mutmut failed:", *said, *done.stderr.splitlines()]))
    os.chdir(root)
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.file_utils import walk_mutatable_files

    found = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            if code is not None:
                found[name] = status_by_exit_code[code] in FOUND
    return found


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
    parser.add_argument("--root", type=Path, default=ROOT, help="another project that mutmut can run")
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
