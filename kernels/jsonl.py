"""`jsonl`: one JSON object per line. Only LF ends a line; one CR before it is dropped, blank lines are passed over.

A column is a key, or a path: `"a.b"` is b of the object a, and of a list of objects the list of their b. A key that is
absent, or null, is missing, a list of any length then empty. Of a key that stands twice the last counts. Numbers are
exact; a text is no number.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .columns import Wanted, absent, stack_values, text_array, wanted
from .lines import read_rows
from .ops import BadRecord
from .rows import Rows
from .sources import FLOATS, INTEGERS, Column, files_of, row_ids

PROBED = 100   # lines that are read to see which keys there are


class JsonlSource:
    """Objects of all files, in the order of the files."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        self.paths = files_of(paths)
        self.rows = Rows(self.paths, stream=bool(options.get("stream")))
        self.wanted = [wanted(c) for c in columns]
        self._probe()

    def _probe(self) -> None:
        """E0601 for a column that must be there and that none of the first lines has."""
        seen: list[dict[str, Any]] = []
        for index in range(min(PROBED, len(self))):
            try:
                seen.append(_object(self.rows.raw(*self.rows.place(index))))
            except BadRecord:
                continue
        for w in self.wanted:
            for names in w.names:
                there = {_has(o, n) for o in seen for n in names}
                if not w.missing and False in there and True not in there:
                    raise absent(self.paths[0], "key", names, list(dict.fromkeys(p for o in seen for p in _paths(o))), w.field)

    def __len__(self) -> int:
        return int(self.rows.starts[-1])

    def read(self, index: int) -> dict[str, Any]:
        return self._fields(self.rows.raw(*self.rows.place(index)), index)

    def _fields(self, raw: bytes, index: int) -> dict[str, Any]:
        record = _object(raw)
        return {w.field: _field(record, w) for w in self.wanted}

    def read_many(self, indexes: NDArray[np.int64]) -> tuple[dict[str, Any], dict[int, BadRecord]]:
        """Field by field where all records are in order; else one by one."""
        try:
            records = [_object(raw) for raw in self.rows.many(indexes)]
            return {w.field: _column(records, w) for w in self.wanted}, {}
        except BadRecord:
            return read_rows(self, indexes, [w.field for w in self.wanted])

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        return row_ids(self.rows.starts, indexes)

    def name(self, index: int) -> str:
        return self.rows.name(index)

    def arrays(self) -> None:
        return None


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(raw)
    except RecursionError:
        raise BadRecord("E0801", "this line is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRecord("E0801", f"this line is no JSON: {_malformed(raw, str(error))}") from None
    if not isinstance(found, dict):
        more = ": `jq -c '.[]'` makes lines of a list of objects" if isinstance(found, list) else ""
        raise BadRecord("E0801", f"this line is {_kind(found)}, not an object{more}")
    return found


def _malformed(raw: bytes, said: str) -> str:
    """What is wrong with a line, and where it is a habit of other tools, what to do."""
    text = raw.strip()
    if not text:
        return "it holds only spaces"
    if text in (b"[", b"{") or (text[:1] == b"[" and text[-1:] == b","):
        return "an object stands on a line of its own: `jq -c '.[]'` (or `jq -c .`) writes a file so"
    if any(word in text for word in (b"NaN", b"Infinity")):
        return f"{said.removeprefix('JSON is malformed: ')[:120]}; JSON has no NaN and no Infinity: write null"
    return said.removeprefix("JSON is malformed: ")[:120]


def _field(record: dict[str, Any], w: Wanted) -> Any:
    values = [_value(_first(record, names), w) for names in w.names]
    return values[0] if len(w.names) == 1 else stack_values(values, w)


def _column(records: list[dict[str, Any]], w: Wanted) -> Any:
    """A field of many records: an array where it is a number, else a list. Raises BadRecord where one of them is bad."""
    if w.dims or w.dtype is None:
        return [_field(r, w) for r in records]
    values = [_first(r, w.names[0]) for r in records]
    gone = [v is None for v in values]
    if not any(gone):
        return np.ma.MaskedArray(_numbers(values, w), np.array(gone)) if w.missing else _numbers(values, w)
    if not w.missing:
        raise BadRecord("E0602", f"`{w.field}` is missing")
    zero: Any = False if w.word == "bool" else 0
    return np.ma.MaskedArray(_numbers([zero if g else v for v, g in zip(values, gone)], w), np.array(gone))


def _first(record: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The first of several columns that a record has."""
    return next((v for n in names if (v := _lookup(record, n)) is not None), None)


def _lookup(value: Any, name: str) -> Any:
    """What stands at a path, None if nothing does. A key with dots in it counts before a path."""
    if isinstance(value, list):
        return [_lookup(v, name) for v in value]
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    head, dot, rest = name.partition(".")
    return _lookup(value[head], rest) if dot and head in value else None


def _has(value: Any, name: str) -> bool | None:
    """Is there a key at a path, be its value null; None where an empty list or a null before it leaves that open."""
    if isinstance(value, list):
        inner = {_has(v, name) for v in value}
        return True if True in inner else False if False in inner else None
    if not isinstance(value, dict):
        return None if value is None else False
    head, dot, rest = name.partition(".")
    return name in value or (_has(value[head], rest) if dot and head in value else False)


def _paths(value: dict[str, Any]) -> list[str]:
    out = []
    for key, v in value.items():
        inner = v[0] if isinstance(v, list) and v else v
        out += [f"{key}.{k}" for k in _paths(inner)] if isinstance(inner, dict) and inner else [key]
    return out


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a bool", int: "a whole number",
             float: "a number with a fraction"}
    return names.get(type(value), "null")


def _value(value: Any, w: Wanted) -> Any:
    """A JSON value as the schema's type. Raises BadRecord."""
    if w.element:
        return _tensor(value, w)
    if value is None:
        if not w.missing:
            raise BadRecord("E0602", f"`{w.field}` is missing or null, and {w.text} has no `?`")
        return None
    if w.dtype is None:
        if type(value) is not str:
            raise _wrong(value, w)
        return value
    return _numbers([value], w)[0]


def _short(value: Any) -> str:
    """A plain JSON value as it is written, its beginning where it is long."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text[:20] + ("…" if len(text) > 20 else "")


def _wrong(value: Any, w: Wanted) -> BadRecord:
    shown = "" if isinstance(value, dict | list) else f" ({_short(value)})"
    return BadRecord("E0801", f"`{w.field}` is {_kind(value)}{shown}, not {w.word}")


def _numbers(values: list[Any], w: Wanted) -> NDArray[Any]:
    """JSON numbers or bools as an array of the schema's dtype, exact for integers."""
    types = set(map(type, values))
    allowed = {bool} if w.word == "bool" else {int} if w.word in INTEGERS else {int, float}
    if not types <= allowed:
        raise _wrong(next(v for v in values if type(v) not in allowed), w)
    if w.word in INTEGERS and values:
        info = np.iinfo(w.dtype)
        wrong = next((v for v in values if not info.min <= v <= info.max), None)
        if wrong is not None:
            raise BadRecord("E0801", f"`{w.field}` holds {_short(wrong)}, which doesn't fit {w.word}")
    with np.errstate(over="ignore"):
        try:
            return np.array(list(map(float, values)) if w.word in FLOATS or w.word == "bf16" else values).astype(w.dtype)
        except OverflowError:
            raise BadRecord("E0801", f"`{w.field}` holds a number that doesn't fit {w.word}") from None


def _tensor(value: Any, w: Wanted) -> Any:
    """Nested lists of equal lengths as an array. Raises BadRecord."""
    if value is None:
        if not w.missing and isinstance(w.element[0], int):
            raise BadRecord("E0602", f"`{w.field}` is missing or null, and {w.text} has no `?`")
        shape = tuple(d if isinstance(d, int) else 0 for d in w.element)
        if w.dtype is None:
            return text_array([None] * int(np.prod(shape)), shape, w)
        zeros = np.zeros(shape, w.dtype)
        return np.ma.MaskedArray(zeros, np.ones(shape, np.bool_)) if w.missing else zeros
    level, sizes = [value], []
    for dim in w.element:
        wrong = next((v for v in level if type(v) is not list), value)
        if type(wrong) is not list:
            raise BadRecord("E0801", f"`{w.field}` holds {_kind(wrong)} where {w.text} has a list")
        lengths = {len(v) for v in level}
        if len(lengths) > 1:
            raise BadRecord("E0801", f"the lists in `{w.field}` have unlike lengths")
        sizes.append(lengths.pop() if lengths else dim if isinstance(dim, int) else 0)
        level = [x for v in level for x in v]
    if any(isinstance(d, int) and d != s for d, s in zip(w.element, sizes)):
        raise BadRecord("E0803", f"`{w.field}` has shape {sizes}, the schema says {w.text}")
    gone = [v is None for v in level]
    if any(gone) and not w.missing:
        raise BadRecord("E0602", f"`{w.field}` has a null, and {w.text} has no `?`")
    if w.dtype is None:
        other = next((v for v in level if v is not None and type(v) is not str), None)
        if other is not None:
            raise _wrong(other, w)
        return text_array(level, tuple(sizes), w)
    zero: Any = False if w.word == "bool" else 0
    array = _numbers([zero if v is None else v for v in level], w).reshape(sizes)
    return np.ma.MaskedArray(array, np.array(gone, np.bool_).reshape(sizes)) if w.missing else array
