"""Columns of Arrow tables as `Values`: a block of rows decoded to NumPy.

Numbers keep their type; decimals become f64, correctly rounded; times become i64 microseconds (UTC; of the day where they
have no date), rounded down. What lies under a null may be anything, and is never read.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrowtypes import is_list
from .columns import MISSING, RANGE, SHAPE, UNLIKE, Values, Wanted
from .words import coded, raw, valid

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def values_of(column: Any, steps: Sequence[str], w: Wanted) -> Values:
    """A column of a table (chunks of it) as values of the schema's type. Raises ValueError where it is damaged."""
    joined = one(column)
    texts = None if steps or not of_texts(joined.type, w) else coded(joined)
    if texts is not None:
        words, codes = texts
        wrong = np.where(codes < 0, np.uint8(MISSING), np.uint8(0)) if not w.missing and joined.null_count else None
        return Values(w, None, None, wrong, words=words, codes=codes, bytes=codes.nbytes + words.array.nbytes)
    array, rest = storage(joined), list(steps)
    if not rest and not is_list(array.type) and not w.element and w.dtype is not None:
        return _numbers_of(array, w)
    lists = Lists(len(array), w)
    while is_list(array.type) or rest:
        if is_list(array.type):
            lengths = array.value_lengths()
            lists.level(plain(lengths, 0).astype(np.int64), nulls(lengths))
            array = storage(array.flatten())   # leaves out what lies under nulls
        else:
            array = storage(array.flatten()[array.type.get_field_index(rest.pop(0))])
    if len(array) != int(lists.each[-1]):
        raise ValueError("its lists are damaged")
    gone = nulls(array)
    if not w.missing:
        lists.mark(gone, MISSING)
    if w.dtype is None:
        lists.check()
        made = Values(w, None, None, lists.found, starts=lists.each, sizes=lists.sizes, objects=_objects(array),
                      gone=lists.gone, bytes=array.nbytes)
        return made if w.element else Values(w, None, None, lists.found, objects=made.objects, taken=_taken(array, w),
                                             bytes=array.nbytes)
    flat, past = numbers(array, w)
    lists.mark(past, RANGE)
    lists.check()
    if not lists.fixed:
        return Values(w, flat, gone if w.missing else None, lists.found, starts=lists.each, sizes=lists.sizes,
                      bytes=flat.nbytes * 2)
    flat, gone = lists.dense(flat, gone)
    return Values(w, flat, gone if w.missing else None, lists.found, sizes=lists.sizes, bytes=flat.nbytes + gone.nbytes)


def _numbers_of(array: Any, w: Wanted) -> Values:
    """A column with one number in each row: what `values_of` makes of it without lists to look at."""
    flat, past = numbers(array, w)
    gone = nulls(array) if w.missing or array.null_count else None
    bad = np.zeros(len(array), np.uint8)
    if gone is not None and not w.missing:
        bad[gone] = MISSING
    if past is not None:
        bad[past] = RANGE
    mask = gone if w.missing else None
    return Values(w, flat, mask, bad if bad.any() else None, bytes=flat.nbytes + len(array))


def of_texts(type: Any, w: Wanted) -> bool:
    """Is it a column of texts, one in each row, that the schema has as text."""
    import pyarrow as pa

    t = pa.types
    value = type.value_type if t.is_dictionary(type) else type
    return w.word in ("text", "path") and not w.element and (t.is_string(value) or t.is_large_string(value))


def one(column: Any) -> Any:
    """One array of a column's chunks."""
    import pyarrow as pa

    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    if column.type in wide and column.nbytes > 1 << 31:
        column = column.cast(wide[column.type])
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        if joined.num_chunks > 1:
            raise ValueError(f"{joined.num_chunks} chunks of {joined.type} don't fit together")
        joined = joined.chunk(0) if joined.num_chunks else pa.array([], joined.type)
    return joined


def storage(array: Any) -> Any:
    """Plain values and lists instead of dictionaries, extension types, runs and views."""
    import pyarrow as pa
    import pyarrow.compute as pc

    t = pa.types
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif t.is_dictionary(array.type):
            words = array.dictionary
            plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(words.type)
            if plain is not None:   # pyarrow can't decode these
                array = pa.DictionaryArray.from_arrays(array.indices, words.cast(plain))
            array = array.dictionary_decode()
        elif t.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif t.is_fixed_size_list(array.type) or t.is_list_view(array.type) or t.is_large_list_view(array.type):
            array = array.cast(pa.large_list(array.type.value_type))
        else:
            return array


class Lists:
    """The lists of a column, level by level. `each`: where each row's elements begin on the level reached so far."""

    def __init__(self, rows: int, w: Wanted):
        self.rows, self.w = rows, w
        self.each: Ints = np.arange(rows + 1)
        self.sizes = np.zeros((rows, len(w.element)), np.int64)
        self.bad = np.zeros(rows, np.uint8)
        self.gone: Bools = np.zeros(rows, np.bool_)   # rows that are missing as a whole, which `?` allows
        self.depth = 0
        self.fixed = all(isinstance(d, int) for d in w.element)

    def level(self, lengths: Ints, gone: Bools) -> None:
        if len(lengths) != int(self.each[-1]):
            raise ValueError("its lists are damaged")
        if self.depth == 0 and self.w.missing:
            self.gone = gone
        elif self.depth or isinstance(self.w.element[0], int):   # else it is a list without elements
            self.mark(gone, MISSING)
        counts = np.diff(self.each)
        some = counts > 0
        first = np.zeros(self.rows, np.int64)
        first[some] = lengths[self.each[:-1][some]]
        self.sizes[:, self.depth] = first
        self.mark(lengths != np.repeat(first, counts), UNLIKE)
        self.each = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[self.each]
        self.depth += 1

    def mark(self, elements: Bools | None, problem: int) -> None:
        """Rows with such elements, of the level reached so far, are bad."""
        if elements is not None and elements.any():
            self.bad[np.searchsorted(self.each, np.flatnonzero(elements), side="right") - 1] = problem

    def check(self) -> None:
        """Compare sizes with the schema's; inner sizes of a row without elements are what the schema says."""
        for axis, dim in enumerate(self.w.element):
            if isinstance(dim, int):
                self.sizes[(self.sizes[:, :axis] == 0).any(1), axis] = dim
                self.bad[(self.sizes[:, axis] != dim) & (self.bad == 0) & ~self.gone] = SHAPE

    @property
    def found(self) -> NDArray[np.uint8] | None:
        return self.bad if self.bad.any() else None

    def dense(self, flat: NDArray[Any], gone: Bools) -> tuple[NDArray[Any], Bools]:
        """All rows at the schema's dims; rows that are missing as a whole are masked, bad ones hold zeros."""
        dims = tuple(int(d) for d in self.w.element)
        if not dims:
            return flat, gone
        good = (self.bad == 0) & ~self.gone
        if good.all():
            return flat.reshape(self.rows, *dims), gone.reshape(self.rows, *dims)
        each = int(np.prod(dims))
        out, mask = np.zeros((self.rows, each), flat.dtype), np.ones((self.rows, each), np.bool_)
        places = self.each[:-1][good][:, None] + np.arange(each)
        out[good], mask[good] = flat[places], gone[places]
        return out.reshape(self.rows, *dims), mask.reshape(self.rows, *dims)


def nulls(array: Any) -> Bools:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    if array.buffers()[0] is not None:
        return ~valid(array)
    found: Bools = array.is_null().to_numpy(zero_copy_only=False)
    return found


def plain(array: Any, zero: Any) -> NDArray[Any]:
    """A primitive array as NumPy, zeros under nulls."""
    filled = array.fill_null(zero) if array.null_count else array
    found: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return found


def numbers(array: Any, w: Wanted) -> tuple[NDArray[Any], Bools | None]:
    """All elements as the schema's dtype, and which of them are past it."""
    import pyarrow as pa

    t = pa.types
    if t.is_null(array.type):
        return np.zeros(len(array), w.dtype), None
    if t.is_decimal(array.type):
        return decimals(array), None
    if t.is_timestamp(array.type) or t.is_time(array.type) or t.is_duration(array.type) or t.is_date(array.type):
        return times(array)
    if t.is_integer(array.type) or t.is_floating(array.type):
        found = raw(array, np.dtype(array.type.to_pandas_dtype()))
    else:
        found = plain(array, False if t.is_boolean(array.type) else 0)
    if found.dtype != w.dtype:
        raise ValueError(f"it holds {array.type}, not {w.word}")
    return found, None


SCALES = {"s": 1_000_000, "ms": 1000, "us": 1}


def times(array: Any) -> tuple[Ints, Bools | None]:
    """Microseconds; nanoseconds are rounded down, what is past i64 is said."""
    import pyarrow as pa

    unit = {pa.date32(): "days", pa.date64(): "ms"}.get(array.type) or array.type.unit
    wide = array.type.bit_width == 64
    raw = plain(array.view(pa.int64() if wide else pa.int32()), 0).astype(np.int64)
    if unit == "ns":
        return raw // 1000, None
    factor = 86_400_000_000 if unit == "days" else SCALES[unit]
    limit = np.iinfo(np.int64).max // factor
    past = np.abs(raw) > limit if factor > 1 else np.zeros(len(raw), np.bool_)
    return np.where(past, 0, raw) * factor, past


def decimals(array: Any) -> NDArray[np.float64]:
    """Decimals as the nearest f64."""
    scale, precision = array.type.scale, array.type.precision
    if precision <= 15 and 0 <= scale <= 22 and array.type.bit_width == 128:   # both parts of the quotient are exact
        cells = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array)) : 2]
        quotients: NDArray[np.float64] = np.where(nulls(array), 0, cells) / 10.0**scale
        return quotients
    return np.array([0.0 if v is None else float(v) for v in array.to_pylist()], np.float64)


def _objects(array: Any) -> Callable[[int, int], list[Any]]:
    """Elements as str or bytes, None for missing ones; text that isn't UTF-8 stays bytes."""

    def between(a: int, b: int) -> list[Any]:
        part = array.slice(a, b - a)
        try:
            return list(part.to_pylist())
        except UnicodeDecodeError:
            return [_bytes(v) for v in part]

    return between


def _taken(array: Any, w: Wanted) -> Callable[[Ints | slice], Any]:
    """Elements at any places as an array of objects; None where they must be looked at one by one."""
    import pyarrow as pa

    t = pa.types
    text = t.is_string(array.type) or t.is_large_string(array.type)
    known = text if w.word != "bytes" else t.is_binary(array.type) or t.is_large_binary(array.type)

    def at(rows: Ints | slice) -> Any:
        if not known:
            return None
        try:
            if isinstance(rows, slice):
                return array.slice(rows.start, rows.stop - rows.start).to_numpy(zero_copy_only=False)
            return array.take(pa.array(rows)).to_numpy(zero_copy_only=False)
        except (UnicodeDecodeError, pa.ArrowException):
            return None

    return at


def _bytes(value: Any) -> Any:
    return value.as_buffer().to_pybytes() if value.is_valid else None
