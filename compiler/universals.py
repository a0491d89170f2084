"""`check(all(idx < n))` as a fact about each element: reads through `idx` below it are inside."""
from __future__ import annotations

from collections.abc import Iterator

from . import bounds
from .graph import Node, substitute, var, walk


def universals(condition: Node) -> Iterator[Node]:
    """The `all` reductions that hold where the condition does."""
    if condition.op == "apply" and condition["fn"] == "and":
        for part in condition.args:
            yield from universals(part)
    elif condition.op == "select" and condition.args[2].op == "const" and condition.args[2]["value"] is False:
        yield from universals(condition.args[0])
        yield from universals(condition.args[1])
    elif condition.op == "reduce" and condition["kind"] == "all":
        yield condition


def known_of(place: Node, held: list[Node], facts: bounds.Facts) -> bounds.Facts:
    """`facts` and what the held conditions say about the elements that `place` is made of."""
    reads = [n for n in walk(place) if n.op == "index" and not n["guard"]]
    for reduction in held if reads else ():
        body = _reduced(reduction.args[0])
        binders = tuple(var(i) for i in reduction["ids"])
        own = {n.args[0] for n in walk(body) if n.op == "index" and n.args[1:] == binders}
        for read in reads:
            if read.args[0] in own and len(read.args) == len(binders) + 1:
                facts = facts.given(substitute(body, dict(zip(binders, read.args[1:], strict=True))))
    return facts


def _reduced(body: Node) -> Node:
    """An element of a tensor that is built in place is what is built there."""
    if body.op != "index" or body.args[0].op != "build" or body.args[0].args[0].type.dims:
        return body
    built = body.args[0]
    return substitute(built.args[0], dict(zip((var(i) for i in built["ids"]), body.args[1:], strict=True)))
