"""Why a compiled candidate need not be launched: what ptxas reports and what stands in its machine code."""

from __future__ import annotations

from harness.builds import Built, unmet
from harness.driver import Device


def reason(one: Built, device: Device) -> str:
    """In one sentence; empty for a candidate that is worth a launch."""
    resources, variant, shared = one.cubin.resources, one.variant, one.cubin.shared
    if shared > device.shared_per_block_optin:
        return f"{shared} B of shared memory a block; this GPU has {device.shared_per_block_optin} B at most"
    if one.occupancy.blocks == 0:
        return (
            f"not one block fits on an SM ({one.occupancy.limiter}): {variant.threads} threads of "
            f"{resources.registers} registers, {shared} B of shared memory"
        )
    if resources.spill_stores or resources.spill_loads:
        return f"spills: {resources.spill_stores} B stored, {resources.spill_loads} B loaded, a thread"
    if missing := unmet(one):
        return f"its machine code is not as the file expects: {missing}"
    return ""
