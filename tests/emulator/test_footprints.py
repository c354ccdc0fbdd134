"""Which bytes of each buffer a launch accesses, and how: what orders launches is judged by them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from harness.emulator import Emulation
from harness.emulator.numbers.values import Array
from harness.emulator.watch import touches
from harness.emulator.watch.shadow import READ, STRONG_READ, STRONG_WRITE, WRITE
from harness.emulator.watch.touches import runs
from shared.emulator_kernels import launch
from shared.hopper_kernels import run

KERNEL = """
extern "C" __global__ void k(const float* a, const short* b, float4* c, int* d, const float* e, float* f,
                             int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = make_float4(a[3 * i], b[i], a[3 * i + 1], 0);  // neither the third of a, nor all of b
    if (i == 5) atomicAdd(d + 1, 1);
    if (i == 6) ((volatile int*)d)[3] = 1;
    for (int j = 0; j < 4; ++j) f[i] += e[j * 128 + i];  // in a loop; f is read, too
}"""


def touched(found: Emulation, number: int) -> Mapping[int, Array]:
    """Return a flag for each byte of the buffer with a number, by kind of access."""
    start = sorted(found.footprints)[number]
    flags = {}
    for kind, some in found.footprints[start].items():
        flags[kind] = np.zeros(some[-1, 1], np.bool_)
        for first, end in some:
            flags[kind][first:end] = True
    return flags


@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
def test_bytes_are_exact(schedule: str) -> None:
    n = 100
    buffers = [np.ones(400, np.float32), np.ones(128, np.int16), np.zeros(512, np.float32)]
    buffers += [np.zeros(8, np.int32), np.ones(512, np.float32), np.zeros(128, np.float32)]
    found = launch(KERNEL, "k", (2,), (64,), *buffers, np.int32(n), schedule=schedule, footprints=True)
    words = np.arange(3 * n) % 3 < 2
    assert touched(found, 0).keys() == {READ} and touched(found, 1).keys() == {READ}
    assert np.array_equal(touched(found, 0)[READ], np.repeat(words, 4)[: 3 * n * 4 - 4])
    assert touched(found, 1)[READ].all() and len(touched(found, 1)[READ]) == 2 * n
    assert {kind: flags.sum() for kind, flags in touched(found, 2).items()} == {WRITE: 16 * n}
    assert touched(found, 3).keys() == {STRONG_WRITE}
    assert np.array_equal(np.nonzero(touched(found, 3)[STRONG_WRITE])[0], [*range(4, 8), *range(12, 16)])
    assert touched(found, 4)[READ].all() and len(touched(found, 4)[READ]) == 2048
    assert {kind: flags.sum() for kind, flags in touched(found, 5).items()} == {READ: 512, WRITE: 512}


def test_reads_far_apart_and_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
    __device__ float sum(float4 v) { return v.x + v.y + v.z + v.w; }
    extern "C" __global__ void k(const float4* a, const float4* b, const char* c, float* d, int n) {
      int i = blockIdx.x * 64 + threadIdx.x;
      if (i < n) d[i] = sum(a[9 * i + 1]) + sum(b[2 * i]) + c[1000 * i + 7];
    }"""
    n = 120
    buffers = [np.ones((1200, 4), np.float32), np.ones((256, 4), np.float32), np.ones(130_000, np.int8)]
    buffers += [np.zeros(128, np.float32)]
    found = launch(source, "k", (2,), (64,), *buffers, np.int32(n), footprints=True)
    lanes, vector = np.arange(n)[:, None], np.arange(16)
    for number, wanted in enumerate((144 * lanes + 16 + vector, 32 * lanes + vector, 1000 * lanes + 7)):
        assert np.array_equal(np.nonzero(touched(found, number)[READ])[0], wanted.ravel())
    monkeypatch.setattr(touches, "_MOST", 10_000)
    found = launch(source, "k", (2,), (64,), *buffers, np.int32(n), footprints=True)
    assert len(found.footprints) == 2  # what is larger is not kept


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    source = 'extern "C" __global__ void k(const float* a, float* b) { b[threadIdx.x] = a[threadIdx.x]; }'
    a, b = np.ones(32, np.float32), np.zeros(32, np.float32)
    assert not launch(source, "k", (1,), (32,), a, b).footprints
    assert len(launch(source, "k", (1,), (32,), a, b, footprints=True).footprints) == 2


def test_what_is_strong_in_a_block_only_is_plain_to_another_launch() -> None:
    source = """extern "C" __global__ void k(int* a, int* b) {
      atomicAdd_block(a + threadIdx.x, 1);
      if (*(volatile int*)b) a[40] = 1;
    }"""
    found = launch(source, "k", (1,), (32,), np.zeros(64, np.int32), np.zeros(4, np.int32), footprints=True)
    assert {kind: flags.sum() for kind, flags in touched(found, 0).items()} == {WRITE: 128}
    assert {kind: flags.sum() for kind, flags in touched(found, 1).items()} == {STRONG_READ: 4}


def test_bulk_copies_read_and_write() -> None:
    body = """const float* a, float* c {
      __shared__ __align__(128) float s[64];
      __shared__ u64 bar[1];
      if (threadIdx.x == 0) { init(bar, 1); fence_init(); }
      __syncthreads();
      if (threadIdx.x == 0) { expect(bar, 256); load(s, a + 32, 256, bar); }
      wait(bar, 0);
      fence_async();
      __syncthreads();
      if (threadIdx.x == 0) { store(c + 16, s, 256); wait_all(); }
    }"""
    found = run(body, np.ones(128, np.float32), np.zeros(128, np.float32), block=32, footprints=True)
    assert not found.findings
    (read, written) = (touched(found, i) for i in range(2))
    assert np.array_equal(np.nonzero(read[READ])[0], np.arange(128, 384))
    assert np.array_equal(np.nonzero(written[WRITE])[0], np.arange(64, 320))


def test_one_thread_may_wait_for_its_block() -> None:
    source = """extern "C" __global__ void k(const float* a, float* b) {
      float early = threadIdx.x < 32 ? a[threadIdx.x] : 0;
      if (threadIdx.x == 5) asm volatile("griddepcontrol.wait;" ::: "memory");
      __syncthreads();
      b[threadIdx.x] = early + a[128 + threadIdx.x];
    }"""
    buffers = [np.ones(256, np.float32), np.zeros(64, np.float32)]
    found = launch(source, "k", (1,), (64,), *buffers, footprints=True)
    (early,) = found.early.values()
    assert {kind: some.tolist() for kind, some in early.items()} == {READ: [[0, 128]]}


@pytest.mark.parametrize("split", [False, True])
def test_what_is_accessed_before_the_launch_before_has_ended(split: bool) -> None:
    source = """extern "C" __global__ void k(const float* a, float* b, int* d) {
      int i = blockIdx.x * 64 + threadIdx.x;
      float early = a[i];
      if (i < 64 || !SPLIT) asm volatile("griddepcontrol.wait;" ::: "memory");
      b[i] = early + a[128 + i];
      if (i == 70) atomicAdd(d, 1);
    }""".replace("SPLIT", str(int(split)))
    buffers = [np.ones(256, np.float32), np.zeros(128, np.float32), np.zeros(4, np.int32)]
    found = launch(source, "k", (2,), (64,), *buffers, footprints=True)
    whole = sorted(found.footprints)
    early = {
        whole.index(start): {kind: some.tolist() for kind, some in one.items()}
        for start, one in found.early.items()
    }
    if split:  # the second block does not wait
        assert early == {
            0: {READ: [[0, 512], [768, 1024]]},
            1: {WRITE: [[256, 512]]},
            2: {STRONG_WRITE: [[0, 4]]},
        }
    else:
        assert early == {0: {READ: [[0, 512]]}}
    without = launch(source.replace("griddepcontrol.wait;", ""), "k", (2,), (64,), *buffers, footprints=True)
    assert without.early == without.footprints


def test_bulk_copies_before_the_launch_before_has_ended() -> None:
    """The first block waits between two loads, the second does not wait; all of the buffers is copied."""
    body = """const float* a, const float* b, float* c {
      __shared__ __align__(128) float s[128];
      __shared__ u64 bar[1];
      if (threadIdx.x == 0) { init(bar, 1); fence_init(); }
      __syncthreads();
      if (threadIdx.x == 0) {
        expect(bar, 512);
        load(s, a + 64 * blockIdx.x, 256, bar);
        if (blockIdx.x == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
        load(s + 64, b + 64 * blockIdx.x, 256, bar);
      }
      wait(bar, 0);
      fence_async();
      __syncthreads();
      if (threadIdx.x == 0) { store(c + 128 * blockIdx.x, s, 512); wait_all(); }
    }"""
    buffers = [np.ones(128, np.float32), np.ones(128, np.float32), np.zeros(256, np.float32)]
    found = run(body, *buffers, block=32, grid=2, footprints=True)
    assert not found.findings
    starts = sorted(found.footprints)
    whole = [{kind: some.tolist() for kind, some in found.footprints[start].items()} for start in starts]
    assert whole == [{READ: [[0, 512]]}, {READ: [[0, 512]]}, {WRITE: [[0, 1024]]}]
    early = [{kind: some.tolist() for kind, some in found.early[start].items()} for start in starts]
    assert early == [{READ: [[0, 512]]}, {READ: [[256, 512]]}, {WRITE: [[512, 1024]]}]


def test_runs() -> None:
    for number in range(256):
        flags = np.array([number >> bit & 1 for bit in range(8)], np.bool_)
        again = np.zeros(8, np.bool_)
        found = runs(flags)
        for first, end in found:
            assert first < end and not again[max(first - 1, 0) : end].any()
            again[first:end] = True
        assert np.array_equal(flags, again)
    assert runs(np.zeros(0, np.bool_)).shape == (0, 2)
