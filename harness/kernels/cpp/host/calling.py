"""Find launches in host code: ``k<<<grid, block>>>(x)``, ``cudaLaunchKernelEx(&config, k, x)``."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from harness.kernels import text
from harness.kernels.cpp.host import values

_LAUNCH = re.compile(  # no stream into which a text goes, of which a blank is left: cout <<   << endl
    r"\b([A-Za-z_][\w:]*)\s*(<(?!\s*<)[^;{}]{0,300}?>)?\s*<<\s*<(?!\s*<)(.{0,400}?)>>\s*>", re.DOTALL
)
_CONFIGURED = re.compile(
    r"\bcudaLaunchKernelEx\s*\(\s*&?\s*(\w+)\s*,\s*&?([A-Za-z_][\w:]*)\s*(<[^;{}()]{0,300}?>)?"
    r"\s*,?([^;{}]{0,500}?)\)\s*[;)]"
)
_LISTED = re.compile(r"\bcudaLaunch(?:Cooperative)?Kernel(ExC)?\s*(\()")
_FUNCTION = re.compile(
    r"(?:\([^()]*\)|\w+_cast\s*<[^<>]*>\s*\()?\s*&?\s*([A-Za-z_][\w:]*)\s*(<[^;{}()]*>)?\s*\)?", re.DOTALL
)
_POINTER = re.compile(r"\b([A-Za-z_]\w*)(?:\s*\)\s*\([^;{}()]*\))?\s*=(?!=)")
_ARGUMENTS = re.compile(r"\s*\(((?:[^;{}]|\{(?:[^;{}]|\{[^;{}]{0,100}\}){0,200}\}){0,500}?)\)\s*;")
_KEPT = 4  # texts: of a file with hundreds of kernels each asks for all launches


class Called(NamedTuple):
    """A launch as text.

    place, kernel, template, arguments: where it stands, and what is launched with what
    launch: grid, block and shared memory
    end: where the arguments end, which are addresses in a list, with `mark` in front of each; -1 if not known
    follows: whether there is something before a further one, which follows a comma
    """

    place: int
    kernel: str
    template: str
    arguments: str
    launch: tuple[str, str, str]
    end: int
    follows: bool = True
    mark: str = ""


@functools.lru_cache(maxsize=_KEPT)
def calls(plain: str) -> tuple[Called, ...]:
    """Return the launches of a blank text, in its order."""
    pointers = {*_POINTER.findall(plain)}
    return tuple(sorted([*_written(plain, pointers), *_by_function(plain, pointers)]))


def _written(plain: str, pointers: Collection[str]) -> Iterator[Called]:
    """Yield launches in angle brackets, and by ``cudaLaunchKernelEx``."""
    for at in _LAUNCH.finditer(plain):
        grid, block, shared = (*text.split(at[3]), "", "", "")[:3]
        kernel = _pointed(plain[: at.start()], at[1], at[2] or "", pointers)
        begin, end = _passed(plain, at.end())
        given = plain[begin:end]
        yield Called(at.start(), *kernel, given, (grid, block, shared), end or -1, bool(given.strip()))
    for at in _CONFIGURED.finditer(plain):
        before = plain[: at.start()]
        kernel = _pointed(before, at[2], at[3] or "", pointers)
        yield Called(at.start(), *kernel, at[4], _configured(before, at[1]), at.end(4))


def _by_function(plain: str, pointers: Collection[str]) -> Iterator[Called]:
    """Yield launches by ``cudaLaunchKernel`` and its kin, which take a list of addresses."""
    for at in _LISTED.finditer(plain):
        given = text.split(plain[at.end() : text.closing(plain, at.start(2))])
        before = plain[: at.start()]
        if len(given) == 3 and at[1]:  # cudaLaunchKernelExC(&config, (void*)k, arguments)
            launch, function, listed = _configured(before, given[0].strip("& ")), given[1], given[2]
        elif len(given) > 3 and not at[1]:
            launch, function, listed = (given[1], given[2], (*given, "0")[4]), given[0], given[3]
        else:
            continue
        if named := _FUNCTION.fullmatch(function):
            kernel, lists = _pointed(before, named[1], named[2] or "", pointers), [*_lists(before, listed)]
            end, follows = (lists[-1].end(1), bool(lists[-1][1].strip())) if lists else (-1, False)
            yield Called(at.start(), *kernel, _listed(before, listed), launch, end, follows, "&")


def _passed(plain: str, place: int) -> tuple[int, int]:
    """Return where the arguments behind ``>>>`` begin and end, (0, 0) where that is not known.

    A macro around the launch, ``CHECK(k<<<1, n>>>(x, n));``, closes behind them.
    """
    if not (passed := _ARGUMENTS.match(plain, place)):
        return 0, 0
    return passed.start(1), text.closing(plain, passed.start(1) - 1)


def _configured(before: str, name: str) -> tuple[str, str, str]:
    """Return the grid, block and shared memory of a ``cudaLaunchConfig_t`` at the end of a text."""
    members = ("gridDim", "blockDim", "dynamicSmemBytes")
    listed = re.findall(rf"\b{name}\s*=?\s*\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}", before)
    parts = text.split(listed[-1]) if listed else []
    named = {at[1]: at[2] for part in parts if (at := re.match(r"\.\s*(\w+)\s*=?\s*(.*)", part, re.DOTALL))}
    begun = named or dict(zip(members, parts, strict=False))
    grid, block, shared = (
        last(before, rf"\b{name}\s*\.\s*{member}") or begun.get(member, "") for member in members
    )
    return grid, block, shared


def _pointed(before: str, name: str, template: str, pointers: Collection[str]) -> tuple[str, str]:
    """Return the kernel and template arguments of a name, which may be one of `pointers`: ``f = &k<64>;``."""
    if template or name not in pointers:
        return name, template
    given = re.findall(rf"\b{name}(?:\s*\)\s*\([^;{{}}()]*\))?\s*=(?!=)([^;{{}}]*);", before)
    value = "".join(given[-1:])
    chosen = re.sub(r"\A[^?]*\?\s*([^:?]*(?:::[^:?]*)*):(?!:).*", r"\1", value, flags=re.DOTALL).strip()
    function = _FUNCTION.fullmatch(chosen)
    return (function[1], function[2] or "") if function else (name, template)


def _listed(before: str, written: str) -> str:
    """Return the arguments of a list of their addresses, ``void* args[] = {&x, &n};``."""
    lists = [*_lists(before, written)]
    place = rf"\b{re.escape(_array(written))}\s*\[\s*(\d+)\s*\]\s*=(?!=)\s*([^;]+);"
    places: dict[str, str] = dict(re.findall(place, before)) if not lists else {}
    given = text.split(lists[-1][1]) if lists else [places[n] for n in sorted(places, key=int)]
    return ", ".join(re.sub(r"\A(?:\([\w\s*]+\)|&|\s)+", "", part) for part in given)


def _lists(before: str, written: str) -> Iterator[re.Match[str]]:
    """Yield the lists that an array is given in a text, also one in dynamic memory."""
    made = r"(?:new\s+(?:const\s+)?void\s*\*\s*\[[^]]*\]\s*)?"
    name = re.escape(_array(written))
    yield from re.finditer(rf"\b{name}\s*(?:\[[^]]*\])?\s*=?\s*{made}\{{([^{{}}]*)\}}", before)


def _array(written: str) -> str:
    """Return the name of an array that is passed, ``args`` of ``args.data()``."""
    return re.sub(r"\.\s*data\s*\(\s*\)|\A\s*&|\[\s*0\s*\]\Z", "", written).strip()


def last(plain: str, name: str) -> str:
    """Return what a text assigns last to a name, a pattern; "" for one that it never gives a value."""
    found = [at.end() for at in re.finditer(rf"{name}\s*=(?!=)", plain)]
    return values.value_at(plain, found[-1]) if found else ""
