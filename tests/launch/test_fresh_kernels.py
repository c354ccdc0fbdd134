"""The kernels of ``fresh.cu`` in the emulator, held against their models in NumPy (fakes/fresh.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes import fresh as model
from harness.kernels.dtypes import DTYPES, DType
from harness.launch.fresh import code, freivalds, normal
from harness.problems import bounds
from shared.fresh_emulated import Table, run

BASE = 0x0123456789ABCDEF
u64, u32, f64, f32 = np.uint64, np.uint32, np.float64, np.float32


def kind_of(dtype: DType) -> Any:
    return u32(code.KINDS[dtype.storage])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("rows", "columns", "ld"), [(1, 1, 1), (5, 7, 9), (40, 33, 33)])
def test_a_matrix_has_the_bits_that_numpy_gives(dtype: str, rows: int, columns: int, ld: int) -> None:
    """All sets get new contents, but those beyond the count keep what they had."""
    t = DTYPES[dtype]
    sets = [np.zeros((rows, ld), t.storage) for _ in range(3)]
    sizes = u64(rows), u64(columns), u64(ld)
    run("fill", Table(sets), *sizes, u64(BASE), f32(0.37), u32(2), kind_of(t), u32(2), sets=3)
    for number in (0, 1):
        key = normal.key_of(BASE, number, 2)
        expected = normal.matrix(t, key, rows=rows, columns=columns, ld=ld, scale=0.37)
        assert sets[number].tobytes() == expected.tobytes()
    assert not sets[2].view(np.uint8).any() and sets[0].tobytes() != sets[1].tobytes()


def test_signs_are_the_bits_of_words() -> None:
    words = np.zeros(3, np.uint32)
    run("signs", words, u64(3), u64(BASE))
    found = 1.0 - 2.0 * np.unpackbits(words.view(np.uint8), bitorder="little")
    assert np.array_equal(found[:70], normal.signs(BASE, 70)) and set(found) == {1.0, -1.0}


def test_numbers_are_nearly_normal() -> None:
    z = normal.normal(BASE, np.arange(10**6, dtype=np.uint64)).astype(np.float64)
    assert abs(z.mean()) < 5e-3 and z.std() == pytest.approx(1, abs=5e-3)
    assert np.mean(z**4) == pytest.approx(2.7, abs=0.02)
    assert 3.2 < np.abs(z).max() <= normal.LARGEST and len(np.unique(z)) > 980_000
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5e-3


class Case:
    """One launch of a product on filled operands, and its verification, emulated and by the model."""

    def __init__(
        self, dtype: str, m: int, n: int, k: int, *, pad: int = 0, alpha: float = 1.0, beta: float = 0.0,
        transa: int = 0, transb: int = 0,
    ) -> None:  # fmt: skip
        self.transposed = transa, transb
        self.t, self.sizes, self.alpha, self.beta = DTYPES[dtype], (m, n, k), f32(alpha), f32(beta)
        self.lda, self.ldb, self.ldc = (m if transa else k) + pad, (k if transb else n) + pad, n + pad
        self.scale = 1.0 if beta else abs(alpha) * np.sqrt(k)
        keys = [normal.key_of(BASE, 0, operand) for operand in range(3)]
        (rows_a, columns_a), (rows_b, columns_b) = (k, m) if transa else (m, k), (n, k) if transb else (k, n)
        self.a = normal.matrix(self.t, keys[0], rows=rows_a, columns=columns_a, ld=self.lda)
        self.b = normal.matrix(self.t, keys[1], rows=rows_b, columns=columns_b, ld=self.ldb)
        self.c = normal.matrix(self.t, keys[2], rows=m, columns=self.ldc, ld=self.ldc, scale=self.scale)
        a, b = self.t.decode(self.a[:, :columns_a]), self.t.decode(self.b[:, :columns_b])
        exact = float(self.alpha) * ((a.T if transa else a) @ (b.T if transb else b))
        if beta:
            exact += float(self.beta) * self.t.decode(self.c[:, :n])
        self.c[:, :n] = self.t.encode(exact.astype(np.float32))

    def verified(self, emulated: bool = True) -> Any:
        m, n, k = self.sizes
        words, y, q = np.zeros(-(-n // 32), np.uint32), np.zeros(k), np.zeros(k)
        found = np.zeros(1, freivalds._FOUND)
        t, kind = self.t, kind_of(self.t)
        rounding = (bounds.summing(t, k), bounds.reading(t), bounds.smallest(k))
        precision = t.precision if t.itemsize < 4 else 0

        def go(name: str, *arguments: Any) -> None:
            if emulated:
                run(
                    name, *(Table([a]) if isinstance(a, np.ndarray) and a.ndim == 2 else a for a in arguments)
                )
                return
            tables = [np.array([a.ctypes.data], np.uint64) for a in arguments if isinstance(a, np.ndarray)]
            left = iter(tables)
            values = []
            for a in arguments:
                table = next(left) if isinstance(a, np.ndarray) else a
                matrix = isinstance(a, np.ndarray) and a.ndim == 2
                values.append(
                    table.ctypes.data if matrix else a.ctypes.data if isinstance(a, np.ndarray) else a.item()
                )
            getattr(model, "_" + name)(*values)

        go("signs", words, u64(len(words)), u64(7))
        sizes = u64(k), u64(n), u64(self.ldb)
        last = kind, u32(self.transposed[1]), u32(1)
        go("project", self.b, words, y, q, found.view(np.uint64), *sizes, u64(BASE), *last)
        sizes = u64(m), u64(n), u64(k), u64(self.lda), u64(self.ldc)
        go(
            *("residual", self.a, self.c, words, y, q, found.view(np.uint64), *sizes, u64(BASE)),
            *(f64(self.alpha), f64(self.beta), *map(f64, rounding), f64(freivalds.SIGMAS), f32(self.scale)),
            *(np.int32(precision), np.int32(t.emin), kind, u32(self.transposed[0]), u32(1)),
        )
        return found

    def share(self, found: Any) -> float:
        return freivalds.limit(self.t, self.sizes, 1, found)


CASES: list[tuple[str, tuple[int, int, int], dict[str, Any]]] = [
    ("fp32", (1, 1, 1), {}),
    ("fp32", (9, 40, 33), {"pad": 3, "alpha": -1.5, "beta": 0.5}),
    ("tf32", (17, 5, 70), {}),
    ("3xtf32", (4, 33, 16), {"pad": 1}),
    ("bf16", (6, 37, 19), {"pad": 5, "beta": 1.0}),
    ("fp16", (33, 2, 40), {"alpha": 0.7}),
    ("fp32", (9, 40, 33), {"pad": 3, "transb": 1, "beta": 0.5}),
    ("bf16", (37, 6, 19), {"pad": 2, "transa": 1}),
    ("fp16", (5, 8, 40), {"transa": 1, "transb": 1}),
]


@pytest.mark.parametrize(("dtype", "sizes", "more"), CASES, ids=[c[0] + str(c[1]) for c in CASES])
def test_a_right_product_passes_with_the_sums_of_the_model(dtype: str, sizes: Any, more: Any) -> None:
    case = Case(dtype, *sizes, **more)
    found, modelled = case.verified(), case.verified(emulated=False)
    for name in ("residuals", "products", "outputs", "halves"):
        assert found[name][0] == pytest.approx(modelled[name][0], rel=1e-6, abs=1e-30)
    for name in ("bad", "wrong_a", "wrong_b", "stray"):
        assert found[name][0] == modelled[name][0] == 0
    assert found["worst"].view("f8")[0] == pytest.approx(modelled["worst"].view("f8")[0], rel=1e-6)
    assert found["worst"].view("f8")[0] < 1 and case.share(found) < 1


def change(array: Any, at: tuple[int, int]) -> None:
    array.view(f"u{array.dtype.itemsize}")[at] ^= 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("emulated", [True, False])
def test_what_was_changed_is_found_where_it_is(dtype: str, emulated: bool) -> None:
    """One bit of an input, of its padding, of the output's padding."""
    for matrix, at, name in (
        ("a", (2, 3), "a"), ("a", (4, 12), "a"), ("b", (7, 1), "b"), ("b", (0, 10), "b"),
    ):  # fmt: skip
        stored_transposed = Case(dtype, 11, 11, 5 if matrix == "a" else 9, pad=3, transa=1, transb=1)
        for case in (Case(dtype, 5, 9, 11, pad=3), stored_transposed):
            array = getattr(case, matrix)
            change(array, at)
            found = case.verified(emulated)
            assert found[f"wrong_{name}"][0] == 1
            assert freivalds._first(found[f"first_{name}"]) == at[0] * array.shape[1] + at[1]
    case = Case(dtype, 5, 9, 11, pad=3)
    change(case.c, (3, 9))
    found = case.verified(emulated)
    assert (found["stray"][0], found["bad"][0]) == (1, 0)


@pytest.mark.parametrize("emulated", [True, False])
@pytest.mark.parametrize("wrong", ["nan", "infinite", "element", "rows swapped", "not written", "half of k"])
def test_wrong_results_are_found(wrong: str, emulated: bool) -> None:
    case = Case("fp32", 6, 20, 30, pad=1, beta=0.5)
    c = case.c
    if wrong == "rows swapped":
        c[[2, 3], :20] = c[[3, 2], :20]
    elif wrong == "not written":
        key = normal.key_of(BASE, 0, 2)
        c[:] = normal.matrix(case.t, key, rows=6, columns=21, ld=21, scale=case.scale)
    elif wrong == "half of k":
        c[1:, :20] = (case.a[1:, :15] @ case.b[:15, :20]) + 0.5
    else:
        c[4, 7] = {"nan": np.nan, "infinite": np.inf, "element": c[4, 7] + 0.05}[wrong]
    found = case.verified(emulated)
    row = freivalds._first(found["first_bad"])
    assert found["bad"][0] and row == {"rows swapped": 2, "not written": 0, "half of k": 1}.get(wrong, 4)
    assert found["worst"].view("f8")[0] > 1


def truncated(x: Any, bits: int) -> Any:
    """Return float32 numbers cut to so many significant bits."""
    return (x.astype(np.float32).view(np.uint32) & np.uint32(2**32 - 2 ** (24 - bits))).view(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "what"),
    [("fp32", "tf32"), ("fp32", "bf16"), ("3xtf32", "tf32"), ("tf32", "truncated"), ("bf16", "twice")],
)
@pytest.mark.parametrize("sizes", [(200, 180, 256), (50, 400, 300), (400, 3, 500)])
def test_lower_precision_is_found(
    dtype: str, what: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs rounded to a type with fewer bits, or cut, or results rounded once more on the way, in
    some launches.
    """
    right, wrong = [], []
    for launch in range(12):
        monkeypatch.setitem(globals(), "BASE", launch)
        case = Case(dtype, *sizes)
        right.append(case.verified(emulated=False))
        lower(case, what)
        wrong.append(case.verified(emulated=False))
    shares = [freivalds.limit(case.t, sizes, len(found), np.concatenate(found)) for found in (right, wrong)]
    assert shares[0] < 0.95 and (shares[1] > 1 or any(found["bad"][0] for found in wrong))


def lower(case: Case, what: str) -> None:
    """Write the product of lower precision into the case's C."""
    _, _, k = case.sizes
    a, b = case.t.decode(case.a).astype(np.float32), case.t.decode(case.b).astype(np.float32)
    if what == "twice":
        parts = [case.t.encode(a[:, s] @ b[s]) for s in (slice(0, k // 2), slice(k // 2, k))]
        case.c[:] = case.t.encode(sum(case.t.decode(p).astype(np.float32) for p in parts))
    else:
        bits = {"tf32": 11, "bf16": 8, "truncated": 11}[what]
        half = 0 if what == "truncated" else np.uint32(2 ** (23 - bits))
        a, b = (truncated((x.view(np.uint32) + half).view(np.float32), bits) for x in (a, b))
        case.c[:] = a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize(("dtype", "k"), [("fp32", 4096), ("bf16", 300), ("fp16", 512), ("tf32", 512)])
def test_a_sum_that_lacks_its_last_product_is_found(dtype: str, k: int) -> None:
    case = Case(dtype, 64, 96, k)
    a, b = case.t.decode(case.a), case.t.decode(case.b)
    case.c[:] = case.t.encode((a[:, :-1] @ b[:-1]).astype(np.float32))
    found = case.verified(emulated=False)
    assert case.share(found) > 1 or found["bad"][0] > 32


def test_right_products_of_any_shape_and_type_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A false alarm would take a right kernel's time. Sums are in float32, one product after the other."""
    rng = np.random.default_rng(5)
    for _ in range(120):
        monkeypatch.setitem(globals(), "BASE", int(rng.integers(2**63)))
        m, n, k = (int(2 ** rng.uniform(0, 7)) for _ in range(3))
        dtype, pad = str(rng.choice(list(DTYPES))), int(rng.integers(3))
        case = Case(dtype, m, n, k, pad=pad, alpha=float(rng.choice([1, -1.5, 0.01])))
        read = case.t.reads if case.t.reads < case.t.precision else 24
        a, b = (
            case.t.decode(x).astype(np.float32).view(np.uint32) + np.uint32(2 ** (24 - read) // 2)
            for x in (case.a[:, :k], case.b[:, :n])
        )
        a, b = truncated(a.view(np.float32), read), truncated(b.view(np.float32), read)
        total = np.zeros((m, n), np.float32)
        for i in range(k):
            total += a[:, i : i + 1] * b[i]
        case.c[:, :n] = case.t.encode(case.alpha * total)
        found = case.verified(emulated=False)
        assert found["worst"].view("f8")[0] < 0.6 and case.share(found) < 0.9, (dtype, m, n, k)
        assert not any(found[name][0] for name in ("bad", "wrong_a", "wrong_b", "stray"))


# Red zones and the drain


@pytest.mark.parametrize("nbytes", [1, 6, 64])
def test_red_zones_are_the_models(nbytes: int) -> None:
    """Every byte of either zone, and none of the buffer."""
    zone, key = 40, 0x1234567890
    one = np.full(nbytes, 7, np.uint8)
    table = Table([one, one.copy()], sizes=True, gap=zone)
    run("fence", table, u64(zone), u64(key), u32(2))
    assert all((a == 7).all() for a in table.arrays)
    for place, start in zip(table.places, table.addresses, strict=True):
        for begin, end in ((-zone, 0), (nbytes, nbytes + zone)):
            places = np.arange(start + begin, start + end, dtype=np.uint64)
            pattern = normal.mix(u64(key) + places * u64(normal.GAMMA)).astype(np.uint8)
            assert np.array_equal(table.memory[place + begin : place + end], pattern)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(-1, (40, 0)), (-40, (1, 0)), (6, (0, 40)), (45, (0, 1)), (None, (0, 0))],
)
def test_a_changed_byte_of_a_zone_is_found(offset: int | None, expected: tuple[int, int]) -> None:
    zone, key = 40, 0x1234567890
    table = Table([np.zeros(6, np.uint8), np.zeros(6, np.uint8)], sizes=True, gap=zone)
    run("fence", table, u64(zone), u64(key), u32(2))
    if offset is not None:
        table.memory[table.places[1] + offset] ^= 0x80
    nearest = np.zeros(4, np.uint32)
    table.keep = True
    run("stray", table, u64(zone), u64(key), u32(2), nearest)
    assert nearest.tolist() == [0, 0, *expected]


def test_draining_reads_and_writes_nothing() -> None:
    memory = np.random.default_rng(1).integers(0, 2**32, 4 * 1200, dtype=np.uint32)
    before = memory.copy()
    never = np.zeros(1, np.uint32)
    run("drain", memory, u64(memory.nbytes), never)
    assert np.array_equal(memory, before) and not never.any()
