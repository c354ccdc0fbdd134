"""What programs call beside CUDA's runtime as it is now: cuBLAS, older functions, shared host memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BuildError
from harness.programs import run_program
from shared.nvcc import kinds, needs_nvcc, ran

pytestmark = [needs_nvcc, pytest.mark.slow]

# The declarations are cuBLAS's, whose headers are not there.
BLAS = """
#include <cmath>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
extern "C" {
int cublasCreate_v2(void**);
int cublasDestroy_v2(void*);
typedef const float* In;
typedef const void* Any;
int cublasSgemm_v2(void*, int, int, int, int, int, In, In, int, In, int, In, float*, int);
int cublasGemmEx(void*, int, int, int, int, int, Any, Any, int, int, Any, int, int, Any, void*, int, int, int,
                 int);
int cublasSgemv_v2(void*, int, int, int, In, In, int, In, int, In, float*, int);
int cublasSdot_v2(void*, int, In, int, In, int, float*);
int cublasSaxpy_v2(void*, int, In, In, int, float*, int);
int cublasStrsm_v2(void*);
int cublasSetMathMode(void*, int), cublasGetMathMode(void*, int*);
}
__global__ void narrow(__nv_bfloat16* to, const float* from) { to[threadIdx.x] = from[threadIdx.x]; }

int main(int argc, char** argv)
{
    int fault = argc > 1 ? atoi(argv[1]) : 0, wrong = 0;
    const int m = 4, n = 3, k = 5;
    float a[m * k], b[k * n], c[m * n], back[m * n], *d[3], alpha = 2, beta = 1, zero = 0, found;
    for (int i = 0; i < m * k; ++i) a[i] = i % 7 - 2;
    for (int i = 0; i < k * n; ++i) b[i] = i % 5 - 1;
    for (int i = 0; i < m * n; ++i) c[i] = i;
    for (auto& one : d) cudaMalloc(&one, 20 * 4);
    cudaMemcpy(d[0], a, sizeof a, cudaMemcpyHostToDevice);
    cudaMemcpy(d[1], b, sizeof b, cudaMemcpyHostToDevice);
    cudaMemcpy(d[2], c, sizeof c, cudaMemcpyHostToDevice);
    void* blas;
    cublasCreate_v2(&blas);
    int mode = 0;
    if (cublasSetMathMode(blas, 3) || cublasGetMathMode(blas, &mode) || mode != 3) return 98;
    if (cublasCreate_v2(&blas) || cublasGetMathMode(blas, &mode) || mode) return 97;
    if (cublasCreate_v2(nullptr) != 7 || cublasGetMathMode(blas, nullptr) != 7) return 96;
    // A is not transposed, B is: it lies row by row.
    cublasSgemm_v2(blas, 0, 1, m, n, k, &alpha, d[0], fault == 1 ? 6 : m, d[1], n, &beta, d[2], m);
    cudaMemcpy(back, d[2], sizeof back, cudaMemcpyDeviceToHost);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int x = 0; x < k; ++x) sum += a[i + x * m] * b[j + x * n];
            wrong += back[i + j * m] != 2 * sum + c[i + j * m];
        }
    __nv_bfloat16* half;
    cudaMalloc(&half, 40);
    narrow<<<1, 20>>>(half, d[0]);
    int bf16 = 14, f32 = 0;
    cublasGemmEx(blas, 1, 0, k, k, m, &alpha, half, bf16, m, half, bf16, m, &zero, d[2], f32, k, 68, 0);
    cublasGemmEx(blas, 1, 0, 2, 2, m, &alpha, half, bf16, m, half, bf16, m, &zero, d[2], f32, 2, 68, 0);
    cudaMemcpy(back, d[2], 16, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 4; ++i) {
        float sum = 0;
        for (int x = 0; x < m; ++x) sum += a[x + (i & 1) * m] * a[x + (i >> 1) * m];
        wrong += back[i] != 2 * sum;
    }
    cublasSgemv_v2(blas, 0, m, k, &alpha, d[0], m, d[1], 1, &zero, d[2], 1);
    cublasSaxpy_v2(blas, m, &alpha, d[0], 1, d[2], 1);
    cublasSdot_v2(blas, m, d[2], 1, d[0], 2, &found);
    float want = 0;
    for (int i = 0; i < m; ++i) {
        float sum = 0;
        for (int x = 0; x < k; ++x) sum += a[i + x * m] * b[x];
        want += (2 * sum + 2 * a[i]) * a[2 * i];
    }
    if (fault == 2 && !cublasStrsm_v2(blas)) return 99;
    cublasDestroy_v2(blas);
    return wrong + (fabs(found - want) > 1e-3);
}
"""

OLDER = """
#include <cstdlib>
#include <cuda_profiler_api.h>
__device__ int* kept;
__global__ void take() { kept = new int[4]; for (int i = 0; i < 4; ++i) kept[i] = i; }
__global__ void give(int* to, int many)
{
    for (int i = 0; i < many; ++i) to[i] += kept[i];
    if (many == 4) delete[] kept;
}

int main(int argc, char** argv)
{
    struct cudaDeviceProp is;
    cudaGetDeviceProperties(&is, 0);
    int *shared = (int*)malloc(64), *seen, *managed, fault = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 0; i < 16; ++i) shared[i] = 10 * i;
    cudaProfilerStart();
    if (fault != 1) cudaHostRegister(shared, 64, cudaHostRegisterMapped);
    cudaHostGetDevicePointer((void**)&seen, shared, 0);
    cudaMallocManaged(&managed, 64);
    cudaMemAdvise(managed, 64, cudaMemAdviseSetReadMostly, 0);
    cudaMemPrefetchAsync(managed, 64, 0);
    take<<<1, 1>>>();
    give<<<1, 1>>>(fault == 1 ? managed : seen, fault == 2 ? 5 : 4);
    cudaThreadSynchronize();
    cudaMemPool_t pool;
    int* pooled;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    cudaMallocFromPoolAsync((void**)&pooled, 64, pool, 0);
    cudaFreeAsync(pooled, 0);
    return (shared[3] != 33) + (is.clockRate <= 0);
}
"""


def test_cublas_computes_what_it_should(tmp_path: Path) -> None:
    run = ran(tmp_path, BLAS)
    assert run.code == 0 and kinds(run) == set() and not run.refusals
    (misuse,) = run.misuses  # the one that is past its memory
    assert "C takes 100 bytes of" in misuse.what
    assert "d[2], f32, k, 68" in BLAS.splitlines()[misuse.place.line - 1]


def test_cublas_with_a_wrong_leading_dimension_is_told(tmp_path: Path) -> None:
    run = ran(tmp_path, BLAS, "1")
    assert any("A takes" in event.what for event in run.misuses), run.misuses
    assert run.code != 0


def test_a_function_that_nobody_has_is_refused_when_it_is_called(tmp_path: Path) -> None:
    run = ran(tmp_path, BLAS, "2")
    assert [event.what for event in run.refusals] == ["cublasStrsm_v2 is not emulated"]
    assert run.code == 0


def test_sources_from_before_cuda_13_and_memory_of_malloc(tmp_path: Path) -> None:
    run = ran(tmp_path, OLDER)
    assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())


def test_host_memory_that_is_not_registered_is_told(tmp_path: Path) -> None:
    run = ran(tmp_path, OLDER, "1")
    assert any("neither page-locked nor registered" in event.what for event in run.misuses)


def test_what_malloc_gave_in_an_earlier_launch_is_known(tmp_path: Path) -> None:
    run = ran(tmp_path, OLDER, "2")
    assert kinds(run) == {"uninitialised read"}


def test_a_default_stream_of_each_thread(tmp_path: Path) -> None:
    source = tmp_path / "threads.cu"
    source.write_text(
        "__global__ void set(int* to) { to[threadIdx.x] = 7; }\n"
        "int main(int argc, char**)\n{\n    int *d, host[32];\n    cudaMalloc(&d, sizeof host);\n"
        "    set<<<1, argc > 1 ? 33 : 32>>>(d);\n"
        "    cudaMemcpyAsync(host, d, sizeof host, cudaMemcpyDeviceToHost, 0);\n"
        "    cudaStreamSynchronize(0);\n    return host[31] - 7;\n}\n"
    )
    flags = ["--default-stream", "per-thread"]
    run = run_program([source], flags=flags, quiet=True)
    assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())
    assert kinds(run_program([source], ["more"], flags=flags, quiet=True)) == {"out of bounds"}


def test_headers_of_the_repository_are_found(tmp_path: Path) -> None:
    (tmp_path / "tools" / "include").mkdir(parents=True)
    (tmp_path / "tools" / "include" / "doubled.h").write_text(
        "__device__ inline int doubled(int i) { return 2 * i; }\n"
    )
    (tmp_path / "msvc").mkdir()  # the system's header is taken
    (tmp_path / "msvc" / "unistd.h").write_text("#error only for another compiler\n")
    source = tmp_path / "programs" / "one.cu"
    source.parent.mkdir()
    source.write_text(
        '#include <unistd.h>\n#include "doubled.h"\n'
        "__global__ void set(int* to) { to[threadIdx.x] = doubled(threadIdx.x); }\n"
        "int main()\n{\n    int *d, host[32];\n    cudaMalloc(&d, sizeof host);\n    set<<<1, 32>>>(d);\n"
        "    cudaMemcpy(host, d, sizeof host, cudaMemcpyDeviceToHost);\n    return host[31] - 62;\n}\n"
    )
    with pytest.raises(BuildError, match="does not compile"):  # nothing says that it is one
        run_program([source], quiet=True)
    (tmp_path / ".git").mkdir()
    run = run_program([source], quiet=True)
    assert (run.code, kinds(run)) == (0, set())
