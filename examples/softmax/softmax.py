"""Softmax of the rows of a matrix."""

import numpy as np

from harness.problems import problem


@problem(
    x="float32[M, N]",
    y="out float32[M, N]",
    M=64,
    N=300,
    verify=({}, {"M": 1, "N": 1}, {"M": 5, "N": 1000}),
    bench=({"M": 4096, "N": 1024}, {"M": 16384, "N": 4096}),
)
def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
