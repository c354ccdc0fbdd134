// A mailbox for each warp in shared memory: the first warp fills slots, the others empty them, by volatile turns
extern "C" __global__ void k(const int* x, int* y, int rounds) {
  __shared__ volatile int slots[3][32], full[3];
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  if (t < 3) full[t] = 0;
  __syncthreads(); // empty
  if (w == 0) {
    for (int i = 0; i < rounds * 3; i++) {
      int to = i % 3;
      while (full[to] != 0);
      __threadfence_block(); // free
      slots[to][lane] = x[i * 32 + lane];
      __threadfence_block(); // put
      __syncwarp(); // all
      if (lane == 0) full[to] = 1;
      __syncwarp(); // turn
    }
  } else {
    int sum = 0;
    for (int i = 0; i < rounds; i++) {
      while (full[w - 1] != 1);
      __threadfence_block(); // seen
      sum += slots[w - 1][31 - lane];
      __threadfence_block(); // taken
      __syncwarp(); // done
      if (lane == 0) full[w - 1] = 0;
      __syncwarp(); // next
    }
    y[(w - 1) * 32 + lane] = sum;
  }
}
