"""Bring the outputs that README.md and docs/ show up to date: ``python scripts/update_outputs.py``.

Runs every command of a ``console`` block as tests/repo/test_docs.py does, where that command prints something
else by now, and replaces the shown lines by those of the new output that differ from them in numbers only.
Where there are none it says so, and that block has to be edited by hand. Run it on a machine without a GPU.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from harness.cli import main as harness  # noqa: E402
from shared.readme import blocks, pages, patched, same, sessions, wanted  # noqa: E402


def shape(line: str) -> str:
    """Return the line without its numbers, and with one space and one dash for several."""
    return re.sub(r" +", " ", re.sub(r"-+", "-", re.sub(r"\d[\d,.]*[kM%]?", "#", line.strip())))


def renewed(shown: str, output: str) -> str | None:
    """Return `shown` with the lines of `output`, between its ``...`` lines; None where they do not fit."""
    lines, made, at = output.strip("\n").splitlines(), list[str](), 0
    for part in re.split(r"^(\.\.\.)\n", shown, flags=re.MULTILINE):
        chunk = [shape(line) for line in part.splitlines()]
        if chunk == ["..."]:
            made.append("...")
            continue
        starts = range(at, len(lines) - len(chunk) + 1)
        found = next((i for i in starts if [shape(s) for s in lines[i : i + len(chunk)]] == chunk), None)
        if found is None:
            return None
        made += lines[found : found + len(chunk)]
        at = found + len(chunk)
    text = "".join(f"{line}\n" for line in made)
    return text if wanted(same(text)).match(same(output)) else None


def main() -> int:
    failed = 0
    for page in pages():
        text, new = page.read_text(), page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("records", "tests"):
                (Path(folder) / name).symlink_to(ROOT / name)
            os.chdir(folder)
            for block in blocks(page):
                if block.marker == "file":
                    Path(block.name).write_text(block.text)
                elif block.marker == "patch":
                    Path(block.name).write_text(patched(Path(block.name).read_text(), block.text))
                elif block.language == "console" and block.marker != "needs":
                    for command, shown in sessions(block.text):
                        output = (
                            CliRunner()
                            .invoke(harness, shlex.split(command)[1:], env={"COLUMNS": "80"})
                            .output
                        )
                        if wanted(same(shown)).match(same(output)):
                            continue
                        made = renewed(shown, output)
                        if made is None:
                            failed += 1
                            print(f"{block.where}: edit by hand: {command}\n{output}")
                        else:
                            new = new.replace(f"$ {command}\n{shown}", f"$ {command}\n{made}")
            os.chdir(ROOT)
        if new != text:
            page.write_text(new)
            print(f"updated {page.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
