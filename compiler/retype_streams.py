"""Streams of graphs from anywhere, checked like programs: what each stage delivers must follow from what it gets."""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..dsl.types import BOOL, DTYPES, I64, Type
from .graph import STREAM_OPS, Node, ParamInfo, walk
from .retype import Checked, Values, dims_within, need, plain_dim, same_dims, wrong
from .sources import KINDS

SAME_FRAME = ("where", "check", "shuffle", "take", "repeat", "shard", "skip_bad", "balance", "share")
COLUMN = re.compile(r"(?P<dtype>[a-z0-9]+)(?P<gap>\?)?(?:\[(?P<dims>[^\[\]]*)\])?")
MOST_STREAMS = 2_000
Fields = dict[str, Type]


class Streams:
    """Checks the streams below an `emit`, the first ones first."""

    def __init__(self, params: Mapping[str, ParamInfo], seeded: bool, done: Checked):
        self.params, self.seeded, self.done = params, seeded, done
        self.shared: dict[Node, bool] = {}    # stream → does it stand below `share`

    def emit(self, emit: Node) -> None:
        streams = [n for n in walk(emit) if n.op in STREAM_OPS]
        need(len(streams) <= MOST_STREAMS, emit, "comes through too many stages")
        for n in streams:
            inputs = [a for a in n.args if a.op in STREAM_OPS]
            self.shared[n] = n.op == "share" or any(self.shared[a] for a in inputs)
            if n.op == "share":
                need(sum(s.op == "share" for s in streams) == 1, n, "stands twice")
            need(n is emit or n.op != "emit", n, "stands in the middle")
            fields = dict(n.type.parts)
            need(n.type.dtype == "stream" and not n.type.dims and len(fields) == len(n.type.parts), n, "isn't a stream")
            for type in fields.values():
                self._field_type(n, type)
            self.one(n, fields)
            self.values(n, fields, [d for t in fields.values() for d in dims_within(t)])

    def _field_type(self, n: Node, type: Type) -> None:
        need(type.dtype in DTYPES and not type.weak and not type.parts, n, "has a field that is no value")
        for d in type.dims:
            good = 0 <= d < 1 << 40 if isinstance(d, int) else d.type == I64
            need(good, n, "has a field of no size")

    def values(self, frame: Node, fields: Fields, roots: Sequence[Node]) -> None:
        """Check values of the frame that a stream delivers."""
        open_ = self.params if self.shared[frame] else {}
        values = Values(fields, open_, self.seeded, self.done.equal.setdefault(frame, []))
        for root in roots:
            values.check(root)

    def one(self, n: Node, fields: Fields) -> None:
        rule = _RULES[n.op]
        if n.op in SAME_FRAME or n.op in ("each", "batch", "window", "pack", "map", "emit"):
            need(bool(n.args) and n.args[0].op in STREAM_OPS, n, "reads no stream")
            need(not any(a.op in STREAM_OPS for a in n.args[1:]), n, "reads more than one stream")
            before = dict(n.args[0].type.parts)
            self.values(n.args[0], before, n.args[1:])
            if n.op in SAME_FRAME:
                need(n.type == n.args[0].type, n, "changes the fields")
            rule(self, n, before, fields)
        else:
            rule(self, n, {}, fields)

    # --- the same frame ---

    def condition(self, n: Node, before: Fields, fields: Fields) -> None:
        need(len(n.args) == 2 and n.args[1].type == BOOL, n, "needs one condition")
        need(n.op == "where" or n.get("code") in ("E0803", "E0805"), n, "has an unknown code")

    def order(self, n: Node, before: Fields, fields: Fields) -> None:
        known: dict[str, dict[str, Callable[[Any], bool]]] = {
            "shuffle": {"chunk": _count, "mix": _count, "window": _count, "key": _text},
            "take": {}, "shard": {}, "share": {}, "repeat": {"has": lambda v: v in ((), ("n",))},
            "skip_bad": {"at_most": lambda v: isinstance(v, float) and 0 <= v <= 1},
            "balance": {"field": lambda v: v in before, "key": _text},
        }
        _attrs(n, known[n.op])
        need(n.op != "share" or n.get("end", "") in ("", "drop", "pad", "uneven"), n, "has an unknown `end`")
        many = {"take": 1, "balance": 1, "repeat": len(n.get("has", ()))}.get(n.op, 0)
        need(len(n.args) == 1 + many, n, f"takes {many} values")
        if n.op in ("take", "repeat"):
            for a in n.args[1:]:
                need(a.op == "const" and a.type == I64 and 0 <= a["value"] < 1 << 62, n, "takes a number of records")
        if n.op == "balance":
            need(n.args[1].op == "field" and n.args[1]["name"] == n["field"] and not n.args[1].type.dims, n, "needs a field")
        need(self.seeded or n.op not in ("shuffle", "balance"), n, "is random, and there is no seed")

    # --- new frames ---

    def map(self, n: Node, before: Fields, fields: Fields) -> None:
        need(n["names"] == tuple(fields) and len(n.args) == 1 + len(fields), n, "doesn't name its values")
        for value, type in zip(n.args[1:], fields.values(), strict=True):
            need(not value.type.parts, n, "hands on what has parts")
            _delivered(n, value.type, type)

    def emit_line(self, n: Node, before: Fields, fields: Fields) -> None:
        need(n["names"] == tuple(fields) and len(n.args) == 1 and n.args[0].op == "map", n, "doesn't name what leaves")
        need(n.type.parts == n.args[0].type.parts, n, "delivers other fields")

    def source(self, n: Node, before: Fields, fields: Fields) -> None:
        kind = KINDS.get(n["kind"])
        need(kind is not None and not n.args, n, "reads from nothing known")
        assert kind is not None
        good = isinstance(n["paths"], tuple) and 0 < len(n["paths"]) <= 1_000_000 and all(_text(p) for p in n["paths"])
        need(good, n, "names no files")
        _options(n, kind.options)
        columns = n["columns"]
        need(isinstance(columns, tuple) and len(columns) <= kind.columns and all(map(_is_column, columns)), n,
             "has columns that can't be read")
        need(tuple(c[0] for c in columns) == tuple(fields), n, "gives other fields than its columns")
        for name, names, text in columns:
            found = COLUMN.fullmatch(text)
            need(found is not None and found["dtype"] in kind.dtypes, n, f"can't give `{text[:40]}`")
            assert found is not None
            dims = [d.strip() for d in found["dims"].split(",")] if found["dims"] else []
            need(kind.holds(len(dims), len(names)), n, "gives single values")
            need((kind.gaps or not found["gap"]) and (len(names) == 1 or dims[:1] == [str(len(names))]), n, "can't give this")
            asked = Type(found["dtype"], tuple(int(d) if d.isdigit() else -1 for d in dims), bool(found["gap"]))
            given = fields[name]
            exact = all((a == g) if a >= 0 else isinstance(g, Node) for a, g in zip(asked.dims, given.dims))
            need((asked.dtype, asked.missing, asked.rank) == (given.dtype, given.missing, given.rank) and exact, n,
                 "gives a field that its columns don't")

    def each(self, n: Node, before: Fields, fields: Fields) -> None:
        named = n["fields"]
        need(isinstance(named, tuple) and len(named) > 0 and set(named) <= set(before), n, "takes fields apart that aren't there")
        for name, type in fields.items():
            need(name in before, n, "makes up a field")
            dims = before[name].dims[1:] if name in named else before[name].dims
            need(name not in named or before[name].rank > 0, n, "takes single values apart")
            _delivered(n, before[name].with_dims(dims), type)

    def batch(self, n: Node, before: Fields, fields: Fields) -> None:
        _attrs(n, {"has": lambda v: v in (("n",), ("n", "by"), ("by", "budget"), ("budget",)), "whole": _truth, "pad": _truth,
                   "edges": lambda v: isinstance(v, tuple) and all(map(_count, v)) and list(v) == sorted(set(v))})
        given = dict(zip(n["has"], n.args[1:]))
        need(len(given) == len(n.args) - 1, n, "takes other numbers")
        self._numbers(n, given)
        front = given["n"] if n["whole"] and "n" in given else None
        for name, type in fields.items():
            need(name in before, n, "makes up a field")
            _stacked(n, before[name], type, front, n["pad"])

    def window(self, n: Node, before: Fields, fields: Fields) -> None:
        _attrs(n, {"rest": lambda v: v in ("keep", "drop"), "pad": _truth})
        need(len(n.args) == 3, n, "takes two numbers")
        self._numbers(n, {"n": n.args[1], "stride": n.args[2]})
        front = n.args[1] if n["pad"] or n["rest"] == "drop" else None
        for name, type in fields.items():
            need(name in before, n, "makes up a field")
            _stacked(n, before[name], type, front, n["pad"])

    def pack(self, n: Node, before: Fields, fields: Fields) -> None:
        _attrs(n, {"open": lambda v: _count(v) and v > 0, "fields": lambda v: isinstance(v, tuple) and set(v) <= set(before)})
        need(len(n.args) == 3, n, "takes two numbers")
        self._numbers(n, {"n": n.args[1], "by": n.args[2]})
        for name, type in fields.items():
            if name in ("segment", "position") and name not in n["fields"]:
                _stacked(n, Type("i64"), type, n.args[1], True)
                continue
            need(name in before, n, "makes up a field")
            if name in n["fields"]:
                need(before[name].rank > 0, n, "lays single values end to end")
                _stacked(n, before[name].with_dims(before[name].dims[1:]), type, n.args[1], True)
            else:
                _stacked(n, before[name], type, None, False)

    def _numbers(self, n: Node, given: Mapping[str, Node]) -> None:
        for a in given.values():
            need(a.type == I64 and (a.op != "const" or 0 < a["value"] < 1 << 40), n, "takes numbers of records")

    # --- several streams ---

    def several(self, n: Node, before: Fields, fields: Fields) -> None:
        need(bool(n.args) and all(a.op == "map" for a in n.args), n, "reads what isn't the end of a pipeline")
        names = n.get("names")
        one = n.op == "sample"
        need(one or (isinstance(names, tuple) and len(names) == len(n.args) and all(map(_text, names))), n, "doesn't name them")
        if n.op == "mix":
            self._mix(n, fields)
        elif n.op == "zip":
            wanted = {f"{name}.{f}": t for name, a in zip(names or (), n.args) for f, t in a.type.parts}
            self._taken(n, wanted, fields)
        else:
            _attrs(n, {"name": _text, "path": _text, "times": _count})
            need(len(n.args) == 2 and self.seeded, n, "reads two streams, at random")
            front = (n["times"],) if n["times"] else ()
            other = {f"{n['name']}.{f}": t.with_dims((*front, *t.dims)) for f, t in n.args[1].type.parts}
            self._taken(n, dict(n.args[0].type.parts) | other, fields)

    def _mix(self, n: Node, fields: Fields) -> None:
        _attrs(n, {"weights": lambda v: isinstance(v, tuple) and len(v) in (0, len(n.args)) and all(
            isinstance(w, float) and 0 <= w <= 1 for w in v) and (not v or math.isclose(sum(v), 1, abs_tol=1e-6)),
            "until": lambda v: v in ("first", "all") or (_count(v) and v > 0), "key": _text})
        need(self.seeded or not n["weights"], n, "is random, and there is no seed")
        for a in n.args:
            self._taken(n, dict(a.type.parts), fields)

    def _taken(self, n: Node, wanted: Fields, fields: Fields) -> None:
        for name, type in fields.items():
            need(name in wanted, n, "makes up a field")
            _delivered(n, wanted[name], type)


def _delivered(n: Node, made: Type, given: Type) -> None:
    """A field of a new frame: sizes that the type tells as numbers are exact, others only records tell."""
    need((made.dtype, made.missing, made.rank) == (given.dtype, given.missing, given.rank), n, "delivers a field of another type")
    for a, b in zip(made.dims, given.dims, strict=True):
        need(not isinstance(b, int) or plain_dim(a) == b, n, "delivers a field of another size")


def _stacked(n: Node, made: Type, given: Type, front: Node | None, pad: bool) -> None:
    """A field of several records: its first dim is `front`, or (None) their count."""
    need(given.rank == made.rank + 1, n, "stacks a field in another way")
    first = given.dims[0]
    counted = isinstance(first, Node) and first.op == "count"
    need(counted or (front is not None and same_dims((first,), (front,))), n, "stacks another number of records")
    gaps = given.missing if pad else made.missing
    _delivered(n, Type(made.dtype, made.dims, gaps), Type(given.dtype, given.dims[1:], given.missing))
    need(given.missing or not made.missing, n, "loses gaps")


def _attrs(n: Node, known: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, good in known.items():
        value = n.get(name)
        try:
            fits = value is not None and good(value)
        except TypeError:
            fits = False
        need(fits, n, f"has an odd `{name}`")


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 5_000 and "\0" not in value


def _is_column(column: Any) -> bool:
    return (isinstance(column, tuple) and len(column) == 3 and isinstance(column[0], str) and isinstance(column[2], str)
            and isinstance(column[1], tuple) and len(column[1]) > 0
            and all(isinstance(names, tuple) and names and all(map(_text, names)) for names in column[1]))


def _options(n: Node, known: Mapping[str, Type]) -> None:
    options = n["options"]
    need(isinstance(options, tuple), n, "has odd options")
    for option in options:
        good = isinstance(option, tuple) and len(option) == 2 and option[0] in known
        need(good, n, "has an option that this source doesn't know")
        name, value = option
        values = value if known[name].dims else (value,)
        kind: Any = {"text": str, "i64": int, "bool": bool}[known[name].dtype]
        need(isinstance(values, tuple) and all(type(v) is kind for v in values), n, f"has an odd `{name}`")


def _unknown(streams: Streams, n: Node, before: Fields, fields: Fields) -> None:
    raise wrong(n, "is no stage")


_RULES: dict[str, Callable[[Streams, Node, Fields, Fields], None]] = {op: _unknown for op in STREAM_OPS} | {
    "where": Streams.condition, "check": Streams.condition, "shuffle": Streams.order, "take": Streams.order,
    "repeat": Streams.order, "shard": Streams.order, "skip_bad": Streams.order, "balance": Streams.order,
    "share": Streams.order, "map": Streams.map, "emit": Streams.emit_line, "source": Streams.source, "each": Streams.each,
    "batch": Streams.batch, "window": Streams.window, "pack": Streams.pack, "mix": Streams.several, "zip": Streams.several,
    "sample": Streams.several,
}
