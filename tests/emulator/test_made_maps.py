"""Tensor maps that a kernel makes itself, by ``tensormap.replace``: Triton's descriptors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from harness.emulator import Buffer, Emulation, emulate
from harness.emulator.hopper.tma.tensormap import BYTES, Map, decode, field
from harness.errors import EmulatorError, NeedsGpu

PTX = (Path(__file__).parents[1] / "data" / "triton" / "described.ptx").read_text()
MAPS = 3 * BYTES  # of a block, in the scratch memory that Triton asks for


def product(ptx: str, M: int, N: int, K: int, schedule: str = "lockstep") -> tuple[Emulation, float]:
    """Run C = A B^T in tiles of 64; return what was seen, and the largest error."""
    rng = np.random.default_rng(M + N + K)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    c = np.zeros((M, N), np.float16)
    grid = (-(-M // 64), -(-N // 64))
    operands = {"a": a, "b": b, "c": c, "scratch": np.zeros(MAPS * grid[0] * grid[1], np.uint8)}
    buffers = [Buffer(array=array.reshape(-1), name=name) for name, array in operands.items()]
    arguments = [*buffers[:3], np.int32(M), np.int32(N), np.int32(K), buffers[3], buffers[3]]
    run = emulate(
        ptx, "described", grid=grid, block=(128,), arguments=arguments, shared=49176, schedule=schedule
    )
    right = a.astype(np.float32) @ b.astype(np.float32).T
    return run, float(np.abs(c.astype(np.float32) - right).max())


@pytest.mark.parametrize(
    "schedule", ["lockstep", *(pytest.param(s, marks=pytest.mark.slow) for s in ("early", "late"))]
)
def test_boxes_lie_where_the_maps_say(schedule: str) -> None:
    run, error = product(PTX, 100, 72, 136, schedule)
    assert not run.findings and 0 < error < 0.03


REPLACED = r"tensormap\.replace\.tile\.{}\S+ \[ %rd\d+ \+ 0 \], {}[^;]*;"


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        (REPLACED.format("box_dim", "0x1"), "", "TMA misuse", "a box of (64, 0), not 1 to 256 each"),
        (REPLACED.format("element_stride", "0x0"), "", "TMA misuse", "element strides (0, 1), not 1 to 8"),
        (REPLACED.format("rank", "0x1"), "", "TMA misuse", "a tensor map of 0 extents, and 2 indices"),
        (r"(swizzle_mode\S+ \[ %rd\d+ \+ 0 \], )0x3", r"\g<1>0x2", "TMA misuse", "a swizzle of 64"),
        (r"@%p\d+ tensormap\.cp_fenceproxy[^;]*;", "", "TMA misuse", "are no tensor map"),
        (
            r"@%p\d+ fence\.proxy\.tensormap[^;]*;",
            "",
            "missing proxy fence",
            "a tensor map that the kernel has",
        ),
        (r"bar\.warp\.sync[^;]*;", "", "RAW hazard", "global_smem at byte 4"),
    ],
)
def test_a_fault_in_a_map_is_found(old: str, new: str, kind: str, said: str) -> None:
    assert re.search(old, PTX)
    run, _ = product(re.sub(old, new, PTX), 64, 64, 64)
    assert any(f.kind == kind and said in f.message for f in run.findings)


def test_strides_that_tma_cannot_have_are_found() -> None:
    run, _ = product(PTX, 64, 64, 68)
    assert any("strides of (136,) bytes, not multiples of 16" in f.message for f in run.findings)


@pytest.mark.parametrize("place", [0, 2])
def test_a_map_may_not_be_larger_than_its_tensor(place: int) -> None:
    """Double the pitch of A, which is read, and of C, which is written: more than there is."""
    found = [*re.finditer(r"(global_stride\S+ \[ %rd\d+ \+ 0 \], 0x0, )(%rd\d+);", PTX)][place]
    doubled = f"add.s64 {found[2]}, {found[2]}, {found[2]};\n\ttensormap.replace.tile.{found[0]}"
    begin = PTX.rindex("tensormap", 0, found.start())
    run, _ = product(PTX[:begin] + doubled + PTX[found.end() :], 128, 128, 128)
    verb = "reads" if place == 0 else "writes"
    assert any(f.kind == "out of bounds" and f.message.startswith(verb) for f in run.findings)


def test_elements_that_the_emulator_has_not_are_refused() -> None:
    with pytest.raises(NeedsGpu):
        product(re.sub(r"(elemtype\S+ \[ %rd\d+ \+ 0 \], )0x6", r"\g<1>0xd", PTX), 64, 64, 64)


@pytest.mark.parametrize(
    "instruction",
    [
        "tensormap [ %rd7 + 0 ];",
        "tensormap.replace.tile.unknown.shared::cta.b1024.b32 [ %rd7 + 0 ], 0x1;",
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [ %rd7 + 0 ], %r12;",
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [ %rd7 + 0 ], 0x5, %r12;",
        "tensormap.replace.tile.rank.shared::cta.b1024.b32 [ %rd7 + 0 ];",
        "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [ %rd7 + 0 ], %r12;",
        "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [ %rd7 + 0 ], 0x1;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [ %rd7 ];",
        "fence.proxy.tensormap::generic.acquire.gpu;",
    ],
)
def test_what_is_no_instruction_is_refused(instruction: str) -> None:
    with pytest.raises(EmulatorError):
        product(re.sub(r"tensormap\.replace\.tile\.rank[^;]*;", lambda _: instruction, PTX), 64, 64, 64)


def test_fields_lie_where_a_map_has_them() -> None:
    map_ = Map(
        address=0x1230, element="BFLOAT16", extents=(256, 5, 7), strides=(512, 4096), box=(64, 2, 3),
        steps=(1, 1, 2), swizzle=128,
    )  # fmt: skip
    raw = bytearray(map_.encode())
    assert len(raw) == BYTES and decode(bytes(raw)) == map_
    for name, number, value in (
        ("global_address", 0, 0x4560), ("global_dim", 2, 9), ("global_stride", 1, 8192), ("box_dim", 0, 32),
        ("element_stride", 1, 4),
    ):  # fmt: skip
        begin, size = field(name, number)
        raw[begin : begin + size] = value.to_bytes(size, "little")
    assert decode(bytes(raw)) == Map(
        address=0x4560, element="BFLOAT16", extents=(256, 5, 9), strides=(512, 8192), box=(32, 2, 3),
        steps=(1, 4, 2), swizzle=128,
    )  # fmt: skip
