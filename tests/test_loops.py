"""Loop IR by hand: the text compiled by Numba and as plain Python gives the same bits."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pipec.compiler import emulate, instructions, native
from pipec.compiler.emit_numba import kernel_text
from pipec.compiler.loops import Argument, Buffer, Builder, Cast, Const, Expr, Kernel, Var
from pipec.kernels.random import draw_bits
from pipec.kernels.scalar import ARRAYS, SCALARS
from pipec.runtime import objects

RNG = np.random.default_rng(1)
X, Y, N = Buffer("x", "f32", (Var("n", "i64"),)), Buffer("y", "f32", (Var("n", "i64"),)), Var("n", "i64")
WHOLES, OUT = Buffer("i", "i64", (N,)), Buffer("out", "f32", (N,))
WHOLE = Buffer("whole", "i64", (N,))


def kernel(body: Callable[[Builder], None]) -> Kernel:
    k = Builder()
    body(k)
    arguments = [Argument("size", "n", "i64", "x", 0)]
    arguments += [Argument("data", b.name, b.dtype, b.name) for b in (X, Y, WHOLES, OUT, WHOLE)]
    return Kernel("small", tuple(arguments), tuple(k.body))


def call(run: Callable[..., None], n: int = 40, scratch: int = 1 << 12) -> Any:
    """Outputs and status of one record over the same inputs."""
    x, y = RNG_X[:n].copy(), RNG_X[::-1][:n].copy()
    i = RNG_I[:n].copy()
    out, whole = np.zeros(n, "f4"), np.zeros(n, "i8")
    table = np.array([n, *(a.ctypes.data for a in (x, y, i, out, whole))], np.int64)
    memory = np.zeros(scratch + 64, np.uint8)
    begin = (memory.ctypes.data + 63) // 64 * 64
    status, arena = np.zeros(1, np.int64), np.array([0, 0, begin, begin + scratch], np.int64)
    run(1, table.ctypes.data, status.ctypes.data, arena.ctypes.data)
    return out.view("u4").tolist(), whole.tolist(), int(status[0])


RNG_X = np.concatenate([RNG.normal(size=34), [0.0, -0.0, np.inf, 1e-40, 3e38, -2.5]]).astype("f4")
RNG_I = np.concatenate([RNG.integers(-50, 50, 36), [2**62, -(2**63), 2**63 - 1, 0]])


def each(make: Callable[[Builder, Expr], Any], out: Buffer = OUT) -> Callable[[Builder], None]:
    def body(k: Builder) -> None:
        with k.loop(N, "p") as p:
            k.store(out, (p,), make(k, p))

    return body


def counted(k: Builder) -> None:
    total = k.let(0, "total")
    with k.loop(N, "p") as p:
        with k.when(WHOLES[p] > 0):
            k.set(total, total + 1)
        with k.otherwise():
            k.set(total, total - 2)
        k.store(WHOLE, (p,), total)


def scratched(k: Builder) -> None:
    with k.loop(N, "p") as p:
        row = k.scratch("f32", 16)
        with k.loop(16, "q") as q:
            k.store(row, (q,), X[p] * k.cast(q, "f32"))
        k.store(OUT, (p,), row[3] + row[15])


def failing(k: Builder) -> None:
    with k.loop(N, "p") as p:
        with k.when((WHOLES[p] > 40) & (X[p] < 0.5)):
            k.fail(3)
        k.store(WHOLE, (p,), p)


def shared(k: Builder) -> None:
    """An expression whose text would be long: each step uses the last one twice."""
    with k.loop(N, "p") as p:
        e: Expr = X[p]
        for _ in range(60):
            e = e * 0.5 + e
        k.store(OUT, (p,), e)


def bits(fn: str) -> Callable[[Builder, Expr], Expr]:
    return lambda k, p: k.call(fn, WHOLES[p], k.call("bitand", p, Const(63, "i64")))


KERNELS = {
    "arithmetic": each(lambda k, p: X[p] * Y[p] + X[p] - Y[p] / X[p]),
    "choose": each(lambda k, p: k.select((X[p] > Y[p]) | X[p].eq(0.0), -X[p], Y[p])),
    "small functions": each(lambda k, p: k.call("sqrt", k.call("abs", X[p])) + k.call("floor", X[p]) * k.call("rint", Y[p])),
    "least": each(lambda k, p: k.call("min", X[p], k.call("max", Y[p], 0.25))),
    "divide": each(lambda k, p: WHOLES[p] // (p + 1) + WHOLES[p] % (p - 100), WHOLE),
    "divide by nothing": each(lambda k, p: WHOLES[p] // (p - 5), WHOLE),
    "shift": each(bits("shl"), WHOLE), "shift back": each(bits("shr"), WHOLE), "shift zeros": each(bits("ushr"), WHOLE),
    "high half": each(lambda k, p: k.call("mulhi", WHOLES[p], WHOLES[p]), WHOLE),
    "bits of a float": each(lambda k, p: Cast(X[p], "i64", "bits"), WHOLE),
    "saturate": each(lambda k, p: Cast(Cast(X[p] * 100.0, "u8", "round"), "i64"), WHOLE),
    "halves": each(lambda k, p: Cast(Cast(X[p], "f16"), "f32") + Cast(Cast(Y[p], "bf16"), "f32")),
    "count": counted, "scratch": scratched, "fail": failing, "shared parts": shared,
}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("name", KERNELS)
def test_machine_code_is_the_text(name: str) -> None:
    k = kernel(KERNELS[name])
    machine = objects.load(native.build([k]))["small"]
    expected = call(emulate.load(kernel_text(k)))
    assert call(machine) == expected


@pytest.mark.parametrize("fn", ["exp", "log1p", "sin", "pow", "atan2", "erf"])
def test_routines_are_the_reference(fn: str) -> None:
    """Scalar functions that are called by name, in f32 and f64."""
    count = SCALARS[fn].arity
    for dtype in ("f32", "f64"):
        k = kernel(each(lambda k, p: k.cast(k.call(fn, *(k.cast(b[p], dtype) for b in (X, Y)[:count])), "f32")))  # noqa: B023
        text = kernel_text(k)
        assert f"def {fn}_{dtype}(" in text and len(text.split("# one record")[1].splitlines()) == 12
        out, _, _ = call(objects.load(native.build([k]))["small"])
        x, y = (v[:40].astype({"f32": "f4", "f64": "f8"}[dtype]) for v in (RNG_X, RNG_X[::-1]))
        expected = SCALARS[fn].ref(*(x, y)[:count]).astype("f4")
        assert np.array_equal(np.array(out, "u4").view("f4"), expected, equal_nan=True)
        assert call(emulate.load(text))[0] == out


def test_philox_is_one_routine() -> None:
    key, at = -(2**60) + 7, Const(3, "i64")
    k = kernel(each(lambda k, p: k.call("philox", Const(key, "i64"), WHOLES[p], at, p), WHOLE))
    run = objects.load(native.build([k]))["small"]
    ids = RNG_I[:40]
    expected = draw_bits(ARRAYS, np.int64(key), ids, np.int64(3), np.arange(40))
    assert call(run)[1] == call(emulate.load(kernel_text(k)))[1] == expected.tolist()


@pytest.mark.parametrize("hardware", [True, False])
def test_halves_round_to_even(hardware: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hardware:
        monkeypatch.setattr(instructions, "has_halves", lambda: False)
    k = kernel(each(lambda k, p: Cast(Cast(X[p], "f16"), "f32")))
    key = objects.key_of(f"{hardware}" + kernel_text(k))
    run = objects.link(key, native.object_code(k, "halves"), "halves")
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves.view(np.uint32) + np.uint32(0x1000)).view(np.float32)
    ties_below = (ties.view(np.uint32) - np.uint32(1)).view(np.float32)
    x = np.concatenate([halves, ties, ties_below, RNG.normal(size=1000).astype("f4") * 1e-5])
    x, out = np.where(np.isnan(x), np.float32(0), x), np.zeros(len(x), "f4")
    table = np.array([len(x), x.ctypes.data, 0, 0, out.ctypes.data, 0], np.int64)
    status, arena = np.zeros(1, np.int64), np.zeros(4, np.int64)
    run(1, table.ctypes.data, status.ctypes.data, arena.ctypes.data)
    with np.errstate(over="ignore"):
        assert np.array_equal(out.view("u4"), x.astype(np.float16).astype(np.float32).view("u4"))


def test_overflow_is_seen() -> None:
    """Sums wrap around in machine code, so that a check of their signs stays a check."""
    def body(k: Builder) -> None:
        square = k.let(WHOLES[0] * WHOLES[0])
        total = k.let(square + (2**63 - 108))
        with k.when(total < 0):
            k.fail(4)
        k.store(WHOLE, (0,), total)

    k = kernel(body)
    machine = objects.load(native.build([k]))["small"]
    for first, status in ((5, 0), (11, 4)):
        whole, table_of = np.zeros(40, "i8"), np.full(40, first)
        table = np.array([1, 0, 0, table_of.ctypes.data, 0, whole.ctypes.data], np.int64)
        statuses, arena = np.zeros(1, np.int64), np.zeros(4, np.int64)
        machine(1, table.ctypes.data, statuses.ctypes.data, arena.ctypes.data)
        assert int(statuses[0]) == status


def test_too_little_scratch_ends_the_kernel() -> None:
    k = kernel(scratched)
    for run in (objects.load(native.build([k]))["small"], emulate.load(kernel_text(k))):
        assert call(run, scratch=32)[2] == -1
        assert call(run, scratch=128)[2] == 0   # enough for one turn is enough for all


def test_finished_and_failed_records_are_passed_over() -> None:
    k = kernel(each(lambda k, p: X[p] + 1.0))
    run = objects.load(native.build([k]))["small"]
    x, out = np.zeros(2, "f4"), np.zeros((3, 2), "f4")
    table = np.array([[2, x.ctypes.data, 0, 0, out[r].ctypes.data, 0] for r in range(3)], np.int64)
    status, arena = np.array([0, 7, 0], np.int64), np.zeros(4, np.int64)
    run(3, table.ctypes.data, status.ctypes.data, arena.ctypes.data)
    assert status.tolist() == [0, 7, 0] and out.sum(1).tolist() == [2.0, 0.0, 2.0]


def test_hostile_names_stay_names() -> None:
    k = Builder()
    b = Buffer("import os; x", "f32", (Const(1, "i64"),))
    k.put(b, 0, Const(1.5, "f32"))
    text = kernel_text(Kernel("for", (Argument("data", b.name, "f32", "a\nprint(1)"),), tuple(k.body)))
    compile(text, "<kernel>", "exec")
    assert "print(1)" not in text and "import os;" not in text
