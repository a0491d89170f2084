"""Scalars in loop IR: a node of a scalar goes in, its expression comes out, after the statements that it needs."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ..dsl.types import OBJECTS
from ..kernels.scalar import SCALARS
from .graph import Node
from .held import Scalar, chosen, convert, held, meeting, recast, rounded, typed, zero
from .loops import Cast, Const, Expr, Load, Select
from .routines import applied

if TYPE_CHECKING:
    from .values import Lowering


def apply(low: Lowering, n: Node) -> Expr:
    if n["fn"] in ("and", "or") and low.lazy(n.args[1]):
        return _both(low, n)
    args = [low.expr(a) for a in n.args]
    scalar = SCALARS[n["fn"]]
    if n.args[0].type.dtype in OBJECTS and n["fn"] in ("eq", "ne"):
        low.argument("data", "@alike", "i64")   # equal texts must have equal numbers here
    elif n.args[0].type.dtype in OBJECTS:
        args = [_rank(low, a) for a in args]
    dtype = meeting(scalar.operands, args)
    args = [a if a.dtype == dtype else recast(a, dtype) for a in args]
    if scalar.overflow is not None and dtype == "i64" and low.facts.overflows(n):
        args = [low.local(a) for a in args]
        with low.branch(scalar.overflow(low.k, *args)):
            low.k.fail(low.site("E0802", _past_i64(n["fn"]), n))
    return rounded(typed(applied(low.k, n["fn"], args), n.type.dtype), n.type.dtype)


def _rank(low: Lowering, text: Expr) -> Expr:
    """The place of a text among all that the kernel may meet, in order."""
    return Load(low.argument("data", "@order", "i64"), text, "i64")


def _both(low: Lowering, n: Node) -> Expr:
    """`and`, `or` whose second side is only computed where the first doesn't decide."""
    first = low.local(low.expr(n.args[0]))
    result = low.k.let(first, "both")
    with low.branch(first if n["fn"] == "and" else ~first):
        low.k.set(result, low.expr(n.args[1]))
    return result


def cast(low: Lowering, n: Node) -> Scalar:
    source = low.scalar(n.args[0])
    value, target = source.value, n.type.dtype
    if target == n.args[0].type.dtype or target in OBJECTS:
        return source
    if n.args[0].type.dtype == "u64" and target != "u64":
        value = low.local(value)
        if low.facts.changes(n):   # held as i64, what is past i64 looks negative
            with low.branch(value < 0):
                low.k.fail(low.site("E0802", "integer past i64", n))
        value = Cast(value, "u64")
    return Scalar(convert(value, target, n["mode"]), source.missing)


def select(low: Lowering, n: Node) -> Scalar:
    condition, a, b = n.args
    c = low.expr(condition)
    if isinstance(c, Const):
        return low.scalar(a if c.value else b)
    for t in low.facts.needed(a):
        if t in low.facts.needed(b):   # made once, not in each side
            low.tensor(t)
    if not (low.lazy(a) or low.lazy(b)):
        x, y = low.scalar(a), low.scalar(b)
        return Scalar(Select(c, x.value, y.value), chosen(c, x.missing, y.missing))
    return low.either(c, n, lambda: low.scalar(a), lambda: low.scalar(b))


def index(low: Lowering, n: Node) -> Scalar:
    tensor, *indexes = n.args
    places = [low.expr(i) for i in indexes]
    if not n["guard"]:
        return low.element(low.tensor(tensor), places)
    t = low.tensor(tensor)
    inside: Expr | None = None
    for i, (at, dim) in enumerate(zip(places, t.data.dims, strict=True)):
        places[i] = at = low.local(at)
        both = (at >= 0) & (at < dim)
        inside = both if inside is None else inside & both
    assert inside is not None
    value = low.k.let(zero(held(n.type.dtype)), "v")
    gone = low.k.let(Const(True, "bool"), "gone")
    with low.branch(inside):
        low.assign(value, gone, low.element(t, places))
    return Scalar(value, gone)


def fill(low: Lowering, n: Node) -> Scalar:
    x, default = n.args
    s = low.scalar(x)
    if s.missing is None:
        return s
    missing, value = s.missing, s.value
    if low.lazy(default):
        missing, value = low.local(missing), low.local(value)
        return low.either(missing, n, lambda: low.scalar(default), lambda: Scalar(value))
    d = low.scalar(default)
    return Scalar(Select(missing, d.value, value), d.missing)


def _past_i64(fn: str) -> str:
    return f"the result of `{fn}` is past i64" if fn not in ("floordiv", "mod") else "division by zero or past i64"
