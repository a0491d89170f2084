"""`.npz` and `.npy` files: each array is a field, its first dimension counts the records."""
from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cached import Pinned, Writer
from .remote import shared
from .sources import DAMAGE, FILE_SHIFT, FLOATS, INTEGERS, Column, SourceError, files_of, shown
from .storage import Files

SMALL = 16 << 20   # bytes of an array that is unpacked in memory


def numpy_dtype(word: str) -> Any:
    """The NumPy dtype of a dtype word."""
    if word == "bool":
        return np.dtype(bool)
    if word not in INTEGERS and word not in FLOATS:
        return None
    return np.dtype({"u": "uint", "i": "int", "f": "float"}[word[0]] + word[1:])


class ArraySource:
    """Records are rows: of the arrays of an `.npz`, or of the one array of an `.npy` (its field's name is free).

    Several files are read one after the other. `.npy` files are memory-mapped.
    """

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        self.files = Files(files_of(paths))
        self.paths = [self.files.shown_path(n) for n in range(len(self.files.paths))]
        self.columns = list(columns)
        self.pinned: list[Pinned] = []
        parts: dict[str, list[NDArray[Any]]] = {field: [] for field, _, _ in columns}
        lengths = []
        for number, path in enumerate(self.paths):
            loaded = self._load(path, number)
            sizes = {len(a) for a in loaded.values()}
            if len(sizes) > 1:
                listed = ", ".join(f"`{f}` {len(a):,}" for f, a in loaded.items())
                raise SourceError("E0602", f"the arrays of `{path}` have unlike lengths", (listed,))
            lengths.append(sizes.pop() if sizes else 0)
            for field, array in loaded.items():
                parts[field].append(array)
        self.starts = np.cumsum([0, *lengths]).astype(np.int64)
        self.parts = parts

    def _load(self, path: str, number: int) -> dict[str, NDArray[Any]]:
        here = self.files.local(number)   # remote ones are copied into the cache
        try:
            with open(here, "rb") as file:
                magic = file.read(6)
            if magic == b"\x93NUMPY":
                array = np.load(here, mmap_mode="r", allow_pickle=False)
                return {field: self._fit(path, array, field, shown(names[0]), t) for field, names, t in self.columns}
            if magic[:2] != b"PK":
                raise SourceError("E0810", f"`{path}` is neither .npy nor .npz")
            with np.load(here, allow_pickle=False) as archive:
                take = partial(self._array, archive, path, self.files.identity(number))
                return {field: self._member(path, archive.files, take, field, names, t) for field, names, t in self.columns}
        except SourceError:
            raise
        except OSError as error:
            raise SourceError("E0810", f"`{path}` can't be read: {error.strerror or error}") from None
        except DAMAGE as error:
            raise SourceError("E0810", f"`{path}` is damaged or holds Python objects: {str(error)[:100]}") from None

    def _member(self, path: str, there: list[str], take: Callable[[str], NDArray[Any]], field: str,
                names: tuple[tuple[str, ...], ...], type_text: str) -> NDArray[Any]:
        if len(names) == 1:
            name = self._present(path, there, field, names[0])
            return self._fit(path, take(name), field, name, type_text)
        element, _, dims = type_text.partition("[")
        rest = dims.rstrip("]").partition(",")[2].strip()
        each = element + (f"[{rest}]" if rest else "")
        found = [self._present(path, there, field, n) for n in names]
        return np.stack([self._fit(path, take(n), field, n, each) for n in found], axis=1)

    def _array(self, archive: Any, path: str, identity: str, name: str) -> NDArray[Any]:
        """An array of an `.npz`; a large one that is compressed is unpacked into the bounded cache and mapped."""
        listed = archive.zip.namelist()
        info = archive.zip.getinfo(name if name in listed else f"{name}.npy")
        if info.compress_type == zipfile.ZIP_STORED or info.file_size <= SMALL:
            found: NDArray[Any] = archive[name]
            return found

        def fill(writer: Writer) -> None:
            with archive.zip.open(info) as stream:
                while piece := stream.read(1 << 20):
                    writer.write(piece)

        key = hashlib.blake2b(f"{identity}\0{name}".encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self.pinned.append(shared().cache.whole(f"{key}.whole", fill, f"`{name}` of `{path}`"))
        mapped: NDArray[Any] = np.load(self.pinned[-1].path, mmap_mode="r", allow_pickle=False)
        return mapped

    def _present(self, path: str, there: list[str], field: str, names: tuple[str, ...]) -> str:
        for name in names:
            if name in there:
                return name
        listed = ", ".join(f"`{n}`" for n in there[:12])
        raise SourceError("E0601", f"`{path}` has no array `{shown(names)}`", (f"its arrays: {listed}",), field)

    def _fit(self, path: str, array: NDArray[Any], field: str, name: str, type_text: str) -> NDArray[Any]:
        """The array as the schema says; a column of shape (n, 1) serves a scalar field."""
        word, _, dims = type_text.partition("[")
        wanted = numpy_dtype(word.rstrip("?"))
        if wanted is None:
            raise SourceError("E0602", f"`{name}` of `{path}` can't be read as {type_text}: NumPy files hold no {word}",
                              ("read it as u16 or f32",), field)
        sizes = [d.strip() for d in dims.rstrip("]").split(",")] if dims else []
        if array.dtype != wanted:
            turned = array.dtype.byteorder == ">" and array.dtype.newbyteorder("=") == wanted
            raise SourceError("E0602", f"`{name}` of `{path}` holds {array.dtype}, the schema says {type_text}",
                              ("its bytes are in big-endian order: save `array.astype(array.dtype.newbyteorder('='))`" if turned
                               else "the schema must name the type that the data has; a line below may convert it",), field)
        if not sizes and array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        unlike = any(s.isdigit() and int(s) != d for s, d in zip(sizes, array.shape[1:]))
        if array.ndim != len(sizes) + 1 or unlike:
            raise SourceError("E0602", f"`{name}` of `{path}` has shape {array.shape}, the schema says {type_text} a record",
                              ("the first dimension counts the records",), field)
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _file(self, index: int) -> int:
        return int(np.searchsorted(self.starts, index, side="right")) - 1

    def read(self, index: int) -> dict[str, Any]:
        file = self._file(index)
        row = index - int(self.starts[file])
        return {field: self.parts[field][file][row] for field, _, _ in self.columns}

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        files = np.searchsorted(self.starts, indexes, side="right") - 1
        return ((files << FILE_SHIFT) + indexes - self.starts[files]).astype(np.uint64)

    def name(self, index: int) -> str:
        file = self._file(index)
        return f"row {index - int(self.starts[file]):,} of {self.files.shown(file)}"

    def arrays(self) -> dict[str, NDArray[Any]] | None:
        if len(self.paths) != 1:
            return None
        return {field: self.parts[field][0] for field, _, _ in self.columns}
