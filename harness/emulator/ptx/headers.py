"""Headers of PTX functions: the names and parameters of ``.entry`` and ``.func``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.emulator.ptx.declarations import BYTES, LARGEST, aligned
from harness.errors import EmulatorError

_PARAMETER = re.compile(
    r"\.(?P<space>param|reg)\b(?P<attributes>[^,()]*?)(?P<name>[\w$%]+)\s*(?:\[(?P<count>\d*)\])?\s*$"
)
_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$%]+)\s*(?:\((?P<parameters>.*?)\))?", re.DOTALL)
_FUNCTION = re.compile(
    r"\.func\s*(?:\((?P<returns>.*?)\))?\s*(?P<name>[\w$%]+)\s*(?:\((?P<parameters>.*?)\))?", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a function; `offset` and `size` are bytes within the parameter space.

    `register` is True for one that is passed in a register, ``.reg``.
    """

    name: str
    type: str
    offset: int
    size: int
    register: bool = False


@dataclass(frozen=True, kw_only=True)
class Header:
    """The name, parameters and results of a function.

    cluster: of an entry the blocks of a cluster in each extent (``.reqnctapercluster``)
    blocks: that a multiprocessor shall hold at least (``.minnctapersm``), 0 if that is not said
    most: registers that a thread may have (``.maxnreg``), 0 if that is not said
    """

    name: str
    parameters: tuple[Parameter, ...]
    returns: tuple[Parameter, ...] = ()
    cluster: tuple[int, int, int] = (1, 1, 1)
    blocks: int = 0
    most: int = 0


def header(text: str, line: int) -> Header:
    """Read the header of an ``.entry`` or ``.func``. Raises EmulatorError for text that is none."""
    entry = re.search(r"\.entry\b", text)
    match = (_ENTRY if entry else _FUNCTION).search(text)
    if not match:
        raise EmulatorError(f"an .{'entry' if entry else 'func'} without a name", where=f"PTX line {line}")
    return Header(
        name=match["name"],
        parameters=_parameters(match["parameters"], line),
        returns=() if entry else _parameters(match["returns"], line),
        cluster=_extents(text, "reqnctapercluster"),
        blocks=_number(text, "minnctapersm"),
        most=_number(text, "maxnreg"),
    )


def _extents(text: str, directive: str) -> tuple[int, int, int]:
    """Return the numbers of a directive in an entry's header; 1 for those that it leaves out."""
    match = re.search(rf"\.{directive}\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", text)
    x, y, z = (int(number or 1) for number in match.groups()) if match else (1, 1, 1)
    return x, y, z


def _number(text: str, directive: str) -> int:
    """Return the number of a directive in an entry's header, 0 without one."""
    match = re.search(rf"\.{directive}\s+(\d+)", text)
    return int(match[1]) if match else 0


def _parameters(text: str | None, line: int) -> tuple[Parameter, ...]:
    """Read a list of parameters. Raises EmulatorError for what is no parameter, or a huge one."""
    parameters: list[Parameter] = []
    offset = 0
    for declared in filter(str.strip, (text or "").split(",")):
        found = _PARAMETER.match(declared.strip())
        types = [t for t in re.findall(r"\.(\w+)", found["attributes"]) if t in BYTES] if found else []
        if not found or not types:
            raise EmulatorError(f"not a parameter: {declared.strip()!r}", where=f"PTX line {line}")
        align = re.search(r"\.align\s+(\d+)", found["attributes"])
        pointer = ".ptr" in found["attributes"]  # its .align is that of the memory it points to
        size = BYTES[types[-1]] * int(found["count"] or 1)
        step = int(align[1]) if align and not pointer else BYTES[types[-1]]
        offset = aligned(offset, step, line)
        if size > LARGEST:
            raise EmulatorError(f"parameter {found['name']} is {size} bytes large", where=f"PTX line {line}")
        parameters.append(
            Parameter(
                name=found["name"],
                type=types[-1],
                offset=offset,
                size=size,
                register=found["space"] == "reg",
            )
        )
        offset += size
    return tuple(parameters)
