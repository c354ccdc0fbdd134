import os
import re
from pathlib import Path

import pytest

from harness.errors import SpecError, UsageError
from harness.kernels import catalog, spec

GOOD = """\
// Title of the rung
// why
//
// /// kernel
// entry    = "matmul"
// block    = "BM * BN // (TM * TN)"
// tile     = ["BM", "BN"]
// shared   = "4 * BM"
// loads    = "BM + BN"
// where    = ["BM * BN // (TM * TN) <= 512", "BM >= TM"]
//
// [params]
// BM = [128, 64]
// BN = [128, 64]
// TM = [8, 4]
// TN = 8
// ///
code
"""
PATH = Path("a/k.cu")


def refuse(text: str, path: Path = PATH) -> str:
    with pytest.raises(SpecError) as e:
        spec.parse(text, path)
    return str(e.value)


def test_good() -> None:
    kernel = spec.parse(GOOD, PATH)
    assert (kernel.name, kernel.title, kernel.entry, kernel.problem) == (
        "k",
        "Title of the rung",
        "matmul",
        "gemm",
    )
    assert kernel.params == {"BM": (128, 64), "BN": (128, 64), "TM": (8, 4), "TN": (8,)}
    default = kernel.variant()
    assert (default.block, default.tile, default.shared, default.loads) == ((256, 1, 1), (128, 128), 512, 256)
    assert default.label == "k BM=128 BN=128 TM=8 TN=8"


def with_names(names: str, **changed: str) -> str:
    """Return `GOOD` with these lines under [names], and with other values of keys."""
    text = GOOD.replace("// [params]", f"// [names]\n{names}//\n// [params]")
    for key, value in changed.items():
        text = re.sub(rf"// {key} .*", f"// {key} = {value}", text)
    return text


def test_names_of_expressions() -> None:
    names = '// ROWS = "BM // TM"\n// THREADS = "ROWS * (BN // TN)"\n'
    text = with_names(names, block='"THREADS"', where='["THREADS <= 256 and ROWS > 8"]', shared='"4 * ROWS"')
    kernel, plain = spec.parse(text, PATH), spec.parse(GOOD, PATH)
    assert kernel.variant().block == plain.variant().block == (256, 1, 1)
    assert kernel.variant(TM=4, BN=64).shared == 128 and kernel.params == plain.params
    assert all(v.block[0] <= 256 for v in kernel.variants())
    assert 0 < len(list(kernel.variants())) < len(list(plain.variants()))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ('// BM = "TM"\n', "a/k.cu:13: BM is a parameter and a name under [names]"),
        ('// SMS = "TM"\n', "SMS cannot name a part of an expression"),
        ('// "2x" = "TM"\n', "2x cannot name a part of an expression"),
        ('// A = "B"\n// B = "TM"\n', "block uses B, which is not under [params]"),
        ('// if = "TM"\n', "if cannot name a part of an expression"),
        ('// requires = "TM"\n', "a/k.cu:13: 'requires' stands under [names]"),
        ('// A = "TM +"\n', "a/k.cu:13: A: cannot read the expression 'TM +'"),
        ("// A = [1]\n", "A must hold integer expressions, not [1]"),
    ],
)
def test_refused_names(names: str, message: str) -> None:
    assert message in refuse(with_names(names, block='"A"'))


def test_names_are_a_table() -> None:
    assert "names must be a table: [names]" in refuse(GOOD.replace("// shared ", "// names = 3\n// shared "))
    head, _, _ = GOOD.partition("//\n// [params]")
    wrong = head + '// params = 3\n//\n// [names]\n// A = "4"\n// ///\n'
    assert "params must be a table: [params]" in refuse(wrong)


def test_variants_follow_where_and_choice() -> None:
    kernel = spec.parse(GOOD, PATH)
    assert len(list(kernel.variants())) == 8
    assert [v.params["TM"] for v in kernel.variants({"BM": [64], "BN": [64]})] == [8, 4]
    assert len(list(kernel.variants(defaults=True))) == 1
    assert kernel.variant(BM=96).params["BM"] == 96  # any integer, not only those listed


def test_where_that_excludes_everything() -> None:
    kernel = spec.parse(GOOD, PATH)
    with pytest.raises(UsageError, match="no parameter set of .*BM=4096"):
        list(kernel.variants({"BM": [4096]}))


def test_a_grid_of_its_own() -> None:
    def grid(line: str) -> tuple[int, int, int]:
        text = GOOD.replace("// shared", f"// grid = {line}\n// shared")
        return spec.parse(text, PATH).variant().grid((5, 3, 1), sms=132)

    assert spec.parse(GOOD, PATH).variant().grid((5, 3, 1), sms=132) == (5, 3, 1)
    assert grid('["TILES_X", "TILES_Y", "TM"]') == (5, 3, 8)
    assert grid('"2 * SMS"') == (264, 1, 1)
    assert grid('"TILES_X * TILES_Y * TILES_Z"') == (15, 1, 1)
    with pytest.raises(SpecError, match="grid = 'TILES_Y - 3' is 0; 1 is the least"):
        grid('["TILES_Y - 3"]')


def test_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean TM"):
        list(spec.parse(GOOD, PATH).variants({"TMM": [8]}))


def test_block_too_large() -> None:
    text = GOOD.replace('"BM * BN // (TM * TN)"', '["BM", "BN"]')
    with pytest.raises(SpecError, match="128 x 128 x 1 threads"):
        spec.parse(text, PATH).variant().block  # noqa: B018


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("/// kernel", "/// kernl", "no front matter"),
        ("// ///\ncode", "code", "a/k.cu:4: .* not closed"),
        ("// ///\ncode", "// /// kernel\n// ///\ncode", "a/k.cu:17: a second"),
        ('entry    = "matmul"', "", "lacks entry"),
        ('tile     = ["BM", "BN"]', "", "lacks tile"),
        ('entry    = "matmul"', 'entry = "mat mul"', "a/k.cu:5: entry = 'mat mul' is not a kernel's name"),
        ('entry    = "matmul"', "entry = 3", "a/k.cu:5: entry must be a non-empty string"),
        ('entry    = "matmul"', "entry = matmul", "a/k.cu:5: front matter is not TOML"),
        ('entry    = "matmul"', 'entry = "matmul"\n// blok = 3', "a/k.cu:6: unknown key 'blok'.*\n.*block"),
        (
            'entry    = "matmul"',
            'entry = "matmul"\n// min_arch = "90"',
            "a/k.cu:6: min_arch: '90' is not an arch",
        ),
        ('["BM", "BN"]', '["BM", "BK"]', "a/k.cu:7: tile uses BK.*\n.*parameters: BM, BN"),
        ('["BM", "BN"]', '["BM", "BN", 1, 2]', "takes 1 to 3 expressions, not 4"),
        ('["BM", "BN"]', "[]", "takes 1 to 3"),
        ("// shared", '// grid = "SM"\n// shared', "a/k.cu:8: grid uses SM, .*\n.*did you mean"),
        ("// shared", "// grid = [1, 1, 1, 1]\n// shared", "grid takes 1 to 3"),
        ('"4 * BM"', '"4 * SMS"', "a/k.cu:8: shared uses SMS, which is not under"),
        ("TN = 8", "SMS = 8", "a/k.cu:16: parameter SMS: this name means something else"),
        ('["BM", "BN"]', "[true]", "must hold integer expressions"),
        ('["BM", "BN"]', '["BM / 2"]', "a/k.cu:7: tile: .*use //"),
        ('"BM >= TM"', '"open(1)"', "a/k.cu:10: where: 'open.1.'"),
        ('"BM >= TM"', '"BM >= TMM"', "where uses TMM.*\n.*did you mean TM"),
        ("BM = [128, 64]", "BM = []", "a/k.cu:13: parameter BM must be"),
        ("BM = [128, 64]", "BM = [128, 1.5]", "parameter BM must be"),
        ("BM = [128, 64]", "BM = [true]", "parameter BM must be"),
        ("BM = [128, 64]", "BM = [64, 64]", "lists a value twice"),
        ("BM = [128, 64]", '"B-M" = [64]', "'B-M' cannot be a macro"),
        (
            "// [params]\n",
            '// [params]\n// min_arch = "sm_90"\n',
            "a/k.cu:13: 'min_arch' stands under .params.",
        ),
        ("TN = 8", "\n// ".join(f"T{x} = {list(range(1, 1000))}" for x in "NX"), "parameter sets"),
    ],
)
def test_malformed(old: str, new: str, message: str) -> None:
    text = GOOD.replace(old, new)
    assert text != GOOD  # the fault is there
    assert re.search(message, refuse(text), re.DOTALL)


def test_ptx_takes_one_value_a_parameter() -> None:
    assert "one value" in refuse(GOOD, Path("k.ptx"))
    one = GOOD.replace("[128, 64]", "128").replace("[8, 4]", "8")
    kernel = spec.parse(one, Path("k.ptx"))
    assert kernel.language == "ptx"
    with pytest.raises(UsageError, match="fixed|cannot be changed"):
        list(kernel.variants({"BM": [64]}))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        spec.load(tmp_path / "no.cu")
    with pytest.raises(UsageError, match=r"end in \.cu or \.ptx"):
        spec.load(tmp_path / "k.txt")
    (tmp_path / "d.cu").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        spec.load(tmp_path / "d.cu")
    (tmp_path / "b.cu").write_bytes(b"// \xff\xfe")
    with pytest.raises(SpecError, match="UTF-8"):
        spec.load(tmp_path / "b.cu")
    os.mkfifo(tmp_path / "f.cu")
    with pytest.raises(UsageError, match="not a regular file"):
        spec.load(tmp_path / "f.cu")
    with pytest.raises(UsageError, match="cannot be read"):
        spec.load("a\0b.cu")
    (tmp_path / "n.cu").write_text(GOOD + "more\n\0 code")
    with pytest.raises(SpecError, match=r"n.cu:20: a NUL byte"):
        spec.load(tmp_path / "n.cu")
    (tmp_path / "bom.cu").write_text(GOOD, encoding="utf-8-sig")
    assert spec.load(tmp_path / "bom.cu").title == "Title of the rung"
    (tmp_path / "e.cu").write_text("")
    with pytest.raises(SpecError, match="no front matter"):
        spec.load(tmp_path / "e.cu")


def test_every_shipped_kernel_is_found_by_number_stem_and_glob() -> None:
    names = [p.stem for p in catalog.files()]
    assert len(set(names)) == len(names) >= 9
    assert (
        [k.name for k in catalog.find("tiled")] == ["03_tiled"] == [k.name for k in catalog.find("03_tiled")]
    )
    assert [k.name for k in catalog.find("0[12]*")] == ["01_naive", "02_coalesced"]
    assert "copy" not in [k.name for k in catalog.ladder()]
    assert catalog.find("copy")[0].problem == "copy"
    with pytest.raises(UsageError, match="did you mean .*tiled"):
        catalog.find("tilde")


def test_select_takes_each_kernel_once() -> None:
    assert [k.name for k in catalog.select(["tiled", "03*"])] == ["03_tiled"]


def test_every_rung_makes_a_claim() -> None:
    for kernel in catalog.ladder():
        assert kernel.claim, kernel.name
    assert [k.name for k in catalog.ladder() if k.broken] == ["05_tiled_no_sync"]


def test_what_editors_leave_beside_kernels_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cu").mkdir()
    (tmp_path / "cu" / "01_a.cu").write_text("")
    (tmp_path / "cu" / ".#01_a.cu").symlink_to("somebody@somewhere.123")  # an editor's lock
    (tmp_path / "cu" / "02_gone.cu").symlink_to(tmp_path / "nowhere.cu")
    monkeypatch.setattr(catalog, "folders", lambda: [tmp_path / "cu"])
    assert [p.name for p in catalog.files()] == ["01_a.cu"]


def test_a_path_with_wildcards_gives_every_type() -> None:
    folder = catalog.kernel("23").path.parent
    assert [k.name for k in catalog.find(f"{folder}/23*.cu")] == [
        "23_wgmma_pipeline",
        "23_wgmma_pipeline_fp16",
    ]
    assert [k.name for k in catalog.find(f"{folder}/23_wgmma_pipeline.cu")] == ["23_wgmma_pipeline"]
