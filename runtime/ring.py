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
from typing import Any

import numpy as np

from .atomics import atomics
from .blocks import DTYPES, view
from .consumer import Began, Consumer
from .encode import aligned, encode
from .errors import DataError
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
    Place,
)
from .limits import show_size
from .memory import Mapping as Memory
from .part import Part
from .readers import Readers


@dataclass
class Reservation:
    """Room for `rows` rows from `row` on. `address[column]` is where the first of them starts; they are contiguous."""

    row: int
    rows: int
    address: dict[str, int]


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
        return self.writer.reserve(self, rows)

    def commit(self, reservation: Reservation, rows: int, ragged: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Deliver the first `rows` rows of the oldest reservation.

        `ragged`: one value per row for each field of varying size, and for others not written in place.
        """
        if not self.stopped:
            self.writer.commit(self, reservation, rows, ragged or {})

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
        self.heaps = {p.name: Part(fd, p.heap_offset, p.heap) for p in layout.places if p.ragged}
        self.fixed = {p.name: p for p in layout.places if not p.ragged}
        self.ragged = [p for p in layout.places if p.ragged]
        self.heap_tail = {p.name: 0 for p in self.ragged}
        self.starts: dict[str, deque[tuple[int, int]]] = {p.name: deque() for p in self.ragged}   # (row, its first byte)
        self.ends_table = view(self.header.address + END_TABLE, (END_COUNT, 2), np.dtype(np.int64))
        self.room_fd, self.heap_fd = room_fd, heap_fd
        self.lock, self.turn = threading.RLock(), threading.Lock()
        self.outstanding: deque[Reservation] = deque()
        self.began: deque[Began] = deque()
        self.head = self.tail = self.ends = self.intact = self.legible = self.runs = 0
        self.bytes = 0
        self.waited = 0.0                                 # seconds for which there was no room

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
            return Began(epoch, later.row, next_, skip, start.ends) if later.row >= self.intact else None
        high = later.row if later is not None else self.head
        row, seen = self._after(max(start.row, self.legible), high, next_, skip, start)
        return Began(epoch, row, *seen, start.ends) if row >= self.intact else None

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
        return start if (start.next, start.skip) == (0, 0) and start.row >= self.intact else None

    # -- rows

    def begin(self, epoch: int = 0, next_: int = 0, skip: int = 0, readers: Sequence[Consumer] = ()) -> Run:
        """The sink of a new run, from a point of the stream on; the one before is stopped. Its first row is `head`.

        `readers` have their place there before anything is written: a short epoch could be over when they come.

        Rows reserved and not committed are passed over, since a thread of the old run may still write to them.
        """
        with self.turn, self.lock:
            self.outstanding.clear()
            self.tail = max(self.tail, self.head)
            self.intact = self.legible = self.tail        # what lies between isn't whole
            self.runs += 1
            self.began.clear()
            self.began.append(Began(epoch, self.tail, next_, skip, self.ends))
            for consumer in readers:
                if consumer in self.readers.all:            # it may have left
                    consumer.place(self.began[-1])
            atomics().store(self.header.address + RUN, self.runs)
        self._publish(self.tail)
        return Run(self)

    def reserve(self, run: Run, rows: int) -> Reservation | None:
        with self.turn:
            def fits() -> bool:
                """Pages of consumers are read only where what was read last isn't enough."""
                span = self._span(rows)
                known = self.readers.known()
                sure = known is not None and self.tail + rows - known <= span
                return sure or self.tail + rows - self.readers.least() <= span

            while True:
                if not self._wait(run, self.room_fd, ROOM_WANTED, fits, lambda: self.tail + rows - self._span(rows),
                                  self._wakes_at):
                    return None
                with self.lock:                           # somebody may have joined at an older row
                    if not fits():
                        continue
                    reservation = Reservation(self.tail, rows, {})
                    self.tail += rows
                    self.legible = max(self.legible, self.tail - self.layout.capacity - POINTS_STAY)
                    self._overwrites(self.tail - self.layout.capacity)
                    self.outstanding.append(reservation)
                    break
            for place in self.fixed.values():
                part = self.parts[place.name]
                part.take_pages((reservation.row + rows) * place.row_bytes)
                reservation.address[place.name] = part.at(reservation.row * place.row_bytes)
            return reservation

    def _span(self, rows: int) -> int:
        """How far the tail may be ahead of the slowest reader; one that asks for more at once gets it, and a task too."""
        most = self.layout.capacity
        if self.max_skew is None:
            return most
        asked = max((c.ahead() for c in self.readers.all if c.active), default=0)
        return min(most, max(self.max_skew, asked + rows))

    def _overwrites(self, row: int) -> None:
        """Rows before `row` are written over from now on."""
        if row > self.intact:
            self.intact = row
            atomics().store(self.header.address + INTACT, row)

    def commit(self, run: Run, reservation: Reservation, rows: int, values: Mapping[str, Sequence[Any]]) -> None:
        if not self.outstanding or self.outstanding[0] is not reservation or not 0 <= rows <= reservation.rows:
            raise ValueError("rows are committed in the order in which they were reserved")
        if rows:
            self._put_fixed(reservation, rows, values)
            if not self.ragged:
                self._publish(self.head + rows)
            elif not self._put_ragged(run, rows, values):
                return
        with self.lock:
            self.outstanding.popleft()
            if not self.outstanding and self.tail != self.head:
                self.tail = self.head                     # rows left out leave no hole
                os.eventfd_write(self.room_fd, 1)

    def end_epoch(self, run: Run, epoch: int) -> None:
        if not self._wait(run, self.heap_fd, HEAP_WANTED, lambda: self.ends - self.readers.least_ends() < END_COUNT, lambda: 1):
            return
        with self.lock:
            self.ends_table[self.ends % END_COUNT] = (epoch, self.head)
            self.ends += 1
            last = self.began[-1]
            before = self.point(self.head - 1) if self.head > last.row else (last.next, last.skip)
            self.began.append(Began(epoch + 1, self.head, 0, 0, self.ends, before))
            while len(self.began) > 1 and self.began[1].row < self.intact:
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
        for memory in (self.header, *(p.map for p in (*self.parts.values(), *self.heaps.values()))):
            memory.close()
        for consumer in self.readers.all:
            consumer.page.close()

    # -- waiting

    def _wait(self, run: Run, fd: int, word: int, ready: Callable[[], bool], wanted: Callable[[], int],
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
                self.waited, started = self.waited + now - started, now
                _drain(fd)
            return False
        finally:
            store(address, 0)
            self.waited += time.monotonic() - started

    def _wakes_at(self, goal: int) -> bool:
        """Have one of those who hold the producer back wake it when it passes `goal`, not each of them in turn.

        For callers that have just asked for the least row. False: it is passed already.
        """
        holder = self.readers.holder()
        atomics().store(self.header.address + HOLDER, 0 if holder is None else holder.number)
        return self.readers.holds(holder, goal)

    def _publish(self, head: int) -> None:
        self.head = head
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
            self.bytes += rows * place.row_bytes

    def _put_ragged(self, run: Run, rows: int, values: Mapping[str, Sequence[Any]]) -> bool:
        """Copy values into the byte rings, row by row; what is written is published when room runs out."""
        encoded = {p.name: [encode(p, value) for value in values[p.name]] for p in self.ragged}
        if any(len(column) != rows for column in encoded.values()):
            raise ValueError("a field of varying size needs one value for each row")
        start, done, r = self.head, 0, 0
        while r < rows:
            lacking = None
            with self.lock:                               # nobody joins at bytes that are being written over
                for place in self.ragged:
                    size = aligned(len(encoded[place.name][r][0]))
                    if size > self.heaps[place.name].size // SHARE:
                        raise _too_long(place, size)
                    if self.heap_tail[place.name] + size - self._heap_start(place) > self.heaps[place.name].size:
                        lacking = (place, size)
                        break
                else:
                    for place in self.ragged:
                        self._make_room(place, aligned(len(encoded[place.name][r][0])))
            if lacking is not None:
                if done < r:
                    self._publish(start + r)
                    done = r
                if not self._wait_heap(run, *lacking):
                    return False
                continue
            for place in self.ragged:
                self._put(place, start + r, *encoded[place.name][r])
            r += 1
        self._publish(start + rows)
        return True

    def _make_room(self, place: Place, size: int) -> None:
        """Rows whose bytes the next `size` ones lie on are lost."""
        starts, first = self.starts[place.name], self.heap_tail[place.name] + size - self.heaps[place.name].size
        while starts and (starts[0][1] < first or starts[0][0] < self.intact):
            self._overwrites(starts.popleft()[0] + 1)

    def _heap_start(self, place: Place) -> int:
        """The first byte that is still read: where the oldest row not released starts."""
        least = self.readers.least()
        return self._entry(place, least, 1)[0] if least < self.head else self.heap_tail[place.name]

    def _entry(self, place: Place, row: int, words: int) -> Any:
        return view(self.parts[place.name].at(row * place.row_bytes), (words,), np.dtype(np.int64))

    def _wait_heap(self, run: Run, place: Place, size: int) -> bool:
        def fits() -> bool:
            return self.heap_tail[place.name] + size - int(self._heap_start(place)) <= self.heaps[place.name].size

        def blocked(goal: int) -> bool:
            """Whoever holds the oldest row and waits for more than fits will wait for ever."""
            least = self.readers.least()
            for consumer in self.readers.all:
                if consumer.active and consumer.released == least and consumer.stuck(self.head) and not fits():
                    need = self.heap_tail[place.name] + size - int(self._heap_start(place))
                    self.readers.send_away(consumer, _too_long(place, need))
            return True

        for consumer in self.readers.all:                   # it may have to move old batches aside
            consumer.signal()
        return self._wait(run, self.heap_fd, HEAP_WANTED, fits, lambda: self.readers.least() + 1, blocked)

    def _put(self, place: Place, row: int, data: Any, size: int, dims: Sequence[int]) -> None:
        part, heap = self.parts[place.name], self.heaps[place.name]
        part.take_pages((row + 1) * place.row_bytes)
        tail = self.heap_tail[place.name]
        if len(data):
            heap.take_pages(tail + len(data))
            view(heap.at(tail), (len(data),), np.dtype(np.uint8))[:] = data
        self._entry(place, row, 2 + len(place.dims))[:] = (tail, size, *dims)
        self.starts[place.name].append((row, tail))
        self.heap_tail[place.name] = tail + aligned(len(data))
        self.bytes += len(data)


def _too_long(place: Place, need: int) -> DataError:
    return DataError(
        "E0809", f"not enough memory for the ring: the values of `{place.name}` that one batch needs don't fit",
        notes=(f"needed: more than {show_size(need)}; there: {show_size(place.heap)} for this field",
               "write a larger `memory=`, or use smaller batches"),
    )


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
