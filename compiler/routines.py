"""Routines: scalar functions that take many operations, made once and called by name instead of written out at every use.

A name and a dtype go in (`exp` of f32, `philox`), the operations of that function as loop IR come out. What a routine does
is the one text that the reference uses too (`expand` of a row of `kernels.scalar`, `kernels.random.draw_bits`).
"""
from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..kernels.random import draw_bits
from ..kernels.scalar import SCALARS
from .loops import Apply, Builder, Expr, Let, Var

PHILOX = "philox"


@dataclass(frozen=True)
class Routine:
    """`name(params)`: the locals of `body` are made in order, then `result` is the value. Nothing in it can fail."""

    name: str
    params: tuple[Var, ...]
    body: tuple[Let, ...]
    result: Expr


@functools.cache
def routine(fn: str, dtype: str) -> Routine | None:
    """The routine for a scalar function of arguments of `dtype`; None where the function is short or a primitive."""
    if fn == PHILOX:
        return _made(PHILOX, draw_bits, [Var(p, "i64") for p in ("key", "id", "fold", "block")])
    scalar = SCALARS.get(fn)
    if scalar is None or scalar.expand is None:
        return None
    made = _made(f"{fn}_{dtype}", scalar.expand, [Var(p, dtype) for p in re.findall(r"(\w+):", scalar.head)])
    return made if made.body else None


def _made(name: str, expand: object, params: Sequence[Var]) -> Routine:
    assert callable(expand)
    k = Builder(names={p.name: 1 for p in params})
    result = expand(k, *params)
    lets = [s for s in k.body if isinstance(s, Let)]
    assert len(lets) == len(k.body), "a routine is made of locals only"
    return Routine(name, tuple(params), tuple(lets), result)


def routine_of(e: Expr) -> Routine | None:
    """The routine that an expression calls."""
    return routine(e.fn, e.args[0].dtype) if isinstance(e, Apply) else None


def called(exprs: Iterable[Expr]) -> dict[str, Routine]:
    """The routines that these calls need, by name, in order of the name."""
    found = (routine_of(e) for e in exprs)
    return dict(sorted((r.name, r) for r in found if r is not None))


def named(name: str) -> Routine | None:
    """The routine of this name in a kernel's text."""
    fn, _, dtype = (PHILOX, "", "i64") if name == PHILOX else name.rpartition("_")
    return routine(fn, dtype) if dtype in ("i64", "f32", "f64") else None


def applied(k: Builder, fn: str, args: Sequence[Expr]) -> Expr:
    """Function `fn` of arguments of one dtype: a call of its routine, or its few operations."""
    scalar = SCALARS[fn]
    dtype = args[0].dtype
    call = Apply(fn, tuple(args), "bool" if scalar.result == "bool" else dtype)
    if scalar.expand is None:
        return call
    if routine(fn, dtype) is not None:
        return k.let(call, fn)
    result: Expr = scalar.expand(k, *args)
    return result
