// Transposed copies of matrices, for kernels that do not read them as they are stored
//
// A block moves a tile through shared memory, so that it reads rows and writes rows, each a line of 128 bytes. Rows
// of shared memory are one word longer than the tile, which keeps its columns free of bank conflicts. A thread asks
// for all its elements before it stores the first, and the tiles are small enough that small matrices have many.
//
// On sm_90 the copy begins under the end of the kernel before it, and the product under the end of the copy. The copy
// waits before it reads, for what it copies may just be made, and before it writes, for the product before may still
// read the last copy. The product waits for the copy only, which is enough: a block of the copy cannot end before its
// own wait has, so with the copy everything before it has ended, too.
//
// /// kernel
// entry   = "transpose"
// problem = "none"
// block   = ["128 // BYTES", 4]
// tile    = ["1"]
// programmatic = 1
//
// [params]
// BYTES = [4, 2]
// ///

#include "dependent_launch.cuh"

#if BYTES == 4
typedef unsigned int Element;
#else
typedef unsigned short Element;
#endif

#define TILE (128 / BYTES)
#define ROWS 4               // of a tile that a block reads at once
#define EACH (TILE / ROWS)   // elements of a thread

// to[j][i] = from[i][j] for `rows` rows and `columns` columns of `from`; pitches are in elements. Tiles lie along x, as
// many as cover a row of `from` before the next row of tiles begins.
extern "C" __global__ void __launch_bounds__(TILE* ROWS)
    transpose(const Element* from, Element* to, int rows, int columns, long long from_pitch, long long to_pitch)
{
    __shared__ Element tile[TILE][TILE + 4 / sizeof(Element)];
    const unsigned across = (columns + TILE - 1u) / TILE;
    const unsigned row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    const unsigned x = threadIdx.x, y = threadIdx.y;
#if __CUDA_ARCH__ >= 900
    launch_dependents();
    wait_for_prerequisites();  // every thread, before it reads or writes
#endif
    Element moved[EACH] = {};
    #pragma unroll
    for (unsigned i = 0; i < EACH; ++i) {
        const unsigned at = y + i * ROWS;
        if (row + at < rows && column + x < columns) moved[i] = from[(row + at) * from_pitch + column + x];
    }
    #pragma unroll
    for (unsigned i = 0; i < EACH; ++i) tile[y + i * ROWS][x] = moved[i];
    __syncthreads();
    #pragma unroll
    for (unsigned i = y; i < TILE; i += ROWS)
        if (column + i < columns && row + x < rows) to[(column + i) * to_pitch + row + x] = tile[x][i];
}
