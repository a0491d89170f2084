"""`bin`: records of fixed size back to back, memory-mapped, little-endian.

A record is the schema's fields one after the other, without padding; `skip` bytes at each file's start are passed over.
"""
from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Wanted, wanted
from .ops import BadRecord
from .sources import Column, SourceError, files_of, row_ids
from .storage import Files


class BinarySource:
    """Records of all files, in the order of the files. The option `layout` lists all fields where a schema has several."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        self.files = Files(files_of(paths))
        self.paths = [self.files.shown_path(n) for n in range(len(self.files.paths))]
        self.here = [self.files.local(n) for n in range(len(self.paths))]   # remote ones are copied into the cache
        self.fields = {w.field: w for w in map(wanted, columns)}
        layout = [wanted((field, ((field,),), text)) for field, text in options.get("layout", ())]
        self.offsets: dict[str, int] = {}
        size = 0
        for w in layout or self.fields.values():
            self.offsets[w.field] = size
            size += _size(w)
        self.skip = int(options.get("skip", 0))
        if self.skip < 0:
            raise SourceError("E0810", f"`skip` is {self.skip}, it must be 0 or more")
        lengths = [self._length(n, size) for n in range(len(self.paths))]
        self.starts = np.cumsum([0, *lengths]).astype(np.int64)
        self.parts = {f: [self._rows(p, n, size, w) for p, n in zip(self.here, lengths)] for f, w in self._maps(lengths, size)}

    def _length(self, file: int, size: int) -> int:
        path, here = self.paths[file], self.here[file]
        try:
            if not os.path.isfile(here):
                raise SourceError("E0810", f"`{path}` is no file")
            rest = os.path.getsize(here) - self.skip
        except OSError as error:
            raise SourceError("E0810", f"`{path}` can't be read: {error.strerror}") from None
        if rest < 0:
            raise SourceError("E0602", f"`{path}` has {rest + self.skip:,} bytes, fewer than `skip`")
        if rest % size if size else rest:
            skipped = f" after the first {self.skip:,}" if self.skip else ""
            listed = ", ".join(f"`{w.field}: {w.text}`" for w in self.fields.values())
            whole = len(self.fields) == len(self.offsets)
            raise SourceError("E0602", f"`{path}` has {rest:,} bytes{skipped}, no whole number of records of {size:,}",
                              (f"a record is {listed if whole else f'{len(self.offsets)} fields'}",),
                              next(iter(self.fields), None))
        return rest // size if size else 0

    def _maps(self, lengths: list[int], size: int) -> list[tuple[str, Wanted]]:
        """Maps the files; the fields to view in them."""
        self.maps: dict[str, mmap.mmap] = {}
        for path, here, count in zip(self.paths, self.here, lengths):
            if count and here not in self.maps:
                try:
                    with open(here, "rb") as file:
                        self.maps[here] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except (OSError, ValueError) as error:
                    raise SourceError("E0810", f"`{path}` can't be mapped: {error}") from None
                if len(self.maps[here]) < self.skip + count * size:
                    raise SourceError("E0810", f"`{path}` has become shorter while it was opened")
        return list(self.fields.items())

    def _rows(self, path: str, count: int, size: int, w: Wanted) -> NDArray[Any]:
        dims = tuple(int(d) for d in w.dims)
        dtype = np.dtype(np.uint8) if w.word == "bool" else w.dtype   # a byte beyond 1 is no bool
        if not count:
            return np.empty((0, *dims), dtype)
        inner = np.empty(dims, dtype).strides
        return np.ndarray((count, *dims), dtype, self.maps[path], self.skip + self.offsets[w.field], (size, *inner))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, index: int) -> dict[str, Any]:
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        row = index - int(self.starts[file])
        return {f: _value(self.parts[f][file][row], w) for f, w in self.fields.items()}

    def read_many(self, indexes: NDArray[np.int64]) -> tuple[dict[str, Any], dict[int, BadRecord]]:
        files = np.searchsorted(self.starts, indexes, side="right") - 1
        rows = indexes - self.starts[files]
        fields: dict[str, Any] = {}
        bad: dict[int, BadRecord] = {}
        for f, w in self.fields.items():
            parts = self.parts[f]
            out = np.empty((len(indexes), *parts[0].shape[1:]), parts[0].dtype)
            for file in np.unique(files):
                here = files == file
                out[here] = parts[file][rows[here]]
            if w.word == "bool":
                wrong = (out > 1).reshape(len(out), -1).any(1)
                bad.update({int(r): _no_bool(w) for r in np.flatnonzero(wrong)})
                out = out != 0
            fields[f] = out
        return fields, bad

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        return row_ids(self.starts, indexes)

    def name(self, index: int) -> str:
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return f"record {index - int(self.starts[file]):,} of {self.files.shown(file)}"

    def arrays(self) -> dict[str, NDArray[Any]] | None:
        """The file itself, where it is one and its numbers lie at addresses that their width divides."""
        found = {f: parts[0] for f, parts in self.parts.items()}
        aligned = all(a.flags.aligned for a in found.values())
        if len(self.paths) != 1 or not aligned or any(w.word == "bool" for w in self.fields.values()):
            return None
        return found


def _size(w: Wanted) -> int:
    if not all(isinstance(d, int) for d in w.dims):
        raise SourceError("E0602", f"`{w.field}: {w.text}` has no fixed size, and records of `bin` have one",
                          ("write numbers for its sizes",), w.field)
    return int(np.prod([int(d) for d in w.dims], dtype=np.int64)) * int(w.dtype.itemsize)


def _value(raw: Any, w: Wanted) -> Any:
    if w.word != "bool":
        return raw
    if np.any(raw > 1):
        raise _no_bool(w)
    return raw != 0


def _no_bool(w: Wanted) -> BadRecord:
    return BadRecord("E0801", f"`{w.field}` holds a byte that is neither 0 nor 1")
