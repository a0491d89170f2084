"""The producer: a process (or, for debugging, a thread) that runs an engine into a ring for the consumer on a socket.

Goes in: a connected socket, over which a plan comes. Comes out: rows in shared memory, and errors as messages.
It imports neither the compiler nor numba, lark or torch, and leaves when its consumer does.
"""
from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from . import messages
from .consumer import BrokenConsumer, Consumer
from .errors import DataError
from .memory import PAGE, check_received, create, seal
from .messages import Ask, Channel, Counts, Feedback, Gone, Open, Ready, Seek, Started
from .plan import Plan
from .ranks import Deal
from .ring import Run, Writer
from .workers import calls_python

LEAVE_SECONDS = 2.0                    # an engine has this long to stop before the process ends without it


class Producer:
    """One consumer's producer. `serve` returns when the consumer has left."""

    def __init__(self, channel: Channel, parent: int | None = None):
        """`parent`: a pidfd of the consumer, whose socket may live on in children it forked."""
        self.channel, self.parent = channel, parent
        self.changed = threading.Condition()
        self.wanted: Seek | None = None
        self.leaving = False
        self.run: Run | None = None
        self.engine: Any = None
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.fds: list[int] = []
        self.writer: Writer | None = None

    def serve(self) -> None:
        try:
            self._open()
        except (Gone, BrokenConsumer):
            self._close()
            return
        except BaseException as error:
            self._tell(0, error)
            self._close()
            return
        watcher = threading.Thread(target=self._watch, name="pipec-watch", daemon=True)
        watcher.start()
        try:
            while (seek := self._next()) is not None:
                self._run_from(seek)
        except (Gone, BrokenConsumer):
            pass
        finally:
            self._leave()
            watcher.join()
            self._close()

    # -- start and end

    def _open(self) -> None:
        request = self.channel.receive(wait=True)
        if not isinstance(request, Open):
            raise Gone("the first message has to be Open")
        (control,) = self.channel.take_fds(1)
        self.fds.append(control)
        try:
            check_received(control, PAGE)
        except ValueError as error:
            raise Gone(str(error)) from error
        plan = msgspec.msgpack.decode(request.plan, type=Plan)
        options = dict(request.options)
        self.engine = make_engine(request.engine, plan, options)
        ring = create("pipec-ring", request.layout.total)
        self.fds.append(ring)
        data, room, heap = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(3))
        self.fds += [data, room, heap]
        self.writer = Writer(request.layout, ring, room, heap)
        use_ring(self.engine, self.writer, ring)
        seal(ring)
        self.writer.join(Consumer(control, data))
        self.channel.send(Ready(request.layout, length_of(self.engine)), (ring, data, room, heap))
        if self.parent is not None:                       # a process of our own: the collector needn't go through what is there
            gc.freeze()

    def _close(self) -> None:
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()
        if self.writer is not None:
            self.writer.close()
        self.channel.close()
        for fd in (*self.fds, self.wake_fd):
            os.close(fd)
        self.fds.clear()

    def _leave(self) -> None:
        with self.changed:
            self.leaving = True
            if self.run is not None:
                self.run.stop()
            self.changed.notify_all()
        os.eventfd_write(self.wake_fd, 1)

    # -- the thread that reads the socket

    def _watch(self) -> None:
        """Until the consumer leaves: by its socket, or (a forked child may hold that) by its process."""
        poll = select.poll()
        for fd in (self.channel.fileno(), self.wake_fd, self.parent):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        try:
            while not self.leaving:
                ready = {fd for fd, _ in poll.poll()}
                if self.parent in ready:
                    break
                while (message := self.channel.receive()) is not None:
                    self._obey(message)
        except Gone:
            pass
        self._leave()
        if self.parent is not None:
            timer = threading.Timer(LEAVE_SECONDS, os._exit, (1,))
            timer.daemon = True
            timer.start()

    def _obey(self, message: Any) -> None:
        match message:
            case Seek():
                table = getattr(self.engine, "table", None)
                if table is not None:
                    table.close(0, message.epoch - 1)
                    table.resume(message.epoch, message.weights)
                with self.changed:
                    self.wanted = message
                    if self.run is not None:
                        self.run.stop()
                    self.changed.notify_all()
            case Feedback():
                take_feedback(self.engine, 0, message)
            case Ask():
                written = {"written_bytes": self.writer.bytes if self.writer else 0} | weights_of(self.engine, message)
                stats = getattr(self.engine, "stats", None)
                bad, counts = tuple(getattr(stats, "bad", ())), dict(getattr(stats, "bad_counts", {}))
                self.channel.send(Counts(counts_of(self.engine) | written, bad, counts))
            case _:
                raise Gone("only Seek, Ask and Feedback may follow")

    # -- the thread that runs the engine

    def _next(self) -> Seek | None:
        with self.changed:
            while self.wanted is None and not self.leaving:
                self.changed.wait()
            seek, self.wanted = self.wanted, None
            return None if self.leaving else seek

    def _run_from(self, seek: Seek) -> None:
        """One epoch after another from here, until something else is wanted. The ring's size bounds the lead."""
        assert self.writer is not None
        run = self.writer.begin(seek.epoch, seek.start, seek.skip)
        with self.changed:
            self.run = run
            if self.wanted is not None or self.leaving:
                run.stop()
        self.channel.send(Started(seek.generation, self.writer.head, self.writer.ends))
        epoch, start, skip = seek.epoch, seek.start, seek.skip
        try:
            while not run.stopped:
                self.engine.run(epoch, start, skip, run)
                epoch, start, skip = epoch + 1, 0, 0
        except (Gone, BrokenConsumer):
            raise
        except BaseException as error:
            if not run.stopped:
                run.stop()
                self._tell(seek.generation, error)
                self.writer.fail()
        finally:
            with self.changed:
                self.run = None

    def _tell(self, generation: int, error: BaseException) -> None:
        with contextlib.suppress(Gone, ValueError):
            self.channel.send(messages.failed(generation, as_data_error(error)))


def as_data_error(error: BaseException) -> DataError:
    """What ended an engine, as consumers are told: a mistake of ours with where it happened."""
    if isinstance(error, DataError):
        return error
    lines = "".join(traceback.format_exception(error)).splitlines()
    return DataError("E0807", f"the producer failed: {type(error).__name__}: {error}",
                     notes=tuple(line.rstrip() for line in lines[-12:]))


def make_engine(name: str, plan: Plan, options: dict[str, Any]) -> Any:
    """An engine of this package, or of a test."""
    module, _, attribute = name.partition(":")
    made = getattr(importlib.import_module(module), attribute)
    from .objects import load

    more: dict[str, Any] = {"deal": Deal(**options["deal"])} if options.get("deal") else {}   # for one rank
    if options.get("processes") and calls_python(plan.above):
        more["processes"] = True
    return made(plan, options.get("threads", 1), load(plan.kernels), options.get("allow_extern", False), **more)


def use_ring(engine: Any, writer: Writer, fd: int) -> None:
    """An engine with processes of its own has them map the ring before it is sealed."""
    prepare = getattr(engine, "use_ring", None)
    if prepare is not None:
        prepare(fd, writer.layout, {name: part.map.address for name, part in writer.parts.items()})


def take_feedback(engine: Any, consumer: int, message: Feedback) -> None:
    """What a consumer returned. Raises Gone where it isn't what the program reads."""
    table = getattr(engine, "table", None)
    if table is None:
        raise Gone("the program reads no weights")
    if not message.name:
        table.close(consumer, message.epoch)
        return
    try:
        table.put(message.name, message.ids, message.values)
    except ValueError as error:
        raise Gone(str(error)) from error


def weights_of(engine: Any, message: Ask) -> dict[str, str]:
    """The version of what an epoch reads, where it is asked for."""
    table = getattr(engine, "table", None)
    return {} if table is None or message.epoch is None else {"weights": table.version(message.epoch)}


def length_of(engine: Any) -> int | None:
    length: Callable[[int], int | None] | None = getattr(engine, "length", None)
    return length(0) if length is not None else None


def counts_of(engine: Any) -> dict[str, Any]:
    """The numbers among the engine's counts."""
    stats = getattr(engine, "stats", None)
    numbers = {k: v for k, v in vars(stats).items() if isinstance(v, int | float)} if stats is not None else {}
    return {**numbers, "cpu_seconds": sum(os.times()[:2])}


def _get_ready() -> None:
    """Load what every engine needs, while the consumer is still looking for its plan."""
    with contextlib.suppress(Exception):                    # what goes wrong is told when it is asked for
        importlib.import_module("pipec.runtime.engine")
        importlib.import_module("pipec.runtime.objects").target()


def main(fd: int) -> int:
    """A producer process: `fd` is its socket, its parent the consumer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)            # Ctrl-C is the consumer's business: it ends, we follow
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.getuid():
        return 1
    parent = None
    with contextlib.suppress(OSError):                      # where there are none, the socket alone tells
        parent = os.pidfd_open(pid)
    if os.getppid() != pid:                                 # it has ended, and its number may be another's
        return 0
    _get_ready()
    gc.freeze()
    gc.enable()
    try:
        Producer(Channel(sock), parent).serve()
    finally:
        sys.stderr.flush()
    os._exit(0)                                             # threads of the engine may still be in a library
