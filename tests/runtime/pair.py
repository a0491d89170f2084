"""A writer and its reader in one process, for tests of the ring."""
from __future__ import annotations

import os
import socket
import threading

import numpy as np
from fakes import PATIENT
from pipec.runtime.attach import RowReader
from pipec.runtime.attachment import Attachment
from pipec.runtime.blocks import view
from pipec.runtime.consumer import Consumer
from pipec.runtime.layout import Layout, plan_layout
from pipec.runtime.memory import create, seal
from pipec.runtime.messages import Channel
from pipec.runtime.ring import Writer


class Pair:
    """A writer and its reader, joined without a server."""

    def __init__(self, columns, most=128, memory=None, chunk=16, writable=False, budget=None, when_slow="wait",
                 native=True):
        """`native`: the extension writes rows, where it is built."""
        self.layout: Layout = plan_layout(columns, most, memory, chunk)
        near, self.far = socket.socketpair()
        self.attachment = Attachment(Channel(near), None)
        fd = create("ring", self.layout.total)
        data, room, heap = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(3))
        self.writer = Writer(self.layout, fd, room, heap)
        if not native:
            self.writer.quick = None
        seal(fd)
        self.attachment.ring_fd, self.attachment.data_fd = fd, data
        self.attachment.room_fd, self.attachment.heap_fd = room, heap
        self.reader = RowReader(self.attachment, self.layout, writable=writable, budget=budget, when_slow=when_slow)
        self.writer.join(Consumer(self.attachment.control_fd, data, when_slow))
        self.sink = self.writer.begin()
        self.reader.place(0, 0)
        self.thread = None
        self.problem = None

    def run(self, function):
        def guarded():
            try:
                function(self.sink)
            except BaseException as error:
                self.problem = error
                self.writer.fail()

        self.thread = threading.Thread(target=guarded, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sink.stop()
        if self.thread:
            self.thread.join(PATIENT)
            assert not self.thread.is_alive()
        self.writer.close()
        self.reader.leases.close()
        self.attachment.close()
        self.far.close()


def array(address, shape, dtype):
    return view(address, shape, np.dtype(dtype))


def pattern(row, size):
    """Bytes that tell the row and the place in it."""
    return ((np.arange(size, dtype=np.int64) * 7 + row * 31) % 251).astype(np.uint8)
