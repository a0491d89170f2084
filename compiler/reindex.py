"""The edit for E0203: an expression over whole tensors rewritten through named indexes."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Span
from .graph import Node
from .scope import Scope, Value
from .words import free_name

if TYPE_CHECKING:
    from .elaborate import Elaborator

NAMES = {1: ("i",), 2: ("i", "j"), 3: ("y", "x", "k"), 4: ("b", "y", "x", "k")}
Leaf = tuple[tree.Expr, Value]


def through_indexes(el: Elaborator, scope: Scope, span: Span) -> Fix | None:
    """Say which index each tensor takes: the largest gives the binders, the others take those of their sizes."""
    root = _root(el, span)
    if root is None:
        return None
    with el.quietly():
        leaves = _leaves(el, scope, root)
    if leaves is None or not leaves:
        return None
    largest = max((v for _, v in leaves), key=lambda v: len(v.type.dims))
    rank = len(largest.type.dims)
    if rank not in NAMES:
        return None
    names: list[str] = []
    for n in NAMES[rank]:
        names.append(free_name(n, [*scope.names, *scope.file.params, *scope.file.lets, *names]))
    edits: dict[int, str] = {}
    for e, value in leaves:
        axes = _axes(el, value, largest)
        if axes is None:
            return None
        edits[e.span.end] = "[" + ", ".join(names[a] for a in axes) + "]"
    text = _inserted(el, root.span, edits)
    order = [names[a] for a in _order(el, scope, largest)]
    return Fix("say which index each one takes", (Edit(root.span, f"[{text} for {', '.join(order)}]"),))


def _root(el: Elaborator, span: Span) -> tree.Expr | None:
    """The whole expression of the line, or the part of it that may be indexed as a whole."""
    if el.line is None or isinstance(el.line, tree.Draw):
        return None
    at: tree.Expr = el.line.value
    if not (at.span.file == span.file and at.span.start <= span.start and span.end <= at.span.end):
        return None
    from .builds import children

    while not isinstance(at, (tree.Binary, tree.Unary, tree.If, tree.Compare)):
        inner = next((c for c in children(at) if c.span.start <= span.start and span.end <= c.span.end), None)
        if inner is None or isinstance(at, (tree.Build, tree.Reduce)):
            return None
        at = inner
    return at


def _leaves(el: Elaborator, scope: Scope, e: tree.Expr) -> list[Leaf] | None:
    """The tensors that operators join; None where one can't be told apart."""
    match e:
        case tree.Binary():
            parts: tuple[tree.Expr, ...] = (e.left, e.right)
        case tree.Unary():
            parts = (e.value,)
        case tree.Compare():
            parts = e.operands
        case tree.If():
            parts = (e.condition, e.then, e.other)
        case _:
            value = el.expr(scope, e)
            if not value.known:
                return None
            if not value.type.dims:
                return []
            return [(e, value)] if isinstance(e, (tree.Name, tree.Part, tree.At, tree.Call)) else None
    found: list[Leaf] = []
    for part in parts:
        inner = _leaves(el, scope, part)
        if inner is None:
            return None
        found += inner
    return found


def _axes(el: Elaborator, value: Value, largest: Value) -> list[int] | None:
    """Which axes of the largest tensor this one has: by equal sizes, else (one axis) the last."""
    dims, wide = value.type.dims, largest.type.dims
    if len(dims) == len(wide):
        return list(range(len(wide)))
    before = dict(el.flexible)
    free = list(range(len(wide)))
    found: list[int] = []
    for d in reversed(dims):
        axis = next((a for a in reversed(free) if _same(el, wide[a], d)), None)
        if axis is None and len(dims) == 1:
            axis = free[-1] if not (isinstance(d, int) and isinstance(wide[free[-1]], int)) else None
        if axis is None:
            el.flexible = before
            return None
        free.remove(axis)
        found.insert(0, axis)
    el.flexible = before
    return found


def _same(el: Elaborator, a: int | Node, b: int | Node) -> bool:
    from . import bounds

    return a is b or a == b or bool(bounds.equal(a, b))


def _inserted(el: Elaborator, span: Span, edits: dict[int, str]) -> str:
    text = el.context.texts.get(span.file, "")
    result, at = "", span.start
    for end in sorted(edits):
        result += text[at:end] + edits[end]
        at = end
    return result + text[at : span.end]


def _order(el: Elaborator, scope: Scope, largest: Value) -> list[int]:
    """The order of the binders that gives the function's promised result, else that of the largest tensor."""
    axes = list(range(len(largest.type.dims)))
    written = scope.function.head.result if scope.function is not None and isinstance(el.line, tree.Value) else None
    if written is None or len(written.dims) != len(axes):
        return axes
    order: list[int] = []
    for e in written.dims:
        size = scope.dims.get(e.id) if isinstance(e, tree.Name) else None
        axis = next((a for a in axes if size is not None and a not in order and largest.type.dims[a] is size), None)
        if axis is None:
            return axes
        order.append(axis)
    return order
