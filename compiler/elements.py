"""Builds in loop IR: a build and the memory it fills go in; its loops come out, or its elements one by one."""
from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from .fuse import copied
from .graph import Node, node, var, walk
from .held import Tensor
from .loops import Const, Expr

if TYPE_CHECKING:
    from .values import Lowering

BINDERS = ("i", "j", "k", "l")
LONGEST_LIST = 16   # whose elements are written one by one


def write_build(low: Lowering, n: Node, out: Tensor, before: tuple[Expr, ...]) -> None:
    body, *extents = n.args
    if low.facts.one_choice(n):
        return _write_chosen(low, n, out, before)
    elements = _listed(n)
    if elements is not None:
        for at, element in enumerate(elements):
            low.write(element, out, (*before, Const(at, "i64")))
        return

    def nest(rest: list[tuple[int, Node]], places: tuple[Expr, ...]) -> None:
        if not rest:
            return low.write(body, out, places)
        (id, extent), *inner = rest
        with low.loop(low.expr(extent), id, BINDERS[min(len(places), len(BINDERS) - 1)]) as v:
            nest(inner, (*places, v))

    nest(list(zip(n["ids"], extents, strict=True)), before)


def _write_chosen(low: Lowering, n: Node, out: Tensor, before: tuple[Expr, ...]) -> None:
    """A build whose elements are all chosen by one condition: it is asked once, and only one side has loops."""
    condition, *sides = n.args[0].args
    c = low.expr(condition)
    then, other = (_side_of(n, s) for s in sides)
    if isinstance(c, Const):
        return low.write(then if c.value else other, out, before)
    first, second = (low.facts.needed(s) for s in sides)
    shared = [t for t in first if t in second and not low.facts.free(t) & set(n["ids"])]   # made once, not in each side
    runs: Expr | None = None
    for extent in n.args[1:] if any(map(low.facts.fails, shared)) else ():   # of an empty build nothing may fail
        e = low.expr(extent)
        if not (isinstance(e, Const) and e.value > 0):
            runs = e > 0 if runs is None else runs & (e > 0)
    with nullcontext() if runs is None else low.branch(low.local(runs)):
        for t in shared:
            low.tensor(t)
        with low.branch(low.local(c)):
            low.write(then, out, before)
        with low.other_branch():
            low.write(other, out, before)


def _listed(build: Node) -> list[Node] | None:
    """The elements of a build that was written as a short list, `[a, b, c]`: none of them needs the binder."""
    body, extent, *more = build.args
    if more or extent.op != "const" or not 0 < extent["value"] <= LONGEST_LIST:
        return None
    elements = []
    for at in range(extent["value"]):
        element = body
        while element.op == "select" and (chosen := _is_place(element.args[0], build["ids"][0], at)) is not None:
            element = element.args[1 if chosen else 2]
        elements.append(element)
    bound = var(build["ids"][0])
    return elements if elements[0] is not body and not any(bound in walk(e) for e in elements) else None


def _is_place(condition: Node, id: int, at: int) -> bool | None:
    """Does `condition` say that the binder is `at`; None where it says something else."""
    if condition.op != "apply" or condition["fn"] != "eq":
        return None
    binder, place = condition.args
    return bool(place["value"] == at) if binder is var(id) and place.op == "const" else None


def _side_of(build: Node, side: Node) -> Node:
    """`build` with only this side of its choice; where that is all of a tensor, the tensor."""
    made = node("build", side, *build.args[1:], type=build.type, ids=build["ids"])
    return copied(made) or made
