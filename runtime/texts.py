"""Texts and bytes as kernels see them: a number for each different value of a chunk, equal where the values are."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.table import digests
from ..kernels.words import Words


class Numbered:
    """Values and their numbers. Those of the program's constants stay, the others are forgotten with their chunk.

    A block's `Words` may have numbers together, behind the constants: none of its texts is made before it is asked for.
    """

    def __init__(self) -> None:
        self.values: list[Any] = [None]
        self.numbers: dict[Any, int] = {None: 0}
        self.kept = 1
        self.bits = np.zeros(0, np.uint64)
        self.every = self.bits               # those of the words between: kernels get its address
        self.order = np.zeros(0, np.int64)
        self.words: Words | None = None

    def keep(self) -> None:
        """What has a number now keeps it."""
        self.kept = len(self.values)

    def clear(self) -> None:
        if len(self.values) == self.kept and self.words is None and not len(self.order):
            return
        for value in self.values[self.kept :]:
            del self.numbers[value]
        del self.values[self.kept :]
        self.bits = self.bits[: self.kept]
        self.order = np.zeros(0, np.int64)
        self.words = None

    @property
    def many(self) -> int:
        """How many numbers the words have."""
        return 0 if self.words is None else len(self.words)

    def attach(self, words: Words) -> bool:
        """Give the words numbers from `kept` on; False where other values have come before."""
        if (self.words is not None and self.words is not words) or (self.words is None and len(self.values) > self.kept):
            return False
        self.words = words
        return True

    def alike(self, words: Words) -> NDArray[np.int64]:
        """Numbers of the words that are equal where these are, or where a constant is; 0 behind them for what is missing."""
        found: NDArray[np.int64] = words.once(("numbers", *self.values[: self.kept]), lambda: self._numbers(words))
        return found

    def _numbers(self, words: Words) -> NDArray[np.int64]:
        table = np.append(words.alike() + self.kept, 0)
        for number, value in enumerate(self.values[: self.kept]):
            place = words.found(value) if isinstance(value, str) else -1
            if place >= 0:
                table[table == self.kept + place] = number
        return table

    def number(self, value: Any) -> int:
        """The value's number; None, where it is missing, has 0."""
        if not isinstance(value, str | bytes | None):
            value = bytes(value) if isinstance(value, bytearray | memoryview) else str(value)
        found = self.numbers.get(value)
        if found is None and self.words is not None and isinstance(value, str) and (place := self.words.find(value)) >= 0:
            return self.kept + place
        if found is None:
            found = self.numbers[value] = len(self.values) + self.many
            self.values.append(value)
        return found

    def cells(self, values: Iterable[Any], count: int) -> NDArray[np.int64]:
        return np.fromiter(map(self.number, values), np.int64, count)

    def array(self, cells: NDArray[np.int64]) -> Any:
        """The values with these numbers: an array of objects, or the value alone."""
        if cells.ndim == 0:
            return self.array(cells.reshape(1))[0]
        out, flat = np.empty(cells.shape, object), cells.reshape(-1)
        if self.words is None:
            out.reshape(-1)[:] = [self.values[i] for i in flat.tolist()]
            return out
        places, many = flat - self.kept, self.many
        inside = (places >= 0) & (places < many)
        out.reshape(-1)[inside] = self.words.taken(places[inside])
        others = flat[~inside]
        out.reshape(-1)[~inside] = [self.values[i] for i in np.where(others < self.kept, others, others - many).tolist()]
        return out

    def digests(self) -> NDArray[np.uint64]:
        """For each number the `digest` of its value; kept until the next call."""
        have = len(self.bits)
        if have < len(self.values):
            encoded = [b"" if v is None else v if isinstance(v, bytes) else v.encode("utf-8", "surrogatepass")
                       for v in self.values[have:]]
            ends = np.cumsum([0, *map(len, encoded)])
            self.bits = np.concatenate([self.bits, digests(np.frombuffer(b"".join(encoded), np.uint8), ends)])
        words = self.words
        if words is None:
            return self.bits
        bits: NDArray[np.uint64] = words.once(("digests", *self.values[: self.kept]),
                                              lambda: np.concatenate([self.bits[: self.kept], words.digests()]))
        self.every = bits if len(self.bits) == self.kept else np.concatenate([bits, self.bits[self.kept :]])
        return self.every

    def places(self) -> NDArray[np.int64]:
        """For each number the place of its value among all of them in order (texts by code points, bytes as they are)."""
        count = len(self.values) + self.many
        if len(self.order) != count:
            values = self.values if self.words is None else self.array(np.arange(count)).tolist()

            def key(i: int) -> tuple[int, Any]:
                return (isinstance(values[i], bytes), values[i])

            self.order = np.zeros(count, np.int64)
            self.order[sorted(range(1, count), key=key)] = np.arange(1, count)
        return self.order


class Asked(Sequence[Any]):
    """Each frame's texts, made where they are asked for; `cells` are their numbers, of all frames."""

    def __init__(self, texts: Numbered, cells: NDArray[np.int64]):
        self.texts, self.cells = texts, cells

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, r: Any) -> Any:
        return self.texts.array(np.asarray(self.cells[r]))


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
