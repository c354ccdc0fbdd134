"""`harness.matmul` in bf16, fp16 and tf32 on the fake driver: types read, mixed and refused, kernels by type,
tensor maps that follow the addresses.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

import harness
from fakes.driver import FakeDriver
from harness.dispatch import arrays, choose, prepared
from harness.dispatch.call import gpus
from harness.dispatch.model import traffic
from harness.driver import Buffer, Context, Device, Graph, Stream
from harness.errors import UsageError
from harness.kernels import spec
from harness.kernels.dtypes import BF16, FP16, FP32, DType
from harness.problems.gemm import GEMMS
from harness.problems.verify import compare
from shared import tma_gemm
from shared.arrays import Array, Dlpack, Typed, fake, gpu, kernels, torch  # noqa: F401  (fixtures)


def operands(gpu: Context, dtype: DType, m: int = 24, n: int = 40, k: int = 16, **more: int) -> list[Typed]:
    return [Typed(gpu, dtype, *shape, **more) for shape in ((m, k), (k, n), (m, n))]


@pytest.mark.parametrize(
    ("dtype", "precision", "kind"),
    [(FP32, "ieee", "fp32"), (FP32, "tf32", "tf32"), (BF16, "ieee", "bf16"), (FP16, "ieee", "fp16")],
    ids=["fp32", "tf32", "bf16", "fp16"],
)
@pytest.mark.parametrize("scalars", [{}, {"alpha": 0.5, "beta": -2.0}])
def test_a_product_of_each_type(
    kernels: FakeDriver,
    gpu: Context,
    dtype: DType,
    precision: str,
    kind: str,
    scalars: dict[str, float],
) -> None:
    """By a kernel of that type, which is what the tables say; numbers by the type's own bounds."""
    a, b, c = operands(gpu, dtype)
    inputs = {"A": a.host.copy(), "B": b.host.copy(), "C": c.host.copy()}
    assert harness.matmul(a, b, c, precision=precision, **scalars) is c
    p = GEMMS[kind](M=24, N=40, K=16, **scalars)
    assert compare(c.host, p.reference(inputs)).ok
    chosen = choose.choose(24, 40, 16, sms=132, arch="sm_90a", gpu="Fake GPU", **choose.about(p))
    assert chosen.kernel.dtype == kind
    assert kernels.compiled == [f"{chosen.label} sm_90a"]


def test_types_of_one_shape_are_plans_of_their_own(kernels: FakeDriver, gpu: Context) -> None:
    for dtype, precision in ((BF16, "ieee"), (FP16, "ieee"), (FP32, "ieee"), (FP32, "tf32"), (FP32, "tf32")):
        harness.matmul(*operands(gpu, dtype), precision=precision)
    assert len(kernels.compiled) == 4 == len(gpus._gpus[0]._plans)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a is of bf16, b of fp16", {"b": FP16}),
        ("(?s)out is of fp16, a and b of bf16.*bf16 or fp32", {"out": FP16}),
        ("precision='tf32' is about float32, and a is of bf16", {"precision": "tf32"}),
        ("no precision 'fp16'", {"precision": "fp16"}),
        ("a is of type <f8, not of float32, bfloat16 or float16", {"typestr": "<f8"}),
        ("a is of type <V2, not", {"name": "V2"}),  # two bytes of anything
        ("a is of type <i2, not", {"typestr": "<i2"}),
    ],
)
def test_types_that_do_not_go_together(
    kernels: FakeDriver,
    gpu: Context,
    what: str,
    change: dict[str, Any],
) -> None:
    a = Typed(gpu, BF16, 4, 8)
    b, c = Typed(gpu, change.get("b", BF16), 8, 8), Typed(gpu, change.get("out", BF16), 4, 8)
    a.about["typestr"] = change.get("typestr", a.about["typestr"])
    a.dtype = change.get("name", a.dtype)
    with pytest.raises(UsageError, match=what):
        harness.matmul(a, b, c, precision=change.get("precision", "ieee"))
    assert kernels.launches == [] and kernels.compiled == []


def test_strides_and_overlap_are_counted_in_elements_of_the_type(kernels: FakeDriver, gpu: Context) -> None:
    a, b = Typed(gpu, BF16, 4, 8, ld=24), Typed(gpu, BF16, 8, 8)
    c = Typed(gpu, BF16, 4, 8)
    c.host = a.whole[:, 8:16]  # beside a, in the same rows
    harness.matmul(a, b, c)
    assert struct.unpack("=iii", b"".join(kernels.launches[-1].args[-5:-2])) == (24, 8, 24)
    c.host = a.whole[:, 7:15]
    with pytest.raises(UsageError, match="out overlaps a"):
        harness.matmul(a, b, c)
    a.about["strides"] = (49, 2)
    with pytest.raises(UsageError, match="no multiples of 2"):
        harness.matmul(a, b, c)


def test_buffers_have_types(gpu: Context) -> None:
    buffer = Buffer(gpu, 64)
    for name, dtype in (("bfloat16", BF16), ("float16", FP16), ("float32", FP32)):
        view = buffer.array(name, (4, 4))
        assert view.dtype == name
        assert arrays.read("a", view, None).dtype is dtype
    with pytest.raises(UsageError, match="an array of 66 bytes"):
        buffer.array("bfloat16", (3, 11))


def test_dlpack_types(kernels: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, FP16)
    harness.matmul(Dlpack(a), Dlpack(b), c)
    assert len(kernels.launches) == 1

    class Brain(Dlpack):
        def __dlpack__(self, *, stream: Any = None) -> Any:
            capsule = super().__dlpack__(stream=stream)
            tensor = arrays._Tensor.from_address(arrays._capsule_pointer(capsule, b"dltensor"))
            tensor.code = 4  # kDLBfloat
            return capsule

    assert arrays.read("a", Brain(a), 1).dtype is BF16


def test_torch_types(kernels: FakeDriver, gpu: Context, torch: Any) -> None:
    found = []
    for dtype, name in ((BF16, "torch.bfloat16"), (FP16, "torch.float16")):
        tensors = [torch.Tensor(x) for x in operands(gpu, dtype)]
        for x in tensors:
            x.dtype = name
            x.stride = lambda x=x: tuple(s // 2 for s in x.array.host.strides)
        harness.matmul(*tensors)
        found.append(kernels.compiled[-1].split()[0])
    assert found[0] != found[1]


# -- tensor maps of a plan


@pytest.fixture
def mapped(kernels: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> FakeDriver:
    """Every product by the kernel that takes a map of A."""
    variant = spec.load(tma_gemm.write(tmp_path)).variant()
    monkeypatch.setattr(choose, "choose", lambda *shape, **where: variant)
    return kernels


def encoded(fake: FakeDriver) -> list[int]:
    """The addresses of the maps that the driver was asked for."""
    return [args[2] for name, args in fake.log if name == "cuTensorMapEncodeTiled"]


def test_a_map_follows_the_address(mapped: FakeDriver, gpu: Context) -> None:
    first, second = operands(gpu, BF16), operands(gpu, BF16)
    for given in (first, first, second, first, second):
        harness.matmul(*given)
    passed = [struct.unpack("<Q", one.args[0][:8])[0] for one in mapped.launches]
    pointers = [struct.unpack("<Q", one.args[1])[0] for one in mapped.launches]
    assert passed == pointers and len(set(passed)) == 2
    assert len(encoded(mapped)) == 2  # made once an address
    again = operands(gpu, BF16)
    mapped.log.clear()
    harness.matmul(*again)
    harness.matmul(*again)
    assert encoded(mapped) == [again[0].host.ctypes.data]


def test_an_address_without_a_map_and_back(mapped: FakeDriver, gpu: Context) -> None:
    """Leading dimensions are alike; a stale map would be one of other memory."""
    good, odd = operands(gpu, BF16), operands(gpu, BF16, offset=1)
    assert good[0].host.ctypes.data % 16 == 0 and odd[0].host.ctypes.data % 16 == 2
    for given in (good, odd, good):
        harness.matmul(*given)
    kinds = [one.args[0] == bytes(128) for one in mapped.launches]
    assert kinds == [False, True, False]


def test_a_leading_dimension_without_a_map(mapped: FakeDriver, gpu: Context) -> None:
    harness.matmul(*operands(gpu, BF16, k=15))
    assert mapped.launches[0].args[0] == bytes(128) and encoded(mapped) == []


def test_maps_kept_are_bounded(
    mapped: FakeDriver,
    gpu: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepared, "_MOST_MAPS", 2)
    sets = [operands(gpu, BF16) for _ in range(4)]
    for given in (*sets, *sets):
        harness.matmul(*given)
    (plan,) = gpus._gpus[0]._plans.values()
    assert [len(one._made) for launch in plan._launches for one in launch._maps] == [2]
    passed = [struct.unpack("<Q", one.args[0][:8])[0] for one in mapped.launches]
    assert passed == [given[0].host.ctypes.data for given in (*sets, *sets)]


# -- copies of what cannot have a map


@pytest.fixture
def copying(kernels: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Whatever cannot have a map is copied, however small."""
    monkeypatch.setattr(traffic, "copied", lambda *shape, unmapped, **where: unmapped)
    return kernels


def behind_maps(fake: FakeDriver) -> list[bytes]:
    return [one for one in fake.launches[-1].args if len(one) != 128]


def leading(fake: FakeDriver) -> tuple[int, ...]:
    return struct.unpack("=iii", b"".join(behind_maps(fake)[6:9]))


def pointers(fake: FakeDriver) -> tuple[int, ...]:
    return struct.unpack("=QQQ", b"".join(behind_maps(fake)[:3]))


def copies(fake: FakeDriver) -> int:
    return len(fake.copied_rows)


TYPES = pytest.mark.parametrize(
    ("dtype", "precision"), [(BF16, "ieee"), (FP16, "ieee"), (FP32, "tf32")], ids=["bf16", "fp16", "tf32"]
)


@TYPES
@pytest.mark.parametrize(
    ("lds", "offsets", "count"),
    [
        ((37, 41), (0, 0), 2),  # rows
        ((48, 56), (1, 3), 2),  # addresses
        ((48, 41), (0, 0), 1),
        ((37, 56), (0, 0), 1),
        ((48, 56), (0, 0), 0),
    ],
)
def test_a_copied_operand_gives_the_same_bits(
    copying: FakeDriver,
    gpu: Context,
    dtype: DType,
    precision: str,
    lds: tuple[int, int],
    offsets: tuple[int, int],
    count: int,
) -> None:
    """It is right, and the kernel gets addresses and leading dimensions that have a map."""
    m, n, k = 24, 40, 33
    a, b = Typed(gpu, dtype, m, k, ld=40), Typed(gpu, dtype, k, n, ld=40)
    first, second = Typed(gpu, dtype, m, n), Typed(gpu, dtype, m, n)
    odd_a = Typed(gpu, dtype, m, k, ld=lds[0], offset=offsets[0])
    odd_b = Typed(gpu, dtype, k, n, ld=lds[1], offset=offsets[1])
    odd_a.host[:], odd_b.host[:] = a.host, b.host
    harness.matmul(a, b, first, precision=precision)
    assert copies(copying) == 0
    harness.matmul(odd_a, odd_b, second, precision=precision)
    assert copies(copying) == count
    assert np.array_equal(first.host, second.host)
    lda, ldb, _ = leading(copying)
    unit = 16 // dtype.itemsize
    assert lda % unit == 0 and ldb % unit == 0 and lda >= k and ldb >= n
    given = odd_a.host.ctypes.data, odd_b.host.ctypes.data
    for address, original in zip(pointers(copying), given, strict=False):
        assert address % 16 == 0
        assert (address == original) == (original % 16 == 0 and count < 2 and address == original)
    maps = [one for one in copying.launches[-1].args if len(one) == 128]
    assert all(one != bytes(128) for one in maps[:2])


def test_alignment_is_asked_of_each_call(copying: FakeDriver, gpu: Context) -> None:
    """Leading dimensions are alike, and one of the addresses is odd: it alone is copied, then."""
    a, b, c = operands(gpu, BF16)
    odd = Typed(gpu, BF16, 24, 16, offset=1)
    done = []
    for left in (a, odd, a):
        harness.matmul(left, b, c)
        done.append(copies(copying))
        assert (pointers(copying)[0] == left.host.ctypes.data) == (left is a)
    assert done == [0, 1, 1]


def test_copies_are_of_what_is_there_now(copying: FakeDriver, gpu: Context) -> None:
    """Each call copies again, in its own stream, into memory of that stream."""
    a, b, c = operands(gpu, BF16, k=15)
    for stream in (0x700, 0x800, 0x700):
        a.host[:] = BF16.encode(np.random.default_rng(stream).standard_normal(a.host.shape, np.float32))
        inputs = {"A": a.host.copy(), "B": b.host.copy(), "C": c.host.copy()}
        harness.matmul(a, b, c, stream=stream)
        assert compare(c.host, GEMMS["bf16"](M=24, N=40, K=15).reference(inputs)).ok
    assert copying.copied_rows == [0x700, 0x800, 0x700]
    found = [struct.unpack("=Q", launch.args[-11])[0] for launch in copying.launches]
    assert found[0] == found[2] != found[1]


def test_a_graph_copies_in_each_replay(copying: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, BF16, k=15)
    harness.matmul(a, b, c)
    with Stream(gpu) as stream, Graph(stream, lambda one: harness.matmul(a, b, c, stream=one)) as graph:
        for _ in range(2):
            a.host[:] = -a.host if a.host.dtype.kind == "f" else a.host ^ 0x8000
            inputs = {"A": a.host.copy(), "B": b.host.copy(), "C": c.host.copy()}
            graph(stream)
            assert compare(c.host, GEMMS["bf16"](M=24, N=40, K=15).reference(inputs)).ok


def test_without_room_nothing_is_copied(copying: FakeDriver, gpu: Context) -> None:
    a, b, c = operands(gpu, BF16, k=15)
    inputs = {"A": a.host.copy(), "B": b.host.copy(), "C": c.host.copy()}
    for left in (1, 0):
        copying.fail("cuMemAlloc", *[2, 2] * left)
        harness.matmul(a, b, c)
        assert copies(copying) == 1 - left and leading(copying)[0] == (15 if left else 64)
        assert compare(c.host, GEMMS["bf16"](M=24, N=40, K=15).reference(inputs)).ok
    assert len(copying.launches) == 2


def test_copies_and_a_workspace(
    copying: FakeDriver, gpu: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Each its own memory: the kernel finds zeros, whatever has been copied."""
    path = tma_gemm.write(tmp_path)
    path.write_text(path.read_text().replace('// entry = "', '// workspace = "4 * ROWS"\n// entry = "', 1))
    variant = spec.load(path).variant()
    monkeypatch.setattr(choose, "choose", lambda *shape, **where: variant)
    a, b, c = operands(gpu, BF16, k=15)
    inputs = {"A": a.host.copy(), "B": b.host.copy(), "C": c.host.copy()}
    for _ in range(2):
        harness.matmul(a, b, c)
        (own,) = struct.unpack("=Q", copying.launches[-1].args[-1])
        assert ctypes.string_at(own, 64) == bytes(64)
        copy, pointer_b = struct.unpack("=QQ", b"".join(copying.launches[-1].args[-12:-10]))
        assert len({own, copy, a.host.ctypes.data}) == 3 and pointer_b == b.host.ctypes.data
        assert compare(c.host, GEMMS["bf16"](M=24, N=40, K=15).reference(inputs)).ok


def test_small_products_are_not_copied(kernels: FakeDriver, gpu: Context) -> None:
    harness.matmul(*operands(gpu, BF16, k=15))
    assert copies(kernels) == 0 and leading(kernels) == (15, 40, 40)


def test_large_products_are(kernels: FakeDriver, gpu: Context) -> None:
    """By the rule itself, which is a function of the shape and of what has a map."""
    a, b, c = (Typed(gpu, BF16, *shape) for shape in ((600, 2001), (2001, 513), (600, 513)))
    harness.matmul(a, b, c)
    assert copies(kernels) == 2 and leading(kernels) == (2048, 576, 513)


@pytest.mark.parametrize(
    ("clock", "dram", "kernel", "count"),
    [(3_201_000, 15.5, "23_wgmma_pipeline", 2), (640_000, 3.1, "26_wgmma_split", 1)],
    ids=["H200", "slower"],
)
def test_dram_decides(
    kernels: FakeDriver, gpu: Context, clock: int, dram: float, kernel: str, count: int
) -> None:
    """Copy A and B beside an H200's DRAM, and only one of them beside a slower one."""
    kernels.device_attributes["CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE"] = clock
    assert traffic.dram_bytes(Device.open()) == dram
    m, k, n = 301, 1025, 1025
    harness.matmul(*(Typed(gpu, BF16, *shape) for shape in ((m, k), (k, n), (m, n))))
    about = choose.about(GEMMS["bf16"](M=m, N=n, K=k))
    chosen = harness.choose(m, n, k, sms=132, arch="sm_90a", gpu="Fake GPU", dram=dram, **about)
    assert chosen.kernel.name == kernel and f"{chosen.label} sm_90a" in kernels.compiled
    assert copies(kernels) == count
