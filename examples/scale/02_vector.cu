// Four elements a thread, 128 bits at a time
//
// /// kernel
// entry = "scale"
// problem = "scale.py:scale"
// block = 256
// grid = "(N + 1023) // 1024"
// after = "01_simple.cu"
// sass = ["LDG.128", "STG.128"]
// claim = "A quarter of the requests."
// predict = ["global_requests <= 0.3 of 01_simple.cu", "races == 0"]
// ///
__global__ void scale(const float* src, float* dst, int N, float factor)
{
    int i = 4 * (blockIdx.x * 256 + threadIdx.x);
    if (i + 3 < N) {
        float4 v = *(const float4*)(src + i);
        *(float4*)(dst + i) = make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w);
    } else {
        for (; i < N; ++i) dst[i] = factor * src[i];
    }
}
