"""Reads one stream of source records: positions → order → source → program → rows.

`Feed` is shared by threads; each thread runs chunks of positions with a `Runner` of its own.
"""
from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.ops import BadRecord
from ..kernels.random import draw_key
from ..kernels.sources import Source, SourceError, open_source
from . import order as orders
from .errors import DataError, Where
from .execute import DROPPED, DTYPES, Failure, Frames, Gaps, Kernel, Runner, Target, address_of
from .frames import Row
from .plan import Order, Plan, Program, Segment
from .texts import objects

Ints = NDArray[np.int64]
FOREVER = 1 << 50   # positions of an endless stream


@dataclass
class Chunk:
    """What became of some positions: rows of those that stay (or only their count, if written in place)."""

    positions: Ints
    passed: Ints               # requirements that held, per position
    kept: Ints                 # places in `positions` of the records that stay, rising
    ids: NDArray[np.uint64]
    failures: list[Failure]    # by rising frame
    rows: list[Row] = field(default_factory=list)


class Feed:
    """The first segment of a plan over its source."""

    def __init__(self, plan: Plan, segment: Segment, kernels: Mapping[str, Kernel], allow_extern: bool = False,
                 params: Mapping[str, Any] | None = None):
        """Opens the source; raises DataError where it can't be read or lacks a column."""
        self.plan, self.segment, self.kernels = plan, segment, kernels
        self.allow_extern, self.params = allow_extern, dict(params or {})
        self.seed = plan.seed or 0
        options = segment.start.options
        columns = [(f, tuple(tuple(n) for n in names), t) for f, names, t in options["columns"]]
        try:
            self.source: Source = open_source(options["kind"], options["paths"], dict(options.get("options", ())), columns)
        except SourceError as error:
            span = options.get("columns_spans", {}).get(error.field) or options.get("span")
            where = Where(*span) if span else None
            raise DataError(error.code, error.title, where, notes=error.notes) from None
        self.arrays = self.source.arrays()
        self.idle: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        self.fields = dict(segment.program.inputs)
        self.epoch = -1
        self.order: orders.Order = orders.InOrder(0)

    def start_epoch(self, epoch: int) -> None:
        """Compute the epoch's order; called before any chunk of that epoch runs, with no chunk running."""
        self.epoch = epoch
        order: orders.Order = orders.InOrder(len(self.source))
        for step in self.segment.orders:
            order = self._ordered(order, step)
        self.order = order
        keys = [draw_key(self.seed, path, epoch) for path in self.segment.program.draws]
        runners = []
        while not self.idle.empty():
            runners.append(self.idle.get_nowait())
        for runner in runners:
            runner.start_epoch(epoch, keys)
            self.idle.put(runner)

    def _ordered(self, inner: orders.Order, step: Order) -> orders.Order:
        o = step.options
        if inner.length == 0:
            return inner
        match step.op:
            case "shuffle":
                k = orders.key(self.seed, self.epoch, o["key"])
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
                return orders.Balanced(inner, self._values(inner, o["field"]))
        return inner  # shard: one rank reads every file

    def _values(self, inner: orders.Order, name: str) -> list[Any]:
        """The field's value at every position, read once before the epoch."""
        indexes, _ = inner.at(np.arange(inner.length))
        if self.arrays is not None and name in self.arrays:
            return [v.item() for v in self.arrays[name][indexes]]
        columns = [(f, tuple(tuple(n) for n in names), t) for f, names, t in self.segment.start.options["columns"] if f == name]
        options = self.segment.start.options
        source = open_source(options["kind"], options["paths"], dict(options.get("options", ())), columns)
        out = []
        for i in indexes:
            try:
                value = source.read(int(i))[name]
                out.append(value.item() if isinstance(value, np.generic) else value)
            except BadRecord:
                out.append(-1)  # met again, and judged, when the record itself is read
        return out

    @property
    def length(self) -> int:
        """Positions in the epoch."""
        return self.order.length

    @contextmanager
    def runner(self) -> Iterator[Runner]:
        try:
            runner = self.idle.get_nowait()
        except queue.Empty:
            runner = Runner(self.segment.program, self.kernels, self.params, self.allow_extern)
            runner.start_epoch(self.epoch, [draw_key(self.seed, p, self.epoch) for p in self.segment.program.draws])
        try:
            yield runner
        finally:
            self.idle.put(runner)

    def run(self, first: int, count: int, targets: Mapping[str, Target] | None = None) -> Chunk:
        """Run positions `first` … `first + count - 1`; with `targets` (field → place) rows are written there.

        Rows that stay are moved to the front of the targets.
        """
        positions = np.arange(first, first + count)
        indexes, turns = self.order.at(positions)
        ids = orders.child_ids(self.source.ids(indexes), turns)
        with self.runner() as runner:
            frames = runner.frames(count, ids)
            self._read(runner, frames, indexes)
            slots = {slot: targets[name] for name, slot in self.segment.program.outputs if targets and name in targets}
            runner.run(frames, slots)
            kept = frames.alive()
            chunk = Chunk(positions, frames.passed, kept, ids, sorted(frames.failures, key=lambda f: f.frame))
            if targets is None:
                chunk.rows = [Row(fields_of(runner, frames, self.segment.program, int(r)), int(ids[r]), int(positions[r]) + 1)
                              for r in kept]
            else:
                _finish(runner, frames, self.segment.program, targets, kept)
        return chunk

    def _read(self, runner: Runner, frames: Frames, indexes: Ints) -> None:
        if self.arrays is not None:
            for name, slot in self.fields.items():
                array = self.arrays[name]
                runner.give_rows(frames, slot, address_of(array) + indexes * array.strides[0], array)
            return
        read_many = getattr(self.source, "read_many", None)
        if read_many is not None:
            fields, bad = read_many(indexes)
            for r, problem in sorted(bad.items()):
                _unreadable(frames, r, problem)
            for name, slot in self.fields.items():
                give = runner.give if isinstance(fields[name], list) else runner.give_array
                give(frames, slot, fields[name])
            return
        read: list[dict[str, Any]] = []
        for r, index in enumerate(indexes):
            try:
                read.append(self.source.read(int(index)))
            except BadRecord as problem:
                read.append({})
                _unreadable(frames, r, problem)
        for name, slot in self.fields.items():
            runner.give(frames, slot, [record.get(name) for record in read])

    def name(self, position: int) -> str:
        """The record at a position, for people."""
        indexes, _ = self.order.at(np.array([position]))
        return self.source.name(int(indexes[0]))

    def error(self, failure: Failure, position: int) -> DataError:
        """The failure of the record at `position` as what the user sees."""
        return data_error(self.segment.program, failure, self.name(position), self.epoch, position,
                          self.segment.start.options.get("span"))


UNREADABLE = 1 << 40   # status of a frame whose source record can't be read


def _unreadable(frames: Frames, r: int, bad: BadRecord) -> None:
    frames.status[r] = UNREADABLE
    frames.failures.append(Failure(r, 0, bad.code, bad.reason, bad.label))


def data_error(program: Program, failure: Failure, record: str, epoch: int, position: int,
               fallback: Sequence[Any] | None) -> DataError:
    site = next((s for s in program.sites if s.number == failure.site), None)
    where = Where(site.file, site.start, site.end) if site else Where(*fallback) if fallback else None
    code = failure.code or (site.code if site else "E0801")
    title = failure.reason or (site.title if site else "this record can't be read")
    return DataError(code, title, where, failure.label, record, epoch, position)


def fields_of(runner: Runner, frames: Frames, program: Program, r: int) -> dict[str, Any]:
    """The program's outputs in frame r, copied out of the worker's memory."""
    out: dict[str, Any] = {}
    for name, slot_name in program.outputs:
        value = runner.value(frames, slot_name, r)
        if isinstance(value, np.ndarray | np.generic):
            value = value.copy()
        if runner.slots[slot_name].missing:
            mask = runner.mask(frames, slot_name, r).copy()
            values = np.asarray(value) if runner.slots[slot_name].dtype in DTYPES else objects(value)
            value = Gaps(values, mask if runner.slots[slot_name].dims else mask.reshape(()))
        out[name] = value
    return out


def _finish(runner: Runner, frames: Frames, program: Program, targets: Mapping[str, Target], kept: Ints) -> None:
    """Copy outputs that no kernel wrote in place, then close the gaps that dropped frames leave."""
    import ctypes

    if not len(kept):
        return  # where every frame left early, outputs were never made
    for name, slot_name in program.outputs:
        target = targets[name]
        at = frames.values[slot_name].at
        assert at is not None
        for place, r in enumerate(kept):
            goal = target.address + place * target.stride
            if int(at[r]) != goal:
                ctypes.memmove(goal, int(at[r]), target.stride)


__all__ = ["DROPPED", "DTYPES", "Chunk", "Feed", "data_error", "fields_of"]
