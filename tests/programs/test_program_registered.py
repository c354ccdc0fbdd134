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
    cudaHostUnregister(pages + 1000);
    add<<<1, 1>>>(registered(pages, 4096), 1024);  // what was registered before in part
    cudaDeviceSynchronize();
    cudaHostUnregister(pages);
    free(pages);
    pages = (int*)aligned_alloc(4096, 8192);
    pages[5] = 1;
    add<<<1, 1>>>(registered(pages, 64), 6);
    cudaDeviceSynchronize();
    return wrong + 8 * (pages[5] != 6);
}
"""


AGAIN = """
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>

__global__ void set(int* x, int* y)
{
    int* p = threadIdx.x & 1 ? x : y;
    p[threadIdx.x] = threadIdx.x;
}
__global__ void racing(int* x) { x[threadIdx.x] += blockIdx.x; }
__global__ void fill(char* x, size_t bytes) { x[0] = 1, x[bytes - 1] = 2; }

template <typename T> T* seen(T* host)
{
    T* found = nullptr;
    cudaHostGetDevicePointer((void**)&found, host, 0);
    return found;
}
template <typename T> T* registered(T* host, size_t bytes)
{
    return cudaHostRegister(host, bytes, cudaHostRegisterMapped) ? nullptr : seen(host);
}

int again(int fault)  // two arrays registered twice, and one inside of what was another
{
    int *a = (int*)malloc(64 << 10), *b = (int*)malloc(64 << 10);
    for (int i = 0; i < 2; ++i) {
        registered(a, 128), registered(b, 128);
        if (i == 0) cudaHostUnregister(a), cudaHostUnregister(b);
    }
    set<<<1, 32>>>(seen(a), seen(b));
    if (fault == 1) set<<<1, 33>>>(seen(a), seen(b));
    if (fault == 2) racing<<<2, 32>>>(seen(a));
    cudaDeviceSynchronize();
    int wrong = a[31] < 31 || b[30] != 30;
    cudaHostUnregister(a);
    int* within = registered(a + 4, 64);
    cudaHostUnregister(a + 4);
    int* all = registered(a, 128);
    if (fault != 3) set<<<1, 32>>>(all, all);
    if (fault == 3) set<<<1, 32>>>(within, within);
    cudaDeviceSynchronize();
    return wrong;
}

int moved()  // pages that were registered move with realloc, and others take their place
{
    size_t size = 1 << 20;
    auto a = (char*)malloc(size);
    memset(a, 3, size);
    registered(a, size);
    cudaHostUnregister(a);
    auto more = (char*)realloc(a, 8 * size), b = (char*)malloc(size);
    memset(b, 5, size);
    fill<<<1, 1>>>(registered(b, size), size);
    cudaDeviceSynchronize();
    cudaHostUnregister(b);
    auto kept = std::count(more, more + size, 3), other = std::count(b, b + size, 5);
    return (kept != (long)size) + 2 * (other != (long)size - 2 || b[0] != 1 || b[size - 1] != 2);
}

int gone()  // pages that are another's when they are unregistered
{
    size_t size = 1 << 20;
    auto at = (char*)0x200000000000;
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    at = (char*)mmap(at, size, PROT_READ | PROT_WRITE, how, -1, 0);
    registered(at, size);
    munmap(at, size);
    mmap(at, size, PROT_READ | PROT_WRITE, how, -1, 0);
    at[7] = 7;
    return (cudaHostUnregister(at) != cudaSuccess) + 2 * (at[7] != 7);
}

int crossing(int fault)  // 2 MB across a border of all powers of two up to 2^44, of which a part is known
{
    size_t size = 2 << 20;
    auto at = (char*)0x300000000000 - (size / 2);
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    at = (char*)mmap(at, size, PROT_READ | PROT_WRITE, how, -1, 0);
    if (!registered(at, 100)) return 1;
    if (fault) cudaHostUnregister(at);
    auto rest = at + (fault ? 0 : 4096);
    size_t bytes = fault ? size : size - 4096;
    fill<<<1, 1>>>(registered(rest, bytes), bytes);
    fill<<<1, 1>>>(fault ? seen(at) : registered(at + 200, 100), 100);
    cudaDeviceSynchronize();
    return 2 * (rest[0] != 1 || at[size - 1] != 2) + 4 * (at[fault ? 99 : 299] != 2);
}

int bad(int how)
{
    auto half = (char*)mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(half + (1 << 19), 1 << 19);
    auto text = (char*)mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int* device;
    cudaMalloc(&device, 64);
    cudaError_t found = cudaSuccess;
    if (how == 0) found = cudaHostRegister(nullptr, 64, 0);
    if (how == 1) found = cudaHostRegister(half, 1 << 20, 0);
    if (how == 2) found = cudaHostRegister(text, 64, 0);
    if (how == 3) found = cudaHostRegister(half, 0, 0);
    if (how == 4) found = cudaHostRegister(half, ~size_t(0), 0);
    if (how == 5) found = cudaHostRegister(device, 64, 0);
    half[0] = 1;
    return found;
}

int twice(int how)
{
    auto a = (char*)malloc(4096);
    registered(a, 1024);
    if (how == 0) return cudaHostRegister(a, 1024, 0);
    if (how == 1) return cudaHostRegister(a + 1000, 1024, 0);
    if (how == 2) return cudaHostUnregister(a + 1);
    return cudaHostUnregister(a) || cudaHostUnregister(a) != 713 ? 1 : 713;
}

int stacked()  // memory of the stack on which all this runs
{
    int mine[32] = {};
    int* same = registered(mine, sizeof mine);
    set<<<1, 32>>>(same, same);
    cudaDeviceSynchronize();
    cudaHostUnregister(mine);
    return mine[31] != 31;
}

int written()  // by another thread, all the while that pages move to and fro
{
    auto pages = (int*)aligned_alloc(4096, 8192);
    std::fill(pages, pages + 2048, 0);
    std::atomic<bool> over{false};
    int counted[2] = {};
    std::thread others[2];
    for (int i = 0; i < 2; ++i)
        others[i] = std::thread([&, i] {
            for (volatile int* mine = pages + 1000 + 100 * i; !over; *mine = *mine + 1) ++counted[i];
        });
    for (int i = 0; i < 200; ++i) cudaHostRegister(pages, 4200, 0), cudaHostUnregister(pages);
    over = true;
    for (auto& other : others) other.join();
    return pages[1000] != counted[0] || pages[1100] != counted[1];
}

int main(int argc, char** argv)
{
    int how = argc > 2 ? atoi(argv[2]) : 0;
    switch (argc > 1 ? *argv[1] : 0) {
    case 'a': return again(how);
    case 'm': return moved();
    case 'g': return gone();
    case 'c': return crossing(how);
    case 'b': return bad(how);
    case 't': return twice(how) - 700;
    case 's': return stacked();
    case 'w': return written();
    }
    return 99;
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


@pytest.mark.parametrize("what", ["again", "moved", "gone", "stacked", "written", "crossing", "crossing 1"])
def test_memory_is_registered_again_where_other_memory_was(tmp_path: Path, what: str) -> None:
    run = ran(tmp_path, AGAIN, *what.split())
    assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())


@pytest.mark.parametrize(("fault", "kind"), [("1", "out of bounds"), ("2", "race"), ("3", "out of bounds")])
def test_faults_in_memory_that_is_registered_again_are_told(tmp_path: Path, fault: str, kind: str) -> None:
    run = ran(tmp_path, AGAIN, "again", fault)
    assert {one for one in kinds(run) if kind in one} and not run.misuses


@pytest.mark.parametrize("how", range(6))
def test_memory_that_cannot_be_registered_is_told(tmp_path: Path, how: int) -> None:
    run = ran(tmp_path, AGAIN, "bad", str(how))
    assert run.code == 1 and not run.refusals
    (misuse,) = run.misuses
    assert misuse.what.startswith("cudaHostRegister: ") and "cudaErrorInvalidValue" in misuse.what


@pytest.mark.parametrize(("how", "error"), [(0, 12), (1, 12), (2, 13), (3, 13)])
def test_memory_that_is_registered_twice_and_unregistered_twice_is_told(
    tmp_path: Path, how: int, error: int
) -> None:
    run = ran(tmp_path, AGAIN, "twice", str(how))
    assert run.code == error and not run.refusals
    (misuse,) = run.misuses
    assert ("AlreadyRegistered" if error == 12 else "NotRegistered") in misuse.what
