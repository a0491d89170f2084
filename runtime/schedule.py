"""Which pipeline of a `mix` gives the record at each place, and how many it gave before.

Like orders, schedules are functions of (seed, epoch, path, place), computed for whole arrays of places. Those by
weights are drawn in blocks; of each block only the counts before it are kept.
"""
from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernels.random import DRAWS
from .order import FOREVER

Ints = NDArray[np.int64]
BLOCK = 1 << 14     # places drawn at once
KEPT = 8            # blocks kept drawn


def chosen(key: int, ends: NDArray[np.float64], first: int, count: int, turn: int) -> Ints:
    """The branches at `count` places from `first` on. `ends`: running sums of the weights."""
    places = np.arange(first, first + count) + (turn << 40)
    u = DRAWS["uniform"].ref(key, places, 0, np.float32(0), np.float32(1)).astype(np.float64)
    which: Ints = np.minimum(np.searchsorted(ends, u, "right"), len(ends) - 1).astype(np.int64)
    return which


class InTurns:
    """Without weights: one record of each branch after the other."""

    def __init__(self, lengths: Sequence[int], until: str | int):
        """`lengths`: records of each branch; `until` as in the language."""
        self.branches = len(lengths)
        starts = range(self.branches)
        ends = [b for b in starts if lengths[b] == 0]   # a branch without records ends the mix when its turn comes
        if until == "first":
            ends += [lengths[b] * self.branches + b for b in starts]
        elif until == "all":
            ends.append(max((lengths[b] - 1) * self.branches + b + 1 if lengths[b] else 0 for b in starts))
        else:
            ends.append(int(until))
        self.length = min(FOREVER, *ends) if ends else 0

    def at(self, places: Ints) -> tuple[Ints, Ints]:
        """(branches, how many records each had given before) at these places."""
        return places % self.branches, places // self.branches


class Weighted:
    """By weights: the choice at each place is a draw."""

    def __init__(self, lengths: Sequence[int], until: str | int, weights: Sequence[float], key: int, turn: int):
        self.lengths, self.until = np.array(lengths, np.int64), until
        self.ends, self.key, self.turn = np.cumsum(np.array(weights, np.float64)), key, turn
        self.before = [np.zeros(len(lengths), np.int64)]   # records given before each block
        self.blocks: dict[int, tuple[Ints, Ints]] = {}
        self.lock = threading.Lock()
        self.length = self._length(weights)

    def _length(self, weights: Sequence[float]) -> int:
        drawn = np.array(weights) > 0
        empty = bool((drawn & (self.lengths == 0)).any())
        if isinstance(self.until, int) and not empty:
            return self.until
        endless = self.lengths >= FOREVER // 2
        never = endless[drawn].all() if self.until == "first" else (endless | (~drawn & (self.lengths > 0))).any()
        if never and not empty:
            return FOREVER
        if self.until == "all" and not self.lengths.any():
            return 0
        found, block = None, 0
        while found is None:
            found = self._end(block)
            block += 1
        return found if self.until in ("first", "all") else min(found, int(self.until))

    def _end(self, block: int) -> int | None:
        """The first place that gives nothing, if it lies in this block (or right behind it)."""
        which, nth = self._block(block)
        over = nth >= self.lengths[which] if self.until == "first" else self.lengths[which] == 0
        ends = [int(np.argmax(over))] if over.any() else []
        if self.until == "all" and (self.before[block + 1] >= self.lengths).all():
            last = np.flatnonzero(nth == self.lengths[which] - 1)
            ends.append(int(last[-1]) + 1)
        elif isinstance(self.until, int) and self.until <= (block + 1) * BLOCK:
            ends.append(self.until - block * BLOCK)
        return block * BLOCK + min(ends) if ends else None

    def _block(self, block: int) -> tuple[Ints, Ints]:
        with self.lock:
            while len(self.before) <= block + 1 or block not in self.blocks:
                at = min(block, len(self.before) - 1)
                which = chosen(self.key, self.ends, at * BLOCK, BLOCK, self.turn)
                nth = np.empty(BLOCK, np.int64)
                for b, given in enumerate(self.before[at]):
                    mine = which == b
                    nth[mine] = given + np.arange(np.count_nonzero(mine))
                if len(self.before) == at + 1:
                    self.before.append(self.before[at] + np.bincount(which, minlength=len(self.lengths)))
                if len(self.blocks) >= KEPT:
                    del self.blocks[next(iter(self.blocks))]
                self.blocks[at] = which, nth
            return self.blocks[block]

    def at(self, places: Ints) -> tuple[Ints, Ints]:
        """(branches, how many records each had given before) at these places."""
        blocks = places // BLOCK
        first = int(blocks[0]) if len(places) else 0
        if (blocks == first).all():
            which, nth = self._block(first)
            return which[places - first * BLOCK], nth[places - first * BLOCK]
        found = np.empty((2, len(places)), np.int64)
        for block in np.unique(blocks):
            inside = np.flatnonzero(blocks == block)
            which, nth = self._block(int(block))
            found[0, inside], found[1, inside] = which[places[inside] - block * BLOCK], nth[places[inside] - block * BLOCK]
        return found[0], found[1]


Schedule = InTurns | Weighted
