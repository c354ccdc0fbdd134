"""Make a site of pages that are written for the repository: hooks of MkDocs.

- README.md is the site's front page.
- Links to files outside of docs/ lead to copies of them in the site; those to folders become plain text.
- The notes in docs/notes/ need no line in mkdocs.yml.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILES = "files"  # the folder of the site that has the copies
_LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(`{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    notes = sorted(p.relative_to(DOCS).as_posix() for p in (DOCS / "notes").glob("*.md"))
    if notes:
        config.nav.append({"Notes": notes})
    return config


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File  # the rest is tested without MkDocs

    pages = [*DOCS.rglob("*.md"), ROOT / "README.md"]
    outside = {path for page in pages for path in targets(page.read_text(), page.parent)}
    for path in sorted(outside):
        name = f"{FILES}/{path.relative_to(ROOT).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    if name == "index.md":
        return linked(markdown, ROOT, "")
    if name.startswith(f"{FILES}/"):  # a page of the repository that is none of docs/
        return linked(markdown, (ROOT / name.removeprefix(f"{FILES}/")).parent, posixpath.dirname(name))
    return linked(markdown, (DOCS / name).parent, posixpath.dirname(name))


def targets(markdown: str, folder: Path) -> set[Path]:
    """Return the files outside of docs/ that a page in `folder` links to."""
    found = {(folder / m[3]).resolve() for m in _LINK.finditer(_FENCE.sub("", markdown)) if ":" not in m[3]}
    return {p for p in found if p.is_file() and not inside(p)}


def inside(path: Path) -> bool:
    return path.is_relative_to(DOCS) or path == ROOT / "README.md"


def linked(markdown: str, folder: Path, here: str) -> str:
    """Return the markdown of a page in `folder` with addresses as the site has them; `here` is the folder of
    the page there.
    """

    def address(match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = (folder / target).resolve()
        if ":" in target or not path.is_relative_to(ROOT):
            return match[0]
        if path.is_dir():
            return text
        if path == ROOT / "README.md":
            name = "index.md"
        elif inside(path):
            name = path.relative_to(DOCS).as_posix()
        else:
            name = f"{FILES}/{path.relative_to(ROOT).as_posix()}"
        return f"{image}[{text}]({posixpath.relpath(name, here or '.')}{anchor})"

    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):  # code stays as it is
        parts += [_LINK.sub(address, markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, _LINK.sub(address, markdown[last:])])
