"""`harness report`: one page of what was recorded, which needs nothing beside it."""

from __future__ import annotations

import copy
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import MissingDependency, UsageError
from harness.results import record
from harness.results.html import page
from shared import browser
from shared.places import DATA, record_file
from shared.speed import Stopwatch

CARD = "GPU-12345678-1234-1234-1234-123456789abc"


def harness(*args: str) -> Result:
    return CliRunner().invoke(main, args, env={"COLUMNS": None})


def content(name: str) -> dict[str, Any]:
    found = dict(record.load(record_file(name)))
    if isinstance(found["meta"].get("gpu"), dict):
        found["meta"]["gpu"] |= {"uuid": CARD}  # the records come from several cards of that name
    return found


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the ladder, the tile sizes, claims and a profile of two rungs, and its plots."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("page")
    files = [f"--from={DATA / f'ncu-{n}.csv'}" for n in ("naive", "coalesced", "tiled")]
    assert harness("profile", *files, "--json", str(folder / "profile.json")).exit_code == 0
    path = folder / "profile.json"
    profile = json.loads(path.read_text())
    profile["meta"]["gpu"] = {"name": "NVIDIA H200"}
    rungs = {"01_naive": {"BX": 32, "BY": 32}, "02_coalesced": {"BX": 32, "BY": 32}, "03_tiled": {"TILE": 16}}
    for row, kernel in zip(profile["rows"], rungs, strict=True):
        row |= {"kernel": kernel, "label": kernel, "shape": "2048", "params": rungs[kernel]}
    spot = {"text": "x < y && *a", "samples": 6, "reason": "barrier", "because": 3, "executed": 1}
    lines = [{"place": "03_tiled.cu:41", **spot}]
    profile["rows"][2]["hotspots"] = {"samples": 8, "lines": lines, "instructions": []}
    path.write_text(json.dumps(profile))
    names = []
    for n in ("h200/bench/ladder", "h200/bench/tiles", "h200/selftest/noise"):
        uuid = record.load(record_file(n))["meta"]["gpu"]["uuid"]
        names.append(str(folder / record_file(n).name))
        Path(names[-1]).write_text(record_file(n).read_text().replace(uuid, CARD))
    names.append(str(folder / "claims.json"))
    claims = json.loads(record_file("h200/explain/claims").read_text())
    next(r for r in claims["rows"] if r["kernel"] == "02_coalesced")["outcomes"][0]["holds"] = (
        False  # planted
    )
    Path(names[-1]).write_text(json.dumps(claims))
    with Stopwatch() as watch:
        result = harness(
            "report", *names, str(path), "-o", str(folder / "r.html"), "--plots", str(folder / "plots")
        )
    assert result.exit_code == 0, result.output
    assert watch.seconds < 8  # 3 s on a machine of its own; the page alone is half of it
    assert (folder / "r.html").stat().st_size < 3_000_000
    return folder


class Reader(HTMLParser):
    """Every element is closed; tables by their headings."""

    VOID = frozenset({"meta", "br", "hr", "link", "img", "path", "use"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_needs_nothing_beside_it(drawn: Path) -> None:
    text = (drawn / "r.html").read_text()
    reader = Reader(text)
    assert reader.open == []
    assert not [t for t, a in reader.seen if t in ("link", "img", "iframe") or (t == "script" and "src" in a)]
    outside = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"'<)]*", text)) - {
        "http://www.w3.org/1999/xlink"
    }
    assert not outside and "@import" not in text
    ids = [a["id"] for _, a in reader.seen if "id" in a]
    assert len(set(ids)) == len(ids), "two figures share an id: one would be drawn with the other's shapes"
    used = {a["xlink:href"] for t, a in reader.seen if t == "use"}
    assert used and used <= {f"#{i}" for i in ids}


def test_figures_can_be_heard_and_seen_in_the_dark(drawn: Path) -> None:
    text = (drawn / "r.html").read_text()
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(figures) == 2 * 5  # ladder, roofline, tiles, stalls, traffic: wide and narrow
    for figure in figures:
        minidom.parseString(figure)
        assert 'role="img"' in figure and re.search(r'aria-label="[^"]*NVIDIA H200"', figure)
        assert "currentColor" in figure and "#123456" not in figure
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text


def test_numbers_are_those_of_the_records(drawn: Path) -> None:
    text = (drawn / "r.html").read_text()
    rows = {(r["kernel"], r["shape"]): r for r in content("h200/bench/ladder")["rows"]}
    row = rows["04_tiled_coarse", "4096"]
    assert f"<td>{row['flops_rate'] / 1e9:,.0f}</td>" in text
    step = rows["03_tiled", "4096"]["seconds"] / row["seconds"]
    (line,) = [s for s in text.splitlines() if s.startswith("<tr><td>04_tiled_coarse</td><td>4096</td><td>")]
    assert f"<td>{step:.2f} (" in line
    (line,) = [s for s in text.splitlines() if s.startswith("<tr><td>03_tiled</td><td>4096</td>")]
    assert "MIO-queue-bound" in line
    assert "<td>FAILED as marked</td>" in text, "a kernel without a time is told, not left out"
    meta = content("h200/bench/ladder")["meta"]
    assert meta["gpu"]["uuid"] in text and meta["utc"] in text
    assert (meta.get("commit") or meta["code_sha256"])[:10] in text
    assert "Nothing to show in: noise.json" in text


def cards(text: str) -> dict[str, str]:
    found = re.findall(r"<details><summary><b>(\w+)</b>.*?</details>", text, re.DOTALL)
    blocks = re.findall(r"<details>.*?</details>", text, re.DOTALL)
    return dict(zip(found, blocks, strict=True))


def cells(block: str, first: str) -> list[list[str]]:
    """The other cells of the rows that begin with `first`."""
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", block)]
    return [row[1:] for row in rows if row and row[0] == first]


def test_cards_say_what_changed_from_rung_to_rung(drawn: Path) -> None:
    found = cards((drawn / "r.html").read_text())
    rows = {r["kernel"]: r for r in content("h200/bench/ladder")["rows"] if r["shape"] == "4096"}
    assert "01_naive" not in found and "05_tiled_no_sync" not in found and "16_pipeline" in found
    tiled = found["03_tiled"]
    ratio = rows["02_coalesced"]["seconds"] / rows["03_tiled"]["seconds"]
    speed, low, high = map(float, re.findall(r"([\d.]+) \(([\d.]+) to ([\d.]+)\) times as fast", tiled)[0])
    assert speed == pytest.approx(ratio, abs=0.02) and low <= speed <= high
    assert "times as fast as 02_coalesced at 4096; 2 of 2 predictions held</summary>" in tiled
    assert cells(tiled, "shared bytes") == [["0", "2,048"]]
    assert cells(tiled, "LDS in the code") == [
        [str(rows[k]["sass"]["LDS"]) for k in ("02_coalesced", "03_tiled")]
    ]
    assert cells(tiled, "registers") == [], "32 of either: nothing changed"
    assert cells(tiled, "global_requests")[0][:3] == ["1,050,624", "67,584", "0.0643"]
    assert cells(tiled, "gpu__time_duration.sum") == [["2,668,928", "2,105,152"]]
    (stall,) = cells(tiled, "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio")
    assert stall[1] == "12.76 (34%)"
    assert "02_coalesced: memory-bound: " in tiled and "03_tiled: MIO-queue-bound: " in tiled
    assert cells(tiled, "03_tiled.cu:41") == [["75%", "barrier 50%", "x &lt; y &amp;&amp; *a"]]


def test_cards_tell_what_did_not_hold_and_what_is_not_known(drawn: Path) -> None:
    found = cards((drawn / "r.html").read_text())
    (outcome,) = cells(found["02_coalesced"], "sectors &lt;= 0.16 of 01_naive")
    assert outcome[2] == "NOT HELD" and outcome[5] == "held", (
        "planted in what was counted, not in what ncu did"
    )
    assert "0 of 1 predictions held" in found["02_coalesced"]
    assert [o[5] for o in cells(found["03_tiled"], "global_bytes &lt;= 0.07 of 02_coalesced")] == [
        "not known"
    ]
    assert "<th" in found["16_pipeline"] and ">ncu<" not in found["16_pipeline"], "it was not profiled here"


def test_plots_are_written(drawn: Path) -> None:
    names = {p.name for p in (drawn / "plots").iterdir()}
    assert names == {
        f"{n}.{s}" for n in ("ladder", "roofline", "tiles", "stalls", "traffic") for s in ("svg", "png")
    }
    assert all(
        (drawn / "plots" / n).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for n in names if n.endswith("png")
    )


@pytest.mark.slow
def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [str(record_file(name)) for name in ("h200/bench/ladder", "h200/profile/ladder")]
    result = harness("report", *files, "-o", str(tmp_path / "p.html"))
    assert result.exit_code == 0, result.output
    text = (tmp_path / "p.html").read_text()
    assert "bench/ladder.json" in text and "profile/ladder.json" in text
    twice = harness("report", files[0], files[0], "-o", str(tmp_path / "p.html"))
    assert twice.exit_code == 2 and "the same name" in twice.stderr


@pytest.mark.slow
def test_the_same_records_give_the_same_page(drawn: Path) -> None:
    contents = {"l": content("h200/bench/ladder")}
    assert page.page(contents, "t") == page.page(contents, "t")


def test_titles_and_names_are_text(drawn: Path) -> None:
    made = page.page({"<b>.json": content("h200/bench/copy")}, "<script>alert(1)</script>")
    assert "<script>alert" not in made and "<b>.json" not in made and "&lt;b&gt;.json" in made


def test_points_lie_under_their_roofs() -> None:
    """No kernel of the record is above what its bytes allow; one that is planted there is seen to be."""
    pytest.importorskip("matplotlib")
    from harness.results.html import charts

    found = content("h200/bench/ladder")
    about = found["meta"]["gpu"]
    flops, bandwidth = charts._roofs(about)
    assert (flops, bandwidth) == tuple(about["ceilings"][key]["rate"] for key in ("flops", "bandwidth"))
    l1 = charts._L1_BYTES * about["sms"] * about["clock_hz"]

    def above(rows: list[Any]) -> list[str]:
        return [n for n, x, y, _ in charts._points(rows, []) if y * 1e9 > min(flops, x * l1)]

    assert above(found["rows"]) == []
    planted = [{**r, "flops_rate": 10 * r["flops_rate"]} for r in found["rows"] if r.get("flops_rate")]
    assert "02_coalesced" in above(planted)


def test_types_have_charts_of_their_own_and_no_place_under_the_roof_of_float32() -> None:
    pytest.importorskip("matplotlib")
    from harness.results.html import charts

    found = content("h200/bench/ladder")
    about, rows = found["meta"]["gpu"], list(found["rows"])
    typed = [
        {**r, "dtype": "bf16", "flops_rate": 15 * r["flops_rate"]}
        for r in rows
        if r["kernel"] == "cuBLAS" or (r["kernel"] == "02_coalesced" and r["flops_rate"])
    ]
    part = page.Part(gpu="a", about=about, benches={"l": {**found, "rows": [*rows, *typed]}})
    drawn = {c.name: c.figure.axes[0] for c in page.figures(part) if c.name.startswith("ladder")}
    assert set(drawn) == {"ladder", "ladder-bf16"}
    assert {line.get_label() for line in drawn["ladder-bf16"].lines} == {"cuBLAS", "02_coalesced"}
    ours = next(line for line in drawn["ladder-bf16"].lines if line.get_label() == "02_coalesced")
    assert list(ours.get_ydata()) == [
        r["flops_rate"] / 1e9 for r in typed if r["kernel"] == "02_coalesced" and r["dtype"] == "bf16"
    ]
    texts = {name: [t.get_text() for t in axes.texts] for name, axes in drawn.items()}
    names = {name: {line.get_label() for line in axes.lines} for name, axes in drawn.items()}
    rest = {name: [t for t in texts[name] if t not in names[name]] for name in texts}
    assert rest == {"ladder": ["FFMA ceiling, measured"], "ladder-bf16": []}
    assert set(texts["ladder-bf16"]) == {"cuBLAS", "02_coalesced"}, "lines are named at their ends"
    assert charts._points([*rows, *typed], []) == charts._points(rows, [])


@pytest.mark.parametrize("field", ["seconds", "flops_rate", "intensity"])
def test_a_row_that_lacks_a_figure_is_no_point(field: str) -> None:
    """As of a file that somebody has changed by hand."""
    pytest.importorskip("matplotlib")
    from harness.results.html import charts

    rows = content("h200/bench/ladder")["rows"]
    whole = charts._points(rows, [])
    (largest,) = [i for i, r in enumerate(rows) if r["kernel"] == "03_tiled" and r["shape"] == "4096"]
    lacking = [*rows[:largest], {**rows[largest], field: None}, *rows[largest + 1 :]]
    found = charts._points(lacking, [])
    assert [p for p in found if p[0] != "03_tiled"] == [p for p in whole if p[0] != "03_tiled"]
    assert set(found) != set(whole)


@pytest.mark.slow
def test_a_rung_has_one_look_on_the_whole_page() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    part = page.Part(
        gpu="a",
        about=content("h200/bench/ladder")["meta"]["gpu"],
        benches={"l": content("h200/bench/ladder")},
    )
    look = page.palette([part])
    assert look.sorted(["cuBLAS", "16_pipeline", "03_tiled"]) == ["03_tiled", "16_pipeline", "cuBLAS"]
    axes = {c.name: c.figure.axes[0] for c in page.figures(part, look)}
    (line,) = [one for one in axes["ladder"].lines if one.get_label() == "03_tiled"]
    (points,) = [one for one in axes["roofline"].collections if one.get_label() == "03_tiled"]
    assert to_hex(line.get_color()) == to_hex(points.get_edgecolor()[0]) == to_hex(look.colour("03_tiled"))
    assert len({(to_hex(look.colour(n)), look.marker(n)) for n in look.order}) == len(look.order)
    few = {c.name: c.figure.axes[0] for c in page.figures(part, look, few=True)}["ladder"]
    names = [one.get_label() for one in few.lines]
    assert "cuBLAS" in names and "06_bank_conflict" not in names and "05_tiled_no_sync" not in names
    assert "a" in few.get_title(loc="left") and len(names) < len(axes["ladder"].lines)


def test_labels_do_not_cover_each_other() -> None:
    pytest.importorskip("matplotlib")
    from harness.results.html import palette

    part = page.Part(gpu="a", about={}, benches={"l": content("h200/bench/ladder")})
    axes = {c.name: c.figure.axes[0] for c in page.figures(part)}["ladder"]
    heights = sorted(t.xyann[1] for t in axes.texts if t.xyann[0] > 1)
    assert len(heights) > 10
    assert min(b - a for a, b in itertools.pairwise(heights)) >= palette._GAP - 1e-9


def test_emulated_rows_and_files_of_check_are_told_in_full(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [str(tmp_path / f"{n}.json") for n in ("check", "sass", "bench")]
    harness("check", "05_tiled_no_sync", "tiled", "-a", "N=48", "--json", files[0])
    harness("sass", "tiled", "--json", files[1])
    harness("bench", "tiled", "-a", "N=48", "-d", "emulator", "--json", files[2])
    result = harness("report", *files, "-o", str(tmp_path / "r.html"))
    assert result.exit_code == 0, result.output
    text = (tmp_path / "r.html").read_text()
    assert "<b>05_tiled_no_sync TILE=16: RAW hazard</b> at line 38 and line 42: As[0]" in text
    assert "counts by source line, size 48" in text and ">sectors a request<" in text and ">ways<" in text
    assert "<td>LDS.128 in loop</td><td>4</td><td>holds</td>" in text
    assert "kept apart" not in text, "the emulator is no second GPU"
    links = re.findall(r'<a href="#(p\d+)">', text)
    assert links and all(text.count(f'id="{name}"') == 1 for name in links), "contents lead to their parts"
    assert text.index("<nav>") < text.index("<h2")
    assert "<dt>failed</dt><dd>none</dd>" in text, "what is marked as broken has not failed"


# GPUs apart


@pytest.mark.slow
def test_gpus_are_kept_apart() -> None:
    ladder = content("h200/bench/ladder")
    other = copy.deepcopy(ladder)
    other["meta"]["gpu"] |= {"name": "NVIDIA Other", "uuid": "GPU-2"}
    same = copy.deepcopy(ladder)
    same["meta"]["gpu"]["uuid"] = "GPU-3"  # another card of the same name
    found = page.parts({"a": ladder, "b": other, "c": content("h200/bench/tiles"), "d": same})
    assert [(p.gpu, sorted(p.benches)) for p in found] == [
        ("NVIDIA H200", ["a", "c"]),
        ("NVIDIA Other", ["b"]),
        ("NVIDIA H200", ["d"]),
    ]
    pytest.importorskip("matplotlib")
    text = page.page({"a": ladder, "b": other}, "t")
    assert "Measured on 2 GPUs, kept apart below: NVIDIA H200, NVIDIA Other." in text
    assert "kept apart" not in page.page({"a": ladder}, "t")


@pytest.mark.slow
def test_sweeps_are_no_ladder() -> None:
    (part,) = page.parts({"a": content("h200/bench/ladder"), "c": content("h200/bench/tiles")})
    assert len(part.ladder) == len(content("h200/bench/ladder")["rows"]) and len(part.sweeps) == len(
        content("h200/bench/tiles")["rows"]
    )


# Bad input


def test_nothing_to_show_is_refused(tmp_path: Path) -> None:
    empty = {**content("h200/bench/ladder"), "rows": []}
    claims = dict(record.load(record_file("h200/explain/claims")))
    for contents in ({}, {"a": empty}, {"a": content("h200/selftest/noise")}, {"a": claims}):
        with pytest.raises(UsageError, match="no rows of bench or profile"):
            page.parts(contents)
    result = harness("report", str(record_file("h200/selftest/noise")), "-o", str(tmp_path / "r.html"))
    assert result.exit_code == 2 and not (tmp_path / "r.html").exists()
    assert harness("report").exit_code == 2
    assert harness("report", "nowhere.json", "-o", str(tmp_path / "r.html")).exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", ""),
        ('{"schema": 99, "kind": "bench", "meta": {}, "rows": []}', ""),
        ('{"schema": 2, "kind": "profile", "meta": {}, "rows": []}', "no rows of bench or profile"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    for verb in (["report", str(path), "-o", str(tmp_path / "r.html")], ["profile", f"--from={path}"]):
        result = harness(*verb)
        assert result.exit_code in (1, 2) and "error: " in result.output, result.output
        text = " ".join(result.output.split())
        assert "Traceback" not in text and (said in text or verb[0] != "report")
    assert not (tmp_path / "r.html").exists()


@pytest.mark.slow
def test_a_damaged_profile_is_told(drawn: Path, tmp_path: Path) -> None:
    damaged = json.loads((drawn / "profile.json").read_text())
    del damaged["rows"][2]["hotspots"]["lines"][0]["reason"]
    (tmp_path / "p.json").write_text(json.dumps(damaged))
    out = ["-o", str(tmp_path / "r.html")]
    result = harness("report", str(drawn / "ladder.json"), str(tmp_path / "p.json"), *out)
    assert result.exit_code == 2 and "hotspots.lines[0] has no 'reason'" in result.output, result.output
    assert not (tmp_path / "r.html").exists()


@pytest.mark.slow
def test_two_cards_of_a_model_are_told_apart() -> None:
    """And a profile goes to the card that it was made on, where that is among them."""
    first, second, profile = (
        content("h200/bench/ladder"),
        content("h200/bench/ladder"),
        dict(content("h200/profile/ladder")),
    )
    second["meta"]["gpu"]["uuid"] = profile["meta"]["gpu"]["uuid"] = "GPU-2"
    one, two = page.parts({"a": first, "b": second, "p": profile})
    assert not one.profiles and two.profiles == profile["rows"]
    profile["meta"]["gpu"]["uuid"] = "GPU-3"  # of neither: it tells of the model
    assert all(p.profiles == profile["rows"] for p in page.parts({"a": first, "b": second, "p": profile}))
    pytest.importorskip("matplotlib")
    text = page.page({"a": first, "b": second}, "t")
    headings = re.findall(r"<h2[^>]*>(NVIDIA.*?)</h2>", text)
    assert len(headings) == len(set(headings)) == 2 and headings[1].endswith("GPU-2")


@pytest.mark.slow
def test_cards_of_a_model_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [str(record_file(f"h200/bench/ladder{name}")) for name in ("", "-20")]
    result = harness("report", *files, "-o", str(tmp_path / "r.html"))
    assert result.exit_code == 0 and result.stdout.endswith("MB, 2 x NVIDIA H200\n")


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingDependency, match=r"'\.\[report\]'"):
        page.page({"a": content("h200/bench/ladder")}, "t")
    result = harness("report", str(record_file("h200/bench/ladder")), "-o", str(tmp_path / "r.html"))
    assert result.exit_code == 1 and "not installed" in result.output and not (tmp_path / "r.html").exists()


@pytest.fixture
def tab(drawn: Path) -> Iterator[Any]:
    """The page in a headless browser, as wide as a phone."""
    with browser.shown(drawn / "r.html") as tab:
        yield tab


@pytest.mark.slow
def test_a_browser_shows_it(tab: Any) -> None:
    """On a phone the page itself does not scroll sideways; what is wide scrolls inside."""
    assert tab.evaluate(browser.OVERFLOW) <= 0
    assert tab.locator("svg[role=img]:visible").count() == 5
    for figure in tab.locator("svg[role=img]:visible").all():
        assert figure.bounding_box()["height"] > 50
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(paper)
    tab.emulate_media(color_scheme="dark")
    assert tab.evaluate(paper) != light


@pytest.mark.slow
def test_a_browser_sorts_and_opens(tab: Any) -> None:
    table = tab.locator("main > .wide > table").first
    column = table.locator("th").all_text_contents().index("registers")

    def values() -> list[str]:
        return [str(t) for t in table.locator(f"td:nth-child({column + 1})").all_text_contents()]

    table.locator("th button").nth(column).click()
    assert [int(v) for v in values()] == sorted(map(int, values()), reverse=True)
    table.locator("th button").nth(column).click()
    assert [int(v) for v in values()] == sorted(map(int, values()))
    card = tab.locator("details").first
    assert not card.locator("table").first.is_visible()
    card.locator("summary").click()
    assert card.locator("table").first.is_visible()


@pytest.mark.slow
@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_chromium_alone_sorts(drawn: Path) -> None:
    """Without playwright: the page after a click on a heading, as Chromium prints it."""
    text = (drawn / "r.html").read_text()
    click = "document.querySelectorAll('table')[0].querySelectorAll('th button')[2].click()"
    probe = drawn / "probe.html"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", text)  # which blocks the click
    probe.write_text(text.replace("</body>", f"<script>{click}</script></body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", probe.as_uri()]
    done = subprocess.run(
        [str(browser.CHROMIUM), *flags], capture_output=True, text=True, timeout=60, check=True
    )
    assert 'aria-sort="descending"' in done.stdout
