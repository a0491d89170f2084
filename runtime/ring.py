"""The producer's side of the ring: rows are reserved, written in place, and committed in order.

`Writer` gives an engine its sink. It waits for the least position released by its consumers, and lets them know of new
rows. Consumers come and go while it writes.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .atomics import atomics
from .blocks import DTYPES, view
from .consumer import Began, Consumer
from .extension import handover
from .layout import (
    END_COUNT,
    END_TABLE,
    ENDS,
    HEAD,
    HEADER,
    HEAP_WANTED,
    HOLDER,
    INTACT,
    POINTS_STAY,
    ROOM_WANTED,
    RUN,
    SHARE,
    Layout,
)
from .memory import Mapping as Memory
from .part import Part
from .readers import Readers
from .varying import Varying


@dataclass
class Reservation:
    """Room for `rows` rows from `row` on, the `number`th. `address[column]` is where the first of them starts; they are
    contiguous."""

    row: int
    rows: int
    number: int
    address: dict[str, int]


if not TYPE_CHECKING and handover() is not None:          # the same for `giver.c`
    Reservation = handover().Room


@dataclass
class Counters:
    """How far the rows go: those before `head` are committed, before `tail` reserved, before `intact` overwritten; points of
    the stream can be read from `legible` on. So many reservations are `reserved` and `committed`, so many `bytes` of rows;
    nanoseconds `waited` for room in `giver.c`."""

    head: int = 0
    tail: int = 0
    intact: int = 0
    legible: int = 0
    reserved: int = 0
    committed: int = 0
    bytes: int = 0
    waited: int = 0


class Run:
    """The sink of one run of an engine. Once stopped it stays so, whatever threads of that run still do.

    `reserve` may be called from several threads, `commit` and `end_epoch` from one at a time.
    """

    def __init__(self, writer: Writer):
        self.writer, self.most_rows = writer, writer.most_rows
        self.stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.stopped = False

    def reserve(self, rows: int) -> Reservation | None:
        """Room for `rows` rows, at most `most_rows`; waits for it. None: stopped."""
        if not 0 < rows <= self.most_rows:
            raise ValueError(f"{rows} rows can't be reserved at once, but {self.most_rows}")
        writer = self.writer
        if writer.quick is not None:
            with writer.lock:
                room: Reservation | None = None if self.stopped else writer.quick.reserve(rows)
            if room is not None:
                return room
        return writer.reserve(self, rows)

    def commit(self, reservation: Reservation, rows: int, ragged: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Deliver the first `rows` rows of the oldest reservation.

        `ragged`: one value per row for each field of varying size, and for others not written in place.
        """
        writer = self.writer
        if writer.quick is not None and not ragged:
            with writer.lock:
                if self.stopped or writer.quick.commit(reservation, rows):
                    return
        if not self.stopped:
            writer.commit(self, reservation, rows, ragged or {})

    def end_epoch(self, epoch: int) -> None:
        """Every row of `epoch` is committed."""
        if not self.stopped:
            self.writer.end_epoch(self, epoch)

    def stop(self) -> None:
        """Wake everybody who waits in `reserve`; it gives None from now on."""
        self.stopped = True
        with contextlib.suppress(OSError):                # the eventfd is full: it is signalled already
            os.eventfd_write(self.stop_fd, 1)

    def __del__(self) -> None:
        os.close(self.stop_fd)


class Writer:
    """Writes rows for all consumers; `begin` gives an engine its sink.

    `max_skew`: rows that the head may be ahead of the slowest consumer. `patience`: seconds for which a consumer with
    `when_slow="drop"` may hold the producer back. `leaves(consumer, error)` is told who has to go; without it a
    consumer that breaks the rules ends the run. `placed()` is called when consumers got a place at an epoch's start.
    """

    def __init__(self, layout: Layout, fd: int, room_fd: int, heap_fd: int, max_skew: int | None = None,
                 patience: float = 10.0, leaves: Callable[[Consumer, Exception], None] | None = None,
                 placed: Callable[[], None] = lambda: None):
        self.layout, self.max_skew, self.placed = layout, max_skew, placed
        self.readers = Readers(self, patience, leaves)
        self.most_rows: int = layout.capacity // SHARE     # of one reservation
        self.header = Memory(fd, 0, HEADER, double=False, write=True)
        self.parts = {p.name: Part(fd, p.offset, p.size) for p in layout.places}
        self.fixed = {p.name: p for p in layout.places if not p.ragged}
        self.ends_table = view(self.header.address + END_TABLE, (END_COUNT, 2), np.dtype(np.int64))
        self.room_fd, self.heap_fd = room_fd, heap_fd
        self.lock, self.turn = threading.RLock(), threading.Lock()
        self.began: deque[Began] = deque()
        self.ends = self.runs = 0
        self.slept = 0.0                                  # seconds of `wait`
        self.at, self.quick = self._counters()
        self.readers.giver = self.quick
        self.varying = Varying(self, fd, [p for p in layout.places if p.ragged])

    def _counters(self) -> tuple[Any, Any | None]:
        """Counters, and they once more where they reserve and commit by themselves what is as usual (`giver.c`)."""
        native = handover()
        if native is None or len(self.fixed) > native.COLUMNS:
            return Counters(), None
        columns = tuple((p.name, self.parts[p.name].map.address, p.size, p.row_bytes) for p in self.fixed.values())
        giver = native.Giver(self.header.address, self.layout.capacity, POINTS_STAY, self.room_fd, columns)
        all_fixed = len(self.fixed) == len(self.layout.places)
        return giver, giver if all_fixed and self.max_skew is None else None

    @property
    def head(self) -> int:
        """Rows before it are committed."""
        return int(self.at.head)

    @property
    def waited(self) -> float:
        """Seconds for which there was no room."""
        return self.slept + float(self.at.waited) / 1e9

    @property
    def bytes(self) -> int:
        """Of all rows committed so far."""
        return int(self.at.bytes)

    # -- consumers

    def join(self, consumer: Consumer) -> None:
        """It is looked after from now on; it reads when it has got a place."""
        with self.lock:
            self.readers.add(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Nobody waits for it any more. Its page is unmapped when nobody looks at it."""
        with self.lock:
            self.readers.remove(consumer)
        self.wake()

    def wake(self) -> None:
        """Whoever waits for room looks again."""
        for fd in (self.room_fd, self.heap_fd):
            with contextlib.suppress(OSError):
                os.eventfd_write(fd, 1)

    def find(self, epoch: int, next_: int, skip: int) -> Began | None:
        """Where a reader that has read up to (`next_`, `skip`) of `epoch` goes on, if all rows from there are there.

        A point that the stream hasn't reached yet is answered with its last row. For callers that hold `lock`.
        """
        began = [b for b in self.began if (b.epoch, b.next, b.skip) <= (epoch, next_, skip)]
        if not began:
            return None
        start = began[-1]
        if start.epoch < epoch:
            return self.now()
        later = next((b for b in self.began if b.ends > start.ends), None)
        if later is not None and later.before is not None and later.before <= (next_, skip):
            return Began(epoch, later.row, next_, skip, start.ends) if later.row >= self.at.intact else None
        high = later.row if later is not None else self.head
        row, seen = self._after(max(start.row, self.at.legible), high, next_, skip, start)
        return Began(epoch, row, *seen, start.ends) if row >= self.at.intact else None

    def _after(self, low: int, high: int, next_: int, skip: int, start: Began) -> tuple[int, tuple[int, int]]:
        """The first of the rows `low` to `high` past a point, and the point right before that row."""
        places = self._points(low, high)
        first = low + int(np.searchsorted(places["next"] * (1 << 20) + places["skip"], next_ * (1 << 20) + skip, "right"))
        if first > low:
            at = places[first - low - 1]
            return first, (int(at["next"]), int(at["skip"]))
        if low == start.row:
            return low, (start.next, start.skip)
        return -1, (0, 0)                                 # what stood right before is gone: the point may have been there

    def _points(self, low: int, high: int) -> np.ndarray:
        """(next, skip) of rows."""
        out = np.zeros(max(0, high - low), np.dtype([("next", "i8"), ("skip", "i8")]))
        for name in ("next", "skip"):
            if len(out):
                out[name] = view(self.parts[f"_{name}"].at(low * 8), (len(out),), np.dtype(np.int64))
        return out

    def now(self) -> Began:
        """The head as a point of the stream. For callers that hold `lock`."""
        start = self.began[-1]
        if self.head == start.row:
            return start
        return Began(start.epoch, self.head, *self.point(self.head - 1), start.ends)

    def point(self, row: int) -> tuple[int, int]:
        """(next, skip) after a row that is there."""
        at = self._points(row, row + 1)[0]
        return int(at["next"]), int(at["skip"])

    def epoch_start(self) -> Began | None:
        """Where the current epoch began, if none of its rows are overwritten. For callers that hold `lock`."""
        start = self.began[-1]
        return start if (start.next, start.skip) == (0, 0) and start.row >= self.at.intact else None

    # -- rows

    def begin(self, epoch: int = 0, next_: int = 0, skip: int = 0, readers: Sequence[Consumer] = ()) -> Run:
        """The sink of a new run, from a point of the stream on; the one before is stopped. Its first row is `head`.

        `readers` have their place there before anything is written: a short epoch could be over when they come.

        Rows reserved and not committed are passed over, since a thread of the old run may still write to them.
        """
        with self.turn, self.lock:
            at = self.at
            at.committed = at.reserved
            at.tail = at.intact = at.legible = max(at.tail, at.head)   # what lies between isn't whole
            self.runs += 1
            self.began.clear()
            self.began.append(Began(epoch, self.at.tail, next_, skip, self.ends))
            for consumer in readers:
                if consumer in self.readers.all:            # it may have left
                    consumer.place(self.began[-1])
            atomics().store(self.header.address + RUN, self.runs)
        self.publish(self.at.tail)
        return Run(self)

    def reserve(self, run: Run, rows: int) -> Reservation | None:
        with self.turn:
            while self.quick is not None and self.quick.wait(rows, run.stop_fd):
                with self.lock:                           # somebody may have joined at an older row
                    if run.stopped:
                        return None
                    room: Reservation | None = self.quick.reserve(rows)
                if room is not None:
                    return room

            def fits() -> bool:
                """Pages of consumers are read only where what was read last isn't enough."""
                span = self._span(rows)
                known = self.readers.known()
                sure = known is not None and self.at.tail + rows - known <= span
                return sure or bool(self.at.tail + rows - self.readers.least() <= span)

            while True:
                if not self.wait(run, self.room_fd, ROOM_WANTED, fits, lambda: self.at.tail + rows - self._span(rows),
                                  self._wakes_at):
                    return None
                with self.lock:
                    if fits():
                        return self._reserved(rows)

    def _reserved(self, rows: int) -> Reservation:
        at = self.at
        reservation = Reservation(at.tail, rows, at.reserved, {})
        at.reserved += 1
        at.tail += rows
        at.legible = max(at.legible, at.tail - self.layout.capacity - POINTS_STAY)
        self.overwrites(at.tail - self.layout.capacity)
        for place in self.fixed.values():
            part = self.parts[place.name]
            part.take_pages((reservation.row + rows) * place.row_bytes)
            reservation.address[place.name] = part.at(reservation.row * place.row_bytes)
        self.readers.tell()
        if self.quick is not None:
            self.quick.paged = all(part.whole for part in self.parts.values())
        return reservation

    def _span(self, rows: int) -> int:
        """How far the tail may be ahead of the slowest reader; one that asks for more at once gets it, and a task too."""
        most = self.layout.capacity
        if self.max_skew is None:
            return most
        asked = max((c.ahead() for c in self.readers.all if c.active), default=0)
        return min(most, max(self.max_skew, asked + rows))

    def overwrites(self, row: int) -> None:
        """Rows before `row` are written over from now on."""
        if row > self.at.intact:
            self.at.intact = row
            atomics().store(self.header.address + INTACT, row)

    def commit(self, run: Run, reservation: Reservation, rows: int, values: Mapping[str, Sequence[Any]]) -> None:
        at = self.at
        if reservation.number != at.committed or not 0 <= rows <= reservation.rows:
            raise ValueError("rows are committed in the order in which they were reserved")
        if rows:
            self._put_fixed(reservation, rows, values)
            if not self.varying.places:
                self.publish(self.head + rows)
            elif not self.varying.put(run, rows, values):
                return
        with self.lock:
            if at.committed == reservation.number:        # else a new run has begun
                at.committed += 1
            if at.committed == at.reserved and at.tail != at.head:
                at.tail = at.head                         # rows left out leave no hole
                os.eventfd_write(self.room_fd, 1)

    def end_epoch(self, run: Run, epoch: int) -> None:
        if not self.wait(run, self.heap_fd, HEAP_WANTED, lambda: self.ends - self.readers.least_ends() < END_COUNT,
                          lambda: 1):
            return
        with self.lock:
            self.ends_table[self.ends % END_COUNT] = (epoch, self.head)
            self.ends += 1
            last = self.began[-1]
            before = self.point(self.head - 1) if self.head > last.row else (last.next, last.skip)
            self.began.append(Began(epoch + 1, self.head, 0, 0, self.ends, before))
            while len(self.began) > 1 and self.began[1].row < self.at.intact:
                self.began.popleft()
            waiting = [c for c in self.readers.all if c.waits]
            for consumer in waiting:
                consumer.place(self.began[-1])
            atomics().store(self.header.address + ENDS, self.ends)
        self.readers.signal(always=True)
        if waiting:
            self.placed()

    def fail(self) -> None:
        """Rows end here; the reason is on the socket."""
        self.readers.signal(always=True)

    def close(self) -> None:
        """No engine runs now."""
        for memory in (self.header, *(p.map for p in (*self.parts.values(), *self.varying.heaps.values()))):
            memory.close()
        for consumer in self.readers.all:
            consumer.page.close()
            self.readers.remove(consumer)

    # -- waiting

    def wait(self, run: Run, fd: int, word: int, ready: Callable[[], bool], wanted: Callable[[], int],
              blocked: Callable[[int], bool] | None = None) -> bool:
        """Sleep until `ready`; False when stopped. Consumers signal `fd` when they pass the row `wanted()`.

        `blocked(row)`: somebody will; else look again.
        """
        if run.stopped or ready():
            return not run.stopped
        store, address = atomics().store, self.header.address + word
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(run.stop_fd, select.POLLIN)
        started = time.monotonic()
        try:
            while not run.stopped:
                goal = max(1, wanted())
                store(address, goal)
                if ready():
                    return True
                if blocked is not None and not blocked(goal):
                    continue
                again = self.readers.look_again()
                slept = time.monotonic()
                poll.poll(again)
                now = time.monotonic()
                self.readers.blame(now - slept)
                self.slept, started = self.slept + now - started, now
                _drain(fd)
            return False
        finally:
            store(address, 0)
            self.slept += time.monotonic() - started

    def _wakes_at(self, goal: int) -> bool:
        """Have one of those who hold the producer back wake it when it passes `goal`, not each of them in turn.

        For callers that have just asked for the least row. False: it is passed already.
        """
        holder = self.readers.holder()
        atomics().store(self.header.address + HOLDER, 0 if holder is None else holder.number)
        return self.readers.holds(holder, goal)

    def publish(self, head: int) -> None:
        self.at.head = head
        atomics().store(self.header.address + HEAD, head)
        self.readers.signal()

    # -- bytes

    def _put_fixed(self, reservation: Reservation, rows: int, values: Mapping[str, Sequence[Any]]) -> None:
        """Move rows down over those that earlier reservations left out; both places lie in one double mapping."""
        for place in self.fixed.values():
            to = self.parts[place.name].at(self.head * place.row_bytes)
            if place.name in values:
                shape = (rows, *[int(d or 0) for d in place.dims])
                view(to, shape, DTYPES[place.dtype])[:] = np.stack([np.asarray(v) for v in values[place.name]])
            elif reservation.row != self.head:
                shift = (reservation.row - self.head) * place.row_bytes
                ctypes.memmove(to, to + shift, rows * place.row_bytes)
            self.at.bytes += rows * place.row_bytes


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
