"""`sum(e for k)` and `sum(x)`: to `reduce` nodes; `mean std var` are made of sums."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import FLOATS, I64, NUMBERS, Type
from . import bounds, builds
from .graph import Node, fresh_id, node, number
from .promote import apply, as_dim, cast, dim_node
from .scope import Scope, Value, unknown
from .words import described, free_name

if TYPE_CHECKING:
    from .elaborate import Elaborator

OF_NUMBERS = ("sum", "prod", "min", "max", "mean", "std", "var", "argmax", "argmin")
OF_TRUTHS = ("any", "all", "first")
KINDS = (*OF_NUMBERS, *OF_TRUTHS)
# Nothing has no least, no mean and no first: the result may be missing where there may be nothing.
NEED_SOME = ("min", "max", "mean", "std", "var", "argmax", "argmin")
PLACES = ("argmax", "argmin", "first")


def over_binders(el: Elaborator, scope: Scope, e: tree.Reduce) -> Value:
    """`sum(body for i, j < n)`"""
    if e.fn not in KINDS:
        return el.fail(scope, "E0120", f"`{e.fn}` can't run over `for`", e.fn_span, "not a reduction",
                       notes=["reductions: " + " ".join(KINDS), f"`[… for …]` builds a tensor, which `{e.fn}` may take"])
    bound = builds.bind_binders(el, scope, e.binders, [e.body])
    if bound is None:
        return unknown(e.span)
    inner, at, dims = bound
    body = el.expr(inner, e.body)
    if not body.known or not el.plain(inner, body, e.body.span, f"`{e.fn}`"):
        return unknown(e.span)
    if e.fn in PLACES and len(at) > 1:
        return el.fail(scope, "E0208", f"`{e.fn}` runs over one binder", e.binders[1].span, f"{len(at)} given",
                       notes=[f"one per row: `[{e.fn}(… for {e.binders[-1].name}) for {e.binders[0].name}]`"])
    if not _fits(el, inner, e.fn, body, e.body.span):
        return unknown(e.span)
    dims = [el.settled(d) for d in dims]
    if not body.type.dims:
        return reduced(el, scope, e.fn, body, at, dims, e.span)
    if not builds.one_size(el, inner, body, at, e.body.span, e.binders):
        return unknown(e.span)
    return el.each(body.type.dims, e.span, lambda place: reduced(el, scope, e.fn, el.element(body, place), at, dims, e.span))


def over_tensor(el: Elaborator, scope: Scope, e: tree.Call, value: Value, correction: int = 1) -> Value:
    """`sum(x)`: over all places of a tensor."""
    where = e.args[0].value.span
    if not value.known or not el.plain(scope, value, where, f"`{e.fn}`"):
        return unknown(e.span)
    if not value.type.dims:
        fixes = [Fix("drop it", (Edit(e.span, el.text(where)),))] if e.fn in ("sum", "mean", "min", "max", "prod") else []
        return el.fail(scope, "E0208", f"`{e.fn}` runs over a tensor", where, described(scope, value.type), fixes=fixes)
    if not _fits(el, scope, e.fn, value, where):
        return unknown(e.span)
    if _over_the_batch(scope, value):
        return _reduces_batch(el, scope, e, value)
    if e.fn in PLACES and len(value.type.dims) > 1:
        return el.fail(scope, "E0208", f"`{e.fn}` gives one index, and this has {len(value.type.dims)} dimensions", where,
                       described(scope, value.type), notes=[f"one per row: `[{e.fn}({el.text(where)}[i]) for i]`"])
    at = el.variables(value.type.dims)
    return reduced(el, scope, e.fn, el.element(value, at), at, value.type.dims, e.span, correction)


def _fits(el: Elaborator, scope: Scope, fn: str, value: Value, span: Span) -> bool:
    dtype = value.type.dtype
    if fn in OF_TRUTHS:
        good = dtype == "bool"
    else:
        good = dtype in NUMBERS or (dtype == "bool" and fn in ("sum", "mean"))
    if good:
        return True
    text = el.text(span)
    fixes = []
    if fn in OF_TRUTHS and dtype in NUMBERS:
        fixes = [Fix("compare it", (Edit(span, f"({text}) != 0"),))]
    elif dtype == "bool":
        fixes = [Fix("count true as 1 and false as 0", (Edit(span, f"i32({text})"),))]
    need = "conditions" if fn in OF_TRUTHS else "numbers"
    el.problem(scope, "E0202", f"`{fn}` runs over {need}", span, described(scope, value.type), fixes=fixes)
    return False


def reduced(
    el: Elaborator, scope: Scope, fn: str, body: Value, at: Sequence[Node], dims: Sequence[int | Node], span: Span,
    correction: int = 1,
) -> Value:
    """The reduction of a scalar body over binders `at` with these ranges."""
    empty = fn in NEED_SOME and not some(el, scope, dims)
    n, dtype = body.node, body.type.dtype
    assert n is not None
    if fn in ("mean", "std", "var"):
        made = _average(fn, n, at, dims, correction)
        if empty:
            return Value(_if_some(made, dims), Type(made.type.dtype, missing=True), span)
        return Value(made, Type(made.type.dtype, weak=body.type.weak), span)
    kind = "i64" if dtype not in FLOATS and fn not in OF_TRUTHS else dtype
    own = I64 if fn in PLACES else Type(kind)
    type = Type(own.dtype, missing=empty or fn == "first")
    weak = body.type.weak and fn not in OF_TRUTHS and not type.missing
    return Value(_reduce(fn, cast(n, kind), at, dims, type), Type(type.dtype, missing=type.missing, weak=weak), span)


def some(el: Elaborator, scope: Scope, dims: Sequence[int | Node]) -> bool:
    """Is every range certainly 1 or more."""
    return all(
        d > 0 if isinstance(d, int) else bounds.at_most(number(1), d, el.facts(scope)) or el.loose(d) for d in dims
    )


def _reduce(kind: str, body: Node, at: Sequence[Node], dims: Sequence[int | Node], type: Type) -> Node:
    return node("reduce", body, *(dim_node(d) for d in dims), ids=tuple(v["id"] for v in at), kind=kind, type=type)


def _count(dims: Sequence[int | Node]) -> int | Node:
    total = dim_node(dims[0])
    for d in dims[1:]:
        total = apply("mul", total, dim_node(d), dtype="i64")
    return as_dim(total)


def _average(fn: str, body: Node, at: Sequence[Node], dims: Sequence[int | Node], correction: int) -> Node:
    """Mean, variance (two passes) or deviation; whole numbers are summed exactly and divided as f32."""
    exact = body if body.type.dtype in FLOATS else cast(body, "i64")
    dtype = body.type.dtype if body.type.dtype in FLOATS else "f32"
    count = _count(dims)
    total = _reduce("sum", exact, at, dims, Type(exact.type.dtype))
    mean = apply("div", cast(total, dtype), cast(dim_node(count), dtype), dtype=dtype)
    if fn == "mean":
        return mean
    away = apply("sub", cast(body, dtype), mean, dtype=dtype)
    squares = _reduce("sum", apply("mul", away, away, dtype=dtype), at, dims, Type(dtype))
    less = apply("sub", dim_node(count), number(correction), dtype="i64")
    variance = apply("div", squares, cast(less, dtype), dtype=dtype)
    return variance if fn == "var" else apply("sqrt", variance, dtype=dtype)


def _if_some(value: Node, dims: Sequence[int | Node]) -> Node:
    """`value`, missing where there is nothing: the greatest of it over one place or none."""
    places = apply("min", dim_node(_count(dims)), number(1), dtype="i64")
    return node("reduce", value, places, ids=(fresh_id(),), kind="max", type=Type(value.type.dtype, missing=True))


# --- below batch --------------------------------------------------------------------------------


def _over_the_batch(scope: Scope, value: Value) -> bool:
    if scope.count is None or scope.function is not None or value.node is None:
        return False
    first = value.type.dims[0]
    return first is scope.count or (isinstance(first, int) and first == scope.count)


def _reduces_batch(el: Elaborator, scope: Scope, e: tree.Call, value: Value) -> Value:
    x = el.text(e.args[0].value.span)
    b = free_name("b", [*scope.names, *scope.file.params, *scope.file.lets])
    simple = isinstance(e.args[0].value, (tree.Name, tree.Part, tree.Call, tree.At))
    part = f"{x}[{b}]" if simple else f"({x})[{b}]"
    rest = "".join(f", {el.text(a.span)}" for a in e.args[1:])
    if len(value.type.dims) > 1:
        fix = Fix("one for each record", (Edit(e.span, f"[{e.fn}({part}{rest}) for {b}]"),))
    else:
        fix = Fix("say that all records are meant", (Edit(e.span, f"{e.fn}({part} for {b})"),))
    return el.fail(
        scope, "E0209", f"below `batch`, `{e.fn}({x})` runs over all records of the batch", e.span,
        described(scope, value.type), reasons=[Label(e.args[0].value.span, described(scope, value.type))],
        notes=[f"`{e.fn}({part} for {b}, …)` says that the whole batch is meant"], fixes=[fix],
    )
