// spheres
#include <cuda_runtime.h>
#include <vector>
struct Sphere { float3 center; float radius; int material; };
struct Material { float3 albedo; float fuzz; int kind; };
#define MAX_SPHERES 32
#define MAX_MATERIALS 8
__constant__ Sphere spheres[MAX_SPHERES];
__constant__ Material materials[MAX_MATERIALS];
__constant__ int num_spheres;
__constant__ unsigned long long seed;
__device__ int hit(float3 o, float3 d) {
  int best = -1; float t = 1e30f;
  for (int i = 0; i < num_spheres; i++) {
    float3 c = spheres[i].center; float b = (c.x - o.x) * d.x + (c.y - o.y) * d.y + (c.z - o.z) * d.z;
    if (b > 0 && b < t && b > spheres[i].radius) { t = b; best = i; }
  }
  return best;
}
__global__ void render(float3* image, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float3 o = make_float3(0, 0, 0), d = make_float3(x / (float)width, y / (float)height, 1);
  int i = hit(o, d);
  float3 c = make_float3(0, 0, (float)(seed % 7));
  if (i >= 0) c = materials[spheres[i].material].albedo;
  image[y * width + x] = c;
}
void draw(float3* image, int w, int h, const std::vector<Sphere>& s, const std::vector<Material>& m) {
  int n = (int)s.size();
  cudaMemcpyToSymbol(spheres, s.data(), n * sizeof(Sphere));
  cudaMemcpyToSymbol(materials, m.data(), m.size() * sizeof(Material));
  cudaMemcpyToSymbol(num_spheres, &n, sizeof(int));
  render<<<dim3((w + 7) / 8, (h + 7) / 8), dim3(8, 8)>>>(image, w, h);
}
