"""Events and gates."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.driver import FakeDriver
from harness.driver import Buffer, Context, Device, Event, Gate, Stream
from harness.driver import gate as gate_module
from harness.errors import UsageError
from shared.places import ROOT


def test_event(fake: FakeDriver, context: Context, stream: Stream):
    start, stop = Event(context), Event(context)
    start.record(stream)
    stop.record(stream)
    assert stop.seconds_since(start) == pytest.approx(1.5e-3)
    fake.fail("cuEventQuery", 600)
    assert not stop.done
    assert stop.done
    stream.wait(stop)
    with pytest.raises(UsageError, match="timing=False"):
        stop.seconds_since(Event(context, timing=False))


def test_gate_holds_until_opened(fake: FakeDriver, context: Context, stream: Stream):
    gate = Gate(context)
    for _ in range(3):
        gate.close_on(stream)
        assert fake.held() and gate.holds(stream)
        gate.open()
        assert not fake.held() and not gate.holds()
        gate.open()
    other = Stream(context)
    gate.close_on(stream)
    gate.close_on(other)
    gate.open()
    assert all(ctypes.c_uint32.from_address(at).value >= value for at, value in fake.waits)


def test_gate_opens_on_exception(fake: FakeDriver, context: Context, stream: Stream):
    gate = Gate(context)
    with pytest.raises(KeyError), gate.holding(stream):
        raise KeyError
    assert not fake.held()
    with pytest.raises(KeyError), Gate(context) as gate:
        gate.close_on(stream)
        raise KeyError
    assert gate.closed and not gate.holds()


def test_waiting_behind_a_closed_gate_is_refused(fake: FakeDriver, context: Context, stream: Stream):
    gate, event, other, buffer = Gate(context), Event(context), Stream(context), Buffer(context, 4)
    with gate.holding(stream):
        event.record(stream)
        for wait in [
            stream.synchronize,
            event.synchronize,
            context.synchronize,
            lambda: buffer.upload(b"four", stream),
            lambda: buffer.download(bytearray(4), stream),
        ]:
            with pytest.raises(UsageError, match="never end"):
                wait()
        other.synchronize()
    stream.synchronize()
    event.synchronize()


@pytest.mark.parametrize(("what", "held"), [("Buffer", False), ("Event", True)])
def test_frees_that_wait_open_the_gate(fake: FakeDriver, context: Context, what: str, held: bool):
    gate, owner = Gate(context), Buffer(context, 4) if what == "Buffer" else Event(context)
    gate.close_on(Stream(context))
    owner.close()
    assert fake.held() is held


def test_context_opens_gates_before_closing(fake: FakeDriver):
    with Context(Device.open()) as context:
        gate = Gate(context)
        gate.close_on(Stream(context))
        fake.log.clear()
    assert gate.closed and fake.live == {}
    names = fake.names()
    assert names.index("cuCtxSynchronize") < names.index("cuMemFreeHost")  # the GPU still read the word


def test_a_closed_gate_never_writes_its_word_again(context: Context):
    """The memory is freed by then: writing there ends the process (seen on an H200, at exit)."""

    class Freed:
        def __setattr__(self, name: str, value: int) -> None:
            raise AssertionError("written after it was freed")

    gate = Gate(context)
    stream = Stream(context)
    with gate.holding(stream):
        pass
    gate.close()
    gate._word = Freed()  # type: ignore[assignment]
    gate.open()
    context.open_gates()
    gate_module._open_all()


def test_an_interrupt_while_closing_leaves_the_gate_open(
    context: Context, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C may arrive when the driver has queued the wait and Python has not noted it."""

    def interrupted(self: FakeDriver, *args: Any) -> None:
        self.waits.append((args[1], args[2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeDriver, "_cuStreamWaitValue32", interrupted)
    gate, stream = Gate(context), Stream(context)
    with pytest.raises(KeyboardInterrupt), gate.holding(stream):
        pass
    assert not fake.held()


def test_a_gate_closed_at_exit_is_opened(tmp_path: Path):
    code = """
import atexit, sys
sys.path.insert(0, "tests")
from fakes.driver import FakeDriver
from harness.driver import *
from harness.driver import api
fake = FakeDriver()
api.bindings = lambda: fake
context = Context(Device.open())
atexit._clear() if "--control" in sys.argv else None
context.__enter__()
gate = Gate(context)
gate.close_on(Stream(context))
import os, threading
# Non-daemon clean-up runs after atexit handlers: look at the last moment.
class Last:
    def __del__(self): os.write(1, b"held" if fake.held() else b"open")
keep = Last()
"""
    for argument, expected in (("", "open"), ("--control", "held")):
        run = subprocess.run(
            [sys.executable, "-c", code, argument],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert run.stdout == expected, run.stderr
