"""Frames: the fields that stand at one point of a pipeline, and how they pass through a `map` into the next frame.

A `Frame` holds the last stream node and, for every field, its value in terms of that stream's `field` nodes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..dsl.problems import Span
from ..dsl.types import BOOL, I64, INT_RANGE, INTS, WEAK_INT, Type
from . import bounds
from .graph import Node, node, number, walk
from .promote import dim_node
from .scope import Context, Scope, Value, unknown
from .universals import universals

COUNT = node("count", type=I64)
Dim = int | Node


@dataclass(frozen=True)
class Stacked:
    """A `batch`, `window` or `pack` line above: its call, the number it was given, whether the last may be smaller."""

    stage: str
    span: Span
    n_text: str
    smaller: bool


@dataclass(frozen=True)
class Spoiled:
    """A field that could not be stacked, for the message where something needs it."""

    value: Value
    stage: str
    span: Span       # of the call that stacks
    reason: str      # "size" | "epoch"


@dataclass
class Frame:
    """`hidden` are i64 fields that hold the sizes bound from data; they aren't fields of the program."""

    stream: Node
    scope: Scope
    fields: dict[str, Value]
    arguments: dict[str, Value]
    hidden: dict[str, Node] = field(default_factory=dict)
    conditions: list[Node] = field(default_factory=list)
    spoiled: dict[str, Spoiled] = field(default_factory=dict)
    stages: list[tuple[str, Span]] = field(default_factory=list)   # what the records came through, in order
    stacked: list[Stacked] = field(default_factory=list)
    streamed: Span | None = None        # why it can't be read at random: where that is said
    endless: Span | None = None

    def passed(self, *names: str) -> Span | None:
        """Where one of these stages stands above."""
        return next((s for n, s in self.stages if n in names), None)


def stream_type(fields: Iterable[tuple[str, Type]]) -> Type:
    return Type("stream", parts=tuple((n, t.strong()) for n, t in fields))


def field_node(name: str, type: Type) -> Node:
    return node("field", type=type.strong(), name=name)


def leaves(fields: dict[str, Value]) -> Iterator[tuple[str, Value]]:
    """Known fields with their parts spelled out: `clip` as "clip.samples", "clip.rate"."""
    for name, value in fields.items():
        if value.type.dtype == "struct":
            yield from leaves({f"{name}.{n}": v for n, v in parts(value).items()})
        elif value.known and value.node is not None:
            yield name, value


def parts(value: Value) -> dict[str, Value]:
    """The parts of a value that has several."""
    if value.parts is not None:
        return value.parts
    assert value.node is not None
    whole = value.node
    return {n: Value(node("part", whole, type=t.strong(), name=n), t, value.span) for n, t in value.type.parts}


def gathered(flat: dict[str, Value]) -> dict[str, Value]:
    """The reverse of `leaves`: dotted names become values with parts."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        head, _, rest = name.partition(".")
        if rest:
            out.setdefault(head, {})[rest] = value
        else:
            out[head] = value
    return {n: _struct(gathered(v)) if isinstance(v, dict) else v for n, v in out.items()}


def _struct(inner: dict[str, Value]) -> Value:
    type = Type("struct", parts=tuple((n, v.type) for n, v in inner.items()))
    return Value(None, type, next(iter(inner.values())).span, inner)


def varies(dim: Dim, count: bool = True) -> bool:
    """May this size differ from record to record (`count`: does the number of records in a frame matter)."""
    if isinstance(dim, int):
        return False
    ops = {"field", "extent", "draw", "weight", "call", "extern", "index", "reduce"} | ({"count"} if count else set())
    return any(n.op in ops for n in walk(dim))


def uses_epoch(dim: Dim) -> bool:
    return not isinstance(dim, int) and any(n.op == "epoch" for n in walk(dim))


# --- the map before a new frame ---------------------------------------------------------------


def mapped(context: Context, frame: Frame, span: Span) -> Frame:
    """The frame after a `map` of all live fields: every name is a `field` node of the new frame."""
    flat = dict(leaves(frame.fields))
    table: dict[Node, Dim] = {}
    hidden: dict[str, Node] = {}
    values: dict[str, Node] = {}
    for name, dim in frame.scope.dims.items():
        if isinstance(dim, Node) and varies(dim, count=False) and name not in flat and name not in frame.fields:
            hidden[name] = values[name] = dim
            table.setdefault(dim, field_node(name, I64))
    types = {n: _moved(n, v.type, table, 0, keep_count=True) for n, v in flat.items()}
    values |= {n: v.node for n, v in flat.items() if v.node is not None}
    new = {n: Value(field_node(n, types[n]), replace(types[n], weak=v.type.weak), v.span) for n, v in flat.items()}
    made = {n: field_node(n, I64) for n in hidden}
    every = {**{n: v.type for n, v in new.items()}, **{n: I64 for n in hidden}}
    names = tuple(every)
    stream = context.made(
        node("map", frame.stream, *(values[n] for n in names), type=stream_type(every.items()), names=names), span)
    translated: dict[Node, Node] = {d: t if isinstance(t, Node) else number(t) for d, t in table.items()}
    for name, value in flat.items():
        assert value.node is not None
        fresh = new[name].node
        assert fresh is not None
        if value.node.op != "const":
            translated.setdefault(value.node, fresh)
    conditions = [*_kept(frame, flat, new, translated), *_sized(table, translated)]
    conditions += [at_least(made[n], 0) for n in made]
    dims = {n: table.get(d, d) if isinstance(d, Node) else d for n, d in frame.scope.dims.items()
            if not isinstance(d, Node) or d in table or not varies(d, count=False)}
    for name, value in new.items():
        written = context.types.get(flat[name].node) if flat[name].node else None  # type: ignore[arg-type]
        if written is not None and value.node is not None:
            context.types[value.node] = written
    return entered(frame, stream, gathered(new), made, dims, conditions)


def entered(frame: Frame, stream: Node, fields: dict[str, Value], hidden: dict[str, Node], dims: dict[str, Dim],
            conditions: list[Node], count: Dim | None = None) -> Frame:
    """`frame` moved on to a new stream with these fields; failed fields stay failed."""
    lost = {n: unknown(v.span) for n, v in frame.fields.items() if n not in fields and not v.known and
            v.type.dtype != "struct"}
    facts = bounds.Facts()
    for condition in conditions:
        facts = facts.given(condition)
    fields = {**fields, **lost}
    scope = replace(frame.scope, names={**frame.arguments, **sizes(dims, frame.scope), **fields}, dims=dict(dims), facts=facts,
                    held=[u for c in conditions for u in universals(c)],
                    count=frame.scope.count if count is None else count)
    return replace(frame, stream=stream, scope=scope, fields=fields, hidden=hidden, conditions=list(conditions))


def sizes(dims: dict[str, Dim], scope: Scope) -> dict[str, Value]:
    """Names of dimensions are numbers too."""
    span = Span(scope.file.path, 0, 0)
    return {n: Value(dim_node(d), WEAK_INT, scope.names[n].span if n in scope.names else span) for n, d in dims.items()}


def _moved(name: str, type: Type, table: dict[Node, Dim], shift: int, keep_count: bool = False) -> Type:
    """`type` in the new frame: a size of the data is that of the first field that has it."""
    dims: list[Dim] = []
    for axis, dim in enumerate(type.dims):
        if not isinstance(dim, Node) or not varies(dim, count=not keep_count):
            dims.append(dim)
            continue
        table.setdefault(dim, node("extent", type=I64, field=name, axis=axis + shift))
        dims.append(table[dim])
    return type.with_dims(tuple(dims))


def at_least(a: Node, b: Node | int) -> Node:
    return node("apply", a, number(b) if isinstance(b, int) else b, type=BOOL, fn="ge")


def at_most(a: Node, b: Node | int) -> Node:
    return node("apply", a, number(b) if isinstance(b, int) else b, type=BOOL, fn="le")


def _kept(frame: Frame, flat: dict[str, Value], new: dict[str, Value], translated: dict[Node, Node]) -> list[Node]:
    """What is known of the old frame's values, said of the new frame's fields."""
    memo: dict[Node, Node | None] = {}
    kept = [c for c in (_translated(c, translated, memo) for c in frame.conditions) if c is not None]
    facts = frame.scope.facts or bounds.Facts()
    for name, value in flat.items():
        fresh = new[name].node
        if value.type.dims or value.type.missing or value.type.dtype not in INTS or fresh is None or value.node is None:
            continue
        low, high = bounds.interval(value.node, facts)
        least, most = INT_RANGE[value.type.dtype]
        wide = fresh if value.type.dtype == "i64" else node("cast", fresh, type=I64, mode="exact")
        if low > least:
            kept.append(at_least(wide, int(low)))
        if high < most:
            kept.append(at_most(wide, int(high)))
    return kept


def _sized(table: dict[Node, Dim], translated: dict[Node, Node]) -> list[Node]:
    """Sizes that the old frame computed are still what they were computed from: `extent(t) = max(size, 0)`."""
    values = {old: new for old, new in translated.items() if old not in table}
    memo: dict[Node, Node | None] = {}
    pairs = [(extent, _translated(dim, values, memo)) for dim, extent in table.items() if isinstance(extent, Node)]
    return [c for extent, again in pairs if again is not None and again.op != "const" and again != extent
            for c in (at_least(extent, again), at_most(extent, again))]


def _translated(n: Node, table: dict[Node, Node], memo: dict[Node, Node | None]) -> Node | None:
    """`n` in terms of the new frame, None if it needs something that isn't there any more."""
    if n in table:
        return table[n]
    if n in memo:
        return memo[n]
    made: Node | None
    if n.op in ("field", "extent", "draw", "weight", "part", "call", "extern", "build", "reduce"):
        made = None
    elif not n.args:
        made = n
    else:
        args = [_translated(a, table, memo) for a in n.args]
        known = [a for a in args if a is not None]
        whole = len(known) == len(args) and not n.type.dims
        made = node(n.op, *known, type=n.type, **dict(n.attrs)) if whole else None
    memo[n] = made
    return made


# --- new shapes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A field's new dims: `front`, then `inner` of its old ones; `gaps`: it gets places that nothing fills."""

    front: tuple[Dim, ...]
    inner: tuple[Dim, ...]
    gaps: bool = False


@dataclass
class Reshaped:
    """The fields of a frame in new shapes, and those that can't have them."""

    fields: dict[str, Value] = field(default_factory=dict)
    spoiled: dict[str, Spoiled] = field(default_factory=dict)


def reshape(frame: Frame, stage: str, span: Span, shape: Callable[[str, Type], Shape], moving: str) -> Reshaped:
    """Every field in its new shape. `moving` says what happens to sizes that vary: "keep", "pad" or "spoil"."""
    out = Reshaped()
    table: dict[Node, Dim] = {}
    if moving == "keep":
        table |= {n: n for n in frame.hidden.values()}
    for name, value in leaves(frame.fields):
        wanted = shape(name, value.type)
        uneven = any(varies(d) for d in wanted.inner)
        unbounded = moving != "keep" and any(not varies(d) and not bounded(d) for d in wanted.inner)
        if (uneven and moving == "spoil") or unbounded:
            out.spoiled[name] = Spoiled(value, stage, span, "size" if uneven else "epoch")
            continue
        inner = _moved(name, value.type.with_dims(wanted.inner), table, len(wanted.front)).dims
        missing = value.type.missing or wanted.gaps or (uneven and moving == "pad")
        type = replace(value.type, dims=(*wanted.front, *inner), missing=missing)
        out.fields[name] = Value(field_node(name, type), type, value.span)
    return out


def bounded(dim: Dim) -> bool:
    """Has a size that may depend on the epoch an upper bound."""
    return isinstance(dim, int) or not uses_epoch(dim) or bounds.interval(dim)[1] <= bounds.LARGEST_SIZE


def sizes_as_fields(frame: Frame, front: Dim, taken: Callable[[str], bool]) -> dict[str, Value]:
    """Sizes bound from data, as fields of the batch (rule 14)."""
    span = Span(frame.scope.file.path, 0, 0)
    type = replace(WEAK_INT, dims=(front,))
    return {n: Value(field_node(n, type), type, span) for n in frame.hidden
            if n not in frame.fields and not taken(n)}
