"""The laws: what may stand for what, exactly, in the reference semantics.

Floats are strict IEEE (`x + 0.0` isn't `x` for -0.0, `x * 0.0` isn't 0.0 for nan), and integers fail past i64, so no
law may remove or add a failure: what it drops must be unable to fail, which the engine asks `total`.
"""
from __future__ import annotations

import math

from ..dsl.types import FLOATS, INTS
from .bounds import fits_i64, interval
from .graph import Node
from .rules import Law, constant_value, law


def _is_constant(n: Node) -> bool:
    return n.op == "const"


def _one_sign(b: dict[str, Node]) -> bool:
    """Two constants of one sign whose sum fits: adding them one by one fails just where adding the sum does."""
    if not (_is_constant(b["c"]) and _is_constant(b["d"])):
        return False
    c, d = constant_value(b["c"]), constant_value(b["d"])
    return bool((c >= 0) == (d >= 0) and -(2**63) <= c + d < 2**63)


def _never_least(b: dict[str, Node]) -> bool:
    """-x fits: x is never the least i64."""
    return interval(b["x"])[0] > -(2**63)


def _under(b: dict[str, Node]) -> bool:
    """a ≤ b by their ranges alone."""
    return interval(b["a"])[1] <= interval(b["b"])[0]


def _present(b: dict[str, Node]) -> bool:
    return not b["x"].type.missing


BOOLEAN_LAWS = [
    law("bool", "not_(not_(x))", "x"),
    law("bool", "and_(True, x)", "x"),
    law("bool", "and_(x, True)", "x"),
    law("bool", "and_(False, x)", "False"),
    law("bool", "and_(x, False)", "False"),
    law("bool", "or_(False, x)", "x"),
    law("bool", "or_(x, False)", "x"),
    law("bool", "or_(True, x)", "True"),
    law("bool", "or_(x, True)", "True"),
    law("bool", "and_(x, x)", "x"),
    law("bool", "or_(x, x)", "x"),
    law("number", "not_(eq(a, b))", "ne(a, b)"),
    law("number", "not_(ne(a, b))", "eq(a, b)"),
    law("int", "not_(lt(a, b))", "ge(a, b)"),
    law("int", "not_(le(a, b))", "gt(a, b)"),
    law("int", "not_(gt(a, b))", "le(a, b)"),
    law("int", "not_(ge(a, b))", "lt(a, b)"),
    law("int", "le(x, x)", "True"),
    law("int", "ge(x, x)", "True"),
    law("int", "eq(x, x)", "True"),
    law("number", "lt(x, x)", "False"),
    law("number", "gt(x, x)", "False"),
    law("int", "ne(x, x)", "False"),
    law("int", "le(a, b)", "True", when=_under),
    law("int", "gt(a, b)", "False", when=_under),
    law("int", "ge(b, a)", "True", when=_under),
    law("int", "lt(b, a)", "False", when=_under),
]

CHOICE_LAWS = [
    law("any", "select(True, a, b)", "a", lazy="b"),
    law("any", "select(False, a, b)", "b", lazy="a"),
    law("any", "select(c, a, a)", "a", c="bool"),
    law("any", "select(not_(c), a, b)", "select(c, b, a)", c="bool"),
    law("bool", "select(c, True, False)", "c"),
    law("bool", "select(c, False, True)", "not_(c)"),
    law("any", "select(c, select(c, a, b), d)", "select(c, a, d)", lazy="b", c="bool"),
    law("any", "select(c, a, select(c, b, d))", "select(c, a, d)", lazy="b", c="bool"),
    law("any", "fill(x, y)", "x", lazy="y", when=_present),
    law("any", "missing(x)", "False", when=_present),
]

INTEGER_LAWS = [
    law("int", "add(x, 0)", "x"),
    law("int", "add(0, x)", "x"),
    law("int", "sub(x, 0)", "x"),
    law("int", "sub(0, x)", "neg(x)"),
    law("int", "sub(x, x)", "0"),
    law("int", "mul(x, 1)", "x"),
    law("int", "mul(1, x)", "x"),
    law("int", "mul(x, 0)", "0"),
    law("int", "mul(0, x)", "0"),
    law("int", "floordiv(x, 1)", "x"),
    law("int", "mod(x, 1)", "0"),
    law("int", "neg(neg(x))", "x", when=_never_least),
    law("int", "abs(abs(x))", "abs(x)"),
    law("int", "add(add(x, c), d)", "add(x, add(c, d))", when=_one_sign),
    law("int", "sub(sub(x, c), d)", "sub(x, add(c, d))", when=_one_sign),
    law("int", "min(x, x)", "x"),
    law("int", "max(x, x)", "x"),
    law("int", "min(a, b)", "a", when=_under),
    law("int", "min(b, a)", "a", when=_under),
    law("int", "max(a, b)", "b", when=_under),
    law("int", "max(b, a)", "b", when=_under),
    law("int", "min(min(a, b), b)", "min(a, b)"),
    law("int", "max(max(a, b), b)", "max(a, b)"),
]


def _power_of_two(b: dict[str, Node]) -> bool:
    """c and 1 / c are both powers of two with the full precision of their dtype."""
    if not _is_constant(b["c"]):
        return False
    mantissa, exponent = math.frexp(constant_value(b["c"]))
    return abs(mantissa) == 0.5 and abs(exponent) < 120


FLOAT_LAWS = [
    law("float", "mul(x, 1.0)", "x"),
    law("float", "mul(1.0, x)", "x"),
    law("float", "div(x, 1.0)", "x"),
    law("float", "sub(x, 0.0)", "x"),
    law("float", "add(x, -0.0)", "x"),
    law("float", "add(-0.0, x)", "x"),
    law("float", "mul(x, -1.0)", "neg(x)"),
    law("float", "mul(-1.0, x)", "neg(x)"),
    law("float", "neg(neg(x))", "x"),
    law("float", "sub(a, neg(b))", "add(a, b)"),
    law("float", "add(a, neg(b))", "sub(a, b)"),
    law("float", "abs(neg(x))", "abs(x)"),
    law("float", "abs(abs(x))", "abs(x)"),
    law("float", "min(x, x)", "x"),
    law("float", "max(x, x)", "x"),
    law("wide", "div(x, c)", "mul(x, div(1.0, c))", when=_power_of_two),
]

LAWS: list[Law] = [*BOOLEAN_LAWS, *CHOICE_LAWS, *INTEGER_LAWS, *FLOAT_LAWS]

# Casts between these keep every value, so that a second cast may start from the first one's operand.
_EXACT_FLOATS = {"f32": 24, "f64": 53, "f16": 11, "bf16": 8}
_WIDER = {"f16": ("f32", "f64"), "bf16": ("f32", "f64"), "f32": ("f64",)}
_INT_BITS = {"u8": 8, "i8": 7, "u16": 16, "i16": 15, "u32": 32, "i32": 31, "u64": 64, "i64": 63}


def keeps(source: str, target: str) -> bool:
    """Does a cast from `source` to `target` keep every value."""
    if source == "bool" or source == target:
        return True
    if source in INTS and target in INTS:
        signed = target[0] == "i" or source[0] == "u"
        return signed and _INT_BITS[source] <= _INT_BITS[target]
    if source in INTS and target in FLOATS:
        return _INT_BITS[source] <= _EXACT_FLOATS[target]
    return target in _WIDER.get(source, ())


def total(n: Node) -> bool:
    """Can computing `n` surely not fail."""
    budget = [300]
    return _total(n, budget, 0)


def _total(n: Node, budget: list[int], depth: int) -> bool:
    budget[0] -= 1
    if budget[0] <= 0 or depth > 60:
        return False
    return _sure(n) and all(_total(a, budget, depth + 1) for a in n.args)


def _sure(n: Node) -> bool:
    """Can `n`'s own operation not fail."""
    match n.op:
        case "draw" | "call" | "extern":
            return False
        case "extent":
            return not n.args
        case "cast":
            return n["mode"] != "exact" or keeps(n.args[0].type.dtype, n.type.dtype)
        case "apply":
            return n.type.dtype not in INTS or _never_overflows(n)
        case _:
            return True


def _never_overflows(n: Node) -> bool:
    match n["fn"]:
        case "min" | "max" | "clamp" | "sign":
            return True
        case "add" | "sub" | "mul" | "neg" | "abs":
            return fits_i64(n)
        case "floordiv" | "mod":
            low, high = interval(n.args[1])
            return low > 0 or high < -1
        case _:
            return False
