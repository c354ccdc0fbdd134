// Streams and events: all work is done in the order in which it is asked for.
#include "connect.h"

using namespace harness;

extern "C"
{
API(cudaStreamCreate, (cudaStream_t* to), to)
API(cudaStreamCreateWithFlags, (cudaStream_t* to, unsigned flags), to, flags)
API(cudaStreamCreateWithPriority, (cudaStream_t* to, unsigned flags, int), to, flags)
MAKES(cudaEventCreate, cudaEvent_t, (cudaEvent_t* to))
MAKES(cudaEventCreateWithFlags, cudaEvent_t, (cudaEvent_t* to, unsigned))
API(cudaStreamDestroy, (cudaStream_t stream), stream)
API(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), stream, event)
NOTHING(cudaStreamSetAttribute, (cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue*))
NOTHING(cudaStreamCopyAttributes, (cudaStream_t, cudaStream_t))
cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t, int* to)
{
    *to = 0;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t stream, unsigned* to)
{
    *to = hand("the flags of a stream", CALLER, stream);
    return cudaSuccess;
}
API(cudaStreamSynchronize, (cudaStream_t stream), stream)
API(cudaStreamQuery, (cudaStream_t stream), stream)
API(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), event, stream)
cudaError_t CUDARTAPI cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return error("cudaEventRecord", CALLER, event, stream);
}
API(cudaEventSynchronize, (cudaEvent_t event), event)
API(cudaEventQuery, (cudaEvent_t event), event)
API(cudaEventDestroy, (cudaEvent_t event), event)
API(cudaEventElapsedTime, (float* to, cudaEvent_t from, cudaEvent_t until), to, from, until)
cudaError_t CUDARTAPI cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned)
{
    hand("a host function", CALLER, stream);
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}
}
