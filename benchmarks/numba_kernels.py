"""Kernels as numba has them; in a file of its own, for its simulator replaces the name `cuda` of a module."""

from math import exp

from numba import cuda, float32, int32


@cuda.jit
def matmul(a, b, c, n):
    s = cuda.shared.array((16, 16), float32)
    t = cuda.shared.array((16, 16), float32)  # on a line of its own, by which the simulator tells them apart
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    q, r = cuda.blockIdx.x * 16 + x, cuda.blockIdx.y * 16 + y
    total = float32(0)
    for k in range(0, n, 16):
        s[y, x], t[y, x] = a[r, k + x], b[k + y, q]
        cuda.syncthreads()
        for j in range(16):
            total += s[y, j] * t[j, x]
        cuda.syncthreads()
    c[r, q] = total


@cuda.jit
def softmax(x, o, n):
    part = cuda.shared.array(128, float32)
    i, row = cuda.threadIdx.x, cuda.blockIdx.x
    m = float32(-1e30)
    for j in range(i, n, 128):
        m = max(m, x[row, j])
    part[i] = m
    cuda.syncthreads()
    d = 64
    while d:
        if i < d:
            part[i] = max(part[i], part[i + d])
        cuda.syncthreads()
        d //= 2
    m = part[0]
    cuda.syncthreads()
    s = float32(0)
    for j in range(i, n, 128):
        s += exp(x[row, j] - m)
    part[i] = s
    cuda.syncthreads()
    d = 64
    while d:
        if i < d:
            part[i] += part[i + d]
        cuda.syncthreads()
        d //= 2
    for j in range(i, n, 128):
        o[row, j] = exp(x[row, j] - m) / part[0]


@cuda.jit
def reduction(v, o, n):
    part = cuda.shared.array(128, float32)
    i = cuda.threadIdx.x
    s = float32(0)
    for j in range(cuda.blockIdx.x * 128 + i, n, 128 * cuda.gridDim.x):
        s += v[j]
    part[i] = s
    cuda.syncthreads()
    d = 64
    while d:
        if i < d:
            part[i] += part[i + d]
        cuda.syncthreads()
        d //= 2
    if i == 0:
        cuda.atomic.add(o, 0, part[0])


@cuda.jit
def stencil(v, o, n):
    i = cuda.blockIdx.x * 128 + cuda.threadIdx.x
    if i < n:
        o[i] = v[i] if i in (0, n - 1) else (v[i - 1] + v[i] + v[i + 1]) / float32(3)


@cuda.jit
def histogram(k, o, n):
    part = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    if i < 64:
        part[i] = 0
    cuda.syncthreads()
    for j in range(cuda.blockIdx.x * 128 + i, n, 128 * cuda.gridDim.x):
        cuda.atomic.add(part, k[j], 1)
    cuda.syncthreads()
    if i < 64:
        cuda.atomic.add(o, i, part[i])
