"""Segments whose frames are made from the rows before (`each`, `batch`, `window` …), then their program.

The same code runs in the producer (lines above `share()`) and in each consumer (lines below).
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..kernels.random import DRAWS, draw_key
from . import order as orders
from .errors import DataError, Where
from .execute import Kernel, Runner
from .feed import data_error, fields_of
from .frames import Row, batch_row, each, groups, numbers_of, stack, windows
from .held import Failure, Frames
from .inputs import feed_of
from .numbers import Numbers
from .packing import Packing, TooLong
from .plan import Order, Plan, Program, Segment, Start

FOREVER = orders.FOREVER
Rows = Iterator[tuple[Row, int]]   # with the turns of `repeat`


class Sampler:
    """`x ~ sample(p)`: records of another pipeline, chosen by a draw of the record that asks."""

    def __init__(self, plan: Plan, start: Start, kernels: Mapping[str, Kernel], allow_extern: bool, params: Mapping[str, Any]):
        self.name, self.path, self.times = start.options["name"], start.options["path"], int(start.options["times"])
        self.feed = feed_of(plan, start.inputs[0], kernels, allow_extern, params)
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


class Takes:
    """`take` below conditions: of the records for which the first m held, the first n."""

    def __init__(self, segment: Segment):
        self.takes, self.left = segment.takes, [n for _, n in segment.takes]
        self.over = False

    def count(self, passed: int) -> bool:
        """Count a record for which `passed` conditions held; may it stay. `over`: no record after it may."""
        for k, (needed, _) in enumerate(self.takes):
            if self.left[k] == 0:
                self.over = True
                return False
            if passed < needed:
                return False
            self.left[k] -= 1
            self.over = self.over or self.left[k] == 0
        return True


class Later:
    """One segment whose frames are made from rows."""

    def __init__(self, plan: Plan, segment: Segment, kernels: Mapping[str, Kernel], allow_extern: bool = False,
                 params: Mapping[str, Any] | None = None):
        self.seed, self.segment = plan.seed or 0, segment
        self.runner = Runner(segment.program, kernels, params, allow_extern)
        self.numbers = Numbers(segment.start, kernels, params or {})
        self.sizes: dict[str, int] = {}
        self.epoch = 0
        self.identity = is_identity(segment.program)
        self.reads = {_field(slot) for _, slot in segment.program.outputs if slot.startswith("field.")}
        self.reads |= {name for name, _ in segment.program.inputs}
        samples = segment.start.kind == "sample"
        self.sampler = Sampler(plan, segment.start, kernels, allow_extern, params or {}) if samples else None

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.sizes = self.numbers.at(epoch)
        if self.sampler is not None:
            self.sampler.start_epoch(epoch)
        self.runner.start_epoch(epoch, [draw_key(self.seed, p, epoch) for p in self.segment.program.draws])

    @property
    def batches(self) -> bool:
        return self.segment.start.kind == "batch"

    def run(self, before: Callable[[], Iterator[Row]], turn: int = 0,
            judge: Callable[[DataError], None] | None = None) -> Iterator[Row]:
        """The rows that this segment makes of the rows before it, which `before` gives from their first on.

        `turn`: how often a `mix` or `zip` has begun them again. `judge` gets the error of a frame whose lines fail, and
        raises, or returns where `skip_bad` leaves the frame out.
        """
        takes = Takes(self.segment)
        for frame in self._ordered(before, turn):
            try:
                made, passed = self.one(frame)
            except DataError as error:
                if judge is None:
                    raise
                judge(error)
                continue
            allowed = takes.count(passed)
            if made is not None and allowed:
                yield made
            if takes.over:
                return

    def _ordered(self, before: Callable[[], Iterator[Row]], turn: int) -> Iterator[Row]:
        """The frames in the order that `take`, `repeat` and `shuffle` ask for; their turns join the ids."""
        steps = [o for o in self.segment.orders if o.op != "shard"]
        if not steps:
            yield from self._frames(before())
            return
        make: Callable[[], Rows] = lambda: ((row, 0) for row in self._frames(before()))  # noqa: E731
        for step in steps:
            make = partial(self._changed, step, make, turn)
        for row, again in make():
            row.id = int(orders.child_ids(np.array([row.id], np.uint64), again + turn)[0])
            yield row

    def _changed(self, step: Order, rows: Callable[[], Rows], turn: int) -> Rows:
        match step.op:
            case "take":
                yield from itertools.islice(rows(), step.options["n"])
            case "repeat":
                times = step.options["n"] or FOREVER
                for again in range(times):
                    some = False
                    for row, before in rows():
                        some = True
                        yield row, before * times + again
                    if not some:
                        return
            case "shuffle":
                key = orders.key(self.seed, self.epoch, step.options["key"] + (f"#{turn}" if turn else ""))
                listed = rows()
                for block in itertools.count():
                    inside = list(itertools.islice(listed, step.options["window"]))
                    if not inside:
                        return
                    order = orders.Permutation(len(inside), orders.key(key, block, "window"))
                    yield from (inside[k] for k in order[np.arange(len(inside))])

    def _frames(self, rows: Iterator[Row]) -> Iterator[Row]:
        start = self.segment.start
        padded = start.options.get("padded", ())
        match start.kind:
            case "each":
                for row in rows:
                    yield from each(row, start.options["fields"])
            case "batch":
                for group in groups(rows, numbers_of(start.options, self.sizes)):
                    yield batch_row(group, padded, self.reads)
            case "window":
                n = self.sizes["n"]
                for group in windows(rows, n, self.sizes["stride"], start.options["rest"] == "keep"):
                    yield batch_row(group, padded, self.reads, n if padded else 0)
            case "pack":
                yield from self._packed(rows)
            case "sample":
                assert self.sampler is not None
                for row in rows:
                    yield self.sampler.add(row)
            case _:
                yield from rows

    def _packed(self, rows: Iterator[Row]) -> Iterator[Row]:
        options = self.segment.start.options
        packing = Packing(self.sizes["n"], options["by"], options["open"], options["fields"], self.reads)
        try:
            yield from packing.rows(rows)
        except TooLong as long:
            span = options.get("span")
            raise DataError("E0805", f"a record of length {long.length} doesn't fit a row of {packing.n}",
                            Where(*span) if span else None, record=f"{long.position:,} of the stream", epoch=self.epoch,
                            position=long.position) from None

    def one(self, row: Row) -> tuple[Row | None, int]:
        """Run the program on one frame: the row it leaves (None if `where` drops it), requirements that held."""
        if self.identity:
            return Row({name: row.fields[_field(slot)] for name, slot in self.segment.program.outputs},
                       row.id, row.next, row.skip, row.count, row.ids, row.pads), 0
        frames = self.runner.frames(1, np.array([row.id], np.uint64), np.array([row.count], np.int64))
        for name, slot in self.segment.program.inputs:
            self.runner.give(frames, slot, [row.fields[name]])
        self.runner.run(frames)
        self._fail(frames, row)
        passed = int(frames.passed[0])
        if frames.status[0] != 0:
            return None, passed
        fields = fields_of(self.runner, frames, self.segment.program, 0)
        return Row(fields, row.id, row.next, row.skip, row.count, row.ids, row.pads), passed

    def _fail(self, frames: Frames, row: Row) -> None:
        if frames.failures:
            raise self.error(frames.failures[0], row)

    def error(self, failure: Failure, row: Row) -> DataError:
        """What is said of a frame that failed, `row` being what it was made of."""
        what = "batch that ends" if self.batches else "record"
        return data_error(self.segment.program, failure, f"{what} at position {row.next - 1}", self.epoch, max(0, row.next - 1),
                          None)


def _field(slot: str) -> str:
    return slot.removeprefix("field.")


def is_identity(program: Program) -> bool:
    """Does the program only hand its fields on?"""
    return not program.steps and all(slot.startswith("field.") for _, slot in program.outputs)
