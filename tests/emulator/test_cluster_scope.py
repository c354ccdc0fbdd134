"""Scopes of clusters: what ``.cluster`` orders, in kernels whose blocks do and do not wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from harness.emulator import emulate
from shared.emulator_kernels import compile_ptx

# Blocks 0 and 1 are a cluster, 2 and 3 another one; block 0 writes c[0], block READER reads it.
FLAG = """
__device__ void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
__device__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ unsigned block() { return blockIdx.x + gridDim.x * blockIdx.y; }
extern "C" __global__ void __cluster_dims__(CLUSTER) k(float* c, unsigned* flag) {
  if (threadIdx.x == 0 && block() == 0) {
    c[0] = 1;
    WRITE
  }
  if (threadIdx.x == 0 && block() == READER) {
    unsigned v;
    do { READ } while (v == 0);
    AFTER
    c[8] = c[0];
  }
  MORE
}"""


def store(how: str) -> str:
    return f'asm volatile("st.{how}.global.u32 [%0], 1;" :: "l"(flag) : "memory");'


def load(how: str) -> str:
    return f'asm volatile("ld.{how}.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");'


def update(how: str) -> str:
    return f'asm volatile("red.{how}.global.add.u32 [%0], 1;" :: "l"(flag) : "memory");'


@dataclass(frozen=True)
class Case:
    """How the flag is written and read, whether that orders threads of a cluster, and of two clusters."""

    write: str
    read: str
    within: bool
    across: bool
    after: str = ""


CASES = {
    "cluster": Case(store("release.cluster"), load("acquire.cluster"), True, False),
    "gpu": Case(store("release.gpu"), load("acquire.gpu"), True, True),
    "release of the cluster": Case(store("release.cluster"), load("acquire.gpu"), True, False),
    "acquire of the cluster": Case(store("release.gpu"), load("acquire.cluster"), True, False),
    "atomic release of the cluster": Case(update("release.cluster"), load("acquire.gpu"), True, False),
    "of the block": Case(store("release.cta"), load("acquire.cluster"), False, False),
    "fences": Case(
        f"fence_cluster(); {store('relaxed.gpu')}", load("relaxed.gpu"), True, False, "fence_gpu();"
    ),
    "fence after": Case(
        f"fence_gpu(); {store('relaxed.gpu')}", load("relaxed.gpu"), True, False, "fence_cluster();"
    ),
    "fences of the gpu": Case(
        f"fence_gpu(); {store('relaxed.gpu')}", load("relaxed.gpu"), True, True, "fence_gpu();"
    ),
    "flag of the cluster": Case(
        f"fence_gpu(); {store('relaxed.cluster')}", load("relaxed.cluster"), True, False, "fence_gpu();"
    ),
}
# With a barrier of the cluster the kernel has asynchronous units, and runs cluster by cluster.
UNITS = 'asm volatile("barrier.cluster.arrive.aligned;\\n barrier.cluster.wait.aligned;" ::: "memory");'


def found(text: str, cluster: str = "2, 1, 1", grid: tuple[int, ...] = (4,), **options: object) -> set[str]:
    ptx = compile_ptx(text.replace("CLUSTER", cluster), "compute_90a")
    c, flag = np.zeros(16, np.float32), np.zeros(4, np.uint32)
    run = emulate(ptx, "k", grid=grid, block=(64,), arguments=[c, flag], **options)
    return {finding.kind for finding in run.findings}


def text_of(case: Case, reader: int, more: str) -> str:
    edits = {"WRITE": case.write, "READER": str(reader), "READ": case.read, "AFTER": case.after, "MORE": more}
    text = FLAG
    for name in ("READER", "WRITE", "READ", "AFTER", "MORE"):
        text = text.replace(name, edits[name])
    return text


@pytest.mark.parametrize("more", ["", UNITS], ids=["plain", "units"])
@pytest.mark.parametrize("name", CASES)
def test_a_flag_orders_the_threads_of_its_scope(name: str, more: str) -> None:
    case = CASES[name]
    assert found(text_of(case, 1, more)) == (set() if case.within else {"global race"})
    assert found(text_of(case, 2, more)) == (set() if case.across else {"global race"})


@pytest.mark.parametrize("more", ["", UNITS], ids=["plain", "units"])
def test_blocks_of_a_cluster_need_not_follow_each_other(more: str) -> None:
    """In a grid of 2 x 2 with clusters of 1 x 2 blocks 0 and 2 are a cluster."""
    case = CASES["cluster"]
    assert found(text_of(case, 2, more), "1, 2, 1", (2, 2)) == set()
    assert found(text_of(case, 1, more), "1, 2, 1", (2, 2)) == {"global race"}


@pytest.mark.parametrize(
    ("scope", "wanted"), [("cluster", {"global race"}), ("gpu", set()), ("cta", {"global race"})]
)
def test_atomics_of_a_scope_race_with_those_outside_of_it(scope: str, wanted: set[str]) -> None:
    text = """extern "C" __global__ void __cluster_dims__(CLUSTER) k(float* c, unsigned* flag) {
      if (BLOCKS) asm volatile("red.relaxed.SCOPE.global.add.u32 [%0], 1;" :: "l"(flag) : "memory");
    }"""
    text = text.replace("SCOPE", scope)
    assert found(text.replace("BLOCKS", "true")) == wanted
    assert found(text.replace("BLOCKS", "blockIdx.x < 2")) == (wanted if scope == "cta" else set())
    assert found(text.replace("BLOCKS", "blockIdx.x == 3")) == set()


@pytest.mark.parametrize(("second", "wanted"), [("gpu", set()), ("cluster", {"global race"})])
@pytest.mark.parametrize(("first", "who"), [("cluster", "block() == 1"), ("cta", "block() == 0")])
def test_order_is_handed_on_from_a_narrow_scope_to_a_wider(
    first: str, who: str, second: str, wanted: set[str]
) -> None:
    """Block 0 tells a thread of its block or of its cluster, and that tells block 2, of another cluster."""
    hand = f"""
  if (threadIdx.x == 32 && {who}) {{
    unsigned v;
    do {{ {load(f"acquire.{first}")} }} while (v == 0);
    flag += 1;
    {store(f"release.{second}")}
  }}"""
    read = load(f"acquire.{second}").replace('"l"(flag)', '"l"(flag + 1)')
    assert found(text_of(Case(store(f"release.{first}"), read, True, True), 2, hand)) == wanted
