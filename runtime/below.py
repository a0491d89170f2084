"""The part of a plan below `share()`, run in each consumer: rows of the ring in, batches out.

`batch(n)` of rows of fixed size is a view of the ring: nothing is copied.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .blocks import DTYPES, address_of
from .execute import Kernel
from .feed import data_error
from .frames import Row
from .held import Gaps, Target
from .plan import Plan, Program, RunKernel, Slot, Step
from .progress import Progress
from .segments import Later
from .texts import objects

if TYPE_CHECKING:
    from .attach import RowReader


class Rows(Protocol):
    """Consecutive rows of the ring. Arrays keep the lease alive; so does `lease`."""

    @property
    def count(self) -> int: ...

    @property
    def fields(self) -> Mapping[str, Any]:
        """Fixed columns: (n, *dims); others: lists of n arrays."""
        ...


class Reader(Protocol):
    def take(self, n: int) -> Rows | None:
        """The next n rows or fewer at the epoch's end, None after it."""
        ...


class Below:
    """Turns rows into what the consumer's loop receives."""

    def __init__(self, plan: Plan, kernels: Mapping[str, Kernel], params: Mapping[str, Any] | None = None,
                 allow_extern: bool = False):
        """`params`: values of open params; the plan's own where it names none."""
        values = {p.name: p.value for p in plan.params if p.open} | dict(params or {})
        self.plan, self.seed = plan, plan.seed or 0
        self.first = Later(plan, plan.below[0], kernels, allow_extern, values)
        self.later = [Later(plan, s, kernels, allow_extern, values) for s in plan.below[1:]]
        self.stacks = self._stacks_views()
        self.handed = self._handed() if self.stacks else None
        # What batches of like length hold back, and what `take` has counted, can't be told from a position.
        self.replays = any(s.takes or s.orders or s.start.options.get("edges") for s in plan.below)

    def _stacks_views(self) -> bool:
        return one_by_one(self.plan, self._at_once) is None

    def _handed(self) -> dict[str, str] | None:
        """Field → column of the ring, where lines below `share` do nothing but make batches; else None."""
        segments = (self.first, *self.later)
        if not all(s.identity and s.sampler is None for s in segments):
            return None
        columns = {c.name: c.name for c in self.plan.rows}
        for segment in segments:
            columns = {name: columns[slot.removeprefix("field.")] for name, slot in segment.segment.program.outputs}
        return columns

    def _at_once(self, step: Step, slots: Mapping[str, Slot]) -> bool:
        """Does it suit all records of a batch together?"""
        return isinstance(step, RunKernel)

    @property
    def batch_size(self) -> int | None:
        """Records per batch where `batch(n)` stands below; computed by `start_epoch`."""
        for later in self.later:
            if later.batches:
                return later.sizes.get("n")
        return None

    @property
    def drops_smaller(self) -> bool:
        return any(s.start.kind == "batch" and s.start.options.get("whole") for s in self.plan.below)

    def start_epoch(self, epoch: int) -> None:
        for later in (self.first, *self.later):
            later.start_epoch(epoch)

    def straight(self, epoch: int, reader: RowReader, names: Sequence[str]) -> Iterator[tuple[Sequence[Any], Progress]]:
        """`batches` where `handed`, with the values of these fields in this order."""
        assert self.handed is not None
        self.start_epoch(epoch)
        batch = self.later[0]
        whole = bool(batch.segment.start.options.get("whole"))
        return reader.straight(batch.sizes["n"], tuple(self.handed[n] for n in names), whole)

    def batches(self, epoch: int, reader: Reader) -> Iterator[tuple[dict[str, Any], Progress]]:
        """What one epoch delivers, field by field, with the point to resume from after each."""
        self.start_epoch(epoch)
        if self.stacks:
            yield from self._stacked(epoch, reader)
            return
        rows = functools.partial(self.first.run, functools.partial(_rows, reader, [c.name for c in self.plan.rows]))
        for later in self.later:
            rows = functools.partial(later.run, rows)
        for done, row in enumerate(rows(), 1):
            yield row.fields, _progress(row, done if self.replays else None)

    def _stacked(self, epoch: int, reader: Reader) -> Iterator[tuple[dict[str, Any], Progress]]:
        batch = self.later[0]
        n = batch.sizes["n"]
        whole = bool(batch.segment.start.options.get("whole"))
        while (rows := reader.take(n)) is not None:
            if rows.count < n and whole:
                continue
            columns = rows.fields
            next_, skip = getattr(rows, "point", None) or (int(columns["_next"][-1]), int(columns["_skip"][-1]))
            progress = Progress(next_, skip, rows.count, 0, columns["_id"], columns.get("_valid"))
            fields = self._record_program(rows)
            row: Row | None = Row(fields, int(rows.fields["_id"][0]), progress.next, progress.skip, rows.count)
            for later in self.later:
                assert row is not None
                row = self._one(later, row)
                if row is None:
                    break
            del rows, columns, fields                     # nothing of a batch is kept here while the next one is waited for
            if row is not None:
                made, row = row.fields, None
                yield made, progress
                del made

    def _one(self, later: Later, row: Row) -> Row | None:
        return later.one(row)[0]

    def _record_program(self, rows: Rows) -> dict[str, Any]:
        """The lines between `share` and `batch`, on all records of a batch at once."""
        program, runner = self.plan.below[0].program, self.first.runner
        if self.first.identity:
            return {name: rows.fields[slot.removeprefix("field.")] for name, slot in program.outputs}
        ids = np.ascontiguousarray(rows.fields["_id"])
        frames = runner.frames(rows.count, ids)
        for name, slot in program.inputs:
            array = rows.fields[name]
            runner.give_rows(frames, slot, address_of(array) + array.strides[0] * np.arange(rows.count), array)
        made = {slot: _empty(runner.slots[slot], rows.count) for _, slot in program.outputs if not slot.startswith("field.")}
        targets = {slot: Target(address_of(a), a.strides[0] if a.ndim else 0) for slot, a in made.items()}
        runner.run(frames, targets)
        if frames.failures:
            raise data_error(program, frames.failures[0], f"row {frames.failures[0].frame} of a batch", self.first.epoch,
                             int(rows.fields["_next"][0]) - 1, None)
        return {name: _output(runner, frames, made, slot, rows, program) for name, slot in program.outputs}


def one_by_one(plan: Plan, at_once: Callable[[Step, Mapping[str, Slot]], bool]) -> str | None:
    """Why rows go through the record program one at a time; None where whole runs of them become a batch without copies.

    `at_once`: does a step suit all records of a batch together?
    """
    first, *later = plan.below
    if not later or later[0].start.kind != "batch":
        return "no `batch` stands below `share()`"
    start, program = later[0].start, first.program
    if first.takes or first.orders:
        return "records are counted or left out before `batch`"
    if start.options.get("padded") or start.options.get("edges") or "budget" in (start.options.get("has") or ()):
        return "batches are padded, or of records of like length"
    slots = {s.name: s for s in program.slots}
    if not all(slots[slot].fixed and not slots[slot].missing for _, slot in program.outputs) or any(
            c.dtype not in DTYPES or None in c.dims or c.missing for c in plan.rows):
        return "rows hold texts, gaps, or values of varying size"
    if not all(at_once(s, slots) for s in program.steps):
        return "a step before `batch` is made for one record at a time"
    return None


def _progress(row: Row, replayed: int | None) -> Progress:
    """`replayed`: batches so far, where a position doesn't tell where to resume."""
    ids = [row.id] if row.count == 1 and row.ids is None else row.ids
    valid = np.arange(row.count) < row.count - row.pads if row.pads else None
    at = (row.next, row.skip) if replayed is None else (0, replayed)
    return Progress(*at, 1, ids=None if ids is None else np.array(ids, np.uint64), valid=valid)


def _empty(slot: Slot, count: int) -> NDArray[Any]:
    return np.empty((count, *[int(d or 0) for d in slot.dims]), DTYPES[slot.dtype])


def _output(runner: Any, frames: Any, made: Mapping[str, NDArray[Any]], slot: str, rows: Rows, program: Program) -> Any:
    if slot.startswith("field."):
        return rows.fields[slot.removeprefix("field.")]
    array = made[slot]
    at = frames.values[slot].at
    if rows.count and int(at[0]) != address_of(array):   # a constant, not written by a kernel
        for r in range(rows.count):
            array[r] = runner.value(frames, slot, r)
    return array


def _rows(reader: Reader, names: list[str]) -> Iterator[Row]:
    while (rows := reader.take(64)) is not None:
        valid = rows.fields.get("_valid")
        for i in range(rows.count):
            fields = {}
            for name in names:
                value = rows.fields[name][i]
                mask = rows.fields.get(name + "?")
                values = objects(value) if isinstance(value, bytes | str | None) else np.asarray(value)
                fields[name] = value if mask is None else Gaps(values, np.asarray(mask[i]))
            id_, next_, skip, count = (int(rows.fields[name][i]) for name in ("_id", "_next", "_skip", "_count"))
            yield Row(fields, id_, next_, skip, count, pads=0 if valid is None or valid[i] else count)



