// A merge of two sorted lists by paths, written for this test.
__device__ int path(const int* a, int na, const int* b, int nb, int diag)
{
    int lo = max(0, diag - nb), hi = min(diag, na);
    while (lo < hi) { int mid = (lo + hi) >> 1; if (a[mid] <= b[diag - 1 - mid]) lo = mid + 1; else hi = mid; }
    return lo;
}
__global__ void merge_sorted(const int* a, int na, const int* b, int nb, int* out)
{
    const int ITEMS = 8;
    int diag = (blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
    if (diag >= na + nb) return;
    int i = path(a, na, b, nb, diag), j = diag - i;
    for (int k = 0; k < ITEMS && diag + k < na + nb; ++k) out[diag + k] = j >= nb || (i < na && a[i] <= b[j]) ? a[i++] : b[j++];
}
