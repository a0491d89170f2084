"""A worker process of a producer: positions come over a socket, chunks of records go back, rows of fixed size straight into
the ring. Programs with `extern fn` have them, since the user's Python holds the interpreter.

Messages are msgspec structs; no pickle.
"""
from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from .blocks import DTYPES
from .errors import DataError
from .feed import Chunk, Feed
from .feedback import Snapshot, Values
from .frames import Row
from .held import Failure, Gaps, Target
from .inputs import feed_of, reachable
from .layout import Layout
from .messages import Channel, Failed, error_of, failed
from .objects import load
from .part import Part
from .plan import Plan
from .ranks import Deal, Picks
from .texts import objects

LARGEST = (1 << 32) - 1    # bytes of one message: rows of varying size


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Producer → worker: run this plan's lines; with the fd of the ring where a layout is there."""

    plan: bytes
    layout: Layout | None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Worker → producer."""


class Epoch(msgspec.Struct, frozen=True, tag=True):
    """Producer → worker: what follows is of this epoch. `picked`: (deal, start) where one rank's records are run."""

    epoch: int
    picked: tuple[Deal, int] | None
    weights: dict[str, tuple[bytes, bytes]] | None


class Task(msgspec.Struct, frozen=True, tag=True):
    """Producer → worker: run `count` positions. `places`: column → (bytes behind the start of its ring, bytes of a row)."""

    first: int
    count: int
    turn: int
    places: dict[str, tuple[int, int]] | None


class Record(msgspec.Struct, frozen=True):
    """A row on its way: its fields as `packed` gives them."""

    fields: dict[str, Any]
    id: int
    next: int
    count: int


class Bad(msgspec.Struct, frozen=True):
    """A failure on its way."""

    frame: int
    site: int
    code: str
    reason: str
    label: str
    error: Failed | None


class Done(msgspec.Struct, frozen=True, tag=True):
    """Worker → producer: what became of a task. Arrays are bytes of i64, `ids` of u64."""

    positions: bytes
    nexts: bytes
    passed: bytes
    kept: bytes
    ids: bytes
    bad: list[Bad]
    rows: list[Record]


Said = Union[Begin, Ready, Epoch, Task, Done, Failed]


def line(sock: socket.socket) -> Channel:
    """One end of the socket between producer and worker."""
    channel = Channel(sock, LARGEST)
    channel.decoder = msgspec.msgpack.Decoder(Said)
    return channel


# --- values on their way ----------------------------------------------------------------------------


def packed(value: Any) -> Any:
    """A row's value as lists, texts, bytes and numbers."""
    match value:
        case None | str() | bytes():
            return value
        case Gaps():
            return ["gaps", packed(value.values), packed(value.mask)]
        case np.ndarray() if value.dtype == object:
            return ["objects", list(value.shape), value.reshape(-1).tolist()]
        case np.ndarray():
            return ["array", value.dtype.name, list(value.shape), np.ascontiguousarray(value).tobytes()]
        case np.generic():
            return ["scalar", value.dtype.name, value.tobytes()]
        case list():
            return ["list", [packed(v) for v in value]]
    raise TypeError(f"a row has no values of type {type(value).__name__}")


NAMED = {dtype.name: dtype for dtype in DTYPES.values()}


def unpacked(value: Any) -> Any:
    match value:
        case ["gaps", values, mask]:
            made = unpacked(values)
            return Gaps(objects(made) if isinstance(made, bytes | str | None) else np.asarray(made), np.asarray(unpacked(mask)))
        case ["objects", shape, each]:
            found = np.empty(len(each), object)
            found[:] = each
            return found.reshape(shape)
        case ["array", name, shape, data]:
            return np.frombuffer(data, NAMED[name]).reshape(shape)
        case ["scalar", name, data]:
            return np.frombuffer(data, NAMED[name])[0]
        case ["list", each]:
            return [unpacked(v) for v in each]
    return value


def sent(chunk: Chunk) -> Done:
    rows = [Record({k: packed(v) for k, v in r.fields.items()}, r.id, r.next, r.count) for r in chunk.rows]
    bad = [Bad(f.frame, f.site, f.code, f.reason, f.label, None if f.error is None else failed(0, f.error))
           for f in chunk.failures]
    positions, nexts, passed, kept = (np.ascontiguousarray(a, np.int64).tobytes() for a in (
        chunk.positions, chunk.nexts, chunk.passed, chunk.kept))
    return Done(positions, nexts, passed, kept, np.ascontiguousarray(chunk.ids, np.uint64).tobytes(), bad, rows)


def received(done: Done) -> Chunk:
    rows = [Row({k: unpacked(v) for k, v in r.fields.items()}, r.id, r.next, count=r.count) for r in done.rows]
    bad = [Failure(b.frame, b.site, b.code, b.reason, b.label, None if b.error is None else error_of(b.error)) for b in done.bad]
    positions, nexts, passed, kept = (_integers(a) for a in (done.positions, done.nexts, done.passed, done.kept))
    return Chunk(positions, nexts, passed, kept, np.frombuffer(done.ids, np.uint64), bad, rows)


def _integers(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, np.int64)


# --- the process ------------------------------------------------------------------------------------


class Worker:
    """Serves one socket until the producer leaves."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.feed: Feed
        self.parts: dict[str, Part] = {}

    def serve(self) -> None:
        """Raises Gone at the end."""
        waiting: DataError | None = None   # of a message that has no answer: it is the next one's
        while True:
            message: Any = self.channel.receive(wait=True)
            try:
                if waiting is not None and isinstance(message, Task):
                    raise waiting
                answer = self._obey(message)
            except Exception as error:
                from .serve import as_data_error

                told = as_data_error(error)
                if isinstance(message, Epoch):
                    waiting = told
                    continue
                answer = failed(0, told)
            if isinstance(message, Epoch):
                waiting = None
            if answer is not None:
                self.channel.send(answer)

    def _obey(self, message: Any) -> Any:
        match message:
            case Begin():
                self._begin(message)
                return Ready()
            case Epoch():
                self._start(message)
                return None
            case Task():
                targets = None if message.places is None else {
                    name: Target(self.parts[name].map.address + at, stride) for name, (at, stride) in message.places.items()}
                return sent(self.feed.run(message.first, message.count, targets, message.turn))
        raise TypeError("no such message for a worker")

    def _begin(self, message: Begin) -> None:
        plan = msgspec.msgpack.decode(message.plan, type=Plan)
        if message.layout is not None:
            (fd,) = self.channel.take_fds(1)
            self.parts = {p.name: Part(fd, p.offset, p.size) for p in message.layout.places if not p.ragged}
            os.close(fd)
        self.feed = feed_of(plan, plan.above[: reachable(plan.above)], load(plan.kernels), True)

    def _start(self, message: Epoch) -> None:
        if message.weights is not None:
            self.feed.weights = Snapshot({name: Values(np.frombuffer(ids, np.uint64), np.frombuffer(values, np.float32))
                                          for name, (ids, values) in message.weights.items()})
        self.feed.start_epoch(message.epoch)
        if message.picked is not None:
            dealt, start = message.picked
            self.feed.picked = Picks(dealt, start, self.feed.length)


def _leave_with(pidfd: int) -> None:
    """End when the producer has, also in the middle of a function of the user's."""
    select.select([pidfd], [], [])
    os._exit(1)


def main(fd: int) -> None:
    """A worker process: `fd` is its socket. Ends when the producer has left."""
    from .messages import Gone

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    with contextlib.suppress(OSError):                     # where there are none, the socket alone tells
        watched = os.pidfd_open(os.getppid())
        threading.Thread(target=_leave_with, args=(watched,), name="pipec-parent", daemon=True).start()
    try:
        Worker(line(sock)).serve()
    except Gone:
        pass
    finally:
        sys.stderr.flush()
    os._exit(0)                                            # threads of the user's own may still run
