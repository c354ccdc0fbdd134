"""Faults planted in the honest kernels and the examples, drawn anew in each run, and found by the emulator.

A few of the mutants compute what the kernel does: 5 of 100 that were looked at one by one. No machine tells
them from faults that are missed, so that the bounds below allow for as many.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import comb
from pathlib import Path

import pytest

from harness.kernels.spec import Kernel, load
from shared.corpus import HONEST
from shared.mutants import Subject, Tally, drawn, flat, hunt
from shared.places import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*/*.cu"))
# Kernels that need more than NVRTC's own headers, instances of templates, and text of an asm.
LEFT_OUT = {"attention", "softmax", "tensor_cores", "templates", "typed"}
# Their blocks wait for each other: a mutant that is none takes 15 s.
LONG = {"stream_k", "grid_barrier", "tile_counter", "split_k_atomics", "split_k_last_block", "three_bf16"}
FOUND, EQUIVALENT = 0.97, 0.05
LUCK = 1e-4  # the chance that a run of the slow test fails with nothing wrong
SECONDS = 12  # of this thread, about, that the slow test takes


@cache
def kernels() -> list[Kernel]:
    found = [load(path) for path in (*HONEST, *EXAMPLES)]
    return [k for k in found if not k.broken and not {k.path.stem, k.path.parent.name} & LEFT_OUT]


def tallies(seed: int, each: int, left_out: set[str]) -> Iterator[tuple[Kernel, Tally]]:
    """Yield the fates of `each` mutants of the kernels, in an order that the seed draws."""
    order = [kernel for kernel in kernels() if kernel.name not in left_out]
    random.Random(seed).shuffle(order)
    for kernel in order:
        yield kernel, hunt(Subject.of(kernel), drawn(kernel, each, seed))


def least(count: int) -> int:
    """Return the least number of finds among `count` mutants, which is missed with probability `LUCK`."""
    p, below = FOUND * (1 - EQUIVALENT), 0.0
    for found in range(count + 1):
        below += comb(count, found) * p**found * (1 - p) ** (count - found)
        if below > LUCK:
            return found
    return count


def judged(seed: int, each: int, left_out: set[str], seconds: float) -> None:
    began, killed, survivors = time.thread_time(), 0, list[str]()
    for kernel, tally in tallies(seed, each, left_out):
        killed += tally.killed.total()
        survivors += [f"{kernel.name}: {mutant}" for mutant in tally.survivors]
        if time.thread_time() - began > seconds:
            break
    run = killed + len(survivors)
    print(f"seed {seed}: {killed} of {run} killed", *survivors, sep="\n  ")
    assert run and killed >= least(run), f"seed {seed}: {killed} of {run}; {survivors}"


@pytest.mark.slow
def test_faults_drawn_anew_are_found() -> None:
    judged(secrets.randbits(32), 1, LONG, SECONDS)


@pytest.mark.exhaustive
def test_faults_in_every_kernel_are_found() -> None:
    judged(secrets.randbits(32), 3, set(), float("inf"))


def test_the_bound_is_that_of_the_share() -> None:
    """The control: runs that find nine tenths of what they should fail, if they are long enough."""
    assert least(20) == 13 and least(1) == 0
    assert least(200) > 0.8 * 200
    assert sum(path.stem in ("float4", "whole_tiles") for path in HONEST) == 2, "kernels with requires"


@pytest.mark.slow
def test_a_fence_between_atomics_that_do_not_race_is_found() -> None:
    kernel = next(k for k in kernels() if k.path.stem == "split_k_atomics")
    subject, source = Subject.of(kernel), flat(kernel)
    subject = replace(subject, points=subject.points[:2])  # ragged and whole: any of them finds it
    fence = "    __threadfence();\n    __syncthreads();"
    assert source.count(fence) == 1
    right = subject.built(source)
    assert right is not None and subject.fault(right) == ""
    planted = subject.built(source.replace(fence, "    __syncthreads();"))
    assert planted is not None and "with --schedule delayed" in subject.fault(planted)


def test_problems_other_than_products_have_mutants(tmp_path: Path) -> None:
    """One fault that is found and one that is none, at the sizes that the problem declares."""
    subject = Subject.of(load(ROOT / "examples" / "scale" / "01_simple.cu"))
    source = subject.variant.kernel.source
    right = subject.built(source)
    assert right is not None and subject.fault(right) == ""
    planted = subject.built(source.replace("< ", "<= ", 1))
    assert planted is not None and subject.fault(planted) != ""
