"""What is asked of a device, and memory in which a batch lands there: pinned on this side, as much on the other."""
from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .blocks import DTYPES
from .plan import DeviceKernel

BLOCK = 1 << 20            # bytes of a landing's first block
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Memory(Protocol):
    """Bytes on the device, kept as long as this object is."""

    @property
    def address(self) -> int: ...


class Mark(Protocol):
    """A point in the current stream's work."""

    def wait(self) -> None: ...


class Device(Protocol):
    """What is asked of a device. The current stream is the consumer's; everything but `upload` and `pinned` goes there."""

    processors: int

    def current(self) -> AbstractContextManager[Any]: ...
    def pinned(self, size: int) -> NDArray[np.uint8]: ...
    def lasting(self, size: int) -> Memory: ...                       # for all streams
    def memory(self, size: int) -> Memory: ...                        # for the current stream
    def upload(self, target: int, source: NDArray[np.uint8]) -> None: ...   # in the stream of uploads
    def await_uploads(self) -> None: ...                              # the current stream waits, not the caller
    def send(self, target: int, source: NDArray[np.uint8]) -> None: ...
    def copy(self, target: int, source: int, size: int) -> None: ...
    def fetch(self, target: NDArray[Any], source: int) -> None: ...   # the caller waits
    def mark(self) -> Mark: ...
    def build(self, kernel: DeviceKernel) -> Sequence[Any]: ...       # a function for each launch
    def launch(self, function: Any, blocks: tuple[int, int], threads: int, args: tuple[int, int, int, int]) -> None: ...
    def call(self, function: Any, args: Sequence[Any]) -> Placed: ...   # `function(xp, *args)`; what is `Placed` is an array
    def array(self, memory: Any, address: int, shape: tuple[int, ...], dtype: str) -> Any: ...


@dataclass(frozen=True)
class Placed:
    """An array on the device, in C order. `landed`: in memory that a later batch uses again."""

    memory: Any
    address: int
    shape: tuple[int, ...]
    dtype: str
    landed: bool = False

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * int(DTYPES[self.dtype].itemsize)


class Landing:
    """Pinned memory and as much on the device, for one batch at a time."""

    def __init__(self, device: Device):
        self.device = device
        self.blocks: list[tuple[NDArray[np.uint8], Memory]] = []
        self.used = self.wanted = 0
        self.mark: Mark | None = None

    def clear(self) -> None:
        """Wait until the device is done with the last batch, and begin anew, in one block."""
        if self.mark is not None:
            self.mark.wait()
            self.mark = None
        if len(self.blocks) > 1:
            self.blocks = [self._block(self.wanted + self.wanted // 4)]
        self.used = self.wanted = 0

    def _block(self, size: int) -> tuple[NDArray[np.uint8], Memory]:
        return self.device.pinned(size), self.device.lasting(size)

    def __del__(self) -> None:
        """What is still on its way reads and writes this memory."""
        with contextlib.suppress(Exception):
            if self.mark is not None:
                self.mark.wait()

    def take(self, size: int) -> tuple[NDArray[np.uint8], int]:
        """Pinned bytes, and where they go on the device."""
        self.wanted += (size + 255) // 64 * 64
        start = (self.used + 63) // 64 * 64
        if not self.blocks or start + size > len(self.blocks[-1][0]):
            self.blocks.append(self._block(max(BLOCK, size, 2 * len(self.blocks[-1][0]) if self.blocks else 0)))
            start = 0
        self.used = start + size
        pinned, memory = self.blocks[-1]
        return pinned[start : start + size], memory.address + start

    def put(self, array: NDArray[Any]) -> tuple[NDArray[np.uint8], int]:
        """A copy of an array in pinned memory, and where it goes."""
        pinned, address = self.take(array.nbytes)
        np.copyto(pinned.view(array.dtype).reshape(array.shape) if array.nbytes else array, array)
        return pinned, address
