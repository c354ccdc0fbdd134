"""Build the parts of an HTML page: its frame with style and script, sortable tables, and escaped text.

A page is one file that loads nothing. Its content security policy allows the style and the script that it was
written with, by their hashes, and nothing else: text that slipped in as markup could still not run or fetch.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Sequence
from pathlib import Path

# Control characters, and those of bidirectional formatting: with them source can be shown in another order
# than a compiler reads it (CVE-2021-42574).
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def page(title: str, body: str, *, parts: Sequence[str] = (), attributes: bool = False) -> str:
    """Return a complete HTML document that loads nothing else. `body` is HTML, `title` is text.

    Style and script are those of ``page.css`` and ``page.js``, followed by those of `parts`, the stems of
    further files beside this module. `attributes` permits style attributes, which matplotlib's charts have.
    """
    stems = ("page", *parts)
    css, js = ("".join(map(_asset, [f"{stem}.{kind}" for stem in stems])) for kind in ("css", "js"))
    policy = f"default-src 'none'; style-src-elem '{_hash(css)}'; script-src '{_hash(js)}'"
    policy += "; style-src-attr 'unsafe-inline'" if attributes else "; style-src-attr 'none'"
    policy += "; base-uri 'none'; form-action 'none'"
    return _SHELL.format(title=text(title), policy=policy, css=css, js=js, body=body)


def text(value: object) -> str:
    """Return a value as text, escaped for HTML; what would not show, or hide other text, as ``\\u202e``."""
    return html.escape(_UNSEEN.sub(lambda m: f"\\u{ord(m[0]):04x}", str(value)))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a sortable HTML table. Headings and cells are text."""
    head = "".join(f'<th aria-sort="none"><button type="button">{text(h)}</button></th>' for h in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{text(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Return names with their values as a list that wraps to the page's width. Both are text."""
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{text(n)}</dt><dd>{text(v)}</dd></div>" for n, v in pairs)
        + "</dl>"
    )


@functools.cache
def _asset(name: str) -> str:
    """Return the text of a file beside this module; empty if there is none of that name."""
    path = Path(__file__).with_name(name)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _hash(content: str) -> str:
    """Return the hash source of an inline style or script (Content Security Policy Level 3, 2.3.1)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


_SHELL = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<main>
{body}
</main>
<script>{js}</script>
</body>
</html>
"""
