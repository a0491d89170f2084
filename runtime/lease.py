"""How long the memory of a batch stays: a lease ends when the last array over it is gone.

A window is one copy-on-write double mapping of every byte ring. Batches that are kept are moved aside before they
block the ring: their pages are made private copies, at the same addresses. A later batch that needs such a page is
read through another window.
"""
from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .atomics import atomics
from .errors import DataError
from .extension import handover
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

    def address(self, span: tuple[int, int, int]) -> int:
        part, position, _ = span                          # a Span
        mapping = self.maps[part]
        return mapping.address + position % mapping.size

    def pages(self, span: tuple[int, int, int]) -> tuple[int, int]:
        """(first page's address, end of the last page)."""
        start = self.address(span)
        return start // PAGE * PAGE, -(-(start + span[2]) // PAGE) * PAGE


class Held:
    """The bookkeeping of one batch: rows `start` to `stop`, and the bytes its arrays lie on."""

    __slots__ = ("ended", "faults", "moved", "spans", "start", "stop", "window")

    def __init__(self, window: Window, start: int, stop: int, spans: Sequence[tuple[int, int, int]], seen: int):
        """`seen`: page faults before anybody can have written to it, where that can be."""
        self.window, self.start, self.stop, self.spans, self.faults = window, start, stop, spans, seen
        self.moved = self.ended = False


class Lease:
    """Every array over a batch refers to it. Its end is one store: no lock, so it may happen in any thread, at any time.

    The store goes to memory of this process, so in a forked child it means nothing.
    """

    __slots__ = ("held",)

    def __init__(self, held: Held):
        self.held = held

    def __del__(self) -> None:
        self.held.ended = True


IN_PYTHON = (Held, Lease)
if not TYPE_CHECKING and handover() is not None:          # the same for `handover.c`
    Held, Lease = handover().Held, handover().Lease


def pages_of(held: Held) -> list[tuple[int, int]]:
    """(first page's address, end of the last page) of each span of a batch."""
    return [held.window.pages(span) for span in held.spans]


def bytes_of(held: Held) -> int:
    """Bytes of the pages that a batch lies on."""
    return sum(end - first for first, end in pages_of(held))


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
        self.live: list[Held] = []                        # in order of rows; these lists stay, `handover.c` holds them
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
        for held in self._within(window):
            for a, b in pages_of(held):
                a, b = max(a, first), min(b, end)
                if a < b and (held.moved or (self.writable and self.pagemap.private(a, (b - a) // PAGE).any())):
                    return False
        return True

    def hold(self, window: Window, start: int, stop: int, spans: Sequence[Span]) -> Lease:
        held = Held(window, start, stop, spans, faults() if self.writable else 0)
        self.live.append(held)
        return Lease(held)

    def reclaim(self) -> None:
        """Forget leases that ended, and the private copies of their pages."""
        ended = [held for held in self.live if held.ended]
        if not ended:
            return
        self.live[:] = [held for held in self.live if not held.ended]
        for held in ended:
            if held.moved:
                self.private -= bytes_of(held)
        now = faults() if self.writable else 0
        for held in ended:
            if held.moved or (self.writable and held.faults != now):
                self._restore(held)
        if len(self.windows) > 1:                         # the first one that is free is used again, others go
            self.windows[:] = [w for k, w in enumerate(self.windows) if k == 0 or self._within(w)]

    def _within(self, window: Window) -> list[Held]:
        return [held for held in self.live if held.window is window]

    def _restore(self, held: Held) -> None:
        """Drop private pages, except those at the ends that a live batch also lies on."""
        others = [pages for other in self._within(held.window) for pages in pages_of(other)]

        def kept(page: int) -> bool:
            return any(first <= page < end for first, end in others)

        for first, end in pages_of(held):
            while first < end and kept(first):
                first += PAGE
            while first < end and kept(end - PAGE):
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
        if self.private + bytes_of(held) > self.budget:
            gc.collect()                                  # batches in reference cycles
            self.reclaim()
            if held.ended:
                return
            if self.private + bytes_of(held) > self.budget:
                raise self._too_much()
        for first, end in pages_of(held):
            atomics().touch(first, (end - first) // PAGE, PAGE, 0)
        held.moved = True
        self.private += bytes_of(held)
        self.counts.moved += 1
        self.counts.moved_bytes += bytes_of(held)

    def _too_much(self) -> DataError:
        kept = [held for held in self.live if not held.ended]
        rows = f"{kept[0].start:,} to {kept[-1].stop:,}" if kept else "none"
        return DataError(
            "E0808", f"{len(kept)} batches are still held and fill the ring",
            notes=(f"held: {show_size(sum(bytes_of(h) for h in kept))}, the rows {rows} since the start",
                   f"{show_size(self.private)} of them were copied aside already, of {show_size(self.budget)} allowed",
                   "keep copies (`batch.image.clone()`, `np.array(batch.image)`) or fewer batches, "
                   "or write a larger `memory=`"),
        )

    def close(self) -> None:
        """Windows with live arrays in them stay until these are gone."""
        self.windows.clear()
        self.live.clear()
        self.pagemap.close()
