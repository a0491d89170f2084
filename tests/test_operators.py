"""Derived from the registries: every scalar function and every operator with loops gives the same bits three ways,
by its reference, by its loops as plain Python and as machine code. A new one is tested by being there.
"""
from __future__ import annotations

import numpy as np
import pytest
from graphs_by_hand import ap, build, defined, field, index, run
from pipec.compiler.graph import const, node
from pipec.compiler.signatures import operators
from pipec.dsl.parse import parse_head
from pipec.dsl.types import BOOL, I64, TEXT, Type
from pipec.kernels.scalar import SCALARS
from pipec.runtime.blocks import DTYPES

OPERATORS = operators()
RESIZE = OPERATORS["resize"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-30, -1e-42, 3e38, 700.0, np.inf, -np.inf, np.nan, 0.1, 12345.678]
WORDS = {np.dtype(v): k for k, v in DTYPES.items()}


def same(one, other, what):
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape), what
    if one.dtype.kind == "f":   # any NaN is as good as another
        both = np.isnan(one) & np.isnan(other)
        one, other = np.where(both, 0, one), np.where(both, 0, other)
    assert one.tobytes() == other.tobytes(), f"{what}: {one.ravel()[:8]} {other.ravel()[:8]}"


def three_ways(outputs, record):
    reference = defined(outputs, [record])[0]
    assert isinstance(reference, dict), reference
    for how in ("native", "plain"):
        made = run(outputs, [record], how=how)[0]
        for name in outputs:
            same(made[name], reference[name], f"{name} ({how})")


def values(dtype, count=48):
    rng = np.random.default_rng(3)
    if dtype[0] == "f":
        return np.concatenate([np.array(SPECIAL), rng.normal(size=count - len(SPECIAL)) * 4]).astype(DTYPES[dtype])
    return rng.integers(-5, 6, count)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_scalar_functions(dtype):
    xs = [values(dtype), np.roll(values(dtype), 7), np.roll(values(dtype), 19)]
    fields = [field(name, dtype, len(xs[0])) for name in "xyz"]
    outputs = {}
    for name, scalar in SCALARS.items():
        fits = scalar.operands in ("any", "num", "float" if dtype[0] == "f" else "int")
        may_fail = dtype == "i64" and name in ("floordiv", "mod", "pow", "shift_left", "shift_right", "clamp")
        if fits and not may_fail:
            operands = fields[: scalar.arity]
            outputs[name] = build((len(xs[0]),), lambda i, n=name, of=operands: ap(n, *(index(f, i) for f in of)))
    assert len(outputs) > (30 if dtype[0] == "f" else 12)
    three_ways(outputs, dict(zip("xyz", xs)))


def operand(name, formal, value):
    """An operator's argument as a node: arrays and numbers are fields, texts and flags constants."""
    if isinstance(value, str | bool):
        return const(value, TEXT if isinstance(value, str) else BOOL), None
    typed = isinstance(value, np.ndarray | np.generic)
    array = np.asarray(value, None if typed else np.int64 if isinstance(value, int) else np.float32)
    return field(name, WORDS[array.dtype], *array.shape), array


STRIPE = np.array([[0, 0, 90, 0], [0, 0, 90, 0], [40, 0, 90, 9]], np.uint8)
ROWS, COLUMNS = np.float32([[0, 0.5, 1], [-0.5, 9, 1.4]]), np.float32([[0, 0.5, 1], [0, 0, 0.6]])
EXTRA = {   # arguments for operators whose examples are few
    "resize": [((np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3) * 5, np.array([1, 2, 5, 6]), 4, 8, f, True), None)
               for f in ("bilinear", "bicubic", "area", "nearest")],
    "resize_part": [((np.arange(6 * 7 * 3, dtype=np.uint8).reshape(6, 7, 3) * 5, np.array([1, 2, 6, 7]), np.array([9, 11]),
                      np.float32([1.5, 2, 5.25, 6]), 8, 7, 1, 0, rows, 5, f, a), None)
                    for f, a, rows in (("bilinear", True, 4), ("bicubic", False, 3), ("area", True, 4), ("nearest", True, 4),
                                       ("bilinear", True, 0))],
    "resize_window": [((np.array(size), np.float32([1.5, -2, 5.25, 60]), 8, 7, 1, 2, rows, 5, f, True), None)
                      for f, size, rows in (("bilinear", (9, 11), 4), ("bicubic", (9, 11), 4), ("area", (9, 11), 4),
                                            ("nearest", (9, 11), 4), ("area", (0, 11), 4), ("area", (9, 11), 0))],
    "sample_grid": [((STRIPE / np.float32(7), ROWS, COLUMNS, "bilinear", 2.5), None),
                    ((STRIPE.astype(np.int64), ROWS, COLUMNS, "nearest", -1.0), None)],
    "convolve": [((np.arange(42, dtype=np.float32).reshape(2, 7, 3) ** 2, np.float32([0.1, 0.2, 0.3, 0.2, 0.2]),
                   np.linspace(0, 1, 11, dtype=np.float32)), None),
                 ((STRIPE[:1, :, None], np.ones(5, np.float32), np.ones(4, np.float32)), None),
                 ((STRIPE.astype(np.int64) - 50, np.ones(6, np.float32), np.ones(1, np.float32)), None)],
    "channel_histograms": [((np.arange(24, dtype=np.uint8).reshape(2, 4, 3) // 2 * 11,), None)],
}
CASES = [(name, k) for name, op in OPERATORS.items() if op.lower is not None
         for k in range(len(op.examples) + len(EXTRA.get(name, ())))]


def test_every_operator_with_loops_has_a_case():
    assert {name for name, _ in CASES} == {name for name, op in OPERATORS.items() if op.lower is not None}


@pytest.mark.parametrize("name, case", CASES)
def test_operators(name, case):
    op = OPERATORS[name]
    args, _ = [*op.examples, *EXTRA.get(name, ())][case]
    formals = parse_head(op.head).formals
    result = np.asarray(op.ref(*args))
    nodes, record = [], {}
    for k, (formal, value) in enumerate(zip(formals, args)):
        made, held = operand(f"a{k}", formal, value)
        nodes.append(made)
        if held is not None:
            record[f"a{k}"] = held
    type_ = Type(WORDS[result.dtype], tuple(result.shape)) if result.shape else I64
    three_ways({name: node("call", *nodes, type=type_, op=name)}, record)
