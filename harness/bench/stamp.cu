// The two clocks of every SM, for measuring the clock rate between two launches
//
// %clock64 counts cycles of the SM it is read on, %globaltimer nanoseconds of the whole GPU. Counters of
// different SMs differ, so each SM has an entry of its own.
//
// /// kernel
// entry   = "stamp"
// problem = "none"
// block   = 32
// tile    = ["1"]
// ///

extern "C" __global__ void stamp(unsigned long long* entries, unsigned count)
{
    unsigned sm;
    unsigned long long cycles, nanoseconds;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%clock64;\n\t"
                 "mov.u64 %1, %%globaltimer;" : "=l"(cycles), "=l"(nanoseconds) :: "memory");
    if (threadIdx.x == 0 && sm < count) {
        entries[2 * sm] = cycles;
        entries[2 * sm + 1] = nanoseconds;
    }
}
