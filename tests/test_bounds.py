"""Proofs about integers: those that programs need are found, and none is ever wrong (small sizes, all values tried)."""
from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipec.compiler import bounds
from pipec.compiler.graph import Node, const, fresh_id, node, number, var
from pipec.compiler.linear import canonical, linear, to_node
from pipec.dsl.types import BOOL, F32, I64, Type
from pipec.kernels.ops import OPERATORS

IMAGE = node("field", type=Type("u8", (1, 1)), name="image")
H, W, C = (node("extent", IMAGE, type=I64, field="image", axis=a) for a in range(3))
N = node("param", type=I64, name="n")
S = node("param", type=I64, name="s")
FIELD = node("field", type=I64, name="k")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def f(fn: str, *args: Node | int) -> Node:
    """`apply fn` of nodes and numbers."""
    nodes = [number(a) if isinstance(a, int) else a for a in args]
    return node("apply", *nodes, type=BOOL if fn in (*COMPARISONS, "and", "or", "not") else I64, fn=fn)


def select(c: Node, a: Node | int, b: Node | int) -> Node:
    a, b = (number(x) if isinstance(x, int) else x for x in (a, b))
    return node("select", c, a, b, type=I64)


def integers(a: Node | int, b: Node | int, path: str = "d") -> Node:
    a, b = (number(x) if isinstance(x, int) else x for x in (a, b))
    return node("draw", a, b, type=I64, dist="integers", path=path, indexes=0)


def binder() -> Node:
    return var(fresh_id())


def build(body: Node, *pairs: tuple[Node, Node]) -> Node:
    dims = tuple(e for _, e in pairs) + body.type.dims
    return node("build", body, *(e for _, e in pairs), type=body.type.with_dims(dims), ids=tuple(v["id"] for v, _ in pairs))


def inside(index: Node, size: Node | int, facts: bounds.Facts) -> bool:
    return bounds.at_most(0, index, facts) and bounds.less(index, size, facts)


NONE = bounds.Facts()
i, k = binder(), binder()


def test_crop_at_a_drawn_place() -> None:
    facts = NONE.given(f("ge", H, S)).given(f("ge", S, 0))
    top = integers(0, f("add", f("sub", H, S), 1))
    y = binder()
    facts = facts.ranged(y, S)
    assert inside(f("add", y, top), H, facts)
    assert not inside(f("add", f("add", y, top), 1), H, facts)
    assert not inside(f("add", y, integers(0, f("add", f("sub", H, S), 2))), H, facts)


def test_clamp_min_and_mirror() -> None:
    i = binder()
    facts = NONE.given(f("ge", N, 1)).ranged(i, f("add", N, 7))
    last = f("sub", N, 1)
    assert inside(f("clamp", f("sub", i, 3), 0, last), N, facts)
    assert inside(f("min", i, last), N, facts)
    assert inside(f("max", f("min", f("sub", i, 3), last), 0), N, facts)
    mirrored = NONE.ranged(i, N)
    assert inside(f("sub", last, i), N, mirrored)
    assert not inside(f("sub", N, i), N, mirrored)
    flip = node("draw", type=BOOL, dist="coin", path="flip", indexes=0)
    assert inside(select(flip, f("sub", last, i), i), N, mirrored)
    assert not bounds.at_most(0, f("clamp", i, 0, last))


def test_strides_tilings_and_gaps() -> None:
    i, y, x, k = (binder() for _ in range(4))
    flat = NONE.ranged(i, f("mul", H, W))
    assert bounds.nonzero(W, flat)
    assert inside(f("floordiv", i, W), H, flat)
    assert inside(f("mod", i, W), W, flat)
    both = NONE.ranged(y, H).ranged(x, W).ranged(k, C)
    row = f("add", f("mul", y, W), x)
    assert inside(row, f("mul", H, W), both)
    assert inside(f("add", f("mul", row, C), k), f("mul", f("mul", H, W), C), both)
    assert not inside(f("add", f("mul", y, W), f("add", x, 1)), f("mul", H, W), both)
    halves = NONE.ranged(y, f("floordiv", H, 2))
    assert inside(f("mul", y, 2), H, halves)
    assert inside(f("add", f("mul", y, 2), 1), H, halves)
    strided = NONE.given(f("ge", S, 1)).ranged(y, f("floordiv", H, S))
    assert inside(f("mul", y, S), H, strided)
    tiles = NONE.ranged(i, f("mul", H, 4))
    assert inside(f("floordiv", i, 4), H, tiles)
    assert inside(f("mod", i, 4), 4, tiles)
    gap = NONE.given(f("ge", S, 0)).ranged(i, f("sub", N, S))
    assert inside(f("add", i, S), N, gap)
    assert inside(i, N, gap)
    assert not inside(f("add", i, f("add", S, 1)), N, gap)


def test_slices() -> None:
    a, b, i = N, S, binder()
    facts = NONE.given(f("and", f("le", number(0), a), f("and", f("le", a, b), f("le", b, H))))
    places = f("sub", b, a)
    assert bounds.at_most(0, places, facts)
    assert inside(f("add", i, a), H, facts.ranged(i, places))
    tail = NONE.given(f("ge", H, 1)).ranged(i, f("sub", H, 1))
    assert inside(f("add", i, 1), H, tail)


def test_conditions() -> None:
    i = binder()
    here = NONE.ranged(i, H)
    chained = f("and", f("le", N, FIELD), f("lt", FIELD, f("add", N, S)))
    assert bounds.less(f("sub", FIELD, N), S, here.given(chained))
    assert inside(f("sub", i, 1), H, here.given(f("not", f("eq", i, 0))))
    outside = f("or", f("lt", FIELD, 0), f("ge", FIELD, H))
    assert inside(FIELD, H, NONE.given(f("not", outside)))
    assert not inside(FIELD, H, NONE.given(outside))
    assert bounds.nonzero(FIELD, NONE.given(f("ne", FIELD, 0)))
    assert bounds.contradicts(f("gt", FIELD, 4), NONE.given(f("lt", FIELD, 5)))
    assert not bounds.contradicts(f("gt", FIELD, 3), NONE.given(f("lt", FIELD, 5)))
    assert bounds.implies(NONE.given(f("eq", FIELD, 3)), f("lt", FIELD, 4))
    both = f("or", f("eq", FIELD, 2), f("eq", FIELD, 5))
    assert bounds.nonzero(FIELD, NONE.given(both))
    assert bounds.contradicts(f("eq", FIELD, 3), NONE.given(both))
    # the same bool twice agrees with itself
    flip = node("field", type=BOOL, name="flip")
    gap = f("sub", select(flip, 7, 1), select(flip, 6, 0))
    assert bounds.at_most(gap, 1)
    assert bounds.at_most(1, gap)


def test_draws_constants_builds_and_casts() -> None:
    order = node("draw", N, type=Type("i64", (N,)), dist="permutation", path="p", indexes=0)
    i = binder()
    assert inside(node("index", order, i, type=I64, guard=False), N, NONE.ranged(i, N))
    table = const((3, 0, 2), Type("i64", (3,)))
    assert bounds.interval(node("index", table, i, type=I64, guard=False)) == (0, 3)
    assert bounds.interval(integers(-4, 5)) == (-4, 4)
    assert bounds.interval(f("add", binderless(32), integers(-4, 5))) == (28, 36)
    byte = node("cast", node("index", IMAGE, i, i, type=Type("u8"), guard=False), type=I64, mode="exact")
    assert bounds.interval(byte) == (0, 255)
    assert inside(byte, 256, NONE)
    j = binder()
    shifted = build(f("add", j, 2), (j, H))
    element = node("index", shifted, i, type=I64, guard=False)
    assert inside(f("sub", element, 2), H, NONE.ranged(i, H))
    found = node("reduce", f("gt", j, 3), H, type=Type("i64", (), True), ids=(j["id"],), kind="first")
    assert inside(found, H, NONE)
    filled = node("fill", found, number(0), type=I64)
    assert inside(filled, H, NONE.given(f("ge", H, 1)))
    total = node("reduce", node("cast", f("gt", j, 3), type=I64, mode="exact"), H, type=I64, ids=(j["id"],), kind="sum")
    assert bounds.at_most(total, H)
    assert bounds.at_most(0, total)
    kept = node("cast", f("clamp", FIELD, 0, 9), type=Type("u8"), mode="round")
    assert bounds.at_most(node("cast", kept, type=I64, mode="exact"), 9)


def binderless(value: int) -> Node:
    return number(value)


def test_results_of_operators() -> None:
    mask = node("field", type=Type("bool", (N,)), name="mask")
    size = node("extent", mask, type=I64, op="indices", part="", axis=0)
    found = node("call", mask, type=Type("i64", (size,)), op="indices")
    assert inside(node("index", found, i, type=I64, guard=False), N, NONE)
    edges = const((1, 5, 9), Type("i64", (3,)))
    bucket = node("call", FIELD, edges, const(False, BOOL), type=I64, op="bucketize")
    assert bounds.interval(bucket) == (0, 3)
    frames = node("extent", mask, type=I64, op="spectrogram", part="", axis=0)
    assert bounds.interval(frames)[0] == OPERATORS["spectrogram"].least_sizes.get(("", 0), 0)


def test_operators_keep_their_ranges() -> None:
    for operator in (OPERATORS[name] for name in ("cummax", "cummin", "bucketize", "indices", "hash")):
        for args, result in operator.examples:
            values = [a if isinstance(a, str) else np.asarray(a) for a in args]
            limits = [(-math.inf, math.inf) if isinstance(v, str) else (v.min(), v.max()) for v in values]
            if operator.ranges is not None:
                low, high = operator.ranges(*limits)
                assert low <= np.min(result)
                assert np.max(result) <= high
            if operator.stop is not None:
                assert np.max(result) < operator.stop(*(np.shape(v) for v in values))


def test_floats_reach_integers() -> None:
    part = node("draw", const(0.25, F32), const(0.75, F32), type=F32, dist="uniform", path="u", indexes=0)
    scaled = node("apply", part, const(10.0, F32), type=F32, fn="mul")
    whole = node("cast", scaled, type=I64, mode="truncate")
    assert bounds.interval(whole) == (2, 7)
    height = node("cast", H, type=F32, mode="round")
    unknown = node("cast", node("apply", height, part, type=F32, fn="div"), type=I64, mode="truncate")
    assert bounds.interval(unknown)[1] == 2**63 - 1
    assert bounds.at_most(0, node("cast", const(math.nan, F32), type=I64, mode="truncate"))


def test_overflow() -> None:
    assert bounds.fits_i64(f("add", H, W))
    assert not bounds.fits_i64(f("add", FIELD, 1))
    assert bounds.fits_i64(f("add", FIELD, 1), NONE.given(f("lt", FIELD, 100)))
    assert not bounds.fits_i64(f("mul", FIELD, FIELD))
    assert bounds.fits_i64(f("mul", f("mod", FIELD, 1000), 1000))
    assert bounds.interval(f("add", FIELD, 1)) == (-(2**63) + 1, 2**63)


def test_dims_are_compared() -> None:
    assert bounds.equal(f("add", H, f("sub", W, H)), W)
    assert bounds.equal(f("mul", f("add", H, 1), 2), f("add", f("add", H, H), 2))
    assert bounds.equal(f("min", H, f("add", W, 0)), f("min", W, H))
    assert bounds.equal(f("max", H, 0), H)
    assert not bounds.equal(H, W)
    assert bounds.equal(number(3), 3)
    assert not bounds.equal(H, 3)
    assert canonical(f("sub", f("add", H, 2), f("add", 1, H))) == 1
    assert canonical(f("sub", f("sub", H, 3), f("sub", 0, W))) is canonical(f("add", f("sub", W, 3), H))


def test_work_is_bounded() -> None:
    deep = FIELD
    for k in range(1000):
        deep = f("min", f("add", deep, 1), f("max", f("sub", deep, k), 5))
    assert not bounds.at_most(deep, 3)
    chain = FIELD
    for _ in range(1000):
        chain = f("add", chain, chain)
    bounds.interval(chain)
    squares = FIELD
    for _ in range(200):
        squares = f("mul", squares, squares)
    assert not bounds.less(squares, 0)
    facts = NONE
    for k in range(300):
        facts = facts.given(f("or", f("lt", f("add", H, W), k + 5), f("ge", W, H)))
    bounds.at_most(W, H, facts)


SHORT = f("min", H, W)
ODD = f("sub", f("mul", 2, N), 1)
# index, size, facts, (binder, range)…
PROVED = {
    "nearest": (f("floordiv", f("mul", i, H), 224), H, [f("ge", H, 1)], [(i, 224)]),
    "nearest, any size": (f("floordiv", f("mul", i, H), S), H, [f("ge", H, 1)], [(i, S)]),
    "reflect": (select(f("lt", i, N), i, f("sub", f("sub", ODD, 1), i)), N, [], [(i, ODD)]),
    "reflect at 0": (f("abs", f("sub", i, 3)), N, [f("ge", N, 4)], [(i, N)]),
    "rotate": (f("mod", f("add", i, S), N), N, [], [(i, N)]),
    "halves, rounded up": (f("floordiv", i, 2), f("floordiv", f("add", N, 1), 2), [], [(i, N)]),
    "dilated": (f("add", f("mul", i, 2), f("mul", k, 3)), H, [], [(i, f("floordiv", f("sub", H, 6), 2)), (k, 3)]),
    "centre crop": (f("add", f("floordiv", f("sub", H, S), 2), i), H, [f("ge", H, S)], [(i, S)]),
    "centre square": (f("add", i, f("floordiv", f("sub", W, SHORT), 2)), W, [], [(i, SHORT)]),
    "at most so many": (i, W, [], [(i, f("min", H, f("min", W, 100)))]),
    "crop of what is there": (f("add", i, integers(0, f("add", f("sub", H, f("min", H, S)), 1))), H, [], [(i, f("min", H, S))]),
    "padded": (f("sub", i, S), H, [f("ge", i, S), f("lt", i, f("add", H, S))], [(i, f("add", H, f("mul", 2, S)))]),
    "chunks": (f("add", f("mul", i, S), k), H, [f("ge", S, 1)], [(i, f("floordiv", H, S)), (k, S)]),
    "windows that overlap": (
        f("add", f("mul", i, S), k), H, [f("ge", H, N), f("ge", S, 1)],
        [(i, f("add", 1, f("floordiv", f("sub", H, N), S))), (k, N)],
    ),
    "drawn and clamped": (
        f("clamp", f("add", i, integers(f("neg", S), f("add", S, 1))), 0, f("sub", H, 1)), H, [], [(i, H)],
    ),
    "last of all": (f("sub", f("mul", H, W), 1), f("mul", H, W), [f("ge", H, 1), f("ge", W, 1)], []),
}


@pytest.mark.parametrize("name", PROVED)
def test_indexes_that_people_write(name: str) -> None:
    index, size, known, ranges = PROVED[name]
    facts = NONE
    for v, stop in ranges:
        facts = facts.ranged(v, stop)
    for c in known:
        facts = facts.given(c)
    assert inside(index, size, facts)
    assert not inside(index, f("sub", size, 1), facts) or name == "dilated"
    assert not inside(f("sub", index, 1), size, facts) or name == "last of all"


def test_divisors_that_are_not_zero() -> None:
    assert bounds.nonzero(N, NONE.ranged(i, N))
    assert bounds.nonzero(f("max", H, 1))
    assert bounds.nonzero(f("mul", H, W), NONE.given(f("and", f("ge", H, 1), f("ge", W, 1))))
    assert bounds.nonzero(f("sub", H, W), NONE.given(f("ne", H, W)))
    assert not bounds.nonzero(H)
    assert not bounds.nonzero(f("floordiv", i, S), NONE.given(f("gt", S, 0)).ranged(i, N))


# --- no proof is wrong ----------------------------------------------------------------------------

NAMES = ("h", "w", "d", "i", "b")
TWO_ARGS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "floordiv": lambda a, b: a // b if b else None,
    "mod": lambda a, b: a % b if b else None,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def value(n: Node, env: dict[Node, int]) -> Any:
    """What `n` is with these atoms; None where it has no value."""
    if n in env:
        return env[n]
    if n.op == "const":
        return n["value"]
    args = [value(a, env) for a in n.args] if n.op not in ("select", "build", "reduce", "index") else []
    if n.op == "select":
        test = value(n.args[0], env)
        return None if test is None else value(n.args[1] if test else n.args[2], env)
    if n.op == "index":
        place = value(n.args[1], env)
        built = n.args[0]
        stop = value(built.args[1], env)
        if place is None or stop is None or not 0 <= place < stop:
            return None
        return value(built.args[0], {**env, var(built["ids"][0]): place})
    if n.op == "reduce":
        stop = value(n.args[1], env)
        if stop is None:
            return None
        values = [value(n.args[0], {**env, var(n["ids"][0]): k}) for k in range(stop)]
        return None if None in values else sum(values)
    if None in args:
        return None
    if n.op == "cast":
        return int(args[0])
    match n["fn"]:
        case "abs":
            return abs(args[0])
        case "neg":
            return -args[0]
        case "clamp":
            return min(max(args[0], args[1]), args[2])
        case "not":
            return not args[0]
        case "and":
            return args[0] and args[1]
        case "or":
            return args[0] or args[1]
        case fn:
            return TWO_ARGS[fn](*args)


@st.composite
def expressions(draw: st.DrawFn, atoms: tuple[Node, ...], depth: int = 3) -> Node:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(st.sampled_from(atoms), st.integers(-3, 4).map(number)))
    inner = expressions(atoms, depth - 1)
    match draw(st.integers(0, 12)):
        case 0:
            return f(draw(st.sampled_from(["neg", "abs"])), draw(inner))
        case 1:
            return f("clamp", draw(inner), draw(inner), draw(inner))
        case 2:
            return select(draw(conditions(atoms, depth - 1)), draw(inner), draw(inner))
        case 3:
            j = binder()
            return node("index", build(draw(expressions((*atoms, j), depth - 1)), (j, draw(inner))), draw(inner),
                        type=I64, guard=False)
        case 4:
            j = binder()
            return node("reduce", draw(expressions((*atoms, j), depth - 1)), draw(st.sampled_from(atoms)),
                        type=I64, kind="sum", ids=(j["id"],))
        case 5:
            return node("cast", draw(conditions(atoms, depth - 1)), type=I64, mode="exact")
        case _:
            fn = draw(st.sampled_from(["add", "sub", "mul", "min", "max", "floordiv", "mod", "add", "sub"]))
            return f(fn, draw(inner), draw(inner))


@st.composite
def conditions(draw: st.DrawFn, atoms: tuple[Node, ...], depth: int = 2) -> Node:
    if depth > 0 and draw(st.integers(0, 2)) == 0:
        fn = draw(st.sampled_from(["and", "or", "not"]))
        inner = [draw(conditions(atoms, depth - 1)) for _ in range(1 if fn == "not" else 2)]
        return f(fn, *inner)
    inner = expressions(atoms, max(depth - 1, 0))
    return f(draw(st.sampled_from(COMPARISONS)), draw(inner), draw(inner))


def worlds(facts: list[Node], i: Node, stop: Node, d: Node) -> list[dict[Node, int]]:
    found = []
    for h, w, k in product(range(4), range(3), range(-3, 4)):
        env = {H: h, W: w, FIELD: k}
        low, high, end = value(d.args[0], env), value(d.args[1], env), value(stop, env)
        if None in (low, high, end):
            continue
        for x, y in product(range(low, min(high, low + 5)), range(min(end, 5))):
            here = {**env, d: x, i: y}
            if all(value(c, here) for c in facts):
                found.append(here)
    return found


@settings(max_examples=70, deadline=None)
@given(st.data())
def test_no_proof_is_wrong(data: st.DataObject) -> None:
    atoms = (H, W, FIELD)
    d = integers(data.draw(expressions(atoms, 1)), data.draw(expressions(atoms, 1)))
    i, stop = binder(), data.draw(expressions(atoms, 2))
    atoms = (*atoms, d, i)
    known = data.draw(st.lists(conditions(atoms, 2), max_size=3))
    facts = NONE.ranged(i, stop)
    for c in known:
        facts = facts.given(c)
    a, b = data.draw(expressions(atoms, 3)), data.draw(expressions(atoms, 2))
    test = data.draw(conditions(atoms, 2))
    low, high = bounds.interval(a, facts)
    lesser, at_most, nonzero = bounds.less(a, b, facts), bounds.at_most(a, b, facts), bounds.nonzero(a, facts)
    same, never = bounds.equal(a, b), bounds.contradicts(test, facts)
    again = to_node(linear(a))
    for env in worlds(known, i, stop, d):
        x, y = value(a, env), value(b, env)
        if never:
            assert not value(test, env)
        if x is None:
            continue
        assert low <= x <= high
        assert value(again, env) == x
        assert not nonzero or x != 0
        if y is not None:
            assert not lesser or x < y
            assert not at_most or x <= y
            assert not same or x == y


@pytest.mark.parametrize("fn", ["floordiv", "mod"])
def test_rounding_down(fn: str) -> None:
    d = integers(-7, 8)
    for divisor in (-3, -1, 1, 2, 5):
        low, high = bounds.interval(f(fn, d, divisor))
        values = [TWO_ARGS[fn](x, divisor) for x in range(-7, 8)]
        assert low <= min(values)
        assert max(values) <= high
        assert bounds.at_most(f(fn, d, divisor), max(values))
        assert bounds.at_most(min(values), f(fn, d, divisor))
