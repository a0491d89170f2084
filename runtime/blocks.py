"""Memory of one worker: blocks that only grow, and arrays over what lies in them."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
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


MOST_MEMORY = 1 << 36   # of one record
SURE = 1 << 30          # so much is asked of the system without looking at what is free


def too_large(wanted: str) -> BadRecord:
    return BadRecord("E0814", f"this record needs {wanted} of memory, more than there is",
                     "keep sizes that come out of data small, with `min`, `where` or `check`")


def affordable(size: int) -> bool:
    """May one record have so many bytes? Beyond a control group's limit a process is killed, so what is free is asked first."""
    return size <= SURE or size <= min(MOST_MEMORY, available().free)


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def view(address: int, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """An array over memory that somebody else keeps alive."""
    count = math.prod(shape) * dtype.itemsize
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
        """An array that lives until `clear`; beyond the block it is an ordinary one, and the block grows then.

        Raises BadRecord where there isn't so much memory.
        """
        dtype = np.dtype(dtype)
        size = math.prod(map(int, shape)) * dtype.itemsize
        if not affordable(size):
            raise too_large(show_size(size))
        self.wanted += size + 128
        start = self.used + (-(address_of(self.block) + self.used)) % 64
        if start + size > len(self.block):
            try:
                return np.empty(shape, dtype)
            except MemoryError as error:
                raise too_large(show_size(size)) from error
        self.used = start + size
        taken: NDArray[Any] = self.block[start : start + size].view(dtype).reshape(shape)
        return taken
