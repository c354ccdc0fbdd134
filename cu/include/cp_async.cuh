// Asynchronous copies from global to shared memory (cp.async, sm_80). They need no register for the data, and the
// thread goes on at once; it waits for them later. Used from rung 13 on.
#pragma once

// Return the 32-bit address that PTX uses for a place in shared memory.
__device__ inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copy one float, or write a zero if `there` is false: then nothing is read.
__device__ inline void cp_async4(float* to, const float* from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0));
}

// Copy one float, or two that lie at a multiple of 8 bytes.
template <int FLOATS>
__device__ inline void cp_async_floats(float* to, const float* from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(shared_address(to)), "l"(from), "n"(4 * FLOATS));
}

// Copy the first `bytes` of 16 and write zeros after them, between multiples of 16 bytes. What is left out is not read.
// The copy bypasses L1 (.cg): nobody else on this SM will read the same data.
__device__ inline void cp_async16_first(void* to, const void* from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(bytes));
}

// Copy 16 bytes, or write zeros if `there` is false.
__device__ inline void cp_async16(void* to, const void* from, bool there)
{
    cp_async16_first(to, from, there ? 16 : 0);
}

// Close a group: it holds this thread's copies since the last one, maybe none.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until all but the PENDING youngest groups of this thread have arrived.
template <int PENDING>
__device__ inline void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}
