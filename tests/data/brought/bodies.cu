// Bodies by tiles with a ragged last one: positions and masses of a tile in shared memory, two blocks of steps
extern "C" __global__ void k(const float4* from, float4* to, float3* speeds, int n, float dt) {
  __shared__ float4 tile[64];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  float4 me = i < n ? from[i] : make_float4(0, 0, 0, 0);
  float3 f = make_float3(0, 0, 0);
  for (int first = 0; first < n; first += 64) {
    if (first + t < n) tile[t] = from[first + t];
    __syncthreads(); // there
    int some = min(64, n - first);
    for (int j = 0; j < some; j++) {
      float x = tile[j].x - me.x, y = tile[j].y - me.y, z = tile[j].z - me.z, r = x * x + y * y + z * z + 1;
      float g = tile[j].w * rsqrtf(r) / r;
      f.x += g * x; f.y += g * y; f.z += g * z;
    }
    __syncthreads(); // used
  }
  if (i < n) {
    float3 v = speeds[i];
    v.x += dt * f.x; v.y += dt * f.y; v.z += dt * f.z;
    speeds[i] = v;
    to[i] = make_float4(me.x + dt * v.x, me.y + dt * v.y, me.z + dt * v.z, me.w);
  }
}
