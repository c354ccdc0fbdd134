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


FORMS = "as in -a N=512, -a N=[512:4096:512], -a 'N[pow2]=[9:12]', -p TILE=32 or -p TILE=[8,16]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N", f"cannot read the axis 'N'\n  -> {FORMS}"),
        ("N[pow2]=63", f"a [pow2] axis takes exponents from 0 to 62: 'N[pow2]=63'\n  -> {FORMS}"),
        ("N=[1:2:3:4]", f"cannot read the range '1:2:3:4' in 'N=[1:2:3:4]'\n  -> {FORMS}"),
        ("N=[5:1]", "the range '5:1' in 'N=[5:1]' is empty\n  -> start:end:step, the end included"),
        ("N=[1:5:0]", "the range '1:5:0' in 'N=[1:5:0]' is empty\n  -> start:end:step, the end included"),
        ("N=[1:10001]", "the range '1:10001' in 'N=[1:10001]' has more than 10000 values"),
        (
            "N=[0:1e308:1e-308]",
            "the range '0:1e308:1e-308' in 'N=[0:1e308:1e-308]' has more than 10000 values",
        ),
        ("N=[1, x ]", f"'x' in 'N=[1, x ]' is not a number\n  -> {FORMS}"),
        ("N=[1", f"'[1' in 'N=[1' is not a number\n  -> {FORMS}"),
        ("N=1]", f"'1]' in 'N=1]' is not a number\n  -> {FORMS}"),
        ("N=٣", f"'٣' in 'N=٣' is not a number\n  -> {FORMS}"),
        ("N=٣.5", f"'٣.5' in 'N=٣.5' is not a number\n  -> {FORMS}"),
    ],
)
def test_what_cannot_be_read_is_quoted_with_what_can(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        axes.parse_axis(text)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["TILE"], f"cannot read the parameter 'TILE'\n  -> {FORMS}"),
        (["TILE=1.5"], "parameter TILE takes integers: 'TILE=1.5'"),
        (["TILE=8", "TILE=9"], "parameter TILE is given twice\n  -> -p TILE=[first,second]"),
    ],
)
def test_parameters_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        axes.parse_params(texts)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["alhpa=3"], "no axis 'alhpa'\n  -> did you mean alpha?"),
        (["xyz=3"], "no axis 'xyz'\n  -> axes: N, alpha"),
        (["N=1", "N=2"], "axis N is given twice\n  -> -a N=[first,second]"),
        (["N=1.5"], "axis N takes integers: 'N=1.5'"),
        (["N=[1:101]", "alpha=[1:100]"], "more than 10000 points"),
    ],
)
def test_points_refused_in_full(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        axes.points(texts, {"N": None, "alpha": 1.0})
    assert str(refused.value) == message


def test_the_limits_themselves_are_allowed() -> None:
    assert axes.parse_axis("N[pow2]=[0,62]") == ("N", (1, 2**62))
    assert axes.parse_axis("N[ pow2 ] = 1")[1] == (2,)
    assert axes.parse_axis("N=[7:7]")[1] == (7,)
    assert len(axes.parse_axis("N=[1:10000]")[1]) == 10_000
    assert len(axes.points(["N=[1:100]", "alpha=[1:100]"], {"N": None, "alpha": 1.0})) == 10_000


def test_repeated_values_are_visited_once_and_defaults_decide_the_type() -> None:
    known = {"N": 8, "alpha": 1.0}
    assert axes.points(["N=[2,1,2]"], known) == [{"N": 2}, {"N": 1}]
    assert axes.points(["alpha=[0.5,1]"], known) == [{"alpha": 0.5}, {"alpha": 1}]
    assert axes.points([], known) == [{}]
    assert axes.parse_params(["T=[8,16,8]"]) == {"T": (8, 16)}


@given(st.integers(-50, 50), st.integers(-20, 20), st.integers(1, 9), st.sampled_from([1, -1]), st.booleans())
def test_a_range_includes_its_end_where_a_step_meets_it(
    start: int, length: int, step: int, sign: int, written: bool
) -> None:
    end, by = start + length, step * sign
    text = f"N=[{start}:{end}:{by}]" if written or by != 1 else f"N=[{start}:{end}]"
    expected = tuple(v for v in range(start, end + sign, by))
    if expected:
        assert axes.parse_axis(text)[1] == expected
        assert all(type(v) is int for v in axes.parse_axis(text)[1])
    else:
        with pytest.raises(UsageError, match="is empty"):
            axes.parse_axis(text)


def test_a_range_of_nearly_nothing_is_one_value_and_one_of_too_much_is_none() -> None:
    assert axes.parse_axis("alpha=[0:1e-320:1e-300]")[1] == (0,)
    with pytest.raises(UsageError, match="has more than 10000 values"):
        axes.parse_axis(f"N=[-17{'0' * 307}:17{'0' * 307}:1]")  # integers whose difference no float holds


def test_steps_that_binary_fractions_round_still_include_the_end() -> None:
    assert len(axes.parse_axis("alpha=[0:0.3:0.1]")[1]) == 4  # 0.3 / 0.1 is 2.9999999999999996
    assert axes.parse_axis("alpha=[0:0.29:0.1]")[1] == pytest.approx((0, 0.1, 0.2))
    assert axes.parse_axis("alpha=[+1,-2,1e3]")[1] == (1, -2, 1000.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "NxK[pow2]=[1x2]",
            "axes that vary together take no [pow2]: 'NxK[pow2]=[1x2]'\n  -> as in -a NxK=[1x1,2x2]",
        ),
        (
            "NxK=[1x2, 3 ]",
            "'3' in 'NxK=[1x2, 3 ]' is not a value for each of NxK\n  -> as in -a NxK=[1x1,2x2]",
        ),
        (
            "NxMxK=[1x2]",
            "'1x2' in 'NxMxK=[1x2]' is not a value for each of NxMxK\n  -> as in -a NxMxK=[1x1x1,2x2x2]",
        ),
        ("NxK=[1xy]", f"'y' in 'NxK=[1xy]' is not a number\n  -> {FORMS}"),
        ("NxN=[1x1]", "axis N is given twice\n  -> -a N=[first,second]"),
        ("NxZ=[1x1]", "no axis 'Z'\n  -> axes: N, M, K"),
        ("NxK=[1x1.5]", "axis K takes integers: 'NxK=[1x1.5]'"),
        ("YxZ=[1x1]", f"'1x1' in 'YxZ=[1x1]' is not a number\n  -> {FORMS}"),
    ],
)
def test_axes_that_vary_together_are_refused_in_full(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        axes.points([text], {"N": 1, "M": 1, "K": 1})
    assert str(refused.value) == message


def test_axes_that_vary_together_are_one_axis_in_a_product() -> None:
    known = {"N": 1, "K": 1, "alpha": 1.0, "NxK": None}
    assert axes.points(["NxK=5"], known) == [{"NxK": 5}]  # an axis of that very name
    del known["NxK"]
    found = axes.points(["NxK=[1x2,3x4,1x2]", "alpha=[5,6]"], known)
    assert found == [{"N": n, "K": k, "alpha": a} for n, k in ((1, 2), (3, 4)) for a in (5, 6)]
    assert axes.points(["KxN=1x2"], known) == [{"K": 1, "N": 2}]
    with pytest.raises(UsageError, match="axis N is given twice"):
        axes.points(["NxK=1x2", "N=3"], known)
