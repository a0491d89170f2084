"""The producer's engine: runs the part of a plan above `share()` on threads and writes rows into a sink, in order.

Where every field has a fixed size and records go straight into the ring, threads write into room that the engine
reserved; all other plans are put together row by row.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .blocks import DTYPES, view
from .errors import DataError
from .execute import Kernel
from .feed import Chunk
from .feedback import table_for
from .frames import Row
from .held import Gaps, Target
from .inputs import keeps_all, reachable
from .inturn import InTurn
from .layout import Layout
from .order import FOREVER
from .plan import Column, Plan
from .ranks import Deal, Picks
from .streams import Stats, Stream, Threads
from .workers import Ring, Workers, calls_python

ROWS_AT_ONCE, BYTES_AT_ONCE = 32, 1 << 18   # of rows put together one by one
UNKNOWN_BYTES, UNKNOWN_ARRAY = 1 << 16, 1 << 14   # what a value of varying size is taken to be: a file, a text or array
HIDDEN = (Column("_id", "u64", ()), Column("_next", "i64", ()), Column("_skip", "i64", ()), Column("_count", "i64", ()))


class Reservation(Protocol):
    """Room for `rows` rows; `address[column]` of the first one, for columns of fixed size."""

    address: Mapping[str, int]
    rows: int


class Sink(Protocol):
    """Where rows go. `reserve` blocks until there is room and returns None when nobody wants rows any more."""

    def reserve(self, rows: int) -> Reservation | None: ...
    def commit(self, reservation: Reservation, rows: int, ragged: Mapping[str, list[NDArray[Any]]]) -> None: ...
    def end_epoch(self, epoch: int) -> None: ...


class Stopped(Exception):
    """The sink wants no more rows."""


class Engine:
    """Runs `plan.above`. One run at a time."""

    def __init__(self, plan: Plan, threads: int, kernels: Mapping[str, Kernel], allow_extern: bool = False,
                 deal: Deal | None = None, processes: bool = False):
        """Opens the sources; raises DataError where one can't be read. `deal`: run only one rank's records.

        `processes`: lines that call the user's Python run in processes of their own.
        """
        self.plan, self.deal = plan, deal
        self.rows = (*plan.rows, *HIDDEN)
        self.table = table_for(plan)
        self.stats = Stats()
        self.threads = Threads(threads)
        self.stream = Stream(plan, plan.above, kernels, self.threads, self.stats, allow_extern)
        self.fixed = {c.name: _row_bytes(c) for c in plan.rows if _fixed(c)}
        whole = len(self.fixed) == len(plan.rows) and not any(c.missing for c in plan.rows)
        # What later segments hold back can't be told from a position: a resumed run counts rows instead.
        self.replays = self.stream.feed is None or bool(self.stream.later or self.stream.feed.segment.takes)
        self.in_place = whole and not self.replays
        self.workers = self._workers(threads) if processes and allow_extern else None
        varying = [UNKNOWN_BYTES if c.dtype == "bytes" else UNKNOWN_ARRAY for c in plan.rows if not _fixed(c)]
        self.stream.row_bytes = sum(self.fixed.values()) + sum(varying)

    def _workers(self, count: int) -> Workers | None:
        feed, reached = self.stream.feed, self.plan.above[: reachable(self.plan.above)]
        if feed is None or count < 2 or not calls_python(reached):
            return None
        workers = Workers(self.plan, feed, count, self.deal)
        self.stream.run_chunk = workers.run
        return workers

    def use_ring(self, fd: int, layout: Layout, bases: Mapping[str, int]) -> None:
        """Rows will be written into this ring, which isn't sealed yet. `bases`: column → where it is mapped here."""
        if self.workers is not None:
            self.workers.start(Ring(fd, layout, bases) if self.in_place else None)

    def close(self) -> None:
        self.threads.close()
        if self.workers is not None:
            self.workers.close()

    def length(self, epoch: int) -> int | None:
        """Rows in the epoch, None where only running tells."""
        if self.stream.epoch != epoch:
            self.stream.start_epoch(epoch)
        feed = self.stream.feed
        if feed is None or self.replays or not keeps_all(feed.segment) or feed.length >= FOREVER // 2:
            return None
        return feed.length

    def run(self, epoch: int, start: int, skip: int, sink: Sink) -> None:
        """Write the epoch's rows from position `start` on, the first `skip` of them left out.

        Returns at the end of the epoch (after `end_epoch`) or when the sink stops. Raises DataError.
        """
        weights = None
        if self.table is not None:
            weights = self.table.snapshot(epoch, start > 0 or skip > 0, lambda: bool(getattr(sink, "stopped", False)))
            if weights is None:
                return
            self.stream.weigh(weights)
        self.stream.start_epoch(epoch)
        if self.workers is not None:
            self.workers.start_epoch(epoch, start, weights)
        self.stats.positions = self.stream.feed.length if self.stream.feed is not None else 0
        self.stats.bad_counts[epoch] = 0
        if self.deal is not None and self.stream.feed is not None:   # `ranks.check_own` has seen that there is one
            self.stream.feed.picked = Picks(self.deal, start, self.stream.feed.length)
            start = 0
        try:
            if self.in_place and skip == 0:
                self._run_in_place(start, sink)
            else:
                self._run_rows(start, skip, sink)
        except Stopped:
            return
        sink.end_epoch(epoch)

    # --- straight into the ring ---------------------------------------------------------------

    def _run_in_place(self, start: int, sink: Sink) -> None:
        feed, judge = self.stream.feed, self.stream.judge
        run_chunk = self.stream.run_chunk
        assert feed is not None and judge is not None and run_chunk is not None

        step = min(self.stream.chunk(), getattr(sink, "most_rows", 1 << 30))
        length = feed.length if feed.picked is None else feed.picked.length
        prepared = feed.prepared(start, step, self.fixed) if self.workers is None else None
        firsts = iter(range(start, length, step))

        def draw() -> tuple[int, Reservation] | None:
            first = next(firsts, None)
            if first is None:
                return None
            room = sink.reserve(min(step, length - first))
            if room is None:
                raise Stopped
            return first, room

        def work(task: tuple[int, Reservation]) -> Chunk | None:
            """None: every record is there."""
            first, room = task
            if prepared is not None and prepared.run(first, room.rows, room.address):
                return None
            chunk = run_chunk(first, room.rows, {n: Target(room.address[n], size) for n, size in self.fixed.items()})
            _write_hidden(room, chunk)
            return chunk

        def deliver(task: tuple[int, Reservation], chunk: Chunk | None) -> None:
            _, room = task
            bad = judge.fatal(chunk) if chunk is not None else None
            if chunk is not None and bad is not None:
                sink.commit(room, int(np.searchsorted(chunk.kept, bad.frame)), {})
                raise judge.error(bad, chunk)
            kept = room.rows if chunk is None else len(chunk.kept)
            self.stats.records += kept
            sink.commit(room, kept, {})

        InTurn(min(self.threads.count, max(1, len(range(start, length, step)))), draw, work, deliver).run()

    # --- row by row ---------------------------------------------------------------------------

    def _run_rows(self, start: int, skip: int, sink: Sink) -> None:
        for block in self._blocks(start, skip):
            room = sink.reserve(len(block))
            if room is None:
                raise Stopped
            sink.commit(room, len(block), self._write(room, block))

    def _blocks(self, start: int, skip: int) -> Iterator[list[Row]]:
        """Rows to deliver, some at a time; what came before a bad record is delivered before it is raised."""
        block: list[Row] = []
        size = 0
        failed: DataError | None = None
        try:
            for done, row in enumerate(self.stream.rows(0 if self.replays else start), 1):
                if self.replays:
                    # What later segments hold back can't be told from a position: a resumed run counts rows instead.
                    row.next, row.skip = 0, done
                if done <= skip:
                    continue
                block.append(row)
                size += sum(_bytes(v) for v in row.fields.values())
                if len(block) == ROWS_AT_ONCE or size > BYTES_AT_ONCE:
                    yield block
                    block, size = [], 0
        except DataError as error:
            failed = error
        if block:
            yield block
        if failed is not None:
            raise failed

    def _write(self, room: Reservation, rows: list[Row]) -> dict[str, list[NDArray[Any]]]:
        """Fixed columns into the room; the others are returned for the sink to place."""
        ragged: dict[str, list[NDArray[Any]]] = {}
        for column in self.plan.rows:
            values = [row.fields[column.name] for row in rows]
            if column.missing:
                ragged[column.name + "?"] = [v.mask if isinstance(v, Gaps) else np.zeros(np.shape(v), bool) for v in values]
            values = [v.values if isinstance(v, Gaps) else v for v in values]
            if column.name in self.fixed and not column.missing:
                dims = (len(rows), *[int(d or 0) for d in column.dims])
                place = view(room.address[column.name], dims, DTYPES[column.dtype])
                for r, value in enumerate(values):
                    place[r] = value
            else:
                ragged[column.name] = values
        _write_numbers(room, len(rows), *([getattr(r, name) for r in rows] for name in ("id", "next", "skip", "count")))
        return ragged


def _bytes(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, bytes | str) else 8)


def _fixed(column: Column) -> bool:
    return column.dtype not in ("bytes", "text", "path") and None not in column.dims


def _row_bytes(column: Column) -> int:
    return int(np.prod([int(d or 0) for d in column.dims], dtype=np.int64)) * int(DTYPES[column.dtype].itemsize)


def _write_hidden(room: Reservation, chunk: Chunk) -> None:
    if len(chunk.kept):
        count = len(chunk.kept)
        _write_numbers(room, count, chunk.ids[chunk.kept], chunk.nexts[chunk.kept], 0, 1)


def _write_numbers(room: Reservation, count: int, *numbers: Any) -> None:
    """The hidden columns of consecutive rows."""
    for column, values in zip(HIDDEN, numbers, strict=True):
        view(room.address[column.name], (count,), DTYPES[column.dtype])[:] = values
