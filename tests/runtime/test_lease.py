"""Leases against a model: whatever is kept, written to and dropped, every array holds what it should."""
from __future__ import annotations

import gc
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from pipec.runtime import attach, lease
from pipec.runtime.blocks import view
from pipec.runtime.plan import Column

sys.path.insert(0, str(Path(__file__).parent))
from pair import Pair, pattern


class Story:
    """One thread plays producer and consumer in turn."""

    def __init__(self, seed, widths, writable):
        self.random = random.Random(seed)
        self.widths = dict(zip("abc", widths))
        columns = [Column(name, "u8", (w,)) for name, w in self.widths.items()]
        self.pair = Pair(columns, most=24, chunk=8, writable=writable)
        self.writable = writable
        self.written = self.read = 0
        self.kept = []                                # (arrays, right)

    def produce(self):
        writer, sink = self.pair.writer, self.pair.sink
        while True:
            rows = self.random.randint(1, 8)
            if writer.at.tail + rows - writer.readers.least() > writer.layout.capacity:
                return
            room = sink.reserve(rows)
            for name, width in self.widths.items():
                out = view(room.address[name], (rows, width), np.dtype(np.uint8))
                for k in range(rows):
                    out[k] = pattern(self.written + k, width)
            sink.commit(room, rows, {})
            self.written += rows
            if self.random.random() < 0.3:
                return

    def take(self):
        n = self.random.randint(1, 24)
        if self.written - self.read < n:
            return
        rows = self.pair.reader.take(n)
        right = {name: np.stack([pattern(self.read + k, w) for k in range(n)]) for name, w in self.widths.items()}
        self.kept.append(({name: rows.fields[name] for name in self.widths}, right))
        self.read += n

    def drop(self):
        if self.kept:
            del self.kept[self.random.randrange(len(self.kept))]

    def drop_one_array(self):
        if self.kept:
            arrays, right = self.random.choice(self.kept)
            name = self.random.choice(list(arrays) or ["a"])
            arrays.pop(name, None)
            right.pop(name, None)

    def write(self):
        if self.kept and self.writable:
            arrays, right = self.random.choice(self.kept)
            for name in arrays:
                k = self.random.choice([0, -1, self.random.randrange(len(arrays[name]))])
                value = self.random.randrange(256)
                arrays[name][k] = value
                right[name][k] = value

    def check(self):
        for arrays, right in self.kept:
            for name, array in arrays.items():
                assert np.array_equal(array, right[name])

    def run(self, steps, pages=True):
        with self.pair:
            for _ in range(steps):
                self.random.choice([self.produce, self.take, self.take, self.drop, self.drop_one_array, self.write])()
                while len(self.kept) > 12:
                    self.drop()
                if self.random.random() < 0.2:
                    self.check()
            self.check()
            assert self.read > 24 * 4                     # several laps
            leases = self.pair.reader.leases
            moved = leases.counts.moved
            self.kept.clear()
            gc.collect()
            self.pair.reader.release()
            assert leases.private == 0 and not leases.live and len(leases.windows) == 1
            for mapping in leases.windows[0].maps if pages else ():
                assert not leases.pagemap.private(mapping.address, mapping.length // 4096).any()
            return moved


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("widths", [(5003,), (4096, 11_003), (1, 9001, 300)])
@pytest.mark.parametrize("native", [True, False])
def test_arrays_hold_what_they_should(monkeypatch, writable, widths, native):
    if not native:                                        # where the extension isn't built
        monkeypatch.setattr(attach, "handover", lambda: None)
        for name, made in zip(("Held", "Lease"), lease.IN_PYTHON):
            monkeypatch.setattr(lease, name, made)
    monkeypatch.setattr(attach, "COPY_BELOW", 5000)       # views of a few pages, so that many share one
    moved = [Story(seed, widths, writable).run(250) for seed in range(2)]
    assert sum(moved) > 5


def test_without_a_pagemap(monkeypatch):
    """Where the kernel doesn't say which pages are private, all count as such."""
    from pipec.runtime import memory

    monkeypatch.setattr(attach, "COPY_BELOW", 5000)
    monkeypatch.setattr(memory.os, "pread", lambda *_: b"")
    for seed in range(3):
        Story(seed, (5003,), True).run(200, pages=False)
