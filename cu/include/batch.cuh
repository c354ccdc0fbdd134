// Many products in one launch. harness.matmul defines BATCHED for a batch of matrices; without it nothing of this is in the
// machine code. The tiles of all matrices lie along the grid's x, those of a matrix side by side.
#pragma once

#ifndef BATCHED
#define BATCHED 0
#endif

#if BATCHED
#define BATCH_PARAMETERS , long long stride_a, long long stride_b, long long stride_c  // of a kernel, after the bias
#if DERIVATIVE
#define TILE_OF_MATRIX(tiles) \
    (at += blockIdx.x / (tiles) * stride_c, tile_of_matrix(A, B, C, tiles, stride_a, stride_b, stride_c))
#else
#define TILE_OF_MATRIX(tiles) tile_of_matrix(A, B, C, tiles, stride_a, stride_b, stride_c)
#endif
#else
#define BATCH_PARAMETERS
#define TILE_OF_MATRIX(tiles) blockIdx.x
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
