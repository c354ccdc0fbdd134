// Min-sum check nodes of a quasi-cyclic code: a block a frame, a thread a row of the lifted check
#define Z 96
__constant__ short shift[4][6];
__global__ void ldpc_check(const signed char* llr, signed char* msg, int frames, int iterations) {
  __shared__ short app[6 * Z];
  int z = threadIdx.x; const signed char* in = llr + blockIdx.x * 6 * Z;
  for (int c = 0; c < 6; c++) app[c * Z + z] = in[c * Z + z];
  short r[4][6] = {};
  __syncthreads();
  for (int it = 0; it < iterations; it++)
    for (int row = 0; row < 4; row++) {
      short q[6]; int least = 127, second = 127, where = 0, sign = 0;
      for (int c = 0; c < 6; c++) {
        q[c] = app[c * Z + (z + shift[row][c]) % Z] - r[row][c];
        int a = abs(q[c]); sign ^= q[c] < 0;
        if (a < least) { second = least; least = a; where = c; } else if (a < second) second = a;
      }
      __syncthreads();
      for (int c = 0; c < 6; c++) {
        int a = c == where ? second : least; short n = (sign ^ (q[c] < 0)) ? -a : a;
        r[row][c] = n; app[c * Z + (z + shift[row][c]) % Z] = q[c] + n;
      }
      __syncthreads();
    }
  for (int c = 0; c < 6; c++) msg[blockIdx.x * 6 * Z + c * Z + z] = app[c * Z + z] < 0;
}
void g(signed char* a, int frames) { ldpc_check<<<frames, Z>>>(a, a, frames, 3); }
