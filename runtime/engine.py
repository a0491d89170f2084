"""The producer's engine: runs the part of a plan above `share()` on threads and writes rows into a sink, in order.

A dispatcher hands chunks of positions to worker threads; `Engine.run` takes their results in the same
order, decides what bad records mean, and commits rows. Where every field has a fixed size and records go
straight into the ring, workers write into room that the dispatcher reserved; all other plans are put
together row by row.
"""
from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import DataError
from .execute import DTYPES, Failure, Gaps, Kernel, Target, view
from .feed import FOREVER, Chunk, Feed
from .frames import Row
from .plan import Column, Plan
from .segments import Later

ROWS_AT_ONCE, BYTES_AT_ONCE = 32, 1 << 18   # of rows put together one by one
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


@dataclass
class Stats:
    """Counts of one engine; `positions` of the epoch, `bad` the last hundred (epoch, record, reason) of bad records,
    `bad_counts` their number by epoch (an engine runs ahead of who counts)."""

    positions: int = 0
    records: int = 0
    left_out: int = 0
    bad_counts: dict[int, int] = field(default_factory=dict)
    bad: list[tuple[int, str, str]] = field(default_factory=list)


class Stopped(Exception):
    """The sink wants no more rows."""


class Engine:
    """Runs `plan.above`. One run at a time."""

    def __init__(self, plan: Plan, threads: int, kernels: Mapping[str, Kernel], allow_extern: bool = False):
        """Opens the source; raises DataError where it can't be read."""
        self.plan, self.threads = plan, max(1, threads)
        self.rows = (*plan.rows, *HIDDEN)
        self.feed = Feed(plan, plan.above[0], kernels, allow_extern)
        self.later = [Later(plan, s, kernels, allow_extern) for s in plan.above[1:]]
        self.stats = Stats()
        self.fixed = {c.name: _row_bytes(c) for c in plan.rows if _fixed(c)}
        self.in_place = not self.later and len(self.fixed) == len(plan.rows) and not any(c.missing for c in plan.rows)
        self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="pipec")

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)

    def length(self, epoch: int) -> int | None:
        """Rows in the epoch, None where only running tells."""
        if epoch != self.feed.epoch:
            self.feed.start_epoch(epoch)
        segment = self.plan.above[0]
        certain = not self.later and segment.at_most is None and not segment.takes
        certain = certain and self.feed.length < FOREVER // 2
        return self.feed.length if certain and not _requires(segment.program.steps) else None

    def run(self, epoch: int, start: int, skip: int, sink: Sink) -> None:
        """Write the epoch's rows from position `start` on, the first `skip` of them left out.

        Returns at the end of the epoch (after `end_epoch`) or when the sink stops. Raises DataError.
        """
        self.feed.start_epoch(epoch)
        self.stats.positions = self.feed.length
        self.stats.bad_counts[epoch] = 0
        for later in self.later:
            later.start_epoch(epoch)
        try:
            if self.in_place and skip == 0 and not self.plan.above[0].takes:
                self._run_in_place(epoch, start, sink)
            else:
                self._run_rows(epoch, start, skip, sink)
        except Stopped:
            return
        sink.end_epoch(epoch)

    # --- straight into the ring ---------------------------------------------------------------

    def chunk(self) -> int:
        """Positions per task: few where records are heavy, many where only a kernel runs."""
        heavy = any(s.__class__.__name__ != "RunKernel" for s in self.plan.above[0].program.steps)
        row = sum(self.fixed.values()) or 1 << 16
        return 4 if heavy else int(np.clip((1 << 19) // row, 1, 256))

    def _run_in_place(self, epoch: int, start: int, sink: Sink) -> None:
        def task(first: int, count: int, room: Reservation) -> Chunk:
            targets = {n: Target(room.address[n], size) for n, size in self.fixed.items()}
            chunk = self.feed.run(first, count, targets)
            _write_hidden(room, chunk)
            return chunk

        def tasks() -> Iterator[tuple[Reservation | None, Callable[[], Chunk]]]:
            step = self.chunk()
            for first in range(start, self.feed.length, step):
                count = min(step, self.feed.length - first)
                room = sink.reserve(count)
                if room is None:
                    raise Stopped
                yield room, partial(task, first, count, room)

        for room, chunk in self._in_order(tasks()):
            assert room is not None
            bad = self._judge(chunk)
            if bad is not None:
                rows = int(np.searchsorted(chunk.kept, bad.frame))
                sink.commit(room, rows, {})
                raise self._error(bad, chunk)
            self.stats.records += len(chunk.kept)
            sink.commit(room, len(chunk.kept), {})

    def _in_order(self, tasks: Iterator[tuple[Any, Callable[[], Chunk]]]) -> Iterator[tuple[Any, Chunk]]:
        """Results in the order of the tasks; tasks are drawn by a thread of their own, a few ahead."""
        ahead: queue.Queue[tuple[Any, Future[Chunk]] | BaseException | None] = queue.Queue(2 * self.threads)
        stop = threading.Event()

        def put(item: tuple[Any, Future[Chunk]] | BaseException | None) -> bool:
            while not stop.is_set():
                try:
                    ahead.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        def dispatch() -> None:
            try:
                for tag, work in tasks:
                    if stop.is_set() or not put((tag, self.pool.submit(work))):
                        return
                put(None)
            except BaseException as error:  # handed to the thread that waits for results
                put(error)

        dispatcher = threading.Thread(target=dispatch, name="pipec-dispatch", daemon=True)
        dispatcher.start()
        try:
            while True:
                item = ahead.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item[0], item[1].result()
        finally:
            stop.set()
            running = []
            while not ahead.empty():
                item = ahead.get_nowait()
                if isinstance(item, tuple) and not item[1].cancel():
                    running.append(item[1])
            wait(running)   # they write into room that the sink takes back after this

    def _judge(self, chunk: Chunk) -> Failure | None:
        """Count bad records; the failure that ends the run, if one does."""
        at_most = self.plan.above[0].at_most
        for failure in chunk.failures:
            if at_most is None:
                return failure
            position = int(chunk.positions[failure.frame])
            epoch = self.feed.epoch
            self.stats.bad_counts[epoch] = self.stats.bad_counts.get(epoch, 0) + 1
            error = self.feed.error(failure, position)
            self.stats.bad = [*self.stats.bad[-99:], (epoch, error.record, error.title)]
            if self.stats.bad_counts[epoch] > at_most * len(self.feed.source):
                return failure
        self.stats.left_out += len(chunk.positions) - len(chunk.kept) - len(chunk.failures)
        return None

    def _error(self, failure: Failure, chunk: Chunk) -> DataError:
        error = self.feed.error(failure, int(chunk.positions[failure.frame]))
        at_most = self.plan.above[0].at_most
        if at_most is None:
            help_ = "`skip_bad(at_most=0.001)` after `from` leaves such records out and counts them"
            return DataError(error.code, error.title, error.where, error.label, error.record, error.epoch, error.position,
                             (help_,))
        listed = tuple(f"{name}: {reason}" for epoch, name, reason in self.stats.bad[-11:-1] if epoch == self.feed.epoch)
        total = len(self.feed.source)
        count = self.stats.bad_counts[self.feed.epoch]
        title = f"{count:,} of {total:,} records {'are' if count > 1 else 'is'} bad, more than `at_most={at_most}` allows"
        return DataError("E0806", title, error.where, error.title, error.record, error.epoch, error.position, listed)

    # --- row by row ---------------------------------------------------------------------------

    def rows_of(self, epoch: int, start: int) -> Iterator[Row]:
        """The rows of the epoch in order, from position `start` on."""
        rows: Callable[[], Iterator[Row]] = functools.partial(self._kept_rows, start)
        for later in self.later:
            rows = functools.partial(later.run, rows)
        return rows()

    def _kept_rows(self, start: int) -> Iterator[Row]:
        step = self.chunk()
        feed = self.feed
        tasks = ((None, partial(feed.run, f, min(step, feed.length - f))) for f in range(start, feed.length, step))
        left = [n for _, n in self.plan.above[0].takes]
        for _, chunk in self._in_order(tasks):
            bad = self._judge(chunk)
            kept = set(int(r) for r in chunk.kept)
            rows = iter(chunk.rows)
            for r in range(len(chunk.positions)):
                if bad is not None and r == bad.frame:
                    raise self._error(bad, chunk)
                row = next(rows) if r in kept else None
                ended, allowed = self._take(left, int(chunk.passed[r]))
                if row is not None and allowed:
                    self.stats.records += 1
                    yield row
                if ended:
                    return

    def _take(self, left: list[int], passed: int) -> tuple[bool, bool]:
        """Count a record against every `take`; (is the stream over, may this record stay)."""
        over = False
        for k, (needed, _) in enumerate(self.plan.above[0].takes):
            if left[k] == 0:
                return True, False
            if passed < needed:
                return over, False
            left[k] -= 1
            over = over or left[k] == 0
        return over, True

    def _run_rows(self, epoch: int, start: int, skip: int, sink: Sink) -> None:
        for block in self._blocks(epoch, start, skip):
            room = sink.reserve(len(block))
            if room is None:
                raise Stopped
            sink.commit(room, len(block), self._write(room, block))

    def _blocks(self, epoch: int, start: int, skip: int) -> Iterator[list[Row]]:
        """Rows to deliver, some at a time; what came before a bad record is delivered before it is raised."""
        replay = bool(self.later or self.plan.above[0].takes)
        block: list[Row] = []
        size = 0
        failed: DataError | None = None
        try:
            for done, row in enumerate(self.rows_of(epoch, 0 if replay else start), 1):
                if replay:
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
        _write_numbers(room, [r.id for r in rows], [r.next for r in rows], [r.skip for r in rows], [r.count for r in rows])
        return ragged


def _bytes(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, bytes | str) else 8)


def _fixed(column: Column) -> bool:
    return column.dtype not in ("bytes", "text", "path") and None not in column.dims


def _row_bytes(column: Column) -> int:
    return int(np.prod([int(d or 0) for d in column.dims], dtype=np.int64)) * int(DTYPES[column.dtype].itemsize)


def _requires(steps: tuple[Any, ...]) -> bool:
    return any(s.__class__.__name__ == "Require" for s in steps)


def _write_hidden(room: Reservation, chunk: Chunk) -> None:
    if len(chunk.kept):
        count = len(chunk.kept)
        _write_numbers(room, chunk.ids[chunk.kept], chunk.positions[chunk.kept] + 1, [0] * count, [1] * count)


def _write_numbers(room: Reservation, *numbers: Any) -> None:
    """The hidden columns of consecutive rows."""
    for column, values in zip(HIDDEN, numbers, strict=True):
        view(room.address[column.name], (len(values),), DTYPES[column.dtype])[:] = values
