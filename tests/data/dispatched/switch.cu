#define SWITCH_WIDTH(width, WIDTH, ...)                 \
    [&] {                                               \
        switch (width) {                                \
        case 32: { constexpr int WIDTH = 32; return __VA_ARGS__(); }  \
        case 64: { constexpr int WIDTH = 64; return __VA_ARGS__(); }  \
        }                                               \
    }()
#define BOOL_SWITCH(COND, NAME, ...)                    \
    [&] {                                               \
        if (COND) { constexpr static bool NAME = true; return __VA_ARGS__(); } \
        else { constexpr static bool NAME = false; return __VA_ARGS__(); } \
    }()
template <typename T, int WIDTH, bool SQUARE>
__global__ void norms(const T* x, T* y, int rows)
{
    __shared__ T part[WIDTH];
    int row = blockIdx.x;
    T v = x[row * WIDTH + threadIdx.x];
    part[threadIdx.x] = SQUARE ? v * v : fabsf(v);
    __syncthreads();
    for (int d = WIDTH / 2; d > 0; d /= 2) {
        if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[row] = part[0];
}
void run(const float* x, float* y, int rows, int width, bool square)
{
    SWITCH_WIDTH(width, WIDTH, [&] {
        BOOL_SWITCH(square, SQUARE, [&] {
            norms<float, WIDTH, SQUARE><<<rows, WIDTH>>>(x, y, rows);
        });
    });
}
