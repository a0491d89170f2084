"""A `plan.Program` made of kernels, run on a device: addresses there go in, arrays there come out.

What the caller knows beforehand (sizes, memory) is worked out here, so that after a first batch of each shape nothing waits
for the device.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.ops import OPERATORS, BadRecord
from .blocks import DTYPES, MOST_MEMORY, Ints, too_large
from .execute import NEEDS_MEMORY
from .held import Failure, Values
from .landing import NAMES, Device, Landing, Placed
from .limits import show_size
from .plan import CallOperator, DeviceKernel, Program, RunKernel, Slot

THREADS, TURNS_EACH = 256, 4
FIRST_SCRATCH, FIRST_OUTPUT = 1 << 16, 1 << 20


def on_device(step: Any, slots: Mapping[str, Slot], kernels: Mapping[str, DeviceKernel]) -> bool:
    """Can the device do this step of a program?"""
    if isinstance(step, CallOperator):
        args = [slots[a] for a in step.args]
        known = all(s.value is not None or (s.dims and s.dtype in DTYPES and not s.missing) for s in args)
        whole = all(slots[o].dims and slots[o].dtype in DTYPES and not slots[o].missing for o in step.outputs)
        return OPERATORS[step.op].gpu is not None and step.when is None and len(step.outputs) == 1 and known and whole
    if not isinstance(step, RunKernel) or step.kernel not in kernels:
        return False
    for arg in step.args:
        slot = slots.get(arg.slot)
        if arg.slot == "@order" or arg.kind == "mask":
            return False
        if slot is not None and (slot.missing or slot.dtype not in DTYPES):
            return False
    return True


class DeviceProgram:
    """A program all of whose steps are kernels, on the device."""

    def __init__(self, program: Program, values: Values, kernels: Mapping[str, DeviceKernel], device: Device):
        """`values`: of the same program on the CPU, which holds constants, params and keys."""
        self.program, self.values, self.device = program, values, device
        self.kernels = {s.kernel: kernels[s.kernel] for s in program.steps if isinstance(s, RunKernel)}
        self.functions: dict[str, Sequence[Any]] = {}
        self.learnt: dict[str, tuple[int, int]] = {}    # kernel → bytes of scratch and of outputs for each frame
        self.sure: set[Any] = set()                     # kernels and sizes that need no look at what became of the frames
        self.constants: dict[str, Placed] = {}

    def run(self, landing: Landing, fields: Mapping[str, Placed], ids: NDArray[np.uint64], counts: Ints, batch: bool,
            passed: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by field; what has no kernel is handed on from `passed`.

        `batch`: one frame whose fields are whole arrays; otherwise a frame for each place of the fields' first dimension.
        Raises Failed.
        """
        frames = _Frames(self, landing, ids, counts)
        for name, slot in self.program.inputs:
            frames.give(slot, fields[name], batch)
        for step in self.program.steps:
            if isinstance(step, CallOperator):
                self._call(frames, step)
            else:
                assert isinstance(step, RunKernel)
                self._kernel(frames, step, landing)
        made: dict[str, Any] = {}
        for name, slot in self.program.outputs:
            source = slot.removeprefix("field.")
            made[name] = passed[source] if slot.startswith("field.") else frames.output(slot, batch)
        return made

    def constant(self, name: str) -> Placed:
        """A constant or param of the program, uploaded once."""
        if name not in self.constants:
            array = np.ascontiguousarray(self.values.constants[name].keep[0])
            memory, pinned = self.device.lasting(max(1, array.nbytes)), self.device.pinned(max(1, array.nbytes))
            pinned[: array.nbytes] = array.reshape(-1).view(np.uint8)
            self.device.send(memory.address, pinned[: array.nbytes])
            self.device.mark().wait()
            self.constants[name] = Placed(memory, memory.address, array.shape, NAMES[array.dtype])
        return self.constants[name]

    def _kernel(self, frames: _Frames, step: RunKernel, landing: Landing) -> None:
        kernel = self.kernels[step.kernel]
        if kernel.name not in self.functions:
            self.functions[kernel.name] = self.device.build(kernel)
        for name in step.outputs:
            frames.prepare(name)
        table = frames.table(step)
        sizes = frames.written_sizes(kernel, table)
        known = sizes is not None and kernel.outputs is not None
        key = (kernel.name, table[:, [j for j, a in enumerate(step.args) if a.kind == "size"]].tobytes(), frames.counts.tobytes())
        steady = kernel.steady and (known or not any(a.writes for a in step.args))
        while True:
            status = self._launch(frames, step, table, sizes if known else None, landing)
            if steady and key in self.sure:
                break
            result = np.zeros(frames.count, np.int64)
            self.device.fetch(result, status)
            if not (result == NEEDS_MEMORY).any():
                _fail(result)
                self.sure.add(key)
                break
            scratch, output = self.learnt[kernel.name]
            if max(scratch, output) >= MOST_MEMORY:
                bad = too_large(f"more than {show_size(MOST_MEMORY)}")
                frame = int(np.flatnonzero(result == NEEDS_MEMORY)[0])
                raise Failed(Failure(frame, step.memory, bad.code, bad.reason, bad.label))
            self.learnt[kernel.name] = (8 * scratch, 8 * output)
        if known:
            assert sizes is not None
            frames.told(step, sizes, None)
        elif any(a.writes for a in step.args):
            after = np.zeros_like(table)
            self.device.fetch(after, frames.last_table)
            frames.told(step, {(a.slot, a.axis): after[:, j] for j, a in enumerate(step.args) if a.writes and a.kind == "size"},
                        {a.slot: after[:, j] for j, a in enumerate(step.args) if a.writes and a.kind == "data"})

    def _call(self, frames: _Frames, step: CallOperator) -> None:
        """A library's operator, one frame after the other."""
        (name,) = step.outputs
        frames.prepare(name)
        made: list[Placed] = []
        for r in range(frames.count):
            try:
                made.append(self.device.call(OPERATORS[step.op].gpu, [frames.argument(a, r) for a in step.args]))
            except BadRecord as bad:
                raise Failed(Failure(r, step.site, bad.code, bad.reason, bad.label)) from None
        frames.called(name, made)

    def _launch(self, frames: _Frames, step: RunKernel, table: Ints, sizes: dict[tuple[str, int], Ints] | None,
                landing: Landing) -> int:
        """Run the kernel's phases; the address of the frames' statuses."""
        kernel, count = self.kernels[step.kernel], frames.count
        scratch, output = self.learnt.setdefault(kernel.name, (kernel.scratch or FIRST_SCRATCH, FIRST_OUTPUT))
        arena = np.zeros((count, 5), np.int64)
        if any(a.writes for a in step.args):
            arena[:, 0], arena[:, 1] = frames.room(kernel, sizes, output)
        room = self.device.memory(scratch * count + 64)
        arena[:, 2] = (room.address + 63) // 64 * 64 + scratch * np.arange(count)
        arena[:, 3] = arena[:, 2] + scratch
        notes = np.concatenate([table.reshape(-1), arena.reshape(-1), np.zeros(count, np.int64)])
        pinned, place = landing.put(notes)
        self.device.send(place, pinned)
        frames.last_table = place
        status = place + 8 * (table.size + arena.size)
        most = max([frames.elements(name, sizes) for name in step.outputs], default=1)
        for function, (_, kind) in zip(self.functions[kernel.name], kernel.launches, strict=True):
            blocks, threads = _grid(kind, count, most, self.device.processors)
            self.device.launch(function, blocks, threads, (count, place, status, place + 8 * table.size))
        return status


class Failed(Exception):
    """A frame met an error site."""

    def __init__(self, failure: Failure):
        self.failure = failure
        super().__init__(f"frame {failure.frame} ended at site {failure.site}")


def _fail(status: Ints) -> None:
    bad = np.flatnonzero(status > 0)
    if len(bad):
        raise Failed(Failure(int(bad[0]), int(status[bad[0]])))


def _grid(kind: str, frames: int, elements: int, processors: int) -> tuple[tuple[int, int], int]:
    if kind == "one":
        return (max(1, -(-frames // 32)), 1), 32
    most = max(1, processors * 32 // max(1, frames))
    return (min(most, max(1, -(-elements // (THREADS * TURNS_EACH)))), max(1, min(frames, 65_535))), THREADS


class _Frames:
    """Where the values of each slot lie on the device, for every frame."""

    def __init__(self, program: DeviceProgram, landing: Landing, ids: NDArray[np.uint64], counts: Ints):
        self.of, self.landing, self.device = program, landing, program.device
        self.slots = program.values.slots
        self.count, self.counts = len(ids), np.ascontiguousarray(counts, np.int64)
        self.at: dict[str, Ints] = {}
        self.sizes: dict[str, list[Ints]] = {}        # by axis
        self.keep: dict[str, Any] = {}
        self.last_table = 0
        self.ids = ids

    def give(self, slot: str, value: Placed, batch: bool) -> None:
        if batch:
            self.at[slot] = np.array([value.address])
            self.sizes[slot] = [np.array([s]) for s in value.shape]
        else:
            stride = value.size // max(1, value.shape[0])
            self.at[slot] = value.address + stride * np.arange(self.count)
            self.sizes[slot] = [np.full(self.count, s) for s in value.shape[1:]]
        self.keep[slot] = value.memory

    def _place(self, name: str) -> Ints:
        """Addresses of a slot's values; those that every program may ask for are sent when one does."""
        if name not in self.at:
            values = self.of.values
            turns = np.arange(self.count)
            match name:
                case "@id":
                    self.at[name] = self._sent(self.ids.view(np.int64)) + 8 * turns
                case "@count":
                    self.at[name] = self._sent(self.counts) + 8 * turns
                case "@epoch":
                    self.at[name] = self._sent(values.epoch) + 0 * turns
                case "@keys":
                    self.at[name] = self._sent(values.keys.view(np.int64)) + 0 * turns
                case _:
                    constant = self.of.constant(name)
                    self.at[name] = constant.address + 0 * turns
                    self.sizes[name] = [np.full(self.count, s) for s in constant.shape]
        return self.at[name]

    def _sent(self, numbers: Ints) -> int:
        pinned, address = self.landing.put(np.ascontiguousarray(numbers))
        self.device.send(address, pinned)
        return address

    def prepare(self, name: str) -> None:
        """Memory for an output of a size that is known."""
        slot = self.slots[name]
        if None in slot.dims:
            return
        stride = _bytes([int(d or 0) for d in slot.dims], slot)
        memory = self.device.memory(stride * self.count + 64)
        self.keep[name] = memory
        self.at[name] = (memory.address + 63) // 64 * 64 + stride * np.arange(self.count)

    def table(self, step: RunKernel) -> Ints:
        table = np.zeros((self.count, max(1, len(step.args))), np.int64)
        for j, arg in enumerate(step.args):
            if arg.writes:
                continue
            if arg.kind == "size":
                known = self.slots[arg.slot].dims[arg.axis] if arg.slot in self.slots else None
                table[:, j] = self.sizes[arg.slot][arg.axis] if arg.slot in self.sizes else int(known or 0)
            else:
                table[:, j] = self._place(arg.slot)
        return table

    def written_sizes(self, kernel: DeviceKernel, table: Ints) -> dict[tuple[str, int], Ints] | None:
        """Sizes of what the kernel makes, as far as they can be told before it runs."""
        found: dict[tuple[str, int], Ints] = {}
        step = next(s for s in self.of.program.steps if isinstance(s, RunKernel) and s.kernel == kernel.name)
        for slot, axis, how, number in kernel.sizes:
            match how:
                case "const":
                    found[slot, axis] = np.full(self.count, number)
                case "size":
                    found[slot, axis] = table[:, number].copy()
                case "number":
                    source = step.args[number].slot
                    value = self.counts if source == "@count" else self.of.values.constants[source].keep[0].reshape(-1)[0]
                    found[slot, axis] = np.full(self.count, value)
                case _:
                    return None
        return found

    def room(self, kernel: DeviceKernel, sizes: dict[tuple[str, int], Ints] | None, guess: int) -> tuple[Ints, Ints]:
        """Begin and end of each frame's memory for outputs that the kernel takes itself."""
        each = np.full(self.count, guess)
        if sizes is not None:
            starts = self._starts(kernel, sizes)
            each = starts[-1] + 64 * (len(starts) + 1)
        ends = np.cumsum((each + 63) // 64 * 64)
        memory = self.device.memory(int(ends[-1]) + 64)
        begin = (memory.address + 63) // 64 * 64 + np.concatenate([[0], ends[:-1]])
        self.keep[f"outputs of {kernel.name}"] = memory
        if sizes is not None:
            for name, start in zip(kernel.outputs or (), starts):
                self.at[name] = begin + start
        for name in {slot for slot, *_ in kernel.sizes}:
            self.keep[name] = memory
        return begin, begin + each

    def _starts(self, kernel: DeviceKernel, sizes: dict[tuple[str, int], Ints]) -> list[Ints]:
        """Where the kernel puts each of its outputs, and their end."""
        starts = [np.zeros(self.count, np.int64)]
        for name in kernel.outputs or ():
            dims = [sizes[name, axis] for axis in range(len(self.slots[name].dims))]
            size = np.prod(dims, axis=0) * DTYPES[self.slots[name].dtype].itemsize
            starts.append(starts[-1] + (np.maximum(size, 0) + 63) // 64 * 64)
        return starts

    def told(self, step: RunKernel, sizes: dict[tuple[str, int], Ints], places: dict[str, Ints] | None) -> None:
        for name in {a.slot for a in step.args if a.writes}:
            rank = len(self.slots[name].dims)
            self.sizes[name] = [sizes.get((name, axis), np.full(self.count, self.slots[name].dims[axis] or 0))
                                for axis in range(rank)]
            if places is not None:
                self.at[name] = places[name]

    def elements(self, name: str, sizes: dict[tuple[str, int], Ints] | None) -> int:
        """Elements of the largest frame, as far as is known."""
        dims = [int(sizes[name, a].max()) if sizes is not None and (name, a) in sizes else int(d or 4096)
                for a, d in enumerate(self.slots[name].dims)]
        return int(np.prod(dims, dtype=np.int64))

    def argument(self, name: str, r: int) -> Any:
        """What a library's operator gets for a slot: a constant's value, or the array of frame `r`."""
        if name in self.of.values.constants:
            held, dims = self.of.values.constants[name], self.slots[name].dims
            if held.objects is not None:
                return held.objects[0] if dims else np.asarray(held.objects[0]).reshape(())[()]
            return held.keep[0].reshape([int(d or 0) for d in dims])[()]
        return Placed(self.keep.get(name), int(self.at[name][r]), self._shape(name, r), self.slots[name].dtype)

    def called(self, name: str, made: list[Placed]) -> None:
        """Take what a library's operator gave for each frame."""
        if name in self.at:   # of one size: beside one another
            for r, value in enumerate(made):
                self.device.copy(int(self.at[name][r]), value.address, value.size)
            return
        self.at[name] = np.array([v.address for v in made])
        self.sizes[name] = [np.array([v.shape[a] for v in made]) for a in range(len(self.slots[name].dims))]
        self.keep[name] = made if len(made) > 1 else made[0].memory

    def _shape(self, name: str, r: int) -> tuple[int, ...]:
        return tuple(int(self.sizes[name][a][r]) if name in self.sizes else int(d or 0)
                     for a, d in enumerate(self.slots[name].dims))

    def output(self, name: str, batch: bool) -> Placed:
        slot = self.slots[name]
        if name not in self.at:   # a constant
            value = np.ascontiguousarray(self.of.values.constants[name].keep[0])
            shape = tuple(int(d or 0) for d in slot.dims)
            whole = value.reshape(shape) if batch else np.broadcast_to(value.reshape(shape), (self.count, *shape))
            pinned, address = self.landing.put(np.ascontiguousarray(whole))
            self.device.send(address, pinned)
            return Placed(None, address, whole.shape, slot.dtype, landed=True)
        dims = self._shape(name, 0)
        return Placed(self.keep[name], int(self.at[name][0]), dims if batch else (self.count, *dims), slot.dtype)


def _bytes(dims: Sequence[int], slot: Slot) -> int:
    return int(np.prod(dims, dtype=np.int64)) * int(DTYPES[slot.dtype].itemsize)
