"""Scopes of mbarriers: what another block of the cluster has stored needs an arrival and a wait of its scope.

What it has only read does not: CUTLASS's pipelines free stages by arrivals and waits of a block's scope.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Emulation
from shared.hopper_kernels import kinds, run

# Each block stores to the other one's memory, three times, and is told when that was read.
PUSH = """int* out {
  __shared__ int s[128]; __shared__ alignas(8) u64 full, empty; int t = threadIdx.x, o = 1 - rank(), got = 0;
  if (t == 0) { init(&full, 128); init(&empty, 128); fence_init(); }
  cluster_sync();
  for (int i = 0; i < 3; i++) {
    if (i) WAIT_EMPTY
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(far(s + t, o)), "r"(i * 1000 + t) : "memory");
    ARRIVE_FULL
    WAIT_FULL
    got += s[127 - t];
    ARRIVE_EMPTY
  }
  out[blockIdx.x * 128 + t] = got; cluster_sync(); }"""
# One warp waits for the other block, and tells the rest by an mbarrier of its own block.
HANDED = """int* out {
  __shared__ int s[128]; __shared__ alignas(8) u64 full, mine; int t = threadIdx.x, o = 1 - rank();
  if (t == 0) { init(&full, 128); init(&mine, 32); fence_init(); }
  cluster_sync();
  asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(far(s + t, o)), "r"(t) : "memory");
  ARRIVE_FULL
  if (t < 32) { WAIT_FIRST arrive(&mine); } else wait(&mine, 0);
  out[blockIdx.x * 128 + t] = s[127 - t]; cluster_sync(); }"""


def arrival(scope: str, barrier: str) -> str:
    return f"""asm volatile("mbarrier.arrive{scope}.shared::cluster.b64 _, [%0];"
      :: "r"(far(&{barrier}, o)) : "memory");"""


def wait(scope: str, barrier: str, parity: str) -> str:
    return f"""asm volatile("{{ .reg .pred p; L: mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [%0], %1;"
      "@!p bra L; }}" :: "r"(at(&{barrier})), "r"({parity}) : "memory");"""


def launched(kernel: str, arrives: str = ".release.cluster", waits: str = ".acquire.cluster") -> Emulation:
    """Run a kernel whose arrivals and waits for what was stored have these scopes, all others a block's."""
    text = kernel.replace("WAIT_EMPTY", wait("", "empty", "i - 1 & 1"))
    text = text.replace("ARRIVE_EMPTY", arrival("", "empty")).replace("ARRIVE_FULL", arrival(arrives, "full"))
    text = text.replace("WAIT_FULL", wait(waits, "full", "i & 1")).replace(
        "WAIT_FIRST", wait(waits, "full", "0")
    )
    return run(text, np.zeros(256, np.int32), grid=2, cluster=2)


@pytest.mark.parametrize("kernel", [PUSH, HANDED], ids=["push", "handed"])
def test_the_scope_of_the_cluster_orders(kernel: str) -> None:
    assert kinds(launched(kernel)) == set()


@pytest.mark.parametrize("scopes", [(".release.cluster", ""), ("", ".acquire.cluster"), ("", "")])
@pytest.mark.parametrize("kernel", [PUSH, HANDED], ids=["push", "handed"])
def test_the_scope_of_a_block_does_not(kernel: str, scopes: tuple[str, str]) -> None:
    found = launched(kernel, *scopes)
    assert kinds(found) == {"RAW hazard"}
    assert "mbarrier.try_wait.acquire.cluster in this one" in found.findings[0].message


def test_a_fence_behind_the_wait_orders() -> None:
    fenced = PUSH.replace("WAIT_FULL", 'WAIT_FULL asm volatile("fence.acq_rel.cluster;" ::: "memory");')
    assert kinds(launched(fenced, waits="")) == set()


def test_what_was_read_is_freed_by_the_scope_of_a_block() -> None:
    """The control: an arrival before the read frees the place too early, which is found as ever."""
    early = PUSH.replace("got += s[127 - t];\n    ARRIVE_EMPTY", "ARRIVE_EMPTY got += s[127 - t];")
    assert kinds(launched(early)) == {"WAR hazard"}
