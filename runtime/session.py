"""A producer, the connection to it and a reader of its rows, from start to end; started again when it is gone."""
from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from typing import Any

import msgspec

from .attach import RowReader
from .attachment import Attachment, gone_error
from .layout import Layout
from .messages import Channel, Open
from .plan import Plan
from .spawned import code

LEAVE_SECONDS = 4.0
# The producer finds modules where this process does, and puts no folder of its own in front.
CODE = code("pipec.runtime.serve: main(int(sys.argv[1]))", 2)

sessions: weakref.WeakSet[Any] = weakref.WeakSet()   # all of this process, also those of shared streams


class Session:
    """What a loader holds of the system. `close` may be called at any time, also at exit."""

    def __init__(self, plan: Plan, layout: Layout, engine: str, options: dict[str, Any], workers: str, writable: bool):
        self.layout = layout
        self.request = Open(msgspec.msgpack.encode(plan), layout, engine, options)
        self.workers, self.writable = workers, writable
        self.pid = os.getpid()
        self.process: subprocess.Popen[bytes] | None = None
        self.thread: threading.Thread | None = None
        self.pidfd: int | None = None
        self.attachment: Attachment
        self.reader: RowReader | None = None
        self.length: int | None = None
        self.weights: dict[int, str] = {}                 # epoch → the version that it reads where it is resumed
        self.before = {"records": 0, "bytes": 0, "waited": 0.0}
        sessions.add(self)

    def start(self) -> None:
        """Start a producer. Raises DataError: its sources can't be read, or there is no memory."""
        near, far = socket.socketpair()
        try:
            if self.workers == "threads":
                self._start_thread(far)
            else:
                self._start_process(far)
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

    def _start_process(self, far: socket.socket) -> None:
        if not sys.executable:
            raise gone_error("this Python doesn't know its own executable: use workers='threads'")
        path = json.dumps([os.path.abspath(p) for p in sys.path])
        with far:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", CODE, str(far.fileno()), path], pass_fds=(far.fileno(),),
                stdin=subprocess.DEVNULL, process_group=0)
        with contextlib.suppress(OSError):                # some sandboxes have none: the socket tells, too
            self.pidfd = os.pidfd_open(self.process.pid)

    def _start_thread(self, far: socket.socket) -> None:
        from .serve import Producer

        producer = Producer(Channel(far))
        self.thread = threading.Thread(target=producer.serve, name="pipec-producer", daemon=True)
        self.thread.start()

    restarts = False                                      # an error is the loop's to see

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

    def counts(self) -> dict[str, Any]:
        reader = self.reader
        if reader is None:
            return dict(self.before)
        now = {"records": reader.rows, "bytes": reader.bytes, "waited": reader.waited}
        moved = reader.leases.counts
        return {k: v + now[k] for k, v in self.before.items()} | {"moved": moved.moved, "moved_bytes": moved.moved_bytes}

    def close(self) -> None:
        """The producer leaves when the socket closes. Nothing is left behind; held arrays keep their memory."""
        if os.getpid() != self.pid:
            return
        if self.reader is not None:
            kept = self.counts()
            self.before = {k: kept[k] for k in self.before}
            self.reader.leases.close()
            self.reader = None
        if hasattr(self, "attachment"):
            self.attachment.close()
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
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def forked(self) -> None:
        """In a forked child: let go of everything, so that the producer sees when the parent leaves."""
        if hasattr(self, "attachment"):
            with contextlib.suppress(OSError):
                self.attachment.close()
        if self.reader is not None:
            self.reader.leases.pagemap.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        if self.process is not None:
            self.process.returncode = 0                   # not our child


def _after_fork() -> None:
    for session in list(sessions):
        session.forked()


os.register_at_fork(after_in_child=_after_fork)
