"""Limits of the race watch: what it misses fails until it does not, and what depends on the schedule."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Emulation
from shared.emulator_kernels import launch


def run(body: str, blocks: int, **options: str) -> Emulation:
    source = f"""extern "C" __global__ void k(int* data, volatile int* flag, int* out) {{
      int b = blockIdx.x, t = threadIdx.x;
      {body}
    }}"""
    return launch(source, "k", (blocks,), (1,), *(np.zeros(64, np.int32) for _ in range(3)), **options)


# Blocks 0, 1 and 2 read data; block 3 learns by flags that some of them have, and then writes it.
READERS = """
  if (b < 3) { out[b] = data[0]; if (ORDERED) { __threadfence(); flag[b] = 1; } }
  else { for (int i = 0; i < 3; i++) if (i != LEFT) while (!flag[i]) ; __threadfence(); data[0] = 1; }
"""


@pytest.mark.parametrize("left", range(3))
def test_one_of_three_readers_is_not_waited_for(left: int) -> None:
    run_of = run(READERS.replace("ORDERED", "true").replace("LEFT", str(left)), blocks=4)
    assert [f.kind for f in run_of.findings] == ["global race"]


def test_the_control_all_readers_are_waited_for() -> None:
    assert run(READERS.replace("ORDERED", "true").replace("LEFT", "-1"), blocks=4).findings == ()


# One block looks once whether the other one has set its flag, and if so uses the data without a fence.
LOOK = "if (b == SETS) { data[0] = 1; __threadfence(); flag[0] = 1; } else if (flag[0]) out[0] = data[0];"
SCHEDULES = ("lockstep", "backward")


@pytest.mark.parametrize("sets", [0, 1])
@pytest.mark.parametrize("fence", ["", "__threadfence(); "])
def test_both_ways_behind_a_flag_are_run_in_one_schedule_or_the_other(sets: int, fence: str) -> None:
    body = LOOK.replace("SETS", str(sets)).replace("(flag[0]) ", f"(flag[0]) {{ {fence}") + " }"
    kinds = {f.kind for s in SCHEDULES for f in run(body, blocks=2, schedule=s).findings}
    assert kinds == (set() if fence else {"global race"})
