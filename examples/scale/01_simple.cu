// A thread an element
//
// /// kernel
// entry = "scale"
// problem = "scale.py:scale"
// block = 256
// grid = "(N + 255) // 256"
// sass = ["LDG == 1", "STG == 1"]
// claim = "Neighbouring threads use neighbouring elements."
// predict = ["sectors_per_request <= 4", "races == 0"]
// ///
__global__ void scale(const float* src, float* dst, int N, float factor)
{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < N) dst[i] = factor * src[i];
}
