"""Charts on a page: every series can be hidden, every point says its value, phones get a narrow drawing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from harness.results.html import charts, markup, series
from harness.results.html.palette import Palette
from shared import browser

NAMES = ("01_a<b", "02_c", "cuBLAS")
SIZES = (256, 512, 1024)


def rows(names: tuple[str, ...] = NAMES) -> list[Any]:
    return [
        {
            "kernel": name,
            "status": "ok",
            "flops_rate": 1e9 * n * (1 + at),
            "dtype": "fp32",
            "axes": dict.fromkeys("MNK", n),
        }
        for at, name in enumerate(names)
        for n in SIZES
    ]


def drawn(names: tuple[str, ...] = NAMES, name: str = "ladder0") -> str:
    palette = Palette(names)
    wide, narrow = (charts.ladder(rows(names), {}, palette, narrow=small) for small in (False, True))
    assert wide is not None and narrow is not None
    return series.figure(wide, narrow, name, "Ladder", "GFLOP/s")


def test_every_point_of_both_drawings_says_its_value() -> None:
    text = drawn()
    titles = re.findall(r"<title>(.*?)</title>", text)
    assert len(titles) == 2 * len(NAMES) * len(SIZES), "none twice, none left out"
    assert titles[: len(SIZES)] == [
        f"01_a&lt;b: {n} GFLOP/s, fp32; n {n}".replace("1024", "1,024") for n in SIZES
    ]
    assert text.count('class="wide-only"') == text.count('class="narrow-only"') == 1


def test_every_series_has_a_button_and_its_parts_have_its_name() -> None:
    text = drawn()
    wide, narrow, legend = (
        text.partition("</svg>")[0],
        text.split("</svg>")[1],
        text.partition('<div class="series">')[2],
    )
    for name in NAMES:
        named = f'data-series="{markup.text(name)}"'
        assert legend.count(named) == narrow.count(named) == 1
        assert wide.count(named) == 3, "its line, its name at the end, and what leads there"
    assert "currentColor" in legend and charts.INK not in text, "cuBLAS has the colour of the text"


def test_a_chart_of_one_series_has_no_buttons() -> None:
    assert "<button" not in drawn(("01_a",)) and "<output>" in drawn(("01_a",))


def test_bars_say_what_they_are() -> None:
    from harness.instruments import counters

    busy = [
        {
            "label": "01_a",
            "counters": {
                m: 10.0 * n for n, m in enumerate((counters.SM, counters.L1, counters.L2, counters.DRAM))
            },
        }
    ]
    wide, narrow = (charts.traffic(busy, narrow=small) for small in (False, True))
    text = series.figure(wide, narrow, "t", "Busy", "busy")
    titles = re.findall(r"<title>(.*?)</title>", text)
    assert titles[:4] == [
        f"01_a: {unit} {10 * n} % of the peak" for n, unit in enumerate(("SM", "L1/TEX", "L2", "DRAM"))
    ]


@pytest.mark.parametrize("large", [2**63, 10**300, -(10**299)])
def test_whole_numbers_beyond_those_of_numpy_are_drawn(large: int) -> None:
    from harness.instruments import counters

    names = (counters.SM, counters.L1, counters.L2, counters.DRAM)
    assert charts.traffic([{"label": "01_a", "counters": dict.fromkeys(names, large)}])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), [(browser.PHONE, "dark"), (browser.DESK, "light")])
def test_buttons_hide_and_the_nearest_point_speaks(
    tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    page = tmp_path / "p.html"
    page.write_text(markup.page("Charts", drawn(), attributes=True))
    with browser.shown(page, size, scheme) as tab:
        assert tab.evaluate(browser.OVERFLOW) <= 0
        visible = tab.locator("svg:visible")
        assert visible.count() == 1
        use = visible.locator('[data-series="02_c"] use').first
        box = use.bounding_box()
        tab.mouse.move(box["x"] + 2, box["y"] + 2)
        assert tab.locator("output").text_content() == "02_c: 512 GFLOP/s, fp32; n 256"
        button, everything = tab.locator('button[data-series="02_c"]'), tab.locator(".series button").first
        button.click()
        assert use.is_hidden() and button.get_attribute("aria-pressed") == "false"
        everything.click()
        assert use.is_visible(), "all of them again"
        everything.click()
        assert (
            visible.locator("use").first.is_hidden() and everything.get_attribute("aria-pressed") == "false"
        )
        height = tab.evaluate(
            "document.querySelector('svg.narrow-only text')?.getBoundingClientRect().height ?? 0"
        )
        assert size != browser.PHONE or height >= 9, "as large as text can be read"
