"""`[e for i, j < n]`, `[a, b, c]` and the range of a binder (rule 6): to `build` nodes."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import INTS, WEAK_INT, Type
from . import arithmetic
from .graph import Node, const, fresh_id, node, number, var, walk
from .promote import apply, as_dtype, dim_node, select
from .scope import Scope, Value, unknown
from .words import described, dim_text, size_text, writable_dim

if TYPE_CHECKING:
    from .elaborate import Elaborator


def build(el: Elaborator, scope: Scope, e: tree.Build) -> Value:
    bound = bind_binders(el, scope, e.binders, [e.body])
    if bound is None:
        return unknown(e.span)
    inner, at, dims = bound
    body = el.expr(inner, e.body)
    if not body.known or not el.whole(scope, body, e.body.span):
        return unknown(e.span)
    if not one_size(el, scope, body, at, e.body.span, e.binders):
        return unknown(e.span)
    return el.built(body, [el.settled(d) for d in dims], at, e.span)


def one_size(
    el: Elaborator, scope: Scope, body: Value, at: Sequence[Node], span: Span, binders: Sequence[tree.Binder]
) -> bool:
    """A tensor that is an element must have the same size at every place."""
    for d in body.type.dims:
        if isinstance(d, int):
            continue
        which = [b.name for b, v in zip(binders, at, strict=True) if v in set(walk(d))]
        if which:
            el.problem(scope, "E0211", f"the size of this element depends on `{which[0]}`", span,
                       f"`{dim_text(scope, d)}` places" if dim_text(scope, d) != "_" else "",
                       notes=["all elements of a tensor have one size; a part beyond an edge can be filled: `x[a:b] ?? 0`"])
            return False
    return True


# --- binders ------------------------------------------------------------------------------------


def bind_binders(
    el: Elaborator, scope: Scope, binders: Sequence[tree.Binder], body: Sequence[tree.Expr]
) -> tuple[Scope, list[Node], list[int | Node]] | None:
    """The scope of the body, the binders' nodes and their ranges; None where a range can't be told (reported)."""
    names = [b.name for b in binders]
    for i, b in enumerate(binders):
        if b.name in names[:i]:
            el.problem(scope, "E0123", f"`{b.name}` is bound twice", b.span, "give it another name")
            return None
    ranges = [_range(el, scope, b, names, body) for b in binders]
    if any(r is None for r in ranges):
        return None
    dims = [r for r in ranges if r is not None]
    inner = scope.child()
    at = [var(fresh_id()) for _ in binders]
    facts = el.facts(scope)
    for b, v, d in zip(binders, at, dims, strict=True):
        facts = facts.ranged(v, d)
        el.stops[v] = d
        shown = f"0 to {d - 1}" if isinstance(d, int) and d > 0 else f"0 to {_less_one(dim_text(scope, d))}"
        el.places[v] = (b.span, shown if dim_text(scope, d) != "_" else "")
        inner.names[b.name] = Value(v, WEAK_INT, b.span)
    inner.facts = facts
    return inner, at, dims


def _less_one(text: str) -> str:
    return f"{text} - 1"


def _range(
    el: Elaborator, scope: Scope, b: tree.Binder, names: Sequence[str], body: Sequence[tree.Expr]
) -> int | Node | None:
    if b.limit is not None:
        return _limit(el, scope, b.limit)
    sizes: list[tuple[int | Node, Span]] = []
    failed = False
    for e in body:
        for at, position in indexed_by(b.name, e):
            dims = _dims_of(el, scope, at.value, names, body)
            if dims is None:
                failed = True
            elif position < len(dims):
                sizes.append((dims[position], at.indexes[position].span))
    if failed and not sizes:
        for e in body:      # what is wrong with the tensor is said where it stands
            el.expr(_placeholder(scope, names, (e,)), e)
        return None
    if not sizes:
        _no_range(el, scope, b, body)
        return None
    first = sizes[0][0]
    for size, span in sizes[1:]:
        if el.equal(first, size) is not True:
            _two_ranges(el, scope, b, sizes[0], (size, span))
            return None
    return next((s for s, _ in sizes if isinstance(s, int)), el.settled(first))


def _limit(el: Elaborator, scope: Scope, limit: tree.Expr) -> int | Node | None:
    value = el.expr(scope, limit)
    if not value.known or not el.plain(scope, value, limit.span, "a range"):
        return None
    if value.type.dims or value.type.dtype not in INTS:
        fixes = []
        if not value.type.dims and value.type.dtype in ("f32", "f64", "f16", "bf16"):
            fixes = [Fix("cut the fraction off", (Edit(limit.span, f"i64({el.text(limit.span)})"),))]
        el.problem(scope, "E0406", "a range ends at a whole number", limit.span, described(scope, value.type), fixes=fixes)
        return None
    return el.size(scope, value)


def _placeholder(scope: Scope, names: Sequence[str], body: Sequence[tree.Expr]) -> Scope:
    """A scope in which these binders (and those of builds inside) stand for anything."""
    inner = scope.child()
    bound = [*names, *(n for e in body for n in _inner_binders(e))]
    for name in bound:
        if name in names or inner.look_up(name) is None:
            inner.names[name] = Value(var(fresh_id()), WEAK_INT, Span("", 0, 0))
    return inner


def _dims_of(
    el: Elaborator, scope: Scope, e: tree.Expr, names: Sequence[str], body: Sequence[tree.Expr]
) -> tuple[int | Node, ...] | None:
    if isinstance(e, tree.Name) and e.id not in names:
        value = scope.look_up(e.id)
        if value is None:
            return None
    else:
        with el.quietly():
            value = el.expr(_placeholder(scope, names, body), e)
    return value.type.dims if value.known else None


def indexed_by(name: str, e: tree.Expr) -> Iterator[tuple[tree.At, int]]:
    """Where `name` is an index by itself (or a branch of an `if` that is one), in evaluation of `e`."""
    match e:
        case tree.Build(binders=binders) | tree.Reduce(binders=binders):
            for b in binders:
                if b.limit is not None:
                    yield from indexed_by(name, b.limit)
            if all(b.name != name for b in binders):
                yield from indexed_by(name, e.body)
            return
        case tree.At():
            for position, index in enumerate(e.indexes):
                if not isinstance(index, tree.Slice) and _is_itself(name, index):
                    yield e, position
    for child in children(e):
        yield from indexed_by(name, child)


def _is_itself(name: str, e: tree.Expr) -> bool:
    match e:
        case tree.Name(id=id):
            return id == name
        case tree.If():
            return _is_itself(name, e.then) or _is_itself(name, e.other)
    return False


def children(e: tree.Expr | tree.Slice) -> Iterator[tree.Expr]:
    """The expressions directly inside one."""
    match e:
        case tree.Array():
            yield from e.items
        case tree.Build() | tree.Reduce():
            yield e.body
            yield from (b.limit for b in e.binders if b.limit is not None)
        case tree.Call():
            yield from (a.value for a in e.args)
        case tree.At():
            yield e.value
            for i in e.indexes:
                if isinstance(i, tree.Slice):
                    yield from children(i)
                else:
                    yield i
        case tree.Slice():
            yield from (x for x in (e.start, e.stop) if x is not None)
        case tree.Part() | tree.Unary():
            yield e.value
        case tree.Filled():
            yield e.value
            yield e.default
        case tree.Binary():
            yield e.left
            yield e.right
        case tree.Compare():
            yield from e.operands
        case tree.If():
            yield e.condition
            yield e.then
            yield e.other


def _inner_binders(e: tree.Expr) -> Iterator[str]:
    if isinstance(e, (tree.Build, tree.Reduce)):
        yield from (b.name for b in e.binders)
    for child in children(e):
        yield from _inner_binders(child)


def mentions(name: str, e: tree.Expr) -> bool:
    return any(n.id == name for n in names_in(e))


def names_in(e: tree.Expr) -> Iterator[tree.Name]:
    """Every name in an expression."""
    if isinstance(e, tree.Name):
        yield e
    for child in children(e):
        yield from names_in(child)


def _no_range(el: Elaborator, scope: Scope, b: tree.Binder, body: Sequence[tree.Expr]) -> None:
    used = any(mentions(b.name, e) for e in body)
    why = f"`{b.name}` indexes nothing by itself" if used else f"`{b.name}` isn't used"
    edit = Edit(Span(b.span.file, b.span.end, b.span.end), f" < {_some_size(el, scope, b.name, body)}")
    el.problem(scope, "E0404", f"nothing tells how far `{b.name}` goes", b.span, why, fixes=[Fix("say where it ends", (edit,))])


def _some_size(el: Elaborator, scope: Scope, name: str, body: Sequence[tree.Expr]) -> str:
    """A size that the binder may be meant to run over: of the tensor it indexes inside an expression."""
    for e in body:
        for at in _all_ats(e):
            for position, index in enumerate(at.indexes):
                if not isinstance(index, tree.Slice) and mentions(name, index):
                    dims = _dims_of(el, scope, at.value, [name], body)
                    text = size_text(scope, at.value, position, dims[position]) if dims and position < len(dims) else None
                    if text:
                        return text
    return "10"


def _all_ats(e: tree.Expr) -> Iterator[tree.At]:
    if isinstance(e, tree.At):
        yield e
    for child in children(e):
        yield from _all_ats(child)


def _two_ranges(
    el: Elaborator, scope: Scope, b: tree.Binder, one: tuple[int | Node, Span], two: tuple[int | Node, Span]
) -> None:
    labels = [Label(span, f"here {dim_text(scope, size)}" if dim_text(scope, size) != "_" else "here another size")
              for size, span in (one, two)]
    sizes = sorted((one[0], two[0]), key=lambda d: not isinstance(d, int))
    known = [text for size in sizes if (text := writable_dim(scope, size))]
    numbers = [d for d in (one[0], two[0]) if isinstance(d, int)]
    least = str(min(numbers)) if len(numbers) == 2 else (known[0] if known else None)
    fixes = []
    if least:
        fixes = [Fix("say where it ends", (Edit(Span(b.span.file, b.span.end, b.span.end), f" < {least}"),))]
    el.problem(scope, "E0404", f"`{b.name}` indexes two sizes that can't be shown equal", b.span, f"`{b.name}` has one range",
               reasons=labels, fixes=fixes)


# --- lists --------------------------------------------------------------------------------------


def array(el: Elaborator, scope: Scope, e: tree.Array) -> Value:
    """`[a, b, c]`: a constant tensor, or a build that chooses by position."""
    items = [el.expr(scope, x) for x in e.items]
    if not all(v.known for v in items):
        return unknown(e.span)
    if not all([el.plain(scope, v, x.span, "a list") for v, x in zip(items, e.items, strict=True)]):
        return unknown(e.span)
    if not items:
        return el.fail(scope, "E0206", "an empty list has no type", e.span, notes=["`[0 for i < 0]` is empty and has one"])
    common = arithmetic.chosen_type(el, scope, items)
    if common is None:
        labels = [Label(x.span, described(scope, v.type)) for v, x in zip(items[:4], e.items, strict=False)]
        return el.fail(scope, "E0202", "the items of a list are of one kind", e.span, reasons=labels)
    dims = items[0].type.dims
    for v in items[1:]:
        if len(v.type.dims) != len(dims) or any(el.equal(a, b) is not True for a, b in zip(dims, v.type.dims, strict=True)):
            labels = [Label(items[0].span, described(scope, items[0].type)), Label(v.span, described(scope, v.type))]
            return el.fail(scope, "E0203", "the items of a list have one shape", e.span, "these differ", reasons=labels)
    return listed(el, items, common, e.span)


def listed(el: Elaborator, items: Sequence[Value], common: Type, span: Span) -> Value:
    dims = items[0].type.dims
    same = [el.tensor(v, common.dtype) for v in items]
    nodes = [v.node for v in same if v.node is not None]
    type = Type(common.dtype, (len(items), *dims), weak=common.weak)
    if all(n.op == "const" for n in nodes):
        flat = [x for n in nodes for x in (n["value"] if dims else (n["value"],))]
        return Value(const(tuple(as_dtype(x, common.dtype) for x in flat), type.strong()), type, span)
    at = var(fresh_id())
    el.stops[at] = len(items)
    inner = el.variables(dims)
    chosen: Node | None = None
    for i, v in reversed(list(enumerate(same))):
        one = el.element(v, inner).node if dims else v.node
        assert one is not None
        chosen = one if chosen is None else select(apply("eq", at, number(i), dtype="bool"), one, chosen)
    assert chosen is not None
    made = node("build", chosen, number(len(items)), *(dim_node(d) for d in dims), ids=tuple(v["id"] for v in (at, *inner)),
                type=Type(common.dtype, (len(items), *dims)))
    if not dims:
        el.items[made] = tuple(nodes)
    return Value(made, type, span)


# --- reductions ---------------------------------------------------------------------------------


def reduce(el: Elaborator, scope: Scope, e: tree.Reduce) -> Value:
    from . import aggregates

    return aggregates.over_binders(el, scope, e)

