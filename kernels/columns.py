"""Columns of table sources: a schema's type taken apart, and values of one block of rows for each column.

A decoder (Parquet, Arrow) makes one `Values` for each column of a block; a source then takes single rows or many at once.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ops import BadRecord
from .sources import Column, SourceError, numpy_name
from .words import Coded, Words, united

Ints = NDArray[np.int64]
TEXTS = ("bytes", "text", "path")
MISSING, UNLIKE, RANGE = 1, 2, 3   # what is wrong with a row, beside its shape
SHAPE = 4


@dataclass(frozen=True)
class Wanted:
    """A field of the schema. `names`: for each stacked column its alternatives; `dims`: numbers or names, the stack's first."""

    field: str
    names: tuple[tuple[str, ...], ...]
    word: str
    missing: bool
    dims: tuple[int | str, ...]
    text: str

    @property
    def element(self) -> tuple[int | str, ...]:
        """The dims of one column of the data."""
        return self.dims[1:] if len(self.names) > 1 else self.dims

    @property
    def dtype(self) -> Any:
        """The NumPy dtype, None for texts and bytes."""
        return None if self.word in TEXTS else dtype_of(self.word)


def dtype_of(word: str) -> Any:
    """The NumPy dtype of a number's dtype word."""
    if word == "bool":
        return np.dtype(np.bool_)
    if word == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(numpy_name(word))


def wanted(column: Column) -> Wanted:
    """The triple (field, names, type text) taken apart."""
    field, names, text = column
    match = re.fullmatch(r"(\w+)(\??)(?:\[(.*)\])?", text)
    assert match is not None, text
    dims = tuple(int(d) if d.strip().isdigit() else d.strip() for d in match[3].split(",")) if match[3] else ()
    return Wanted(field, tuple(tuple(n) for n in names), match[1], bool(match[2]), dims, text)


def absent(path: str, what: str, names: Sequence[str], present: Sequence[str], field: str) -> SourceError:
    """E0601: none of `names` is in the data; says what is, and what is like it."""
    alike = difflib.get_close_matches(names[0], present, 1, 0.6)
    listed = ", ".join(f"`{n}`" for n in present[:12]) + (f" … ({len(present):,} in all)" if len(present) > 12 else "")
    notes = ((f"there is a similar name: `{alike[0]}`",) if alike else ()) + (f"its columns: {listed or 'none'}",)
    return SourceError("E0601", f"`{path}` has no {what} `{'|'.join(names)}`", notes, field)


def unlike(path: str, name: str, holds: str, column: Wanted, *notes: str) -> SourceError:
    """E0602: the data has another type than the schema says."""
    notes = notes or ("the schema must name the type that the data has; a line below may convert it",)
    return SourceError("E0602", f"`{name}` of `{path}` holds {holds}, the schema says {column.text}", notes, column.field)


@dataclass
class Values:
    """One column of a block. `bad[r]`: 0 or what is wrong with row r.

    `flat` holds all rows, or, where `starts` is given, all elements, row after row: row r's begin at `starts[r]` and have
    the dims `sizes[r]`. Texts: `objects(a, b)` gives elements a to b, `taken(rows)` those of a column without dims (None if
    it can't at once); `gone[r]`: the row is missing as a whole.
    """

    column: Wanted
    flat: NDArray[Any] | None
    mask: NDArray[np.bool_] | None
    bad: NDArray[np.uint8] | None
    starts: Ints | None = None
    sizes: Ints | None = None
    objects: Callable[[int, int], list[Any]] | None = None
    taken: Callable[[Ints | slice], Any] | None = None
    gone: NDArray[np.bool_] | None = None
    words: Words | None = None        # with `codes`: texts as places in them, -1 where missing
    codes: NDArray[np.int32] | None = None
    bytes: int = 0

    def at(self, r: int) -> Any:
        """Row r as the language's value; raises BadRecord."""
        if self.bad is not None and self.bad[r]:
            raise self.problem(r)
        if self.words is not None and self.codes is not None:
            value = Coded(self.words, self.codes[r], self.column.missing).array
            return value if self.column.element else None if self.codes[r] < 0 else value[()]
        if self.objects is not None:
            return self._texts(r, self.objects)
        assert self.flat is not None
        if self.starts is None:
            value, gone = self.flat[r], None if self.mask is None else self.mask[r]
        else:
            here, size = self._place(r)
            value = self.flat[here].reshape(size)
            gone = None if self.mask is None else self.mask[here].reshape(size)
        if not self.column.element:
            return None if gone is not None and gone else value
        return value if gone is None else np.ma.MaskedArray(value, gone)

    def _place(self, r: int) -> tuple[slice, tuple[int, ...]]:
        assert self.starts is not None and self.sizes is not None
        return slice(int(self.starts[r]), int(self.starts[r + 1])), tuple(int(s) for s in self.sizes[r])

    def _texts(self, r: int, objects: Callable[[int, int], list[Any]]) -> Any:
        if not self.column.element:
            return self._text(objects(r, r + 1)[0])
        here, size = self._place(r)
        if self.gone is not None and self.gone[r]:
            size = tuple(d if isinstance(d, int) else 0 for d in self.column.element)
            return text_array([None] * int(np.prod(size)), size, self.column)
        return text_array([self._text(v) for v in objects(here.start, here.stop)], size, self.column)

    def _text(self, value: Any) -> Any:
        if value is None and not self.column.missing:
            raise BadRecord("E0602", self.says(MISSING))
        if isinstance(value, bytes) and self.column.word != "bytes":
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadRecord("E0801", f"`{self.column.field}` isn't UTF-8 text: byte {error.start:,} is "
                                f"{value[error.start]:#04x}") from None
        return value

    def problem(self, r: int) -> BadRecord:
        assert self.bad is not None
        code = int(self.bad[r])
        return BadRecord({MISSING: "E0602", SHAPE: "E0803"}.get(code, "E0801"), self.says(code, r))

    def says(self, code: int, r: int = 0) -> str:
        name = f"`{self.column.field}`"
        match code:
            case 1:
                return f"{name} is missing here (null), and {self.column.text} has no `?`"
            case 2:
                return f"the lists in {name} have unlike lengths"
            case 3:
                return f"{name} is past what i64 microseconds hold"
        assert self.sizes is not None
        return f"{name} has shape {[int(s) for s in self.sizes[r]]}, the schema says {self.column.text}"

    def many(self, rows: Ints | slice) -> Many | Coded | None:
        """Rows as one array; None where they have no one size. Bad rows: anything."""
        if self.words is not None and self.codes is not None:
            return Coded(self.words, self.codes[rows], self.column.missing)
        if self.taken is not None:
            texts = self.taken(rows)
            return None if texts is None else Many(*_filled(texts, self.column))
        if self.flat is None or self.starts is not None:
            return None
        return Many(self.flat[rows], None if self.mask is None else self.mask[rows])


@dataclass(frozen=True)
class Many:
    """Rows of a column; `mask` (True where missing) is None for a type without `?`."""

    values: NDArray[Any]
    mask: NDArray[np.bool_] | None

    @property
    def array(self) -> Any:
        return self.values if self.mask is None else np.ma.MaskedArray(self.values, self.mask)


class Stacked(list[Values]):
    """The columns of a field beside each other, row by row; those of a field with one column have no dimension of their own.

    Numbers in `flat` (anything below `mask`), or texts as places in `words`.
    """

    def __init__(self, column: Wanted, flat: NDArray[Any] | None, mask: NDArray[np.bool_] | None, bad: NDArray[np.uint8] | None,
                 words: Words | None = None, codes: NDArray[np.int32] | None = None):
        self.column, self.flat, self.mask, self.bad, self.words, self.codes = column, flat, mask, bad, words, codes
        self.bytes = sum(a.nbytes for a in (flat, mask, bad, codes) if a is not None) + (words.array.nbytes if words else 0)
        super().__init__(self._columns())

    def _columns(self) -> list[Values]:
        parts = (self.flat, self.mask, self.bad, self.codes)
        if len(self.column.names) == 1:
            return [self._values(*parts)]
        return [self._values(*(None if a is None else a[:, j] for a in parts)) for j in range(len(self.column.names))]

    def _values(self, flat: Any, mask: Any, bad: Any, codes: Any) -> Values:
        return Values(self.column, flat, mask, bad, words=self.words, codes=codes, bytes=self.bytes // len(self.column.names))

    def over(self, words: Words, codes: NDArray[np.int32]) -> None:
        """Take the words of the whole block."""
        self.words, self.codes = words, codes
        self[:] = self._columns()

    def many(self, rows: Ints | slice) -> Many | Coded:
        """Rows as one array. Bad rows: anything."""
        if self.words is not None and self.codes is not None:
            return Coded(self.words, self.codes[rows], self.column.missing)
        assert self.flat is not None
        return Many(self.flat[rows], None if self.mask is None else self.mask[rows])


def unite(fields: Iterable[list[Values]]) -> None:
    """Give the text columns of a block the same words."""
    parts: list[Values | Stacked] = []
    for columns in fields:
        parts += [columns] if isinstance(columns, Stacked) else columns
    texts = [v for v in parts if v.words is not None and v.codes is not None]
    if len(texts) > 1:
        words, codes = united([(v.words, v.codes) for v in texts if v.words is not None and v.codes is not None])
        for v, own in zip(texts, codes):
            if isinstance(v, Stacked):
                v.over(words, own)
            else:
                v.words, v.codes = words, own


def text_array(values: Any, size: tuple[int, ...], column: Wanted) -> Any:
    """Texts, a list or an array of objects, as an object array; with `?` masked, with "" below the mask."""
    out, gone = _filled(values, column)
    return out.reshape(size) if gone is None else np.ma.MaskedArray(out.reshape(size), gone.reshape(size))


def _filled(values: Any, column: Wanted) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Texts with "" where they are missing, and where that is, if the type has `?`."""
    out = np.empty(len(values), object)
    out[:] = values
    if not column.missing:
        return out, None
    gone = np.fromiter((v is None for v in out.tolist()), np.bool_, len(out))
    out[gone] = b"" if column.word == "bytes" else ""
    return out, gone


def stack_values(values: list[Any], column: Wanted) -> Any:
    """One value of each of several columns along a new first dimension; with `?` masked."""
    try:
        if column.dtype is None and not column.element:
            return text_array(values, (len(values),), column)
        gone = [np.asarray(v is None) if v is None else np.ma.getmaskarray(v) if isinstance(v, np.ma.MaskedArray)
                else np.zeros(np.shape(v), np.bool_) for v in values]
        plain = [np.zeros((), column.dtype) if v is None else v.data if isinstance(v, np.ma.MaskedArray) else v for v in values]
        stacked = np.stack(plain)
        return np.ma.MaskedArray(stacked, np.stack(gone)) if column.missing else stacked
    except ValueError:
        raise BadRecord("E0801", f"the columns of `{column.field}` have unlike shapes") from None
