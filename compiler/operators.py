"""Operators in loop IR: a call goes in, the operator's own loops or its expression come out, over the arguments it needs."""
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..dsl.types import FLOATS, OBJECTS, Type
from ..kernels import ops
from ..kernels.random import signed
from ..kernels.table import digest
from .graph import Node, node
from .held import Tensor
from .loops import Const, Expr, Load

if TYPE_CHECKING:
    from .values import Lowering


def call(low: Lowering, n: Node, out: Any) -> None:
    """An operator's own loops, writing into `out` (a tuple for several results)."""
    operator = ops.OPERATORS[n["op"]]
    assert operator.lower is not None
    operator.lower(low.k, out, *map(partial(_operand, low), n.args))


def expanded(low: Lowering, n: Node) -> Expr:
    """The number that an operator gives as an expression."""
    operator = ops.OPERATORS[n["op"]]
    assert operator.expand is not None
    made: Expr = operator.expand(low.k, *[_digest(low, a, n) if operator.digests else _operand(low, a) for a in n.args])
    return made


def _digest(low: Lowering, a: Node, call: Node) -> Expr:
    """64 bits that stand for a text or an integer."""
    if a.op == "const" and a.type.dtype in OBJECTS:
        return Const(signed(digest(a["value"])), "i64")
    if a.type.dtype in FLOATS:
        low.k.fail(low.site("E0801", f"{call['op']}: it takes an integer or a text", call))
        return Const(0, "i64")
    value = low.local(low.expr(a))
    return Load(low.argument("data", "@digests", "i64"), value, "i64") if a.type.dtype in OBJECTS else value


def _operand(low: Lowering, a: Node) -> Any:
    if a.op == "const" and a.type.dtype in OBJECTS:
        return a["value"]
    if a.type.is_scalar:
        return low.local(low.expr(a))
    return low.tensor(a).data


def part(low: Lowering, n: Node) -> Tensor:
    """One result of an operator with several; the first one asked for computes all."""
    whole, name = n.args[0], n["name"]
    for frame in reversed(low.frames):
        for other in frame.tensors:
            if other.op == "part" and other.args[0] is whole and other["name"] == name:
                return frame.tensors[other]
    home, _, _ = low.home(whole)
    with low.inside(home):
        buffers = []
        for part, type in whole.type.parts:
            t = low.scratch(type, [low.dim(d) for d in type.dims])
            buffers.append(t.data)
            home.tensors[_part(whole, part, type)] = t
        call(low, whole, tuple(buffers))
    return home.tensors[_part(whole, name, n.type)]


def _part(call: Node, name: str, type: Type) -> Node:
    return node("part", call, type=type, name=name)
