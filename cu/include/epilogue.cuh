// What may follow a product before it is rounded and stored: c = f(alpha * sum + beta * c + bias). harness.matmul defines
// these macros; without them nothing of it is in the machine code. Include it where ELEMENT is defined.
//   BIAS        1: the argument `bias` has an element for each row of C, 2: for each column
//   ACTIVATION  f: 1 relu, 2 gelu, 3 gelu by its approximation with tanh, 4 silu
//   FLOAT_C     1: C and bias hold floats, whatever A and B hold
#pragma once

#include "elements.cuh"

#ifndef BIAS
#define BIAS 0
#endif
#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#ifndef FLOAT_C
#define FLOAT_C 0
#endif
#define EPILOGUE (BIAS || ACTIVATION || FLOAT_C)

#if FLOAT_C || !defined(ELEMENT)
#define OUT float
#else
#define OUT ELEMENT
#endif

#if BIAS
#define BIAS_PARAMETER , const OUT* bias  // of a kernel, after beta
#define MAKE_EPILOGUE(M, N) Epilogue(bias, BIAS == 1 ? M : N)
#else
#define BIAS_PARAMETER
#define MAKE_EPILOGUE(M, N) Epilogue()
#endif

__device__ inline float load_float(const float* p) { return __ldg(p); }
template <class T>
__device__ inline float load_float(const T* p) { return to_float(T{__ldg(&p->bits)}); }

// Return x / (1 + exp(-y)), which is silu(x) for y = x. The fast division has an error of 2 ulp.
__device__ inline float times_sigmoid(float x, float y) { return __fdividef(x, 1.f + expf(-y)); }

__device__ inline float activate(float x)
{
    if (ACTIVATION == 1) return x < 0.f ? 0.f : x;  // NaN stays
    if (ACTIVATION == 2) return 0.5f * x * (1.f + erff(0.70710678f * x));
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
    if (ACTIVATION == 3) return times_sigmoid(x, x * (1.59576912f + 0.071354816f * x * x));
    if (ACTIVATION == 4) return times_sigmoid(x, x);
    return x;
}

// Make it (MAKE_EPILOGUE) after the loop over k. Where a kernel begins under the end of the one before, no read of the bias
// may then move up to where that one still writes it.
class Epilogue {
#if BIAS
    const OUT* bias;
    int last;

public:
    __device__ Epilogue(const OUT* bias, int count) : bias(bias), last(count - 1)
    {
        asm volatile("" : "+l"(this->bias) :: "memory");
    }
#endif

public:
    // Return the element of C at (row, col), which need not exist.
    __device__ float operator()(float value, unsigned row, unsigned col) const
    {
#if BIAS
        value += load_float(bias + min(BIAS == 1 ? row : col, (unsigned)last));
#endif
        return activate(value);
    }
};
