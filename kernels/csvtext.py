"""`csv`: text tables by RFC 4180, with an index of rows that knows quotes, so that any row can be read.

A field that begins with a quote goes to its closing quote, with delimiters, newlines and `""` in it. LF or CRLF ends a
row; a bare CR doesn't. An empty field, or one of the options `nulls` and `nulls_of` ("column=spelling"), is missing,
unless it is quoted.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Wanted, absent, stack_values, text_array, wanted
from .lines import read_rows
from .ops import BadRecord
from .rows import Rows
from .sources import INTEGERS, Column, SourceError, files_of, number_of, row_ids

Cell = tuple[bytes, bool]   # (content, was it quoted)


class CsvSource:
    """Rows of all files. Columns are found by the header line's names, without one by their number from 0."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        self.paths = files_of(paths)
        self.delimiter = _delimiter(str(options.get("delimiter", ",")))
        self.nulls = {b"", *(str(n).encode("utf-8") for n in options.get("nulls", ()))}
        self.wanted = [wanted(c) for c in columns]
        header = bool(options.get("header", True))
        end = re.escape(self.delimiter)
        self.field = re.compile(rb'(?:"((?:[^"]|"")*+)"|((?!")[^%b]*+))(%b|\Z)' % (end, end), re.DOTALL)
        self.rows = Rows(self.paths, self.delimiter, header=header, stream=bool(options.get("stream")))
        own = [_own_null(str(n)) for n in options.get("nulls_of", ())]
        self.nulls_at: list[dict[int, set[bytes]]] = []   # for each file, where columns have spellings of their own
        self.places: list[list[list[int]]] = []   # for each file and field, where its columns stand
        self.width: list[int] = []
        for number, path in enumerate(self.paths):
            names = self._names(number, path, header)
            self.width.append(len(names))
            self.places.append([[self._place(path, names, n, w, header) for n in w.names] for w in self.wanted])
            self.nulls_at.append(self._own_nulls(path, names, own))

    def _own_nulls(self, path: str, names: list[str], own: Sequence[tuple[str, bytes]]) -> dict[int, set[bytes]]:
        found: dict[int, set[bytes]] = {}
        for name, spelling in own:
            if names and name not in names:
                raise SourceError("E0601", f"`{path}` has no column `{name}`, which `nulls_of` names",
                                  (f"its columns: {', '.join(f'`{n}`' for n in names[:12])}",))
            if names:
                found.setdefault(names.index(name), set(self.nulls)).add(spelling)
        return found

    def _names(self, file: int, path: str, header: bool) -> list[str]:
        """The names of a file's columns: of its first row, or numbers."""
        index = self.rows.indexes[file]
        if len(index) == 0:
            if header:
                raise SourceError("E0810", f"`{path}` is empty: it has no header line",
                                  ("`header=false` reads tables without one",))
            return []
        try:
            cells = self._cells(self.rows.raw(file, 0))
            names = [c.decode("utf-8") for c, _ in cells]
        except BadRecord as bad:
            raise SourceError("E0810", f"the first row of `{path}` can't be read: {bad.reason}") from None
        except UnicodeDecodeError:
            raise SourceError("E0810", f"the header line of `{path}` isn't UTF-8 text") from None
        return names if header else [str(i) for i in range(len(names))]

    def _place(self, path: str, names: list[str], alternatives: tuple[str, ...], w: Wanted, header: bool) -> int:
        for name in alternatives:
            if names.count(name) > 1:
                raise SourceError("E0602", f"`{path}` has two columns `{name}`", (), w.field)
            if name in names:
                return names.index(name)
        if not names:
            return 0   # a file without rows
        error = absent(path, "column", alternatives, names, w.field)
        if not header:
            error.notes = ('columns without a header line are named by number: from "0"', *error.notes)
        elif alternatives[0].isdigit():
            error.notes = (*error.notes, "`header=false` reads tables without a header line, their columns by number")
        elif len(names) == 1:
            error.notes = (*error.notes, self._other_delimiter(names[0]))
        raise error

    def _other_delimiter(self, line: str) -> str:
        """What to say of a header line that is one name."""
        other = next((d for d in "\t;|," if d in line and d.encode() != self.delimiter), None)
        mine = self.delimiter.decode().replace("\t", "\\t")
        if other is None:
            return f'the delimiter is "{mine}"; `delimiter=` says otherwise'
        if other == "\t":
            return f'the delimiter is "{mine}", and this line has tabs: `tsv` reads such tables'
        return f'the delimiter is "{mine}", and this line has `{other}`: delimiter="{other}"'

    def _cells(self, raw: bytes) -> list[Cell]:
        """The fields of one row. Raises BadRecord."""
        raw = re.sub(rb"(?:\r?\n)+\Z", b"", raw)
        if b'"' not in raw:
            return [(c, False) for c in raw.split(self.delimiter)]
        cells: list[Cell] = []
        at = 0
        while True:
            match = self.field.match(raw, at)
            if match is None:
                wrong = "is never closed" if raw[at : at + 1] == b'"' and _open(raw, at) else "is followed by more of its field"
                if b'\\"' in raw:
                    wrong += ': a quote inside it is written `""`, not `\\"`'
                raise BadRecord("E0801", f"a quoted field {wrong}")
            quoted = match[1] is not None
            cells.append((match[1].replace(b'""', b'"') if quoted else match[2], quoted))
            if not match[3]:
                return cells
            at = match.end()

    def __len__(self) -> int:
        return int(self.rows.starts[-1])

    def read(self, index: int) -> dict[str, Any]:
        return self._fields(self.rows.raw(*self.rows.place(index)), index)

    def _fields(self, raw: bytes, index: int) -> dict[str, Any]:
        file, _ = self.rows.place(index)
        cells = self._cells(raw)
        if len(cells) != self.width[file]:
            raise BadRecord("E0801", f"this row has {len(cells)} fields, not {self.width[file]}")
        out = {}
        for w, places in zip(self.wanted, self.places[file]):
            values = [self._value(cells[p], w, self.nulls_at[file].get(p, self.nulls)) for p in places]
            out[w.field] = values[0] if len(w.names) == 1 else stack_values(values, w)
        return out

    def _value(self, cell: Cell, w: Wanted, nulls: set[bytes]) -> Any:
        data, quoted = cell
        if data in nulls and not quoted:
            if w.missing:
                return None
            if w.dtype is not None or data:
                raise BadRecord("E0602", f"`{w.field}` is missing, and {w.text} has no `?`")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRecord("E0801", f"`{w.field}` isn't UTF-8 text: byte {error.start:,} is {data[error.start]:#04x}") from None
        return text if w.dtype is None else _number(text, w)

    def read_many(self, indexes: NDArray[np.int64]) -> tuple[dict[str, Any], dict[int, BadRecord]]:
        """Column by column where all rows are plain; else row by row."""
        files = np.searchsorted(self.rows.starts, indexes, side="right") - 1
        if len(indexes) and (files == files[0]).all():
            try:
                return self._columns(self.rows.many(indexes), int(files[0])), {}
            except (_Odd, ValueError, OverflowError, BadRecord):
                pass
        return read_rows(self, indexes, [w.field for w in self.wanted])

    def _columns(self, raw: list[bytes], file: int) -> dict[str, Any]:
        """The fields of rows that need no second look. Raises _Odd or ValueError for others."""
        split: list[list[bytes]] = []
        for data in raw:
            if b'"' in data or data.endswith(b"\n\n") or not data.endswith(b"\n"):
                raise _Odd
            split.append(data[:-2].split(self.delimiter) if data.endswith(b"\r\n") else data[:-1].split(self.delimiter))
        if set(map(len, split)) != {self.width[file]}:
            raise _Odd
        by_place = list(zip(*split))
        out: dict[str, Any] = {}
        for w, places in zip(self.wanted, self.places[file]):
            made = [_column(by_place[p], w, self.nulls_at[file].get(p, self.nulls)) for p in places]
            if len(w.names) == 1:
                out[w.field] = made[0]
            elif w.dtype is None:
                out[w.field] = text_array([t for row in zip(*made) for t in row], (len(raw), len(made)), w)
            else:
                joined: Any = np.ma.stack if w.missing else np.stack
                out[w.field] = joined(made, axis=1)
        return out

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        return row_ids(self.rows.starts, indexes)

    def name(self, index: int) -> str:
        return self.rows.name(index)

    def arrays(self) -> None:
        return None


class TsvSource(CsvSource):
    """The same with tabs between fields."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        super().__init__(paths, {"delimiter": "\t", **options}, columns)


class _Odd(Exception):
    """A row that only the slow way reads."""


def _delimiter(text: str) -> bytes:
    data = text.encode("utf-8")
    if len(data) != 1 or data in b'"\r\n':
        raise SourceError("E0810", "`delimiter` is one ASCII character, no quote and no line end", ('for tabs: delimiter="\\t"',))
    return data


def _own_null(text: str) -> tuple[str, bytes]:
    name, equals, spelling = text.partition("=")
    if not equals or not name:
        raise SourceError("E0810", f"`nulls_of` holds `{text[:40]}`: write a column and a spelling, such as `age=-1`")
    return name, spelling.encode("utf-8")


def _open(raw: bytes, at: int) -> bool:
    """Is the quote at `at` never closed?"""
    return re.match(rb'"(?:[^"]|"")*+\Z', raw[at:], re.DOTALL) is not None


def _number(text: str, w: Wanted) -> Any:
    """A cell as a number; one of another form is a bad record."""
    value = number_of(text.strip(), w.word, f"`{w.field}`")
    return value.astype(w.dtype) if w.word == "bf16" else value


def _column(cells: Sequence[bytes], w: Wanted, nulls: set[bytes]) -> Any:
    """A column of cells that are all in order: an array (masked with `?`) or a list of texts. Raises ValueError, _Odd."""
    gone = [c in nulls for c in cells]
    some = any(gone)
    if w.dtype is None:
        if some and not w.missing:
            raise _Odd
        texts = [c.decode("utf-8") for c in cells]
        return [None if g else t for t, g in zip(texts, gone)] if some else texts
    if w.word in ("bool", "bf16") or (some and not w.missing):
        raise _Odd
    joined = b"".join(cells)
    if b"_" in joined or not joined.isascii():
        raise _Odd
    parse: Callable[[bytes], Any] = int if w.word in INTEGERS else float
    numbers = [parse(b"0" if g else c) for c, g in zip(cells, gone)] if some else list(map(parse, cells))
    if w.word in INTEGERS:
        info = np.iinfo(w.dtype)
        if min(numbers) < info.min or max(numbers) > info.max:
            raise _Odd
    with np.errstate(over="ignore"):
        values = np.array(numbers, w.dtype)
    return np.ma.MaskedArray(values, np.array(gone)) if w.missing else values
