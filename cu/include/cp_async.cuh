// Copies from global to shared memory that pass no register and are waited for later (cp.async, sm_80).
// Shared by the rungs from 13 on.
#pragma once

// Shared memory has addresses of its own, of 32 bits; PTX takes those.
__device__ inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// One float, or a zero where `there` is false: then nothing is read.
__device__ inline void cp_async4(float* to, const float* from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0));
}

// Four floats or eight halves, all or none, at multiples of 16 bytes. Past L1: nobody else on this SM will
// want them.
__device__ inline void cp_async16(void* to, const void* from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0));
}

// Closes a group: the copies since the last one, maybe none.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until this thread's copies have landed, but for those of its PENDING youngest groups.
template <int PENDING>
__device__ inline void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}
