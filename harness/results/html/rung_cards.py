"""Write as HTML why a rung is faster than the one it was derived from, in a part that opens and closes."""

from __future__ import annotations

from collections.abc import Iterator

from harness.instruments.hotspots import Hotspots
from harness.kernels.prediction import SECONDS
from harness.results import claims, explanation, tables
from harness.results.explanation import Card
from harness.results.html.markup import table, text
from harness.results.record import Document
from harness.results.rows import ProfileRow

_LINES = 5  # how many of the hottest source lines are shown
_OUTCOMES = ("prediction", "counted or timed", "limit", "is", "by ncu", "limit", "is")


def card(found: Card) -> str:
    """Return the card as an HTML ``details`` element; its summary line stays visible while it is closed."""
    return f"<details><summary>{_summary(found)}</summary>\n{chr(10).join(_inside(found))}\n</details>"


def _summary(found: Card) -> str:
    """Return the line that stays visible: the speed, and how many predictions held."""
    claim = found.claims[1]
    held = [o["holds"] for o in claim["outcomes"]] if claim else []
    unknown = f", {held.count(None)} not known" if None in held else ""
    told = f"; {held.count(True)} of {len(held)} predictions held{unknown}" if held else ""
    speed = f"{found.times.speed} times as fast as {found.a['kernel']} at {found.times.shape}"
    return f"<b>{text(found.b['kernel'])}</b>: {text(speed + told)}"


def _inside(found: Card) -> Iterator[str]:
    """Yield the elements of an open card."""
    names = [found.a["kernel"], found.b["kernel"]]
    claim = found.claims[1]
    if claim:
        yield f"<p>{text(claim['title'])}. Its claim: {text(claim['claim'])}</p>"
    if claim and claim["outcomes"]:
        yield table(_OUTCOMES, _outcomes(claim))
        yield from (f"<p>{text(said)}</p>" for said in _about(claim))
    first, second = map(tables.seconds, found.times.seconds)
    yield f"<p>{text(f'{first}, {second}; not timed in turn')}</p>"
    changed = explanation.changed(found.a, found.b)
    if changed:
        yield table(("changed", *names), changed)
    if found.claims[0] and claim:
        figures = explanation.counted(found.claims[0]["figures"], claim["figures"])
        yield table(("counted by the emulator", *names, "ratio", ""), figures)
    if found.profiles:
        yield table(("ncu", *names), explanation.compared(*found.profiles))
        for name, profile in zip(names, found.profiles, strict=True):
            said = "; ".join(f"{d['kind']}: {d['says']}" for d in profile["diagnoses"])
            yield f"<p>{text(name)}: {text(said or 'no rule speaks')}</p>"
        yield from hottest(found.profiles[1])


def _outcomes(claim: Document) -> list[list[str]]:
    """Return a row for each prediction, as counted or timed and as ncu measured it."""
    rows = []
    for counted, by_ncu in zip(claim["outcomes"], claim["measured"], strict=True):
        row = [counted["prediction"]]
        timed = counted["prediction"].startswith(SECONDS)
        for o in (counted, by_ncu):
            verdict = "" if o is by_ncu and timed else claims.VERDICTS[o["holds"]]  # ncu does not take times
            row += [tables.number(o["value"]), tables.number(o["limit"]), verdict]
        rows.append(row)
    return rows


def _about(claim: Document) -> Iterator[str]:
    """Yield what the table has no column for: intervals and sources of ratios of times, and why some are not
    known.
    """
    for o in claim["outcomes"]:
        if o.get("record") and o.get("interval"):
            low, high = o["interval"]["low"], o["interval"]["high"]
            yield f"{o['prediction']}: a ratio of times, {low:.4g} to {high:.4g}, from {o['record']}"
        if o.get("reason"):
            yield f"{o['prediction']}: not known: {o['reason']}"


def hottest(profile: ProfileRow) -> Iterator[str]:
    """Yield a table of the source lines (or instructions, without lines) that have most samples of its warps.

    Nothing if the profile has no samples.
    """
    spots = profile.get("hotspots")
    if not spots:
        return
    found = Hotspots.of_record(spots)
    rows = [
        [
            spot.place,
            f"{spot.samples / found.samples:.0%}",
            f"{spot.reason} {spot.because / spot.samples:.0%}",
            spot.text,
        ]
        for spot in found.lines[:_LINES] or found.instructions[:_LINES]
    ]
    yield table((f"of {found.samples:,} samples", "share", "mostly", ""), rows)
