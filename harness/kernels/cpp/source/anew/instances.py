"""Instances of templates: those that a text launches, else one that can be tried, ``k<float, 256>``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.kernels import text
from harness.kernels.cpp.host import deduced, launches
from harness.kernels.cpp.source.anew import lambdas

_NUMBER = re.compile(  # types of numbers by their names: T, Tdata, scalar_t
    r"(?:typename|class)\s+(?:T(?!raits|ensor|ile)[a-z]*\w?|\w*(?:[Tt]ype|[Ss]calar|[Ff]loat|[Rr]eal)(?:_?[tT])?\d?|\w+_t)"
)
THREADS = re.compile(r"(?!(?:\w*_)?(?:row|col))\w*threads\w*|block_?(?:size|dim)|tpb", re.IGNORECASE)


def listed(source: str, known: Sequence[text.Entry]) -> list[str]:
    """Return the names of the kernels that can be tried of those of a text, each once.

    A template stands for its instances, and without any for itself, if there is nothing else.
    """
    given = {entry.name.partition("<")[0] for entry in known if "<" in entry.name}
    tried = {e.name: [guessed(e)] * (e.name not in given) for e in known if e.template}
    named = [launched(source, e) or tried[e.name] if e.template else [e.name] for e in known]
    found = [name for names in named for name in names if name] or [entry.name for entry in known]
    return list({"".join(name.split()): name for name in found}.values())


def launched(source: str, entry: text.Entry) -> list[str]:
    """Return the instances of a template that a text launches; what one leaves to be deduced is guessed."""
    found = []
    for given, types in deduced.launched(lambdas.made(source), entry):
        named = f"{entry.name}<{', '.join(given)}>" if given else ""
        asked = (given or types) and len(given) < len(entry.template)
        found.append((guessed(entry, given, types) if asked else "") or named)
    return list(dict.fromkeys(filter(None, found)))


def guessed(entry: text.Entry, given: Sequence[str] = (), types: Mapping[str, str] | None = None) -> str:
    """Return an instance of a template that can be tried, ``k<float, 256>``; "" if none is known.

    After those `given` it has the `types` of parameters, else the defaults, float for the type of a number or
    of what a pointer leads to, false for a bool, and for the threads of a block those that it is launched
    with.
    """
    found = list(given)
    elements = {p.type for p in entry.parameters if p.pointer}
    for parameter, default in list(zip(entry.template, entry.defaults, strict=True))[len(found) :]:
        name = parameter.split()[-1]
        if "..." in parameter:  # a pack may have nothing
            found += [pack] if (pack := (types or {}).get(name, "")) else []
            continue
        named = parameter.startswith(("typename", "class")) and name in elements
        number = "float" if named or _NUMBER.fullmatch(parameter) else ""
        number = "int" if number and launches.INDEX.search(name) else number
        threads = THREADS.fullmatch(name) and str(entry.block[0])
        known = (types or {}).get(name) or deduced.default(default, entry.template, found)
        known = known or number or threads or ""
        found.append(known or ("false" if parameter.startswith("bool ") else ""))
    return (
        f"{entry.name}<{', '.join(found)}>" if found and all(found) and deduced.UNKNOWN not in found else ""
    )


def example(entry: text.Entry) -> str:
    """Return an instance of a template as someone may write it, where the arguments are not known."""
    types = {p.type for p in entry.parameters}  # one may be constrained by a concept, ``Number T``
    kinds = (
        "float" if p.startswith(("typename", "class")) or p.split()[-1] in types else "128"
        for p in entry.template
    )
    return guessed(entry) or f"{entry.name}<{', '.join(kinds)}>"
