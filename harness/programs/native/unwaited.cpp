// Memory of the host that the device may still be using: host code that touches it before it waits is told, and goes
// on. It is protected until then, and what faults in it is noted.
#include "connect.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>

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
Range moved;  // pages that are being shared with the device, or were last
std::atomic<bool> moves;
std::atomic<int> late;  // faults that came before the move was over, and are looked at behind it: so many at most

void fault(int, siginfo_t* info, void*)
{
    auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    if (address >= moved.start && address < moved.end && (moves || late-- > 0)) return;  // it is tried again
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
    sigaction(SIGSEGV, &before, nullptr);  // it faults again, as without us
}
}  // namespace

extern "C"
{
void harness_watch()
{
    void* frames[2];
    backtrace(frames, 2);  // loads what a signal handler must not load
    struct sigaction how = {};
    how.sa_sigaction = fault;
    how.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &how, &before);
}

// Let pages of the host's be pages of a file, seen at `alias`, too. Other threads that write to them wait.
int harness_share(uintptr_t first, size_t size, uintptr_t alias, size_t file, size_t place)
{
    auto pages = reinterpret_cast<void*>(first);
    moved = {first, first + size}, late = 1000, moves = true;
    mprotect(pages, size, PROT_READ);
    memcpy(reinterpret_cast<void*>(alias), pages, size);
    auto found = mmap(pages, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, static_cast<int>(file), place);
    if (found != pages) mprotect(pages, size, PROT_READ | PROT_WRITE);
    moves = false;
    return found != pages;
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
