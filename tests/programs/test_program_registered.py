"""Memory of the host that a program registers: its pages hold other things, too, which change meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.nvcc import kinds, needs_nvcc, ran

pytestmark = [needs_nvcc, pytest.mark.slow]

PROGRAM = """
#include <atomic>
#include <cstdlib>
#include <thread>

__global__ void add(int* to, int many)
{
    for (int i = 0; i < many; ++i) to[i] += i;
}

int* registered(int* place, int bytes)
{
    int* seen;
    cudaHostRegister(place, bytes, cudaHostRegisterMapped);
    cudaHostGetDevicePointer((void**)&seen, place, 0);
    return seen;
}

int main(int argc, char** argv)
{
    int fault = argc > 1 ? atoi(argv[1]) : 0;
    int* pages = (int*)aligned_alloc(4096, 8192);
    for (int i = 0; i < 2048; ++i) pages[i] = 0;
    volatile int* beside = pages + 100;  // in a page with what the kernel adds to
    std::atomic<bool> over{false};
    int counted = 0;
    std::thread other([&] { while (!over) *beside = *beside + 1, ++counted; });
    int *first = registered(pages, 64), *second = registered(pages + 1000, 400);  // in both pages
    add<<<1, 1>>>(first, fault == 1 ? 17 : 16);
    add<<<1, 1>>>(second, 100);
    add<<<1, 1>>>(first, 16);
    cudaDeviceSynchronize();
    over = true;
    other.join();
    int wrong = (*beside != counted) + 2 * (pages[3] != 6) + 4 * (pages[1099] != 99);
    cudaHostUnregister(pages);
    if (fault == 2) add<<<1, 1>>>(first, 16);
    add<<<1, 1>>>(registered(pages, 4096), 1024);  // what is registered before in part
    cudaDeviceSynchronize();
    free(pages);
    pages = (int*)aligned_alloc(4096, 8192);
    pages[5] = 1;
    add<<<1, 1>>>(registered(pages, 64), 6);
    cudaDeviceSynchronize();
    return wrong + 8 * (pages[5] != 6);
}
"""


@pytest.fixture(autouse=True)
def _one_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let objects of Python's lie among those of the program: all pages of the heap change all the time."""
    monkeypatch.setenv("PYTHONMALLOC", "malloc")


def test_what_lies_beside_registered_memory_is_left_alone(tmp_path: Path) -> None:
    run = ran(tmp_path, PROGRAM)
    assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())


def test_the_device_has_only_what_is_registered(tmp_path: Path) -> None:
    run = ran(tmp_path, PROGRAM, "1")
    assert kinds(run) == {"out of bounds"}


def test_what_is_registered_no_more_is_told(tmp_path: Path) -> None:
    run = ran(tmp_path, PROGRAM, "2")
    assert kinds(run) == {"out of bounds"} and "freed" in str(run.kernels)


def test_small_memory_of_the_heap_is_shared_with_python_around_it(tmp_path: Path) -> None:
    text = PROGRAM.replace("(int*)aligned_alloc(4096, 8192)", "(int*)malloc(8192)")
    for _ in range(3):
        run = ran(tmp_path, text)
        assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())
