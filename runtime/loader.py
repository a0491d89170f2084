"""What a training loop iterates over: a `Loader` of a plan's batches.

An iteration is one epoch; the next one is the next epoch, also where the loop left the one before early (`break`).
After an error, or after `load_state_dict`, the next iteration goes on where the last batch ended.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import keyword
import math
import os
import re
import time
import warnings
import weakref
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .consumers import check_kind, converter, imports, writes
from .dealing import group_of, part_of
from .errors import DataError
from .feedback import names_in
from .layout import DEFAULT_HEAP, Layout, is_ragged, plan_layout, row_bytes
from .limits import parse_size
from .messages import Ask, Counts, Feedback
from .objects import load
from .opening import wants_device
from .plan import Plan
from .progress import Progress
from .ranks import RankSpec
from .session import Session
from .spawned import Spawned

if TYPE_CHECKING:
    from .sharing import Shared  # half a server, which a producer of one's own doesn't need

ENGINE = "pipec.runtime.engine:Engine"
HEAVY = 1 << 20                        # an engine reserves up to about this many bytes at once
SMALL_ROW = 1 << 15                    # of smaller rows four times as many, since each task costs as much as dozens of them
# … and fewer tasks ahead: a smaller ring lies in the cache, and such records take about the same time each
MOST_RESTARTS = 5                      # of a shared stream's server, within one epoch
MOST_VALUES = 1 << 16                  # returned in one message
ROWS_AT_ONCE = 64                      # what is taken from the ring where batches aren't plain runs of rows


class Loader:
    """Batches of a program, epoch by epoch; a context manager. For one thread of the process that opened it."""

    def __init__(self, plan: Plan, *, threads: int | None = None, as_: str = "torch", memory: int | str | None = None,
                 workers: str = "process", allow_extern: bool = False, engine: str = ENGINE, below: Any = None,
                 device: Any = None, place: Mapping[str, str] | None = None,
                 ranks: RankSpec = RankSpec(), stream: Shared | None = None, fields: Sequence[str] | None = None,
                 spawned: Spawned | None = None):
        """`stream`: a place in a shared one, in place of a producer of its own. `fields`: only these are delivered.

        `spawned`: the process of its producer, where that was started ahead.
        """
        check_kind(as_)
        if workers not in ("process", "threads"):
            raise ValueError(f'workers={workers!r}: it is "process" or "threads"')
        self.plan = plan
        self.threads = threads or len(os.sched_getaffinity(0))
        if below is None and wants_device(as_, device):
            below_on = importlib.import_module("pipec.runtime.device").below_on
            below = below_on(plan, device or "cuda", as_, allow_extern, place=place)
        elif place:
            raise ValueError('place=…: it keeps on the CPU what `device="cuda"` would move, and no device is asked for')
        if below is None:
            below = importlib.import_module("pipec.runtime.below").Below(plan, load(plan.kernels), None, allow_extern)
        self._below = below
        self._below.start_epoch(0)
        self._group = group_of(plan, below, ranks, own=stream is None)
        self._convert = converter(as_)
        importing = imports(as_)
        self._names = _chosen(plan, fields)
        self.batch_type = _batch_type(plan, self._names)
        self._tells_ids = "ids" not in self.batch_type._fields
        self._memory = None if memory is None else parse_size(memory)
        options = {"threads": self.threads, "allow_extern": allow_extern, "processes": workers == "process"}
        options |= self._group.options if self._group is not None else {}
        self._box: Session | Shared = stream if stream is not None else Session(
            plan, layout_for(plan, self._below, self.threads, self._memory), engine, options, workers, writable=writes(as_),
            spawned=spawned)
        self._finalizer = weakref.finalize(self, self._box.close)
        self._epoch, self._next, self._skip, self._part = 0, 0, 0, 0
        self.ids: Any = None                              # of the last batch's records, u64[n]; None where not known
        self.valid: Any = None                            # bool[n], None where all are
        self._begun = False                               # an iteration over `_epoch` has begun, and not ended
        self._loaded = False                              # `_next` and `_skip` are from `load_state_dict`
        self._weighs = names_in(plan)                     # of weights that the program reads
        self._version_of: int | None = None               # the epoch whose version `_box.weights` holds
        self._placed = stream is None                     # where to begin is known
        self._coming: int | None = None                   # the epoch whose first row is the ring's next
        self._turn: object = None
        self._batches = 0
        self._seconds = 0.0
        self._answer = Counts({})
        try:
            if isinstance(self._box, Session):
                self._box.start()
        finally:
            if importing is not None:
                importing.join()

    # -- iterating

    def __iter__(self) -> Iterator[Any]:
        self._usable()
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        started = time.perf_counter()
        self._usable()
        if self._begun:                                   # left early
            self._epoch, self._next, self._skip, self._part = self._epoch + 1, 0, 0, 0
        if not self._placed:                              # the stream says where we begin
            self._placed = True
            self._epoch, self._next, self._skip = self._box.first()
        turn = self._turn = object()
        self._begun, self._loaded = True, False
        there = self.place() == (self._coming, 0, 0) and not self._part
        self._coming = None
        epoch = self._epoch
        made: list[Any] = []                              # the loop holds its batch, we don't
        kind, convert, box, lost = functools.partial(tuple.__new__, self.batch_type), self._convert, self._box, 0
        try:
            while True:
                try:
                    for values, progress in self._source(there):
                        made.append(kind(values if convert is None else [convert(value) for value in values]))
                        del values
                        self._next, self._skip, _, self._part, *_ = progress
                        self.ids = progress.ids
                        if self._tells_ids:
                            made[0].ids = progress.ids
                        if progress.valid is not None or self.valid is not None:
                            self._tell_valid(made[0], progress.valid)
                        if self._weighs and self._version_of != epoch:
                            self._note_version(epoch)
                        self._batches += 1
                        now = time.perf_counter()
                        self._seconds += now - started    # with the loop's own time since the last batch
                        started = now
                        yield made.pop()
                        if self._turn is not turn or box.forked:
                            self._usable()
                            raise RuntimeError("this iteration has ended: another one over the same loader has begun since")
                    break
                except DataError as error:
                    larger = self._again(error, lost)
                there = False
                if larger is None:
                    lost += 1
                else:
                    self._box.restart(larger)
            self._seconds += time.perf_counter() - started    # until it was known that no more come
        except DataError as error:
            self._begun = False                           # the next iteration goes on here
            if error.code == "E0807":
                error.epoch, error.position = epoch, self._next
                error.notes = (*error.notes, "iterate again, or load this state_dict into a new loader, to go on there")
            elif error.record and self._next and not self._skip:
                error.notes = (f"every record before position {self._next:,} was delivered", *error.notes)
            raise
        self._begun = False
        self._epoch, self._next, self._skip, self._part = epoch + 1, 0, 0, 0
        self._coming = epoch + 1
        if self._weighs:
            self._box.attachment.say(Feedback(epoch))
            self._box.weights, self._version_of = {}, None
            if isinstance(self._box, Session):            # else others may still return values for the next epoch
                self._note_version(epoch + 1)

    def _note_version(self, epoch: int) -> None:
        """Which version of what was returned this epoch reads, so that it goes on with the same."""
        told = self._box.attachment.ask(Ask(epoch)).values.get("weights")
        self._box.weights, self._version_of = {epoch: str(told)}, epoch

    def feedback(self, name: str, ids: Any, values: Any) -> None:
        """Return a value for each of these records, which `weight(name)` in the program reads in the next epoch.

        `ids`: u64[n], such as `batch.ids`; None for those of the last batch. `values`: f32[n], a tensor or an array; NaN
        says nothing. Records that only fill up a batch are left out.
        """
        self._usable()
        if name not in self._weighs:
            known = ", ".join(f"`{n}`" for n in self._weighs) or "none"
            raise ValueError(f"the program reads no weight `{name}`; it reads {known}")
        ids, keep = (self.ids, self.valid) if ids is None else (ids, self.valid if ids is self.ids else None)
        if ids is None:
            raise ValueError("the ids of these records aren't known: `batch` has to stand below `share`, or last")
        each, numbers = _array(ids).astype("<u8", copy=False), _array(values).astype("<f4", copy=False)
        if each.ndim != 1 or each.shape != numbers.shape:
            raise ValueError(f"ids {list(each.shape)} and values {list(numbers.shape)}: one value for each record")
        if keep is not None:
            each, numbers = each[_array(keep)], numbers[_array(keep)]
        epoch = self._epoch if self._begun else self._epoch - 1
        for first in range(0, len(each), MOST_VALUES):
            part = slice(first, first + MOST_VALUES)
            self._box.attachment.say(Feedback(epoch, name, each[part].tobytes(), numbers[part].tobytes()))

    def _tell_valid(self, batch: Any, valid: Any) -> None:
        """`loader.valid`, and `batch.valid` where no field of this name stands there."""
        self.valid = valid if valid is None or self._convert is None else self._convert(valid)
        if "valid" not in self.batch_type._fields:
            batch.valid = self.valid

    def _source(self, there: bool) -> Iterator[tuple[Sequence[Any], Progress]]:
        """The rest of the epoch: the values of our fields, batch by batch."""
        reader = self._box.reader_at(*self.place(), there)
        group, below = self._group, self._below
        reader.exact, reader.only = getattr(below, "stacks", True), None
        if group is None and getattr(below, "handed", None) is not None:
            straight: Iterator[tuple[Sequence[Any], Progress]] = below.straight(self._epoch, reader, self._names)
            return straight
        dealt = reader if group is None else group.reader(reader, self.place()[1], self._box.length)
        batches = below.batches(self._epoch, dealt)
        batches = itertools.islice(batches, self._skip, None) if self.replays else batches
        if group is not None:
            batches = group.batches(batches, self._part, (self._next, self._skip))
        return self._in_order(batches)

    def _in_order(self, batches: Iterator[tuple[dict[str, Any], Progress]]) -> Iterator[tuple[Sequence[Any], Progress]]:
        for fields, progress in batches:
            values = [fields[name] for name in self._names]
            del fields                                    # nothing of a batch is kept while the next one is waited for
            yield values, progress
            del values

    def _again(self, error: DataError, lost: int) -> Layout | None:
        """How the epoch goes on after an error: with a new server, or one for us alone (None), or with a larger ring.

        `lost`: how many producers were lost in it. Raises what ends it.
        """
        if error.code == "E0807" and self._box.restarts and lost < MOST_RESTARTS:
            return None
        heaps = [p.heap for p in self._box.layout.places if p.ragged]
        if error.code != "E0809" or self._memory is not None or not heaps:
            raise error
        return layout_for(self.plan, self._below, self.threads, None, 4 * max(heaps))

    def place(self) -> tuple[int, int, int]:
        """Epoch, next and skip from which rows are asked for."""
        return (self._epoch, 0, 0) if self.replays else (self._epoch, self._next, self._skip)

    @property
    def replays(self) -> bool:
        """Do lines below `share` hold records back or count them: then a resumed epoch is read from its start."""
        return getattr(self._below, "replays", False)

    def __len__(self) -> int:
        """Batches of an epoch. TypeError where only running tells."""
        self._usable()
        rows = self._box.length
        if rows is None:
            raise TypeError("the number of batches isn't known before they are read: the program leaves records out "
                            "or makes several of one")
        if not _one_batch_stage(self.plan):
            raise TypeError("the number of batches isn't known before they are read: the lines below `share` decide")
        size = self._below.batch_size
        if self._group is not None:
            return self._group.count(rows, size)
        if size is None:
            return rows
        count: int = rows // size if self._below.drops_smaller else math.ceil(rows / size)
        return count

    # -- state

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start; or from a state loaded before for the same epoch."""
        if epoch < 0:
            raise ValueError("epochs count from 0")
        if not isinstance(self._box, Session):
            self._box_epoch(epoch)
            return
        if not self._loaded or epoch != self._epoch:
            self._turn = None
            self._epoch, self._next, self._skip, self._part, self._begun, self._loaded = epoch, 0, 0, 0, False, False
            self._box.weights, self._version_of = {}, None

    def _box_epoch(self, epoch: int) -> None:
        """Epochs of a shared stream are its server's: one may go on to a later one, not back."""
        now = self._epoch + self._begun if self._placed else 0
        if epoch > now:
            self._turn, self._placed, self._box.moved = None, True, True
            self._epoch, self._next, self._skip, self._part, self._begun, self._loaded = epoch, 0, 0, 0, False, False
        elif epoch < now:
            warnings.warn(f"set_epoch({epoch}): this shared stream is at epoch {now} and goes on there", stacklevel=3)

    @property
    def joined(self) -> dict[str, int] | None:
        """Where a shared stream let us in: `epoch`, `position`, and `unseen`, the positions of that epoch before it.

        Waits until it has. None for a producer of our own.
        """
        self._usable()
        if isinstance(self._box, Session):
            return None
        epoch, position, _ = self._box.first()
        return {"epoch": epoch, "position": position, "unseen": position}

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: right after the last batch that this loop got, whatever was read ahead.

        Of a group of ranks it is the end of the whole step, the same for each, and resumes in a group of another size.
        """
        state = {"program": self.plan.fingerprint, "seed": self.plan.seed, "epoch": self._epoch, "next": self._next,
                 "skip": self._skip}
        if self._weighs:
            if self._epoch not in self._box.weights:
                self._note_version(self._epoch)
                self._version_of = None
            state["weights"] = self._box.weights[self._epoch]
        return state if self._group is None else {**state, "part": self._part, "group": self._group.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken."""
        if state.get("program") != self.plan.fingerprint:
            raise ValueError("this state is of another program, or of other params or another seed")
        numbers: list[Any] = [state.get(key) for key in ("epoch", "next", "skip")]
        if not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise ValueError("not a state of a loader: `epoch`, `next` and `skip` have to be numbers from 0 on")
        self._turn = None
        self._part = part_of(state, self._group, self.replays and numbers[2] > 0)
        self._epoch, self._next, self._skip = numbers
        self._box.weights = {self._epoch: str(state["weights"])} if self._weighs and "weights" in state else {}
        self._version_of = None
        self._begun, self._loaded, self._placed, self._box.moved = False, True, True, True

    def stats(self) -> dict[str, Any]:
        """Counts since the start. `wait_share`: of the time in the loader and its loop body, what was spent waiting.

        `bad` holds (record, reason) of the last bad records, a hundred at most.
        """
        self._usable()
        with contextlib.suppress(DataError):              # of rows not reached yet; iterating will raise it
            self._answer = self._box.attachment.ask(Ask())
        answer, counts = self._answer, self._answer.values
        ended = self._epoch + self._begun                 # the producer may be epochs ahead
        seen = self._box.counts()
        return {"batches": self._batches, **seen, "wait_share": seen["waited"] / self._seconds if self._seconds else 0.0,
                "bad_records": sum(n for epoch, n in answer.bad_counts.items() if epoch < ended),
                "bad": [(name, reason) for epoch, name, reason in answer.bad if epoch < ended], "producer": counts}

    # -- end

    def close(self) -> None:
        """End the producer. Batches that are still held stay as they are."""
        self._turn = None
        self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _usable(self) -> None:
        if os.getpid() != self._box.pid:
            raise RuntimeError(
                f"this loader belongs to process {self._box.pid}, and this is a forked child of it: {self._box.anew} here too, "
                "or iterate the loader itself without DataLoader workers (its producer works ahead already)")
        if not self._finalizer.alive:
            raise ValueError("this loader is closed")

    def __reduce__(self) -> Any:
        raise TypeError("a loader can't be sent to another process: call pipec.open there")


def _chosen(plan: Plan, fields: Sequence[str] | None) -> list[str]:
    """Fields to deliver, in the program's order. Raises ValueError."""
    names = [c.name for c in plan.emit]
    for name in fields or ():
        if name not in names:
            raise ValueError(f"fields=: the program delivers no `{name}`; it delivers {', '.join(names)}")
    return [n for n in names if fields is None or n in fields]


def _batch_type(plan: Plan, names: Sequence[str]) -> Any:
    """A named tuple of the program's fields, which may have attributes beside them."""
    made: Any = namedtuple(  # type: ignore[misc]
        re.sub(r"\W|^(?=\d)", "_", plan.name) or "batch", [_attribute(n) for n in names], rename=True)
    beside = {name: None for name in ("ids", "valid") if name not in made._fields}
    return type(made.__name__, (made,), {"__doc__": f"One batch of `{plan.name}`.", **beside})


def _array(values: Any) -> Any:
    """Numbers of any library as an array of NumPy."""
    detach = getattr(values, "detach", None)
    return np.asarray(detach().cpu().numpy() if detach is not None else values)


def _attribute(name: str) -> str:
    """`class` and other words of Python's own get an underscore behind."""
    return name + "_" if keyword.iskeyword(name) else name


def layout_for(plan: Plan, below: Any, threads: int, memory: int | None, heap: int = DEFAULT_HEAP) -> Layout:
    fixed = sum(row_bytes(c) for c in plan.rows if not is_ragged(c))
    small = fixed <= SMALL_ROW
    chunk = min(512, max(4, (4 * HEAVY if small else HEAVY) // max(1, fixed)))
    most = max(ROWS_AT_ONCE, below.batch_size or 0)
    return plan_layout(plan.rows, most, memory, chunk, (1 if small else 3) * threads * chunk, heap)


def _one_batch_stage(plan: Plan) -> bool:
    """Is what stands below `share` nothing that changes the number of rows but one plain `batch(n)`?"""
    if any(s.takes or any(step.__class__.__name__ == "Require" for step in s.program.steps) for s in plan.below):
        return False
    starts = [s.start for s in plan.below[1:] if s.start.kind != "share"]
    return not starts or (len(starts) == 1 and starts[0].kind == "batch" and not starts[0].options.get("edges")
                          and "budget" not in (starts[0].options.get("has") or ()))
