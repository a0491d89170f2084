"""Smaller graphs of the same meaning: constants computed, laws applied, equal dims and equal builds made one node.

Before:

    image = field(name="image") : u8[4, 3]
    i = var(id=1) : i64
    j = var(id=2) : i64
    pixel = index(image, i, j, guard=false) : u8
    wide = cast(pixel, mode="exact") : f32
    one = const(value=1.0) : f32
    two = const(value=2.0) : f32
    scale = apply(one, two, fn="div") : f32
    scaled = apply(wide, scale, fn="mul") : f32
    same = apply(scaled, one, fn="mul") : f32
    four = const(value=4) : i64
    three = const(value=3) : i64
    build(same, four, three, ids=(1, 2)) : f32[4, 3]

After:

    image = field(name="image") : u8[4, 3]
    i = var(id=1) : i64
    j = var(id=2) : i64
    pixel = index(image, i, j, guard=false) : u8
    wide = cast(pixel, mode="exact") : f32
    half = const(value=0.5) : f32
    scaled = apply(wide, half, fn="mul") : f32
    four = const(value=4) : i64
    three = const(value=3) : i64
    build(scaled, four, three, ids=(1, 2)) : f32[4, 3]
"""
from __future__ import annotations

from typing import Any

from ..dsl.problems import Span
from ..dsl.types import FLOATS, INTS, Type
from . import linear
from .graph import Node, inherit, node, number, walk
from .laws import LAWS, keeps, total
from .rules import applied, by_head, constant_value, everywhere, with_dims
from .twins import merge_twins

MOST_ROUNDS = 4
_LAWS = by_head(LAWS)
Spans = dict[Node, tuple[Span, ...]]


def simplify(root: Node, spans: Spans | None = None) -> Node:
    """The simplest form found of `root`; nodes that take another's place take over its `spans`."""
    moved = None if spans is None else inherit(spans)
    for _ in range(MOST_ROUNDS):
        before, root = root, merge_twins(everywhere(root, step, moved), moved)
        if root is before:
            break
    return root


def step(n: Node) -> Node | None:
    """One simplification of `n` whose args are simple already, or None."""
    for rule in (_dims, _folded, _cast, _element):
        changed = rule(n)
        if changed is not None and changed is not n:
            return changed
    for law in _LAWS.get(n["fn"] if n.op == "apply" else n.op, ()):
        changed = applied(law, n, total)
        if changed is not None:
            return changed
    return None


# --- dims -----------------------------------------------------------------------------------------


def _dims(n: Node) -> Node | None:
    """Dims and the extents of builds and reductions in their one form."""
    type = with_dims(n.type, linear.canonical)
    args = n.args
    if n.op in ("build", "reduce"):
        args = (n.args[0], *(_extent(e) for e in n.args[1:]))
    return None if type == n.type and args == n.args else node(n.op, *args, type=type, **dict(n.attrs))


def _extent(n: Node) -> Node:
    dim = linear.canonical(n)
    return number(dim) if isinstance(dim, int) else dim


# --- constants ------------------------------------------------------------------------------------


def _folded(n: Node) -> Node | None:
    if n.op not in ("apply", "cast") or n.type.dims or not all(_is_plain(a) for a in n.args):
        return None
    if n.type.dtype not in (*INTS, *FLOATS, "bool"):
        return None
    return _fold_apply(n) if n.op == "apply" else _fold_cast(n)


def _is_plain(n: Node) -> bool:
    return n.op == "const" and not n.type.dims and n.type.dtype in (*INTS, *FLOATS, "bool")


def _array(n: Node) -> Any:
    """A constant as the reference functions take it: integers at i64."""
    from ..kernels.scalar import literal

    return literal(n["value"], n.type.dtype)


def _constant(value: Any, type: Type) -> Node:
    import numpy as np

    kind: Any = bool if type.dtype == "bool" else float if type.dtype in FLOATS else int
    return node("const", type=type, value=kind(np.asarray(value).item()))


def _fold_apply(n: Node) -> Node | None:
    from ..kernels.scalar import ARRAYS, NAMES, SCALARS

    row = SCALARS.get(n["fn"])
    if row is None:
        return None
    args = [_array(a) for a in n.args]
    whole = all(a.dtype.kind in "iu" for a in args)
    if any(a.type.dtype == "u64" for a in n.args):
        return None
    if whole:
        args = [a.astype("int64") for a in args]
        if n["fn"] in ("floordiv", "mod") and not args[1]:
            return None
        if row.overflow is not None and row.overflow(ARRAYS, *args):
            return None
    result = row.ref(*args)
    return _constant(result, n.type) if NAMES[result.dtype] == n.type.dtype else None


def _fold_cast(n: Node) -> Node | None:
    from ..kernels.scalar import cast, cast_overflows

    x, mode = _array(n.args[0]), n["mode"]
    if mode == "exact" and cast_overflows(x, n.type.dtype):
        return None
    return _constant(cast(x, n.type.dtype, mode), n.type)


# --- casts and elements ---------------------------------------------------------------------------


def _cast(n: Node) -> Node | None:
    """A cast to the same dtype, and a cast of a cast that keeps every value."""
    if n.op != "cast" or n["mode"] == "bits":
        return None
    x = n.args[0]
    if x.type == n.type:
        return x
    if x.op != "cast" or x["mode"] == "bits" or not keeps(x.args[0].type.dtype, x.type.dtype):
        return None
    first = x.args[0]
    if n["mode"] == "exact" and x.type.dtype in FLOATS and n.type.dtype in INTS:
        return None
    return first if first.type == n.type else node("cast", first, type=n.type, mode=n["mode"])


def _element(n: Node) -> Node | None:
    """An element of a constant at a constant place, or of a tensor with one value everywhere."""
    if n.op != "index" or n["guard"] or n.type.dims:
        return None
    tensor, places = n.args[0], n.args[1:]
    if tensor.op == "const":
        return _of_constant(n, tensor, places)
    if tensor.op == "build" and len(places) == len(tensor["ids"]):
        return _of_build(n, tensor, places)
    return None


def _of_constant(n: Node, tensor: Node, places: tuple[Node, ...]) -> Node | None:
    values = tensor["value"]
    if values and all(_same_value(v, values[0]) for v in values) and all(total(p) for p in places):
        return node("const", type=n.type, value=values[0])
    if not all(_is_plain(p) for p in places) or not all(isinstance(d, int) for d in tensor.type.dims):
        return None
    flat = 0
    for p, d in zip(places, tensor.type.dims, strict=True):
        at = constant_value(p)
        if not 0 <= at < d:
            return None
        flat = flat * d + at
    return node("const", type=n.type, value=values[flat])


def _same_value(a: Any, b: Any) -> bool:
    return type(a) is type(b) and str(a) == str(b)


def _of_build(n: Node, tensor: Node, places: tuple[Node, ...]) -> Node | None:
    """A body that doesn't depend on its place is the element; more than that is fusion's business."""
    body = tensor.args[0]
    if body.type != n.type or not all(total(a) for a in (body, *places, *tensor.args[1:])):
        return None
    return None if any(a.op == "var" and a["id"] in tensor["ids"] for a in walk(body)) else body
