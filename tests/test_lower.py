"""Graphs by hand through lowering: kernels = the kernels' text as Python = the definition, bit for bit."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs_by_hand import agree, ap, build, cast, defined, f32, field, fill, if_, index, reduce, run, same
from pipec.compiler.graph import Node, const, node, number
from pipec.compiler.lower import lower_frame
from pipec.dsl.types import F32, I64, Type


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


RNG = np.random.default_rng(3)
IMAGES = [RNG.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((4, 5), (1, 1), (7, 3), (0, 4))]


def size(name: str, axis: int) -> Node:
    return node("extent", type=I64, field=name, axis=axis)


def image() -> Node:
    return field("image", "u8", None, None, 3)


H, W = size("image", 0), size("image", 1)


def test_mirror_normalise_and_where() -> None:
    img, flip = image(), field("flip", "bool")
    mirrored = build([H, W, 3], lambda y, x, k: index(img, y, if_(flip, ap("sub", ap("sub", W, number(1)), x), x), k))
    mean, std = const((0.485, 0.456, 0.406), Type("f32", (3,))), const((0.229, 0.224, 0.225), Type("f32", (3,)))
    out = build([3, H, W], lambda k, y, x: ap("div", ap("sub", ap("div", cast(index(mirrored, y, x, k), "f32"), 255.0),
                                                         index(mean, k)), index(std, k)))
    records = [{"image": i, "flip": n % 2 == 0} for n, i in enumerate(IMAGES)]
    agree({"image": out, "flip": flip, "mean": mean}, records, [("where", ap("gt", H, number(1)))])


def test_grey_sums_over_few_places() -> None:
    img = image()
    weights = const((0.299, 0.587, 0.114), Type("f32", (3,)))
    grey = build([H, W], lambda y, x: reduce("sum", [3], lambda k: ap(
        "mul", cast(index(img, y, x, k), "f32"), index(weights, k))))
    agree({"grey": grey}, [{"image": i} for i in IMAGES])


KINDS = ("sum", "prod", "min", "max", "argmax", "argmin")


@pytest.mark.parametrize("dtype", ["f32", "i64", "f16"])
def test_reductions(dtype: str) -> None:
    x, n = field("x", dtype, None, None), size("x", 0)
    outputs = {}
    for kind in KINDS:
        gaps = kind not in ("sum", "prod")
        outputs[f"{kind}_whole"] = reduce(kind, [n, size("x", 1)], lambda i, j: index(x, i, j), missing=gaps)
        outputs[f"{kind}_rows"] = filled(build([n], lambda i, k=kind, g=gaps: reduce(
            k, [size("x", 1)], lambda j: index(x, i, j), missing=g)))
        outputs[f"{kind}_few"] = reduce(kind, [2], lambda i: index(x, 0, i))
    shapes = [(2, 40), (3, 17), (5, 16), (1, 2), (2, 7)]
    records = []
    for a, b in shapes:
        v = RNG.integers(-3, 4, (a, b)) if dtype == "i64" else RNG.normal(size=(a, b))
        records.append({"x": v.astype(np.int64 if dtype == "i64" else np.dtype({"f32": "f4", "f64": "f8", "f16": "f2"}[dtype]))})
    if dtype != "i64":
        odd = np.array([[-0.0, 0.0, np.nan, 3.0, np.inf, -np.inf, np.nan]], records[0]["x"].dtype)
        records += [{"x": odd}, {"x": -odd[:, :2]}, {"x": -odd[:, 4:]}]
    agree(outputs, records)


def filled(t: Node) -> Node:
    default = 0 if t.type.dtype == "i64" else 0.0
    return t if not t.type.missing else build(list(t.type.dims), lambda *i: fill(index(t, *i), default))


def test_reductions_of_bools_and_first() -> None:
    x, n = field("x", "bool", None), size("x", 0)
    records = [{"x": np.array(v, bool)} for v in ([], [0], [0, 0, 1, 1], [1, 1])]
    outputs: dict[str, Node] = {k: reduce(k, [n], lambda i: index(x, i)) for k in ("any", "all")}
    outputs["first"] = reduce("first", [n], lambda i: index(x, i), missing=True)
    agree(outputs, records)


def test_a_step_past_i64_ends_a_record() -> None:
    x, n = field("x", "i64", None), size("x", 0)
    most = 2**63 - 1
    lists = ([most, 1, -1], [most, 1], [most] + [0] * 15 + [1, -1], [-most, -1], [3, -4] * 20)
    records = [{"x": np.array(v, np.int64)} for v in lists]
    outputs = {k: reduce(k, [n], lambda i: index(x, i)) for k in ("sum", "prod")}
    got = agree({"sum": outputs["sum"]}, records)
    assert [isinstance(g, str) for g in got] == [False, True, True, False, False]
    agree({"prod": outputs["prod"]}, records)
    agree({"few": reduce("sum", [2], lambda i: index(x, i))}, records)


def test_integers_past_i64() -> None:
    a, b = field("a", "i64"), field("b", "i64")
    most = 2**63 - 1
    pairs = [(1, 2), (most, 1), (-most - 1, -1), (2**40, 2**40), (-7, 2), (7, -2), (3, 3), (-most, 2)]
    for fn in ("add", "sub", "mul", "floordiv", "mod"):
        got = agree({"r": ap(fn, a, b)}, [{"a": p, "b": q} for p, q in pairs], plain=False)
        assert "E0802" in got or fn == "mod"
    agree({"r": ap("neg", a), "s": ap("abs", a)}, [{"a": p, "b": q} for p, q in pairs])


def test_what_is_not_asked_for_does_not_fail() -> None:
    a, x = field("a", "i64"), field("x", "i64", None)
    n = size("x", 0)
    big = ap("mul", ap("mul", a, a), ap("mul", a, a))
    chosen = if_(ap("lt", a, number(1000)), big, number(-1))
    proved = node("apply", ap("ge", a, number(0)), ap("gt", index(x, ap("mod", a, number(2))), number(0)),
                  type=ap("ge", a, number(0)).type, fn="and")
    empty = build([n], lambda i: ap("add", index(x, i), big))
    agree({"chosen": chosen}, [{"a": 2**40, "x": []}, {"a": 3, "x": []}])
    agree({"proved": proved}, [{"a": -(2**62), "x": [1, 0]}, {"a": 0, "x": [1, 0]}, {"a": 1, "x": [1, 0]}])
    got = agree({"empty": empty}, [{"a": 2**40, "x": []}, {"a": 2**40, "x": [1]}, {"a": 2, "x": [1, 2]}])
    assert [isinstance(g, str) for g in got] == [False, True, False]


def test_padding_and_missing() -> None:
    x, n = field("x", "i32", None, missing=True), size("x", 0)
    shifted = build([number(6)], lambda i: fill(index(x, ap("sub", i, number(1)), guard=True), -100))
    gaps = build([n], lambda i: node("missing", index(x, i), type=ap("eq", n, n).type))
    kept = build([n], lambda i: index(x, i))
    records = [{"x": np.ma.MaskedArray(np.arange(k, dtype=np.int32), np.arange(k) % 3 == 1)} for k in (0, 1, 5, 9)]
    agree({"shifted": shifted, "gaps": gaps, "kept": kept}, records)


def test_scalar_that_may_be_missing() -> None:
    x = field("x", "f32", missing=True)
    records = [{"x": np.ma.MaskedArray(np.float32(2.5), m)} for m in (True, False)]
    doubled = ap("mul", fill(x, 1.5), 2.0)
    agree({"filled": doubled, "x": fill(x, ap("sqrt", f32(2.0)))}, records)


@pytest.mark.parametrize("source", ["u8", "i8", "u16", "i32", "u64", "i64", "f16", "bf16", "f32", "f64", "bool"])
def test_casts(source: str) -> None:
    from pipec.kernels.scalar import NUMPY

    x = field("x", source, None)
    with np.errstate(all="ignore"):
        numbers = np.array([0, 1, 2.5, 3.5, -0.5, -1.5, 255.5, 256, -129, 65504, 65520, 1e5, 1e-8, 3e-5, 6.1e-5, 5.96e-8,
                            -2.98e-8, np.nan, np.inf, -np.inf, 2**31, 1e19, -1e19, 1.0009765, 1.00048828125, 1e300])
        integers = np.array([0, 1, -1, 127, 128, 255, 256, -129, 65535, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)])
        values = numbers.astype(NUMPY[source]) if source in ("f16", "bf16", "f32", "f64") else integers.astype(NUMPY[source])
    n = size("x", 0)
    outputs = {}
    for target in ("u8", "i8", "i16", "u32", "u64", "i64", "f16", "bf16", "f32", "f64", "bool"):
        for mode in ("round", "truncate", "exact"):
            if mode == "exact" and source in ("f16", "bf16", "f32", "f64") and target[0] in "ui":
                continue
            if source == "u64" and target == "i64" and mode == "exact":
                continue
            to, how = target, mode
            outputs[f"{target}_{mode}"] = build([n], lambda i, to=to, how=how: cast(index(x, i), to, how))
    agree(outputs, [{"x": values}])


def test_u64_past_i64() -> None:
    x = field("x", "u64")
    got = agree({"y": cast(x, "i64")}, [{"x": np.uint64(5)}, {"x": np.uint64(2**63)}])
    assert got[1] == "E0802"


def test_no_contraction_and_functions() -> None:
    x, y = field("x", "f32", None), field("y", "f32", None)
    n = size("x", 0)
    fused = build([n], lambda i: ap("add", ap("mul", index(x, i), index(y, i)), index(x, i)))
    outputs = {"fused": fused}
    for fn in ("exp", "log", "sin", "tanh", "sqrt", "floor", "round", "sigmoid", "erf", "sign", "log1p"):
        outputs[fn] = build([n], lambda i, fn=fn: ap(fn, index(x, i)))
    for fn in ("pow", "min", "max", "mod", "floordiv", "atan2"):
        outputs[fn] = build([n], lambda i, fn=fn: ap(fn, index(x, i), index(y, i)))
    v = np.concatenate([RNG.normal(size=500) * 3, [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 88.0, -104.0]]).astype("f4")
    agree(outputs, [{"x": v, "y": v[::-1].copy()}], plain=False)
    agree(outputs, [{"x": v[-12:], "y": v[-12:][::-1].copy()}])


def test_half_precision_rounds_after_each_function() -> None:
    for dtype in ("f16", "bf16"):
        x = field("x", dtype, None)
        one = const(1.0, Type(dtype))
        out = build([size("x", 0)], lambda i, x=x, one=one: ap("mul", ap("add", index(x, i), one), index(x, i)))
        from pipec.kernels.scalar import NUMPY

        agree({"y": out}, [{"x": (RNG.normal(size=64) * 100).astype(np.float32).astype(NUMPY[dtype])}])


def test_draws_params_epoch_and_count() -> None:
    def draw(dist: str, path: str, type: Type, *args: Node, indexes: int = 0) -> Node:
        return node("draw", *args, type=type, dist=dist, path=path, indexes=indexes)

    x = field("x", "f32", None)
    n = size("x", 0)
    u = draw("uniform", "p/u.uniform", F32, f32(-1.0), f32(3.0))
    noise = build([n], lambda i: ap("add", index(x, i), draw("uniform", "p/n.uniform", F32, f32(0.0), f32(1.0), i, indexes=1)))
    chosen = draw("integers", "p/k.integers", I64, number(0), n)
    order = draw("permutation", "p/o.permutation", Type("i64", (n,)), n)
    gathered = build([n], lambda i: index(x, index(order, i)))
    alpha = node("param", type=F32, name="alpha")
    scaled = ap("mul", u, alpha)
    epoch, count = node("epoch", type=I64), node("count", type=I64)
    outputs = {"u": u, "noise": noise, "k": chosen, "order": order, "gathered": gathered, "scaled": scaled,
               "when": ap("add", ap("mul", epoch, number(10)), count)}
    records = [{"x": RNG.normal(size=k).astype("f4")} for k in (3, 1, 0, 20)]
    got = agree(outputs, records, params={"alpha": 0.3}, count=7)
    assert got[2] == "E0804" and sorted(got[3]["order"]) == list(range(20))


def test_checks_in_order() -> None:
    a = field("a", "i64")
    requires = [("where", ap("gt", a, number(0))), ("check", ap("lt", ap("mul", a, a), number(100))),
                ("where", ap("ne", a, number(5)))]
    got = agree({"b": ap("add", a, number(1))}, [{"a": v} for v in (-(2**62), 3, 11, 5, 2**40)], requires)
    assert [g if not isinstance(g, dict) else "ok" for g in got] == [None, "ok", "E0805", None, "E0802"]


def test_blocks_of_tensors_and_shared_parts() -> None:
    x = field("x", "f32", None, 4)
    n = size("x", 0)
    centred = build([n, 4], lambda i, j: ap("sub", index(x, i, j), ap("div", reduce("sum", [n], lambda k: index(x, k, j)), 3.0)))
    square = build([n], lambda i: build([4], lambda j: reduce("sum", [4], lambda k: ap(
        "mul", index(centred, i, k), index(centred, i, j)))))
    biggest = reduce("max", [n, 4], lambda i, j: index(square, i, j), missing=True)
    records = [{"x": RNG.normal(size=(k, 4)).astype("f4")} for k in (1, 3, 18, 0)]
    agree({"square": square, "biggest": biggest, "centred": centred}, records)


def test_table_of_one_value_per_turn_needs_little_scratch() -> None:
    """Scratch made inside a loop is free again at the next turn."""
    x = field("x", "f32", None)
    n = size("x", 0)
    out = build([n], lambda i: reduce("sum", [n], lambda j: ap("mul", index(x, j), index(
        build([n], lambda k: ap("add", index(x, i), index(x, k))), j))))
    agree({"out": out}, [{"x": RNG.normal(size=300).astype("f4")}], plain=False)
    agree({"out": out}, [{"x": RNG.normal(size=20).astype("f4")}])


def test_texts_of_kernels_do_not_depend_on_what_was_compiled_before() -> None:
    from pipec.compiler.emit_numba import kernel_text

    def text() -> str:
        img = image()
        out = build([H, W], lambda y, x: reduce("sum", [3], lambda k: ap("mul", cast(index(img, y, x, k), "f32"), 0.5)))
        return kernel_text(lower_frame("a", {"out": out}, [], {})[1][0])

    first = text()
    number(12345)
    assert text() == first


def test_library_calls_split_kernels() -> None:
    import io

    from PIL import Image
    from pipec.kernels import decode  # noqa: F401

    jpg = field("jpg", "bytes")
    args = [jpg, number(3), const(True, Type("bool")), const("refuse", Type("text")), number(10**8)]
    sizes = [node("extent", *args, type=I64, op="decode_image", part="", axis=a) for a in (0, 1)]
    img = node("call", *args, type=Type("u8", (*sizes, 3)), op="decode_image")
    out = build([*sizes, 3], lambda y, x, k: ap("div", cast(index(img, y, x, k), "f32"), 255.0))
    a = field("a", "i64")
    records = []
    for k in range(3):
        file = io.BytesIO()
        Image.fromarray(RNG.integers(0, 256, (8 + k, 9, 3), dtype=np.uint8)).save(file, "png")
        records.append({"jpg": file.getvalue() if k != 1 else b"no image", "a": k})
    got = run({"out": out, "img": img, "n": ap("mul", sizes[0], sizes[1])}, records, [("where", ap("lt", a, number(9)))])
    expected = defined({"out": out, "img": img, "n": ap("mul", sizes[0], sizes[1])}, records)
    assert got[1] == "E0801" and isinstance(expected[1], str)
    same(got[0], expected[0])
    same(got[2], expected[2])


def test_library_calls_at_every_place() -> None:
    from pipec.kernels import table  # noqa: F401

    words, n = field("words", "text", 3, missing=True), field("n", "i64")
    texts = Type("text")
    kept = lambda j: node("fill", index(words, j), const("", texts), type=texts)  # noqa: E731
    rows = build([3], lambda j: ap("mod", node("call", kept(j), ap("add", j, n), type=I64, op="hash"), 1000))
    grid = build([2, n], lambda i, j: node("call", index(words, i), ap("mul", j, 3), type=I64, op="hash"))
    value = np.ma.MaskedArray(np.array(["a", "", "word"], object), [False, True, False])
    records = [{"words": value, "n": k} for k in (0, 2)]
    for a, b in zip(run({"rows": rows}, records), defined({"rows": rows}, records), strict=True):
        same(a, b)
    assert [r["grid"].shape for r in run({"grid": grid}, [{"words": np.array(["x", "y", "z"], object), "n": 4}])] == [(2, 4)]
