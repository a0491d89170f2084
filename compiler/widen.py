"""The pass `cut` over the graph: columns that are made of narrower numbers, element by element, cross the ring as these.

What widens them (`u8` to `f32`, scaled, in another layout) then runs below `share()`, in each consumer, or on its device. It
moves only where every consumer saves more than it pays, so that the number of consumers doesn't matter: on the CPU where the
consumer's own loops read the column, on a device nearly always, since fewer bytes are uploaded.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..dsl.problems import Span
from ..dsl.types import Type
from ..kernels.scalar import SCALARS
from .costs import BYTE, LAUNCH, LENGTH, ON_DEVICE, OPERATION, STEP, UPLOAD, VECTOR, width
from .cut import row_type, through
from .fuse import copied, fuse
from .graph import Node, fresh_id, node, substitute, var, walk
from .totality import Facts

Spans = dict[Node, tuple[Span, ...]]
ELEMENTWISE = frozenset(("apply", "cast", "select"))
CONSTANT = frozenset(("const", "var", "apply", "cast", "select", "index"))


@dataclass(frozen=True)
class Widening:
    """A column that could cross the ring narrower: bytes of one record both ways, what making it of these costs each
    consumer, and what that saves it (ns of one record)."""

    column: str
    value: Node
    narrow: float
    wide: float
    costs: float
    saves: float
    moved: bool


@dataclass(frozen=True)
class _Way:
    """How a column is made: `source` is what crosses the ring, `made` the column in terms of that."""

    source: Node
    made: Node


@dataclass(frozen=True)
class _Border:
    """What stands around the cut. `stream` ends the producer's part, a plain `batch` of records may lie between."""

    frame: Node            # the map above
    batch: Node | None
    share: Node | None
    last: Node             # the stream that what follows reads: `share`, or all there is


def widen(emit: Node, spans: Spans | None = None, on_device: bool = False, told: list[Widening] | None = None) -> Node:
    """Move widening conversions below `share()` where each consumer saves by it; `told` gets what was thought of.

    `on_device`: one loader reads the stream, and it asks for a device; then the end of the program is a border, too.

    Before:

        d = source(columns=(("x", (("x",),), "u8[4096]"),), kind="npz", options=(), paths=()) : {x: u8[4096]}
        x = field(name="x") : u8[4096]
        i = var(id=1) : i64
        b = index(x, i, guard=false) : u8
        wide = cast(b, mode="exact") : f32
        half = mul(wide, 0.5:f32) : f32
        y = build(half, 4096, ids=(1,)) : f32[4096]
        made = map(d, y, names=("y",)) : {y: f32[4096]}
        shared = share(made, end="") : {y: f32[4096]}
        y2 = field(name="y") : f32[4096]
        j = var(id=2) : i64
        v = index(y2, j, guard=false) : f32
        total = reduce(v, 4096, ids=(2,), kind="sum") : f32
        out = map(shared, total, names=("total",)) : {total: f32}
        emit(out, names=("total",)) : {total: f32}

    After:

        d = source(columns=(("x", (("x",),), "u8[4096]"),), kind="npz", options=(), paths=()) : {x: u8[4096]}
        x = field(name="x") : u8[4096]
        made = map(d, x, names=("y",)) : {y: u8[4096]}
        shared = share(made, end="") : {y: u8[4096]}
        y = field(name="y") : u8[4096]
        i = var(id=1) : i64
        b = index(y, i, guard=false) : u8
        wide = cast(b, mode="exact") : f32
        half = mul(wide, 0.5:f32) : f32
        total = reduce(half, 4096, ids=(1,), kind="sum") : f32
        out = map(shared, total, names=("total",)) : {total: f32}
        emit(out, names=("total",)) : {total: f32}
    """
    border = _border(emit, on_device)
    if border is None:
        return emit
    ways: dict[str, _Way] = {}
    for name, value in zip(border.frame["names"], border.frame.args[1:], strict=True):
        way = _way(value, name)
        if way is None:
            continue
        found = _judged(emit, border, name, value, way, on_device)
        if told is not None and found is not None:
            told.append(found)
        if found is not None and found.moved:
            ways[name] = way
    if not ways:
        return emit
    moved = _moved(emit, border, ways)
    if spans is not None:
        for name, way in ways.items():
            value = border.frame.args[1 + border.frame["names"].index(name)]
            spans.setdefault(way.made, spans.get(value, ()))
    return moved if border.batch is not None or border.share is None else fuse(moved, spans)


def _border(emit: Node, on_device: bool) -> _Border | None:
    share, at = None, emit.args[0]
    while at.args and at.op not in ("mix", "zip"):
        if at.op == "share":
            share = at
            break
        at = at.args[0]
    if share is None and not on_device:
        return None
    under = emit.args[0] if share is None else share.args[0]
    if _hands_on(under) and under.args[0].op == "batch":
        under = under.args[0]
    last = under if share is None else share
    batch = under if under.op == "batch" and under["has"] == ("n",) and not under["pad"] else None
    frame = under if batch is None else batch.args[0]
    return _Border(frame, batch, share, last) if frame.op == "map" else None


def _hands_on(at: Node) -> bool:
    """Is this a map that gives fields on by their names."""
    return at.op == "map" and all(v.op == "field" and v["name"] == n for n, v in zip(at["names"], at.args[1:], strict=True))


def _way(value: Node, name: str) -> _Way | None:
    """How to make a tensor of known sizes of the narrowest numbers that all of its data come through, if there are such."""
    if value.op != "build" or value.type.missing or sizes(value.type) is None:
        return None
    ids, extents, body = value["ids"], value.args[1:], value.args[0]
    if body.type.dims:
        return None
    best: Node | None = None
    for n in _narrows(body):
        if best is None or width(n.type.dtype) < width(best.type.dtype):
            best = n
    if best is None or width(best.type.dtype) >= width(value.type.dtype):
        return None
    new = tuple(fresh_id() for _ in ids)
    renamed = {var(old): var(made) for old, made in zip(ids, new, strict=True)}
    if best.op == "index" and not best["guard"] and _in_another_order(best, ids, extents):
        source = best.args[0]            # all of it is read, each element once: the layout changes below, too
        element = node("index", _hole(source, name), *best.args[1:], type=best.type, guard=False)
    else:
        whole = node("build", best, *extents, type=best.type.with_dims(value.type.dims), ids=ids)
        source = copied(whole) or whole
        element = node("index", _hole(source, name), *map(var, ids), type=best.type, guard=False)
    again = substitute(substitute(body, {best: element}), renamed)
    made = node("build", again, *extents, type=value.type, ids=new)
    if Facts((made,)).fails(made):       # who is bad is told above
        return None
    return _Way(source, made)


def _hole(source: Node, name: str) -> Node:
    """The column that the narrow numbers cross the ring in."""
    return node("field", type=row_type(name, source.type), name=name)


def _narrows(body: Node) -> Iterator[Node]:
    """The values that all data of `body` come through, from the top; what is done above each is elementwise and needs only
    constants beside."""
    n: Node | None = body
    while n is not None:
        if n.type.missing or n.op in ("const", "var", "param"):
            return
        if n is not body:
            yield n
        if n.op not in ELEMENTWISE:
            return
        varying = list(dict.fromkeys(a for a in n.args if any(m.op not in CONSTANT for m in walk(a))))
        n = varying[0] if len(varying) == 1 else None


def _in_another_order(n: Node, ids: Sequence[int], extents: Sequence[Node]) -> bool:
    """Does this index read all of a tensor that no binder changes, each element once."""
    of = dict(zip(map(var, ids), extents, strict=True))
    found = [of.get(i) for i in n.args[1:]]
    return (sorted(n.args[1:], key=id) == sorted(of, key=id) and n.args[0].op != "var" and not Facts(()).free(n.args[0])
            and sizes(n.args[0].type) == sizes(Type("u8", tuple(found))))


def sizes(t: Type) -> tuple[int, ...] | None:
    """The dims of a type where all are known now."""
    found = tuple(d if isinstance(d, int) else d["value"] if d is not None and d.op == "const" else None for d in t.dims)
    return None if None in found else tuple(int(d or 0) for d in found)


def size(t: Type) -> float:
    """Bytes of a value whose dims are known."""
    return float(math.prod(sizes(t) or ())) * width(t.dtype)


def _judged(emit: Node, border: _Border, name: str, value: Node, way: _Way, on_device: bool) -> Widening | None:
    """What moving saves and costs each consumer for one record; None where it saves no bytes."""
    wide, narrow = size(value.type), size(way.source.type)
    if narrow >= wide:
        return None
    elements = wide / width(value.type.dtype)
    work = elements * OPERATION * _work(way.made.args[0], Facts((way.made,))) / VECTOR
    records = _records(emit)
    if on_device and _suits_a_device(border):
        costs, saves = ON_DEVICE * (narrow + wide) + LAUNCH / records, (UPLOAD + BYTE) * (wide - narrow)
    elif border.batch is None and border.share is not None and _read_in_loops(emit, border, name):
        costs, saves = work, BYTE * (wide - narrow)
    else:                                # made in memory of the consumer's own before anything reads it
        costs, saves = work + BYTE * (wide + narrow) + STEP / records, BYTE * (wide - narrow)
    return Widening(name, value, narrow, wide, costs, saves, costs < saves)


def _records(emit: Node) -> float:
    """Records of a batch, where the program says."""
    n = next((n.args[1] for n in walk(emit) if n.op == "batch" and n["has"] == ("n",)), None)
    return max(1.0, float(n["value"])) if n is not None and n.op == "const" else 32.0


def _suits_a_device(border: _Border) -> bool:
    """Will all rows be uploaded as they lie: numbers of known sizes, put together by a plain batch."""
    columns = [v.type for v in border.frame.args[1:]]
    return all(t.dtype not in LENGTH and not t.missing and sizes(t) is not None for t in columns)


def _read_in_loops(emit: Node, border: _Border, name: str) -> bool:
    """Do the lines right below `share()` read single elements of a column only, in one place."""
    below = next((n for n in walk(emit) if n.op == "map" and n.args[0] is border.share), None)
    if below is None:
        return False
    uses = [n for n in walk(*below.args[1:]) for a in n.args if a.op == "field" and a["name"] == name]
    whole = any(a.op == "field" and a["name"] == name for a in below.args[1:])
    return not whole and len(uses) == 1 and uses[0].op == "index"


def _work(n: Node, facts: Facts) -> float:
    """Additions for each element: what no binder changes is computed once, and what stands twice, too."""
    def inside(m: Node) -> Sequence[Node]:
        return () if not facts.free(m) else m.args[1:] if m.op == "index" else m.args   # a tensor that is read is there

    return sum(SCALARS[m["fn"]].cost if m.op == "apply" else 1.0
               for m in walk(n, into=inside) if m.op != "var" and facts.free(m))


def _moved(emit: Node, border: _Border, ways: Mapping[str, _Way]) -> Node:
    """The program with these columns narrow in the ring, a plain batch below it."""
    frame, batch, share = border.frame, border.batch, border.share
    names, values = frame["names"], dict(zip(frame["names"], frame.args[1:], strict=True))
    narrow = {n: ways[n].source if n in ways else v for n, v in values.items()}
    rows = replace(frame.type, parts=tuple((n, row_type(n, v.type)) for n, v in narrow.items()))
    above = node("map", frame.args[0], *narrow.values(), type=rows, names=names)
    ring = node("share", above, type=rows, **(dict(share.attrs) if share is not None else {"end": ""}))
    restored = [ways[n].made if n in ways else node("field", type=row_type(n, v.type), name=n) for n, v in values.items()]
    below = node("map", ring, *restored, type=frame.type, names=names)
    if batch is not None:
        below = node("batch", below, *batch.args[1:], type=batch.type, **dict(batch.attrs))
    reads = None if batch is not None else next((n for n in walk(emit) if n.op == "map" and n.args[0] is border.last), None)
    if reads is None:
        return substitute(emit, {border.last: below})
    return substitute(emit, {reads: node("map", ring, *(through(below, v) for v in reads.args[1:]), type=reads.type,
                                         names=reads["names"])})
