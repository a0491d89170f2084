"""A server: one engine and one ring for any number of consumers, which come and go over a socket with a name.

Two threads: one answers sockets and gives consumers their places, one runs the engine. It imports neither the compiler
nor numba, lark or torch.
"""
from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from . import messages, rendezvous
from .consumer import Began, BrokenConsumer, Consumer
from .errors import DataError
from .layout import Layout
from .memory import PAGE, check_received, create, seal
from .messages import Ask, Attach, Channel, Counts, Feedback, Gone, Join, Joined, Look, Member, Nonsense, Report, Stop, Welcome
from .plan import Plan
from .ring import Run, Writer
from .serve import as_data_error, counts_of, length_of, make_engine, take_feedback, use_ring, weights_of

VERSION = 1                            # of what is said over the socket
LARGEST = 16 << 20                     # bytes of a message that a server takes
HELLO_SECONDS = 10.0                   # until the first message of who connects
GRACE = 5.0                            # seconds for which consumers of a stream that broke wait for one another
AFTER_FAILURE = 2.0
DRAIN_SECONDS = 10.0                   # for what is there to be read, after it was told to end
SEND_SECONDS = 2                       # a consumer that doesn't read its messages for so long is gone
Place = tuple[int, int, int]           # epoch, next, skip


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


class Client:
    """A connection: somebody who looks, or (with a consumer) a member."""

    def __init__(self, sock: socket.socket):
        self.channel = Channel(sock, LARGEST, SEND_SECONDS)
        self.pid, self.uid = rendezvous.peer(sock)
        self.since = time.monotonic()
        self.pidfd: int | None = None
        self.number, self.label = 0, ""
        self.consumer: Consumer | None = None
        self.request: Join | None = None                  # a place it waits for
        self.last = 0                                     # number of its last request
        self.silent = True                                # nothing has come from it yet


class Server:
    """Serves one plan. `serve` returns when it has ended; raises DataError where it can't start.

    `given`: the params that were set, for consumers that compile lines of their own. `say` gets a line for each
    consumer that comes or goes.
    """

    def __init__(self, plan: Plan, layout: Layout, settings: Settings, given: dict[str, Any] | None = None,
                 run: str | None = None, say: Callable[[str], None] = lambda line: None):
        self.plan, self.layout, self.settings, self.say = plan, layout, settings, say
        self.given, self.run_name = given or {}, run
        self.encoded = msgspec.msgpack.encode(plan)
        self.began_at = time.monotonic()
        self.clients: dict[int, Client] = {}
        self.numbers = self.rejected = 0
        self.changed = threading.Condition()
        self.seek: Place | None = None                    # where the engine is to go
        self.run: Run | None = None
        self.broken: tuple[Run, BaseException] | None = None
        self.finished = self.ending = self.draining = False
        self.started = False
        self.expected: tuple[int, float] | None = (settings.wait_for, float("inf"))   # consumers to wait for, until when
        self.rest: Place = (0, 0, 0)                      # where the last one left
        self.idle_since = time.monotonic()
        self.drain_until: float | None = None             # all were told that it ends
        self.leaving: deque[tuple[Consumer, Exception]] = deque()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.selector = selectors.DefaultSelector()
        self.name_lock = rendezvous.lock(settings.name)
        try:
            self.engine = make_engine(settings.engine, plan, {
                "threads": settings.threads, "allow_extern": settings.allow_extern, "processes": True})
            self.length = length_of(self.engine)
            self.table = getattr(self.engine, "table", None)   # what consumers return
            if self.table is not None:
                self.table.members = self._reading
            self._make_ring()
            self.listener = rendezvous.listen(settings.name)
        except BaseException:
            os.close(self.name_lock)
            raise
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.wake_fd, selectors.EVENT_READ, self._woken)

    def _make_ring(self) -> None:
        self.ring_fd = create("pipec-ring", self.layout.total)
        self.room_fd, self.heap_fd = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        self.writer = Writer(self.layout, self.ring_fd, self.room_fd, self.heap_fd, self.settings.max_skew,
                             self.settings.patience, self._leaves, self.wake)
        use_ring(self.engine, self.writer, self.ring_fd)
        seal(self.ring_fd)

    # -- life

    def serve(self) -> None:
        worker = threading.Thread(target=self._work, name="pipec-engine", daemon=True)
        worker.start()
        try:
            while not self._over():
                for key, _ in self.selector.select(self._until()):
                    key.data()
                self._look_after()
        finally:
            with self.changed:
                self.ending = True
                if self.run is not None:
                    self.run.stop()
                self.changed.notify_all()
            worker.join(DRAIN_SECONDS)
            self._close(worker.is_alive())

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
        if self.expected is not None and self._asking():
            due.append(self.expected[1])
        if self.settings.linger is not None and not self._members():
            due.append(self.idle_since + self.settings.linger)
        if self.drain_until is not None:
            due.append(min(self.drain_until, now + 0.05))
        least = min(due, default=float("inf"))
        return None if least == float("inf") else max(0.0, least - now)

    def _over(self) -> bool:
        members, now = self._members(), time.monotonic()
        if self.drain_until is not None:
            return all(self._read_all(m) for m in members) or now > self.drain_until
        linger = self.settings.linger
        return linger is not None and not members and now > self.idle_since + linger

    def _read_all(self, client: Client) -> bool:
        consumer, writer = client.consumer, self.writer
        assert consumer is not None
        with contextlib.suppress(BrokenConsumer):
            consumer.update(writer)
        return not consumer.active or (consumer.released == writer.head and consumer.ends == writer.ends)

    def _look_after(self) -> None:
        """Everything that no message asks for."""
        while self.leaving:
            consumer, error = self.leaving.popleft()
            for client in self._members():
                if client.consumer is consumer:
                    self._send_away(client, error)
        now = time.monotonic()
        for client in list(self.clients.values()):
            if client.silent and now > client.since + HELLO_SECONDS:
                self.rejected += 1
                self._drop(client, "it said nothing")
        if self.broken is not None:
            self._tell_broken()
        if (self.finished or self.draining) and self.drain_until is None:
            self._tell_end()
        self._arrange()

    def _close(self, engine_hangs: bool) -> None:
        for client in list(self.clients.values()):
            self._forget(client)
        self.selector.close()
        with contextlib.suppress(OSError):
            rendezvous.socket_path(self.settings.name).unlink()
        self.listener.close()
        if not engine_hangs:                              # else the process is about to end, and its memory with it
            close = getattr(self.engine, "close", None)
            if close is not None:
                close()
            self.writer.close()
        for fd in (self.ring_fd, self.room_fd, self.heap_fd, self.wake_fd, self.name_lock):
            os.close(fd)

    # -- the engine's thread

    def _work(self) -> None:
        while True:
            with self.changed:
                while self.seek is None and not self.ending:
                    self.changed.wait()
                if self.ending or self.seek is None:
                    return
                (epoch, start, skip), self.seek = self.seek, None
                self.run = run = self.writer.begin(epoch, start, skip)
            self.wake()
            try:
                while not run.stopped and not self._last(epoch):
                    self.engine.run(epoch, start, skip, run)
                    epoch, start, skip = epoch + 1, 0, 0
                if not run.stopped:
                    self.finished = True
            except BaseException as error:
                if not run.stopped:
                    self.broken = (run, error)
            with self.changed:
                self.run = None
            self.wake()

    def _last(self, epoch: int) -> bool:
        return self.settings.epochs is not None and epoch >= self.settings.epochs

    def _go(self, place: Place) -> None:
        """Have the engine go there."""
        self.started, self.expected = True, None
        with self.changed:
            self.seek = place
            if self.run is not None:
                self.run.stop()
            self.changed.notify_all()

    def _halt(self) -> None:
        with self.changed:
            self.seek = None
            if self.run is not None:
                self.run.stop()

    # -- sockets

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:                                   # it has left again, or there are no more fds
            return
        client = Client(sock)
        if client.uid != os.getuid() or self.draining or len(self.clients) >= 1024:
            self.rejected += 1
            client.channel.close()
            return
        self.numbers += 1
        client.number = self.numbers
        self.clients[client.number] = client
        self.selector.register(sock, selectors.EVENT_READ, lambda: self._hear(client))

    def _hear(self, client: Client) -> None:
        if client.number not in self.clients:
            return
        try:
            while (message := client.channel.receive()) is not None:
                client.silent = False
                self._obey(client, message)
        except Gone as reason:
            self.rejected += isinstance(reason, Nonsense)
            self._drop(client, str(reason))
        except DataError as error:
            self._send_away(client, error)

    def _obey(self, client: Client, message: Any) -> None:
        match message:
            case Look():
                client.channel.send(self.report())
            case Stop():
                self.stop()
            case Attach() if client.consumer is None:
                self._attach(client, message)
            case Join() if client.consumer is not None:
                self._wants(client, message)
            case Feedback() if client.consumer is not None:
                take_feedback(self.engine, client.number, message)
            case Ask() if client.consumer is not None:
                client.channel.send(self._counts(message))
            case _:
                raise Nonsense("it says what it may not say here")

    def _attach(self, client: Client, message: Attach) -> None:
        if message.version != VERSION:
            raise DataError("E0830", f"the server `{self.settings.name}` is of another version of pipec",
                            notes=("stop it and start it again",))
        if self.finished:
            raise self._no_more()
        if message.when_slow not in ("wait", "drop", "skip"):
            raise Nonsense("no such when_slow")
        (control,) = client.channel.take_fds(1)
        try:
            check_received(control, PAGE)
            data = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                consumer = Consumer(control, data, message.when_slow)
                consumer.rest()
                client.channel.send(Welcome(client.number, self.layout, self.encoded, self.given, self.run_name, self.length,
                                            self.settings.epochs), (self.ring_fd, data, self.room_fd, self.heap_fd))
            finally:
                os.close(data)
        except (ValueError, OSError) as error:
            raise Nonsense(str(error)) from error
        finally:
            os.close(control)
        client.consumer, client.label, client.since = consumer, message.label[:200], time.monotonic()
        self.writer.join(consumer)
        with contextlib.suppress(OSError):                # its socket may live on in children it forked
            client.pidfd = os.pidfd_open(client.pid)
            self.selector.register(client.pidfd, selectors.EVENT_READ, lambda: self._died(client))
        self.say(f"attached  #{client.number} {client.label} (process {client.pid})")

    def _died(self, client: Client) -> None:
        with contextlib.suppress(Gone):                   # what it said last
            while client.channel.receive() is not None:
                pass
        self._drop(client, "its process has ended")

    def _send_away(self, client: Client, error: Exception) -> None:
        """Say why, and forget the client."""
        told = error if isinstance(error, DataError) else None
        if told is not None:
            with contextlib.suppress(Gone):
                client.channel.send(messages.failed(client.last, told))
        else:
            self.rejected += 1
        self._drop(client, str(error) if told is None else told.title)

    def _drop(self, client: Client, reason: str) -> None:
        if client.number not in self.clients:
            return
        consumer = client.consumer
        if consumer is not None:
            _, taken, lost = consumer.counts()
            told = f", {lost:,} lost" if lost else ""
            self.say(f"detached  #{client.number} {client.label} (process {client.pid}): {reason}; {taken:,} records{told}")
        self._forget(client)
        if consumer is not None and not self._members():
            self._all_left(consumer)

    def _forget(self, client: Client) -> None:
        del self.clients[client.number]
        if self.table is not None:
            self.table.leave(client.number)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(client.channel.sock)
        if client.consumer is not None:
            self.writer.leave(client.consumer)
        if client.pidfd is not None:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(client.pidfd)
            os.close(client.pidfd)
        client.channel.close()

    def _all_left(self, last: Consumer) -> None:
        """Work for nobody stops; it goes on where the last one was."""
        self.idle_since = time.monotonic()
        if not self.started:
            return
        self._halt()
        with self.writer.lock:
            self.rest = self._place_of(last) or self.rest
        self.expected = (1, float("inf"))

    def _place_of(self, consumer: Consumer) -> Place | None:
        """The point of the stream a consumer has read up to. For callers that hold the writer's lock."""
        writer = self.writer
        row = consumer.position(writer.head)
        began = [b for b in writer.began if b.row <= row and b.ends <= consumer.ends]
        if not began or consumer.began is None:
            return None
        start = began[-1]
        if row == start.row:
            return (start.epoch, start.next, start.skip)
        return (start.epoch, *writer.point(row - 1)) if row > writer.legible else None

    # -- places

    def _members(self) -> list[Client]:
        return [c for c in list(self.clients.values()) if c.consumer is not None]

    def _asking(self) -> list[Client]:
        return [c for c in self._members() if c.request is not None]

    def _together(self, asking: list[Client]) -> list[Client]:
        """Those whose group has come: ranks begin at one place."""
        groups = Counter(c.request.group for c in asking if c.request is not None)
        return [c for c in asking if c.request is not None and groups[c.request.group] >= c.request.group[1]]

    def _wants(self, client: Client, request: Join) -> None:
        assert client.consumer is not None
        if request.when not in ("epoch", "now") or request.number <= client.last or not _sensible(request.state):
            raise Nonsense("no place to ask for")
        client.request, client.last = request, request.number
        with self.changed:
            running = self.seek is None and self.run is not None and not self.run.stopped
        with self.writer.lock:                            # while it is counted its rows are there
            found = self._found(client, request) if running and client.consumer.active else None
            client.consumer.rest()
            if found is not None:
                client.consumer.place(found)
        if self.drain_until is not None:
            client.request = None
            self._refuse(client, self._end_error())
        if request.others > 1 and not self.started:
            known = self.expected[0] if self.expected is not None else 1
            self.expected = (max(known, request.others), time.monotonic() + GRACE)
        self.writer.wake()

    def _arrange(self) -> None:
        """Give those who ask their places, and start the engine when all are there."""
        asking = self._together(self._asking())
        with self.changed:
            starting, run = self.seek is not None, self.run
        if not asking or starting or self.drain_until is not None:
            return
        if run is None or run.stopped:
            self._start(asking)
            return
        without = [client for client in asking if not self._give_place(client)]
        if without:
            self._not_there(without)

    def _start(self, asking: list[Client]) -> None:
        if self.expected is not None:
            count, until = self.expected
            if len(asking) < count and time.monotonic() < until:
                return
        states = [c.request.state for c in asking if c.request is not None and c.request.state is not None]
        place = min(states) if states else self._next(asking)
        if self.table is not None:
            self.table.resume(place[0], next((c.request.weights for c in asking if c.request and c.request.state == place), None))
        if self._last(place[0]):
            for client in asking:
                self._send_away(client, self._no_more())
            return
        self._go(place)

    def _next(self, asking: list[Client]) -> Place:
        """Where those go on who have no state."""
        if not self.started or self.settings.fresh:
            return (0, 0, 0)
        if any(c.request is not None and c.request.when == "now" for c in asking):
            return self.rest
        return self.rest if self.rest[1:] == (0, 0) else (self.rest[0] + 1, 0, 0)

    def _give_place(self, client: Client) -> bool:
        """False where the rows it asks for aren't in the ring. It may have to wait for the end of the epoch."""
        consumer, request = client.consumer, client.request
        assert consumer is not None and request is not None
        with self.writer.lock:
            if not consumer.active:
                found = self._found(client, request)
                if found is not None:
                    consumer.place(found)
                else:
                    consumer.rest(waits=request.state is None and self._others_read(client))
                    return consumer.waits
        began = consumer.began
        assert began is not None
        client.request = None
        if self.table is not None:
            self.table.close(client.number, began.epoch - 1)
        try:
            client.channel.send(Joined(request.number, began.row, began.ends, consumer.generation, began.epoch, began.next,
                                       began.skip, len(self._members())))
        except Gone as reason:
            self._drop(client, str(reason))
        return True

    def _found(self, client: Client, request: Join) -> Began | None:
        if request.state is not None:
            found = self.writer.find(*request.state)
            far = found is not None and found.epoch < request.state[0]
            return found if not far or self._others_read(client) else None   # alone it needn't wait for an epoch to pass
        return self.writer.now() if request.when == "now" else self.writer.epoch_start()

    def _reading(self) -> list[int]:
        return [c.number for c in list(self.clients.values()) if c.consumer is not None and c.consumer.active]

    def _others_read(self, client: Client) -> bool:
        return any(c is not client and c.consumer is not None and c.consumer.active for c in self._members())

    def _not_there(self, clients: list[Client]) -> None:
        """The rows they ask for aren't in the ring: the engine makes them again if nobody reads."""
        with self.writer.lock:
            now = self.writer.now()
        states = [c.request.state for c in clients if c.request is not None and c.request.state is not None]
        if not any(self._others_read(client) for client in clients):
            self._go(min(states) if states else (now.epoch + 1, 0, 0))
            return
        for client in clients:
            assert client.request is not None and client.request.state is not None
            epoch, position, _ = client.request.state
            client.request = None
            self._refuse(client, DataError(
                "E0831", f"the stream has passed position {position:,} of epoch {epoch}",
                notes=(f"it stands at position {now.next:,} of epoch {now.epoch}, and others read it",
                       'attach with `join="now"` or `join="epoch"` without a state, or serve again and resume all of them')))

    def _refuse(self, client: Client, error: DataError) -> None:
        """Answer its last request so."""
        with contextlib.suppress(Gone):
            client.channel.send(messages.failed(client.last, error))

    # -- what everybody is told

    def _leaves(self, consumer: Consumer, error: Exception) -> None:
        """From the engine's threads: this consumer has to go."""
        self.leaving.append((consumer, error))
        self.wake()

    def _tell_broken(self) -> None:
        assert self.broken is not None
        (_, error), self.broken = self.broken, None
        members = [m for m in self._members() if m.consumer is not None and m.consumer.active]
        self._tell(as_data_error(error))
        for member in members:
            assert member.consumer is not None
            member.consumer.rest()
        self.expected = (max(1, len(members)), time.monotonic() + AFTER_FAILURE)

    def _tell_end(self) -> None:
        self.drain_until = time.monotonic() + DRAIN_SECONDS
        self._halt()
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(self.listener)
        self._tell(self._end_error())

    def _end_error(self) -> DataError:
        return self._no_more() if self.finished else DataError(
            "E0834", f"the server `{self.settings.name}` was stopped",
            notes=("start it again and attach with this loader's state_dict to go on",))

    def _no_more(self) -> DataError:
        epochs = self.settings.epochs
        return DataError("E0833", f"the server `{self.settings.name}` has delivered its {epochs} epoch{'s' * (epochs != 1)}",
                         notes=("serve with more `--epochs`, or without, to go on",))

    def _tell(self, error: DataError) -> None:
        for client in self._members():
            try:
                client.channel.send(messages.failed(client.last, error))
            except Gone as reason:
                self._drop(client, str(reason))
        self.writer.fail()

    # -- reports

    def _counts(self, asked: Ask = Ask()) -> Counts:
        stats = getattr(self.engine, "stats", None)
        bad, counts = tuple(getattr(stats, "bad", ())), dict(getattr(stats, "bad_counts", {}))
        return Counts(counts_of(self.engine) | {"written_bytes": self.writer.bytes} | weights_of(self.engine, asked), bad, counts)

    def report(self) -> Report:
        """How things are now."""
        writer, now = self.writer, time.monotonic()
        with writer.lock:
            least, head = writer.least(), writer.head
            point = writer.now() if writer.began else Began(0, 0, 0, 0, 0)
            members = tuple(self._member(c, now) for c in self._members())
        state = "stopping" if self.draining else "finished" if self.finished else "running" if self.run is not None else "waiting"
        return Report(self.settings.name, os.getpid(), self.plan.path, state, now - self.began_at, point.epoch, point.next, head,
                      writer.bytes, head - least, self.layout.capacity, self.layout.total, writer.waited, members,
                      self.rejected, self._counts())

    def _member(self, client: Client, now: float) -> Member:
        consumer = client.consumer
        assert consumer is not None
        waited, taken, lost = consumer.counts()
        place = self._place_of(consumer) if consumer.active else None
        return Member(client.number, client.pid, client.label, consumer.when_slow, place[:2] if place else None,
                      self.writer.head - consumer.released if consumer.active else 0, taken, lost, waited / 1e9,
                      consumer.blocked, now - client.since)


def _sensible(state: Any) -> bool:
    return state is None or all(0 <= n < 1 << 60 for n in state)


def run_server(server: Server) -> None:
    """Serve in this process, its main thread; SIGTERM and SIGINT end it in order."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.serve()
