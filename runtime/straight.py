"""Chunks of records that one kernel makes of what lies in memory: addresses in, rows at their targets out.

The same work as `Feed.run`, without memory for each slot and bookkeeping for each frame, which cost more than the kernel
where records are small (tokens, CIFAR). A chunk in which a record fails is left to `Feed.run`.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..kernels.words import Coded, numbered
from .blocks import DTYPES, address_of
from .execute import Runner
from .held import Target
from .plan import Arg, Program, RunKernel, Slot

Ints = NDArray[np.int64]
MOST_ROWS = 1 << 13   # of a chunk


@dataclass(frozen=True)
class Lying:
    """Where the fields of some frames lie: addresses by slot, `counts` of records in each frame (None: 1 each); texts by slot."""

    at: dict[str, Ints]
    counts: Ints | None = None
    keep: list[Any] = field(default_factory=list)
    masks: dict[str, Ints] = field(default_factory=dict)     # where those with gaps have their masks
    texts: dict[str, Coded] = field(default_factory=dict)    # in place of addresses


@runtime_checkable
class Lies(Protocol):
    """An input whose values lie in memory."""

    def lies(self, fields: Mapping[str, str], indexes: Ints, turn: int) -> Lying | None:
        """Where the `fields` (field → slot) of these records lie, None where some don't."""
        ...


def straight_step(program: Program) -> RunKernel | None:
    """The one kernel of a program that can be run so, None for another program."""
    if len(program.steps) != 1 or not isinstance(program.steps[0], RunKernel):
        return None
    step, slots = program.steps[0], {s.name: s for s in program.slots}
    made = all(slot in step.outputs and slots[slot].fixed and not slots[slot].missing and slots[slot].dtype in DTYPES
               for _, slot in program.outputs)
    others = set(step.outputs) - {slot for _, slot in program.outputs}
    inputs = {slot for _, slot in program.inputs}
    whole = all(None not in slots[slot].dims and slots[slot].dtype != "bytes" for slot in inputs)
    known = all(_known(a, slots[a.slot], inputs) for a in step.args)
    once = len({slot for _, slot in program.outputs}) == len(program.outputs)
    return step if made and not others and whole and known and once else None


def _known(arg: Arg, slot: Slot, inputs: set[str]) -> bool:
    """Is there an argument's address before the chunk is begun."""
    if arg.writes or arg.slot in ("@order", "@alike") or arg.slot.startswith("@weight."):
        return False
    given = slot.dtype in DTYPES or arg.slot in inputs or slot.value is not None
    return given if arg.kind == "data" else arg.kind == "mask" and arg.slot in inputs


@dataclass
class Table:
    """The argument table of one thread, its constants filled in."""

    rows: NDArray[np.int64]
    columns: dict[tuple[str, str], list[int]]   # (slot, "data" or "mask") → columns
    turns: Ints = field(default_factory=lambda: np.arange(MOST_ROWS, dtype=np.int64))

    @staticmethod
    def of(runner: Runner, step: RunKernel) -> Table:
        columns: dict[tuple[str, str], list[int]] = {}
        for j, arg in enumerate(step.args):
            columns.setdefault((arg.slot, arg.kind), []).append(j)
        table = Table(np.zeros((MOST_ROWS, max(1, len(step.args))), np.int64), columns)
        for name, constant in runner.constants.items():
            if constant.at is not None:
                table.put(name, int(constant.at[0]))
        table.put("@keys", address_of(runner.keys))
        table.put("@epoch", address_of(runner.epoch))
        return table

    def put(self, slot: str, at: Ints | int, kind: str = "data") -> None:
        for j in self.columns.get((slot, kind), ()):
            if isinstance(at, int):
                self.rows[:, j] = at
            else:
                self.rows[: len(at), j] = at

    def put_rows(self, slot: str, array: NDArray[Any], kind: str = "data") -> None:
        """The addresses of an array's rows."""
        if (slot, kind) in self.columns:
            self.put(slot, address_of(array) + array.strides[0] * self.turns[: len(array)], kind)


def run_straight(runner: Runner, step: RunKernel, slots: Mapping[str, str], ids: NDArray[np.uint64], lying: Lying,
                 targets: Mapping[str, Target]) -> bool:
    """Run the kernel over records that lie in memory; False where one fails.

    `slots`: output field → slot, written at `targets`.
    """
    count = len(ids)
    table = runner.table
    if table is None:
        table = runner.table = Table.of(runner, step)
    runner.begin_chunk()
    for slot, addresses in lying.at.items():
        table.put(slot, addresses)
    for slot, addresses in lying.masks.items():
        table.put(slot, addresses, "mask")
    kept = _put_texts(runner, table, lying)
    if kept is None:
        return False
    turns = table.turns[:count]
    for name, slot in slots.items():
        table.put(slot, targets[name].address + targets[name].stride * turns)
    if ("@id", "data") in table.columns:
        table.put("@id", address_of(ids) + 8 * turns)
    if ("@count", "data") in table.columns:
        numbers = np.ones(count, np.int64) if lying.counts is None else np.ascontiguousarray(lying.counts)
        table.put("@count", address_of(numbers) + 8 * turns)
    status = np.zeros(count, np.int64)
    runner.launch(runner.kernels[step.kernel], table.rows[:count], status)
    del kept
    return not status.any()


def _put_texts(runner: Runner, table: Table, lying: Lying) -> list[Any] | None:
    """Numbers of the texts into the table; what they lie in. None where they are over other words."""
    kept: list[Any] = []
    for slot, coded in lying.texts.items():
        if not runner.texts.attach(coded.words):
            return None
        cells, gone = numbered(coded.codes, runner.texts.kept)
        table.put_rows(slot, cells)
        table.put_rows(slot, gone, "mask")
        kept += [cells, gone]
    if ("@digests", "data") in table.columns:
        kept.append(runner.texts.digests())
        table.put("@digests", address_of(kept[-1]))
    return kept
