"""One connection to a server: somebody who looks, or (with a consumer) a member of the stream."""
from __future__ import annotations

import os
import socket
import time

from . import messages
from .consumer import Consumer
from .errors import DataError
from .messages import Channel, Gone, Join, Member, Message
from .rendezvous import peer

LARGEST = 16 << 20                     # bytes of a message that a server takes
SEND_SECONDS = 2                       # who doesn't read its messages for so long is gone


class Client:
    """What a server knows of a connection. `gone` says why it has to be forgotten.

    `number` counts consumers, from 1 on: it is 0 for who only looks.
    """

    def __init__(self, sock: socket.socket):
        self.channel = Channel(sock, LARGEST, SEND_SECONDS)
        self.pid, self.uid = peer(sock)
        self.number, self.label = 0, ""
        self.since = time.monotonic()
        self.silent = True                                # nothing has come from it yet
        self.gone: str | None = None
        self.pidfd: int | None = None
        self.member: Consumer | None = None
        self.request: Join | None = None                  # a place it waits for
        self.asked = 0.0                                  # when it asked for it
        self.told_why = False                             # it was told why there is no answer yet
        self.last = 0                                     # number of its last request

    @property
    def consumer(self) -> Consumer:
        """A member's."""
        assert self.member is not None
        return self.member

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        try:
            self.channel.send(message, fds)
        except Gone as reason:
            self.gone = "it reads no messages" if isinstance(reason.__cause__, BlockingIOError) else "it has left"

    def refuse(self, error: DataError) -> None:
        """Answer its last request so."""
        self.request = None
        self.send(messages.failed(self.last, error))

    def told(self, place: tuple[int, int] | None, lag: int) -> Member:
        """The member in a report."""
        waited, taken, lost = self.consumer.counts()
        return Member(self.number, self.pid, self.label, self.consumer.when_slow, place, lag, taken, lost, waited,
                      self.consumer.blocked, time.monotonic() - self.since)

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        self.channel.close()
