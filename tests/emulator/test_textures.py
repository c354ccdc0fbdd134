"""Texture and surface objects: filters, address modes, geometries, and what is outside."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.emulator import Buffer, Emulation, Texture, emulate
from harness.errors import EmulatorError

WIDTH, HEIGHT = 8, 4
GRID = (np.arange(HEIGHT)[:, None] * 10 + np.arange(WIDTH)).astype(np.float32)
HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def read(texture: Texture, x: np.ndarray, y: np.ndarray, instruction: str, results: int = 1) -> np.ndarray:
    """Run one ``tex`` or ``tld4`` in each thread; its coordinates are %f1 and %f2, or %r1 and %r2."""
    out = np.zeros((len(x), 4), np.float32)
    ptx = f"""{HEADER}.visible .entry k(.param .u64 t, .param .u64 px, .param .u64 py, .param .u64 po)
{{
  .reg .b64 %d<9>; .reg .b32 %r<6>; .reg .f32 %f<9>;
  ld.param.u64 %d1, [t]; ld.param.u64 %d2, [px]; ld.param.u64 %d3, [py]; ld.param.u64 %d4, [po];
  mov.u32 %r3, %tid.x; mul.wide.u32 %d5, %r3, 4; mul.wide.u32 %d6, %r3, 16;
  add.u64 %d2, %d2, %d5; add.u64 %d3, %d3, %d5; add.u64 %d4, %d4, %d6;
  ld.global.f32 %f1, [%d2]; ld.global.f32 %f2, [%d3]; cvt.rmi.s32.f32 %r1, %f1; cvt.rmi.s32.f32 %r2, %f2;
  mov.u32 %r4, 1; mov.f32 %f8, 0f00000000;
  {instruction}
  st.global.v4.f32 [%d4], {{%f3, %f4, %f5, %f6}};
  ret;
}}"""
    arguments = [texture, *(Buffer(array=a.astype(np.float32), name=n) for a, n in ((x, "x"), (y, "y")))]
    run = emulate(ptx, "k", grid=(1,), block=(len(x),), arguments=[*arguments, Buffer(array=out, name="out")])
    assert run.findings == ()
    return out[:, :results]


TEX2D = "tex.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%d1, {%f1, %f2}];"
X = np.array([-1.2, 0.0, 0.5, 1.0, 3.75, 7.5, 7.99, 9.3], np.float32)
Y = np.array([0.5, 0.0, 1.5, 2.25, 3.5, -3.0, 3.99, 4.5], np.float32)


def bilinear(x: float, y: float) -> float:
    """The value at unnormalised coordinates, clamped at the edges, with weights of 8 fractional bits."""

    def at(i: int, j: int) -> float:
        return float(GRID[min(max(j, 0), HEIGHT - 1), min(max(i, 0), WIDTH - 1)])

    i, j = int(np.floor(x - 0.5)), int(np.floor(y - 0.5))
    a, b = (round((v - 0.5 - w) * 256) / 256 for v, w in ((x, i), (y, j)))
    return (
        (1 - a) * (1 - b) * at(i, j)
        + a * (1 - b) * at(i + 1, j)
        + (1 - a) * b * at(i, j + 1)
        + a * b * at(i + 1, j + 1)
    )


def test_the_nearest_texel() -> None:
    wanted = GRID[np.clip(np.floor(Y).astype(int), 0, 3), np.clip(np.floor(X).astype(int), 0, 7)]
    assert read(Texture(array=GRID), X, Y, TEX2D)[:, 0].tolist() == wanted.tolist()
    whole = TEX2D.replace("f32.f32", "f32.s32").replace("%f1, %f2", "%r1, %r2")
    assert read(Texture(array=GRID), X, Y, whole)[:, 0].tolist() == wanted.tolist()


@pytest.mark.parametrize("normalized", [False, True])
def test_a_linear_filter(normalized: bool) -> None:
    texture = Texture(array=GRID, filter="linear", normalized=normalized)
    scale = (WIDTH, HEIGHT) if normalized else (1, 1)
    found = read(texture, X / scale[0], Y / scale[1], TEX2D)[:, 0]
    wanted = [bilinear(float(x), float(y)) for x, y in zip(X, Y, strict=True)]
    assert np.allclose(found, wanted, atol=0.05)
    assert not np.array_equal(found, read(Texture(array=GRID), X, Y, TEX2D)[:, 0])


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("wrap", [6, 7, 0, 1, 0, 1]), ("mirror", [1, 0, 0, 1, 7, 6]), ("clamp", [0, 0, 0, 1, 7, 7])],
)
def test_address_modes_outside(mode: str, wanted: list[int]) -> None:
    x = np.array([-1.5, -0.5, 0.5, 1.5, 8.5, 9.5]) / WIDTH
    found = read(Texture(array=GRID, address=mode, normalized=True), x, np.full(6, 0.1), TEX2D)
    assert found[:, 0].tolist() == wanted


def test_a_border_is_zero_and_wrapping_needs_normalised_coordinates() -> None:
    x, y = np.array([-1.0, 3.0, 8.0]), np.full(3, 1.0)
    assert read(Texture(array=GRID, address="border"), x, y, TEX2D)[:, 0].tolist() == [0, 13, 0]
    assert read(Texture(array=GRID, address="wrap"), x, y, TEX2D)[:, 0].tolist() == [10, 13, 17]


def test_channels_bytes_and_layers() -> None:
    bytes4 = np.arange(HEIGHT * WIDTH * 4, dtype=np.uint8).reshape(HEIGHT, WIDTH, 4)
    texture = Texture(array=bytes4, channels=4, read_normalized=True)
    found = read(texture, np.array([2.0]), np.array([1.0]), TEX2D, 4)[0]
    assert np.allclose(found, bytes4[1, 2] / 255)
    layers = np.stack([GRID, GRID + 100])
    layered = "tex.a2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%d1, {%r4, %f1, %f2, %f8}];"
    assert read(Texture(array=layers, layered=True), np.array([2.0]), np.array([1.0]), layered)[0, 0] == 112


def test_gathers_and_cube_maps() -> None:
    gather = "tld4.r.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%d1, {%f1, %f2}];"
    assert read(Texture(array=GRID), np.array([2.0]), np.array([2.0]), gather, 4)[0].tolist() == [
        21,
        22,
        12,
        11,
    ]
    faces = np.arange(6, dtype=np.float32)[:, None, None] * np.ones((6, 4, 4), np.float32)
    cube = "tex.cube.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%d1, {%f1, %f2, %f8, %f8}];"
    texture = Texture(array=faces, layered=True, normalized=True)
    assert read(texture, np.array([1, -1, 0, 0]), np.array([0, 0, 1, -1]), cube)[:, 0].tolist() == [
        0,
        1,
        2,
        3,
    ]


def store(instruction: str, threads: int = WIDTH) -> tuple[np.ndarray, Emulation]:
    """Run one surface store in each of `threads` threads: %r2 is 4 times the thread, %r1 its number."""
    array = np.zeros((HEIGHT, WIDTH), np.int32)
    ptx = f"""{HEADER}.visible .entry k(.param .u64 s)
{{
  .reg .b64 %d<3>; .reg .b32 %r<6>;
  ld.param.u64 %d1, [s]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, 2;
  {instruction}
  ret;
}}"""
    run = emulate(ptx, "k", grid=(1,), block=(threads,), arguments=[Texture(array=array, name="s")])
    return array, run


def test_surfaces_are_stored_to_by_byte() -> None:
    array, run = store("sust.b.2d.b32.trap [%d1, {%r2, %r3}], %r1;")
    assert run.findings == ()
    assert array[2].tolist() == list(range(WIDTH))
    assert not array[[0, 1, 3]].any()
    copied, _ = store(
        "sust.b.2d.b32.trap [%d1, {%r2, %r3}], %r1; suld.b.2d.b32.trap {%r4}, [%d1, {%r2, %r3}]; "
        "mov.u32 %r3, 0; sust.b.2d.b32.trap [%d1, {%r2, %r3}], %r4;"
    )
    assert copied[0].tolist() == list(range(WIDTH))


def test_a_store_outside_of_a_surface_is_found() -> None:
    _, run = store("sust.b.2d.b32.trap [%d1, {%r2, %r3}], %r1;", WIDTH + 1)
    assert [f.kind for f in run.findings] == ["out of bounds"]
    assert run.findings[0].threads[0].x == WIDTH
    assert store("sust.b.2d.b32.zero [%d1, {%r2, %r3}], %r1;", WIDTH + 1)[1].findings == ()


def test_a_handle_of_nothing_is_found() -> None:
    _, run = store("add.u64 %d1, %d1, 7; sust.b.2d.b32.trap [%d1, {%r2, %r3}], %r1;")
    assert [f.kind for f in run.findings] == ["bad texture"]


def test_textures_that_cannot_be() -> None:
    with pytest.raises(EmulatorError, match="filter"):
        Texture(array=GRID, filter="cubic")
    with pytest.raises(EmulatorError, match="shape"):
        Texture(array=np.zeros((2, 2, 2, 2), np.float32))


LEVELS = Texture(
    array=np.full((8, 8), 10.0, np.float32),
    levels=(np.full((4, 4), 20.0, np.float32), np.full((2, 2), 40.0, np.float32)),
    normalized=True,
)
DETAIL = np.array([-1.0, 0.0, 0.4, 0.6, 1.0, 1.25, 2.0, 9.0], np.float32)


def test_levels_of_a_mipmap() -> None:
    text = "tex.level.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%d1, {%f1, %f8}], %f1;"
    nearest = read(LEVELS, DETAIL, DETAIL, text)[:, 0]
    assert nearest.tolist() == [10, 10, 10, 20, 20, 20, 40, 40]
    between = read(dataclasses.replace(LEVELS, mip_filter="linear"), DETAIL, DETAIL, text)[:, 0]
    weights = np.rint((DETAIL[2:4] % 1) * 256) / 256
    assert between.tolist() == [10, 10, *(10 + 10 * weights).tolist(), 20, 25, 40, 40]


def test_gradients_choose_a_level() -> None:
    steps = np.array([1 / 16, 1 / 8, 2 / 8, 4 / 8], np.float32)  # half a texel, one, two and four
    text = "tex.grad.2d.v4.f32.f32 {%f3,%f4,%f5,%f6}, [%d1, {%f8, %f8}], {%f1, %f8}, {%f8, %f2};"
    assert read(LEVELS, steps, steps / 2, text)[:, 0].tolist() == [10, 10, 20, 40]
    assert read(LEVELS, steps / 2, steps, text)[:, 0].tolist() == [10, 10, 20, 40]


def test_levels_have_the_axes_of_the_first() -> None:
    with pytest.raises(EmulatorError, match="not arrays like the first"):
        dataclasses.replace(LEVELS, levels=(np.zeros(4, np.float32),))


REFERENCE = f"""{HEADER}
.global .texref image;
.visible .entry k(.param .u64 po)
{{
  .reg .b64 %d<3>; .reg .b32 %r<3>; .reg .f32 %f<5>;
  ld.param.u64 %d1, [po]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
  tex.1d.v4.f32.s32 {{%f1,%f2,%f3,%f4}}, [image, {{%r1}}];
  st.global.f32 [%d1], %f1;
  ret;
}}"""


def test_a_texture_reference_is_bound_by_its_name() -> None:
    out = np.zeros(4, np.float32)
    bound = {"image": Texture(array=np.arange(4, dtype=np.float32) * 3)}
    assert emulate(REFERENCE, "k", grid=(1,), block=(4,), arguments=[out], textures=bound).findings == ()
    assert out.tolist() == [0, 3, 6, 9]
    with pytest.raises(EmulatorError, match="'image', which is not bound"):
        emulate(REFERENCE, "k", grid=(1,), block=(4,), arguments=[out])
    with pytest.raises(EmulatorError, match="no texture or surface reference 'picture'"):
        emulate(REFERENCE, "k", grid=(1,), block=(4,), arguments=[out], textures={"picture": bound["image"]})
