"""Graphs from anywhere, made safe to run: what a program's check proves by its lines is asked for at run time instead.

In: a graph that `retype` has passed. Out: the same graph, with a `check` where two sizes must be equal in every record,
and with a bounds check around each index of which it can't be shown that it is inside. A graph that came from a program
keeps its values.
"""
from __future__ import annotations

from ..dsl.types import BOOL, FLOATS, OBJECTS, Type
from .cut import STARTS
from .graph import STREAM_OPS, Node, const, made_of, node, walk
from .retype import Checked, wrong
from .rules import inner, rebuilt
from .totality import Facts

# Stages that change the order of whole records only; a check may come after them.
ORDERS = ("skip_bad", "shuffle", "take", "repeat", "shard", "balance")
STACKS = ("batch", "window", "pack")


def checked(emit: Node, done: Checked) -> Node:
    """With a `check` for each pair of sizes that the types of fields, or args of operators, take to be equal."""
    made: dict[Node, Node] = {}
    waiting: dict[Node, list[tuple[Node, Node]]] = {}
    for n in walk(emit):
        if n.op not in STREAM_OPS:
            continue
        mine = [*(_sizes(n) if n.op in STARTS else []), *done.equal.get(n, [])]
        args = list(n.args)
        if args and n.op in ORDERS:
            mine = waiting[args[0]] + mine
            args[0] = made[args[0]]
        else:
            args = [_with_checks(made[a], waiting[a]) if a.op in STREAM_OPS else a for a in args]
        waiting[n] = mine
        made[n] = node(n.op, *args, type=n.type, **dict(n.attrs))
    return made[emit]


def _sizes(start: Node) -> list[tuple[Node, Node]]:
    """(what a field's type says, what the field has) wherever they aren't one and the same."""
    pairs = []
    for name, type in start.type.parts:
        for axis, told in enumerate(type.dims):
            own = node("extent", type=Type("i64"), field=name, axis=axis)
            stacked = axis == 0 and start.op in STACKS    # by the runtime, which counts
            if isinstance(told, Node) and told is not own and told.op != "const" and not stacked:
                pairs.append((told, own))
    return pairs


def _with_checks(stream: Node, pairs: list[tuple[Node, Node]]) -> Node:
    for a, b in dict.fromkeys(pairs):
        if stream.op == "map":
            raise wrong(stream, "leaves sizes open that must be equal")
        equal = node("apply", a, b, type=BOOL, fn="eq")
        stream = node("check", stream, equal, type=stream.type, code="E0803")
    return stream


def guarded(emit: Node) -> Node:
    """With a check around every index of which it isn't shown, from the ranges of its binders alone, that it is inside."""
    facts = Facts((emit,))
    done: dict[Node, Node] = {}
    for n in made_of(emit, inner):
        new = rebuilt(n, done)
        wild = n.op == "index" and not n["guard"] and not facts.inside(n)
        done[n] = _guarded(new) if wild else new
    return done[emit]


def _guarded(index: Node) -> Node:
    """The element, or anything of its type outside."""
    inside = node("index", *index.args, type=Type(index.type.dtype, missing=True), guard=True)
    if index.type.missing:
        return inside
    if index.type.dtype == "bytes":
        raise wrong(index, "may be outside of a tensor of bytes")
    zero = "" if index.type.dtype in OBJECTS else False if index.type.dtype == "bool" else (
        0.0 if index.type.dtype in FLOATS else 0)
    return node("fill", inside, const(zero, Type(index.type.dtype)), type=index.type)
