// The header of a package of its own, for where that is not installed.
#pragma once
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C"
{
#endif
cudaError_t CUDARTAPI cudaProfilerStart(void);
cudaError_t CUDARTAPI cudaProfilerStop(void);
#ifdef __cplusplus
}
#endif
