"""`files` and `audio`: each file is a record, its content read when it is asked for.

What a schema can ask for: "file" (the content), "name" (the file's name), "path" (as it was found). A field without
`from` gets the content, or, if it is a path, the path. A folder (of a remote one the address ends with `/`) stands for all
files below it; hidden ones are no data.
"""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Wanted, wanted
from .fetch import is_remote, listed, shown
from .folder import AUDIO
from .sources import Column, SourceError, expand, value_of
from .storage import content

NAMES = ("file", "name", "path")


class FilesSource:
    """Files in the order of the paths, each path's in bytewise order."""

    suffixes: tuple[str, ...] | None = None

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        self.fields = [(w, self._means(w)) for w in map(wanted, columns)]
        self.files = [f for path in expand(paths) for f in self._below(path)]
        if not self.files:
            ends = f" that end in: {', '.join(self.suffixes)}" if self.suffixes else ""
            raise SourceError("E0810", f"`{shown(paths[0])}` holds no files{ends}")

    def _means(self, w: Wanted) -> str:
        name = "|".join(w.names[0])
        if name in NAMES:
            return name
        if name == w.field:
            return "path" if w.word == "path" else "file"
        raise SourceError("E0601", f"files have no `{name}`", (f"they have: {', '.join(NAMES)}",), w.field)

    def _below(self, path: str) -> list[str]:
        if is_remote(path):
            return [f for f in (listed(path) if path.endswith("/") else [path]) if self._visible(f, path) and self._counts(f)]
        if not os.path.isdir(path):
            return [path] if self._counts(path) else []
        found = []
        for folder, inner, names in os.walk(path):
            inner[:] = [n for n in inner if not n.startswith(".")]
            found += [os.path.join(folder, n) for n in names if not n.startswith(".") and self._counts(n)]
        return sorted(found, key=os.fsencode)

    def _visible(self, found: str, root: str) -> bool:
        return not any(part.startswith(".") for part in found[len(root):].split("/"))

    def _counts(self, path: str) -> bool:
        return self.suffixes is None or path.rpartition(".")[2].lower() in self.suffixes

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> dict[str, Any]:
        return {w.field: self._value(self.files[index], w, means) for w, means in self.fields}

    def _value(self, path: str, w: Wanted, means: str) -> Any:
        if means != "file":
            text = path if means == "path" else os.path.basename(shown(path))
            return os.fsencode(text) if w.word == "bytes" else text
        return value_of(content(path), w.text, f"`{os.path.basename(shown(path))}`")

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        return indexes.astype(np.uint64)

    def name(self, index: int) -> str:
        return shown(self.files[index])

    def arrays(self) -> None:
        return None


class AudioSource(FilesSource):
    """Files that end in wav, flac, mp3 or ogg."""

    suffixes = AUDIO
