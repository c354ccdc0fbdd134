"""``after`` in front matter: the kernel that one was derived from, looked up when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import SpecError
from harness.kernels import catalog, spec

Write = Callable[..., Path]


def test_every_rung_but_the_first_has_one() -> None:
    for kernel in catalog.ladder():
        before = catalog.predecessor(kernel)
        assert (before is None) == (kernel.name == "01_naive"), kernel.name
        assert before is None or (before.path.stem < kernel.path.stem and not before.broken)
        line = [k.name for k in catalog.ancestors(kernel)]
        assert kernel.name == "01_naive" or line[-1] == "01_naive"
    assert catalog.predecessor(catalog.kernel("copy")) is None


@pytest.mark.parametrize(
    ("rung", "before"),
    [("05", "03_tiled"), ("06", "03_tiled"), ("07", "06_bank_conflict"), ("16", "14_warp_tiles")],
)
def test_it_is_not_the_neighbour(rung: str, before: str) -> None:
    found = catalog.predecessor(catalog.kernel(rung))
    assert found is not None and found.name == before


def test_it_is_of_the_same_type_where_there_is_one() -> None:
    (split, typed) = catalog.find("26*")
    assert typed.dtype == "fp16"
    assert next(catalog.ancestors(split)).name == "23_wgmma_pipeline"
    names = [k.name for k in catalog.ancestors(typed)]
    assert names[0] == "23_wgmma_pipeline_fp16" and "22_wgmma" in names


def test_names_in_the_file_of_a_kernel(kernel_file: Write) -> None:
    """Another kernel is meant in this one's type, unless the name tells the type or is the file's own."""
    mine = spec.load(kernel_file("23_wgmma_pipeline.cu", extra='dtype = ["bf16", "fp16"]')).with_dtype("fp16")
    for name, meant in (
        ("26", "26_wgmma_split_fp16"),
        ("22", "22_wgmma"),
        ("27", "26_wgmma_split_fp16"),
        ("23_wgmma_pipeline", "23_wgmma_pipeline"),
    ):
        assert catalog.related(mine, name).name == meant
    bf16 = mine.with_dtype("bf16")
    assert catalog.related(bf16, "26").name == "26_wgmma_split"
    assert catalog.related(bf16, "27").name == "26_wgmma_split_fp16"
    single = spec.load(kernel_file("one.cu", extra='dtype = "fp16"'))
    assert catalog.related(single, "26").name == "26_wgmma_split", "a file of one type means what it says"


def test_a_kernel_of_your_own(kernel_file: Write) -> None:
    kernel_file("first.cu")
    second = spec.load(kernel_file("second.cu", extra='after = "first.cu"'))
    shipped = spec.load(kernel_file("third.cu", extra='after = "tiled"'))
    assert second.after == "first.cu"
    assert [k.name for k in catalog.ancestors(second)] == ["first"], "beside the file that names it"
    assert [k.name for k in catalog.ancestors(shipped)] == ["03_tiled", "02_coalesced", "01_naive"]
    assert catalog.predecessor(spec.load(kernel_file())) is None


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("03_tyled", r"after = '03_tyled': no kernel '03_tyled'.*did you mean"),
        ("gone.cu", "after = 'gone.cu': no such file"),
        ("mine.cu", "a kernel does not follow itself"),
    ],
)
def test_a_name_that_is_no_kernel_is_an_error_when_it_is_asked_for(
    kernel_file: Write, after: str, said: str
) -> None:
    path = kernel_file(extra=f'after = "{after}"')
    kernel = spec.load(path)  # not here
    assert kernel.after == after
    with pytest.raises(SpecError, match=f"(?s){said}") as e:
        catalog.predecessor(kernel)
    assert str(path) in str(e.value)


def test_a_circle(kernel_file: Write) -> None:
    first = spec.load(kernel_file("first.cu", extra='after = "second.cu"'))
    kernel_file("second.cu", extra='after = "first.cu"')
    with pytest.raises(SpecError, match="leads back to first"):
        list(catalog.ancestors(first))
