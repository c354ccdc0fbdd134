"""Rung 21 in the emulator: bf16 by mma.sync, exact on integers at any shape and alignment, by every parameter
set; and what fails when its barriers, waits, swizzle or transposition are not there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import compile_kernel
from harness.bench import emulation
from harness.bench.row import FAILED, OK, Measurement
from harness.emulator import Buffer, emulate
from harness.kernels import catalog, spec
from harness.launch import kernel
from harness.launch.builds import Built
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.verify import compare
from shared.sweeps import sweep
from shared.typed_gemm import KINDS, exact

RUNG = catalog.kernel("21_mma_sync")
SMALL = {"BM": 64, "BN": 64, "WM": 32, "WN": 32}
RAGGED = {"M": 65, "N": 131, "K": 97}  # copied by twos of bytes
UNITS = {"M": 130, "N": 136, "K": 168, "lda": 176, "ldb": 144, "ldc": 137, "beta": -1.0}  # by 16


def run(variant: spec.Variant, problem: Gemm, schedule: str = "lockstep") -> Measurement:
    built = Built(variant=variant, cubin=compile_kernel(variant, "sm_80"), sass=None)
    inputs = problem.inputs(3)
    options = emulation.Options(schedule=schedule)
    return emulation.row(built, problem, inputs, problem.reference(inputs), options)


def conflicts(row: Measurement) -> int:
    assert row.emulation is not None
    return sum(c.conflicts for c in row.emulation.lines)


@pytest.mark.parametrize(
    "variant",
    sweep(RUNG.variants(), lambda v: v.params["BM"] == v.params["BN"] == 64 and v.params["BK"] == 32),
    ids=lambda v: v.label,
)
def test_every_parameter_set_is_exact_and_meets_no_bank_twice(variant: spec.Variant) -> None:
    for kind, axes in [*((kind, RAGGED) for kind in KINDS), *((kind, UNITS) for kind in KINDS)]:
        row = run(variant, exact("bf16", kind)(**axes, alpha=2.0))
        assert row.status == OK, row.error
        assert conflicts(row) == 0


def test_its_products_are_counted() -> None:
    problem = GEMMS["bf16"].from_axes({"N": 64})
    row = run(RUNG.variant(**SMALL), problem)
    assert row.emulation is not None
    assert problem.flops <= row.emulation.total.flops < 1.1 * problem.flops


@pytest.mark.parametrize("schedule", ["lockstep", pytest.param("warp-serial", marks=pytest.mark.slow)])
@settings(max_examples=13, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=st.tuples(*[st.integers(1, 140)] * 3),
    pads=st.tuples(*[st.sampled_from([0, 1, 8])] * 3),
    step=st.sampled_from([1, 8]),
    beta=st.sampled_from([0.0, 0.5]),
)
def test_any_shape_is_right_and_has_no_findings(
    shape: tuple[int, int, int], pads: tuple[int, int, int], step: int, beta: float, schedule: str
) -> None:
    m, n, k = (-(-size // step) * step for size in shape)
    lds = {"lda": k + pads[0], "ldb": n + pads[1], "ldc": n + pads[2]}
    row = run(RUNG.variant(**SMALL), GEMMS["bf16"](M=m, N=n, K=k, beta=beta, **lds), schedule)
    assert row.status == OK, row.error


Write = Callable[..., spec.Variant]


@pytest.fixture
def edited(tmp_path: Path) -> Write:
    """The rung with pieces of its text replaced, each of which stands there once."""

    def edited(*changes: tuple[str, str], **params: int) -> spec.Variant:
        text = RUNG.source
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "edited.cu"
        path.write_text(text)
        return spec.load(path).variant(**(params or SMALL))

    return edited


BEGIN = "    extern __shared__"


@pytest.mark.slow
@pytest.mark.parametrize("offsets", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (4, 4, 2), (8, 8, 3)], ids=str)
def test_operands_at_any_address(edited: Write, offsets: tuple[int, int, int]) -> None:
    """Buffers of the emulator begin at multiples of 256 bytes, so the kernel is told to begin further on."""
    start = "A += {}, B += {}, C += {};\n    extern".format(*offsets)
    variant = edited((BEGIN, f"    {start} __shared__"))
    problem = exact("bf16", "one-hot rows")(M=70, N=72, K=40, beta=1.0)
    inputs = problem.inputs(5)
    arrays = {}
    for (name, array), offset in zip(inputs.items(), offsets, strict=True):
        arrays[name] = np.full(array.size + 16, 0x7FC0, np.uint16)  # NaN all round
        arrays[name][offset : offset + array.size] = array.view(np.uint16).reshape(-1)
    result = emulate(
        compile_kernel(variant, "sm_80").ptx,
        "matmul",
        grid=kernel.grid(variant, problem),
        block=variant.block,
        shared=variant.shared,
        arguments=[
            *(Buffer(array=a, name=name) for name, a in arrays.items()),
            *(np.int32(x) for x in (70, 72, 40, 40, 72, 72)),
            np.float32(1),
            np.float32(1),
        ],
    )
    assert result.findings == ()
    c, at = arrays["C"], offsets[2]
    size = inputs["C"].size
    assert (c[:at] == 0x7FC0).all() and (c[at + size :] == 0x7FC0).all()
    got = c[at : at + size].view(inputs["C"].dtype).reshape(inputs["C"].shape)
    assert compare(got, problem.reference(inputs), inputs["C"]).ok


LONG = {"M": 64, "N": 136, "K": 264}  # more stages than are in flight
SWIZZLE = "(c ^ r / (8 / units) % units * 8)"
READ = "As[stage] + swizzled<BK>(tile_m + 16 * i + down, k + right)"
LAST = "cp_async_wait_group<STAGES - 2>();\n                __syncthreads();"


FAULTS = [
    (LAST, "cp_async_wait_group<STAGES - 2>();", "hazard"),
    (LAST, "__syncthreads();", "missing cp.async wait"),
    (LAST, LAST.replace("- 2", "- 1"), "missing cp.async wait"),
    ("cp_async_wait_group<STAGES - 2>();\n    __sync", "__sync", "missing cp.async wait"),
    ('LDMATRIX_X4(".trans"', 'LDMATRIX_X4(""', "elements wrong"),
    (READ, READ.replace("swizzled<BK>(", "(BK) * (").replace("down, ", "down) + ("), "elements wrong"),
    ("lane / 16 * 8;", "lane / 8 % 2 * 8;", "elements wrong"),
    ("b[step % 2][j / 2][j % 2 * 2]", "b[step % 2][j / 2][0]", "elements wrong"),
    ("row + tile_m + 16 * i + 8 * half", "row + tile_m + 16 * i + 8 * (1 - half)", "elements wrong"),
]


@pytest.mark.parametrize("old", sorted({BEGIN, *(old for old, _, _ in FAULTS)}))
def test_the_text_of_a_fault_stands_in_the_kernel(old: str) -> None:
    assert RUNG.source.count(old) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "found"), FAULTS)
def test_faults_are_found(edited: Write, old: str, new: str, found: str) -> None:
    row = run(edited((old, new)), exact("bf16", "one-hot rows")(**LONG))
    assert row.status == FAILED and row.emulation is not None
    assert any(found in text for text in (row.error, *map(str, row.emulation.findings))), row.error


@pytest.mark.slow
def test_without_a_fault_it_is_right(edited: Write) -> None:
    """The control."""
    assert run(edited(), exact("bf16", "one-hot rows")(**LONG)).status == OK


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_without_its_swizzle_it_is_right_and_meets_banks_eightfold(edited: Write, kind: str) -> None:
    row = run(edited((SWIZZLE, "c")), exact("bf16", kind)(**UNITS))
    assert row.status == OK, row.error
    assert conflicts(row) > 0
    worst: Any = max(row.emulation.lines, key=lambda c: c.conflicts)  # type: ignore[union-attr]
    assert worst.wavefronts == 8 * (worst.wavefronts - worst.conflicts)
