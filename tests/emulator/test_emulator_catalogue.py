"""The catalogue of bugs that the emulator is there for: each planted in a right kernel, found with its kind,
both source lines and the variable, and nothing besides; and no finding in the kernel without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from harness.bench import emulation
from harness.bench.row import FAILED, OK, Measurement
from harness.emulator import Emulation, Finding
from harness.kernels import catalog
from harness.kernels.cpp.compilers.nvrtc import source_text
from harness.kernels.spec import Variant
from harness.problems.gemm import Gemm
from shared.emulator_kernels import ASYNC, FIRST, SECOND, compile_ptx, launch, line_of, matmul, ptx_only

Edits = tuple[tuple[str, str], ...]  # text that stands once in the source, and what replaces it
Fault = tuple[str, str, tuple[int, ...]]  # kind, variable, source lines: the earlier access first
RAGGED = {"M": 37, "N": 53, "K": 45}  # three steps of 16, cut on every side

AS, BS = "As[ty][tx] = ", "Bs[ty][tx] = "
PRODUCT = "sum += As[ty][k] * Bs[k][tx]"
COMPLETE = "__syncthreads();  // the tile is complete"
READ = "__syncthreads();  // everyone has read it"
NOT_THE_FIRST, NOT_THE_SECOND = (COMPLETE, ";  // the tile"), (READ, ";  // everyone")


def edited(source: str, edits: Edits) -> str:
    for old, new in edits:
        if source.count(old) != 1:
            raise LookupError(f"{old!r} stands {source.count(old)} times in the source")
        source = source.replace(old, new)
    return source


def rung(
    name: str, edits: Edits = (), axes: dict[str, Any] = RAGGED, schedule: str = "lockstep", **params: int
) -> tuple[Measurement, str]:
    """(what the emulator says of a shipped kernel after `edits`, its source)."""
    kernel = catalog.kernel(name)
    source = edited(kernel.source, edits)
    variant = Variant(kernel=replace(kernel, source=source), params=kernel.variant(**params).params)
    ptx = compile_ptx(source_text(variant))
    built = ptx_only(variant, ptx, arch="sm_90", entry=variant.kernel.entry)
    problem = Gemm.from_axes(axes)
    inputs = problem.inputs(1)
    options = emulation.Options(schedule=schedule, count=False)
    return emulation.row(built, problem, inputs, problem.reference(inputs), options), source


def faults(run: Emulation | None) -> set[Fault]:
    assert run is not None
    return {(f.kind, f.variable, tuple(s.line for s in f.sources)) for f in run.findings}


def only(run: Emulation | None) -> Finding:
    assert run is not None
    (found,) = run.findings
    return found


@dataclass(frozen=True)
class Bug:
    """`wanted`: (kind, variable, text of each line); `right`: the numbers do not show it."""

    rung: str
    edits: Edits
    wanted: tuple[tuple[str, str, tuple[str, ...]], ...]
    right: bool
    axes: Any = None


RAW = ("RAW hazard", "As", (AS, PRODUCT)), ("RAW hazard", "Bs", (BS, PRODUCT))
WAR = ("WAR hazard", "As", (PRODUCT, AS)), ("WAR hazard", "Bs", (PRODUCT, BS))
C_LINE = "*c = beta == 0.f"
RACE = "global race", "C", (C_LINE, C_LINE)
LOOP = "sum += *a * *b"

BUGS = {
    "first barrier missing": Bug("03_tiled", (NOT_THE_FIRST,), RAW, True),
    "second barrier missing": Bug("03_tiled", (NOT_THE_SECOND,), WAR, True),
    "both barriers missing": Bug("03_tiled", (NOT_THE_FIRST, NOT_THE_SECOND), RAW + WAR, True),
    "one row too many": Bug(
        "01_naive",
        (("if (row >= M ||", "if (row > M ||"),),
        (("out of bounds", "A", (LOOP,)), ("out of bounds", "C", (C_LINE,))),
        True,
    ),
    "one column too many": Bug(
        "01_naive",
        (("|| col >= N) return", "|| col > N) return"),),
        # past the end of the last row, and in the other rows on the next one's first element
        (("out of bounds", "B", (LOOP,)), ("out of bounds", "C", (C_LINE,)), RACE),
        False,
    ),
    "one column too many stored, into the padding": Bug(
        "03_tiled", (("|| col >= N) return", "|| col > N) return"),), (), False, RAGGED | {"ldc": 54}
    ),
    "tile of A one column too wide": Bug(
        "03_tiled", (("tx < left ? *a", "tx <= left ? *a"),), (("out of bounds", "A", (AS,)),), True
    ),
    "tile of B one row too high": Bug(
        "03_tiled", (("ty < left && col", "ty <= left && col"),), (("out of bounds", "B", (BS,)),), True
    ),
    "tile of B one column too wide": Bug(
        "03_tiled", (("col < N ? *b", "col <= N ? *b"),), (("out of bounds", "B", (BS,)),), True
    ),
    "subscripts swapped in a store": Bug("03_tiled", ((AS, "As[tx][ty] = "),), (), False),
    "subscripts swapped in a read": Bug("03_tiled", (("* Bs[k][tx]", "* Bs[tx][k]"),), (), False),
    "row and column swapped": Bug(
        "02_coalesced", (("row * ldc + col", "col * ldc + row"),), (), False, {"M": 40, "N": 40, "K": 20}
    ),
    "C read at beta == 0": Bug(
        "03_tiled",
        (("beta == 0.f ? alpha * sum : ", ""),),
        (("uninitialised read", "C", ("*c = alpha",)),),
        False,
    ),
}  # fmt: skip
SIZES = {"01_naive": {"BX": 16, "BY": 8}, "02_coalesced": {"BX": 16, "BY": 8}, "03_tiled": {"TILE": 16}}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
@pytest.mark.parametrize("axes", [RAGGED, *(bug.axes for bug in BUGS.values() if bug.axes)], ids=str)
def test_the_kernels_without_a_bug(name: str, schedule: str, axes: Any) -> None:
    found, _ = rung(name, (), axes, schedule, **SIZES[name])
    assert found.status == OK
    assert faults(found.emulation) == set()


@pytest.mark.parametrize("name", BUGS)
def test_bug(name: str) -> None:
    bug = BUGS[name]
    found, source = rung(bug.rung, bug.edits, bug.axes or RAGGED, **SIZES[bug.rung])
    assert found.status == FAILED
    assert faults(found.emulation) == {
        (kind, variable, tuple(line_of(source, text) for text in texts))
        for kind, variable, texts in bug.wanted
    }
    assert found.before is not None
    assert found.before.ok == bug.right


def test_blocks_that_overlap_store_the_same_values() -> None:
    edits = (("blockIdx.x * TILE", "blockIdx.x * (TILE - 1)"),)
    found, source = rung("03_tiled", edits, RAGGED, **SIZES["03_tiled"])
    assert found.status == OK and found.emulation is not None
    kind, variable, texts = RACE
    (notice,) = found.emulation.notices
    assert (notice.kind, notice.variable) == (kind, variable)
    assert tuple(s.line for s in notice.sources) == tuple(line_of(source, text) for text in texts)


@pytest.mark.xfail(strict=True, reason="a GPU's NaN is 0x7fffffff, the emulator's is that of an operand")
def test_a_sum_of_nan_written_over_the_nan_of_the_padding() -> None:
    edits = (("|| col >= N) return", "|| col > N) return"),)
    found, _ = rung("01_naive", edits, RAGGED | {"ldb": 54, "ldc": 54}, BX=16, BY=8)
    assert found.status == FAILED


@pytest.mark.parametrize("edits", [(NOT_THE_FIRST,), (NOT_THE_FIRST, NOT_THE_SECOND)])
def test_missing_barriers_show_in_the_numbers_if_warps_run_one_by_one(edits: Edits) -> None:
    found, _ = rung("03_tiled", edits, schedule="warp-serial", TILE=16)
    assert found.before is not None
    assert not found.before.ok


def test_the_rung_that_is_broken_on_purpose() -> None:
    found, source = rung("05_tiled_no_sync", TILE=16)
    assert found.status == "FAILED as marked"
    wanted = {(kind, v, tuple(line_of(source, text) for text in texts)) for kind, v, texts in RAW + WAR}
    assert faults(found.emulation) == wanted


def test_how_far_out_of_bounds_and_who() -> None:
    M, N, K = (RAGGED[x] for x in "MNK")
    row_too_many = (("if (row >= M ||", "if (row > M ||"),)
    found, _ = rung("01_naive", row_too_many, BX=16, BY=8)
    assert found.emulation is not None
    read, write = found.emulation.findings
    assert "reads 4 bytes" in read.message
    assert "writes 4 bytes" in write.message
    assert (read.variable, read.offset, read.distance, read.seen) == ("A", 4 * M * K, 4, N * K)
    assert (write.variable, write.offset, write.distance, write.seen) == ("C", 4 * M * N, 4, N)
    for finding in (read, write):
        assert 16 * finding.block.y + finding.threads[0].x == M
    # with its rows apart, A ends with the last element of its last row; what is read next is not its own
    found, _ = rung("03_tiled", (("tx < left ? *a", "tx <= left ? *a"),), TILE=16)
    past = only(found.emulation)
    assert (past.offset, past.distance, past.seen) == (4 * M * K, 4, -(-N // 16))


def test_an_accumulator_in_a_register() -> None:
    found, source = rung("03_tiled", (("float sum = 0.f;", "float sum;"),), TILE=16)
    finding = only(found.emulation)
    assert finding.kind == "uninitialised read"
    assert finding.variable.startswith("%f")
    assert [s.line for s in finding.sources] == [line_of(source, PRODUCT)]


PARTIAL = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 c)
{
    .reg .f32 %s; .reg .u32 %t; .reg .u64 %c, %o; .reg .pred %p;
    ld.param.u64 %c, [c];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %o, %t, 4;
    add.u64 %c, %c, %o;
    setp.lt.u32 %p, %t, 3;
    @%p ld.global.f32 %s, [%c];
    st.global.f32 [%c], %s;
    ret;
}
"""


def test_a_register_that_only_some_lanes_have_written() -> None:
    from harness.emulator import emulate

    c = np.ones(8, np.float32)
    emulate(PARTIAL, "k", grid=(1,), block=(8,), arguments=[c])
    assert np.isnan(c).tolist() == [False] * 3 + [True] * 5


SUMS = """extern "C" __global__ void sums(const float* a, float* b, int n) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = 0.f;
  for (int i = t; i < n; i += 64) s[t] += a[i];
  b[t] = s[t];
}
"""


def test_an_accumulator_in_shared_memory() -> None:
    arguments = np.ones(200, np.float32), np.zeros(64, np.float32), np.int32(200)
    assert faults(launch(SUMS, "sums", (1,), (64,), *arguments)) == set()
    source = edited(SUMS, (("s[t] = 0.f;", ""),))
    finding = only(launch(source, "sums", (1,), (64,), *arguments))
    assert (finding.kind, finding.variable, finding.seen) == ("uninitialised read", "s", 64)
    assert [s.line for s in finding.sources] == [line_of(source, "s[t] += a[i]")]


WAIT = 'asm volatile("cp.async.wait_group 1;\\n" ::);'
EARLY, LATE, USE = "CP4(&as[0]", "CP4(&as[cur^1]", "s+=as[cur]"


def test_cp_async_as_it_should_be() -> None:
    run, c, expected = matmul(ASYNC, (32, 32), 32, 128)
    assert faults(run) == set()
    assert np.abs(c - expected).max() < 1e-4


@pytest.mark.parametrize("wait", ["", WAIT.replace("1", "2")], ids=["no wait", "one group less"])
def test_cp_async_waited_for_too_little(wait: str) -> None:
    source = edited(ASYNC, ((WAIT, wait),))
    run, c, expected = matmul(source, (32, 32), 32, 128)
    early, late, use = (line_of(source, text) for text in (EARLY, LATE, USE))
    read_in_flight = {f for f in faults(run) if f[0] == "missing cp.async wait" and f[2][1] == use}
    assert read_in_flight == {
        ("missing cp.async wait", v, (copy, use)) for v in ("as", "bs") for copy in (early, late)
    }
    assert not np.abs(c - expected).max() < 1


@pytest.mark.parametrize(
    ("barrier", "kind", "lines"),
    [(FIRST, "RAW hazard", ((EARLY, USE), (LATE, USE))), (SECOND, "WAR hazard", ((USE, LATE),))],
    ids=["first", "second"],
)
def test_cp_async_without_a_barrier(barrier: str, kind: str, lines: tuple[tuple[str, str], ...]) -> None:
    source = edited(ASYNC, ((barrier, "\n"),))
    run, _, _ = matmul(source, (32, 32), 32, 128)
    wanted = {
        (kind, v, tuple(line_of(source, text) for text in pair)) for v in ("as", "bs") for pair in lines
    }
    assert faults(run) == wanted


REDUCTION = """extern "C" __global__ void sum(const float* a, float* b, int n) {
  __shared__ float s[128];
  const int t = threadIdx.x;
  float v = 0.f;
  for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) v += a[i];
  s[t] = v;
  __syncthreads();  // before
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();  // between
  }
  if (t == 0) b[blockIdx.x] = s[0];
}
"""


@pytest.mark.parametrize(
    ("barrier", "wanted"),
    [
        ("", None),
        ("__syncthreads();  // before", ("s[t] = v", "s[t] +=")),
        ("__syncthreads();  // between", ("s[t] +=", "s[t] +=")),
    ],
    ids=["none", "before", "between"],
)  # fmt: skip
def test_a_reduction_without_a_barrier(barrier: str, wanted: tuple[str, str] | None) -> None:
    source = edited(REDUCTION, ((barrier, ""),)) if barrier else REDUCTION
    a, b = np.random.default_rng(0).standard_normal(1000).astype(np.float32), np.zeros(3, np.float32)
    run = launch(source, "sum", (3,), (128,), a, b, np.int32(1000))
    lines = tuple(line_of(source, text) for text in wanted or ())
    assert faults(run) == ({("RAW hazard", "s", lines)} if wanted else set())
    assert b == pytest.approx(
        [a[np.arange(1000) // 128 % 3 == i].sum(dtype=np.float64) for i in range(3)], abs=1e-4
    )


def test_a_barrier_that_only_some_threads_reach() -> None:
    """Ragged rows wait at the first barrier while the others have come to the second."""
    found, source = rung("03_tiled", ((COMPLETE, f"if (row < M) {COMPLETE}"),), TILE=16)
    first, second = line_of(source, COMPLETE), line_of(source, READ)
    divergent = {f for f in faults(found.emulation) if f[0] == "divergent barrier"}
    assert ("divergent barrier", "", (first, second)) in divergent
    assert {line for f in divergent for line in f[2]} == {first, second}
    assert found.emulation is not None
    assert {f.block.y for f in found.emulation.findings} == {2}  # the only row of blocks that is ragged


BRANCHES = """extern "C" __global__ void turn(const float* a, float* b) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = a[t];
  if (t < LIMIT) {
    __syncthreads();  // here
    b[t] = s[63 - t];
  } else {
    b[t + 64] = 1;
    __syncthreads();  // there
    b[t] = 2 * s[63 - t];
  }
}
"""


@pytest.mark.parametrize("limit", [64, 48, 32])
def test_a_barrier_in_either_branch(limit: int) -> None:
    source = BRANCHES.replace("LIMIT", str(limit))
    run = launch(source, "turn", (1,), (64,), np.ones(64, np.float32), np.zeros(128, np.float32))
    lines = line_of(source, "// here"), line_of(source, "// there")
    # Whole warps may meet at different instructions, the threads of one may not.
    assert faults(run) == ({("divergent barrier", "", lines)} if limit == 48 else set())


QUADS = """extern "C" __global__ void rows(const float* a, float* b, int n, int lda, int ldb) {
  const int q = 4 * threadIdx.x, r = blockIdx.x;
  if (q + 3 >= n) return;
  const float4 v = *(const float4*)&a[r * lda + q];
  volatile float* p = &b[r * ldb + q];
  p[0] = v.x;
  *(float4*)&b[r * ldb + q] = v;
}
"""


@pytest.mark.parametrize(("lda", "ldb", "wrong"), [(40, 44, ""), (42, 44, "a"), (40, 41, "b")])
def test_a_float4_on_rows_that_are_not_aligned(lda: int, ldb: int, wrong: str) -> None:
    arrays = np.ones((3, lda), np.float32), np.zeros((3, ldb), np.float32)
    run = launch(QUADS, "rows", (3,), (16,), *arrays, np.int32(40), np.int32(lda), np.int32(ldb))
    line = line_of(QUADS, "const float4 v = " if wrong == "a" else "*(float4*)&b")
    assert faults(run) == ({("misaligned", wrong, (line,))} if wrong else set())
    if wrong:
        ld = lda if wrong == "a" else ldb
        finding = only(run)
        assert (finding.offset, finding.block.x) == (4 * ld, 1)
        assert finding.seen == 10 * sum(4 * ld * r % 16 != 0 for r in range(3))
