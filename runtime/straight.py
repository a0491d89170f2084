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

from .blocks import DTYPES, address_of
from .execute import Runner
from .held import Target
from .plan import Program, RunKernel

Ints = NDArray[np.int64]
MOST_ROWS = 1 << 12   # of a chunk


@dataclass(frozen=True)
class Lying:
    """Where the fields of some frames lie: addresses by slot, `counts` of records in each frame (None: 1 each)."""

    at: dict[str, Ints]
    counts: Ints | None = None
    keep: list[Any] = field(default_factory=list)


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
    made = all(slot in step.outputs and slots[slot].fixed and not slots[slot].missing for _, slot in program.outputs)
    others = set(step.outputs) - {slot for _, slot in program.outputs}
    whole = all(slots[slot].fixed and not slots[slot].missing for _, slot in program.inputs)
    ours = [a for a in step.args if a.slot != "@order" and not a.slot.startswith("@weight.")]
    known = len(ours) == len(step.args) and all(a.kind == "data" and not a.writes and slots[a.slot].dtype in DTYPES for a in ours)
    once = len({slot for _, slot in program.outputs}) == len(program.outputs)
    return step if made and not others and whole and known and once else None


@dataclass
class Table:
    """The argument table of one thread, its constants filled in."""

    rows: NDArray[np.int64]
    columns: dict[str, list[int]]            # slot → columns
    turns: Ints = field(default_factory=lambda: np.arange(MOST_ROWS, dtype=np.int64))

    @staticmethod
    def of(runner: Runner, step: RunKernel) -> Table:
        columns: dict[str, list[int]] = {}
        for j, arg in enumerate(step.args):
            columns.setdefault(arg.slot, []).append(j)
        table = Table(np.zeros((MOST_ROWS, max(1, len(step.args))), np.int64), columns)
        for name, constant in runner.constants.items():
            if constant.at is not None:
                table.put(name, int(constant.at[0]))
        table.put("@keys", address_of(runner.keys))
        table.put("@epoch", address_of(runner.epoch))
        return table

    def put(self, slot: str, at: Ints | int) -> None:
        for j in self.columns.get(slot, ()):
            if isinstance(at, int):
                self.rows[:, j] = at
            else:
                self.rows[: len(at), j] = at


def run_straight(runner: Runner, step: RunKernel, slots: Mapping[str, str], ids: NDArray[np.uint64], lying: Lying,
                 targets: Mapping[str, Target]) -> bool:
    """Run the kernel over records that lie in memory; False where one fails.

    `slots`: output field → slot, written at `targets`.
    """
    count = len(ids)
    table = runner.table
    if table is None:
        table = runner.table = Table.of(runner, step)
    for slot, addresses in lying.at.items():
        table.put(slot, addresses)
    turns = table.turns[:count]
    for name, slot in slots.items():
        table.put(slot, targets[name].address + targets[name].stride * turns)
    if "@id" in table.columns:
        table.put("@id", address_of(ids) + 8 * turns)
    if "@count" in table.columns:
        numbers = np.ones(count, np.int64) if lying.counts is None else np.ascontiguousarray(lying.counts)
        table.put("@count", address_of(numbers) + 8 * turns)
    status = np.zeros(count, np.int64)
    runner.begin_chunk()
    runner.launch(runner.kernels[step.kernel], table.rows[:count], status)
    return not status.any()
