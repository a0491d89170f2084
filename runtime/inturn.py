"""Tasks on threads, delivered in the order in which they were drawn: whoever is done with one delivers what is ready and
draws the next, so that nothing is handed from thread to thread."""
from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Drawn(Generic[T]):
    """A task with its number; `error` in its place where it couldn't be drawn or done."""

    number: int
    task: T | None
    error: BaseException | None = None
    result: Any = None


class InTurn(Generic[T, R]):
    """`draw()` gives the next task, None after the last, `work(task)` its result, on several threads; `deliver(task, result)`
    gets them in order. Draws are made one at a time, and so are deliveries.

    An error of `draw` or `work` takes its task's place: what comes before it is delivered, nothing after it.
    """

    def __init__(self, threads: int, draw: Callable[[], T | None], work: Callable[[T], R], deliver: Callable[[T, R], None]):
        self.threads, self.draw, self.work, self.deliver = threads, draw, work, deliver
        self.most = 2 * threads + 2                       # drawn and not yet delivered
        self.drawing, lock = threading.Lock(), threading.Lock()
        self.room, self.ended = threading.Condition(lock), threading.Condition(lock)
        self.lock = lock                                  # of all that follows
        self.done: dict[int, Drawn[T]] = {}
        self.drawn = self.delivered = self.busy = 0       # busy: threads that have a task or deliver
        self.delivering = self.over = False               # over: nothing more is drawn
        self.error: BaseException | None = None

    def run(self) -> None:
        """Raises the first error, when no task is worked on any more. A thread that is in `draw` then isn't waited for: it
        lets go of what it gets."""
        if self.threads == 1:
            while (task := self.draw()) is not None:
                self.deliver(task, self.work(task))
            return
        for k in range(self.threads):
            threading.Thread(target=self._loop, name=f"pipec_{k}", daemon=True).start()
        with self.lock:
            self.ended.wait_for(lambda: self.over and not self.busy)
        if self.error is not None:
            raise self.error

    def _loop(self) -> None:
        while (drawn := self._next()) is not None:
            if drawn.error is None:
                try:
                    drawn.result = self.work(drawn.task)  # type: ignore[arg-type]
                except BaseException as error:            # raised again in its turn, by `run`
                    drawn.error = error
            if self._is_mine(drawn):
                while (ready := self._ready()) is not None:
                    self._deliver(ready)

    def _next(self) -> Drawn[T] | None:
        with self.drawing:
            with self.lock:
                self.room.wait_for(lambda: self.over or self.drawn - self.delivered < self.most)
                if self.over:
                    return None
            drawn = Drawn[T](self.drawn, None)
            try:
                drawn.task = self.draw()
            except BaseException as error:
                drawn.error = error
            with self.lock:
                if self.over:                             # another's error came in between
                    return None
                self.over = drawn.task is None
                if drawn.task is None and drawn.error is None:
                    self._look_for_end()
                    return None
                self.drawn += 1
                self.busy += 1
                return drawn

    def _is_mine(self, drawn: Drawn[T]) -> bool:
        """Put it down as done; has this thread to deliver what is ready."""
        with self.lock:
            self.done[drawn.number] = drawn
            if self.delivering:                           # who delivers sees it
                self.busy -= 1
                return False
            self.delivering = True
            return True

    def _ready(self) -> Drawn[T] | None:
        """What is to be delivered next; None where that isn't there, and this thread delivers no more."""
        with self.lock:
            ready = None if self.error is not None else self.done.pop(self.delivered, None)
            if ready is None:
                self.delivering = False
                self.busy -= 1
                self._look_for_end()
            else:
                self.delivered += 1
                self.room.notify()
            return ready

    def _deliver(self, ready: Drawn[T]) -> None:
        try:
            if ready.error is not None:
                raise ready.error
            self.deliver(ready.task, ready.result)        # type: ignore[arg-type]
        except BaseException as error:
            with self.lock:
                self.error, self.over = error, True
                self.room.notify()

    def _look_for_end(self) -> None:
        if self.over and not self.busy:
            self.ended.notify()
