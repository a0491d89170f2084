"""Integer values as sums of products: what goes in is an i64 node, what comes out is a `Poly` over atoms.

Atoms are nodes that aren't sums or products themselves (fields, extents, binders, `min`, `//`, …). Equal
integer expressions have equal polys, so dims are compared here, and `to_node` gives each of them one node.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..dsl.types import I64, INT_RANGE, INTS
from .graph import Node, node, number

Monomial = tuple[Node, ...]  # factors, sorted by `order`; a factor may recur
MOST_TERMS = 48  # a product that would have more terms stays an atom
MOST_FACTORS = 4
LARGEST = 2**128


@dataclass(frozen=True)
class Poly:
    """`constant` + Σ coefficient · monomial, the terms sorted and without zeros."""

    terms: tuple[tuple[Monomial, int], ...]
    constant: int

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def atoms(self) -> set[Node]:
        return {a for m, _ in self.terms for a in m}

    def __add__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            return Poly(self.terms, self.constant + other)
        if not other.terms:
            return Poly(self.terms, self.constant + other.constant)
        total = dict(self.terms)
        for m, c in other.terms:
            total[m] = total.get(m, 0) + c
        return poly(total, self.constant + other.constant)

    def __sub__(self, other: Poly | int) -> Poly:
        return self + (-other if isinstance(other, int) else other.scaled(-1))

    def scaled(self, by: int) -> Poly:
        if by == 0:
            return ZERO
        return Poly(tuple((m, c * by) for m, c in self.terms), self.constant * by)

    def times(self, other: Poly) -> Poly:
        total: dict[Monomial, int] = {}
        left, right = [*self.terms, ((), self.constant)], [*other.terms, ((), other.constant)]
        for m, c in left:
            for n, d in right:
                product = tuple(sorted(m + n, key=order)) if m and n else m or n
                total[product] = total.get(product, 0) + c * d
        return poly({m: c for m, c in total.items() if m}, total.get((), 0))


def order(n: Node) -> tuple[Any, ...]:
    """A key that sorts nodes the same way in every process, as far as names can tell them apart."""
    return (n.op, str([(k, v) for k, v in n.attrs if k not in ("id", "ids")]), n.number)


def poly(terms: Mapping[Monomial, int], constant: int = 0) -> Poly:
    kept = [(m, c) for m, c in terms.items() if c]
    if len(kept) > 1:
        kept.sort(key=lambda t: (len(t[0]), [order(a) for a in t[0]]))
    return Poly(tuple(kept), constant)


def atom(n: Node) -> Poly:
    return Poly((((n,), 1),), 0)


def constant(value: int) -> Poly:
    return Poly((), value)


ZERO = constant(0)


def _widens(source: str, target: str) -> bool:
    """Does a cast between these never change a value."""
    if source == "bool":
        return target in INTS
    if source not in INTS or target not in INTS:
        return False
    (a, b), (c, d) = INT_RANGE[source], INT_RANGE[target]
    return c <= a and b <= d


def parts(n: Node) -> tuple[Node, ...]:
    """The args whose polys `n`'s own is made of; none where `n` stands for itself."""
    if n.op == "apply" and n.type.dtype == "i64" and n["fn"] in _COMBINE:
        return n.args
    if n.op == "cast" and _widens(n.args[0].type.dtype, n.type.dtype):
        return n.args
    return ()


_polys: dict[Node, Poly] = {}
MOST_KEPT = 50_000


def linear(n: Node) -> Poly:
    """The poly that equals `n` wherever `n` has a value (integer arithmetic never wraps, it fails)."""
    found = _polys.get(n)
    if found is not None:
        return found
    if len(_polys) > MOST_KEPT:
        _polys.clear()
    done = dict[Node, Poly]()
    stack = [n]
    while stack:
        top = stack.pop()
        if top in done:
            continue
        found = _polys.get(top)
        if found is not None:
            done[top] = found
            continue
        inner = parts(top)
        waiting = [a for a in inner if a not in done]
        if waiting:
            stack += [top, *waiting]
        else:
            done[top] = _polys[top] = _combined(top, [done[a] for a in inner])
    return done[n]


def _combined(n: Node, inner: list[Poly]) -> Poly:
    if n.op == "const" and not n.type.dims and isinstance(n["value"], (int, bool)):
        return constant(int(n["value"]))
    if not inner:
        return atom(n)
    if n.op == "cast":
        return inner[0]
    result = _COMBINE[n["fn"]](*inner)
    return atom(n) if result is None or _large(result) else result


def _product_of(a: Poly, b: Poly) -> Poly | None:
    return a.times(b) if (len(a.terms) + 1) * (len(b.terms) + 1) <= MOST_TERMS else None


def _quotient(a: Poly, b: Poly) -> Poly:
    """a // b; what a constant b divides evenly is taken out, and the rest is one atom."""
    if b.is_constant and b.constant:
        whole = {m: c // b.constant for m, c in a.terms if c % b.constant == 0}
        rest = poly({m: c for m, c in a.terms if c % b.constant}, a.constant % b.constant)
        outside = poly(whole, a.constant // b.constant)
        return outside + (constant(0) if rest.is_constant else _apply("floordiv", rest, b))
    return _apply("floordiv", a, b)


def _remainder(a: Poly, b: Poly) -> Poly | None:
    """a % b = a - b · (a // b), so that both parts of a tiling speak of one quotient."""
    if b == ZERO:
        return None
    product = _product_of(b, _quotient(a, b))
    return None if product is None else a - product


def _choice(fn: str) -> Callable[[Poly, Poly], Poly]:
    def combine(a: Poly, b: Poly) -> Poly:
        gap = a - b
        if gap.is_constant:
            return a if (gap.constant <= 0) == (fn == "min") else b
        return _apply(fn, *sorted((a, b), key=_poly_order))

    return combine


def _magnitude(a: Poly) -> Poly:
    return constant(abs(a.constant)) if a.is_constant else _apply("abs", a)


def _poly_order(p: Poly) -> tuple[Any, ...]:
    return ([([order(a) for a in m], c) for m, c in p.terms], p.constant)


def _apply(fn: str, *args: Poly) -> Poly:
    return atom(node("apply", *(to_node(a) for a in args), type=I64, fn=fn))


_COMBINE: dict[str, Callable[..., Poly | None]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "neg": lambda a: a.scaled(-1),
    "mul": _product_of,
    "floordiv": _quotient,
    "mod": _remainder,
    "min": _choice("min"),
    "max": _choice("max"),
    "abs": _magnitude,
    "clamp": lambda x, low, high: _choice("min")(_choice("max")(x, low), high),
}


def _large(p: Poly) -> bool:
    numbers = [p.constant, *(c for _, c in p.terms)]
    return len(p.terms) > MOST_TERMS or max(map(abs, numbers)) > LARGEST or any(len(m) > MOST_FACTORS for m, _ in p.terms)


def of(value: Node | int) -> Poly:
    return constant(value) if isinstance(value, int) else linear(value)


def to_node(p: Poly) -> Node:
    """The one i64 node for `p`: positive terms first, in order, then what is taken off."""
    positive = [(m, c) for m, c in p.terms if c > 0]
    total: Node | None = None
    for m, c in positive:
        total = _plus("add", total, _product(m, c))
    if total is None and p.terms:
        total = number(p.constant)
    elif p.constant > 0 or total is None:
        total = _plus("add", total, number(p.constant))
    for m, c in p.terms:
        if c < 0:
            total = _plus("sub", total, _product(m, -c))
    if positive and p.constant < 0:
        total = _plus("sub", total, number(-p.constant))
    assert total is not None
    return total


def _plus(fn: str, a: Node | None, b: Node) -> Node:
    return b if a is None else node("apply", a, b, type=I64, fn=fn)


def _product(factors: Iterable[Node], coefficient: int) -> Node:
    total: Node | None = None
    for f in factors:
        wide = f if f.type.dtype == "i64" else node("cast", f, type=I64, mode="exact")
        total = wide if total is None else node("apply", total, wide, type=I64, fn="mul")
    assert total is not None
    return total if coefficient == 1 else node("apply", total, number(coefficient), type=I64, fn="mul")


def canonical(dim: Node | int) -> Node | int:
    """A dim's one form: an int where it is constant, else the node of its poly."""
    if isinstance(dim, int):
        return dim
    p = linear(dim)
    return p.constant if p.is_constant else to_node(p)
