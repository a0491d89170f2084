"""Runs a `plan.Program` over a chunk of frames: kernels by address, library operators one frame at a time.

A frame that fails keeps the number of its site; the others go on.
"""
from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels.ops import OPERATORS, BadRecord
from .blocks import DTYPES, NUMBERS, Block, Ints, address_of, affordable, too_large, view
from .clock import Clock
from .errors import DataError, Where
from .held import Failure, Frames, Gaps, Held, Target, Values
from .limits import show_size
from .plan import CallEach, CallExtern, CallOperator, EachArg, Program, Require, RunKernel, Slot, Step

if TYPE_CHECKING:
    from .straight import Table

Kernel = Callable[[int, int, int, int], None]
DROPPED = -2         # status of a frame that `where` left out
NEEDS_MEMORY = -1    # status of a frame whose kernel wants a larger arena
TOO_LARGE = 1 << 41  # … and can't have it; added to what it had
# Arguments about all texts of a chunk: their places in order, 64 bits for each, and, as a sign that the kernel compares
# texts, nothing.
TEXTS = ("@order", "@digests", "@alike")


class Runner(Values):
    """One program, ready to run in one thread."""

    def __init__(self, program: Program, kernels: Mapping[str, Kernel], params: Mapping[str, Any] | None = None,
                 allow_extern: bool = False):
        """`params`: values of open params by name. Raises DataError for extern functions not allowed or not found."""
        super().__init__(program, params)
        self.kernels = kernels
        self.clock: Clock | None = None   # counts where somebody asks
        self.table: Table | None = None   # of `straight`
        self.turns = in_turn(program)
        self.same: dict[str, Any] = {}    # constants as library calls take them
        self.arena = np.zeros(4, np.int64)
        self.arena_at = address_of(self.arena)
        self.externs = {s.target: _load_extern(s.target, allow_extern, self._where(s.site)) for s in program.steps
                        if isinstance(s, CallExtern)}

    @property
    def calls_library(self) -> bool:
        return any(isinstance(s, CallOperator | CallExtern | CallEach) for s in self.program.steps)

    def _where(self, number: int) -> Where | None:
        site = next((s for s in self.program.sites if s.number == number), None)
        return None if site is None else Where(site.file, site.start, site.end)

    def run(self, frames: Frames, targets: Mapping[str, Target] | None = None) -> None:
        """Fill every slot of the program; outputs named in `targets` (slot → place) go there."""
        targets, clock, steps = targets or {}, self.clock, self.program.steps
        for number, step in enumerate(steps):
            asked = int(np.count_nonzero(frames.status == 0)) if clock is not None else 0
            if clock is not None:
                clock.begin()
            match step:
                case CallOperator() if clock is None and number in self.turns:
                    kernel = steps[number + 1]
                    assert isinstance(kernel, RunKernel)
                    self._in_turn(frames, step, kernel, targets)
                case RunKernel():
                    if clock is not None or number - 1 not in self.turns:
                        self._kernel(frames, step, targets)
                case Require():
                    self._require(frames, step)
                case CallOperator():
                    self._call(frames, step, OPERATORS[step.op].cpu)
                case CallExtern():
                    self._call(frames, step, None)
                case CallEach():
                    self._call_each(frames, step)
            if clock is not None:
                clock.end(number, asked)
            if 0 not in frames.status.tolist():
                break
        for r in (frames.status > 0).nonzero()[0]:
            if not any(f.frame == r for f in frames.failures):
                frames.failures.append(_failure(int(r), int(frames.status[r])))
        if clock is not None:
            clock.look(self, frames)

    def _kernel(self, frames: Frames, step: RunKernel, targets: Mapping[str, Target]) -> None:
        table = self._table(frames, step, targets)
        self.launch(self.kernels[step.kernel], table, frames.status)
        self._after(frames, step, table)

    def _table(self, frames: Frames, step: RunKernel, targets: Mapping[str, Target], later: Sequence[str] = ()) -> Ints:
        """The kernel's arguments for each frame, its outputs' memory made; those that are slots in `later` are left open."""
        for name in step.outputs:
            self._prepare(frames, self.slots[name], targets.get(name))
        table = np.zeros((frames.count, max(1, len(step.args))), np.int64)
        for j, arg in enumerate(step.args):
            if arg.slot in TEXTS or arg.writes or arg.slot in later:
                continue
            held = frames.values[arg.slot]
            if held.objects is not None and (held.at is None or held.done is not None):
                self._number(frames, arg.slot)
            if arg.kind == "size":
                known = self.slots[arg.slot].dims[arg.axis] or 0
                table[:, j] = held.sizes[:, arg.axis] if held.sizes is not None else known
            else:
                at = held.at if arg.kind == "data" else held.mask
                assert at is not None
                table[:, j] = at
        for j, arg in enumerate(step.args):
            if arg.slot in TEXTS:   # all texts have their numbers by now
                table[:, j] = self._about_texts(arg.slot)
        return table

    def _after(self, frames: Frames, step: RunKernel, table: Ints) -> None:
        """What the kernel has told is kept."""
        if step.memory and max(frames.status.tolist(), default=0) >= TOO_LARGE:
            frames.failures += [_failure(int(r), int(frames.status[r]), step.memory)
                                for r in np.flatnonzero(frames.status >= TOO_LARGE)]
            frames.status[frames.status >= TOO_LARGE] = step.memory
        for j, arg in enumerate(step.args):
            if not arg.writes:
                continue
            held = frames.values[arg.slot]
            if arg.kind == "size":
                assert held.sizes is not None
                held.sizes[:, arg.axis] = table[:, j]
            elif arg.kind == "data":
                held.at = table[:, j].copy()
            else:
                held.mask = table[:, j].copy()
        for name in step.outputs:
            if self.slots[name].dtype not in DTYPES:
                self._name(frames, name)

    def _in_turn(self, frames: Frames, call: CallOperator, step: RunKernel, targets: Mapping[str, Target]) -> None:
        """A library call and the kernel that alone reads what it gives, one frame after the other: what was given is still in
        the nearest cache then, and takes the memory of one frame."""
        for name in call.outputs:
            self._make_room(frames, name)
        table = self._table(frames, step, targets, call.outputs)
        begin, width, kernel, status = address_of(table), table.shape[1], self.kernels[step.kernel], frames.status
        given = [(j, arg.kind, arg.axis, frames.values[arg.slot]) for j, arg in enumerate(step.args) if arg.slot in call.outputs]
        results = [frames.values[name] for name in call.outputs]
        for r in frames.alive().tolist():
            mark = self.bump.mark()
            self._call(frames, call, OPERATORS[call.op].cpu, (r,))
            if status[r]:
                continue
            for j, kind, axis, held in given:
                assert held.at is not None and held.sizes is not None
                table[r, j] = held.sizes[r, axis] if kind == "size" else held.at[r]
            self._launch(kernel, begin + 8 * width * r, status[r : r + 1], width)
            for held in results:
                held.keep.clear()
            self.bump.back(mark)
        self._after(frames, step, table)

    def _about_texts(self, slot: str) -> int:
        return 0 if slot == "@alike" else address_of(self.texts.places() if slot == "@order" else self.texts.digests())

    def _prepare(self, frames: Frames, slot: Slot, target: Target | None) -> None:
        """Memory for an output: at its target, in a block of ours, or (unknown size) left to the kernel."""
        if None in slot.dims:
            frames.values[slot.name] = Held(sizes=np.zeros((frames.count, len(slot.dims)), np.int64))
            return
        at = target.address + target.stride * np.arange(frames.count) if target else self._block(slot, frames.count)[0]
        frames.values[slot.name] = Held(at=at)
        if slot.dtype not in DTYPES:
            view(int(at[0]), (frames.count, *[int(d or 0) for d in slot.dims]), NUMBERS)[:] = 0   # not written where dropped
        if slot.missing:
            size = int(np.prod([int(d or 0) for d in slot.dims], dtype=np.int64))
            base = self.blocks.setdefault(slot.name + "?", Block()).at_least(size * frames.count)
            frames.values[slot.name].mask = base + size * np.arange(frames.count)

    def launch(self, kernel: Kernel, table: Ints, status: Ints) -> None:
        """Call the kernel; where it wants more memory, give it and go on from that record."""
        self._launch(kernel, address_of(table), status, table.strides[0] // 8)

    def _launch(self, kernel: Kernel, table: int, status: Ints, width: int) -> None:
        """The same for as many records as `status` has, whose arguments, `width` for each, lie at `table`."""
        arena, done, count, at = self.arena, 0, len(status), address_of(status)
        before: list[int] | None = None   # sizes when record `done` first asked for more
        while True:
            arena[0], arena[1] = self.next_output, self.outputs.end
            arena[2], arena[3] = self.scratch.at_least(self.sizes[1]), self.scratch.end
            kernel(count - done, table + 8 * width * done, at + 8 * done, self.arena_at)
            self.next_output = int(arena[0])
            if not np.count_nonzero(status):
                return
            asked = status.tolist()
            if NEEDS_MEMORY not in asked:
                return
            short = asked.index(NEEDS_MEMORY)
            if short != done or before is None:
                before = self.sizes
            done = short
            status[done] = 0
            if not self._grow():
                status[done] = TOO_LARGE + max(self.sizes)
                self._new_outputs(before[0])   # what this record was given is let go
                self.sizes, self.scratch = before, Block()

    def _grow(self) -> bool:
        """A larger scratch, and a new block of outputs; False where there isn't so much memory."""
        sizes = [2 * self.sizes[0], 2 * self.sizes[1]]
        if not affordable(2 * max(sizes)):   # blocks are half as large again
            return False
        try:
            self.scratch.at_least(sizes[1])
            self._new_outputs(sizes[0])
        except MemoryError:
            return False
        self.sizes = sizes
        return True

    def _new_outputs(self, size: int) -> None:
        """A new block of outputs; those in the one before are still used."""
        block = Block()
        self.next_output = block.at_least(size)
        self.retired.append(self.outputs.data)
        self.outputs = block

    def _require(self, frames: Frames, step: Require) -> None:
        held = frames.values[step.slot]
        for r in frames.alive():
            if not self.value(frames, step.slot, int(r), held):
                frames.status[r] = DROPPED if step.kind == "where" else step.site
            else:
                frames.passed[r] += 1

    def _call(self, frames: Frames, step: CallOperator | CallExtern, function: Callable[..., Any] | None,
              rows: Iterable[int] | None = None) -> None:
        """Call the function for these frames, or for all."""
        for name in step.outputs:
            self._make_room(frames, name)
        done = frames.values[step.outputs[0]].done
        assert done is not None
        for a in step.args:
            if a in self.constants and a not in self.same:
                self.same[a] = self.value(frames, a, 0)
        for r in frames.alive().tolist() if rows is None else rows:
            if done[r] or (step.when is not None and not self.value(frames, step.when, r)):
                continue
            done[r] = True
            args = [self.same[a] if a in self.same else self.value(frames, a, r) for a in step.args]
            try:
                if function is None:
                    assert isinstance(step, CallExtern)
                    result = _call_extern(self.externs[step.target], step.target, args)
                else:
                    result = function(self.bump.take, *args)
            except BadRecord as bad:
                frames.status[r] = step.site
                frames.failures.append(Failure(r, step.site, bad.code, bad.reason, bad.label))
                continue
            results = result if len(step.outputs) > 1 else (result,)
            for name, value in zip(step.outputs, results, strict=True):
                self._hold(frames, frames.values[name], self.slots[name], r, value, step.site)

    def _call_each(self, frames: Frames, step: CallEach) -> None:
        slot, function = self.slots[step.output], OPERATORS[step.op].cpu
        assert function is not None
        self._make_room(frames, step.output)
        held = frames.values[step.output]
        for r in frames.alive():
            asked = None if step.when is None else self.value(frames, step.when, int(r))
            dims = [d if isinstance(d, int) else int(self.value(frames, d, int(r))) for d in step.dims]
            values = [self.value(frames, a.slot, int(r)) for a in step.args]
            try:
                result = self.bump.take(dims, DTYPES[slot.dtype]) if slot.dtype in DTYPES else np.empty(dims, object)
                gone = np.ones(dims, np.bool_) if slot.missing else None
                if asked is not None:
                    result.fill(0 if slot.dtype in DTYPES else None)
                for place in np.ndindex(*dims):
                    if asked is not None and not asked[place]:
                        continue
                    args = [_element(a, v, place) for a, v in zip(step.args, values, strict=True)]
                    made = function(self.bump.take, *args)
                    if gone is not None:
                        gone[place] = made is None
                    if made is not None or slot.dtype not in DTYPES:
                        result[place] = made
            except BadRecord as bad:
                frames.status[r] = step.site
                frames.failures.append(Failure(int(r), step.site, bad.code, bad.reason, bad.label))
                continue
            self._hold(frames, held, slot, int(r), result if gone is None else Gaps(result, gone), step.site)


def in_turn(program: Program) -> frozenset[int]:
    """The numbers of library calls that run in turn with the kernel after them: nothing else reads what they give, which has
    a size that only the data tells."""
    slots, outputs = {s.name: s for s in program.slots}, {slot for _, slot in program.outputs}
    found = set()
    for number, (call, step) in enumerate(itertools.pairwise(program.steps)):
        if not isinstance(call, CallOperator) or not isinstance(step, RunKernel):
            continue
        made = set(call.outputs)
        others = (s for k, s in enumerate(program.steps) if k not in (number, number + 1))
        apart = not made & outputs and not any(made & _met(s) for s in others)
        numbers = all(slots[n].dtype in DTYPES and not slots[n].missing and None in slots[n].dims for n in made)
        if apart and numbers and not any(a.slot in TEXTS for a in step.args):
            found.add(number)
    return frozenset(found)


def _met(step: Step) -> set[str]:
    """The slots that a step reads or fills."""
    match step:
        case RunKernel():
            return {*step.outputs, *(a.slot for a in step.args)}
        case Require():
            return {step.slot}
        case CallEach():
            named = {d for d in step.dims if isinstance(d, str)}
            return {step.output, step.when or "", *(a.slot for a in step.args), *named}
    return {*step.outputs, *step.args, step.when or ""}


def _failure(r: int, status: int, site: int = 0) -> Failure:
    if status < TOO_LARGE:
        return Failure(r, status)
    bad = too_large(f"more than {show_size(status - TOO_LARGE)}")
    return Failure(r, site, bad.code, bad.reason, bad.label)


def _element(arg: EachArg, value: Any, place: tuple[int, ...]) -> Any:
    if arg.places is None:
        return value
    at = tuple(place[i] for i in arg.places)
    if isinstance(value, Gaps):
        return arg.default if value.mask[at] else value.values[at]
    element = value[at]
    return arg.default if element is None else element


def _load_extern(target: str, allowed: bool, where: Where | None) -> Callable[..., Any]:
    if not allowed:
        raise DataError("E0811", f"this program runs Python code, `{target}`, and this run doesn't allow it", where)
    module, _, name = target.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError("E0811", f"`{target}` can't be loaded: {reason}", where,
                        notes=("modules are looked for where Python looks, and beside the program",)) from error
    return function


def _call_extern(function: Callable[..., Any], target: str, args: list[Any]) -> Any:
    try:
        return function(*args)
    except Exception as error:  # a user's function may raise anything
        where = ""
        trace = error.__traceback__
        while trace is not None:
            where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        raise BadRecord("E0811", f"`{target}` raised {type(error).__name__}: {str(error)[:200]}", where.strip()) from error
