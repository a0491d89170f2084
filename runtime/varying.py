"""Values of varying size in the ring: copied into a ring of bytes for each field, with a table that says where each lies."""
from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .blocks import view
from .encode import aligned, encode
from .errors import DataError
from .layout import HEAP_WANTED, SHARE, Place
from .limits import show_size
from .part import Part

if TYPE_CHECKING:
    from .ring import Run, Writer


class Varying:
    """The fields of varying size of one writer; without any it has nothing to do."""

    def __init__(self, writer: Writer, fd: int, places: Sequence[Place]):
        self.writer, self.places = writer, places
        self.heaps = {p.name: Part(fd, p.heap_offset, p.heap) for p in places}
        self.tail = {p.name: 0 for p in places}
        self.starts: dict[str, deque[tuple[int, int]]] = {p.name: deque() for p in places}   # (row, its first byte)

    def put(self, run: Run, rows: int, values: Mapping[str, Sequence[Any]]) -> bool:
        """Copy and publish rows from the head on, those before which room runs out early. False: stopped."""
        writer, encoded = self.writer, {p.name: [encode(p, value) for value in values[p.name]] for p in self.places}
        if any(len(column) != rows for column in encoded.values()):
            raise ValueError("a field of varying size needs one value for each row")
        start, done, r = writer.head, 0, 0
        while r < rows:
            lacking = None
            with writer.lock:                             # nobody joins at bytes that are being written over
                for place in self.places:
                    size = aligned(len(encoded[place.name][r][0]))
                    if size > self.heaps[place.name].size // SHARE:
                        raise _too_long(place, size)
                    if not self._fits(place, size):
                        lacking = (place, size)
                        break
                else:
                    for place in self.places:
                        self._make_room(place, aligned(len(encoded[place.name][r][0])))
            if lacking is not None:
                if done < r:
                    writer.publish(start + r)
                    done = r
                if not self._wait(run, *lacking):
                    return False
                continue
            for place in self.places:
                self._put(place, start + r, *encoded[place.name][r])
            r += 1
        writer.publish(start + rows)
        return True

    def _fits(self, place: Place, size: int) -> bool:
        return self._needed(place, size) <= self.heaps[place.name].size

    def _needed(self, place: Place, size: int) -> int:
        """Bytes from the first one that is still read to the end of `size` more."""
        return self.tail[place.name] + size - self._start(place)

    def _start(self, place: Place) -> int:
        """The first byte that is still read: where the oldest row not released starts."""
        least = self.writer.readers.least()
        return int(self._entry(place, least, 1)[0]) if least < self.writer.head else self.tail[place.name]

    def _make_room(self, place: Place, size: int) -> None:
        """Rows whose bytes the next `size` ones lie on are lost."""
        starts, first = self.starts[place.name], self.tail[place.name] + size - self.heaps[place.name].size
        while starts and (starts[0][1] < first or starts[0][0] < self.writer.at.intact):
            self.writer.overwrites(starts.popleft()[0] + 1)

    def _entry(self, place: Place, row: int, words: int) -> Any:
        return view(self.writer.parts[place.name].at(row * place.row_bytes), (words,), np.dtype(np.int64))

    def _wait(self, run: Run, place: Place, size: int) -> bool:
        readers = self.writer.readers

        def blocked(goal: int) -> bool:
            """Whoever holds the oldest row and waits for more than fits will wait for ever."""
            least = readers.least()
            for consumer in readers.all:
                stuck = consumer.active and consumer.released == least and consumer.stuck(self.writer.head)
                if stuck and not self._fits(place, size):
                    readers.send_away(consumer, _too_long(place, self._needed(place, size)))
            return True

        for consumer in readers.all:                      # it may have to move old batches aside
            consumer.signal()
        return self.writer.wait(run, self.writer.heap_fd, HEAP_WANTED, lambda: self._fits(place, size),
                                lambda: readers.least() + 1, blocked)

    def _put(self, place: Place, row: int, data: Any, size: int, dims: Sequence[int]) -> None:
        heap, tail = self.heaps[place.name], self.tail[place.name]
        self.writer.parts[place.name].take_pages((row + 1) * place.row_bytes)
        if len(data):
            heap.take_pages(tail + len(data))
            view(heap.at(tail), (len(data),), np.dtype(np.uint8))[:] = data
        self._entry(place, row, 2 + len(place.dims))[:] = (tail, size, *dims)
        self.starts[place.name].append((row, tail))
        self.tail[place.name] = tail + aligned(len(data))
        self.writer.at.bytes += len(data)


def _too_long(place: Place, need: int) -> DataError:
    return DataError(
        "E0809", f"not enough memory for the ring: the values of `{place.name}` that one batch needs don't fit",
        notes=(f"needed: more than {show_size(need)}; there: {show_size(place.heap)} for this field",
               "write a larger `memory=`, or use smaller batches"),
    )
