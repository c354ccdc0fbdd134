// Programmatic dependent launch (sm_90): the next kernel of a stream may begin while this one still runs, and does what
// needs no data: it initialises barriers and computes places. Then it waits. This pays where an SM has room for one block
// only: the blocks of the next kernel then take the SMs that this one leaves free, one each. Where it has room for several,
// they crowd on the first SMs that are free. (H200: rung 15 at n = 512, 34 us a launch in place of 11.)
#pragma once

// Let the next kernel begin once all blocks of this one have come here, or have ended.
__device__ inline void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Wait until the kernel before has ended and what it wrote is visible. Needed before global memory is read or written,
// by each thread that does so or by one that another thread waits for in between.
__device__ inline void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
