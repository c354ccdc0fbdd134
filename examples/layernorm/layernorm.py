"""Layer normalisation of rows, with the mean and the reciprocal deviation as further outputs."""

import numpy as np

from harness.problems import problem


@problem(
    x="float32[M, N]",
    weight="float32[N]",
    bias="float32[N]",
    y="out float32[M, N]",
    mean="out float32[M]",
    rstd="out float32[M]",
    M=40,
    N=256,
    eps=1e-5,
    atol=2e-5,
    verify=({}, {"M": 1, "N": 4}, {"M": 7, "N": 772}),
    bench=({"M": 8192, "N": 1024}, {"M": 8192, "N": 4096}),
)
def layernorm(x, weight, bias, eps):
    mean = x.mean(axis=1)
    rstd = 1 / np.sqrt(x.var(axis=1) + eps)
    return (x - mean[:, None]) * rstd[:, None] * weight + bias, mean, rstd
