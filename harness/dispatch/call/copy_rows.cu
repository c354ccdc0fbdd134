// Copies of matrices whose rows begin anywhere, to rows that begin at multiples of 16 bytes
//
// A thread writes units of 16 bytes. It reads the one or two units that hold its bytes where they are, and shifts them:
// so accesses are of 16 bytes, in line, but of the units in which the matrix begins and ends. A thread asks for all that it
// reads before it writes.
//
// It begins, and the product after it, as those of transpose.cu do.
//
// /// kernel
// entry   = "copy_rows"
// problem = "none"
// block   = "128"
// tile    = ["1"]
// programmatic = 1
//
// [params]
// EACH = [2]
// ///

#include "dependent_launch.cuh"

#define THREADS 128

// Load the 16 bytes at `from`, and zero for those that are not from `begin` to `end`.
__device__ inline uint4 load_unit(const char* from, const char* begin, const char* end)
{
    if (from >= begin && from + 16 <= end) return *(const uint4*)from;
    unsigned word[4] = {};
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        if (from + 2 * i >= begin && from + 2 * i < end)
            word[i / 2] |= (unsigned)*(const unsigned short*)(from + 2 * i) << i % 2 * 16;
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Copy `rows` rows of `width` bytes, a multiple of two. Both pitches are in bytes, to_pitch is a multiple of 16. In `to` rows
// are written in whole units: what is between a row's end and the next multiple of 16 bytes is lost. A thread writes up to EACH units.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_rows(const char* from, char* to, unsigned rows, unsigned width, long long from_pitch, long long to_pitch)
{
    const char* end = from + (rows - 1) * from_pitch + width;
    const unsigned across = (width + 15) / 16, first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    launch_dependents();
    wait_for_prerequisites();  // every thread, before it reads or writes
#endif
    uint4 unit[EACH][2] = {};
    #pragma unroll
    for (unsigned i = 0; i < EACH; ++i) {
        const unsigned at = first + i * THREADS, row = at / across, begin = at % across * 16;
        if (row >= rows) continue;
        const char* source = from + row * from_pitch + begin;
        const unsigned before = (unsigned long long)source % 16;
        unit[i][0] = load_unit(source - before, from, end);
        if (before + min(width - begin, 16) > 16) unit[i][1] = load_unit(source - before + 16, from, end);
    }
    #pragma unroll
    for (unsigned i = 0; i < EACH; ++i) {
        const unsigned at = first + i * THREADS, row = at / across, begin = at % across * 16;
        if (row >= rows) continue;
        const unsigned before = (unsigned long long)(from + row * from_pitch) % 16;
        unsigned word[8] = {unit[i][0].x, unit[i][0].y, unit[i][0].z, unit[i][0].w,
                            unit[i][1].x, unit[i][1].y, unit[i][1].z, unit[i][1].w};
        #pragma unroll
        for (unsigned w = 0; w < 6; ++w) word[w] = before & 8 ? word[w + 2] : word[w];
        #pragma unroll
        for (unsigned w = 0; w < 5; ++w) word[w] = before & 4 ? word[w + 1] : word[w];
        #pragma unroll
        for (unsigned w = 0; w < 4; ++w) word[w] = __funnelshift_r(word[w], word[w + 1], before % 4 * 8);
        *(uint4*)(to + row * to_pitch + begin) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}
