"""Host code that uses what the device may still be writing: a GPU is not done at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.nvcc import needs_nvcc, ran

pytestmark = [needs_nvcc, pytest.mark.slow]

TEXT = """
#include <cstring>
#include <cstdlib>
#include <cuda_runtime.h>

__managed__ int flag;
__global__ void fill(int* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = i;
}
__global__ void set() { flag = 5; }
__global__ void add(const int* x, int* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}

void* after(void* x) { return static_cast<int*>(x)[1] == 1 ? x : nullptr; }
void CUDART_CB called(void* x) { after(x); }

int main(int, char** argv)
{
    int fault = atoi(argv[1]), n = 1000, copy[1000];
    volatile int sum = 0;
    int *x, *y, *pinned;
    cudaStream_t stream;
    cudaEvent_t event;
    cudaStreamCreate(&stream);
    cudaEventCreate(&event);
    cudaMallocManaged(&x, n * sizeof(int));
    cudaMalloc(&y, n * sizeof(int));
    cudaMallocHost(&pinned, n * sizeof(int));
    for (int i = 0; i < n; ++i) x[i] = -1;
    fill<<<4, 256>>>(x, n);
    if (fault != 1) cudaDeviceSynchronize();
    sum = sum + x[n - 1];  // LINE 1
    fill<<<4, 256, 0, stream>>>(x, n);
    if (fault != 2) cudaStreamSynchronize(stream);
    memcpy(copy, x, sizeof copy);  // LINE 2
    fill<<<4, 256>>>(y, n);
    cudaMemcpyAsync(pinned, y, n * sizeof(int), cudaMemcpyDeviceToHost, stream);
    cudaEventRecord(event, stream);
    if (fault != 3) cudaEventSynchronize(event);
    sum = sum + pinned[7];  // LINE 3
    set<<<1, 1>>>();
    cudaMemcpy(copy, y, sizeof copy, cudaMemcpyDeviceToHost);
    sum = sum + flag;
    cudaMemset(y, 0, n * sizeof(int));
    add<<<4, 256>>>(x, y, n);  // reads x: host code may, too
    sum = sum + x[3];
    fill<<<4, 256, 0, stream>>>(x, n);
    cudaLaunchHostFunc(stream, called, x);
    cudaStreamSynchronize(stream);
    cudaMemcpyAsync(y, pinned, n * sizeof(int), cudaMemcpyHostToDevice, stream);
    sum = sum + pinned[8];
    if (fault != 5) cudaStreamSynchronize(stream);
    pinned[9] = 1;  // LINE 5
    int *big, *parts, *z;  // of which the device has the first half, and host code the second
    cudaMallocHost(&big, 65536);
    cudaMallocManaged(&parts, 65536);
    cudaMalloc(&z, 65536);
    cudaMemcpyAsync(z, big, 32768, cudaMemcpyHostToDevice, stream);
    big[fault == 6 ? 5 : 10000] = 2;  // LINE 6
    cudaStreamSynchronize(stream);
    fill<<<32, 256>>>(parts, 8192);
    parts[fault == 7 ? 5 : 10000] = 2;  // LINE 7
    cudaDeviceSynchronize();
    set<<<1, 1>>>();
    if (fault == 4) exit(flag != 5);  // LINE 4
    return cudaDeviceSynchronize();
}
"""


@pytest.mark.parametrize("fault", range(8))
def test_a_wait_that_is_missing_is_told(fault: int, tmp_path: Path) -> None:
    """With its line, the memory and who writes; results are right all the same, as mostly on a GPU."""
    run = ran(tmp_path, TEXT, str(fault))
    assert run.code == 0 and run.complete and run.failed == bool(fault)
    lines = [TEXT.splitlines()[event.place.line - 1] for event in run.unwaited]
    assert [line.rpartition(" ")[2] for line in lines] == [str(fault)] * bool(fault)
    kernel, copy = "_Z4fillPii may still be writing", "cudaMemcpyAsync may still be"
    told = {
        **{1: f"x, which {kernel}", 2: f"x, which {kernel}", 3: f"pinned, which {copy} writing"},
        **{4: "flag, which _Z3setv may still be writing", 5: f"pinned, which {copy} reading"},
        **{6: f"big, which {copy} reading", 7: f"parts, which {kernel}"},
    }
    assert [event.what for event in run.unwaited] == [f"host code uses {told[f]}" for f in [fault] if f]


def test_memory_of_the_device_still_ends_it(tmp_path: Path) -> None:
    """What waits protects nothing else: an access to memory of the device is the program's own fault."""
    text = TEXT.replace("sum = sum + pinned[7];", "sum = sum + y[7];")
    assert ran(tmp_path, text, "3").code == -11
