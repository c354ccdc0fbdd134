// Persistent product: the two blocks of a cluster share their columns, half of which each loads for both

#include "hopper.cuh"

PRODUCT_64X64(mma64, "bf16.bf16")
extern "C" __global__ void __cluster_dims__(2, 1, 1)
    k(const __grid_constant__ CUtensorMap ta, const __grid_constant__ CUtensorMap tb, float* c, int n,
      int K, int rows, int columns) {
    extern __shared__ __align__(1024) uint16_t smem[];
    constexpr int ST = 3;
    uint16_t *a = smem, *b = smem + ST * 4096;
    __shared__ __align__(8) uint64_t full[ST], empty[ST];
    const int t = threadIdx.x, w = t / 32, lane = t % 32, rank = cluster_ctarank(), steps = K / 64;
    const int clusters = gridDim.x / 2, total = rows / 2 * columns;
    if (t == 0) {
        for (int i = 0; i < ST; ++i) {
            Barrier::init(full + i, 1);
            Barrier::init(empty + i, 2);  // of both blocks: a copy of either comes to both
        }
        fence_barrier_init();
    }
    cl_arrive();
    cl_wait();
    int i = 0;
    for (int tile = blockIdx.x / 2; tile < total; tile += clusters) {
        const int row = (tile / columns * 2 + rank) * 64, column = tile % columns * 64;
        if (t == 128) {  // a warp of its own loads
            for (int s = 0; s < steps; ++s, ++i) {
                const int q = i % ST;
                Barrier::wait(empty + q, i / ST & 1 ^ 1);
                Barrier::arrive_tx(full + q, 16384);
                tma_load_2d(&ta, full + q, a + q * 4096, s * 64, row);
                tma_load_2d_mc(&tb, full + q, 3, b + q * 4096 + rank * 2048, s * 64, column + rank * 32);
            }
        }
        if (t >= 128) continue;
        float d[32];
        for (int s = 0; s < steps; ++s, ++i) {
            const int q = i % ST;
            Barrier::wait(full + q, i / ST & 1);
            wg_arrive();
            for (int kk = 0; kk < 4; ++kk)
                mma64(d, desc<1, 1024, 1>(a + q * 4096 + kk * 16), desc<1, 1024, 1>(b + q * 4096 + kk * 16),
                      s + kk);
            wg_commit();
            wg_wait<0>();
            if (t < 2) Barrier::arrive_remote(empty + q, t);
        }
        for (int j = 0; j < 16; ++j) {
            float2 pair = {d[2 * j], d[2 * j + 1]};
            int y = row + w * 16 + lane / 4 + j % 2 * 8, x = column + j / 2 * 8 + lane % 4 * 2;
            *(float2*)&c[y * n + x] = pair;
        }
    }
    cl_arrive();  // the other block may still copy to this one, or arrive here
    cl_wait();
}
