"""A confined process reaches some files, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.support import sandbox, tools

CONFINED = """
import sys
from pathlib import Path
from harness.support import sandbox
inside, outside = Path(sys.argv[1]), Path(sys.argv[2])
print("confined" if sandbox.confine((), (inside,)) else "not confined")
{}
"""


def confined(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file").write_text("text")
    command = [sys.executable, "-c", CONFINED.format(code), str(inside), str(outside)]
    done = subprocess.run(command, capture_output=True, text=True, env=tools.environment(), check=False)
    if done.stdout.startswith("not confined"):
        pytest.skip("this system has no Landlock")
    return done


@pytest.mark.parametrize(
    "code",
    [
        "(outside / 'file').read_text()",
        "(outside / 'file').write_text('')",
        "(outside / 'new').touch()",
        "list(outside.iterdir())",
        "Path('/etc/passwd').read_text()",
        "import threading; t = []; read = (outside / 'file').read_text\n"
        "x = threading.Thread(target=lambda: t.append(read())); x.start(); x.join(); t[0]",
        "import subprocess; subprocess.run(['cat', str(outside / 'file')], check=True)",
    ],
)
def test_what_is_out_of_reach(tmp_path: Path, code: str) -> None:
    done = confined(code, tmp_path)
    assert done.returncode != 0
    assert (tmp_path / "outside" / "file").read_text() == "text"
    assert not (tmp_path / "outside" / "new").exists()


@pytest.mark.parametrize(
    "code",
    [
        "assert (inside / 'file').read_text() == 'text'",
        "(inside / 'new').write_text('')",
        "import numpy, harness.problems.verify",
        "open('/dev/null', 'w').write('x')",
    ],
)
def test_what_is_within_reach(tmp_path: Path, code: str) -> None:
    done = confined(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_elsewhere_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert sandbox.confine((), ()) is False
