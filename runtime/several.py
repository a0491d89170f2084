"""Several feeds as one: `mix` takes a record of one of them, `zip` of each."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.random import draw_key
from .blocks import DTYPES, address_of
from .errors import DataError
from .execute import Runner
from .feed import Feed, Joined, failed_inside
from .held import Frames, Held
from .order import FOREVER, child_ids
from .plan import Plan, Start
from .schedule import InTurns, Schedule, Weighted
from .windows import Windows

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


@dataclass
class Part:
    """What one feed made for some places of a chunk. `names`: the field of ours for each of its fields."""

    places: Ints
    positions: Ints
    turn: int
    feed: Feed
    runner: Runner
    frames: Frames
    names: Mapping[str, str]


class Again:
    """A feed again and again, each time newly shuffled: which turn and position its n-th record has."""

    def __init__(self, feed: Feed, turn: int):
        self.feed, self.base = feed, turn << 16
        self.ends = [feed.order(self.base).length]
        self.steady = self.ends[0] and not _varies(feed)

    def locate(self, nth: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """(turn, places in `nth`, positions in that turn)."""
        if self.steady:
            turns, positions = np.divmod(nth, self.ends[0])
        else:
            while len(nth) and self.ends[-1] <= nth.max():
                more = self.feed.order(self.base + len(self.ends)).length
                if more == 0:
                    raise DataError("E0810", "a pipeline that `mix` or `zip` begins again has no records then")
                self.ends.append(self.ends[-1] + more)
            turns = np.searchsorted(self.ends, nth, "right")
            positions = nth - np.array([0, *self.ends])[turns]
        for turn in np.unique(turns):
            places = np.flatnonzero(turns == turn)
            yield self.base + int(turn), places, positions[places]


def _varies(feed: Feed) -> bool:
    """May the number of records differ from turn to turn: where a mix draws."""
    match feed.input:
        case Mixed():
            return True
        case Zipped(branches=branches):
            return _varies(branches[0])
        case Windows(inner=inner):
            return _varies(inner)
    return False


class _Several:
    """Feeds whose records come together; `_plan` says which of them a place is made of."""

    marks, size = False, FOREVER

    def __init__(self, branches: Sequence[Feed]):
        self.branches = branches
        self.heavy = any(b.heavy for b in branches)
        self.again: dict[int, list[Again]] = {}

    def start_epoch(self, epoch: int) -> None:
        self.again = {}
        for branch in self.branches:
            branch.start_epoch(epoch)

    def _turns(self, turn: int) -> list[Again]:
        found = self.again.get(turn)
        if found is None:
            found = self.again[turn] = [Again(b, turn) for b in self.branches]
        return found

    def values(self, indexes: Ints, field: str) -> list[Any]:
        raise NotImplementedError("only the records of one source are balanced")

    def _run(self, feed: Feed, places: Ints, positions: Ints, turn: int, held: ExitStack, names: Mapping[str, str]) -> Part:
        runner, frames = feed.frames(positions, turn, held)
        return Part(places, positions, turn, feed, runner, frames, names)


class Mixed(_Several):
    """`mix`: at each place a record of one of the feeds."""

    def __init__(self, plan: Plan, start: Start, branches: Sequence[Feed]):
        super().__init__(branches)
        self.options, self.seed, self.epoch = start.options, plan.seed or 0, 0
        self.schedules: dict[int, Schedule] = {}

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self.epoch, self.schedules = epoch, {}

    def schedule(self, turn: int) -> Schedule:
        found = self.schedules.get(turn)
        if found is None:
            lengths = [a.ends[0] for a in self._turns(turn)]
            found = self.schedules[turn] = schedule_of(self.options, lengths, self.seed, self.epoch, turn)
        return found

    def length(self, turn: int) -> int:
        return self.schedule(turn).length

    def ids(self, indexes: Ints, turn: int) -> Words:
        ids = np.empty(len(indexes), np.uint64)
        for b, t, places, positions in self._located(indexes, turn):
            ids[places] = child_ids(self.branches[b].ids(positions, t), b)
        return ids

    def _located(self, indexes: Ints, turn: int) -> Iterator[tuple[int, int, Ints, Ints]]:
        """(branch, turn, places in `indexes`, positions in the branch)."""
        which, nth = self.schedule(turn).at(indexes)
        for b in np.unique(which):
            mine = np.flatnonzero(which == b)
            for t, places, positions in self._turns(turn)[int(b)].locate(nth[mine]):
                yield int(b), t, mine[places], positions

    def frames(self, runner: Runner, fields: Mapping[str, str], indexes: Ints, turn: int, ids: Joined,
               held: ExitStack) -> Frames:
        own, counts = np.empty(len(indexes), np.uint64), np.ones(len(indexes), np.int64)
        parts = []
        for b, t, places, positions in self._located(indexes, turn):
            part = self._run(self.branches[b], places, positions, t, held, {n: n for n in fields})
            own[places], counts[places] = child_ids(part.frames.ids, b), part.frames.counts
            parts.append(part)
        frames = runner.frames(len(indexes), ids(own), counts)
        _lay(runner, frames, fields, parts)
        return frames

    def name(self, index: int, turn: int) -> str:
        (b, t, _, positions), = self._located(np.array([index]), turn)
        return self.branches[b].name(int(positions[0]), t)


def schedule_of(options: Mapping[str, Any], lengths: Sequence[int], seed: int, epoch: int, turn: int) -> Schedule:
    if not options["weights"]:
        return InTurns(lengths, options["until"])
    return Weighted(lengths, options["until"], options["weights"], draw_key(seed, options["key"], epoch), turn)


class Zipped(_Several):
    """`zip`: at each place a record of every feed, as long as the first one lasts."""

    def __init__(self, start: Start, branches: Sequence[Feed]):
        super().__init__(branches)
        self.names = start.options["names"]

    def length(self, turn: int) -> int:
        some = all(a.ends[0] for a in self._turns(turn)[1:])
        return self.branches[0].order(turn).length if some else 0

    def ids(self, indexes: Ints, turn: int) -> Words:
        return self.branches[0].ids(indexes, turn)

    def frames(self, runner: Runner, fields: Mapping[str, str], indexes: Ints, turn: int, ids: Joined,
               held: ExitStack) -> Frames:
        everywhere = np.arange(len(indexes))
        parts = [self._run(self.branches[0], everywhere, indexes, turn, held, self._theirs(0, fields))]
        frames = runner.frames(len(indexes), ids(parts[0].frames.ids), parts[0].frames.counts)
        for b in range(1, len(self.branches)):
            theirs = self._theirs(b, fields)
            for t, places, positions in self._turns(turn)[b].locate(indexes):
                parts.append(self._run(self.branches[b], places, positions, t, held, theirs))
        _lay(runner, frames, fields, parts)
        return frames

    def _theirs(self, b: int, fields: Mapping[str, str]) -> dict[str, str]:
        dot = f"{self.names[b]}."
        return {n.removeprefix(dot): n for n in fields if n.startswith(dot)}

    def name(self, index: int, turn: int) -> str:
        return self.branches[0].name(index, turn)


def _lay(runner: Runner, frames: Frames, fields: Mapping[str, str], parts: Sequence[Part]) -> None:
    """The fields of a chunk lie where the feeds have put them; nothing is copied."""
    for part in parts:
        for failure in part.frames.failures:
            failed_inside(frames, int(part.places[failure.frame]), part.feed, failure,
                           int(part.positions[failure.frame]), part.turn)
    for name, slot_name in fields.items():
        slot = runner.slots[slot_name]
        frames.values[slot_name] = held = Held()
        if slot.dtype in DTYPES:
            held.at = np.zeros(frames.count, np.int64)
            held.sizes = None if slot.fixed else np.zeros((frames.count, len(slot.dims)), np.int64)
            held.mask = np.zeros(frames.count, np.int64) if slot.missing else None
        else:
            held.objects = [None] * frames.count
        for part in parts:
            for theirs, ours in part.names.items():
                if ours == name:
                    _lay_one(held, part, part.feed.slots[theirs])
        if held.mask is not None:
            _mask_rest(held, frames.count, slot.dims)


def _lay_one(held: Held, part: Part, name: str) -> None:
    lies, slot = part.frames.values.get(name), part.runner.slots[name]
    if lies is None:
        return  # every record of it has failed
    if held.objects is not None:
        assert lies.objects is not None
        for place, value in zip(part.places, lies.objects, strict=True):
            held.objects[place] = value
        return
    assert held.at is not None and lies.at is not None
    held.keep.append(lies)   # what lies there lasts as long as its Held
    held.at[part.places] = lies.at
    if held.sizes is not None:
        held.sizes[part.places] = lies.sizes if lies.sizes is not None else [int(d or 0) for d in slot.dims]
    if held.mask is not None and lies.mask is not None:
        held.mask[part.places] = lies.mask


def _mask_rest(held: Held, count: int, dims: Sequence[int | None]) -> None:
    """Where a feed says nothing of missing places, there are none."""
    assert held.mask is not None
    sizes = held.sizes if held.sizes is not None else np.array([[int(d or 0) for d in dims]], np.int64)
    none = np.zeros(max(1, int(sizes.prod(axis=1).max(initial=1))), np.bool_)
    held.mask[held.mask == 0] = address_of(none)
    held.keep.append(none)
