"""Hopper's asynchronous units: mbarrier, TMA, wgmma, clusters, and the races between them.

A kernel that has such an instruction runs apart from all others, so that these keep their speed. Its blocks
run one by one (`grid`), a `Group` for each warpgroup, the blocks of a cluster together with one memory:
block r of a cluster has its shared memory at bytes ``r << 18`` to ``(r + 1) << 18`` of it, so an address of
``shared::cluster`` is an address like any other, and a matrix descriptor's 18 bits are those of one block.

- An instruction that may have to wait (``mbarrier.try_wait``, ``wait_group``, ``barrier.cluster.wait``) is an
  `Attempt`. It executes in the lanes that need not wait; the others are parked and try again once something
  has changed.
- An asynchronous operation lands at once with ``schedule="early"`` (and ``warp-serial``). With ``late`` (and
  ``lockstep``) it lands when no thread of its cluster can move without it, the latest moment that the program
  allows. A wait that comes too early, or is missing, then shows in the numbers.
- When nothing can move and nothing is under way, that is a deadlock: a finding that lists every waiter with
  its barrier, phase, arrivals and bytes still expected.
- Races are judged by happens-before, with vector clocks (`clocks`). Every thread has a column, and so has
  every stream of operations that complete in order: the phases of an mbarrier, the bulk groups of a thread,
  the wgmma groups of a warpgroup. An access is (column, value); a thread knows of it if its clock has at
  least that value there. The memory of the last write and of the reads since then is `shadow`.
- Proxies: a write of the generic proxy and a later access of the async proxy need an order, and on its way a
  ``fence.proxy.async`` (PTX ISA, "Causality order"). A second clock holds what threads did before such a
  fence of their own, as CUDA's guide asks of those who write shared memory; a third one what comes before a
  fence of anyone who knows of it, which is a notice: NVIDIA's model of mixed proxies allows it.
- What mbarriers and clusters tell travels on to global memory, and what bulk copies access there is judged
  with all else (`global_memory`). Flags in shared memory order threads, too (`flags`).
"""
