"""Sound result files cut small, and what may have happened to a file on its way: one to three damages."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Iterator
from typing import Any

from shared.places import record_file

# What may stand where something else belongs. Each was a traceback somewhere, or could be one.
WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**63, 10**400, 0.5, -0.0, 1e308, 5e-324, "", " ", "x", "1", "\x1b[31m", "\ud800",
    "<script>", "../../x", "/dev/zero", "{}", "$HOME", [], {}, [[]], [None], ["x"], [0], {"": {}},
    {"x": None}, {"a": [{"b": 1}]}, [1e308, 1e308], "y" * 5000,
)  # fmt: skip


@functools.cache
def _sound(name: str) -> str:
    """Return a record cut to some rows with some samples, as JSON."""
    content = json.loads(record_file(name).read_text())
    if "benchmarks" in content:
        content["benchmarks"] = content["benchmarks"][:4]
        for i, bench in enumerate(content["benchmarks"]):
            bench["states"] = bench["states"][:2]
            for j, state in enumerate(bench["states"]):
                row = state["harness"]
                state["harness"] = {**row, "index": 2 * i + j, "times": row["times"][:6], "batches": []}
    else:
        content["rows"] = content["rows"][:4]
        for row in content["rows"]:
            row["times"] = row.get("times", [])[:6]
    return json.dumps(content)


KINDS = {
    "bench": "h200/bench/ladder",
    "tune": "h200/tune/03_tiled",
    "profile": "h200/profile/ladder",
    "claims": "h200/explain/claims",
}


def sound(kind: str) -> dict[str, Any]:
    """Return a small sound record of this kind."""
    return dict(json.loads(_sound(KINDS[kind])))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of a value with each of its keys."""
    if isinstance(value, dict | list):
        for key, one in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
            yield value, key
            yield from _places(one)


def damaged(kind: str, seed: int) -> bytes:
    """Return a record of this kind with one to three damages, or its text cut or with bytes changed."""
    draw = random.Random(seed)
    content = sound(kind)
    if draw.random() < 0.1:
        text = bytearray(json.dumps(content).encode())
        for _ in range(draw.randint(1, 4)):
            text[draw.randrange(len(text))] = draw.randrange(256)
        return bytes(text[: draw.randrange(len(text))] if draw.random() < 0.3 else text)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(content))
        if not places:
            break
        # The deep places are many and the shallow ones matter as much.
        holder, key = draw.choice(places if draw.random() < 0.7 else places[:: max(1, len(places) // 50)])
        match draw.randrange(5):
            case 0:
                del holder[key]
            case 1 | 2:
                holder[key] = copy.deepcopy(draw.choice(WRONG))
            case 3:
                other, name = draw.choice(places)
                holder[key] = copy.deepcopy(other[name]) if other is not holder else draw.choice(WRONG)
            case _:
                if isinstance(holder, list):
                    holder.insert(key, copy.deepcopy(holder[key]))
                else:
                    holder[draw.choice(["times", "seconds", "params", "x" * 300, ""])] = draw.choice(WRONG)
    return json.dumps(content).encode(errors="surrogatepass")
