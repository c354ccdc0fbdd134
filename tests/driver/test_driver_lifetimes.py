"""Who frees what and when; contexts and the threads that use them.

Planted faults show that the checks notice them.
"""

from __future__ import annotations

import gc
import threading

import pytest

from fakes.driver import FakeDriver
from harness.driver import Buffer, Context, Device, Event, Gate, Module, PinnedBuffer, Stream
from harness.driver.context import Resource
from harness.errors import ContextLost, DriverError, UsageError
from shared.driver_parts import CUBIN, kernel

# --- lifetimes


def make_one_of_each(context: Context) -> list[Resource]:
    return [
        Stream(context),
        Event(context),
        Buffer(context, 16),
        PinnedBuffer(context, 16),
        Gate(context),
        Module(context, CUBIN),
    ]


KINDS = ["stream", "event", "memory", "pinned", "pinned", "module"]


@pytest.mark.parametrize("primary", [True, False])
def test_context_frees_everything_once_in_reverse(fake: FakeDriver, primary: bool):
    with Context(Device.open(), primary=primary) as context:
        owners = make_one_of_each(context)
        assert [kind for kind, _ in fake.live] == ["context", *KINDS]
    assert fake.live == {} and fake.stack == []
    assert fake.freed == [*reversed(KINDS), "context"]
    for owner in [*owners, context]:
        owner.close()
        assert owner.closed
    assert len(fake.freed) == 7


def test_with_blocks_free_in_reverse(fake: FakeDriver):
    with Context(Device.open()) as context, Stream(context), Buffer(context, 16), Module(context, CUBIN):
        pass
    assert fake.freed == ["module", "memory", "stream", "context"]


def test_garbage_collection_frees(fake: FakeDriver):
    context = Context(Device.open())
    owners = make_one_of_each(context)
    assert len(fake.live) == 7
    del owners
    gc.collect()
    assert [kind for kind, _ in fake.live] == ["context"]
    buffer = Buffer(context, 16)
    del context
    gc.collect()
    assert len(fake.live) == 2  # the buffer holds its context
    del buffer
    gc.collect()
    assert fake.live == {}


def test_garbage_collection_on_another_thread_frees(fake: FakeDriver, context: Context):
    box = [Buffer(context, 16)]
    thread = threading.Thread(target=box.clear)  # no context is current there
    thread.start()
    thread.join()
    assert "memory" in fake.freed


def test_launches_keep_what_they_use_alive(fake: FakeDriver, context: Context, stream: Stream):
    launch = kernel(fake, context, 8).prepare(1, 1, [Buffer(context, 16)])
    gc.collect()
    assert {"module", "memory"} <= {kind for kind, _ in fake.live}
    launch(stream)
    del launch
    gc.collect()
    assert not {"module", "memory"} & {kind for kind, _ in fake.live}


def test_closing_after_the_context_is_lost_is_silent(fake: FakeDriver):
    with Context(Device.open()) as context:
        owners = make_one_of_each(context)
        fake.sticky = 700
        with pytest.raises(ContextLost):
            context.synchronize()
        fake.log.clear()
        for owner in owners:
            owner.close()
        assert fake.names() == []
    assert context.closed


def test_a_fault_first_seen_by_a_free_is_not_swallowed(fake: FakeDriver, context: Context):
    buffer = Buffer(context, 16)
    fake.sticky = 700
    with pytest.raises(ContextLost, match="reported by cuMemFree"):
        buffer.close()
    buffer.close()


def test_the_users_exception_is_not_masked(fake: FakeDriver):
    with pytest.raises(KeyError) as caught, Context(Device.open()) as context, Buffer(context, 16):
        fake.sticky = 700
        raise KeyError("mine")
    assert "cuMemFree failed" in caught.value.__notes__[0]
    assert fake.stack == []


def test_use_after_close(fake: FakeDriver, context: Context, stream: Stream):
    buffer = Buffer(context, 16)
    function = kernel(fake, context)
    launch = function.prepare(1, 1, [])
    launch(stream)
    buffer.close()
    function.module.close()
    with pytest.raises(UsageError, match="Buffer is closed"):
        _ = buffer.ptr
    with pytest.raises(UsageError, match="Module is closed"):
        function.prepare(1, 1, [])
    stream.close()
    with pytest.raises(UsageError, match="Stream is closed"):
        launch(stream)


def test_the_ledger_notices_a_leak_and_a_double_free(fake: FakeDriver, context: Context):
    class Leaky(Buffer):
        def _free(self, handle: object) -> None:
            pass

    class Twice(Buffer):
        def _free(self, handle: object) -> None:
            super()._free(handle)
            super()._free(handle)

    Leaky(context, 16).close()
    assert [kind for kind, _ in fake.live] == ["context", "memory"]
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        Twice(context, 16).close()


# --- contexts and threads


def test_nested_blocks_close_once(fake: FakeDriver):
    with Context(Device.open()) as context:
        with context, context.current():
            assert len(fake.stack) == 3
        assert len(fake.stack) == 1 and not context.closed
    assert fake.stack == [] and context.closed
    with pytest.raises(UsageError, match="Context is closed"):
        context.__enter__()


def test_closing_inside_the_block_leaves_the_stack_of_others_alone(fake: FakeDriver):
    outer = Context(Device.open())
    with outer.current():
        with Context(Device.open(), primary=False) as inner:
            inner.close()
        assert fake.stack == [outer.handle]
    assert fake.stack == []
    outer.close()


def test_each_owner_makes_its_own_context_current(fake: FakeDriver):
    first, second = (Context(Device.open(), primary=False) for _ in range(2))
    with second.current():
        fake.log.clear()
        Buffer(first, 16).close()
        pushed = [args[0] for name, args in fake.log if name == "cuCtxPushCurrent"]
        assert pushed == [first.handle, first.handle] and fake.stack == [second.handle]
    first.close()
    second.close()


def test_threads(fake: FakeDriver, context: Context):
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with context.current():
                for _ in range(20):
                    Buffer(context, 16).close()
            assert fake.stack == []
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and not context.closed
    assert fake.freed.count("memory") == 160


def test_inside_the_block_a_call_is_one_call(fake: FakeDriver, context: Context, stream: Stream):
    event = Event(context)
    fake.log.clear()
    event.record(stream)
    assert [name for name, _ in fake.log] == ["cuEventRecord"]
