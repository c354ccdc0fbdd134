// y = a x + y by cuda::ptx, tile by tile in place

#include <cuda/ptx>
#include <cuda/std/cstdint>
namespace ptx = cuda::ptx;
constexpr int T = 256;
extern "C" __global__ void k(int n, float a, const float* x, float* y) {
    __shared__ alignas(16) float sx[T];
    __shared__ alignas(16) float sy[T];
    __shared__ cuda::std::uint64_t bar;
    const bool leader = threadIdx.x < 32 && ptx::elect_sync(~0u);
    if (leader) {
        ptx::mbarrier_init(&bar, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    unsigned phase = 0;
    for (int tile = blockIdx.x; tile * T < n; tile += gridDim.x) {
        if (leader) {
            ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
            ptx::fence_proxy_async(ptx::space_shared);
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared,
                                           &bar, 2 * T * 4);
            ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, sx, x + tile * T, T * 4,
                               &bar);
            ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, sy, y + tile * T, T * 4,
                               &bar);
        }
        while (!ptx::mbarrier_try_wait_parity(&bar, phase)) {}
        phase ^= 1;
        for (int i = threadIdx.x; i < T; i += blockDim.x) sy[i] = a * sx[i] + sy[i];
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (leader) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y + tile * T, sy, T * 4);
            ptx::cp_async_bulk_commit_group();
        }
    }
    if (leader) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}
