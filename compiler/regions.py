"""Parts of images: a crop of a resized image resizes only what it reads, and an image of which only parts are read is
decoded only there. Every value stays; what is decoded elsewhere, or not at all, was read by nobody.

An image's size is read from its header then (`image_size`), since boxes are drawn before anything is decoded. The whole
image is decoded where anything reads it as a whole, where a condition of `where` or `check` needs it (a record that can't
be decoded must stay bad) and where it isn't always needed.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..dsl.problems import Span
from ..dsl.types import BOOL, I64
from . import bounds, linear
from .asked import conditions
from .graph import STREAM_OPS, Node, const, fresh_id, node, number, var, walk
from .prune import stream_args
from .rules import everywhere
from .simplify import simplify
from .totality import Facts

Spans = dict[Node, tuple[Span, ...]]
Area = tuple[Node, Node, Node, Node]      # top, left, height, width


def decode_regions(emit: Node, spans: Spans) -> Node:
    """Decode and resize only what is read.

    Before:

        jpg = field(name="jpg") : bytes
        h = extent(jpg, 3, true, "refuse", 100000000, 1, axis=0, op="decode_image", part="") : i64
        w = extent(jpg, 3, true, "refuse", 100000000, 1, axis=1, op="decode_image", part="") : i64
        photo = call(jpg, 3, true, "refuse", 100000000, 1, op="decode_image") : u8[h, w, 3]
        box = const(value=(9, 9, 50, 40)) : i64[4]
        small = call(photo, box, 8, 8, "bilinear", true, op="resize") : u8[8, 8, 3]
        d = source(columns=(("jpg", (("jpg",),), "bytes"),), kind="tar", options=(), paths=()) : {jpg: bytes}
        out = map(d, small, names=("small",)) : {small: u8[8, 8, 3]}
        emit(out, names=("small",)) : {small: u8[8, 8, 3]}

    After:

        jpg = field(name="jpg") : bytes
        size = call(jpg, 3, true, "refuse", 100000000, 1, op="image_size") : i64[2]
        box = const(value=(9, 9, 50, 40)) : i64[4]
        window = call(size, box, 8, 8, 0, 0, 8, 8, "bilinear", true, op="resize_window") : i64[4]
        h = extent(jpg, window, 3, true, "refuse", 100000000, 1, axis=0, op="decode_region", part="") : i64
        w = extent(jpg, window, 3, true, "refuse", 100000000, 1, axis=1, op="decode_region", part="") : i64
        photo = call(jpg, window, 3, true, "refuse", 100000000, 1, op="decode_region") : u8[h, w, 3]
        small = call(photo, window, size, box, 8, 8, 0, 0, 8, 8, "bilinear", true, op="resize_part") : u8[8, 8, 3]
        d = source(columns=(("jpg", (("jpg",),), "bytes"),), kind="tar", options=(), paths=()) : {jpg: bytes}
        out = map(d, small, names=("small",)) : {small: u8[8, 8, 3]}
        emit(out, names=("small",)) : {small: u8[8, 8, 3]}
    """
    for resized in _calls(emit, "resize"):
        emit = _resized_in_part(emit, resized, spans)
    for decoded in _calls(emit, "decode_image"):
        emit = _decoded_in_part(emit, decoded, spans)
    return emit


def _calls(root: Node, op: str) -> list[Node]:
    return [n for n in walk(root) if n.op == "call" and n["op"] == op]


def _rewritten(root: Node, change: dict[Node, Node], spans: Spans) -> Node:
    """`root` with nodes replaced, those in dims too; what stands for a node stands where it stood."""

    def moved(old: Node, new: Node) -> None:
        if old in spans:
            spans.setdefault(new, spans[old])

    return everywhere(root, change.get, moved, 1)


# --- a resized image that is cropped ------------------------------------------------------------------------------------


def _resized_in_part(emit: Node, resized: Node, spans: Spans) -> Node:
    """`resize` makes only those pixels that indexes read."""
    read = _Reads(emit, resized)
    if not read.known or read.resizes:
        return emit
    image, box, height, width, filter, antialias = resized.args
    areas = read.areas(height, width)
    if not areas:
        return emit
    area = _joined(areas)
    whole = const((0, 0, 0, 0), I64.with_dims((4,)))
    part = node("call", image, whole, _listed(*_sides(image)), box, height, width, *area, filter, antialias, op="resize_part",
                type=resized.type.with_dims((_dim(area[2]), _dim(area[3]), *resized.type.dims[2:])))
    _stands(part, resized, spans)
    return _rewritten(emit, {n: _moved(n, part, area) for n in read.indexes}, spans)


# --- a decoded image of which parts are read ----------------------------------------------------------------------------


def _decoded_in_part(emit: Node, decoded: Node, spans: Spans) -> Node:
    if not _Reads(emit, decoded).known or not _always_asked(emit, decoded):
        return emit
    size = node("call", *decoded.args, type=I64.with_dims((2,)), op="image_size")
    _stands(size, decoded, spans)
    sides = tuple(node("index", size, number(axis), type=I64, guard=False) for axis in (0, 1))
    sized = _rewritten(emit, {_extent(decoded, axis): sides[axis] for axis in (0, 1)}, spans)
    image = next(n for n in _calls(sized, "decode_image") if n.args == decoded.args)
    read = _Reads(sized, image)
    windows = [_window(n, size, sides) for n in read.resizes]
    areas = read.areas(*sides)
    found = [w for w in windows if w is not None]
    if not read.known or areas is None or len(found) < len(windows):
        return emit
    window = found[0] if len(found) == 1 and not areas else _listed(*_joined([*map(_of_window, found), *areas]))
    data, *options = image.args
    part = _with_own_sizes("decode_region", (data, window, *options), image)
    _stands(part, decoded, spans)
    change = {n: _resized_from(n, part, window, size) for n in read.resizes}
    change |= {n: _moved(n, part, _of_window(window)) for n in read.indexes}
    return _rewritten(sized, change, spans)


def _always_asked(emit: Node, decoded: Node) -> bool:
    """Do all values that speak of the image belong to frames, and need it whatever their conditions say."""
    sizes = {_extent(decoded, axis) for axis in (0, 1)}

    def speaks(values: Iterable[Node]) -> bool:
        return any(n is decoded or n in sizes for n in walk(*values))

    for stage in (n for n in walk(emit) if n.op in STREAM_OPS):
        values = stage.args[len(stream_args(stage)) :]
        if not speaks(values):
            continue
        asked = conditions(values, [decoded], Facts(values), lambda e: decoded if e in sizes else None)
        if stage.op != "map" or decoded in asked:
            return False
    return True


def _extent(call: Node, axis: int) -> Node:
    return node("extent", *call.args, type=I64, op=call["op"], part="", axis=axis)


def _with_own_sizes(op: str, args: tuple[Node, ...], like: Node) -> Node:
    dims = [node("extent", *args, type=I64, op=op, part="", axis=axis) for axis in (0, 1)]
    return node("call", *args, type=like.type.with_dims((*dims, *like.type.dims[2:])), op=op)


def _window(resized: Node, size: Node, sides: tuple[Node, ...]) -> Node | None:
    """The pixels that a resize reads; None where that is all of them."""
    if resized["op"] == "resize":
        _, box, height, width, filter, antialias = resized.args
        cut: tuple[Node, ...] = (number(0), number(0), height, width)
        given = [simplify(node("index", box, number(k), type=box.type.element, guard=False)) for k in range(4)]
        if given[:2] == [number(0), number(0)] and tuple(given[2:]) == sides:
            return None
    else:
        _, _, _, box, height, width, *cut_, filter, antialias = resized.args
        cut = tuple(cut_)
    return node("call", size, box, height, width, *cut, filter, antialias, type=I64.with_dims((4,)), op="resize_window")


def _resized_from(resized: Node, part: Node, window: Node, size: Node) -> Node:
    if resized["op"] == "resize":
        _, box, height, width, filter, antialias = resized.args
        zero = number(0)
        args: tuple[Node, ...] = (part, window, size, box, height, width, zero, zero, height, width, filter, antialias)
    else:
        args = (part, window, size, *resized.args[3:])
    return node("call", *args, type=resized.type, op="resize_part")


# --- what is read -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spread:
    """Least and greatest value of an index over its binders, in terms of what they don't change."""

    low: Node
    high: Node


class _Reads:
    """How an image is used. `known`: only by indexes and resizes. `resizes`: calls of `resize` and `resize_part`."""

    def __init__(self, emit: Node, image: Node):
        users = [n for n in walk(emit) if image in n.args]
        self.image = image
        self.indexes = [n for n in users if n.op == "index" and n.args.count(image) == 1 and n.args[0] is image]
        self.resizes = [n for n in users if n.op == "call" and n["op"] in ("resize", "resize_part")
                        and n.args[0] is image and n.args.count(image) == 1]
        self.known = bool(users) and len(users) == len(self.indexes) + len(self.resizes)
        values = [v for s in walk(emit) if s.op in STREAM_OPS for v in s.args[len(stream_args(s)) :]]
        self.facts = Facts(values)
        self.certain = set(_certain(values))
        self.known = self.known and all(self._fine(n) for n in self.indexes + self.resizes)

    def _fine(self, use: Node) -> bool:
        """May what places this use be computed before the image is, wherever it stands."""
        own = use.args[1:]
        if any(self.image is n for n in walk(*own)):
            return False
        if use.op == "call" and any(map(self.facts.free, own)):
            return False
        return use in self.certain or not any(map(self.facts.fails, own))

    def areas(self, height: Node, width: Node) -> list[Area] | None:
        """The parts of an image of this size that indexes read, cut to it; None where that is all of it, or can't be told."""
        found: dict[Area, None] = {}
        for n in self.indexes:
            rows, columns = (self.spread(i) for i in n.args[1:3])
            if rows is None or columns is None:
                return None
            (top, tall), (left, wide) = _clipped(rows, height), _clipped(columns, width)
            found[top, left, tall, wide] = None
        return None if (number(0), number(0), height, width) in found else list(found)

    def spread(self, i: Node) -> _Spread | None:
        found = self._spread(i)
        return None if found is None else _Spread(_tidy(found.low), _tidy(found.high))

    def _spread(self, i: Node) -> _Spread | None:
        if not self.facts.free(i):
            return _Spread(i, i)
        if i.op == "var":
            extent = self.facts.extents.get(i["id"])
            if extent is None or self.facts.free(extent):
                return None
            return _Spread(number(0), _apply("sub", extent, number(1)))
        if i.op == "select":
            a, b = (self._spread(x) for x in i.args[1:])
            return None if a is None or b is None else _Spread(_apply("min", a.low, b.low), _apply("max", a.high, b.high))
        if i.op == "apply" and i["fn"] in ("add", "sub", "min", "max", "neg"):
            of = [self._spread(a) for a in i.args]
            if None in of:
                return None
            return _arithmetic(i["fn"], [s for s in of if s is not None])
        return None


def _arithmetic(fn: str, of: list[_Spread]) -> _Spread:
    if fn == "neg":
        return _Spread(_apply("neg", of[0].high), _apply("neg", of[0].low))
    a, b = of
    if fn == "sub":
        return _Spread(_apply("sub", a.low, b.high), _apply("sub", a.high, b.low))
    return _Spread(_apply(fn, a.low, b.low), _apply(fn, a.high, b.high))


def _certain(values: Iterable[Node]) -> Iterator[Node]:
    """Nodes that every evaluation of the values evaluates."""
    seen: set[Node] = set()
    stack = list(values)
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        yield n
        match n.op:
            case "select" | "fill":
                stack.append(n.args[0])
            case "apply" if n["fn"] in ("and", "or"):
                stack.append(n.args[0])
            case "build" | "reduce":
                body, *extents = n.args
                stack += extents + ([body] if all(bounds.less(0, e) for e in extents) else [])
            case _:
                stack += n.args


# --- small nodes --------------------------------------------------------------------------------------------------------


def _apply(fn: str, *args: Node) -> Node:
    return node("apply", *args, type=I64, fn=fn)


def _tidy(n: Node) -> Node:
    """The one node for all forms of a sum."""
    return linear.to_node(linear.of(n))


def _clipped(s: _Spread, size: Node) -> tuple[Node, Node]:
    """First place and number of places of a spread that lie in 0 to size - 1."""
    end = _tidy(_apply("add", s.high, number(1)))
    if s.low is number(0) and end is _tidy(size):
        return s.low, size
    if bounds.at_most(0, s.low) and bounds.at_most(s.low, end) and bounds.at_most(end, size):
        return s.low, _tidy(_apply("sub", end, s.low))
    low = _tidy(_apply("clamp", s.low, number(0), size))
    return low, _tidy(_apply("sub", _apply("clamp", end, low, size), low))


def _joined(areas: list[Area]) -> Area:
    """The least area that holds all of these."""
    found = areas[0]
    for area in areas[1:]:
        starts = [_apply("min", a, b) for a, b in zip(found[:2], area[:2], strict=True)]
        ends = [_apply("max", _apply("add", found[k], found[k + 2]), _apply("add", area[k], area[k + 2])) for k in (0, 1)]
        sizes = [_apply("sub", end, start) for end, start in zip(ends, starts, strict=True)]
        top, left, tall, wide = map(_tidy, (*starts, *sizes))
        found = (top, left, tall, wide)
    return found


def _of_window(window: Node) -> Area:
    top, left, tall, wide = (simplify(node("index", window, number(k), type=I64, guard=False)) for k in range(4))
    return top, left, tall, wide


def _listed(*values: Node) -> Node:
    """[a, b, …] as a tensor."""
    place = fresh_id()
    chosen = values[-1]
    for k in range(len(values) - 2, -1, -1):
        chosen = node("select", node("apply", var(place), number(k), type=BOOL, fn="eq"), values[k], chosen, type=I64)
    return node("build", chosen, number(len(values)), type=I64.with_dims((len(values),)), ids=(place,))


def _sides(image: Node) -> tuple[Node, Node]:
    height, width = (d if isinstance(d, Node) else number(d) for d in image.type.dims[:2])
    return height, width


def _dim(n: Node) -> Node | int:
    return int(n["value"]) if n.op == "const" else n


def _moved(index: Node, part: Node, area: Area) -> Node:
    """The same element, read from the part of the image that is there."""
    _, y, x, *rest = index.args
    y, x = (_tidy(_apply("sub", i, start)) for i, start in zip((y, x), area[:2], strict=True))
    return node("index", part, y, x, *rest, type=index.type, guard=index["guard"])


def _stands(new: Node, old: Node, spans: Spans) -> None:
    if old in spans:
        spans.setdefault(new, spans[old])
