"""`lines`: each line of a text file is a record. LF or CRLF ends a line, a bare CR doesn't; empty lines are records."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import wanted
from .ops import BadRecord
from .rows import Rows
from .sources import Column, files_of, row_ids


class LinesSource:
    """Lines of all files, in the order of the files. The field's name is free; its type is `text` or `bytes`."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        self.rows = Rows(files_of(paths), blanks=True, stream=bool(options.get("stream")))
        self.fields = [wanted(c) for c in columns]

    def __len__(self) -> int:
        return int(self.rows.starts[-1])

    def read(self, index: int) -> dict[str, Any]:
        return self._fields(self.rows.raw(*self.rows.place(index)), index)

    def _fields(self, raw: bytes, index: int) -> dict[str, Any]:
        line = raw.removesuffix(b"\n").removesuffix(b"\r") if raw.endswith(b"\n") else raw
        return {w.field: line if w.word == "bytes" else self._text(line) for w in self.fields}

    def _text(self, line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRecord("E0801", f"this line isn't UTF-8 text: byte {error.start:,} is {line[error.start]:#04x}") from None

    def read_many(self, indexes: NDArray[np.int64]) -> tuple[dict[str, Any], dict[int, BadRecord]]:
        return read_rows(self, indexes, [w.field for w in self.fields])

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        return row_ids(self.rows.starts, indexes)

    def name(self, index: int) -> str:
        return self.rows.name(index)

    def arrays(self) -> None:
        return None


def read_rows(source: Any, indexes: NDArray[np.int64], fields: Sequence[str]) -> tuple[dict[str, Any], dict[int, BadRecord]]:
    """Rows read together and taken apart one by one, by `source._fields`."""
    bad: dict[int, BadRecord] = {}
    out: dict[str, list[Any]] = {f: [None] * len(indexes) for f in fields}
    try:
        raw: list[bytes] | None = source.rows.many(indexes)
    except BadRecord:
        raw = None   # one of them: read each alone
    for r, index in enumerate(indexes.tolist()):
        try:
            found = source.read(index) if raw is None else source._fields(raw[r], index)
        except BadRecord as problem:
            bad[r] = problem
            continue
        for f in fields:
            out[f][r] = found[f]
    return dict(out), bad
