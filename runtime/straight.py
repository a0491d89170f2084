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
PIECE = 4096   # frames for which the kernel is called at once: their table stays in the cache
AT_ONCE = 64      # rows of the table that are added up as one


@dataclass(frozen=True)
class Evenly:
    """Addresses that lie evenly: of frame r `at + r * step`."""

    at: int
    step: int

    @staticmethod
    def rows(array: NDArray[Any]) -> Evenly:
        return Evenly(address_of(array), array.strides[0])


@dataclass(frozen=True)
class Lying:
    """Where the fields of some frames lie: addresses by slot, `counts` of records in each frame (None: 1 each); texts by slot."""

    at: dict[str, Ints | Evenly]
    counts: Ints | None = None
    keep: list[Any] = field(default_factory=list)
    masks: dict[str, Ints | Evenly] = field(default_factory=dict)     # where those with gaps have their masks
    texts: dict[str, Coded] = field(default_factory=dict)    # in place of addresses


@runtime_checkable
class Lies(Protocol):
    """An input whose values lie in memory. `lasts`: where they lie is known at any time, and stays."""

    @property
    def lasts(self) -> bool: ...

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


class Table:
    """The argument table of one thread: a row for each frame of a piece. Even addresses are added up all at once."""

    def __init__(self, runner: Runner, step: RunKernel, size: int = PIECE):
        """`size`: frames of a piece at most."""
        self.columns: dict[tuple[str, str], list[int]] = {}   # (slot, "data" or "mask") → columns
        for j, arg in enumerate(step.args):
            self.columns.setdefault((arg.slot, arg.kind), []).append(j)
        self.width = max(1, len(step.args))
        size = -(-size // AT_ONCE) * AT_ONCE
        self.rows, self.ramp = (np.zeros((size, self.width), np.int64) for _ in range(2))
        self.starts, self.steps, self.ramped = (np.zeros(self.width, np.int64) for _ in range(3))
        self.others: list[tuple[int, Ints]] = []
        for name, constant in runner.constants.items():
            if constant.at is not None:
                self.put(name, Evenly(int(constant.at[0]), 0))
        self.put("@keys", Evenly(address_of(runner.keys), 0))
        self.put("@epoch", Evenly(address_of(runner.epoch), 0))

    def put(self, slot: str, at: Ints | Evenly, kind: str = "data") -> None:
        for j in self.columns.get((slot, kind), ()):
            if isinstance(at, Evenly):
                self.starts[j], self.steps[j] = at.at, at.step
            else:
                self.others.append((j, at))

    def begin(self) -> None:
        """What was put in for another chunk is gone."""
        self.others.clear()

    def piece(self, first: int, count: int) -> Ints:
        """The rows of frames `first` … `first + count - 1` of what was put in."""
        if (self.steps != self.ramped).any():
            np.multiply.outer(np.arange(len(self.ramp)), self.steps, out=self.ramp)
            self.ramped[:] = self.steps
        ends, wide = -(-count // AT_ONCE), (-1, AT_ONCE * self.width)
        starts = np.tile(self.starts + first * self.steps, AT_ONCE)
        np.add(self.ramp.reshape(wide)[:ends], starts, out=self.rows.reshape(wide)[:ends])
        for j, at in self.others:
            self.rows[:count, j] = at[first : first + count]
        return self.rows[:count]


def run_straight(runner: Runner, step: RunKernel, slots: Mapping[str, str], ids: NDArray[np.uint64], lying: Lying,
                 targets: Mapping[str, Target]) -> bool:
    """Run the kernel over records that lie in memory; False where one fails.

    `slots`: output field → slot, written at `targets`.
    """
    count = len(ids)
    table = runner.table
    if table is None:
        table = runner.table = Table(runner, step)
    runner.begin_chunk()
    table.begin()
    numbers = put_lying(table, ids, lying)
    kept = _put_texts(runner, table, lying)
    if kept is None:
        return False
    for name, slot in slots.items():
        table.put(slot, Evenly(targets[name].address, targets[name].stride))
    status = np.zeros(count, np.int64)
    for first in range(0, count, PIECE):
        piece = status[first : first + PIECE]
        runner.launch(runner.kernels[step.kernel], table.piece(first, len(piece)), piece)
        if np.count_nonzero(piece):
            return False
    del kept, numbers
    return True


def put_lying(table: Table, ids: NDArray[np.uint64], lying: Lying) -> Ints:
    """Addresses of fields, ids and counts into the table; the counts, which lie where the table says."""
    for slot, addresses in lying.at.items():
        table.put(slot, addresses)
    for slot, addresses in lying.masks.items():
        table.put(slot, addresses, "mask")
    table.put("@id", Evenly(address_of(ids), 8))
    numbers = np.ones(1, np.int64) if lying.counts is None else np.ascontiguousarray(lying.counts)
    table.put("@count", Evenly(address_of(numbers), 0 if lying.counts is None else 8))
    return numbers


def _put_texts(runner: Runner, table: Table, lying: Lying) -> list[Any] | None:
    """Numbers of the texts into the table; what they lie in. None where they are over other words."""
    kept: list[Any] = []
    for slot, coded in lying.texts.items():
        if not runner.texts.attach(coded.words):
            return None
        cells, gone = numbered(coded.codes, runner.texts.kept)
        table.put(slot, Evenly.rows(cells))
        table.put(slot, Evenly.rows(gone), "mask")
        kept += [cells, gone]
    if ("@digests", "data") in table.columns:
        kept.append(runner.texts.digests())
        table.put("@digests", Evenly(address_of(kept[-1]), 0))
    return kept
