"""Where records come from: `open_source(kind, paths, options, columns)` gives records by number.

A source lists its records once (file, number in the file) and reads any of them at random. What can't be
read is a record of its own that raises `BadRecord` with the reason, so that the program's `skip_bad`
decides; what is wrong with the source as a whole (no such file, no such column) is a `SourceError`.
Columns are (field, names, type text) triples: one entry in `names` per column that is stacked into the
field, each a tuple of alternatives of which the first that is there counts; the type as the schema writes it.
"""
from __future__ import annotations

import glob
import os
import re
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .ops import BadRecord

# what NumPy, zipfile and zlib raise on damaged `.npy` and `.npz` files, beside OSError
DAMAGE = (ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError, OverflowError, SyntaxError, struct.error,
          zlib.error, zipfile.BadZipFile, tokenize.TokenError)
Column = tuple[str, tuple[tuple[str, ...], ...], str]
KINDS = {  # kinds of sources, and the class that reads them
    "tar": ("tar", "TarSource"), "folder": ("folder", "FolderSource"), "files": ("files", "FilesSource"),
    "audio": ("files", "AudioSource"), "npz": ("arrays", "ArraySource"), "npy": ("arrays", "ArraySource"),
    "bin": ("binary", "BinarySource"), "parquet": ("parquet", "ParquetSource"), "arrow": ("arrow", "ArrowSource"),
    "csv": ("csvtext", "CsvSource"), "tsv": ("csvtext", "TsvSource"), "jsonl": ("jsonl", "JsonlSource"),
    "lines": ("lines", "LinesSource"), "lmdb": ("lmdb", "LmdbSource"),
}
READABLE = tuple(KINDS)  # kinds that `open_source` opens
FILE_SHIFT = 40  # a record's id is its file's number << 40 | its number in the file


class SourceError(Exception):
    """The source as a whole can't be read: `code` E0601 … or E0810, `title`, and what helps."""

    def __init__(self, code: str, title: str, notes: tuple[str, ...] = (), field: str | None = None):
        self.code, self.title, self.notes, self.field = code, title, notes, field
        super().__init__(title)


class Source(Protocol):
    """Records by number. `read` and `name` may be called from several threads at once."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> dict[str, Any]:
        """The fields of a record: bytes, str, NumPy scalars and arrays, None for a missing one. Raises BadRecord."""
        ...

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The records' ids: the same whatever else is read."""
        ...

    def name(self, index: int) -> str:
        """For people: `key of shard.tar`."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]] | None:
        """All records of each field as one array, where the data already lies in memory like that."""
        ...


class ManySource(Source, Protocol):
    """A source that reads many records at once faster than one by one."""

    def read_many(self, indexes: NDArray[np.int64]) -> tuple[dict[str, Any], dict[int, BadRecord]]:
        """For each field an array (masked where values are missing) or a list, one row per index; and what is wrong,
        by place in `indexes`, where a row holds anything. Equal to `read` of each."""
        ...


def expand(paths: Sequence[str]) -> list[str]:
    """Files matched by paths or addresses with `*`, `?` and `**`: each path's in bytewise order.

    Raises SourceError E0810 where a path matches nothing; an address without a pattern isn't asked for yet.
    """
    from . import fetch

    found: list[str] = []
    for given in paths:
        if fetch.is_remote(given):
            matched = fetch.matched(given) if fetch.has_magic(given) else [given]
            if not matched:
                raise SourceError("E0810", f"no file matches `{fetch.shown(given)}`")
            found += matched
            continue
        path = os.path.expanduser(given)
        if glob.has_magic(path):
            matched = sorted(glob.glob(path, recursive=True), key=os.fsencode)
            if not matched:
                raise SourceError("E0810", f"no file matches `{given}`", nearest(path))
            found += matched
        elif os.path.exists(path):
            found.append(path)
        else:
            raise SourceError("E0810", f"there is no file `{given}`", nearest(path))
    special = next((p for p in found if _special(p)), None)
    if special is not None:
        raise SourceError("E0810", f"`{special}` is no file but a pipe, a socket or a device",
                          ("records are read by their place, so write its content to a file first",))
    return found


def files_of(paths: Sequence[str]) -> list[str]:
    """Files matched by paths, for sources that read no folders. Raises SourceError E0810, also where one is a folder."""
    found = expand(paths)
    folder = next((p for p in found if os.path.isdir(p)), None)
    if folder is not None:
        raise SourceError("E0810", f"`{folder}` is a folder", _inside(folder))
    return found


def _inside(folder: str) -> tuple[str, ...]:
    """A note with the pattern that matches the files in a folder, if they end alike."""
    for below, _, names in os.walk(folder):
        ends = [os.path.splitext(n)[1] for n in names if not n.startswith((".", "_"))]
        if ends:
            deep = "" if below == folder else "**/"
            return (f'its files: "{os.path.join(folder, deep)}*{max(ends, key=ends.count)}"',)
    return ("there are no files in it",)


def _special(path: str) -> bool:
    """What can't be read twice, and would be waited for without end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):   # addresses, and what has gone: said where it is opened
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def nearest(path: str) -> tuple[str, ...]:
    """A note that says which part of a path does exist."""
    folder = os.path.dirname(path) or "."
    while folder and not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    folder = folder or "."
    if not os.path.isdir(folder):
        return ()
    listed = sorted(os.listdir(folder))
    shown = ", ".join(listed[:8]) + (f" … ({len(listed):,} entries)" if len(listed) > 8 else "")
    return (f"`{os.path.abspath(folder)}` holds: {shown or 'nothing'}",)


INTEGERS = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"}
FLOATS = {"f16", "f32", "f64"}


def value_of(data: bytes, type_text: str, what: str) -> Any:
    """The bytes of one member as a value of the schema's type; raises BadRecord.

    bytes as they are, text as UTF-8, numbers as decimal text (a `.cls` member), arrays as `.npy`.
    """
    word = _word(type_text)
    if "[" in type_text:
        return _npy(data, type_text, word, what)
    if word == "bytes":
        return data
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecord("E0801", f"{what} isn't UTF-8 text: byte {error.start:,} is {data[error.start]:#04x}") from None
    if word in ("text", "path"):
        return text
    return number_of(text.strip(), word, what)


@cache
def _word(type_text: str) -> str:
    """The dtype that a type begins with."""
    dtype = re.match(r"\w+", type_text)
    return dtype.group(0) if dtype else type_text


@cache
def _integers(word: str) -> tuple[int, int, Any]:
    """Least and most of a dtype, and what makes one of it."""
    info = np.iinfo(numpy_name(word))
    return int(info.min), int(info.max), info.dtype.type


def number_of(text: str, word: str, what: str) -> Any:
    """Decimal text as a number of dtype `word`, exact for integers; raises BadRecord."""
    shown = text[:20] + ("…" if len(text) > 20 else "")
    try:
        if "_" in text or not text.isascii():   # Python would take these
            raise ValueError
        if word in INTEGERS:
            (least, most, made), value = _integers(word), int(text[:40])
            if not least <= value <= most or len(text) > 40:
                raise BadRecord("E0801", f"{what} holds {shown}, which doesn't fit {word}")
            return made(value)
        if word == "bool":
            return np.bool_({"0": False, "1": True, "false": False, "true": True}[text.lower()])
        return np.dtype(numpy_name("f64" if word == "bf16" else word)).type(float(text))
    except (ValueError, KeyError, TypeError):
        raise BadRecord("E0801", f'{what} holds "{shown}", which is no {word}') from None


def numpy_name(word: str) -> str:
    kind = {"u": "uint", "i": "int", "f": "float"}[word[0]]
    return kind + str(int(word[1:]))


def _npy(data: bytes, type_text: str, word: str, what: str) -> NDArray[Any]:
    import io

    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (*DAMAGE, OSError) as error:
        raise BadRecord("E0801", f"{what} is no .npy array: {str(error)[:80]}") from None
    if word not in INTEGERS and word not in FLOATS and word != "bool":
        raise BadRecord("E0801", f"{what} can't be read as {type_text}: .npy files hold no {word}")
    wanted = np.dtype(bool if word == "bool" else numpy_name(word))
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype != wanted:
        raise BadRecord("E0801", f"{what} holds {array.dtype}, the schema says {type_text}")
    dims = type_text[type_text.index("[") + 1 : -1].split(",")
    if array.ndim != len(dims):
        raise BadRecord("E0801", f"{what} has {array.ndim} dimensions, the schema says {type_text}")
    return np.ascontiguousarray(array)


def shown(names: tuple[str, ...]) -> str:
    """The alternatives of one column as a schema writes them."""
    return "|".join(names)


def row_ids(starts: NDArray[np.int64], indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Ids of rows: file `f` holds the rows from `starts[f]` on."""
    if len(starts) == 2:
        return indexes.astype(np.uint64)
    files = np.searchsorted(starts, indexes, side="right") - 1
    return ((files << FILE_SHIFT) + indexes - starts[files]).astype(np.uint64)


def stacked(values: list[Any], what: str) -> Any:
    """One value per column: the value itself, or all of them along a new first dimension."""
    if len(values) == 1:
        return values[0]
    try:
        return np.stack([np.asarray(v) for v in values])
    except ValueError:
        raise BadRecord("E0801", f"the columns of {what} have unlike shapes") from None


def open_source(kind: str, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]) -> Source:
    """The records of a source; templates in `paths` are already filled in.

    Raises SourceError where the source as a whole can't be read.
    """
    if kind not in KINDS:
        raise SourceError("E0810", f"there is no source `{kind}`", (f"sources: {', '.join(KINDS)}",))
    module, name = KINDS[kind]
    opened: Source = getattr(import_module(f".{module}", __package__), name)(paths, options, columns)
    return opened
