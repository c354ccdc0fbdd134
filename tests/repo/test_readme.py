"""The generated tables of README.md and docs/ are those of the records; the examples run; every key, command
and option is documented.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from shared.places import RECORDS, ROOT
from shared.readme import pages, python_blocks

sys.path.insert(0, str(ROOT / "scripts"))

README = ROOT / "README.md"
KERNEL_FILES, SASS = ROOT / "docs" / "kernel-files.md", ROOT / "docs" / "sass.md"
needs_records = pytest.mark.skipif(
    not RECORDS.is_dir(), reason="records/ is not in the source distribution: run this test in a checkout"
)


def update_readme() -> Any:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "scripts" / "update_readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@needs_records
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_tables_are_what_the_records_say(page: Path) -> None:
    module, text = update_readme(), page.read_text()
    assert module.updated(text, module.up(page)) == text, "run: python scripts/update_readme.py"


@needs_records
def test_every_table_is_shown_once() -> None:
    shown = [name for page in pages() for name in re.findall(r"<!-- table:(\S+) -->\n", page.read_text())]
    assert sorted(shown) == sorted(update_readme().TABLES)


@pytest.mark.slow
@needs_records
@pytest.mark.parametrize(("name", "row"), [("README.md", "03_tiled"), ("docs/ladder.md", "03_tiled")])
def test_a_stale_table_is_noticed(name: str, row: str) -> None:
    text = (ROOT / name).read_text()
    stale = re.sub(rf"(\| {row}[^\n]*?\|\s+)\d", r"\g<1>9", text)
    assert stale != text
    assert update_readme().updated(stale, update_readme().up(ROOT / name)) == text


def test_the_library_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = fake_driver.install(monkeypatch)
    fake.functions = {"matmul": fake_gemm.SIZES}
    fake.execute = fake_gemm.gemm
    (block,) = python_blocks()
    exec(compile(block, "README.md", "exec"), {})
    assert "ok: worst error" in capsys.readouterr().out


def test_the_kernel_example_is_a_kernel(tmp_path: Path) -> None:
    from harness.kernels import compiler, spec

    blocks = re.findall(r"```cuda\n(.*?)```", KERNEL_FILES.read_text(), re.DOTALL)
    (source,) = (block for block in blocks if "/// kernel" in block)
    (tmp_path / "mine.cu").write_text(source)
    kernel = spec.load(tmp_path / "mine.cu")
    assert compiler.compile_kernel(kernel.variant(), "sm_80").resources.registers > 0


def test_the_finding_it_shows_is_what_the_command_prints() -> None:
    from click.testing import CliRunner

    from harness.cli import main

    printed = CliRunner().invoke(main, ["sass", "tiled", "--arch", "sm_75"]).stdout
    (finding,) = [s for s in printed.splitlines() if "vectorised shared loads" in s]
    assert finding in README.read_text() and finding in SASS.read_text()


def test_every_expectation_it_shows_can_be_read() -> None:
    from harness.kernels import expectation

    table = SASS.read_text().split("| expectation |")[1].split("\n\n")[0]
    shown = [text for row in table.splitlines()[2:] for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(shown) >= 7
    for text in shown:
        expectation.parse(text)


def test_every_key_and_option_is_documented() -> None:
    from harness.cli import VERBS
    from harness.kernels import frontmatter

    keys = KERNEL_FILES.read_text().split("| key |")[1].split("\n\n")[0]
    assert not [key for key in frontmatter.KEYS if f"\n| `{key}` |" not in keys]
    commands = (ROOT / "docs" / "commands.md").read_text()
    assert not [verb for verb in VERBS if f"\n| `harness {verb}" not in commands]


def test_every_figure_and_type_is_documented() -> None:
    from harness.kernels import dtypes, prediction

    text = KERNEL_FILES.read_text()
    assert not [figure for figure in prediction.FIGURES if f"`{figure}`" not in text]
    assert not [dtype for dtype in dtypes.DTYPES if f'`"{dtype}"`' not in text]


def test_names_of_the_library() -> None:
    """Type checkers see the names that are imported lazily, and no others."""
    import harness

    source = Path(harness.__file__).read_text()
    typed = set(re.findall(r"import (\w+) as \1", source))
    assert typed == set(harness.__all__)
    for name in harness.__all__:
        assert getattr(harness, name).__module__.startswith("harness.")
    with pytest.raises(AttributeError):
        _ = harness.nothing


@needs_records
def test_records_are_data_in_documented_folders() -> None:
    files = [p.relative_to(RECORDS) for p in RECORDS.rglob("*") if p.is_file()]
    assert {"".join(f.suffixes[-2:]) for f in files} <= {".json", ".json.xz"} and {
        len(f.parts) for f in files
    } == {3}
    documented = set(
        re.findall(r"^\| `(\w+/\w+)` \|", (ROOT / "docs" / "records.md").read_text(), re.MULTILINE)
    )
    assert documented == {f.parent.as_posix() for f in files}


# Tables of element types, on records made up for the purpose

N = (512, 1024)


def row(kernel: str, dtype: str, shape: tuple[int, int, int], seconds: float, **more: Any) -> dict[str, Any]:
    m, n, k = shape
    label = str(n) if m == n == k else f"{m}x{n}x{k}"
    speed = {"low": 1.014, "estimate": 1.0251, "high": 1.036}
    return {
        "kernel": kernel, "params": {}, "dtype": dtype, "shape": f"{label} {dtype}", "status": "ok",
        "axes": {"M": m, "N": n, "K": k}, "seconds": seconds, "flops_rate": 2 * m * n * k / seconds,
        "sm_hz": 1.6049e9, "device": {"power": 690.0}, "against": "cuBLAS", "speedup": speed, "pair": None,
        "vs_cublas": 1.0251, "baseline": kernel == "cuBLAS", "compiler": "NVRTC 13.0", **more,
    }  # fmt: skip


def baseline(dtype: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    return row("cuBLAS", dtype, shape, 1e-3, speedup=None, vs_cublas=None, against="")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tables by name, of records that `write` puts in a folder of their own."""
    import json

    module = update_readme()
    monkeypatch.setattr("readme.records.RECORDS", tmp_path)
    meta = {
        "argv": ["harness", "bench"], "utc": "2026-11-21T10:00:00",
        "gpu": {"name": "NVIDIA H200", "driver": "13.0", "cublas": "13.1.0", "math_mode": "some mode"},
    }  # fmt: skip

    def write(name: str, *rows: dict[str, Any], kind: str = "bench") -> None:
        path = tmp_path / "h200" / f"{name}.json"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps({"schema": 1, "kind": kind, "meta": meta, "rows": rows}))

    module.write = write
    return module


def cells(table: str, first: str) -> list[str]:
    """The other cells of the row that begins so."""
    (line,) = [s for s in table.splitlines() if s.startswith(f"| {first} ")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_a_ladder_of_another_type(tables: Any) -> None:
    shapes = [(n, n, n) for n in N]
    tables.write("bench/ladder", row("16_pipeline", "fp32", (512,) * 3, 1e-3))
    made = [row("22_wgmma", "bf16", s, 4e-6) for s in shapes[:1]]
    made += [row("26_wgmma_split", "bf16", s, 2e-6, sm_hz=1.98e9) for s in shapes]
    made += [row("23_wgmma_pipeline", "bf16", shapes[1], 1e-6, status="FAILED", flops_rate=None)]
    tables.write("bench/ladder-bf16", *[baseline("bf16", s) for s in shapes], *made)
    table = tables.TABLES["ladder_bf16"]()
    assert "TFLOP/s at n =" in table and "16_pipeline" not in table and "some mode" in table
    assert cells(table, "cuBLAS") == ["0.3", "2.1", "-", "1,605"]
    assert cells(table, "26_wgmma_split") == ["134.2", "1,073.7", "102.5 (101.4 to 103.6)", "1,980"]
    assert cells(table, "22_wgmma") == ["67.1", "-", "-", "-"], "not measured at the largest size"
    assert cells(table, "23_wgmma_pipeline") == ["-", "FAILED", "-", "-"], "what is wrong has no ratio"


def test_types_of_one_file_have_tables_of_their_own(tables: Any) -> None:
    """3xtf32 is never among the rows of tf32."""
    n = (512,) * 3
    pair = row("25_wgmma_tf32", "tf32", n, 1e-6), row("28_3xtf32", "3xtf32", n, 2e-6)
    tables.write("bench/ladder-tf32", baseline("tf32", n), baseline("3xtf32", n), *pair)
    one, other = tables.TABLES["ladder_tf32"](), tables.TABLES["ladder_3xtf32"]()
    assert "25_wgmma_tf32" in one and "28_3xtf32" not in one
    assert "28_3xtf32" in other and "25_wgmma_tf32" not in other


def test_the_dispatcher_by_type(tables: Any) -> None:
    chosen = {"chosen": {"label": "26_wgmma_split"}}
    square, wide = (512,) * 3, (8192, 256, 1024)
    tables.write("matmul/squares", row("matmul", "fp32", square, 1e-3, **chosen))
    tables.write(
        "matmul/rectangle-bf16-1", row("matmul", "bf16", wide, 1e-5, **chosen), baseline("bf16", wide)
    )
    failed = row("matmul", "bf16", (1024,) * 3, 1e-6, **chosen) | {"status": "FAILED", "speedup": None}
    half = {"low": 0.5, "estimate": 0.5, "high": 0.5}
    tables.write("matmul/squares-bf16", row("matmul", "bf16", square, 2e-6, **chosen, speedup=half), failed)
    table = tables.TABLES["matmul_bf16"]()
    assert cells(table, "512") == ["26_wgmma_split", "134.2", "50.0 (50.0 to 50.0)", "1,605"]
    assert cells(table, "8192x256x1024")[1] == "429.5" and cells(table, "1024")[1:3] == ["FAILED", "-"]
    assert "0.500 over the squares, 1.025 over the rectangles" in table


def test_the_dispatcher_beside_cublaslts_best(tables: Any) -> None:
    """A column more where a row of it is right; the means and the headline are of cuBLAS as before."""

    def at(factor: float) -> dict[str, Any]:
        return {"speedup": {"low": factor, "estimate": factor, "high": factor}}

    chosen = {"chosen": {"label": "26_wgmma_split"}}
    small, large = (512,) * 3, (8192, 256, 1024)
    mine = [row("matmul", "bf16", s, 1e-5, **chosen, **at(1.1)) for s in (small, large)]
    tables.write("matmul/squares-bf16", baseline("bf16", small), *mine)
    before = tables.TABLES["matmul_bf16"]()
    assert "cuBLASLt" not in before
    best = row("cuBLASLt", "bf16", small, 1e-5, **at(1.25))
    wrong = row("cuBLASLt", "bf16", large, 1e-5, **at(9)) | {"status": "FAILED"}
    tables.write("matmul/squares-bf16", baseline("bf16", small), best, wrong, *mine)
    table = tables.TABLES["matmul_bf16"]()
    assert cells(table, "512")[2:4] == ["110.0 (110.0 to 110.0)", "88.0"]
    assert cells(table, "8192x256x1024")[3] == "-", "what is wrong is nothing to compare with"
    assert "| cuBLASLt " not in table and table.splitlines()[-1] == before.splitlines()[-1]
    unpaired = best | {"speedup": None, "seconds": 5e-6}
    assert tables.products.of_heuristics(mine[0], unpaired) == "50.0", "of the times, where one has no ratio"


def test_the_headline_is_the_tables_means(tables: Any) -> None:
    def at(factor: float) -> dict[str, float]:
        return {"low": factor, "estimate": factor, "high": factor}

    chosen = {"chosen": {"label": "16_pipeline"}}
    squares = [row("matmul", "fp32", (n,) * 3, 1e-3, **chosen, speedup=at(256 / n)) for n in (128, 512)]
    failed = row("matmul", "fp32", (64,) * 3, 1e-3, **chosen) | {"status": "FAILED", "speedup": None}
    tables.write("matmul/squares", *squares, failed, baseline("fp32", (256,) * 3))
    tables.write("matmul/squares-bf16", row("matmul", "bf16", (512,) * 3, 1e-3, **chosen, speedup=at(3)))
    tables.write("matmul/rectangle-1", row("matmul", "fp32", (1, 2, 3), 1e-3, **chosen, speedup=at(1.25)))
    said = tables.TABLES["headline"]()
    assert cells(said, "fp32") == ["-", "-", "1.00", "1.25", "-", "-"]
    assert "bf16" not in said, "bf16 has no rectangles"
    shapes = ((128, 128, 128), 2.5), ((1, 2, 3), 1.5)  # those that both regimes have are compared
    tables.write(
        "matmul/graph-fp32",
        *(row("matmul", "fp32", shape, 1e-3, **chosen, speedup=at(f)) for shape, f in shapes),
    )
    said = tables.TABLES["headline"]()
    assert cells(said, "fp32") == ["2.50", "1.50", "2.00", "1.25", "-", "-"] and "drawn`" not in said
    draws = [{"dtype": "fp32", "status": "ok", "ratio": ratio} for ratio in (1.0, 1.2)]
    tables.write("benchmarks/shapes", *draws, kind="shapes")
    assert cells(said := tables.TABLES["headline"](), "fp32")[4:] == ["1.10", "1.010"] and "`drawn`" in said


def test_energy_is_of_what_ran_alone(tables: Any) -> None:
    n = (4096,) * 3
    flops = 2 * 4096**3
    alone = row("23_wgmma_pipeline", "bf16", n, flops / 690e12)
    tables.write("matmul/sustained-bf16", baseline("bf16", n), alone)
    line = next(s for s in tables.TABLES["sustained_bf16"]().splitlines() if "23_wgmma" in s)
    assert [c.strip() for c in line.strip("|").split("|")] == [
        "4096", "23_wgmma_pipeline", "690.0", "1,605", "690", "1",
    ]  # fmt: skip
    tables.write("matmul/sustained-bf16", alone | {"pair": {"order": []}})
    with pytest.raises(ValueError, match="the power is of both"):
        tables.TABLES["sustained_bf16"]()


def test_tables_without_a_record_are_empty(tables: Any) -> None:
    text = "a\n<!-- table:ladder_bf16 -->\n| old |\n<!-- end -->\nb\n"
    assert tables.updated(text) == "a\n<!-- table:ladder_bf16 -->\n<!-- end -->\nb\n"
    tables.write("bench/ladder-bf16", baseline("bf16", (512,) * 3))
    assert "| cuBLAS " in tables.updated(text)


def verified(kernel: str, shape: str, status: str = "ok", share: float | None = 0.25, **more: Any) -> Any:
    return {
        "kernel": kernel, "params": {}, "dtype": "fp32", "shape": shape, "status": status,
        "verdict": {"worst": {"error_over_bound": share}},
        "repeats": {"launches": 5000, "equal": 5000, "first": None}, **more,
    }  # fmt: skip


def test_soundness(tables: Any) -> None:
    """The largest error, all repeats, and the worst that a tool said, of all sizes; an output that is wrong
    has no error to be told.
    """
    soundness = tables.TABLES["soundness"]
    assert soundness() == ""
    differs = {"repeats": {"launches": 5000, "equal": 4999, "first": 7}}
    tables.write(
        "verify/ladder",
        verified("03_tiled", "64"),
        verified("03_tiled", "33x65x17", share=0.5),
        verified("05_tiled_no_sync", "64", "FAILED as marked", share=None, repeats=None),
        verified("16_pipeline", "64", "FAILED", **differs),
        verified("16_pipeline", "65"),
        verified("matmul", "64 bf16", dtype="bf16"),
        verified("matmul", "64"),
    )
    table = soundness()
    assert cells(table, "03_tiled") == ["2/2", "0.50", "10,000", "-", "-", "-"]
    assert cells(table, "05_tiled_no_sync") == ["0/1", "wrong", "-", "-", "-", "-"]
    assert cells(table, "16_pipeline")[:3] == ["1/2", "0.25", "9,999 of 10,000"]
    assert cells(table, "matmul bf16")[0] == cells(table, "matmul fp32")[0] == "1/1"

    def looked(kernel: str, tool: str, status: str = "ok", shape: str = "64") -> Any:
        return {"kernel": kernel, "params": {}, "shape": shape, "tool": tool, "status": status}

    tables.write(
        "check/ladder",
        looked("03_tiled", "memcheck"),
        looked("03_tiled", "racecheck"),
        looked("03_tiled", "racecheck", "FAILED", "65"),
        looked("03_tiled", "synccheck", "error"),
        looked("05_tiled_no_sync", "memcheck"),
        looked("05_tiled_no_sync", "racecheck", "FAILED as marked"),
    )
    table = soundness()
    assert cells(table, "03_tiled")[3:] == ["clean", "FAILED", "error"]
    assert cells(table, "05_tiled_no_sync")[3:] == ["clean", "finds it", "-"]
    assert cells(table, "16_pipeline")[3:] == ["-", "-", "-"]
