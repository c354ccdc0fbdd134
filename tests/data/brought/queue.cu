// A bounded queue in shared memory with a turn for each slot: warps push what they find and pop what others did
struct Slot { volatile int turn; int item; };
extern "C" __global__ void k(const int* seeds, int* visits, int n, int limit) {
  __shared__ Slot slots[64]; __shared__ int head, tail, open;
  int t = threadIdx.x, lane = t & 31;
  if (t < 64) slots[t].turn = t;
  if (t == 0) { head = 0; tail = 0; open = n; }
  __syncthreads(); // made
  auto push = [&](int item) {
    int at = atomicAdd(&tail, 1);
    while (slots[at & 63].turn != at);
    __threadfence_block(); // free
    slots[at & 63].item = item;
    __threadfence_block(); // put
    slots[at & 63].turn = at + 1;
  };
  if (t == 0) for (int i = 0; i < n; i++) push(seeds[i]);
  __syncwarp();
  if (lane == 0)
    while (atomicAdd(&open, 0) > 0) {
      int at = atomicAdd(&head, 0);
      if (slots[at & 63].turn != at + 1 || atomicCAS(&head, at, at + 1) != at) continue;
      __threadfence_block(); // seen
      int item = slots[at & 63].item;
      __threadfence_block(); // taken
      slots[at & 63].turn = at + 64;
      atomicAdd(&visits[item], 1);
      for (int next = item * 2 + 1; next <= item * 2 + 2; next++)
        if (next < limit) { atomicAdd(&open, 1); push(next); }
      atomicSub(&open, 1);
    }
}
