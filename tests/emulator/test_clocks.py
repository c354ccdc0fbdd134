"""Clocks: kernels that wait for them end soon, what is timed is plausible, timeouts do not come too early."""

from __future__ import annotations

import time

import numpy as np
import pytest

from harness.errors import EmulatorError
from shared.emulator_kernels import launch
from shared.sweeps import sweep

SECOND = 1_980_000_000  # cycles of an H200
SCHEDULES = ("lockstep", "warp-serial", "backward", "random")


def run(body: str, blocks: int = 1, threads: int = 64, schedule: str = "lockstep") -> np.ndarray:
    """Run a kernel with an array p of zeros, v the same but volatile; return the array."""
    source = f"""extern "C" __global__ void k(long long* p) {{
      int t = threadIdx.x, b = blockIdx.x; volatile long long* v = p; {body} }}"""
    out = np.zeros(1024, np.int64)
    found = launch(source, "k", (blocks,), (threads,), out, schedule=schedule)
    assert found.findings == ()
    return out


WAITS = {
    "a second": f"long long c = clock64(); while (clock64() - c < {SECOND}) ;",
    "a second of 32 bits": f"clock_t c = clock(); while (clock() - c < {SECOND}) ;",
    "a second, as in NVIDIA's samples": f"""unsigned c = clock(), gone = 0;
      while (gone < {SECOND}u) {{ unsigned now = clock(); gone = now - c; }}""",
    "two seconds of the timer, asleep": """unsigned long long c, now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(c));
      do { __nanosleep(1000); asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); }
      while (now - c < 2000000000);""",
    "a second of arithmetic": f"""long long c = clock64(); float x = t;
      while (clock64() - c < {SECOND}) x = x * 1.01f + 1; if (x == 7) p[9] = 1;""",
    "a tenth of a second, with stores": f"""long long c = clock64();
      while (clock64() - c < {SECOND // 10}) p[512 + b * 128 + t] += 1;""",
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("what", WAITS)
def test_a_wait_ends_soon(what: str, schedule: str) -> None:
    began = time.thread_time()
    out = run(WAITS[what] + " p[b * 64 + t] = 1;", 2, 64, schedule)
    assert out[:128].all()
    assert time.thread_time() - began < 5


def test_what_can_not_come_is_told() -> None:
    """The control: a clock goes fast, but not round."""
    with pytest.raises(EmulatorError, match=r"(?s)the kernel hangs: .*line 2"):
        run("long long c = clock64(); while (clock64() - c >= 0) ; p[t] = c;")


def test_a_clock_advances_as_it_did() -> None:
    """The same kernel sees the same times, and each thread has waited as long as it wanted."""
    body = "long long c = clock64(); while (clock64() - c < 1000 * (t + 1)) ; p[t] = clock64() - c;"
    first, again = run(body), run(body)
    assert (first[:64] >= 1000 * np.arange(1, 65)).all() and (first == again).all()


def test_what_is_timed_takes_plausible_times() -> None:
    """Nobody waits: a clock goes by the instructions between, although it is read again and again."""
    out = run("""for (int i = 0; i < 64; i++) {
      long long from = clock64(); long long x = v[i]; long long to = clock64();
      if (t == 0) p[100 + i] = to - from + x; }""")
    assert (out[100:164] > 0).all() and (out[100:164] < 1000).all()


CHAIN = """if (t == 0) {
    long long c = clock64();
    while (b && !v[b - 1]) if (clock64() - c > LONGEST) { v[900] = 1; break; }
    __threadfence(); WORK
    if (v[901] == 0) v[b] = 1; }"""
LONG = "for (int i = 0; i < 300; i++) { p[200 + b] += i; }"


@pytest.mark.parametrize("schedule", sweep(SCHEDULES, lambda order: order != "random"))
def test_a_timeout_does_not_come_while_others_go_on(schedule: str) -> None:
    """Each of 40 blocks waits for the one before; a second is long enough for all of their work."""
    assert run(CHAIN.replace("LONGEST", str(SECOND)).replace("WORK", LONG), 40, 32, schedule)[900] == 0


def test_a_timeout_comes_where_nobody_does() -> None:
    """The control: the first block never tells."""
    broken = CHAIN.replace("v[b] = 1", "v[b] = b > 0").replace("LONGEST", str(SECOND // 100))
    assert run(broken.replace("WORK", ""), 3, 32)[900] == 1
