"""Read the code blocks, links and headings of README.md and the pages of docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.places import ROOT

README = ROOT / "README.md"
_FENCE = re.compile(r"(`{3,})(\S*)\s*\Z")
_MARKER = re.compile(r"<!-- (file|patch|needs): (.+?) -->\Z")
_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"#{1,6} +(.+?)\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced code block. The comment above it may say what it is for: ``<!-- file: NAME -->``,
    ``<!-- patch: NAME -->`` for a diff of that file, ``<!-- needs: a GPU -->`` where it is not run.
    """

    language: str
    text: str
    page: Path
    line: int
    marker: str = ""
    name: str = ""

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


def pages() -> list[Path]:
    """Return README.md and every page of docs/."""
    return [README, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the code blocks of these languages, in the order of the page; all of them without a language."""
    found = [b for b in _blocks(page.read_text(), page) if isinstance(b, Block)]
    return [b for b in found if not languages or b.language in languages]


def prose(page: Path) -> str:
    """Return the page without its code blocks."""
    return "\n".join(part for part in _blocks(page.read_text(), page) if isinstance(part, str))


def _blocks(text: str, page: Path) -> Iterator[Block | str]:
    """Yield each block, and each line outside of them."""
    fence, language, start, content, above = "", "", 0, [""], ""
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if fence and line.rstrip() == fence:
            marker = _MARKER.match(above)
            kind, name = (marker[1], marker[2]) if marker else ("", "")
            body = "".join(f"{s}\n" for s in content)
            yield Block(language=language, text=body, page=page, line=start, marker=kind, name=name)
            fence = above = ""
        elif fence:
            content.append(line)
        elif match:
            fence, language, start, content = match[1], match[2], number, []
        else:
            above = line
            yield line
    assert not fence, f"{page.name}:{start}: this block is not closed"


def links(page: Path) -> list[str]:
    """Return the addresses of the page's links and images that lie in the repository."""
    text = re.sub(r"`[^`\n]*`", "``", prose(page))
    return [a for a in _LINK.findall(text) if not re.match(r"[a-z]+:", a)]


def anchors(page: Path) -> dict[str, str]:
    """Return GitHub's anchor of each heading, and the one that MkDocs gives it."""
    found: dict[str, str] = {}
    for line in prose(page).splitlines():
        if match := _HEADING.match(line):
            kept = re.sub(r"[^\w\s-]", "", match[1].lower()).strip()
            github = kept.replace(" ", "-")
            assert github not in found, f"{page.name}: two headings with the anchor #{github}"
            found[github] = re.sub(r"[-\s]+", "-", kept)
    return found


def wanted(text: str) -> re.Pattern[str]:
    """Return a pattern of the output shown: a line ``...`` stands for any lines."""
    parts = [r"(?:[^\n]*\n)*?" if s == "..." else re.escape(s) + r" *\n" for s in text.splitlines()]
    return re.compile(r"\n*" + "".join(parts) + r"\n*\Z")


def same(text: str) -> str:
    """Return the output without what differs from one machine without a GPU to the next."""
    return re.sub(r"No GPU \([^)]*\)", "No GPU (...)", text)


def sessions(text: str) -> list[tuple[str, str]]:
    """Return (command, output) of each ``$`` line of a console block."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert not parts[0], "a console block begins with $ and a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def patched(text: str, diff: str) -> str:
    """Return `text` with a hunk applied: its context and - lines must occur once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(s[1:] for s in lines if not s.startswith("+"))
    new = "".join(s[1:] for s in lines if not s.startswith("-"))
    assert text.count(old) == 1, f"the patch does not fit:\n{diff}"
    return text.replace(old, new)


def python_blocks() -> list[str]:
    """Return the library's examples that run as they are."""
    return [b.text for page in pages() for b in blocks(page, "python") if b.marker != "needs"]
