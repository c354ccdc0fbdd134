// A 128-bit fingerprint of a buffer's contents
//
// Each word is mixed with its position by a bijection, so that one changed word always shows. The results are
// added, which gives the same sum in any order of the threads. Two independent mixes give two sums.
//
// /// kernel
// entry   = "fingerprint"
// problem = "none"
// block   = 256
// tile    = ["1"]
// ///

typedef unsigned long long u64;

// splitmix64's and MurmurHash3's finalizers (Steele, Lea, Flood, OOPSLA 2014; Appleby, public domain).
__device__ inline u64 mix(u64 z, u64 a, u64 b, int r, int s, int t)
{
    z = (z ^ (z >> r)) * a;
    z = (z ^ (z >> s)) * b;
    return z ^ (z >> t);
}

// `sums` must hold two zeros before the launch. `data` is aligned to 4 bytes. Bytes beyond the last whole
// word count as one more word, padded with zeros.
extern "C" __global__ void fingerprint(const unsigned* data, u64 bytes, u64* sums)
{
    const u64 words = bytes / 4, step = (u64)gridDim.x * blockDim.x;
    u64 first = 0, second = 0;
    const auto add = [&](u64 i, unsigned word) {
        const u64 z = word ^ (i + 1) * 0x9E3779B97F4A7C15;
        first += mix(z, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31);
        second += mix(z, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 33, 33, 33);
    };
    const u64 self = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 i = self; i < words; i += step) add(i, data[i]);
    if (self == 0 && bytes % 4) {
        unsigned last = 0;
        for (u64 i = bytes; i > 4 * words; --i) last = last << 8 | ((const unsigned char*)data)[i - 1];
        add(words, last);
    }
    for (int down = 16; down; down /= 2) {
        first += __shfl_down_sync(~0u, first, down);
        second += __shfl_down_sync(~0u, second, down);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[0], first);
        atomicAdd(&sums[1], second);
    }
}
