"""Small graphs by hand, run three ways: as machine code, as the kernels' text in plain Python, by the definition."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pipec.compiler import emulate, native
from pipec.compiler.emit_numba import kernel_text
from pipec.compiler.evaluate import Cells, Evaluator, Frame
from pipec.compiler.graph import Node, const, fresh_id, node, number, var
from pipec.compiler.lower import lower_frame
from pipec.dsl.types import BOOL, F32, I64, Type
from pipec.kernels.random import draw_key
from pipec.kernels.scalar import SCALARS
from pipec.runtime import execute, objects
from pipec.runtime.blocks import DTYPES
from pipec.runtime.errors import DataError
from pipec.runtime.held import Gaps


def ap(fn: str, *args: Any) -> Node:
    """A scalar function of nodes and Python numbers (which take the first node's type)."""
    typed = next(a for a in args if isinstance(a, Node)).type
    nodes = [a if isinstance(a, Node) else const(float(a) if typed.dtype[0] != "i" else a, typed) for a in args]
    return node("apply", *nodes, type=BOOL if SCALARS[fn].result == "bool" else typed, fn=fn)


def field(name: str, dtype: str, *dims: Any, missing: bool = False) -> Node:
    """A field; a dim None is a size of its own."""
    sizes = tuple(node("extent", type=I64, field=name, axis=i) if d is None else d for i, d in enumerate(dims))
    return node("field", type=Type(dtype, sizes, missing), name=name)


def cast(x: Node, dtype: str, mode: str = "exact") -> Node:
    return node("cast", x, type=replace(x.type, dtype=dtype), mode=mode)


def index(t: Node, *places: Any, guard: bool = False) -> Node:
    at = [p if isinstance(p, Node) else number(p) for p in places]
    return node("index", t, *at, type=replace(t.type.element, missing=t.type.missing or guard), guard=guard)


def extents(dims: Sequence[Any]) -> list[Node]:
    return [d if isinstance(d, Node) else number(d) for d in dims]


def build(dims: Sequence[Any], body: Callable[..., Node]) -> Node:
    ids = tuple(fresh_id() for _ in dims)
    made = body(*map(var, ids))
    sizes = tuple(d["value"] if isinstance(d, Node) and d.op == "const" else d for d in dims)
    return node("build", made, *extents(dims), type=made.type.with_dims(sizes + made.type.dims), ids=ids)


def reduce(kind: str, dims: Sequence[Any], body: Callable[..., Node], missing: bool = False) -> Node:
    ids = tuple(fresh_id() for _ in dims)
    made = body(*map(var, ids))
    result = {"argmax": I64, "argmin": I64, "first": I64}.get(kind, made.type)
    return node("reduce", made, *extents(dims), type=replace(result, missing=missing), ids=ids, kind=kind)


def if_(c: Node, a: Node, b: Node) -> Node:
    return node("select", c, a, b, type=a.type)


def fill(x: Node, default: Any) -> Node:
    d = default if isinstance(default, Node) else const(default, x.type.present())
    return node("fill", x, d, type=x.type.present())


def f32(value: float) -> Node:
    return const(value, F32)


def held(n: Node, value: Any) -> Any:
    """A field's value as the executor takes it."""
    if isinstance(value, np.ma.MaskedArray):
        return Gaps(np.array(value.data), np.array(np.ma.getmaskarray(value)))
    return np.asarray(value, DTYPES[n.type.dtype]) if n.type.dtype in DTYPES else value


def cells(n: Node, value: Any) -> Cells:
    if isinstance(value, np.ma.MaskedArray):
        return Cells(np.asarray(value.data), np.ma.getmaskarray(value))
    array = np.asarray(value, DTYPES[n.type.dtype]) if n.type.dtype in DTYPES else np.array(value, object)
    return Cells(array, np.zeros(array.shape, bool) if n.type.missing else None)


def run(outputs: dict[str, Node], records: Sequence[dict[str, Any]], requires: Any = (), how: Any = "native",
        seed: int = 5, epoch: int = 1, params: Any = None, count: int = 1) -> list[Any]:
    """Per record: {name: array or (array, mask)}, the code of the site where it failed, or None where it was left out.

    `how`: "native", "plain", or a function that gives callables for kernels by name.
    """
    program, kernels = lower_frame("test", outputs, list(requires), {})
    if callable(how):
        loaded = how(kernels)
    else:
        plain = {k.name: emulate.load(kernel_text(k)) for k in kernels} if how == "plain" else None
        loaded = plain or objects.load(native.build(kernels))
    runner = execute.Runner(program, loaded, params, allow_extern=True)
    runner.start_epoch(epoch, [draw_key(seed, path, epoch) for path in program.draws])
    frames = runner.frames(len(records), np.arange(len(records), dtype=np.uint64), np.full(len(records), count))
    types = {n["name"]: n for n in _fields(outputs, requires)}
    for name, slot in program.inputs:
        runner.give(frames, slot, [held(types[name], r[name]) for r in records])
    runner.run(frames)
    slots = {s.name: s for s in program.slots}
    results: list[Any] = []
    for r in range(len(records)):
        if frames.status[r]:
            results.append(program.sites[frames.status[r] - 1].code if frames.status[r] > 0 else None)
            continue
        one = {}
        for name, slot in program.outputs:
            value = np.array(runner.value(frames, slot, r))
            missing = slots[slot].missing
            one[name] = (value, np.array(runner.mask(frames, slot, r)).reshape(value.shape)) if missing else value
        results.append(one)
    return results


def _fields(outputs: dict[str, Node], requires: Any) -> list[Node]:
    from pipec.compiler.lower import reachable

    return [n for n in reachable(*outputs.values(), *(c for _, c in requires)) if n.op == "field"]


def defined(outputs: dict[str, Node], records: Sequence[dict[str, Any]], requires: Any = (), seed: int = 5,
            epoch: int = 1, params: Any = None, count: int = 1) -> list[Any]:
    """The same by the evaluator."""
    types = {n["name"]: n for n in _fields(outputs, requires)}
    results: list[Any] = []
    for r, record in enumerate(records):
        fields = {name: cells(types[name], record[name]) for name in types}
        e = Evaluator(Frame(fields, r, count, epoch, seed, params or {}))
        try:
            kept: Any = {}
            for kind, condition in requires:
                if not e.scalar(condition):
                    kept = None if kind == "where" else "E0805"
                    break
            if kept == {}:
                for name, n in outputs.items():
                    c = e.value(n)
                    kept[name] = (c.values, c.missing) if n.type.missing else c.values
            results.append(kept)
        except DataError as error:
            results.append(error.code)
    return results


def same(a: Any, b: Any) -> None:
    """Bit for bit (nan = nan); values below a mask may be anything."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            same(a[name], b[name])
    elif isinstance(a, tuple):
        assert np.array_equal(a[1], np.broadcast_to(b[1], a[1].shape))
        same(np.where(a[1], np.zeros((), a[0].dtype), a[0]), np.where(b[1], np.zeros((), b[0].dtype), b[0]))
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == np.shape(b), (a.dtype, b.dtype, a.shape, np.shape(b))
        nan = np.isnan(a.astype(np.float64)) if a.dtype.kind in "fV" else np.zeros(a.shape, bool)
        bits = f"u{a.dtype.itemsize}"
        ours, theirs = np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits)
        if nan.any():
            assert np.array_equal(nan, np.isnan(np.asarray(b).astype(np.float64)))
        assert np.array_equal(ours[~nan], theirs[~nan]), (a, b)
    else:
        assert a == b, (a, b)


def agree(
    outputs: dict[str, Node], records: Sequence[dict[str, Any]], requires: Any = (), plain: bool = True, **rest: Any
) -> list[Any]:
    """Check all three ways against each other; the results."""
    expected = defined(outputs, records, requires, **rest)
    for how in ("native", "plain") if plain else ("native",):
        for a, b in zip(run(outputs, records, requires, how, **rest), expected, strict=True):
            same(a, b)
    return expected
