"""A consumer's connection to a producer: what they say to each other, the fds of the ring, and whether it is still there."""
from __future__ import annotations

import os
import select
import time

from .errors import DataError
from .layout import Layout, check_layout
from .memory import PAGE, check_received, create
from .messages import (
    Attach,
    Channel,
    Counts,
    Failed,
    Gone,
    Group,
    Join,
    Message,
    Nonsense,
    Ready,
    Seek,
    Started,
    Welcome,
    error_of,
)

START_SECONDS = 120.0


class Attachment:
    """A connection to a producer: its messages, and whether it is still there."""

    def __init__(self, channel: Channel, pidfd: int | None):
        self.channel, self.pidfd = channel, pidfd
        self.control_fd = create("pipec-control", PAGE)
        self.failure: Failed | None = None
        self.inbox: list[Message] = []
        self.gone: str | None = None
        self.strange = False                              # it has gone since what it says is no message
        self.generation = 0
        self.length: int | None = None
        self.data_fd = self.room_fd = self.heap_fd = self.ring_fd = -1
        self.news = True                                  # a message may be there, or why the producer has ended
        self._watch: select.epoll | None = None

    def open(self, message: Message) -> Layout:
        """Ask for a ring; its layout is checked. Raises DataError."""
        self._send(message, (self.control_fd,))
        ready = self.expect(Ready)
        assert isinstance(ready, Ready)
        self._take_ring(ready.layout)
        self.length = ready.length
        return ready.layout

    def _take_ring(self, layout: Layout) -> None:
        try:
            check_layout(layout)
            self.ring_fd, self.data_fd, self.room_fd, self.heap_fd = self.channel.take_fds(4)
            self._forget_watch()
            check_received(self.ring_fd, layout.total)
        except (Gone, ValueError, OSError) as error:
            raise gone_error(str(error)) from error

    def attach(self, message: Attach) -> Welcome:
        """Become a consumer of a server. Raises DataError."""
        self._send(message, (self.control_fd,))
        welcome = self.expect(Welcome, 30.0)
        assert isinstance(welcome, Welcome)
        self._take_ring(welcome.layout)
        return welcome

    def join(self, when: str, state: tuple[int, int, int] | None, others: int, group: Group = Group(),
             weights: str | None = None) -> None:
        """Ask for a place; Joined answers, maybe after Waits."""
        self.generation += 1
        self.failure = None
        self._send(Join(self.generation, when, state, others, group, weights))

    def seek(self, epoch: int, start: int, skip: int, weights: str | None = None) -> Started:
        self.generation += 1
        self.failure = None
        self._send(Seek(self.generation, epoch, start, skip, weights))
        while True:
            started = self.expect(Started)
            assert isinstance(started, Started)
            if started.generation == self.generation:
                return started

    def say(self, message: Message) -> None:
        """What needs no answer. Raises DataError where nobody hears it."""
        self._send(message)

    def ask(self, message: Message) -> Counts:
        self._send(message)
        counts = self.expect(Counts, 30.0)
        assert isinstance(counts, Counts)
        return counts

    def _send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        try:
            self.channel.send(message, fds)
        except Gone as error:
            self.pump()
            if self.failure is not None:
                raise error_of(self.failure) from error
            raise gone_error(str(error)) from error

    def expect(self, kind: type | tuple[type, ...], seconds: float = START_SECONDS) -> Message:
        """Wait for a message of this kind, or of one of these. Raises what the producer failed with, or E0807."""
        deadline = time.monotonic() + seconds
        while True:
            self.pump()
            for k, message in enumerate(self.inbox):
                if isinstance(message, kind):
                    return self.inbox.pop(k)
            if self.failure is not None:
                raise error_of(self.failure)
            if self.gone is not None:
                raise gone_error(self.gone)
            left = deadline - time.monotonic()
            if left <= 0:
                raise gone_error(f"it said nothing for {seconds:.0f} seconds")
            self.sleep(left)

    def sleep(self, seconds: float | None = None) -> None:
        """Until rows are signalled, a message comes or the producer leaves."""
        for fd, _ in self.watch().poll(None if seconds is None else max(0.001, seconds)):
            if fd != self.data_fd:
                self.news = True

    def watch(self) -> select.epoll:
        """What `sleep` waits for: each signal of rows once, so that none has to be read; what the producer says, and its end."""
        if self._watch is None:
            self._watch = select.epoll()
            for fd in (self.data_fd, self.channel.fileno(), self.pidfd):
                if fd is not None and fd >= 0:
                    self._watch.register(fd, select.EPOLLIN | (select.EPOLLET if fd == self.data_fd else 0))
        return self._watch

    def _forget_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def pump(self) -> None:
        """Read the messages that are there."""
        self.news = False
        try:
            while self.gone is None and (message := self.channel.receive()) is not None:
                if not isinstance(message, Failed):
                    del self.inbox[:-16]
                    self.inbox.append(message)
                elif message.generation == self.generation:
                    self.failure = message
        except Gone as error:
            self.gone, self.strange = str(error), isinstance(error, Nonsense)
        if self.gone is None and self.pidfd is not None and select.select([self.pidfd], [], [], 0)[0]:
            self.gone = "its process has ended"
        self.news = self.gone is not None or self.failure is not None

    def end(self, seconds: float = 15.0) -> DataError:
        """Why the producer has done with this consumer: what it says of it, which may be on its way."""
        deadline = time.monotonic() + seconds
        while self.failure is None and self.gone is None and time.monotonic() < deadline:
            self.sleep(0.1)
            self.pump()
        return error_of(self.failure) if self.failure is not None else gone_error(self.gone or "this consumer was detached")

    def close(self) -> None:
        self._forget_watch()
        self.channel.close()
        for fd in (self.control_fd, self.data_fd, self.room_fd, self.heap_fd, self.ring_fd):
            if fd >= 0:
                os.close(fd)
        self.control_fd = self.data_fd = self.room_fd = self.heap_fd = self.ring_fd = -1


def gone_error(reason: str) -> DataError:
    return DataError("E0807", "the producer is gone", notes=(reason,))
