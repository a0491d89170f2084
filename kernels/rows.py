"""Rows of text files: where each begins, found once in blocks, kept in the user's cache, then read at random.

Only LF ends a row; in tables (`quotes`) not within quotes. The index of a file is mapped, not loaded, so the number of
rows takes no memory. A row longer than `MOST_ROW` isn't read.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kept
from .compressed import Damaged
from .fetch import every
from .ops import BadRecord
from .sources import SourceError
from .storage import Files

Ints = NDArray[np.int64]
BLOCK = 1 << 22
MOST_ROW = 64 << 20     # bytes of one row
KEPT_FROM = 1 << 22     # smaller files are indexed anew
VERSION = 1
BOM = b"\xef\xbb\xbf"
QUOTE, LF = 0x22, 0x0A


class Index:
    """`starts[r]` is where row r begins, the last entry where the file ends; `lines[k]` counts the LFs before block k."""

    def __init__(self, starts: Ints, lines: Ints):
        self.starts, self.lines = starts, lines

    def __len__(self) -> int:
        return len(self.starts) - 1


def indexed(files: Files, number: int, delimiter: bytes | None, blanks: bool) -> Index:
    """The rows of a file; with a delimiter those of a table. `blanks`: empty lines are rows too. Raises SourceError."""
    path = files.shown_path(number)
    try:
        if not files.is_file(number):
            raise SourceError("E0810", f"`{path}` is no file")
        files.packed(number)
        at = kept.place("rows", files.identity(number), f"{VERSION}\0{delimiter!r}\0{blanks}\0{BLOCK}")
        found = _load(at)
        if found is not None:
            return found
        with files.open(number) as file:
            _refuse_foreign(path, file.read(6), blanks)
        if files.size(number) < KEPT_FROM and number not in files.far:
            return _scan(files, number, delimiter, blanks)
    except OSError as error:
        raise SourceError("E0810", f"`{path}` can't be read: {error.strerror}") from None
    except Damaged as error:
        raise SourceError("E0810", str(error)) from None
    kept.put(at, lambda temporary: _save(temporary, files, number, delimiter, blanks))
    return _load(at) or _scan(files, number, delimiter, blanks)


def _refuse_foreign(path: str, start: bytes, any_bytes: bool) -> None:
    if start[:2] == b"PK":
        raise SourceError("E0810", f"`{path}` is a zip archive: unpack it (gzip, zstd, bzip2 and xz files are read as they are)")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SourceError("E0810", f"`{path}` is UTF-16 text: convert it to UTF-8")
    binary = {b"PAR1": "a Parquet file: `parquet` reads it", b"ARRO": "an Arrow file: `arrow` reads it"}.get(start[:4])
    if binary:
        raise SourceError("E0810", f"`{path}` is {binary}")
    if b"\0" in start and not any_bytes:
        raise SourceError("E0810", f"`{path}` is no text: byte {start.index(0)} is 0", ("UTF-16 must be converted to UTF-8",))


def _save(to: str, files: Files, number: int, delimiter: bytes | None, blanks: bool) -> None:
    lines, rows = [0], 0
    with open(to, "wb") as file:
        file.write(bytes(16))
        for starts in _parts(files, number, delimiter, blanks, lines):
            rows += len(starts)
            starts.tofile(file)
        np.array(lines, np.int64).tofile(file)
        file.seek(0)
        np.array([rows, len(lines)], np.int64).tofile(file)


def _load(path: str) -> Index | None:
    try:
        whole = np.memmap(path, np.int64, "r")
        rows, blocks = (int(n) for n in whole[:2])
    except (OSError, ValueError, EOFError):
        return None
    if len(whole) != 2 + rows + blocks:
        return None
    return Index(whole[2 : 2 + rows], np.array(whole[2 + rows :]))


def _scan(files: Files, number: int, delimiter: bytes | None, blanks: bool) -> Index:
    lines = [0]
    starts = np.concatenate(list(_parts(files, number, delimiter, blanks, lines)))
    return Index(starts, np.array(lines, np.int64))


def _parts(files: Files, number: int, delimiter: bytes | None, blanks: bool, lines: list[int]) -> Iterator[Ints]:
    """Where the rows of a file begin, block by block, and at last where it ends; appends to `lines`."""
    quotes = Quotes(delimiter[0]) if delimiter else None
    last = LF
    with files.open(number) as file:
        at = len(BOM) if file.read(3) == BOM else 0
        file.seek(at)
        begin = at                        # of the row that is open
        for block, data in _blocks(file):
            array = np.frombuffer(data, np.uint8)
            ends = np.flatnonzero(array == LF)
            lines.append(lines[-1] + len(ends))
            if quotes is not None:
                ends = ends[~quotes.inside(array, ends)]
            begins = np.concatenate([np.array([begin], np.int64), block + ends + 1])
            begin = int(begins[-1])
            found = begins[:-1]
            if not blanks and len(ends):
                found = found[_filled(array, found - block, ends, last)]
            last = int(array[-1])
            yield found
        end = file.tell()
        if begin < end:
            file.seek(begin)
            if blanks or file.read(min(end - begin, 2)) != b"\r":
                yield np.array([begin], np.int64)
        yield np.array([end], np.int64)


def _blocks(file: Any) -> Iterator[tuple[int, bytes]]:
    while True:
        at = file.tell()
        data = file.read(BLOCK)
        if not data:
            return
        yield at, data


def _filled(array: NDArray[np.uint8], begins: Ints, ends: Ints, last: int) -> NDArray[np.bool_]:
    """Which rows hold more than a CR; `last` is the byte before the block."""
    size = ends - begins
    first = array[np.maximum(begins, 0)]
    if begins[0] == -1:
        first[0] = last
    filled: NDArray[np.bool_] = (size > 1) | ((size == 1) & (first != 0x0D))
    return filled


class Quotes:
    """Which LFs stand within quotes, block after block. A quote opens at the start of a field only; `""` within is one."""

    def __init__(self, delimiter: int):
        self.delimiter = delimiter
        self.open = False
        self.last = LF             # the byte before the block
        self.closed = False        # it was a quote that closed

    def inside(self, array: NDArray[np.uint8], ends: Ints) -> NDArray[np.bool_]:
        at = np.flatnonzero(array == QUOTE)
        turns = self._turns(array, at) if len(at) else at
        before = np.searchsorted(turns, ends)
        result: NDArray[np.bool_] = (before + self.open) % 2 == 1
        self.open = bool((len(turns) + self.open) % 2)
        self.last = int(array[-1])
        self.closed = not self.open and len(turns) > 0 and int(turns[-1]) == len(array) - 1
        return result

    def _turns(self, array: NDArray[np.uint8], at: Ints) -> Ints:
        """The quotes that open or close. Where every other one may open, these are all of them."""
        before = np.where(at > 0, array[np.maximum(at - 1, 0)], np.uint8(self.last))
        starts = (before == self.delimiter) | (before == LF)
        after_quote = before == QUOTE
        if at[0] == 0:
            after_quote[0] = self.closed
        opening = slice(1 if self.open else 0, None, 2)
        if (starts | after_quote)[opening].all():
            return at
        turns, is_open, closed_at = [], self.open, -1 if self.closed else -2
        for place, start in zip(at.tolist(), starts.tolist()):
            if is_open:
                is_open, closed_at = False, place
            elif start or closed_at == place - 1:
                is_open = True
            else:
                continue
            turns.append(place)
        return np.array(turns, np.int64)


class Rows:
    """The rows of several files, by number."""

    def __init__(self, paths: Sequence[str], delimiter: bytes | None = None, blanks: bool = False, header: bool = False,
                 stream: bool = False):
        self.paths = list(paths)
        self.files = Files(self.paths, stream=stream)
        work = partial(indexed, self.files, delimiter=delimiter, blanks=blanks)
        numbers = range(len(self.paths))
        self.indexes = every(numbers, work) if self.files.far else [work(n) for n in numbers]
        self.first = 1 if header else 0
        self.starts = np.cumsum([0] + [max(0, len(i) - self.first) for i in self.indexes]).astype(np.int64)

    def place(self, index: int) -> tuple[int, int]:
        """(file, row in the file)."""
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return file, index - int(self.starts[file]) + self.first

    def raw(self, file: int, row: int) -> bytes:
        """A row with what ends it. Raises BadRecord."""
        begin, end = (int(p) for p in self.indexes[file].starts[row : row + 2])
        if end - begin > MOST_ROW:
            raise BadRecord("E0801", f"this row is {end - begin:,} bytes long, more than {MOST_ROW:,}")
        return self.files.pread(file, end - begin, begin)

    def many(self, indexes: Ints) -> list[bytes]:
        """Rows with what ends them; those that follow each other are read at once. Raises BadRecord."""
        out: list[bytes] = []
        breaks = np.flatnonzero(np.diff(indexes) != 1) + 1
        for run in np.split(indexes, breaks):
            while len(run):
                file, row = self.place(int(run[0]))
                here = min(len(run), len(self.indexes[file]) - row)
                edges = self.indexes[file].starts[row : row + here + 1]
                here = max(1, min(here, int(np.searchsorted(edges, edges[0] + BLOCK, side="right")) - 1))
                if here == 1:
                    out.append(self.raw(file, row))
                else:
                    edges = edges[: here + 1] - edges[0]
                    data = self.files.pread(file, int(edges[-1]), int(self.indexes[file].starts[row]))
                    cuts = edges.tolist()
                    out += [data[a:b] for a, b in itertools.pairwise(cuts)]
                run = run[here:]
        return out

    def line(self, file: int, row: int) -> int:
        """The number of the line on which a row begins, from 1."""
        at = int(self.indexes[file].starts[row])
        with self.files.open(file) as data:
            base = len(BOM) if data.read(3) == BOM else 0
            block = (at - base) // BLOCK
            data.seek(base + block * BLOCK)
            return int(self.indexes[file].lines[block]) + data.read(at - base - block * BLOCK).count(b"\n") + 1

    def name(self, index: int) -> str:
        file, row = self.place(index)
        return f"line {self.line(file, row):,} of {self.files.shown(file)}"
