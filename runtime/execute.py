"""Runs a `plan.Program` over a chunk of frames: kernels by address, library operators one frame at a time.

Memory belongs to the worker and is used again for the next chunk, so nothing is allocated per record once
it has grown. A frame that fails keeps the number of its site; the others go on.
"""
from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..kernels.ops import OPERATORS, BadRecord
from .errors import DataError, Where
from .plan import CallEach, CallExtern, CallOperator, EachArg, Program, Require, RunKernel, Slot
from .texts import Numbered, objects

Ints = NDArray[np.int64]
Kernel = Callable[[int, int, int, int], None]
DROPPED = -2         # status of a frame that `where` left out
NEEDS_MEMORY = -1    # status of a frame whose kernel wants a larger arena

NUMBERS = np.dtype(np.int64)   # of texts and bytes, in kernels
DTYPES: dict[str, Any] = {
    "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8), "u16": np.dtype(np.uint16), "i16": np.dtype(np.int16),
    "u32": np.dtype(np.uint32), "i32": np.dtype(np.int32), "u64": np.dtype(np.uint64), "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "bool": np.dtype(np.bool_),
}


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def view(address: int, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """An array over memory that somebody else keeps alive."""
    count = int(np.prod(shape)) * dtype.itemsize
    if count == 0:
        return np.empty(shape, dtype)
    raw = (ctypes.c_char * count).from_address(address)
    return np.frombuffer(raw, dtype).reshape(shape)


class Block:
    """Memory that only grows."""

    def __init__(self) -> None:
        self.data = np.empty(0, np.uint8)

    def at_least(self, size: int) -> int:
        """Address of at least `size` bytes, 64-byte aligned."""
        if len(self.data) < size + 64:
            self.data = np.empty(size + size // 2 + 64, np.uint8)
        return (address_of(self.data) + 63) & ~63


class Bump:
    """Memory for arrays of one chunk: taken from the front, all given back at once."""

    def __init__(self, size: int = 1 << 20):
        self.block, self.used, self.wanted = np.empty(size, np.uint8), 0, 0

    def clear(self) -> None:
        if self.wanted > len(self.block):
            self.block = np.empty(self.wanted + self.wanted // 4, np.uint8)
        self.used = self.wanted = 0

    def take(self, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
        """An array that lives until `clear`; beyond the block it is an ordinary one, and the block grows then."""
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.wanted += size + 128
        start = self.used + (-(address_of(self.block) + self.used)) % 64
        if start + size > len(self.block):
            return np.empty(shape, dtype)
        self.used = start + size
        taken: NDArray[Any] = self.block[start : start + size].view(dtype).reshape(shape)
        return taken


@dataclass(frozen=True)
class Gaps:
    """A value with missing places: `mask` is True there (bool, same shape); `values` holds anything below it."""

    values: NDArray[Any]
    mask: NDArray[np.bool_]


@dataclass
class Held:
    """The values of one slot for every frame of a chunk.

    Numbers lie at addresses `at[r]`, with `sizes[r]` dims where they vary; texts and bytes are `objects`, None where
    one is missing, and for kernels their numbers (`Numbered`) lie there.
    """

    at: Ints | None = None
    sizes: Ints | None = None
    mask: Ints | None = None
    objects: list[Any] | None = None
    done: NDArray[np.bool_] | None = None   # of a library call: in which frames it has run
    keep: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    """Frame `frame` of the chunk is bad: the site's number, or a library's own words."""

    frame: int
    site: int
    code: str = ""
    reason: str = ""
    label: str = ""
    error: DataError | None = None   # of a record that this frame was made of


@dataclass(frozen=True)
class Target:
    """Where the rows of an output go: row r at `address + r * stride`."""

    address: int
    stride: int


class Frames:
    """A chunk of frames while its program runs."""

    def __init__(self, ids: NDArray[np.uint64], counts: Ints):
        self.count, self.ids, self.counts = len(ids), ids, counts   # counts: records in each frame
        self.status = np.zeros(self.count, np.int64)
        self.passed = np.zeros(self.count, np.int64)   # how many `where` and `check` lines held
        self.values: dict[str, Held] = {}
        self.failures: list[Failure] = []

    def alive(self) -> Ints:
        return np.flatnonzero(self.status == 0)


class Runner:
    """One program, ready to run in one thread."""

    def __init__(self, program: Program, kernels: Mapping[str, Kernel], params: Mapping[str, Any] | None = None,
                 allow_extern: bool = False):
        """`params`: values of open params by name. Raises DataError for extern functions not allowed or not found."""
        self.program, self.kernels = program, kernels
        self.slots = {s.name: s for s in program.slots}
        self.blocks: dict[str, Block] = {}
        self.bump = Bump()
        self.outputs, self.scratch = Block(), Block()
        self.sizes = [1 << 16, 1 << 20]   # of outputs, scratch
        self.retired: list[Any] = []      # blocks outgrown in this chunk, whose arrays are still used
        self.next_output = self.outputs.at_least(self.sizes[0])
        self.texts = Numbered()
        self.constants = {s.name: self._constant(s) for s in program.slots if s.value is not None}
        for name, value in (params or {}).items():
            slot = self.slots.get(f"param.{name}")
            if slot is not None:
                self.constants[slot.name] = self._constant(_with_value(slot, value))
        self.texts.keep()
        self.externs = {s.target: _load_extern(s.target, allow_extern, self._where(s.site)) for s in program.steps
                        if isinstance(s, CallExtern)}
        self.keys = np.zeros(max(1, len(program.draws)), np.uint64)
        self.epoch = np.zeros(1, np.int64)

    @property
    def calls_library(self) -> bool:
        return any(isinstance(s, CallOperator | CallExtern | CallEach) for s in self.program.steps)

    def _where(self, number: int) -> Where | None:
        site = next((s for s in self.program.sites if s.number == number), None)
        return None if site is None else Where(site.file, site.start, site.end)

    def start_epoch(self, epoch: int, keys: Sequence[int]) -> None:
        """`keys`: the Philox key of every path in `program.draws`."""
        self.epoch[0] = epoch
        self.keys[: len(keys)] = keys

    def frames(self, count: int, ids: NDArray[np.uint64], counts: Ints | None = None) -> Frames:
        """A chunk with the slots that every program may ask for; fields are put in by `give`."""
        self.bump.clear()
        self.retired.clear()
        self.texts.clear()
        self.next_output = self.outputs.at_least(self.sizes[0])
        frames = Frames(ids, np.ones(count, np.int64) if counts is None else counts)
        for name, constant in self.constants.items():
            assert constant.at is not None
            frames.values[name] = Held(at=np.broadcast_to(constant.at, count), mask=constant.mask, keep=constant.keep,
                                       objects=None if constant.objects is None else constant.objects * count)
        self._cells(frames, "@id", ids.view(np.int64))
        self._cells(frames, "@count", frames.counts)
        frames.values["@epoch"] = Held(at=np.full(count, address_of(self.epoch)))
        frames.values["@keys"] = Held(at=np.full(count, address_of(self.keys)))
        return frames

    def _cells(self, frames: Frames, name: str, numbers: Ints) -> None:
        cells = np.ascontiguousarray(numbers)
        frames.values[name] = Held(at=address_of(cells) + 8 * np.arange(frames.count), keep=[cells])

    def give(self, frames: Frames, slot_name: str, values: Sequence[Any]) -> None:
        """Fill an input slot from one value per frame."""
        slot = self.slots[slot_name]
        if slot.dtype not in DTYPES:
            frames.values[slot_name] = Held(objects=[_plain(v) if slot.dims or isinstance(v, Gaps) else v for v in values])
            return
        if slot.fixed and not slot.missing:
            at, array = self._block(slot, frames.count)
            for r in frames.alive():
                value = np.asarray(values[r])
                if value.shape != array.shape[1:]:
                    self._refuse(frames, int(r), 0, f"`{slot_name.removeprefix('field.')}` has shape {list(value.shape)}, "
                                 f"not {list(array.shape[1:])}")
                    continue
                array[r] = value
            frames.values[slot_name] = Held(at=at)
            return
        held = Held(at=np.zeros(frames.count, np.int64), sizes=np.zeros((frames.count, len(slot.dims)), np.int64))
        frames.values[slot_name] = held
        if slot.missing:
            held.mask = np.zeros(frames.count, np.int64)
        for r in frames.alive():
            self._hold(frames, held, slot, int(r), values[r], 0)

    def give_array(self, frames: Frames, slot_name: str, values: NDArray[Any]) -> None:
        """Fill an input slot from one array of every frame's value, masked where some are missing."""
        slot = self.slots[slot_name]
        if values.dtype == object:
            self.give(frames, slot_name, list(_plain(values)))
            return
        array = np.ascontiguousarray(np.ma.getdata(values))
        known = slot.dtype in DTYPES and array.dtype == DTYPES[slot.dtype] and array.ndim == len(slot.dims) + 1
        if not known or any(d is not None and d != s for d, s in zip(slot.dims, array.shape[1:])):
            self.give(frames, slot_name, [None if v is np.ma.masked else v for v in values])   # says what is wrong, by frame
            return
        turns = np.arange(frames.count)
        self.give_rows(frames, slot_name, address_of(array) + turns * array.strides[0], array)
        if slot.missing:
            gone = np.ascontiguousarray(np.ma.getmaskarray(values))
            frames.values[slot_name].mask = address_of(gone) + turns * gone.strides[0]
            frames.values[slot_name].keep.append(gone)

    def give_rows(self, frames: Frames, slot_name: str, at: Ints, keep: Any) -> None:
        """Fill an input slot with rows of one size that lie in memory already; `keep` is the array of all of them."""
        sizes = None if self.slots[slot_name].fixed else np.broadcast_to(np.array(keep.shape[1:], np.int64),
                                                                      (frames.count, keep.ndim - 1))
        frames.values[slot_name] = Held(at=at, sizes=sizes, keep=[keep])

    def _block(self, slot: Slot, count: int) -> tuple[Ints, NDArray[Any]]:
        dtype = DTYPES.get(slot.dtype, NUMBERS)
        shape = (count, *[int(d or 0) for d in slot.dims])
        stride = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        base = self.blocks.setdefault(slot.name, Block()).at_least(stride * count)
        return base + stride * np.arange(count), view(base, shape, dtype)

    def run(self, frames: Frames, targets: Mapping[str, Target] | None = None) -> None:
        """Fill every slot of the program; outputs named in `targets` (slot → place) go there."""
        targets = targets or {}
        for step in self.program.steps:
            match step:
                case RunKernel():
                    self._kernel(frames, step, targets)
                case Require():
                    self._require(frames, step)
                case CallOperator():
                    self._call(frames, step, OPERATORS[step.op].cpu)
                case CallExtern():
                    self._call(frames, step, None)
                case CallEach():
                    self._call_each(frames, step)
            if not (frames.status == 0).any():
                break
        for r in np.flatnonzero(frames.status > 0):
            if not any(f.frame == r for f in frames.failures):
                frames.failures.append(Failure(int(r), int(frames.status[r])))

    def _kernel(self, frames: Frames, step: RunKernel, targets: Mapping[str, Target]) -> None:
        for name in step.outputs:
            self._prepare(frames, self.slots[name], targets.get(name))
        table = np.zeros((frames.count, max(1, len(step.args))), np.int64)
        for j, arg in enumerate(step.args):
            if arg.slot == "@order" or arg.writes:
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
            if arg.slot == "@order":   # all texts have their numbers by now
                table[:, j] = address_of(self.texts.places())
        self._launch(self.kernels[step.kernel], table, frames.status)
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

    def _number(self, frames: Frames, name: str) -> None:
        """Lay down the numbers of a slot's texts, for kernels."""
        held, slot = frames.values[name], self.slots[name]
        assert held.objects is not None
        held.at = np.zeros(frames.count, np.int64)
        held.sizes = np.zeros((frames.count, len(slot.dims)), np.int64)
        for r in frames.alive():
            values = objects(held.objects[r])
            if values.ndim != len(slot.dims):
                said = f"{values.ndim} dimensions, not {len(slot.dims)}"
                self._refuse(frames, int(r), 0, f"`{name.removeprefix('field.')}` has {said}")
                continue
            cells = self.texts.cells(values.reshape(-1), values.size)
            held.at[r], held.sizes[r] = address_of(cells), values.shape
            held.keep.append(cells)
            if slot.missing:
                held.mask = np.zeros(frames.count, np.int64) if held.mask is None else held.mask
                gone = cells == 0
                held.mask[r] = address_of(gone)
                held.keep.append(gone)

    def _name(self, frames: Frames, name: str) -> None:
        """The texts whose numbers a kernel has written."""
        held = frames.values[name]
        assert held.at is not None
        held.objects = [None] * frames.count
        for r in frames.alive():
            shape = self.shape(frames, name, int(r))
            cells = view(int(held.at[r]), shape or (1,), NUMBERS).reshape(shape)
            if self.slots[name].missing:
                cells = np.where(self.mask(frames, name, int(r)).reshape(shape), 0, cells)
            held.objects[r] = self.texts.array(cells)

    def _constant(self, slot: Slot) -> Held:
        assert slot.value is not None
        if slot.dtype not in DTYPES:
            cells = self.texts.cells(slot.value, len(slot.value))
            values = self.texts.array(cells.reshape([int(d or 0) for d in slot.dims]))
            return Held(at=np.array([address_of(cells)]), keep=[cells], objects=[values])
        half = slot.dtype in ("f16", "bf16")   # through f32, as the language does
        array = np.array(slot.value, np.float32 if half else DTYPES[slot.dtype]).astype(DTYPES[slot.dtype])
        return Held(at=np.array([address_of(array)]), keep=[array])

    def _launch(self, kernel: Kernel, table: Ints, status: Ints) -> None:
        """Call the kernel; where it wants more memory, give it and go on from that record."""
        arena, done, count = np.zeros(4, np.int64), 0, len(status)
        arena[0] = self.next_output
        while True:
            arena[1] = address_of(self.outputs.data) + len(self.outputs.data)
            arena[2] = self.scratch.at_least(self.sizes[1])
            arena[3] = address_of(self.scratch.data) + len(self.scratch.data)
            kernel(count - done, address_of(table) + done * table.strides[0], address_of(status) + 8 * done, address_of(arena))
            self.next_output = int(arena[0])
            short = np.flatnonzero(status == NEEDS_MEMORY)
            if not len(short):
                return
            done = int(short[0])
            status[done] = 0
            self._grow()
            arena[0] = self.next_output

    def _grow(self) -> None:
        """A larger scratch, and a new block of outputs."""
        self.sizes = [2 * self.sizes[0], 2 * self.sizes[1]]
        if max(self.sizes) > 1 << 36:
            raise MemoryError("a kernel asks for more than 64 GiB")
        self.retired.append(self.outputs.data)
        self.outputs = Block()
        self.next_output = self.outputs.at_least(self.sizes[0])

    def _require(self, frames: Frames, step: Require) -> None:
        held = frames.values[step.slot]
        for r in frames.alive():
            if not self.value(frames, step.slot, int(r), held):
                frames.status[r] = DROPPED if step.kind == "where" else step.site
            else:
                frames.passed[r] += 1

    def _call(self, frames: Frames, step: CallOperator | CallExtern, function: Callable[..., Any] | None) -> None:
        for name in step.outputs:
            self._make_room(frames, name)
        done = frames.values[step.outputs[0]].done
        assert done is not None
        for r in frames.alive():
            if done[r] or (step.when is not None and not self.value(frames, step.when, int(r))):
                continue
            done[r] = True
            args = [self.value(frames, a, int(r)) for a in step.args]
            try:
                if function is None:
                    assert isinstance(step, CallExtern)
                    result = _call_extern(self.externs[step.target], step.target, args)
                else:
                    result = function(self.bump.take, *args)
            except BadRecord as bad:
                frames.status[r] = step.site
                frames.failures.append(Failure(int(r), step.site, bad.code, bad.reason, bad.label))
                continue
            results = result if len(step.outputs) > 1 else (result,)
            for name, value in zip(step.outputs, results, strict=True):
                self._hold(frames, frames.values[name], self.slots[name], int(r), value, step.site)

    def _make_room(self, frames: Frames, name: str) -> None:
        """Room for what a library call gives, unless an earlier step of this call made it."""
        slot, count = self.slots[name], frames.count
        if name in frames.values:
            return
        done = np.zeros(count, np.bool_)
        frames.values[name] = Held(objects=[None] * count, done=done) if slot.dtype not in DTYPES else Held(
            at=np.zeros(count, np.int64), sizes=np.zeros((count, len(slot.dims)), np.int64),
            mask=np.zeros(count, np.int64) if slot.missing else None, done=done)

    def _call_each(self, frames: Frames, step: CallEach) -> None:
        slot, function = self.slots[step.output], OPERATORS[step.op].cpu
        assert function is not None
        self._make_room(frames, step.output)
        held = frames.values[step.output]
        for r in frames.alive():
            asked = None if step.when is None else self.value(frames, step.when, int(r))
            dims = [d if isinstance(d, int) else int(self.value(frames, d, int(r))) for d in step.dims]
            values = [self.value(frames, a.slot, int(r)) for a in step.args]
            result = self.bump.take(dims, DTYPES[slot.dtype]) if slot.dtype in DTYPES else np.empty(dims, object)
            gone = np.ones(dims, np.bool_) if slot.missing else None
            if asked is not None:
                result.fill(0 if slot.dtype in DTYPES else None)
            try:
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

    def _hold(self, frames: Frames, held: Held, slot: Slot, r: int, value: Any, site: int) -> None:
        """Keep a Python value as the slot's value in frame r; a wrong type or size makes the frame bad."""
        if slot.dtype not in DTYPES:
            assert held.objects is not None
            held.objects[r] = _plain(value) if slot.dims or isinstance(value, Gaps) else value
            return
        if isinstance(value, np.ma.MaskedArray):
            value = Gaps(value.data, np.ma.getmaskarray(value))
        if slot.missing and not isinstance(value, Gaps):
            shape = tuple(d or 0 for d in slot.dims) if value is None else np.shape(value)
            filled = np.zeros(shape, DTYPES[slot.dtype]) if value is None else np.asarray(value)
            value = Gaps(filled, np.full(shape, value is None))
        if isinstance(value, Gaps):
            mask = np.ascontiguousarray(value.mask)
            assert held.mask is not None
            held.mask[r] = address_of(mask)
            held.keep.append(mask)
            value = value.values
        array = np.asarray(value)
        if array.dtype != DTYPES[slot.dtype]:
            if slot.dims or not np.can_cast(array.dtype, DTYPES[slot.dtype], "same_kind"):
                self._refuse(frames, r, site, f"it is {array.dtype}, not {slot.dtype}")
                return
            array = array.astype(DTYPES[slot.dtype])
        fits = array.ndim == len(slot.dims) and all(d is None or d == s for d, s in zip(slot.dims, array.shape))
        if not fits:
            wanted = ", ".join("_" if d is None else str(d) for d in slot.dims)
            self._refuse(frames, r, site, f"its shape is {list(array.shape)}, not [{wanted}]")
            return
        array = np.ascontiguousarray(array)
        assert held.at is not None and held.sizes is not None
        held.at[r] = address_of(array)
        held.sizes[r] = array.shape
        held.keep.append(array)

    def _refuse(self, frames: Frames, r: int, site: int, reason: str) -> None:
        """A value that isn't what the program says: of an operator or source (its site says which), or the user's own."""
        own = any(s.site == site for s in self.program.steps if isinstance(s, CallExtern))
        frames.status[r] = site or 1
        frames.failures.append(Failure(r, site, "E0811" if own else "E0803", reason))

    def value(self, frames: Frames, name: str, r: int, held: Held | None = None) -> Any:
        """The value of a slot in frame r: an array (a view), a NumPy scalar, bytes or text."""
        slot = self.slots[name]
        held = held or frames.values[name]
        if held.objects is not None:
            return held.objects[r]
        assert held.at is not None
        dtype = DTYPES[slot.dtype]
        if not slot.dims:
            return view(int(held.at[r]), (1,), dtype)[0]
        return view(int(held.at[r]), self.shape(frames, name, r), dtype)

    def shape(self, frames: Frames, name: str, r: int) -> tuple[int, ...]:
        held, slot = frames.values[name], self.slots[name]
        return tuple(int(held.sizes[r, i]) if held.sizes is not None else int(d or 0) for i, d in enumerate(slot.dims))

    def mask(self, frames: Frames, name: str, r: int) -> NDArray[np.bool_]:
        """True where the slot's value is missing in frame r."""
        held = frames.values[name]
        if held.objects is not None and held.at is None:
            self._number(frames, name)
        assert held.mask is not None
        return view(int(held.mask[r]), self.shape(frames, name, r) or (1,), np.dtype(np.bool_))


def _element(arg: EachArg, value: Any, place: tuple[int, ...]) -> Any:
    if arg.places is None:
        return value
    at = tuple(place[i] for i in arg.places)
    if isinstance(value, Gaps):
        return arg.default if value.mask[at] else value.values[at]
    element = value[at]
    return arg.default if element is None else element


def _with_value(slot: Slot, value: Any) -> Slot:
    values = value if isinstance(value, tuple | list) else (value,)
    return Slot(slot.name, slot.dtype, slot.dims, slot.missing, tuple(values))


def _plain(value: Any) -> Any:
    """Texts or bytes with None where one is missing: an array of objects, or one of them."""
    if isinstance(value, np.ma.MaskedArray):
        value = Gaps(value.data, np.ma.getmaskarray(value))
    if not isinstance(value, Gaps):
        return objects(value)
    found = objects(value.values).copy()
    found[np.asarray(value.mask)] = None
    return found if found.ndim else found[()]


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
