"""Scalars and tensors of a kernel as expressions and memory, and the dtypes in which they are held while computed with."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dsl.types import INTS, OBJECTS
from ..kernels.scalar import literal
from .loops import Buffer, Cast, Const, Expr, Load, Select


def held(dtype: str) -> str:
    """The dtype in which values of `dtype` are computed with; texts and bytes are the numbers the runtime gives them."""
    return "i64" if dtype in (*INTS, *OBJECTS) else "f32" if dtype in ("f16", "bf16") else dtype


def lying(dtype: str) -> str:
    """The dtype in which they lie in memory."""
    return "i64" if dtype in OBJECTS else dtype


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory, with the mask of its missing elements."""

    data: Buffer
    mask: Buffer | None = None


@dataclass(frozen=True)
class Scalar:
    """A scalar's expression, and the one that tells whether it is missing."""

    value: Expr
    missing: Expr | None = None


def constant(value: Any, dtype: str) -> Const:
    """A number as a program writes it, rounded to its dtype."""
    return Const(float(literal(value, dtype)) if dtype in ("f16", "bf16") else value, held(dtype))


def zero(dtype: str) -> Const:
    return Const(False if dtype == "bool" else 0.0 if dtype in ("f32", "f64") else 0, dtype)


def meeting(operands: str, args: Sequence[Expr]) -> str:
    """The dtype at which arguments of a scalar function meet."""
    dtypes = {a.dtype for a in args}
    if "f64" in dtypes:
        return "f64"
    if "f32" in dtypes or (operands == "float" and dtypes <= {"i64"}):
        return "f32"
    return args[0].dtype


def recast(e: Expr, dtype: str) -> Expr:
    return Const(float(e.value), dtype) if isinstance(e, Const) and dtype in ("f32", "f64") else Cast(e, dtype)


def typed(e: Expr, dtype: str) -> Expr:
    return e if e.dtype == held(dtype) else recast(e, held(dtype))


def rounded(e: Expr, dtype: str) -> Expr:
    """f16 and bf16 are computed in f32; each result is rounded."""
    return Cast(Cast(e, dtype), "f32") if dtype in ("f16", "bf16") else e


def convert(e: Expr, target: str, mode: str) -> Expr:
    """The graph's `cast`, between dtypes as values are held."""
    if target in ("f16", "bf16"):
        return rounded(e if e.dtype == "f32" else Cast(e, "f32"), target)
    if target == held(target):
        return e if e.dtype == target else Cast(e, target, mode)
    return Cast(Cast(e, target, mode), "i64")


def loaded(b: Buffer, at: Expr) -> Expr:
    e: Expr = Load(b.name, at, b.dtype)
    return e if held(b.dtype) == b.dtype else Cast(e, held(b.dtype))


def stored(e: Expr, dtype: str) -> Expr:
    if dtype not in ("f16", "bf16"):
        return e
    match e:
        case Cast(value=Cast(dtype=d) as rounded, dtype="f32") if d == dtype:
            return rounded
    return Cast(e, dtype)


def chosen(c: Expr, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None and b is None:
        return None
    no = Const(False, "bool")
    return Select(c, no if a is None else a, no if b is None else b)
