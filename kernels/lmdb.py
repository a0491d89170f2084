"""`lmdb`: entries of an LMDB database in the order of their keys, read through the package lmdb.

Such a database is mapped into memory and trusted: LMDB doesn't check its own pages, so open none from strangers.
"""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import wanted
from .fetch import is_remote
from .ops import BadRecord
from .sources import Column, SourceError, expand, row_ids, value_of

ENTRY = 48   # bytes of what LMDB keeps under the name of a database


class LmdbSource:
    """Entries of all databases (a folder with data.mdb, or the file). All keys are held in memory."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[Column]):
        try:
            import lmdb
        except ImportError:
            raise SourceError("E0810", "LMDB databases are read with the package lmdb, which isn't installed",
                              ("pip install 'pipec[lmdb]'",)) from None
        self.paths = expand(paths)
        if any(map(is_remote, self.paths)):
            raise SourceError("E0810", "LMDB databases are mapped into memory, so remote ones can't be read",
                              ("copy it to this machine, or use one of the other sources",))
        self.fields = [(w, "key" if "key" in w.names[0] else "value") for w in map(wanted, columns)]
        self.opened, self.keys = [], []
        for path in self.paths:
            try:
                if os.path.isdir(path) and not os.path.exists(os.path.join(path, "data.mdb")):
                    raise SourceError("E0810", f"the folder `{path}` holds no data.mdb")
                database = lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False, readahead=False, max_dbs=1)
                _plain(database, path)
                with database.begin() as reader, reader.cursor() as cursor:
                    self.keys.append(list(cursor.iternext(keys=True, values=False)))
            except lmdb.Error as error:
                raise SourceError("E0810", f"`{path}` can't be read: {str(error)[:120]}") from None
            self.opened.append(database)
        self.starts = np.cumsum([0] + [len(k) for k in self.keys]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _key(self, index: int) -> tuple[int, bytes]:
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return file, self.keys[file][index - int(self.starts[file])]

    def read(self, index: int) -> dict[str, Any]:
        file, key = self._key(index)
        value = b""
        if any(means == "value" for _, means in self.fields):
            with self.opened[file].begin() as reader:
                found = reader.get(key)
            if found is None:
                raise BadRecord("E0801", "this entry has gone since the database was opened")
            value = bytes(found)
        return {w.field: value_of(key if means == "key" else value, w.text, f"the {means}") for w, means in self.fields}

    def ids(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        return row_ids(self.starts, indexes)

    def name(self, index: int) -> str:
        file, key = self._key(index)
        return f"{key[:40].decode('utf-8', 'replace')} of {os.path.basename(os.path.normpath(self.paths[file]))}"

    def arrays(self) -> None:
        return None


def _plain(database: Any, path: str) -> None:
    """Raises SourceError where keys stand for databases in the database."""
    import lmdb

    with database.begin() as reader, reader.cursor() as cursor:
        first = next(iter(cursor), None)
    if first is None or len(first[1]) != ENTRY:
        return
    try:
        database.open_db(first[0], create=False)
    except lmdb.Error:   # a value that happens to have this length
        return
    raise SourceError("E0810", f"`{path}` holds databases with names, which aren't read",
                      (f"the first is `{first[0][:40].decode('utf-8', 'replace')}`: copy its entries to a file of their own",))
