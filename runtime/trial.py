"""A plan run for a short while in this process, without a ring, to see what each of its steps costs.

A plan with its machine code goes in; clocks of its programs and the number of records come out.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .below import Below
from .blocks import DTYPES, address_of
from .clock import Clock
from .engine import HIDDEN, Engine, Reservation
from .feed import Feed
from .objects import load
from .plan import Column, Plan, Program
from .streams import Stream

MOST_BYTES = 64 << 20    # of rows kept for the lines below `share()`; more where a batch is larger
MOST_OF_A_BATCH = 1 << 30


@dataclass
class Trial:
    """What a run showed: clocks by the identity of their program, and `rows` that passed the ring."""

    clocks: dict[int, Clock] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0
    row_bytes: float = 0.0

    def clock(self, program: Program | None) -> Clock | None:
        return self.clocks.get(id(program))


def trial(plan: Plan, seconds: float = 2.0, allow_extern: bool = False) -> Trial:
    """Run the first epoch on one thread, about so many seconds above `share()` and as many below.

    Raises DataError where the data is bad, as any run does.
    """
    kernels = load(plan.kernels)
    shown = Trial()
    engine = Engine(plan, 1, kernels, allow_extern)
    try:
        _wind(engine.stream, shown)
        below = Below(plan, kernels, None, allow_extern)
        below.start_epoch(0)
        sink = _Sink(plan, time.monotonic() + seconds, below.batch_size or 1)
        started = time.monotonic()
        engine.run(0, 0, 0, sink)
        shown.seconds, shown.rows = time.monotonic() - started, sink.count
        shown.row_bytes = sink.bytes / max(1, sink.count)
    finally:
        engine.close()
    if sink.kept:
        _below(below, sink, shown, time.monotonic() + seconds)
    return shown


def _below(below: Below, sink: _Sink, shown: Trial, until: float) -> None:
    for later in (below.first, *below.later):
        _clock(later, shown)
    for _ in range(1000):
        for _ in below.batches(0, _Reader(sink)):
            if time.monotonic() > until:
                return
        if time.monotonic() > until:
            return


def _wind(stream: Stream, shown: Trial) -> None:
    """Give every program of a stream a clock."""
    if stream.feed is not None:
        _wind_feed(stream.feed, shown)
    for inner in stream.merge.streams if stream.merge is not None else ():
        _wind(inner, shown)
    for later in stream.later:
        _clock(later, shown)
        if later.sampler is not None:
            _wind_feed(later.sampler.feed, shown)


def _clock(later: Any, shown: Trial) -> None:
    later.runner.clock = shown.clocks[id(later.segment.program)] = Clock()


def _wind_feed(feed: Feed, shown: Trial) -> None:
    feed.clock = shown.clocks[id(feed.segment.program)] = Clock()
    for part in vars(feed.input).values():
        for inner in part if isinstance(part, list | tuple) else (part,):
            if isinstance(inner, Feed):
                _wind_feed(inner, shown)


@dataclass
class _Room:
    rows: int
    arrays: dict[str, NDArray[Any]]
    address: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.address = {name: address_of(a) for name, a in self.arrays.items()}


class _Sink:
    """Rows in ordinary memory; the first ones are kept, a batch of them where that isn't too much."""

    def __init__(self, plan: Plan, until: float, batch: int):
        self.batch = batch
        self.columns: tuple[Column, ...] = (*plan.rows, *HIDDEN)
        self.until, self.count, self.bytes = until, 0, 0.0
        self.kept: list[dict[str, Any]] = []

    def reserve(self, rows: int) -> Reservation | None:
        if time.monotonic() > self.until and self.count:
            return None
        fixed = [c for c in self.columns if c.dtype in DTYPES and None not in c.dims]
        return _Room(rows, {c.name: np.empty((rows, *[int(d or 0) for d in c.dims]), DTYPES[c.dtype]) for c in fixed})

    def commit(self, reservation: Reservation, rows: int, ragged: Mapping[str, list[NDArray[Any]]]) -> None:
        assert isinstance(reservation, _Room)
        fields: dict[str, Any] = {name: a[:rows] for name, a in reservation.arrays.items()} | dict(ragged)
        self.count += rows
        self.bytes += sum(_bytes(v) for name, v in fields.items() if not name.startswith("_"))
        most = MOST_OF_A_BATCH if self.count - rows < self.batch else MOST_BYTES
        if self.bytes < most or not self.kept:
            self.kept.append(fields)

    def end_epoch(self, epoch: int) -> None:
        pass


def _bytes(values: Any) -> float:
    if isinstance(values, np.ndarray):
        return float(values.nbytes)
    return float(sum(v.nbytes if hasattr(v, "nbytes") else len(v) if isinstance(v, bytes | str) else 8 for v in values))


@dataclass
class _Rows:
    count: int
    fields: dict[str, Any]
    lease: Any = None


class _Reader:
    """The kept rows, as a consumer takes them from the ring."""

    def __init__(self, sink: _Sink):
        self.rest: Iterator[dict[str, Any]] = iter(sink.kept)
        self.held: dict[str, Any] = {}

    def take(self, n: int) -> _Rows | None:
        while self._count() < n and (more := next(self.rest, None)) is not None:
            self.held = {k: _joined(self.held[k], v) for k, v in more.items()} if self.held else dict(more)
        count = min(n, self._count())
        if not count:
            return None
        taken = {k: v[:count] for k, v in self.held.items()}
        self.held = {k: v[count:] for k, v in self.held.items()}
        return _Rows(count, taken)

    def _count(self) -> int:
        return len(self.held["_id"]) if self.held else 0


def _joined(one: Any, other: Any) -> Any:
    return np.concatenate((one, other)) if isinstance(one, np.ndarray) else [*one, *other]
