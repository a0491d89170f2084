"""Dead fields: out go values that nothing below reads, and columns of the data that nothing reads any more.

Needs travel from `emit` up to the sources (what a `where` or `by=` reads is needed there), then every stage is made
again with the fields that still arrive. A size is needed, not a field: where another kept field has it, that one is
asked instead.

Before:

    d = source(columns=(("x", (("x",),), "f32"), ("y", (("y",),), "f32")), kind="npz", options=(), paths=()) : {x: f32, y: f32}
    x = field(name="x") : f32
    y = field(name="y") : f32
    both = map(d, x, y, names=("x", "y")) : {x: f32, y: f32}
    out = map(both, x, names=("x",)) : {x: f32}
    emit(out, names=("x",)) : {x: f32}

After:

    d = source(columns=(("x", (("x",),), "f32"),), kind="npz", options=(), paths=()) : {x: f32}
    x = field(name="x") : f32
    both = map(d, x, names=("x",)) : {x: f32}
    out = map(both, x, names=("x",)) : {x: f32}
    emit(out, names=("x",)) : {x: f32}
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..dsl.problems import Span
from ..dsl.types import Type
from .graph import Moved, Node, children, inherit, node, substitute
from .rules import with_dims

SAME_FRAME = frozenset(["where", "check", "shuffle", "take", "repeat", "shard", "skip_bad", "balance"])
Spans = dict[Node, tuple[Span, ...]]
MADE_BY_PACK = ("segment", "position")


@dataclass
class Need:
    """What the stages below read of one frame: fields by name, and sizes."""

    fields: set[str] = field(default_factory=set)
    sizes: set[Node] = field(default_factory=set)

    def add(self, other: Need) -> None:
        self.fields |= other.fields
        self.sizes |= other.sizes


def prune(emit: Node, spans: Spans | None = None) -> Node:
    """`emit` with everything gone that it doesn't need. Nodes made anew take over the `spans` of the old ones."""
    moved = None if spans is None else inherit(spans)
    order = _streams(emit)
    needs: dict[Node, Need] = {s: Need() for s in order}
    for s in reversed(order):
        if s.op not in SAME_FRAME:
            _settle(s, needs[s])
        for stream, need in _asks(s, needs[s]):
            needs[stream].add(need)
    made: dict[Node, Node] = {}
    for s in order:
        made[s] = _again(s, needs[s], made, moved)
    return made[emit]


def stream_args(s: Node) -> tuple[Node, ...]:
    """The args of a stage that are streams."""
    match s.op:
        case "source":
            return ()
        case "mix" | "zip" | "sample":
            return s.args
        case _:
            return s.args[:1]


def _streams(emit: Node) -> list[Node]:
    """Every stream above `emit` and itself, each after those it takes from."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(emit, False)]
    while stack:
        s, ready = stack.pop()
        if ready:
            order.append(s)
        elif s not in seen:
            seen.add(s)
            stack.append((s, True))
            stack.extend((a, False) for a in stream_args(s) if a not in seen)
    return order


# --- needs, from below ----------------------------------------------------------------------------


def _reads(values: Iterable[Node]) -> Need:
    """The fields and sizes that values speak of."""
    need = Need()
    stack, seen = list(values), set[Node]()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op == "field":
            need.fields.add(n["name"])
        if is_size(n):
            need.sizes.add(n)
        stack.extend(children(n))
    return need


def is_size(n: Node) -> bool:
    """A size that only a field of the frame has."""
    return n.op == "extent" and n.get("field") is not None


def _settle(s: Node, need: Need) -> None:
    """Sizes that no needed field has need their own field; a frame without fields keeps its simplest one."""
    types = dict(s.type.parts)
    for size in sorted(need.sizes, key=lambda n: (n["field"], n["axis"])):
        if not any(size in types[f].dims for f in need.fields if f in types) and size["field"] in types:
            need.fields.add(size["field"])
    if not need.fields & types.keys() and types:
        need.fields.add(simplest(types))


def simplest(types: Mapping[str, Type]) -> str:
    """The field that a frame keeps where none is needed: a scalar number if there is one."""
    return min(types, key=lambda f: (types[f].rank, types[f].dtype in ("bytes", "text", "path")))


def _asks(s: Node, need: Need) -> list[tuple[Node, Need]]:
    """What stage `s` needs of each of its streams when `need` is needed of it."""
    inner = stream_args(s)
    match s.op:
        case "source":
            return []
        case "emit":
            return [(inner[0], Need(set(s["names"])))]
        case "map":
            kept = [v for name, v in zip(s["names"], s.args[1:], strict=True) if name in need.fields]
            return [(inner[0], _reads(kept))]
        case "mix":
            return [(b, Need(set(need.fields))) for b in inner]
        case "zip":
            return [(b, Need(_below(need.fields, name))) for b, name in zip(inner, s["names"], strict=True)]
        case "sample":
            theirs = {f for f in need.fields if f.startswith(s["name"] + ".")}
            return [(inner[0], Need(need.fields - theirs)), (inner[1], Need(_below(theirs, s["name"])))]
        case "each":
            first = () if need.fields & set(s["fields"]) else s["fields"][:1]
            return [(inner[0], Need(need.fields | set(first)))]
        case "pack":
            asked = Need(need.fields - set(MADE_BY_PACK))
        case op if op in SAME_FRAME:
            asked = Need(set(need.fields), set(need.sizes))
            if op == "balance":
                asked.fields.add(s["field"])
        case _:
            asked = Need(set(need.fields))
    asked.add(_reads(s.args[1:]))
    return [(inner[0], asked)]


def _below(fields: set[str], name: str) -> set[str]:
    return {f[len(name) + 1 :] for f in fields if f.startswith(name + ".")}


# --- stages made again, from above ----------------------------------------------------------------


def _again(s: Node, need: Need, made: dict[Node, Node], moved: Moved | None) -> Node:
    inner = stream_args(s)
    if s.op == "sample" and not any(f.startswith(s["name"] + ".") for f in need.fields):
        return made[inner[0]]
    streams = [made[i] for i in inner]
    attrs: dict[str, Any] = dict(s.attrs)
    values = s.args[len(inner) :]
    arriving = [n for n, _ in streams[0].type.parts] if streams else []
    match s.op:
        case "source":
            attrs["columns"] = tuple(c for c in s["columns"] if c[0] in need.fields)
            kept = {c[0] for c in attrs["columns"]}
        case "map":
            named = [(n, v) for n, v in zip(s["names"], values, strict=True) if n in need.fields]
            attrs["names"], values = tuple(n for n, _ in named), tuple(v for _, v in named)
            kept = set(attrs["names"])
        case "mix":
            kept = set.intersection(*({n for n, _ in b.type.parts} for b in streams))
        case "zip":
            kept = {f"{name}.{f}" for b, name in zip(streams, s["names"], strict=True) for f, _ in b.type.parts}
        case "sample":
            kept = {*arriving, *(f"{s['name']}.{f}" for f, _ in streams[1].type.parts)}
        case "pack":
            attrs["fields"] = tuple(f for f in s["fields"] if f in arriving)
            kept = {*arriving, *MADE_BY_PACK}
        case "each":
            attrs["fields"] = tuple(f for f in s["fields"] if f in arriving)
            kept = set(arriving)
        case _:
            kept = set(arriving)
    if streams:
        values = _renamed(values, _sizes(inner[0].type, set(arriving)), moved)
    return node(s.op, *streams, *values, type=_type(s.type, kept), **attrs)


def _type(type: Type, kept: set[str]) -> Type:
    """The frame's type with the kept fields only, sizes named after them."""
    sizes = _sizes(type, kept)
    parts = tuple((n, with_dims(t, lambda d: substitute(d, sizes))) for n, t in type.parts if n in kept)
    return replace(type, parts=parts)


def _sizes(type: Type, kept: set[str]) -> dict[Node, Node]:
    """For sizes that a field gave that is gone, by its length or its value: the same size of the first kept field that has it."""
    found: dict[Node, Node] = {}
    for name, t in type.parts:
        for axis, d in enumerate(t.dims):
            if name in kept and isinstance(d, Node) and _giver(d) not in (None, *kept):
                args = d.args if is_size(d) else ()
                found.setdefault(d, node("extent", *args, type=d.type, field=name, axis=axis))
    return found


def _giver(size: Node) -> str | None:
    """The field that a size is named after."""
    name: str | None = size["field"] if is_size(size) else size["name"] if size.op == "field" else None
    return name


def _renamed(values: tuple[Node, ...], sizes: dict[Node, Node], moved: Moved | None) -> tuple[Node, ...]:
    return tuple(substitute(v, sizes, moved) for v in values) if sizes else values
