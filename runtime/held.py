"""Values of a program's slots, for every frame of a chunk: given, looked up, and laid down where kernels find them.

Memory belongs to the worker and is used again for the next chunk, so nothing is allocated per record once it has grown.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.words import Coded, numbered
from .blocks import DTYPES, NUMBERS, Block, Bump, Ints, address_of, view
from .errors import DataError
from .feedback import PREFIX as WEIGHT
from .feedback import Snapshot
from .plan import CallExtern, Program, RunKernel, Slot
from .texts import Asked, Numbered, objects


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
    objects: Any = None   # a sequence
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
        found: Ints = (self.status == 0).nonzero()[0]   # `flatnonzero` takes ten times as long
        return found


class Values:
    """The slots of one program in one thread. What is given and what is asked for are values of a chunk's frames."""

    def __init__(self, program: Program, params: Mapping[str, Any] | None = None):
        """`params`: values of open params by name."""
        self.program = program
        self.slots = {s.name: s for s in program.slots}
        self.blocks: dict[str, Block] = {}
        self.bump = Bump()
        self.outputs, self.scratch = Block(), Block()
        self.sizes = [1 << 16, 1 << 20]   # of outputs, scratch
        self.retired: list[Any] = []      # blocks outgrown in this chunk, whose arrays are still used
        self.next_output = self.outputs.at_least(self.sizes[0])
        self.texts = Numbered()
        self.alike = any(a.slot in ("@alike", "@order") for s in program.steps if isinstance(s, RunKernel) for a in s.args)
        self.constants = {s.name: self._constant(s) for s in program.slots if s.value is not None}
        for name, value in (params or {}).items():
            slot = self.slots.get(f"param.{name}")
            if slot is not None:
                self.constants[slot.name] = self._constant(_with_value(slot, value))
        self.texts.keep()
        self.keys = np.zeros(max(1, len(program.draws)), np.uint64)
        self.epoch = np.zeros(1, np.int64)
        self.weights: Snapshot | None = None   # what consumers returned, for this epoch

    def start_epoch(self, epoch: int, keys: Sequence[int]) -> None:
        """`keys`: the Philox key of every path in `program.draws`."""
        self.epoch[0] = epoch
        self.keys[: len(keys)] = keys

    def frames(self, count: int, ids: NDArray[np.uint64], counts: Ints | None = None) -> Frames:
        """A chunk with the slots that every program may ask for; fields are put in by `give`."""
        self.begin_chunk()
        frames = Frames(ids, np.ones(count, np.int64) if counts is None else counts)
        for name, constant in self.constants.items():
            assert constant.at is not None
            frames.values[name] = Held(at=np.broadcast_to(constant.at, count), mask=constant.mask, keep=constant.keep,
                                       objects=None if constant.objects is None else constant.objects * count)
        if self.weights is not None:
            for name in self.constants:
                if name.startswith(WEIGHT):
                    cells = np.zeros((count, 2), np.float32)          # of 8 bytes, like other cells
                    cells[:, 0] = self.weights.of(name, ids)
                    self._cells(frames, name, cells)
        self._cells(frames, "@id", ids.view(np.int64))
        self._cells(frames, "@count", frames.counts)
        frames.values["@epoch"] = Held(at=np.full(count, address_of(self.epoch)))
        frames.values["@keys"] = Held(at=np.full(count, address_of(self.keys)))
        return frames

    def begin_chunk(self) -> None:
        """What the chunk before made may be written over."""
        self.bump.clear()
        self.retired.clear()
        self.texts.clear()
        self.next_output = self.outputs.at_least(self.sizes[0])

    def _cells(self, frames: Frames, name: str, numbers: NDArray[Any]) -> None:
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

    def give_texts(self, frames: Frames, slot_name: str, values: Coded) -> None:
        """Fill an input slot with texts that have codes; they are made only where somebody asks for them."""
        slot, codes = self.slots[slot_name], values.codes
        fits = codes.ndim == len(slot.dims) + 1 and all(d is None or d == s for d, s in zip(slot.dims, codes.shape[1:]))
        if not fits or slot.missing != values.gaps or not self.texts.attach(values.words):
            self.give_array(frames, slot_name, values.array)
            return
        cells, gone = (self.texts.alike(values.words)[codes], codes < 0) if self.alike else numbered(codes, self.texts.kept)
        turns = np.arange(frames.count)
        self.give_rows(frames, slot_name, address_of(cells) + turns * cells.strides[0], cells)
        held = frames.values[slot_name]
        held.objects = Asked(self.texts, cells)
        if slot.missing:
            held.mask = address_of(gone) + turns * gone.strides[0]
            held.keep.append(gone)

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

    def _number(self, frames: Frames, name: str) -> None:
        """Lay down the numbers of a slot's texts, for kernels."""
        held, slot = frames.values[name], self.slots[name]
        assert held.objects is not None
        held.at = np.zeros(frames.count, np.int64)
        held.sizes = np.zeros((frames.count, len(slot.dims)), np.int64)
        if slot.missing and held.mask is None:
            held.mask = np.zeros(frames.count, np.int64)
        for r in frames.alive():
            value = held.objects[r]
            if value is None and held.done is not None and not held.done[r]:   # a call that this frame doesn't ask for
                value = np.full([d or 0 for d in slot.dims], None, object)
            values = objects(value)
            if values.ndim != len(slot.dims):
                said = f"{values.ndim} dimensions, not {len(slot.dims)}"
                self._refuse(frames, int(r), 0, f"`{name.removeprefix('field.')}` has {said}")
                continue
            cells = self.texts.cells(values.reshape(-1), values.size)
            held.at[r], held.sizes[r] = address_of(cells), values.shape
            held.keep.append(cells)
            if held.mask is not None:
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
        with np.errstate(over="ignore"):    # a param of f16 may be infinite
            array = np.array(slot.value, np.float32 if half else DTYPES[slot.dtype]).astype(DTYPES[slot.dtype])
        return Held(at=np.array([address_of(array)]), keep=[array])

    def _make_room(self, frames: Frames, name: str) -> None:
        """Room for what a library call gives, unless an earlier step of this call made it."""
        slot, count = self.slots[name], frames.count
        if name in frames.values:
            return
        done = np.zeros(count, np.bool_)
        frames.values[name] = Held(objects=[None] * count, done=done) if slot.dtype not in DTYPES else Held(
            at=np.zeros(count, np.int64), sizes=np.zeros((count, len(slot.dims)), np.int64),
            mask=np.zeros(count, np.int64) if slot.missing else None, done=done)

    def _hold(self, frames: Frames, held: Held, slot: Slot, r: int, value: Any, site: int) -> None:
        """Keep a Python value as the slot's value in frame r; a wrong type or size makes the frame bad."""
        if type(value) is np.ndarray and not slot.missing and self._fits(slot, value) and value.flags.c_contiguous:
            assert held.at is not None and held.sizes is not None
            held.at[r] = address_of(value)
            if value.ndim:
                held.sizes[r] = value.shape
            held.keep.append(value)
            return
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
        if not self._fits(slot, array):
            wanted = ", ".join("_" if d is None else str(d) for d in slot.dims)
            self._refuse(frames, r, site, f"its shape is {list(array.shape)}, not [{wanted}]")
            return
        array = np.ascontiguousarray(array)
        assert held.at is not None and held.sizes is not None
        held.at[r] = address_of(array)
        held.sizes[r] = array.shape
        held.keep.append(array)

    @staticmethod
    def _fits(slot: Slot, array: NDArray[Any]) -> bool:
        """Has it the slot's dtype and dims."""
        if slot.dtype not in DTYPES or array.dtype != DTYPES[slot.dtype] or array.ndim != len(slot.dims):
            return False
        return all(d is None or d == s for d, s in zip(slot.dims, array.shape))

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
