"""Say what calls of host code leave in buffers: cudaMemset, copies, and algorithms of Thrust and CUB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp.host import allocations

LAUNCH, ALLOCATE, FILL, COPY, GIVEN, LOST = "launch", "allocate", "fill", "copy", "given", "lost"
SCANS = ("exclusive_scan", "inclusive_scan")
SEQUENCE = "sequence"
NOTHING = ("nullptr", "NULL", "0")

_HARMLESS = re.compile(
    r"cuda(?!Memcpy|Memset)\w*|cu[A-Z]\w*|printf|fprintf|free|delete|sizeof|if|for|while|switch|return|assert|dim3"
    r"|malloc|calloc|memset|memcpy|\w*pointer_cast|device_ptr|data|data_ptr|get|begin|end|size|numel"
    r"|[A-Z_\d]*(?:CHECK|ERROR|ERR|CALL|SAFE|TRY|CUDA)[A-Z_\d]*|check\w*|gpuErrchk|checkCudaErrors|static_cast"
    r"|cout|cerr|endl|min|max|push_back|catch|defined|reinterpret_cast|void|int|float|raw_pointer_cast|resize"
)
_WRAPPED = re.compile(r"\bdevice_ptr\s*<[^<>;]*>\s+(\w+)\s*([({=])")
_ANOTHER = re.compile(r"\s*,\s*(\w+)\s*([({=])")
_ZEROED = re.compile(r"\bdevice_vector\s*<[^;<>]{1,100}>\s+([^;]{1,300});")
_POLICY = re.compile(
    r"(?:thrust\s*::\s*)?(?:device|host|seq)|[\w:.]*\bpar(?:_nosync)?\b.*|\w*(?:policy|exec)\w*"
)
_END = re.compile(r"(\w+)\s*\.\s*(c?begin|c?end)\s*\(\s*\)\s*(?:\+\s*(.+))?")
_AFTER = re.compile(r"(.+?)\s*\+\s*(.+)", re.DOTALL)
_Reader = Callable[[str], str]
_CUB = {"ExclusiveSum": "exclusive_scan", "InclusiveSum": "inclusive_scan"}
_UNDERSTOOD = re.compile(
    r">>\s*>\s*\(|\bcuda(?:Memset|Memcpy)(?:Async)?\s*\(|\bcuda(?:Malloc|Free)(?:Async)?\s*\("
    rf"|\b(?:{'|'.join((*SCANS, 'sort_by_key', SEQUENCE, *_CUB))})\s*\("
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that host code does with buffers.

    kind: `LAUNCH`; `ALLOCATE`, values are its bytes; `FILL` with a byte, over so many bytes, the
      values; `COPY` from the second buffer, so many bytes; `GIVEN` by the host, so many; `LOST`: nobody
      knows what it holds; or an algorithm of Thrust by its name, over so many elements
    buffers: their names, "" for what is none or a place within one; of a launch one for each argument
    values: expressions over names of the host, "" for what is no number; of a launch one for each argument
    grid: the blocks of a launch, as values are; empty where they are not known
    entry: the kernel, or the function that is called
    place: where it stands in the text
    loops: the loops that it is in
    """

    kind: str
    entry: str = ""
    buffers: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    grid: tuple[str, ...] = ()
    place: int = 0
    loops: frozenset[tuple[int, int]] = frozenset()


def steps(name: str, arguments: Sequence[str], value: _Reader, buffer: _Reader) -> Iterator[Step]:
    """Yield what a call leaves in buffers; `value` and `buffer` read an argument as a number, or a buffer."""
    space, _, base = name.rpartition("::")
    given = [*arguments, "", "", "", ""]
    if base in ("cudaMemset", "cudaMemsetAsync", "device_vector"):
        yield Step(kind=FILL, buffers=(buffer(given[0]),), values=(value(given[1]), value(given[2])))
    elif base in ("cudaMemcpy", "cudaMemcpyAsync"):
        yield from _copied(given, value, buffer)
    elif "thrust" in space or base in (*SCANS, "sort_by_key"):
        yield from _thrust(base, [a for a in arguments if not _POLICY.fullmatch(a.strip())], value, buffer)
    elif base in _CUB and len(arguments) > 4 and arguments[0].strip() not in NOTHING:
        yield Step(
            kind=_CUB[base], buffers=(buffer(given[2]), buffer(given[3])), values=(value(given[4]), "0")
        )
    elif not _HARMLESS.fullmatch(base):
        lost = tuple(filter(None, (buffer(a) for a in arguments)))
        if lost:
            yield Step(kind=LOST, buffers=lost)


def _copied(given: Sequence[str], value: _Reader, buffer: _Reader) -> Iterator[Step]:
    """Yield what a copy leaves: nothing new where it goes to the host."""
    if "HostToDevice" in given[3]:
        yield Step(kind=GIVEN, buffers=(buffer(given[0]),), values=(value(given[2]),))
    elif "DeviceToDevice" in given[3]:
        yield Step(kind=COPY, buffers=(buffer(given[0]), buffer(given[1])), values=(value(given[2]),))
    elif "DeviceToHost" not in given[3]:
        yield Step(kind=LOST, buffers=(buffer(given[0]),))


def _thrust(name: str, given: Sequence[str], value: _Reader, buffer: _Reader) -> Iterator[Step]:
    """Yield what an algorithm of Thrust leaves; nobody knows it of those that are not listed here."""
    if _HARMLESS.fullmatch(name):
        return
    ranges = [_place(a) for a in given]
    buffers = tuple(buffer(base) if base else "" for base, _ in ranges)
    base = name.removeprefix("stable_")
    whole = len(ranges) > 1 and buffers[0] and buffers[0] == buffers[1] and not ranges[0][1]
    count = "" if not whole or ranges[1][1] == "end" else value(ranges[1][1])
    sure = whole and (count or ranges[1][1] == "end")
    if sure and base in SCANS and len(given) in (3, 4) and not ranges[2][1]:
        first = value(given[3]) if len(given) == 4 else "0"
        if base == "exclusive_scan" or len(given) == 3:
            yield Step(kind=base, buffers=(buffers[0], buffers[2]), values=(count, first))
            return
    if sure and base == "sort_by_key" and len(given) == 3 and not ranges[2][1]:
        yield Step(kind=base, buffers=(buffers[0], buffers[2]), values=(count,))
    elif sure and base in ("sort", SEQUENCE) and len(given) == 2:
        yield Step(kind=base, buffers=(buffers[0],), values=(count,))
    elif sure and base == "fill" and len(given) == 3 and value(given[2]) in ("0", "-1"):
        byte = "0" if value(given[2]) == "0" else "255"
        yield Step(kind=FILL, buffers=(buffers[0],), values=(byte, ""))
    elif base not in ("reduce", "transform_reduce", "count", "max_element", "min_element", "device"):
        yield Step(kind=LOST, buffers=tuple(filter(None, buffers)))


def _place(written: str) -> tuple[str, str]:
    """Return (buffer, elements to the place) of an iterator: ``x + n``, ``x.begin()``; "end" for its end."""
    written = written.strip()
    if at := _END.fullmatch(written):
        return at[1], at[3] or ("end" if at[2].endswith("end") else "")
    inner = allocations.uncast(written)
    if inner != written:
        base, more = _place(inner)
        return base, more
    if at := _AFTER.fullmatch(written):
        base, more = _place(at[1])
        return (base, at[2]) if not more else ("", "")
    return written, ""


def understood(plain: str) -> Iterator[str]:
    """Yield each argument of a text's launches, and of the calls whose effect is known."""
    for at in _UNDERSTOOD.finditer(plain):
        closed = text.closing(plain, at.end() - 1)
        if closed > 0:
            yield from text.split(plain[at.end() : closed])


def wrapped(plain: str) -> Iterator[tuple[int, str, str]]:
    """Yield (place, name, buffer) of what is declared as another name: ``thrust::device_ptr<int> p(x)``."""
    for at in _WRAPPED.finditer(plain):
        one: re.Match[str] | None = at
        while one:  # ``p(x), q(y);``
            end = text.closing(plain, one.end() - 1) if one[2] != "=" else plain.find(";", one.end())
            yield one.start(1), one[1], plain[one.end() : end].strip()
            one = _ANOTHER.match(plain, end + 1) if one[2] != "=" and end > 0 else None


def asks(name: str, before: str, arguments: Sequence[str]) -> bool:
    """Return True where CUB is only asked how many bytes it wants, behind a text: storage is no pointer yet.

    Between ``= nullptr`` and such a call nobody gets the storage but others of CUB.
    """
    storage = arguments[0].strip() if arguments and name.rpartition("::")[2] in _CUB else ""
    if not storage.isidentifier():
        return False
    *_, last = [None, *re.finditer(rf"\b{storage}\s*(?:=\s*|\{{\s*)(?:{'|'.join(NOTHING)}|\}})", before)]
    more = re.sub(rf"\bDevice\w+::\w+\s*\(\s*{storage}\b", "", before[last.end() :]) if last else storage
    return not re.search(rf"\b{storage}\b", more)


def zeroed(plain: str) -> Iterator[tuple[int, str]]:
    """Yield (place, name) of Thrust's vectors that are made of zeros, ``device_vector<int> x(n)``."""
    for at in _ZEROED.finditer(plain):
        for part in text.split(at[1]):
            made = re.fullmatch(r"(\w+)\s*\((.*)\)", part, re.DOTALL)
            given = text.split(made[2]) if made else []
            if made and (len(given) == 1 or (len(given) == 2 and re.fullmatch(r"0(?:\.0*f?)?", given[1]))):
                yield at.start(), made[1]
