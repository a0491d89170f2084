"""What a program's steps cost while it runs: CPU time and bytes of each step, summed over threads and chunks."""
from __future__ import annotations

import threading
import time
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from .blocks import DTYPES
from .held import Frames, Gaps, Values

READ = -1   # the number under which reading the frame's inputs is counted


class Clock:
    """Counts of one program: `spent` ns of CPU and `frames` by step, `bytes` and `dims` by slot over `seen` frames.

    A step's first chunk, in which libraries are loaded and memory is new, counts where there is no other.
    """

    def __init__(self) -> None:
        self.first: dict[int, tuple[int, int]] = {}
        self.spent: dict[int, int] = defaultdict(int)
        self.frames: dict[int, int] = defaultdict(int)
        self.bytes: dict[str, float] = defaultdict(float)
        self.dims: dict[str, NDArray[np.float64]] = {}
        self.seen: dict[str, int] = defaultdict(int)
        self.lock = threading.Lock()
        self.started = threading.local()

    def begin(self) -> None:
        """A step begins in this thread."""
        self.started.at = time.thread_time_ns()

    def end(self, step: int, count: int) -> None:
        """The step of this number has run over `count` frames."""
        took = time.thread_time_ns() - self.started.at
        with self.lock:
            if step not in self.first:
                self.first[step] = (took, count)
            else:
                self.spent[step] += took
                self.frames[step] += count

    def look(self, values: Values, frames: Frames) -> None:
        """How large every slot of a chunk has become."""
        alive = frames.alive()
        sizes = {name: _size(values, frames, name, alive) for name in frames.values if not name.startswith("@")}
        dims = {name: frames.values[name].sizes[alive].sum(axis=0, dtype=np.float64)   # type: ignore[index]
                for name in sizes if frames.values[name].sizes is not None}
        with self.lock:
            for name, total in dims.items():
                self.dims[name] = self.dims.get(name, 0.0) + total
            for name, size in sizes.items():
                self.bytes[name] += size
                self.seen[name] += len(alive)

    def each(self, slot: str) -> float | None:
        """Bytes of a slot in one frame, None where it wasn't met."""
        return self.bytes[slot] / self.seen[slot] if self.seen.get(slot) else None

    def shape(self, slot: str) -> tuple[float, ...] | None:
        """Dims of a slot whose size varies, the mean of all frames; None where it wasn't met."""
        return tuple((self.dims[slot] / self.seen[slot]).tolist()) if slot in self.dims and self.seen.get(slot) else None

    def ns(self, step: int) -> float | None:
        """CPU nanoseconds of a step for one frame, None where it didn't run."""
        spent, frames = self.first.get(step, (0, 0)) if not self.frames.get(step) else (self.spent[step], self.frames[step])
        return spent / frames if frames else None


def _size(values: Values, frames: Frames, name: str, alive: np.ndarray) -> float:
    held, slot = frames.values[name], values.slots[name]
    if held.objects is not None and slot.dtype not in DTYPES:
        return float(sum(_length(held.objects[int(r)]) for r in alive))
    each = np.dtype(DTYPES.get(slot.dtype, np.int64)).itemsize + (1 if slot.missing else 0)
    if held.sizes is None:
        return float(each * len(alive) * np.prod([int(d or 0) for d in slot.dims], dtype=np.int64))
    return float(each * np.prod(held.sizes[alive], axis=1).sum())


def _length(value: object) -> int:
    """Bytes of texts and the like, of arrays of them too."""
    if isinstance(value, Gaps):
        value = value.values
    if isinstance(value, np.ndarray):
        return sum(map(_length, value.ravel().tolist()))
    return len(value) if isinstance(value, bytes | str) else 0
