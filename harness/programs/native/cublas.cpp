// cuBLAS for programs that compare with it, or begin with it: what they call most, computed by NumPy (runtime/blas.py).
// Its headers are a package of their own, so the types are written here as they are handed over.
#include "connect.h"

using namespace harness;

namespace
{
enum { F32 = 0, F64 = 1, F16 = 2 };  // cudaDataType
int mathMode;  // of the handle that was made last

template <typename... T> int blas(const char* name, const void* caller, const T&... given)
{
    return hand(name, caller, given...) ? 14 : 0;  // CUBLAS_STATUS_INTERNAL_ERROR
}
int alpha_type(int compute) { return compute == 70 || compute == 71 ? F64 : compute == 64 || compute == 65 ? F16 : F32; }
}  // namespace

#define BLAS(name, parameters, ...) \
    int name parameters { return blas(__VA_ARGS__); }
#define FINE(name, ...) \
    int name(__VA_ARGS__) { return 0; }
#define GEMM(name, plain, T, type) \
    int plain(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, const T* b, \
              int ldb, const T* beta, T* c, int ldc) \
    { \
        return blas("cublas gemm", CALLER, h, ta, tb, m, n, k, alpha, a, type, lda, 0, b, type, ldb, 0, beta, c, type, \
                    ldc, 0, 1, type); \
    } \
    int name##StridedBatched(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, \
                             long long sa, const T* b, int ldb, long long sb, const T* beta, T* c, int ldc, \
                             long long sc, int count) \
    { \
        return blas("cublas gemm", CALLER, h, ta, tb, m, n, k, alpha, a, type, lda, sa, b, type, ldb, sb, beta, c, type, \
                    ldc, sc, count, type); \
    }
#define VECTORS(S, T, type) \
    BLAS(cublas##S##axpy_v2, (void* h, int n, const T* alpha, const T* x, int dx, T* y, int dy), "cublas axpy", \
         CALLER, h, type, n, alpha, x, dx, y, dy) \
    BLAS(cublas##S##scal_v2, (void* h, int n, const T* alpha, T* x, int dx), "cublas scal", CALLER, h, type, n, alpha, x, \
         dx) \
    BLAS(cublas##S##copy_v2, (void* h, int n, const T* x, int dx, T* y, int dy), "cublas copy", CALLER, h, type, n, x, dx, \
         y, dy) \
    BLAS(cublas##S##dot_v2, (void* h, int n, const T* x, int dx, const T* y, int dy, T* to), "cublas dot", CALLER, h, \
         type, n, x, dx, y, dy, to) \
    BLAS(cublas##S##nrm2_v2, (void* h, int n, const T* x, int dx, T* to), "cublas nrm2", CALLER, h, type, n, x, dx, to) \
    BLAS(cublas##S##asum_v2, (void* h, int n, const T* x, int dx, T* to), "cublas asum", CALLER, h, type, n, x, dx, to) \
    BLAS(cublas##S##gemv_v2, \
         (void* h, int t, int m, int n, const T* alpha, const T* a, int lda, const T* x, int dx, const T* beta, T* y, \
          int dy), \
         "cublas gemv", CALLER, h, type, t, m, n, alpha, a, lda, x, dx, beta, y, dy)

extern "C"
{
int cublasCreate_v2(void** to)
{
    if (!to) return 7;  // CUBLAS_STATUS_INVALID_VALUE
    *to = reinterpret_cast<void*>(hand("a handle", CALLER, to));
    mathMode = 0;
    return 0;
}
int cublasLtCreate(void** to) { return cublasCreate_v2(to); }
FINE(cublasDestroy_v2, void*)
FINE(cublasLtDestroy, void*)
int cublasSetStream_v2(void* h, cudaStream_t stream) { return blas("a stream of cublas", CALLER, h, stream); }
int cublasSetMathMode(void*, int mode)
{
    mathMode = mode;  // products are the same in all
    return 0;
}
int cublasGetMathMode(void*, int* to)
{
    if (!to) return 7;
    *to = mathMode;
    return 0;
}
FINE(cublasSetAtomicsMode, void*, int)
FINE(cublasSetPointerMode_v2, void*, int)  // an address says itself whose it is
FINE(cublasSetWorkspace_v2, void*, void*, size_t)
int cublasGetVersion_v2(void*, int* to)
{
    *to = 130000;
    return 0;
}
const char* cublasGetStatusString(int status) { return status ? "an error of cuBLAS" : "success"; }
const char* cublasGetStatusName(int status) { return status ? "CUBLAS_STATUS_INTERNAL_ERROR" : "CUBLAS_STATUS_SUCCESS"; }

GEMM(cublasSgemm, cublasSgemm_v2, float, F32)
GEMM(cublasDgemm, cublasDgemm_v2, double, F64)
GEMM(cublasHgemm, cublasHgemm, uint16_t, F16)
int cublasGemmEx(void* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
                 const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute, int)
{
    return blas("cublas gemm", CALLER, h, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c,
                ldc, 0, 1, alpha_type(compute));
}
int cublasGemmStridedBatchedEx(void* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a,
                               int lda, long long sa, const void* b, int type_b, int ldb, long long sb,
                               const void* beta, void* c, int type_c, int ldc, long long sc, int count, int compute,
                               int)
{
    return blas("cublas gemm", CALLER, h, ta, tb, m, n, k, alpha, a, type_a, lda, sa, b, type_b, ldb, sb, beta, c, type_c,
                ldc, sc, count, alpha_type(compute));
}
VECTORS(S, float, F32)
VECTORS(D, double, F64)

int cublasSetVector(int n, int size, const void* from, int every, void* to, int step)
{
    return cudaMemcpy2D(to, size_t(step) * size, from, size_t(every) * size, size, n, cudaMemcpyHostToDevice) ? 14 : 0;
}
int cublasGetVector(int n, int size, const void* from, int every, void* to, int step)
{
    return cudaMemcpy2D(to, size_t(step) * size, from, size_t(every) * size, size, n, cudaMemcpyDeviceToHost) ? 14 : 0;
}
int cublasSetMatrix(int rows, int columns, int size, const void* from, int lda, void* to, int ldb)
{
    return cudaMemcpy2D(to, size_t(ldb) * size, from, size_t(lda) * size, size_t(rows) * size, columns,
                        cudaMemcpyHostToDevice) ? 14 : 0;
}
int cublasGetMatrix(int rows, int columns, int size, const void* from, int lda, void* to, int ldb)
{
    return cudaMemcpy2D(to, size_t(ldb) * size, from, size_t(lda) * size, size_t(rows) * size, columns,
                        cudaMemcpyDeviceToHost) ? 14 : 0;
}
}
