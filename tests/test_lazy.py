"""Values that only some turns of a loop ask for are computed at the first that does, once, with the same results and failures."""
from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import agree, ap, build, defined, field, fill, if_, index, reduce, run, same
from pipec.compiler.emit_numba import walk
from pipec.compiler.graph import Node, node, number
from pipec.compiler.loops import Alloc
from pipec.compiler.lower import lower_frame
from pipec.dsl.types import I64


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


X, A = field("x", "i64", None), field("a", "i64")
N = node("extent", type=I64, field="x", axis=0)
BIG = ap("mul", ap("mul", A, A), ap("mul", A, A))      # past i64 where a is 2 ** 16


def table() -> Node:
    """A tensor that ends the record where `a` is large."""
    return build([N], lambda i: ap("add", ap("mod", BIG, number(1000)), index(X, i)))


def grid(asked: Any, t: Node, otherwise: Any = None) -> Node:
    return build([N, N], lambda i, j: if_(asked(i, j), index(t, j), number(-1) if otherwise is None else otherwise(i, j)))


def positive(i: Node) -> Node:
    return ap("gt", index(X, i), number(0))


RECORDS = [{"x": np.array(x, np.int64), "a": a}
           for x in ([], [-1], [1], [-1, -2, -3], [0, 3, 0, 5], [1, 2, 3]) for a in (3, 2**20)]


def test_fails_only_where_a_turn_asks() -> None:
    got = agree({"grid": grid(lambda i, j: ap("gt", index(X, j), index(X, i)), table())}, RECORDS)
    assert [isinstance(g, str) for g in got] == [len(set(r["x"])) > 1 and r["a"] > 3 for r in RECORDS]


def test_two_branches_share_it() -> None:
    t = table()
    out = grid(lambda i, j: positive(i), t, lambda i, j: if_(ap("lt", index(X, j), number(-1)), index(t, i), number(0)))
    agree({"out": out}, RECORDS)
    _, kernels = lower_frame("test", {"out": out}, [], {})
    assert sum(isinstance(s, Alloc) and not s.escapes for s in walk(kernels[0].body)) == 1


def test_one_of_them_needs_the_other() -> None:
    t = table()
    u = build([N], lambda i: ap("mul", index(t, ap("sub", ap("sub", N, number(1)), i)), number(3)))
    for first, second in ((t, u), (u, t)):
        agree({"out": grid(lambda i, j, f=first: positive(i), first, lambda i, j, s=second: index(s, i))}, RECORDS)


def test_masks_and_missing_scalars() -> None:
    t = build([N], lambda i: index(X, ap("sub", i, number(1)), guard=True))
    u = build([N], lambda i: ap("add", fill(index(t, i), 7), ap("mod", BIG, number(10))))
    place = reduce("first", [N], lambda i: ap("gt", index(u, i), number(4)), missing=True)
    agree({"out": grid(lambda i, j: positive(i), u, lambda i, j: fill(place, -5))}, RECORDS)


def test_what_a_loop_changes_is_made_for_each_of_its_turns() -> None:
    def row(i: Node) -> Node:
        t = build([N], lambda k: ap("add", ap("mul", ap("mul", index(X, i), BIG), number(2)), k))
        return build([N], lambda j: if_(positive(j), index(t, j), number(0)))

    agree({"out": build([N], row)}, RECORDS)


def test_sizes_that_may_fail() -> None:
    size = ap("add", ap("mod", BIG, number(3)), N)
    t = build([size], lambda i: ap("add", ap("mod", BIG, number(1000)), i))
    agree({"out": grid(lambda i, j: positive(i), t)}, RECORDS)


def test_work_is_done_once() -> None:
    """Lines that the kernel's text runs through in plain Python: for n² turns no more than a constant each."""
    t = build([N], lambda i: reduce("sum", [N], lambda j: ap("mul", index(X, i), index(X, j))))
    out = grid(lambda i, j: ap("lt", ap("mod", ap("add", i, j), number(3)), number(2)), t)
    record = {"x": np.arange(24, dtype=np.int64), "a": 1}
    lines = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line" and frame.f_code.co_filename == "<kernel>"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        got = run({"out": out}, [record], how="plain")
    finally:
        sys.settrace(before)
    same(got[0], defined({"out": out}, [record])[0])
    assert 24 * 24 < lines < 24 * 24 * 40


class Random:
    """Tensors that need one another, and a choice between them at each element."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.made: list[Node] = []
        for _ in range(int(self.rng.integers(2, 5))):
            self.made.append(build([N], lambda i: self.value(i, 2)))

    def condition(self, i: Node) -> Node:
        if self.rng.random() < 0.2:
            return ap("gt", reduce("sum", [N], lambda k: self.value(k, 0)), number(int(self.rng.integers(-5, 5))))
        return ap("lt", ap("mod", ap("add", index(X, i), number(int(self.rng.integers(9)))), number(4)), number(2))

    def value(self, i: Node, depth: int) -> Node:
        kind = int(self.rng.integers(6))
        if kind == 0 or not depth:
            return ap("mod", ap("add", BIG, i), number(50)) if self.rng.random() < 0.4 else index(X, i)
        if kind <= 3 and self.made:
            return index(self.made[int(self.rng.integers(len(self.made)))], i)
        if kind == 4:
            return ap("add", self.value(i, depth - 1), self.value(i, depth - 1))
        return if_(self.condition(i), self.value(i, depth - 1), self.value(i, depth - 1))

    def out(self) -> Node:
        def element(i: Node, j: Node) -> Node:
            return if_(self.condition(i), self.value(j, 3), if_(self.condition(j), self.value(i, 3), self.value(j, 3)))

        return build([N, N], element)


@pytest.mark.parametrize("seed", range(60))
def test_random_choices(seed: int) -> None:
    made = Random(seed)
    outputs = {"a": made.out(), "b": made.out()}
    for a, b in zip(run(outputs, RECORDS, how="plain"), defined(outputs, RECORDS), strict=True):
        same(a, b)


def test_random_choices_as_machine_code() -> None:
    agree({"a": Random(3).out(), "b": Random(8).out()}, RECORDS, plain=False)
