"""Tests of what benchmarks/shapes.py draws, and of the tables it makes of results."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.problems.gemm import GEMMS, Gemm
from harness.results import record
from shared.places import ROOT
from shared.sampler_rig import SMALL

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "scripts"))

import shapes

from sampler import contest, tables
from sampler.draws import CLASSES, MODELS, MOST_BYTES, MOST_WORK, Draw, draws


@pytest.mark.parametrize("dtype", list(GEMMS))
def test_draws_are_what_was_asked_for(dtype: str) -> None:
    found = draws(dtype, 400, 3)
    assert [draw.index for draw in found] == list(range(400))
    sizes = [(p.M, p.N, p.K) for p in (draw.problem for draw in found)]
    assert all(math.prod(size) <= MOST_WORK for size in sizes)
    for draw in found:
        a, b, c = (x.rows * x.ld * x.dtype.itemsize for x in draw.problem.layouts().values())
        assert max(a + b, c) <= MOST_BYTES
        assert draw.origin or (16 <= min(sizes[draw.index]) and max(sizes[draw.index]) <= 16384)
    counts = Counter(name for draw in found for name in draw.classes)
    assert 70 < counts["model"] < 130 and 50 < counts["ragged"] < 105
    assert min(counts[name] for name in ("NN", "NT", "TN", "TT", "packed", "padded", "odd")) > 40
    assert min(counts[name] for name in ("square", "oblong", "flat", "deep", "skinny", "thin")) >= 10
    assert {draw.origin.split(" ")[0] for draw in found if draw.origin} == {n.split(" ")[0] for n in MODELS}


def test_a_seed_repeats_its_draws() -> None:
    assert draws("bf16", 30, 1) == draws("bf16", 30, 1) == draws("bf16", 60, 1)[:30]


def test_only_thin_draws() -> None:
    """Those of the same seed that are thin, and no others."""
    thin = [d.problem for d in draws("fp32", 400, 3) if min(d.problem.M, d.problem.N) <= 8]
    found = draws("fp32", len(thin), 3, most=8)
    assert [d.problem for d in found] == thin and [d.index for d in found] == list(range(len(thin)))
    assert draws("bf16", 30, 1) != draws("bf16", 30, 2)
    assert [d.problem.M for d in draws("bf16", 30, 1)] != [d.problem.M for d in draws("fp16", 30, 1)]


def test_only_draws_of_little_work(capsys: pytest.CaptureFixture[str]) -> None:
    def work(problem: Gemm) -> int:
        return problem.M * problem.N * problem.K

    small = [d.problem for d in draws("fp32", 400, 3) if work(d.problem) <= 10**8]
    found = draws("fp32", len(small), 3, madds=10**8)
    assert 100 < len(small) < 300 and [d.problem for d in found] == small
    with pytest.raises(SystemExit):
        shapes.main(["--madds", "4095"])
    assert "--madds N: no product has fewer than 4096 multiply-adds" in capsys.readouterr().err
    large = [d.problem for d in draws("fp32", 400, 3) if 10**8 < work(d.problem) <= 10**10]
    assert [d.problem for d in draws("fp32", len(large), 3, over=10**8, madds=10**10)] == large
    with pytest.raises(SystemExit):
        shapes.main(["--over", "5000", "--madds", "5000"])
    assert "--over 5000: no product has more, and at most the 5000 of --madds" in capsys.readouterr().err


def test_only_draws_of_some_classes() -> None:
    """Those of the same seed that are of all of them; of what there is not, it says so."""
    flat = [d.problem for d in draws("tf32", 400, 3) if d.form == "flat" and d.pitch == "odd"]
    found = draws("tf32", len(flat), 3, only=("odd", "flat"))
    assert len(flat) > 5 and [d.problem for d in found] == flat
    assert {name for d in draws("bf16", 400, 1) for name in d.classes} == set(CLASSES)
    with pytest.raises(UsageError, match="only 0 of 50001 draws are as asked for"):
        draws("tf32", 1, 3, only=("flat", "deep"))


def test_only_draws_near_what_was_lost(tmp_path: Path) -> None:
    """They have the layout and paddings of a row that was lost, and its sizes within a quarter."""
    axes = {"transa": 0, "transb": 1, "lda": 4871, "ldb": 4864, "ldc": 23}
    row = {"dtype": "fp32", "M": 4672, "N": 23, "K": 4864, "ratio": 0.9, **axes}
    rows = [row, {**row, "M": 16, "ratio": 1.0}, {**row, "M": 32, "status": "error", "ratio": 0}]
    path = tmp_path / "lost.json"
    record.write_json(path, record.document("shapes", rows, {}))
    with pytest.raises(UsageError, match=r"no draw of bf16 is below 0.98"):
        list(shapes.in_turn(["bf16"], 10, 1, [str(path)]))
    found = list(shapes.in_turn(["fp32"], 200, 1, [str(path)]))
    assert len({d.problem for d in found}) > 150
    for problem in (d.problem for d in found):
        assert problem.layout == "NT" and problem.M % 64 == 0 and problem.K % 64 == 0
        assert (problem.lda - problem.K, problem.ldb - problem.K, problem.ldc - problem.N) == (7, 0, 0)
        for size, near in zip((problem.M, problem.N, problem.K), (4672, 23, 4864), strict=True):
            assert 0.77 < size / near < 1.28
    assert {d.pitch for d in found} == {"odd"} and {d.form for d in found} == {"thin"}
    padded = GEMMS["bf16"](M=100, N=99, K=2001, lda=2040, ldb=104)
    assert {d.pitch for d in draws("bf16", 50, 1, near=[padded])} <= {"odd", "padded"}
    assert all(d.problem.lda % 8 == d.problem.ldb % 8 == 0 for d in draws("bf16", 50, 1, near=[padded]))


def test_types_take_turns() -> None:
    taken = [draw.problem.dtype.name for draw in shapes.in_turn(["fp32", "bf16"], 50, 1)]
    assert taken == (["fp32"] * 20 + ["bf16"] * 20) * 2 + ["fp32"] * 10 + ["bf16"] * 10


@pytest.mark.parametrize(
    ("axes", "form"),
    [
        ({"M": 64, "N": 4096, "K": 4096}, "skinny"),
        ({"M": 100000, "N": 32, "K": 128}, "thin"),
        ({"M": 512, "N": 512, "K": 16384}, "deep"),
        ({"M": 4096, "N": 4096, "K": 64}, "flat"),
        ({"M": 1024, "N": 3072, "K": 768}, "square"),
        ({"M": 128, "N": 4096, "K": 11008}, "oblong"),
    ],
)
def test_forms(axes: dict[str, int], form: str) -> None:
    assert Draw(index=0, problem=Gemm(**axes)).form == form


# -- tables


def row_of(draw: Draw, ratio: float, **more: Any) -> dict[str, Any]:
    ours = 1e-5
    return {
        **contest.Entry(draw=draw).row,
        "chosen": "20_stream_k BM=64 BK=16 WM=32 STAGES=8",
        "algorithm": "algorithm 66, tile 128x256, stages 64xAUTO, cluster 2x1x1, split k 4",
        "seconds": {"matmul": ours, "cuBLAS": ours * ratio, "cuBLASLt": ours * ratio * 1.1},
        "ratio": ratio,
        **more,
    }


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers by hand, in 80 columns."""
    drawn = draws("bf16", 200, 2)
    rows = [row_of(draw, 0.9 if draw.index < 20 else 1.1) for draw in drawn]
    text = tables.summary(rows)
    print(text)
    mean = math.exp((20 * math.log(0.9) + 180 * math.log(1.1)) / 200)
    (line,) = [line for line in text.splitlines() if line.startswith("all ")]
    assert line.split() == ["all", "200", f"{mean:.3f}", "0.900", "0.900", "10%"]
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert "long" not in lines, "10 us are not long"
    slow = row_of(Draw(index=0, problem=Gemm(**SMALL)), 2.0)
    assert tables.counts(slow, "long") and not tables.counts({**slow, "classes": ["padded"]}, "long")
    assert "geomean >= 1.04: yes, 5th percentile >= 0.98: no, least >= 0.92: no" in text
    assert text.count("0.900  bf16") == tables.WORST
    assert max(map(len, text.splitlines())) <= 80
    for row, price in zip(rows, (0.0, 0.5), strict=False):
        row["invariant"] = {"price": price, "seconds": 1e-5, "chosen": ""}
    line = tables.invariant(rows).splitlines()[-1]
    ratio = math.sqrt(rows[0]["ratio"] * rows[1]["ratio"] / 1.5)
    assert line.split() == ["bf16", "2", "25.0%", "47.5%", "50.0%", f"{ratio:.3f}"]
    assert tables.invariant(rows[2:]) == ""
    assert "nothing was timed" in tables.summary([contest.Entry(draw=drawn[0], failure="no").row])


def test_the_table_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the record, and empty where there is none."""
    place = Path(__file__).parents[2] / "scripts" / "update_readme.py"
    found = importlib.util.spec_from_file_location("update_readme", place)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr("readme.records.RECORDS", tmp_path)
    assert module.products.shapes() == ""
    rows = [row_of(draw, 0.9 if draw.index < 20 else 1.1) for draw in draws("bf16", 200, 2)]
    rows.append({**rows[0], "status": "error"})
    meta = {"gpu": {"name": "NVIDIA H200"}, "argv": ["shapes.py"], "seed": 2, "utc": "2026-11-23T03:00:00"}
    record.write_json(tmp_path / "h200/benchmarks/shapes.json", record.document("shapes", rows, meta))
    table = [line.split("|") for line in module.products.shapes().splitlines() if line.startswith("| bf16")]
    mean = math.exp((20 * math.log(0.9) + 180 * math.log(1.1)) / 200)
    assert [cell.strip() for cell in table[0][2:6]] == ["200", f"{mean:.3f}", "0.900", "0.900"]
    assert table[0][7].strip() == "-" and "seed 2." in module.products.shapes(), "10 us are not long"


def test_a_type_without_targets() -> None:
    assert "yes" not in tables.summary([row_of(draw, 1.2) for draw in draws("bf16x6", 5, 1)])
