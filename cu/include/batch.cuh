// Many products in one launch. harness.matmul defines BATCHED for a batch of matrices, harness.grouped_matmul GROUPED for
// products of different shapes; without them nothing of this is in the machine code. The tiles of all products lie along
// the grid's x, those of a product side by side. A kernel whose blocks stay on their SM takes them in that order.
//
// Of a batch, tensor maps have three dimensions. The third is 1 for an operand that is the same for all products.
#pragma once

#ifndef BATCHED
#define BATCHED 0
#endif
#ifndef GROUPED
#define GROUPED 0  // else the most products of a launch, a power of two
#endif

#if BATCHED
#define BATCH_PARAMETERS , unsigned batch, long long stride_a, long long stride_b, long long stride_c  // after the bias
#define MATRICES batch
#define TO_MATRIX(matrix, stride) ((matrix) * (stride))  // elements from the first matrix to this one
#define ON_UNITS(stride, size) ((stride) >= 0 && (stride) * (size) % 16 == 0)  // so that matrices can have a map
#define MATRIX_MAP(map, matrix, stride, size) (MatrixMap{map, (stride) ? (int)(matrix) : 0, ON_UNITS(stride, size)})
#if DERIVATIVE
#define TILE_OF_MATRIX(tiles) \
    (at += blockIdx.x / (tiles) * stride_c, tile_of_matrix(A, B, C, tiles, stride_a, stride_b, stride_c))
#else
#define TILE_OF_MATRIX(tiles) tile_of_matrix(A, B, C, tiles, stride_a, stride_b, stride_c)
#endif
#elif GROUPED
// The table is a parameter, so a launch needs no copy to the device, and a captured graph has its own.
struct Product {
    const void *A, *B;
    void* C;
    int M, N, K, lda, ldb, ldc;
};
struct Group {
    Product products[GROUPED];
    unsigned first[GROUPED];  // tile of each product, rising; ~0 behind the last one
};
#define BATCH_PARAMETERS , const __grid_constant__ Group group
#define TILE_OF_MATRIX(tiles) (blockIdx.x - first_tile)
#else
#define BATCH_PARAMETERS
#define TILE_OF_MATRIX(tiles) blockIdx.x
#endif
#if !BATCHED
#define MATRICES 1
#define TO_MATRIX(matrix, stride) 0
#define MATRIX_MAP(map, matrix, stride, size) (map)
#define ON_UNITS(stride, size) true
#endif

// Which matrix a tile of a batch belongs to, and which of its `tiles` it is.
struct TileOfBatch { unsigned matrix, tile; };
__device__ inline TileOfBatch tile_of_batch(unsigned tile, unsigned tiles)
{
    if (!BATCHED) return {0, tile};
    return {tile / tiles, tile % tiles};
}

// Stands before a kernel's first use of its product. The arguments that it replaces hold nothing in a group.
#if GROUPED
#define TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc) \
    const unsigned first_tile = take_product(group, A, B, C, M, N, K, lda, ldb, ldc)
#else
#define TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc)
#endif

// Move A, B and C to the matrices of this block, by strides in elements, and return which of their `tiles` is its own.
template <class In, class Out>
__device__ inline unsigned tile_of_matrix(const In*& A, const In*& B, Out*& C, unsigned tiles, long long stride_a,
                                          long long stride_b, long long stride_c)
{
    const unsigned matrix = blockIdx.x / tiles;
    A += matrix * stride_a, B += matrix * stride_b, C += matrix * stride_c;
    return blockIdx.x % tiles;
}

#if GROUPED
// Return the first tile of the product that this block computes, and set what the kernel knows of a product.
template <class In, class Out>
__device__ inline unsigned take_product(const Group& group, const In*& A, const In*& B, Out*& C, int& M, int& N, int& K,
                                        int& lda, int& ldb, int& ldc)
{
    int found = 0;
    #pragma unroll
    for (int step = GROUPED / 2; step > 0; step /= 2)
        if (group.first[found + step] <= blockIdx.x) found += step;
    const Product& product = group.products[found];
    A = (const In*)product.A, B = (const In*)product.B, C = (Out*)product.C;
    M = product.M, N = product.N, K = product.K;
    lda = product.lda, ldb = product.ldb, ldc = product.ldc;
    return group.first[found];
}
#endif
