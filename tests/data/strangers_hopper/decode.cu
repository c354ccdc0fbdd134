// Decoding with split keys, FlashDecoding-like: bulk copies of rows, prefetch to L2, then a kernel that combines
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda/barrier>
#include <cfloat>

#define HEAD_DIM 64
#define PAGE 32
#define WARPS 4

__device__ __forceinline__ uint32_t to_shared(const void *ptr) { return static_cast<uint32_t>(__cvta_generic_to_shared(ptr)); }

__device__ __forceinline__ void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to_shared(dst)), "l"(src), "r"(bytes), "r"(to_shared(bar)) : "memory");
}

__global__ void __launch_bounds__(WARPS * 32)
decode_split(float *__restrict__ part, float *__restrict__ part_max, float *__restrict__ part_sum, const half *__restrict__ q,
             const half *__restrict__ k, const half *__restrict__ v, int heads, int length, float scale)
{
    __shared__ alignas(16) half keys[2][PAGE * HEAD_DIM], vals[2][PAGE * HEAD_DIM];
    __shared__ float probs[PAGE], query[HEAD_DIM];
    __shared__ alignas(8) uint64_t bar[2];
    const int head = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
    const int pages = length / PAGE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const half *kh = k + (size_t)head * length * HEAD_DIM, *vh = v + (size_t)head * length * HEAD_DIM;
    if (threadIdx.x == 0)
    {
        for (int i = 0; i < 2; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(to_shared(&bar[i])));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < HEAD_DIM) query[threadIdx.x] = __half2float(q[head * HEAD_DIM + threadIdx.x]) * scale;
    __syncthreads();

    auto issue = [&](int page, int slot) {
        const uint32_t bytes = PAGE * HEAD_DIM * sizeof(half);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(to_shared(&bar[slot])), "r"(2 * bytes) : "memory");
        bulk_load(keys[slot], kh + (size_t)page * PAGE * HEAD_DIM, bytes, &bar[slot]);
        bulk_load(vals[slot], vh + (size_t)page * PAGE * HEAD_DIM, bytes, &bar[slot]);
        if (page + splits < pages)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(kh + (size_t)(page + splits) * PAGE * HEAD_DIM), "r"(bytes) : "memory");
    };
    float acc = 0.f, most = -FLT_MAX, sum = 0.f;
    if (threadIdx.x == 0 && split < pages) issue(split, 0);
    int it = 0;
    for (int page = split; page < pages; page += splits, ++it)
    {
        const int slot = it & 1;
        if (threadIdx.x == 0 && page + splits < pages) issue(page + splits, slot ^ 1);
        asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN;\n}" ::"r"(to_shared(&bar[slot])), "r"((it >> 1) & 1) : "memory");
        for (int r = warp; r < PAGE; r += WARPS)
        {
            float dot = query[lane] * __half2float(keys[slot][r * HEAD_DIM + lane]) + query[lane + 32] * __half2float(keys[slot][r * HEAD_DIM + lane + 32]);
            for (int d = 16; d; d >>= 1) dot += __shfl_down_sync(0xffffffffu, dot, d);
            if (lane == 0) probs[r] = dot;
        }
        __syncthreads();
        float page_max = probs[lane];
        for (int d = 16; d; d >>= 1) page_max = fmaxf(page_max, __shfl_xor_sync(0xffffffffu, page_max, d));
        const float next = fmaxf(most, page_max), factor = __expf(most - next);
        most = next;
        sum *= factor;
        acc *= factor;
        for (int r = 0; r < PAGE; ++r)
        {
            const float p = __expf(probs[r] - most);
            sum += p;
            if (threadIdx.x < HEAD_DIM) acc += p * __half2float(vals[slot][r * HEAD_DIM + threadIdx.x]);
        }
        __syncthreads();
    }
    const size_t at = (size_t)split * heads + head;
    if (threadIdx.x < HEAD_DIM) part[at * HEAD_DIM + threadIdx.x] = acc;
    if (threadIdx.x == 0)
    {
        part_max[at] = most;
        part_sum[at] = sum;
    }
}

__global__ void combine(half *__restrict__ out, const float *__restrict__ part, const float *__restrict__ part_max, const float *__restrict__ part_sum, int heads, int splits)
{
    const int head = blockIdx.x, d = threadIdx.x;
    float most = -FLT_MAX;
    for (int s = 0; s < splits; ++s) most = fmaxf(most, part_max[s * heads + head]);
    float sum = 0.f, acc = 0.f;
    for (int s = 0; s < splits; ++s)
    {
        const float f = __expf(part_max[s * heads + head] - most);
        sum += f * part_sum[s * heads + head];
        acc += f * part[((size_t)s * heads + head) * HEAD_DIM + d];
    }
    out[head * HEAD_DIM + d] = __float2half(acc / sum);
}

torch::Tensor decode(torch::Tensor q, torch::Tensor k, torch::Tensor v, int64_t splits)
{
    TORCH_CHECK(q.is_cuda() && q.scalar_type() == torch::kHalf, "q");
    const int heads = q.size(0), length = k.size(1);
    auto out = torch::empty_like(q);
    auto opts = q.options().dtype(torch::kFloat);
    auto part = torch::empty({splits, heads, HEAD_DIM}, opts);
    auto part_max = torch::empty({splits, heads}, opts), part_sum = torch::empty({splits, heads}, opts);
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    dim3 grid(heads, splits);
    decode_split<<<grid, WARPS * 32, 0, stream>>>(part.data_ptr<float>(), part_max.data_ptr<float>(), part_sum.data_ptr<float>(),
        reinterpret_cast<const half *>(q.data_ptr<at::Half>()), reinterpret_cast<const half *>(k.data_ptr<at::Half>()),
        reinterpret_cast<const half *>(v.data_ptr<at::Half>()), heads, length, 1.f / sqrtf(HEAD_DIM));
    combine<<<heads, HEAD_DIM, 0, stream>>>(reinterpret_cast<half *>(out.data_ptr<at::Half>()), part.data_ptr<float>(), part_max.data_ptr<float>(), part_sum.data_ptr<float>(), heads, splits);
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("decode", &decode); }
