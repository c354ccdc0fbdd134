// Arrays, textures and surfaces. An array lies in device memory row by row, and its handle is its address.
#include "connect.h"

using namespace harness;

namespace
{
struct Array  // as runtime/textures.py fills it
{
    uint64_t width, height, depth, element, flags;
    int x, y, z, w, kind;
    size_t pitch() const { return width * element; }
};

cudaError_t look_up(Array& found, cudaArray_const_t array, const void* caller)
{
    return error("what an array is", caller, array, &found);
}

char* place(cudaArray_const_t array, const Array& is, size_t x, size_t y, size_t z = 0)
{
    auto rows = is.height ? is.height : 1;
    return reinterpret_cast<char*>(const_cast<cudaArray_t>(array)) + (z * rows + y) * is.pitch() + x;
}

cudaError_t copy(const void* caller, void* to, size_t pitch, const void* from, size_t every, size_t width, size_t height,
                 cudaMemcpyKind kind, cudaStream_t stream = nullptr, bool waits = true)
{
    if (waits) return error("cudaMemcpy2D", caller, to, pitch, from, every, width, height, kind);
    return error("cudaMemcpy2DAsync", caller, to, pitch, from, every, width, height, kind, stream);
}

struct Side  // of a cudaMemcpy3D
{
    char* start;
    size_t pitch, rows;
};

cudaError_t side(Side& of, cudaArray_const_t array, const cudaPitchedPtr& pointer, const cudaPos& at, size_t& element,
                 const void* caller)
{
    if (!array) {
        of = {static_cast<char*>(pointer.ptr) + (at.z * pointer.ysize + at.y) * pointer.pitch + at.x, pointer.pitch,
              pointer.ysize};
        return cudaSuccess;
    }
    Array is;
    if (auto found = look_up(is, array, caller); found != cudaSuccess) return found;
    element = is.element;
    of = {place(array, is, at.x * element, at.y, at.z), is.pitch(), is.height ? is.height : 1};
    return cudaSuccess;
}

cudaError_t copy_3d(const cudaMemcpy3DParms* what, const void* caller, cudaStream_t stream, bool waits)
{
    Side from, to;
    size_t element = 1;
    if (auto found = side(from, what->srcArray, what->srcPtr, what->srcPos, element, caller); found != cudaSuccess)
        return found;
    if (auto found = side(to, what->dstArray, what->dstPtr, what->dstPos, element, caller); found != cudaSuccess)
        return found;
    for (size_t z = 0; z < what->extent.depth; ++z) {
        auto found = copy(caller, to.start + z * to.rows * to.pitch, to.pitch, from.start + z * from.rows * from.pitch,
                          from.pitch, what->extent.width * element, what->extent.height, what->kind, stream, waits);
        if (found != cudaSuccess) return found;
    }
    return cudaSuccess;
}
}  // namespace

extern "C"
{
cudaChannelFormatDesc CUDARTAPI cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind)
{
    return {x, y, z, w, kind};
}

// -- arrays

cudaError_t CUDARTAPI cudaMalloc3DArray(cudaArray_t* to, const cudaChannelFormatDesc* is, cudaExtent extent,
                                        unsigned flags)
{
    return error("cudaMalloc3DArray", CALLER, to, is, extent.width, extent.height, extent.depth, flags);
}
cudaError_t CUDARTAPI cudaMallocArray(cudaArray_t* to, const cudaChannelFormatDesc* is, size_t width, size_t height,
                                      unsigned flags)
{
    return error("cudaMalloc3DArray", CALLER, to, is, width, height, 0, flags);
}
API(cudaFreeArray, (cudaArray_t array), array)
cudaError_t CUDARTAPI cudaArrayGetInfo(cudaChannelFormatDesc* format, cudaExtent* extent, unsigned* flags,
                                       cudaArray_t array)
{
    Array is;
    if (auto found = look_up(is, array, CALLER); found != cudaSuccess) return found;
    if (format) *format = {is.x, is.y, is.z, is.w, static_cast<cudaChannelFormatKind>(is.kind)};
    if (extent) *extent = {is.width, is.height, is.depth};
    if (flags) *flags = static_cast<unsigned>(is.flags);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetChannelDesc(cudaChannelFormatDesc* format, cudaArray_const_t array)
{
    return cudaArrayGetInfo(format, nullptr, nullptr, const_cast<cudaArray_t>(array));
}

// -- copies

#define TO_ARRAY(name, more, stream, waits) \
    cudaError_t CUDARTAPI name(cudaArray_t to, size_t x, size_t y, const void* from, size_t every, size_t width, \
                               size_t height, cudaMemcpyKind kind more) \
    { \
        Array is; \
        if (auto found = look_up(is, to, CALLER); found != cudaSuccess) return found; \
        return copy(CALLER, place(to, is, x, y), is.pitch(), from, every, width, height, kind, stream, waits); \
    }
#define FROM_ARRAY(name, more, stream, waits) \
    cudaError_t CUDARTAPI name(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width, \
                               size_t height, cudaMemcpyKind kind more) \
    { \
        Array is; \
        if (auto found = look_up(is, from, CALLER); found != cudaSuccess) return found; \
        return copy(CALLER, to, pitch, place(from, is, x, y), is.pitch(), width, height, kind, stream, waits); \
    }
#define COMMA ,
TO_ARRAY(cudaMemcpy2DToArray, , nullptr, true)
TO_ARRAY(cudaMemcpy2DToArrayAsync, COMMA cudaStream_t stream, stream, false)
FROM_ARRAY(cudaMemcpy2DFromArray, , nullptr, true)
FROM_ARRAY(cudaMemcpy2DFromArrayAsync, COMMA cudaStream_t stream, stream, false)
cudaError_t CUDARTAPI cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t count,
                                        cudaMemcpyKind kind)
{
    Array is;
    if (auto found = look_up(is, to, CALLER); found != cudaSuccess) return found;
    return copy(CALLER, place(to, is, x, y), count, from, count, count, 1, kind);
}
cudaError_t CUDARTAPI cudaMemcpyFromArray(void* to, cudaArray_const_t from, size_t x, size_t y, size_t count,
                                          cudaMemcpyKind kind)
{
    Array is;
    if (auto found = look_up(is, from, CALLER); found != cudaSuccess) return found;
    return copy(CALLER, to, count, place(from, is, x, y), count, count, 1, kind);
}
cudaError_t CUDARTAPI cudaMemcpy2DArrayToArray(cudaArray_t to, size_t x, size_t y, cudaArray_const_t from, size_t x0,
                                               size_t y0, size_t width, size_t height, cudaMemcpyKind kind)
{
    Array one, other;
    if (auto found = look_up(one, to, CALLER); found != cudaSuccess) return found;
    if (auto found = look_up(other, from, CALLER); found != cudaSuccess) return found;
    return copy(CALLER, place(to, one, x, y), one.pitch(), place(from, other, x0, y0), other.pitch(), width, height,
                kind);
}
cudaError_t CUDARTAPI cudaMemcpy3D(const cudaMemcpy3DParms* what) { return copy_3d(what, CALLER, nullptr, true); }
cudaError_t CUDARTAPI cudaMemcpy3DAsync(const cudaMemcpy3DParms* what, cudaStream_t stream)
{
    return copy_3d(what, CALLER, stream, false);
}

// -- objects

cudaError_t CUDARTAPI cudaCreateTextureObject(cudaTextureObject_t* to, const cudaResourceDesc* of,
                                              const cudaTextureDesc* how, const cudaResourceViewDesc*)
{
    auto ask = [&](const void* caller, const void* start, const cudaChannelFormatDesc* is, size_t width, size_t height,
                   size_t pitch) {
        return error("cudaCreateTextureObject", caller, to, start, is, width, height, pitch, how->addressMode,
                     how->filterMode, how->readMode, how->normalizedCoords);
    };
    switch (of->resType) {
    case cudaResourceTypeArray: return ask(CALLER, of->res.array.array, nullptr, 0, 0, 0);
    case cudaResourceTypeLinear: {
        auto& is = of->res.linear;
        auto element = (is.desc.x + is.desc.y + is.desc.z + is.desc.w) / 8;
        return ask(CALLER, is.devPtr, &is.desc, element ? is.sizeInBytes / element : 0, 0, is.sizeInBytes);
    }
    case cudaResourceTypePitch2D: {
        auto& is = of->res.pitch2D;
        return ask(CALLER, is.devPtr, &is.desc, is.width, is.height, is.pitchInBytes);
    }
    default: return error("textures of mipmaps", CALLER);
    }
}
cudaError_t CUDARTAPI cudaCreateSurfaceObject(cudaSurfaceObject_t* to, const cudaResourceDesc* of)
{
    if (of->resType != cudaResourceTypeArray) return last = cudaErrorInvalidValue;
    return error("cudaCreateSurfaceObject", CALLER, to, of->res.array.array);
}
API(cudaDestroyTextureObject, (cudaTextureObject_t object), object)
API(cudaDestroySurfaceObject, (cudaSurfaceObject_t object), object)
}
