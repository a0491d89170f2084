"""A loader's side of a shared stream: attached to a server by name, or to one that the first loader starts.

`Shared` stands where a loader of its own producer has a `Session`. It knows where in the stream its reader is, asks the
server for another place where the loader wants one, and finds the server, or a new one, again when that has died.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from . import rendezvous
from .attach import RowReader
from .attachment import Attachment, gone_error
from .errors import DataError, warn
from .layout import Layout, check_layout
from .link import Link
from .messages import Attach, Channel, Group, Joined, Waits, Welcome, error_of
from .plan import Plan, RunKernel, reached
from .plancache import version
from .server import Settings
from .session import Session
from .spawned import code
from .wire import wire_version
from .work import Place

AGAIN_SECONDS = 5.0                    # so long a consumer looks for a server that has died and may come back
LINGER = 30.0                          # seconds for which a server that nobody named waits for the next consumer
FOREVER = 1e6
PLACES = ("span", "columns_spans", "sites")
MOST_TRIES = 4                         # to begin with a server that others start, and that dies just then
CODE = code("pipec.runtime.detached: main()", 1)


def share_key(plan: Plan) -> str:
    """Equal for plans whose lines above `share` do the same work on the same data."""
    texts = {k.name: k.key for k in plan.kernels}
    used = sorted({texts.get(name, name) for name in _kernels(plan)})
    above = _without_places(msgspec.to_builtins(plan.above, builtin_types=(bytes,)))
    seen = msgspec.msgpack.encode([above, plan.rows, plan.seed, used, os.getcwd(), wire_version(), version()])
    return hashlib.blake2b(seen, digest_size=16).hexdigest()


def _without_places(value: Any) -> Any:
    """Without what only says where in which file the lines stand: another program may have the same ones elsewhere."""
    match value:
        case dict():
            return {k: _without_places(v) for k, v in value.items() if k not in PLACES}
        case list() | tuple():
            return [_without_places(v) for v in value]
    return value


def _kernels(plan: Plan) -> set[str]:
    """Those that the producer runs."""
    return {s.kernel for segment in reached(plan.above) for p in segment.programs for s in p.steps if isinstance(s, RunKernel)}


@dataclass(frozen=True)
class Start:
    """What it takes to start a server: all but its name."""

    plan: Plan
    layout: Layout
    settings: Settings


class Server:
    """How a consumer gets to its server: by a name, starting it if it may."""

    def __init__(self, name: str, start: Start | None = None):
        self.name, self.start = name, start

    def connect(self, seconds: float) -> Any:
        """A socket. Raises DataError E0830 where there is no such server, or E0810 … as it says why it can't start."""
        until = time.monotonic() + seconds
        while True:
            sock = rendezvous.connect(self.name)
            if sock is not None:
                return sock
            if self.start is not None:
                return self._started()
            if time.monotonic() > until:
                raise _no_server(self.name)
            time.sleep(0.05)

    def _started(self) -> Any:
        """Start it, unless somebody else just did."""
        fd = rendezvous.lock(self.name, "starting", wait=True)
        try:
            sock = rendezvous.connect(self.name)
            return sock if sock is not None else self._spawn()
        finally:
            os.close(fd)

    def _spawn(self) -> Any:
        assert self.start is not None
        if not sys.executable:
            raise gone_error("this Python doesn't know its own executable: open without share=True")
        log = rendezvous.folder() / f"{self.name}.log"
        path = json.dumps([os.path.abspath(p) for p in sys.path])
        with open(log, "wb") as errors:
            process = subprocess.Popen([sys.executable, "-P", "-c", CODE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=errors, start_new_session=True)
        assert process.stdin is not None and process.stdout is not None
        start = [self.name, self.start.plan, self.start.layout, asdict(self.start.settings)]
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.msgpack.encode(start))
            process.stdin.close()
        answer = process.stdout.read()                    # until the server has begun, or has ended
        process.stdout.close()
        sock = rendezvous.connect(self.name)
        if sock is None:
            process.wait()
            raise _cannot_start(answer, log)
        process.returncode = 0                            # it outlives us, and is nobody's to wait for
        return sock


def _no_server(name: str) -> DataError:
    there = [r.name for r in rendezvous.reports()]
    listed = [f"these are there: {', '.join(there)}" if there else "there are none"]
    if name in rendezvous.names() and name not in there:
        listed = ["there was one: it was killed, and its socket doesn't answer any more"]
    return DataError("E0830", f"there is no server `{name}`", notes=(
        *listed, f"start it: `pipec serve FILE --name {name}`; `pipec ps` lists those of this user and machine"))


def _cannot_start(answer: bytes, log: Any) -> DataError:
    from .messages import Failed, error_of

    with contextlib.suppress(msgspec.MsgspecError):
        return error_of(msgspec.msgpack.decode(answer, type=Failed))
    last = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
    return DataError("E0830", "the server of this stream didn't start", notes=(*last, f"all it said is in `{log}`"))


class Shared(Link):
    """A loader's place in a shared stream. `close` may be called at any time, also at exit."""

    def __init__(self, server: Server, *, label: str, when_slow: str = "wait", join: str = "epoch",
                 writable: bool = True):
        if when_slow not in ("wait", "drop", "skip"):
            raise ValueError(f'when_slow={when_slow!r}: "wait", "drop" or "skip"')
        if join not in ("epoch", "now"):
            raise ValueError(f'join={join!r}: "epoch" (from the start of one) or "now"')
        super().__init__(writable)
        self.server, self.label, self.when_slow, self.join = server, label, when_slow, join
        self.joined: Joined | None = None                 # the last place that the server gave
        self.entered: Place | None = None                 # the first one
        self.members = 0
        self.group = Group()                              # of ranks that begin together
        self.moves = 0                                    # how often the user has said where to go on
        self.alone: Session | None = None                 # a producer of our own, to catch up with the stream
        self.own: Callable[[], Session] | None = None

    def connect(self, seconds: float = 0.0) -> Welcome:
        """Attach; the answer says what the server runs. One that dies meanwhile is started again. Raises DataError."""
        for _ in range(MOST_TRIES if self.server.start is not None else 0):
            try:
                return self._attach(seconds)
            except DataError as error:
                if error.code != "E0807":
                    raise
        return self._attach(seconds)

    def _attach(self, seconds: float) -> Welcome:
        sock = self.server.connect(seconds)
        pid, _ = rendezvous.peer(sock)
        with contextlib.suppress(OSError):
            self.pidfd = os.pidfd_open(pid)
        self.attachment = Attachment(Channel(sock), self.pidfd)
        try:
            welcome = self.attachment.attach(Attach(wire_version(), self.label, self.when_slow))
            self.layout, self.length = welcome.layout, welcome.length
            self.reader = RowReader(self.attachment, welcome.layout, writable=self.writable, when_slow=self.when_slow,
                                    number=welcome.member)
        except BaseException as error:
            strange = self.attachment.strange
            self.leave()
            if strange and isinstance(error, DataError):
                raise rendezvous.other_version(self.server.name, consumer=wire_version()) from error
            raise
        return welcome

    def ask_for(self, when: str, state: Place | None, others: int = 0, together: bool = False) -> None:
        """Ask for a place; `arrive` waits for the answer. `together`: all ranks of our group do so now, and begin at once."""
        assert self.reader is not None
        self.reader.let_go()                              # the server no longer counts what is held from here on
        self.joined, self.moved = None, False
        try:
            group = msgspec.structs.replace(self.group, moves=self.moves) if together else Group()
            self.attachment.join(when, state, others, group,
                                 self.weights.get(state[0]) if state is not None else None)
        except DataError as error:
            if error.code != "E0807" or self.server.start is None:
                raise                                     # else whoever waits for the answer finds another server

    def arrive(self) -> Joined:
        """The place asked for, when the server has given it: an epoch may have to end before, or others to come."""
        if self.joined is None:
            assert self.reader is not None
            joined = self._answer()
            self.reader.place(joined.row, joined.ends, joined.generation)
            self.joined, self.members = joined, joined.members
        return self.joined

    def _answer(self) -> Joined:
        """To the last request: one that loads a state asks again."""
        while True:
            answer = self.attachment.expect((Joined, Waits), FOREVER)
            assert isinstance(answer, Joined | Waits)
            if answer.number < self.attachment.generation:
                continue
            if isinstance(answer, Joined):
                return answer
            warn(f"this loader waits for its place in the stream: {answer.reason}")

    def first(self) -> Place:
        """Where the loader begins that has no state of its own; also after another server has come."""
        tries = 0
        while self.entered is None:
            try:
                joined = self.arrive()
                self.entered = (joined.epoch, joined.next, joined.skip)
            except DataError as error:
                if error.code != "E0807" or not self.restarts or tries == MOST_TRIES:
                    raise
                tries += 1
                self._again(None)
        return self.entered

    def reader_at(self, epoch: int, start: int, skip: int, there: bool) -> RowReader:
        """The reader, at this point of the stream. `there`: it stands there already."""
        place = (epoch, start, skip)
        moved, self.moved = self.moved, False
        self.moves += moved
        if self.alone is not None:
            return self._alone_at(place, there)
        untold = self.reader is not None and self.attachment.gone is None and self.attachment.failure is None
        if self.reader is not None:
            self.attachment.pump()
        if self.reader is None or self.attachment.gone is not None:
            self._again(place, untold)
        elif not there and (self._asks_anew(moved) or not self._placed_at(place)):
            self.ask_for("epoch", place, together=moved)
        try:
            self._settle(place)
        except DataError as error:
            if error.code != "E0831" or self.own is None:
                raise
            return self._alone_at(place, False)
        assert self.reader is not None
        return self.reader

    def _asks_anew(self, moved: bool) -> bool:
        """A state was loaded, maybe before the place came that was asked for without it. Ranks of a group all ask, or none."""
        return moved and (self.joined is None or self.group.here > 1)

    def _placed_at(self, place: Place) -> bool:
        """Has the server placed the reader there, or shortly before, just now?"""
        joined = self.arrive()
        fresh = self.reader is not None and self.reader.position == joined.row and self._epoch() == joined.epoch
        return fresh and joined.epoch == place[0] and place[1:] >= (joined.next, joined.skip)

    def _epoch(self) -> int:
        """The epoch that the reader is in."""
        assert self.joined is not None and self.reader is not None
        return self.joined.epoch + self.reader.ends - self.joined.ends

    def _settle(self, place: Place) -> None:
        """Pass over what lies between the reader and the place."""
        joined = self.arrive()
        assert self.reader is not None
        while self._epoch() < place[0]:
            self.reader.skip_epoch()
        if self._epoch() == place[0] and place[1:] > (joined.next if joined.epoch == place[0] else 0,
                                                      joined.skip if joined.epoch == place[0] else 0):
            self.reader.skip_to(*place[1:], self.length)

    def _again(self, place: Place | None, untold: bool = False) -> None:
        """Find the server again, or another of its name, and go on there; unless it said that there is no more.

        `untold`: the loop doesn't know yet that it has gone, and is told so where no other is there, or that it was too slow.
        """
        failure = self.attachment.failure if self.reader is not None else None
        if failure is not None and (failure.code == "E0833" or (untold and failure.code == "E0832")):
            raise error_of(failure)
        gone = error_of(failure) if failure is not None else gone_error(self.attachment.gone or "it has left") if untold else None
        others = self.members
        self.leave()
        try:
            self.connect(0.0 if untold else AGAIN_SECONDS)
        except DataError as error:
            raise (gone if untold and gone is not None and error.code == "E0830" else error) from None
        self.ask_for(self.join if place is None else "epoch", place, others, together=True)

    def _alone_at(self, place: Place, there: bool) -> RowReader:
        """Our own producer reads what the stream has passed; at the start of an epoch the stream may have us again."""
        if self.alone is not None and place[1:] == (0, 0):
            with contextlib.suppress(DataError):
                self.ask_for("epoch", place)
                self._settle(place)
                self.alone.close()
                self.alone = None
                assert self.reader is not None
                return self.reader
        if self.alone is None:
            assert self.own is not None
            self.alone, there = self.own(), False
            self.alone.start()
        return self.alone.reader_at(*place, there)

    @property
    def anew(self) -> str:
        """What another process has to do to read the stream."""
        return "open the program" if self.server.start is not None else f'attach("{self.server.name}")'

    @property
    def restarts(self) -> bool:
        """Has the server died, and can there be another?"""
        gone = not hasattr(self, "attachment") or self.attachment.gone is not None
        return gone and self.server.start is not None

    def restart(self, layout: Layout) -> None:
        """The ring is everybody's: it stays as it is."""
        raise DataError("E0809", "not enough memory for the ring: values of this stream are too long for it",
                        notes=("serve, or open, with a larger `memory=`",))

    def close(self) -> None:
        """Leave the stream. Held arrays keep their memory."""
        if os.getpid() != self.pid:
            return
        if self.alone is not None:
            self.alone.close()
            self.alone = None
        self.leave()


def checked_plan(welcome: Welcome) -> Plan:
    """The plan that a server runs. Raises DataError."""
    try:
        check_layout(welcome.layout)
        return msgspec.msgpack.decode(welcome.plan, type=Plan)
    except (ValueError, msgspec.MsgspecError) as error:
        raise gone_error(f"it sends no plan: {error}") from error


def label() -> str:
    """Who we are, for people: the script's name, or the package's."""
    folder, name = os.path.split(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c") else ("", "")
    return (os.path.basename(folder) if name == "__main__.py" else name) or "python"   # `python -m folder`


