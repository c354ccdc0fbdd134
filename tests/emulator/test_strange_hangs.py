"""Hangs of strangers are told in less than 10 s; what only takes long is not called one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from harness.emulator import Buffer, emulate
from harness.errors import EmulatorError
from shared.emulator_kernels import compile_ptx
from shared.speed import Stopwatch
from shared.strange_hangs import FORGOTTEN, LASTING, Hang
from shared.sweeps import sweep

MOST = 10  # seconds, as on the reference
FEW = ("producer forgets an arrival", "try_wait with a suspend time hint", "bakery")


def said_of(kind: Hang) -> tuple[str, float]:
    """Return what is said of a kernel, and the seconds until then."""
    ptx, clock = compile_ptx(kind.source, "compute_90a"), Stopwatch()
    p = Buffer(array=np.zeros(8192, np.int32), name="p")
    with clock:
        try:
            found = emulate(ptx, "k", grid=(kind.blocks,), block=(kind.threads,), arguments=[p])
            said = "\n".join(str(finding) for finding in found.findings)
        except EmulatorError as error:
            said = str(error)
    return said, clock.seconds


@pytest.mark.parametrize("what", sweep(FORGOTTEN, lambda what: what in FEW))
def test_a_hang_is_told(what: str) -> None:
    said, seconds = said_of(FORGOTTEN[what])
    assert re.search("the kernel hangs|deadlock|divergent barrier|more turns", said), said
    assert re.search(r"\d+ (of \d+ )?threads?.* line \d+|line \d+: \d+ of \d+ threads", said), said
    assert seconds < MOST


@pytest.mark.parametrize("what", sweep(LASTING, lambda what: what == "lock in turn"))
def test_what_takes_long_is_no_hang(what: str) -> None:
    """The control: it goes on, and ends."""
    assert not said_of(LASTING[what])[0]
