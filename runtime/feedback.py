"""Values that consumers return for records, by id, and what programs read of them: `weight("loss")`.

Values given in an epoch are read in the next one: a `Snapshot` is taken where an epoch begins, so all its records see
one version. Of several values for a record in one epoch it is the mean; a record without one keeps the value it had.
Snapshots are kept in files by what they hold, so that a resumed epoch, also of another server, reads the same.
"""
from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from .errors import DataError
from .plan import Plan

Ids = NDArray[np.uint64]
Floats = NDArray[np.float32]
PREFIX = "@weight."
MOST_IDS = 1 << 27     # 1.6 GB of one name
KEPT = 4               # snapshots in files, of one program


# --- names of slots -------------------------------------------------------------------------------


def slot_of(name: str, default: float) -> str:
    """The slot of `weight(name, default)` in a plan's program."""
    return f"{PREFIX}{name}@{default!r}"


def told_by(slot: str) -> tuple[str, float]:
    """(name, default) of a slot."""
    name, _, default = slot.removeprefix(PREFIX).rpartition("@")
    return name, float(default)


def names_in(plan: Plan) -> tuple[str, ...]:
    """The names that a plan reads weights of."""
    slots = [s.name for segment in plan.above for s in segment.program.slots if s.name.startswith(PREFIX)]
    return tuple(sorted({told_by(s)[0] for s in slots}))


def table_for(plan: Plan) -> FeedbackTable | None:
    """None where the plan reads no weights."""
    names = names_in(plan)
    if not names:
        return None
    from .objects import folder

    return FeedbackTable(names, Store(folder() / "weights" / plan.fingerprint[:32]))


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """f32 values by id; ids rise."""

    ids: Ids = field(default_factory=lambda: np.empty(0, np.uint64))
    values: Floats = field(default_factory=lambda: np.empty(0, np.float32))

    def of(self, ids: Ids, default: float) -> Floats:
        """The values of these records."""
        found = np.full(len(ids), default, np.float32)
        if len(self.ids):
            at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
            known = self.ids[at] == ids
            found[known] = self.values[at[known]]
        return found

    def updated(self, newer: Values) -> Values:
        """With these values in place of what there was."""
        ids = np.concatenate([newer.ids, self.ids])
        values = np.concatenate([newer.values, self.values])
        kept, first = np.unique(ids, return_index=True)
        return Values(kept, values[first])


@dataclass(frozen=True)
class Snapshot:
    """What one epoch reads. `version` is the same for equal content."""

    tables: Mapping[str, Values]

    @property
    def version(self) -> str:
        seen = hashlib.blake2b(digest_size=16)
        for name in sorted(self.tables):
            table = self.tables[name]
            seen.update(f"{name}\0{len(table.ids)}\0".encode())
            seen.update(table.ids.tobytes())
            seen.update(table.values.tobytes())
        return seen.hexdigest()

    def of(self, slot: str, ids: Ids) -> Floats:
        """The values of a slot for these records."""
        name, default = told_by(slot)
        return self.tables.get(name, Values()).of(ids, default)


class Sums:
    """What was given for one name in one epoch: the sum and the number of values of each record, in f64."""

    def __init__(self) -> None:
        self.ids: list[Ids] = []
        self.values: list[Floats] = []
        self.waiting = 0

    def add(self, ids: Ids, values: Floats) -> None:
        self.ids.append(ids)
        self.values.append(values)
        self.waiting += len(ids)

    @property
    def means(self) -> Values:
        """The same whatever order they came in."""
        if not self.ids:
            return Values()
        ids, values = np.concatenate(self.ids), np.concatenate(self.values)
        order = np.lexsort((values, ids))
        ids, values = ids[order], values[order]
        kept, first, counts = np.unique(ids, return_index=True, return_counts=True)
        sums = np.add.reduceat(values.astype(np.float64), first)
        return Values(kept, (sums / counts).astype(np.float32))


class FeedbackTable:
    """What a producer keeps of its consumers' values. For several threads."""

    def __init__(self, names: tuple[str, ...], store: Store | None = None):
        """`names`: those that the program reads; others are refused."""
        self.names, self.store = names, store
        self.changed = threading.Condition()
        self.now = self.empty
        self.given: dict[str, Sums] = {name: Sums() for name in names}
        self.last: tuple[int, Snapshot] | None = None   # what the epoch that runs reads
        self.asked: tuple[int, str] | None = None       # an epoch that is resumed, and the version it has to read
        self.closed: dict[int, int] = {}                # consumer → the last epoch of which it has given all values
        self.members: Callable[[], Collection[int]] = lambda: (0,)

    @property
    def empty(self) -> Snapshot:
        return Snapshot({name: Values() for name in self.names})

    # -- from the consumers

    def put(self, name: str, ids: bytes, values: bytes) -> None:
        """Values of records: little-endian u64 ids, f32 values; NaN isn't one. Raises ValueError."""
        if name not in self.given:
            raise ValueError(f"the program reads no `{name}`")
        if len(ids) % 8 or len(values) % 4 or len(ids) // 8 != len(values) // 4:
            raise ValueError("ids and values aren't equally many")
        each, numbers = np.frombuffer(ids, "<u8").astype(np.uint64), np.frombuffer(values, "<f4").astype(np.float32)
        good = ~np.isnan(numbers)
        with self.changed:
            sums = self.given[name]
            if sums.waiting + len(each) + len(self.now.tables[name].ids) > MOST_IDS:
                raise ValueError(f"more than {MOST_IDS:,} values")
            sums.add(each[good], numbers[good])

    def close(self, consumer: int, epoch: int) -> None:
        """This consumer has given all values of the epoch, and of those before it."""
        with self.changed:
            self.closed[consumer] = epoch
            self.changed.notify_all()

    def leave(self, consumer: int) -> None:
        with self.changed:
            self.closed.pop(consumer, None)
            self.changed.notify_all()

    # -- for the engine

    def resume(self, epoch: int, version: str | None) -> None:
        """The next run of this epoch reads this version: that of a state."""
        with self.changed:
            self.asked = None if version is None else (epoch, version)

    def snapshot(self, epoch: int, within: bool = False, stopped: Callable[[], bool] = lambda: False) -> Snapshot | None:
        """What the epoch reads; what is given from now on counts for the next one. None where it is `stopped`.

        Waits until all consumers have given what belongs to the epoch before, where that ran here. `within`: it goes on in
        an epoch that has begun. Raises DataError E0842 where nobody has the version of a state any more.
        """
        with self.changed:
            asked, self.asked = self.asked, None
            if asked is not None and asked[0] == epoch:
                self.now = self._again(asked[1])
                self.given = {name: Sums() for name in self.names}
            elif self.last is not None and self.last[0] == epoch and within:
                return self.last[1]
            else:
                while self.last is not None and self.last[0] == epoch - 1 and self._open(epoch - 1):
                    if stopped():
                        return None
                    self.changed.wait(0.1)
                self.now = self._merged()
                self.given = {name: Sums() for name in self.names}
            self.last = (epoch, self.now)
            made = self.now
        if self.store is not None:
            self.store.keep(made)
        return made

    def version(self, epoch: int) -> str:
        """Of what the epoch reads, if it runs or were to begin now."""
        with self.changed:
            if self.asked is not None and self.asked[0] == epoch:
                return self.asked[1]
            made = self.last[1] if self.last is not None and self.last[0] == epoch else self._merged()
        if self.store is not None:
            self.store.keep(made)
        return made.version

    def _open(self, epoch: int) -> bool:
        """Has a consumer still values to give."""
        return any(self.closed.get(m, -1) < epoch for m in self.members())

    def _merged(self) -> Snapshot:
        return Snapshot({name: table.updated(self.given[name].means) for name, table in self.now.tables.items()})

    def _again(self, version: str) -> Snapshot:
        for known in (self.last[1] if self.last is not None else self.now, self.now, self._merged(), self.empty):
            if known.version == version:
                return known
        found = self.store.find(version) if self.store is not None else None
        if found is None or set(found.tables) != set(self.names):
            raise DataError("E0842", "the weights that this epoch was begun with aren't there any more", notes=(
                f"only those of the last {KEPT} epochs are kept, in pipec's cache on the machine of the producer",
                "begin the epoch again, with `set_epoch`: it reads what was returned last"))
        return found


class Store:
    """Snapshots in files of a folder, each named by its version. Written whole or not at all; old ones go."""

    def __init__(self, folder: Path):
        self.folder = folder

    def keep(self, snapshot: Snapshot) -> None:
        """A full disk or a folder that can't be written costs only that a later server can't resume here."""
        if not any(len(t.ids) for t in snapshot.tables.values()):
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self._path(snapshot.version)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            try:
                partial.write_bytes(msgspec.msgpack.encode(
                    {name: (t.ids.tobytes(), t.values.tobytes()) for name, t in snapshot.tables.items()}))
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
            listed = sorted(self.folder.glob("*.weights"), key=lambda p: p.stat().st_mtime)
            for old in listed[:-KEPT]:
                old.unlink(missing_ok=True)

    def find(self, version: str) -> Snapshot | None:
        if not (len(version) == 32 and set(version) <= set("0123456789abcdef")):
            return None
        try:
            read = msgspec.msgpack.decode(self._path(version).read_bytes(), type=dict[str, tuple[bytes, bytes]])
            found = Snapshot({name: Values(np.frombuffer(ids, np.uint64), np.frombuffer(values, np.float32))
                              for name, (ids, values) in read.items()})
            return found if found.version == version else None
        except (OSError, ValueError, msgspec.MsgspecError):
            return None

    def _path(self, version: str) -> Path:
        return self.folder / f"{version}.weights"
