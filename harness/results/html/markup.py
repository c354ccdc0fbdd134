"""Build the parts of an HTML page: its frame with style and script, and sortable tables."""

from __future__ import annotations

import html
from collections.abc import Sequence


def page(title: str, body: str) -> str:
    """Return a complete HTML document that loads nothing else. `body` is HTML, `title` is text."""
    return _SHELL.format(title=text(title), css=_CSS, js=_JS, body=body)


def text(value: object) -> str:
    """Return a value as text, escaped for HTML."""
    return html.escape(str(value))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a sortable HTML table. Headings and cells are text."""
    head = "".join(f'<th aria-sort="none"><button type="button">{text(h)}</button></th>' for h in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{text(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


_SHELL = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
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
_CSS = """
:root { --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #161b22 }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 70rem; margin: 0 auto; padding: 1rem }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem }
figure { margin: 1.5rem 0; overflow-x: auto }
figcaption { font-weight: 600 }
svg { width: 100%; min-width: 34rem; height: auto; font-family: system-ui, sans-serif }
.wide { overflow-x: auto; max-height: 40rem }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap }
th { background: var(--soft); position: sticky; top: 0 }
th button { all: unset; cursor: pointer; font-weight: 600 }
th button:focus-visible { outline: 2px solid }
th[aria-sort=ascending] button::after { content: " \\2191" }
th[aria-sort=descending] button::after { content: " \\2193" }
details { border-bottom: 1px solid var(--line); padding: .25rem 0 }
details > * { margin: .75rem 0 }
summary { cursor: pointer; margin: 0 }
.broken { font-weight: 600 }
.note { background: var(--soft); border-left: 4px solid var(--line); padding: .5rem 1rem }
"""
# Sorts numbers by size, taking the units of times into account; texts come after numbers, by alphabet.
_JS = """
const units = {s: 1, ms: 1e-3, us: 1e-6, ns: 1e-9};
const value = (text) => {
  const m = /^([-+]?[\\d.,]+)\\s*(ns|us|ms|s|%)?\\*?$/.exec(text);
  return m ? parseFloat(m[1].replaceAll(",", "")) * (units[m[2]] ?? 1) : NaN;
};
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const th = button.parentElement, body = th.closest("table").tBodies[0], i = th.cellIndex;
  const down = th.getAttribute("aria-sort") === "descending";
  for (const other of th.parentElement.children) other.setAttribute("aria-sort", "none");
  th.setAttribute("aria-sort", down ? "ascending" : "descending");
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [a, b].map((r) => r.cells[i].textContent), [p, q] = [value(x), value(y)];
    if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q) || (down ? 1 : -1) * x.localeCompare(y);
    return down ? p - q : q - p;
  });
  body.append(...rows);
};
"""
