// An atomic addition a thread
//
// /// kernel
// entry = "reduction"
// problem = "reduction.py:reduction"
// block = 256
// grid = "(N + 255) // 256"
// claim = "Every element is added in global memory, all at the same address."
// predict = ["races == 0"]
// ///
__global__ void reduction(const float* x, float* total, int N)
{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < N) atomicAdd(total, x[i]);
}
