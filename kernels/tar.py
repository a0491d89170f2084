"""Tar shards by the WebDataset rules, indexed once, then read at random; packed ones are unpacked into the cache.

Members that stand next to each other and share a key are one sample. The key is everything up to the
first dot after the last slash; the rest, in lower case, names the field. Members without a dot, hidden
files, `__meta__`-like names, directories and links are passed over. The column `__key__` is the key.
"""
from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from . import kept
from .compressed import Damaged
from .fetch import every
from .ops import BadRecord
from .sources import FILE_SHIFT, Column, SourceError, files_of, shown, stacked, value_of
from .storage import Files

BLOCK = 512
SCANNED = 1 << 20  # bytes that are read at once behind an archive's end
VERSION = 2  # of the index format
KEY = "__key__"  # a column that every sample has: its key


class Shard(msgspec.Struct):
    """The samples of one shard: `offsets[field][i]` and `sizes[field][i]`, size -1 where sample i lacks it.

    `faults` maps a sample's number to why it can't be read.
    """

    keys: list[str] = []
    offsets: dict[str, list[int]] = {}
    sizes: dict[str, list[int]] = {}
    faults: dict[int, str] = {}


def split_name(name: str) -> tuple[str, str] | None:
    """(key, field) of a member's name, None for those that are passed over."""
    folder, slash, base = name.rpartition("/")
    stem, dot, field = base.partition(".")
    if not dot or not stem or not field or (base.startswith("__") and base.endswith("__")):
        return None
    return folder + slash + stem, field.lower()


def scan(path: str) -> Shard:
    """Index one shard; damage becomes a fault of the sample it hits, never an exception. Raises SourceError."""
    return _scanned(Files([path]), 0)


def _scanned(files: Files, number: int) -> Shard:
    shard, name = Shard(), files.shown(number)
    try:
        size = files.size(number)
        with files.open(number) as file:
            if size == 0:
                _fault(shard, name, "the file is empty")
            else:
                _scan(shard, file, size, name)
    except OSError as error:
        _fault(shard, name, f"the file can't be read: {error.strerror}")
    except Damaged as error:
        _fault(shard, name, str(error))
    return shard


def _scan(shard: Shard, file: Any, size: int, shown: str) -> None:
    """Index an archive, and further ones that stand behind it in the file (`cat a.tar b.tar`)."""
    begin: int | None = 0
    while begin is not None:
        file.seek(begin)
        try:
            archive = tarfile.TarFile(fileobj=file)
        except (tarfile.TarError, EOFError, ValueError, OverflowError):
            if begin == 0:
                _fault(shard, shown, "this is no tar archive")
            return
        if begin and archive.firstmember is None:  # type: ignore[attr-defined]
            return   # what stands behind an archive's end and is none is padding
        begin = _scan_archive(shard, archive, file, size, shown)


def _scan_archive(shard: Shard, archive: tarfile.TarFile, file: Any, size: int, shown: str) -> int | None:
    """Index the members of one archive; returns where another may begin, None where nothing follows."""
    last: str | None = None
    end = archive.offset
    for member in _members(archive):
        end = archive.offset
        split = split_name(member.name) if member.isreg() else None
        if split is None:
            continue
        key, field = split
        if key != last:
            shard.keys.append(key)
            last = key
        number = len(shard.keys) - 1
        _place(shard, number, field, member)
        if member.issparse():
            shard.faults.setdefault(number, f"`{member.name}` is stored with holes: write the shard without `tar --sparse`")
        elif member.offset_data + member.size > size:
            shard.faults[number] = f"`{member.name}` is cut short: the shard ends at byte {size:,}"
            return None
    if not _ends_well(file, max(end, 0), size):
        _fault(shard, shown, f"the shard is damaged or cut at byte {end:,}")
        return None
    return _behind(file, max(end, 0))


def _behind(file: Any, at: int) -> int | None:
    """The first block from `at` on that holds more than zeros."""
    file.seek(at)
    while data := file.read(SCANNED):
        if data.count(0) < len(data):
            return at + (len(data) - len(data.lstrip(b"\0"))) // BLOCK * BLOCK
        at += len(data)
    return None


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members until the archive's end or its first damage; keeps none of them in memory."""
    while True:
        try:
            member = archive.next()
        except (tarfile.TarError, EOFError, ValueError, OverflowError, OSError):
            return
        if member is None:
            return
        archive.members = []  # type: ignore[attr-defined]
        yield member


def _place(shard: Shard, number: int, field: str, member: tarfile.TarInfo) -> None:
    offsets = shard.offsets.setdefault(field, [])
    sizes = shard.sizes.setdefault(field, [])
    if len(offsets) > number:
        shard.faults.setdefault(number, f"`{member.name}` stands in the shard twice")
        return
    gap = number - len(offsets)
    offsets.extend([0] * gap)
    sizes.extend([-1] * gap)
    offsets.append(member.offset_data)
    sizes.append(member.size)


def _fault(shard: Shard, key: str, reason: str) -> None:
    shard.faults[len(shard.keys)] = reason
    shard.keys.append(key)


def _ends_well(file: Any, end: int, size: int) -> bool:
    """A tar ends with zero blocks, or (some writers) right after its last member."""
    file.seek(end)
    tail = file.read(BLOCK)
    return not tail.strip(b"\0") and (end <= size)


def indexed(files: Files, number: int) -> Shard:
    """A shard's index, from the user's cache where the file hasn't changed since. Raises SourceError."""
    try:
        files.packed(number)
        cached = kept.place("tar", files.identity(number), str(VERSION))
        with open(cached, "rb") as file:
            return msgspec.msgpack.decode(file.read(), type=Shard)
    except FileNotFoundError:
        if not files.is_file(number):
            return _scanned(files, number)
    except (OSError, msgspec.DecodeError):
        return _scanned(files, number)
    shard = _scanned(files, number)
    kept.put(cached, lambda temporary: _save(temporary, shard))
    return shard


def _save(path: str, shard: Shard) -> None:
    with open(path, "wb") as file:
        file.write(msgspec.msgpack.encode(shard))


class TarSource:
    """All samples of all shards, in the order of the shards' names and within them."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        self.paths = files_of(paths)
        self.files = Files(self.paths, stream=bool(options.get("stream")))
        slow = bool(self.files.far) or any(not p.endswith(".tar") for p in self.paths)
        work = partial(indexed, self.files)
        shards = every(range(len(self.paths)), work) if slow else [work(n) for n in range(len(self.paths))]
        self.columns = list(columns)
        self.starts = np.cumsum([0] + [len(s.keys) for s in shards]).astype(np.int64)
        self.keys = [k for s in shards for k in s.keys]
        self.faults = {int(self.starts[n]) + i: r for n, s in enumerate(shards) for i, r in s.faults.items()}
        present = sorted({field for s in shards for field in s.offsets})
        self.places = {names: self._column(shards, self._present(names, present, field))
                       for field, columns_, _ in columns for names in columns_ if names != (KEY,)}

    def _present(self, names: tuple[str, ...], present: list[str], field: str) -> list[str]:
        """Those alternatives that some sample has; none at all is an error of the whole source."""
        found = [n for n in names if n in present]
        if not found and len(self.faults) < len(self.keys):
            listed = ", ".join(f"`{n}`" for n in present[:12])
            notes = (f"its members: {listed}", "checked against the shards' own index before any record is read")
            raise SourceError("E0601", f"no sample of `{self.paths[0]}` has a member `{shown(names)}`", notes, field)
        return found

    def _column(self, shards: list[Shard], names: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        offsets = np.zeros(len(self.keys), np.int64)
        sizes = np.full(len(self.keys), -1, np.int64)
        for name in reversed(names):
            for start, shard in zip(self.starts, shards):
                here = np.array(shard.sizes.get(name, ()), np.int64)
                rows = np.flatnonzero(here >= 0)
                sizes[start + rows] = here[rows]
                offsets[start + rows] = np.array(shard.offsets.get(name, ()), np.int64)[rows]
        return offsets, sizes

    def __len__(self) -> int:
        return len(self.keys)

    def _shard(self, index: int) -> int:
        return int(np.searchsorted(self.starts, index, side="right")) - 1

    def read(self, index: int) -> dict[str, Any]:
        found, bad = self.read_many(np.array([index]))
        if bad:
            raise bad[0]
        return {field: values[0] for field, values in found.items()}

    def read_many(self, indexes: NDArray[np.int64]) -> tuple[dict[str, list[Any]], dict[int, BadRecord]]:
        """Every field's values of these samples, and by place what is wrong with those that can't be read."""
        at, shards = indexes.tolist(), (np.searchsorted(self.starts, indexes, side="right") - 1).tolist()
        bad = {r: BadRecord("E0801", self.faults[index]) for r, index in enumerate(at) if index in self.faults}
        found: dict[str, list[Any]] = {}
        for field, columns, type_text in self.columns:
            placed = [self._placed(names, indexes) for names in columns]
            values = found[field] = [None] * len(at)
            for r, index in enumerate(at):
                if r in bad:
                    continue
                try:
                    values[r] = stacked([self._value(index, shards[r], sizes[r], offsets[r], type_text, what)
                                         for sizes, offsets, what in placed], f"`{field}`")
                except BadRecord as problem:
                    bad[r] = problem
        return found, bad

    def _placed(self, names: tuple[str, ...], indexes: NDArray[np.int64]) -> tuple[list[int], list[int], str]:
        """Sizes and offsets of these samples' members, and what they are called; the key's offset is -1."""
        if names == (KEY,):
            return [0] * len(indexes), [-1] * len(indexes), "the key"
        offsets, sizes = self.places[names]
        return sizes[indexes].tolist(), offsets[indexes].tolist(), f"`{shown(names)}`"

    def _value(self, index: int, shard: int, size: int, offset: int, type_text: str, what: str) -> Any:
        if offset < 0:
            return value_of(os.fsencode(self.keys[index]), type_text, what)
        if size < 0 and "?" in type_text:
            return None
        if size < 0:
            raise BadRecord("E0801", f"this sample has no member {what}")
        return value_of(self.files.pread(shard, size, offset), type_text, what)

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        shards = np.searchsorted(self.starts, indexes, side="right") - 1
        return ((shards << FILE_SHIFT) + indexes - self.starts[shards]).astype(np.uint64)

    def name(self, index: int) -> str:
        return f"{self.keys[index]} of {self.files.shown(self._shard(index))}"

    def arrays(self) -> None:
        return None
