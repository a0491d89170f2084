"""Conditions as arithmetic: what a bool node being true (or false) says about integers, as a `Claim`.

A claim may say less than the condition does, never more, so it may be assumed wherever the condition holds.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ..dsl.types import INTS
from .graph import Node
from .linear import Poly, atom, constant, linear

MOST_PARTS = 48
DEEPEST = 40


@dataclass(frozen=True)
class Claim:
    """All `rows` are ≥ 0, all `equations` are 0, and of each choice at least one claim holds."""

    rows: tuple[Poly, ...] = ()
    equations: tuple[Poly, ...] = ()
    choices: tuple[tuple[Claim, ...], ...] = ()

    def __and__(self, other: Claim) -> Claim:
        return Claim(
            _joined(self.rows, other.rows),
            _joined(self.equations, other.equations),
            (self.choices + other.choices)[:MOST_PARTS],
        )

    @property
    def polys(self) -> tuple[Poly, ...]:
        return self.rows + self.equations


def _joined(a: tuple[Poly, ...], b: tuple[Poly, ...]) -> tuple[Poly, ...]:
    return tuple(dict.fromkeys(a + b))[:MOST_PARTS]


NOTHING = Claim()
FALSE = Claim(rows=(constant(-1),))


def at_least(a: Poly, b: Poly) -> Claim:
    return Claim(rows=(a - b,))


def equals(a: Poly, b: Poly) -> Claim:
    return Claim(equations=(a - b,))


def either(*claims: Claim) -> Claim:
    if NOTHING in claims:
        return NOTHING
    possible = tuple(c for c in dict.fromkeys(claims) if c is not FALSE)
    return FALSE if not possible else possible[0] if len(possible) == 1 else Claim(choices=(possible,))


def all_of(claims: Iterable[Claim]) -> Claim:
    total = NOTHING
    for c in claims:
        total = total & c
    return total


def claim(condition: Node, truth: bool = True) -> Claim:
    """What is known about integers where `condition` is `truth`."""
    return _claim(condition, truth, 0)


@lru_cache(maxsize=10_000)
def _claim(n: Node, truth: bool, depth: int) -> Claim:
    if n.type.dims or n.type.dtype != "bool" or depth > DEEPEST:
        return NOTHING
    if n.op == "const":
        return NOTHING if bool(n["value"]) == truth else FALSE
    if n.op == "apply":
        return _applied(n, truth, depth)
    if n.op == "select":
        test, yes, no = n.args
        return either(
            _claim(test, True, depth + 1) & _claim(yes, truth, depth + 1),
            _claim(test, False, depth + 1) & _claim(no, truth, depth + 1),
        )
    return holds(n, truth)


def holds(n: Node, truth: bool) -> Claim:
    """The bool `n` as an integer that is 1 or 0: so two mentions of it agree."""
    return equals(atom(n), constant(int(truth)))


def _applied(n: Node, truth: bool, depth: int) -> Claim:
    fn = n["fn"]
    if fn == "not":
        return _claim(n.args[0], not truth, depth + 1)
    if fn in ("and", "or"):
        inner = [_claim(a, truth, depth + 1) for a in n.args]
        return all_of(inner) if (fn == "and") == truth else either(*inner)
    if fn in _OPPOSITE and all(a.type.dtype in INTS for a in n.args):
        return _compared(fn if truth else _OPPOSITE[fn], *(linear(a) for a in n.args))
    return holds(n, truth)


_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _compared(fn: str, a: Poly, b: Poly) -> Claim:
    match fn:
        case "lt":
            return at_least(b, a + 1)
        case "le":
            return at_least(b, a)
        case "gt":
            return at_least(a, b + 1)
        case "ge":
            return at_least(a, b)
        case "eq":
            return equals(a, b)
        case _:
            return either(at_least(a, b + 1), at_least(b, a + 1))
