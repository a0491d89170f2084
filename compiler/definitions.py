"""What an atom says about itself: `min`, `//`, `select`, draws, elements of builds … as claims over other integers."""
from __future__ import annotations

from ..dsl.types import INTS
from .conditions import NOTHING, Claim, all_of, at_least, claim, either, equals, holds
from .graph import Node, node, substitute, walk
from .linear import Poly, atom, constant, linear
from .ranges import Ranges, dims_of, operator_of

FAR = 2**47  # bounds beyond this say too little to be worth a row
MOST_NODES = 80  # of a build's body that is put in place of an element


def definition(a: Node, ranges: Ranges) -> Claim:
    """Everything worth knowing of the atom `a` wherever it has a value."""
    if a.type.dtype == "bool":
        truths = [holds(a, t) & claim(a, t) for t in (True, False)]
        return Claim(rows=(atom(a), constant(1) - atom(a))) & (either(*truths) if a.op in ("apply", "select") else NOTHING)
    if a.type.dtype not in INTS or a.type.dims:
        return NOTHING
    return _limits(a, ranges) & _DEFINE.get(a.op, _nothing)(a, ranges)


def _limits(a: Node, ranges: Ranges) -> Claim:
    r = ranges.value(a)
    rows = [atom(a) - int(r.low)] if r.low > -FAR else []
    if r.high < FAR:
        rows.append(constant(int(r.high)) - atom(a))
    return Claim(rows=tuple(rows))


def _nothing(a: Node, ranges: Ranges) -> Claim:
    return NOTHING


def _apply(a: Node, ranges: Ranges) -> Claim:
    if a.type.dtype != "i64" or any(x.type.dtype not in INTS for x in a.args):
        return NOTHING
    x, args = atom(a), [linear(n) for n in a.args]
    match a["fn"], args:
        case "min", [b, c]:
            return at_least(b, x) & at_least(c, x) & either(equals(x, b), equals(x, c))
        case "max", [b, c]:
            return at_least(x, b) & at_least(x, c) & either(equals(x, b), equals(x, c))
        case "abs", [b]:
            zero = constant(0)
            return either(equals(x, b) & at_least(b, zero), equals(x, b.scaled(-1)) & at_least(zero, b))
        case "floordiv", [b, c]:
            return _quotient(x, b, c, ranges)
        case "mul", [b, c]:
            return NOTHING
        case _:
            return NOTHING


def _quotient(q: Poly, a: Poly, b: Poly, ranges: Ranges) -> Claim:
    """q = a // b: what is left, a - q·b, is from 0 to b - 1 for b > 0, from b + 1 to 0 for b < 0."""
    left = a - q.times(b)
    zero, one = constant(0), constant(1)
    up = at_least(b, one) & at_least(left, zero) & at_least(b - 1, left)
    down = at_least(constant(-1), b) & at_least(zero, left) & at_least(left, b + 1)
    r = ranges.poly(b)
    return up if r.low >= 0 else down if r.high <= 0 else either(up, down)


def _select(a: Node, ranges: Ranges) -> Claim:
    test, yes, no = a.args
    return either(
        claim(test, True) & equals(atom(a), linear(yes)),
        claim(test, False) & equals(atom(a), linear(no)),
    )


def _cast(a: Node, ranges: Ranges) -> Claim:
    """A cast between integers that is sure to keep the number."""
    source, full = a.args[0], ranges.value(a.args[0])
    if source.type.dtype not in INTS or a.get("mode") == "bits":
        return NOTHING
    own = ranges.value(a)
    return equals(atom(a), linear(source)) if own.low <= full.low and full.high <= own.high else NOTHING


def _fill(a: Node, ranges: Ranges) -> Claim:
    value, default = a.args
    return either(_same(atom(a), value), equals(atom(a), linear(default)))


def _same(x: Poly, n: Node) -> Claim:
    return equals(x, linear(n)) if n.type.dtype in INTS else NOTHING


def _draw(a: Node, ranges: Ranges) -> Claim:
    if a["dist"] != "integers":
        return NOTHING
    low, stop = (linear(n) for n in a.args[:2])
    return at_least(atom(a), low) & at_least(stop, atom(a) + 1)


def _index(a: Node, ranges: Ranges) -> Claim:
    """An element of a build is its body at that place; of a permutation, a number below its length."""
    tensor, places = a.args[0], a.args[1:]
    if tensor.op == "draw" and tensor["dist"] == "permutation":
        return at_least(atom(a), constant(0)) & at_least(linear(tensor.args[0]), atom(a) + 1)
    if tensor.op == "call":
        return _below(atom(a), tensor)
    if tensor.op != "build" or sum(1 for _ in walk(tensor.args[0])) > MOST_NODES:
        return NOTHING
    return _same(atom(a), element(tensor, places))


def _call(a: Node, ranges: Ranges) -> Claim:
    return _below(atom(a), a)


def _below(x: Poly, call: Node) -> Claim:
    """What an operator knows of its results against the sizes of its args."""
    operator = operator_of(call)
    return NOTHING if operator is None or operator.stop is None else at_least(operator.stop(*dims_of(call)), x + 1)


def element(build: Node, places: tuple[Node, ...]) -> Node:
    """The body of `build` at `places`, which must be as many as its result has dims."""
    ids = build["ids"]
    inside = {node("var", type=p.type, id=i): p for i, p in zip(ids, places, strict=False)}
    body = substitute(build.args[0], inside)
    return node("index", body, *places[len(ids) :], type=build.type.element) if body.type.dims else body


def _reduce(a: Node, ranges: Ranges) -> Claim:
    extents = [linear(e) for e in a.args[1:]]
    if any(ranges.poly(e).low < 0 for e in extents):
        return NOTHING
    x = atom(a)
    if a["kind"] in ("argmax", "argmin", "first") and len(extents) == 1:
        return at_least(x, constant(0)) & at_least(extents[0], x + 1)
    count = constant(1)
    for e in extents:
        count = count.times(e)
    if a["kind"] != "sum" or len(count.terms) > 8:
        return NOTHING
    each = ranges.of(a.args[0])
    return all_of(
        [
            at_least(x, count.scaled(int(each.low))) if each.low > -FAR else NOTHING,
            at_least(count.scaled(int(each.high)), x) if each.high < FAR else NOTHING,
        ]
    )


_DEFINE = {
    "apply": _apply,
    "select": _select,
    "cast": _cast,
    "fill": _fill,
    "call": _call,
    "draw": _draw,
    "index": _index,
    "reduce": _reduce,
}
