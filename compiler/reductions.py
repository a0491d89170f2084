"""Reductions in loop IR, in the order that `kernels.reduce` states: sixteen lanes, then a tree."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING

from ..kernels.reduce import LANES, identity
from ..kernels.scalar import add_overflow, mul_overflow
from .graph import Node, var
from .held import Scalar, held, rounded, zero
from .loops import Apply, Buffer, Const, Expr, Var, binary
from .statements import Frame
from .totality import HEAVY

if TYPE_CHECKING:
    from .values import Lowering

CHECKED = {"sum": add_overflow, "prod": mul_overflow}
COMBINE = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "any": "or", "all": "and"}
Visit = Callable[[Expr], None]


def reduction(low: Lowering, n: Node) -> Scalar:
    kind, dtype = n["kind"], _dtype(n)
    gone: Expr | None = None
    if kind in ("argmax", "argmin"):
        value: Expr = _arg(low, n, dtype)
    elif kind == "first":
        value, gone = _first(low, n)
    elif (places := _few(n)) is not None:
        value = rounded(_tree(low, n, [_start(kind, e) for e in _unrolled(low, n, places)]), n.type.dtype)
    elif dtype in ("i64", "bool") and not _may_pass(low, n):
        value = _plain(low, n, dtype)
    else:
        value = rounded(_lanes(low, n, dtype), n.type.dtype)
    if n.type.missing and kind != "first":
        gone = _total(low, n).eq(0)
    return Scalar(value, gone)


def _may_pass(low: Lowering, n: Node) -> bool:
    """May a step be past i64, in some order."""
    return _dtype(n) == "i64" and n["kind"] in CHECKED and not low.facts.fits(n)


def _dtype(n: Node) -> str:
    return held(n.args[0].type.dtype)


def _total(low: Lowering, n: Node) -> Expr:
    """How many elements there are."""
    total = low.expr(n.args[1])
    for e in n.args[2:]:
        total = total * low.expr(e)
    return total


def _few(n: Node) -> list[tuple[int, ...]] | None:
    """All places of a reduction over at most one element per lane, and at least one."""
    sizes = []
    for e in n.args[1:]:
        if e.op != "const":
            return None
        sizes.append(range(int(e["value"])))
    count = 1
    for s in sizes:
        count *= len(s)
    return list(product(*sizes)) if 1 <= count <= LANES else None


@contextmanager
def _bound(low: Lowering, ids: Sequence[int], values: Sequence[Expr]) -> Iterator[None]:
    """Binders with given values, for the statements that follow in this list."""
    frame = Frame(low.k.body, frozenset(ids))
    for id, v in zip(ids, values, strict=True):
        frame.scalars[var(id)] = Scalar(v)
    low.frames.append(frame)
    try:
        yield
    finally:
        low.frames.pop()


def _unrolled(low: Lowering, n: Node, places: list[tuple[int, ...]]) -> list[Expr]:
    elements = []
    for place in places:
        with _bound(low, n["ids"], [Const(i, "i64") for i in place]):
            elements.append(low.expr(n.args[0]))
    return elements


def _start(kind: str, e: Expr) -> Expr:
    """combine(identity, e), which is `e` itself but for the sign of a sum's zero."""
    return Const(0.0, e.dtype) + e if kind == "sum" and e.dtype != "bool" else e


def _combined(low: Lowering, n: Node, a: Expr, b: Expr) -> Expr:
    """One step; a record whose step is past i64 ends here."""
    if _may_pass(low, n):
        a, b = low.local(a), low.local(b)
        with low.branch(CHECKED[n["kind"]](low.k, a, b)):
            low.k.fail(low.site("E0802", f"`{n['kind']}` is past i64", n))
    return binary(COMBINE[n["kind"]], a, b)


def _tree(low: Lowering, n: Node, lanes: list[Expr]) -> Expr:
    """The lanes that have an element; combining with a lane that has none changes nothing."""
    half = LANES // 2
    while half:
        first, second = lanes[:half], lanes[half : 2 * half]
        lanes = [_combined(low, n, a, second[j]) if j < len(second) else a for j, a in enumerate(first)]
        half //= 2
    return lanes[0]


def _loops(low: Lowering, n: Node, visit: Callable[[], None]) -> None:
    """Every place of the binders, in order."""

    def nest(rest: list[tuple[int, Node]]) -> None:
        if not rest:
            return visit()
        (id, extent), *inner = rest
        with low.loop(low.expr(extent), id, "k"):
            nest(inner)

    nest(list(zip(n["ids"], n.args[1:], strict=True)))


def _plain(low: Lowering, n: Node, dtype: str) -> Var:
    """Where no order can be seen."""
    total = low.k.let(Const(identity(n["kind"], dtype), dtype), n["kind"])
    _loops(low, n, lambda: low.k.set(total, _combined(low, n, total, low.expr(n.args[0]))))
    return total


def _arg(low: Lowering, n: Node, dtype: str) -> Var:
    best, place, k = low.k.let(zero(dtype), "best"), low.k.let(0, "place"), low.k.let(0, "k")

    def visit() -> None:
        e = low.local(low.expr(n.args[0]))
        better = k.eq(0) | (e > best if n["kind"] == "argmax" else e < best)
        if dtype != "i64":
            better = better | (e.ne(e) & best.eq(best))   # the first nan beats every number
        with low.branch(better):
            low.k.set(best, e)
            low.k.set(place, k)
        low.k.set(k, k + 1)

    _loops(low, n, visit)
    return place


def _first(low: Lowering, n: Node) -> tuple[Expr, Expr]:
    place, gone, k = low.k.let(0, "place"), low.k.let(Const(True, "bool"), "gone"), low.k.let(0, "k")

    def visit() -> None:
        with low.branch(gone & low.expr(n.args[0])):
            low.k.set(place, k)
            low.k.set(gone, Const(False, "bool"))
        low.k.set(k, k + 1)

    _loops(low, n, visit)
    return place, gone


def _lanes(low: Lowering, n: Node, dtype: str) -> Var:
    kind, k = n["kind"], low.k
    lanes = k.scratch(dtype, LANES, hint="lanes")
    with k.loop(LANES, "lane") as lane:
        k.put(lanes, lane, Const(identity(kind, dtype), dtype))
    if low.facts.cost(n.args[0]) >= HEAVY:
        _one_by_one(low, n, lanes)
    else:
        _by_rows(low, n, lanes)
    for half in (8, 4, 2, 1):
        with k.loop(half, "lane") as lane:
            k.put(lanes, lane, _combined(low, n, lanes.at(lane), lanes.at(lane + half)))
    return k.let(lanes.at(0), kind)


def _one_by_one(low: Lowering, n: Node, lanes: Buffer) -> None:
    count = low.k.let(0, "count")

    def visit() -> None:
        e = low.local(low.expr(n.args[0]))
        lane = low.local(Apply("bitand", (count, Const(LANES - 1, "i64")), "i64"))
        low.k.put(lanes, lane, _combined(low, n, lanes.at(lane), e))
        low.k.set(count, count + 1)

    _loops(low, n, visit)


def _by_rows(low: Lowering, n: Node, lanes: Buffer) -> None:
    """The last binder in blocks that begin at lane 0, so that a block is one vector operation."""
    *outer, (last, extent) = zip(n["ids"], n.args[1:], strict=True)
    k = low.k
    size = low.local(low.expr(extent))
    done = k.let(0, "done")   # elements before this row

    def put(lane: Expr, at: Expr) -> None:
        with _bound(low, [last], [low.local(at)]):
            k.put(lanes, lane, _combined(low, n, lanes.at(lane), low.expr(n.args[0])))

    def row() -> None:
        offset = k.let(Apply("bitand", (done, Const(LANES - 1, "i64")), "i64"), "offset")
        head = k.let(Const(0, "i64"), "head")
        if outer:
            gap = Apply("bitand", (LANES - offset, Const(LANES - 1, "i64")), "i64")
            k.set(head, Apply("min", (size, gap), "i64"))
            with k.loop(head, "x") as x:
                put(offset + x, x)
        blocks = k.let(Apply("shr", (size - head, Const(4, "i64")), "i64"), "blocks")
        with k.loop(blocks, "block") as block:
            begin = k.let(head + block * LANES, "begin")
            with k.loop(LANES, "lane") as lane:
                put(lane, begin + lane)
        tail = k.let(head + blocks * LANES, "tail")
        with k.loop(size - tail, "lane") as lane:
            put(lane, tail + lane)
        k.set(done, done + size)

    def nest(rest: list[tuple[int, Node]]) -> None:
        if not rest:
            return row()
        (id, e), *inner = rest
        with low.loop(low.expr(e), id, "k"):
            nest(inner)

    nest(outer)
