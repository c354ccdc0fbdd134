"""Integer expressions over kernel parameters, such as ``BM * BN // (TM * TN) <= 512``.

Front matter comes from files that people download, so an expression is never passed to ``eval``: it is
parsed, checked and walked. It may hold integers, parameter names, ``+ - * // % << >>``, comparisons,
``and or not``, and ``min`` and ``max`` of two values or more; nothing else.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: dict[str, Callable[[list[int]], int]] = {"min": min, "max": max}
_LONGEST = 1000  # characters: enough for any real expression
_MOST_NODES = 5000  # of a tree, so that names of names do not grow without bound
_DEEPEST = 200  # levels: too few to exhaust Python's stack
_MAX_SHIFT = 62
_LARGEST = 2**63 - 1

GRID_NAMES = ("TILES_X", "TILES_Y", "TILES_Z", "SMS")  # what `grid` and `workspace` may use beside parameters
BLOCK_NAMES = ("GRID_X", "GRID_Y", "GRID_Z")  # what `workspace` may use too: the blocks of the grid
AXES = ("M", "N", "K", "lda", "ldb", "ldc", "alpha", "beta", "transa", "transb")  # what `requires` may
TAKEN = (*GRID_NAMES, *BLOCK_NAMES, *AXES, *_CALLS)  # what names of expressions may not be


class ExprError(ValueError):
    """Raised for text that is no such expression, and for one that has no value for these parameters."""


@dataclass(frozen=True)
class Expr:
    """A parsed expression. Calling it with parameter values gives an int; comparisons give 0 or 1."""

    text: str
    tree: ast.expr = field(repr=False, compare=False)
    names: frozenset[str] = field(repr=False, compare=False)
    depth: int = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str | int, named: Mapping[str, Expr] = MappingProxyType({})) -> Expr:
        """Parse `text`, in which the names of other expressions, `named`, stand for these.

        Raises ExprError for anything but such an expression, and for one that is too large with them.
        """
        text = str(text).strip()
        if len(text) > _LONGEST:
            raise ExprError(f"expression of {len(text)} characters; {_LONGEST} at most")
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ExprError(f"cannot read the expression {text!r}") from None
        try:
            tree, depth = _read(tree, text, named)
        except RecursionError:
            depth = _DEEPEST + 1
        if depth > _DEEPEST:
            raise ExprError(f"{text!r} is nested more than {_DEEPEST} deep with all that it names")
        nodes = list(itertools.islice(ast.walk(tree), _MOST_NODES + 1))
        if len(nodes) > _MOST_NODES:
            raise ExprError(f"{text!r} has more than {_MOST_NODES} parts with all that it names")
        functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}
        return cls(text=text, tree=tree, names=frozenset(names), depth=depth)

    def __call__(self, values: Mapping[str, int]) -> int:
        try:
            return int(_walk(self.tree, values))
        except ZeroDivisionError:
            raise ExprError(f"{self.text!r} divides by zero") from None
        except KeyError as missing:
            raise ExprError(f"{self.text!r} needs a value for {missing.args[0]}") from None

    def __str__(self) -> str:
        return self.text


def remembered(expr: Expr) -> Callable[[Mapping[str, int]], int]:
    """Return a function with the values of `expr` that computes each one once: for listing many sets."""
    names, known = sorted(expr.names), dict[tuple[int, ...], int]()

    def value(values: Mapping[str, int]) -> int:
        key = tuple(values[name] for name in names)
        if key not in known:
            known[key] = expr(values)
        return known[key]

    return value


def _read(node: ast.expr, text: str, named: Mapping[str, Expr]) -> tuple[ast.expr, int]:
    """Return a tree with what names stand for in their places, and its depth.

    Raises ExprError for a node that the language does not have.
    """
    children: dict[str, list[ast.expr]] = {}
    match node:
        case ast.Constant(value=value) if type(value) is int:
            pass
        case ast.Name(id=name):
            return (named[name].tree, named[name].depth) if name in named else (node, 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            children = {"left": [left], "right": [right]}
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            children = {"operand": [operand]}
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARE for op in ops):
            children = {"left": [left], "comparators": rest}
        case ast.BoolOp(values=values):
            children = {"values": values}
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as values, keywords=[]) if name in _CALLS:
            children = {"args": values}
        case _:
            part = ast.get_source_segment(text, node) or text
            hint = " (use // for division)" if isinstance(getattr(node, "op", None), ast.Div) else ""
            raise ExprError(f"{part!r} in {text!r} is not integer arithmetic or a comparison{hint}")
    deepest = 0
    for field_name, given in children.items():  # loops: a frame of Python's stack for each level, no more
        found = []
        for child in given:
            tree, depth = _read(child, text, named)
            found.append(tree)
            deepest = max(deepest, depth)
        setattr(node, field_name, found if isinstance(getattr(node, field_name), list) else found[0])
    return node, 1 + deepest


def _walk(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _walk(left, values), _walk(right, values)
            if isinstance(op, ast.LShift | ast.RShift) and not 0 <= b <= _MAX_SHIFT:
                raise ExprError(f"shift by {b}; 0 to {_MAX_SHIFT} is allowed")
            value = _BINARY[type(op)](a, b)
            if abs(value) > _LARGEST:
                raise ExprError("the value does not fit 64 bits")
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_walk(operand, values)
        case ast.UnaryOp(operand=operand):
            return int(not _walk(operand, values))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            operands = [_walk(n, values) for n in (left, *rest)]
            pairs = zip(ops, operands, operands[1:], strict=False)
            return int(all(_COMPARE[type(op)](a, b) for op, a, b in pairs))
        case ast.BoolOp(op=ast.And(), values=parts):
            return int(all(_walk(p, values) for p in parts))
        case ast.BoolOp(values=parts):
            return int(any(_walk(p, values) for p in parts))
        case ast.Call(func=ast.Name(id=name), args=parts):
            return _CALLS[name]([_walk(p, values) for p in parts])
    raise AssertionError(f"unchecked node {node!r}")
