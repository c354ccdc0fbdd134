"""Every write and every start of a process or thread fails once: an end with words, nothing lost or left.

The calls are those of a run without a fault, whatever makes them: `shared.faulty` finds them.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import VERBS
from harness.errors import HarnessError
from harness.results import record
from harness.support.cache import Cache
from shared import damaged
from shared.faulty import Fault, Run, runs

CODES = (errno.ENOSPC, errno.EIO, errno.EINTR, errno.ENOMEM)
SHORT = "--min-time 0.005 --timeout 0.05"
# By verb. r.json is there before: a sound result. `old.json` is one to read.
COMMANDS = {
    "new": "new mine",
    "list": "list",
    "build": "build tiled -o out",
    "sass": "sass tiled --json r.json",
    "check": "check tiled -a N=8 --json r.json",
    "verify": "verify tiled -a N=8 --json r.json",
    "judge": "judge tiled --problem gemm --seed 7 --scores s.jsonl --json r.json",
    "bench": f"bench tiled -a N=8 {SHORT} --json r.json",
    "profile": "profile --from profile.json --html p.html --json r.json",
    "tune": "tune tiled -a N=8 -p TILE=16 --strategy exhaustive --t4 t.json --json r.json",
    "replay": "replay old.json",
    "explain": "explain --claims naive --json r.json",
    "compare": "compare old.json old.json",
    "history": "history old.json --html p.html --json r.json",
    "report": "report old.json --plots plots -o p.html",
    "choose": "choose old.json",
    "doctor": "doctor",
    "cache": "cache",
}
ON_GPU = {"bench", "tune", "replay"}  # a fake one
WARM = {"tune", "replay"}  # find in the cache what bench compiles beside its kernel: to keep that is bench's
LEFT_OUT = {
    "selftest": "takes minutes, and writes as bench does",
    "worker": "writes nothing",
    "run": "compilers and the program would have the faults, too",
}
TABLED = {
    "sass",
    "check",
    "verify",
    "bench",
    "tune",
}  # what they print is there before their result is written


Templates = Callable[[str], Path]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Return the folder that a verb's run finds: a result of bench as r.json and old.json, and a profile."""
    place = tmp_path_factory.mktemp("templates")
    (place / "cold").mkdir()

    def benched(kernel: str) -> Path:
        (place / kernel).mkdir()
        command = COMMANDS["bench"].replace("tiled", kernel).split()
        (run,) = runs(place / "cold", place / kernel, command, [None], gpu=True)
        assert run.code == 0, run.output
        return run.folder

    result = (benched("tiled") / "r.json").read_bytes()
    (place / "cold" / "r.json").write_bytes(result)
    (place / "cold" / "old.json").write_bytes(result)
    (place / "cold" / "profile.json").write_text(json.dumps(damaged.sound("profile")))

    @functools.cache
    def template(warm: bool) -> Path:
        if warm:
            shutil.copytree(place / "cold", place / "warm")
            shutil.copytree(benched("naive") / "cache", place / "warm" / "cache")
        return place / ("warm" if warm else "cold")

    return lambda verb: template(verb in WARM)


def held(verb: str, run: Run, fault: Fault | None, before: Path, clean: int) -> None:
    """Assert that a run ended with words, that what it wrote is whole, and that nothing is left over."""
    what = f"{fault}: {run.failed[:2]} ended {verb} with {run.code}:\n{run.output[-2000:]}"
    assert run.code in (0, 1, 2, 3, clean), what
    assert "Traceback" not in run.output and 'File "' not in run.output, what
    assert run.code == clean or run.output.strip(), what
    result, old = run.folder / "r.json", (before / "r.json").read_bytes()
    if result.read_bytes() != old:
        record.load(result) if verb in ("check", "verify", "bench", "tune") else json.loads(
            result.read_text()
        )
    elif "r.json" in COMMANDS[verb]:
        assert run.code not in (0, clean), f"no result, and no word of it: {what}"
    if any("r.json" in call for call in run.failed) and verb in TABLED:
        assert "03_tiled" in run.output, f"the table is lost: {what}"
    for page in run.folder.glob("*.html"):
        assert page.read_text().rstrip().endswith("</html>"), what
    for file in run.folder.rglob("*.json"):
        json.loads(file.read_text())
    assert [p.name for p in (run.folder / "tmp").iterdir()] == [], what
    hidden = {p.relative_to(run.folder) for p in run.folder.rglob(".*")}
    assert hidden <= {Path("cache/.trimmed")}, what
    if (run.folder / "cache").is_dir():
        store = Cache(run.folder / "cache")
        assert all(store.get(entry.folder.name) for entry in store.entries()), what


def survey(verb: str, template: Path, folder: Path) -> Run:
    """Run a verb without a fault; its calls are those that may fail."""
    (run,) = runs(template, folder, COMMANDS[verb].split(), [None], gpu=verb in ON_GPU)
    held(verb, run, None, template, run.code)
    assert run.code in (0, 3) and not run.failed, run.output
    return run


def inject(verb: str, template: Path, folder: Path, faults: list[Fault], clean: Run) -> None:
    """Run a verb with each of the faults; all that goes wrong is told in the end."""
    command, gpu, wrong = COMMANDS[verb].split(), verb in ON_GPU, list[str]()
    for first in range(0, len(faults), 100):
        some, place = faults[first : first + 100], folder / str(first)
        found = runs(template, place, command, some, gpu=gpu, imports=clean.modules)
        for fault, run in zip(some, found, strict=True):
            try:
                held(verb, run, fault, template, clean.code)
            except (AssertionError, HarnessError, ValueError) as e:
                wrong.append(f"{fault}: {e}")
        assert any(run.failed for run in found)
        shutil.rmtree(place)
    assert not wrong, "\n\n".join(wrong)


def test_every_verb_has_its_command() -> None:
    assert COMMANDS.keys() | LEFT_OUT.keys() == set(VERBS) and not COMMANDS.keys() & LEFT_OUT.keys()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["check", "bench"])
def test_some_faults_drawn_anew(verb: str, templates: Templates, tmp_path: Path) -> None:
    template = templates(verb)
    clean = survey(verb, template, tmp_path / "clean")
    calls = len(clean.calls)
    draw = random.SystemRandom()
    faults = [Fault(at, draw.choice(CODES)) for at in draw.sample(range(calls), 5)]
    faults += [Fault(draw.randrange(calls), errno.ENOSPC, lasting=True)]
    inject(verb, template, tmp_path, faults, clean)


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", COMMANDS)
def test_every_fault_in_every_call(verb: str, templates: Templates, tmp_path: Path) -> None:
    """A full disk stays full, too: all writes from one on fail."""
    template = templates(verb)
    clean = survey(verb, template, tmp_path / "clean")
    calls = len(clean.calls)
    faults = [Fault(at, code) for at in range(calls) for code in CODES]
    faults += [Fault(at, errno.ENOSPC, lasting=True) for at in range(calls)]
    if faults:
        inject(verb, template, tmp_path, faults, clean)


# ---- the controls


@pytest.mark.slow
def test_all_that_a_run_leaves_was_seen(templates: Templates, tmp_path: Path) -> None:
    """Each file and folder that is new was made by a call that can fail: opened, made or renamed to."""
    for verb in ("check", "report"):
        template = templates(verb)
        (run,) = runs(template, tmp_path / verb, COMMANDS[verb].split(), [None])
        seen = {call.partition(" ")[2].removeprefix(f"{run.folder}/") for call in run.calls}
        made = {str(p.relative_to(run.folder)) for p in run.folder.rglob("*")}
        made -= {str(p.relative_to(template)) for p in template.rglob("*")} | {"tmp"}
        renamed = {path for path in seen if (run.folder / path).is_dir()}  # with what is in them
        unseen = {p for p in made if p not in seen and str(Path(p).parent) not in renamed}
        assert made and unseen == set(), verb


@pytest.mark.slow
def test_the_faults_are_of_use(templates: Templates, tmp_path: Path) -> None:
    """The fault of a write that nobody guards shows: two lines of Python."""
    script = "import pathlib; pathlib.Path('new').write_text('x' * 100); print('done')"
    every = [Fault(at, code, code == errno.ENOSPC) for at in range(2) for code in (errno.EIO, errno.ENOSPC)]
    found = runs(templates("list"), tmp_path, ["-c", script], [None, *every])
    assert found[0].output == "done\n" and found[0].code == 0
    assert [run.failed[0].split()[1] for run in found[1:]] == ["open64", "open64", "write", "write"]
    for fault, run in zip(every, found[1:], strict=True):
        assert run.code == 1 and os.strerror(fault.code) in run.output
    sizes = [(run.folder / "new").stat().st_size for run in found if (run.folder / "new").exists()]
    assert sizes == [100, 100, 50]  # Python writes again as it closes the file; a full disk takes a half
