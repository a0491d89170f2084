"""`parquet`: only the columns that are needed are read, row group by row group, and decoded row groups are kept.

A row group is decoded as a whole (of the needed columns), usual columns by `parquetpages`, others by Arrow. Shuffle with
`chunk=` or `window=` where the row groups of all files don't fit in `blocks.KEPT` bytes together.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from .arrowcolumns import of_texts, values_of
from .arrowtypes import library, resolve
from .blocks import Block, BlockSource
from .columns import Stacked, wanted
from .parquetpages import Plain, plain_columns, stacked
from .rowgroups import Condition, stand_in
from .sources import Column, files_of


class ParquetSource(BlockSource):
    """Rows of all files, in the order of the files."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        library("Parquet")
        self.metadata: dict[int, Any] = {}
        self.steps: dict[int, list[list[tuple[str, ...]]]] = {}   # for each file and field, the way to its columns
        self.leaves: dict[int, list[str]] = {}
        # Each holds for every row that is wanted.
        self.conditions: tuple[Condition, ...] = tuple(tuple(c) for c in options.get("where", ()))
        self.skipped: set[tuple[int, int]] = set()                # row groups that were not read since none of their rows is
        self.texts: dict[int, list[str]] = {}                     # columns of texts, which are read as dictionaries
        self.plain: dict[int, dict[str, list[Plain]]] = {}        # fields whose pages may be read without Arrow
        super().__init__(files_of(paths), [wanted(c) for c in columns])

    def open(self, file: int, path: str) -> list[int]:
        with self._reader(file, None) as reader:
            self.metadata[file] = reader.metadata
            schema = reader.schema_arrow
            self.steps[file] = [[resolve(path, schema, names, w) for names in w.names] for w in self.wanted]
            stored = [reader.schema.column(i).path for i in range(len(reader.schema))]
            self.leaves[file] = [p for p in stored if any(_leads(p, s) for steps in self.steps[file] for s in steps)]
            delta = _delta(reader.metadata, stored)
            self.texts[file] = [s[0] for w, steps in zip(self.wanted, self.steps[file]) for s in steps
                                if len(s) == 1 and of_texts(schema.field(s[0]).type, w) and s[0] not in delta]
            found = {w.field: plain_columns(reader.schema, schema, steps, w) for w, steps in zip(self.wanted, self.steps[file])}
            self.plain[file] = {f: c for f, c in found.items() if c is not None and file not in self.files.far}
            return [reader.metadata.row_group(g).num_rows for g in range(reader.metadata.num_row_groups)]

    def _reader(self, file: int, metadata: Any) -> Any:
        import pyarrow.parquet as pq

        far = file in self.files.far
        return pq.ParquetFile(self.files.open(file) if far else self.paths[file], metadata=metadata, pre_buffer=far,
                              read_dictionary=self.texts.get(file), coerce_int96_timestamp_unit="us")

    def decode(self, file: int, block: int) -> Block:
        table = self._stand_in(file, block)
        made: Block = {} if table is not None else dict(self._plain(file, block))
        rest = [(w, steps) for w, steps in zip(self.wanted, self.steps[file]) if w.field not in made]
        if not rest:
            return made
        rows = self.metadata[file].row_group(block).num_rows
        if table is None:
            leaves = [p for p in self.leaves[file] if any(_leads(p, s) for _, steps in rest for s in steps)]
            with self._reader(file, self.metadata[file]) as reader:
                table = reader.read_row_group(block, columns=leaves, use_threads=False)
        if table.num_rows != rows:
            raise ValueError(f"it has {table.num_rows:,} rows, its header says {rows:,}")
        return made | {w.field: [values_of(table.column(s[0]), s[1:], w) for s in steps] for w, steps in rest}

    def _plain(self, file: int, block: int) -> Iterator[tuple[str, Stacked]]:
        """The fields that need no Arrow."""
        plain, group = self.plain[file], self.metadata[file].row_group(block)
        for w in self.wanted:
            if w.field in plain:
                found = stacked(partial(self.files.pread, file), group, plain[w.field], w, self.most)
                if found is not None:
                    yield w.field, found

    def _stand_in(self, file: int, block: int) -> Any | None:
        if not self.conditions:
            return None
        group, schema = self.metadata[file].row_group(block), self.metadata[file].schema.to_arrow_schema()
        table = stand_in(group, schema, self.conditions, self.wanted, self.steps[file])
        if table is not None:
            self.skipped.add((file, block))
        return table


def _delta(metadata: Any, stored: Sequence[str]) -> set[str]:
    """Columns that a row group holds in an encoding which pyarrow can't read as a dictionary."""
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    return {name for c, name in enumerate(stored) if metadata.schema.column(c).physical_type == "BYTE_ARRAY"
            and any(e.startswith("DELTA") for g in groups for e in g.column(c).encodings)}


def _leads(stored: str, steps: tuple[str, ...]) -> bool:
    """Is a stored column (`a.list.element.b`) part of what the steps (a, b) lead to?"""
    if stored == steps[0]:
        return True
    if not stored.startswith(steps[0] + "."):
        return False
    rest = stored[len(steps[0]) + 1 :].split(".")
    return all(s in rest for s in steps[1:])
