"""A server: one engine and one ring for any number of consumers, which come and go over a socket with a name.

Two threads: one answers sockets and gives consumers their places, one runs the engine. It imports neither the compiler
nor numba, lark or torch.
"""
from __future__ import annotations

import contextlib
import gc
import os
import resource
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from . import messages, rendezvous
from .client import Client
from .consumer import Began, BrokenConsumer, Consumer
from .errors import DataError
from .layout import Layout
from .memory import PAGE, check_received, create, seal
from .messages import Ask, Attach, Counts, Feedback, Gone, Join, Look, Nonsense, Report, Stop, Welcome
from .places import Places
from .plan import Plan
from .rendezvous import other_version
from .ring import Writer
from .serve import as_data_error, counts_of, length_of, make_engine, take_feedback, use_ring, weights_of
from .traffic import Reading
from .wire import wire_version
from .work import Work

HELLO_SECONDS = 30.0                   # until the first message of who connects
DRAIN_SECONDS = 10.0                   # for what is there to be read, after it was told to end
MOST_CLIENTS = 1024


@dataclass(frozen=True)
class Settings:
    """How a server runs.

    `wait_for`: consumers that have to be there before it starts. `max_skew`: rows between the fastest and the slowest.
    `patience`: seconds for which one with `when_slow="drop"` may hold the others back. `linger`: seconds without
    consumers after which it ends (None: never). `fresh`: after all have left, the next finds epoch 0.
    """

    name: str
    threads: int = 1
    wait_for: int = 1
    epochs: int | None = None
    max_skew: int | None = None
    patience: float = 10.0
    linger: float | None = None
    fresh: bool = False
    allow_extern: bool = False
    engine: str = "pipec.runtime.engine:Engine"


class Server:
    """Serves one plan. `serve` returns when it has ended; raises DataError where it can't start, Taken where its name is.

    `given`: the params that were set, for consumers that compile lines of their own. `say` gets a line for each
    consumer that comes or goes.
    """

    def __init__(self, plan: Plan, layout: Layout, settings: Settings, given: dict[str, Any] | None = None,
                 run: str | None = None, say: Callable[[str], None] = lambda line: None):
        self.plan, self.layout, self.settings, self.say = plan, layout, settings, say
        self.given, self.run_name = given or {}, run
        self.encoded = msgspec.msgpack.encode(plan)
        self.began_at = self.idle_since = time.monotonic()
        self.drain_until: float | None = None             # all were told that it ends
        self.draining = False                             # it was told to end
        self.clients: dict[int, Client] = {}              # by the fd of their socket
        self.numbers = self.rejected = 0
        self.leaving: deque[tuple[Consumer, Exception]] = deque()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.selector = selectors.DefaultSelector()
        self.name_lock = rendezvous.lock(settings.name)
        try:
            self._make_engine()
            self.listener = rendezvous.listen(settings.name)
        except BaseException:
            os.close(self.name_lock)
            raise
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.wake_fd, selectors.EVENT_READ, self._woken)

    def _make_engine(self) -> None:
        settings = self.settings
        self.reading = Reading()
        self.engine = make_engine(settings.engine, self.plan, {
            "threads": settings.threads, "allow_extern": settings.allow_extern, "processes": True})
        self.length = length_of(self.engine)
        self.table = getattr(self.engine, "table", None)  # what consumers return
        if self.table is not None:
            self.table.members = lambda: [c.number for c in self._members() if c.consumer.active]
        self.ring_fd = create("pipec-ring", self.layout.total)
        self.room_fd, self.heap_fd = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        self.writer = Writer(self.layout, self.ring_fd, self.room_fd, self.heap_fd, settings.max_skew, settings.patience,
                             self._leaves, self.wake)
        use_ring(self.engine, self.writer, self.ring_fd)
        seal(self.ring_fd)
        self.work = Work(self.engine, self.writer, settings.epochs, self.wake)
        self.places = Places(self.writer, self.work, self._members, settings.wait_for, settings.fresh, self.table, self._no_more)

    # -- life

    def serve(self) -> None:
        try:
            while not self._over():
                for key, _ in self.selector.select(self._until()):
                    key.data()
                self._look_after()
        finally:
            self._close()

    def stop(self) -> None:
        """Produce no more; end when what is there was read. May be called from a signal handler."""
        self.draining = True
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self.wake_fd, 1)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)

    def _until(self) -> float | None:
        """Seconds until something is due."""
        now, due = time.monotonic(), [c.since + HELLO_SECONDS for c in self.clients.values() if c.silent]
        due.append(self.places.due)
        if self.settings.linger is not None and not self._members():
            due.append(self.idle_since + self.settings.linger)
        if self.drain_until is not None:
            due.append(min(self.drain_until, now + 0.05))
        least = min(due)
        return None if least == float("inf") else max(0.0, least - now)

    def _over(self) -> bool:
        members, now = self._members(), time.monotonic()
        if self.drain_until is not None:
            return all(self._read_all(m.consumer) for m in members) or now > self.drain_until
        linger = self.settings.linger
        return linger is not None and not members and now > self.idle_since + linger

    def _read_all(self, consumer: Consumer) -> bool:
        writer = self.writer
        with contextlib.suppress(BrokenConsumer):
            consumer.update(writer)
        return not consumer.active or (consumer.released == writer.head and consumer.ends == writer.ends)

    def _look_after(self) -> None:
        """Everything that no message asks for."""
        while self.leaving:
            consumer, error = self.leaving.popleft()
            for client in self._members():
                if client.member is consumer:
                    self._send_away(client, error)
        if self.work.broken is not None:
            self._tell_broken()
        if self.drain_until is None and (self.work.finished or self.draining):
            self._tell_end()
        elif self.drain_until == float("inf") and self.draining:
            self._stop_listening()
        if self.drain_until is None:
            self.places.arrange()
        now = time.monotonic()
        for client in list(self.clients.values()):
            if client.silent and now > client.since + HELLO_SECONDS:
                self.rejected += 1
                client.gone = "it said nothing"
            if client.gone is not None:
                self._forget(client, client.gone)

    def _close(self) -> None:
        stopped = self.work.end(DRAIN_SECONDS)
        for client in list(self.clients.values()):
            self._forget(client, "the server ends")
        self.selector.close()
        with contextlib.suppress(OSError):
            rendezvous.socket_path(self.settings.name).unlink()
        self.listener.close()
        if stopped:                                       # else the process is about to end, and its memory with it
            close = getattr(self.engine, "close", None)
            if close is not None:
                close()
            self.writer.close()
        for fd in (self.ring_fd, self.room_fd, self.heap_fd, self.wake_fd, self.name_lock):
            os.close(fd)

    # -- sockets

    def _members(self) -> list[Client]:
        return [c for c in list(self.clients.values()) if c.member is not None]

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:                                   # it has left again, or there are no more fds
            return
        client = Client(sock)
        if client.uid != os.getuid() or self.draining or len(self.clients) >= MOST_CLIENTS:
            self.rejected += 1
            client.close()
            return
        self.clients[sock.fileno()] = client
        self.selector.register(sock, selectors.EVENT_READ, lambda: self._hear(client))

    def _hear(self, client: Client) -> None:
        if self.clients.get(client.channel.fileno()) is not client:
            return
        try:
            while (message := client.channel.receive()) is not None:
                client.silent = False
                self._obey(client, message)
        except Gone as reason:
            self.rejected += isinstance(reason, Nonsense)
            if isinstance(reason, Nonsense) and client.silent:   # maybe what another version says first
                client.refuse(other_version(self.settings.name, wire_version()))
            client.gone = str(reason)
        except DataError as error:
            self._send_away(client, error)

    def _obey(self, client: Client, message: Any) -> None:
        match message:
            case Look():
                client.send(self.report())
            case Stop():
                self.stop()
            case Attach() if client.member is None:
                self._attach(client, message)
            case Join() if client.member is not None:
                self.places.wanted(client, message)
                if self.drain_until is not None:
                    if not self.draining:
                        self.places.still_there(client)
                    client.refuse(self._end_error())      # after the rows that are there
            case Feedback() if client.member is not None:
                take_feedback(self.engine, client.number, message)
            case Ask() if client.member is not None:
                client.send(self._counts(message))
            case _:
                raise Nonsense("it says what it may not say here")

    def _attach(self, client: Client, message: Attach) -> None:
        if message.version != wire_version():
            raise other_version(self.settings.name, wire_version(), message.version[:40])
        if self.work.finished:
            raise self._no_more()
        if message.when_slow not in ("wait", "drop", "skip"):
            raise Nonsense("no such when_slow")
        (control,) = client.channel.take_fds(1)
        try:
            check_received(control, PAGE)
            data = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                consumer = Consumer(control, data, message.when_slow, client.number)
                consumer.rest()
                client.channel.send(Welcome(self.numbers + 1, self.layout, self.encoded, self.given, self.run_name, self.length,
                                            self.settings.epochs), (self.ring_fd, data, self.room_fd, self.heap_fd))
            finally:
                os.close(data)
        except (ValueError, OSError) as error:
            raise Nonsense(str(error)) from error
        finally:
            os.close(control)
        self.numbers += 1
        client.number, client.member = self.numbers, consumer
        client.label, client.since = message.label[:200], time.monotonic()
        self.writer.join(consumer)
        with contextlib.suppress(OSError):                # its socket may live on in children it forked
            client.pidfd = os.pidfd_open(client.pid)
            self.selector.register(client.pidfd, selectors.EVENT_READ, lambda: self._died(client))
        self.say(f"attached  #{client.number} {client.label} (process {client.pid})")

    def _died(self, client: Client) -> None:
        with contextlib.suppress(Gone):                   # what it said last
            while client.channel.receive() is not None:
                pass
        client.gone = "its process has ended"

    def _send_away(self, client: Client, error: Exception) -> None:
        """Say why, and have it forgotten."""
        if isinstance(error, DataError):
            client.refuse(error)
            client.gone = error.title
        else:
            self.rejected += 1
            client.gone = str(error)

    def _forget(self, client: Client, reason: str) -> None:
        del self.clients[client.channel.fileno()]
        for registered in (client.channel.sock, client.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                if registered is not None:
                    self.selector.unregister(registered)
        client.close()
        consumer = client.member
        if consumer is None:
            return
        self.writer.leave(consumer)
        if self.table is not None:
            self.table.leave(client.number)
        _, taken, lost = consumer.counts()
        told = f"{taken:,.0f} records" + (f", {lost:,} lost" if lost else "")
        self.say(f"detached  #{client.number} {client.label} (process {client.pid}): {reason}; {told}")
        if not self._members():
            self.idle_since = time.monotonic()
            self.places.left(consumer)

    def _leaves(self, consumer: Consumer, error: Exception) -> None:
        """From the engine's threads: this consumer has to go."""
        self.leaving.append((consumer, error))
        self.wake()

    # -- what everybody is told

    def _tell_broken(self) -> None:
        error, self.work.broken = self.work.broken, None
        assert error is not None
        self._tell(as_data_error(error))
        self.places.broken()

    def _tell_end(self) -> None:
        """All epochs are written, and may take as long as they like to be read; or it was told to end, and hurries."""
        self.drain_until = float("inf")
        self.work.halt()
        if self.draining:
            self._stop_listening()
        else:
            self.places.all_written()
        self._tell(self._end_error())

    def _stop_listening(self) -> None:
        self.drain_until = time.monotonic() + DRAIN_SECONDS
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(self.listener)

    def _end_error(self) -> DataError:
        return self._no_more() if self.work.finished else DataError(
            "E0834", f"the server `{self.settings.name}` was stopped",
            notes=("start it again and attach with this loader's state_dict to go on",))

    def _no_more(self) -> DataError:
        epochs = self.settings.epochs
        return DataError("E0833", f"the server `{self.settings.name}` has delivered its {epochs} epoch{'s' * (epochs != 1)}",
                         notes=("serve with more `--epochs`, or without, to go on",))

    def _tell(self, error: DataError) -> None:
        for client in self._members():
            client.send(messages.failed(client.last, error))
        self.writer.fail()

    # -- reports

    def _counts(self, asked: Ask = Ask()) -> Counts:
        stats = getattr(self.engine, "stats", None)
        bad, counts = tuple(getattr(stats, "bad", ())), dict(getattr(stats, "bad_counts", {}))
        return Counts(counts_of(self.engine) | {"written_bytes": self.writer.bytes} | weights_of(self.engine, asked), bad, counts)

    def report(self) -> Report:
        """How things are now."""
        writer = self.writer
        with writer.lock:
            writer.readers.settle()
            least, head = writer.readers.least(), writer.head
            point = writer.now() if writer.began else Began(0, 0, 0, 0, 0)
            members = []
            for client in self._members():
                place = self.places.of(client.consumer) if client.consumer.active else None
                lag = head - client.consumer.released if client.consumer.active else 0
                members.append(client.told(place[:2] if place else None, lag))
        state = "stopping" if self.draining else "finished" if self.work.finished else \
            "waiting" if self.work.busy == "idle" else "running"
        return Report(self.settings.name, os.getpid(), self.plan.path, state, time.monotonic() - self.began_at, point.epoch,
                      point.next, head, writer.bytes, head - least, self.layout.capacity, self.layout.total, writer.waited,
                      tuple(members), self.rejected, self._counts(), tuple(why for _, why in self.places.lacking()),
                      self.reading.count(self.engine))


def run_server(server: Server) -> None:
    """Serve in this process, its main thread; SIGTERM and SIGINT end it in order."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    gc.freeze()                                           # the collector needn't go through what is there
    server.serve()
