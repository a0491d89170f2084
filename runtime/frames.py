"""Records between segments: rows, what `each` makes of one and what `batch` makes of many.

A `Row` holds one record's fields as NumPy arrays and scalars, bytes, texts, or `Gaps` where places are missing.
"""
from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .held import Gaps
from .order import child_ids
from .texts import objects


@dataclass
class Row:
    """A record, or a batch of `count`. A run resumed at position `next`, leaving out `skip` rows, goes on right after it.

    `ids`: of the records in a batch of single records. `pads`: of the `count`, that many at the end only fill up.
    """

    fields: dict[str, Any]
    id: int
    next: int
    skip: int = 0
    count: int = 1
    ids: list[int] | None = None
    pads: int = 0


def each(row: Row, names: Sequence[str]) -> Iterator[Row]:
    """One row per place of the first dimension of the fields `names`; the others are repeated."""
    count = len(_plain(row.fields[names[0]]))
    ids = child_ids(np.full(count, row.id, np.uint64), np.arange(count, dtype=np.uint64))
    for i in range(count):
        fields = {name: _place(value, i) if name in names else value for name, value in row.fields.items()}
        last = i == count - 1
        yield Row(fields, int(ids[i]), row.next if last else row.next - 1, 0 if last else i + 1, row.count)


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, Gaps) else value


def _place(value: Any, i: int) -> Any:
    if not isinstance(value, Gaps):
        return value[i]
    values = value.values[i]
    return Gaps(objects(values) if isinstance(values, bytes | str | None) else values, value.mask[i])


@dataclass(frozen=True)
class BatchRule:
    """How records are put together; see `batch` in the language's page. `n` and `budget`: one is None."""

    n: int | None
    budget: int | None = None
    by: str | None = None
    edges: tuple[int, ...] = ()
    whole: bool = False


def groups(rows: Iterator[Row], rule: BatchRule) -> Iterator[list[Row]]:
    """The records of each batch, in order; with `whole`, a smaller one at the end is left out."""
    open_: dict[int, list[Row]] = {}
    for row in rows:
        length = int(row.fields[rule.by]) if rule.by else 0
        bucket = bisect.bisect_left(rule.edges, length) if rule.edges else 0
        waiting = open_.setdefault(bucket, [])
        if waiting and _full_with(waiting, length, rule):
            yield waiting
            waiting = open_[bucket] = []
        waiting.append(row)
        if rule.n is not None and len(waiting) == rule.n:
            yield open_.pop(bucket)
    for bucket in sorted(open_):
        if open_[bucket] and not rule.whole:
            yield open_[bucket]


def _full_with(waiting: list[Row], length: int, rule: BatchRule) -> bool:
    """Would one record more take more than `budget` places, padded to the longest?"""
    if rule.budget is None:
        return False
    longest = max(length, *(int(r.fields[rule.by]) if rule.by else 1 for r in waiting))
    return longest * (len(waiting) + 1) > rule.budget


def windows(rows: Iterator[Row], n: int, stride: int, keep: bool) -> Iterator[list[Row]]:
    """The records of windows that begin every `stride` records; `keep`: also of a smaller one at the end, if it holds
    a record that no window before it held."""
    held: list[Row] = []
    skip, fresh = 0, 0
    for row in rows:
        if skip:
            skip -= 1
            continue
        held.append(row)
        fresh += 1
        if len(held) == n:
            yield held
            skip, held, fresh = max(0, stride - n), held[stride:], 0
    if fresh and keep:
        yield held


def stack(rows: Sequence[Row], padded: Collection[str], names: Collection[str], places: int = 0) -> dict[str, Any]:
    """One array per field of `names`, the records in front; those in `padded` are filled up to the largest and to
    `places` records, as `Gaps`."""
    return {name: stacked([r.fields[name] for r in rows], name in padded, places) for name in names}


def stacked(values: list[Any], padded: bool, places: int = 0) -> Any:
    """The values of one field as `stack` puts them together."""
    first = values[0]
    if isinstance(first, bytes | str):
        return [*values, *[None] * (places - len(values))]
    if padded:
        return _pad(values, max(places, len(values)))
    if isinstance(first, Gaps):
        return Gaps(np.stack([v.values for v in values]), np.stack([v.mask for v in values]))
    return np.stack(values)


def _pad(values: list[Any], places: int) -> Gaps:
    arrays = [np.asarray(_plain(v)) for v in values]
    shape = (places, *np.max([a.shape for a in arrays], axis=0)) if arrays[0].ndim else (places,)
    out, mask = np.zeros(shape, arrays[0].dtype), np.ones(shape, bool)
    for i, (array, value) in enumerate(zip(arrays, values)):
        inside: tuple[Any, ...] = (i, *(slice(n) for n in array.shape))
        out[inside] = array
        mask[inside] = value.mask if isinstance(value, Gaps) else False
    return Gaps(out, mask)


def batch_row(rows: Sequence[Row], padded: Collection[str], names: Collection[str], places: int = 0) -> Row:
    """A batch of the fields `names` as a row: its id is that of its first record, it ends where its last one ends."""
    ids = [r.id for r in rows] if all(r.count == 1 for r in rows) else None
    return Row(stack(rows, padded, names, places), rows[0].id, rows[-1].next, rows[-1].skip, len(rows), ids,
               sum(r.pads > 0 for r in rows))


def numbers_of(options: Mapping[str, Any], sizes: Mapping[str, int]) -> BatchRule:
    """The rule of a batch start; `sizes` holds the computed "n" or "budget"."""
    return BatchRule(sizes.get("n"), sizes.get("budget"), options.get("by"), tuple(options.get("edges", ())),
                     bool(options.get("whole")))
