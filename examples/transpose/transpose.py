"""The transpose of a matrix."""

from harness.problems import problem


@problem(
    x="float32[M, N]",
    y="out float32[N, M]",
    M=96,
    N=64,
    rtol=0.0,
    verify=({}, {"M": 1, "N": 1}, {"M": 45, "N": 70}),
    bench=({"M": 4096, "N": 4096}, {"M": 8192, "N": 8192}),
)
def transpose(x):
    return x.T
