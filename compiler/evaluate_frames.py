"""Frames made from records: what `each` makes of one, what `batch`, `window` and `pack` make of many, as plain generators."""
from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dsl.types import Type
from ..runtime import order as orders
from .evaluate_values import Cells, cells_of
from .graph import Node

if TYPE_CHECKING:
    from .evaluate import Run


@dataclass(frozen=True)
class Record:
    """A record, batch or row between two stages. `position` and `name` are those of its (first) source record."""

    fields: Mapping[str, Cells]
    id: int
    position: int
    name: str = ""
    count: int = 1


def each(run: Run, n: Node, records: Iterator[Record]) -> Iterator[Record]:
    names = n["fields"]
    for r in records:
        for row in range(len(r.fields[names[0]].values)):
            fields = {k: _place(v, row) if k in names else v for k, v in r.fields.items()}
            yield replace(r, fields=fields, id=child(r.id, row))


def batch(run: Run, n: Node, records: Iterator[Record]) -> Iterator[Record]:
    given = dict(zip(n["has"], n.args[1:], strict=True))
    size, budget = (run.number(given[k]) if k in given else None for k in ("n", "budget"))
    waiting: dict[int, list[tuple[Record, int]]] = {}
    for r in records:
        length = int(run.evaluator(r).scalar(given["by"])) if "by" in given else 1
        bucket = bisect.bisect_left(n["edges"], length) if n["edges"] else 0
        mine = waiting.setdefault(bucket, [])
        longest = max([length, *(other for _, other in mine)])
        if mine and budget is not None and longest * (len(mine) + 1) > budget:
            yield _stacked(n, [m for m, _ in mine])
            mine = waiting[bucket] = []
        mine.append((r, length))
        if len(mine) == size:
            yield _stacked(n, [m for m, _ in waiting.pop(bucket)])
    for bucket in sorted(waiting):
        if waiting[bucket] and not n["whole"]:
            yield _stacked(n, [m for m, _ in waiting[bucket]])


def _stacked(n: Node, rows: list[Record], places: int | None = None) -> Record:
    """Records as one, a dimension in front; `places` more than records are missing."""
    first = rows[0]
    before = dict(n.args[0].type.parts)
    types = dict(n.type.parts)
    fields = {}
    for name in first.fields:
        padded = name in types and types[name].missing and not before[name].missing
        fields[name] = stack([r.fields[name] for r in rows], places or len(rows), padded)
    return Record(fields, first.id, first.position, first.name, len(rows))


def window(run: Run, n: Node, records: Iterator[Record]) -> Iterator[Record]:
    """Windows begin every `stride` records, as long as they hold one that no window before them held."""
    size, stride = run.number(n.args[1]), run.number(n.args[2])
    held: list[Record] = []
    skip, fresh = 0, 0
    for r in records:
        if skip:
            skip -= 1
            continue
        held.append(r)
        fresh += 1
        if len(held) == size:
            yield _stacked(n, held)
            skip, held, fresh = max(0, stride - size), held[stride:], 0
    if fresh and n["rest"] == "keep":
        yield _stacked(n, held, size if n["pad"] else None)


def pack(run: Run, n: Node, records: Iterator[Record]) -> Iterator[Record]:
    """First fit: the oldest open row with room; a full row leaves, and the oldest where too many are open."""
    size = run.number(n.args[1])
    rows: list[tuple[list[Record], list[int]]] = []
    for r in records:
        length = int(run.evaluator(r).scalar(n.args[2]))
        if length > size:
            raise run.fail("E0805", f"a record of length {length} doesn't fit a row of {size}", n, r)
        row = next((row for row in rows if sum(row[1]) + length <= size), None)
        if row is None:
            if len(rows) == n["open"]:
                yield _row(n, size, *rows.pop(0))
            row = ([], [])
            rows.append(row)
        row[0].append(r)
        row[1].append(length)
        if sum(row[1]) == size:
            rows = [other for other in rows if other is not row]
            yield _row(n, size, *row)
    for row in rows:
        yield _row(n, size, *row)


def _row(n: Node, size: int, rows: list[Record], lengths: list[int]) -> Record:
    used = sum(lengths)
    fields = {}
    for name in rows[0].fields:
        cells = [r.fields[name] for r in rows]
        fields[name] = _laid(cells, size) if name in n["fields"] else stack(cells, len(rows), False)
    missing = np.arange(size) >= used
    rest = [0] * (size - used)
    full = [length for length in lengths if length]   # empty ones have no number
    segment = [k + 1 for k, length in enumerate(full) for _ in range(length)]
    position = [p for length in lengths for p in range(length)]
    fields["segment"] = Cells(np.array(segment + rest, np.int64), missing)
    fields["position"] = Cells(np.array(position + rest, np.int64), missing)
    return Record(fields, rows[0].id, rows[0].position, rows[0].name, len(rows))


def child(id: int, place: int) -> int:
    return int(orders.child_ids(np.array([id], np.uint64), np.array([place], np.uint64))[0])


def _place(x: Cells, at: int) -> Cells:
    if np.asarray(x.values).dtype == object:
        return cells_of(x.values[at], Type("text"))
    return Cells(np.asarray(x.values[at]), None if x.missing is None else np.asarray(x.missing[at]))


def mask_of(x: Cells) -> Any:
    return np.zeros(np.shape(x.values), np.bool_) if x.missing is None else np.asarray(x.missing)


def stack(cells: Sequence[Cells], places: int, padded: bool) -> Cells:
    """Values under each other, `places` in all; the missing rest, and what sizes that differ leave, is 0 and masked."""
    arrays = [np.asarray(c.values) for c in cells]
    masks = [mask_of(c) for c in cells]
    shape = tuple(int(d) for d in np.max([a.shape for a in arrays], axis=0)) if arrays[0].ndim else ()
    out = np.zeros((places, *shape), arrays[0].dtype)
    mask = np.ones((places, *shape), np.bool_)
    if out.dtype == object:
        out[...] = ""
    for k, (array, missing) in enumerate(zip(arrays, masks, strict=True)):
        inside: Any = (k, *map(slice, array.shape))
        out[inside], mask[inside] = array if array.ndim else array[()], missing
    masked = padded or places > len(cells) or any(c.missing is not None for c in cells)
    if not masked and any(a.shape != arrays[0].shape for a in arrays):
        raise AssertionError("records of different sizes can't be stacked")
    return Cells(out, mask if masked else None)


def _laid(cells: Sequence[Cells], size: int) -> Cells:
    """Tensors end to end along their first dimension, the rest of `size` missing."""
    joined = np.concatenate([c.values for c in cells])
    mask = np.concatenate([mask_of(c) for c in cells])
    out = np.zeros((size, *joined.shape[1:]), joined.dtype)
    out[: len(joined)] = joined
    missing = np.ones(out.shape, np.bool_)
    missing[: len(joined)] = mask
    return Cells(out, missing)
