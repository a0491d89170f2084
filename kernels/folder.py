"""A folder of files, a class per directory: `root/class name/file`.

What a schema can ask for, by name or, for a field without `from`, by its type: "file" (the bytes),
"class" (number of the directory in bytewise order, from 0), "class_name", "path" (relative to the root).
Hidden files and folders are no data. Only files with one of the option `extensions` count.
"""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fetch import is_remote, listed
from .fetch import shown as shown_address
from .sources import Column, SourceError, nearest, shown
from .storage import content

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")
AUDIO = ("wav", "flac", "mp3", "ogg", "opus", "aif", "aiff", "au")
NAMES = ("file", "class", "class_name", "path")


def wanted(field: str, names: tuple[tuple[str, ...], ...], type_text: str) -> str:
    """Which of NAMES a column means."""
    name = shown(names[0])
    if len(names) == 1 and name in NAMES:
        return name
    word = type_text.rstrip("?")
    if (name == field and word in ("bytes", "text", "path")) or word in ("i64", "i32", "u8", "u16", "u32", "i16", "i8", "u64"):
        return {"bytes": "file", "text": "class_name", "path": "path"}.get(word, "class")
    raise SourceError("E0601", f"a folder has no `{name}`", (f"it has: {', '.join(NAMES)}",), field)


class FolderSource:
    """Files in bytewise order of class, then path; ids count them."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        pattern = paths[0]
        self.root = os.path.expanduser(pattern)
        self.columns = [(field, wanted(field, names, t), t) for field, names, t in columns]
        if len(paths) > 1:
            raise SourceError("E0810", "a folder source reads one folder", ("use one folder with a folder per class",))
        extensions = tuple(str(e).lower().lstrip(".") for e in options.get("extensions") or IMAGES + AUDIO)
        found = self._far(extensions) if is_remote(self.root) else self._near(pattern, extensions)
        self.classes = sorted(found, key=os.fsencode)
        if not self.classes:
            raise SourceError("E0810", f"`{shown_address(pattern)}` has no folders in it",
                              ("a folder source has one folder per class",))
        self.files: list[tuple[int, str]] = []
        for number, name in enumerate(self.classes):
            if not found[name] and not options.get("allow_empty"):
                raise SourceError("E0810", f"the class folder `{os.path.join(pattern, name)}` is empty",
                                  ("`allow_empty=true` keeps it as a class without files",
                                   f"files that count end in: {', '.join(extensions)}"))
            self.files += [(number, path) for path in sorted(found[name], key=os.fsencode)]

    def _near(self, pattern: str, extensions: tuple[str, ...]) -> dict[str, list[str]]:
        """The files of each class, relative to the root."""
        if not os.path.isdir(self.root):
            raise SourceError("E0810", f"there is no folder `{pattern}`", nearest(self.root))
        try:
            classes = [e.name for e in os.scandir(self.root) if e.is_dir() and not e.name.startswith(".")]
        except OSError as error:
            raise SourceError("E0810", f"`{pattern}` can't be read: {error.strerror}") from None
        return {name: _files(os.path.join(self.root, name), name, extensions) for name in classes}

    def _far(self, extensions: tuple[str, ...]) -> dict[str, list[str]]:
        self.root = self.root.rstrip("/")
        found: dict[str, list[str]] = {}
        for address in listed(self.root):
            path = address[len(self.root) + 1 :]
            parts = path.split("/")
            if len(parts) > 1 and not any(p.startswith(".") for p in parts):
                files = found.setdefault(parts[0], [])
                if "." in parts[-1] and parts[-1].rpartition(".")[2].lower() in extensions:
                    files.append(path)
        return found

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> dict[str, Any]:
        number, path = self.files[index]
        return {field: self._value(what, number, path, type_text) for field, what, type_text in self.columns}

    def _value(self, what: str, number: int, path: str, type_text: str) -> Any:
        match what:
            case "file":
                return content(os.path.join(self.root, path))
            case "class":
                word = type_text.rstrip("?")
                return np.dtype({"u": "uint", "i": "int"}[word[0]] + word[1:]).type(number)
            case "class_name":
                return self.classes[number]
            case _:
                return path

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        return indexes.astype(np.uint64)

    def name(self, index: int) -> str:
        return self.files[index][1]

    def arrays(self) -> None:
        return None


def _files(folder: str, shown: str, extensions: tuple[str, ...]) -> list[str]:
    """Paths of the files below a class folder, relative to the root."""
    out = []
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        path = f"{shown}/{entry.name}"
        if entry.is_dir():
            out += _files(entry.path, path, extensions)
        elif entry.name.rpartition(".")[2].lower() in extensions and "." in entry.name:
            out.append(path)
    return out
