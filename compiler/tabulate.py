"""Functions of one byte become tables: a dear expression over a u8 alone is computed for its 256 values beforehand.

Measured (Zen 4, 224 × 224 × 3 bytes): a look-up takes 0.3 to 0.5 ns, a square root or an exponential in vector code 1.1 to
2.7, a power 13; two or three additions and multiplications 0.45. Values are those that the reference computes, so no bit
changes.
"""
from __future__ import annotations

from ..dsl.problems import Span
from ..dsl.types import FLOATS, I64, INTS, Type
from .graph import Node, const, inherit, node, rewrite, substitute, walk
from .simplify import simplify
from .totality import HEAVY, Facts

# From this work on (in additions) an element is looked up rather than computed.
DEAR = 9.0
BYTE = Type("u8")
PURE = frozenset(("apply", "cast", "select"))
Spans = dict[Node, tuple[Span, ...]]


def tabulate(emit: Node, spans: Spans | None = None) -> Node:
    """Look up what is dear and depends on one byte alone.

    Before:

        x = field(name="x") : u8[4]
        i = var(id=1) : i64
        b = index(x, i, guard=false) : u8
        v1 = cast(b, mode="exact") : f32
        v2 = div(v1, 255.0:f32) : f32
        v3 = sqrt(v2) : f32
        build(v3, 4, ids=(1,)) : f32[4]

    After:

        x = field(name="x") : u8[4]
        i = var(id=1) : i64
        b = index(x, i, guard=false) : u8
        at = cast(b, mode="exact") : i64
        found = index(TABLE, at, guard=false) : f32
        build(found, 4, ids=(1,)) : f32[4]
    """
    facts = Facts((emit,))
    leaves: dict[Node, Node | None] = {}
    chosen: dict[Node, Node] = {}
    for n in walk(emit):
        leaves[n] = _leaf(n, leaves)
    inside = {a for n in walk(emit) if n.op in PURE and leaves[n] is not None for a in n.args}
    for n in walk(emit):
        byte = leaves[n]
        if byte is None or n is byte or n in inside or not _worth(n, byte, facts):
            continue
        table = _table(n, byte)
        if table is not None:
            chosen[n] = node("index", table, node("cast", byte, type=I64, mode="exact"), type=n.type, guard=False)
    if not chosen:
        return emit
    return rewrite(emit, chosen.get, None if spans is None else inherit(spans))


def _leaf(n: Node, known: dict[Node, Node | None]) -> Node | None:
    """The one u8 that a scalar depends on, None where it depends on more, or on something else."""
    if n.type == BYTE and n.op not in PURE and n.op != "const":
        return n
    if n.op not in PURE or not n.type.is_scalar or n.type.missing:
        return None
    found = {known[a] for a in n.args if a.op != "const"}
    return found.pop() if len(found) == 1 else None


def _worth(n: Node, byte: Node, facts: Facts) -> bool:
    """Is it dear, computed again and again, and never the end of a record."""
    if n.type.dtype not in FLOATS + INTS or not facts.free(byte) or facts.ends(n):
        return False
    return DEAR <= facts.cost(n) - facts.cost(byte) < HEAVY


def _table(n: Node, byte: Node) -> Node | None:
    """The 256 values as a constant; None where the reference doesn't fold one of them."""
    values = []
    for value in range(256):
        folded = simplify(substitute(n, {byte: const(value, BYTE)}))
        if folded.op != "const":
            return None
        values.append(folded["value"])
    return node("const", type=n.type.with_dims((256,)), value=tuple(values))
