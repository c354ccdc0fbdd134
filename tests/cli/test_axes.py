import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import axes
from harness.errors import UsageError
from harness.problems.gemm import Gemm


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("N=512", (512,)),
        ("N=[512,1024]", (512, 1024)),
        ("N=[512:2048:512]", (512, 1024, 1536, 2048)),
        ("N=[3:5]", (3, 4, 5)),
        ("N[pow2]=[9:12]", (512, 1024, 2048, 4096)),
        (" N = [ 1 , 2 ] ", (1, 2)),
        ("N=[1,8:10,20]", (1, 8, 9, 10, 20)),
        ("alpha=[0.5,-1]", (0.5, -1)),
        ("alpha=[0:1:0.25]", (0, 0.25, 0.5, 0.75, 1.0)),
        ("N=[5:1:-2]", (5, 3, 1)),
    ],
)
def test_values(text: str, values: tuple[float, ...]) -> None:
    assert axes.parse_axis(text)[1] == values


@pytest.mark.parametrize(
    "text",
    ["N", "N=", "=3", "N=x", "N=[1,]", "N=[]", "N=[1:2:3:4]", "N=[1:5:0]", "N=[5:1]", "N=nan", "N=inf",
     "N=1e999", "N[pow2]=63", "N[pow2]=-1", "N[pow2]=1.5", "N=[1:99999999999]", "N=[[1]]", "N=0x10",
     "N=" + "9" * 5000, "N=٣", "N=[1e300:1e308:1e-308]", "alpha=[-1e308:1e308:1]",
     "alpha=[0:1e308:1e-308]", "N=[1:2:1e-300]"],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(UsageError):
        axes.points([text], Gemm.axes)
        Gemm.from_axes(axes.points([text], Gemm.axes)[0])


def test_cross_product_first_slowest() -> None:
    assert axes.points(["M=[1,2]", "N=[3,4]"], Gemm.axes) == [
        {"M": 1, "N": 3}, {"M": 1, "N": 4}, {"M": 2, "N": 3}, {"M": 2, "N": 4},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["n=3"], "no axis 'n'"),
        (["alhpa=3"], "did you mean alpha"),
        (["N=1", "N=2"], "given twice"),
        (["N=1.5"], "takes integers"),
        (["N=[1:5000]", "M=[1:5000]"], "more than"),
    ],
)
def test_points_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        axes.points(texts, Gemm.axes)


def test_params() -> None:
    assert axes.parse_params(["TILE=[8,16]", "BM=64"]) == {"TILE": (8, 16), "BM": (64,)}
    for bad in (["TILE=1.5"], ["TILE=8", "TILE=16"], ["TILE"]):
        with pytest.raises(UsageError):
            axes.parse_params(bad)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        axes.parse_axis(text)
    except UsageError:
        pass


def test_joined_axes_vary_together() -> None:
    assert axes.points(["MxNxK=[64x4096x1, 5x6x7]", "beta=[0,0.5]"], Gemm.axes) == [
        {"M": 64, "N": 4096, "K": 1, "beta": 0}, {"M": 64, "N": 4096, "K": 1, "beta": 0.5},
        {"M": 5, "N": 6, "K": 7, "beta": 0}, {"M": 5, "N": 6, "K": 7, "beta": 0.5},
    ]  # fmt: skip
    assert axes.points(["Mxbeta=2x0.5"], Gemm.axes) == [{"M": 2, "beta": 0.5}]
    assert len(axes.points(["MxN=[1x2,1x2,2x1]"], Gemm.axes)) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["MxN=[1x2,3]"], "'3' in .* is not a value for each of MxN"),
        (["MxN=[1x2x3]"], "not a value for each"),
        (["MxN=1xq"], "'q' in .* is not a number"),
        (["MxN=1x2.5"], "axis N takes integers"),
        (["MxM=1x2"], "axis M is given twice"),
        (["MxN=1x2", "N=3"], "axis N is given twice"),
        (["N=3", "MxN=1x2"], "axis N is given twice"),
        (["MxZ=1x2"], "no axis 'Z'"),
        (["MxN[pow2]=1x2"], "take no .pow2."),
        (["MxN="], "cannot read"),
    ],
)
def test_joined_axes_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        axes.points(texts, Gemm.axes)
