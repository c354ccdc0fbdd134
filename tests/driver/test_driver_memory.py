"""Buffers and transfers; addresses from elsewhere."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from fakes.driver import FakeDriver
from harness.driver import Buffer, Context, Device, PinnedBuffer, Stream, device_of
from harness.errors import UsageError


def test_upload_and_download(fake: FakeDriver, context: Context, stream: Stream):
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffer, copy = Buffer(context, data.nbytes), Buffer(context, data.nbytes)
    buffer.upload(data, stream)
    copy.copy_from(buffer, stream)
    result = np.zeros_like(data)
    copy.download(result, stream)
    assert (result == data).all()
    raw = bytearray(data.nbytes)
    copy.download(raw, stream)
    assert raw == data.tobytes()
    copy.fill_u32(0x01020304, stream)
    copy.download(raw, stream)
    assert raw == b"\4\3\2\1" * 24


def test_transfers_wait_for_the_copy(fake: FakeDriver, context: Context, stream: Stream):
    buffer = Buffer(context, 4)
    fake.log.clear()
    buffer.upload(b"four", stream)
    assert fake.names() == ["cuMemcpyHtoDAsync", "cuStreamSynchronize"]


def test_transfers_check_size_layout_and_writability(fake: FakeDriver, context: Context, stream: Stream):
    buffer = Buffer(context, 64)
    with pytest.raises(UsageError, match="60 bytes, the buffer 64"):
        buffer.upload(np.zeros(15, np.float32), stream)
    with pytest.raises(UsageError, match="C-contiguous"):
        buffer.upload(np.zeros((4, 4), np.float32).T[:, ::-1], stream)
    with pytest.raises(UsageError, match="C-contiguous"):
        buffer.upload(np.arange(16, dtype=np.float32).reshape(4, 4).T, stream)
    with pytest.raises(UsageError, match="cannot copy from or to a list"):
        buffer.upload([0] * 64, stream)
    with pytest.raises(UsageError, match="read-only"):
        buffer.download(bytes(64), stream)
    with pytest.raises(UsageError, match="cannot copy 32 bytes"):
        buffer.copy_from(Buffer(context, 32), stream)
    with pytest.raises(UsageError, match="fill"):
        buffer.fill_u32(2**32, stream)
    with pytest.raises(UsageError, match="fill"):
        Buffer(context, 6).fill_u32(0, stream)


@pytest.mark.parametrize("kind", [Buffer, PinnedBuffer])
@pytest.mark.parametrize("nbytes", [0, -1])
def test_empty_buffers_are_refused(fake: FakeDriver, context: Context, kind: type, nbytes: int):
    with pytest.raises(UsageError, match="at least one byte"):
        kind(context, nbytes)


def test_cuda_array_interface(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 64)
    interface = buffer.__cuda_array_interface__
    assert interface["data"] == (buffer.ptr, False)
    assert (interface["shape"], interface["typestr"], interface["version"]) == ((64,), "|u1", 3)


def test_pinned_views_keep_their_owner(fake: FakeDriver, context: Context):
    view = PinnedBuffer(context, 64).array(np.float32, (4, 4))[1:]
    gc.collect()
    assert "pinned" not in fake.freed
    view[:] = 3.0
    assert view.sum() == 36
    with pytest.raises(UsageError, match="does not fit"):
        PinnedBuffer(context, 8).array(np.float64, 2)
    del view
    gc.collect()
    assert fake.freed.count("pinned") == 2


def test_buffers_as_arrays(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 100)
    about = buffer.array("float32", (4, 6)).__cuda_array_interface__
    assert (about["shape"], about["typestr"], about["data"]) == ((4, 6), "<f4", (buffer.ptr, False))
    assert buffer.array(np.int8, 100).shape == (100,)
    with pytest.raises(UsageError, match="104 bytes does not fit into 100"):
        buffer.array("float32", (2, 13))


def test_where_memory_is(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 100)
    fake.memory_device[buffer.ptr] = 1
    assert device_of(buffer.ptr + 99) == 1
    with pytest.raises(UsageError, match="is not the address of device memory"):
        device_of(buffer.ptr + 100)


def test_which_context_is_current(fake: FakeDriver, context: Context):
    own = Context(Device.open(), primary=False)
    assert context.is_current and not own.is_current
    context.refuse_sibling()
    with own.current():
        assert own.is_current and not context.is_current
        with pytest.raises(UsageError, match="not the GPU's primary one"):
            context.refuse_sibling()
    own.close()
