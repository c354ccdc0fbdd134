"""Calls like earlier ones: what is not read again, and what is checked all the same."""

from __future__ import annotations

import ctypes
import math
import random
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver, image
from harness.dispatch.call import gpus, known, operands
from harness.driver import Buffer, Context, Device, Stream
from harness.errors import HarnessError, UsageError
from shared.arrays import Array, fake, gpu, torch  # noqa: F401  (fixtures)
from shared.arrays import operands as matrices

CURRENT = 0x7700  # CuPy's current stream


class View:
    """A view of device memory by a NumPy array of the host memory that stands for it, as CuPy has it."""

    def __init__(self, host: Any, *, typestr: str = "<f4", device: int = 0) -> None:
        self.host, self.typestr, self.dtype = host, typestr, typestr
        self.data = SimpleNamespace(ptr=host.ctypes.data, device_id=device)

    shape = property(lambda self: self.host.shape)
    strides = property(lambda self: self.host.strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.typestr, "data": (self.data.ptr, False),
            "strides": self.strides, "version": 3, "stream": sys.modules["cupy"].stream,
        }  # fmt: skip


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the part of CuPy that the dispatcher uses."""
    module = SimpleNamespace(ndarray=View, stream=CURRENT)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def floats(gpu: Context) -> Any:
    """A function that returns an array of zeros in device memory, which lives as long as the test."""
    kept = []

    def made(*shape: int) -> Any:
        kept.append(Buffer(gpu, 4 * math.prod(shape)))
        memory = (ctypes.c_char * kept[-1].nbytes).from_address(kept[-1].ptr)
        found = np.frombuffer(memory, np.float32).reshape(shape)
        found[:] = 0
        return found

    return made


@pytest.fixture(params=["PyTorch", "CuPy", "Buffers"])
def library(request: pytest.FixtureRequest) -> Any:
    """Make arrays of a library from an `Array`, with the options that its calls need."""
    if request.param == "PyTorch":
        return SimpleNamespace(make=request.getfixturevalue("torch").Tensor, options={})
    if request.param == "CuPy":
        request.getfixturevalue("cupy")
        return SimpleNamespace(make=lambda array: View(array.host), options={})
    given = {"stream": 0x700}  # they belong to none
    return SimpleNamespace(make=lambda x: x.buffer.array("float32", x.host.shape), options=given)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each call whose arrays are read."""
    original, calls = operands.read, []

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return original(*args, **options)

    monkeypatch.setattr(operands, "read", counting)
    return calls


def right(given: tuple[Array, ...], alpha: float = 1) -> None:
    a, b, c = (x.host for x in given)
    np.testing.assert_allclose(c, alpha * (a @ b), rtol=1e-5)
    c[:] = 0


def test_other_arrays_that_lie_alike(fake: FakeDriver, gpu: Context, library: Any, read: list[int]) -> None:
    for i in range(3):  # the arrays of one call are freed before the next
        given = matrices(gpu)
        arrays = [library.make(x) for x in given]
        assert harness.matmul(*arrays, alpha=i + 0.5, **library.options) is arrays[2]
        right(given, i + 0.5)
    assert len(read) == 1 and len(fake.launches) == 3


def test_what_is_launched_is_all_that_is_asked_of_the_driver(
    fake: FakeDriver, gpu: Context, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gemm.without_small_tiles(monkeypatch)  # a workspace takes further calls
    given = matrices(gpu)
    arrays = [library.make(x) for x in given]
    harness.matmul(*arrays, **library.options)
    fake.log.clear()
    harness.matmul(*arrays, **library.options)
    assert fake.names() == ["cuLaunchKernelEx"]


def test_what_lies_otherwise_is_read(fake: FakeDriver, gpu: Context, cupy: Any, read: list[int]) -> None:
    sets = [matrices(gpu), matrices(gpu, M=6), (Array(gpu, 5, 3, ld=4), *matrices(gpu)[1:])]
    sets.append((sets[0][0], sets[0][1], Array(gpu, 5, 7, ld=9)))
    for given in sets * 2:
        harness.matmul(*(View(x.host) for x in given))
        right(given)
    assert len(read) == len(sets)


def test_a_result_that_it_makes(fake: FakeDriver, gpu: Context, torch: Any, read: list[int]) -> None:
    for _ in range(2):
        a, b, _ = matrices(gpu)
        out = harness.matmul(torch.Tensor(a), torch.Tensor(b))
        np.testing.assert_allclose(out.array.host, a.host @ b.host, rtol=1e-5)
    assert len(read) == 1
    with pytest.raises(UsageError, match="beta=1 without out"):
        harness.matmul(torch.Tensor(a), torch.Tensor(b), beta=1)


def test_other_libraries_are_read(fake: FakeDriver, gpu: Context, cupy: Any, read: list[int]) -> None:
    a, b, c = matrices(gpu)
    for given in ((a, b, c), (a, View(b.host), View(c.host)), (View(a.host), View(b.host), c)):
        for _ in range(2):
            harness.matmul(*given, stream=0x700)
            right((a, b, c))
    assert len(read) == 6


def test_calls_kept_are_bounded(
    fake: FakeDriver, gpu: Context, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_MOST", 3)
    for m in range(1, 9):
        given = matrices(gpu, M=m)
        harness.matmul(*(View(x.host) for x in given))
        right(given)
        assert 1 <= len(gpus._gpus[0].calls) <= 3


# What is checked at each call


def test_an_overlap(fake: FakeDriver, gpu: Context, library: Any) -> None:
    kept = matrices(gpu, 6, 6, 6)
    a, b, c = (library.make(x) for x in kept)
    harness.matmul(a, b, c, **library.options)
    for given, name in (((a, b, a), "a"), ((a, b, b), "b")):
        with pytest.raises(UsageError, match=f"out overlaps {name}"):
            harness.matmul(*given, **library.options)
    assert len(fake.launches) == 1


def test_an_overlap_of_a_part(fake: FakeDriver, gpu: Context, cupy: Any, floats: Any) -> None:
    """By one element at either end, not by none; neighbours within rows are told apart by reading them."""
    whole, a, b, bias = floats(400), floats(4, 4), floats(4, 4), floats(4)
    fake.execute = fake_gemm.no_write

    def at(first: int) -> Any:
        return View(whole[first : first + 16].reshape(4, 4))

    given: Any = {"a": lambda x: (x, View(b)), "b": lambda x: (View(a), x)}
    for name, make in given.items():
        harness.matmul(*make(at(100)), at(200))
        for shift in range(-20, 21):
            if abs(shift) < 16:
                with pytest.raises(UsageError, match=f"out overlaps {name}"):
                    harness.matmul(*make(at(100)), at(100 + shift))
            else:
                harness.matmul(*make(at(100)), at(100 + shift))
    harness.matmul(View(a), View(b), at(200), bias=View(bias))
    with pytest.raises(UsageError, match="out overlaps bias"):
        harness.matmul(View(a), View(b), at(200), bias=View(whole[215:219]))
    harness.matmul(View(a), View(b), at(200), bias=View(whole[216:220]))
    one, other = floats(4, 8), floats(4, 8)
    for out in (other[:, 4:], one[:, 4:]):
        harness.matmul(View(one[:, :4]), View(b), View(out))
    with pytest.raises(UsageError, match="out overlaps a"):
        harness.matmul(View(one[:, :4]), View(b), View(one[:, 3:7]))


def events(fake: FakeDriver) -> list[tuple[Any, ...]]:
    """Records, waits and launches, each with its stream, and what was launched; the log is empty then."""
    found: list[tuple[Any, ...]] = []
    launches = iter(fake.launches)
    for name, args in fake.log:
        if name == "cuLaunchKernelEx":
            one = next(launches)
            found.append(("launch", int(args[0].hStream), one.function, one.grid, one.args))
        elif name in ("cuEventRecord", "cuStreamWaitEvent"):
            found.append((name, int(args[name == "cuEventRecord"])))
    fake.log.clear()
    fake.launches.clear()
    return found


@pytest.mark.parametrize("name", ["PyTorch", "CuPy"])
def test_the_stream(fake: FakeDriver, gpu: Context, request: pytest.FixtureRequest, name: str) -> None:
    """The one that is current at the call, or the one given, which waits and is waited for."""
    kept = matrices(gpu)
    if name == "PyTorch":
        module = request.getfixturevalue("torch")
        arrays = [module.Tensor(x) for x in kept]
    else:
        module = request.getfixturevalue("cupy")
        arrays = [View(x.host) for x in kept]

    def current(stream: int) -> None:
        if name == "PyTorch":
            module.current.cuda_stream = stream
        else:
            module.stream = stream

    kinds = []
    for now, given in ((0x900, None), (0xA00, None), (0xA00, 0xA00), (0xA00, 0xB00), (0xA00, None)):
        current(now)
        fake.log.clear()
        harness.matmul(*arrays, stream=given)
        kinds.append([x[:2] for x in events(fake)])
    assert kinds == [
        [("launch", 0x900)],
        [("launch", 0xA00)],
        [("launch", 0xA00)],
        [
            ("cuEventRecord", 0xA00), ("cuStreamWaitEvent", 0xB00), ("launch", 0xB00),
            ("cuEventRecord", 0xB00), ("cuStreamWaitEvent", 0xA00),
        ],
        [("launch", 0xA00)],
    ]  # fmt: skip
    for wrong in (True, -1, "main"):
        with pytest.raises(UsageError, match="stream"):
            harness.matmul(*arrays, stream=wrong)


def test_what_a_buffer_and_a_stream_tell(fake: FakeDriver, gpu: Context) -> None:
    a, b, c = (Buffer(gpu, 64).array("float32", (4, 4)) for _ in range(3))
    with Stream(gpu) as stream, Context(Device.open(1)) as other, Stream(other) as elsewhere:
        for _ in range(2):
            harness.matmul(a, b, c, stream=stream)
            with pytest.raises(UsageError, match="belongs to no stream"):
                harness.matmul(a, b, c)
            with pytest.raises(UsageError, match="the stream is of GPU 1, a of GPU 0"):
                harness.matmul(a, b, c, stream=elsewhere)
        there = Buffer(other, 64)
        fake.memory_device[there.ptr] = 1
        with pytest.raises(UsageError, match="on GPUs 0, 1 and 0"):
            harness.matmul(a, there.array("float32", (4, 4)), c, stream=stream)
        b.buffer.close()
        with pytest.raises(UsageError, match="this Buffer is closed"):
            harness.matmul(a, b, c, stream=stream)
    with pytest.raises(UsageError, match="this Stream is closed"):
        harness.matmul(a, c, c, stream=stream)


def test_what_a_tensor_becomes(fake: FakeDriver, gpu: Context, torch: Any) -> None:
    given = [torch.Tensor(x) for x in matrices(gpu)]
    harness.matmul(*given)
    for change, what in (
        ({"requires_grad": True}, "b requires gradients"),
        ({"is_cuda": False, "device": "xpu:0"}, "b is on xpu:0, not on a GPU"),
        ({"dtype": "torch.float64"}, "b is of torch.float64"),
        ({"dtype": "torch.float16"}, "a is of fp32, b of fp16"),
    ):
        b = torch.Tensor(given[1].array)
        vars(b).update(change)
        with pytest.raises(UsageError, match=what):
            harness.matmul(given[0], b, given[2])


def test_options(fake: FakeDriver, gpu: Context, cupy: Any, floats: Any) -> None:
    a, b, c, bias = (View(floats(*shape)) for shape in ((5, 3), (3, 7), (5, 7), (7,)))
    fake.execute = fake_gemm.no_write
    good: list[dict[str, Any]] = [
        {}, {"bias": bias}, {"bias": bias, "activation": "relu"}, {"invariant": True}, {"precision": "tf32"},
    ]  # fmt: skip
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("alpha=inf", {"alpha": float("inf")}),
        ("beta=nan", {"beta": float("nan")}),
        ("alpha='1x'", {"alpha": "1x"}),
        ("no precision", {"precision": ["ieee"]}),
        ("no precision", {"precision": "tf16"}),
        ("no activation", {"activation": "swish"}),
        ("bias_axis=1.0", {"bias": bias, "bias_axis": 1.0}),
        ("bias has 7 elements, not 5", {"bias": bias, "bias_axis": 0}),
        ("derivative_at without", {"derivative_at": bias}),
        ("derivative_at and a bias", {"derivative_at": bias, "bias": bias, "activation": "relu"}),
        ("beta=0.5", {"invariant": True, "beta": 0.5}),
    ]
    for options in good * 2:
        harness.matmul(a, b, c, **options)
    launched = len(fake.launches)
    for what, options in wrong:
        with pytest.raises(UsageError, match=what):
            harness.matmul(a, b, c, **options)
    assert len(fake.launches) == launched


def test_threads(fake: FakeDriver, gpu: Context, cupy: Any, read: list[int]) -> None:
    """Arrays of each, of two shapes, in threads where no context is current."""
    sets = [matrices(gpu, 4, 4 + i % 2, 4) for i in range(8)]
    go = threading.Barrier(len(sets))

    def work(mine: tuple[Array, ...]) -> None:
        views = [View(x.host) for x in mine]
        go.wait()
        for _ in range(50):
            harness.matmul(*views)

    threads = [threading.Thread(target=work, args=(s,)) for s in sets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(fake.launches) == 400 and len(read) < 50
    for given in sets:
        right(given)


def test_another_context_is_current(fake: FakeDriver, gpu: Context, cupy: Any) -> None:
    given = matrices(gpu)
    views = [View(x.host) for x in given]
    harness.matmul(*views)
    with Context(Device.open(1)) as other:
        harness.matmul(*views)
        assert other.is_current
    right(given)
    own = Context(Device.open(0), primary=False)
    with own, pytest.raises(UsageError, match="not the GPU's primary"):
        harness.matmul(*views)


def test_a_batch_that_is_one_product(fake: FakeDriver, gpu: Context, cupy: Any, floats: Any) -> None:
    """Its columns lie side by side: the matrices of the batch are row-major, that product is not."""
    given = [View(floats(*shape)) for shape in ((4, 4), (3, 4, 1), (3, 4, 1))]
    fake.execute = fake_gemm.no_write
    fake.log.clear()
    for _ in range(2):
        harness.matmul(*given)
    first, again = events(fake)
    assert first == again


# All at once, against reading each time


def drawn(form: random.Random, rng: random.Random, whole: Any, shape: tuple[int, ...]) -> View:
    """Return a view of `whole` of this shape: its strides are drawn from `form`, where it lies from `rng`."""
    *leading, rows, columns = shape
    flip = form.random() < 0.3
    m, n = (columns, rows) if flip else (rows, columns)
    ld = n + form.choice([0, 0, 4, 3])
    step = form.choice([m * ld, m * ld, m * ld + 4, n, 0])
    steps: list[int] = []
    for size in reversed(leading):
        steps.insert(0, step)
        step *= size
    if steps and form.random() < 0.2:
        steps[0] *= -1
    apart = [4 * x for x in (*steps, *((1, ld) if flip else (ld, 1)))]
    first = 600 + rng.choice(range(0, 1600, 100)) + rng.choice([0, 0, 0, 1])
    return View(np.lib.stride_tricks.as_strided(whole[first:], shape, apart))


def product(form: random.Random, rng: random.Random, whole: Any) -> tuple[list[View], dict[str, Any]]:
    """Return the operands of a product, or of a batch, and options: few forms, anywhere, of any scalars."""
    m, n, k = (form.choice([1, 4, 4, 8]) for _ in range(3))
    leading = form.choice([(), (), (2,), (2, 3)])
    left, right = (leading if form.random() < 0.8 else () for _ in range(2))
    given = [drawn(form, rng, whole, s) for s in ((*left, m, k), (*right, k, n), (*leading, m, n))]
    options: dict[str, Any] = {
        "invariant": form.random() < 0.1, "precision": form.choice(["ieee", "ieee", "tf32"]),
        "alpha": rng.choice([1, 1, -0.5]), "beta": rng.choice([0, 0, 1, 2.0]),
        "stream": rng.choice([None, None, CURRENT, 0x900]),
    }  # fmt: skip
    match form.randrange(6):
        case 0:
            axis = form.choice([1, 1, 0])
            bias = View(whole[rng.choice([0, 20, 700]) :][: (m, n)[axis]])
            options |= {"bias_axis": axis, "bias": bias}
        case 1:
            first = rng.choice([600, 2600])
            at = View(np.lib.stride_tricks.as_strided(whole[first:], given[2].shape, given[2].strides))
            options |= {"activation": "gelu", "derivative_at": at}
        case 2:
            options["activation"] = "relu"
    return given, options


@pytest.mark.slow
def test_nothing_differs_from_reading(
    fake: FakeDriver, gpu: Context, cupy: Any, read: list[int], floats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same launches, waits and refusals, for drawn operands that overlap or not."""

    def compiled(variant: Any, _arch: str) -> SimpleNamespace:
        sizes = fake_gemm.TRANSPOSE if variant.entry == "transpose" else fake_gemm.sizes(variant)
        if "BATCHED" in variant.params:
            last = len(sizes) - (variant.kernel.workspace is not None)
            sizes = (*sizes[:last], 4, 8, 8, 8, *sizes[last:])
        return SimpleNamespace(code=image(sizes), entry=variant.entry)

    monkeypatch.setattr(gpus, "compile_kernel", compiled)
    fake.functions = {"matmul": None, "transpose": None}
    fake.execute = fake_gemm.no_write
    find, rng, whole = known.find, random.Random(7), floats(1 << 12)

    def outcome(given: list[View], options: dict[str, Any]) -> Any:
        fake.log.clear()
        try:
            harness.matmul(*given, **options)
        except HarnessError as e:
            return str(e), events(fake)
        return events(fake)

    seen = {"refused": 0, "read": 0, "known": 0}
    for _ in range(2500):
        given, options = product(random.Random(rng.randrange(60)), rng, whole)
        cupy.stream = rng.choice([CURRENT, CURRENT, 0x800])
        read.clear()
        found = outcome(given, options)
        seen["refused" if isinstance(found, tuple) else "read" if read else "known"] += 1
        monkeypatch.setattr(known, "find", lambda *_: (None, None))
        assert found == outcome(given, options), (options, [(x.shape, x.strides) for x in given])
        monkeypatch.setattr(known, "find", find)
    assert min(seen.values()) > 200, seen
