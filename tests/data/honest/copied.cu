// A copy, four elements a thread
//
// /// kernel
// entry = "copy"
// problem = "copy"
// block = 128
// tile  = [512]
// ///

extern "C" __global__ void copy(const float* src, float* dst, long long n)
{
    for (int i = 0; i < 4; ++i) {
        long long at = ((long long)blockIdx.x * 4 + i) * 128 + threadIdx.x;
        if (at < n) dst[at] = src[at];
    }
}
