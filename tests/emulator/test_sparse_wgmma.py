"""Sparse wgmma against plain products, by the layouts of metadata and operands that the PTX ISA gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator.numbers.formats import encode
from harness.errors import NeedsGpu
from shared.hopper_kernels import kinds, run

SOURCE = """const unsigned char* a, const unsigned char* b, const unsigned* e, TYPE* c {
  __shared__ __align__(128) unsigned char as[64 * 32], bs[8 * 64];
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 32; i += 128)
    as[i / 32 / 8 * 256 + i % 32 / 16 * 128 + i / 32 % 8 * 16 + i % 16] = a[i];
  for (int i = t; i < 8 * 64; i += 128) bs[i % 64 / 16 * 128 + i / 64 % 8 * 16 + i % 16] = b[i];
  fence_async();
  __syncthreads();
  const u64 da = at(as) >> 4 | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
  const u64 db = at(bs) >> 4 | (u64)(128 >> 4) << 16 | (u64)(512 >> 4) << 32;
  TYPE d[4] = {1, 1, 1, 1};
  const unsigned* r = (const unsigned*)a + (t / 32 * 16 + t % 32 / 4) * 8 + t % 4;
  unsigned x0 = r[0], x1 = r[64], x2 = r[4], x3 = r[68];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sp.sync.aligned.SHAPE {%0, %1, %2, %3}, LEFT, %5, %6, SELECTOR, TAIL;"
               : "+X"(d[0]), "+X"(d[1]), "+X"(d[2]), "+X"(d[3])
               : "l"(da), "l"(db), "r"(e[t]), "r"(x0), "r"(x1), "r"(x2), "r"(x3));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i)
    c[(t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}"""
DEPTH = {"f16": 32, "bf16": 32, "tf32": 16, "e4m3": 64, "e5m2": 64, "s8": 64, "u8": 64}
TAILS = {"f16": "1, 1, 1, 0, 0", "bf16": "0, 1, -1, 0, 0", "s8": "1", "u8": "1"}
Found = tuple[set[str], bool]
Sparse = tuple[np.ndarray, np.ndarray, np.ndarray]


def bits(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the bytes of elements."""
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint8)
    if kind in ("s8", "u8"):
        return values.astype(np.int64).astype(np.uint8)
    found = encode(values.astype(np.float64), kind)
    return np.ascontiguousarray(found.astype(np.uint16 if kind in ("f16", "bf16") else np.uint8)).view(
        np.uint8
    )


def sparse(rng: np.random.Generator, kind: str) -> Sparse:
    """Return A with its zeros, what is stored of it, and the code of each group of a row."""
    depth, group, low = DEPTH[kind], 2 if kind == "tf32" else 4, 0 if kind == "u8" else -4
    full = np.zeros((64, depth))
    stored, codes = np.zeros((64, depth // 2)), np.zeros((64, depth // group), np.uint32)
    for row in range(64):
        for g in range(depth // group):
            chosen = sorted(rng.choice(group, group // 2, replace=False).tolist())
            for j, index in enumerate(chosen):
                value = rng.integers(low, 5)
                full[row, g * group + index] = stored[row, g * group // 2 + j] = value
            if kind == "tf32":
                codes[row, g] = (0b0100, 0b1110)[chosen[0]]
            else:
                codes[row, g] = chosen[0] | chosen[1] << 2
    return full, stored, codes


def held(codes: np.ndarray, kind: str, selector: int) -> np.ndarray:
    """Return the metadata of each thread. A word has codes of eight groups, four bits each."""
    words = np.full(128, 0xFFFFFFFF, np.uint32)  # where the selector does not look: no codes at all
    for thread in range(128):
        lane, first = thread % 4, thread // 32 * 16 + thread % 32 // 4
        if DEPTH[kind] == 64:  # lanes 0 and 2 have row i, 1 and 3 row i + 8; 2 and 3 the second half of k
            groups = codes[first + lane % 2 * 8, lane // 2 * 8 :][:8]
        elif lane // 2 == selector:  # four groups of row i, then four of row i + 8
            groups = np.concatenate([codes[row, lane % 2 * 4 :][:4] for row in (first, first + 8)])
        else:
            continue
        words[thread] = sum(int(code) << 4 * i for i, code in enumerate(groups))
    return words


def source_of(kind: str, selector: int, *edits: tuple[str, str], registers: bool = False) -> str:
    """Return the kernel of a type, with its edits."""
    integers, tail = kind in ("s8", "u8"), TAILS.get(kind, "1, 1, 1")
    to = "s32" if integers else "f32"
    if registers and kind in ("f16", "bf16"):
        tail = tail[:-3]
    left = "{%7, %8, %9, %10}" if registers else "%4"
    source = SOURCE.replace("SHAPE", f"m64n8k{DEPTH[kind]}.{to}.{kind}.{kind}").replace("LEFT", left)
    source = source.replace("TYPE", "int" if integers else "float").replace("+X", "+r" if integers else "+f")
    source = source.replace("SELECTOR", str(selector)).replace("TAIL", tail)
    for edit in edits:
        assert source.count(edit[0]) == 1, edit
        source = source.replace(*edit)
    return source


def product(kind: str, selector: int = 0, *edits: tuple[str, str], registers: bool = False) -> Found:
    """Run a product; return the kinds of findings, and whether the numbers are right."""
    rng = np.random.default_rng(7)
    integers = kind in ("s8", "u8")
    source = source_of(kind, selector, *edits, registers=registers)
    full, stored, codes = sparse(rng, kind)
    b = rng.integers(0 if kind == "u8" else -4, 5, (8, DEPTH[kind])).astype(np.float64)
    c = np.zeros((64, 8), np.int32 if integers else np.float32)
    words = held(codes, kind, selector)
    found = run(source, bits(stored, kind).ravel(), bits(b, kind).ravel(), words, c)
    wanted = full @ b.T
    signs = [int(text) for text in TAILS.get(kind, "1, 1, 1").split(",")]
    wanted = wanted * (1 if integers else signs[1] * signs[2]) + signs[0]
    return kinds(found), bool((c == wanted).all())


FORMS = [("f16", 0), ("f16", 1), ("bf16", 0), ("tf32", 0), ("tf32", 1), ("e4m3", 0), ("s8", 0), ("u8", 0)]
FEW = [("f16", 1, False), ("tf32", 0, True), ("e4m3", 0, False), ("s8", 0, True)]


def few(*case: Any, chosen: bool) -> Any:
    """A case, slow unless it is chosen."""
    return pytest.param(*case, marks=[] if chosen else [pytest.mark.slow])


@pytest.mark.parametrize(
    ("kind", "selector", "registers"),
    [few(*f, r, chosen=(*f, r) in FEW) for f in FORMS for r in (False, True)],
)
def test_a_sparse_product_is_a_plain_one(kind: str, selector: int, registers: bool) -> None:
    assert product(kind, selector, registers=registers) == (set(), True)


MISTAKES = [
    (('"r"(e[t])', '"r"(e[t] ^ (t == 5 ? 1 : 0))'), "wrong numbers"),
    (('"r"(e[t])', '"r"(t == 4 ? 0x44444440 : e[t])'), "wgmma misuse"),
    (('"r"(e[t])', '"r"(e[t ^ 1])'), "wrong numbers"),
    (("wait_group.sync.aligned 0", "wait_group.sync.aligned 1"), "missing wgmma wait"),
    (("  fence_async();\n", ""), "missing proxy fence"),
    (("  __syncthreads();\n", ""), "RAW hazard"),
    (("bs[8 * 64];", "bs[8 * 48];"), "out of bounds"),
    (('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', ""), "missing wgmma.fence"),
]


@pytest.mark.parametrize(
    ("edit", "wanted"), [few(*mistake, chosen=i < 3) for i, mistake in enumerate(MISTAKES)]
)
def test_a_mistake_is_told(edit: tuple[str, str], wanted: str) -> None:
    found, right = product("f16", 0, edit)
    assert wanted in (found if right else found | {"wrong numbers"})


@pytest.mark.parametrize("code", [few(f"0x{8 * digit}", chosen=digit == "5") for digit in "05AF"])
def test_an_index_twice_is_no_code(code: str) -> None:
    assert "wgmma misuse" in product("f16", 0, ('"r"(e[t])', f'"r"(t == 4 ? {code} : e[t])'))[0]


def test_the_higher_index_may_come_first() -> None:
    full, stored, codes = sparse(np.random.default_rng(7), "f16")
    turned = stored.reshape(64, -1, 2)[:, :, ::-1].reshape(stored.shape)
    b, c = np.ones((8, 32)), np.zeros((64, 8), np.float32)
    words = held(codes >> 2 | (codes & 3) << 2, "f16", 0)
    found = run(source_of("f16", 0), bits(turned, "f16").ravel(), bits(b, "f16").ravel(), words, c)
    assert kinds(found) == set() and (c == full @ b.T + 1).all()


def test_what_is_not_stored_is_not_multiplied() -> None:
    _, stored, codes = sparse(np.random.default_rng(7), "f16")
    codes[:] = 0b0100  # the first two of each four
    b, c = np.ones((8, 32)), np.zeros((64, 8), np.float32)
    b[1, 3], b[2, 2], b[3, 0], b[4, 1] = np.inf, np.nan, np.inf, -np.inf
    stored[:, 0], stored[:, 1] = np.arange(64) - 32, 1
    run(source_of("f16", 0), bits(stored, "f16").ravel(), bits(b, "f16").ravel(), held(codes, "f16", 0), c)
    first = stored[:, 0]
    wanted = np.repeat(stored.sum(1)[:, None] + 1, 8, axis=1)
    wanted[:, 3] = np.where(first > 0, np.inf, np.where(first < 0, -np.inf, np.nan))  # 0 times infinity
    wanted[:, 4] = -np.inf
    assert np.array_equal(c, wanted, equal_nan=True)


def test_a_swizzle_that_is_narrower_than_k_is_refused() -> None:
    leading = "(u64)(128 >> 4) << 16 | (u64)(512 >> 4) << 32"
    for code in (1, 2):  # of 128 and 64 bytes
        product("f16", 0, (leading, f"{leading} | {code}ull << 62"))
    with pytest.raises(NeedsGpu, match="64 bytes of k lie in a swizzle of 32 bytes"):
        product("f16", 0, (leading, f"{leading} | 3ull << 62"))


def test_selectors_and_codes_that_mean_nothing() -> None:
    with pytest.raises(NeedsGpu, match="selector"):
        product("f16", 2)
    with pytest.raises(NeedsGpu, match="selector"):
        product("e4m3", 1)
    found, _ = product("tf32", 0, ('"r"(e[t])', '"r"(e[t] ^ (t == 4 ? 2 : 0))'))
    assert "wgmma misuse" in found


def test_integers_are_clipped() -> None:
    clip = ".s32.s8.s8", ".s32.s8.s8.satfinite"
    near = "{1, 1, 1, 1}", "{2147483647, 2147483647, 2147483647, 2147483647}"
    store = "= d[i];", "= d[i] == 2147483647 || d[i] > 2147480000 ? 1 : d[i] < 0 ? -1 : 0;"
    assert product("s8", 0, clip) == (set(), True)
    rng = np.random.default_rng(7)
    full, stored, codes = sparse(rng, "s8")
    del full
    for edits, least in (((near, store), -1), ((clip, near, store), 1)):
        source = source_of("s8", 0, *edits)
        c = np.zeros((64, 8), np.int32)
        b = np.full((8, 64), 5.0)
        run(source, bits(np.abs(stored), "s8").ravel(), bits(b, "s8").ravel(), held(codes, "s8", 0), c)
        assert c.min() == least
