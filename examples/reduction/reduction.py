"""The sum of a vector."""

from harness.problems import problem


@problem(
    x="float32[N]",
    total="inout float32[1] = zeros",
    N=5000,
    atol=1e-3,
    verify=({}, {"N": 1}, {"N": 4097}),
    bench=({"N": 2**22}, {"N": 2**26}),
)
def reduction(x):
    return x.sum(keepdims=True)
