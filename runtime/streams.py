"""The records of a pipeline one after the other.

What can be read at any place (`Feed`) is computed in chunks by threads, whose results are taken in order; branches of
a `mix` or `zip` that can't be are streams themselves. The segments after that run record by record.
"""
from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels.random import draw_key
from .errors import DataError
from .execute import Kernel
from .feed import Chunk, Feed
from .feedback import Snapshot
from .frames import Row
from .held import Failure
from .inputs import feed_of, reachable
from .order import child_ids
from .plan import Plan, Segment, Start
from .schedule import chosen
from .segments import Later, Takes

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor  # takes long to load; rows in place don't need it

DRAWN = 1024      # choices of a mix drawn at once
BYTES = 1 << 22   # that one task writes, about; less where the ring has no room for it
MOST_AT_ONCE = 8192   # positions of one task
LEFT_OUT = "`skip_bad(at_most=0.001)` after `from` leaves such records out and counts them"
GAPS = "`?` after a type of the schema (`i64?`) lets values be missing, `x ?? 0` says what stands in for them"


@dataclass
class Stats:
    """Counts of one engine; `positions` of the epoch, `bad` the last hundred (epoch, record, reason) of bad records,
    `bad_counts` their number by epoch (an engine runs ahead of who counts)."""

    positions: int = 0
    records: int = 0
    left_out: int = 0
    bad_counts: dict[int, int] = field(default_factory=dict)
    bad: list[tuple[int, str, str]] = field(default_factory=list)


class Threads:
    """Runs tasks on threads and gives their results in order."""

    def __init__(self, count: int):
        self.count = max(1, count)
        self.pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def in_order(self, tasks: Iterator[tuple[Any, Callable[[], Chunk]]]) -> Iterator[tuple[Any, Chunk]]:
        """Results in the order of the tasks; tasks are drawn by a thread of their own, a few ahead."""
        from concurrent.futures import ThreadPoolExecutor, wait

        pool = self.pool = self.pool or ThreadPoolExecutor(self.count, thread_name_prefix="pipec")
        ahead: queue.Queue[tuple[Any, Future[Chunk]] | BaseException | None] = queue.Queue(2 * self.count)
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
                    if stop.is_set() or not put((tag, pool.submit(work))):
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


class Judge:
    """Counts what became of a feed's records, and says which bad one ends the run."""

    def __init__(self, feed: Feed, stats: Stats):
        self.feed, self.stats, self.at_most = feed, stats, feed.segment.at_most

    def fatal(self, chunk: Chunk, turn: int = 0) -> Failure | None:
        """Count bad records; the failure that ends the run, if one does."""
        for failure in chunk.failures:
            if self.at_most is None or failure.error is not None:
                return failure
            position, epoch = int(chunk.positions[failure.frame]), self.feed.epoch
            self.stats.bad_counts[epoch] = self.stats.bad_counts.get(epoch, 0) + 1
            error = self.feed.error(failure, position, turn)
            self.stats.bad = [*self.stats.bad[-99:], (epoch, error.record, error.title)]
            if self.stats.bad_counts[epoch] > self.at_most * self.feed.input.size:
                return failure
        self.stats.left_out += len(chunk.positions) - len(chunk.kept) - len(chunk.failures)
        return None

    def left_out(self, error: DataError) -> None:
        """Count a frame made of records, a line of which fails; raises where that ends the run."""
        epoch = self.feed.epoch
        if self.at_most is None:
            raise error
        count = self.stats.bad_counts[epoch] = self.stats.bad_counts.get(epoch, 0) + 1
        self.stats.bad = [*self.stats.bad[-99:], (epoch, error.record, error.title)]
        if count > self.at_most * self.feed.input.size:
            raise replace(error, code="E0806", title=self._too_many(count), label=error.title, notes=())

    def _too_many(self, count: int) -> str:
        told = f"{count:,} of {self.feed.input.size:,} records {'are' if count > 1 else 'is'} bad"
        return f"{told}, more than `at_most={self.at_most}` allows"

    def error(self, failure: Failure, chunk: Chunk, turn: int = 0) -> DataError:
        """What the user sees of a fatal failure."""
        error = self.feed.error(failure, int(chunk.positions[failure.frame]), turn)
        if self.at_most is None or failure.error is not None:
            gaps = (GAPS,) if error.code == "E0602" else ()
            return error if failure.error is not None and error.notes else replace(error, notes=(*gaps, LEFT_OUT))
        listed = tuple(f"{name}: {reason}" for epoch, name, reason in self.stats.bad[-11:-1] if epoch == self.feed.epoch)
        title = self._too_many(self.stats.bad_counts[self.feed.epoch])
        return DataError("E0806", title, error.where, error.title, error.record, error.epoch, error.position, listed)


class Stream:
    """The records of a chain of segments in order."""

    def __init__(self, plan: Plan, segments: Sequence[Segment], kernels: Mapping[str, Kernel], threads: Threads,
                 stats: Stats, allow_extern: bool = False):
        """Opens the sources; raises DataError where one can't be read."""
        count = reachable(segments)
        self.threads, self.stats = threads, stats
        self.feed = feed_of(plan, segments[:count], kernels, allow_extern) if count else None
        self.run_chunk = self.feed.run if self.feed is not None else None   # or that of `Workers`
        self.judge = Judge(self.feed, stats) if self.feed is not None else None
        self.merge = None if count else Merge(plan, segments[0].start, [
            Stream(plan, b, kernels, threads, stats, allow_extern) for b in segments[0].start.inputs])
        self.later = [Later(plan, s, kernels, allow_extern) for s in segments[count:]]
        self.epoch, self.row_bytes = -1, 1 << 12

    def weigh(self, weights: Snapshot) -> None:
        """What `weight` reads from the next epoch's start on."""
        if self.feed is not None:
            self.feed.weights = weights
        for later in self.later:
            later.runner.weights = weights

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        for part in (self.feed, self.merge, *self.later):
            if part is not None:
                part.start_epoch(epoch)

    def chunk(self) -> int:
        """Positions per task: few where records are heavy, many where only a kernel runs."""
        assert self.feed is not None
        return 8 if self.feed.heavy else int(np.clip(BYTES // max(1, self.row_bytes), 1, MOST_AT_ONCE))

    def rows(self, start: int = 0, turn: int = 0) -> Iterator[Row]:
        """The epoch's rows from position `start` on. `turn`: how often a `mix` or `zip` has begun them again."""
        rows: Callable[[], Iterator[Row]] = partial(self._fed, start, turn)
        if self.merge is not None:
            rows = partial(self.merge.rows, turn)
        for later in self.later:
            rows = partial(later.run, rows, turn, self.judge.left_out if self.judge is not None else None)
        return rows()

    def _fed(self, start: int, turn: int) -> Iterator[Row]:
        feed, judge = self.feed, self.judge
        assert feed is not None and judge is not None
        step, length = self.chunk(), feed.order(turn).length if feed.picked is None else feed.picked.length
        assert self.run_chunk is not None
        tasks = ((None, partial(self.run_chunk, f, min(step, length - f), None, turn)) for f in range(start, length, step))
        takes = Takes(feed.segment)
        for _, chunk in self.threads.in_order(tasks):
            bad = judge.fatal(chunk, turn)
            kept = set(int(r) for r in chunk.kept)
            rows = iter(chunk.rows)
            for r in range(len(chunk.positions)):
                if bad is not None and r == bad.frame:
                    raise judge.error(bad, chunk, turn)
                row = next(rows) if r in kept else None
                allowed = takes.count(int(chunk.passed[r]))
                if row is not None and allowed:
                    self.stats.records += 1
                    yield row
                if takes.over:
                    return


class Merge:
    """The records of a `mix` or `zip` of streams that can't be read at any place."""

    def __init__(self, plan: Plan, start: Start, streams: Sequence[Stream]):
        self.kind, self.options, self.streams, self.seed, self.epoch = start.kind, start.options, streams, plan.seed or 0, 0

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        for stream in self.streams:
            stream.start_epoch(epoch)

    def rows(self, turn: int) -> Iterator[Row]:
        return self._mix(turn) if self.kind == "mix" else self._zip(turn)

    def _mix(self, turn: int) -> Iterator[Row]:
        until = self.options["until"]
        branches = [Again(s, turn) for s in self.streams]
        for place, which in enumerate(self._choices(turn)):
            if place == until or (until == "all" and all(b.seen for b in branches)):
                return
            if until == "first" and branches[which].seen:
                return
            row = branches[which].next()
            if row is None:
                return
            row.id = int(child_ids(np.array([row.id], np.uint64), which)[0])
            yield row

    def _choices(self, turn: int) -> Iterator[int]:
        place, ends = 0, np.cumsum(np.array(self.options["weights"], np.float64))
        key = draw_key(self.seed, self.options["key"], self.epoch)
        while True:
            places = range(place, place + DRAWN)
            yield from chosen(key, ends, place, DRAWN, turn).tolist() if len(ends) else (p % len(self.streams) for p in places)
            place += DRAWN

    def _zip(self, turn: int) -> Iterator[Row]:
        first, *others = self.streams
        repeated = [Again(s, turn) for s in others]
        for row in first.rows(0, turn):
            fields = {f"{self.options['names'][0]}.{k}": v for k, v in row.fields.items()}
            for name, branch in zip(self.options["names"][1:], repeated, strict=True):
                beside = branch.next()
                if beside is None:
                    return
                fields |= {f"{name}.{k}": v for k, v in beside.fields.items()}
            yield replace(row, fields=fields)


class Again:
    """A stream's records again and again, each time newly shuffled; `seen`: all of them have passed once."""

    def __init__(self, stream: Stream, turn: int):
        self.stream, self.base, self.turn = stream, turn << 16, 0
        self.rest = stream.rows(0, self.base)
        self.ahead = next(self.rest, None)

    @property
    def seen(self) -> bool:
        return self.turn > 0 or self.ahead is None

    def next(self) -> Row | None:
        """The next record; None where the stream has none at all."""
        if self.ahead is None:
            self.turn += 1
            self.rest = self.stream.rows(0, self.base + self.turn)
            self.ahead = next(self.rest, None)
        row, self.ahead = self.ahead, next(self.rest, None) if self.ahead is not None else None
        return row
