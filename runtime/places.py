"""Who reads from where: gives a server's members their places in the stream, and sends the engine where they need it.

A place is given where the rows are in the ring. Where they aren't, the engine makes them again if nobody else reads;
others are refused, since one stream can't be at two places.
"""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from .client import Client
from .consumer import Began, BrokenConsumer, Consumer
from .errors import DataError
from .messages import Group, Join, Joined, Nonsense, Waits
from .ring import Writer
from .work import Place, Work

GRACE = 5.0                            # seconds for which consumers of a server that died wait for one another
AFTER_FAILURE = 2.0                    # and those of a run that failed
MOST_RANKS = 1 << 16                   # of a group
A_WORD = 5.0                           # seconds after which who waits for others is told for whom


class Places:
    """`members` are those who read or want to. `wait_for`: how many have to be there before the stream begins.

    `fresh`: after all have left, the next one finds epoch 0. `table`: what consumers have returned of records, if the
    program asks. `no_more` makes the error for who asks for an epoch too many.
    """

    def __init__(self, writer: Writer, work: Work, members: Callable[[], list[Client]], wait_for: int, fresh: bool, table: Any,
                 no_more: Callable[[], DataError]):
        self.writer, self.work, self.members, self.fresh, self.table, self.no_more = writer, work, members, fresh, table, no_more
        self.started = False
        self.expected: tuple[int, float] | None = (wait_for, float("inf"))   # members to wait for, until when
        self.rest: Place = (0, 0, 0)                      # where the last one left

    @property
    def due(self) -> float:
        """When waiting for more members ends, or somebody has to be told whom it waits for."""
        asking = self._asking()
        words = min((c.asked + A_WORD for c in asking if not c.told_why), default=float("inf"))
        return min(words, self.expected[1]) if self.expected is not None and asking else words

    def wanted(self, client: Client, request: Join) -> None:
        """A member asks for a place. Raises Nonsense."""
        if request.number <= client.last or not _sensible(request):
            raise Nonsense("no place to ask for")
        client.request, client.last = request, request.number
        client.asked, client.told_why = time.monotonic(), False
        with self.writer.lock:                            # while it is counted its rows are there
            found = self._found(client, request) if self.work.busy == "running" and client.consumer.active else None
            client.consumer.rest()
            if found is not None and not _ahead(request, found):
                client.consumer.place(found)
        if request.others > 1 and not self.started:
            known = self.expected[0] if self.expected is not None else 1
            self.expected = (max(known, request.others), time.monotonic() + GRACE)
        self.writer.wake()

    def still_there(self, client: Client) -> None:
        """All is written, and nothing will be made again: give the member a place if rows from there on are in the ring."""
        assert client.request is not None
        with self.writer.lock:
            found = self._found(client, client.request)
        if client.consumer.active or (found is not None and found.row < self.writer.head):
            self._give(client)

    def all_written(self) -> None:
        """Before they are told so, those who ask get what is there."""
        for client in self._asking():
            self.still_there(client)

    def arrange(self) -> None:
        """Give those who ask their places, and start the engine when all are there."""
        asking = self._together(self._asking())
        busy = self.work.busy
        if asking and busy == "idle":
            self._start(asking)
        elif asking and busy == "running":
            with self.writer.lock:                        # nobody reads on over the place of who comes after
                without = [client for client in asking if not self._give(client)]
            if without:
                self._not_there(without)
        self._say_why()

    def lacking(self) -> list[tuple[list[Client], str]]:
        """Who waits for a place, and for whom or what, in words."""
        found = []
        for group, ranks in self._groups().items():
            there = [c for clients in ranks.values() for c in clients]
            request = there[0].request                    # None: it was just answered, for callers of other threads
            if len(ranks) < group[1] and request is not None:
                found.append((there, _missing(there[0].label, request.group, sorted(ranks))))
        asking = self._together(self._asking())
        count, until = self.expected or (0, 0.0)
        if self.work.busy == "idle" and asking and len(asking) < count and until == float("inf"):
            found.append((asking, f"{len(asking)} of {count} consumers are here that the server waits for"))
        late = [c for c in asking if c.consumer.waits]
        if late:
            epoch = self.writer.began[-1].epoch
            found.append((late, f'epoch {epoch} is under way, and `join="epoch"` begins at the next; '
                                '`join="now"` would begin here'))
        return found

    def _say_why(self) -> None:
        """Once to each who has waited for a while."""
        late = time.monotonic() - A_WORD
        if not any(c.asked <= late and not c.told_why for c in self._asking()):
            return
        for clients, why in self.lacking():
            for client in clients:
                if client.request is not None and client.asked <= late and not client.told_why:
                    client.send(Waits(client.request.number, why))
        for client in self._asking():
            client.told_why = client.told_why or client.asked <= late

    def left(self, last: Consumer) -> None:
        """Nobody is there any more: work for nobody stops, and goes on where the last one was."""
        if not self.started:
            return
        self.work.halt()
        with self.writer.lock:
            self.rest = self.of(last) or self.rest
        self.expected = (1, float("inf"))

    def broken(self) -> None:
        """The run has failed: whoever read asks anew, and they begin together."""
        readers = self._reading()
        with self.writer.lock:
            for client in readers:
                client.consumer.rest()
        self.expected = (max(1, len(readers)), time.monotonic() + AFTER_FAILURE)

    def of(self, consumer: Consumer) -> Place | None:
        """The point of the stream a consumer has read up to. For callers that hold the writer's lock."""
        writer = self.writer
        with contextlib.suppress(BrokenConsumer):         # the writer sends it away
            consumer.update(writer)
        row = consumer.position(writer.head)
        began = [b for b in writer.began if b.row <= row and b.ends <= consumer.ends]
        if not began or consumer.began is None:
            return None
        start = began[-1]
        if row == start.row:
            return (start.epoch, start.next, start.skip)
        return (start.epoch, *writer.point(row - 1)) if row > writer.at.legible else None

    def _asking(self) -> list[Client]:
        return [c for c in self.members() if c.request is not None]

    def _reading(self) -> list[Client]:
        return [c for c in self.members() if c.consumer.active]

    def _others_read(self, client: Client) -> bool:
        return any(c is not client for c in self._reading())

    def _groups(self) -> dict[tuple[str, int, int], dict[int, list[Client]]]:
        """Of those who ask and belong to a group: (its name, ranks on this machine, moves) → rank → clients, oldest first."""
        found: dict[tuple[str, int, int], dict[int, list[Client]]] = {}
        for client in self._asking():
            group = client.request.group if client.request is not None else None
            if group is not None and group.here > 1:
                found.setdefault((group.name, group.here, group.moves), {}).setdefault(group.rank, []).append(client)
        return found

    def _together(self, asking: list[Client]) -> list[Client]:
        """Those whose group has come: ranks begin at one place. A rank that asks twice begins twice, each time with the
        others."""
        early: set[Client] = set()
        for (_, here, _), ranks in self._groups().items():
            rounds = min(map(len, ranks.values())) if len(ranks) >= here else 0
            early.update(c for clients in ranks.values() for c in clients[rounds:])
        return [c for c in asking if c not in early]

    def _start(self, asking: list[Client]) -> None:
        if self.expected is not None:
            count, until = self.expected
            if len(asking) < count and time.monotonic() < until:
                return
        states = [c.request.state for c in asking if c.request is not None and c.request.state is not None]
        place = min(states) if states else self._next(asking)
        if self.work.past(place[0]):
            for client in asking:
                client.refuse(self.no_more())
            return
        if self.table is not None:
            self.table.resume(place[0], next((c.request.weights for c in asking if c.request and c.request.state == place), None))
        self._go(place, [c.consumer for c in asking if c.request and (c.request.state or place)[0] == place[0]])

    def _go(self, place: Place, readers: Sequence[Consumer] = ()) -> None:
        self.started, self.expected = True, None
        self.work.go(place, readers)

    def _next(self, asking: list[Client]) -> Place:
        """Where those go on who have no state."""
        if not self.started or self.fresh:
            return (0, 0, 0)
        if any(c.request is not None and c.request.when == "now" for c in asking):
            return self.rest
        return self.rest if self.rest[1:] == (0, 0) else (self.rest[0] + 1, 0, 0)

    def _give(self, client: Client) -> bool:
        """False where the rows it asks for aren't in the ring. It may have to wait for the end of the epoch."""
        consumer, request = client.consumer, client.request
        assert request is not None
        with self.writer.lock:
            if not consumer.active:                       # else the end of an epoch has given it its place
                found = self._found(client, request)
                if found is None:
                    consumer.rest(waits=request.state is None and self._others_read(client))
                    return consumer.waits
                consumer.place(found)
        began = consumer.began
        assert began is not None
        client.request = None
        if self.table is not None:
            self.table.close(client.number, began.epoch - 1)
        client.send(Joined(request.number, began.row, began.ends, consumer.generation, began.epoch, began.next, began.skip,
                           len(self.members())))
        return True

    def _found(self, client: Client, request: Join) -> Began | None:
        if request.state is None:
            return self.writer.now() if request.when == "now" else self.writer.epoch_start()
        found = self.writer.find(*request.state)
        far = found is not None and found.epoch < request.state[0]
        return found if not far or self._others_read(client) else None   # alone it needn't wait for an epoch to pass

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
            client.refuse(DataError(
                "E0831", f"the stream has passed position {position:,} of epoch {epoch}",
                notes=(f"it stands at position {now.next:,} of epoch {now.epoch}, and others read it",
                       'attach with `join="now"` or `join="epoch"` without a state, or serve again and resume all of them')))


def _ahead(request: Join, found: Began) -> bool:
    """Does a rank want a later epoch than the stream is at: that may be left, if all that read it are of its group."""
    return request.group.here > 1 and request.state is not None and found.epoch < request.state[0]


def _missing(label: str, group: Group, ranks: Sequence[int]) -> str:
    """Which ranks of a group are here, and which aren't. Of several machines only the number is known."""
    said = f"group `{label}`: {len(ranks)} of {group.here} ranks are here"
    if group.here < group.world:
        return f"{said} of those on this machine: rank {_listed(ranks)}"
    return f"{said}, missing: rank {_listed(sorted(set(range(group.world)) - set(ranks)))}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")


def _sensible(request: Join) -> bool:
    group, state = request.group, request.state
    return (request.when in ("epoch", "now") and (state is None or all(0 <= n < 1 << 60 for n in state))
            and group.moves >= 0 and 1 <= group.here <= group.world <= MOST_RANKS and 0 <= group.rank < group.world)
