"""Theoretical occupancy, without a GPU: how many blocks of a kernel fit on an SM, and what limits them.

A block takes, until nothing of one kind is left on the SM:

    warp slots       its threads in warps, rounded up
    a block slot     one
    registers        each warp's, rounded up to the allocation unit; an SM has four partitions with a quarter
                     of the registers each, so what counts is how many warps' registers fit in a partition
    shared memory    its own and what the driver reserves beside it, rounded up

The rules are those of NVIDIA's occupancy calculator (``cuda_occupancy.h`` of CUDA 13.0: the functions
``cudaOccMaxBlocksPerSM{Warps,Smem,Regs}Limit``, which also hold the units of allocation), for an SM that
gives as much as it can to shared memory. Barriers and clusters, which can limit too, are left out.

The limits come from the CUDA Programming Guide, appendix "Compute Capabilities", tables 30 "Device and
Streaming Multiprocessor (SM) Information" and 31 "Memory Information per Compute Capability" (in the older
CUDA C++ Programming Guide: table 27, "Technical Specifications per Compute Capability"), which have 7.5, 8.0,
8.6, 8.7, 8.9, 9.0, 10.0, 10.3, 11.0 and 12.x. The limits of warps and blocks are also those that ptxas 13.5
accepts in ``__launch_bounds__``, for each of the architectures, 8.8 and 10.7 included. Only sm_90 has been
compared with a driver's answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from harness.errors import UsageError
from harness.kernels.arch import Arch

_WARP = 32
_MAX_THREADS = 1024  # per block
_KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The resources of an SM, and the units in which they are allocated.

    `verified` is False if some of the values are in no source.
    """

    max_warps: int  # per SM
    max_blocks: int  # per SM
    shared: int  # bytes per SM
    registers: int = 64 * _KIB  # per SM, and the most that one block can have
    register_unit: int = 256  # registers; those of a warp are rounded up to it
    warp_granularity: int = 4  # partitions of an SM, each with its share of the registers
    max_registers: int = 255  # per thread
    reserved_shared: int = _KIB  # bytes per block, in addition to the block's own
    shared_unit: int = 128  # bytes; the shared memory of a block is rounded up to it
    verified: bool = True

    @property
    def max_shared(self) -> int:
        """The most bytes of shared memory that a block can have of its own, once it has opted in."""
        return self.shared - self.reserved_shared


LIMITS: dict[int, Limits] = {
    75: Limits(max_warps=32, max_blocks=16, shared=64 * _KIB, reserved_shared=0, shared_unit=256),
    80: Limits(max_warps=64, max_blocks=32, shared=164 * _KIB),
    86: Limits(max_warps=48, max_blocks=16, shared=100 * _KIB),
    87: Limits(max_warps=48, max_blocks=16, shared=164 * _KIB),
    # Not in the guide. CCCL's cuda/__device/arch_traits.h gives 8.8 the values of 8.6, as do ptxas (warps,
    # blocks) and cuda_occupancy.h (blocks, shared memory).
    88: Limits(max_warps=48, max_blocks=16, shared=100 * _KIB),
    89: Limits(max_warps=48, max_blocks=24, shared=100 * _KIB),
    90: Limits(max_warps=64, max_blocks=32, shared=228 * _KIB),
    100: Limits(max_warps=64, max_blocks=32, shared=228 * _KIB),
    103: Limits(max_warps=64, max_blocks=32, shared=228 * _KIB),
    # In no document. Warps, blocks and registers are from ptxas 13.5; shared memory and its units are taken
    # over from 10.3.
    107: Limits(max_warps=32, max_blocks=16, shared=228 * _KIB, verified=False),
    110: Limits(max_warps=48, max_blocks=24, shared=228 * _KIB),
    120: Limits(max_warps=48, max_blocks=24, shared=100 * _KIB),
    121: Limits(max_warps=48, max_blocks=24, shared=100 * _KIB),
}


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """The `blocks` and `warps` that are resident on one SM at a time, and what limits them.

    `max_warps` is the most warps that the SM can hold. `limiter` names the resources that the next block
    would lack: "warps", "registers", "shared memory", "blocks", or several of them joined with ", ". It is
    just "warps" if every warp slot is taken, whatever else has run out. If not even one block fits, it is
    "shared memory" if that is too little for one, and else "nothing fits" (there are too few registers).
    """

    blocks: int
    warps: int
    max_warps: int
    limiter: str

    @property
    def fraction(self) -> float:
        """Resident warps over the most an SM can hold, 0 to 1."""
        return self.warps / self.max_warps


def occupancy(arch: str, *, threads: int, registers: int, shared: int) -> Occupancy:
    """Return the occupancy of an SM of `arch` with blocks of `threads`, each thread with `registers`.

    `shared` is the block's shared memory in bytes, static and dynamic: what ptxas reports plus what the
    launch adds, without the 1 KiB per block that the driver reserves from sm_80 on. Raises UsageError for an
    unknown architecture and for values that no kernel can have.
    """
    limits = limits_of(arch)
    if not 1 <= threads <= _MAX_THREADS:
        raise UsageError(f"a block of {threads} threads cannot be", hint=f"1 to {_MAX_THREADS}")
    if not 0 <= registers <= limits.max_registers:
        raise UsageError(f"{registers} registers a thread cannot be", hint=f"0 to {limits.max_registers}")
    if shared < 0:
        raise UsageError(f"{shared} bytes of shared memory cannot be", hint="0 or more")

    warps = -(-threads // _WARP)  # per block
    fits = {
        "warps": limits.max_warps // warps,
        "registers": _by_registers(limits, warps, registers),
        "shared memory": _by_shared(limits, shared),
        "blocks": limits.max_blocks,
    }
    blocks = int(min(fits.values()))
    if blocks == 0:
        limiter = "shared memory" if fits["shared memory"] == 0 else "nothing fits"
    elif blocks * warps == limits.max_warps:
        limiter = "warps"
    else:
        limiter = ", ".join(name for name, most in fits.items() if most == blocks)
    return Occupancy(blocks=blocks, warps=blocks * warps, max_warps=limits.max_warps, limiter=limiter)


def limits_of(arch: str) -> Limits:
    """Return the `LIMITS` of an architecture such as ``sm_90a``. Raises UsageError for an unlisted one."""
    try:
        return LIMITS[Arch.parse(arch).number]
    except KeyError:
        known = ", ".join(f"sm_{number}" for number in LIMITS)
        raise UsageError(f"the limits of {arch} are not known", hint=f"known: {known}") from None


def _by_registers(limits: Limits, warps: int, registers: int) -> float:
    """Return how many blocks of `warps` warps fit by their registers; inf if they use none.

    This covers the driver's check at a launch, too: that the SM has the registers of one block with its warps
    rounded up to `warp_granularity`.
    """
    if registers == 0:
        return inf
    partitions = limits.warp_granularity
    warp = _round_up(registers * _WARP, limits.register_unit)
    return limits.registers // partitions // warp * partitions // warps


def _by_shared(limits: Limits, shared: int) -> float:
    """Return how many blocks fit by their shared memory; inf if they use none."""
    if shared > limits.max_shared:
        return 0
    block = _round_up(shared + limits.reserved_shared, limits.shared_unit)
    return limits.shared // block if block else inf


def _round_up(number: int, unit: int) -> int:
    """Round `number` up to a multiple of `unit`."""
    return -(-number // unit) * unit
