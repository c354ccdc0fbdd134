"""Take a text of CUDA C++ apart into its declarations and definitions, as far as its brackets show them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_DEVICE = re.compile(r"__(?:global|device|constant|shared|managed)__")
_SCOPE = re.compile(r"(?:\bnamespace\b[\s\w:]*|\bextern)\s*\Z")
_CLASS = re.compile(r"\b(?:class|struct|union)\b(?!.*\)\s*(?:const\s*)?\Z)", re.DOTALL)
_TEMPLATE = re.compile(r"\A(?:\s*template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)+")  # and defaults, N = 32
_CALLS = re.compile(r"(?<!\S)([A-Z_]\w*\([\w\s,:<>*&]*\))[ \t]*$", re.MULTILINE)
_CALL = re.compile(r"(?!__)[A-Z_]\w*\s*\(")
_ALONE = re.compile(r"[ \t]*(?:\n\s*(?!noexcept\b)(?=[A-Za-z_~])|\s*\Z)")  # in its line, and no body follows
_ATTRIBUTES = re.compile(
    r"\b(?:alignas|__align__|__attribute__|__launch_bounds__|__cluster_dims__)\s*\((?:[^()]|\([^()]*\))*\)"
)
_LABEL = re.compile(r"\s*(?:(?:public|private|protected)\s*:\s*)*")
_MORE = re.compile(r"\s*[,{]")
_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)\s*\{|[{}]")
_DEEPEST, _LONGEST = 50, 5000  # namespaces in each other, and characters before a function's body
_CLOSED = {"(": ")", "[": "]", "{": "}"}
_ACROSS = r"gridDim\s*\.\s*x"
_ROW = rf"(?:blockIdx\s*\.\s*y\s*\*\s*{_ACROSS}|{_ACROSS}\s*\*\s*blockIdx\s*\.\s*y)"
_TIMES = r"\s*\*\s*gridDim\s*\.\s*[xy]"
_PLANE = rf"(?:blockIdx\s*\.\s*z(?:{_TIMES}){{1,2}}|(?:gridDim\s*\.\s*[xy]\s*\*\s*){{1,2}}blockIdx\s*\.\s*z)"
_BLOCKS = rf"(?:{_ROW}|{_PLANE})"
_COUNTED = re.compile(
    rf"(^|[=(+,\[{{}};?:&|<>]|\breturn\b)(\s*)(?:{_BLOCKS}\s*\+\s*(?=blockIdx\b|gridDim\b)"
    rf"|(blockIdx\s*\.\s*x)\s*\+\s*{_BLOCKS}(?!\s*\*))"
)
_BY_ROWS = re.compile(  # of grids that PyTorch's old kernels have, whose blocks are one thread high
    r"threadIdx\.y\s*\+\s*blockDim\.y\s*\*\s*\(\s*blockDim\.x\s*\*\s*gridDim\.x\s*\)\s*\*\s*blockIdx\.y"
)
_PRODUCT = re.compile(r"([-/%]\s*)?\b__u?mul24\s*\(\s*([\w.]+)\s*,\s*([\w.]+)\s*\)")
_ONE = re.compile(r"(?<!\w)\(\s*(blockIdx\s*\.\s*[xyz])\s*\)(?=\s*[-+*/%<>])")
# Blocks of which axes are not said; a group of the threads of one is none.
_ANY_BLOCK = r"blockIdx(?!\s*\.)|ctaid|this_grid|grid_group|cluster|group_index|block_(?:index|rank)"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A declaration or definition at the level of a file, a namespace or a class.

    It lies from `begin` to `end` in the text. `name` is empty where it has none, and `parts` are the members
    of a class. `host` is False where ``__device__`` or the like stands before its body.
    """

    begin: int
    end: int
    name: str
    host: bool
    function: bool
    parts: tuple[Item, ...] = ()


def items(plain: str, begin: int, end: int, depth: int = 0) -> Iterator[Item]:
    """Yield the declarations and definitions of a text that is `text.blank`, those of namespaces one by one.

    A text whose brackets do not match, as where each branch of an ``#if`` opens one, ends early.
    """
    start = at = _label(plain, begin)
    while at < end:
        c = plain[at]
        if at == start and (called := _call(plain, at, end)):
            yield _item(plain, start, called, plain[start:called], function=True, depth=depth)
            start = at = _label(plain, called)
        elif c in "([":
            at = _closing(plain, at, end)
        elif c == "{" and depth < _DEEPEST and _SCOPE.search(plain, max(start, at - _LONGEST), at):
            yield from items(plain, at + 1, (closed := _closing(plain, at, end)) - 1, depth + 1)
            start = at = _label(plain, closed)
        elif c == "{":
            closed = _closing(plain, at, end)
            head = _TEMPLATE.sub("", plain[start:at])
            function = len(head) < _LONGEST and _is_function(head)
            if not function or _MORE.match(plain, closed, end):  # initializers of members precede a body
                at = closed
                continue
            yield _item(plain, start, closed, head, function=True, depth=depth)
            start = at = _label(plain, closed)
        elif c == ";" and not plain[start:at].strip():  # an empty statement, as after a member's body
            start = at = _label(plain, at + 1)
        elif c == ";":
            head = _TEMPLATE.sub("", plain[start:at].partition("{")[0])
            yield _item(plain, start, at + 1, head, function=_is_function(head), depth=depth)
            start = at = _label(plain, at + 1)
        else:
            at += 1
    for call in _CALLS.finditer(plain, start, end):  # of macros, without a semicolon: the last ones
        yield _item(plain, *call.span(1), call[1], function=True, depth=depth)


def _call(plain: str, at: int, end: int) -> int:
    """Return where a macro's call ends that stands there, alone in its line; 0 if none does."""
    found = _CALL.match(plain, at, end)
    closed = _closing(plain, found.end() - 1, end) if found else 0
    return closed if closed and _ALONE.match(plain, closed, end) else 0


def _item(plain: str, begin: int, end: int, head: str, *, function: bool, depth: int) -> Item:
    """Return the item of this text, with its members where it is a class; `head` is what precedes a body."""
    opened = -1 if function else plain.find("{", begin, end)
    parts: tuple[Item, ...] = ()
    if opened >= 0 and depth < _DEEPEST and _CLASS.search(head) and "=" not in head:
        parts = tuple(items(plain, opened + 1, _closing(plain, opened, end) - 1, depth + 1))
    head = _ATTRIBUTES.sub("", head)
    called = head if function else re.split(r"=|(?<!:):(?!:)|\[", head)[0]
    names = re.findall(
        r"([A-Za-z_]\w*)\s*(?:<[^()]*>\s*)?(?:\(|\Z)" if function else r"([A-Za-z_]\w*)", called
    )
    return Item(
        begin=begin,
        end=end,
        name=names[0 if function else -1] if names else "",
        host=not _DEVICE.search(head) and "static_assert" not in head,
        function=function,
        parts=parts,
    )


def _is_function(head: str) -> bool:
    """Return True where a text that precedes a body or semicolon declares a function."""
    found, depth = [], 0
    for c in re.sub(r"\boperator\s*[^\s(\w]+", "operator", _ATTRIBUTES.sub("", head)):
        depth -= c in ")]"
        found.append("" if depth else c)
        depth += c in "(["
    return "(" in found and "=" not in found


def _label(plain: str, at: int) -> int:
    """Return where the text goes on after spaces and labels such as ``public:``."""
    found = _LABEL.match(plain, at)
    return found.end() if found else at


def _closing(plain: str, at: int, end: int) -> int:
    """Return the place behind the bracket that closes the one at `at`; `end` if none does."""
    opened, closed = plain[at], _CLOSED[plain[at]]
    depth = 0
    for found in re.compile(rf"[{re.escape(opened + closed)}]").finditer(plain, at, end):
        depth += 1 if found[0] == opened else -1
        if not depth:
            return found.end()
    return end


def namespaces(before: str) -> Iterator[str]:
    """Yield the namespaces that are open at the end of a text, outermost first."""
    stack: list[str] = []
    for found in _NAMESPACE.finditer(before):
        if found[0] == "}":
            del stack[-1:]
        else:
            stack.append(found[1] or "")
    yield from (name for name in stack if name)


def counted(body: str) -> str:
    """Return a body with ``blockIdx.x`` where it counts all blocks, whatever dimensions a grid has.

    That is ``blockIdx.z * gridDim.x * gridDim.y + blockIdx.y * gridDim.x + blockIdx.x``, in any order. An old
    ``__mul24(a, b)`` is a product.
    """
    body = _PRODUCT.sub(lambda at: f"{at[1]}({at[2]} * {at[3]})" if at[1] else f"{at[2]} * {at[3]}", body)
    body = _BY_ROWS.sub("0", body)
    for _ in range(2):
        body = _ONE.sub(r"\1", _COUNTED.sub(lambda at: at[1] + at[2] + (at[3] or ""), body))
    return body


@functools.lru_cache(maxsize=8)
def flat(text: str) -> frozenset[str]:
    """Return the axes along which nothing in a text asks for the block."""
    whole = counted(text)
    return frozenset(a for a in "yz" if not re.search(_ANY_BLOCK + rf"|blockIdx\s*\.\s*{a}\b", whole))
