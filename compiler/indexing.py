"""`t[i, j]`, `t[a:b]`, gathers and `??`: to `index` and `fill` nodes, with the proofs that reads stay inside (rule 4)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import FLOATS, INTS, Type
from . import arithmetic, bounds, slips
from .arithmetic import indexing_range, reasons
from .graph import Node, node, number
from .linear import canonical
from .promote import apply, as_dim, cast, dim_node, select
from .scope import Scope, Value, unknown
from .universals import known_of
from .words import counted, default_text, described, dim_text, size_text, type_text

if TYPE_CHECKING:
    from .elaborate import Elaborator


@dataclass(frozen=True)
class Pick:
    """What is taken along one dimension: `place` alone, or `size` places from `start` (`of`: gathered through it)."""

    dim: int | Node
    span: Span
    place: Node | None = None
    start: Node | None = None
    size: int | Node = 0
    of: Value | None = None
    inside: bool = True     # provably


def at(el: Elaborator, scope: Scope, e: tree.At) -> Value:
    slip = slips.shape_indexed(el, scope, e)
    if slip is not None:
        return slip
    done = read(el, scope, e, guarded=False)
    return done[0] if done else unknown(e.span)


def read(el: Elaborator, scope: Scope, e: tree.At, guarded: bool) -> tuple[Value, bool] | None:
    """The read, and whether all of it is provably inside. None after a problem."""
    value = el.expr(scope, e.value)
    indexes = [None if isinstance(i, tree.Slice) else el.expr(scope, i) for i in e.indexes]
    if not value.known or any(i is not None and not i.known for i in indexes):
        return None
    if not el.whole(scope, value, e.value.span):
        return None
    if len(e.indexes) > len(value.type.dims):
        _too_many(el, scope, e, value)
        return None
    picks: list[Pick] = []
    told = guarded
    for index, given, dim in zip(e.indexes, indexes, value.type.dims, strict=False):
        if isinstance(index, tree.Slice):
            pick = _slice(el, scope, e, index, dim, told, len(picks))
        else:
            assert given is not None
            pick = _index(el, scope, e, index, given, dim, told, len(picks))
        if pick is None:
            return None
        told = told or not pick.inside      # one message for one read
        picks.append(pick)
    inside = all(p.inside for p in picks)
    return _taken(el, e.span, value, picks, guarded and not inside), inside


def _taken(el: Elaborator, span: Span, value: Value, picks: Sequence[Pick], guard: bool) -> Value:
    """The part of `value` that the picks (and whole dimensions after them) leave."""
    rest = value.type.dims[len(picks) :]
    kept = [p for p in picks if p.place is None]
    dims = [p.size for p in kept] + list(rest)

    def one(free: list[Node]) -> Value:
        places = iter(free)
        given = [p.place if p.place is not None else _moved(el, p, next(places)) for p in picks]
        return el.element(value, [*given, *places], guard)

    return el.each(dims, span, one) if dims else one([])


def _moved(el: Elaborator, pick: Pick, place: Node) -> Node:
    if pick.of is not None:
        return el.scalar(el.element(pick.of, [place]), "i64")
    assert pick.start is not None
    if pick.start is number(0):
        return place
    return apply("add", pick.start, place, dtype="i64")


def _too_many(el: Elaborator, scope: Scope, e: tree.At, value: Value) -> None:
    have, given = len(value.type.dims), len(e.indexes)
    what = el.text(e.value.span)
    if have == 0:
        el.problem(scope, "E0208", f"`{what}` has no dimensions to index", e.span, described(scope, value.type))
        return
    extra = Span(e.span.file, el.outer(e.indexes[have - 1].span).end, el.outer(e.indexes[-1].span).end)
    fixes = [Fix("drop what is too much", (Edit(extra, ""),))]
    el.problem(scope, "E0208", f"`{what}` has {counted(have, 'dimension')}, and {given} indexes are given",
               e.indexes[have].span, type_text(scope, value.type), fixes=fixes)


# --- one dimension ------------------------------------------------------------------------------


def _index(
    el: Elaborator, scope: Scope, e: tree.At, written: tree.Expr, given: Value, dim: int | Node, guarded: bool, axis: int
) -> Pick | None:
    if not el.plain(scope, given, written.span, "an index"):
        return None
    if given.type.dtype not in INTS:
        _not_an_index(el, scope, e, written, given)
        return None
    if not given.type.dims:
        place = el.scalar(given, "i64")
        if not guarded and _from_the_end(el, scope, e, written, place, dim, axis):
            return None
        inside = is_inside(el, scope, place, dim)
        if not inside and not guarded:
            outside(el, scope, e, written.span, place, dim)
        return Pick(dim, written.span, place=place, inside=inside)
    if len(e.indexes) > 1 or len(given.type.dims) > 1:
        why = "a list of places is the only index" if len(e.indexes) > 1 else "a list of places has one dimension"
        el.problem(scope, "E0208", why, written.span, type_text(scope, given.type),
                   notes=["otherwise name the places: `[x[i[k], j] for k, j]`"])
        return None
    free = el.variables(given.type.dims)
    place = el.scalar(el.element(given, free), "i64")
    facts = el.facts(scope)
    for v, d in zip(free, given.type.dims, strict=True):
        facts = facts.ranged(v, d)
    inside = is_inside(el, scope.child(facts=facts), place, dim)
    if not inside and not guarded:
        outside(el, scope.child(facts=facts), e, written.span, place, dim)
    return Pick(dim, written.span, size=given.type.dims[0], of=given, inside=inside)


def is_inside(el: Elaborator, scope: Scope, place: Node, dim: int | Node) -> bool:
    """Is 0 ≤ place < dim provable here."""
    stop = el.stops.get(place)
    dim = el.settled(dim)
    if stop is not None and (stop is dim or stop == dim):
        return True
    facts = el.facts(scope)
    if el.loose(place) or el.loose(dim_node(dim)):
        return True
    facts = known_of(place, scope.held, facts)
    return bounds.at_most(number(0), place, facts) and bounds.less(place, dim_node(dim), facts)


def _not_an_index(el: Elaborator, scope: Scope, e: tree.At, written: tree.Expr, given: Value) -> None:
    what = el.text(written.span)
    fixes: list[Fix] = []
    notes: list[str] = []
    if given.type.dtype in FLOATS:
        fixes = [Fix("cut the fraction off", (Edit(written.span, f"i64({what})"),))]
    elif given.type.dtype == "bool" and len(given.type.dims) == 1:
        fixes = [Fix("take the places where it is true", (Edit(written.span, f"indices({what})"),))]
    elif given.type.dtype == "text":
        notes = ["a field of a record is written `.name`"]
    el.problem(scope, "E0406", "an index is a whole number", written.span, described(scope, given.type), notes=notes, fixes=fixes)


def _from_the_end(
    el: Elaborator, scope: Scope, e: tree.At, written: tree.Expr, place: Node, dim: int | Node, axis: int
) -> bool:
    """`x[-1]`"""
    if place.op != "const" or place["value"] >= 0 or not isinstance(written, tree.Unary):
        return False
    back = -place["value"]
    size = size_text(scope, e.value, axis, dim)
    fixes = []
    if size is not None:
        text = str(int(size) - back) if size.isdigit() and int(size) >= back else f"{size} - {back}"
        fixes = [Fix("count from the start", (Edit(written.span, text),))]
    named = f"{el.text(e.value.span)}: f32[n] = …"
    notes = [] if size else [f"name its size where it is made (`{named}`), then use `n - {back}`"]
    el.problem(scope, "E0403", f"`{el.text(written.span)}` doesn't count from the end: indexes never wrap", written.span,
               f"{el.text(e.value.span)} starts at 0", notes=notes, fixes=fixes)
    return True


def outside(el: Elaborator, scope: Scope, e: tree.At, span: Span, place: Node, dim: int | Node) -> None:
    """E0401, with the ranges it is about."""
    what, whole = el.text(span), el.text(e.value.span)
    low, high = bounds.interval(place, el.facts(scope))
    size = dim_text(scope, dim)
    labels = _once([*_size_reason(el, scope, e, dim), *reasons(el, scope, place, span)])
    default = _default(el, scope, e)
    fixes = [Fix("give the value beyond the edge", (Edit(Span(e.span.file, e.span.end, e.span.end), f" ?? {default}"),))]
    last = str(dim - 1) if isinstance(dim, int) else (f"{size} - 1" if size != "_" else None)
    notes = []
    sure = high < 0 or bounds.at_most(dim_node(dim), place, el.facts(scope))
    if last is not None and not sure and dim != 0:
        notes = [f"`clamp({what}, 0, {last})` repeats the edge instead"]
    title = f"`{what}` {'falls' if sure else 'may fall'} outside `{whole}`"
    el.problem(scope, "E0401", title, span, indexing_range(low, high), reasons=labels, notes=notes, fixes=fixes)


def _once(labels: list[Label]) -> list[Label]:
    """One label for each place."""
    return list({label.span: label for label in reversed(labels)}.values())[::-1]


def _default(el: Elaborator, scope: Scope, e: tree.At) -> str:
    with el.quietly():
        return default_text(el.expr(scope, e.value).type)


def _size_reason(el: Elaborator, scope: Scope, e: tree.At, dim: int | Node) -> list[Label]:
    """Where the tensor's size is written."""
    with el.quietly():
        value = el.expr(scope, e.value)
    axis = next((i for i, d in enumerate(value.type.dims) if d is dim or d == dim), None)
    if value.node is None or axis is None:
        return []
    text = f"0 to {dim - 1}" if isinstance(dim, int) and dim > 0 else f"0 to {dim_text(scope, dim)} - 1"
    written = el.context.types.get(value.node)
    if written is not None and axis < len(written.dims):
        position = _axis_of(value, dim, e, axis)
        return [Label(written.dims[position].span, text)]
    if isinstance(e.value, tree.Name):
        declared = scope.look_up(e.value.id)
        if declared is not None and declared.span.file == e.span.file:
            return [Label(declared.span, text)]
    return []


def _axis_of(value: Value, dim: int | Node, e: tree.At, axis: int) -> int:
    return axis


# --- slices -------------------------------------------------------------------------------------


def _slice(
    el: Elaborator, scope: Scope, e: tree.At, s: tree.Slice, dim: int | Node, guarded: bool, axis: int
) -> Pick | None:
    ends: list[Node] = []
    for written, default in ((s.start, number(0)), (s.stop, dim_node(dim))):
        if written is None:
            ends.append(default)
            continue
        value = el.expr(scope, written)
        if not value.known or not el.plain(scope, value, written.span, "a slice"):
            return None
        if value.type.dims or value.type.dtype not in INTS:
            _not_an_index(el, scope, e, written, value)
            return None
        ends.append(el.scalar(value, "i64"))
        if not guarded and _from_the_end(el, scope, e, written, ends[-1], dim, axis):
            return None
    start, stop = ends
    if start is number(0) and stop is dim_node(dim):
        return Pick(dim, s.span, start=start, size=dim)
    facts = el.facts(scope)
    inside = el.loose(start) or el.loose(stop) or el.loose(dim_node(dim)) or (
        bounds.at_most(number(0), start, facts) and bounds.at_most(stop, dim_node(dim), facts)
    )
    size = canonical(as_dim(apply("sub", stop, start, dtype="i64")))    # a number where what varies cancels out
    if isinstance(size, int):
        size = max(size, 0)
    elif not el.loose(size) and not bounds.at_most(start, stop, facts):
        size = apply("max", size, number(0), dtype="i64")
    if not inside and not guarded:
        _slice_outside(el, scope, e, s, start, stop, dim)
    return Pick(dim, s.span, start=start, size=size, inside=inside)


def _slice_outside(
    el: Elaborator, scope: Scope, e: tree.At, s: tree.Slice, start: Node, stop: Node, dim: int | Node
) -> None:
    facts = el.facts(scope)
    end = s.stop if s.stop is not None and not bounds.at_most(stop, dim_node(dim), facts) else s.start
    at = stop if end is s.stop else start
    span = end.span if end is not None else s.span
    what, whole = el.text(span), el.text(e.value.span)
    labels = _once([*_size_reason(el, scope, e, dim), *reasons(el, scope, at, span)])
    edit = Edit(Span(e.span.file, e.span.end, e.span.end), f" ?? {_default(el, scope, e)}")
    el.problem(scope, "E0401", f"`{el.text(s.span)}` may reach outside `{whole}`", span,
               indexing_range(*bounds.interval(at, facts)) or f"`{what}`", reasons=labels,
               fixes=[Fix("give the value beyond the edge", (edit,))])


# --- ?? -----------------------------------------------------------------------------------------


def filled(el: Elaborator, scope: Scope, e: tree.Filled) -> Value:
    """`x ?? default`, `t[i] ?? default`"""
    inside = True
    if isinstance(e.value, tree.At):
        done = read(el, scope, e.value, guarded=True)
        value, inside = done if done else (unknown(e.value.span), True)
    else:
        value = el.expr(scope, e.value)
    default = el.expr(scope, e.default)
    if not value.known or not default.known or not _default_is_there(el, scope, e, default):
        return unknown(e.span)
    if not value.type.missing:
        return _never_acts(el, scope, e, value, inside)
    if not el.whole(scope, value, e.value.span):
        return unknown(e.span)
    common = arithmetic.chosen_type(el, scope, [Value(value.node, value.type.present(), value.span), default])
    if common is None:
        labels = [Label(x.span, described(scope, v.type)) for v, x in ((value, e.value), (default, e.default))]
        return el.fail(scope, "E0202", "what fills a gap is of the same kind", e.span, reasons=labels)
    if default.type.dims and not value.type.dims:
        return el.fail(scope, "E0203", "a default is one value or has the shape of what it replaces", e.default.span,
                       type_text(scope, default.type), reasons=[Label(e.value.span, type_text(scope, value.type))])

    def one(two: list[Value]) -> Value:
        return Value(_fill(el, two[0], two[1], common.dtype), common, e.span)

    return el.lift(scope, e.span, [value, default], one, "`??`")


def _default_is_there(el: Elaborator, scope: Scope, e: tree.Filled, default: Value) -> bool:
    if not default.type.missing:
        return el.whole(scope, default, e.default.span)
    what = el.text(e.default.span)
    edit = Edit(e.default.span, f"({what} ?? {default_text(default.type)})")
    el.problem(scope, "E0205", f"`{what}` may be missing too", e.default.span, type_text(scope, default.type),
               reasons=el.gap_reasons(default), fixes=[Fix("say what stands in for both", (edit,))])
    return False


def _fill(el: Elaborator, value: Value, default: Value, dtype: str) -> Node:
    x, d = value.node, el.scalar(default, dtype)
    assert x is not None
    if x.type.dtype == dtype:
        return node("fill", x, d, type=Type(dtype))
    gap = node("missing", x, type=Type("bool"))
    zero = cast(node("fill", x, cast(number(0), x.type.dtype), type=Type(x.type.dtype)), dtype)
    return select(gap, d, zero)


def _never_acts(el: Elaborator, scope: Scope, e: tree.Filled, value: Value, inside: bool) -> Value:
    """E0402: there is no gap to fill. In a function that depends on its call, so there it is no mistake."""
    if (scope.function is not None and (el.flexible or scope.calls)) or bounds.hopeless(scope.facts):
        return value.at(e.span)
    behind = Span(e.span.file, el.outer(e.value.span).end, el.outer(e.default.span).end)
    sign = behind.start + max(el.text(behind).find("??"), 0)
    cut = Edit(behind, "")
    if isinstance(e.value, tree.At) and inside:
        why = f"`{el.text(e.value.span)}` is always inside, and has a value"
    else:
        why = f"`{el.text(e.value.span)}` always has a value"
    el.problem(scope, "E0402", "this `??` can never act", Span(e.span.file, sign, behind.end), why,
               fixes=[Fix("leave it out", (cut,))])
    return value.at(e.span)

