"""Show what ``--help`` has beside the options, groups and examples, and complete the names of kernels."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

# Every verb with an example, by what it is for.
GROUPS: dict[str, dict[str, str]] = {
    "Write kernels": {
        "new": "harness new softmax",
        "list": "harness list",
        "build": "harness build my/kernel.cu --arch sm_80,sm_90a",
        "sass": "harness sass tiled --source",
    },
    "Check them": {
        "check": "harness check my/kernel.cu --html page.html",
        "run": "harness run program.cu",
        "verify": "harness verify tiled -a N=[512,1000]",
        "judge": "harness judge my/kernel.cu",
    },
    "Measure them (GPU)": {
        "bench": "harness bench 'tiled*' -a N=4096 --json r.json",
        "profile": "harness profile tiled pipeline -a N=4096",
        "tune": "harness tune tiled -a N=4096",
        "replay": "harness replay r.json",
    },
    "Compare and explain": {
        "explain": "harness explain tiled",
        "compare": "harness compare main -k 'cu/*.cu'",
        "history": "harness history results/*.json --html history.html",
        "report": "harness report r.json -o report.html",
        "choose": "harness choose r.json --write",
    },
    "This machine": {
        "doctor": "harness doctor",
        "selftest": "harness selftest --only noise",
        "cache": "harness cache",
        "worker": "harness worker tcp://host:8786",
    },
}
EXAMPLES = {verb: example for group in GROUPS.values() for verb, example in group.items()}


def sections(verbs: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return headings with those of `verbs` that belong under each; what is in no group comes last."""
    left = dict.fromkeys(verbs)
    found = []
    for heading, group in GROUPS.items():
        names = [name for name in group if name in left]
        for name in names:
            del left[name]
        if names:
            found.append((heading, names))
    return [*found, *([("Others", list(left))] if left else [])]


def complete_kernels(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Return the shipped kernels whose name begins so, and files; for a shell's completion."""
    from harness.kernels import catalog

    stems = [path.stem for path in catalog.files()]
    names = [*stems, *(stem.partition("_")[2] for stem in stems if stem[:1].isdigit())]
    found = [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(begun)]
    return [*found, CompletionItem(begun, type="file")]
