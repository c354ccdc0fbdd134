"""Epilogues in the kernels that `harness.matmul` chooses, emulated: bias, activations and float32 results."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness import compile_kernel, ladder
from harness.bench.emulation import Options, row
from harness.bench.row import OK, Measurement
from harness.dispatch import choose
from harness.kernels import catalog
from harness.kernels.epilogue import ACTIVATIONS, COLUMNS, MACROS, ROWS, Epilogue
from harness.kernels.spec import LAYOUT, Variant
from harness.launch.builds import Built
from harness.problems import checks
from harness.problems.gemm import GEMMS
from shared.hopper_rungs import faults
from shared.places import ROOT

Axes = dict[str, float]
MAPPED: Axes = {"M": 72, "N": 136, "K": 104}
RAGGED: Axes = {"M": 70, "N": 131, "K": 77, "alpha": 1.5}
ADDED: Axes = {"M": 66, "N": 131, "K": 40, "beta": 0.5, "ldc": 136}
THIN: Axes = {"M": 3, "N": 131, "K": 77}
SHAPES = (MAPPED, RAGGED, ADDED, THIN)
BOTH = Epilogue(COLUMNS, "gelu")
BACK = Epilogue(0, "gelu", False, True)  # a gradient through gelu
# (rung, parameters): every kernel of the choice, clusters and shared tiles where it has them.
CHOSEN: dict[str, tuple[str, dict[str, int]]] = {
    "11": ("11_conflict_free", {}),
    "12": ("12_prefetch", {}),
    "13": ("13_cp_async", {}),
    "14": ("14_warp_tiles", {}),
    "15": ("15_split_k", {}),
    "16": ("16_pipeline", {}),
    "17": ("17_skinny_rows", {}),
    "18": ("18_skinny_columns", {}),
    "18 NT": ("18_skinny_columns", {"TRANSB": 1}),
    "19": ("19_pipeline_split", {}),
    "20": ("20_stream_k", {}),
    "20 slices": ("20_stream_k", {"BN": 128, "STAGES": 6, "SLICES": 2}),
    "20 of 256 rows": ("20_stream_k", {"BM": 256, "BN": 32, "WN": 32, "SLICES": 2}),
    "20 in lines": ("20_stream_k", {"BM": 64, "WM": 32, "CHUNK": 16, "TRANSB": 1}),
    "21": ("21_mma_sync", {}),
    "23": ("23_wgmma_pipeline", {}),
    "23 in pairs": ("23_wgmma_pipeline", {"BM": 64, "BN": 128, "STAGES": 6, "CLUSTER": 2}),
    "23 of 256 rows": ("23_wgmma_pipeline", {"BM": 256, "BN": 96, "STAGES": 3}),
    "23 across": ("23_wgmma_pipeline", {"BM": 80, "BN": 64, "STAGES": 8}),
    "23 ping-pong": ("23_wgmma_pipeline", {"BN": 160, "STAGES": 0, "PINGPONG": 1, "CLUSTER": 2}),
    "23 ping-pong across": ("23_wgmma_pipeline", {"BM": 72, "BN": 64, "STAGES": 8, "PINGPONG": 1}),
    "23 across, half a box": ("23_wgmma_pipeline", {"BM": 72, "BN": 64, "STAGES": 8}),
    "23 across 256": ("23_wgmma_pipeline", {"BM": 104, "BN": 256, "STAGES": 0}),
    "24": ("24_wgmma_fp16", {"BM": 64, "BN": 64, "STAGES": 8}),
    "25": ("25_wgmma_tf32", {"BM": 64, "BN": 64, "STAGES": 8}),
    "25 NT": ("25_wgmma_tf32", {"BM": 64, "BN": 64, "STAGES": 8, "TRANSB": 1}),
    "25 ping-pong": ("25_wgmma_tf32", {"BM": 96, "STAGES": 6, "PINGPONG": 1}),
    "25 split": ("25_wgmma_tf32", {"BM": 128, "BN": 64, "STAGES": 6, "SPLIT": 2}),
    "25 TT": ("25_wgmma_tf32", {"BM": 64, "BN": 64, "STAGES": 8, "TRANSA": 1, "TRANSB": 1}),
    "25 TT split": ("25_wgmma_tf32", {"BM": 128, "STAGES": 6, "SPLIT": 4, "TRANSA": 1, "TRANSB": 1}),
    "26": ("26_wgmma_split", {}),
    "27": ("27_wgmma_split_fp16", {"SPLIT": 4}),
    "28": ("28_3xtf32", {}),
    "29": ("29_wgmma_grid_split", {}),
    "29 across": ("29_wgmma_grid_split", {"BM": 80, "BN": 64, "STAGES": 8, "ACROSS": 1}),
    "32": ("32_bf16x6_panels", {}),
    "33": ("33_small_tiles", {}),
    "33 in pairs": ("33_small_tiles", {"SPLIT": 2}),
    "33 turned": (
        "33_small_tiles",
        {"BN": 32, "WARPS_M": 1, "STAGES": 3, "BLOCKS": 3, "TURN": 1, "SLICES": 4},
    ),
    "41": ("41_turned_tiles", {"OUTPUTS": 32, "BK": 16, "STAGES": 3}),
    "42": ("42_single_floats", {}),
    "42 in pairs": ("42_single_floats", {"SPLIT": 4}),
    "34": ("34_small_tiles_tf32", {}),
    "34 own": ("34_small_tiles_tf32", {"BM": 32, "BN": 32, "STAGES": 1, "BLOCKS": 0, "OWN": 1}),
    "35": ("35_wgmma_stream_k", {}),
    "35 thin": ("35_wgmma_stream_k", {"BM": 16, "BN": 128}),
    "35 in pairs": ("35_wgmma_stream_k", {"BM": 40, "BN": 64, "STAGES": 12, "SHARE": 0, "CLUSTER": 2}),
    "36": ("36_fp16x3", {}),
    "38": ("38_3xtf32_panels", {}),
    "39": ("39_bf16x6_tiles", {}),
    "39 in pairs": ("39_bf16x6_tiles", {"BN": 96, "SPLIT": 2}),
    "40": ("40_skinny_dots", {}),
    "40 rows": ("40_skinny_dots", {"FEW": 2, "FEW_ROWS": 1, "TRANSB": 1}),
    "40 in 16 bits": ("40_skinny_dots_bf16", {"ROWS": 4, "TRANSB": 1}),
    "37": ("37_small_tiles_16_bits", {}),
    "37 in pairs": ("37_small_tiles_16_bits", {"SPLIT": 2}),
    "37 own": (
        "37_small_tiles_16_bits",
        {"BM": 32, "BN": 128, "WARPS_M": 1, "STAGES": 1, "BLOCKS": 0, "OWN": 1},
    ),
}
# One for each way of storing; those with large tiles compile for longer than CI has.
QUICK = ("15", "17", "18", "18 NT", "19", "21", "24", "25 NT", "25 split", "26", "27", "28", "33", "34")
QUICK += ("35 thin", "37", "37 own")


def emulated(variant: Variant, epilogue: Epilogue, axes: Axes) -> Measurement:
    """Run a variant as it is at a shape, on a problem with the epilogue, with all checks."""
    flips = {name.lower(): variant.params.get(name, 0) for name in LAYOUT}
    problem = GEMMS[variant.kernel.dtype].from_axes({**axes, **flips})
    problem = replace(problem, epilogue=epilogue)
    one = Built(variant=variant, cubin=compile_kernel(variant, "sm_90a"), sass=None)
    return row(one, problem, *checks.data(problem, 1), Options(count=False))


def chosen(which: str) -> Variant:
    name, parameters = CHOSEN[which]
    return catalog.kernel(name).variant(**parameters)


def check(which: str, epilogue: Epilogue, axes: Axes) -> None:
    found = emulated(epilogue.compiled(chosen(which)), epilogue, axes)
    assert (found.status, faults(found)) == (OK, []), (epilogue, axes)


def test_every_kernel_of_the_choice_is_here() -> None:
    """A kernel that cannot have an epilogue is left out of the choice."""
    names = {c.variant.kernel.path.stem for c in choose.candidates() if BOTH.serves(c.variant.kernel)}
    assert names <= {chosen(which).kernel.path.stem for which in CHOSEN}
    assert len(names) > 15


@pytest.mark.parametrize("epilogue", [Epilogue(COLUMNS), Epilogue(ROWS, "silu"), BOTH, BACK])
def test_a_kernel_with_an_epilogue(epilogue: Epilogue) -> None:
    check("17", epilogue, RAGGED)


@pytest.mark.slow
@pytest.mark.parametrize("which", QUICK)
def test_every_way_of_storing_with_an_epilogue(which: str) -> None:
    """Each kernel with another one in each run, at a shape drawn, too; in 16 bits both also to float32."""
    draw, wide = random.SystemRandom(), chosen(which).kernel.dtype in ("bf16", "fp16")
    bias, activation = draw.choice((ROWS, COLUMNS)), draw.choice(("", "relu", "silu"))
    for to_float in (False, True) if wide else (False,):
        check(which, Epilogue(bias, activation, to_float), draw.choice(SHAPES))
        check(which, Epilogue(0, draw.choice(ACTIVATIONS[1:]), to_float, True), draw.choice(SHAPES))


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", CHOSEN)
def test_every_kernel_with_every_epilogue(which: str) -> None:
    wide = (False, True) if chosen(which).kernel.dtype in ("bf16", "fp16") else (False,)
    forward = itertools.product((0, ROWS, COLUMNS), ACTIVATIONS, wide)
    back = itertools.product((0,), ACTIVATIONS[1:], wide, (True,))
    for epilogue in itertools.starmap(Epilogue, (*forward, *back)):
        for axes in SHAPES:
            check(which, epilogue, axes)


# Faults

HEADER = (ROOT / "cu" / "include" / "epilogue.cuh").read_text()
TAKEN = '#include "epilogue.cuh"'
ERF, TANH = (
    "0.5f * x * (1.f + erff(0.70710678f * x))",
    "times_sigmoid(x, x * (1.59576912f + 0.071354816f * x * x))",
)
PLANTED = {
    "activation before bias": {
        "return activate(value);": "return value;",
        "value += load_float(": "value = activate(value) + load_float(",
    },
    "the bias of the next element": {"min(BIAS == 1 ? row : col,": "min((BIAS == 1 ? row : col) + 1,"},
    "the bias of the other axis": {"min(BIAS == 1 ? row : col,": "min(BIAS == 2 ? row : col,"},
    "the other gelu": {f"if (ACTIVATION == 2) return {ERF};": f"if (ACTIVATION == 2) return {TANH};"},
    "a bias with an error of 2^-8": {"load_float(bias +": "1.00390625f * load_float(bias +"},
    "a read behind the bias": {"min(BIAS == 1 ? row : col, (unsigned)last)": "(unsigned)last + 1"},
}


BACKWARDS = {
    "the element to the right": {"min(col, (unsigned)last_col)": "min(col + 1, (unsigned)last_col)"},
    "the element below": {"min(row, (unsigned)last_row) * ld": "min(row + 1, (unsigned)last_row) * ld"},
    "rows without their padding": {"(unsigned)last_row) * ld +": "(unsigned)last_row) * (last_col + 1) +"},
    "a read below the matrix": {"min(row, (unsigned)last_row)": "(row + 1)"},
    "the activation": {"derivative(load_float(": "activate(load_float("},
    "the derivative of its approximation": {"if (ACTIVATION == 2)  //": "if (ACTIVATION == 9)  //"},
    "the derivative after what it multiplies": {"return value * derivative(": "return value + derivative("},
}


def planted(rung: str, edits: Mapping[str, str], epilogue: Epilogue = BOTH) -> Variant:
    """Return a rung with edits of the header, and an epilogue compiled in."""
    header, plain = HEADER, catalog.kernel(rung).variant()
    for old, new in edits.items():
        assert header.count(old) == 1, old
        header = header.replace(old, new)
    assert TAKEN in plain.kernel.source
    source = plain.kernel.source.replace(TAKEN, header.replace("#pragma once", ""))
    return epilogue.compiled(replace(plain, kernel=replace(plain.kernel, source=source)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_the_epilogue_is_found(name: str) -> None:
    found = emulated(planted("33_small_tiles", PLANTED[name]), BOTH, RAGGED)
    assert found.status != OK or faults(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_fault_in_the_derivative_is_found(name: str) -> None:
    found = emulated(planted("33_small_tiles", BACKWARDS[name], BACK), BACK, ADDED)
    assert found.status != OK or faults(found)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_a_derivative_of_its_own(activation: str) -> None:
    """Each is right, and is not taken for that of another."""
    back = BACK._replace(activation=activation)
    for other in ACTIVATIONS[1:]:
        found = emulated(planted("33_small_tiles", {}, BACK._replace(activation=other)), back, THIN)
        assert (found.status == OK) == (other == activation), other


@pytest.mark.slow
@pytest.mark.parametrize("epilogue", [BOTH, BACK])
def test_the_header_without_a_fault_is_right(epilogue: Epilogue) -> None:
    found = emulated(planted("33_small_tiles", {}, epilogue), epilogue, RAGGED)
    assert (found.status, faults(found)) == (OK, [])


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [Epilogue(ROWS, "gelu"), Epilogue(COLUMNS, "silu"), Epilogue(COLUMNS)])
def test_another_epilogue_is_found(compiled: Epilogue) -> None:
    plain = catalog.kernel("33_small_tiles").variant()
    assert emulated(compiled.compiled(plain), BOTH, RAGGED).status != OK


@pytest.mark.slow
def test_rounding_before_the_activation_is_found() -> None:
    """A bf16 result is rounded once."""
    once = "activate(to_float(Bf16{(unsigned short)pack<Bf16>(value, value)}))"
    edits = {"return activate(value);": f"return {once};"}
    assert emulated(planted("26_wgmma_split", edits), BOTH, MAPPED).status != OK
    assert emulated(planted("26_wgmma_split", {}), BOTH, MAPPED).status == OK


def test_the_references_activations() -> None:
    """By their definitions, and where they saturate; NaN stays NaN."""
    x = np.array([-1e4, -3.0, -0.5, 0.0, 0.7, 4.0, 1e4, np.nan])
    made: dict[str, Any] = {name: Epilogue(0, name).finish(x, None) for name in ACTIVATIONS}
    assert np.array_equal(made["relu"], np.where(x < 0, 0, x), equal_nan=True)
    np.testing.assert_allclose(made["silu"][1:6], x[1:6] / (1 + np.exp(-x[1:6])))
    np.testing.assert_allclose(made["gelu"][4], 0.7 * 0.758036347776927)
    np.testing.assert_allclose(made["gelu"], made["gelu_tanh"], atol=1e-3)
    for name in ACTIVATIONS[1:]:
        assert made[name][0] == 0 and made[name][6] == 1e4 and np.isnan(made[name][7])
    back: dict[str, Any] = {name: Epilogue(0, name, False, True) for name in ACTIVATIONS[1:]}
    near = np.array([-3.0, -0.5, 0.7, 4.0])
    for name, epilogue in back.items():
        above, below = (Epilogue(0, name).finish(near + step, None) for step in (1e-6, -1e-6))
        slopes = epilogue.finish(np.full(4, 2.0), near)
        np.testing.assert_allclose(slopes, (above - below) / 1e-6, rtol=1e-6, atol=1e-8)
    assert back["relu"].finish(np.ones(2), np.array([0.0, -0.0])).tolist() == [0, 0]
    bias = np.array([1.0, 2.0])
    assert Epilogue(ROWS).finish(np.zeros((2, 3)), bias).tolist() == [[1] * 3, [2] * 3]
    assert Epilogue(COLUMNS).finish(np.zeros((3, 2)), bias).tolist() == [[1, 2]] * 3


def test_without_one_nothing_is_compiled_in() -> None:
    """No kernel's file lists the macros, and a plain variant is the file's own."""
    for kernel in ladder():
        assert not set(MACROS) & set(kernel.params)
    variant = chosen("23")
    assert Epilogue().compiled(variant) is variant
    assert BOTH.compiled(variant).label == f"{variant.label} BIAS=2 ACTIVATION=2"
    assert BOTH.compiled(variant).brief == "23_wgmma_pipeline BIAS=2 ACTIVATION=2"
