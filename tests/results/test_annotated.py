"""`--html`: source with its instructions, counts and findings beside it, in one page without a network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.emulator import Source
from harness.instruments.hotspots import Hotspots, Spot
from harness.kernels import catalog
from harness.results.html import annotated, annotated_columns, annotated_lines, markup
from harness.results.html.annotated import Annotated
from shared import browser
from shared.command import harness
from shared.kernels import TILED
from shared.places import DATA

# A race; a comment that is markup, one that reorders text, and one that would end a script.
HOSTILE = TILED.replace("        __syncthreads();\n    }", "    }").replace(
    "    float sum = 0;\n",
    "    float sum = 0;  // <img src=x onerror=alert(1)> </script><script>alert(2)</script> \u202e\x1b[31m\n",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a hostile kernel, as `harness check --html` writes it."""
    from shared.kernels import KERNEL

    folder = tmp_path_factory.mktemp("annotated")
    (folder / "mine.cu").write_text(KERNEL.format(title="A kernel", extra="", body=HOSTILE))
    result = harness("check", str(folder / "mine.cu"), "-a", "N=48", "--html", str(folder / "page.html"))
    assert result.exit_code == 1, result.output
    return folder / "page.html"


def rows(text: str) -> dict[str, str]:
    """The rows of the source table by their line's number."""
    return {m[1]: m[0] for m in re.finditer(r'<tr id="k0-L(\d+)".*?</tr>', text, re.DOTALL)}


def cells(row: str) -> dict[str, str]:
    return dict(re.findall(r'data-c="(\w+)"[^>]*>([^<]*)<', row))


def line_of(path: Path, text: str) -> str:
    return str(next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line))


def test_a_line_has_its_counts_findings_and_instructions(made: Path) -> None:
    text, source = made.read_text(), made.with_name("mine.cu")
    found = rows(text)
    assert len(found) == len(source.read_text().splitlines())
    product, store = (found[line_of(source, part)] for part in ("sum +=", "As[y][x] ="))
    # 48 x 48 threads, 48 products of 2 FLOP each: by hand, not by what the page's own code counts
    assert cells(product)["FLOP"] == f"{48**3 * 2 / 1e3:.3g}k" == "221k"
    # A 16 x 16 tile: each warp reads two rows of 16 floats, 64 bytes each: 2 x 2 sectors
    assert cells(store)["sect"] == "4"
    assert 'class="fault' in product and "<b>WAR hazard</b>" in product and "<b>WAR hazard</b>" in store
    assert re.search(r"\d+ SASS: ", product) and "FFMA" in product
    assert re.search(r"\d+ PTX: ", product) and "fma.rn.f32" in product
    assert 'class="bare"' in found["1"], "a comment has nothing to show"
    assert f'<a href="#k0-L{line_of(source, "sum +=")}">mine.cu:' in text


def test_heat_is_what_it_says() -> None:
    assert [annotated_lines.Cell.of("", share, "").heat for share in (-1, 0, 0.19, 0.5, 1)] == [0, 0, 1, 5, 9]


def test_text_of_the_source_is_text(made: Path) -> None:
    """No markup, no script, no escape sequence and no reordering comes through."""
    text = made.read_text()

    class Reader(HTMLParser):
        tags: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.tags.append(tag)
            assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "style")]

    reader = Reader()
    reader.feed(text)
    assert "img" not in reader.tags and reader.tags.count("script") == 1
    assert "&lt;img src=x" in text and r"\u202e\u001b[31m" in text
    assert "\u202e" not in text and "\x1b" not in text
    assert not re.search(r"(?:https?:)?//\w+\.\w+|@import|url\(", text)


def test_the_policy_allows_what_the_page_has_and_nothing_else(made: Path) -> None:
    text = made.read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    style, script = (re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("style", "script"))
    assert style and script
    assert f"style-src-elem '{markup._hash(style[1])}'" in policy[1]
    assert f"script-src '{markup._hash(script[1])}'" in policy[1]
    assert "default-src 'none'" in policy[1] and "style-src-attr 'none'" in policy[1]


def test_samples_stand_at_their_lines() -> None:
    kernel = catalog.kernel("tiled")
    n, text = next(
        (n, t) for n, t in enumerate(kernel.source.splitlines(), 1) if "sum +=" in t and "//" not in t[:3]
    )
    spot = Spot(
        place=f"03_tiled.cu:{n}", text=text.strip(), samples=6, reason="barrier", because=4, executed=1
    )
    header = Spot(place="cuda_fp16.hpp:7", text="x", samples=2, reason="wait", because=2, executed=1)
    found = Hotspots(samples=8, lines=(spot, header), instructions=())
    page = annotated.page(
        [Annotated(label="03_tiled", arch="sm_90", file="03_tiled.cu", source=kernel.source, hotspots=found)],
        "t",
    )
    assert cells(rows(page)[str(n)]) == {"stall": "75% barrier"}
    assert "cuda_fp16.hpp:7" in page and "25% wait" in page
    assert annotated.quotes(found, "03_tiled.cu", kernel.source)
    assert not annotated.quotes(found, "03_tiled.cu", "\n" + kernel.source), "another line stands there today"
    assert annotated_columns.source_of("03_tiled.cu:41", "03_tiled.cu") == Source(line=41)


def test_profiles_and_machine_code_have_pages(tmp_path: Path) -> None:
    out = tmp_path / "p.html"
    result = harness("profile", f"--from={DATA / 'tiled-512-raw.csv'}", "--html", str(out))
    assert result.exit_code == 0 and "not at hand" in out.read_text()
    result = harness("sass", "tiled", "--html", str(out))
    assert result.exit_code == 0, result.output
    page = out.read_text()
    assert "registers a thread" in page and 'data-c="live"' in page and "PTX" not in page
    assert len(re.findall(r'<li class="(?:\w+)(?: hot)?">[0-9a-f]{4}', page)) == int(
        re.findall(r"<dt>instructions</dt><dd>([\d,]+)", page)[0]
    ), "every instruction stands at one line"


def test_pages_go_with_the_emulator_and_not_with_differences(tmp_path: Path) -> None:
    out = str(tmp_path / "p.html")
    for args in (["sass", "tiled", "--diff", "TILE=32"], ["check", "tiled", "-d", "gpu"]):
        result = harness(*args, "--html", out)
        assert result.exit_code == 2 and "--html" in result.stderr, result.output
    assert not Path(out).exists()
    assert harness("check", "tiled", "-a", "N=48", "--html", "/dev/null/x.html").exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(made: Path, scheme: str) -> None:
    """Columns beside each other at a desk, below each other on a phone; the page never scrolls sideways."""
    fault = "tr.fault"
    with browser.shown(made, browser.DESK, scheme) as tab:
        assert tab.evaluate(browser.OVERFLOW) <= 0
        row = tab.locator(fault).first
        source, code = (row.locator(f"td.{name}").bounding_box() for name in ("src", "asm"))
        assert code["x"] >= source["x"] + source["width"] - 1 and tab.locator(".source thead").is_visible()
        assert tab.locator(".source details[open]").count() < tab.locator(".source details").count()
        tab.get_by_text("Open all instructions").click()
        assert tab.locator(".source details:not([open])").count() == 0
        colours = "e => [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]"
        ink, paper = tab.locator("h1").evaluate(colours)
        assert (ink < paper) == (scheme == "light") or ink != paper
    with browser.shown(made, browser.PHONE, scheme) as tab:
        assert tab.evaluate(browser.OVERFLOW) <= 0
        row = tab.locator(fault).first
        source, code = (row.locator(f"td.{name}").bounding_box() for name in ("src", "asm"))
        assert (
            code["y"] >= source["y"] + source["height"] - 1 and not tab.locator(".source thead").is_visible()
        )
