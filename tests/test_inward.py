"""Loops over channels go innermost where pixels hold their channels side by side, and nowhere else; the values stay."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pipec.compiler import emulate
from pipec.compiler.emit_numba import kernel_text
from pipec.compiler.inward import inward
from pipec.compiler.loops import Argument, Buffer, Builder, Const, Expr, Kernel

HEIGHT, WIDTH = 5, 7
IMAGE = np.random.default_rng(3).random((HEIGHT, WIDTH, 3), np.float32)
LINES = Buffer("photo", "f32", (Const(HEIGHT, "i64"), Const(WIDTH, "i64"), Const(3, "i64")))
PLANES = Buffer("out", "f32", (Const(3, "i64"), Const(HEIGHT, "i64"), Const(WIDTH, "i64")))


def planes(k: Builder) -> None:
    """Weights that belong to a channel, a line, and both."""
    with k.loop(3, "c") as c:
        w = k.let(k.cast(c, "f32") * 0.5, "w")
        with k.loop(HEIGHT, "y") as y:
            v = k.let(k.cast(y, "f32"), "v")
            both = k.let(v * w, "both")
            with k.loop(WIDTH, "x") as x:
                k.store(PLANES, (c, y, x), LINES[y, WIDTH - 1 - x, c] * w + both - v)


def of_planes(k: Builder) -> None:
    with k.loop(3, "c") as c, k.loop(HEIGHT, "y") as y, k.loop(WIDTH, "x") as x:
        k.store(PLANES, (c, y, x), LINES.at((c * HEIGHT + y) * WIDTH + x))


def one_over_another(k: Builder) -> None:
    with k.loop(3, "c") as c, k.loop(HEIGHT, "y") as y, k.loop(WIDTH, "x") as x:
        k.put(PLANES, y * WIDTH + x, LINES[y, x, c])


def to_the_channel(k: Builder) -> None:
    with k.loop(3, "c") as c, k.loop(HEIGHT, "y") as y, k.loop(c + 1, "x") as x:
        k.store(PLANES, (c, y, x), LINES[y, x, c])


def running(k: Builder) -> None:
    total: Any = k.let(0.0, "total", "f32")
    with k.loop(3, "c") as c, k.loop(HEIGHT, "y") as y, k.loop(WIDTH, "x") as x:
        k.set(total, total + LINES[y, x, c])
        k.store(PLANES, (c, y, x), total)


def made(body: Callable[[Builder], None]) -> Kernel:
    k = Builder()
    body(k)
    return Kernel("small", (Argument("data", "photo", "f32", "photo"), Argument("data", "out", "f32", "out")), tuple(k.body))


def outcome(k: Kernel) -> Any:
    out = np.zeros((3, HEIGHT, WIDTH), np.float32)
    table, status = np.array([IMAGE.ctypes.data, out.ctypes.data], np.int64), np.zeros(1, np.int64)
    emulate.load(kernel_text(k))(1, table.ctypes.data, status.ctypes.data, np.zeros(4, np.int64).ctypes.data)
    assert status[0] == 0
    return out


def test_channels_go_inward() -> None:
    k = made(planes)
    turned = inward(k)
    lines = [line.strip() for line in kernel_text(turned).splitlines()]
    loops = [line.split()[1] for line in lines if line.startswith("for ")]
    assert loops == ["y", "x", "c"]
    assert lines.index("v = f32(y)") < lines.index("for x in range(7):") < lines.index("both = v * w")
    expected: Expr | Any = outcome(k)
    np.testing.assert_array_equal(outcome(turned), expected)
    weights = np.arange(3, dtype=np.float32)[:, None, None] * np.float32(0.5)
    ys = np.arange(HEIGHT, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(expected, IMAGE[:, ::-1].transpose(2, 0, 1) * weights + ys * weights - ys)


@pytest.mark.parametrize("body", [of_planes, one_over_another, to_the_channel, running])
def test_other_loops_stay(body: Callable[[Builder], None]) -> None:
    k = made(body)
    assert inward(k) == k
