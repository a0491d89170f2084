"""A pytest plugin: whatever kernel a test runs on the CPU is run again on a device, and must leave the same bits.

So every test of operators, recipes and examples becomes a test of the device. `Shadow.counts` tells what was compared.
"""
from __future__ import annotations

import threading
from collections import Counter

import numpy as np
from pipec.compiler import native
from pipec.compiler.emit_cuda import device_kernel
from pipec.compiler.emit_numba import kernel_text
from pipec.runtime import objects, plancache
from pipec.runtime.blocks import DTYPES
from pipec.runtime.execute import Runner
from pipec.runtime.landing import Landing, Placed
from pipec.runtime.onchip import DeviceProgram, Failed, on_device
from pipec.runtime.plan import Program, Require

FRAMES_EACH = 4   # of a chunk, so that a whole test suite takes minutes


class Differs(AssertionError):
    """A kernel left other bits on the device."""


class Shadow:
    """`install` before tests run."""

    def __init__(self, device):
        self.device, self.counts, self.kernels = device, Counter(), {}
        self.lock, self.landing = threading.Lock(), Landing(device)
        self.first = []                                   # texts of differences, of which a thread's may be lost

    def install(self):
        build, run = native.build, Runner._kernel

        def building(kernels):
            for k in kernels:
                self.kernels[objects.key_of(kernel_text(k))] = k
            return build(kernels)

        def running(runner, frames, step, targets):
            before = frames.status.copy()
            run(runner, frames, step, targets)
            self._again(runner, frames, step, before)

        native.build, Runner._kernel, plancache.find = building, running, lambda *_, **__: None

    def _again(self, runner, frames, step, before):
        with self.lock:
            program = self._program(runner, step)
            if program is None:
                return
            for r in np.flatnonzero(before == 0)[:FRAMES_EACH]:
                with self.device.current():
                    self.landing.clear()
                    try:
                        self._frame(runner, program, frames, step, int(r))
                    finally:
                        self.landing.mark = self.device.mark()

    def _program(self, runner, step):
        """The step as a program for the device; None where it is none for it."""
        made = runner.__dict__.setdefault("shadows", {})
        if step.kernel in made:
            return made[step.kernel]
        keys = {id(found[1]): key for key, found in objects._linked.items()}
        kernel = self.kernels.get(keys.get(id(runner.kernels[step.kernel]), ""))
        fits = kernel is not None and on_device(step, runner.slots, {step.kernel: None})
        if not fits:
            self.counts["kernels for the CPU alone (texts, missing values)" if kernel else "not machine code"] += 1
            made[step.kernel] = None
            return None
        inputs = {a.slot for a in step.args if not a.writes and a.slot[0] != "@" and a.slot not in runner.constants}
        inputs -= set(step.outputs)
        program = Program(slots=runner.program.slots, inputs=tuple((s, s) for s in sorted(inputs)), steps=(step,),
                          outputs=tuple((s, s) for s in step.outputs), draws=runner.program.draws)
        made[step.kernel] = DeviceProgram(program, runner, {step.kernel: device_kernel(kernel)}, self.device)
        self.counts["kernels"] += 1
        return made[step.kernel]

    def _frame(self, runner, program, frames, step, r):
        fields = {}
        for name, _ in program.program.inputs:
            array = np.ascontiguousarray(runner.value(frames, name, r))
            pinned, address = self.landing.put(array)
            self.device.upload(address, pinned)
            fields[name] = Placed(None, address, array.shape, runner.slots[name].dtype, landed=True)
        self.device.await_uploads()
        try:
            made = program.run(self.landing, fields, frames.ids[r : r + 1], frames.counts[r : r + 1], True, {})
        except Failed as failed:
            if failed.failure.site != frames.status[r]:
                raise self._differs(f"{step.kernel} fails at {failed.failure.site}, not {frames.status[r]}") from None
            self.counts["failures"] += 1
            return
        if frames.status[r] > 0:
            raise self._differs(f"{step.kernel} doesn't fail at {frames.status[r]}")
        asked = {s.slot for s in runner.program.steps if isinstance(s, Require)}
        for name, placed in made.items():
            there = np.empty(placed.shape, DTYPES[placed.dtype])
            self.device.fetch(there, placed.address)
            here = np.asarray(runner.value(frames, name, r))
            self._compare(step.kernel, name, there, here)
            if name in asked and not here:
                break     # the frame leaves: what comes after isn't computed
        self.counts["frames"] += 1

    def _compare(self, kernel, name, there, here):
        self.counts["values"] += here.size
        if there.shape == here.shape and there.tobytes() == here.tobytes():
            return
        one, other = there.reshape(-1), here.reshape(-1)
        same = there.shape == here.shape and ((one == other) & (np.signbit(one.astype("f8")) == np.signbit(other.astype("f8")))
                                              | (one != one) & (other != other))
        if not np.all(same):
            at = int(np.flatnonzero(~same)[0]) if there.shape == here.shape else 0
            raise self._differs(f"`{name}` of {kernel}: {one[at : at + 1]} at place {at}, not {other[at : at + 1]}; "
                                f"shapes {there.shape} and {here.shape}; {np.count_nonzero(~np.asarray(same))} differ")

    def _differs(self, text):
        self.first.append(text)
        return Differs(text)
