"""A producer, the connection to it and a reader of its rows, from start to end; started again when it is gone."""
from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from typing import Any

import msgspec

from .attach import RowReader
from .attachment import Attachment, gone_error
from .layout import Layout
from .link import Link
from .messages import Channel, Open
from .plan import Plan
from .spawned import Spawned, producer

LEAVE_SECONDS = 4.0


class Session(Link):
    """A loader's own producer. `close` may be called at any time, also at exit."""

    def __init__(self, plan: Plan, layout: Layout, engine: str, options: dict[str, Any], workers: str, writable: bool,
                 spawned: Spawned | None = None):
        """`spawned`: a process to begin with, started ahead."""
        super().__init__(writable)
        self.spawned = spawned
        self.layout = layout
        self.request = Open(msgspec.msgpack.encode(plan), layout, engine, options)
        self.workers = workers
        self.process: subprocess.Popen[bytes] | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a producer. Raises DataError: its sources can't be read, or there is no memory."""
        near = self._start_thread() if self.workers == "threads" else self._start_process()
        try:
            self.attachment = Attachment(Channel(near), self.pidfd)
        except BaseException:
            near.close()
            raise
        try:
            layout = self.attachment.open(self.request)
            self.reader = RowReader(self.attachment, layout, writable=self.writable)
            self.length = self.attachment.length
        except BaseException:
            self.close()
            raise

    def _start_process(self) -> socket.socket:
        spawned, self.spawned = self.spawned or producer(), None
        if spawned is None:
            raise gone_error("this Python doesn't know its own executable: use workers='threads'")
        self.process = spawned.process
        with contextlib.suppress(OSError):                # some sandboxes have none: the socket tells, too
            self.pidfd = os.pidfd_open(self.process.pid)
        return spawned.socket

    def _start_thread(self) -> socket.socket:
        from .serve import Producer

        near, far = socket.socketpair()
        serving = Producer(Channel(far))
        self.thread = threading.Thread(target=serving.serve, name="pipec-producer", daemon=True)
        self.thread.start()
        return near

    restarts = False                                      # an error is the loop's to see
    anew = "open the program"

    def first(self) -> tuple[int, int, int]:
        """Where a loop begins: epoch, next, skip."""
        return (0, 0, 0)

    def reader_at(self, epoch: int, start: int, skip: int, there: bool) -> RowReader:
        """The reader, at this point of the stream. `there`: it stands there already."""
        if self.reader is not None:
            self.attachment.pump()
            if self.attachment.gone is not None:
                self.close()
        if self.reader is None:
            self.start()
            there = False
        assert self.reader is not None
        if not there:
            started = self.attachment.seek(epoch, start, skip, self.weights.get(epoch))
            self.reader.place(started.row, started.ends)
        return self.reader

    def restart(self, layout: Layout) -> None:
        """With another ring."""
        self.close()
        self.layout = layout
        self.request = msgspec.structs.replace(self.request, layout=layout)

    def close(self) -> None:
        """The producer leaves when the socket closes. Nothing is left behind; held arrays keep their memory."""
        if os.getpid() != self.pid:
            return
        self.leave()
        if self.process is not None:
            try:
                self.process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        if self.thread is not None:
            self.thread.join(LEAVE_SECONDS)
            self.thread = None

    def let_go(self) -> None:
        super().let_go()
        if self.process is not None:
            self.process.returncode = 0                   # not our child
