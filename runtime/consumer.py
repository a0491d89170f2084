"""What the producer sees of one consumer: its control page, checked whenever it is read, and the eventfd that wakes it."""
from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .atomics import atomics
from .layout import ENDS_READ, GENERATION, LOST, POSITION, RELEASED, SINCE, TAKEN, WAITED, WANTED
from .memory import PAGE
from .memory import Mapping as Memory


class BrokenConsumer(Exception):
    """A consumer's control page holds what can't be."""


@dataclass(frozen=True)
class Began:
    """A point of the stream: `row` is the first one of `epoch` (or of a run within it, from `next` and `skip` on).

    `before`: (next, skip) at the end of the epoch before, where that was made, too.
    """

    epoch: int
    row: int
    next: int
    skip: int
    ends: int
    before: tuple[int, int] | None = None


class Stream(Protocol):
    """How far the rows and the epochs go that were published."""

    ends: int

    @property
    def head(self) -> int: ...


def nobody() -> None:
    """Is told."""


class Consumer:
    """One reader of the ring. `when_slow`: "wait" holds the others back, "drop" does so for a while, "skip" never does.

    `place` sets where it reads from; until the consumer has taken that place (its page says so by the generation),
    its released row is the place itself.
    """

    def __init__(self, control: int, data_fd: int, when_slow: str = "wait", number: int = 0):
        """`number`: what its reader goes by in HOLDER."""
        self.number = number
        self.page = Memory(control, 0, PAGE, double=False, write=False)
        self.data_fd, self.when_slow = os.dup(data_fd), when_slow   # its own: engine threads may signal when others close
        self.released = self.ends = self.generation = 0
        self.began: Began | None = None                   # its place, the last it was given
        self.active = True
        self.waits = False                                # for the next epoch
        self.blocked = 0.0                                # seconds for which it alone held the producer back
        self.stalled: tuple[int, float] = (-1, 0.0)       # the row it stood at when it first did, and when
        self.lock = threading.Lock()
        self.changed: Callable[[], None] = nobody         # told when it is placed or rests

    def place(self, began: Began) -> None:
        """It reads from this point on. For callers that hold the writer's lock, as of `rest`."""
        with self.lock:
            self.began, self.released, self.ends = began, began.row, began.ends
            self.generation += 1
            self.active, self.waits = True, False
        self.changed()

    def rest(self, waits: bool = False) -> None:
        """It reads nothing from now on; `waits` for the next epoch."""
        with self.lock:
            self.active, self.waits = False, waits
        self.changed()

    def update(self, stream: Stream) -> None:
        """Read the page again. Positions go up and never past the head, which may have moved on since."""
        load, page = atomics().load, self.page.address
        released, ends_read = load(page + RELEASED), load(page + ENDS_READ)
        if (released, ends_read) == (self.released, self.ends):
            return
        with self.lock:
            if load(page + GENERATION) != self.generation:
                return
            released, ends_read = load(page + RELEASED), load(page + ENDS_READ)
            if not (self.released <= released <= stream.head and self.ends <= ends_read <= stream.ends):
                raise BrokenConsumer(f"row {released} released of {stream.head}, after {self.released}")
            self.released, self.ends = released, ends_read

    def stuck(self, head: int) -> bool:
        """It waits for rows past the head, and holds none."""
        load, page = atomics().load, self.page.address
        wanted, position = load(page + WANTED), load(page + POSITION)
        return wanted > head and load(page + RELEASED) == position

    def position(self, head: int) -> int:
        """The row it has read up to, held or not."""
        return min(head, max(self.released, atomics().load(self.page.address + POSITION)))

    def ahead(self) -> int:
        """How many rows from its oldest one on it waits for."""
        wanted = atomics().load(self.page.address + WANTED)
        return max(0, wanted - self.released)

    def wants(self) -> int:
        """The head it sleeps for, 0 where it doesn't."""
        return atomics().load(self.page.address + WANTED)

    def counts(self) -> tuple[float, int, int]:
        """(seconds waited, rows taken, rows lost), as the consumer tells them."""
        load, page = atomics().load, self.page.address
        since = load(page + SINCE)
        now = max(0, time.monotonic_ns() - since) if since else 0
        return (load(page + WAITED) + now) / 1e9, load(page + TAKEN), load(page + LOST)

    def stalls(self, row: int) -> float:
        """Seconds since it first held the producer back at this row."""
        now = time.monotonic()
        if self.stalled[0] != row:
            self.stalled = (row, now)
        return now - self.stalled[1]

    def signal(self) -> None:
        os.eventfd_write(self.data_fd, 1)

    def __del__(self) -> None:
        os.close(self.data_fd)
