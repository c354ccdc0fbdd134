"""Whole launches: barriers, batches, buffers and blocks that `races` has to know to judge a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator import Emulation
from harness.emulator.machine import Launch
from shared import hopper_kernels
from shared.emulator_kernels import launch

SYNC1, SYNC2, ARRIVE1, ARRIVE2 = (
    f'asm volatile("bar.{kind} {number}, 64;" ::: "memory");'
    for kind in ("sync", "arrive")
    for number in (1, 2)
)
FINE = "if (a[0] > 1) __threadfence();"  # never taken: `races` watches shared memory, too


def run(body: str, *, blocks: int = 2, threads: int = 96, **options: Any) -> Emulation:
    """Run a kernel with zeros in a, and b, c, d to write to; t is the thread, i its number in the grid."""
    source = f"""extern "C" __global__ void k(const float* a, float* b, float* c, unsigned* d) {{
      __shared__ float s[256];
      int t = threadIdx.x, block = blockIdx.x, i = block * blockDim.x + t;
      {body}
    }}"""
    words = max(blocks * threads, 256)
    arrays = [np.zeros(words, kind) for kind in (np.float32, np.float32, np.float32, np.uint32)]
    return launch(source, "k", (blocks,), (threads,), *arrays, **options)


def found(run: Emulation) -> set[tuple[str, str]]:
    return {(f.kind, f.variable) for f in run.findings}


# Barriers of a part of the block, in kernels that have no other order

HAND_OVER = """
  PLACE[FIRST + t] = t;
  if (t < 32) { FORMER }
  else if (t < 64) { LATTER c[i] = PLACE[FIRST + t - 32]; }
  else { LAST }
"""
SHARED, GLOBAL = ("s", "0"), ("b", "block * 96")


@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
@pytest.mark.parametrize(("place", "first"), [SHARED, GLOBAL])
@pytest.mark.parametrize(
    ("former", "latter", "last", "clean"),
    [
        (SYNC1, SYNC1, "", True),
        (ARRIVE1, SYNC1, "", True),
        (SYNC1, SYNC1, "c[i] = PLACE[FIRST + t - 32];", False),
        (SYNC1, SYNC1, "} if (t >= 64) { c[i] = PLACE[FIRST + t - 32];", False),  # later, and not after it
        (ARRIVE1, SYNC1, "c[i] = PLACE[FIRST + t - 64];", False),
        (
            ARRIVE1 + ARRIVE2,
            SYNC1,
            SYNC2 + "c[i] = PLACE[FIRST + t - 64];",
            True,
        ),
        (
            ARRIVE1,
            SYNC1 + ARRIVE2,
            SYNC2 + "c[i] = PLACE[FIRST + t - 32];",
            True,
        ),
    ],
)
def test_warps_hand_over_at_a_barrier_of_two(
    former: str, latter: str, last: str, clean: bool, place: str, first: str, schedule: str
) -> None:
    body = HAND_OVER.replace("FORMER", former).replace("LATTER", latter).replace("LAST", last)
    made = run(body.replace("PLACE", place).replace("FIRST", first), schedule=schedule)
    assert found(made) == (set() if clean else {("RAW hazard", place)})


ENDED = 'if (t >= 64) { s[t] = t; return; } s[t] = t; asm volatile("BARRIER;" ::: "memory"); c[i] = s[OTHER];'


@pytest.mark.parametrize(
    ("barrier", "other", "kinds"),
    [
        ("bar.sync 1, 64", "t ^ 32", set()),
        ("bar.sync 1, 64", "t + 32", {"RAW hazard"}),  # warp 2 is none of the 64
        ("bar.sync 0", "t + 32", {"divergent barrier"}),  # told as such, and no race beside it
    ],
)
@pytest.mark.parametrize("schedule", ["lockstep", "backward"])
def test_a_thread_that_has_ended_passes_the_barriers_of_all(
    barrier: str, other: str, kinds: set[str], schedule: str
) -> None:
    made = run(ENDED.replace("BARRIER", barrier).replace("OTHER", other), schedule=schedule)
    assert {f.kind for f in made.findings} == kinds


def test_a_barrier_that_one_whole_block_passes_is_none_for_the_other() -> None:
    body = "s[t] = t; if (block == WHICH) __syncthreads(); c[i] = s[95 - t];"
    for which in (0, 1):
        (race,) = run(body.replace("WHICH", str(which))).findings
        assert (race.kind, race.block.x) == ("RAW hazard", 1 - which)


def test_a_fence_counts_for_the_thread_that_executes_it() -> None:
    """Warp 1 hands over for its block, by itself."""
    body = """
      volatile unsigned* flag = d;
      if (block == 0 && t == 40) { b[0] = 1; FENCE flag[0] = 1; }
      __syncthreads();
      if (block == 1 && t == 50 && flag[0]) { __threadfence(); c[0] = b[0]; }
    """
    for schedule in ("lockstep", "warp-serial"):
        assert found(run(body.replace("FENCE", "__threadfence();"), schedule=schedule)) == set()
        without = run(body.replace("FENCE", ""), schedule=schedule)
        assert found(without) == {("global race", "b")}


# Blocks that run one batch after the other: 40 of 1024 threads are more than one

LATER = """
  if (t == 0 && block == 0) { EARLIER }
  if (t == 0 && block == gridDim.x - 1) { LATE }
"""


@pytest.mark.parametrize(
    ("earlier", "late", "races"),
    [
        ("c[0] = b[5];", "b[5] = 1;", {("global race", "b")}),  # read first, and watched from the start then
        ("b[5] = 1;", "c[0] = b[5];", {("global race", "b")}),
        ("c[0] = b[4];", "b[5] = 1;", set()),
        ("b[5] = 1; __threadfence(); atomicExch(d, 1);", "c[0] = b[5];", {("global race", "b")}),
        (
            "b[5] = 1; __threadfence(); *(volatile unsigned*)d = 1;",
            "if (*(volatile unsigned*)d) { __threadfence(); c[0] = b[5]; }",
            set(),
        ),
    ],
)
def test_a_block_of_the_last_batch_meets_one_of_the_first(earlier: str, late: str, races: set[Any]) -> None:
    body = LATER.replace("EARLIER", earlier).replace("LATE", late)
    assert found(run(body, blocks=40, threads=1024)) == races


THREE = """
  if (t == 0 && block == 0) { FIRST }
  if (t == 0 && block == 20) { SECOND }
  if (t == 0 && block == 39) { THIRD }
"""


@pytest.mark.parametrize(
    ("first", "second", "third", "races", "launches"),
    [
        ("", "", "b[5] = 1;", set(), 1),  # nobody has read it
        ("", "", "c[0] = b[4]; b[5] = c[0];", set(), 1),  # who has read it has not ended
        ("", "c[0] = b[5];", "b[5] = 1;", {"b"}, 2),
        ("c[0] = b[4];", "", "b[5] = 1;", set(), 2),
        ("b[5] = 1;", "c[0] = b[4]; c[1] = c[2];", "b[6] = c[2];", set(), 1),
        ("b[5] = 1;", "c[0] = c[2];", "c[1] = b[5];", {"b"}, 1),
        ("c[0] = a[5];", "", "b[5] = a[5];", set(), 1),
        ("c[0] = b[4] + d[4];", "", "b[5] = 1; d[5] = 1;", set(), 3),
    ],
)
def test_only_reads_that_were_not_kept_start_a_launch_over(
    first: str, second: str, third: str, races: set[str], launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the launches of a kernel whose later batch is the first to store to a buffer."""
    made = _launches(monkeypatch)
    body = THREE.replace("FIRST", first).replace("SECOND", second).replace("THIRD", third)
    assert found(run(body, blocks=40, threads=1024)) == {("global race", name) for name in races}
    assert len(made) == launches


def _launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Return a list to which each launch is added when it begins."""
    made: list[Launch] = []
    begin = Launch.run
    monkeypatch.setattr(Launch, "run", lambda self: made.append(self) or begin(self))
    return made


# Block 0 ends while block 1 waits for a copy, and then stores to c.
WAITS = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (blockIdx.x == 0) { if (t == 0) { EARLIER } return; }
  if (t == 0) { init(&full, 1); fence_init(); }
  __syncthreads();
  if (t == 0) { expect(&full, 512); load(s, a, 512, &full); }
  wait(&full, 0);
  c[t] = s[t] + c[t];
}"""


@pytest.mark.parametrize(
    ("earlier", "races", "launches"),
    [
        ("", set(), 1),
        ("if (a[5] == 7) c[200] = 1;", set(), 1),
        ("if (c[200] == 7) c[201] = 1;", set(), 2),
        ("if (c[100] == 7) c[201] = 1;", {"global race"}, 2),
        ("c[100] = 1;", {"global race"}, 1),
    ],
)
@pytest.mark.parametrize("cluster", [0, 2])
def test_a_block_without_work_starts_no_launch_over(
    earlier: str, races: set[str], launches: int, cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep what the blocks of a cluster have read until all of them have ended."""
    made = _launches(monkeypatch)
    a, c = np.ones(512, np.float32), np.zeros(512, np.float32)
    ran = hopper_kernels.run(
        WAITS.replace("EARLIER", earlier), a, c, grid=2, cluster=cluster, schedule="late"
    )
    assert hopper_kernels.kinds(ran) == races
    assert len(made) == (launches if not cluster else 1)


def test_the_last_of_all_may_set_their_counter_back() -> None:
    reset = "if (t == 0 && atomicAdd(d, 1u) == LAST) d[0] = 0;"
    assert found(run(reset.replace("LAST", "gridDim.x - 1"))) == set()
    assert found(run(reset.replace("LAST", "0"))) == {("global race", "d")}


# Which bytes


@pytest.mark.parametrize("word", [0, 3])
@pytest.mark.parametrize("fine", ["", FINE])
@pytest.mark.parametrize("place", ["b", "s"])
def test_every_word_of_a_vector_is_watched(word: int, place: str, fine: str) -> None:
    """Each thread of a warp stores four words; a thread of another reads one of them, or its own first."""
    body = f"{fine} if (t < 32) ((float4*){place})[t] = make_float4(t, 0, 0, 0);"
    read = f"if (t == 32) c[0] = {place}[4 * 7 + {word}];"
    (race,) = run(body + read, blocks=1).findings
    assert (race.kind, race.variable, race.offset) == ("RAW hazard", place, 4 * (28 + word))
    assert (race.threads[0].x, race.threads[1].x) == (7, 32)
    assert found(run(body + f"if (t < 32) c[t] = {place}[4 * t + {word}];", blocks=1)) == set()


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_shared_memory_is_each_blocks_own(blocks: int) -> None:
    body = f"{FINE} if (block >= FIRST) {{ s[t] = t; SYNC c[i] = s[95 - t]; }}"
    clean = body.replace("FIRST", "0").replace("SYNC", "__syncthreads();")
    assert found(run(clean, blocks=blocks)) == set()
    (race,) = run(body.replace("FIRST", str(blocks - 1)).replace("SYNC", ""), blocks=blocks).findings
    assert (race.kind, race.variable, race.block.x) == ("RAW hazard", "s", blocks - 1)
    assert race.offset == 4 * race.threads[0].x == 4 * (95 - race.threads[1].x)


@pytest.mark.parametrize("fine", ["", FINE])
def test_stores_of_the_same_value_to_shared_memory(fine: str) -> None:
    made = run(f"{fine} s[3] = gridDim.x; __syncthreads(); c[i] = s[3];")
    assert made.findings == () and [f.kind for f in made.notices] == ["WAW hazard"]
    made = run(f"{fine} s[3] = t; __syncthreads(); c[i] = s[3];")
    assert found(made) == {("WAW hazard", "s")} and made.notices == ()


TWO = """
  float* p = t < 48 ? b : c; p[64 + t] = t; SYNC
  if ((t < 48 ? b : c)[64 + (t ^ 1)] < 0) d[0] = 1;
"""


def test_lanes_of_one_store_that_go_to_two_buffers() -> None:
    assert found(run(TWO.replace("SYNC", "__syncthreads();"), blocks=1)) == set()
    assert found(run(TWO.replace("SYNC", ""), blocks=1)) == {("RAW hazard", "b"), ("RAW hazard", "c")}
    edge = (
        "float* p = t < 48 ? b : c; p[t < 48 ? 255 : 0] = t;"  # the last word of one, the first of the other
    )
    assert found(run(edge, blocks=1)) == {("WAW hazard", "b"), ("WAW hazard", "c")}
    some = "float* p = t < 48 ? b : c; if (t == 0 || t == 95) p[7] = t; if (t == 50) c[9] = b[7] + b[9];"
    assert found(run(some, blocks=1)) == {("RAW hazard", "b")}
