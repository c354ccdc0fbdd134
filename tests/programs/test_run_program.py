"""Whole programs on the emulator: what they print, what is found in them, how they end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.errors import BuildError, UsageError
from harness.programs import run_program
from shared.nvcc import harness, kinds, needs_nvcc, ran
from shared.places import ROOT
from shared.readme import blocks, sessions, wanted

pytestmark = needs_nvcc

# One program for many faults, each behind its own number: what is built is the same.
MANY = """
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

struct Node { int value; Node* next; };
__managed__ int total;
__device__ float table[4] = {1, 2, 3, 4};
__constant__ float factor;

__global__ void walk(const Node* n)
{
    int sum = 0;
    for (; n; n = n->next) sum += n->value;
    total = sum;
    printf("device: %d\\n", sum);
}

__global__ void mirror(float* out, const float* in, int n, int fault)
{
    __shared__ float tile[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? in[i] : 0;
    if (fault != 1) __syncthreads();
    if (fault == 2 ? i <= n : i < n) out[i] = tile[127 - threadIdx.x] * table[i & 3] * factor;
}

int main(int argc, char** argv)
{
    int fault = argc > 1 ? atoi(argv[1]) : 0, n = 300;
    size_t bytes = n * sizeof(float);
    Node* nodes;
    cudaMalloc((void**)&nodes, 3 * sizeof(Node));
    Node list[3] = {{1, nodes + 1}, {2, nodes + 2}, {3, nullptr}};
    cudaMemcpy(nodes, list, sizeof list, cudaMemcpyHostToDevice);
    walk<<<1, 1>>>(nodes);
    cudaDeviceSynchronize();
    float host[300], half = 0.5f, *in, *out;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMemcpyToSymbol(factor, &half, fault == 3 ? 8 : 4);
    cudaMalloc(&in, bytes);
    cudaMalloc(&out, bytes);
    if (fault != 4) cudaMemcpy(in, host, bytes, fault == 5 ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice);
    if (fault == 6) cudaFree(in);
    if (fault == 7) return (int)in[0];
    mirror<<<3, fault == 8 ? 1025 : 128>>>(out, in, n, fault);
    cudaMemcpy(host, out, fault == 9 ? bytes + 4 : bytes, cudaMemcpyDeviceToHost);
    if (fault == 10) cudaFree(out + 1);
    printf("host: %d %g %s\\n", total, host[0], cudaGetErrorString(cudaGetLastError()));
    return fault == 11 ? 7 : 0;
}
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the program."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "many.cu").write_text(MANY)
    return folder


def test_a_right_program_is_right(many: Path) -> None:
    """Lists with pointers, managed, constant and initialised variables; what is printed has its order."""
    done = harness(many, "run", "many.cu")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["device: 6", "host: 6 63.5 no error"]
    assert [line.split()[-1] for line in lines if line.startswith(("walk", "mirror"))] == ["ok", "ok"]


# What each fault is found as: a kind of finding, or a part of what is told of a call.
FAULTS = {
    1: "RAW hazard",
    2: "out of bounds",
    3: "8 bytes from 0 on in a variable of 4",
    4: "uninitialised read",
    5: "cudaErrorInvalidMemcpyDirection",
    6: "of in, which was freed",
    8: "blocks of (1025, 1, 1) threads: cudaErrorInvalidConfiguration",
    9: "1,204 bytes from out, which has 1,200",
    10: "cudaFree: what was not allocated: cudaErrorInvalidValue",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(fault: int, many: Path) -> None:
    done = harness(many, "run", "many.cu", "--", str(fault))
    assert done.returncode == 1 and FAULTS[fault] in done.stdout and "Traceback" not in done.stderr


@pytest.mark.slow
def test_how_it_ends(many: Path) -> None:
    crashed = harness(many, "run", "many.cu", "--", "7")
    assert crashed.returncode == 1 and "ended by SIGSEGV. Host code that reads" in crashed.stdout
    coded = harness(many, "run", "many.cu", "--", "11")
    assert coded.returncode == 1 and "ended with exit code 7" in coded.stdout


@pytest.mark.slow
def test_the_record_of_a_run(many: Path) -> None:
    options = ("-q", "--json", "r.json", "--sarif", "s.json", "--github")
    done = harness(many, "run", "many.cu", *options, "--", "2")
    assert done.returncode == 1 and "host:" not in done.stdout
    content = json.loads((many / "r.json").read_text())
    rows = {row["kernel"]: row for row in content["rows"]}
    (found,) = rows["mirror"]["findings"]
    assert (found["kind"], found["variable"], found["launch"]) == ("out of bounds", "out", 1)
    assert rows["walk"]["status"] == "ok" and content["meta"]["exit_code"] == 0
    assert content["kind"] == "run" and str(many) not in json.dumps(content["meta"])
    (result,) = json.loads((many / "s.json").read_text())["runs"][0]["results"]
    line = result["locations"][0]["physicalLocation"]["region"]["startLine"]
    assert "if (fault == 2" in MANY.splitlines()[line - 1]
    assert f"::error file=many.cu,line={line},title=out of bounds::" in done.stdout
    page = harness(many, "report", "r.json", "-o", "r.html")
    assert page.returncode == 0 and "mirror: out of bounds" in (many / "r.html").read_text()


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no main"):
        ran(tmp_path, "__global__ void k() {}")
    with pytest.raises(BuildError, match="nvcc does not compile the program"):
        ran(tmp_path, "int main() { return nothing; }")


@pytest.mark.slow
def test_a_program_may_be_of_a_newer_standard(tmp_path: Path) -> None:
    text = """
    #include <concepts>
    template <std::integral T> T twice(T x) { return 2 * x; }
    __global__ void k(int* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }
    int main() {
        int* y;
        cudaMalloc(&y, 4 * twice(8));
        k<<<1, 32>>>(y, twice(8));
    }
    """
    right = ran(tmp_path, text)
    assert right.complete and not right.failed
    assert ran(tmp_path, text.replace("twice(8));\n    }", "twice(9));\n    }")).failed
    with pytest.raises(BuildError, match="nvcc does not compile the program"):
        ran(tmp_path, text.replace("twice(T x)", "twice(U x)"))


@pytest.mark.slow
def test_time_that_is_over_is_told(tmp_path: Path) -> None:
    """A launch that goes on is given up, and host code that does is killed."""
    text = """
    #include <cuda_runtime.h>
    __global__ void add(float* x, int n) { for (int i = 0; i < n; ++i) x[threadIdx.x] += i; }
    int main(int argc, char** argv)
    {
        float* x;
        cudaMalloc(&x, 4096);
        cudaMemset(x, 0, 4096);
        add<<<1, 32>>>(x, argc > 1 ? 100000000 : 10);
        for (volatile int on = argc > 2; on;) {}
        return cudaDeviceSynchronize();
    }
    """
    right = ran(tmp_path, text)
    assert right.complete and not right.failed
    slow = ran(tmp_path, text, "x", seconds=3.0)
    assert slow.stopped is not None and not slow.complete and slow.code == 702 % 256
    endless = ran(tmp_path, text, "x", "y", seconds=1.0)
    assert endless.timed_out


@pytest.mark.slow
def test_some_blocks_of_a_large_grid(tmp_path: Path) -> None:
    """What goes wrong at the ends of rows and below the last is found; what was left out is no fault."""
    text = """
    #include <cuda_runtime.h>
    #include <cstdlib>
    __global__ void fill(float* x, int w, int h, int right, int below)
    {
        int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
        if (col < w + right && row < h + below) x[row * w + col] = col;
    }
    __global__ void twice(float* y, const float* x, int n)
    {
        int i = blockIdx.x * 256 + threadIdx.x;
        if (i < n) y[i] = 2 * x[i];
    }
    int main(int argc, char** argv)
    {
        int w = 1020, h = 1020;
        float *x, *y;
        cudaMalloc(&x, w * h * 4);
        cudaMalloc(&y, w * h * 4);
        fill<<<dim3(64, 64), dim3(16, 16)>>>(x, w, h, atoi(argv[1]), atoi(argv[2]));
        twice<<<(w * h + 255) / 256, 256>>>(y, x, w * h);
        float back;
        cudaMemcpy(&back, x + 512 * w + 700, 4, cudaMemcpyDeviceToHost);
        return back != 700;
    }
    """
    for right, below, found in (
        (0, 0, set()),
        (1, 0, {"global race", "out of bounds"}),
        (0, 1, {"out of bounds"}),
    ):
        run = ran(tmp_path, text, str(right), str(below), sample=64)
        assert kinds(run) == found and run.failed == bool(found) and run.code == 1
        fill = run.kernels["_Z4fillPfiiii"]
        assert (fill.blocks, run.sampled) == (4096, True) and 32 < fill.ran <= 64
    whole = ran(tmp_path, text, "0", "0")
    assert not whole.failed and not whole.sampled


@pytest.mark.slow
def test_several_sources_headers_and_macros(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "scale.cuh").write_text("void scale(float*, int);\n")
    (tmp_path / "scale.cu").write_text(
        '#include "scale.cuh"\n'
        "static __global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= FACTOR; }\n"
        "void scale(float* x, int n) { k<<<1, 64>>>(x, n + EXTRA); }\n"
    )
    (tmp_path / "main.cpp").write_text(
        "#include <cuda_runtime.h>\n"
        '#include "scale.cuh"\n'
        "int main() {\n"
        "    float* x, back[50];\n"
        "    cudaMallocManaged(&x, 200);\n"
        "    for (int i = 0; i < 50; ++i) x[i] = i;\n"
        "    scale(x, 50);\n"
        "    cudaMemcpy(back, x, 200, cudaMemcpyDefault);\n"
        "    return back[2] == 6 ? 0 : 1;\n"
        "}\n"
    )
    sources = [tmp_path / "main.cpp", tmp_path / "scale.cu"]
    for extra, found in ((0, set()), (1, {"out of bounds"})):
        flags = ["-DFACTOR=3", f"-DEXTRA={extra}"]
        run = run_program(sources, include=[str(tmp_path / "inc")], flags=flags, quiet=True)
        assert (run.code, kinds(run)) == (0, found)


@pytest.mark.slow
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "programs.md"
    for block in blocks(page):
        if block.marker == "file":
            (tmp_path / block.name).write_text(block.text)
        elif block.language == "console":
            for command, output in sessions(block.text):
                done = harness(tmp_path, *command.split()[1:], columns="80")
                assert wanted(output).match(done.stdout), done.stdout
        elif block.language == "python":
            here = Path.cwd()
            try:
                os.chdir(tmp_path)
                exec(block.text)
            finally:
                os.chdir(here)
