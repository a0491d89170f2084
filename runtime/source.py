"""Records of a source as a feed reads them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import BlockSource
from ..kernels.ops import BadRecord
from ..kernels.sources import Source, SourceError, open_source
from ..kernels.words import Coded
from .blocks import address_of
from .errors import DataError, Where
from .execute import Runner
from .feed import UNREADABLE, Joined
from .held import Failure, Frames
from .limits import available
from .plan import Start
from .straight import Evenly, Lying

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Laid:
    """A field's records in memory, one after the other in each file: `starts` of the files and where each one lies."""

    parts: Sequence[NDArray[Any]]
    starts: Ints
    bases: Ints
    stride: int

    @staticmethod
    def of(parts: Sequence[NDArray[Any]]) -> Laid | None:
        """None where records don't lie close together, or not where their dtype may be read."""
        if not all(a.flags.aligned and a[:1].flags.c_contiguous and a.strides[:1] == (a[:1].nbytes,) for a in parts if len(a)):
            return None
        starts = np.cumsum([0, *(len(a) for a in parts)]).astype(np.int64)
        bases = np.array([address_of(a) for a in parts], np.int64)
        return Laid(parts, starts, bases, max((a[:1].nbytes for a in parts), default=0))

    def runs(self, first: Ints, counts: Ints) -> tuple[Ints, list[NDArray[Any]]]:
        """Addresses of `counts` records from each of `first` on; those over a file's end are copied (second result)."""
        if len(self.bases) == 1:
            return self.bases[0] + first * self.stride, []
        files = np.searchsorted(self.starts, first, "right") - 1
        at = self.bases[files] + (first - self.starts[files]) * self.stride
        copies = []
        for k in np.flatnonzero(first + counts > self.starts[files + 1]):
            file, row, left, pieces = int(files[k]), int(first[k] - self.starts[files[k]]), int(counts[k]), []
            while left:
                pieces.append(self.parts[file][row : row + left])
                file, row, left = file + 1, 0, left - len(pieces[-1])
            copies.append(np.concatenate(pieces))
            at[k] = address_of(copies[-1])
        return at, copies


class FromSource:
    """The records of a source."""

    marks = True

    def __init__(self, start: Start):
        """Opens the source; raises DataError where it can't be read or lacks a column."""
        self.options = start.options
        self.source = self._open(self.columns())
        if isinstance(self.source, BlockSource):
            self.source.most = available().free // 8
        self.arrays = self.source.arrays()
        self.heavy = False
        self.size = len(self.source)
        self.laid = {name: laid for name, _, text in self.columns() if (laid := self._laid(name, text)) is not None}

    @property
    def lasts(self) -> bool:
        return bool(self.laid)

    def columns(self) -> list[Any]:
        return [(f, tuple(tuple(n) for n in names), t) for f, names, t in self.options["columns"]]

    def _open(self, columns: list[Any]) -> Source:
        options = self.options
        try:
            return open_source(options["kind"], options["paths"], dict(options.get("options", ())), columns)
        except SourceError as error:
            raise self._failed(error) from None

    def _failed(self, error: SourceError) -> DataError:
        span = self.options.get("columns_spans", {}).get(error.field) or self.options.get("span")
        where = Where(*span) if span else None
        return DataError(error.code, error.title, where, notes=error.notes)

    def _laid(self, name: str, text: str) -> Laid | None:
        """Where a field's records lie one after the other, in one array or in one for each file."""
        if "?" in text:
            return None
        parts = getattr(self.source, "parts", {}).get(name)
        if self.arrays is not None:
            return Laid.of([self.arrays[name]])
        return Laid.of(parts) if parts and not text.startswith("bool") else None   # a byte beyond 1 is no bool

    def start_epoch(self, epoch: int) -> None:
        pass

    def length(self, turn: int) -> int:
        return self.size

    def ids(self, indexes: Ints, turn: int) -> Words:
        return self.source.ids(indexes)

    def values(self, indexes: Ints, field: str) -> list[Any]:
        if self.arrays is not None and field in self.arrays:
            return [v.item() for v in self.arrays[field][indexes]]
        source = self._open([c for c in self.columns() if c[0] == field])
        out = []
        for i in indexes:
            try:
                value = source.read(int(i))[field]
                out.append(value.item() if isinstance(value, np.generic) else value)
            except BadRecord:
                out.append(-1)  # met again, and judged, when the record itself is read
        return out

    def frames(self, runner: Runner, fields: Mapping[str, str], indexes: Ints, turn: int, ids: Joined,
               held: ExitStack) -> Frames:
        try:
            return self._frames(runner, fields, indexes, ids)
        except SourceError as error:   # a server that can't be reached makes no record bad: the run ends
            raise self._failed(error) from None

    def _frames(self, runner: Runner, fields: Mapping[str, str], indexes: Ints, ids: Joined) -> Frames:
        frames = runner.frames(len(indexes), ids(self.source.ids(indexes)))
        if self.arrays is not None:
            for name, slot in fields.items():
                array = self.arrays[name]
                runner.give_rows(frames, slot, address_of(array) + indexes * array.strides[0], array)
            return frames
        read_many = getattr(self.source, "read_many", None)
        if read_many is not None:
            found, bad = read_many(indexes)
            for r, problem in sorted(bad.items()):
                _unreadable(frames, r, problem)
            for name, slot in fields.items():
                value = found[name]
                if isinstance(value, Coded):
                    runner.give_texts(frames, slot, value)
                else:
                    (runner.give if isinstance(value, list) else runner.give_array)(frames, slot, value)
            return frames
        read: list[dict[str, Any]] = []
        for r, index in enumerate(indexes):
            try:
                read.append(self.source.read(int(index)))
            except BadRecord as problem:
                read.append({})
                _unreadable(frames, r, problem)
        for name, slot in fields.items():
            runner.give(frames, slot, [record.get(name) for record in read])
        return frames

    def lies(self, fields: Mapping[str, str], indexes: Ints, turn: int) -> Lying | None:
        if isinstance(self.source, BlockSource):
            return self._rows_lie(self.source, fields, indexes)
        if not self.laid.keys() >= fields.keys():
            return None
        ones = np.ones(len(indexes), np.int64)
        keep: list[Any] = []
        found: dict[str, Ints | Evenly] = {}
        for name, slot in fields.items():
            found[slot], copies = self.laid[name].runs(indexes, ones)
            keep += copies
        return Lying(found, None, keep)

    def _rows_lie(self, source: BlockSource, fields: Mapping[str, str], indexes: Ints) -> Lying | None:
        try:
            found = source.lying(indexes)
        except SourceError as error:
            raise self._failed(error) from None
        if found is None:
            return None
        lying = Lying({})
        for name, slot in fields.items():
            rows = found[name]
            if isinstance(rows, Coded):
                lying.texts[slot] = rows
                continue
            for array, put in ((rows.values, lying.at), (rows.mask, lying.masks)):
                if array is not None:
                    lain = np.ascontiguousarray(array)
                    put[slot] = Evenly.rows(lain)
                    lying.keep.append(lain)
        return lying

    def name(self, index: int, turn: int) -> str:
        return self.source.name(index)


def _unreadable(frames: Frames, r: int, bad: BadRecord) -> None:
    frames.status[r] = UNREADABLE
    frames.failures.append(Failure(r, 0, bad.code, bad.reason, bad.label))
