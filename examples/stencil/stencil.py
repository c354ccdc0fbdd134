"""A step of a five-point stencil in two dimensions; its weights are constant memory, the edges stay."""

from harness.problems import problem


@problem(
    src="float32[M, N]",
    dst="out float32[M, N]",
    weights="const float32[5]",
    M=48,
    N=96,
    verify=({}, {"M": 1, "N": 1}, {"M": 37, "N": 70}),
    bench=({"M": 4096, "N": 4096}, {"M": 8192, "N": 8192}),
)
def stencil(src, weights):
    dst = src.copy()
    middle = src[1:-1, 1:-1]
    around = src[:-2, 1:-1], src[2:, 1:-1], src[1:-1, :-2], src[1:-1, 2:]
    dst[1:-1, 1:-1] = weights[0] * middle + sum(w * a for w, a in zip(weights[1:], around, strict=True))
    return dst
