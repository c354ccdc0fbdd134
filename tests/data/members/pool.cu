struct Shape {
    int n, height, width;
    int batch_stride, row_stride;
};
__global__ void pool(const float* __restrict__ in, float* __restrict__ out, Shape s)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int b = blockIdx.z;
    if (x >= s.width || y >= s.height) return;
    float v = in[b * s.batch_stride + y * s.row_stride + x];
    out[(b * s.height + y) * s.width + x] = v > 0 ? v : 0;
}
