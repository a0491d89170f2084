"""Draws in loop IR: the key of the path, the record's id and the binders' values make Philox words."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..kernels.random import DRAWS, fold
from .graph import Node
from .held import convert, recast
from .loops import Buffer, Cast, Const, Expr, Load

if TYPE_CHECKING:
    from .values import Lowering


def _operands(low: Lowering, n: Node) -> list[Any]:
    """Key, id, fold and parameters; a record whose bounds are empty ends here."""
    dist = DRAWS[n["dist"]]
    count = n["indexes"]
    params, indexes = n.args[: len(n.args) - count], n.args[len(n.args) - count :]
    keys = low.argument("data", "@keys", "u64")
    key = Cast(Load(keys, Const(low.draw_number(n["path"]), "i64"), "u64"), "i64")
    id = low.cell("@id", "i64")
    at = fold(low.k, [low.expr(i) for i in indexes]) if indexes else Const(0, "i64")
    values: list[Expr] = []
    for a, dtype in zip(params, dist.dtypes, strict=True):
        e = low.expr(a)
        values.append(low.local(e if e.dtype == dtype else recast(e, dtype)))
    if low.facts.may_be_empty(n):
        with low.branch(dist.empty(low.k, *values)):
            low.k.fail(low.site("E0804", f"nothing to draw from: the bounds of `{n['dist']}` are empty", n))
    return [key, id, at, *values]


def scalar_draw(low: Lowering, n: Node) -> Expr:
    expand = DRAWS[n["dist"]].expand
    assert expand is not None
    result: Expr = expand(low.k, *_operands(low, n))
    return convert(result, n.type.dtype, "exact") if result.dtype != n.type.dtype else result


def tensor_draw(low: Lowering, n: Node, out: Buffer) -> None:
    write = DRAWS[n["dist"]].lower
    assert write is not None
    write(low.k, out, *_operands(low, n))
