"""What producer and consumer say to each other over their socket: small typed messages of bounded size, and fds.

Goes in: msgspec structs. Comes out: four bytes of length and MessagePack, never pickle. Anything else ends the
connection.
"""
import array
import os
import socket
import struct
from collections import deque
from typing import Any, Union

import msgspec

from .errors import DataError, Where
from .layout import Layout

# No `from __future__ import annotations`: msgspec would have to compile each of them when the first message is read.

LARGEST = 64 << 20                     # bytes of one message: a plan carries the program's text and constants
MOST_FDS = 8
SEND_SECONDS = 30
CLOSE_ON_EXEC = 0x40000000             # MSG_CMSG_CLOEXEC
AT_ONCE = CLOSE_ON_EXEC | int(socket.MSG_DONTWAIT)


class Gone(Exception):
    """The other side has left."""


class Nonsense(Gone):
    """The other side sends what isn't a message, or one that it may not send."""


class Open(msgspec.Struct, frozen=True, tag=True):
    """Consumer → producer, with the fd of its control page: run this plan into a ring of this layout."""

    plan: bytes
    layout: Layout
    engine: str                        # "module:class"
    options: dict[str, Any]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Producer → consumer, with the fds of the ring and the three eventfds (data, room, heap)."""

    layout: Layout
    length: int | None                 # rows of an epoch, where that is known


class Seek(msgspec.Struct, frozen=True, tag=True):
    """Consumer → producer: leave what you do, go on from here."""

    generation: int
    epoch: int
    start: int
    skip: int
    weights: str | None = None         # the version of what this epoch reads, where it is resumed; see feedback


class Started(msgspec.Struct, frozen=True, tag=True):
    """Producer → consumer: the rows asked for by Seek begin at `row`, after `ends` ends of epochs."""

    generation: int
    row: int
    ends: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Producer → consumer: a DataError."""

    generation: int
    code: str
    title: str
    where: tuple[str, int, int] | None
    label: str
    record: str
    epoch: int | None
    position: int | None
    notes: tuple[str, ...]


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Consumer → producer: say your counts. `epoch`: with the version of what it reads as the count `weights`."""

    epoch: int | None = None


class Feedback(msgspec.Struct, frozen=True, tag=True):
    """Consumer → producer: values of records, see `feedback.FeedbackTable.put`; or, without a name, that it has given
    all values of an epoch."""

    epoch: int
    name: str = ""
    ids: bytes = b""
    values: bytes = b""


class Counts(msgspec.Struct, frozen=True, tag=True):
    """Producer → consumer: what the engine counted."""

    values: dict[str, int | float | str]
    bad: tuple[tuple[int, str, str], ...] = ()      # (epoch, record, reason) of the last bad records
    bad_counts: dict[int, int] = {}                 # epoch → bad records


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Consumer → server, with the fd of its control page. `label` says to people who it is."""

    version: str
    label: str
    when_slow: str = "wait"


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Server → consumer, with the fds of the ring and the three eventfds. `given`: the params set when it was started."""

    member: int
    layout: Layout
    plan: bytes
    given: dict[str, Any]
    run: str | None
    length: int | None
    epochs: int | None


class Group(msgspec.Struct, frozen=True):
    """Processes that begin together: number `rank` of `world`, `here` of which are on this machine.

    `moves`: how often their user has said where to go on. Who has done so more often waits for the others to follow.
    """

    name: str = ""
    here: int = 1
    rank: int = 0
    world: int = 1
    moves: int = 0


class Join(msgspec.Struct, frozen=True, tag=True):
    """Consumer → server: give me a place. `state`: (epoch, next, skip) to go on from; without it `when` decides.

    `when`: "epoch" from the start of one, "now". `others`: how many were with it at a server that is gone. `group`: it
    gets one when all ranks of its group that are on this machine ask.
    """

    number: int
    when: str = "epoch"
    state: tuple[int, int, int] | None = None
    others: int = 0
    group: Group = Group()
    weights: str | None = None         # as in Seek


class Waits(msgspec.Struct, frozen=True, tag=True):
    """Server → consumer: why Join number `number` has no answer yet, for people."""

    number: int
    reason: str


class Joined(msgspec.Struct, frozen=True, tag=True):
    """Server → consumer: the place asked for by Join, or one shortly before it. `members`: with this one."""

    number: int
    row: int
    ends: int
    generation: int
    epoch: int
    next: int
    skip: int
    members: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """Anybody → server: say how things are."""


class Member(msgspec.Struct, frozen=True):
    """One consumer in a report. `place`: (epoch, next) it has read up to; `lag`: rows behind the head.

    `waited`: seconds it waited for rows, `blocked`: seconds for which the producer waited for it.
    """

    number: int
    pid: int
    label: str
    when_slow: str
    place: tuple[int, int] | None
    lag: int
    taken: int
    lost: int
    waited: float
    blocked: float
    seconds: float


class Report(msgspec.Struct, frozen=True, tag=True):
    """Server → anybody: how things are. `fill`: rows written and not released by all, of `capacity`. `waits`: whom
    consumers wait for, in words. `read`: bytes from files, `bytes`: into the ring."""

    name: str
    pid: int
    program: str
    state: str
    seconds: float
    epoch: int
    position: int
    rows: int
    bytes: int
    fill: int
    capacity: int
    total: int
    waited: float
    members: tuple[Member, ...]
    rejected: int
    counts: Counts
    waits: tuple[str, ...] = ()
    read: int | None = None


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Anybody → server: deliver what is there and end."""


Message = Union[Open, Ready, Seek, Started, Failed, Ask, Counts, Feedback, Attach, Welcome, Join, Waits, Joined, Look, Report,
                Stop]


def failed(generation: int, error: DataError) -> Failed:
    where = (error.where.file, error.where.start, error.where.end) if error.where else None
    return Failed(generation, error.code, error.title, where, error.label, error.record, error.epoch, error.position,
                  tuple(error.notes))


def error_of(message: Failed) -> DataError:
    where = Where(*message.where) if message.where else None
    return DataError(message.code, message.title, where, message.label, message.record, message.epoch,
                     message.position, message.notes)


class Channel:
    """One end of the socket. `largest`: bytes of a message that it takes."""

    def __init__(self, sock: socket.socket, largest: int = LARGEST, send_seconds: int = SEND_SECONDS):
        self.sock, self.largest = sock, largest
        self.sock.setblocking(True)                       # with a Python timeout MSG_DONTWAIT would wait
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", send_seconds, 0))
        self.buffer = bytearray()
        self.fds: deque[int] = deque()
        self.decoder = msgspec.msgpack.Decoder(Message)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        data = msgspec.msgpack.encode(message)
        if len(data) > max(LARGEST, self.largest):
            raise ValueError(f"a message of {len(data):,} bytes is too large")
        data = len(data).to_bytes(4, "little") + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self.sock.sendmsg([data], rights)
            if sent < len(data):                          # else it may have been read, and have ended the connection
                self.sock.sendall(memoryview(data)[sent:])
        except OSError as error:
            raise Gone(f"it has left: {error}") from error

    def receive(self, wait: bool = False) -> Message | None:
        """The next message; None where none is there yet and `wait` is false. Raises Gone."""
        while True:
            message = self._take()
            if message is not None:
                return message
            if not self._fill(wait):
                return None

    def _fill(self, wait: bool) -> bool:
        room = socket.CMSG_SPACE(MOST_FDS * 4)
        try:
            data, rights, _, _ = self.sock.recvmsg(1 << 16, room, CLOSE_ON_EXEC if wait else AT_ONCE)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Gone(f"it has left: {error}") from error
        for level, kind, raw in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(raw[: len(raw) - len(raw) % got.itemsize])
                self.fds.extend(got)
        if not data:
            raise Gone("it has left")
        if len(self.fds) > MOST_FDS:
            raise Nonsense("too many files were sent")
        self.buffer += data
        return True

    def _take(self) -> Message | None:
        if len(self.buffer) < 4:
            return None
        size = int.from_bytes(self.buffer[:4], "little")
        if size > self.largest:
            raise Nonsense(f"the other side sends a message of {size:,} bytes")
        if len(self.buffer) < 4 + size:
            return None
        data = bytes(self.buffer[4 : 4 + size])
        del self.buffer[: 4 + size]
        try:
            message: Message = self.decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise Nonsense(f"the other side sends what isn't a message: {error}") from error
        return message

    def take_fds(self, count: int) -> list[int]:
        if len(self.fds) < count:
            raise Nonsense("the other side sent too few files")
        return [self.fds.popleft() for _ in range(count)]

    def close(self) -> None:
        self.sock.close()
        while self.fds:
            os.close(self.fds.popleft())
