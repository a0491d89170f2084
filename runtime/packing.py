"""`pack`: records of any length laid end to end in rows of n places, first fit; nothing is lost, nothing cut."""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .frames import Row, stack
from .held import Gaps


@dataclass
class TooLong(Exception):
    """A record is longer than a row."""

    length: int
    position: int


@dataclass(eq=False)
class Open:
    """A row that has room left."""

    records: list[Row] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    used: int = 0


class Packing:
    """How records are packed: `fields` are laid end to end, of others a row has one entry for each record."""

    def __init__(self, n: int, by: str, most: int, fields: Sequence[str], reads: Collection[str]):
        """`by`: the field that holds a record's length; `most`: rows open at once; `reads`: fields that are needed."""
        self.n, self.by, self.most = n, by, most
        self.laid = [name for name in fields if name in reads]
        self.stacked = [name for name in reads if name not in fields and name not in ("segment", "position")]

    def rows(self, records: Iterator[Row]) -> Iterator[Row]:
        """The oldest open row with room takes a record; full rows leave, and the oldest where too many are open."""
        waiting: list[Open] = []
        for record in records:
            length = int(record.fields[self.by])
            if length > self.n:
                raise TooLong(length, record.next - 1)
            row = next((w for w in waiting if w.used + length <= self.n), None)
            if row is None:
                if len(waiting) == self.most:
                    yield self._row(waiting.pop(0))
                row = Open()
                waiting.append(row)
            row.records.append(record)
            row.lengths.append(length)
            row.used += length
            if row.used == self.n:
                waiting.remove(row)
                yield self._row(row)
        for row in waiting:
            yield self._row(row)

    def _row(self, row: Open) -> Row:
        records, lengths = row.records, np.array(row.lengths, np.int64)
        fields = stack(records, (), self.stacked)
        for name in self.laid:
            fields[name] = self._end_to_end([r.fields[name] for r in records])
        numbers = np.zeros((2, self.n), np.int64)
        numbers[0, : row.used] = np.repeat(np.cumsum(lengths > 0), lengths)   # empty ones have no number
        numbers[1, : row.used] = np.arange(row.used) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        gone = np.arange(self.n) >= row.used
        fields |= {"segment": Gaps(numbers[0], gone), "position": Gaps(numbers[1], gone)}
        return Row(fields, records[0].id, records[0].next, records[0].skip, len(records))

    def _end_to_end(self, values: Sequence[Any]) -> Gaps:
        arrays = [np.asarray(v.values if isinstance(v, Gaps) else v) for v in values]
        masks = [v.mask if isinstance(v, Gaps) else np.zeros(a.shape, np.bool_) for v, a in zip(values, arrays, strict=True)]
        joined = np.concatenate(arrays)
        out, mask = np.zeros((self.n, *joined.shape[1:]), joined.dtype), np.ones((self.n, *joined.shape[1:]), np.bool_)
        out[: len(joined)], mask[: len(joined)] = joined, np.concatenate(masks)
        return Gaps(out, mask)
