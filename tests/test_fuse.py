"""Fusion changes no bit: hand-made graphs before and after it, and the example of its docstring."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs_by_hand import agree, ap, build, cast, defined, f32, field, fill, if_, index, reduce, same
from pipec.compiler import fuse as fusion
from pipec.compiler.graph import Node, node, number, walk
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.dsl.types import BOOL, I64

RNG = np.random.default_rng(4)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def size(name: str, axis: int) -> Node:
    return node("extent", type=I64, field=name, axis=axis)


def builds(n: Node) -> int:
    return sum(m.op == "build" for m in walk(n))


def check(n: Node, records: list[dict[str, Any]]) -> Node:
    """Fused = not fused; the fused graph."""
    fused = fusion.fuse(n)
    for a, b in zip(agree({"out": fused}, records, plain=False), defined({"out": n}, records), strict=True):
        same(a, b)
    return fused


def test_chain_becomes_one_loop() -> None:
    img, (h, w) = field("image", "u8", None, None, 3), (size("image", 0), size("image", 1))
    flipped = build([h, w, 3], lambda y, x, k: index(img, y, ap("sub", ap("sub", w, number(1)), x), k))
    scaled = build([h, w, 3], lambda y, x, k: ap("div", cast(index(flipped, y, x, k), "f32"), 255.0))
    out = build([3, h, w], lambda k, y, x: index(scaled, y, x, k))
    records = [{"image": RNG.integers(0, 256, (a, b, 3), dtype=np.uint8)} for a, b in ((3, 4), (1, 1), (0, 2))]
    assert builds(check(out, records)) == 1


def test_dear_elements_used_often_stay_in_memory() -> None:
    x, n = field("x", "f32", None), size("x", 0)
    dear = build([n], lambda i: ap("exp", index(x, i)))
    out = build([n], lambda i: reduce("sum", [n], lambda j: ap("mul", index(dear, j), index(dear, i))))
    assert builds(check(out, [{"x": RNG.normal(size=k).astype("f4")} for k in (0, 1, 50)])) == 2


def test_dear_elements_under_a_loop_of_no_concern_stay() -> None:
    x, n = field("x", "f32", None), size("x", 0)
    dear = build([n], lambda i: ap("tanh", index(x, i)))
    again = build([number(5), n], lambda r, i: index(dear, i))
    once = build([n, number(5)], lambda i, r: index(dear, i))
    records = [{"x": RNG.normal(size=9).astype("f4")}]
    assert builds(check(again, records)) == 2 and builds(check(once, records)) == 1


def test_padding_of_a_build() -> None:
    x, n = field("x", "i32", None, missing=True), size("x", 0)
    kept = build([n], lambda i: index(x, i))
    plus = build([n], lambda i: ap("min", fill(index(x, i), 3), number(7)))
    gone = build([number(6)], lambda i: node("missing", index(kept, ap("sub", i, number(2)), guard=True), type=BOOL))
    records = [{"x": np.ma.MaskedArray(np.arange(k, dtype=np.int32), np.arange(k) % 2 == 1)} for k in (0, 3, 9)]
    check(build([number(6)], lambda i: fill(index(kept, i, guard=True), -1)), records)
    check(build([number(6)], lambda i: fill(index(plus, ap("sub", i, number(2)), guard=True), -1)), records)
    check(gone, records)


def test_an_element_nobody_asks_for_still_fails() -> None:
    a, n = field("a", "i64", None), size("a", 0)
    square = build([n], lambda i: ap("mul", index(a, i), index(a, i)))
    out = build([number(1)], lambda i: fill(index(square, i, guard=True), 0))
    assert builds(check(out, [{"a": np.array(v)} for v in ([3, 2**40], [3, 4])])) == 2


def test_rows_and_selects() -> None:
    x, n, flip = field("x", "f32", None, 4), size("x", 0), field("flip", "bool")
    rows = build([n], lambda i: build([4], lambda j: ap("mul", index(x, i, j), 2.0)))
    other = build([n, 4], lambda i, j: ap("sub", f32(1.0), index(x, i, j)))
    out = build([n, 4], lambda i, j: if_(flip, index(rows, i, j), index(other, i, j)))
    assert builds(check(out, [{"x": RNG.normal(size=(k, 4)).astype("f4"), "flip": k == 3} for k in (0, 3, 4)])) == 1


def test_copy_of_a_whole_field_is_the_field() -> None:
    x = field("x", "f32", None, 4)
    assert fusion.fuse(build([size("x", 0), 4], lambda i, j: index(x, i, j))) is x


def test_the_example_of_the_docstring() -> None:
    from textwrap import dedent

    text = fusion.fuse.__doc__ or ""
    before, after = (dedent(t).strip() + "\n" for t in text.split("Before:\n")[1].split("After:\n"))
    assert print_graph(fusion.fuse(parse_graph(before))) == print_graph(parse_graph(after))


@pytest.mark.parametrize("seed", range(12))
def test_random_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, n = field("x", "f32", None), size("x", 0)
    tensors: list[Node] = [x]

    def element(i: Node, depth: int) -> Node:
        t = tensors[rng.integers(len(tensors))]
        match rng.integers(7) if depth else 0:
            case 0 | 1:
                turned = ap("mod", ap("add", i, number(1)), ap("max", n, number(1)))
                return index(t, (i, ap("sub", ap("sub", n, number(1)), i), turned)[rng.integers(3)])
            case 2:
                return fill(index(t, ap("sub", i, number(int(rng.integers(4)))), guard=True), float(rng.normal()))
            case 3:
                return ap(str(rng.choice(["add", "mul", "max"])), element(i, depth - 1), element(i, depth - 1))
            case 4:
                return ap(str(rng.choice(["exp", "floor", "neg"])), element(i, depth - 1))
            case 5:
                return if_(ap("lt", element(i, depth - 1), f32(0.3)), element(i, depth - 1), element(i, depth - 1))
        return reduce(str(rng.choice(["sum", "max"])), [number(3)], lambda k: ap("mul", cast(k, "f32"), element(i, depth - 1)))

    for _ in range(4):
        tensors.append(build([n], lambda i: element(i, 2)))
    check(tensors[-1], [{"x": rng.normal(size=k).astype("f4")} for k in (0, 1, 7)])


# --- what may end the record ----------------------------------------------------------------------

DRAWING = """seed 1
schema Row
  n: i64
  x: f32[4]
pipeline p
  from npz("{data}") as Row
  k ~ integers(0, n)
{lines}
  emit b
"""


@pytest.mark.parametrize(("lines", "stored", "ends"), [
    (["a = [x[i] + k for i]", "b = [a[3 - i] * 2 for i < 4]"], 0, True),                        # the same for all, and read
    (["a = [x[i] + k for i]", "b = [if x[i] > 5 then a[i] else 0 for i]"], 1, False),            # perhaps not read at all
    (["a = [x[i] + (if i > 2 then k else 0) for i]", "b = [a[0] + i for i < 2]"], 1, True),     # only some elements end it
    (["a = [x[i] + k for i]", "b = [a[min(i, 3)] for i < i64(x[0])]", "b = sum(b)"], 2, False),  # perhaps no element at all
])
def test_an_element_that_may_end_the_record(lines: list[str], stored: int, ends: bool, tmp_path: Any) -> None:
    """A draw from nothing (n = 0) ends the record where something that is read needs it, fused or not."""
    from pipec.compiler.check import check as check_program
    from pipec.compiler.compile import transformed
    from running import assert_same, run_compiled, run_interpreted

    for n in (3, 0):
        np.savez(tmp_path / f"{n}.npz", n=np.array([5, n, 4]), x=np.float32([[1, 2, 3, 4], [0, 0, 0, 0], [9, 9, 9, 9]]))
        text = DRAWING.format(data=tmp_path / f"{n}.npz", lines="\n".join(f"  {line}" for line in lines))
        program = check_program("p.pipe", text=text)
        reference, code = run_interpreted(program)
        assert (code is not None) == (n == 0 and ends)
        for without in ((), ("fuse",)):
            got, got_code = run_compiled(program, without)
            assert got_code == code
            assert_same(got, reference)
        assert sum(m.op == "build" and m.type.dtype == "f32" for m in walk(transformed(program.emit))) - (
            1 if "sum" not in lines[-1] else 0) == stored
