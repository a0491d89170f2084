"""Columns of Parquet files that hold single numbers or texts, decoded by our own extension: bytes of a row group go in, the
columns of a field come out beside each other (`Stacked`), as kernels read them.

None comes out for whatever isn't understood, damage too, and where the extension isn't built: Arrow reads it then, and says
what is wrong. Pages of dictionaries and plain ones in both versions, plain or packed by Snappy or Zstandard.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import MISSING, Stacked, Wanted
from .extensions import extension
from .words import Words

MOST_UNPACKED = 128 << 20   # bytes of one field's pages in memory at once; Arrow takes page after page
_DICTIONARY, _SECOND = 2, 3   # kinds of pages
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}
_STORED = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}
Pread = Callable[[int, int], bytes]   # (size, offset)
Table = NDArray[np.int64]


@dataclass(frozen=True)
class Plain:
    """A column whose pages may be read here: its number in the file, the bytes of a number (0: texts), may values be missing."""

    number: int
    width: int
    nullable: bool


def plain_columns(stored: Any, schema: Any, steps: Sequence[tuple[str, ...]], w: Wanted) -> list[Plain] | None:
    """A field's columns, None where one of them is of another kind. `stored`: the file's own schema, `schema`: Arrow's."""
    if extension() is None or w.element:
        return None
    paths = [stored.column(i).path for i in range(len(stored))]
    found = [_plain(stored, schema, paths, s, w) for s in steps]
    known = [f for f in found if f is not None]
    return known if len(known) == len(found) else None


def _plain(stored: Any, schema: Any, paths: list[str], steps: tuple[str, ...], w: Wanted) -> Plain | None:
    import pyarrow as pa

    if len(steps) > 1 or paths.count(steps[0]) != 1:
        return None
    number, kind = paths.index(steps[0]), schema.field(steps[0]).type
    column = stored.column(number)
    width = _STORED.get(column.physical_type)
    if width is None or column.max_repetition_level or column.max_definition_level > 1:
        return None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type if width == 0 else kind
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    numbers = pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    fits = texts and w.word in ("text", "path") if width == 0 else numbers and w.dtype == kind.to_pandas_dtype()
    if not fits or (width and w.dtype.itemsize != width):
        return None
    return Plain(number, width, column.max_definition_level == 1)


@dataclass
class _Pages:
    """The pages of one column of a row group; `keep` holds what addresses point to."""

    codec: Any
    entries: int = 0                       # of its dictionary
    dictionary: tuple[int, int] = (0, 0)   # (address, bytes)
    rows: int = 0
    data: list[tuple[int, ...]] = field(default_factory=list)   # as `decode` of the extension reads them
    keep: list[Any] = field(default_factory=list)

    def bytes_of(self, chunk: NDArray[np.uint8], at: int, stored: int, unpacked: int, packed: bool) -> tuple[int, int]:
        """(address, size) of what a part of the chunk holds. Raises ValueError, OSError."""
        part = chunk[at : at + stored]
        if self.codec is None or not packed:
            if stored != unpacked:
                raise ValueError("its size is another one")
            return _address(part), stored
        if self.codec.name == "snappy" and _snappy_size(part) != unpacked:
            raise ValueError("its size is another one")
        made = self.codec.decompress(part, decompressed_size=unpacked)
        self.keep.append(made)
        return made.address, unpacked


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _snappy_size(part: NDArray[np.uint8]) -> int:
    """The size that a block packed by Snappy says it has."""
    size, first = 0, bytes(part[:5])
    for i, byte in enumerate(first):
        size |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return size
    return -1


def stacked(pread: Pread, group: Any, columns: Sequence[Plain], w: Wanted, most: int = MOST_UNPACKED) -> Stacked | None:
    """The field's columns in a row group (of Parquet's metadata), if its pages take at most so many bytes."""
    made = extension()
    try:
        return None if made is None else _stacked(made, pread, group, columns, w, min(most, MOST_UNPACKED))
    except Exception:   # damage: Arrow says which
        return None


def _stacked(made: Any, pread: Pread, group: Any, columns: Sequence[Plain], w: Wanted, most: int) -> Stacked | None:
    rows, chunks = group.num_rows, [group.column(c.number) for c in columns]
    if sum(c.total_uncompressed_size for c in chunks) > most or not {c.compression for c in chunks} <= _CODECS.keys():
        return None
    pages = [_pages(made, pread, chunk, column) for chunk, column in zip(chunks, columns)]
    if any(p is None or p.rows != rows for p in pages):
        return None
    known = [p for p in pages if p is not None]
    shape = (rows, len(columns)) if len(w.names) > 1 else (rows,)
    if w.dtype is None:
        return _texts(made, known, columns, w, shape)
    flat = np.empty(shape, w.dtype)
    gone = np.zeros(shape, np.bool_) if any(c.nullable for c in columns) or w.missing else None
    table = _table(columns, known, flat, gone)
    if not made.decode(table, _page_table(known), rows):
        return None
    bad = gone.view(np.uint8) * np.uint8(MISSING) if gone is not None and not w.missing and table[:, -1].any() else None
    return Stacked(w, flat, gone if w.missing else None, bad)


def _pages(made: Any, pread: Pread, chunk: Any, column: Plain) -> _Pages | None:
    import pyarrow as pa

    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        begin = min(begin, chunk.dictionary_page_offset)
    size, most = chunk.total_compressed_size, chunk.total_uncompressed_size
    if begin < 4 or size <= 0:
        return None
    data = pread(size, begin)
    listed = made.pages(data)
    if listed is None or sum(page[3] for page in listed) > most:
        return None
    codec = _CODECS[chunk.compression]
    found, whole = _Pages(pa.Codec(codec) if codec else None, keep=[data]), np.frombuffer(data, np.uint8)
    for number, (kind, at, stored, unpacked, count, plain, levels, packed) in enumerate(listed):
        if kind == _DICTIONARY:
            if number:
                return None
            found.dictionary = _aligned(found, *found.bytes_of(whole, at, stored, unpacked, True))
            found.entries = count
            if column.width and found.dictionary[1] < count * column.width:
                return None
            continue
        lead = levels if kind == _SECOND else 0
        values = found.bytes_of(whole, at + lead, stored - lead, unpacked - lead, bool(packed))
        before = (_address(whole) + at, levels) if kind == _SECOND else (0, -1)
        found.data.append((*before, *values, count, plain))
        found.rows += count
    return found


def _aligned(found: _Pages, address: int, size: int) -> tuple[int, int]:
    """A dictionary where numbers may lie."""
    if address % 8 == 0:
        return address, size
    from ctypes import string_at

    copied = np.frombuffer(string_at(address, size), np.uint8).copy()
    found.keep.append(copied)
    return _address(copied), size


def _page_table(pages: Sequence[_Pages]) -> Table:
    return np.array([row for p in pages for row in p.data], np.int64).reshape(-1, 6)


def _table(columns: Sequence[Plain], pages: Sequence[_Pages], flat: NDArray[Any], gone: NDArray[np.bool_] | None,
           places: Sequence[tuple[int, int]] = ()) -> Table:
    """What `decode` is told of each column; see `Column` there. `places`: of texts, the numbers of their first words."""
    table, page = np.zeros((len(columns), 14), np.int64), 0
    for j, (c, p) in enumerate(zip(columns, pages)):
        at = (_address(flat) + j * flat.itemsize, flat.strides[0])
        mask = (0, 0) if gone is None else (_address(gone) + j, gone.strides[0])
        table[j, :13] = (c.width == 0, c.width or 4, c.nullable, p.dictionary[0], p.entries, *at, *mask, page, len(p.data),
                         *(places[j] if places else (0, 0)))
        page += len(p.data)
    return table


def _texts(made: Any, pages: Sequence[_Pages], columns: Sequence[Plain], w: Wanted, shape: tuple[int, ...]) -> Stacked | None:
    """Texts as numbers of words: of each column those of its dictionary, then, one by one, those beside it."""
    plain = [[_values_of(c, row) for row in p.data if row[5]] for c, p in zip(columns, pages)]
    parts = [part for p, beside in zip(pages, plain) for part in ((*p.dictionary, p.entries, 0), *((*v, -1, 0) for v in beside))]
    table = np.array(parts, np.int64).reshape(-1, 4)
    words = _words(made, table)
    if words is None:
        return None
    starts = np.cumsum([0, *table[:, 3]])
    firsts = np.cumsum([0, *(1 + len(beside) for beside in plain)])[:-1]
    places = [(int(starts[f]), int(starts[f + 1])) for f in firsts]
    codes = np.empty(shape, np.int32)
    told = _table(columns, pages, codes, None, places)
    if not made.decode(told, _page_table(pages), shape[0]):
        return None
    bad = (codes < 0).view(np.uint8) * np.uint8(MISSING) if not w.missing and told[:, -1].any() else None
    return Stacked(w, None, None, bad, words, codes)


def _values_of(column: Plain, page: tuple[int, ...]) -> tuple[int, int]:
    """(address, size) of the values in a plain page. Raises ValueError."""
    from ctypes import string_at

    address, size = page[2:4]
    if not column.nullable or page[1] >= 0:
        return address, size
    levels = 4 + int.from_bytes(string_at(address, 4), "little") if size >= 4 else 4
    if levels > size:
        raise ValueError("its levels are longer than the page")
    return address + levels, size - levels


def _words(made: Any, parts: Table) -> Words | None:
    import pyarrow as pa

    room = int(np.where(parts[:, 2] < 0, parts[:, 1] // 4, parts[:, 2]).sum())
    ends, out = np.empty(room + 1, np.int32), np.empty(int(parts[:, 1].sum()) + 16, np.uint8)
    count = made.texts(parts, ends, out)
    if count < 0:
        return None
    array = pa.StringArray.from_buffers(count, pa.py_buffer(ends[: count + 1]), pa.py_buffer(out[: int(ends[count])]))
    array.validate(full=True)
    return Words(array)
