"""One source for several element types: names, former names, choice, macro, cache, machine code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.dispatch import choose, shipped_table, user_table
from harness.errors import SpecError, UsageError
from harness.kernels import catalog, compiler, spec
from harness.kernels.dtypes import DTYPES
from harness.kernels.spec import Kernel
from harness.sass.instructions import disassemble
from harness.support.cache import Cache
from shared.sweeps import sweep

Write = Callable[..., Path]
BOTH = 'dtype = ["bf16", "fp16"]'
FORMER = {
    "24_wgmma_fp16": "23_wgmma_pipeline_fp16",
    "27_wgmma_split_fp16": "26_wgmma_split_fp16",
    "30_grid_split_fp16": "29_wgmma_grid_split_fp16",
}
TYPED = [
    *FORMER.values(),
    "35_wgmma_stream_k_fp16",
    "37_small_tiles_16_bits_fp16",
    "40_skinny_dots_fp16",
]  # of two types, in the second of them
COPIES = """\
struct Bf16 { unsigned short bits; };
struct Fp16 { unsigned short bits; };
__device__ void name(Bf16) { asm volatile("// chosen: bf16"); }
__device__ void name(Fp16) { asm volatile("// chosen: fp16"); }
extern "C" __global__ void matmul(const ELEMENT* A, const ELEMENT* B, ELEMENT* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    name(ELEMENT());
    C[threadIdx.x] = A[threadIdx.x];
}
"""


def names(kernels: list[Kernel]) -> list[str]:
    return [k.name for k in kernels]


def refusal(path: Path) -> str:
    with pytest.raises(SpecError) as e:
        spec.load(path)
    return str(e.value)


# The file


def test_the_first_type_is_the_default(kernel_file: Write) -> None:
    kernel = spec.load(kernel_file(extra=BOTH))
    assert (kernel.name, kernel.dtype, kernel.dtypes) == ("mine", "bf16", ("bf16", "fp16"))
    other = kernel.with_dtype("fp16")
    assert (other.name, other.dtype, other.dtypes) == ("mine_fp16", "fp16", ("bf16", "fp16"))
    assert other.variant().label == "mine_fp16 TILE=16"
    assert kernel.each_dtype() == (kernel, other) and other.with_dtype("bf16") == kernel


def test_one_type_is_a_list_of_one(kernel_file: Write) -> None:
    for extra, types in (("", ("fp32",)), ('dtype = "tf32"', ("tf32",)), ('dtype = ["tf32"]', ("tf32",))):
        kernel = spec.load(kernel_file(extra=extra))
        assert (kernel.name, kernel.dtype, kernel.dtypes) == ("mine", types[0], types)
        assert kernel.each_dtype() == (kernel,)


def test_a_type_that_the_file_does_not_list(kernel_file: Write) -> None:
    with pytest.raises(UsageError, match="mine is not written for tf32") as e:
        spec.load(kernel_file(extra=BOTH)).with_dtype("tf32")
    assert "its element types are bf16, fp16: `dtype` in its front matter" in str(e.value)
    with pytest.raises(UsageError, match="its element type is fp32"):
        spec.load(kernel_file()).with_dtype("bf16")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("dtype = []", r"dtype must be a non-empty string, not \[\]"),
        ('dtype = ["bf16", 3]', "no element type 3"),
        ('dtype = ["bf16", "pf16"]', "no element type 'pf16'"),
        ('dtype = ["bf16", "bf16"]', "lists a type twice"),
        ('dtype = ["bf16", "fp16"]\nproblem = "copy"', "dtype is that of the gemm problem"),
        ('aliases = "old"', "aliases must be a table"),
        ("aliases = {}", "aliases must be a table"),
        ('aliases = {fp16 = "old"}', r"fp16 is not an element type of this file \(fp32\)"),
        ('dtype = ["bf16", "fp16"]\naliases = {tf32 = "old"}', "tf32 is not an element type of this file"),
        ('aliases = {fp32 = "two words"}', "'two words' is not a kernel's name"),
        ("aliases = {fp32 = 24}", "24 is not a kernel's name"),
        ('after = "0*"', "is not one kernel's name"),
        ('after = ["01_naive"]', "after must be a non-empty string"),
    ],
)
def test_what_front_matter_cannot_say(kernel_file: Write, extra: str, said: str) -> None:
    path = kernel_file(extra=extra)
    with pytest.raises(SpecError, match=said) as e:
        spec.load(path)
    line = 7 + extra.count("\n") * ("aliases" in extra.partition("\n")[2])
    assert f"{path}:{line}: " in str(e.value), "the line of the key"


def test_element_is_the_macro_of_the_type(kernel_file: Write) -> None:
    path = kernel_file(extra=BOTH)
    path.write_text(path.read_text().replace("TILE = [16, 8]", "TILE = [16, 8]\n// ELEMENT = 3"))
    assert "parameter ELEMENT: with several types it is the macro" in refusal(path)
    path.write_text(path.read_text().replace(f"// {BOTH}\n", ""))
    assert spec.load(path).params["ELEMENT"] == (3,), "a parameter like any other in a file of one type"
    path = kernel_file("other.cu", extra=BOTH)
    path.write_text(path.read_text().replace('entry = "matmul"', 'entry = "ELEMENT"'))
    assert "it is the macro of the type" in refusal(path)


def test_ptx_is_fixed_text(kernel_file: Write) -> None:
    path = kernel_file("mine.ptx", extra=BOTH)
    path.write_text(path.read_text().replace("[16, 8]", "16"))
    assert "a PTX file is fixed text: give it one element type" in refusal(path)


# The catalog


def test_words_for_the_types_of_a_file() -> None:
    for word in ("23", "wgmma_pipeline", "23_wgmma_pipeline"):
        assert names(catalog.find(word)) == ["23_wgmma_pipeline"], "the default type only"
    for word in ("23_wgmma_pipeline_fp16", "wgmma_pipeline_fp16", "24_wgmma_fp16", "wgmma_fp16", "24"):
        assert names(catalog.find(word)) == ["23_wgmma_pipeline_fp16"]
    (path,) = {k.path for k in catalog.find("23*")}
    assert names(catalog.find(str(path))) == ["23_wgmma_pipeline"]
    assert names(catalog.find("23*")) == ["23_wgmma_pipeline", "23_wgmma_pipeline_fp16"]
    assert names(catalog.find("2[47]*")) == ["23_wgmma_pipeline_fp16", "26_wgmma_split_fp16"]
    assert names(catalog.find("*_fp16")) == TYPED
    with pytest.raises(UsageError, match="no kernel '23_wgmma_pipeline_tf32'") as e:
        catalog.find("23_wgmma_pipeline_tf32")
    assert "did you mean 23_wgmma_pipeline" in str(e.value)


def test_the_ladder_has_every_type() -> None:
    listed = names(catalog.ladder())
    assert len(set(listed)) == len(listed) and set(FORMER.values()) <= set(listed)
    assert not set(FORMER) & set(listed)
    typed = {k.name: k.dtype for k in catalog.ladder()}
    assert all(typed[name] == "fp16" for name in FORMER.values())
    assert set(listed) < set(names(catalog.shipped()))


def test_each_type_once() -> None:
    assert names(catalog.select(["23", "24", "23*", "wgmma_fp16"])) == [
        "23_wgmma_pipeline",
        "23_wgmma_pipeline_fp16",
    ]


def test_a_type_is_chosen() -> None:
    def chosen(*words: str, types: tuple[str, ...], strict: bool = True) -> list[str]:
        return names(catalog.select(words, types, strict=strict))

    assert chosen("23", types=("fp16",)) == ["23_wgmma_pipeline_fp16"]
    assert chosen("23", types=("fp16", "bf16")) == ["23_wgmma_pipeline_fp16", "23_wgmma_pipeline"]
    assert chosen("21", "23", types=("bf16", "fp16")) == [
        *("21_mma_sync", "23_wgmma_pipeline", "23_wgmma_pipeline_fp16")
    ]
    assert chosen("2*", types=("fp16",)) == list(FORMER.values())
    assert chosen(types=("fp16",)) == TYPED
    assert chosen("tiled", "23", types=("fp16",), strict=False) == ["03_tiled", "23_wgmma_pipeline_fp16"]
    path = str(catalog.kernel("23").path)
    assert chosen(path, types=("fp16",)) == ["23_wgmma_pipeline_fp16"]
    assert chosen(str(Path(path).with_name("2*.cu")), types=("fp16",)) == ["23_wgmma_pipeline_fp16"]


@pytest.mark.parametrize(
    ("words", "types", "said"),
    [
        (["tiled"], ["bf16"], "03_tiled is not written for bf16"),
        (["23", "22"], ["fp16"], "22_wgmma is not written for fp16"),
        (["22"], ["bf16", "fp16"], "no kernel here is written for fp16"),
        (["24"], ["bf16"], "'24' is fp16, not bf16"),
        (["0*"], ["bf16"], r"none of '0\*' is written for bf16"),
        (["22*", "0*"], ["bf16"], r"none of '0\*' is written for bf16"),
    ],
)
def test_a_type_that_there_is_not(words: list[str], types: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        catalog.select(words, types)


def test_what_a_child_process_is_told() -> None:
    for kernel in catalog.shipped():
        path, *options = catalog.arguments(kernel)
        dtypes = [word.removeprefix("--dtype=") for word in options]
        assert Path(path).is_absolute() and catalog.select([path], dtypes) == [kernel]
    assert catalog.arguments(catalog.kernel("24"))[1:] == ["--dtype=fp16"]
    assert catalog.arguments(catalog.kernel("23"))[1:] == []


def test_variants_of_each_type(tmp_path: Path) -> None:
    found = catalog.variants(["23", "24", catalog.kernel("23")], False, tmp_path)
    assert [v.kernel.name for v in found] == ["23_wgmma_pipeline", "23_wgmma_pipeline_fp16"]


# Former names


def test_former_names_are_no_kernels_of_today() -> None:
    assert dict(catalog.former_names()) == FORMER
    today = {word for path in catalog.files() for word in (path.stem,)}
    assert not today & set(FORMER)
    assert [catalog.canonical(old) for old in FORMER] == list(FORMER.values())
    for name in ("23_wgmma_pipeline", "mine", "cuBLAS", "matmul", "24"):
        assert catalog.canonical(name) == name


def test_a_changed_file_has_other_names(
    tmp_path: Path, kernel_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "folders", lambda: [tmp_path])
    path = kernel_file("07_mine.cu", extra=f'{BOTH}\naliases = {{bf16 = "05_older", fp16 = "06_old"}}')
    assert dict(catalog.former_names()) == {"05_older": "07_mine", "06_old": "07_mine_fp16"}
    assert names(catalog.find("05")) == ["07_mine"] and names(catalog.find("old")) == ["07_mine_fp16"]
    kernel_file("07_mine.cu", extra=BOTH)
    os.utime(path, ns=(1, 1))
    assert dict(catalog.former_names()) == {}
    with pytest.raises(UsageError, match="no kernel 'old'"):
        catalog.find("old")
    path.write_text("no front matter")
    os.utime(path, ns=(2, 2))
    assert dict(catalog.former_names()) == {}, "records are read beside a kernel that is being written"
    with pytest.raises(SpecError, match="no front matter"):
        catalog.find("07*")


def test_a_table_of_your_own_with_former_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = {"gpu": "a GPU", "sms": 132, "dtype": "fp16", "M": [1, 9], "N": [1, 9], "K": [1, 9]}
    params = {"BM": 64, "BN": 64, "STAGES": 8, "CLUSTER": 1, "GROUP": 1}
    entry = {**about, "kernel": "24_wgmma_fp16", "params": params}
    monkeypatch.setenv("HARNESS_TABLE", str(tmp_path / "matmul.json"))
    user_table.path().write_text(json.dumps({"tuned": [entry]}))
    choose.reread()
    try:
        found = choose.choose(8, 8, 8, sms=132, arch="sm_90a", gpu="a GPU", dtype="fp16")
        assert (found.kernel.name, dict(found.params)) == (
            "23_wgmma_pipeline_fp16",
            params | {"PINGPONG": 0, "ALONG_N": 0, "TRANSA": 0, "TRANSB": 0},  # newer than the table
        )
        today = {**entry, "kernel": "23_wgmma_pipeline_fp16"}
        assert user_table.serves(entry, "fp16") and user_table.serves(today, "fp16")
        assert not user_table.serves(entry, "bf16"), "another type"
        for name in ("24", "wgmma_fp16", "23_wgmma_pipeline", "24_wgmma"):
            assert not user_table.serves({**entry, "kernel": name}, "fp16"), name
    finally:
        monkeypatch.delenv("HARNESS_TABLE")
        choose.reread()


@pytest.mark.slow
def test_every_choice_of_the_shipped_table_is_there() -> None:
    table = shipped_table.contents()
    for entry in (*table["candidates"], *table["tuned"]):
        dtype = entry.get("dtype", "fp32")
        assert user_table.serves(entry, dtype), entry
        assert catalog.canonical(entry["kernel"]) == entry["kernel"], "a name of today"


# Code


def test_the_macro_and_the_cache(kernel_file: Write, tmp_path: Path) -> None:
    kernel, store = spec.load(kernel_file(extra=BOTH, body=COPIES)), Cache(tmp_path / "cache")
    for _ in range(2):  # compiled, then from the cache
        for typed in kernel.each_dtype():
            ptx = compiler.compile_kernel(typed.variant(), "sm_90a", store).ptx
            assert f"// chosen: {typed.dtype}" in ptx
    assert f"#define ELEMENT {DTYPES['fp16'].cpp}\n" in compiler.source_text(typed.variant())
    single = spec.load(kernel_file("one.cu", extra='dtype = "fp16"', body=COPIES))
    assert "#define ELEMENT" not in compiler.source_text(single.variant())


def test_types_of_one_c_type_are_cached_apart(kernel_file: Write, tmp_path: Path) -> None:
    """tf32 and fp32 are both float, so the text that is compiled is the same."""
    kernel, store = spec.load(kernel_file(extra='dtype = ["fp32", "tf32"]')), Cache(tmp_path / "cache")
    a, b = (k.variant() for k in kernel.each_dtype())
    assert compiler.source_text(a) == compiler.source_text(b)
    compiler.compile_kernel(a, "sm_90a", store)
    before = len(list((tmp_path / "cache").rglob("kernel.cubin")))
    compiler.compile_kernel(b, "sm_90a", store)
    assert (before, len(list((tmp_path / "cache").rglob("kernel.cubin")))) == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sweep(["23_wgmma_pipeline", "26_wgmma_split", "29_wgmma_grid_split"], lambda name: name.startswith("26")),
)
def test_another_type_is_the_code_of_a_file_of_its_own(name: str, tmp_path: Path, cache: Cache) -> None:
    """Write a file as rungs 24, 27 and 30 were: it defines ELEMENT and includes the one for bf16.

    Registers and shared memory are those of the default type, which these rungs predicted of themselves.
    """
    kernel = catalog.kernel(name)
    front, _, _ = kernel.source.partition("\n\n")
    alone = "\n".join(s for s in front.splitlines() if "aliases" not in s)
    path = tmp_path / "mine.cu"
    path.write_text(
        alone.replace(BOTH, 'dtype = "fp16"') + f'\n\n#define ELEMENT Fp16\n#include "{kernel.path}"\n'
    )
    variants = [spec.load(path).variant(), kernel.with_dtype("fp16").variant(), kernel.variant()]
    own, typed, default = (compiler.compile_kernel(v, "sm_90a", cache) for v in variants)
    assert disassemble(typed, cache).sha256 == disassemble(own, cache).sha256
    assert disassemble(typed, cache).sha256 != disassemble(default, cache).sha256
    assert (typed.resources.registers, typed.shared) == (default.resources.registers, default.shared)
