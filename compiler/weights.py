"""`weight("loss", default=1.0)`: what consumers returned for the record; from its call to a node, and where it may stand."""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Problem, Span
from ..dsl.types import F32
from .cut import Section, cut, sections
from .graph import Node, node, walk
from .scope import Scope, Value, unknown

if TYPE_CHECKING:
    from .elaborate import Elaborator

EXAMPLE = 'for example: weight("loss", default=1.0)'


def weight(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    """The node of a call. Attrs: name; default, a float that is an f32."""
    named = {a.name: a.value for a in e.args if a.name is not None}
    plain = [a.value for a in e.args if a.name is None]
    written = plain[0] if len(plain) == 1 and set(named) == {"default"} else None
    if written is None:
        for a in e.args:
            el.expr(scope, a.value)
        code = "E0122" if len(e.args) < 2 else "E0123"
        return el.fail(scope, code, "`weight` takes a name, and the `default` of records without a value", e.span, "",
                       notes=[EXAMPLE])
    if not isinstance(written, tree.String) or not written.value.isidentifier():
        quote = [Fix("quote it", (Edit(written.span, f'"{written.id}"'),))] if isinstance(written, tree.Name) else []
        return el.fail(scope, "E0202", "the name of a weight is a quoted word", written.span, "", notes=[EXAMPLE], fixes=quote)
    default = el.expr(scope, named["default"])
    if not default.known:
        return unknown(e.span)
    n = default.node
    if n is None or n.op != "const" or n.type.dims or isinstance(n["value"], bool | str) or not math.isfinite(n["value"]):
        return el.fail(scope, "E0202", "the default of a weight is a number", named["default"].span, "", notes=[EXAMPLE])
    import numpy as np

    made = node("weight", name=written.value, default=float(np.float32(n["value"])), type=F32)
    return Value(el.context.made(made, e.span), F32, e.span)


def misplaced(emit: Node, spans: Mapping[Node, Sequence[Span]]) -> Iterator[Problem]:
    """E0516 for weights of records that consumers don't know by these ids: they read the ids of the ring's rows."""
    parts = cut(emit)
    last = next((k for k, p in reversed(list(enumerate(parts.above))) if p.kind != "sample"), 0)
    for section, why in [*((p, "lines below `share` run in each trainer") for p in parts.below),
                       *((p, "a later line makes other records of these") for p in parts.above[:last]),
                       *((p, "a pipeline that another one reads") for a in parts.above for p in _inner(a))]:
        for n in _weights(section):
            yield Problem("E0516", "`weight` must stand where records are those that trainers get", spans[n][0], why, (), (
                "trainers return values for the records they get, so it stands above `share`, below `each` and the like",))


def _inner(section: Section) -> Iterator[Section]:
    start = section.start
    branches = start.args if section.kind in ("mix", "zip") else start.args[1:] if section.kind == "sample" else ()
    for branch in branches:
        for inner in sections(branch):
            yield inner
            yield from _inner(inner)


def _weights(section: Section) -> list[Node]:
    values = [*section.outputs.values(), *(a for s in section.stages for a in s.args[1:])]
    found = {n for v in values for n in walk(v) if n.op == "weight"}
    return sorted(found, key=lambda n: n.number)
