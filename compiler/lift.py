"""Conditions that cost little and stand early: `where` moves above stages that don't change what it asks, and into the
source, so that records that leave anyway are neither put together nor read.

Above `each` moves what asks about the record, above `sample` what doesn't ask about the sampled record, and from below
`share` goes what is the same for every consumer. A condition moves only over values that can't fail: what is a bad record
stays one. A source is told comparisons of its columns with numbers; Parquet leaves out row groups by their statistics.
Every record keeps its position.
"""
from __future__ import annotations

from collections.abc import Iterator

from ..dsl.problems import Span
from ..dsl.types import NUMBERS
from .cut import through
from .graph import Node, node, rewrite, walk
from .lower import is_library
from .prune import SAME_FRAME, is_size
from .totality import Facts

Spans = dict[Node, tuple[Span, ...]]
TOLD = ("parquet",)                  # kinds of sources that can use conditions
COMPARISONS = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}   # and what they are turned around
PASSED = frozenset(("shuffle", "repeat", "shard", "skip_bad", "where", "take"))


def lift_filters(emit: Node, spans: Spans) -> Node:
    """Ask early.

    Before:

        n = extent(field="x", axis=0) : i64
        d = source(columns=(("k", (("k",),), "i64"), ("x", (("x",),), "f32[n]")), kind="parquet", options=(), paths=()) : {k: i64, x: f32[n]}
        k = field(name="k") : i64
        x = field(name="x") : f32[n]
        all = map(d, k, x, names=("k", "x")) : {k: i64, x: f32[n]}
        row = each(all, fields=("x",)) : {k: i64, x: f32}
        few = lt(k, 3) : bool
        kept = where(row, few) : {k: i64, x: f32}
        y = field(name="x") : f32
        out = map(kept, y, names=("x",)) : {x: f32}
        emit(out, names=("x",)) : {x: f32}

    After:

        n = extent(field="x", axis=0) : i64
        d = source(columns=(("k", (("k",),), "i64"), ("x", (("x",),), "f32[n]")), kind="parquet", options=(("where", (("k", "lt", 3, "i64"),)),), paths=()) : {k: i64, x: f32[n]}
        k = field(name="k") : i64
        few = lt(k, 3) : bool
        kept = where(d, few) : {k: i64, x: f32[n]}
        x = field(name="x") : f32[n]
        all = map(kept, k, x, names=("k", "x")) : {k: i64, x: f32[n]}
        row = each(all, fields=("x",)) : {k: i64, x: f32}
        y = field(name="x") : f32
        out = map(row, y, names=("x",)) : {x: f32}
        emit(out, names=("x",)) : {x: f32}
    """  # noqa: E501
    while True:
        before, users = emit, _users(emit)
        for where in [n for n in users if n.op == "where" and not _counted(n, users)]:
            moved = _above(where, spans)
            if moved is not None:
                emit = rewrite(emit, {where: moved}.get)
                break
        if emit is before:
            return _told(emit)


def _users(emit: Node) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for n in walk(emit):
        for a in n.args:
            found.setdefault(a, []).append(n)
    return found


def _counted(where: Node, users: dict[Node, list[Node]]) -> bool:
    """Does a stage of the same frame depend on how many records the condition lets through."""
    at = where
    while len(users.get(at, ())) == 1 and users[at][0].op in SAME_FRAME:
        at = users[at][0]
        if at.op not in ("where", "check"):
            return True
    return False


# --- above stages -------------------------------------------------------------------------------------------------------


def _above(where: Node, spans: Spans) -> Node | None:
    """The stage that a condition stands below, made again of records for which it holds; None where it must stay."""
    stage, condition = where.args
    if stage.op not in ("each", "sample", "share") or not _same_above(stage, condition):
        return None
    inner = stage.args[0]
    values: tuple[Node, ...] = ()
    if inner.op == "map":
        condition, values = through(inner, condition), inner.args[1:]
    facts = Facts((condition, *values))
    if any(map(facts.ends, (condition, *values))) or any(is_library(n) for n in walk(condition, *values)):
        return None
    frame = inner.args[0] if inner.op == "map" else inner
    kept = node("where", frame, condition, type=frame.type)
    if where in spans:
        spans.setdefault(kept, spans[where])
    made = node("map", kept, *values, type=inner.type, **dict(inner.attrs)) if inner.op == "map" else kept
    again = node(stage.op, made, *stage.args[1:], type=stage.type, **dict(stage.attrs))
    for old, new in ((inner, made), (stage, again)):
        if old in spans:
            spans.setdefault(new, spans[old])
    return again


def _same_above(stage: Node, condition: Node) -> bool:
    """Does a condition mean the same above this stage."""
    for n in walk(condition):
        if n.op in ("draw", "weight", "count", "epoch", "param", "extern", "call") or is_size(n):
            return False
        if n.op == "field" and stage.op == "each" and n["name"] in stage["fields"]:
            return False
        if n.op == "field" and stage.op == "sample" and n["name"].startswith(stage["name"] + "."):
            return False
    return stage.op != "each" or len(stage["fields"]) == 1   # several could be of unlike lengths, which is an error


# --- into the source ----------------------------------------------------------------------------------------------------


def _told(emit: Node) -> Node:
    """Sources with what the conditions right below them compare."""
    change, users = dict[Node, Node](), _users(emit)
    for source in [n for n in walk(emit) if n.op == "source" and n["kind"] in TOLD and "where" not in dict(n["options"])]:
        conditions = tuple(dict.fromkeys(_comparisons(source, users)))
        if conditions:
            attrs = dict(source.attrs) | {"options": (*source["options"], ("where", conditions))}
            change[source] = node("source", type=source.type, **attrs)
    return rewrite(emit, change.get) if change else emit


def _comparisons(source: Node, users: dict[Node, list[Node]]) -> Iterator[tuple[str, str, object, str]]:
    """What the first conditions of a frame ask, each of which must hold for a record to stay."""
    stages: list[Node] = []
    at = source
    while len(users.get(at, ())) == 1 and users[at][0].op in (*PASSED, "balance"):
        at = users[at][0]
        stages.append(at)
    if any(s.op == "balance" for s in stages):   # it reads all values of a column
        return
    asked = False
    for stage in stages:
        if stage.op == "take" and asked:
            return
        if stage.op == "where":
            asked = True
            for c in _conjuncts(stage.args[1]):
                if (found := _comparison(c)) is not None:
                    yield found


def _conjuncts(c: Node) -> Iterator[Node]:
    both = c.op == "apply" and c["fn"] == "and"
    choice = c.op == "select" and c.args[2].op == "const" and c.args[2]["value"] is False
    if both or choice:
        yield from _conjuncts(c.args[0])
        yield from _conjuncts(c.args[1])
    else:
        yield c


def _comparison(c: Node) -> tuple[str, str, object, str] | None:
    """A column compared with a number: its name, the comparison, the number, and the dtype in which they are compared."""
    if c.op != "apply" or c["fn"] not in COMPARISONS:
        return None
    a, b = c.args
    fn = c["fn"]
    if a.op == "const":
        a, b, fn = b, a, COMPARISONS[fn]
    column = a.args[0] if a.op == "cast" and a["mode"] == "exact" else a
    if column.op != "field" or b.op != "const" or a.type.dtype not in NUMBERS \
            or a.type.dtype in ("f16", "bf16") or column.type.missing:
        return None
    return column["name"], fn, b["value"], a.type.dtype
