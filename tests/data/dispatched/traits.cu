struct Params { int rows, dim; int x_stride, out_stride; const float* x; float* out; };
template <int kThreads_, int kLog_, typename input_t_>
struct Traits {
    using input_t = input_t_;
    static constexpr int kThreads = kThreads_;
    static constexpr int kLog = kLog_;
    static constexpr int N = 1 << kLog;
};
template <typename Ktraits>
__global__ __launch_bounds__(Ktraits::kThreads)
void butterfly(Params params)
{
    __shared__ float part[Ktraits::N];
    const float* x = params.x + blockIdx.x * params.x_stride;
    float* out = params.out + blockIdx.x * params.out_stride;
    for (int i = threadIdx.x; i < Ktraits::N; i += Ktraits::kThreads) part[i] = i < params.dim ? x[i] : 0;
    for (int d = 1; d < Ktraits::N; d *= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < Ktraits::N / 2; i += Ktraits::kThreads) {
            int a = i / d * 2 * d + i % d;
            float u = part[a], v = part[a + d];
            part[a] = u + v;
            part[a + d] = u - v;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < params.dim; i += Ktraits::kThreads) out[i] = part[i];
}
template <int kThreads, int kLog, typename input_t>
void launch(Params& params, cudaStream_t stream)
{
    using Ktraits = Traits<kThreads, kLog, input_t>;
    dim3 grid(params.rows);
    auto kernel = &butterfly<Ktraits>;
    kernel<<<grid, Ktraits::kThreads, 0, stream>>>(params);
}
template <typename input_t>
void dispatch(Params& params, int log, cudaStream_t stream)
{
    if (log == 5) launch<8, 5, input_t>(params, stream);
    else if (log == 6) launch<32, 6, input_t>(params, stream);
}
template void dispatch<float>(Params& params, int log, cudaStream_t stream);
