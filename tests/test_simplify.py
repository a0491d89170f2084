"""Every law holds, bit for bit, on random values of its variables; simplified values are what they were."""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from pipec.compiler import bounds, simplify
from pipec.compiler.graph import Node, const, fresh_id, node, number, var, walk
from pipec.compiler.laws import LAWS, keeps, total
from pipec.compiler.rules import KINDS, Form, Law, Literal, Pattern, Variable, by_head, make
from pipec.dsl.types import BOOL, F32, I64, INT_RANGE, Type
from pipec.kernels import scalar

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")
INTEGERS = (0, 1, -1, 2, 3, 7, -5, 255, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.1, 2.5, -3.75, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"), 65504.0, 6e-8)


class Failed(Exception):
    """An integer went past i64."""


def value(n: Node, env: dict[Node, Any]) -> Any:
    """The value of a scalar node: a NumPy scalar array, or None where it is missing."""
    if n in env:
        return env[n]
    match n.op:
        case "const":
            return np.asarray(n["value"]).astype(scalar.NUMPY[n.type.dtype])
        case "select":
            return value(n.args[1] if value(n.args[0], env) else n.args[2], env)
        case "fill":
            inner = value(n.args[0], env)
            return value(n.args[1], env) if inner is None else inner
        case "missing":
            return np.asarray(value(n.args[0], env) is None)
        case "cast":
            return scalar.cast(value(n.args[0], env), n.type.dtype, n["mode"])
        case "apply":
            row, args = scalar.SCALARS[n["fn"]], [value(a, env) for a in n.args]
            if row.overflow is not None and args[0].dtype.kind in "iu" and bool(row.overflow(scalar.ARRAYS, *args)):
                raise Failed
            if n["fn"] in ("floordiv", "mod") and args[1] == 0:
                raise Failed
            return row.ref(*args)
        case _:
            raise AssertionError(n.op)


def outcome(n: Node, env: dict[Node, Any]) -> Any:
    """Bits and dtype of the value, all NaNs being one; "failed" where computing it fails."""
    try:
        v = value(n, env)
    except Failed:
        return "failed"
    if v is None:
        return None
    v = np.asarray(v)
    return (v.dtype.name, "nan" if v.dtype.kind in "fV" and np.isnan(v.astype(np.float64)) else v.tobytes())


def kinds(p: Pattern) -> dict[str, str]:
    match p:
        case Variable(name, kind):
            return {name: kind}
        case Form(_, parts):
            return {k: v for q in parts for k, v in kinds(q).items()}
        case _:
            return {}


def sample(dtype: str, rng: random.Random) -> Any:
    if dtype == "bool":
        return rng.random() < 0.5
    if dtype in INT_RANGE:
        low, high = INT_RANGE[dtype]
        return min(max(rng.choice(INTEGERS), low), high)
    return rng.choice(FLOATS)


def instance(law: Law, dtype: str, rng: random.Random) -> Node:
    """The left side over fields, some of them constants, some kept small by a `clamp`."""
    bound: dict[str, Node] = {}
    for name, kind in kinds(law.left).items():
        type = Type(dtype if dtype in KINDS[kind] else KINDS[kind][0])
        leaf = node("field", type=type, name=name)
        if rng.random() < 0.3 or name in "cd":
            power = 2.0 ** rng.randrange(-10, 10)
            leaf = const(power if type.dtype.startswith("f") and name == "c" else sample(type.dtype, rng), type)
        elif type == I64 and rng.random() < 0.6:
            low = rng.choice([0, -9, 5])
            leaf = node("apply", leaf, number(low), number(low + rng.randrange(20)), type=I64, fn="clamp")
        bound[name] = leaf
    return make(law.left, bound, Type(dtype))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.text)
def test_law_is_exact(law: Law) -> None:
    rng = random.Random(law.text)
    used = 0
    table = by_head([law])
    named = set(kinds(law.left).values())
    dtypes = sorted({d for kind in named for d in KINDS[kind]} - ({"bool"} if len(named) > 1 else set()))
    for _ in range(120):
        dtype = rng.choice(dtypes)
        left = instance(law, dtype, rng)
        right = next((r for one in table[law.left.head] if (r := simplify.applied(one, left, total)) is not None), None)
        if right is None:
            continue
        used += 1
        for _ in range(6):
            env = {n: np.asarray(sample(n.type.dtype, rng)).astype(scalar.NUMPY[n.type.dtype])
                   for n in fields(left)}
            assert outcome(left, env) == outcome(right, env), (left, env)
    assert used >= 3


def fields(root: Node) -> list[Node]:
    return [n for n in walk(root) if n.op == "field"]


def apply(fn: str, *args: Node, type: Type = I64) -> Node:
    return node("apply", *args, type=type, fn=fn)


X = node("field", type=I64, name="x")
Y = node("field", type=F32, name="y")


def test_zero_signs_and_overflow_stay() -> None:
    zero = const(0.0, F32)
    for kept in (
        apply("add", Y, zero, type=F32),
        apply("mul", Y, zero, type=F32),
        apply("sub", Y, Y, type=F32),
        apply("eq", Y, Y, type=BOOL),
        apply("sub", apply("add", X, number(1)), number(1)),
        apply("mul", apply("add", X, number(1)), number(0)),
        apply("add", number(2**63 - 1), number(1)),
        apply("floordiv", number(1), number(0)),
    ):
        assert simplify.simplify(kept) is kept


def test_constants_fold_as_the_reference_computes() -> None:
    third = apply("div", const(1.0, F32), const(3.0, F32), type=F32)
    assert simplify.simplify(third) is const(float(np.float32(1) / np.float32(3)), F32)
    assert simplify.simplify(apply("mod", number(-7), number(2))) is number(1)
    assert simplify.simplify(apply("lt", number(1), number(2), type=BOOL)) is const(True, BOOL)
    byte = node("cast", const(300.5, F32), type=Type("u8"), mode="round")
    assert simplify.simplify(byte) is const(255, Type("u8"))
    table = const((3, 0, 2), Type("i64", (3,)))
    assert simplify.simplify(node("index", table, apply("add", number(1), number(1)), type=I64, guard=False)) is number(2)
    level = const((1.5, 1.5), Type("f32", (2,)))
    i = var(fresh_id())
    assert simplify.simplify(node("index", level, i, type=F32, guard=False)) is const(1.5, F32)


def test_casts_of_casts() -> None:
    byte = node("field", type=Type("u8"), name="b")
    wide = node("cast", byte, type=F32, mode="exact")
    assert simplify.simplify(node("cast", wide, type=Type("u8"), mode="round")) is byte
    assert simplify.simplify(node("cast", node("cast", byte, type=I64, mode="exact"), type=F32, mode="exact")) is wide
    narrow = node("cast", node("cast", X, type=F32, mode="exact"), type=I64, mode="round")
    assert simplify.simplify(narrow) is narrow


@pytest.mark.parametrize("source", sorted(scalar.NUMPY.keys() - {"bytes", "text", "path"}))
def test_casts_that_keep_every_value(source: str) -> None:
    rng = random.Random(source)
    for first in KINDS["any"]:
        for last in KINDS["any"]:
            for mode in ("round", "truncate", "exact"):
                x = node("field", type=Type(source), name="x")
                twice = node("cast", node("cast", x, type=Type(first), mode="exact"), type=Type(last), mode=mode)
                once = simplify.simplify(twice)
                if not keeps(source, first):
                    assert once is twice or first == last or source == first
                    continue
                for _ in range(6):
                    env = {x: np.asarray(sample(source, rng)).astype(scalar.NUMPY[source])}
                    assert outcome(once, env) == outcome(twice, env), (source, first, last, mode, env)


def test_equal_dims_become_one_node() -> None:
    image = node("field", type=Type("u8", (1,)), name="image")
    h = node("extent", image, type=I64, field="image", axis=0)
    i, j = var(fresh_id()), var(fresh_id())
    a, b = apply("add", apply("sub", h, number(3)), number(1)), apply("sub", h, number(2))
    assert a is not b
    one = node("build", i, a, type=Type("i64", (a,)), ids=(i["id"],))
    other = node("build", j, b, type=Type("i64", (b,)), ids=(j["id"],))
    x, y = simplify.simplify(one), simplify.simplify(other)
    assert x.args[1] is y.args[1]
    assert x.type == y.type
    fixed = apply("sub", apply("add", h, number(5)), h)
    built = simplify.simplify(node("build", i, fixed, type=Type("i64", (fixed,)), ids=(i["id"],)))
    assert built.type.dims == (5,)
    assert built.args[1] is number(5)


def test_builds_that_differ_in_their_binders_only_become_one() -> None:
    table = node("field", type=Type("f32", (8, 8)), name="t")

    def total_of(row: Node) -> Node:
        k = var(fresh_id())
        cell = node("index", table, row, k, type=F32, guard=False)
        return node("reduce", cell, number(8), type=F32, ids=(k["id"],), kind="sum")

    def rows(again: bool) -> Node:
        i = var(fresh_id())
        one, two = total_of(i), total_of(i)
        body = apply("sub", two, one, type=F32) if again else apply("add", one, two, type=F32)
        return node("build", body, number(8), type=Type("f32", (8,)), ids=(i["id"],))

    a, b, c = (simplify.simplify(rows(again)) for again in (False, False, True))
    assert a.args[0].args[0] is a.args[0].args[1]
    k = var(fresh_id())
    both = simplify.simplify(apply("mul", *(node("index", x, number(0), type=F32, guard=False) for x in (a, b)), type=F32))
    assert both.args[0] is both.args[1]
    other = simplify.simplify(apply("mul", *(node("index", x, k, type=F32, guard=False) for x in (a, c)), type=F32))
    assert other.args[0] is not other.args[1]
    p, q = var(fresh_id()), var(fresh_id())
    by_first = node("reduce", total_of(p), number(8), number(8), type=F32, ids=(p["id"], fresh_id()), kind="sum")
    by_second = node("reduce", total_of(q), number(8), number(8), type=F32, ids=(fresh_id(), q["id"]), kind="sum")
    pair = simplify.simplify(apply("sub", by_first, by_second, type=F32))
    assert pair.args[0] is not pair.args[1]


def test_trivial_elements_and_missing() -> None:
    i, k = var(fresh_id()), var(fresh_id())
    level = node("build", Y, number(4), type=Type("f32", (4,)), ids=(i["id"],))
    assert simplify.simplify(node("index", level, k, type=F32, guard=False)) is Y
    guarded = node("index", level, k, type=Type("f32", missing=True), guard=True)
    assert simplify.simplify(guarded) is guarded
    assert simplify.simplify(node("fill", Y, const(0.0, F32), type=F32)) is Y
    assert simplify.simplify(node("missing", Y, type=BOOL)) is const(False, BOOL)


def test_places_follow_their_nodes() -> None:
    spans: dict[Node, Any] = {}
    old = apply("add", apply("mul", X, number(1)), number(4))
    spans[old] = ("here",)
    new = simplify.simplify(old, spans)
    assert new is apply("add", X, number(4))
    assert spans[new] == ("here",)


def test_laws_use_what_is_known_of_ranges() -> None:
    byte = node("cast", node("field", type=Type("u8"), name="b"), type=I64, mode="exact")
    assert simplify.simplify(apply("max", byte, number(0))) is byte
    assert simplify.simplify(apply("min", byte, number(200))) is not byte
    assert bounds.at_most(byte, 255)


def test_literals_tell_zeros_apart() -> None:
    assert Literal(0.0) != Literal(-0.0)
    assert Literal(1) != Literal(True)
    assert Literal(1) != Literal(1.0)
