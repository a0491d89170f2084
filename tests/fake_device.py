"""A device whose memory is the host's and whose kernels are the CUDA texts, compiled by g++.

Like a GPU it does nothing before it must: work waits in two streams, and runs when somebody waits for it. So what is written
to pinned memory too early, or read before an upload has ended, shows as wrong values. Memory that is let go is used again
at once, and in between it is overwritten.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import weakref

import numpy as np
from cuda_host import LAUNCH, library
from pipec.runtime.blocks import DTYPES, address_of, view
from pipec.runtime.landing import NAMES, Placed

U8 = np.dtype(np.uint8)


class Bytes:
    def __init__(self, array):
        self.array = array

    @property
    def address(self):
        return address_of(self.array)


class FakeDevice:
    processors = 2

    def __init__(self, kernels, backwards=False):
        """`kernels`: all that may be asked for; they are one translation unit."""
        self.texts = list({k.text: k for k in kernels})
        self.found = library(self.texts) if self.texts else None
        self.backwards = backwards
        self.streams = {"work": [], "uploads": []}
        self.done = {"work": 0, "uploads": 0}
        self.free = {}
        self.uploaded = self.fetched = self.launched = 0
        self.live = 0
        self.inside = 0

    # --- streams ---

    def _later(self, stream, work):
        assert stream == "uploads" or self.inside, "work outside of the consumer's stream"
        self.streams[stream].append(work)

    def _until(self, stream, count):
        while self.done[stream] < count:
            work = self.streams[stream][self.done[stream]]
            self.streams[stream][self.done[stream]] = None
            self.done[stream] += 1
            work()

    @contextlib.contextmanager
    def current(self):
        self.inside += 1
        yield
        self.inside -= 1

    def await_uploads(self):
        count = len(self.streams["uploads"])
        self._later("work", lambda: self._until("uploads", count))

    def mark(self):
        return Mark(self, len(self.streams["work"]))

    def finish(self):
        self._until("work", len(self.streams["work"]))
        self._until("uploads", len(self.streams["uploads"]))

    # --- memory ---

    def pinned(self, size):
        return np.full(size, 0xEE, np.uint8)

    def lasting(self, size):
        return Bytes(np.full(size, 0xDD, np.uint8))

    def memory(self, size):
        waiting = self.free.get(size, [])
        made = Bytes(waiting.pop() if waiting else np.empty(size, np.uint8))
        array = made.array
        self.live += 1

        def gone():
            self.live -= 1
            self.free.setdefault(size, []).append(array)

        weakref.finalize(made, gone)
        self._later("work", lambda: array.fill(0xCC))
        return made

    def upload(self, target, source):
        self.uploaded += len(source)
        self._later("uploads", lambda: self._copy(target, address_of(source), len(source), source))

    def send(self, target, source):
        self._later("work", lambda: self._copy(target, address_of(source), len(source), source))

    def copy(self, target, source, size):
        self._later("work", lambda: self._copy(target, source, size, None))

    def _copy(self, target, source, size, keep):
        ctypes.memmove(target, source, size)

    def fetch(self, target, source):
        self.fetched += 1
        self._later("work", lambda: self._copy(address_of(target), source, target.nbytes, target))
        self.finish()

    # --- kernels ---

    def build(self, kernel):
        return self.functions(self.found, kernel, self.texts.index(kernel.text))

    def functions(self, found, kernel, number):
        """Each launch with the grid of its own library."""
        grid = LAUNCH(("pipec_launch", found))
        places = [ctypes.cast(found[f"{symbol}_{number}"], ctypes.c_void_p).value for symbol, _ in kernel.launches]
        return [functools.partial(grid, place) for place in places]

    def launch(self, function, blocks, threads, args):
        self.launched += 1
        assert blocks[1] <= 65_535 and threads <= 1024
        self._later("work", lambda: function(*blocks, threads, self.backwards, *args))

    def call(self, function, args):
        self.finish()
        seen = [view(a.address, a.shape, DTYPES[a.dtype]) if isinstance(a, Placed) else a for a in args]
        made = np.ascontiguousarray(function(np, *seen))
        memory = self.memory(made.nbytes)
        self._later("work", lambda: self._copy(memory.address, address_of(made), made.nbytes, made))
        return Placed(memory, memory.address, made.shape, NAMES[made.dtype])

    def array(self, memory, address, shape, dtype):
        assert memory.address <= address
        return Array(self, memory, address, shape, dtype)


class Mark:
    def __init__(self, device, count):
        self.device, self.count = device, count

    def wait(self):
        self.device._until("work", self.count)


class Array:
    """An array "on the device": `get` waits for the work before it."""

    def __init__(self, device, memory, address, shape, dtype):
        self.device, self.memory, self.address, self.shape, self.dtype = device, memory, address, shape, dtype

    def get(self):
        self.device.finish()
        return np.array(view(self.address, self.shape, DTYPES[self.dtype]))


def collected(device):
    """Memory still held on the device, when all garbage is gone."""
    gc.collect()
    return device.live


class LazyFake(FakeDevice):
    """One that compiles a kernel when it is first asked for."""

    def __init__(self):
        super().__init__([])

    def build(self, kernel):
        return self.functions(library([kernel.text]), kernel, 0)
