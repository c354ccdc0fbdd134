"""The emulator on GPUVerify's CUDA tests: its expected verdict beside the emulator's.

    python scripts/gpuverify.py FOLDER [--include FOLDER] [--seed N] [--only TEXT] [--json FILE]

FOLDER has GPUVerify's tests (Betts et al., "GPUVerify: a verifier for GPU kernels", OOPSLA 2012;
``testsuite/CUDA`` of its repository): a ``kernel.cu`` each, whose first lines tell the verdict and launch.
They are not part of harness. --include names a folder with CUDA's headers.

GPUVerify proves for all inputs; the emulator sees the inputs that it runs. Scalars are drawn from the numbers
in the source, their sums and differences, until something is found, `DRAWS` at most; draws that do not meet
what a test requires do not count. Pointers get buffers much larger than what the threads index.
"""

from __future__ import annotations

import argparse
import itertools
import re
import secrets
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import nvrtc

from harness.emulator import Buffer, Emulation, emulate
from harness.emulator.memory import Arena
from harness.emulator.ptx.calls import FUNCTIONS
from harness.emulator.ptx.module import parse
from harness.emulator.ptx.program import Entry
from harness.errors import EmulatorError, HarnessError, NeedsGpu
from harness.results import record
from harness.results.tables import plain_table

DRAWS = 24
_BYTES = 1 << 22  # of a buffer
_THREADS = 16384  # larger grids are made smaller: blocks differ in nothing but their number
_POOL = "gpuverify_pool"  # what pointers in structs point to
_UNMET = "a requirement is not met"
# GPUVerify's vocabulary. Contracts that name the race checker's own state say nothing about a run.
_HEAD = f"""
typedef unsigned int uint;
extern "C" __device__ int printf(const char*, ...);
__device__ char {_POOL}[{_BYTES}];
#define __builtin_memcpy memcpy
#define __builtin_memset memset
#define __requires(e) ((e) ? (void)0 : (void)printf("{_UNMET}"))
#define __assume(e) __requires(e)
#define __assert(e) ((e) ? (void)0 : __trap())
#define __implies(a, b) (!(a) || (b))
#define __enabled() true
#define __uniform_bool(e) true
#define __uniform_int(e) true
#define __other_int(e) ((e) + 1)
#define __distinct_int(e) true
#define __all(e) (e)
#define __read(p) false
#define __write(p) false
#define __no_read(p) true
#define __no_write(p) true
#define __read_implies(p, e) true
#define __write_implies(p, e) true
#define __read_offset_bytes(p) 0
#define __write_offset_bytes(p) 0
#define __ptr_offset_bytes(p) 0
#define __requires_fresh_array(p) ((void)0)
#define __invariant(...) ((void)0)
#define __global_invariant(...) ((void)0)
#define __ensures(...) ((void)0)
#define __function_wide_invariant(...) ((void)0)
#define __axiom(...)
"""
_GROUPS = """#include <cooperative_groups.h>
namespace cooperative_groups {
template <class G> __device__ void synchronize(const G& group) { group.sync(); }
}
"""
# Why the two differ, by the test's name or the start of it.
REASONS = {
    "annotation_tests/test_axiom": "race free by an axiom about the size of the grid that the launch breaks",
    "argument_promotion": "texture references, which CUDA 12 no longer has",
    "curand_tests": "cuRAND's device headers are not on this machine",
    "function_pointers/funcptr_to_ptr_add": "an address inside a function; the emulator calls that function",
    "function_pointers/unknown_function": "GPUVerify's front end stops",
    "globalarray/fail": "the host might change what a constant holds; here it holds its initial values",
    "loop_unwind": "all threads store the same value: a notice",
    "memcpy/fail_arrayofstruct": "all threads store the same value: a notice",
    "memcpy_simplification/global_passed": "texture references, which CUDA 12 no longer has",
    "memcpy_simplification": "calls a function without a body",
    "memset/unhandled": "GPUVerify's front end stops",
    "misc/fail/miscfail1": "does not compile, as it should not",
    "misc/fail/miscfail2": "a loop invariant does not suffice for the proof; the kernel has no race",
    "misc/fail/miscfail6": "an array of size 0, which NVRTC refuses",
    "misc/fail/miscfail7": "only for a null pointer as the argument",
    "misc/pass": "calls a function without a body",
    "predication": "calls a function without a body",
    "pointertests/test12": "all threads store the same pointer and read it back, with no barrier between",
    "return_val": "GPUVerify's front end stops; there is no kernel",
    "warpsync": "lanes of a warp in lockstep without __syncwarp, which no GPU since Volta promises",
}


def compiled(source: str, arch: str, include: list[Path], defines: list[str]) -> str:
    """Return the PTX of a source, in which nothing is optimised away. Raises EmulatorError with the log."""
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, None, None)
    options = [
        f"--gpu-architecture={arch}",
        "--device-debug",
        "--std=c++17",
        "--device-as-default-execution-space",
    ]
    options += defines
    options += [f"--include-path={folder}" for folder in include]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if status:
        log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.rstrip(b"\0").decode()
        raise EmulatorError(next((line for line in text.splitlines() if "error" in line), text))
    ptx = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.rstrip(b"\0").decode()


def extents(text: str, option: str) -> tuple[int, ...]:
    """Return the extents that a test gives for --blockDim or --gridDim."""
    found = re.search(rf"--{option}=\[?([\d,]+)", text)
    return tuple(int(e) for e in found[1].split(",")) if found else (1,)


class Test:
    """One test: what it expects, and its launch."""

    def __init__(self, path: Path, name: str, include: list[Path]) -> None:
        text = path.read_text(encoding="utf-8", errors="replace")
        first, options, *_ = text.splitlines()
        self.name = name
        self.expected = "pass" if "pass" in first.lower() else "fail"
        self.why = first.partition(":")[2]
        self.block, self.grid = extents(options, "blockDim"), extents(options, "gridDim")
        self.block = tuple(min(e, 1024) for e in self.block)
        while np.prod(self.block) > 1024:  # more than a block has; GPUVerify does not mind
            self.block = (max(1, self.block[0] // 2), *self.block[1:-1], max(1, self.block[-1] // 2))
        if np.prod(self.grid) * np.prod(self.block) > _THREADS:
            self.grid = tuple(min(e, 4) for e in self.grid)
        defines = re.findall(r"-D\w+=\d+", options)
        body = re.sub(r'#include\s*[<"]cuda.h[>"]', "", text)
        if "cooperative_groups" in body:
            body = _GROUPS + body
        self.ptx = compiled(_HEAD + body, "compute_80", include, defines)
        entries = parse(self.ptx)
        if not entries:
            raise EmulatorError("there is no kernel in it")
        self.entry: Entry = next(iter(entries.values()))
        kernel = re.search(r"__global__[^(]*?(\w+)\s*\(([^)]*)\)", re.sub(r"//.*", "", body), re.DOTALL)
        self.declared = [one.strip() for one in kernel[2].split(",")] if kernel and kernel[2].strip() else []
        numbers = {int(n) for n in re.findall(r"\b\d{1,6}\b", body)} | {0, 1, 2, int(np.prod(self.block))}
        pairs = list(itertools.combinations(numbers, 2))
        mixed = {abs(a - b) for a, b in pairs} | {a + b for a, b in pairs} | {n + 1 for n in numbers}
        self.numbers = sorted(numbers), sorted(mixed)
        pinned = re.findall(r"__requires\(\s*(\w+)\s*==\s*(\d+)\s*\)", body)
        self.structs = set(re.findall(r"(?:struct|class)\s+(\w+)", body))
        self.pinned = {name: int(value) for name, value in pinned}

    def arguments(self, rng: np.random.Generator) -> list[Any]:
        """Draw the arguments of a launch."""
        found: list[Any] = []
        for parameter, text in itertools.zip_longest(self.entry.parameters, self.declared, fillvalue="*"):
            if parameter.size == 8 and "*" in text:
                array = rng.integers(0, 64, _BYTES // 4).astype(np.int32)
                found.append(Buffer(array=array, name=parameter.name))
            else:
                found.append((parameter.size, text))
        pool = self._pool([one for one in found if isinstance(one, Buffer)])
        return [one if isinstance(one, Buffer) else self._value(rng, *one, pool) for one in found]

    def _value(self, rng: np.random.Generator, size: int, text: str, pool: int) -> Any:
        """Draw a scalar, or a struct of `size` bytes full of pointers to places of the pool."""
        kind, _, name = text.rpartition(" ")
        if size in (1, 2, 4, 8) and kind.split()[-1:] not in ([], *([w] for w in self.structs)):
            value = self.pinned.get(name, int(rng.choice(self.numbers[int(rng.integers(2))])))
            if kind == "funcType":
                value = FUNCTIONS + 16 * int(rng.integers(4))
            return np.frombuffer((value % (1 << 8 * size)).to_bytes(size, "little"), f"u{size}")[0]
        slots = range(-(-size // 8))
        raw = b"".join((pool + i * (_BYTES // len(slots)) // 64 * 64).to_bytes(8, "little") for i in slots)
        return np.frombuffer(raw[:size], f"V{size}")[0]

    def _pool(self, buffers: list[Buffer]) -> int:
        """Return the device address that `_POOL` will have."""
        module = [v for v in self.entry.variables.values() if v.space in ("global", "const")]
        names = [v.name == _POOL for v in module]
        if True not in names:
            return 0
        others = [Buffer(array=np.zeros(v.size, np.uint8), name=v.name) for v in module]
        return Arena([*buffers, *others]).allocations[len(buffers) + names.index(True)].start

    def run(self, rng: np.random.Generator) -> Emulation | None:
        """Run the test on one draw; return None if that does not meet what the test requires."""
        ran = emulate(
            self.ptx,
            self.entry.name,
            grid=self.grid,
            block=self.block,
            arguments=self.arguments(rng),
            count=False,
            budget=1_000_000,
        )
        return None if _UNMET in ran.output else ran


def judged(path: Path, name: str, include: list[Path], seed: int) -> dict[str, Any]:
    """Return the record's row of one test."""
    began = time.perf_counter()
    first = path.read_text(encoding="utf-8", errors="replace").splitlines()[0].lower()
    row: dict[str, Any] = {"test": name, "expected": "pass" if "pass" in first else "fail", "found": []}
    row |= {"error": "", "draws": 0}
    ours = ""
    try:
        test = Test(path, name, include)
        for draw in range(DRAWS):
            try:
                ran = test.run(np.random.default_rng([seed, draw]))
            except NeedsGpu:
                raise
            except EmulatorError as error:
                ours, row["error"] = "fail", str(error).splitlines()[0]
                row["found"] = sorted({f.kind for f in getattr(error, "findings", ()) if not f.benign})
                break
            if ran is None:
                continue
            row["draws"] += 1
            row["found"] = sorted({f.kind for f in ran.findings if f.kind != "uninitialised read"})
            ours = "fail" if row["found"] else "pass"
            if row["found"] or not any(len(t) for t in test.declared if "*" not in t):
                break
        ours = ours or "not run"
        if not row["error"] and ours == "not run":
            row["error"] = "no draw met what the test requires"
    except HarnessError as error:
        ours, row["error"] = "not run", str(error).splitlines()[0]
    row["ours"] = ours
    reason = next((why for start, why in REASONS.items() if name.startswith(start)), "")
    row["reason"] = "" if ours == row["expected"] else reason
    row["seconds"] = round(time.perf_counter() - began, 3)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--include", type=Path, action="append", default=[], help="a folder with headers")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", default="", help="only tests whose name contains this")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    options = parser.parse_args()
    rows = []
    for path in sorted(options.folder.rglob("kernel.cu")):
        name = path.parent.relative_to(options.folder).as_posix()
        if options.only in name:
            rows.append(judged(path, name, options.include, options.seed))
            row = rows[-1]
            if row["ours"] != row["expected"]:
                told = [*row["found"], *([row["error"]] if row["error"] else [])]
                print(
                    f"{name}: {row['expected']}, ours {row['ours']}: {'; '.join(told)} [{row['reason']}]",
                    flush=True,
                )
    if not rows:
        parser.error(f"no test below {options.folder}")
    tally = Counter((row["expected"], row["ours"]) for row in rows)
    cells = [[e, *(str(tally[e, o]) for o in ("pass", "fail", "not run"))] for e in ("pass", "fail")]
    print(plain_table(cells, ["GPUVerify expects", "ours: pass", "fail", "not run"]))
    print(f"seed {options.seed}, the slowest test {max(r['seconds'] for r in rows):.1f} s")
    if options.json:
        meta = {**record.provenance(seed=options.seed), "draws": DRAWS}
        record.write_json(options.json, record.document("gpuverify", rows, meta))
    return 0


if __name__ == "__main__":
    sys.exit(main())
