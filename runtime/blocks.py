"""Memory of one worker: blocks that only grow, and arrays over what lies in them."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..kernels.ops import BadRecord
from .limits import available, show_size

Ints = NDArray[np.int64]

NUMBERS = np.dtype(np.int64)   # of texts and bytes, in kernels
DTYPES: dict[str, Any] = {
    "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8), "u16": np.dtype(np.uint16), "i16": np.dtype(np.int16),
    "u32": np.dtype(np.uint32), "i32": np.dtype(np.int32), "u64": np.dtype(np.uint64), "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "bool": np.dtype(np.bool_),
}


_BYTE: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
MOST_MEMORY = 1 << 36   # of one record
SURE = 1 << 30          # so much is asked of the system without looking at what is free


def too_large(wanted: str) -> BadRecord:
    return BadRecord("E0814", f"this record needs {wanted} of memory, more than there is",
                     "keep sizes that come out of data small, with `min`, `where` or `check`")


def affordable(size: int) -> bool:
    """May one record have so many bytes? Beyond a control group's limit a process is killed, so what is free is asked first."""
    return size <= SURE or size <= min(MOST_MEMORY, available().free)


def address_of(array: NDArray[Any]) -> int:
    try:
        return ctypes.addressof(_BYTE(array))   # a tenth of the time that the array's own answer takes
    except (TypeError, ValueError, BufferError):   # it is empty, may not be written, has gaps or a dtype of its own
        return int(array.__array_interface__["data"][0])


def view(address: int, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """An array over memory that somebody else keeps alive."""
    count = math.prod(shape) * dtype.itemsize
    if count == 0:
        return np.empty(shape, dtype)
    raw = (ctypes.c_char * count).from_address(address)
    return np.ndarray(shape, dtype, raw)


class Block:
    """Memory that only grows."""

    def __init__(self) -> None:
        self.data = np.empty(0, np.uint8)
        self.begin = self.end = 0

    def at_least(self, size: int) -> int:
        """Address of at least `size` bytes, 64-byte aligned."""
        if len(self.data) < size + 64:
            self.data = np.empty(size + size // 2 + 64, np.uint8)
            self.begin = address_of(self.data)
            self.end = self.begin + len(self.data)
        return (self.begin + 63) & ~63


class Bump:
    """Memory for arrays of one chunk: taken from the front, all given back at once, or back to a `mark`."""

    def __init__(self, size: int = 1 << 20):
        self.most = 0   # ever wanted at once
        self._make(size)

    def _make(self, size: int) -> None:
        self.block = np.empty(size, np.uint8)
        self.begin, self.used, self.wanted = address_of(self.block), 0, 0

    def clear(self) -> None:
        self.back((0, 0))
        if self.most > len(self.block):
            self._make(self.most + self.most // 4)

    def mark(self) -> tuple[int, int]:
        return self.used, self.wanted

    def back(self, mark: tuple[int, int]) -> None:
        """What was taken since the mark may be written over."""
        self.most = max(self.most, self.wanted)
        self.used, self.wanted = mark

    def take(self, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
        """An array that lives until `clear`; beyond the block it is an ordinary one, and the block grows then.

        Raises BadRecord where there isn't so much memory.
        """
        dtype = np.dtype(dtype)
        size = math.prod(map(int, shape)) * dtype.itemsize
        if not affordable(size):
            raise too_large(show_size(size))
        self.wanted += size + 128
        start = self.used + -(self.begin + self.used) % 64
        if start + size > len(self.block):
            try:
                return np.empty(shape, dtype)
            except MemoryError as error:
                raise too_large(show_size(size)) from error
        self.used = start + size
        return np.ndarray(shape, dtype, self.block, start)
