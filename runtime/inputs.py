"""What feeds read: a source, windows over another feed, or several feeds mixed or side by side.

`feed_of` puts the leading segments of a chain into one feed, as far as their records can be read at any place
(`reachable`).
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.ops import BadRecord
from ..kernels.random import draw_key
from ..kernels.sources import Source, SourceError, open_source
from .errors import DataError, Where
from .execute import DTYPES, Failure, Frames, Held, Kernel, Runner, address_of
from .feed import FOREVER, Feed, Joined, gather, value_of
from .frames import stacked
from .numbers import Numbers
from .order import InOrder, Taken, child_ids
from .plan import Plan, Require, Segment, Start
from .schedule import InTurns, Schedule, Weighted

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
UNREADABLE = 1 << 40   # status of a frame whose input can't be read


# --- which segments become feeds ------------------------------------------------------------------


def reachable(segments: Sequence[Segment]) -> int:
    """How many leading segments give records that can be read at any place."""
    done = 0
    for segment in segments:
        start = segment.start
        match start.kind:
            case "source":
                reaches = done == 0
            case "window":
                reaches = done > 0 and keeps_all(segments[done - 1])
            case "mix" | "zip":
                reaches = all(reachable(b) == len(b) and keeps_all(b[-1]) for b in start.inputs)
            case _:
                reaches = False
        if not reaches:
            break
        done += 1
    return done


def keeps_all(segment: Segment) -> bool:
    """Does every position have a record: nothing leaves any out."""
    left_out = any(isinstance(s, Require) and s.kind == "where" for s in segment.program.steps)
    return not (left_out or segment.takes or segment.at_most is not None)


def feed_of(plan: Plan, segments: Sequence[Segment], kernels: Mapping[str, Kernel], allow_extern: bool = False,
            params: Mapping[str, Any] | None = None) -> Feed:
    """The feed of segments that are all `reachable`. Opens sources; raises DataError where one can't be read."""
    feed: Feed | None = None
    for segment in segments:
        start, source = segment.start, None
        if start.kind in ("mix", "zip"):
            branches = [feed_of(plan, b, kernels, allow_extern, params) for b in start.inputs]
            source = Mixed(plan, start, branches) if start.kind == "mix" else Zipped(start, branches)
        elif start.kind == "window":
            assert feed is not None
            source = Windows(feed, start, Numbers(start, kernels, params or {}))
        feed = Feed(plan, segment, source or FromSource(start), kernels, allow_extern, params)
    assert feed is not None
    return feed


# --- a source -------------------------------------------------------------------------------------


class FromSource:
    """The records of a source."""

    marks = True

    def __init__(self, start: Start):
        """Opens the source; raises DataError where it can't be read or lacks a column."""
        self.options = start.options
        self.source = self._open(self.columns())
        self.arrays = self.source.arrays()
        self.heavy = False
        self.size = len(self.source)

    def columns(self) -> list[Any]:
        return [(f, tuple(tuple(n) for n in names), t) for f, names, t in self.options["columns"]]

    def _open(self, columns: list[Any]) -> Source:
        options = self.options
        try:
            return open_source(options["kind"], options["paths"], dict(options.get("options", ())), columns)
        except SourceError as error:
            span = options.get("columns_spans", {}).get(error.field) or options.get("span")
            where = Where(*span) if span else None
            raise DataError(error.code, error.title, where, notes=error.notes) from None

    def start_epoch(self, epoch: int) -> None:
        pass

    def length(self, turn: int) -> int:
        return self.size

    def ids(self, indexes: Ints, turn: int) -> Words:
        return self.source.ids(indexes)

    def values(self, indexes: Ints, field: str) -> list[Any]:
        if self.arrays is not None and field in self.arrays:
            return [v.item() for v in self.arrays[field][indexes]]
        source = self._open([c for c in self.columns() if c[0] == field])
        out = []
        for i in indexes:
            try:
                value = source.read(int(i))[field]
                out.append(value.item() if isinstance(value, np.generic) else value)
            except BadRecord:
                out.append(-1)  # met again, and judged, when the record itself is read
        return out

    def frames(self, runner: Runner, fields: Mapping[str, str], indexes: Ints, turn: int, ids: Joined,
               held: ExitStack) -> Frames:
        frames = runner.frames(len(indexes), ids(self.source.ids(indexes)))
        if self.arrays is not None:
            for name, slot in fields.items():
                array = self.arrays[name]
                runner.give_rows(frames, slot, address_of(array) + indexes * array.strides[0], array)
            return frames
        read_many = getattr(self.source, "read_many", None)
        if read_many is not None:
            found, bad = read_many(indexes)
            for r, problem in sorted(bad.items()):
                _unreadable(frames, r, problem)
            for name, slot in fields.items():
                give = runner.give if isinstance(found[name], list) else runner.give_array
                give(frames, slot, found[name])
            return frames
        read: list[dict[str, Any]] = []
        for r, index in enumerate(indexes):
            try:
                read.append(self.source.read(int(index)))
            except BadRecord as problem:
                read.append({})
                _unreadable(frames, r, problem)
        for name, slot in fields.items():
            runner.give(frames, slot, [record.get(name) for record in read])
        return frames

    def name(self, index: int, turn: int) -> str:
        return self.source.name(index)


def _unreadable(frames: Frames, r: int, bad: BadRecord) -> None:
    frames.status[r] = UNREADABLE
    frames.failures.append(Failure(r, 0, bad.code, bad.reason, bad.label))


# --- windows --------------------------------------------------------------------------------------


class Windows:
    """Windows of n records of a feed, one every `stride` records."""

    marks, size = False, FOREVER

    def __init__(self, inner: Feed, start: Start, numbers: Numbers):
        self.inner, self.numbers, self.heavy = inner, numbers, inner.heavy
        self.keep, self.padded = start.options["rest"] == "keep", frozenset(start.options["padded"])
        self.n = self.stride = 1

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
        arrays = {} if self.padded else _laid(self.inner, turn)
        for name, slot in fields.items():
            if name in arrays:
                array = arrays[name]
                sizes = None if runner.slots[slot].fixed else _sizes(counts, array.shape[1:])
                frames.values[slot] = Held(at=address_of(array) + starts * array.strides[0], sizes=sizes, keep=[array])
        rest = {name: slot for name, slot in fields.items() if name not in arrays}
        if rest:
            self._gathered(runner, frames, rest, starts, counts, turn, held)
        return frames

    def _gathered(self, runner: Runner, frames: Frames, fields: Mapping[str, str], starts: Ints, counts: Ints, turn: int,
                  held: ExitStack) -> None:
        """Windows put together of records that the inner feed's program has run on, each record once."""
        places = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        unique, which = np.unique(places, return_inverse=True)
        inner, made = self.inner.frames(unique, turn, held)
        for failure in made.failures:
            for r in np.unique(np.searchsorted(np.cumsum(counts), np.flatnonzero(which == failure.frame), "right")):
                _failed_inside(frames, int(r), self.inner, failure, int(unique[failure.frame]), turn)
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


def _laid(feed: Feed, turn: int) -> dict[str, NDArray[Any]]:
    """Fields of which consecutive positions lie one after the other in memory already."""
    order = feed.order(turn)
    while isinstance(order, Taken):
        order = order.inner
    if not isinstance(feed.input, FromSource) or feed.input.arrays is None or not isinstance(order, InOrder):
        return {}
    if feed.segment.program.steps:
        return {}
    found = {name: feed.input.arrays[slot.removeprefix("field.")] for name, slot in feed.slots.items()
             if slot.startswith("field.")}
    return {name: a for name, a in found.items() if a[:1].flags.c_contiguous and a.strides[0] == a[:1].nbytes}


# --- several feeds --------------------------------------------------------------------------------


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
            _failed_inside(frames, int(part.places[failure.frame]), part.feed, failure,
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


def _failed_inside(frames: Frames, r: int, feed: Feed, failure: Failure, position: int, turn: int) -> None:
    """A record that frame r is made of has failed: so has the frame, whatever `skip_bad` stands below."""
    if frames.status[r] == 0:
        frames.status[r] = UNREADABLE
        frames.failures.append(Failure(r, 0, error=feed.error(failure, position, turn)))


__all__ = ["FromSource", "feed_of", "keeps_all", "reachable", "schedule_of"]
