"""How long the memory of a batch stays: a lease ends when the last array over it is gone.

A window is one copy-on-write double mapping of every byte ring. Batches that are kept are moved aside before they
block the ring: their pages are made private copies, at the same addresses. A later batch that needs such a page is
read through another window.
"""
from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .atomics import atomics
from .errors import DataError
from .limits import show_size
from .memory import PAGE, Mapping, Pagemap, drop, faults


class Span(NamedTuple):
    """`size` bytes from `position` (counted from the start of the stream) of byte ring number `part`."""

    part: int
    position: int
    size: int


class Window:
    """Every byte ring of the memfd mapped once more, for as long as an array lies in it."""

    def __init__(self, fd: int, parts: Sequence[tuple[int, int]]):
        self.maps = [Mapping(fd, offset, size, double=True, write=False, copy_on_write=True) for offset, size in parts]
        self.held: list[Held] = []

    def address(self, span: Span) -> int:
        mapping = self.maps[span.part]
        return mapping.address + span.position % mapping.size

    def pages(self, span: Span) -> tuple[int, int]:
        """(first page's address, end of the last page)."""
        start = self.address(span)
        return start // PAGE * PAGE, -(-(start + span.size) // PAGE) * PAGE


class Held:
    """The bookkeeping of one batch: rows `start` to `stop`, and the bytes its arrays lie on."""

    __slots__ = ("ended", "faults", "moved", "spans", "start", "stop", "window")

    def __init__(self, window: Window, start: int, stop: int, spans: Sequence[Span], seen: int):
        """`seen`: page faults before anybody can have written to it, where that can be."""
        self.window, self.start, self.stop, self.spans, self.faults = window, start, stop, spans, seen
        self.moved = self.ended = False

    @property
    def pages(self) -> list[tuple[int, int]]:
        """(first page's address, end of the last page) of each span."""
        return [self.window.pages(span) for span in self.spans]

    @property
    def marks(self) -> dict[int, int]:
        """The first position in each byte ring."""
        return {span.part: span.position for span in self.spans}

    @property
    def bytes(self) -> int:
        return sum(end - first for first, end in self.pages)

    def covers(self, page: int) -> bool:
        return any(first <= page < end for first, end in self.pages)


class Lease:
    """Every array over a batch refers to it. Its end is one store: no lock, so it may happen in any thread, at any time.

    The store goes to memory of this process, so in a forked child it means nothing.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self, held: Held):
        self.held = held

    def __del__(self) -> None:
        self.held.ended = True


class Piece:
    """What NumPy asks for memory: an address that a lease keeps."""

    __slots__ = ("__array_interface__", "lease")

    def __init__(self, lease: Any, address: int, size: int, read_only: bool):
        self.lease = lease
        self.__array_interface__ = {"data": (address, read_only), "shape": (size,), "typestr": "|u1", "version": 3}


def bytes_at(lease: Any, address: int, size: int, read_only: bool = True) -> np.ndarray:
    """An array of bytes that keeps `lease`."""
    return np.asarray(Piece(lease, address, size, read_only)) if size else np.empty(0, np.uint8)


@dataclass
class Counts:
    """What leases cost so far."""

    moved: int = 0
    moved_bytes: int = 0


class Leases:
    """All leases of one consumer. Used by one thread; only `Lease.__del__` may run elsewhere."""

    def __init__(self, fd: int, parts: Sequence[tuple[int, int]], budget: int, writable: bool = True):
        """`budget`: bytes of batches that may be moved aside. `writable`: whoever holds arrays may write to them."""
        self.fd, self.parts, self.budget, self.writable = fd, tuple(parts), budget, writable
        self.windows = [Window(fd, parts)]
        self.live: list[Held] = []                        # in order of rows
        self.pagemap = Pagemap()
        self.private = 0                                  # bytes of batches moved aside
        self.counts = Counts()

    def window(self, spans: Sequence[Span]) -> Window:
        """A window in which all these bytes are the ring's own."""
        if not self.private and not self.writable:        # nobody has private copies
            return self.windows[0]
        for window in self.windows:
            if all(self._clean(window, *window.pages(span)) for span in spans if span.size):
                return window
        self.windows.append(Window(self.fd, self.parts))
        return self.windows[-1]

    def _clean(self, window: Window, first: int, end: int) -> bool:
        """No page of the range is a private copy. Only pages of live batches can be, and mostly those at its ends."""
        for held in window.held:
            for a, b in held.pages:
                a, b = max(a, first), min(b, end)
                if a < b and (held.moved or (self.writable and self.pagemap.private(a, (b - a) // PAGE).any())):
                    return False
        return True

    def hold(self, window: Window, start: int, stop: int, spans: Sequence[Span]) -> Lease:
        held = Held(window, start, stop, spans, faults() if self.writable else 0)
        self.live.append(held)
        window.held.append(held)
        return Lease(held)

    def reclaim(self) -> None:
        """Forget leases that ended, and the private copies of their pages."""
        ended = [held for held in self.live if held.ended]
        if not ended:
            return
        self.live = [held for held in self.live if not held.ended]
        for held in ended:
            held.window.held.remove(held)
            if held.moved:
                self.private -= held.bytes
        now = faults() if self.writable else 0
        for held in ended:
            if held.moved or (self.writable and held.faults != now):
                self._restore(held)
        if len(self.windows) > 1:                         # the first one that is free is used again, others go
            self.windows = [w for k, w in enumerate(self.windows) if w.held or k == 0]

    def _restore(self, held: Held) -> None:
        """Drop private pages, except those at the ends that a live batch also lies on."""
        others = held.window.held
        for first, end in held.pages:
            while first < end and any(o.covers(first) for o in others):
                first += PAGE
            while first < end and any(o.covers(end - PAGE) for o in others):
                end -= PAGE
            if first < end:
                if held.moved:
                    drop(first, end - first)
                else:
                    self.pagemap.drop_private(first, (end - first) // PAGE)

    def blocking(self) -> Held | None:
        """The oldest batch whose rows can't be used again yet."""
        for held in self.live:
            if not held.moved and not held.ended:
                return held
        return None

    def oldest(self, position: int) -> int:
        """The row before which the ring may be used again; the next to be read is `position`."""
        for held in self.live:
            if not held.moved:
                return held.start
        return position

    def move_aside(self, held: Held) -> None:
        """Give a batch private copies of its pages, where they are. Raises E0808 past the budget.

        Adding zero to one byte of a page is a write to the kernel, which copies the page, and changes nothing for
        a thread that reads or writes the same page just then.
        """
        if self.private + held.bytes > self.budget:
            gc.collect()                                  # batches in reference cycles
            self.reclaim()
            if held.ended:
                return
            if self.private + held.bytes > self.budget:
                raise self._too_much()
        for first, end in held.pages:
            atomics().touch(first, (end - first) // PAGE, PAGE, 0)
        held.moved = True
        self.private += held.bytes
        self.counts.moved += 1
        self.counts.moved_bytes += held.bytes

    def _too_much(self) -> DataError:
        kept = [held for held in self.live if not held.ended]
        rows = f"{kept[0].start:,} to {kept[-1].stop:,}" if kept else "none"
        return DataError(
            "E0808", f"{len(kept)} batches are still held and fill the ring",
            notes=(f"held: {show_size(sum(h.bytes for h in kept))}, the rows {rows} since the start",
                   f"{show_size(self.private)} of them were copied aside already, of {show_size(self.budget)} allowed",
                   "keep copies (`batch.image.clone()`, `np.array(batch.image)`) or fewer batches, "
                   "or write a larger `memory=`"),
        )

    def close(self) -> None:
        """Windows with live arrays in them stay until these are gone."""
        self.windows.clear()
        self.live.clear()
        self.pagemap.close()
