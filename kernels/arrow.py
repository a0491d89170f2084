"""`arrow`: Arrow IPC and Feather files, memory-mapped, and Hugging Face datasets saved to disk (folders of them).

Record batches are read where they lie; remote files are copied whole into the cache first. Files of both IPC forms are
told apart by their content.
"""
from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .arrowcolumns import values_of
from .arrowtypes import library, resolve
from .blocks import Block, BlockSource
from .columns import wanted
from .sources import Column, SourceError, expand

MAGIC = b"ARROW1"


class ArrowSource(BlockSource):
    """Rows of all files, in the order of the files; of a dataset's folder in the order that its `state.json` lists."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        library("Arrow")
        self.steps: dict[int, list[list[tuple[str, ...]]]] = {}
        self.readers: dict[int, Any] = {}    # of the file form
        self.streams: dict[int, Any] = {}    # batches of the stream form
        super().__init__([f for p in expand(paths) for f in files_in(p)], [wanted(c) for c in columns])

    def open(self, file: int, path: str) -> list[int]:
        import pyarrow as pa

        with self.files.open(file) as data:
            start = data.read(8)
        if start[:4] == b"FEA1":
            raise SourceError("E0810", f"`{path}` is of Feather's first version: write it again with version 2")
        source = pa.memory_map(self.files.local(file))
        if start[: len(MAGIC)] == MAGIC:
            reader = pa.ipc.open_file(source)
            self.readers[file] = reader
            counts = [reader.get_batch(b).num_rows for b in range(reader.num_record_batches)]
        else:
            reader = pa.ipc.open_stream(source)
            self.streams[file] = list(reader)   # maps, unless they are compressed
            counts = [b.num_rows for b in self.streams[file]]
        self.steps[file] = [[resolve(path, reader.schema, names, w) for names in w.names] for w in self.wanted]
        return counts

    def decode(self, file: int, block: int) -> Block:
        batch = self.readers[file].get_batch(block) if file in self.readers else self.streams[file][block]
        batch.validate(full=True)   # offsets in a damaged file may point anywhere
        return {w.field: [values_of(batch.column(batch.schema.get_field_index(s[0])), s[1:], w) for s in steps]
                for w, steps in zip(self.wanted, self.steps[file])}


def files_in(path: str) -> list[str]:
    """The files of a dataset's folder, or the file itself."""
    if not os.path.isdir(path):
        return [path]
    state = os.path.join(path, "state.json")
    try:
        if os.path.exists(state):
            with open(state, "rb") as data:
                listed = json.load(data)["_data_files"]
            names = [os.path.basename(str(entry["filename"])) for entry in listed]
        else:
            names = sorted((n for n in os.listdir(path) if n.endswith(".arrow")), key=os.fsencode)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError("E0810", f"`{path}` is no dataset: {str(error)[:100]}") from None
    if not names and os.path.exists(os.path.join(path, "dataset_dict.json")):
        inner = sorted(n for n in os.listdir(path) if os.path.isdir(os.path.join(path, n)))
        raise SourceError("E0810", f"`{path}` holds several datasets", (f"name one of them: {', '.join(inner)}",))
    if not names:
        raise SourceError("E0810", f"the folder `{path}` holds no .arrow files")
    return [os.path.join(path, n) for n in names]
