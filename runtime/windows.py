"""`window` where its records can be read at any place: a window is a slice of what lies in memory, if its records do."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import DTYPES, address_of
from .execute import Runner
from .feed import Feed, Joined, failed_inside, gather, value_of
from .frames import stacked
from .held import Frames, Held
from .numbers import Numbers
from .order import FOREVER, InOrder, Taken
from .plan import Start
from .source import FromSource, Laid
from .straight import Evenly, Lying

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class Windows:
    """Windows of n records of a feed, one every `stride` records."""

    marks, size = False, FOREVER

    def __init__(self, inner: Feed, start: Start, numbers: Numbers):
        self.inner, self.numbers, self.heavy = inner, numbers, inner.heavy
        self.keep, self.padded = start.options["rest"] == "keep", frozenset(start.options["padded"])
        self.n = self.stride = 1

    @property
    def lasts(self) -> bool:
        return not self.padded and isinstance(self.inner.input, FromSource) and self.inner.input.lasts

    def start_epoch(self, epoch: int) -> None:
        self.inner.start_epoch(epoch)
        sizes = self.numbers.at(epoch)
        self.n, self.stride = sizes["n"], sizes["stride"]

    def length(self, turn: int) -> int:
        """Whole windows, and a smaller one at the end if it holds a record that no other does."""
        records = self.inner.order(turn).length
        whole = (records - self.n) // self.stride + 1 if records >= self.n else 0
        covered = max(whole * self.stride, (whole - 1) * self.stride + self.n) if whole else 0
        return whole + (self.keep and records > covered)

    def ids(self, indexes: Ints, turn: int) -> Words:
        return self.inner.ids(indexes * self.stride, turn)

    def values(self, indexes: Ints, field: str) -> list[Any]:
        raise NotImplementedError("windows have no fields to balance by")

    def frames(self, runner: Runner, fields: Mapping[str, str], indexes: Ints, turn: int, ids: Joined,
               held: ExitStack) -> Frames:
        starts = indexes * self.stride
        counts = np.minimum(self.n, self.inner.order(turn).length - starts)
        frames = runner.frames(len(indexes), ids(self.inner.ids(starts, turn)), counts)
        laid = {} if self.padded else _laid(self.inner, turn)
        for name, slot in fields.items():
            if name in laid:
                at, copies = laid[name].runs(starts, counts)
                sizes = None if runner.slots[slot].fixed else _sizes(counts, laid[name].parts[0].shape[1:])
                frames.values[slot] = Held(at=at, sizes=sizes, keep=[laid[name], *copies])
        rest = {name: slot for name, slot in fields.items() if name not in laid}
        if rest:
            self._gathered(runner, frames, rest, starts, counts, turn, held)
        return frames

    def lies(self, fields: Mapping[str, str], indexes: Ints, turn: int) -> Lying | None:
        laid = {} if self.padded else _laid(self.inner, turn)
        if not laid.keys() >= fields.keys():
            return None
        starts = indexes * self.stride
        counts = np.minimum(self.n, self.inner.order(turn).length - starts)
        found: dict[str, Ints | Evenly] = {}
        keep: list[Any] = []
        for name, slot in fields.items():
            found[slot], copies = laid[name].runs(starts, counts)
            keep += copies
        return Lying(found, counts, keep)

    def _gathered(self, runner: Runner, frames: Frames, fields: Mapping[str, str], starts: Ints, counts: Ints, turn: int,
                  held: ExitStack) -> None:
        """Windows put together of records that the inner feed's program has run on, each record once."""
        places = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        unique, which = np.unique(places, return_inverse=True)
        inner, made = self.inner.frames(unique, turn, held)
        for failure in made.failures:
            for r in np.unique(np.searchsorted(np.cumsum(counts), np.flatnonzero(which == failure.frame), "right")):
                failed_inside(frames, int(r), self.inner, failure, int(unique[failure.frame]), turn)
        if not made.values.keys() >= set(self.inner.slots.values()):
            return  # every record has failed
        for name, slot in fields.items():
            at = self.inner.slots[name]
            if not self._whole(runner, frames, slot, inner, made, at, which, counts):
                values = [value_of(inner, made, at, int(k)) if made.status[k] == 0 else None for k in range(made.count)]
                windows = np.split(which, np.cumsum(counts)[:-1])
                runner.give(frames, slot, [stacked([values[k] for k in window], name in self.padded, self._places(name))
                                           if frames.status[r] == 0 else None for r, window in enumerate(windows)])

    def _places(self, name: str) -> int:
        return self.n if name in self.padded else 0

    def _whole(self, runner: Runner, frames: Frames, slot: str, inner: Runner, made: Frames, at: str, which: Ints,
               counts: Ints) -> bool:
        """Windows of numbers of one size, without going through records in Python; False where it can't be."""
        outer, of, lies = runner.slots[slot], inner.slots[at], made.values[at]
        if not of.fixed or of.missing or lies.at is None or made.failures:
            return False
        shape = tuple(int(d or 0) for d in of.dims)
        rows = gather(lies.at[which], shape, DTYPES[of.dtype])
        if rows is None:
            return False
        size = rows.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if not outer.missing:
            sizes = None if outer.fixed else _sizes(counts, shape)
            frames.values[slot] = Held(at=address_of(rows) + size * (np.cumsum(counts) - counts), sizes=sizes, keep=[rows])
            return True
        filled = np.zeros((frames.count, self.n, *shape), rows.dtype)
        mask = np.ones(filled.shape, np.bool_)
        inside = np.arange(self.n) < counts[:, None]
        filled[inside], mask[inside] = rows, False
        turns = np.arange(frames.count)
        sizes = None if outer.fixed else _sizes(np.full(frames.count, self.n), shape)
        frames.values[slot] = Held(at=address_of(filled) + turns * filled.strides[0], sizes=sizes,
                                   mask=address_of(mask) + turns * mask.strides[0], keep=[filled, mask])
        return True

    def name(self, index: int, turn: int) -> str:
        return self.inner.name(index * self.stride, turn)


def _sizes(counts: Ints, shape: Sequence[int]) -> Ints:
    return np.column_stack([counts, *(np.full(len(counts), d) for d in shape)]).astype(np.int64)


def _laid(feed: Feed, turn: int) -> dict[str, Laid]:
    """Fields of which consecutive positions lie one after the other in memory already."""
    order = feed.order(turn)
    while isinstance(order, Taken):
        order = order.inner
    if not isinstance(feed.input, FromSource) or not isinstance(order, InOrder) or feed.segment.program.steps:
        return {}
    laid = feed.input.laid
    fields = {name: slot.removeprefix("field.") for name, slot in feed.slots.items() if slot.startswith("field.")}
    return {name: laid[field] for name, field in fields.items() if field in laid}
