"""Each fault that the emulator reports, planted and found with its lines; silence on the right kernels."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Buffer, Emulation, Finding, Index3, Source, emulate
from shared.emulator_kernels import (
    ASYNC,
    FIRST,
    MATMULS,
    NAIVE,
    SECOND,
    SIGNATURE,
    TILED16,
    launch,
    line_of,
    matmul,
)

STORES = ("as[threadIdx.y][threadIdx.x]=", "bs[threadIdx.y][threadIdx.x]=")
PRODUCT = "s+=as[threadIdx.y][k]*bs[k][threadIdx.x]"


def lines(finding: Finding) -> tuple[int, ...]:
    return tuple(source.line for source in finding.sources)


def kinds(run: Emulation) -> set[str]:
    return {finding.kind for finding in run.findings}


def hazards(run: Emulation, kind: str) -> set[tuple[str, tuple[int, ...]]]:
    return {(f.variable, lines(f)) for f in run.findings if f.kind == kind}


@pytest.mark.parametrize("name", MATMULS)
@pytest.mark.parametrize("arch", [pytest.param("compute_80", marks=pytest.mark.slow), "compute_100"])
@pytest.mark.parametrize("schedule", ["lockstep", pytest.param("warp-serial", marks=pytest.mark.slow)])
def test_right_kernels_have_no_findings_and_right_numbers(name: str, arch: str, schedule: str) -> None:
    source, block, tile = MATMULS[name]
    n = 128 if name == "reg128" else 64
    run, c, expected = matmul(source, block, tile, n, arch, schedule=schedule)
    assert run.findings == ()
    assert np.abs(c - expected).max() < 1e-4


@pytest.mark.parametrize("n", [1, 37, 50])
@pytest.mark.parametrize("name", ["naive16", "tiled16", "tiled32"])
def test_right_kernels_on_ragged_shapes(name: str, n: int) -> None:
    run, c, expected = matmul(*MATMULS[name], n)
    assert run.findings == ()
    assert np.abs(c - expected).max() < 1e-4


@pytest.mark.parametrize("n", [40, 64])
def test_no_barrier_before_the_reads(n: int) -> None:
    source = TILED16.replace(FIRST, "\n")
    run, _, _ = matmul(source, (16, 16), 16, n)
    product = line_of(source, PRODUCT)
    wanted = {
        (name, (line_of(source, store), product)) for name, store in zip(("as", "bs"), STORES, strict=True)
    }
    assert kinds(run) == {"RAW hazard"}
    assert hazards(run, "RAW hazard") == wanted


@pytest.mark.parametrize("n", [40, 64])
def test_no_barrier_after_the_reads(n: int) -> None:
    source = TILED16.replace(SECOND, "\n")
    run, c, expected = matmul(source, (16, 16), 16, n)
    product = line_of(source, PRODUCT)
    wanted = {
        (name, (product, line_of(source, store))) for name, store in zip(("as", "bs"), STORES, strict=True)
    }
    assert kinds(run) == {"WAR hazard"}
    assert hazards(run, "WAR hazard") == wanted
    assert np.abs(c - expected).max() < 1e-4  # lock-step hides it from the numbers


def test_no_barriers_at_all_shows_in_the_numbers_of_the_warp_serial_schedule() -> None:
    source = TILED16.replace(FIRST, "\n").replace(SECOND, "\n")
    run, c, expected = matmul(source, (16, 16), 16, 64)
    assert kinds(run) == {"RAW hazard", "WAR hazard"}
    assert np.abs(c - expected).max() < 1e-4
    run, c, expected = matmul(source, (16, 16), 16, 64, schedule="warp-serial")
    assert {"RAW hazard", "WAR hazard"} <= kinds(run)
    assert not np.abs(c - expected).max() < 1


def test_a_hazard_names_element_threads_and_block() -> None:
    source = """extern "C" __global__ void k(float* c) {
      __shared__ float pad[4]; __shared__ float s[64];
      if (threadIdx.x < 4) pad[threadIdx.x] = 0;
      s[threadIdx.x] = threadIdx.x;
      int t = threadIdx.x; c[blockIdx.x*64 + t] = s[t==5 ? 9 : t] + (t<4 ? pad[t] : 0);
    }"""
    run = launch(source, "k", (2,), (64,), np.zeros(128, np.float32))
    (found,) = run.findings
    assert (found.kind, found.variable, lines(found)) == ("RAW hazard", "s", (4, 5))
    assert found.offset == 9 * 4
    assert found.threads == (Index3(9, 0, 0), Index3(5, 0, 0))
    assert found.block == Index3(0, 0, 0)
    assert "s[9]" in found.message


def test_two_threads_that_write_one_element() -> None:
    source = """extern "C" __global__ void k(float* c) {
      __shared__ float s[32];
      s[threadIdx.x / 2] = VALUE;
      __syncthreads();
      c[threadIdx.x] = s[threadIdx.x / 2];
    }"""
    run = launch(source.replace("VALUE", "threadIdx.x"), "k", (1,), (64,), np.zeros(64, np.float32))
    assert [(f.kind, lines(f)) for f in run.findings] == [("WAW hazard", (3, 3))]
    run = launch(source.replace("VALUE", "1.5f"), "k", (1,), (64,), np.zeros(64, np.float32))
    assert run.findings == ()  # all of them write the same


ASYNC_PRODUCT = "s+=as[cur][ty][k]*bs[cur][k][tx]"


@pytest.mark.parametrize("waits", ["", 'asm volatile("cp.async.wait_group 2;\\n" ::);'])
def test_missing_or_weak_cp_async_wait(waits: str) -> None:
    source = ASYNC.replace('asm volatile("cp.async.wait_group 1;\\n" ::);', waits)
    assert source != ASYNC
    run, c, expected = matmul(source, (32, 32), 32, 96)
    found = [f for f in run.findings if f.kind == "missing cp.async wait"]
    assert {f.variable for f in found} == {"as", "bs"}
    assert line_of(source, ASYNC_PRODUCT) in {lines(f)[1] for f in found}
    assert not np.abs(c - expected).max() < 1


def test_cp_async_without_its_barriers() -> None:
    source = ASYNC.replace(SECOND, "\n")
    run, _, _ = matmul(source, (32, 32), 32, 128)
    assert "WAR hazard" in kinds(run)
    source = ASYNC.replace(FIRST, "\n")
    run, _, _ = matmul(source, (32, 32), 32, 128)
    assert "RAW hazard" in kinds(run)


def test_a_barrier_in_both_branches() -> None:
    source = f"""{SIGNATURE} {{
      __shared__ float s[64]; int t=threadIdx.x; s[t]=a[t];
      if(t<40){{
        __syncthreads(); c[t]=s[63-t];
      }} else {{
        c[t+64]=1;
        __syncthreads(); c[t]=2*s[63-t];
      }}
    }}"""
    run, _, _ = matmul(source, (64, 1), 64, 64)
    found = [f for f in run.findings if f.kind == "divergent barrier"]
    assert [lines(f) for f in found] == [(4, 7)]
    assert found[0].threads == (Index3(0, 0, 0),)


@pytest.mark.parametrize("condition", ["t<10", "t<32", "t!=3"])
def test_a_barrier_that_some_threads_never_reach(condition: str) -> None:
    source = f"""{SIGNATURE} {{
      __shared__ float s[64]; int t=threadIdx.x; s[t]=a[t];
      if({condition}){{
        __syncthreads();
        c[t]=s[t];
      }}
    }}"""
    run, _, _ = matmul(source, (64, 1), 64, 64)
    assert [(f.kind, lines(f)) for f in run.findings] == [("divergent barrier", (4,))]


def test_reads_and_writes_past_the_end() -> None:
    source = NAIVE.replace("if(r<n && q<n)", "if(r<=n && q<n)")
    run, _, _ = matmul(source, (16, 16), 16, 37)
    assert kinds(run) == {"out of bounds"}
    found = {(f.variable, lines(f)[0]): f for f in run.findings}
    assert set(found) == {
        ("a", line_of(source, "s+=a[r*n+k]")),
        ("c", line_of(source, "c[r*n+q]=alpha")),
    }
    read = found["a", line_of(source, "s+=a[r*n+k]")]
    assert (read.offset, read.distance) == (37 * 37 * 4, 4)
    assert read.threads[0].y + 16 * read.block.y == 37


def test_a_read_before_the_start() -> None:
    source = f"{SIGNATURE} {{ int t=threadIdx.x; c[t]=a[t-3]; }}"
    run, _, _ = matmul(source, (8, 1), 8, 8)
    (found,) = run.findings
    assert (found.kind, found.variable, found.offset, found.distance) == ("out of bounds", "a", -12, 12)
    assert found.seen == 3


def test_shared_memory_out_of_bounds() -> None:
    source = (
        f"{SIGNATURE} {{ __shared__ float s[8]; int t=threadIdx.x; s[t+n-8]=a[t]; __syncwarp(); c[t]=s[t]; }}"
    )
    run, _, _ = matmul(source, (8, 1), 8, 8)
    assert run.findings == ()
    run, _, _ = matmul(source, (8, 1), 8, 9)
    assert ("out of bounds", "s") in {(f.kind, f.variable) for f in run.findings}


def test_a_misaligned_vector() -> None:
    source = f"{SIGNATURE} {{ *(float4*)(c + 4*threadIdx.x) = *(const float4*)(a + 4*threadIdx.x + SHIFT); }}"
    run, _, _ = matmul(source.replace("SHIFT", "4"), (4, 1), 8, 8)
    assert run.findings == ()
    run, _, _ = matmul(source.replace("SHIFT", "2"), (4, 1), 8, 8)
    (found,) = run.findings
    assert (found.kind, found.variable, found.offset, found.seen) == ("misaligned", "a", 8, 4)


def test_shared_memory_read_before_it_is_written() -> None:
    store = "as[threadIdx.y][threadIdx.x]= (r<n&&t*T+threadIdx.x<n)?a[r*n+t*T+threadIdx.x]:0.f;"
    source = TILED16.replace(
        store, "if(r<n&&t*T+threadIdx.x<n) as[threadIdx.y][threadIdx.x]=a[r*n+t*T+threadIdx.x];"
    )
    assert source != TILED16
    run, _, _ = matmul(source, (16, 16), 16, 37)
    assert {(f.kind, f.variable, lines(f)) for f in run.findings} == {
        ("uninitialised read", "as", (line_of(source, PRODUCT),))
    }


@pytest.mark.parametrize("initialised", [True, False])
def test_global_memory_read_before_it_is_written(initialised: bool) -> None:
    from shared.emulator_kernels import compile_ptx

    n = 20
    a = np.ones((n, n), np.float32)
    c = np.full((n, n), np.nan, np.float32)
    run = emulate(
        compile_ptx(NAIVE),
        "mm",
        grid=(2, 2),
        block=(16, 16),
        arguments=[
            a,
            a.copy(),
            Buffer(array=c, name="C", initialised=initialised),
            np.float32(1),
            np.float32(0),
            np.int32(n),
        ],
    )
    wanted = () if initialised else (("uninitialised read", "C", (line_of(NAIVE, "c[r*n+q]=alpha"),)),)
    assert tuple((f.kind, f.variable, lines(f)) for f in run.findings) == wanted


def test_a_buffer_written_first_may_be_read() -> None:
    source = f"{SIGNATURE} {{ int t=threadIdx.x; c[t]=a[t]; c[t]+=1; volatile float* v=c; c[t+32]=v[t]; }}"
    from shared.emulator_kernels import compile_ptx

    c = np.zeros(64, np.float32)
    a = np.arange(32, dtype=np.float32)
    run = emulate(
        compile_ptx(source),
        "mm",
        grid=(1,),
        block=(32,),
        arguments=[
            a,
            a.copy(),
            Buffer(array=c, name="C", initialised=False),
            np.float32(1),
            np.float32(0),
            np.int32(1),
        ],
    )
    assert run.findings == ()
    assert (c == np.concatenate([a + 1, a + 1])).all()


def test_an_uninitialised_register() -> None:
    ptx = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 c)
{
    .reg .f32 %s, %t;
    .reg .u64 %c;
    ld.param.u64 %c, [c];
    mov.f32 %t, 0f3F800000;
    add.f32 %t, %t, %s;
    st.global.f32 [%c], %t;
    ret;
}
"""
    run = emulate(ptx, "k", grid=(1,), block=(1,), arguments=[np.zeros(1, np.float32)])
    assert [(f.kind, f.variable, f.sources) for f in run.findings] == [
        ("uninitialised read", "%s", (Source(11),))
    ]


REDUCTION = f"""{SIGNATURE} {{
  __shared__ float s[256]; int t=threadIdx.x; float v=0;
  for(int i=blockIdx.x*256+t;i<n*n;i+=gridDim.x*256) v+=a[i];
  s[t]=v; __syncthreads();
  for(int h=128;h>0;h>>=1){{
    if(t<h) s[t]+=s[t+h];
    __syncthreads();
  }}
  if(t==0) c[blockIdx.x]=s[0];
}}
"""


def test_a_reduction_with_and_without_its_barrier() -> None:
    a = np.random.default_rng(1).standard_normal(10000).astype(np.float32)

    def run(source: str) -> tuple[Emulation, np.ndarray]:
        c = np.zeros(4, np.float32)
        scalars = np.float32(0), np.float32(0), np.int32(100)
        return launch(source, "mm", (4,), (256,), a, a.copy(), c, *scalars), c

    right, c = run(REDUCTION)
    assert right.findings == ()
    sums = [a[np.arange(10000) // 256 % 4 == i].sum(dtype=np.float64) for i in range(4)]
    assert np.abs(c - sums).max() < 1e-3
    source = REDUCTION.replace("    __syncthreads();\n", "\n")
    wrong, _ = run(source)
    add = line_of(source, "s[t]+=s[t+h]")
    assert ("s", (add, add)) in hazards(wrong, "RAW hazard")


def race(source: str) -> Emulation:
    """Two blocks of 32 threads."""
    arrays = [np.arange(96, dtype=np.float32) for _ in range(3)]
    return launch(source, "mm", (2,), (32,), *arrays, np.float32(1), np.float32(1), np.int32(1))


def test_blocks_that_write_one_element() -> None:
    source = f"{SIGNATURE} {{ c[threadIdx.x + OFFSET]=a[threadIdx.x]; }}"
    assert race(source.replace("OFFSET", "32*blockIdx.x")).findings == ()
    (found,) = race(source.replace("OFFSET", "31*blockIdx.x")).findings
    assert (found.kind, found.variable, lines(found), found.offset) == ("global race", "c", (1, 1), 31 * 4)


def test_a_block_that_reads_what_another_writes() -> None:
    source = f"{SIGNATURE} {{ int i=32*blockIdx.x+threadIdx.x;\n float v=c[i+OFFSET];\n c[i]=v+1; }}"
    assert race(source.replace("OFFSET", "0")).findings == ()
    run = race(source.replace("OFFSET", "1"))
    assert {(f.kind, f.variable, lines(f)) for f in run.findings} == {
        ("global race", "c", (3, 2)),
        ("WAR hazard", "c", (2, 3)),  # the threads of a block read one another's elements
    }


def test_a_race_that_only_a_later_batch_of_blocks_brings() -> None:
    source = """extern "C" __global__ void k(float* a, float* b) {
      int i = blockIdx.x * 1024 + threadIdx.x;
      b[i] = a[threadIdx.x];
      if (blockIdx.x == 30) a[threadIdx.x] = threadIdx.x;
    }"""
    run = launch(source, "k", (31,), (1024,), np.zeros(1024, np.float32), np.zeros(31 * 1024, np.float32))
    assert [(f.kind, f.variable, lines(f)) for f in run.findings] == [("global race", "a", (4, 3))]


def test_an_atomic_reads_what_it_updates() -> None:
    source = """extern "C" __global__ void k(int* out) {
      __shared__ int sum;
      if (CLEAR && threadIdx.x == 0) sum = 0;
      __syncthreads();
      atomicAdd(&sum, 1);
      __syncthreads();
      out[threadIdx.x] = sum;
    }"""
    out = np.zeros(64, np.int32)
    assert launch(source.replace("CLEAR", "true"), "k", (1,), (64,), out).findings == ()
    run = launch(source.replace("CLEAR", "false"), "k", (1,), (64,), out)
    assert [(f.kind, lines(f)) for f in run.findings] == [("uninitialised read", (5,))]


def test_a_vector_out_of_bounds_writes_no_other_register() -> None:
    source = r"""extern "C" __global__ void k(const float2* a, float* c) {
      float last = 5, y;
      asm volatile("ld.global.v2.f32 {_, %0}, [%1];" : "=f"(y) : "l"(a + 1000));
      c[threadIdx.x] = last + threadIdx.x; c[threadIdx.x + 32] = y;
    }"""
    c = np.zeros(64, np.float32)
    run = launch(source, "k", (1,), (32,), np.zeros(4, np.float32), c)
    assert kinds(run) == {"out of bounds"}
    assert c[:32].tolist() == [5 + t for t in range(32)] and np.isnan(c[32:]).all()


def test_an_atomic_out_of_bounds_has_a_result_and_is_named_after_what_is_near() -> None:
    source = """extern "C" __global__ void k(unsigned* a, unsigned* c) {
      unsigned before = atomicCAS(a + 100000000u + threadIdx.x, 7u, 1u);
      c[threadIdx.x] = before + 1 + atomicExch(a + 200000000u, 2u);
    }"""
    c = np.zeros(32, np.uint32)
    run = launch(source, "k", (1,), (32,), np.zeros(4, np.uint32), c)
    assert kinds(run) == {"out of bounds"}
    assert (c == 2**32 - 1).all()  # -1 + 1 - 1, as loads have it
    assert all("_Z" not in str(finding) and finding.variable in "ab" for finding in run.findings)


CONSTANT = """__constant__ int table[32]; __device__ int open_table[32];
extern "C" __global__ void k(int* a, int where) {
  int* p = where ? table : open_table;
  if (threadIdx.x >= 5) p[threadIdx.x] = a[threadIdx.x];
}"""


def test_a_store_to_constant_memory() -> None:
    for where, expected in ((0, []), (1, [("constant written", "table", 20, 27)])):
        run = launch(CONSTANT, "k", (1,), (32,), np.zeros(32, np.int32), np.int32(where))
        assert [(f.kind, f.variable, f.offset, f.seen) for f in run.findings] == expected
    (found,) = run.findings
    assert found.threads[0].x == 5
    assert "writes to table, which is __constant__, at offset 20" in found.message
