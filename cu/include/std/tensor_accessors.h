// Stands in for PyTorch's accessors, which extensions hand to their kernels, where its headers are not found. It is
// written from their documented interface: data(), size(), stride() and [], down to an element.
#pragma once

#include <stdint.h>

namespace at {

template <typename T>
struct DefaultPtrTraits {
    using PtrType = T*;
};

template <typename T>
struct RestrictPtrTraits {
    using PtrType = T* __restrict__;
};

// What one index leaves: N dimensions whose extents and steps lie in the accessor that was indexed.
template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
class TensorAccessor {
  public:
    using PtrType = typename PtrTraits<T>::PtrType;

    __device__ TensorAccessor(PtrType first, const index_t* sizes, const index_t* strides)
        : elements(first), extents(sizes), steps(strides)
    {
    }
    __device__ PtrType data() const { return elements; }
    __device__ index_t size(index_t i) const { return extents[i]; }
    __device__ index_t stride(index_t i) const { return steps[i]; }
    __device__ decltype(auto) operator[](index_t i)
    {
        if constexpr (N == 1)
            return static_cast<T&>(elements[i * steps[0]]);
        else
            return TensorAccessor<T, N - 1, PtrTraits, index_t>(elements + i * steps[0], extents + 1, steps + 1);
    }
    __device__ decltype(auto) operator[](index_t i) const
    {
        if constexpr (N == 1)
            return static_cast<const T&>(elements[i * steps[0]]);
        else
            return static_cast<const TensorAccessor<T, N - 1, PtrTraits, index_t>>(
                TensorAccessor<T, N - 1, PtrTraits, index_t>(elements + i * steps[0], extents + 1, steps + 1));
    }

  private:
    PtrType elements;
    const index_t* extents;
    const index_t* steps;
};

// What a kernel takes by value. The names of its members are those of the operands and axes that harness prints.
template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
class GenericPackedTensorAccessor {
  public:
    using PtrType = typename PtrTraits<T>::PtrType;

    __device__ PtrType data() const { return elements; }
    __device__ index_t size(index_t i) const { return extents[i]; }
    __device__ index_t stride(index_t i) const { return steps[i]; }
    __device__ decltype(auto) operator[](index_t i)
    {
        return TensorAccessor<T, N, PtrTraits, index_t>(elements, extents, steps)[i];
    }
    __device__ decltype(auto) operator[](index_t i) const
    {
        const TensorAccessor<T, N, PtrTraits, index_t> whole(elements, extents, steps);
        return whole[i];
    }

  private:
    T* elements;
    index_t extents[N];
    index_t steps[N];
};

template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits, typename index_t = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, PtrTraits, index_t>;

template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, PtrTraits, int32_t>;

template <typename T, size_t N, template <typename> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, PtrTraits, int64_t>;

}  // namespace at

namespace torch {
using namespace at;
}
