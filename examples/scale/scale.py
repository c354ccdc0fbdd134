"""dst = factor * src: the shortest problem."""

from harness.problems import problem


@problem(src="float32[N]", dst="out float32[N]", N=1000, factor=2.5, bench=({"N": 2**22}, {"N": 2**26}))
def scale(src, factor):
    return factor * src
