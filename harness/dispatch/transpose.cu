// Transposed copies of matrices, for kernels that do not read them as they are stored
//
// A block moves a tile of 64 x 64 elements through shared memory, so that it reads rows and writes rows. Rows
// of shared memory are one word longer than the tile, which keeps its columns free of bank conflicts.
//
// /// kernel
// entry   = "transpose"
// problem = "none"
// block   = [64, 4]
// tile    = ["1"]
//
// [params]
// BYTES = [4, 2]
// ///

#if BYTES == 4
typedef unsigned int Element;
#else
typedef unsigned short Element;
#endif

#define TILE 64
#define ROWS 4  // of a tile that a block reads at once

// to[j][i] = from[i][j] for `rows` rows and `columns` columns of `from`; pitches are in elements. Tiles lie along x, as
// many as cover a row of `from` before the next row of tiles begins.
extern "C" __global__ void __launch_bounds__(TILE* ROWS)
    transpose(const Element* from, Element* to, int rows, int columns, long long from_pitch, long long to_pitch)
{
    __shared__ Element tile[TILE][TILE + 4 / sizeof(Element)];
    const unsigned across = (columns + TILE - 1u) / TILE;
    const unsigned row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    const unsigned x = threadIdx.x, y = threadIdx.y;
    #pragma unroll
    for (unsigned i = y; i < TILE; i += ROWS)
        if (row + i < rows && column + x < columns) tile[i][x] = from[(row + i) * from_pitch + column + x];
    __syncthreads();
    #pragma unroll
    for (unsigned i = y; i < TILE; i += ROWS)
        if (column + i < columns && row + x < rows) to[(column + i) * to_pitch + row + x] = tile[x][i];
}
