// Defaults by members of a class that another parameter names
#include <cuda_runtime.h>

struct Tile32 {
    using Element = float;
    using Accumulator = double;
    static constexpr int kRows = 8, kThreads = 256;
};

template <class Tile, class Element = typename Tile::Element, class Accumulator = typename Tile::Accumulator,
          int Threads = Tile::kThreads>
__global__ void column_sums(const Element* x, Accumulator* sums, int rows, int cols)
{
    __shared__ Accumulator part[Threads];
    const int col = blockIdx.x * 32 + threadIdx.x % 32;
    Accumulator sum = 0;
    for (int r = threadIdx.x / 32; r < rows; r += Tile::kRows)
        if (col < cols) sum += x[(size_t)r * cols + col];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < 32 && col < cols) {
        for (int r = 1; r < Tile::kRows; r++) sum += part[r * 32 + threadIdx.x];
        sums[col] = sum;
    }
}

void run(const float* x, double* sums, int rows, int cols)
{
    column_sums<Tile32><<<(cols + 31) / 32, 256>>>(x, sums, rows, cols);
}
