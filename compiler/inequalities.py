"""Rows of linear inequalities over integers, each `poly ≥ 0`: shows that no integers satisfy them all.

Equations are solved for a unit coefficient, products are met by multiplying rows with atoms known to be ≥ 0,
and what is left goes through Fourier-Motzkin elimination. Work is bounded; "not shown" is always allowed.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd

from .graph import Node
from .linear import Monomial, Poly, order

MOST_ROWS = 90
MOST_PRODUCTS = 40
Row = tuple[dict[Monomial, int], int]


def infeasible(rows: Iterable[Poly], equations: Iterable[Poly], least: Callable[[Node], float]) -> bool:
    """True where `rows` (≥ 0) and `equations` (= 0) surely contradict each other; `least` bounds atoms below."""
    rows, equations = list(dict.fromkeys(rows)), list(dict.fromkeys(equations))
    both = [*rows, *equations, *(e.scaled(-1) for e in equations)]
    made = _products(both, least)
    return _contradict([*rows, *made], equations)


def _products(rows: list[Poly], least: Callable[[Node], float]) -> list[Poly]:
    """Rows multiplied by atoms ≥ 0, where that gives a product which the rows already speak of."""
    products = {m for r in rows for m, _ in r.terms if len(m) > 1}
    made: dict[Poly, None] = {}
    for product in sorted(products, key=lambda m: [order(a) for a in m]):
        for row in rows:
            for m, _ in row.terms:
                factors = _quotient(product, m)
                if not factors or any(least(f) < 0 for f in factors):
                    continue
                made[row.times(Poly(((factors, 1),), 0))] = None
                low = least(factors[0])
                if len(factors) == 1 and 0 < low < 2**40:
                    made[row.times(Poly(((factors, 1),), -int(low)))] = None
                if len(made) >= MOST_PRODUCTS:
                    return list(made)
    return list(made)


def _quotient(product: Monomial, part: Monomial) -> Monomial:
    """The factors of `product` that `part` lacks; () where `part` doesn't divide it."""
    left = list(product)
    for f in part:
        if f not in left:
            return ()
        left.remove(f)
    return tuple(left)


def _contradict(rows: list[Poly], equations: list[Poly]) -> bool:
    table: list[Row] = [(dict(r.terms), r.constant) for r in rows]
    equal: list[Row] = [(dict(e.terms), e.constant) for e in equations]
    while equal:
        terms, c = equal.pop()
        if not terms:
            if c:
                return True
            continue
        divisor = gcd(*terms.values())
        if c % divisor:
            return True
        terms, c = {m: v // divisor for m, v in terms.items()}, c // divisor
        unit = next((m for m, v in terms.items() if v in (1, -1)), None)
        if unit is None:
            table += [(terms, c), ({m: -v for m, v in terms.items()}, -c)]
            continue
        table = [_solved(r, unit, terms, c) for r in table]
        equal = [_solved(r, unit, terms, c) for r in equal]
    return _eliminate(table)


def _solved(row: Row, unit: Monomial, terms: dict[Monomial, int], c: int) -> Row:
    """`row` without `unit`, by adding a multiple of the equation `terms + c = 0`."""
    if unit not in row[0]:
        return row
    return _sum(row, 1, (terms, c), -row[0][unit] * terms[unit])


def _sum(a: Row, by: int, b: Row, times: int) -> Row:
    total = {m: v * by for m, v in a[0].items()}
    for m, v in b[0].items():
        total[m] = total.get(m, 0) + v * times
    return {m: v for m, v in total.items() if v}, a[1] * by + b[1] * times


def _tightened(table: Iterable[Row]) -> dict[frozenset[tuple[Monomial, int]], Row] | None:
    """Rows divided by their common divisor, the tightest of each slope; None where one of them is false."""
    best: dict[frozenset[tuple[Monomial, int]], Row] = {}
    for terms, c in table:
        if not terms:
            if c < 0:
                return None
            continue
        divisor = gcd(*terms.values())
        if divisor > 1:
            terms, c = {m: v // divisor for m, v in terms.items()}, c // divisor
        key = frozenset(terms.items())
        if key not in best or c < best[key][1]:
            best[key] = (terms, c)
    return best


def _eliminate(table: list[Row]) -> bool:
    while True:
        best = _tightened(table)
        if best is None:
            return True
        if not best or len(best) > MOST_ROWS:
            return False
        rows = list(best.values())
        above: dict[Monomial, int] = {}
        below: dict[Monomial, int] = {}
        for terms, _ in rows:
            for m, v in terms.items():
                side = above if v > 0 else below
                side[m] = side.get(m, 0) + 1
        # a monomial bounded on one side only can't contradict anything
        unknowns = list(dict.fromkeys([*above, *below]))
        chosen = min(unknowns, key=lambda m: above.get(m, 0) * below.get(m, 0))
        lower = [r for r in rows if r[0].get(chosen, 0) > 0]
        upper = [r for r in rows if r[0].get(chosen, 0) < 0]
        table = [r for r in rows if chosen not in r[0]]
        table += [_sum(a, -b[0][chosen], b, a[0][chosen]) for a in lower for b in upper]
