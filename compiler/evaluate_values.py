"""The definition of the language, values: level 1 interpreted with NumPy, slowly and obviously.

`Evaluator` gives the values of one frame, `constant(node)` a closed node's value; streams are in `evaluate`. Every other
way to run a program is tested against this one, bit for bit where no library is called.

A binder is an axis: below b binders a scalar is an array of b axes (1 long where the value doesn't depend on the binder), a
tensor has its dims behind them. `select`, `fill`, `and`, `or` evaluate their sides only where they are chosen: `Context.active`
says where a value is asked for, and nothing can fail elsewhere. Missing is a mask beside the values.
"""
from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce as fold_left
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..dsl.problems import Span
from ..dsl.types import Type
from ..kernels import random, reduce
from ..kernels.ops import OPERATORS, BadRecord
from ..kernels.scalar import ARRAYS, NUMPY, SCALARS, cast, cast_overflows, literal, overflows
from ..runtime.blocks import affordable, too_large
from ..runtime.errors import DataError, Where
from ..runtime.limits import show_size
from .graph import Node, walk

_EMPTY_OBJECT = {"bytes": b"", "text": "", "path": ""}
_OF_TEXTS: dict[str, Any] = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
                             "ge": np.greater_equal}


@dataclass(frozen=True)
class Cells:
    """A value at every place of a context: an array, a mask where it may be missing, or the parts of a struct."""

    values: Any = None
    missing: Any = None
    parts: Mapping[str, Cells] | None = None


@dataclass(frozen=True)
class Frame:
    """What values are functions of: one record's fields, or one batch's."""

    fields: Mapping[str, Cells] = field(default_factory=dict)
    id: int = 0
    count: int = 1
    epoch: int = 0
    seed: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    spans: Mapping[Node, tuple[Span, ...]] = field(default_factory=dict)
    weights: Mapping[str, Mapping[int, float]] = field(default_factory=dict)   # by name, by id


@dataclass
class Context:
    """The binders around a value, outermost first: their ids and extents, or, at one place, their values."""

    ids: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()
    active: Any = None                                     # bool array of as many axes, some 1 long
    places: Mapping[int, int] = field(default_factory=dict)  # binders fixed to one value
    known: dict[Node, Cells] = field(default_factory=dict)

    @property
    def axes(self) -> int:
        return len(self.ids)

    @property
    def idle(self) -> bool:
        """No place asks for a value."""
        return 0 in self.extents or not self.active.any()

    def where(self, mask: Any) -> Context:
        """The same places, those that `mask` leaves out no longer asking; what is known stays known."""
        return Context(self.ids, self.extents, self.active & mask, self.places, dict(self.known))

    def inside(self, ids: tuple[int, ...], extents: tuple[int, ...]) -> Context:
        """Below more binders."""
        active = self.active.reshape(self.active.shape + (1,) * len(ids))
        return Context(self.ids + ids, self.extents + extents, active, self.places)

    def at(self, place: tuple[int, ...]) -> Context:
        """One place alone."""
        return Context((), (), np.array(True), {**self.places, **dict(zip(self.ids, place, strict=True))})


_free: WeakKeyDictionary[Node, frozenset[int]] = WeakKeyDictionary()
_certain: WeakKeyDictionary[Node, frozenset[Node]] = WeakKeyDictionary()


def free(n: Node) -> frozenset[int]:
    """Ids of the binders that a node's value depends on."""
    if n not in _free:
        for m in walk(n):
            found = frozenset((m["id"],)) if m.op == "var" else frozenset[int]().union(*(_free[a] for a in m.args))
            _free[m] = found - frozenset(m["ids"]) if m.op in ("build", "reduce") else found
    return _free[n]


def certain(n: Node) -> frozenset[Node]:
    """Nodes that are evaluated whenever `n` is, at the same places. Both sides of a `select` share them."""
    if n not in _certain:
        for m in walk(n):
            if m not in _certain:
                _certain[m] = _certain_below(m)
    return _certain[n] | {n}


def _certain_below(n: Node) -> frozenset[Node]:
    args, both = n.args, frozenset[Node]()
    if n.op == "select":
        both, args = certain(n.args[1]) & certain(n.args[2]), n.args[:1]
    elif n.op == "fill" or (n.op == "apply" and n["fn"] in ("and", "or")):
        args = n.args[:1]
    elif n.op in ("build", "reduce"):
        args = n.args[1:]
    return both.union(*map(certain, args))


class Evaluator:
    """Values of one frame. Closed nodes are evaluated once, when a place first asks for them."""

    def __init__(self, frame: Frame):
        self.frame = frame
        self.root = Context(active=np.array(True))
        self.calls: dict[Any, list[Any]] = {}

    def value(self, n: Node) -> Cells:
        """The value of a node without free binders. Raises DataError."""
        return self.chain(self.root, n)

    def scalar(self, n: Node) -> Any:
        """The same as a Python value."""
        return self.value(n).values.item()

    def at(self, c: Context, n: Node) -> Cells:
        """The value of a node at the places of a context."""
        if c is not self.root and not free(n) and not c.idle:
            return _widened(self.at(self.root, n), n, c.axes)
        found = c.known.get(n)
        if found is None:
            found = self._nothing(c, n) if c.idle else getattr(self, "_" + n.op)(c, n)
            c.known[n] = found
        return found

    def chain(self, c: Context, n: Node) -> Cells:
        """The same as `at`, args before their users, so that a long chain of lines isn't a deep recursion."""
        if n not in c.known and not c.idle:
            for m in sorted(certain(n), key=lambda m: m.number):
                self.at(c, m)
        return self.at(c, n)

    def fail(self, code: str, title: str, n: Node, label: str = "") -> DataError:
        spans = self.frame.spans.get(n, ())
        where = Where(spans[0].file, spans[0].start, spans[0].end) if spans else None
        return DataError(code, title, where, label)

    def _nothing(self, c: Context, n: Node) -> Cells:
        """Any value, for no place: right in dtype and dims."""
        if n.type.dtype == "struct":
            return Cells(parts={name: Cells(np.zeros((1,) * c.axes)) for name, _ in n.type.parts})
        dims = tuple(d if isinstance(d, int) else self._size(d) for d in n.type.dims)
        values = np.zeros((1,) * c.axes + dims, NUMPY[n.type.dtype])
        if n.type.dtype in _EMPTY_OBJECT:
            values.fill(_EMPTY_OBJECT[n.type.dtype])
        return Cells(values, np.ones(values.shape, np.bool_) if n.type.missing else None)

    def _size(self, dim: Node) -> int:
        return 1 if free(dim) else int(self.scalar(dim))

    # --- leaves ---------------------------------------------------------------------------------

    def _const(self, c: Context, n: Node) -> Cells:
        value = n["value"]
        flat = np.empty(len(value) if isinstance(value, tuple) else 1, NUMPY[n.type.dtype])
        values = value if isinstance(value, tuple) else (value,)
        with np.errstate(over="ignore"):
            flat[:] = literal(values, n.type.dtype) if flat.dtype != object else values
        return Cells(flat.reshape(tuple(n.type.dims)))

    def _field(self, c: Context, n: Node) -> Cells:
        return self.frame.fields[n["name"]]

    def _count(self, c: Context, n: Node) -> Cells:
        return Cells(np.array(self.frame.count, np.int64))

    def _epoch(self, c: Context, n: Node) -> Cells:
        return Cells(np.array(self.frame.epoch, np.int64))

    def _weight(self, c: Context, n: Node) -> Cells:
        given = self.frame.weights.get(n["name"], {})
        return Cells(np.array(given.get(self.frame.id, n["default"]), np.float32))

    def _param(self, c: Context, n: Node) -> Cells:
        return Cells(np.array(self.frame.params[n["name"]], NUMPY[n.type.dtype]))

    def _extent(self, c: Context, n: Node) -> Cells:
        if n.get("field") is not None:
            size = np.shape(self.frame.fields[n["field"]].values)[n["axis"]]
            return Cells(np.array(size, np.int64))
        if c.axes and free(n):
            return self._each_place(c, n)
        result = self._called(c, n["op"], n)
        part = result.parts[n["part"]] if result.parts and n["part"] else result
        return Cells(np.array(part.values.shape[n["axis"]], np.int64))

    def _var(self, c: Context, n: Node) -> Cells:
        id = n["id"]
        if id in c.places:
            return Cells(np.full((1,) * c.axes, c.places[id], np.int64))
        axis = c.ids.index(id)
        shape = [1] * c.axes
        shape[axis] = c.extents[axis]
        return Cells(np.arange(c.extents[axis], dtype=np.int64).reshape(shape))

    def _draw(self, c: Context, n: Node) -> Cells:
        distribution = random.DRAWS[n["dist"]]
        if c.axes and distribution.expand is None and free(n):
            return self._each_place(c, n)
        args = [self.at(c, a).values for a in n.args]
        params, indexes = args[: len(args) - n["indexes"]], args[len(args) - n["indexes"] :]
        params = [cast(p, dtype) for p, dtype in zip(params, distribution.dtypes, strict=True)]
        with np.errstate(all="ignore"):
            if (distribution.empty(ARRAYS, *params) & c.active).any():
                raise self.fail("E0804", f"nothing to draw from: the bounds of `{n['dist']}` are empty", n)
            place = random.fold(ARRAYS, indexes)
        key = random.draw_key(self.frame.seed, n["path"], self.frame.epoch)
        return Cells(cast(distribution.ref(key, self.frame.id, place, *params), n.type.dtype))

    # --- scalars --------------------------------------------------------------------------------

    def _apply(self, c: Context, n: Node) -> Cells:
        fn = n["fn"]
        if fn in ("and", "or"):
            return self._and_or(c, n)
        args = [self.at(c, a).values for a in n.args]
        if args[0].dtype == object:
            return Cells(np.asarray(_OF_TEXTS[fn](args[0], args[1]), np.bool_))
        if all(a.dtype.kind in "iu" for a in args) and (overflows(fn, *args) & c.active).any():
            raise self.fail("E0802", "integer past i64", n)
        return Cells(cast(SCALARS[fn].ref(*args), n.type.dtype))

    def _and_or(self, c: Context, n: Node) -> Cells:
        first = self.at(c, n.args[0]).values
        asked = first if n["fn"] == "and" else ~first
        second = self.at(c.where(asked), n.args[1]).values
        return Cells(first & second if n["fn"] == "and" else first | second)

    def _cast(self, c: Context, n: Node) -> Cells:
        x = self.at(c, n.args[0])
        mode, dtype = n["mode"], n.type.dtype
        if mode == "exact" and dtype == "i64" and (cast_overflows(x.values, dtype) & c.active).any():
            raise self.fail("E0802", "integer past i64", n)
        return Cells(x.values if x.values.dtype == object else cast(x.values, dtype, mode), x.missing)

    def _select(self, c: Context, n: Node) -> Cells:
        condition = self.at(c, n.args[0]).values
        for shared in sorted(certain(n.args[1]) & certain(n.args[2]), key=lambda s: s.number):
            if free(shared):
                self.at(c, shared)
        a, b = self.at(c.where(condition), n.args[1]), self.at(c.where(~condition), n.args[2])
        return _chosen(condition, a, b)

    def _index(self, c: Context, n: Node) -> Cells:
        tensor = self.at(c, n.args[0])
        indexes = [self.at(c, i).values for i in n.args[1:]]
        dims = tensor.values.shape[c.axes :]
        inside = fold_left(lambda m, p: m & (p[0] >= 0) & (p[0] < p[1]), zip(indexes, dims, strict=True), np.True_)
        outside = ~np.asarray(inside)
        if not n["guard"] and (outside & c.active).any():
            raise AssertionError(f"{n!r} reads outside of {dims}")
        shape = np.broadcast_shapes(tensor.values.shape[: c.axes], *(i.shape for i in indexes))
        if 0 in dims:
            return Cells(np.zeros((1,) * c.axes, tensor.values.dtype), np.ones(shape, np.bool_))
        around = [np.zeros((1,) * c.axes, np.int64) if size == 1 else np.arange(size).reshape(_alone(c.axes, axis, size))
                  for axis, size in enumerate(tensor.values.shape[: c.axes])]
        at = (*around, *(np.clip(i, 0, d - 1) for i, d in zip(indexes, dims, strict=True)))
        missing = None if tensor.missing is None else np.broadcast_to(tensor.missing, tensor.values.shape)[at]
        if n["guard"]:
            missing = outside if missing is None else outside | missing
        values = tensor.values[at] if at else tensor.values
        return Cells(_array(values, n.type.dtype) if n.type.dtype in _EMPTY_OBJECT else values, missing)

    def _fill(self, c: Context, n: Node) -> Cells:
        x = self.at(c, n.args[0])
        if x.missing is None:
            return Cells(x.values)
        default = self.at(c.where(x.missing), n.args[1])
        return _chosen(x.missing, default, Cells(x.values))

    def _missing(self, c: Context, n: Node) -> Cells:
        x = self.at(c, n.args[0])
        return Cells(np.zeros((1,) * c.axes, np.bool_) if x.missing is None else np.asarray(x.missing))

    # --- tensors --------------------------------------------------------------------------------

    def _build(self, c: Context, n: Node) -> Cells:
        extents = self._extents(c, n)
        if extents is None:
            return self._each_place(c, n)
        inner = c.inside(n["ids"], extents)
        body = self.chain(inner, n.args[0])
        return Cells(*(None if a is None else _spread(a, c.axes, extents) for a in (body.values, body.missing)))

    def _reduce(self, c: Context, n: Node) -> Cells:
        extents = self._extents(c, n)
        if extents is None:
            return self._each_place(c, n)
        body = _spread(self.chain(c.inside(n["ids"], extents), n.args[0]).values, c.axes, extents)
        flat = body.reshape((*body.shape[: c.axes], int(np.prod(extents))))
        if flat.dtype.kind in "iu":
            flat = flat.astype(np.int64)
        result, bad = reduce.reference(n["kind"], flat)
        if n["kind"] in ("sum", "prod") and (bad & c.active).any():
            raise self.fail("E0802", "integer past i64", n)
        return Cells(cast(result, n.type.dtype), np.asarray(bad) if n.type.missing else None)

    def _extents(self, c: Context, n: Node) -> tuple[int, ...] | None:
        """Sizes of the binders of a build or reduce; None where they differ from place to place."""
        if c.axes and any(free(e) for e in n.args[1:]):
            return None
        extents = tuple(int(self.at(c, e).values.reshape(())) for e in n.args[1:])
        size = 8 * math.prod(extents)
        if not affordable(size):   # every place is kept here, where kernels may keep none
            bad = too_large(show_size(size))
            raise self.fail(bad.code, bad.reason, n, bad.label)
        return extents

    # --- calls ----------------------------------------------------------------------------------

    def _call(self, c: Context, n: Node) -> Cells:
        return self._each_place(c, n) if c.axes and free(n) else self._called(c, n["op"], n)

    def _called(self, c: Context, op: str, n: Node) -> Cells:
        """The result of operator `op` on the args of `n`, at the one place of `c`."""
        made = self.calls.setdefault((op, n.args, tuple(sorted(c.places.items()))), [])
        if not made:
            args = [_argument(self.at(c, a), a.type) for a in n.args]
            try:
                made.append(OPERATORS[op].ref(*args))
            except BadRecord as bad:
                raise self.fail(bad.code, bad.reason, n, bad.label) from bad
        return _result(made[0], n.type) if n.op == "call" else _sizes(made[0], op)

    def _extern(self, c: Context, n: Node) -> Cells:
        if c.axes and free(n):
            return self._each_place(c, n)
        target = n["target"]
        module, name = target.split(":")
        args = [_argument(self.at(c, a), a.type) for a in n.args]
        try:
            result = getattr(importlib.import_module(module), name)(*args)
        except BadRecord as bad:
            raise self.fail(bad.code, bad.reason, n, bad.label) from bad
        except Exception as error:
            raise self.fail("E0811", f"`{target}` raised {type(error).__name__}: {str(error)[:200]}", n) from error
        got = np.asarray(result)
        wanted = [d if isinstance(d, int) else None for d in n.type.dims]
        if got.dtype != NUMPY[n.type.dtype] or got.ndim != len(wanted) or any(
                w is not None and w != g for w, g in zip(wanted, got.shape, strict=True)):
            raise self.fail("E0811", f"`{target}` returned {got.dtype}{list(got.shape)}", n)
        return Cells(got)

    def _part(self, c: Context, n: Node) -> Cells:
        parts = self.at(c, n.args[0]).parts
        assert parts is not None
        return parts[n["name"]]

    def _each_place(self, c: Context, n: Node) -> Cells:
        """The value of `n` at one place after another, for what isn't done on whole grids."""
        grid = tuple(e if id in free(n) else 1 for id, e in zip(c.ids, c.extents, strict=True))
        active = np.broadcast_to(c.active, np.broadcast_shapes(c.active.shape, grid))
        asked: Any = active.any(tuple(a for a, g in enumerate(grid) if g == 1), keepdims=True)
        results = {place: self.at(c.at(place), n) for place in np.ndindex(*grid) if asked[place]}
        return _stacked(results, grid, n)


def constant(n: Node) -> Any:
    """The value of a node that depends on no field: a Python value, a flat tuple (C order), or None where it is missing.

    Raises DataError where evaluating it fails.
    """
    cells = Evaluator(Frame()).value(n)
    if n.type.is_scalar:
        return None if cells.missing is not None and cells.missing.any() else cells.values.item()
    return tuple(cells.values.reshape(-1).tolist())


def _array(values: Any, dtype: str) -> Any:
    """An array of this dtype; a text or bytes alone stays one object."""
    if NUMPY[dtype].kind != "O":
        return np.asarray(values, NUMPY[dtype])
    out = np.empty(np.shape(values) if isinstance(values, list | np.ndarray) else (), object)
    out[...] = values
    return out


def _argument(x: Cells, type: Type) -> Any:
    """What an operator's `ref` gets: an array, a Python scalar, None for a missing scalar, masked arrays where elements miss."""
    if x.parts is not None:
        return tuple(_argument(p, t) for p, (_, t) in zip(x.parts.values(), type.parts, strict=True))
    if type.is_scalar:
        return None if x.missing is not None and x.missing.any() else np.asarray(x.values).reshape(()).item()
    return x.values if x.missing is None else np.ma.MaskedArray(x.values, x.missing)


def _result(made: Any, type: Type) -> Cells:
    """An operator's result as cells: a tuple for a struct, else as `cells_of`."""
    if type.dtype == "struct":
        return Cells(parts={name: _result(part, t) for part, (name, t) in zip(made, type.parts, strict=True)})
    return cells_of(made, type)


def cells_of(made: Any, type: Type) -> Cells:
    """Cells of a value from outside: something with `values` and `mask`, a masked array, or None where a scalar is missing."""
    if made is None:
        return Cells(_array(_EMPTY_OBJECT.get(type.dtype, 0), type.dtype), np.array(True))
    if isinstance(made, np.ma.MaskedArray):
        return Cells(_array(made.data, type.dtype), np.ma.getmaskarray(made))
    if hasattr(made, "values") and hasattr(made, "mask"):
        return Cells(_array(made.values, type.dtype), np.asarray(made.mask))
    values = _array(made, type.dtype)
    return Cells(values, np.zeros(values.shape, np.bool_) if type.missing else None)


def _sizes(made: Any, op: str) -> Cells:
    """The result, of no matter what dtype, of a call that is asked for its extents."""
    if not isinstance(made, tuple):
        return Cells(np.asarray(made))
    names = re.findall(r"(\w+):", OPERATORS[op].head.split("->")[1])
    return Cells(parts={name: Cells(np.asarray(p)) for name, p in zip(names, made, strict=True)})


def _widened(x: Cells, n: Node, axes: int) -> Cells:
    """A value without binders at a place of `axes` binders."""
    if x.parts is not None:
        return Cells(parts={name: _widened(p, n, axes) for name, p in x.parts.items()})
    ones = (1,) * axes
    values = np.asarray(x.values).reshape(ones + np.shape(x.values))
    return Cells(values, None if x.missing is None else np.asarray(x.missing).reshape(ones + np.shape(x.missing)))


def _chosen(condition: Any, a: Cells, b: Cells) -> Cells:
    missing = None
    if a.missing is not None or b.missing is not None:
        missing = np.where(condition, *(False if x.missing is None else x.missing for x in (a, b)))
    return Cells(np.where(condition, a.values, b.values), missing)


def _spread(array: Any, axes: int, extents: tuple[int, ...]) -> Any:
    """`array` with the axes of the inner binders, `axes` and following, at their full extents."""
    return np.broadcast_to(array, array.shape[:axes] + extents + array.shape[axes + len(extents) :])


def _alone(axes: int, axis: int, size: int) -> tuple[int, ...]:
    """A shape that is 1 long everywhere but at one axis."""
    return tuple(size if a == axis else 1 for a in range(axes))


def _stacked(results: dict[tuple[int, ...], Cells], grid: tuple[int, ...], n: Node) -> Cells:
    """One value from those of single places; where nobody asks, anything."""
    some = next(iter(results.values()))
    if some.parts is not None:
        parts = {name: {p: r.parts[name] for p, r in results.items() if r.parts} for name in some.parts}
        return Cells(parts={name: _stacked(r, grid, n) for name, r in parts.items()})

    def gather(of: Callable[[Cells], Any]) -> Any:
        first = np.asarray(of(some))
        out = np.empty(grid + first.shape, first.dtype)
        out[...] = first
        for place, cells in results.items():
            made = of(cells)
            out[place] = made if first.shape else np.asarray(made)[()]   # of texts the text, not an array of it
        return out

    return Cells(gather(lambda r: r.values), None if some.missing is None else gather(lambda r: r.missing))
