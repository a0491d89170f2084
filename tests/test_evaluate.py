"""Values and streams as the language defines them, on graphs made by hand and on small programs."""
from __future__ import annotations

import numpy as np
import pytest

from pipec.compiler.evaluate_values import Cells, Evaluator, Frame, constant
from pipec.compiler.graph import const, fresh_id, node, number, var
from pipec.dsl.types import BOOL, F32, I64, Type
from pipec.runtime.errors import DataError


def apply(fn, *args, type=None):
    return node("apply", *args, type=type or args[0].type, fn=fn)


def tensor(values, dtype="i64"):
    return const(tuple(values), Type(dtype, (len(values),)))


def build(body, *binders, dtype=None, dims=None):
    ids = tuple(v["id"] for v, _ in binders)
    return node("build", body, *(n if not isinstance(n, int) else number(n) for _, n in binders),
                type=Type(dtype or body.type.dtype, dims or tuple(n for _, n in binders)), ids=ids)


def reduced(kind, body, *binders, type=None):
    ids = tuple(v["id"] for v, _ in binders)
    return node("reduce", body, *(n if not isinstance(n, int) else number(n) for _, n in binders), type=type or body.type,
                ids=ids, kind=kind)


def index(t, *at, guard=False):
    return node("index", t, *at, type=Type(t.type.dtype, (), guard), guard=guard)


def test_constant_folds_with_the_reference_functions():
    assert constant(apply("add", number(2), number(3))) == 5
    third = apply("div", const(1.0, F32), const(3.0, F32))
    assert constant(third) == float(np.float32(1) / np.float32(3))
    assert constant(tensor((1, 2, 3))) == (1, 2, 3)
    assert constant(node("cast", const(2.5, F32), type=Type("u8"), mode="round")) == 2


def test_integers_past_i64_fail_only_where_they_are_asked_for():
    big = number(2**63 - 1)
    with pytest.raises(DataError) as e:
        constant(apply("add", big, number(1)))
    assert e.value.code == "E0802"
    lazy = node("select", const(True, BOOL), number(7), apply("add", big, number(1)), type=I64)
    assert constant(lazy) == 7


def test_select_is_lazy_place_by_place():
    i = var(fresh_id())
    big = apply("add", number(2**63 - 3), i)
    chosen = node("select", apply("lt", i, number(3), type=BOOL), big, number(-1), type=I64)
    assert constant(build(chosen, (i, 5))) == (2**63 - 3, 2**63 - 2, 2**63 - 1, -1, -1)
    with pytest.raises(DataError):
        constant(build(big, (i, 5)))


def test_gather_transpose_and_partial_body():
    i, j = var(fresh_id()), var(fresh_id())
    t = const(tuple(range(6)), Type("u8", (2, 3)))
    turned = build(index(t, j, i), (i, 3), (j, 2))
    assert constant(turned) == (0, 3, 1, 4, 2, 5)
    k = var(fresh_id())
    rows = build(tensor((7, 8)), (k, 3), dims=(3, 2))
    assert constant(rows) == (7, 8, 7, 8, 7, 8)
    inner = build(apply("mul", i, j), (j, 2))
    assert constant(build(inner, (i, 3), dims=(3, 2))) == (0, 0, 0, 1, 0, 2)


def test_guarded_reads_are_missing_until_filled():
    i = var(fresh_id())
    at = apply("sub", i, number(1))
    read = index(tensor((4, 5)), at, guard=True)
    filled = node("fill", read, number(-9), type=I64)
    assert constant(build(filled, (i, 4))) == (-9, 4, 5, -9)
    assert constant(build(node("missing", read, type=BOOL), (i, 4))) == (True, False, False, True)
    nothing = index(const((), Type("i64", (0,))), at, guard=True)
    assert constant(build(node("fill", nothing, at, type=I64), (i, 2))) == (-1, 0)


def test_reductions_below_binders():
    i, j = var(fresh_id()), var(fresh_id())
    t = const(tuple(range(6)), Type("i64", (2, 3)))
    assert constant(build(reduced("sum", index(t, i, j), (j, 3)), (i, 2))) == (3, 12)
    assert constant(reduced("argmax", index(t, i, j), (i, 2), (j, 3))) == 5
    ragged = build(reduced("sum", apply("add", j, number(1)), (j, i)), (i, 5))
    assert constant(ragged) == (0, 1, 3, 6, 10)
    empty = reduced("max", j, (j, 0), type=Type("i64", (), True))
    assert constant(empty) is None


def test_draws_depend_on_id_epoch_path_and_binders():
    i = var(fresh_id())

    def drawn(path="p/x.uniform", **frame):
        one = node("draw", const(0.0, F32), const(1.0, F32), i, type=F32, dist="uniform", path=path, indexes=1)
        return Evaluator(Frame(**frame)).value(build(one, (i, 4))).values.tolist()

    assert len(set(drawn())) == 4
    assert drawn(id=3) == drawn(id=3) != drawn(id=4)
    assert drawn(epoch=1) != drawn(epoch=2) and drawn(seed=1) != drawn(seed=2) and drawn(path="q") != drawn()
    order = node("draw", number(6), type=Type("i64", (6,)), dist="permutation", path="p", indexes=0)
    assert sorted(constant(order)) == list(range(6))
    none = node("draw", number(3), number(3), type=I64, dist="integers", path="p", indexes=0)
    with pytest.raises(DataError) as e:
        constant(none)
    assert e.value.code == "E0804"


def test_fields_extents_and_half_precision():
    image = node("field", type=Type("f16", (2, 2)), name="image")
    i, j = var(fresh_id()), var(fresh_id())
    frame = Frame({"image": Cells(np.array([[1, 2], [3, 1000]], np.float16))})
    size = node("extent", type=I64, field="image", axis=0)
    double = build(apply("mul", index(image, i, j), index(image, i, j)), (i, size), (j, size), dims=(2, 2))
    got = Evaluator(frame).value(double).values
    assert got.dtype == np.float16 and got.tolist() == [[1, 4], [9, np.inf]]


def test_text_and_logic():
    word = const("cat", Type("text"))
    assert constant(apply("eq", word, const("cat", Type("text")), type=BOOL)) is True
    i = var(fresh_id())
    words = const(("a", "b"), Type("text", (2,)))
    same = apply("eq", index(words, i), const("b", Type("text")), type=BOOL)
    assert constant(build(same, (i, 2))) == (False, True)
    beyond = apply("gt", apply("add", number(2**63 - 1), number(1)), number(0), type=BOOL)
    assert constant(apply("and", const(False, BOOL), beyond)) is False


def test_deep_chains_of_choices_stay_cheap():
    i = var(fresh_id())
    x = i
    for step in range(60):
        even = apply("eq", apply("mod", x, number(2)), number(0), type=BOOL)
        x = node("select", even, apply("add", x, number(step)), apply("sub", x, number(1)), type=I64)
    assert len(constant(build(x, (i, 4)))) == 4
