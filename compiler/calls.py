"""Calls: casts, reductions, the user's functions, std.pipe, operators, scalar functions and externs, found by name."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Span
from ..dsl.types import BOOL, DTYPES, FLOATS, I64, INT_RANGE, INTS, NUMBERS, OBJECTS, Type
from . import aggregates, arithmetic, functions, randomness, slips
from .graph import Node, const, node, number
from .promote import apply, as_dim, cast, dim_node, meet, select
from .scope import Context, FileScope, Scope, Value, unknown
from .signatures import Given, all_scalars, arguments, head_of, operators, passed, result_type
from .weights import weight
from .words import described

if TYPE_CHECKING:
    from .elaborate import Elaborator

# Scalar functions that are written as operators only.
SIGNS = frozenset(("add", "sub", "mul", "div", "floordiv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"))
NO_NAMES = FileScope("<operators>")


def call(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    name = e.fn
    own = scope.file.function(name)
    if own is not None:
        return randomness.needs_tilde(el, scope, e) if own.draws else functions.call(el, scope, own, e)
    if name in DTYPES:
        return _cast(el, scope, e)
    if name == "missing":
        return _missing(el, scope, e)
    if name == "concat":
        return _concat(el, scope, e)
    if name == "weight":
        return weight(el, scope, e)
    if name in aggregates.KINDS and not (name in ("min", "max") and len(e.args) > 1):
        return _reduction(el, scope, e)
    if randomness.is_primitive(name):
        return randomness.needs_tilde(el, scope, e)
    return operator(el, scope, e) or scalar(el, scope, e) or slips.unknown_function(el, scope, e)


def known_functions(scope: Scope) -> list[str]:
    """Every name that a call may use here."""
    from ..kernels.scalar import SCALARS

    library = scope.file.library.fns if scope.file.library else {}
    names = [*scope.file.fns, *library, *operators(), *(n for n in SCALARS if n not in SIGNS), *aggregates.KINDS, *DTYPES,
             "missing", "concat", "weight", *randomness.primitives()]
    return [n for n in dict.fromkeys(names) if not n.startswith("_")]


# --- forms of the language itself ---------------------------------------------------------------


def _only(el: Elaborator, scope: Scope, e: tree.Call, what: str) -> tree.Expr | None:
    """The one positional argument."""
    if len(e.args) == 1 and e.args[0].name is None:
        return e.args[0].value
    for a in e.args:
        el.expr(scope, a.value)
    code = "E0122" if not e.args else "E0123"
    fixes = []
    if len(e.args) > 1 and e.args[0].name is None:
        cut = Span(e.span.file, el.outer(e.args[0].span).end, el.outer(e.args[-1].span).end)
        fixes = [Fix("keep the first", (Edit(cut, ""),))]
    el.problem(scope, code, f"`{e.fn}` takes {what}", e.span, f"{len(e.args)} given" if e.args else "nothing given", fixes=fixes)
    return None


def _cast(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    """`u8(x)` rounds half to even and saturates, `i64(x)` truncates, floats take the nearest."""
    written = _only(el, scope, e, "one value")
    if written is None:
        return unknown(e.span)
    value = el.expr(scope, written)
    dtype = e.fn
    if not value.known or not el.plain(scope, value, written.span, f"`{dtype}`"):
        return unknown(e.span)
    old = value.type.dtype
    if dtype in OBJECTS or old in OBJECTS:
        if old == dtype or {old, dtype} <= {"text", "path"}:
            return Value(value.node, replace(value.type, dtype=dtype), e.span)
        notes = ["`hash(…)` makes a number of a text"] if old in OBJECTS else []
        return el.fail(scope, "E0202", f"{old} can't be turned into {dtype}", e.span, described(scope, value.type), notes=notes)

    mode = "truncate" if dtype == "i64" else "round"
    if old == "bool" or (old in INTS and dtype in INTS and _inside(old, dtype)):
        mode = "exact"

    def one(each: list[Value]) -> Value:
        x = each[0].node
        assert x is not None
        if dtype == "bool":
            zero = cast(number(0), x.type.dtype)
            return Value(x if x.type.dtype == "bool" else apply("ne", x, zero, dtype="bool"), BOOL, e.span)
        return Value(cast(x, dtype, mode), Type(dtype), e.span)

    if value.node is not None and value.node.op == "const" and value.type.dims and dtype != "bool":
        made = cast(value.node, dtype, mode)
        return Value(made, Type(dtype, value.type.dims), e.span)
    return el.lift(scope, e.span, [value], one, f"`{dtype}`")


def _inside(narrow: str, wide: str) -> bool:
    (low, high), (least, most) = INT_RANGE[wide], INT_RANGE[narrow]
    return low <= least and most <= high


def _missing(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    """`missing(x)`: a mask for a tensor."""
    written = _only(el, scope, e, "one value")
    if written is None:
        return unknown(e.span)
    value = _maybe_outside(el, scope, written)
    if not value.known or not el.whole(scope, value, written.span):
        return unknown(e.span)
    if not value.type.missing and (scope.function is None or not (el.flexible or scope.calls)):
        return el.fail(scope, "E0402", f"`{el.text(written.span)}` always has a value", e.span, described(scope, value.type),
                       fixes=[Fix("say so", (Edit(e.span, "false"),))] if not value.type.dims else [])

    def one(each: list[Value]) -> Value:
        x = each[0].node
        assert x is not None
        return Value(node("missing", x, type=BOOL) if x.type.missing else const(False, BOOL), BOOL, e.span)

    return el.lift(scope, e.span, [value], one, "`missing`")


def _maybe_outside(el: Elaborator, scope: Scope, written: tree.Expr) -> Value:
    from . import indexing

    if isinstance(written, tree.At):
        done = indexing.read(el, scope, written, guarded=True)
        return done[0] if done else unknown(written.span)
    return el.expr(scope, written)


def _reduction(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    correction = 1
    named = [a for a in e.args if a.name is not None]
    if e.fn in ("std", "var") and len(named) == 1 and named[0].name == "correction":
        given = el.constant(scope, named[0].value)
        if given not in (0, 1):
            return el.fail(scope, "E0206", "`correction` is 0 or 1", named[0].value.span)
        correction = int(given)
        e = replace(e, args=tuple(a for a in e.args if a.name is None))
    axis = next((a for a in named if a.name in ("dim", "axis", "keepdim", "keepdims")), None)
    if axis is not None:
        return slips.axis(el, scope, e, axis)
    written = _only(el, scope, e, "one tensor")
    return unknown(e.span) if written is None else aggregates.over_tensor(el, scope, e, el.expr(scope, written), correction)


def _concat(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    """`concat(a, b, …)`: along the first dimension."""
    values = [el.expr(scope, a.value) for a in e.args]
    if not all(v.known for v in values):
        return unknown(e.span)
    if len(values) < 2 or any(a.name is not None for a in e.args):
        return el.fail(scope, "E0122", "`concat` takes two tensors or more", e.span)
    for v, a in zip(values, e.args, strict=True):
        if not el.plain(scope, v, a.value.span, "`concat`"):
            return unknown(e.span)
        if not v.type.dims:
            fix = Fix("make a list of it", (Edit(a.value.span, f"[{el.text(a.value.span)}]"),))
            return el.fail(scope, "E0204", "`concat` joins tensors", a.value.span, described(scope, v.type), fixes=[fix])
    common = arithmetic.chosen_type(el, scope, values)
    rest = values[0].type.dims[1:]
    alike = all(
        len(v.type.dims) == len(rest) + 1
        and all(el.same_size(scope, a, b, e.span) for a, b in zip(rest, v.type.dims[1:], strict=True))
        for v in values
    )
    if common is None or not alike:
        arithmetic.shapes_differ(el, scope, e.span, values, "`concat`")
        return unknown(e.span)
    return _joined(el, values, common, rest, e.span)


def _joined(el: Elaborator, values: Sequence[Value], common: Type, rest: Sequence[int | Node], span: Span) -> Value:
    starts = [number(0)]
    for v in values:
        starts.append(apply("add", starts[-1], dim_node(v.type.dims[0]), dtype="i64"))

    def one(at: list[Node]) -> Value:
        chosen: Node | None = None
        for v, start, stop in reversed(list(zip(values, starts, starts[1:], strict=False))):
            place = at[0] if start is number(0) else apply("sub", at[0], start, dtype="i64")
            item = el.scalar(el.element(v, [place, *at[1:]]), common.dtype)
            chosen = item if chosen is None else select(apply("lt", at[0], stop, dtype="bool"), item, chosen)
        return Value(chosen, common, span)

    return el.each([as_dim(starts[-1]), *rest], span, one)


# --- scalar functions ---------------------------------------------------------------------------


def scalar(el: Elaborator, scope: Scope, e: tree.Call) -> Value | None:
    """A row of kernels.scalar; None where there is none of this name."""
    from ..kernels.scalar import SCALARS

    row = SCALARS.get(e.fn)
    if row is None or e.fn in SIGNS:
        return None
    if e.fn in ("min", "max") and len(e.args) > 2 and all(a.name is None for a in e.args):
        two = replace(e, args=(tree.Argument(None, replace(e, args=e.args[:-1]), e.span), e.args[-1]))
        return scalar(el, scope, two)
    given = arguments(el, scope, head_of(row.head), e)
    if given is None:
        return unknown(e.span)
    head = head_of(row.head)
    values = []
    for g in given:
        written = g.value if g.value is not None else g.formal.default
        assert written is not None
        values.append(el.expr(scope, written).at(g.span))
    if not all(v.known for v in values):
        return unknown(e.span)
    for g, v in zip(given, values, strict=True):
        if not el.plain(scope, v, g.span, f"`{e.fn}`"):
            return unknown(e.span)
    return _scalar_of(el, scope, e, head, row.operands, [g.span for g in given], values)


def _scalar_of(
    el: Elaborator, scope: Scope, e: tree.Call, head: tree.Head, operands: str, spans: Sequence[Span], values: list[Value]
) -> Value:
    if operands == "bool":
        common: Type | None = BOOL if all(v.type.dtype == "bool" for v in values) else None
    else:
        common = meet([v.type.element for v in values])
        if common is not None and operands == "float" and common.dtype in INTS:
            common = Type("f32", weak=common.weak)
        if common is not None and operands == "int" and common.dtype in FLOATS:
            common = None
    if common is None:
        return _unfit(el, scope, e, operands, spans, values)
    assert head.result is not None
    result = BOOL if head.result.dtype == "bool" else common

    def one(each: list[Value]) -> Value:
        made = apply(e.fn, *(el.scalar(v, common.dtype) for v in each), dtype=result.dtype)
        if not el.silent:
            el.context.made(made, e.span)
        return Value(made, result, e.span)

    return el.lift(scope, e.span, values, one, f"`{e.fn}`")


def _unfit(
    el: Elaborator, scope: Scope, e: tree.Call, operands: str, spans: Sequence[Span], values: Sequence[Value]
) -> Value:
    for span, v in zip(spans, values, strict=True):
        text = el.text(span)
        if v.type.dtype == "bool" and operands != "bool":
            fix = Fix("count true as 1 and false as 0", (Edit(span, f"i32({text})"),))
            return el.fail(scope, "E0202", f"`{e.fn}` needs numbers", span, described(scope, v.type), fixes=[fix])
        if operands == "int" and v.type.dtype in FLOATS:
            fix = Fix("cut the fraction off", (Edit(span, f"i64({text})"),))
            return el.fail(scope, "E0202", f"`{e.fn}` needs whole numbers", span, described(scope, v.type), fixes=[fix])
        if v.type.dtype not in NUMBERS:
            return el.fail(scope, "E0202", f"`{e.fn}` needs numbers", span, described(scope, v.type))
    return unknown(e.span)


# --- operators and externs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Opaque:
    """A function whose calls stay nodes: `op` with `attrs`; `name` is what its sizes are told by."""

    head: tree.Head
    op: str
    attrs: dict[str, str]
    name: str
    file: FileScope = NO_NAMES


def operator(el: Elaborator, scope: Scope, e: tree.Call) -> Value | None:
    """A row of kernels.ops; None where there is none of this name."""
    row = operators().get(e.fn)
    return None if row is None else opaque(el, scope, Opaque(head_of(row.head), "call", {"op": e.fn}, e.fn), e)


def opaque(el: Elaborator, scope: Scope, fn: Opaque, e: tree.Call) -> Value:
    """A call that stays a node: an operator's or an extern's. Scalar ones apply at every place of tensors."""
    given = arguments(el, scope, fn.head, e)
    if given is None:
        return unknown(e.span)
    if not all_scalars(fn.head):
        return _opaque(el, scope, fn, e.span, given, None)
    values = {g.formal.name: el.expr(scope, g.value).at(g.span) for g in given if g.value is not None}
    if not all(v.known for v in values.values()):
        return unknown(e.span)

    def one(each: list[Value]) -> Value:
        return _opaque(el, scope, fn, e.span, given, dict(zip(values, each, strict=True)))

    return el.lift(scope, e.span, list(values.values()), one, f"`{fn.head.name}`")


def _opaque(
    el: Elaborator, scope: Scope, fn: Opaque, span: Span, given: Sequence[Given], values: dict[str, Value] | None
) -> Value:
    callee = Scope(fn.file, facts=scope.facts, sizes=scope.sizes)
    found = passed(el, scope, callee, fn.head, given, values)
    if found is None:
        return unknown(span)
    args = tuple(v.node for v in found.values() if v.node is not None)
    if fn.head.result is not None:
        type = result_type(el, callee, fn.head.result, lambda axis: _extent(fn.name, args, "", axis))
        return unknown(span) if type is None else _node(fn, args, type, span)
    parts = []
    for formal in fn.head.results:
        part = partial(_extent, fn.name, args, formal.name)
        type = result_type(el, callee, formal.type, part)
        if type is None:
            return unknown(span)
        parts.append((formal.name, type.strong()))
    return _node(fn, args, Type("struct", parts=tuple(parts)), span)


def call_of(fn: Opaque, args: Sequence[Node]) -> tuple[Node | None, list[tuple[Node, Node]]]:
    """The call of `fn` with these args, and the sizes that must be equal for it; None where they don't fit."""
    from .elaborate import Elaborator

    el, here = Elaborator(Context()), Span("<graph>", 0, 0)
    scope = Scope(NO_NAMES)
    values = {f.name: Value(a, a.type, here) for f, a in zip(fn.head.formals, args, strict=True)}
    made = _opaque(el, scope, fn, here, [Given(f, None, here) for f in fn.head.formals], values)
    return made.node, [(a, b) for a, b, _ in scope.sizes]


def _node(fn: Opaque, args: Sequence[Node], type: Type, span: Span) -> Value:
    return Value(node(fn.op, *args, type=type.strong(), **fn.attrs), type, span)


def _extent(op: str, args: Sequence[Node], part: str, axis: int) -> Node:
    return node("extent", *args, type=I64, op=op, part=part, axis=axis)
