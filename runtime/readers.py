"""The consumers of a ring, as the producer sees them together: which row the slowest of them holds, and who has to go."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .consumer import BrokenConsumer, Consumer, nobody
from .consumer import Stream as Written
from .errors import DataError

LOOK = 0.5                             # seconds between looks at who holds the producer back
PATIENCE = 0.2                         # where that one may be dropped


class Stream(Written, Protocol):
    def leave(self, consumer: Consumer) -> None: ...


class Readers:
    """`patience`: seconds for which a consumer with `when_slow="drop"` may hold the producer back. `leaves(consumer, error)` is
    told who has to go; without it a consumer that breaks the rules ends the run.
    """

    def __init__(self, stream: Stream, patience: float, leaves: Callable[[Consumer, Exception], None] | None):
        self.stream, self.patience, self.leaves = stream, patience, leaves
        self.all: tuple[Consumer, ...] = ()               # replaced, never changed: engine threads go through it
        self.told: tuple[Consumer, ...] = ()
        self.floor = 0
        self.places: tuple[tuple[Consumer, ...], int] = ((), -1)   # for which `floor` holds
        self.giver: Any = None                            # of `giver.c`, which is told who reads

    def add(self, consumer: Consumer) -> None:
        """For callers that hold the writer's lock, as of all that follow up to `settle`."""
        self.all = (*self.all, consumer)
        consumer.changed = self.forget
        self.forget()

    def remove(self, consumer: Consumer) -> None:
        self.forget()
        self.told, consumer.changed = (), nobody
        self.all = tuple(c for c in self.all if c is not consumer)

    def tell(self) -> None:
        """Let `giver.c` know who reads, until one comes, goes, is placed or rests."""
        if self.giver is not None and not self.giver.told:
            self.told = self.all
            patient = all(c.when_slow != "drop" for c in self.told)
            self.giver.tell(tuple((c.page.address, c.data_fd, c.active, c.when_slow == "skip", c.number, c.generation, c.released)
                                  for c in self.told), patient, self.told)

    def forget(self) -> None:
        """It has to be told anew."""
        if self.giver is not None:
            self.settle()
            self.giver.forget()

    def settle(self) -> None:
        """What it has counted is added to ours."""
        if self.giver is not None and self.giver.told:
            for consumer, nanoseconds in zip(self.told, self.giver.blocked(), strict=True):
                consumer.blocked += nanoseconds / 1e9

    def least(self) -> int:
        """The row before which nobody reads any more that the producer waits for."""
        self.places = self._places()                      # before they are read: who moves meanwhile has another
        counted: list[int] = []
        lossy: list[int] = []
        for consumer in self._readers():
            (lossy if consumer.when_slow == "skip" else counted).append(consumer.released)
        if counted:
            self.floor = min(counted)
        elif lossy:                                       # the fastest of those that may lose rows sets the pace
            self.floor = max(lossy)
        return self.floor

    def _places(self) -> tuple[tuple[Consumer, ...], int]:
        """Changes when a consumer comes, goes or is placed; as long as it doesn't, `least` never falls."""
        return self.all, sum(c.generation for c in self.all)

    def _readers(self) -> list[Consumer]:
        """Consumers that read, their pages read anew."""
        return [consumer for consumer in self.all if consumer.active and self._read(consumer)]

    def _read(self, consumer: Consumer) -> bool:
        """Read its page anew; False: it breaks the rules, and has to go."""
        try:
            consumer.update(self.stream)
        except BrokenConsumer as error:
            self.send_away(consumer, error)
            return False
        return True

    def send_away(self, consumer: Consumer, error: Exception) -> None:
        """It reads no more, and is told why; raises that where nobody tells it."""
        if self.leaves is None:
            raise error
        self.stream.leave(consumer)
        self.leaves(consumer, error)

    def least_ends(self) -> int:
        """How many ends of epochs all have passed who are waited for."""
        return min((c.ends for c in self._readers() if c.when_slow != "skip"), default=self.stream.ends)

    def known(self) -> int | None:
        """The last `least`, which is this or higher now; None: somebody has come, gone or been placed since."""
        return self.floor if self.places == self._places() else None

    def holder(self) -> Consumer | None:
        """One of those who hold the producer back, of callers that have just asked for the least row."""
        return next((c for c in self.all if c.active and c.released == self.floor and c.when_slow != "skip"), None)

    def holds(self, holder: Consumer | None, goal: int) -> bool:
        """Does it hold a row before `goal`: it may have passed before it could know that it is waited for."""
        if holder is None:
            return self.least() < goal
        self._read(holder)
        return holder.released < goal

    def look_again(self) -> float:
        """Milliseconds to sleep at most; sends away who may be dropped and has held the producer back for too long."""
        least, again = self.floor, 1000 * LOOK
        for consumer in self.all:
            if consumer.active and consumer.released == least and consumer.when_slow != "skip":
                seconds = consumer.stalls(least)
                if consumer.when_slow == "drop":
                    again = 1000 * PATIENCE
                    if seconds > self.patience:
                        self.send_away(consumer, _too_slow(seconds))
        return again

    def blame(self, seconds: float) -> None:
        """The producer has slept since these consumers held the oldest row."""
        for consumer in self.all:
            if consumer.active and consumer.released == self.floor:
                consumer.blocked += seconds

    def signal(self, always: bool = False) -> None:
        """Wake those who sleep for rows that are there now, or all who sleep."""
        for consumer in self.all:
            wanted = consumer.wants()
            if wanted and (always or wanted <= self.stream.head):
                consumer.signal()


def _too_slow(seconds: float) -> DataError:
    return DataError(
        "E0832", f"this consumer held the others back for {seconds:.0f} seconds and was detached",
        notes=('it was attached with `when_slow="drop"`: use "wait" to hold the others back, "skip" to lose records',
               "attach again with this loader's state_dict to go on, where its records are still there"))
