// What may follow a product before it is rounded and stored: c = f(alpha * sum + beta * c + bias), or, where a gradient goes
// back through f, c = (alpha * sum + beta * c) * f'(at). harness.matmul defines these macros; without them nothing of it is in
// the machine code. Include it where ELEMENT is defined.
//   BIAS        1: the argument `bias` has an element for each row of C, 2: for each column
//   ACTIVATION  f: 1 relu, 2 gelu, 3 gelu by its approximation with tanh, 4 silu
//   DERIVATIVE  1: the argument `at` is a matrix that lies as C does; there is no bias
//   FLOAT_C     1: C, bias and `at` hold floats, whatever A and B hold
#pragma once

#include "elements.cuh"

#ifndef BIAS
#define BIAS 0
#endif
#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#ifndef DERIVATIVE
#define DERIVATIVE 0
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
#define EPILOGUE_PARAMETER , const OUT* bias  // of a kernel, after beta
#define MAKE_EPILOGUE_FROM(first, M, N, ldc) Epilogue(bias, BIAS == 1 ? M : N)
#elif DERIVATIVE
#define EPILOGUE_PARAMETER , const OUT* at
#define MAKE_EPILOGUE_FROM(first, M, N, ldc) Epilogue(at + (first), M, N, ldc)
#else
#define EPILOGUE_PARAMETER
#define MAKE_EPILOGUE_FROM(first, M, N, ldc) Epilogue()
#endif
#define MAKE_EPILOGUE(M, N, ldc) MAKE_EPILOGUE_FROM(0, M, N, ldc)  // FROM: where C and `at` begin, in elements

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

// Return the derivative of `activate` at x: 0 for relu at 0, as PyTorch has it.
__device__ inline float derivative(float x)
{
    if (ACTIVATION == 1) return x <= 0.f ? 0.f : 1.f;
    if (ACTIVATION == 2)  // Phi(x) + x phi(x), of the normal distribution
        return 0.5f * (1.f + erff(0.70710678f * x)) + 0.39894228f * x * expf(-0.5f * x * x);
    // (x s(y))' = s + x y' s (1 - s), with the sigmoid s
    const float square = 0.071354816f * x * x, y = ACTIVATION == 3 ? x * (1.59576912f + square) : x;
    const float slope = ACTIVATION == 3 ? 1.59576912f + 3.f * square : 1.f;
    const float s = times_sigmoid(1.f, y);
    return s + x * slope * s * times_sigmoid(1.f, -y);
}

// Make it (MAKE_EPILOGUE) after the loop over k. Where a kernel begins under the end of the one before, no read of what that
// one still writes may then move up.
class Epilogue {
#if BIAS
    const OUT* bias;
    int last;

public:
    __device__ Epilogue(const OUT* bias, int count) : bias(bias), last(count - 1)
    {
        asm volatile("" : "+l"(this->bias) :: "memory");
    }
#elif DERIVATIVE
    const OUT* at;
    int last_row, last_col, ld;

public:
    __device__ Epilogue(const OUT* at, int rows, int columns, int ld)
        : at(at), last_row(rows - 1), last_col(columns - 1), ld(ld)
    {
        asm volatile("" : "+l"(this->at) :: "memory");
    }
#endif

public:
    // Return the element of C at (row, col), which need not exist.
    __device__ float operator()(float value, unsigned row, unsigned col) const
    {
#if BIAS
        value += load_float(bias + min(BIAS == 1 ? row : col, (unsigned)last));
#elif DERIVATIVE
        const long long i = (long long)min(row, (unsigned)last_row) * ld + min(col, (unsigned)last_col);
        return value * derivative(load_float(at + i));
#endif
        return activate(value);
    }
};
