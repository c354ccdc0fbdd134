"""Tables of the emulator: its counts, its speed, and the faults that it finds."""

from __future__ import annotations

from harness.results.rows import params_text
from harness.results.tables import plain_table
from readme.records import linked, load

# Which of ncu's counters the table shows, and under which heading.
_COUNTERS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors",
    "smsp__inst_executed_op_shared_ld.sum": "shared loads",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "wavefronts",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "conflicts",
    "sm__inst_executed_pipe_tensor_op_hmma.sum": "matrix instructions",
    "lts__t_sectors_srcunit_tex_op_read.sum": "sectors from L2",
}


def emulator() -> str:
    """Return the emulator's counts beside ncu's counters: one number where they are equal."""
    record = load("scripts/calibrate_emulator")
    cells = []
    rows = [r for r in record["rows"] if r.get("compiled") and r["measured"]]  # others have an error
    columns = [n for n in _COUNTERS if all(n in r["compiled"] and n in r["measured"] for r in rows)]
    for r in rows:
        pairs = [(r["measured"][name], r["compiled"][name]) for name in columns]
        equal = [f"{ours:,}" if ours == theirs else f"{ours:,} / {theirs:,.0f}" for theirs, ours in pairs]
        cells.append([r["kernel"], params_text(r["params"]), r["shape"], *equal, r["bits"]])
    meta = record["meta"]
    compiler = rows[0]["compiler"]
    headings = ["kernel", "parameters", "n", *(_COUNTERS[name] for name in columns), "output bits"]
    note = (
        f"One number: emulated and measured are equal; otherwise emulated / measured. {meta['gpu']['name']}, "
        f"driver {meta['gpu']['driver']}, {compiler}; {linked('scripts/calibrate_emulator.py', record)}, "
        f"{meta['utc'][:10]}. "
        "ncu counts a cp.async as a shared load, too, and more sectors where copies are zero-filled; at "
        "ragged edges the hardware repeats a few wavefronts."
    )
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def emulator_speed() -> str:
    """Return the seconds that the emulator takes for a launch."""
    record = load("benchmarks/emulator_speed", "cpu")
    sizes = list(dict.fromkeys(r["n"] for r in record["rows"]))
    by_kernel: dict[str, list[str]] = {}
    for r in record["rows"]:
        by_kernel.setdefault(r["kernel"], []).append(f"{r['seconds']:.2g}")
    cells = [[kernel, *times] for kernel, times in by_kernel.items()]
    peak = record["meta"]["peak_bytes"] / 2**20
    day = record["meta"]["utc"][:10]
    made = linked("benchmarks/emulator_speed.py", record)
    note = f"Two cores of a server, {made}, {day}; {peak:.0f} MiB at most."
    return f"{plain_table(cells, ['seconds at n =', *map(str, sizes)], 'md')}\n\n{note}"


def emulator_hopper() -> str:
    """Return how the emulator fares on the Hopper rungs: right shapes, findings, seconds and memory."""
    record = load("benchmarks/emulator_hopper", "cpu")
    cells = []
    for rung in dict.fromkeys(r["rung"] for r in record["rows"]):
        rows = [r for r in record["rows"] if r["rung"] == rung]
        cells.append(
            [
                rows[0]["kernel"],
                params_text(rows[0]["params"]),
                f"{sum(r['status'] == 'ok' for r in rows)}/{len(rows)}",
                str(sum(len(r["findings"]) for r in rows)),
                f"{max(r['seconds'] for r in rows):.1f}",
                f"{max(r['peak_bytes'] for r in rows) / 2**20:.0f}",
            ]
        )
    meta, made = record["meta"], linked("benchmarks/emulator_hopper.py", record)
    headings = ["kernel", "parameters", "right", "findings", "slowest (s)", "peak (MiB)"]
    note = f"One core of a server, {made} --seed {meta['seed']}, {meta['utc'][:10]}."
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def emulator_peers() -> str:
    """Return the CPU seconds of the same kernels in the emulator and in its peers."""
    record = load("benchmarks/emulator_peers", "cpu")
    peers = [name for name in record["rows"][0] if name not in ("kernel", "harness")]
    cells = [
        [r["kernel"], f"{r['harness']:.2g}", *(f"{r[p]:.2g} ({r[p] / r['harness']:.0f}x)" for p in peers)]
        for r in record["rows"]
    ]
    note = f"{linked('benchmarks/emulator_peers.py', record)}, {record['meta']['utc'][:10]}."
    return f"{plain_table(cells, ['CPU seconds', 'harness', *peers], 'md')}\n\n{note}"


def indigo() -> str:
    """Return what the emulator found of the bugs that were planted in Indigo's kernels."""
    record = load("scripts/indigo", "cpu")
    cells = []
    races = {"race": ("race", "hazard"), "bounds": ("bounds", "uninitialised")}
    for bug, words in races.items():
        seen = [
            (bug in row["planted"], any(word in kind for kind in row["found"] for word in words))
            for row in record["rows"]
        ]
        name = {"race": "races", "bounds": "accesses out of bounds"}[bug]
        cells.append(
            [name, *(str(seen.count(pair)) for pair in ((True, True), (True, False), (False, True)))]
        )
    slowest = max(row["seconds"] for row in record["rows"])
    note = (
        f"{len(record['rows'])} kernels, at most {record['meta']['graphs']} graphs each, the slowest launch "
        f"{slowest:.1f} s; {linked('scripts/indigo.py', record)}, {record['meta']['utc'][:10]}."
    )
    return f"{plain_table(cells, ['planted', 'found', 'missed', 'false alarms'], 'md')}\n\n{note}"


def gpuverify() -> str:
    """Return GPUVerify's verdicts on its tests beside the emulator's, and why they differ."""
    record = load("scripts/gpuverify", "cpu")
    verdicts = ("pass", "fail", "not run")
    pairs = [(row["expected"], row["ours"]) for row in record["rows"]]
    cells = [[told, *(str(pairs.count((told, ours))) for ours in verdicts)] for told in verdicts[:2]]
    table = plain_table(cells, ["GPUVerify", *(f"emulator: {ours}" for ours in verdicts)], "md")
    reasons: dict[tuple[str, str, str], int] = {}
    for row in record["rows"]:
        if row["ours"] != row["expected"]:
            key = row["reason"], row["expected"], row["ours"]
            reasons[key] = reasons.get(key, 0) + 1
    told = [
        [f"{expected} / {ours}", str(count), reason]
        for (reason, expected, ours), count in sorted(reasons.items(), key=lambda item: item[0][1:])
    ]
    why = plain_table(told, ["GPUVerify / emulator", "tests", "why"], "md")
    note = f"{linked('scripts/gpuverify.py', record)}, {record['meta']['utc'][:10]}."
    return f"{table}\n\n{why}\n\n{note}"
