"""Ring, leases, places and wake-ups against a short model: a list of rows, and where everybody is in it."""
from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pipec.runtime.atomics import atomics
from pipec.runtime.attach import RowReader
from pipec.runtime.attachment import Attachment
from pipec.runtime.consumer import Consumer
from pipec.runtime.layout import ROOM_WANTED, WANTED, plan_layout
from pipec.runtime.memory import create, seal
from pipec.runtime.messages import Channel
from pipec.runtime.plan import Column
from pipec.runtime.ring import Writer

sys.path.insert(0, str(Path(__file__).parent))
from pair import array, pattern

WIDTH = 70_001                         # more than is copied


class Reader:
    """A reader, its consumer at the writer, and what the model says of it."""

    def __init__(self, ring, when_slow, native):
        near, self.far = socket.socketpair()
        self.attachment = Attachment(Channel(near), None)
        data = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.attachment.ring_fd, self.attachment.data_fd = os.dup(ring.fd), data
        self.attachment.room_fd, self.attachment.heap_fd = os.dup(ring.room), os.dup(ring.heap)
        self.reader = RowReader(self.attachment, ring.layout, writable=True, budget=1 << 30, when_slow=when_slow)
        if not native:
            self.reader.taker = None                      # the same in Python
        self.consumer = Consumer(self.attachment.control_fd, data, when_slow)
        self.consumer.rest()
        self.when_slow = when_slow
        self.row = self.ends = 0                          # of the model: rows read or passed, ends of epochs seen
        self.kept = []                                    # (array, what it has to hold)

    def close(self):
        self.kept.clear()
        self.reader.leases.close()
        self.attachment.close()
        self.far.close()


class Ring(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.layout = plan_layout([Column("image", "u8", (WIDTH,))], 6, None, 4)
        self.fd = create("ring", self.layout.total)
        self.room, self.heap = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self.writer = Writer(self.layout, self.fd, self.room, self.heap)
        seal(self.fd)
        self.run = self.writer.begin()
        self.rows = []                                    # (epoch, position) of every row ever written
        self.ends = []                                    # rows before each end of an epoch
        self.epoch = self.position = 0
        self.readers = []

    # -- the producer

    def room_for(self, rows):
        least = [r.consumer.released for r in self.readers if r.consumer.active and r.when_slow == "wait"]
        lossy = [r.consumer.released for r in self.readers if r.consumer.active and r.when_slow == "skip"]
        return least or lossy, self.writer.at.tail + rows - self.writer.readers.least() <= self.layout.capacity

    @rule(rows=st.integers(1, 4), left_out=st.integers(0, 1))
    def write(self, rows, left_out):
        read, fits = self.room_for(rows)
        if not read or not fits:
            return
        sleeping = [r for r in self.readers if r.consumer.active and r.consumer.wants()]
        room = self.run.reserve(rows)
        kept = max(1, rows - left_out)
        for k in range(kept):
            array(room.address["image"], (rows, WIDTH), np.uint8)[k] = pattern(len(self.rows), WIDTH)
            array(room.address["_next"], (rows,), np.int64)[k] = self.position + 1
            array(room.address["_skip"], (rows,), np.int64)[k] = 0
            self.rows.append((self.epoch, self.position))
            self.position += 1
        self.position += rows - kept                      # positions whose records were left out
        self.run.commit(room, kept)
        for reader in sleeping:                           # nobody sleeps who could read
            if reader.consumer.wants() <= len(self.rows):
                assert select.select([reader.attachment.data_fd], [], [], 0)[0]

    @rule(times=st.integers(2, 8))
    def write_more(self, times):
        for _ in range(times):
            self.write(4, 0)

    @rule(native=st.booleans())
    def write_otherwise(self, native):
        """In Python or by the extension, which go on from the same counters."""
        self.writer.quick = self.writer.readers.giver if native else None

    @rule()
    @precondition(lambda self: self.position > 0)
    def end_epoch(self):
        if len(self.ends) - self.writer.readers.least_ends() < 200:
            self.run.end_epoch(self.epoch)
            self.ends.append(len(self.rows))
            self.epoch, self.position = self.epoch + 1, 0
            for reader in self.readers:
                if reader.consumer.generation and not reader.consumer.active:
                    continue
                if reader.consumer.active and reader.ends == -1:
                    self.settle(reader)

    # -- consumers

    @rule(when_slow=st.sampled_from(["wait", "wait", "skip"]), where=st.sampled_from(["now", "epoch", "state"]),
          back=st.integers(0, 40), native=st.booleans())
    @precondition(lambda self: len(self.readers) < 4)
    def join(self, when_slow, where, back, native):
        reader = Reader(self, when_slow, native)
        self.writer.join(reader.consumer)
        with self.writer.lock:
            if where == "state":
                target = max(0, len(self.rows) - back)
                begin = max((e for e in self.ends if e <= target), default=0)
                point = (sum(e <= target for e in self.ends), self.rows[target - 1][1] + 1 if target > begin else 0, 0)
                found = self.writer.find(*point)
                if found is not None:
                    assert found.row == target
                else:
                    assert target < self.writer.at.intact or target <= self.writer.at.legible
            elif where == "now":
                found = self.writer.now()
                assert found.row == len(self.rows)
            else:
                found = self.writer.epoch_start()
                if found is not None:
                    assert found.row == (self.ends[-1] if self.ends else 0)
            if found is None:
                reader.consumer.rest(waits=True)
                reader.ends = -1                          # the end of the epoch will tell
            else:
                reader.consumer.place(found)
        self.readers.append(reader)
        if found is not None:
            self.settle(reader)

    def settle(self, reader):
        began = reader.consumer.began
        reader.reader.place(began.row, began.ends, reader.consumer.generation)
        reader.row, reader.ends = began.row, began.ends

    def active(self):
        return [r for r in self.readers if r.consumer.active]

    @rule(which=st.integers(0, 3), n=st.integers(1, 6), keep=st.booleans())
    def take(self, which, n, keep):
        """Read, and look whether the producer would be woken."""
        readers = self.active()
        if not readers:
            return
        reader = readers[which % len(readers)]
        end = self.ends[reader.ends] if reader.ends < len(self.ends) else None
        if reader.reader.copies and reader.row < self.writer.at.intact:
            return self.passes(reader, n)
        there = (end if end is not None else len(self.rows)) - reader.row
        if there < n and end is None:
            assert reader.reader._ready(n, True) is None
            return None
        got = reader.reader.take(n)
        if there == 0:
            assert got is None
            reader.ends += 1
            return None
        assert got.count == min(n, there)
        self.check(reader, got, keep)
        return None

    def passes(self, reader, n):
        """A reader that was overtaken goes on where rows are whole, and stops at the end of its epoch."""
        end = self.ends[reader.ends] if reader.ends < len(self.ends) else None
        whole = len(self.rows) - max(self.writer.at.intact, len(self.rows) - self.layout.capacity // 2)
        if end is None and whole < n:                     # it would wait
            return
        lost = reader.reader.lost
        got = reader.reader.take(n)
        reader.row += reader.reader.lost - lost
        if got is None:
            assert reader.row == end
            reader.ends += 1
        else:
            self.check(reader, got, False)

    def check(self, reader, got, keep):
        for k in range(got.count):
            assert got.fields["_next"][k] == self.rows[reader.row + k][1] + 1
        right = np.stack([pattern(reader.row + k, WIDTH) for k in range(got.count)])
        assert (got.fields["image"] == right).all()
        if keep:
            reader.kept.append((got.fields["image"], right))
        reader.row += got.count

    @rule(n=st.integers(1, 6), times=st.integers(1, 6))
    def all_read(self, n, times):
        for _ in range(times):
            for which in range(len(self.active())):
                self.take(which, n, False)

    @rule(which=st.integers(0, 3))
    def producer_sleeps(self, which):
        """It waits for room that the slowest reader has; that one's next step has to wake it."""
        readers = [r for r in self.active() if r.when_slow == "wait"]
        if not readers or self.writer.at.tail + 6 - self.writer.readers.least() <= self.layout.capacity:
            return
        slowest = min(readers, key=lambda r: r.consumer.released)
        if slowest.kept or sum(r.consumer.released == slowest.consumer.released for r in readers) > 1:
            return
        atomics().store(self.writer.header.address + ROOM_WANTED, slowest.consumer.released + 1)
        while select.select([self.room], [], [], 0)[0]:
            os.eventfd_read(self.room)
        if slowest.reader._ready(1, True):
            self.take(self.active().index(slowest), 1, False)
            slowest.reader.release()
            assert select.select([self.room], [], [], 0)[0]
        atomics().store(self.writer.header.address + ROOM_WANTED, 0)

    @rule(which=st.integers(0, 3))
    def sleep(self, which):
        """It wants more than is there, and would sleep now."""
        readers = self.active()
        if readers:
            reader = readers[which % len(readers)]
            if reader.reader._ready(6, True) is None:
                atomics().store(reader.reader.control.address + WANTED, reader.row + 6)

    @rule(which=st.integers(0, 3), value=st.integers(0, 255))
    def write_into_a_kept_batch(self, which, value):
        readers = [r for r in self.readers if r.kept]
        if readers:
            image, right = readers[which % len(readers)].kept[-1]
            image[0, 7] = right[0, 7] = value

    @rule(which=st.integers(0, 3))
    def drop_kept(self, which):
        readers = [r for r in self.readers if r.kept]
        if readers:
            readers[which % len(readers)].kept.pop(0)

    @rule(which=st.integers(0, 3))
    def leave(self, which):
        if self.readers:
            reader = self.readers.pop(which % len(self.readers))
            self.writer.leave(reader.consumer)
            reader.close()

    # -- always

    @invariant()
    def kept_batches_are_what_they_were(self):
        for reader in self.readers:
            for image, right in reader.kept:
                assert (image == right).all()

    @invariant()
    def counters(self):
        assert self.writer.head == len(self.rows) and self.writer.ends == len(self.ends)
        for reader in self.active():
            if reader.when_slow == "wait":
                assert reader.consumer.released >= self.writer.at.intact or reader.consumer.released == 0

    def teardown(self):
        for reader in self.readers:
            reader.close()
        self.run.stop()
        self.writer.close()
        for fd in (self.fd, self.room, self.heap):
            os.close(fd)


TestRing = Ring.TestCase
TestRing.settings = settings(max_examples=int(os.environ.get("PIPEC_MODEL", "25")), stateful_step_count=60, deadline=None,
                             suppress_health_check=list(HealthCheck))
