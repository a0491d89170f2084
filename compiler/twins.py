"""Builds and reductions that differ only in their binders' ids become one node: the first of them takes all places."""
from __future__ import annotations

from .graph import Node, node, var, walk
from .rules import Moved, everywhere, inner, rebuilt

BINDING = ("build", "reduce")
MOST_NODES = 2_000  # that depend on one build's binders; larger builds are left as they are


def merge_twins(root: Node, moved: Moved | None = None) -> Node:
    """`root` with one node for all that are equal up to renaming of binders."""
    frees: dict[Node, frozenset[int]] = {}
    firsts: dict[Node, Node] = {}

    def step(n: Node) -> Node | None:
        if n.op not in BINDING:
            return None
        form = _nameless(n, frees)
        return None if form is None else firsts.setdefault(form, n)

    return everywhere(root, step, moved, steps=1)


def _nameless(root: Node, frees: dict[Node, frozenset[int]]) -> Node | None:
    """`root` with its own binders called -1, -2, … in the order in which they are met."""
    ids: dict[int, int] = {}
    met: list[Node] = []

    def dependent(n: Node) -> list[Node]:
        met.append(n)
        if len(met) > MOST_NODES:
            return []
        for id in n["ids"] if n.op in BINDING else ():
            ids.setdefault(id, -1 - len(ids))
        return [a for a in inner(n) if not ids.keys().isdisjoint(_free(a, frees))]

    order = list(walk(root, into=dependent))
    if len(met) > MOST_NODES:
        return None
    done = _Kept()
    for n in order:
        new = var(ids[n["id"]]) if n.op == "var" and n["id"] in ids else rebuilt(n, done)
        if n.op in BINDING:
            new = node(n.op, *new.args, type=new.type, **{**dict(n.attrs), "ids": tuple(ids[i] for i in n["ids"])})
        done[n] = new
    return done[root]


class _Kept(dict[Node, Node]):
    """Nodes that weren't changed stand for themselves."""

    def __missing__(self, n: Node) -> Node:
        return n


def _free(root: Node, frees: dict[Node, frozenset[int]]) -> frozenset[int]:
    """The ids of binders that `root` speaks of without binding them."""
    if root not in frees:
        for n in walk(root, into=lambda n: [a for a in inner(n) if a not in frees]):
            own = frozenset((n["id"],)) if n.op == "var" else frozenset()
            found = own.union(*(frees[a] for a in inner(n)))
            frees[n] = found - frozenset(n["ids"]) if n.op in BINDING else found
    return frees[root]
