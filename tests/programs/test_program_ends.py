"""How programs end, and what they do to the process that they run in."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from harness.programs import Run, run_program
from shared.nvcc import kinds, needs_nvcc

pytestmark = [needs_nvcc, pytest.mark.slow]

ENDS = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>
#include <cuda_runtime.h>

int error = 5;  // which is a function of libc, too
__global__ void set(int* to, int value) { to[threadIdx.x] = value; }

struct Early
{
    int* d;
    Early() { cudaMalloc(&d, 128); set<<<1, 32>>>(d, 7); }
    ~Early() { cudaFree(d); }
} early;

void late() { set<<<1, 32>>>(early.d, 9); }
void CUDART_CB leave(void*) { exit(3); }

int main(int argc, char** argv)
{
    int how = atoi(argv[1]), host[32] = {};
    atexit(late);
    cudaMemcpy(host, early.d, 128, cudaMemcpyDeviceToHost);
    if (host[31] != 7 || error != 5) return 99;
    if (how == 1) throw std::runtime_error("thrown");
    if (how == 2) cudaLaunchHostFunc(0, leave, nullptr);
    if (how == 3) abort();
    if (how == 4) _exit(4);
    if (how == 5) {
        pid_t child = fork();
        if (!child) {
            set<<<1, 32>>>(early.d, 1);
            _exit(strcmp(cudaGetErrorString(cudaGetLastError()), "initialization error") ? 1 : 0);
        }
        int status;
        waitpid(child, &status, 0);
        return status;
    }
    if (how == 6 && !fork()) sleep(1000);
    if (how == 7) {
        for (int i = 3; i < 4096; ++i) close(i);
        set<<<1, 33>>>(early.d, 1);
        cudaMemcpy(host, early.d, 128, cudaMemcpyDeviceToHost);
        return host[31] - 1;
    }
    if (how == 8) for (;;);
    if (how == 9) {
        std::vector<std::thread> all;
        for (int i = 0; i < 4; ++i)
            all.emplace_back([] { for (int j = 0; j < 5; ++j) set<<<1, 32>>>(early.d, j); });
        for (auto& one : all) one.join();
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, at a place with a space and a quote in its name."""
    found = tmp_path_factory.mktemp("it's here") / "how it's ended.cu"
    found.write_text(ENDS)
    return found


def ended(source: Path, how: int, seconds: float = 60) -> tuple[Run, int]:
    """Run it, and return how many launches there were."""
    run = run_program([source], [str(how)], seconds=seconds, quiet=True)
    assert not list(Path(tempfile.gettempdir()).glob("harness-program-*/ends")), "files are left"
    return run, sum(one.launches for one in run.kernels.values())


# How it ends: the exit code, and launches, one of which is a constructor's and one a function's of atexit.
WAYS = {0: (0, 2), 1: (-6, 1), 2: (3, 2), 3: (-6, 1), 4: (4, 1), 5: (0, 2), 6: (0, 2), 9: (0, 22)}


@pytest.mark.parametrize("how", WAYS)
def test_a_program_may_end_as_it_likes(source: Path, how: int) -> None:
    run, launches = ended(source, how)
    assert (run.code, launches) == WAYS[how]
    assert (kinds(run), run.refusals, run.timed_out) == (set(), {}, False)


def test_findings_of_a_program_that_closes_all_descriptors(source: Path) -> None:
    run, launches = ended(source, 7)
    assert (run.code, launches) == (0, 3)
    assert kinds(run) == {"out of bounds"}


def test_a_program_that_does_not_end_is_ended(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.programs._GRACE", 0.5)
    run, launches = ended(source, 8, seconds=2)
    assert (run.code, run.timed_out, launches) == (-9, True, 1)
