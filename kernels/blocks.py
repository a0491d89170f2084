"""Sources whose files are made of blocks of rows that are decoded as a whole (row groups, record batches).

Decoded blocks are kept up to a bound in bytes, the last used ones. Where not all of them fit, those that were read
in order to the end go at once: nobody wants them before the next epoch, and their memory serves the next block.
A block that can't be decoded makes bad records.
"""
from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Many, Stacked, Values, Wanted, stack_values, unite
from .ops import BadRecord
from .sources import FILE_SHIFT, SourceError, row_ids
from .storage import Files
from .words import Coded, merged, united

Ints = NDArray[np.int64]
KEPT = 256 << 20        # bytes of decoded blocks; at least one is kept
NEAR = 16               # blocks that threads may be apart where they read in order
MOST_ROWS = 1 << FILE_SHIFT
Block = dict[str, list[Values]]   # for each field, the values of its columns


class BlockSource:
    """Rows of all blocks of all files. A kind says what its files hold (`open`) and decodes a block (`decode`)."""

    most = KEPT   # bytes of blocks that are kept where memory is short

    def __init__(self, paths: list[str], columns: list[Wanted]):
        self.paths, self.wanted, self.files = paths, columns, Files(paths)
        self.blocks: list[tuple[int, int]] = []   # (file, block in the file)
        lengths: list[int] = []
        rows_of: list[int] = []
        self.faults: dict[int, str] = {}          # files that can't be opened count as one bad record
        for file, path in enumerate(paths):
            try:
                rows = self.open(file, path)
                if any(n < 0 for n in rows) or sum(rows) >= MOST_ROWS:
                    raise OSError("its header is damaged")
            except SourceError:
                raise
            except Exception as error:   # a library may raise anything about damaged data
                self.faults[file] = f"the file can't be read: {_first_line(error)}"
                rows = [1]
            self.blocks += [(file, b) for b in range(len(rows))]
            lengths += rows
            rows_of.append(sum(rows))
        if self.faults and len(self.faults) == len(paths):
            file = min(self.faults)
            raise SourceError("E0810", f"`{self.files.shown_path(file)}`: {self.faults[file]}")
        self.starts = np.cumsum([0, *rows_of]).astype(np.int64)
        self.begins = np.cumsum([0, *lengths]).astype(np.int64)
        self.kept: OrderedDict[int, Block | BadRecord] = OrderedDict()
        self.sizes: dict[int, int] = {}
        self.held = 0                             # the sum of `sizes`
        self.read_rows: dict[int, int] = {}       # of blocks that are kept: how many of their rows were read in order
        self.finished = -1                        # the block that was read to the end last: threads may be a little behind
        self.lock = threading.Lock()
        self.busy: dict[int, threading.Lock] = {} # blocks that somebody decodes

    def open(self, file: int, path: str) -> list[int]:
        """The numbers of rows of a file's blocks. Raises SourceError for other columns, anything else for damage."""
        raise NotImplementedError

    def decode(self, file: int, block: int) -> Block:
        """The columns of a block. Raises anything for damage."""
        raise NotImplementedError

    def block(self, number: int) -> Block:
        """A decoded block; raises BadRecord if it can't be."""
        found = self._made(number)
        if isinstance(found, BadRecord):
            raise found
        return found

    def _made(self, number: int) -> Block | BadRecord:
        with self.lock:
            found = self._found(number)
            if found is not None:
                return found
            alone = self.busy.setdefault(number, threading.Lock())
            first = alone.acquire(blocking=False)
        if not first:   # threads that want the same block wait for the first of them, and have something to do till then
            self._look_ahead(number)
            alone.acquire()
        return self._made_alone(number, alone)

    def _made_alone(self, number: int, alone: threading.Lock) -> Block | BadRecord:
        """A block, decoded unless another thread has; `alone` is held, and given back."""
        try:
            with self.lock:
                found = self._found(number)
            if found is None:
                found = self._decoded(number)
                self._keep(number, found)
            return found
        finally:
            with self.lock:
                if self.busy.get(number) is alone:
                    del self.busy[number]
            alone.release()

    def _look_ahead(self, number: int) -> None:
        """Where blocks are read in order and there is room, decode the next one after this that nobody is at."""
        with self.lock:
            mean = self.held / max(1, len(self.kept))
            room = (len(self.kept) + len(self.busy) + 1) * mean <= min(KEPT, self.most)
            in_order = 0 <= self.finished < number <= self.finished + NEAR
            near = range(number + 1, min(number + NEAR, len(self.blocks))) if room and in_order else ()
            chosen = next((n for n in near if n not in self.kept and n not in self.busy), None)
            if chosen is None:
                return
            alone = self.busy[chosen] = threading.Lock()
            alone.acquire()
        with contextlib.suppress(SourceError):   # it is met again when somebody wants that block
            self._made_alone(chosen, alone)

    def _found(self, number: int) -> Block | BadRecord | None:
        found = self.kept.get(number)
        if found is not None:
            self.kept.move_to_end(number)
        return found

    def _decoded(self, number: int) -> Block | BadRecord:
        file, block = self.blocks[number]
        if file in self.faults:
            return BadRecord("E0801", self.faults[file])
        try:
            columns = self.decode(file, block)
            unite(columns.values())
            return columns
        except SourceError:   # a server that can't be reached
            raise
        except Exception as error:   # a library may raise anything about damaged data
            return BadRecord("E0801", f"its block of rows can't be read: {_first_line(error)}")

    def _keep(self, number: int, block: Block | BadRecord) -> None:
        size = 64 if isinstance(block, BadRecord) else sum(v.bytes for values in block.values() for v in values)
        with self.lock:
            self.kept[number] = block
            self.held += size - self.sizes.get(number, 0)
            self.sizes[number] = size
            while len(self.kept) > 1 and self.held > min(KEPT, self.most):
                self._drop(next(iter(self.kept)))

    def _drop(self, number: int) -> None:
        del self.kept[number]
        self.held -= self.sizes.pop(number)
        self.read_rows.pop(number, None)

    def _count(self, runs: list[tuple[int, int]]) -> None:
        """Note that rows of blocks were read in order; drop blocks that are read to the end where not all blocks fit."""
        with self.lock:
            for number, rows in runs:
                if number not in self.kept:
                    continue
                self.read_rows[number] = have = self.read_rows.get(number, 0) + rows
                if have < int(self.begins[number + 1] - self.begins[number]) or number == self.finished:
                    continue
                before, self.finished = self.finished, number
                if before in self.kept and self.held / len(self.kept) * len(self.blocks) > min(KEPT, self.most):
                    self._drop(before)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _place(self, index: int) -> tuple[int, int]:
        """(block, row in it)."""
        number = int(np.searchsorted(self.begins, index, side="right")) - 1
        return number, index - int(self.begins[number])

    def read(self, index: int) -> dict[str, Any]:
        number, row = self._place(index)
        return self._row(self.block(number), row)

    def _row(self, block: Block, row: int) -> dict[str, Any]:
        out = {}
        for w in self.wanted:
            found = [v.at(row) for v in block[w.field]]
            out[w.field] = found[0] if len(found) == 1 else stack_values(found, w)
        return out

    def read_many(self, indexes: Ints) -> tuple[dict[str, Any], dict[int, BadRecord]]:
        found, bad, runs = self._read(indexes)
        self._count(runs)
        return {f: v.array if isinstance(v, Many) else v for f, v in found.items()}, bad

    def lying(self, indexes: Ints) -> dict[str, Many | Coded] | None:
        """The rows of each field as one array of the schema's dtype and dims; None where one is bad or they have no one size."""
        found, bad, runs = self._read(indexes)
        arrays = {f: v for f, v in found.items() if isinstance(v, Many | Coded)}
        if bad or len(arrays) < len(found) or not all(_as_said(arrays[w.field], w) for w in self.wanted):
            return None
        self._count(runs)
        return arrays

    def _read(self, indexes: Ints) -> tuple[dict[str, Any], dict[int, BadRecord], list[tuple[int, int]]]:
        """The rows of each field, `Many`, `Coded` or a list; what is bad; (block, rows) of what was read in order."""
        runs: list[tuple[int, int]] = []
        bad: dict[int, BadRecord] = {}
        pieces: dict[str, list[tuple[Ints, Any]]] = {w.field: [] for w in self.wanted}
        for number, places, rows in self._by_block(indexes):
            try:
                block = self.block(number)
            except BadRecord as problem:
                bad.update(dict.fromkeys(places.tolist(), problem))
                continue
            for w in self.wanted:
                pieces[w.field].append((places, _gathered(block[w.field], w, rows, places, bad)))
            if isinstance(rows, slice):
                runs.append((number, len(places)))
        return _over_the_same({f: _together(parts, len(indexes)) for f, parts in pieces.items()}), bad, runs

    def _by_block(self, indexes: Ints) -> Iterator[tuple[int, Ints, Ints | slice]]:
        """(block, places in `indexes`, rows of the block) for each block that has some."""
        whole = _rows(indexes) if len(indexes) else slice(0, 0)
        if isinstance(whole, slice) and len(indexes):
            number, row = self._place(whole.start)
            if whole.stop <= self.begins[number + 1]:
                yield number, np.arange(len(indexes)), slice(row, row + len(indexes))
                return
        numbers = np.searchsorted(self.begins, indexes, side="right") - 1
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            yield number, places, _rows(indexes[places] - self.begins[number])

    def ids(self, indexes: Ints) -> NDArray[np.uint64]:
        return row_ids(self.starts, indexes)

    def name(self, index: int) -> str:
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return f"row {index - int(self.starts[file]):,} of {self.files.shown(file)}"

    def arrays(self) -> None:
        return None


def _as_said(rows: Many | Coded, w: Wanted) -> bool:
    if isinstance(rows, Coded):
        return w.dtype is None and rows.codes.shape[1:] == w.dims
    return rows.values.dtype == w.dtype and rows.values.shape[1:] == w.dims and (rows.mask is not None) == w.missing


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _rows(rows: Ints) -> Ints | slice:
    """Rows one after the other as a slice, which needs no copy."""
    first, count = int(rows[0]), len(rows)
    return slice(first, first + count) if int(rows[-1]) - first == count - 1 and (np.diff(rows) == 1).all() else rows


def _gathered(columns: list[Values], w: Wanted, rows: Ints | slice, places: Ints, bad: dict[int, BadRecord]) -> Any:
    """Rows of one field: an array where they have one size, else a list; notes what is bad by place."""
    numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    for v in columns:
        if v.bad is not None:
            wrong = v.bad[rows] != 0
            for place, row in zip(places[wrong].tolist(), numbers[wrong].tolist()):
                bad.setdefault(place, v.problem(row))
    if isinstance(columns, Stacked):
        return columns.many(rows)
    found = [v.many(rows) for v in columns]
    if len(found) == 1 and found[0] is not None:
        return found[0]
    texts = [f for f in found if isinstance(f, Coded)]
    if len(texts) == len(found):
        return Coded(texts[0].words, _beside([t.codes for t in texts]), w.missing)
    parts = [f for f in found if isinstance(f, Many)]
    if len(parts) < len(found):
        out: list[Any] = [None] * len(numbers)
        for k, row in enumerate(numbers.tolist()):
            if int(places[k]) in bad:
                continue
            try:
                values = [v.at(row) for v in columns]
                out[k] = values[0] if len(values) == 1 else stack_values(values, w)
            except BadRecord as problem:
                bad[int(places[k])] = problem
        return out
    mask = _beside([f.mask for f in parts if f.mask is not None]) if w.missing else None
    return Many(_beside([f.values for f in parts]), mask)


def _beside(columns: list[NDArray[Any]]) -> NDArray[Any]:
    """Columns as one array, row by row. Many wide numbers are put one under the other first: turning that round as a whole
    goes through memory once, not once for each column."""
    if len(columns) < 8 or columns[0].ndim > 1 or columns[0].itemsize < 4 or len({c.dtype for c in columns}) > 1:
        return np.stack(columns, axis=1)
    return np.ascontiguousarray(np.stack(columns).T)


def _together(parts: list[tuple[Ints, Any]], count: int) -> Any:
    """The rows of several blocks in the order in which they were asked for: one array, or a list."""
    whole = sum(len(places) for places, _ in parts) == count
    if parts and whole and all(isinstance(p, Coded) for _, p in parts):
        return parts[0][1] if len(parts) == 1 else merged(parts, count)
    alike = all(isinstance(p, Many) and p.values.shape[1:] == parts[0][1].values.shape[1:] for _, p in parts)
    if not parts or not alike or not whole:
        out: list[Any] = [None] * count
        for places, values in parts:
            for place, value in zip(places.tolist(), values.array if isinstance(values, Many | Coded) else values):
                out[place] = None if value is np.ma.masked else value
        return out
    if len(parts) == 1:
        return parts[0][1]
    back = np.argsort(np.concatenate([p for p, _ in parts]), kind="stable")
    masks = [m.mask for _, m in parts if m.mask is not None]
    return Many(np.concatenate([m.values for _, m in parts])[back], np.concatenate(masks)[back] if masks else None)


def _over_the_same(fields: dict[str, Any]) -> dict[str, Any]:
    """Texts of all fields over the same words."""
    texts = {f: c for f, c in fields.items() if isinstance(c, Coded)}
    if len({id(c.words) for c in texts.values()}) > 1:
        words, codes = united([(c.words, c.codes) for c in texts.values()])
        fields |= {f: Coded(words, own, c.gaps) for (f, c), own in zip(texts.items(), codes)}
    return fields
