"""The end of an ``st.async`` tells of reads that were before it began, and of nothing that was written."""

from __future__ import annotations

import numpy as np
import pytest

from shared.hopper_kernels import kinds, run

# Block 0 reads x, and sends a word to block 1, which waits for it and then writes to x of block 0.
ANSWER = """int* out {
  __shared__ int x, got; __shared__ u64 full;
  const int t = threadIdx.x, me = rank();
  if (t == 0) { init(&full, 1); fence_init(); x = 5; got = 0; }
  cluster_sync();
  BEFORE
  if (me == 1 && t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4;" :: "r"(at(&full)) : "memory");
    WAIT
    AFTER
  }
  cluster_sync();
}"""
SEND = (
    'asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], 1, [%1];"'
    ' :: "r"(far(&got, 1)), "r"(far(&full, 1)) : "memory");'
)
WAIT = (
    'asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0],'
    ' 0; @!p bra again; }" :: "r"(at(&full)) : "memory");'
)
WRITE = 'asm volatile("st.shared::cluster.u32 [%0], 9;" :: "r"(far(&x, 0)) : "memory");'
READ = (
    'int v; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(far(&x, 0)) : "memory");'
    " out[1] = v;"
)
ARRIVE = 'asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4;" :: "r"(at(&full)) : "memory");'
UNORDERED = {"WAR hazard", "RAW hazard"}  # by which of the two the emulator executes first


def outcome(before: str, after: str, wait: str = WAIT) -> set[str]:
    source = ANSWER.replace("BEFORE", before).replace("AFTER", after).replace("WAIT", wait)
    return kinds(run(source, np.zeros(2, np.int32), block=64, grid=2, cluster=2, schedule="late"))


@pytest.mark.parametrize(
    ("before", "after", "wait", "wanted"),
    [
        # the thread that sends has read, or waited for those who have
        (f"if (me == 0 && t == 0) {{ out[0] = x; {SEND} }}", WRITE, WAIT, set()),
        (
            f"if (me == 0) {{ if (t == 40) out[0] = x; __syncthreads(); if (t == 0) {{ {SEND} }} }}",
            WRITE,
            WAIT,
            set(),
        ),
        # it has not: another one reads, or it reads behind its store
        (
            f"if (me == 0) {{ if (t == 40) out[0] = x; if (t == 0) {{ {SEND} }} }}",
            WRITE,
            WAIT,
            {"WAR hazard"},
        ),
        (f"if (me == 0 && t == 0) {{ {SEND} out[0] = x; }}", WRITE, WAIT, UNORDERED),
        # nobody waits
        (f"if (me == 0 && t == 0) {{ out[0] = x; {SEND} }}", WRITE, "", UNORDERED),
        # what was written before is not told
        (f"if (me == 0 && t == 0) {{ x = 7; {SEND} }}", READ, WAIT, {"RAW hazard"}),
        (f"if (me == 0 && t == 0) {{ x = 7; {SEND} }}", WRITE, WAIT, {"WAW hazard"}),
    ],
)
def test_what_the_end_of_an_asynchronous_store_tells(
    before: str, after: str, wait: str, wanted: set[str]
) -> None:
    found = outcome(before, after, wait)
    assert found & wanted or found == wanted


# Block 0 has x filled, and sends a word to block 1, which waits for it and then sends another one to x.
FILLED = (
    ANSWER.replace("int* out {", "int* out, const int* in {")
    .replace("int x,", "int y;")
    .replace("int y;", "__align__(16) int x[4]; __shared__ u64 back, fill; __shared__ int")
    .replace("x = 5;", "init(&back, 1); init(&fill, 1); fence_init();")
)
BACK = SEND.replace("far(&got, 1)", "far(x, 0)").replace("far(&full, 1)", "far(&back, 0)")
COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(at(x)), "l"(in) : "memory");'
ARRIVES = 'asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at(&fill)) : "memory");'
LANDED = 'asm volatile("cp.async.wait_all;" ::: "memory");'


@pytest.mark.parametrize(
    ("fill", "wanted"),
    [
        (f"{COPY} {LANDED}", set()),
        (f"{COPY} {ARRIVES} wait(&fill, 0);", set()),
        # nobody has waited when the word is sent
        (f"{COPY} {ARRIVES}", {"WAW hazard"}),
        (COPY, {"WAW hazard"}),
    ],
)
def test_what_has_landed_is_told(fill: str, wanted: set[str]) -> None:
    source = FILLED.replace("WAIT", WAIT).replace("AFTER", BACK)
    expects = ARRIVE.replace("&full", "&back")
    source = source.replace("BEFORE", f"if (me == 0 && t == 0) {{ {expects} {fill} {SEND} wait(&back, 0); }}")
    given = np.zeros(2, np.int32), np.arange(4, dtype=np.int32)
    assert kinds(run(source, *given, block=64, grid=2, cluster=2, schedule="late")) == wanted
