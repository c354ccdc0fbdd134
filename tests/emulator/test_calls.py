"""Calls by name, by pointer and of oneself; printf, assert and malloc; the addresses of parameters."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Buffer, Emulation, emulate
from harness.errors import EmulatorError, NeedsGpu
from shared.emulator_kernels import launch

THREADS = 64


def values(source: str, *arguments: np.generic, out: int = THREADS) -> tuple[np.ndarray, Emulation]:
    """Run kernel ``k(int* out, ...)`` with 64 threads."""
    result = np.zeros(out, np.int32)
    return result, launch(source, "k", (1,), (THREADS,), result, *arguments)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def test_a_function_gets_structs_and_pointers() -> None:
    found, run = values(
        """struct Three { int x[3]; };
        __device__ __noinline__ int add(int a, Three b, int* p) { *p += 1; return a + b.x[0] + b.x[2]; }
        extern "C" __global__ void k(int* o) {
          int i = threadIdx.x, local[4] = {i, 1, 2, 3}; Three b = {{i, 2, 3}};
          int r = add(i, b, &local[i & 3]); o[i] = r + local[0] * 1000 + local[i & 3] * 100000; }"""
    )
    assert run.findings == ()
    for i in range(THREADS):
        local = [i, 1, 2, 3]
        local[i & 3] += 1
        assert found[i] == 2 * i + 3 + local[0] * 1000 + local[i & 3] * 100000


@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
def test_recursion_keeps_each_call_apart(schedule: str) -> None:
    result = np.zeros(THREADS, np.int32)
    source = """__device__ __noinline__ int fib(int n) {
          int mine[2]; mine[n & 1] = n; mine[1 - (n & 1)] = 7;
          if (n < 2) return n;
          int a = fib(n - 1), b = fib(n - 2); return a + b + mine[n & 1] - n; }
        extern "C" __global__ void k(int* o) { int i = threadIdx.x; o[i] = i % 3 ? fib(i % 9) : -1; }"""
    run = launch(source, "k", (1,), (THREADS,), result, schedule=schedule)
    assert run.findings == ()
    assert result.tolist() == [fibonacci(i % 9) if i % 3 else -1 for i in range(THREADS)]


def test_functions_that_call_each_other() -> None:
    found, run = values(
        """__device__ __noinline__ int odd(int n);
        __device__ __noinline__ int even(int n) { return n ? odd(n - 1) + 2 : 1; }
        __device__ __noinline__ int odd(int n) { return n ? even(n - 1) + 3 : 0; }
        extern "C" __global__ void k(int* o) { o[threadIdx.x] = even(threadIdx.x % 12); }"""
    )

    def even(n: int) -> int:
        return odd(n - 1) + 2 if n else 1

    def odd(n: int) -> int:
        return even(n - 1) + 3 if n else 0

    assert run.findings == ()
    assert found.tolist() == [even(i % 12) for i in range(THREADS)]


def test_function_pointers_and_virtual_functions() -> None:
    found, run = values(
        """typedef int (*Function)(int, int);
        __device__ __noinline__ int add(int a, int b) { return a + b; }
        __device__ __noinline__ int mul(int a, int b) { return a * b; }
        __device__ Function table[2] = {add, mul};
        struct Base { __device__ virtual int go(int x) { return x; } };
        struct Other : Base { __device__ int go(int x) override { return -x; } };
        extern "C" __global__ void k(int* o, int bit) {
          int i = threadIdx.x; Base one; Other two; Base* p = (i & bit) ? &two : &one;
          o[i] = table[i & 1](i, 3) + 1000 * p->go(i); }""",
        np.int32(2),
    )
    assert run.findings == ()
    wanted = [(i * 3 if i & 1 else i + 3) + 1000 * (-i if i & 2 else i) for i in range(THREADS)]
    assert found.tolist() == wanted


def test_a_call_of_no_function_is_found() -> None:
    _, run = values(
        """typedef int (*Function)(int);
        __device__ __noinline__ int twice(int a) { return 2 * a; }
        extern "C" __global__ void k(int* o, unsigned long long where) {
          Function f = threadIdx.x == 5 ? (Function)where : twice;
          o[threadIdx.x] = f(threadIdx.x); }""",
        np.uint64(0xDEAD0),
    )
    assert [f.kind for f in run.findings] == ["bad call"]
    assert run.findings[0].threads[0].x == 5


def test_endless_recursion_ends_with_an_error() -> None:
    with pytest.raises(EmulatorError, match="stack of"):
        values(
            """__device__ __noinline__ int down(int n, int* o) { int a[8]; a[n & 7] = n;
              return down(n + 1, o) + a[o[n & 7] & 7]; }
            extern "C" __global__ void k(int* o) { o[0] = down(threadIdx.x, o); }"""
        )


def test_printf_is_collected_thread_by_thread() -> None:
    _, run = values(
        """extern "C" __device__ int printf(const char*, ...);
        extern "C" __global__ void k(int* o) { int i = threadIdx.x;
          if (i < 2)
            o[i] = printf("%d|%5.2f|%-4s|%c|%llx|%%\\n", -i, i * 1.5, i ? "one" : "no", 'a' + i, 1ull << 40);
        }"""
    )
    assert run.output == "0| 0.00|no  |a|10000000000|%\n-1| 1.50|one |b|10000000000|%\n"
    assert run.findings == ()


ASSERT = """extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
extern "C" __global__ void k(int* o) { int i = threadIdx.x;
  if (i == LANE) __assertfail("i != 3", "dir/file.cu", 42, "k", 1);
  o[i] = 1; }"""


def test_a_failed_assertion_is_a_finding_and_ends_its_thread() -> None:
    found, run = values(ASSERT.replace("LANE", "3"))
    assert [f.kind for f in run.findings] == ["assertion"]
    assert "file.cu:42: assertion `i != 3` failed" in run.findings[0].message
    assert found.tolist() == [int(i != 3) for i in range(THREADS)]
    assert values(ASSERT.replace("LANE", "64"))[1].findings == ()


def test_a_trap_is_a_finding() -> None:
    _, run = values('extern "C" __global__ void k(int* o) { if (threadIdx.x == 9) __trap(); o[0] = 1; }')
    assert "trap" in [f.kind for f in run.findings]


def test_malloc_gives_each_thread_its_own_and_knows_what_was_never_written() -> None:
    source = """extern "C" __global__ void k(int* o) { int i = threadIdx.x;
      int* m = (int*)malloc(8); WRITE; o[i] = m[1]; free(m); }"""
    found, run = values(source.replace("WRITE", "m[1] = i + 7"))
    assert run.findings == ()
    assert found.tolist() == list(range(7, 7 + THREADS))
    _, run = values(source.replace("WRITE", ""))
    assert "uninitialised read" in [f.kind for f in run.findings]


def test_the_address_of_a_parameter() -> None:
    """A struct indexed by a thread's own number is read through the address of the parameter."""
    numbers = np.arange(8, dtype=np.int32) * 11
    found, run = values(
        """struct Eight { int x[8]; };
        extern "C" __global__ void k(int* o, const Eight e) { o[threadIdx.x] = e.x[threadIdx.x & 7]; }""",
        numbers.view("V32")[0],
    )
    assert run.findings == ()
    assert found.tolist() == [11 * (i & 7) for i in range(THREADS)]


def test_system_calls_that_are_not_known_are_refused() -> None:
    ptx = """.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 r) cudaDeviceSynchronize ();
.visible .entry k(.param .u64 o)
{
  .reg .b32 %r<2>;
  { .param .b32 retval0; call.uni (retval0), cudaDeviceSynchronize, (); ld.param.b32 %r1, [retval0]; }
  ret;
}"""
    with pytest.raises(NeedsGpu, match="calls of cudaDeviceSynchronize"):
        emulate(ptx, "k", grid=(1,), block=(1,), arguments=[Buffer(array=np.zeros(1, np.int32), name="o")])


def test_parameters_in_registers() -> None:
    ptx = """.version 8.0
.target sm_90
.address_size 64
.func (.reg .u32 r) twice (.reg .u32 a) { .reg .b32 t; add.u32 t, a, a; mov.u32 r, t; ret; }
.visible .entry k(.param .u64 o)
{
  .reg .b32 %r<4>; .reg .b64 %d<3>; .reg .pred p;
  ld.param.u64 %d1, [o]; mov.u32 %r1, %tid.x; mov.u32 %r2, 5; setp.gt.u32 p, %r1, 2;
  @p call (%r2), twice, (%r1);
  mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r2;
  ret;
}"""
    out = np.zeros(8, np.int32)
    emulate(ptx, "k", grid=(1,), block=(8,), arguments=[Buffer(array=out, name="o")])
    assert out.tolist() == [5, 5, 5, 6, 8, 10, 12, 14]


def test_functions_share_dynamic_shared_memory() -> None:
    found = np.zeros(THREADS, np.int32)
    source = """extern __shared__ int every[];
    __device__ __noinline__ int other(int i) { return every[63 - i]; }
    extern "C" __global__ void k(int* o) { int i = threadIdx.x;
      every[i] = 3 * i; __syncthreads(); o[i] = other(i); }"""
    run = launch(source, "k", (1,), (THREADS,), found, shared=4 * THREADS)
    assert run.findings == ()
    assert found.tolist() == [3 * (63 - i) for i in range(THREADS)]


def test_a_cache_policy_changes_nothing() -> None:
    numbers, out = np.arange(THREADS * 4, dtype=np.int32), np.zeros(THREADS * 4, np.int32)
    source = """extern "C" __global__ void k(const int4* a, int4* o) {
      __shared__ int4 s[64]; int i = threadIdx.x;
      unsigned at = (unsigned)__cvta_generic_to_shared(&s[i]); unsigned long long policy = 0;
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2; cp.async.wait_all;"
        :: "r"(at), "l"(a + i), "l"(policy) : "memory");
      o[i] = s[i]; }"""
    run = launch(source, "k", (1,), (THREADS,), numbers, out)
    assert run.findings == ()
    assert np.array_equal(out, numbers)


@pytest.mark.parametrize(
    ("callee", "said"),
    [
        ("cudaLaunchDeviceV2", r"launches from the device \(cudaLaunchDeviceV2\)"),
        ("elsewhere", "calls of elsewhere, which this PTX only declares"),
    ],
)
def test_what_has_no_body_is_refused_by_name(callee: str, said: str) -> None:
    source = f"""extern "C" __device__ int {callee}(void*, void*);
      extern "C" __global__ void k(int* o) {{ o[0] = {callee}(o, 0); }}"""
    with pytest.raises(NeedsGpu, match=said):
        launch(source, "k", (1,), (32,), np.zeros(4, np.int32))
