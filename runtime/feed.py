"""Records that can be read at any place: positions → order → input → program → rows.

A `Feed` is one segment of a plan over an `Input`: a source, or feeds put together (`inputs.py`). It is shared by
threads; each thread runs chunks of positions with a `Runner` of its own.
"""
from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..kernels.random import draw_key
from . import order as orders
from .blocks import DTYPES, view
from .clock import READ, Clock
from .errors import DataError, Where
from .execute import Kernel, Runner
from .feedback import Snapshot
from .frames import Row
from .held import Failure, Frames, Gaps, Target
from .order import FOREVER
from .plan import Order, Plan, Program, Require, RunKernel, Segment
from .prepared import Prepared
from .straight import Lies, run_straight, straight_step
from .texts import objects

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class Picked(Protocol):
    """Some positions of an epoch, by their numbers: those of one rank, see `ranks.Picks`."""

    length: int

    def positions(self, first: int, count: int) -> Ints: ...

    def nexts(self, first: int, count: int) -> Ints: ...


class Input(Protocol):
    """What a feed's program reads. `turn` counts how often a `mix` or `zip` has begun these records again."""

    size: int     # records of the source, FOREVER where there are several
    heavy: bool   # does a record take long to read
    marks: bool   # does the turn join the ids of records that no order changes

    def start_epoch(self, epoch: int) -> None: ...

    def length(self, turn: int) -> int: ...

    def ids(self, indexes: Ints, turn: int) -> Words: ...

    def values(self, indexes: Ints, field: str) -> list[Any]:
        """One field of these records as Python values, -1 where it can't be read."""
        ...

    def frames(self, runner: Runner, fields: Mapping[str, str], indexes: Ints, turn: int, ids: Joined,
               held: ExitStack) -> Frames:
        """A chunk of these records for `runner`, with its `fields` (field → slot) filled.

        `ids` makes the chunk's ids of the input's. What the values lie in is kept until `held` is closed.
        """
        ...

    def name(self, index: int, turn: int) -> str:
        """The record, for people."""
        ...


@dataclass
class Joined:
    """The turns that join the ids of an input's records; None where none do."""

    turns: Words | None = None

    def __call__(self, ids: Words) -> Words:
        return ids if self.turns is None else orders.child_ids(ids, self.turns)


@dataclass
class Chunk:
    """What became of some positions: rows of those that stay (or only their count, if written in place)."""

    positions: Ints
    nexts: Ints                # where to resume after each
    passed: Ints               # requirements that held, per position
    kept: Ints                 # places in `positions` of the records that stay, rising
    ids: Words
    failures: list[Failure]    # by rising frame
    rows: list[Row] = field(default_factory=list)


class Feed:
    """One segment of a plan over its input."""

    def __init__(self, plan: Plan, segment: Segment, source: Input, kernels: Mapping[str, Kernel],
                 allow_extern: bool = False, params: Mapping[str, Any] | None = None):
        self.segment, self.input, self.kernels = segment, source, kernels
        self.allow_extern, self.params = allow_extern, dict(params or {})
        self.seed = plan.seed or 0
        self.idle: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        self.fields = dict(segment.program.inputs)
        self.slots = dict(segment.program.outputs)
        self.heavy = source.heavy or any(not isinstance(s, RunKernel | Require) for s in segment.program.steps)
        self.marks = source.marks or any(o.op != "shard" for o in segment.orders)
        self.straight = straight_step(segment.program) if isinstance(source, Lies) else None
        self.epoch = -1
        self.clock: Clock | None = None   # of the program's steps and of reading, where somebody asks
        self.orders: dict[int, orders.Order] = {}
        self.weights: Snapshot | None = None   # set before `start_epoch`
        self.picked: Picked | None = None   # set after `start_epoch` where only some positions are run

    def start_epoch(self, epoch: int) -> None:
        """Called before any chunk of that epoch runs, with no chunk running."""
        self.epoch = epoch
        self.input.start_epoch(epoch)
        self.orders, self.picked = {}, None
        keys = [draw_key(self.seed, path, epoch) for path in self.segment.program.draws]
        runners = []
        while not self.idle.empty():
            runners.append(self.idle.get_nowait())
        for runner in runners:
            runner.start_epoch(epoch, keys)
            runner.weights = self.weights
            self.idle.put(runner)

    def order(self, turn: int) -> orders.Order:
        """The order of the epoch's records in this turn."""
        found = self.orders.get(turn)
        if found is None:
            found = orders.InOrder(self.input.length(turn))
            for step in self.segment.orders:
                found = self._ordered(found, step, turn)
            if any(step.op in ("shuffle", "balance") for step in self.segment.orders):
                found = orders.InBlocks(found)
            self.orders[turn] = found
        return found

    def _ordered(self, inner: orders.Order, step: Order, turn: int) -> orders.Order:
        o = step.options
        if inner.length == 0:
            return inner
        match step.op:
            case "shuffle":
                k = orders.key(self.seed, self.epoch, o["key"] + (f"#{turn}" if turn else ""))
                if o.get("window"):
                    return orders.Windowed(inner, o["window"], k)
                if o.get("chunk"):
                    return orders.Chunked(inner, o["chunk"], o["mix"] or 1, k)
                return orders.Shuffled(inner, orders.Permutation(inner.length, k))
            case "take":
                return orders.Taken(inner, o["n"])
            case "repeat":
                return orders.Repeated(inner, o["n"] or max(1, FOREVER // max(1, inner.length)))
            case "balance":
                indexes, _ = inner.at(np.arange(inner.length))
                return orders.Balanced(inner, self.input.values(indexes, o["field"]))
        return inner  # shard: one rank reads every file

    @property
    def length(self) -> int:
        """Positions in the epoch."""
        return self.order(0).length

    def ids(self, positions: Ints, turn: int) -> Words:
        indexes, again = self.order(turn).at(positions)
        return self._joined(again, turn)(self.input.ids(indexes, turn))

    def _joined(self, again: Words, turn: int) -> Joined:
        return Joined(again + np.uint64(turn) if self.marks else None)

    @contextmanager
    def runner(self) -> Iterator[Runner]:
        try:
            runner = self.idle.get_nowait()
        except queue.Empty:
            runner = Runner(self.segment.program, self.kernels, self.params, self.allow_extern)
            runner.clock = self.clock
            runner.start_epoch(self.epoch, [draw_key(self.seed, p, self.epoch) for p in self.segment.program.draws])
            runner.weights = self.weights
        try:
            yield runner
        finally:
            self.idle.put(runner)

    def frames(self, positions: Ints, turn: int, held: ExitStack,
               targets: Mapping[str, Target] | None = None) -> tuple[Runner, Frames]:
        """The program run on these positions; what it made is there until `held` is closed.

        Outputs named in `targets` (field → place) are written there.
        """
        indexes, again = self.order(turn).at(positions)
        runner = held.enter_context(self.runner())
        if self.clock is not None:
            self.clock.begin()
        frames = self.input.frames(runner, self.fields, indexes, turn, self._joined(again, turn), held)
        if self.clock is not None:
            self.clock.end(READ, len(positions))
        runner.run(frames, {slot: targets[name] for name, slot in self.slots.items() if targets and name in targets})
        return runner, frames

    def run(self, first: int, count: int, targets: Mapping[str, Target] | None = None, turn: int = 0) -> Chunk:
        """Run positions `first` … `first + count - 1` (of those `picked`); with `targets` (field → place) rows are written
        there.

        Rows that stay are moved to the front of the targets.
        """
        positions, nexts = self.positions(first, count)
        if targets is not None and self.straight is not None:
            ids = self._straight(self.straight, positions, turn, targets)
            if ids is not None:
                return Chunk(positions, nexts, np.zeros(count, np.int64), np.arange(count), ids, [])
        with ExitStack() as held:
            runner, frames = self.frames(positions, turn, held, targets)
            kept = frames.alive()
            chunk = Chunk(positions, nexts, frames.passed, kept, frames.ids, sorted(frames.failures, key=lambda f: f.frame))
            if targets is None:
                chunk.rows = [Row(fields_of(runner, frames, self.segment.program, int(r)), int(frames.ids[r]),
                                  int(nexts[r]), count=int(frames.counts[r])) for r in kept]
            else:
                _finish(frames, self.slots, targets, kept)
        return chunk

    def positions(self, first: int, count: int) -> tuple[Ints, Ints]:
        """Positions `first` … `first + count - 1` (of those `picked`), and where to resume after each."""
        if self.picked is None:
            positions = np.arange(first, first + count)
            return positions, positions + 1
        return self.picked.positions(first, count), self.picked.nexts(first, count)

    def prepared(self, start: int, step: int, strides: Mapping[str, int]) -> Prepared | None:
        """Tasks of `step` positions each from `start` on, with most of the work for them done for many at once; None where
        that can't be. `strides`: bytes of a row, by field."""
        if self.straight is None or self.clock is not None or not isinstance(self.input, Lies) or not self.input.lasts:
            return None
        return Prepared(self, start, step, strides)

    def placed(self, positions: Ints, turn: int) -> tuple[Ints, Words]:
        """The records that stand there, and their ids."""
        indexes, again = self.order(turn).at(positions)
        return indexes, np.ascontiguousarray(self._joined(again, turn)(self.input.ids(indexes, turn)))

    def _straight(self, step: RunKernel, positions: Ints, turn: int, targets: Mapping[str, Target]) -> Words | None:
        """The ids of these records, which one kernel has made; None where that can't be done for all of them."""
        if self.clock is not None:
            self.clock.begin()
        indexes, ids = self.placed(positions, turn)
        lying = self.input.lies(self.fields, indexes, turn)   # type: ignore[attr-defined]
        if lying is None:
            return None
        if self.clock is not None:
            self.clock.end(READ, len(positions))
            self.clock.begin()
        with self.runner() as runner:
            fine = run_straight(runner, step, self.slots, ids, lying, targets)
        if self.clock is not None:
            self.clock.end(0, len(positions))
        return ids if fine else None

    def name(self, position: int, turn: int = 0) -> str:
        """The record at a position, for people."""
        indexes, _ = self.order(turn).at(np.array([position]))
        return self.input.name(int(indexes[0]), turn)

    def error(self, failure: Failure, position: int, turn: int = 0) -> DataError:
        """The failure of the record at `position` as what the user sees."""
        if failure.error is not None:
            return replace(failure.error, position=position)
        return data_error(self.segment.program, failure, self.name(position, turn), self.epoch, position,
                          self.segment.start.options.get("span"))


UNREADABLE = 1 << 40   # status of a frame whose input can't be read


def failed_inside(frames: Frames, r: int, feed: Feed, failure: Failure, position: int, turn: int) -> None:
    """A record that frame r is made of has failed: so has the frame, whatever `skip_bad` stands below."""
    if frames.status[r] == 0:
        frames.status[r] = UNREADABLE
        frames.failures.append(Failure(r, 0, error=feed.error(failure, position, turn)))


def data_error(program: Program, failure: Failure, record: str, epoch: int, position: int,
               fallback: Sequence[Any] | None) -> DataError:
    site = next((s for s in program.sites if s.number == failure.site), None)
    where = Where(site.file, site.start, site.end) if site else Where(*fallback) if fallback else None
    code = failure.code or (site.code if site else "E0801")
    title = failure.reason or (site.title if site else "this record can't be read")
    return DataError(code, title, where, failure.label, record, epoch, position)


def fields_of(runner: Runner, frames: Frames, program: Program, r: int) -> dict[str, Any]:
    """The program's outputs in frame r, copied out of the worker's memory."""
    return {name: value_of(runner, frames, slot, r) for name, slot in program.outputs}


def value_of(runner: Runner, frames: Frames, slot_name: str, r: int) -> Any:
    """A slot's value in frame r, copied out of the worker's memory."""
    value, slot = runner.value(frames, slot_name, r), runner.slots[slot_name]
    if isinstance(value, np.ndarray | np.generic):
        value = value.copy()
    if slot.missing:
        mask = runner.mask(frames, slot_name, r).copy()
        values = np.asarray(value) if slot.dtype in DTYPES else objects(value)
        value = Gaps(values, mask if slot.dims else mask.reshape(()))
    return value


def gather(at: Ints, shape: Sequence[int], dtype: Any) -> NDArray[Any] | None:
    """The values of one shape that lie at these addresses as one array, a copy; None where they lie unevenly."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not len(at) or not size:
        return np.empty((len(at), *shape), dtype)
    low = int(at.min())
    places, rest = np.divmod(at - low, size)
    if rest.any():
        return None
    found: NDArray[Any] = view(low, (int(places.max()) + 1, *shape), dtype)[places]
    return found


def _finish(frames: Frames, slots: Mapping[str, str], targets: Mapping[str, Target], kept: Ints) -> None:
    """Copy outputs that no kernel wrote in place, then close the gaps that dropped frames leave."""
    import ctypes

    if not len(kept):
        return  # where every frame left early, outputs were never made
    for name, slot in slots.items():
        target = targets[name]
        at = frames.values[slot].at
        assert at is not None
        goals = target.address + target.stride * np.arange(len(kept))
        here = at if len(kept) == len(at) else at[kept]
        for place in np.flatnonzero(here != goals):
            ctypes.memmove(int(goals[place]), int(here[place]), target.stride)
