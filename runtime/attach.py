"""The consumer's side of the ring: any number of rows at a time as arrays over shared memory, or the reason why not.

Goes in: a connected socket and the fds a producer passes over it. Comes out: a `RowReader` whose `take` gives rows
of one epoch after another.
"""
from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from .atomics import WAKE_HEAP, WAKE_ROOM, atomics
from .attachment import Attachment, gone_error
from .blocks import view
from .errors import DataError
from .even import EvenRows, Names, Plain
from .extension import handover
from .layout import (
    END_COUNT,
    END_TABLE,
    ENDS,
    ENDS_READ,
    GENERATION,
    HEAD,
    HEADER,
    HEAP_WANTED,
    INTACT,
    LOST,
    POSITION,
    RELEASED,
    RUN,
    SHARE,
    WAITED,
    Layout,
)
from .lease import Held, Leases
from .limits import available
from .memory import PAGE, Mapping
from .messages import error_of
from .progress import Progress
from .uneven import A_BITE, UnevenRows

COPY_BELOW = 64 << 10                  # smaller arrays are copied: cheaper than keeping their pages


@dataclass
class Rows:
    """`count` rows as arrays; they stay as they are for as long as anybody keeps one of them.

    `point`: `_next` and `_skip` of the last of them, where the reader gives `only` some columns.
    """

    count: int
    fields: dict[str, Any]
    lease: Any
    point: tuple[int, int] | None = None


class RowReader:
    """Reads rows in order. For one thread."""

    def __init__(self, attachment: Attachment, layout: Layout, *, writable: bool, budget: int | None = None,
                 when_slow: str = "wait", number: int = 0):
        """`writable`: arrays may be written to, which nobody else sees. `budget`: bytes of kept batches moved aside.

        `when_slow`: unless it is "wait" the producer may write over rows that this reader holds, so it hands out copies.
        `number`: what the producer calls it.
        """
        self.number = number
        self.attachment, self.layout, self.read_only = attachment, layout, not writable
        self.copies, self.may_lose = when_slow != "wait", when_slow == "skip"
        self.most = layout.capacity // SHARE
        self.exact = True                                 # else `take` gives what is there, at most about A_BITE
        self.only: Names | None = None                    # the columns that are asked for, where rows have fixed sizes
        fd = attachment.ring_fd
        self.header = Mapping(fd, 0, HEADER, double=False, write=False)
        self.control = Mapping(attachment.control_fd, 0, PAGE, double=False, write=True)
        self.atomics, self.header_at, self.control_at = atomics(), self.header.address, self.control.address
        self.ends_table = view(self.header.address + END_TABLE, (END_COUNT, 2), np.dtype(np.int64))
        self.points = [Mapping(fd, p.offset, p.size, double=True, write=False)
                       for p in layout.places if p.name in ("_next", "_skip")]
        self.point_words = [(ctypes.c_int64 * (m.size // 8)).from_address(m.address) for m in self.points]
        parts = [(p.heap_offset, p.heap) if p.ragged else (p.offset, p.size) for p in layout.places]
        if budget is None:
            budget = max(layout.total, available().free // 4)
        self.leases = Leases(fd, parts, budget, writable)
        self.plain = Plain(fd, self.leases.parts)
        self.even, self.uneven, share_from = None, None, None if self.copies else COPY_BELOW
        if any(p.ragged for p in layout.places):
            self.uneven = UnevenRows(layout, self.plain, share_from, self.read_only)
        else:
            self.even = EvenRows(layout.places, self.plain, share_from, self.read_only)
        self.position = self.ends = self.run = 0
        self.rows = self.bytes = self.lost = 0
        self.planned: tuple[int, Names | None] = (0, None)
        self.taker: Any = None
        native = handover()
        if native is not None and self.even is not None and not self.copies and len(layout.places) <= native.COLUMNS:
            points = tuple(word for m in self.points for word in (m.address, m.size // 8))
            a = attachment
            self.taker = native.Taker(
                self.header_at, self.control_at, number, layout.capacity, points,
                (a.data_fd, a.room_fd, a.heap_fd, a.watch().fileno()), self.leases.pagemap.fd,
                int(writable), PAGE, attachment, self.leases.windows[0], self.leases.windows, self.leases.live, np.ndarray)

    def place(self, row: int, ends: int, generation: int = 0) -> None:
        """Go on at `row`, after `ends` ends of epochs: a place that the producer has given.

        Without a generation it lies ahead, in a stream that is this reader's alone; otherwise it has let go before.
        """
        self.run = self._load(RUN)
        head, count = self._load(HEAD), self._load(ENDS)
        least = (0, 0) if generation else (self.position, self.ends)
        if not (least[0] <= row <= head and least[1] <= ends <= count):
            raise gone_error("it starts at a row that isn't there")
        if generation:
            for word, value in ((POSITION, row), (RELEASED, row), (ENDS_READ, ends), (GENERATION, generation)):
                self._store(word, value)
        self.position, self.ends = row, ends
        self.release()

    def let_go(self) -> None:
        """Move all batches aside that are held: their rows may be written over from now on."""
        self.leases.reclaim()
        while (held := self.leases.blocking()) is not None:
            self.leases.move_aside(held)

    def take(self, n: int) -> Rows | None:
        """The next n rows; fewer at the end of an epoch, None when none are left of it. Raises DataError.

        Where not `exact`, the rows that are there now, n at most; it waits for one.
        """
        if n <= 0:
            raise ValueError("a batch has at least one row")
        made = self._taken(n)
        return self._here(n) if made is None else Rows(n, *made)

    def _here(self, n: int) -> Rows | None:
        """What `take` gives, whatever there is to be done before."""
        if n > self.most:
            return self._gathered(n) if self.exact else self.take(self.most)
        while True:
            count = self._await(n, self.exact)
            if count > 1 and not self.exact:
                count = self._bite(count)
            if count == 0:
                self._end()
                return None
            try:
                rows = self._rows(count)
            except DataError:
                if self._keeps_up():
                    raise
                continue                                  # it was written over meanwhile
            if self._keeps_up():
                break
        self.rows += rows.count
        self.position += count
        self.atomics.took(self.control_at, self.position, self.rows)
        if rows.lease is None:                            # else it holds its rows: none are free yet
            self.release()
        return rows

    def _taken(self, n: int) -> tuple[dict[str, Any], Any, tuple[int, int]] | None:
        """Fields, lease and point of the next n rows where all is as usual, by the extension; None: it isn't."""
        if not self._plans(n):
            return None
        assert self.even is not None
        made: tuple[dict[str, Any], Any, tuple[int, int]] | None = self.taker.take(self.position, self.run, self.ends, self.rows)
        if made is not None:
            self.rows += n
            self.position += n
            self.bytes += n * self.even.row_bytes
        return made

    def _plans(self, n: int) -> bool:
        """Have the extension ready for batches of n rows; False where it can't take them."""
        if self.taker is None or not self.exact or n > self.most:
            return False
        assert self.even is not None
        if self.planned != (n, self.only):
            self.planned = (n, self.only)
            self.taker.plan(n, self.even.native(n, self.only, self.leases.windows[0]))
        return True

    def straight(self, n: int, columns: Names, whole: bool) -> Iterator[tuple[Sequence[Any], Progress]]:
        """Batches of n rows as they lie there: the arrays of these columns.

        The last one of an epoch is smaller, or left out where only `whole` ones are wanted. Nothing of a batch is kept here
        while the next one is waited for.
        """
        self.only = tuple({*columns, "_id"})
        pick, progress = itemgetter(*columns, "_id"), partial(tuple.__new__, Progress)   # neither is a frame of Python
        native, size = self._plans(n), n * self.even.row_bytes if self.even is not None else 0
        while True:                                       # what `_taken` does stands here once more: a frame less
            taker = self.taker if native else None
            count, made = n, taker.take(self.position, self.run, self.ends, self.rows) if taker is not None else None
            if made is not None:
                self.rows += n
                self.position += n
                self.bytes += size
            else:
                rows = self._here(n)
                if rows is None:
                    return
                count, made = rows.count, (rows.fields, None, rows.point or (0, 0))
                del rows
                if count < n and whole:
                    continue
            fields, _, point = made
            del made, _
            *values, ids = pick(fields)
            del fields
            yield values, progress((*point, count, 0, ids, None))
            del values, ids

    def skip(self, n: int) -> tuple[int, int, int] | None:
        """Pass over the next n rows, or those left of the epoch: (how many, `_next` and `_skip` of the last).

        None when none are left of it.
        """
        done, point = 0, (0, 0)
        while done < n:
            count = self._await(min(n - done, self.most), True)
            if count == 0 and done:
                break
            if count == 0:
                self._end()
                return None
            point = self._point(self.position + count - 1)
            self._pass(count)
            done += count
        return (done, *point)

    def skip_epoch(self) -> None:
        """Pass over what is left of the epoch, and its end: nothing of it is lost."""
        lost = self.lost
        while self.skip(self.most) is not None:
            pass
        self._lost_since(lost, 0)

    def skip_to(self, next_: int, skip: int, rows: int | None = None) -> None:
        """Pass over rows up to this point of the epoch, or to its end. `rows`: of an epoch, where that is known.

        Of those that were written over before they could be passed over, the ones before the point aren't lost; how many came
        after it is told by positions, which is exact where each gives one row.
        """
        lost, after = self.lost, None if rows is None else rows - next_
        while (count := self._await(self.most, False)) > 0:
            points = self._points(self.position, count)
            there = int(np.searchsorted(points[0] * (1 << 20) + points[1], next_ * (1 << 20) + skip, "right"))
            first = int(points[0][there]) if there < count else 0
            if not self._keeps_up():
                continue                                  # these points may be those of later rows
            self._pass(there)
            if there < count:
                after = first - 1 - next_
                break
        self._lost_since(lost, after)

    def _lost_since(self, before: int, most: int | None) -> None:
        """Of the rows lost since there were `before`, so many at most count."""
        if self.lost > before and most is not None:
            self.lost = before + min(self.lost - before, max(0, most))
            self._store(LOST, self.lost)

    def _end(self) -> None:
        self.ends += 1
        self._store(ENDS_READ, self.ends)
        self.release()

    def _pass(self, count: int) -> None:
        self.position += count
        self.release()

    def _point(self, row: int) -> tuple[int, int]:
        nexts, skips = self.point_words
        return nexts[row % len(nexts)], skips[row % len(skips)]

    def _points(self, row: int, count: int) -> list[np.ndarray]:
        """`_next` and `_skip` of rows."""
        return [view(m.address + row * 8 % m.size, (count,), np.dtype(np.int64)) for m in self.points]

    def _gathered(self, n: int) -> Rows | None:
        """More rows at once than a part of the ring holds: copies. Who is overtaken in between begins anew after the gap."""
        pieces: list[Rows] = []
        done, lost, point = 0, self.lost, None
        while done < n:
            asked = min(self.most, n - done)
            if pieces:                                    # whose None would be the epoch's
                asked = self._await(asked, True)
                if asked == 0:
                    break
            rows = self.take(asked)
            if rows is None:
                self._leave_out(done)                     # overtaken up to the epoch's end: nobody gets these either
                return None
            if self.lost != lost:
                self._leave_out(done)
                pieces, done, lost = [], 0, self.lost
            pieces.append(Rows(rows.count, {k: self._kept(v) for k, v in rows.fields.items()}, None))
            done, point = done + rows.count, rows.point
        fields: dict[str, Any] = {}
        for name in pieces[0].fields:
            values = [p.fields[name] for p in pieces]
            if isinstance(values[0], np.ndarray):
                fields[name] = np.concatenate(values)
                fields[name].flags.writeable = not self.read_only
            else:
                fields[name] = [v for part in values for v in part]
        return Rows(done, fields, None, point)

    def _leave_out(self, count: int) -> None:
        """Rows that were taken and nobody gets."""
        if count:
            self.rows, self.lost = self.rows - count, self.lost + count
            self._store(LOST, self.lost)

    @staticmethod
    def _kept(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        return [v.copy() if isinstance(v, np.ndarray) and v.dtype != object else v for v in value]

    # -- waiting

    def _load(self, word: int) -> int:
        return self.atomics.load(self.header_at + word)

    def _store(self, word: int, value: int) -> None:
        self.atomics.store(self.control_at + word, value)

    def _await(self, n: int, exact: bool) -> int:
        """How many of the next n rows are there: all of them, or those left of the epoch; where not `exact`, at least one."""
        self.release()
        if self.copies:
            self._keeps_up()
        count = self._ready(n, exact)
        return self._wait(n, exact) if count is None else count

    def _ready(self, n: int, exact: bool) -> int | None:
        """How many rows can be had now; None: wait."""
        there = self.atomics.there(self.header_at, self.run, self.ends) - self.position
        if 0 <= there <= self.layout.capacity:            # the usual case: within an epoch
            return n if n <= there else None if exact or there == 0 else there
        count = self._load(ENDS)                          # before the head: rows of an epoch come before its end
        head = self._load(HEAD)
        if self._load(RUN) != self.run:                   # after the head: a new run says so before it moves the head
            return None
        end = head
        if count > self.ends:
            end = int(self.ends_table[self.ends % END_COUNT, 1])
        lag = 1 << 62 if self.copies else self.layout.capacity
        if not (self.position <= end <= head <= self.position + lag and self.ends <= count):
            if self.copies and not self._keeps_up():
                return self._ready(n, exact)
            raise gone_error("its counters are wrong")
        there = end - self.position
        if there >= n or (there and not exact):
            return min(n, there)
        return there if count > self.ends else None

    def _wait(self, n: int, exact: bool) -> int:
        """Sleep until rows are there. What is wanted is stored before looking again, so no signal is lost."""
        started = time.monotonic_ns()
        try:
            while True:
                self.atomics.sleeps(self.control_at, self.position + (n if exact else 1), started)
                count = self._ready(n, exact)
                if count is not None:
                    return count
                if self.attachment.news or self._load(RUN) != self.run:
                    self._check(n, exact)
                if self.uneven is not None and self._load(HEAP_WANTED):   # the byte ring is full: keep nothing of it
                    self.leases.reclaim()
                    while (held := self.leases.blocking()) is not None:
                        self.leases.move_aside(held)
                    self.release()
                    os.eventfd_write(self.attachment.heap_fd, 1)
                self.attachment.sleep()
        finally:
            waited = self.atomics.load(self.control_at + WAITED)
            self.atomics.wakes(self.control_at, waited + time.monotonic_ns() - started)

    @property
    def waited(self) -> float:
        """Seconds for which it slept so far."""
        return self.atomics.load(self.control_at + WAITED) / 1e9

    def _check(self, n: int, exact: bool) -> None:
        """Raise what ended the producer, unless the rows came in just before."""
        attachment = self.attachment
        attachment.pump()
        failed, anew = attachment.failure, self._load(RUN) != self.run
        if failed is None and attachment.gone is None and not anew:
            return
        if self._ready(n, exact) is not None:
            return
        if failed is not None:
            raise error_of(failed)
        if attachment.gone is not None:
            raise gone_error(attachment.gone)
        if anew:
            raise gone_error("it began anew from another place")

    def _keeps_up(self) -> bool:
        """Were the rows from here on never written over? Else go on where they weren't, if this reader may lose some."""
        if not self.copies:
            return True
        intact = self._load(INTACT)
        if self.position >= intact and self._load(ENDS) - self.ends < END_COUNT:
            return True
        if not self.may_lose:
            raise self.attachment.end()
        count = self._load(ENDS)
        if count - self.ends >= END_COUNT:
            raise gone_error(f"this consumer is {count - self.ends} epochs behind")
        goal = max(intact, self._load(HEAD) - self.layout.capacity // 2)
        if count > self.ends:                             # an epoch's end is not passed over
            goal = min(goal, int(self.ends_table[self.ends % END_COUNT, 1]))
        self.lost += max(0, goal - self.position)
        self.position = max(self.position, goal)
        self._store(LOST, self.lost)
        return False

    def release(self) -> None:
        """Tell the producer which rows are free, moving old batches aside where they take half of the ring."""
        leases, oldest = self.leases, self.position
        if leases.live:
            leases.reclaim()
            while (held := leases.blocking()) is not None and self._pressed(held):
                leases.move_aside(held)
            oldest = leases.oldest(oldest)
        due = self.atomics.publish(self.header_at, self.control_at, self.position, oldest, self.number)
        if due & WAKE_ROOM:
            os.eventfd_write(self.attachment.room_fd, 1)
        if due & WAKE_HEAP:
            os.eventfd_write(self.attachment.heap_fd, 1)

    def _pressed(self, held: Held) -> bool:
        """Does the oldest batch hold back more of the ring than may be?"""
        if self.position - held.start > self.layout.capacity // 2:
            return True
        if self.uneven is None:
            return False
        last = self.leases.live[-1]
        ends = {part: start for part, start, _ in last.spans}
        return any(ends[part] - start > self.layout.places[part].heap // 2
                   for part, start, _ in held.spans if self.layout.places[part].ragged and part in ends)

    def _bite(self, count: int) -> int:
        """How many of these rows are taken where any number may be."""
        if self.uneven is not None:
            return self.uneven.bite(self.position, count)
        assert self.even is not None
        return min(count, max(1, A_BITE // self.even.row_bytes))

    def _rows(self, count: int) -> Rows:
        """Arrays over the next rows: large ones are the ring's own memory, small ones copies."""
        if self.uneven is not None:
            fields, lease, size = self.uneven.take(self.leases, self.position, count)
            self.bytes += size
            return Rows(count, fields, lease)
        assert self.even is not None
        fields, lease = self.even.take(self.leases, self.position, count, self.only)
        self.bytes += count * self.even.row_bytes
        return Rows(count, fields, lease, self._point(self.position + count - 1) if self.only is not None else None)
