"""A producer's worker processes: tasks of positions go in, chunks come out, as of `Feed.run`.

Each is called by one thread of the producer at a time, which waits for the answer; so order, bounds and errors are those
of threads.
"""
from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from .blocks import view
from .errors import DataError
from .feed import Chunk, Feed
from .feedback import Snapshot
from .held import Target
from .layout import Layout
from .messages import Channel, Failed, Gone, error_of
from .plan import CallExtern, Plan, Segment, reached
from .ranks import Deal
from .spawned import code
from .worker import Begin, Done, Epoch, Ready, Task, line, received

# A worker finds modules where the producer does, and puts no folder of its own in front.
CODE = code("pipec.runtime.worker: main(int(sys.argv[1]))", 2)
LEAVE_SECONDS = 2.0


def calls_python(segments: Sequence[Segment]) -> bool:
    """Does a line of these, or of pipelines that they read, call the user's Python."""
    return any(isinstance(step, CallExtern) for s in reached(segments) for step in s.program.steps)


class Died(Exception):
    """A worker process has ended."""


@dataclass
class Ring:
    """Where workers write rows: the ring's fd, and where its columns are mapped here."""

    fd: int
    layout: Layout
    bases: Mapping[str, int] = field(default_factory=dict)


class Process:
    """One worker."""

    def __init__(self, plan: bytes, ring: Ring | None):
        self.ring = ring
        near, far = socket.socketpair()
        path = json.dumps([os.path.abspath(p) for p in sys.path])
        with far:
            self.process = subprocess.Popen([sys.executable, "-P", "-c", CODE, str(far.fileno()), path],
                                            pass_fds=(far.fileno(),), stdin=subprocess.DEVNULL, process_group=0)
        self.channel: Channel = line(near)
        try:
            self.say(Begin(plan, None if ring is None else ring.layout), () if ring is None else (ring.fd,))
        except Died:
            self.close()
            raise

    def say(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        try:
            self.channel.send(message, fds)
        except Gone as error:
            raise Died from error

    def answer(self, kind: type) -> Any:
        """Wait for it. Raises what the worker failed with, or Died."""
        try:
            answer: Any = self.channel.receive(wait=True)
        except Gone as error:
            raise Died from error
        if isinstance(answer, Failed):
            raise error_of(answer)
        if not isinstance(answer, kind):
            raise Died
        return answer

    def run(self, first: int, count: int, targets: Mapping[str, Target] | None, turn: int) -> Chunk:
        places = None
        if targets is not None and self.ring is not None:
            places = {name: (t.address - self.ring.bases[name], t.stride) for name, t in targets.items()}
        self.say(Task(first, count, turn, places))
        chunk = received(self.answer(Done))
        if targets is not None and places is None:
            _place(chunk, targets)
        return chunk

    def how(self) -> str:
        """How it has ended, for people."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(LEAVE_SECONDS)
            return f"killed by signal {-code}" if code < 0 else f"it exited with {code}"
        return "it closed its socket"

    def close(self) -> None:
        self.channel.close()
        try:
            self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:                 # still in the user's function
            self.process.kill()
            self.process.wait()


def _place(chunk: Chunk, targets: Mapping[str, Target]) -> None:
    """Write rows that came by message where they belong."""
    for k, row in enumerate(chunk.rows):
        for name, target in targets.items():
            value = np.asarray(row.fields[name])
            view(target.address + k * target.stride, value.shape or (1,), value.dtype)[...] = value
    chunk.rows = []


class Workers:
    """All workers of one feed."""

    def __init__(self, plan: Plan, feed: Feed, count: int, deal: Deal | None = None):
        self.plan, self.feed, self.deal = msgspec.msgpack.encode(plan), feed, deal
        self.count = count
        self.all: list[Process] = []
        self.idle: queue.SimpleQueue[Process] = queue.SimpleQueue()
        self.epoch: Epoch | None = None

    def start(self, ring: Ring | None) -> None:
        """Start the processes. Called once, before the ring is sealed. Raises DataError where sources can't be read."""
        self.all = [Process(self.plan, ring) for _ in range(self.count)]
        try:
            for process in self.all:
                process.answer(Ready)
                self.idle.put(process)
        except Died as error:
            raise DataError("E0807", "a worker process of the producer couldn't start", notes=(self.all[0].how(),)) from error

    def start_epoch(self, epoch: int, start: int, weights: Snapshot | None) -> None:
        """With no task running. `start`: the position where a rank's share begins."""
        if not self.all:
            self.start(None)
        tables = None if weights is None else {n: (t.ids.tobytes(), t.values.tobytes()) for n, t in weights.tables.items()}
        self.epoch = Epoch(epoch, None if self.deal is None else (self.deal, start), tables)
        for process in self.all:
            with contextlib.suppress(Died):               # the next task tells
                process.say(self.epoch)

    def run(self, first: int, count: int, targets: Mapping[str, Target] | None = None, turn: int = 0) -> Chunk:
        """As `Feed.run`, in a process."""
        process = self.idle.get()
        try:
            return process.run(first, count, targets, turn)
        except Died:
            died, process = process, self._another(process)
            return self._again(died, process, first, count, targets, turn)
        finally:
            self.idle.put(process)

    def _another(self, process: Process) -> Process:
        """In place of one that has died: without the ring, which by now is sealed."""
        new = Process(self.plan, None)
        try:
            new.answer(Ready)
            new.say(self.epoch)
        except Died as error:
            raise DataError("E0807", "a worker process of the producer couldn't start again", notes=(new.how(),)) from error
        self.all[self.all.index(process)] = new
        return new

    def _again(self, died: Process, process: Process, first: int, count: int, targets: Mapping[str, Target] | None,
               turn: int) -> Chunk:
        """Record by record, to find the one that ends processes; if none does any more, the run goes on."""
        for k in range(first, first + count):
            try:
                process.run(k, 1, None, turn)
            except Died as error:
                position = k if self.feed.picked is None else int(self.feed.picked.positions(k, 1)[0])
                raise DataError(
                    "E0811", f"this record ended a worker process: {process.how()}", record=self.feed.name(position, turn),
                    epoch=self.feed.epoch, position=position,
                    notes=("a function of yours (`extern fn`) ended it, twice: not by an exception",
                           f"the first time: {died.how()}")) from error
        return process.run(first, count, targets, turn)

    def close(self) -> None:
        for process in self.all:
            process.channel.close()
        for process in self.all:
            process.close()
        self.all = []
