"""Row groups of Parquet files that no condition of the program can let pass, told by the files' own statistics.

Conditions go in, (field, comparison, number, dtype in which they are compared); for a row group of which every row fails
one of them a table comes out that is as long and fails it, too. Nothing of it is read, and every row keeps its position.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .columns import Wanted
from .sources import numpy_name

Condition = tuple[str, str, Any, str]
Steps = Sequence[tuple[str, ...]]
_NUMBERS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64")


def stand_in(group: Any, schema: Any, conditions: Sequence[Condition], wanted: Sequence[Wanted],
             steps: Sequence[Steps]) -> Any | None:
    """A pyarrow table in a row group's place if a condition fails for all of its rows, None if that can't be told.

    Every column must hold single values, and none may be missing that the schema wants: a row that can't be read stays bad.
    """
    known = _statistics(group)
    names = {w.field: s[0][0] for w, s in zip(wanted, steps) if len(s) == 1 and len(s[0]) == 1 and not w.dims}
    if len(names) < len(wanted) or not all(w.missing or _complete(known.get(names[w.field])) for w in wanted):
        return None
    for field, fn, number, dtype in conditions:
        word = next((w.word for w in wanted if w.field == field and not w.missing), "")
        if word in _NUMBERS and fails(known.get(names[field]), _plain(schema, names[field]), fn, number, dtype):
            return _table(group.num_rows, schema, names, {names[field]: known[names[field]].min})
    return None


def _statistics(group: Any) -> Mapping[str, Any]:
    columns = [group.column(i) for i in range(group.num_columns)]
    return {c.path_in_schema: c.statistics for c in columns if c.is_stats_set}


def _complete(statistics: Any) -> bool:
    return statistics is not None and statistics.has_null_count and statistics.null_count == 0


def _plain(schema: Any, name: str) -> bool:
    import pyarrow as pa

    kind = schema.field(name).type
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def fails(statistics: Any, plain: bool, fn: str, number: Any, dtype: str) -> bool:
    """Is `x fn number`, compared as `dtype`, false for every x between the least and the greatest (and for NaN)."""
    if statistics is None or not plain or not statistics.has_min_max:
        return False
    make = np.dtype(numpy_name(dtype)).type
    low, high, n = make(statistics.min), make(statistics.max), make(number)
    if not low <= high:
        return False
    match fn:
        case "lt":
            return bool(low >= n)
        case "le":
            return bool(low > n)
        case "gt":
            return bool(high <= n)
        case "ge":
            return bool(high < n)
        case "eq":
            return bool(n < low or n > high)
    return False


def _table(rows: int, schema: Any, names: Mapping[str, str], given: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    def column(name: str) -> Any:
        kind = schema.field(name).type
        if name in given:
            return pa.repeat(pa.scalar(given[name], kind), rows)
        try:
            return pa.repeat(pa.scalar(0, pa.int64()).cast(kind), rows)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return pa.repeat(pa.scalar("").cast(kind), rows)

    listed = list(dict.fromkeys(names.values()))
    return pa.table({name: column(name) for name in listed})
