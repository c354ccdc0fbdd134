// Memory of the host that the device may still be using: host code that touches it before it waits is told, and goes
// on. It is protected until then, and what faults in it is noted.
#include "connect.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstring>

namespace
{
constexpr int MOST = 256, FRAMES = 16;
struct Range
{
    uintptr_t start, end;
};
struct Touch
{
    uintptr_t address;
    void* frames[FRAMES];
};
Range ranges[MOST];
int protectedRanges;
Touch touches[MOST];
std::atomic<int> touched;
struct sigaction before;
// Pages that are moving between the process and a file, or were last, and the thread that moves them.
std::atomic<uintptr_t> movedStart, movedEnd;
std::atomic<pthread_t> mover;
std::atomic<bool> moves;
std::atomic<int> late;  // faults that came before the move was over, and are looked at behind it: so many at most
struct Move
{
    void* pages;
    size_t size, place;
    int file;
    bool done;
};
Move move;

// Whether another thread has touched what moves: it tries again, until that is over. What moves it does not wait for
// itself.
bool waits(uintptr_t address)
{
    if (address < movedStart || address >= movedEnd || pthread_equal(mover, pthread_self())) return false;
    return moves || late-- > 0;
}

void fault(int, siginfo_t* info, void*)
{
    auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    for (int i = 0; i < protectedRanges; ++i) {
        auto [start, end] = ranges[i];
        if (address < start || address >= end) continue;
        int place = touched.fetch_add(1);
        if (place < MOST) {
            touches[place].address = start;
            backtrace(touches[place].frames, FRAMES);
        }
        mprotect(reinterpret_cast<void*>(start), end - start, PROT_READ | PROT_WRITE);
        return;
    }
    if (!waits(address)) sigaction(SIGSEGV, &before, nullptr);  // it faults again, as without us
}

// Put a copy of pages in their place at once: whoever reads them meanwhile finds the one or the other.
void swap()
{
    auto [pages, size, place, file, done] = move;
    auto flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    auto fresh = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, static_cast<off_t>(place));
    if (fresh == MAP_FAILED) return;
    move.done = mprotect(pages, size, PROT_READ) == 0 && memcpy(fresh, pages, size) &&
                mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, pages) == pages;
    if (move.done) return;
    mprotect(pages, size, PROT_READ | PROT_WRITE);  // as they were
    munmap(fresh, size);
}
}  // namespace

extern "C"
{
void harness_watch()
{
    static bool watching;
    if (watching) return;
    watching = true;
    void* frames[2];
    backtrace(frames, 2);  // loads what a signal handler must not load
    struct sigaction how = {};
    how.sa_sigaction = fault;
    how.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &how, &before);
}

// Let pages of the host's, which may be written to, be those of a file from a place on; of none, if `file` is -1.
// Other threads that write to them wait. It runs on a stack of its own, for those pages may be of the caller's.
int harness_move(uintptr_t first, size_t size, int file, size_t place)
{
    static char stack[1 << 16];
    static ucontext_t here, there;
    harness_watch();
    movedStart = first, movedEnd = first + size, mover = pthread_self(), late = 1000, moves = true;
    move = {reinterpret_cast<void*>(first), size, place, file, false};
    getcontext(&there);
    there.uc_stack.ss_sp = stack, there.uc_stack.ss_size = sizeof stack, there.uc_link = &here;
    makecontext(&there, swap, 0);
    swapcontext(&here, &there);
    moves = false;
    return !move.done;
}

// Host code may read it, if `readable`, and not write it.
void harness_protect(uintptr_t start, size_t size, int readable)
{
    if (protectedRanges == MOST) return;
    ranges[protectedRanges++] = {start, start + size};
    mprotect(reinterpret_cast<void*>(start), size, readable ? PROT_READ : PROT_NONE);
}

void harness_waited()
{
    for (int i = 0; i < protectedRanges; ++i)
        mprotect(reinterpret_cast<void*>(ranges[i].start), ranges[i].end - ranges[i].start, PROT_READ | PROT_WRITE);
    protectedRanges = 0;
}

// The next touch that was not told: the start of its range and where host code was, innermost first.
int harness_touch(uintptr_t* address, void** frames)
{
    static int told;
    if (told >= touched || told >= MOST) return 0;
    *address = touches[told].address;
    for (int i = 0; i < FRAMES; ++i) frames[i] = touches[told].frames[i];
    ++told;
    return FRAMES;
}
}
