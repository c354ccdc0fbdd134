"""Masks of warp instructions: who is named and does not come, who is not named, and who may meet."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Emulation
from shared.emulator_kernels import launch


def run(body: str, threads: int = 64, schedule: str = "lockstep") -> tuple[Emulation, np.ndarray]:
    """Run a block in which each thread has x = its number and leaves y; return the emulation and all y."""
    source = f"""extern "C" __global__ void k(const int* a, int* c) {{
      int t = threadIdx.x, lane = t % 32, x = a[t], y = -7;
      {body}
      c[t] = y;
    }}"""
    c = np.zeros(threads, np.int32)
    return launch(source, "k", (1,), (threads,), np.arange(threads, dtype=np.int32), c, schedule=schedule), c


CALLS = {
    "shfl": "y = __shfl_sync(MASK, x, 3);",
    "vote": "y = __any_sync(MASK, x > 5);",
    "ballot": "y = __ballot_sync(MASK, x > 5);",
    "match": "y = __match_any_sync(MASK, x / 4);",
    "redux": "y = __reduce_add_sync(MASK, x);",
    "barrier": "__syncwarp(MASK); y = x;",
}


@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_members(call: str, schedule: str) -> None:
    def found(mask: str, condition: str) -> list[str]:
        ran, _ = run(f"if ({condition}) {{ {call.replace('MASK', mask)} }}", schedule=schedule)
        assert {f.kind for f in ran.findings} <= {"warp mask"} and ran.notices == ()
        return [f.message for f in ran.findings]

    assert found("0xffffffff", "true") == found("0xffff", "lane < 16") == []
    assert found("lane < 16 ? 0xffff : 0xffff0000", "lane != 99") == [] or "shfl" in call
    assert found("0xffffffff", "t >= 32") == [], "a whole warp"
    (message,) = found("0xffffffff", "lane < 16")
    assert "lane 16 is named in the mask and never comes" in message
    (message,) = found("0xff", "lane < 16")
    assert "not named in its own mask" in message and "thread (8, 0, 0)" in message


def test_lanes_that_have_ended_are_not_waited_for() -> None:
    ran, c = run("if (t >= 40) return; y = __reduce_add_sync(0xffffffff, x);")
    assert ran.findings == ()
    assert c.tolist() == [sum(range(32))] * 32 + [sum(range(32, 40))] * 8 + [0] * 24


def test_lanes_meet_at_different_barriers_of_a_warp() -> None:
    body = """
      __shared__ int s[64];
      if (lane < 16) { s[t] = x; __syncwarp(); y = s[t + 16]; }
      else { s[t] = x + 100; __syncwarp(OTHER); y = s[t - 16]; }
    """
    ran, c = run(body.replace("OTHER", ""))
    assert ran.findings == ()
    assert c.tolist() == [t + 116 if t % 32 < 16 else t - 16 for t in range(64)]
    apart, _ = run(body.replace("OTHER", "0xffff0000"))
    assert "warp mask" in {f.kind for f in apart.findings}


def test_half_warps_vote_apart_in_one_instruction() -> None:
    mask = "unsigned m = lane < 16 ? 0xffff : 0xffff0000;"
    for call, expected in (
        ("y = __ballot_sync(m, lane != 3);", [0xFFF7, 0xFFFF0000]),
        ("y = __all_sync(m, lane != 3);", [0, 1]),
        ("y = __any_sync(m, lane == 3);", [1, 0]),
        ("y = __reduce_max_sync(m, lane);", [15, 31]),
        ("y = __match_any_sync(m, 5);", [0xFFFF, 0xFFFF0000]),
    ):
        ran, c = run(mask + call)
        assert ran.findings == ()
        assert c.view(np.uint32).tolist() == [expected[t % 32 // 16] for t in range(64)], call


def test_a_shuffle_from_a_lane_that_is_not_there() -> None:
    body = "y = __shfl_down_sync(0xffffffff, x, 16);"
    ran, _ = run(body, threads=64)
    assert ran.findings == ran.notices == ()
    ran, c = run(body, threads=48)
    assert ran.findings == () and [f.kind for f in ran.notices] == ["undefined shuffle"]
    assert c.tolist() == [*range(16, 32), *range(16, 32), *[-1] * 16]
