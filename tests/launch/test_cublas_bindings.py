"""The prototypes, enumerations and structures of cuBLAS by ctypes, beside the headers of the wheel; and what
is said where a library is absent, broken or old.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError, MissingDependency
from harness.launch import cublas_bindings as bindings
from harness.support import tools

# The enumerations by the prefix that C gives their members.
ENUMERATIONS: dict[str, Any] = {
    "CUBLAS_STATUS_": bindings.Status,
    "CUBLAS_OP_": bindings.Operation,
    "CUBLAS_": bindings.Math,
    "CUBLAS_ ": bindings.Compute,
    "CUDA_": bindings.DataType,
    "CUBLASLT_REDUCTION_SCHEME_": bindings.Reduction,
    "CUBLASLT_MATMUL_DESC_": bindings.Attribute,
    "CUBLASLT_MATMUL_PREF_": bindings.Preference,
    "CUBLASLT_ALGO_CONFIG_": bindings.Configuration,
}
NAMED = {
    "CUBLASLT_MATMUL_TILE_": bindings.tiles(),
    "CUBLASLT_MATMUL_STAGES_": bindings.stages(),
    "CUBLASLT_CLUSTER_SHAPE_": bindings.clusters(),
}


@pytest.fixture(scope="module")
def include() -> Path:
    folder = tools.headers("cublas")
    if folder is None or not (folder / "cublasLt.h").is_file():
        pytest.skip("cuBLAS's headers are not installed")
    return folder


@pytest.fixture(scope="module")
def headers(include: Path) -> str:
    """The text of both headers without comments."""
    text = "".join((include / name).read_text() for name in ("cublas_api.h", "cublasLt.h"))
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def declared(headers: str, name: str) -> list[str]:
    """The types of a function's parameters, as ctypes names their kinds."""
    found = re.findall(rf"cublasStatus_t\s+CUBLASWINAPI\s+{name}\s*\(([^)]*)\)", headers)
    assert len(found) == 1, name
    return [kind(parameter.strip()) for parameter in found[0].split(",")]


def kind(parameter: str) -> str:
    handles = r"(cublas|cublasLt)Handle_t|cudaStream_t|cublasLt(MatmulDesc|MatrixLayout|MatmulPreference)_t"
    if re.search(rf"\*|\[\]|\b({handles})\b", parameter):
        return "c_void_p"
    for c, ours in (("size_t", "c_ulong"), ("uint64_t", "c_ulong"), ("int64_t", "c_long")):
        if re.match(rf"{c}\b", parameter):
            return ours
    assert re.match(r"(int|cublas\w+_t|cudaDataType(_t)?|libraryPropertyType)\b", parameter), parameter
    return "c_int"


FUNCTIONS = [name for prototypes in bindings.PROTOTYPES.values() for name in prototypes]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_prototype_is_the_headers(headers: str, name: str) -> None:
    prototype = next(p[name] for p in bindings.PROTOTYPES.values() if name in p)
    assert [one.__name__ for one in prototype] == declared(headers, name)


def test_a_wrong_prototype_is_seen(headers: str) -> None:
    """The control: an argument less, one of another size, and two exchanged."""
    right = bindings.PROTOTYPES["cuBLAS"]["cublasGemmEx"]
    for wrong in (right[1:], (*right[:-1], ctypes.c_size_t), (right[1], right[0], *right[2:])):
        assert [one.__name__ for one in wrong] != declared(headers, "cublasGemmEx")


def compiled(include: Path, folder: Path, asserts: list[str]) -> str:
    """The errors of a C compiler on a file with these assertions; skips where there is none."""
    source = folder / "asserts.c"
    lines = [f'_Static_assert({text}, "");' for text in asserts]
    source.write_text("\n".join(["#include <stddef.h>", "#include <cublasLt.h>", *lines]))
    try:
        done = subprocess.run(
            ["gcc", "-fsyntax-only", f"-I{include}", f"-I{tools.headers('cudart') or include}", str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        pytest.skip("there is no gcc")
    if "fatal error" in done.stderr:
        pytest.skip("the headers of the CUDA runtime are not installed")
    return done.stderr


def constants() -> list[str]:
    result, size = bindings.HeuristicResult, ctypes.sizeof(bindings.HeuristicResult)
    found = [
        f"sizeof(cublasLtMatmulHeuristicResult_t) == {size}",
        f"CUBLAS_GEMM_DEFAULT == {bindings.GEMM_DEFAULT}",
    ]
    for name, *_ in result._fields_:
        found.append(f"offsetof(cublasLtMatmulHeuristicResult_t, {name}) == {getattr(result, name).offset}")
    for prefix, names in ENUMERATIONS.items():
        found += [f"{prefix.strip()}{one.name} == {one.value}" for one in names.__members__.values()]
    for prefix, values in NAMED.items():
        found += [f"{prefix}{name} == {value}" for value, name in values.items() if name]
    return found


def test_constants_and_structures_are_the_headers(include: Path, tmp_path: Path) -> None:
    asserts = constants()
    assert len(asserts) > 750 and compiled(include, tmp_path, asserts) == ""
    for wrong in ("CUBLAS_OP_T == 2", "sizeof(cublasLtMatmulHeuristicResult_t) == 88"):
        assert compiled(include, tmp_path, [*asserts, wrong]).count("error:") == 1, wrong


def test_every_name_of_the_headers_is_known(headers: str) -> None:
    """Those that a newer cuBLAS adds are told as numbers: this fails where a table can grow."""
    for prefix, values in NAMED.items():
        theirs = {int(v): name for name, v in re.findall(rf"{prefix}(\w+) = (\d+)", headers)}
        assert {v: "" if n in ("UNDEFINED", "AUTO") else n for v, n in theirs.items()} == values


# The library itself


def test_the_library_of_this_machine_loads() -> None:
    """No GPU is needed to load it, to ask its version, and to make a descriptor."""
    try:
        blas, lt = map(bindings.Functions, ("cuBLAS", "cuBLASLt"))
    except MissingDependency as e:
        pytest.skip(str(e))
    assert blas.version.split(".")[:2] == lt.version.split(".")[:2] and blas.version.startswith("13.")
    handle = ctypes.c_void_p()
    create = lt.bind("cublasLtMatrixLayoutCreate", ctypes.byref(handle), bindings.DataType.R_16F, 4, 5, 6)
    assert create() == 0 and handle.value
    set_ = lt.bind("cublasLtMatmulPreferenceSetAttribute", 0, 1, 0, 8)
    assert set_() == bindings.Status.INVALID_VALUE
    assert lt.bind("cublasLtMatrixLayoutDestroy", handle.value)() == 0


class Planted:
    """A library that tells a version, part by part, or lacks a function."""

    _name = "libcublas.so"

    def __init__(self, version: tuple[int, ...] = (13, 2, 1), *, lacks: str = "", status: int = 0) -> None:
        self.version, self.lacks, self.status = iter(version), lacks, status

    def __getitem__(self, name: str) -> Any:
        if name == self.lacks:
            raise AttributeError(f"undefined symbol: {name}")

        def call(which: Any, value: Any) -> int:
            value._obj.value = next(self.version)
            return self.status

        return call


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"version": (12, 8, 4)}, "the cuBLAS found is 12.8.4, and harness compares with cuBLAS 13"),
        ({"version": (14, 0, 0)}, "the cuBLAS found is 14.0.0"),
        ({"lacks": "cublasGemmEx"}, "cuBLAS lacks a function: undefined symbol: cublasGemmEx"),
        ({"status": 7}, r"does not tell its version: CUBLAS_STATUS_INVALID_VALUE \(7\)"),
        ({"status": 99}, r"does not tell its version: status \(99\)"),
    ],
)
def test_a_library_that_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(tools, "library", lambda name, hint: Planted(**options))
    with pytest.raises(MissingDependency, match=said):
        bindings.Functions("cuBLAS")


def test_a_library_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "library", lambda name, hint: Planted())
    assert bindings.Functions("cuBLAS").version == "13.2.1"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError('Failure finding "libcublas.so"\nmore'),
            'cublas cannot be loaded: Failure finding "libcublas',
        ),
        (OSError("libcublasLt.so.13: file too short"), "file too short"),
        (RuntimeError(""), "cannot be loaded: RuntimeError"),
    ],
)
def test_no_library(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", fail)
    with pytest.raises(MissingDependency, match=said) as caught:
        bindings.Functions("cuBLAS")
    assert caught.value.hint == bindings.INSTALL and "\n" not in str(caught.value.what)


# Arguments, through a library compiled by gcc that writes down what it gets


RECORDING = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
int64_t seen[19];
static int v[3] = {13, 7, 2};
int cublasGetProperty(int which, int *value) { *value = v[which]; return 0; }
int cublasCreate_v2(void **h) { *h = (void *)0x1122334455667788; return 0; }
int cublasDestroy_v2(void *h) { return 0; }
int cublasSetMathMode(void *h, int mode) { return 15; }
int cublasSetStream_v2(void *h, void *s) { return 0; }
int cublasSetWorkspace_v2(void *h, void *w, size_t n) {
    seen[0] = (int64_t)h; seen[1] = (int64_t)w; seen[2] = n; return 0;
}
int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k, const float *al, const float *a, int lda,
                   const float *b, int ldb, const float *be, float *c, int ldc) {
    int64_t all[] = {(int64_t)h, ta, tb, m, n, k, (int64_t)(*al * 10), (int64_t)a, lda, (int64_t)b, ldb,
                     (int64_t)be, (int64_t)c, ldc};
    memcpy(seen, all, sizeof all);
    return 0;
}
int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *al, const void *a, int at,
                 int lda, const void *b, int bt, int ldb, const void *be, void *c, int ct, int ldc, int comp,
                 int algo) {
    int64_t all[] = {(int64_t)h, ta, tb, m, n, k, (int64_t)al, (int64_t)a, at, lda, (int64_t)b, bt, ldb,
                     (int64_t)be, (int64_t)c, ct, ldc, comp, algo};
    memcpy(seen, all, sizeof all);
    return 0;
}
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("cublas")
    (folder / "recording.c").write_text(RECORDING)
    try:
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", "librecording.so", "recording.c"], cwd=folder, check=True
        )
    except OSError:
        pytest.skip("there is no gcc")
    return ctypes.CDLL(str(folder / "librecording.so"))


def test_arguments_arrive_whole(recording: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each at its place, addresses and sizes in 64 bits, negative numbers with their sign."""
    monkeypatch.setattr(tools, "library", lambda name, hint: recording)
    blas = bindings.Functions("cuBLAS")
    assert blas.version == "13.7.2"
    seen = (ctypes.c_int64 * 19).in_dll(recording, "seen")
    handle = ctypes.c_void_p()
    assert blas.bind("cublasCreate_v2", ctypes.byref(handle))() == 0 and handle.value == 0x1122334455667788
    far = [0x7F00_0000_1000 + 0x1_0000_0000 * i for i in range(4)]
    blas.bind("cublasSetWorkspace_v2", handle.value, far[0], 5 << 32)()
    assert list(seen[:3]) == [handle.value, far[0], 5 << 32]
    alpha = ctypes.c_float(2.5)
    sgemm = (handle.value, 1, 0, 3, 4, 5, ctypes.addressof(alpha), far[0], 7, far[1], 8, far[2], far[3], 9)
    call = blas.bind("cublasSgemm_v2", *sgemm)
    for _ in range(2):
        seen[:14] = [0] * 14
        assert call() == 0
        assert list(seen[:14]) == [*sgemm[:6], 25, *sgemm[7:]]
    wide = (handle.value, 1, 0, 3, 4, 5, far[0], far[1], 14, 6, far[2], 2, 7, far[3], far[0], 0, 8, 68, -1)
    assert blas.bind("cublasGemmEx", *wide[:-1])(blas.argument("cublasGemmEx", -1, wide[-1])) == 0
    assert list(seen) == list(wide)
    assert blas.bind("cublasSetMathMode", handle.value, bindings.Math.PEDANTIC_MATH)() == 15


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1])
def test_what_does_not_fit_is_refused(
    recording: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """ctypes would pass the lower 32 bits."""
    monkeypatch.setattr(tools, "library", lambda name, hint: recording)
    with pytest.raises(HarnessError, match=f"{number} does not fit the 32 bits"):
        bindings.Functions("cuBLAS").bind("cublasSetMathMode", 1, number)


def test_a_status_by_its_name() -> None:
    assert bindings.Status.text(15) == "CUBLAS_STATUS_NOT_SUPPORTED (15)"
    assert issubclass(bindings.Status, IntEnum) and bindings.Status.text(2) == "status (2)"
