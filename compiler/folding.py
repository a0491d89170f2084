"""Closed graph nodes to constants: what a `let` stands for."""
from __future__ import annotations

from ..dsl.types import Type
from ..runtime.errors import DataError
from .graph import Node, const, walk
from .promote import as_dtype

MOST_PLACES = 4_000_000
OBSTACLES = {
    "field": "depends on the record", "extent": "a size that only the data tell", "draw": "drawn at random",
    "epoch": "changes from epoch to epoch", "param": "may still be set below `share`", "count": "depends on the batch",
    "extern": "a Python function's result", "weight": "what trainers return",
}


def obstacle(n: Node) -> str:
    """Why a node isn't a constant."""
    return next((OBSTACLES[x.op] for x in walk(n) if x.op in OBSTACLES), "")


def fold(n: Node) -> Node | None:
    """The constant that `n` is, or None: it depends on data, is too large, or fails."""
    if n.type.dtype == "struct" or n.type.missing or obstacle(n) or _places(n) > MOST_PLACES:
        return None
    from .evaluate_values import constant

    try:
        value = constant(n)
    except (DataError, ArithmeticError, ValueError, MemoryError):
        return None
    if value is None:
        return None
    dtype = n.type.dtype
    if not n.type.dims:
        return const(as_dtype(value, dtype), Type(dtype))
    return const(tuple(as_dtype(v, dtype) for v in value), n.type)


def _places(n: Node) -> int:
    """At most how many places evaluating this looks at, where that is easily seen."""
    most = 1
    for x in walk(n):
        total = 1
        for d in x.args[1:] if x.op in ("build", "reduce") else ():
            total *= max(d["value"], 1) if d.op == "const" else 1
        most = max(most, total)
    return most
