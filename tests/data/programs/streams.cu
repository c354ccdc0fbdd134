// Pairs of programs: each right, and with what orders its work taken away.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#include <cuda_runtime.h>

__global__ void fill(int* x, int n, int v)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = v + i;
}
__global__ void add(const int* x, int* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}
__global__ void scale(const float* in, float* out, int offset, int n)
{
    int i = offset + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < offset + n) out[i] = 2 * in[i];
}
__global__ void stencil(const int* x, int* y, int from, int n, int all)
{
    int i = from + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < from + n) y[i] = (i ? x[i - 1] : 0) + x[i] + (i + 1 < all ? x[i + 1] : 0);
}
__global__ void count(const int* keys, int* bins, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[keys[i] & 15], 1);
}
__global__ void every(char* x, int n, int step, int first)
{
    int i = first + step * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = i;
}
__constant__ int table[16];
__device__ int total;
__global__ void look_up(int* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = table[i & 15];
}
__global__ void sum(const int* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&total, x[i]);
}

const int N = 1000, B = 4, T = 256;
cudaStream_t one, two, three;
cudaEvent_t event, other;

int* ints(int n = N)
{
    int* x;
    cudaMalloc(&x, n * sizeof(int));
    cudaMemset(x, 0, n * sizeof(int));
    cudaDeviceSynchronize();
    return x;
}

void forked(bool broken)  // fork and join by events
{
    int *x = ints(), *y = ints(), *z = ints();
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaEventRecord(event, one);
    if (!broken) cudaStreamWaitEvent(two, event, 0);
    add<<<B, T, 0, one>>>(x, y, N);
    add<<<B, T, 0, two>>>(x, z, N);
    cudaEventRecord(other, two);
    cudaStreamWaitEvent(one, other, 0);
    add<<<B, T, 0, one>>>(y, z, N);
}
void joined(bool broken)
{
    int *x = ints(), *z = ints();
    fill<<<B, T, 0, two>>>(z, N, 1);
    cudaEventRecord(other, two);
    if (!broken) cudaStreamWaitEvent(one, other, 0);
    add<<<B, T, 0, one>>>(x, z, N);
}
void chunks(bool broken)  // of one buffer, a stream each
{
    float *in, *out, *host;
    const int M = 1 << 12, parts = 4, each = M / parts;
    cudaMalloc(&in, M * 4);
    cudaMalloc(&out, M * 4);
    cudaMallocHost(&host, M * 4);
    for (int i = 0; i < M; ++i) host[i] = i;
    cudaStream_t streams[parts];
    for (int i = 0; i < parts; ++i) cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
    for (int i = 0; i < parts; ++i) {
        int at = i * each;
        cudaMemcpyAsync(in + at, host + at, each * 4, cudaMemcpyHostToDevice, streams[i]);
        scale<<<each / T, T, 0, streams[i]>>>(in, out, at, each + (broken && i < 3));
        cudaMemcpyAsync(host + at, out + at, each * 4, cudaMemcpyDeviceToHost, streams[i]);
    }
    if (broken) scale<<<1, T, 0, streams[0]>>>(in, out, each, 1);
    cudaDeviceSynchronize();
    for (int i = 0; i < parts; ++i) cudaStreamDestroy(streams[i]);
}
void halo(bool broken)  // a stencil reads one more than its chunk
{
    int *x = ints(), *y = ints();
    fill<<<2, T, 0, one>>>(x, 500, 1);
    fill<<<2, T, 0, two>>>(x + 500, 500, 1);
    cudaEventRecord(event, one);
    cudaEventRecord(other, two);
    if (!broken) cudaStreamWaitEvent(one, other, 0), cudaStreamWaitEvent(two, event, 0);
    stencil<<<2, T, 0, one>>>(x, y, 0, 500, N);
    stencil<<<2, T, 0, two>>>(x, y, 500, 500, N);
}
void interleaved(bool broken)  // bytes, in turn
{
    char* x;
    cudaMalloc(&x, N);
    every<<<2, T, 0, one>>>(x, N, 2, 0);
    every<<<2, T, 0, two>>>(x, N, 2, broken ? 2 : 1);
}
void legacy(bool broken)  // the default stream waits for blocking streams, and they for it
{
    int *x = ints(), *y = ints();
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, broken ? cudaStreamNonBlocking : cudaStreamDefault);
    fill<<<B, T>>>(x, N, 1);
    add<<<B, T, 0, s>>>(x, y, N);
    add<<<B, T>>>(y, x, N);
    cudaStreamDestroy(s);
}
void between(bool broken)  // the default stream is a barrier of blocking streams
{
    int *x = ints(), *y = ints(), *z = ints();
    fill<<<B, T, 0, one>>>(x, N, 1);
    if (!broken) fill<<<B, T>>>(z, N, 1);
    add<<<B, T, 0, two>>>(x, y, N);
}
void memset_then(bool broken)  // cudaMemset returns before it is done
{
    int *x, *y = ints();
    cudaMalloc(&x, N * 4);
    cudaMemset(x, 0, N * 4);
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (!broken) cudaDeviceSynchronize();
    add<<<B, T, 0, s>>>(x, y, N);
}
void copy_then(bool broken)  // a synchronous copy of the host's waits, one within the device does not
{
    std::vector<int> host(N, 3);
    int *x = ints(), *y = ints();
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (!broken) cudaMemcpy(x, host.data(), N * 4, cudaMemcpyHostToDevice);
    else cudaMemcpy(x, y, N * 4, cudaMemcpyDeviceToDevice);
    add<<<B, T, 0, s>>>(x, y, N);
    cudaStreamSynchronize(s);
}
void stream_wait(bool broken)  // the host waits for the right stream, or another
{
    int *x = ints(), *y = ints();
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaStreamSynchronize(broken ? three : one);
    add<<<B, T, 0, two>>>(x, y, N);
}
void event_wait(bool broken)
{
    int *x = ints(), *y = ints();
    cudaEventRecord(other, one);
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaEventRecord(event, one);
    cudaEventSynchronize(broken ? other : event);
    add<<<B, T, 0, two>>>(x, y, N);
}
void query(bool broken)
{
    int *x = ints(), *y = ints();
    fill<<<B, T, 0, one>>>(x, N, 1);
    if (!broken) while (cudaStreamQuery(one) != cudaSuccess) {}
    add<<<B, T, 0, two>>>(x, y, N);
}
void reused(bool broken)  // an event that is recorded anew: a wait is for the last record before it
{
    int *x = ints(), *y = ints();
    for (int i = 0; i < 3; ++i) {
        fill<<<B, T, 0, one>>>(x, N, i);
        if (!broken || i < 2) cudaEventRecord(event, one);
        cudaStreamWaitEvent(two, event, 0);
        add<<<B, T, 0, two>>>(x, y, N);
        cudaEventRecord(other, two);
        cudaStreamWaitEvent(one, other, 0);
    }
}
void early(bool broken)  // an event that is recorded too early
{
    int *x = ints(), *y = ints();
    if (broken) cudaEventRecord(event, one);
    fill<<<B, T, 0, one>>>(x, N, 1);
    if (!broken) cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event, 0);
    add<<<B, T, 0, two>>>(x, y, N);
}
void buffers(bool broken)  // double buffering: a copy must not overwrite what a kernel still reads
{
    int *host, *x[2], *y = ints();
    cudaMallocHost(&host, 6 * N * 4);
    for (int i = 0; i < 6 * N; ++i) host[i] = i;
    x[0] = ints(), x[1] = ints();
    cudaEvent_t copied[2], used[2];
    for (int i = 0; i < 2; ++i) cudaEventCreate(&copied[i]), cudaEventCreate(&used[i]);
    for (int i = 0; i < 6; ++i) {
        int b = i % 2;
        if (!broken) cudaStreamWaitEvent(one, used[b], 0);
        cudaMemcpyAsync(x[b], host + i * N, N * 4, cudaMemcpyHostToDevice, one);
        cudaEventRecord(copied[b], one);
        cudaStreamWaitEvent(two, copied[b], 0);
        add<<<B, T, 0, two>>>(x[b], y, N);
        cudaEventRecord(used[b], two);
    }
    cudaDeviceSynchronize();
}
void streams_anew(bool broken)  // destroyed and created again
{
    int *x = ints(), *y = ints();
    for (int i = 0; i < 3; ++i) {
        cudaStream_t s;
        cudaStreamCreate(&s);
        fill<<<B, T, 0, s>>>(x, N, i);
        add<<<B, T, 0, s>>>(x, y, N);
        if (!broken) cudaStreamSynchronize(s);
        cudaStreamDestroy(s);
    }
}
void atomics(bool broken)  // what is only updated by atomics does not race
{
    int *keys = ints(), *more = ints(), *bins = ints(16);
    count<<<B, T, 0, one>>>(keys, bins, N);
    count<<<B, T, 0, two>>>(more, bins, N);
    if (broken) fill<<<1, 16, 0, two>>>(bins, 16, 0);
}
void constants(bool broken)
{
    int values[16] = {}, *y = ints();
    look_up<<<B, T, 0, one>>>(y, N);
    cudaMemcpyToSymbolAsync(table, values, sizeof values, 0, cudaMemcpyHostToDevice, broken ? two : one);
}
void variables(bool broken)
{
    int *x = ints(), host;
    sum<<<B, T, 0, one>>>(x, N);
    cudaMemcpyFromSymbolAsync(&host, total, 4, 0, cudaMemcpyDeviceToHost, broken ? two : one);
    cudaStreamSynchronize(one);
}
void freed(bool broken)  // in one stream while another uses it
{
    int *x, *y = ints();
    cudaMallocAsync(&x, N * 4, one);
    cudaMemsetAsync(x, 0, N * 4, one);
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event, 0);
    add<<<B, T, 0, two>>>(x, y, N);
    cudaEventRecord(other, two);
    if (!broken) cudaStreamWaitEvent(one, other, 0);
    cudaFreeAsync(x, one);
}
void allocated(bool broken)  // memory of a stream that another one does not wait for
{
    int* x;
    cudaMallocAsync(&x, N * 4, one);
    cudaEventRecord(event, one);
    if (!broken) cudaStreamWaitEvent(two, event, 0);
    fill<<<B, T, 0, two>>>(x, N, 1);
    cudaStreamSynchronize(two);
    cudaFreeAsync(x, one);
}
void after_free(bool broken)
{
    int *x, *y = ints();
    cudaMallocAsync(&x, N * 4, one);
    fill<<<B, T, 0, one>>>(x, N, 1);
    if (broken) cudaFreeAsync(x, one);
    add<<<B, T, 0, one>>>(x, y, N);
    if (!broken) cudaFreeAsync(x, one);
}
void freed_at_once(bool)  // cudaFree waits for all
{
    int *x = ints(), *y = ints();
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaFree(y);
    add<<<B, T, 0, two>>>(x, ints(), N);
}
cudaGraphExec_t ready;
void captured(bool broken)  // a graph with two branches
{
    int *x = ints(), *y = ints(), *z = ints();
    cudaGraph_t graph;
    cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal);
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event, 0);
    add<<<B, T, 0, one>>>(x, y, N);
    add<<<B, T, 0, two>>>(x, broken ? y : z, N);
    cudaEventRecord(other, two);
    cudaStreamWaitEvent(one, other, 0);
    add<<<B, T, 0, one>>>(y, z, N);
    cudaStreamEndCapture(one, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    for (int i = 0; i < 3; ++i) cudaGraphLaunch(ready, one);
    cudaGraphLaunch(ready, two);  // after the launch before, in another stream
    cudaStreamSynchronize(two);
    cudaGraphExecDestroy(ready);
}
void nodes(bool broken)  // put together by hand
{
    int *x = ints(), *y = ints(), n = N, v = 1;
    cudaGraph_t graph;
    cudaGraphCreate(&graph, 0);
    cudaGraphNode_t first, second;
    void* given[] = {&x, &n, &v};
    void* more[] = {&x, &y, &n};
    cudaKernelNodeParams launch{};
    launch.func = (void*)fill, launch.gridDim = B, launch.blockDim = T, launch.kernelParams = given;
    cudaGraphAddKernelNode(&first, graph, nullptr, 0, &launch);
    launch.func = (void*)add, launch.kernelParams = more;
    cudaGraphAddKernelNode(&second, graph, &first, !broken, &launch);
    cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphLaunch(ready, 0);
    cudaGraphLaunch(ready, 0);
}
void graph_and_stream(bool broken)
{
    int *x = ints(), *y = ints();
    cudaGraph_t graph;
    cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal);
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaStreamEndCapture(one, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphLaunch(ready, one);
    cudaEventRecord(event, one);
    if (!broken) cudaStreamWaitEvent(two, event, 0);
    add<<<B, T, 0, two>>>(x, y, N);
}
void pageable(bool broken)  // is staged: it may be used at once; a copy to it has ended
{
    int *x = ints(), *y = ints();
    std::vector<int> host(N, 1), back(N);
    cudaMemcpyAsync(x, host.data(), N * 4, cudaMemcpyHostToDevice, one);
    host[0] = 5;
    add<<<B, T, 0, one>>>(x, y, N);
    cudaMemcpyAsync(back.data(), y, N * 4, cudaMemcpyDeviceToHost, one);
    if (broken) cudaMemcpyAsync(y, back.data(), N * 4, cudaMemcpyHostToDevice, one);
    add<<<B, T, 0, two>>>(y, x, N);
}
void pinned(bool broken)  // page-locked memory that two streams copy from and to
{
    int *x = ints(), *y = ints(), *host;
    cudaMallocHost(&host, N * 4);
    memset(host, 0, N * 4);
    cudaMemcpyAsync(host, x, N * 4, cudaMemcpyDeviceToHost, one);
    if (!broken) cudaStreamSynchronize(one);
    cudaMemcpyAsync(y, host, N * 4, cudaMemcpyHostToDevice, two);
    cudaDeviceSynchronize();
}
void host_other(bool broken)  // host code that waits for another stream
{
    int* x;
    cudaMallocManaged(&x, N * 4);
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaStreamSynchronize(broken ? two : one);
    printf("%d\n", x[5]);
    cudaDeviceSynchronize();
}
void CUDART_CB called(void* x) { ++*static_cast<int*>(x); }
void host_function(bool broken)  // what comes after it in the stream, comes after it
{
    int *x = ints(), *y = ints(), times = 0;
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaLaunchHostFunc(one, called, &times);
    if (broken) fill<<<B, T, 0, one>>>(x, N, 2);
    else cudaStreamSynchronize(one);
    add<<<B, T, 0, two>>>(x, y, N);
}
void rows(bool broken)  // 2D copies of columns
{
    int *x = ints(32 * 32), *y = ints(32 * 32);
    cudaMemcpy2DAsync(x, 128, y, 128, 64, 32, cudaMemcpyDeviceToDevice, one);
    cudaMemcpy2DAsync(x + 16, 128, y, 128, broken ? 63 : 64, 32, cudaMemcpyDeviceToDevice, two);
    if (broken) cudaMemset2DAsync((char*)x + 60, 128, 0, 8, 32, two);
}
void threads(bool broken)  // of the host, a stream each
{
    int *x = ints(), *y = ints();
    auto work = [&](int i) {
        cudaStream_t s;
        cudaStreamCreate(&s);
        fill<<<2, T, 0, s>>>(x + (broken ? 400 : 500) * i, 500, i);
        if (!broken) cudaStreamSynchronize(s);
    };
    std::thread a(work, 0), b(work, 1);
    a.join(), b.join();
    add<<<B, T, 0, two>>>(x, y, N);
}
void never_recorded(bool broken)
{
    int *x = ints(), *y = ints();
    cudaEvent_t fresh;
    cudaEventCreate(&fresh);
    fill<<<B, T, 0, one>>>(x, N, 1);
    if (!broken) cudaEventRecord(fresh, one);
    cudaStreamWaitEvent(two, fresh, 0);
    add<<<B, T, 0, two>>>(x, y, N);
}
void relay(bool broken)  // through a third stream
{
    int *x = ints(), *y = ints();
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(three, event, 0);
    cudaEventRecord(broken ? event : other, broken ? two : three);
    cudaStreamWaitEvent(two, broken ? event : other, 0);
    add<<<B, T, 0, two>>>(x, y, N);
}
void timing(bool)  // events in the default stream, as samples measure time
{
    int *x = ints(), *host;
    float ms;
    cudaMallocHost(&host, N * 4);
    cudaEventRecord(event, 0);
    fill<<<B, T, 0, one>>>(x, N, 1);
    cudaMemcpyAsync(host, x, N * 4, cudaMemcpyDeviceToHost, one);
    cudaEventRecord(other, 0);
    cudaEventSynchronize(other);
    cudaEventElapsedTime(&ms, event, other);
    printf("%d\n", host[3]);
}
template <bool Late> __global__ void scaled(const int* x, const int* by, int* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, factor = i < n ? by[i] : 0;  // before it waits
    int early = Late && i < n ? x[i] : 0;
    cudaGridDependencySynchronize();
    if (i < n) y[i] = factor * (Late ? early : x[i]);
}
void dependent(bool broken)  // a launch that may begin before the one before it has ended
{
    int *x = ints(), *by = ints(), *y = ints();
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how{};
    how.gridDim = B, how.blockDim = T, how.stream = one, how.attrs = attribute, how.numAttrs = 1;
    for (int i = 0; i < 2; ++i) {
        fill<<<B, T, 0, one>>>(x, N, 1);
        cudaLaunchKernelEx(&how, broken ? scaled<true> : scaled<false>, (const int*)x, (const int*)by, y, N);
    }
}
__global__ void produce(int* x, volatile int* flag, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = i;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *flag = 1;
}
__global__ void consume(const int* x, volatile int* flag, int* y, int n, bool waits)
{
    if (waits && threadIdx.x == 0) while (*flag == 0) {}
    __syncthreads();
    __threadfence();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];
}
void flagged(bool broken)  // kernels of two streams that wait for each other by a flag
{
    int *x = ints(), *y = ints(), *flag = ints(1);
    produce<<<1, T, 0, one>>>(x, flag, N);
    consume<<<1, T, 0, two>>>(x, flag, y, N, !broken);
}
extern "C"  // cuBLAS, whose header is a package of its own
{
int cublasCreate_v2(void**);
int cublasSetStream_v2(void*, cudaStream_t);
int cublasSgemm_v2(void*, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*,
                   float*, int);
int cublasSdot_v2(void*, int, const float*, int, const float*, int, float*);
}
void blas(bool broken)  // works in the stream of its handle, on columns that others do not touch
{
    const int M = 32;
    auto *x = (float*)ints(M * M), *y = (float*)ints(M * M), *z = (float*)ints(M * M);
    float alpha = 1, beta = 0;
    void* handle;
    cublasCreate_v2(&handle);
    cublasSetStream_v2(handle, one);
    fill<<<B, T, 0, broken ? two : one>>>((int*)x, M * M, 1);
    cublasSgemm_v2(handle, 0, 0, M / 2, M, M, &alpha, x, M, y, M, &beta, z, M);  // the upper half of z
    cudaMemset2DAsync(z + M / 2, M * 4, 0, M * 2, M, three);                     // the lower one
}
void dot(bool broken)  // a result in memory of the host has ended; one in memory of the device has not
{
    float *x = (float*)ints(), *y = (float*)ints(), *to = (float*)ints(), found;
    void* handle;
    cublasCreate_v2(&handle);
    cublasSetStream_v2(handle, one);
    cublasSdot_v2(handle, N, x, 1, x, 1, broken ? to : &found);
    fill<<<B, T, 0, two>>>((int*)(broken ? to : y), N, 1);
    cublasSdot_v2(handle, 100, x, 3, x, 2, &found);
}

struct Pair
{
    const char* name;
    void (*run)(bool);
};
const Pair pairs[] = {
#define P(f) {#f, f}
    P(forked), P(joined), P(chunks), P(halo), P(interleaved), P(legacy), P(between), P(memset_then), P(copy_then),
    P(stream_wait), P(event_wait), P(query), P(reused), P(early), P(buffers), P(streams_anew), P(atomics),
    P(constants), P(variables), P(freed), P(allocated), P(after_free), P(captured), P(nodes), P(graph_and_stream),
    P(pageable), P(pinned), P(host_other), P(host_function), P(rows), P(threads), P(never_recorded), P(relay),
    P(dependent), P(flagged), P(blas), P(dot),
};
const Pair right[] = {P(freed_at_once), P(timing)};

int main(int argc, char** argv)
{
    bool broken = argc > 1;
    const char* only = argc > 2 ? argv[2] : "";
    cudaStreamCreate(&one);
    cudaStreamCreate(&two);
    cudaStreamCreate(&three);
    cudaEventCreate(&event);
    cudaEventCreate(&other);
    for (auto& pair : pairs) {
        if (*only && strcmp(only, pair.name)) continue;
        pair.run(broken);
        cudaDeviceSynchronize();
    }
    for (auto& pair : right)
        if (!broken) pair.run(false), cudaDeviceSynchronize();
}
