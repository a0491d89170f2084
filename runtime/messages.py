"""What producer and consumer say to each other over their socket: small typed messages of bounded size, and fds.

Goes in: msgspec structs. Comes out: four bytes of length and MessagePack, never pickle. Anything else ends the
connection.
"""
from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from typing import Any, Union

import msgspec

from .errors import DataError, Where
from .layout import Layout

LARGEST = 64 << 20                     # bytes of one message: a plan carries the program's text and constants
MOST_FDS = 8
SEND_SECONDS = 30
CLOSE_ON_EXEC = 0x40000000             # MSG_CMSG_CLOEXEC


class Gone(Exception):
    """The other side has left, or sends what isn't a message."""


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
    """Consumer → producer: say your counts."""


class Counts(msgspec.Struct, frozen=True, tag=True):
    """Producer → consumer: what the engine counted."""

    values: dict[str, int | float | str]
    bad: tuple[tuple[int, str, str], ...] = ()      # (epoch, record, reason) of the last bad records
    bad_counts: dict[int, int] = {}                 # epoch → bad records


Message = Union[Open, Ready, Seek, Started, Failed, Ask, Counts]


def failed(generation: int, error: DataError) -> Failed:
    where = (error.where.file, error.where.start, error.where.end) if error.where else None
    return Failed(generation, error.code, error.title, where, error.label, error.record, error.epoch, error.position,
                  tuple(error.notes))


def error_of(message: Failed) -> DataError:
    where = Where(*message.where) if message.where else None
    return DataError(message.code, message.title, where, message.label, message.record, message.epoch,
                     message.position, message.notes)


class Channel:
    """One end of the socket."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.sock.setblocking(True)                       # with a Python timeout MSG_DONTWAIT would wait
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self.buffer = bytearray()
        self.fds: deque[int] = deque()
        self.decoder = msgspec.msgpack.Decoder(Message)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        data = msgspec.msgpack.encode(message)
        if len(data) > LARGEST:
            raise ValueError(f"a message of {len(data):,} bytes is too large")
        data = len(data).to_bytes(4, "little") + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self.sock.sendmsg([data], rights)
            self.sock.sendall(memoryview(data)[sent:])
        except OSError as error:
            raise Gone(f"the other side has left: {error}") from error

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
            flags = CLOSE_ON_EXEC | (0 if wait else socket.MSG_DONTWAIT)
            data, rights, _, _ = self.sock.recvmsg(1 << 16, room, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Gone(f"the other side has left: {error}") from error
        for level, kind, raw in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(raw[: len(raw) - len(raw) % got.itemsize])
                self.fds.extend(got)
        if not data:
            raise Gone("the other side has left")
        if len(self.fds) > MOST_FDS:
            raise Gone("too many files were sent")
        self.buffer += data
        return True

    def _take(self) -> Message | None:
        if len(self.buffer) < 4:
            return None
        size = int.from_bytes(self.buffer[:4], "little")
        if size > LARGEST:
            raise Gone(f"the other side sends a message of {size:,} bytes")
        if len(self.buffer) < 4 + size:
            return None
        data = bytes(self.buffer[4 : 4 + size])
        del self.buffer[: 4 + size]
        try:
            message: Message = self.decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise Gone(f"the other side sends what isn't a message: {error}") from error
        return message

    def take_fds(self, count: int) -> list[int]:
        if len(self.fds) < count:
            raise Gone("the other side sent too few files")
        return [self.fds.popleft() for _ in range(count)]

    def close(self) -> None:
        self.sock.close()
        while self.fds:
            os.close(self.fds.popleft())
