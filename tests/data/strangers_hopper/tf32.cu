// tf32 wgmma with 32-byte swizzle, two warpgroups each with its rows, launched by cudaLaunchKernelExC
#include <cuda.h>
#include <cuda_runtime.h>
#include <array>
#include <cstdint>
#include <cstdio>

enum : int { kM = 128, kN = 32, kK = 8, kPipe = 4 };

template <class T, size_t N> using Arr = std::array<T, N>;

__device__ __forceinline__ unsigned s32(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void wait_bar(uint64_t& b, unsigned par)
{
    asm volatile("{\n .reg .pred q;\n again:\n mbarrier.try_wait.parity.shared::cta.b64 q, [%0], %1;\n @!q bra again;\n}" :: "r"(s32(&b)), "r"(par) : "memory");
}

__device__ uint64_t sw32(const float* p)
{
    // rows of 32 bytes, eight of them in 256
    return ((uint64_t)(s32(p) & 0x3FFFF) >> 4) | (1ull << 16) | ((256ull >> 4) << 32) | (3ull << 62);
}

__device__ __forceinline__ void mma_tf32(float (&d)[16], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b));
}

__global__ __launch_bounds__(256) void sgemm_tf32(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, float* C, int ldc, int K, float alpha)
{
    __shared__ alignas(256) float a[kPipe][kM * kK];
    __shared__ alignas(256) float b[kPipe][kN * kK];
    __shared__ uint64_t full[kPipe];
    const int n0 = blockIdx.x * kN, m0 = blockIdx.y * kM, wg = threadIdx.x >> 7;
    const int steps = K / kK;

    auto fetch = [&](int step) {
        const int s = step % kPipe;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(s32(&full[s])), "n"((kM + kN) * kK * 4) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(s32(a[s])), "l"(&A), "r"(step * kK), "r"(m0), "r"(s32(&full[s])) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(s32(b[s])), "l"(&B), "r"(step * kK), "r"(n0), "r"(s32(&full[s])) : "memory");
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < kPipe; s++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(s32(&full[s])));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int s = 0; s < kPipe - 1 && s < steps; s++) fetch(s);
    }
    __syncthreads();
    float d[16] = {};
    for (int step = 0; step < steps; step++) {
        wait_bar(full[step % kPipe], step / kPipe & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        mma_tf32(d, sw32(a[step % kPipe] + wg * 64 * kK), sw32(b[step % kPipe]));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0 && step + kPipe - 1 < steps) fetch(step + kPipe - 1);
    }
    const int row = m0 + wg * 64 + (threadIdx.x % 128) / 32 * 16 + threadIdx.x % 32 / 4;
    for (int j = 0; j < 4; j++) {
        float* at = C + (size_t)row * ldc + n0 + 8 * j + threadIdx.x % 4 * 2;
        at[0] = alpha * d[4 * j];
        at[1] = alpha * d[4 * j + 1];
        at[8 * ldc] = alpha * d[4 * j + 2];
        at[8 * ldc + 1] = alpha * d[4 * j + 3];
    }
}

static CUtensorMap Describe(float* base, uint64_t rows, uint64_t cols, uint32_t boxRows, uint32_t boxCols, CUtensorMapSwizzle swizzle)
{
    CUtensorMap out;
    Arr<uint64_t, 2> dims{cols, rows};
    Arr<uint64_t, 1> strides{cols * sizeof(float)};
    Arr<uint32_t, 2> box{boxCols, boxRows};
    Arr<uint32_t, 2> ones{1, 1};
    cuTensorMapEncodeTiled(&out, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, base, dims.data(), strides.data(), box.data(), ones.data(),
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return out;
}

int main()
{
    int M = 512, N = 256, K = 1024, ldc = N;
    float alpha = 1.0f, *A, *B, *C;
    cudaMalloc((void**)&A, M * K * 4);
    cudaMalloc((void**)&B, N * K * 4);
    cudaMalloc((void**)&C, M * N * 4);
    CUtensorMap mapA = Describe(A, M, K, kM, kK, CU_TENSOR_MAP_SWIZZLE_32B);
    CUtensorMap mapB = Describe(B, N, K, kN, kK, CU_TENSOR_MAP_SWIZZLE_32B);
    cudaLaunchConfig_t config = {dim3(N / kN, M / kM), dim3(256)};
    void* args[] = {&mapA, &mapB, &C, &ldc, &K, &alpha};
    cudaLaunchKernelExC(&config, (const void*)sgemm_tf32, args);
    printf("%d\n", (int)cudaDeviceSynchronize());
}
