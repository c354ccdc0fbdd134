// Programmatic dependent launch (sm_90): the next kernel of a stream may begin while this one still runs, and does what
// needs no data: it initialises barriers and computes places. Then it waits. This pays where an SM has room for one block
// only: the blocks of the next kernel then take the SMs that this one leaves free, one each. Where it has room for several,
// they crowd on the first SMs that are free. (H200: rung 15 at n = 512, 34 us a launch in place of 11.)
//
// Nor does it pay where SMs are left free, but too few for all blocks of the next kernel: those that begin early take
// these, the others what becomes free first, and some GPCs have more of them than others. What DRAM or L2 limits ends with
// the GPC that has most. (H200: 9824 x 96 x 2720 in 80 tiles, 20.3 us; if the next kernel begins with the end of this one,
// and its blocks spread over all GPCs, 16.9. scripts/fit_model.py has the same rule, to know such times.)
#pragma once

// Let the next kernel begin once all blocks of this one have come here, or have ended.
__device__ inline void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Whether the next kernel should begin at the end of this one: `places` take turns at `work`, each a block or the blocks that
// are together in a cluster, and more than 16 MB are read (`elements` of 16 bits), beside which a late launch is short.
// Clusters of four never fill all SMs: where more than four fifths of their places are busy, an early launch loses less.
template <int TOGETHER>
__device__ bool dependents_wait(unsigned work, unsigned places, long long elements)
{
    const unsigned busy = (work - 1) % places + 1;  // at the end
    return 2 * busy > places && elements > 8 << 20 && (TOGETHER < 4 || 5 * work <= 4 * places);
}

// Wait until the kernel before has ended and what it wrote is visible. Needed before global memory is read or written,
// by each thread that does so or by one that another thread waits for in between.
__device__ inline void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
