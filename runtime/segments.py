"""Segments after the first: frames made from the rows before (`each`, `batch`), then their program.

The same code runs in the producer (lines above `share()`) and in each consumer (lines below).
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..kernels.random import DRAWS, draw_key
from .errors import DataError, Where
from .execute import Frames, Kernel, Runner
from .feed import Feed, data_error, fields_of
from .frames import Row, batch_row, each, groups, numbers_of, stack
from .order import child_ids
from .plan import Plan, Program, Segment, Start


class Numbers:
    """The sizes that a stage is given as expressions of open params and `epoch`: `n`, `budget`."""

    def __init__(self, start: Start, kernels: Mapping[str, Kernel], params: Mapping[str, Any]):
        self.start = start
        self.runner = Runner(start.number, kernels, params) if start.number else None

    def at(self, epoch: int) -> dict[str, int]:
        if self.runner is None:
            return {}
        self.runner.start_epoch(epoch, [])
        frames = self.runner.frames(1, np.zeros(1, np.uint64))
        self.runner.run(frames)
        out = {}
        for name, slot in self.runner.program.outputs:
            out[name] = int(self.runner.value(frames, slot, 0))
            if out[name] < 1:
                span = self.start.options.get("span")
                raise DataError("E0804", f"`{name}` of `{self.start.kind}` is {out[name]}, it must be 1 or more",
                                Where(*span) if span else None, epoch=epoch)
        return out


class Sampler:
    """`x ~ sample(p)`: records of another pipeline, chosen by a draw of the record that asks."""

    def __init__(self, plan: Plan, start: Start, kernels: Mapping[str, Kernel], allow_extern: bool, params: Mapping[str, Any]):
        self.name, self.path, self.times = start.options["name"], start.options["path"], int(start.options["times"])
        self.feed = Feed(plan, start.inputs[0][0], kernels, allow_extern, params)
        self.seed, self.key = plan.seed or 0, 0

    def start_epoch(self, epoch: int) -> None:
        self.feed.start_epoch(epoch)
        self.key = draw_key(self.seed, self.path, epoch)
        if self.feed.length == 0:
            raise DataError("E0810", f"`{self.name}` samples a pipeline that has no records")

    def add(self, row: Row) -> Row:
        """The row with the fields of the chosen record, or of `times` records stacked."""
        folds = range(self.times or 1)
        chosen = [int(DRAWS["integers"].ref(self.key, np.uint64(row.id), k, 0, self.feed.length)) for k in folds]
        records = [self._record(position) for position in chosen]
        fields = stack(records, (), records[0].fields) if self.times else records[0].fields
        return Row({**row.fields, **{f"{self.name}.{n}": v for n, v in fields.items()}}, row.id, row.next, row.skip,
                   row.count)

    def _record(self, position: int) -> Row:
        chunk = self.feed.run(position, 1)
        if chunk.failures:
            raise self.feed.error(chunk.failures[0], position)
        return chunk.rows[0]


class Later:
    """One segment whose frames are made from rows."""

    def __init__(self, plan: Plan, segment: Segment, kernels: Mapping[str, Kernel], allow_extern: bool = False,
                 params: Mapping[str, Any] | None = None):
        self.plan, self.segment = plan, segment
        self.runner = Runner(segment.program, kernels, params, allow_extern)
        self.numbers = Numbers(segment.start, kernels, params or {})
        self.sizes: dict[str, int] = {}
        self.epoch = 0
        self.identity = is_identity(segment.program)
        self.reads = {_field(slot) for _, slot in segment.program.outputs if slot.startswith("field.")}
        self.reads |= {name for name, _ in segment.program.inputs}
        self.sampler = Sampler(plan, segment.start, kernels, allow_extern, params or {}) if segment.start.kind == "sample" else None

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.sizes = self.numbers.at(epoch)
        if self.sampler is not None:
            self.sampler.start_epoch(epoch)
        self.runner.start_epoch(epoch, [draw_key(self.plan.seed or 0, p, epoch) for p in self.segment.program.draws])

    @property
    def batches(self) -> bool:
        return self.segment.start.kind == "batch"

    def run(self, before: Callable[[], Iterator[Row]]) -> Iterator[Row]:
        """The rows that this segment makes of the rows before it, which `before` gives from their first on."""
        left = [n for _, n in self.segment.takes]
        for frame in self._turns(before):
            made, passed = self.one(frame)
            over = False
            for k, (needed, _) in enumerate(self.segment.takes):
                if left[k] == 0:
                    return
                if passed >= needed:
                    left[k] -= 1
                    over = over or left[k] == 0
            if made is not None:
                yield made
            if over:
                return

    def _turns(self, before: Callable[[], Iterator[Row]]) -> Iterator[Row]:
        """The frames of every turn of `repeat`, which joins their ids; once where there is none."""
        repeats = [o.options["n"] for o in self.segment.orders if o.op == "repeat"] or [1]
        for turn in range(repeats[0]) if repeats[0] else itertools.count():
            some = False
            for frame in self._frames(before()):
                some = True
                frame.id = int(child_ids(np.array([frame.id], np.uint64), turn)[0])
                yield frame
            if not some:
                return

    def _frames(self, rows: Iterator[Row]) -> Iterator[Row]:
        start = self.segment.start
        match start.kind:
            case "each":
                for row in rows:
                    yield from each(row, start.options["fields"])
            case "batch":
                padded = start.options.get("padded", ())
                for group in groups(rows, numbers_of(start.options, self.sizes)):
                    yield batch_row(group, padded, self.reads)
            case "sample":
                assert self.sampler is not None
                for row in rows:
                    yield self.sampler.add(row)
            case _:
                yield from rows

    def one(self, row: Row) -> tuple[Row | None, int]:
        """Run the program on one frame: the row it leaves (None if `where` drops it), requirements that held."""
        if self.identity:
            return Row({name: row.fields[_field(slot)] for name, slot in self.segment.program.outputs},
                       row.id, row.next, row.skip, row.count), 0
        frames = self.runner.frames(1, np.array([row.id], np.uint64), np.array([row.count], np.int64))
        for name, slot in self.segment.program.inputs:
            self.runner.give(frames, slot, [row.fields[name]])
        self.runner.run(frames)
        self._fail(frames, row)
        passed = int(frames.passed[0])
        if frames.status[0] != 0:
            return None, passed
        return Row(fields_of(self.runner, frames, self.segment.program, 0), row.id, row.next, row.skip, row.count), passed

    def _fail(self, frames: Frames, row: Row) -> None:
        if frames.failures:
            what = "batch that ends" if self.batches else "record"
            raise data_error(self.segment.program, frames.failures[0], f"{what} at position {row.next - 1}", self.epoch,
                             max(0, row.next - 1), None)


def _field(slot: str) -> str:
    return slot.removeprefix("field.")


def is_identity(program: Program) -> bool:
    """Does the program only hand its fields on?"""
    return not program.steps and all(slot.startswith("field.") for _, slot in program.outputs)
