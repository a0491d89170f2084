"""An engine in a thread of its own that writes into a ring: from where it is sent, epoch by epoch."""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from .consumer import Consumer
from .ring import Run, Writer

Place = tuple[int, int, int]           # epoch, next, skip


class Work:
    """`epochs`: how many there are. `changed` is called, from the thread, when something has happened: look at `busy`,
    `finished` and `broken`."""

    def __init__(self, engine: Any, writer: Writer, epochs: int | None, changed: Callable[[], None]):
        self.engine, self.writer, self.epochs, self.changed = engine, writer, epochs, changed
        self.finished = False                             # all epochs are written
        self.broken: BaseException | None = None          # what ended the last run
        self._moved = threading.Condition()
        self._goal: Place | None = None
        self._readers: Sequence[Consumer] = ()
        self._run: Run | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="pipec-engine", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> str:
        """"starting" (sent, and not there yet), "running" or "idle"."""
        with self._moved:
            if self._goal is not None:
                return "starting"
            return "running" if self._run is not None and not self._run.stopped else "idle"

    def past(self, epoch: int) -> bool:
        """Is this epoch one too many?"""
        return self.epochs is not None and epoch >= self.epochs

    def go(self, place: Place, readers: Sequence[Consumer] = ()) -> None:
        """Leave what is being done, and go on there; these consumers read from there on."""
        with self._moved:
            self._goal, self._readers = place, readers
            self._stop()

    def halt(self) -> None:
        with self._moved:
            self._goal = None
            self._stop()

    def end(self, seconds: float) -> bool:
        """No more work; False where the engine doesn't stop in time."""
        with self._moved:
            self._ending = True
            self._stop()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _stop(self) -> None:
        if self._run is not None:
            self._run.stop()
        self._moved.notify_all()

    def _work(self) -> None:
        while (begun := self._next()) is not None:
            (epoch, start, skip), run = begun
            self.changed()
            try:
                while not run.stopped and not self.past(epoch):
                    self.engine.run(epoch, start, skip, run)
                    epoch, start, skip = epoch + 1, 0, 0
                self.finished = self.finished or not run.stopped
            except BaseException as error:                # consumers are told
                if not run.stopped:
                    self.broken = error
            with self._moved:
                self._run = None
            self.changed()

    def _next(self) -> tuple[Place, Run] | None:
        with self._moved:
            while self._goal is None and not self._ending:
                self._moved.wait()
            if self._ending or self._goal is None:
                return None
            place, self._goal = self._goal, None
            self._run = self.writer.begin(*place, self._readers)
            self._readers = ()
            return place, self._run
