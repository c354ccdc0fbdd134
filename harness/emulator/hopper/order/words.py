"""Words for two accesses that race: who made the first, and what would order the two."""

from __future__ import annotations

from harness.emulator.hopper.order.shadow import Earlier
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.knowledge import BLOCK, semantics


def hazard(before: str, now: str, earlier: Earlier) -> str:
    """Return the kind of finding of an access, read or write, after one of the kind `before`."""
    if earlier.unfenced:
        return "missing proxy fence"
    if before == "read":
        return "WAR hazard"
    return "WAW hazard" if now == "write" else "RAW hazard"


def verb(what: str) -> str:
    """Return what a thread does to a place."""
    return {"read": "reads", "write": "writes", "atomic": "updates", "cp.async": "copies into"}.get(
        what, what
    )


def words(ins: Instruction) -> str:
    """Return the name of an asynchronous operation."""
    parts = set(ins.opcode)
    if ins.opcode[0] == "wgmma":
        return "the wgmma"
    if "bulk" in parts:
        stores = ins.opcode[ins.opcode.index("tensor") + 2 if "tensor" in parts else 3] == "global"
        return "the TMA store" if stores else "the TMA load"
    return f"the {'.'.join(ins.opcode[:2])}"


def edge(site: Instruction, earlier: Earlier, ins: Instruction) -> str:
    """Return what would order the access `site` before that of `ins`."""
    if earlier.narrow:
        return (
            "an mbarrier orders the two for the threads of one block alone: mbarrier.arrive.release.cluster "
            "in the other block, and mbarrier.try_wait.acquire.cluster in this one, would"
        )
    if earlier.passed:
        return (
            "fence.proxy.async comes after what orders them, in another thread than the first: PTX's memory "
            "model allows that, but NVIDIA's guide has it in the thread that made the first, before what "
            "orders them"
        )
    if earlier.unfenced:
        return (
            "they are ordered, but through different proxies: the thread that made the first access needs "
            "fence.proxy.async after it and before the barrier or arrival that orders the two"
        )
    name = words(site)
    if name == "the wgmma":
        return "nothing waits for the wgmma before: wgmma.wait_group, and an arrival after it, would"
    if name == "the TMA store":
        return "it is not waited for before: cp.async.bulk.wait_group.read in the thread that began it would"
    if name == "the TMA load" or site.opcode[:2] in (("st", "async"), ("red", "async")):
        return "it is not waited for before: a wait for the phase of its mbarrier would"
    if site.opcode[:2] == ("cp", "async"):
        return "it is not waited for before: cp.async.wait_group, and a barrier after it, would"
    if ins.opcode[0] in ("wgmma", "cp"):
        return "nothing orders the two: a barrier, or an mbarrier that the first arrives at, would"
    updates = [semantics(one) for one in (site, ins) if one.opcode[0] in ("atom", "red", "st")]
    if len(updates) == 2 and all(one.strong for one in updates) and BLOCK in [one.scope for one in updates]:
        return "the scope .cta has no threads of another block: .cluster in both would have them"
    return "nothing orders the two: a barrier would"
