"""The lines below `share()` on a GPU: rows of the ring go in, arrays on the device come out.

Rows are uploaded as they lie in the ring, through pinned memory of the loader's own, two batches in turn; kernels widen them
there. What kernels can't do (texts, library calls, what is padded) runs on the CPU first, and its results are uploaded.
`runtime.cuda` is the device; tests have another one whose memory is the host's.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .below import Below, Reader, Rows
from .blocks import Ints
from .feed import data_error
from .frames import Row
from .landing import NAMES, Device, Landing, Placed
from .objects import load
from .onchip import DeviceProgram, Failed, on_device
from .placement import begins
from .plan import Plan, Slot, Step
from .progress import Progress
from .segments import Later

TURNS = 2                  # batches that may be on their way at once


class OnDevice(Below):
    """`Below` whose batches are arrays on a device."""

    begin = 0                  # the first segment of those that the device does

    def __init__(self, plan: Plan, kernels: Mapping[str, Any], params: Mapping[str, Any] | None, allow_extern: bool,
                 device: Device, place: Mapping[str, str] | None = None):
        """`place`: fields that are made on the CPU. Raises ValueError, see `placement.first_on_device`."""
        begin, _ = begins(plan, place or {})
        self.kernels = {k.name: k for k in plan.device}
        super().__init__(plan, kernels, params, allow_extern)
        self.handed = None                              # they are uploaded
        self.device = device
        self.landings = [Landing(device) for _ in range(TURNS)]
        self.landing: Landing | None = None             # of the batch that is being made
        segments = (self.first, *self.later)
        self.begin = begin
        self.stacks = self._stacks_views()
        self.programs = {id(later): DeviceProgram(later.segment.program, later.runner, self.kernels, device)
                         for later in segments[self.begin :]}

    def _at_once(self, step: Step, slots: Mapping[str, Slot]) -> bool:
        return on_device(step, slots, self.kernels) if self.begin == 0 else super()._at_once(step, slots)

    def batches(self, epoch: int, reader: Reader) -> Iterator[tuple[dict[str, Any], Progress]]:
        for fields, progress in super().batches(epoch, reader):
            with self.device.current():
                landing = self._landing()
                try:
                    made = {name: self._finished(value, landing) for name, value in fields.items()}
                finally:
                    landing.mark, self.landing = self.device.mark(), None
            fields.clear()
            yield made, progress

    def _landing(self) -> Landing:
        """The landing of this batch. The one before stays in use until the device has done its batch."""
        if self.landing is None:
            self.landings.append(self.landings.pop(0))
            self.landing = self.landings[-1]
            self.landing.clear()
        return self.landing

    def _placed(self, values: Mapping[str, Any], landing: Landing) -> dict[str, Any]:
        """The arrays on the device; texts and the like stay what they are."""
        placed: dict[str, Any] = {}
        for name, value in values.items():
            array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None
            if array is None or array.dtype not in NAMES:
                placed[name] = value
                continue
            pinned, address = landing.put(array)
            self.device.upload(address, pinned)
            placed[name] = Placed(None, address, array.shape, NAMES[array.dtype], landed=True)
        self.device.await_uploads()
        return placed

    def _finished(self, value: Any, landing: Landing) -> Any:
        if isinstance(value, list):
            return [self._finished(v, landing) for v in value]
        if not isinstance(value, Placed):
            value = self._placed({"": value}, landing)[""]
        if not isinstance(value, Placed):
            return value
        memory, address = value.memory, value.address
        if value.landed:
            memory = self.device.memory(value.size + 64)
            address = memory.address
            self.device.copy(address, value.address, value.size)
        return self.device.array(memory, address, value.shape, value.dtype)

    def _record_program(self, rows: Rows) -> dict[str, Any]:
        if self.begin > 0:
            return super()._record_program(rows)
        names = {n for n, _ in self.first.segment.program.inputs} | self.first.reads
        ids = np.ascontiguousarray(rows.fields["_id"])
        try:
            return self._run(self.first, {n: rows.fields[n] for n in names}, ids, np.ones(rows.count, np.int64), False)
        except Failed as failed:
            raise data_error(self.first.segment.program, failed.failure, f"row {failed.failure.frame} of a batch",
                             self.first.epoch, int(rows.fields["_next"][0]) - 1, None) from None

    def _one(self, later: Later, row: Row) -> Row | None:
        if id(later) not in self.programs:
            return super()._one(later, row)
        try:
            fields = self._run(later, row.fields, np.array([row.id], np.uint64), np.array([row.count], np.int64), True)
        except Failed as failed:
            raise later.error(failed.failure, row) from None
        return Row(fields, row.id, row.next, row.skip, row.count, row.ids, row.pads)

    def _run(self, later: Later, fields: Mapping[str, Any], ids: NDArray[np.uint64], counts: Ints, batch: bool) -> dict[str, Any]:
        with self.device.current():
            landing = self._landing()
            waiting = {n: v for n, v in fields.items() if not isinstance(v, Placed)}
            placed = dict(fields) | (self._placed(waiting, landing) if waiting else {})
            inputs = {n: placed[n] for n, _ in later.segment.program.inputs}
            try:
                return self.programs[id(later)].run(landing, inputs, ids, counts, batch, placed)
            except BaseException:
                self.landing = None
                raise
            finally:
                landing.mark = self.device.mark()


def below_on(plan: Plan, device: Any, as_: str, allow_extern: bool = False, params: Mapping[str, Any] | None = None,
             place: Mapping[str, str] | None = None) -> OnDevice:
    """What a loader runs below `share()` for `device` ("cuda", "cuda:1" or a torch device); `place` keeps fields on the CPU.

    Raises DataError E0850, ValueError.
    """
    from .cuda import Cuda

    if as_ not in ("torch", "cupy"):
        raise ValueError(f'as_={as_!r}: on a device it is "torch" or "cupy"')
    return OnDevice(plan, load(plan.kernels), params, allow_extern, Cuda(str(device), as_), place)
