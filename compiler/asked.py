"""When library calls are asked for: values go in; for each call that not every evaluation needs, the condition comes out.

A side of a choice, a default, and the second side of `and` and `or` are evaluated only where they are chosen, so a call
that stands there alone must not run elsewhere: it may fail, and it costs.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..dsl.types import BOOL
from .graph import Node, children, const, node
from .totality import Facts

TRUE = const(True, BOOL)
MOST = 12        # a call that is asked for in more ways than this always runs


def conditions(
    goals: Sequence[Node], calls: Iterable[Node], facts: Facts, called: Callable[[Node], Node | None]
) -> dict[Node, Node]:
    """The condition of each call that the goals need, where it isn't always true.

    A call made at every place of binders (attribute `ids`) has a condition in terms of these. `called(extent)` is the call
    whose size an `extent` is.
    """
    known = set(calls)
    below: dict[Node, frozenset[Node]] = {}      # calls at or below a node
    sure: dict[Node, frozenset[Node]] = {}       # those that every evaluation of it makes
    order: list[Node] = []

    def under(n: Node) -> tuple[Node, ...]:
        if n in known or n.op == "call":
            return n.args        # its dims may be its own sizes
        call = called(n) if n.op == "extent" else None
        return children(n) if call is None else (call,)

    stack = [(g, False) for g in reversed(goals)]
    while stack:
        n, done = stack.pop()
        if done and n not in below:
            own = frozenset((n,)) if n in known else frozenset[Node]()
            below[n] = own.union(*(below[c] for c in under(n)))
            always, lazy = _sides(n)
            sides = [sure[s] for s, _ in lazy]
            both = frozenset.intersection(*sides) if n.op == "select" else frozenset[Node]()
            sure[n] = own.union(both, *(sure[c] for c in (always if lazy else under(n))))
            order.append(n)
        elif n not in below:
            stack.append((n, True))
            stack.extend((c, False) for c in reversed(under(n)) if c not in below)
    certain = frozenset[Node]().union(*(sure[g] for g in goals))
    unsure = frozenset[Node]().union(*(below[g] for g in goals)) - certain
    if not unsure:
        return {}
    asked: dict[Node, dict[Node, None]] = {g: {TRUE: None} for g in goals}
    found: dict[Node, Node] = {}
    for n in reversed(order):
        if not below[n] & unsure or n not in asked:
            continue
        ways = _joined(asked[n])
        if n in known:
            inner = frozenset(n.get("ids", ()))
            ways = _joined({_closed(w, facts, inner): None for w in ways})
            if n in unsure:
                found[n] = _any(ways)
        always, lazy = _sides(n)
        for c in always if lazy else under(n):
            asked.setdefault(c, {}).update(dict.fromkeys(ways))
        for side, condition in lazy:
            asked.setdefault(side, {}).update({_both(w, condition): None for w in ways})
    return {n: c for n, c in found.items() if c is not TRUE}


def _sides(n: Node) -> tuple[tuple[Node, ...], list[tuple[Node, Node]]]:
    """What is always evaluated with a node, and what only where a condition holds."""
    if n.op == "select":
        c = n.args[0]
        return (c,), [(n.args[1], c), (n.args[2], _no(c))]
    if n.op == "fill":
        return n.args[:1], [(n.args[1], node("missing", n.args[0], type=BOOL))]
    if n.op == "apply" and n["fn"] in ("and", "or"):
        first = n.args[0]
        return (first,), [(n.args[1], first if n["fn"] == "and" else _no(first))]
    return (), []


def _no(c: Node) -> Node:
    if c.op == "apply" and c["fn"] == "not":
        return c.args[0]
    return node("apply", c, type=BOOL, fn="not")


def _both(a: Node, b: Node) -> Node:
    return b if a is TRUE else node("apply", a, b, type=BOOL, fn="and")


def _any(ways: Iterable[Node]) -> Node:
    first, *rest = ways
    for w in rest:
        first = node("apply", first, w, type=BOOL, fn="or")
    return first


def _joined(ways: dict[Node, None]) -> dict[Node, None]:
    """Fewer conditions that together hold where these do: one and its contrary are always true."""
    if TRUE in ways or len(ways) > MOST or any(_no(w) in ways for w in ways):
        return {TRUE: None}
    for w in ways:
        if w.op == "apply" and w["fn"] == "and":
            first, second = w.args
            if _both(first, _no(second)) in ways:
                rest = {o: None for o in ways if o not in (w, _both(first, _no(second)))}
                return _joined({**rest, first: None})
    return ways


def _closed(condition: Node, facts: Facts, inner: frozenset[int]) -> Node:
    """Does it hold at any place of the binders that `inner` doesn't name."""
    ids = tuple(sorted(facts.free(condition) - inner))
    if not ids:
        return condition
    extents = [facts.extents[id] for id in ids]
    if any(map(facts.free, extents)):
        return TRUE
    return node("reduce", condition, *extents, type=BOOL, ids=ids, kind="any")
