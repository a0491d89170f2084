"""Positions made ready many at once, for a program that is one kernel over what lies in memory: order, ids and addresses of
thousands of records are found together, so that a task of some of them is little more than the kernel's own work."""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .blocks import address_of
from .straight import PIECE, Table, put_lying

if TYPE_CHECKING:
    from .execute import Runner
    from .feed import Feed

Ints = NDArray[np.int64]
KEPT = 8   # blocks; threads are in one or two of them


@dataclass(frozen=True)
class Ready:
    """The kernel's table for positions from `first` on, its outputs' columns left open; what their hidden columns hold."""

    first: int
    table: Ints
    ids: NDArray[np.uint64]
    nexts: Ints
    keep: list[Any]


class Prepared:
    """Tasks of one run over a feed: `step` positions each from `start` on, the last one fewer."""

    def __init__(self, feed: Feed, start: int, step: int, strides: Mapping[str, int]):
        """`strides`: bytes of a row, by output field. The feed's `straight` step is there and its input `lasts`."""
        assert feed.straight is not None
        self.feed, self.start, self.step = feed, start, feed.straight
        self.size = max(1, PIECE // step) * step
        self.length = feed.length if feed.picked is None else feed.picked.length
        self.blocks: dict[int, Ready | None] = {}
        self.lock = threading.Lock()
        turns = np.arange(step)
        places = {slot: [j for j, a in enumerate(self.step.args) if a.slot == slot] for slot in feed.slots.values()}
        self.outputs = [(j, name, turns * strides[name]) for name, slot in feed.slots.items() for j in places[slot]]
        self.ones = np.ones(step, np.int64)

    def run(self, first: int, count: int, places: Mapping[str, int]) -> bool:
        """Write rows of these positions at `places` (column → address of the first row); False where that can't be done for
        all of them."""
        with self.feed.runner() as runner:
            ready = self._ready(first, runner)
            if ready is None:
                return False
            at = first - ready.first
            table, status = ready.table[at : at + count], np.zeros(count, np.int64)
            for j, name, turns in self.outputs:   # rows that no other task has
                np.add(turns[:count], places[name], out=table[:, j])
            runner.begin_chunk()
            runner.launch(runner.kernels[self.step.kernel], table, status)
        if np.count_nonzero(status):
            return False
        ctypes.memmove(places["_id"], address_of(ready.ids) + 8 * at, 8 * count)
        ctypes.memmove(places["_next"], address_of(ready.nexts) + 8 * at, 8 * count)
        ctypes.memset(places["_skip"], 0, 8 * count)
        ctypes.memmove(places["_count"], address_of(self.ones), 8 * count)
        return True

    def _ready(self, first: int, runner: Runner) -> Ready | None:
        number = (first - self.start) // self.size
        found = self.blocks.get(number)
        if found is None:
            with self.lock:
                if number not in self.blocks:
                    if len(self.blocks) >= KEPT:
                        del self.blocks[min(self.blocks)]   # what threads still work with, they hold
                    self.blocks[number] = self._made(self.start + number * self.size, runner)
                found = self.blocks[number]
        return found

    def _made(self, first: int, runner: Runner) -> Ready | None:
        feed, count = self.feed, min(self.size, self.length - first)
        positions, nexts = feed.positions(first, count)
        indexes, ids = feed.placed(positions, 0)
        lying = feed.input.lies(feed.fields, indexes, 0)   # type: ignore[attr-defined]
        if lying is None or lying.texts:
            return None
        table = Table(runner, self.step, count)
        numbers = put_lying(table, ids, lying)
        return Ready(first, table.piece(0, count), ids, nexts, [lying, numbers, runner])
