"""Loops cut in three: the same results as the loop as it was, for shifts, mirrors and stencils with any offsets."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pipec.compiler import emulate
from pipec.compiler.emit_numba import kernel_text
from pipec.compiler.loops import Argument, Buffer, Builder, Const, Expr, For, Kernel, Var
from pipec.compiler.split import split

N, D, P, FLIP = (Var(n, "i64") for n in ("n", "d", "p", "flip"))
X, OUT = Buffer("x", "i64", (N,)), Buffer("out", "i64", (N,))
FAR = 2**62


def guarded(k: Builder, at: Expr, more: Expr | None = None) -> Expr:
    v, gone = k.let(0, "v"), k.let(True, "gone", "bool")
    inside = (at >= 0) & (at < N) if more is None else (at >= 0) & (at < N) & more
    with k.when(inside):
        k.set(v, X[at])
        k.set(gone, False)
    return k.select(gone, -7, v)


def shifted(k: Builder, i: Expr) -> Expr:
    return guarded(k, k.let(i + D))


def mirrored(k: Builder, i: Expr) -> Expr:
    return guarded(k, k.let(k.select(FLIP > 0, N - 1 - i, i) + D))


def conditional(k: Builder, i: Expr) -> Expr:
    return guarded(k, D - i, (P >= 0) & (P < 3))


def stencil(k: Builder, i: Expr) -> Expr:
    return guarded(k, i - 1) * 100 + guarded(k, i) * 10 + guarded(k, i + D)


def chosen(k: Builder, i: Expr) -> Expr:
    """Bounds that are no constants: both may be far away."""
    v = k.let(1, "v")
    with k.when((i + D >= P) & (i + D < P + 4)):
        k.set(v, i * 3)
    with k.otherwise():
        k.set(v, -i)
    return v


CASES = {f.__name__: f for f in (shifted, mirrored, conditional, stencil, chosen)}


def results(body: tuple[Any, ...], **numbers: int) -> list[int]:
    arguments = [Argument("size", v, "i64", v) for v in ("n", "d", "p", "flip")]
    arguments += [Argument("data", b.name, "i64", b.name) for b in (X, OUT)]
    n = numbers["n"]
    x, out = np.arange(1, n + 1), np.zeros(n, np.int64)
    table = np.array([n, numbers["d"], numbers["p"], numbers["flip"], x.ctypes.data, out.ctypes.data], np.int64)
    status, arena = np.zeros(1, np.int64), np.zeros(4, np.int64)
    run = emulate.load(kernel_text(Kernel("small", tuple(arguments), body)))
    run(1, table.ctypes.data, status.ctypes.data, arena.ctypes.data)
    assert not status[0]
    return out.tolist()


@pytest.mark.parametrize("name", CASES)
def test_same_results(name: str) -> None:
    k = Builder()
    with k.loop(N, "i") as i:
        k.store(OUT, (i,), CASES[name](k, i))
    cut = split(k.body)
    assert sum(isinstance(s, For) for s in cut) == 3
    for n in (0, 1, 6):
        for d in (0, 1, -2, 5, 6, -6, 40, FAR, -FAR):
            for p in (0, 2, 3, FAR):
                for flip in (0, 1):
                    numbers = {"n": n, "d": d, "p": p, "flip": flip}
                    assert results(cut, **numbers) == results(tuple(k.body), **numbers), numbers


def test_channels_last() -> None:
    """The condition stands in a loop over channels, and asks for the channel too."""
    k = Builder()
    x, out = Buffer("x", "i64", (N, Const(1, "i64"))), Buffer("out", "i64", (N, Const(1, "i64")))
    with k.loop(N, "i") as i, k.loop(1, "c") as c:
        at = k.let(i + D)
        v = k.let(0, "v")
        with k.when((at >= 0) & (at < N) & (c >= 0) & (c < 1)):
            k.set(v, x[at, c])
        k.store(out, (i, c), v)
    cut = split(k.body)
    assert sum(isinstance(s, For) for s in cut) == 3
    for d in (0, 2, -3, 9):
        numbers = {"n": 5, "d": d, "p": 0, "flip": 0}
        assert results(cut, **numbers) == results(tuple(k.body), **numbers)


def test_what_may_fail_stays() -> None:
    k = Builder()
    with k.loop(N, "i") as i, k.when(i + D < 3):
        k.fail(1)
    assert split(k.body) == tuple(k.body)
