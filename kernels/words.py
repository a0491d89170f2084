"""The different texts of a block of rows, held as an Arrow array: Python's texts are made only of those that are asked for."""
from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .extensions import extension
from .table import digests

Ints = NDArray[np.int64]


class Words:
    """Texts in UTF-8, none missing; the same text may be there twice. Shared by threads: what is kept is the same whoever
    makes it."""

    def __init__(self, array: Any):
        """`array`: of Arrow's type string or large_string."""
        self.array = array
        self.kept: dict[Any, Any] = {}   # what others made of these texts, under their own keys
        self.lock = threading.RLock()    # of what is being made: it may need something else that is kept

    def __len__(self) -> int:
        return len(self.array)

    def taken(self, places: Ints) -> list[str]:
        """The texts at these places."""
        import pyarrow as pa

        return list(self.array.take(pa.array(places)).to_pylist())

    def find(self, text: str) -> int:
        """The first place of a text, -1 where it isn't one of them."""
        places: dict[str, int] = self.once("places", self._first_places)
        return places.get(text, -1)

    def _first_places(self) -> dict[str, int]:
        last = len(self) - 1
        return {t: last - i for i, t in enumerate(self.array.to_pylist()[::-1])}

    def found(self, text: str) -> int:
        """As `find`, for a few of them: looks through all."""
        import pyarrow as pa
        import pyarrow.compute as pc

        return int(pc.index(self.array, pa.scalar(text, self.array.type)).as_py())

    def alike(self) -> Ints:
        """For each place the first one with the same text."""
        first: Ints = self.once("alike", self._alike)
        return first

    def _alike(self) -> Ints:
        codes = _codes(self.array.dictionary_encode().indices)
        _, first = np.unique(codes, return_index=True)   # codes are given in the order of first places
        return first[codes]

    def digests(self) -> NDArray[np.uint64]:
        """`table.digest` of each."""
        found: NDArray[np.uint64] = self.once("digests", self._digests)
        return found

    def _digests(self) -> NDArray[np.uint64]:
        wide = "large" in str(self.array.type)
        _, ends, data = self.array.buffers()
        if not len(self.array):
            return np.zeros(0, np.uint64)
        first, count = self.array.offset, len(self.array) + 1
        bounds = np.frombuffer(ends, np.int64 if wide else np.int32)[first : first + count].astype(np.int64)
        text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]] if data is not None else np.zeros(0, np.uint8)
        made = extension()
        if made is None:
            found: NDArray[np.uint64] = digests(text, bounds - bounds[0])
            return found
        found = np.empty(len(self.array), np.uint64)
        made.digests(text, bounds - bounds[0], found)
        return found

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` makes, made once: threads that want the same wait for the first of them."""
        if key not in self.kept:
            with self.lock:
                if key not in self.kept:
                    self.kept[key] = make()
        return self.kept[key]


@dataclass(frozen=True)
class Coded:
    """Texts as places in `words`, -1 where one is missing; `gaps`: the type has `?`."""

    words: Words
    codes: NDArray[Any]
    gaps: bool

    @property
    def array(self) -> Any:
        """An array of texts, masked (and empty below the mask) where they are missing."""
        flat = np.asarray(self.codes).reshape(-1)
        there = flat >= 0
        out: NDArray[Any] = np.full(len(flat), "", object)
        used, back = np.unique(flat[there], return_inverse=True)
        texts = np.empty(len(used), object)
        texts[:] = self.words.taken(used)
        out[there] = texts[back]
        out = out.reshape(np.shape(self.codes))
        return np.ma.MaskedArray(out, self.codes < 0) if self.gaps else out


def coded(array: Any) -> tuple[Words, NDArray[np.int32]] | None:
    """An Arrow array of texts (plain, or a dictionary of them) as words and codes; None where some aren't UTF-8. Raises
    ValueError where it is damaged."""
    import pyarrow as pa

    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    words = array.dictionary
    try:
        words.validate(full=True)
    except pa.ArrowInvalid:
        return None
    if words.null_count:
        return None
    codes = _codes(array.indices)
    if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < len(words):
        raise ValueError("its dictionary is damaged")
    return Words(words), codes


def numbered(codes: NDArray[np.int32], first: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Codes as numbers from `first` on, anything where one is missing (-1), and where that is."""
    made = extension()
    if made is None or not codes.flags.c_contiguous:
        return codes + np.int64(first), codes < 0
    cells, gone = np.empty(codes.shape, np.int64), np.empty(codes.shape, np.bool_)
    made.numbers(codes, first, cells, gone)
    return cells, gone


def _codes(indices: Any) -> NDArray[np.int32]:
    """Arrow's int32 as NumPy's, -1 where missing."""
    import pyarrow as pa

    codes = raw(indices.cast(pa.int32()), np.dtype(np.int32))
    return np.where(valid(indices), codes, np.int32(-1)) if indices.null_count else codes


def raw(array: Any, dtype: Any) -> NDArray[Any]:
    """The memory of a primitive array that isn't made of bits; anything lies under nulls."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def valid(array: Any) -> NDArray[np.bool_]:
    """True where an array with a bit for each place isn't missing."""
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def merged(parts: list[tuple[Ints, Coded]], count: int) -> Coded:
    """Rows of several blocks at their places among `count`, over words of their own."""
    import pyarrow as pa

    few = []
    for _, c in parts:
        used, back = np.unique(c.codes, return_inverse=True)
        gone = int(used[:1].sum() < 0)   # -1 is the first
        codes = back.reshape(c.codes.shape).astype(np.int32) - np.int32(gone)
        few.append((Words(c.words.array.take(pa.array(used[gone:]))), codes))
    words, every = united(few)
    out = np.empty((count, *parts[0][1].codes.shape[1:]), np.int32)
    for (places, _), own in zip(parts, every):
        out[places] = own
    return Coded(words, out, parts[0][1].gaps)


def united(columns: list[tuple[Words, NDArray[np.int32]]]) -> tuple[Words, list[NDArray[np.int32]]]:
    """Columns with words of their own as columns over all of these."""
    import pyarrow as pa

    wide = pa.large_string() if any(pa.types.is_large_string(w.array.type) for w, _ in columns) else pa.string()
    out, at = [], 0
    for words, codes in columns:
        out.append(np.where(codes < 0, codes, codes + np.int32(at)) if at else codes)
        at += len(words)
    return Words(pa.concat_arrays([w.array if w.array.type == wide else w.array.cast(wide) for w, _ in columns])), out
