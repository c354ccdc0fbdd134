// Sums by cuda::memcpy_async into two buffers with a cuda::barrier each

#include <cuda/barrier>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const int* in, int* out, int tiles) {
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    extern __shared__ __align__(16) int buf[];
    __shared__ barrier bar[2];
    auto block = cg::this_thread_block();
    if (block.thread_rank() < 2) init(&bar[block.thread_rank()], block.size());
    block.sync();
    int sum = 0;
    cuda::memcpy_async(block, buf, in + (size_t)blockIdx.x * tiles * block.size(),
                       cuda::aligned_size_t<16>(block.size() * 4), bar[0]);
    for (int i = 0; i < tiles; ++i) {
        if (i + 1 < tiles)
            cuda::memcpy_async(block, buf + (i + 1) % 2 * block.size(),
                               in + ((size_t)blockIdx.x * tiles + i + 1) * block.size(),
                               cuda::aligned_size_t<16>(block.size() * 4), bar[(i + 1) % 2]);
        bar[i % 2].arrive_and_wait();
        sum += buf[i % 2 * block.size() + (threadIdx.x + i) % block.size()];
        block.sync();
    }
    out[blockIdx.x * block.size() + threadIdx.x] = sum;
}
