"""Texts and bytes as kernels see them: a number for each different value of a chunk, equal where the values are."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.table import digests


class Numbered:
    """Values and their numbers. Those of the program's constants stay, the others are forgotten with their chunk."""

    def __init__(self) -> None:
        self.values: list[Any] = [None]
        self.numbers: dict[Any, int] = {None: 0}
        self.kept = 1
        self.bits = np.zeros(0, np.uint64)
        self.order = np.zeros(0, np.int64)

    def keep(self) -> None:
        """What has a number now keeps it."""
        self.kept = len(self.values)

    def clear(self) -> None:
        for value in self.values[self.kept :]:
            del self.numbers[value]
        del self.values[self.kept :]
        self.bits = self.bits[: self.kept]
        self.order = np.zeros(0, np.int64)

    def number(self, value: Any) -> int:
        """The value's number; None, where it is missing, has 0."""
        if not isinstance(value, str | bytes | None):
            value = bytes(value) if isinstance(value, bytearray | memoryview) else str(value)
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found

    def cells(self, values: Iterable[Any], count: int) -> NDArray[np.int64]:
        return np.fromiter(map(self.number, values), np.int64, count)

    def array(self, cells: NDArray[np.int64]) -> Any:
        """The values with these numbers: an array of objects, or the value alone."""
        if cells.ndim == 0:
            return self.values[int(cells)]
        out = np.empty(cells.shape, object)
        out.reshape(-1)[:] = [self.values[i] for i in cells.reshape(-1).tolist()]
        return out

    def digests(self) -> NDArray[np.uint64]:
        """For each number the `digest` of its value."""
        have = len(self.bits)
        if have < len(self.values):
            encoded = [b"" if v is None else v if isinstance(v, bytes) else v.encode("utf-8", "surrogatepass")
                       for v in self.values[have:]]
            ends = np.cumsum([0, *map(len, encoded)])
            self.bits = np.concatenate([self.bits, digests(np.frombuffer(b"".join(encoded), np.uint8), ends)])
        return self.bits

    def places(self) -> NDArray[np.int64]:
        """For each number the place of its value among all of them in order (texts by code points, bytes as they are)."""
        if len(self.order) != len(self.values):
            def key(i: int) -> tuple[int, Any]:
                return (isinstance(self.values[i], bytes), self.values[i])

            self.order = np.zeros(len(self.values), np.int64)
            self.order[sorted(range(1, len(self.values)), key=key)] = np.arange(1, len(self.values))
        return self.order


def objects(value: Any) -> NDArray[Any]:
    """An array of objects: of a list, or, of one value, without dimensions."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return value
    if isinstance(value, list | tuple | np.ndarray):
        out = np.empty(len(value), object)
        out[:] = list(value)
        return out
    alone = np.empty((), object)
    alone[()] = value
    return alone
