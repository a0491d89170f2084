"""The producer's side of the ring: rows are reserved, written in place, and committed in order.

`Writer` is the sink of an engine. It waits for the least position released by its consumers, and lets them know
of new rows. What a consumer writes into its control page is checked before it is used.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from .atomics import atomics
from .blocks import DTYPES, view
from .errors import DataError
from .layout import (
    ALIGN,
    END_COUNT,
    END_TABLE,
    ENDS,
    ENDS_READ,
    FAILED,
    HEAD,
    HEADER,
    HEAP_WANTED,
    POSITION,
    RELEASED,
    ROOM_WANTED,
    RUNNING,
    SHARE,
    STATE,
    WANTED,
    Layout,
    Place,
)
from .limits import MARGIN, available, show_size, too_little
from .memory import PAGE, STEP, reserve
from .memory import Mapping as Memory


class BrokenConsumer(Exception):
    """A consumer's control page holds what can't be."""


@dataclass
class Reservation:
    """Room for `rows` rows from `row` on. `address[column]` is where the first of them starts; they are contiguous."""

    row: int
    rows: int
    address: dict[str, int]


class Consumer:
    """What the producer sees of one consumer: its control page, and the eventfd that wakes it."""

    def __init__(self, control: int, data_fd: int):
        self.page = Memory(control, 0, PAGE, double=False, write=False)
        self.data_fd = data_fd
        self.released = self.ends = 0
        self.lock = threading.Lock()

    def update(self, writer: Writer) -> None:
        """Read the page again. Positions go up and never past the head."""
        load, page = atomics().load, self.page.address
        with self.lock:
            released, ends_read = load(page + RELEASED), load(page + ENDS_READ)
            if not (self.released <= released <= writer.head and self.ends <= ends_read <= writer.ends):
                raise BrokenConsumer(f"row {released} released of {writer.head}, after {self.released}")
            self.released, self.ends = released, ends_read

    def stuck(self, head: int) -> bool:
        """It waits for rows past the head, and holds none."""
        load, page = atomics().load, self.page.address
        wanted, position = load(page + WANTED), load(page + POSITION)
        return wanted > head and load(page + RELEASED) == position

    def signal(self) -> None:
        os.eventfd_write(self.data_fd, 1)


class Part:
    """One ring of bytes of the memfd, mapped, and how much of it has its pages."""

    def __init__(self, fd: int, offset: int, size: int):
        self.fd, self.offset, self.size = fd, offset, size
        self.map = Memory(fd, offset, size, double=True, write=True)
        self.taken = 0

    def at(self, position: int) -> int:
        return self.map.address + position % self.size

    def take_pages(self, end: int) -> None:
        """Have pages for every byte before position `end`: in steps, on the first lap only."""
        while self.taken < min(end, self.size):
            step = min(max(STEP, PAGE), self.size - self.taken)
            room = available()
            if room.free < step + MARGIN:
                raise too_little(step + MARGIN, room.free, room.source, "the next part of the ring",
                                 "give the process more memory, or write a smaller `memory=`")
            try:
                reserve(self.fd, self.offset + self.taken, step)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                    raise
                raise too_little(step, room.free, os.strerror(error.errno), "the next part of the ring",
                                 "give the process more memory, or write a smaller `memory=`") from error
            self.taken += step


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
    """Writes rows for all consumers; `begin` gives an engine its sink."""

    def __init__(self, layout: Layout, fd: int, room_fd: int, heap_fd: int):
        self.layout = layout
        self.most_rows = layout.capacity // SHARE          # of one reservation
        self.header = Memory(fd, 0, HEADER, double=False, write=True)
        self.parts = {p.name: Part(fd, p.offset, p.size) for p in layout.places}
        self.heaps = {p.name: Part(fd, p.heap_offset, p.heap) for p in layout.places if p.ragged}
        self.fixed = {p.name: p for p in layout.places if not p.ragged}
        self.ragged = [p for p in layout.places if p.ragged]
        self.heap_tail = {p.name: 0 for p in self.ragged}
        self.ends_table = view(self.header.address + END_TABLE, (END_COUNT, 2), np.dtype(np.int64))
        self.room_fd, self.heap_fd = room_fd, heap_fd
        self.consumers: list[Consumer] = []
        self.lock, self.turn = threading.Lock(), threading.Lock()
        self.outstanding: deque[Reservation] = deque()
        self.head = self.tail = self.ends = 0
        self.bytes = 0

    def begin(self) -> Run:
        """The sink of a new run; the one before is stopped. Its first row is `head`.

        Rows reserved and not committed are passed over, since a thread of the old run may still write to them.
        """
        with self.turn, self.lock:
            self.outstanding.clear()
            self.tail = max(self.tail, self.head)
            atomics().store(self.header.address + STATE, RUNNING)
        self._publish(self.tail)
        return Run(self)

    def reserve(self, run: Run, rows: int) -> Reservation | None:
        with self.turn:
            def fits() -> bool:
                return self.tail + rows - self.least() <= self.layout.capacity

            if not self._wait(run, self.room_fd, ROOM_WANTED, fits, lambda: self.tail + rows - self.layout.capacity):
                return None
            with self.lock:
                reservation = Reservation(self.tail, rows, {})
                self.tail += rows
                self.outstanding.append(reservation)
            for place in self.fixed.values():
                part = self.parts[place.name]
                part.take_pages((reservation.row + rows) * place.row_bytes)
                reservation.address[place.name] = part.at(reservation.row * place.row_bytes)
            return reservation

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
        if not self._wait(run, self.heap_fd, HEAP_WANTED, lambda: self.ends - self.least_ends() < END_COUNT, lambda: 1):
            return
        self.ends_table[self.ends % END_COUNT] = (epoch, self.head)
        self.ends += 1
        atomics().store(self.header.address + ENDS, self.ends)
        self._signal(always=True)

    def fail(self) -> None:
        """Rows end here; the reason is on the socket."""
        atomics().store(self.header.address + STATE, FAILED)
        self._signal(always=True)

    def close(self) -> None:
        """No engine runs now."""
        for memory in (self.header, *(p.map for p in (*self.parts.values(), *self.heaps.values()))):
            memory.close()
        for consumer in self.consumers:
            consumer.page.close()

    def least(self) -> int:
        """The row before which nobody reads any more."""
        for consumer in self.consumers:
            consumer.update(self)
        return min((c.released for c in self.consumers), default=self.head)

    def least_ends(self) -> int:
        self.least()
        return min((c.ends for c in self.consumers), default=self.ends)

    def _wait(self, run: Run, fd: int, word: int, ready: Callable[[], bool], wanted: Callable[[], int],
              blocked: Callable[[], None] | None = None) -> bool:
        """Sleep until `ready`; False when stopped. Consumers signal `fd` when they pass the row `wanted()`."""
        if run.stopped or ready():
            return not run.stopped
        store, address = atomics().store, self.header.address + word
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(run.stop_fd, select.POLLIN)
        try:
            while not run.stopped:
                store(address, max(1, wanted()))
                if ready():
                    return True
                if blocked is not None:
                    blocked()
                poll.poll()
                _drain(fd)
            return False
        finally:
            store(address, 0)

    def _publish(self, head: int) -> None:
        self.head = head
        atomics().store(self.header.address + HEAD, head)
        self._signal()

    def _signal(self, always: bool = False) -> None:
        load = atomics().load
        for consumer in self.consumers:
            wanted = load(consumer.page.address + WANTED)
            if wanted and (always or wanted <= self.head):
                consumer.signal()

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
        encoded = {p.name: [_encode(p, value) for value in values[p.name]] for p in self.ragged}
        if any(len(column) != rows for column in encoded.values()):
            raise ValueError("a field of varying size needs one value for each row")
        start, done = self.head, 0
        for r in range(rows):
            for place in self.ragged:
                size = _aligned(len(encoded[place.name][r][0]))
                if size > self.heaps[place.name].size // SHARE:
                    raise _too_long(place, size)
                if self.heap_tail[place.name] + size - self._heap_start(place) > self.heaps[place.name].size:
                    if done < r:
                        self._publish(start + r)
                        done = r
                    if not self._wait_heap(run, place, size):
                        return False
            for place in self.ragged:
                self._put(place, start + r, *encoded[place.name][r])
        self._publish(start + rows)
        return True

    def _heap_start(self, place: Place) -> int:
        """The first byte that is still read: where the oldest row not released starts."""
        least = self.least()
        return self._entry(place, least, 1)[0] if least < self.head else self.heap_tail[place.name]

    def _entry(self, place: Place, row: int, words: int) -> Any:
        return view(self.parts[place.name].at(row * place.row_bytes), (words,), np.dtype(np.int64))

    def _wait_heap(self, run: Run, place: Place, size: int) -> bool:
        def fits() -> bool:
            return self.heap_tail[place.name] + size - int(self._heap_start(place)) <= self.heaps[place.name].size

        def blocked() -> None:
            if any(c.stuck(self.head) for c in self.consumers) and not fits():
                raise _too_long(place, self.heap_tail[place.name] - int(self._heap_start(place)) + size)

        for consumer in self.consumers:                   # it may have to move old batches aside
            consumer.signal()
        return self._wait(run, self.heap_fd, HEAP_WANTED, fits, lambda: self.least() + 1, blocked)

    def _put(self, place: Place, row: int, data: Any, size: int, dims: Sequence[int]) -> None:
        part, heap = self.parts[place.name], self.heaps[place.name]
        part.take_pages((row + 1) * place.row_bytes)
        tail = self.heap_tail[place.name]
        if len(data):
            heap.take_pages(tail + len(data))
            view(heap.at(tail), (len(data),), np.dtype(np.uint8))[:] = data
        self._entry(place, row, 2 + len(place.dims))[:] = (tail, size, *dims)
        self.heap_tail[place.name] = tail + _aligned(len(data))
        self.bytes += len(data)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _encode(place: Place, value: Any) -> tuple[Any, int, tuple[int, ...]]:
    """(bytes as an array, their number or -1 for none, dims) of one value."""
    if place.dtype in DTYPES:
        array = np.ascontiguousarray(value, DTYPES[place.dtype])
        if array.ndim != len(place.dims):
            array = array.reshape(np.shape(value))        # ascontiguousarray makes 1-d of a scalar
        if len(array.shape) != len(place.dims):
            raise ValueError(f"`{place.name}` has {len(array.shape)} dims, not {len(place.dims)}")
        return array.reshape(-1).view(np.uint8), array.nbytes, array.shape
    if place.dims:
        objects = np.asarray(value, object)
        data = msgspec.msgpack.encode([_text(v) for v in objects.reshape(-1)])
        return np.frombuffer(data, np.uint8), len(data), objects.shape
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.item()
    if value is None:
        return np.empty(0, np.uint8), -1, ()
    text = _text(value)
    data = text.encode() if isinstance(text, str) else bytes(text)
    return np.frombuffer(data, np.uint8), len(data), ()


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes):
        return value
    return bytes(value) if isinstance(value, bytearray | memoryview | np.ndarray) else os.fspath(value)


def _too_long(place: Place, need: int) -> DataError:
    return DataError(
        "E0809", f"not enough memory for the ring: the values of `{place.name}` that one batch needs don't fit",
        notes=(f"needed: more than {show_size(need)}; there: {show_size(place.heap)} for this field",
               "write a larger `memory=`, or use smaller batches"),
    )


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
