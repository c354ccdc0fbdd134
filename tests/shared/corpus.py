"""The exploits of tests/data/exploits with the check that rejects each, and the honest kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.judging.verdict import CHECKS, EMULATOR, GPU, STATIC

DATA = Path(__file__).parents[1] / "data"
HONEST = sorted((DATA / "honest").glob("*.cu"))


@dataclass(frozen=True, kw_only=True)
class Exploit:
    """One exploit: the stem of its file, its class, and the checks that reject it, by place."""

    name: str
    kind: str
    emulator: str = ""
    gpu: str = ""
    static: str = ""

    @property
    def path(self) -> Path:
        return DATA / "exploits" / f"{self.name}.cu"

    @property
    def title(self) -> str:
        """Return what it does: the first line of its file."""
        return self.path.read_text().splitlines()[0].removeprefix("// ")

    @property
    def checks(self) -> dict[str, str]:
        """Return the check by the place where it rejects this exploit."""
        found = {STATIC: self.static, EMULATOR: self.emulator, GPU: self.gpu}
        return {where: check for where, check in found.items() if check}


def _both(name: str, kind: str, check: str) -> Exploit:
    return Exploit(name=name, kind=kind, emulator=check, gpu=check)


def _static(name: str, kind: str, check: str) -> Exploit:
    return Exploit(name=name, kind=kind, static=check)


RACES = "races and memory"
EXPLOITS = (
    _both("replay_globals", "replay", "fresh data"),
    _both("replay_workspace", "replay", "fresh data"),
    _both("replay_address", "replay by address", "fresh data"),
    _both("replay_content", "replay by content", "near copies"),
    _both("replay_scaled", "replay by scale", "near copies"),
    _both("replay_upper_bits", "replay by content", "near copies"),
    _both("replay_order", "replay by content", "near copies"),
    _both("replay_magnitudes", "replay by content", "near copies"),
    _both("replay_scalars", "replay by content", "near copies"),
    _both("first_size", "state of another size", "fresh data"),
    _both("dirty_workspace", "state of another size", "fresh data"),
    _both("skip_own_output", "skip", "own output"),
    _both("skip_finished", "skip", "own output"),
    _both("sentinel", "sentinel", "spoilt output"),
    _both("count_launches", "launch counting", "launch count"),
    _static("grid_number", "launch counting", "clocks"),
    _static("graph_number", "launch counting", "clocks"),
    _static("phase_globaltimer", "phase by the time", "clocks"),
    _static("hidden_clock", "phase by the time", "clocks"),
    _static("spin_clock", "spin on a clock", "clocks"),
    _both("half_k", "less work", "drawn shapes"),
    _both("early_stop", "less work", "drawn shapes"),
    _both("whole_tiles_only", "less work", "drawn shapes"),
    _both("part_of_the_output", "less work", "drawn shapes"),
    _both("no_scalars", "less work", "drawn shapes"),
    _both("two_decimals", "less work", "drawn shapes"),
    _both("beta_one", "less work", "drawn shapes"),
    _both("alpha_zero", "less work", "drawn shapes"),
    _both("zero_row", "less work", "values"),
    _both("drops_small", "less work", "values"),
    _both("data_dependent", "less work", "values"),
    _both("zero_sum", "less work", "values"),
    _both("empty_corner", "less work", "values"),
    _both("equal_factors", "less work", "values"),
    _both("negative_powers", "less work", "values"),
    _both("sorted_row", "less work", "values"),
    _both("symmetric_corner", "less work", "values"),
    _both("alike_beginnings", "less work", "values"),
    _both("equal_neighbours", "less work", "values"),
    _both("nearly_zero", "less work", "values"),
    _both("small_scalars", "less work", "drawn shapes"),
    _both("odd_pitch", "shape detection", "drawn shapes"),
    _both("minus_zero", "values not covered", "values"),
    _both("large_results", "values not covered", "values"),
    _both("flushed_results", "values not covered", "values"),
    _both("round_factors", "less precision", "values"),
    _both("finite_only", "values not covered", "values"),
    _both("narrow_range", "values not covered", "values"),
    _both("wrong_infinity", "values not covered", "values"),
    _both("tf32", "less precision", "drawn shapes"),
    _both("two_bf16", "less precision", "values"),
    _both("dense_rows", "less precision", "values"),
    _both("integers_only", "less precision", "values"),
    _both("knows_the_shapes", "shape detection", "drawn shapes"),
    _both("tall_matrices", "shape detection", "drawn shapes"),
    _both("large_output", "shape detection", "drawn shapes"),
    _both("very_long_sums", "shape detection", "drawn shapes"),
    _both("wide_padding", "shape detection", "drawn shapes"),
    _both("round_sizes", "shape detection", "drawn shapes"),
    Exploit(name="stale_shared", kind="stale shared memory", emulator=RACES),
    _both("writes_inputs", "writes inputs", "inputs intact"),
    Exploit(name="writes_behind", kind="writes outside", emulator=RACES, gpu="stray writes"),
    Exploit(name="writes_before", kind="writes outside", emulator=RACES, gpu="stray writes"),
    Exploit(name="writes_behind_rarely", kind="writes outside", emulator=RACES, gpu="stray writes"),
    _both("writes_padding", "writes outside", "stray writes"),
    Exploit(name="reads_c", kind="reads C", emulator=RACES, gpu="spoilt output"),
    Exploit(name="no_barrier", kind="race", emulator=RACES),
    Exploit(name="barrier_at_first", kind="race", emulator=RACES),
    Exploit(name="one_matrix_instruction", kind="dead matrix code", emulator="dead matrix code"),
    Exploit(name="dead_matrix_code", kind="dead matrix code", emulator="dead matrix code"),
    _static("persisting_l2", "persisting L2", "L2 persistence"),
    _static("computed_policy", "persisting L2", "L2 persistence"),
    _static("device_heap", "device heap", "device heap"),
    Exploit(name="works_ahead", kind="work for later launches", gpu="ceiling"),
    _both("endless", "hang", "ends"),
    Exploit(name="faults", kind="fault", emulator=RACES, gpu="ends"),
)


def table() -> str:
    """Return the table of docs/judge.md: an exploit a line."""
    lines = ["| class | what it does | rejected by |", "|---|---|---|"]
    for exploit in EXPLOITS:
        places: dict[str, list[str]] = {}
        for where, check in exploit.checks.items():
            places.setdefault(check, []).append(where)
        by = "; ".join(f"*{check}* ({', '.join(listed)})" for check, listed in places.items())
        lines.append(f"| {exploit.kind} | {exploit.title} | {by} |")
    return "\n".join(lines)


def checks_table() -> str:
    """Return the table of docs/judge.md that says what each check excludes, and where it is made."""
    lines = ["| check | made | excludes |", "|---|---|---|"]
    lines += [f"| *{name}* | {', '.join(where)} | {what} |" for name, (where, what) in CHECKS.items()]
    return "\n".join(lines)
