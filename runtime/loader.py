"""What a training loop iterates over: `open` a program, get a `Loader` of batches.

An iteration is one epoch; the next one is the next epoch, also where the loop left the one before early (`break`).
After an error, or after `load_state_dict`, the next iteration goes on where the last batch ended.
"""
from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import keyword
import math
import os
import re
import sys
import threading
import time
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..dsl.problems import PipeError, Problem, Span
from .errors import DataError
from .layout import DEFAULT_HEAP, Layout, is_ragged, plan_layout, row_bytes
from .limits import parse_size
from .messages import Ask, Counts
from .objects import load
from .plan import CallExtern, Plan
from .session import Session

ENGINE = "pipec.runtime.engine:Engine"
HEAVY = 1 << 20                        # an engine reserves up to about this many bytes at once
ROWS_AT_ONCE = 64                      # what is taken from the ring where batches aren't plain runs of rows


def open(path: str | os.PathLike[str], *, threads: int | None = None, as_: str = "torch",
         memory: int | str | None = None, workers: str = "process", run: str | None = None,
         allow_extern: bool = False, trust: bool = False, device: Any = None, **params: Any) -> Loader:
    """Compile a program (once; kept in a cache) or take an artifact (`x.pipec`), and start its producer.

    `as_`: "torch" or "numpy", or "cupy" on a GPU. `device="cuda"` (or "cuda:1"): the lines below `share()` run on that GPU,
    and batches are there. `memory`: size of the ring, in bytes or like "2GB". `run`: the pipeline, where the file
    has several. `workers="threads"` runs the producer in this process, for debugging. `params` set the program's; an
    artifact's where they are open. `trust`: run an artifact's machine code though nobody known signed it.
    """
    plan = _plan(os.fspath(path), params, run, trust)
    if not allow_extern:
        _refuse_externs(plan)
    return Loader(plan, threads=threads, as_=as_, memory=memory, workers=workers, device=device, allow_extern=allow_extern)


def _plan(path: str, params: Mapping[str, Any], run: str | None, trust: bool) -> Plan:
    from . import artifact

    if artifact.is_artifact(path):
        return artifact.plan_of(path, params, run, trust)
    plan_for: Callable[..., Plan] = importlib.import_module("pipec.compiler.compile").plan_for
    return plan_for(path, params, run)


class Loader:
    """Batches of a program, epoch by epoch; a context manager. For one thread of the process that opened it."""

    def __init__(self, plan: Plan, *, threads: int | None = None, as_: str = "torch", memory: int | str | None = None,
                 workers: str = "process", allow_extern: bool = False, engine: str = ENGINE, below: Any = None,
                 device: Any = None):
        if as_ not in ("torch", "numpy", "cupy"):
            raise ValueError(f'as_={as_!r}: it is "torch", "numpy" or "cupy"')
        if workers not in ("process", "threads"):
            raise ValueError(f'workers={workers!r}: it is "process" or "threads"')
        self.plan = plan
        self.threads = threads or len(os.sched_getaffinity(0))
        if below is None and (as_ == "cupy" or device not in (None, "cpu")):
            below = importlib.import_module("pipec.runtime.device").below_on(plan, device or "cuda", as_, allow_extern)
        if below is None:
            below = importlib.import_module("pipec.runtime.below").Below(plan, load(plan.kernels), None, allow_extern)
        self._below = below
        self._below.start_epoch(0)
        self._convert = _to_torch if as_ == "torch" else lambda value: value
        # Importing torch takes longer than starting the producer: both at once.
        importing = threading.Thread(target=importlib.import_module, args=("torch",), daemon=True)
        if as_ == "torch" and "torch" not in sys.modules and importlib.util.find_spec("torch") is not None:
            importing.start()
        self.batch_type: Any = namedtuple(  # type: ignore[misc]
            re.sub(r"\W|^(?=\d)", "_", plan.name) or "batch", [_attribute(c.name) for c in plan.emit], rename=True)
        self._names = [c.name for c in plan.emit]
        self._memory = None if memory is None else parse_size(memory)
        layout = _layout(plan, self._below, self.threads, self._memory)
        options = {"threads": self.threads, "allow_extern": allow_extern}
        self._box = Session(plan, layout, engine, options, workers, writable=as_ == "torch")
        self._finalizer = weakref.finalize(self, self._box.close)
        self._epoch, self._next, self._skip = 0, 0, 0
        self._begun = False                               # an iteration over `_epoch` has begun, and not ended
        self._loaded = False                              # `_next` and `_skip` are from `load_state_dict`
        self._coming: int | None = None                   # the epoch whose first row is the ring's next
        self._turn: object = None
        self._batches = 0
        self._seconds = 0.0
        self._answer = Counts({})
        try:
            self._box.start()
        finally:
            if importing.ident is not None:
                importing.join()
        if as_ == "torch":
            importlib.import_module("torch")   # raises where there is none

    # -- iterating

    def __iter__(self) -> Iterator[Any]:
        self._usable()
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        self._usable()
        if self._begun:                                   # left early
            self._epoch, self._next, self._skip = self._epoch + 1, 0, 0
        turn = self._turn = object()
        self._begun, self._loaded = True, False
        there = self._place() == (self._coming, 0, 0)
        self._coming = None
        epoch = self._epoch
        made: list[Any] = []                              # the loop holds its batch, we don't
        try:
            started = time.perf_counter()
            for fields, progress in self._read(there):
                made.append(self.batch_type(*(self._convert(fields[name]) for name in self._names)))
                del fields
                self._next, self._skip = progress.next, progress.skip
                self._batches += 1
                now = time.perf_counter()
                self._seconds += now - started            # with the loop's own time since the last batch
                started = now
                yield made.pop()
                self._usable()
                if self._turn is not turn:
                    raise RuntimeError("this iteration has ended: another one over the same loader has begun since")
        except DataError as error:
            self._begun = False                           # the next iteration goes on here
            if error.code == "E0807":
                error.epoch, error.position = epoch, self._next
                error.notes = (*error.notes, "iterate again, or load this state_dict into a new loader, to go on there")
            elif error.record and self._next and not self._skip:
                error.notes = (f"every record before position {self._next:,} was delivered", *error.notes)
            raise
        self._begun = False
        self._epoch, self._next, self._skip = epoch + 1, 0, 0
        self._coming = epoch + 1

    def _read(self, there: bool) -> Iterator[Any]:
        """The rest of the epoch, with a larger ring where values turn out too long for the one there is."""
        while True:
            reader = self._box.reader_at(*self._place(), there)
            reader.exact = getattr(self._below, "stacks", True)
            try:
                batches = self._below.batches(self._epoch, reader)
                yield from itertools.islice(batches, self._skip, None) if self._replays else batches
                return
            except DataError as error:
                heaps = [p.heap for p in self._box.layout.places if p.ragged]
                if error.code != "E0809" or self._memory is not None or not heaps:
                    raise
                larger = _layout(self.plan, self._below, self.threads, None, 4 * max(heaps))
                there = False
            del reader
            self._box.restart(larger)

    def _place(self) -> tuple[int, int, int]:
        return (self._epoch, 0, 0) if self._replays else (self._epoch, self._next, self._skip)

    @property
    def _replays(self) -> bool:
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
        if size is None:
            return rows
        count: int = rows // size if self._below.drops_smaller else math.ceil(rows / size)
        return count

    # -- state

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start; or from a state loaded before for the same epoch."""
        if epoch < 0:
            raise ValueError("epochs count from 0")
        if not self._loaded or epoch != self._epoch:
            self._turn = None
            self._epoch, self._next, self._skip, self._begun, self._loaded = epoch, 0, 0, False, False

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: right after the last batch that this loop got, whatever was read ahead."""
        return {"program": self.plan.fingerprint, "seed": self.plan.seed, "epoch": self._epoch, "next": self._next,
                "skip": self._skip}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken."""
        if state.get("program") != self.plan.fingerprint:
            raise ValueError("this state is of another program, or of other params or another seed")
        numbers: list[Any] = [state.get(key) for key in ("epoch", "next", "skip")]
        if not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise ValueError("not a state of a loader: `epoch`, `next` and `skip` have to be numbers from 0 on")
        self._turn = None
        self._epoch, self._next, self._skip = numbers
        self._begun, self._loaded = False, True

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
                f"this loader belongs to process {self._box.pid}, and this is a forked child of it: open the program "
                "here too, or iterate the loader itself without DataLoader workers (it has a producer of its own)")
        if not self._finalizer.alive:
            raise ValueError("this loader is closed")

    def __reduce__(self) -> Any:
        raise TypeError("a loader can't be sent to another process: call pipec.open there")


def _refuse_externs(plan: Plan) -> None:
    """Raise PipeError E0811 where the plan calls the user's Python and the run doesn't allow it."""
    waiting = [*plan.above, *plan.below]
    while waiting:
        segment = waiting.pop(0)
        waiting += [inner for branch in segment.start.inputs for inner in branch]
        for program in (segment.program, segment.start.number):
            for step in program.steps if program is not None else ():
                if isinstance(step, CallExtern) and program is not None:
                    site = next((s for s in program.sites if s.number == step.site), None)
                    span = Span(site.file, site.start, site.end) if site else None
                    raise extern_refused(step.target, span, plan.path, plan.texts)


def extern_refused(target: str, span: Span | None, path: str, texts: Mapping[str, str]) -> PipeError:
    """E0811: the program calls `target`, and nobody said that it may."""
    return PipeError((Problem(
        "E0811", f"this program runs Python code, `{target}`, and this run doesn't allow it", span or Span(path, 0, 0),
        notes=("if you trust it: `--allow-extern` on the command line, `allow_extern=True` in Python",)),), dict(texts))


def _attribute(name: str) -> str:
    """`class` and other words of Python's own get an underscore behind."""
    return name + "_" if keyword.iskeyword(name) else name


def _layout(plan: Plan, below: Any, threads: int, memory: int | None, heap: int = DEFAULT_HEAP) -> Layout:
    fixed = sum(row_bytes(c) for c in plan.rows if not is_ragged(c))
    chunk = min(256, max(4, HEAVY // max(1, fixed)))
    most = max(ROWS_AT_ONCE, below.batch_size or 0)
    return plan_layout(plan.rows, most, memory, chunk, 3 * threads * chunk, heap)


def _one_batch_stage(plan: Plan) -> bool:
    """Is what stands below `share` nothing that changes the number of rows but one plain `batch(n)`?"""
    if any(s.takes or any(step.__class__.__name__ == "Require" for step in s.program.steps) for s in plan.below):
        return False
    starts = [s.start for s in plan.below[1:] if s.start.kind != "share"]
    return not starts or (len(starts) == 1 and starts[0].kind == "batch" and not starts[0].options.get("edges")
                          and "budget" not in (starts[0].options.get("has") or ()))


def _to_torch(value: Any) -> Any:
    """A tensor over the same memory; texts and bytes stay what they are."""
    import torch

    match value:
        case list():
            return [_to_torch(v) for v in value]
        case np.ndarray() | np.generic():
            array = np.asarray(value)
            if array.dtype == object:
                return array if array.ndim else array.item()
            if not array.flags.writeable or any(s < 0 for s in array.strides):
                array = array.copy()
            if array.dtype.name == "bfloat16":
                return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(array)
    return value
