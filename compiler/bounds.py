"""Proofs about integers: intervals of nodes, a ≤ b, a ≠ 0, equal dims, under what is known at a place (`Facts`).

A proof is a refutation: the opposite is assumed, every atom in sight says what it knows of itself, choices (`min`,
`select`, `or`) are tried one by one, and each try must end in linear inequalities that no integers satisfy.
Answers are sound; work is bounded, and what isn't shown in time counts as not so. `facts` may rest on anything
except on the value asked about having been computed without overflow.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..dsl.types import INT_RANGE, INTS
from .conditions import NOTHING, Claim, all_of, claim
from .definitions import definition
from .graph import Node
from .inequalities import infeasible
from .linear import Poly, atom, of
from .ranges import LARGEST_SIZE, Range, Ranges

__all__ = [
    "LARGEST_SIZE", "Facts", "at_most", "contradicts", "equal", "fits_i64", "hopeless", "implies", "interval", "less", "nonzero",
    "refuted",
]
MOST_TRIES = 60
MOST_ATOMS = 40
ROUNDS = 4


class Facts:
    """What is known at one place of a program: conditions that hold there, ranges of the binders around it."""

    __slots__ = ("_ranges", "binders", "claims")

    def __init__(self, claims: tuple[Claim, ...] = (), binders: tuple[tuple[int, Poly], ...] = ()):
        self.claims = claims
        self.binders = binders
        self._ranges: Ranges | None = None

    def given(self, condition: Node) -> Facts:
        """These facts and that `condition` is true."""
        found = claim(condition)
        return self if found == NOTHING or found in self.claims else Facts((*self.claims, found), self.binders)

    def ranged(self, var: Node, stop: Node | int) -> Facts:
        """These facts and 0 ≤ var < stop."""
        end = of(stop)
        inside = Claim(rows=(atom(var), end - atom(var) - 1))
        return Facts((*self.claims, inside), (*self.binders, (var["id"], end)))

    @property
    def ranges(self) -> Ranges:
        """Intervals of nodes under these facts; computed once."""
        if self._ranges is None:
            self._ranges = _propagated(self)
        elif len(self._ranges.memo) > 50_000:
            self._ranges.memo.clear()
        return self._ranges


NO_FACTS = Facts()


def _propagated(facts: Facts) -> Ranges:
    """Ranges of single atoms out of the facts: each inequality bounds an atom by the ranges of its others."""
    known: dict[Node, Range] = {}
    rows = [row for c in facts.claims for row in (*c.rows, *c.equations, *(e.scaled(-1) for e in c.equations))]
    binders: dict[int, Range] = {}
    for _ in range(ROUNDS):
        ranges = Ranges(known, binders)
        for id, end in facts.binders:
            high = max(ranges.poly(end).high - 1, 0)
            binders[id] = Range(0, min(high, binders[id].high) if id in binders else high)
        before = dict(known)
        for row in rows:
            _tighten(row, ranges, known)
        if known == before:
            break
    return Ranges(known, binders)


def _tighten(row: Poly, ranges: Ranges, known: dict[Node, Range]) -> None:
    for m, c in row.terms:
        if len(m) != 1:
            continue
        rest = ranges.poly(Poly(tuple(t for t in row.terms if t[0] != m), row.constant)).high
        if not -(2**62) < rest < 2**62:
            continue
        # c · a + rest ≥ 0
        bound = Range(-(int(rest) // c), 2**64) if c > 0 else Range(-(2**64), int(rest) // -c)
        old = known.get(m[0]) or ranges.value(m[0])
        known[m[0]] = old.meet(bound)


# --- questions ------------------------------------------------------------------------------------


def interval(n: Node, facts: Facts | None = None) -> tuple[float, float]:
    """Least and greatest value of `n` (of an element where it is a tensor); ints, or ±inf where nothing is known.

    For arithmetic of i64 it may reach past i64: then the result may overflow.
    """
    r = (facts or NO_FACTS).ranges.of(n)
    return r.low, r.high


def fits_i64(n: Node, facts: Facts | None = None) -> bool:
    """Can `n`'s own operation never go past i64."""
    low, high = interval(n, facts)
    least, most = INT_RANGE["i64"]
    return least <= low and high <= most


def at_most(a: Node | int, b: Node | int, facts: Facts | None = None) -> bool:
    """Is a ≤ b wherever both have values."""
    return _never_negative(a, b, 0, facts or NO_FACTS)


def less(a: Node | int, b: Node | int, facts: Facts | None = None) -> bool:
    """Is a < b wherever both have values."""
    return _never_negative(a, b, 1, facts or NO_FACTS)


def _never_negative(a: Node | int, b: Node | int, gap: int, facts: Facts) -> bool:
    if not all(isinstance(x, int) or (x.type.dtype in INTS and not x.type.dims) for x in (a, b)):
        return False
    difference = of(b) - of(a) - gap
    if difference.is_constant:
        return difference.constant >= 0
    if facts.ranges.poly(difference).low >= 0:
        return True
    return refuted(Claim(rows=(difference.scaled(-1) - 1,)), facts)


def equal(a: Node | int, b: Node | int) -> bool:
    """Are two dims surely the same number."""
    gap = of(a) - of(b)
    if gap.is_constant:
        return gap.constant == 0
    return at_most(a, b) and at_most(b, a)


def nonzero(a: Node | int, facts: Facts | None = None) -> bool:
    """Is `a` surely not 0."""
    facts = facts or NO_FACTS
    value = of(a)
    if value.is_constant:
        return value.constant != 0
    r = facts.ranges.poly(value)
    return r.low > 0 or r.high < 0 or refuted(Claim(equations=(value,)), facts)


def contradicts(condition: Node, facts: Facts | None = None) -> bool:
    """Can `condition` surely not be true."""
    return refuted(claim(condition), facts or NO_FACTS)


def hopeless(facts: Facts | None) -> bool:
    """Do the facts exclude each other, so that nothing here ever runs, and anything would follow."""
    return facts is not None and _impossible(NOTHING, list(facts.claims), frozenset(), facts.ranges, _Budget())


def implies(facts: Facts | None, condition: Node) -> bool:
    """Is `condition` surely true."""
    return refuted(claim(condition, False), facts or NO_FACTS)


# --- refutation -----------------------------------------------------------------------------------


@dataclass
class _Budget:
    tries: int = MOST_TRIES


def refuted(assumed: Claim, facts: Facts | None = None) -> bool:
    """Do the facts and the definitions of the atoms in sight rule `assumed` out."""
    facts = facts or NO_FACTS
    if assumed == NOTHING:
        return False
    return _impossible(assumed, list(facts.claims), frozenset(), facts.ranges, _Budget())


def _impossible(claims: Claim, waiting: list[Claim], defined: frozenset[Node], ranges: Ranges, budget: _Budget) -> bool:
    budget.tries -= 1
    claims, waiting, defined = _expanded(claims, waiting, defined, ranges)
    if infeasible(claims.rows, claims.equations, lambda a: ranges.value(a).low):
        return True
    for at, choice in enumerate(claims.choices):
        if budget.tries <= 0:
            return False
        others = claims.choices[:at] + claims.choices[at + 1 :]
        rest = Claim(claims.rows, claims.equations, others)
        return all(_impossible(rest & c, waiting, defined, ranges, budget) for c in choice)
    return False


def _expanded(
    claims: Claim, waiting: list[Claim], defined: frozenset[Node], ranges: Ranges
) -> tuple[Claim, list[Claim], frozenset[Node]]:
    """With the definitions of all atoms in sight, and every waiting fact that speaks of one of them."""
    known = set(defined)
    seen: set[Node] = set()
    fresh = _atoms(claims.polys)
    waiting = list(waiting)
    while fresh or waiting:
        seen |= fresh
        for a in sorted(fresh - known, key=lambda n: n.number):
            known.add(a)
            if len(known) <= MOST_ATOMS:
                claims = claims & definition(a, ranges)
        near = [w for w in waiting if _mentioned(w) & seen or not _mentioned(w)]
        waiting = [w for w in waiting if w not in near]
        claims = all_of([claims, *near])
        fresh = _atoms(claims.polys) - seen
        if not fresh and not near:
            break
    return claims, waiting, frozenset(known)


def _atoms(polys: Iterable[Poly]) -> set[Node]:
    return {a for p in polys for a in p.atoms}


def _mentioned(c: Claim) -> set[Node]:
    return _atoms(c.polys) | {a for choice in c.choices for inner in choice for a in _mentioned(inner)}
