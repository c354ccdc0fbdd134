struct Mesh {
    const int* corners;
    const float* colours;
    const float* seen;
    float* picture;
    int triangles, vertices, channels;
    int width, height, layers;
};
__global__ void paint(const Mesh m)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int layer = blockIdx.z;
    if (x >= m.width || y >= m.height || layer >= m.layers) return;
    int at = x + m.width * (y + m.height * layer);
    float* out = m.picture + at * m.channels;
    float near = m.seen[at * 4], far = m.seen[at * 4 + 1];
    int triangle = (int)m.seen[at * 4 + 3] - 1;
    if (triangle < 0 || triangle >= m.triangles) {
        for (int c = 0; c < m.channels; c++) out[c] = 0;
        return;
    }
    int a = m.corners[triangle * 3], b = m.corners[triangle * 3 + 1];
    if (a < 0 || a >= m.vertices || b < 0 || b >= m.vertices) return;
    for (int c = 0; c < m.channels; c++)
        out[c] = near * m.colours[a * m.channels + c] + far * m.colours[b * m.channels + c];
}
