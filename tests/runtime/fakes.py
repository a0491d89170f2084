"""Engines and a consumer side for tests: rows of known content, with no program behind them."""
from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from msgspec.structs import replace
from pipec.runtime.below import Below
from pipec.runtime.blocks import view
from pipec.runtime.errors import DataError, Where
from pipec.runtime.loader import Loader
from pipec.runtime.plan import Column, Plan, Program, Segment, Slot, Start

WIDTH = 30_011
PATIENT = 120                          # seconds until a test gives up: the machine may be busy


def until(condition, told=lambda: "it never came"):
    """Look again and again; its value."""
    end = time.monotonic() + PATIENT
    while not (value := condition()):
        assert time.monotonic() < end, told()
        time.sleep(0.02)
    return value


def plan(rows=1000, width=WIDTH, batch=32, **options):
    """A plan whose first segment carries the fake engine's options."""
    nothing = Program((), (), (), ())
    source = Start("source", {"rows": rows, "width": width, **options})
    names = (("image", "field.image"), ("label", "field.label"))

    def passed_on(*before):
        slots = (Slot("field.image", "u8", (*before, width)), Slot("field.label", "i64", before))
        return Program(slots, names, (), names)

    columns = (Column("image", "u8", (width,)), Column("label", "i64", ()))
    below = (Segment(Start("ring"), passed_on()), Segment(batches_of(batch), passed_on(None)))
    emitted = (Column("image", "u8", (None, width)), Column("label", "i64", (None,)))
    return Plan("train", "train.pipe", 3, (), (Segment(source, nothing),), below, columns, emitted, (), {}, "abc")


def batches_of(n):
    size = Slot("n", "i64", (), value=(n,))
    return Start("batch", {"has": ("n",), "whole": False, "edges": None}, Program((size,), (), (), (("n", "n"),)))


def below(made, batch):
    """What a consumer runs, with a batch size of its own."""
    first, second = made.below
    return Below(replace(made, below=(first, replace(second, start=batches_of(batch)))), {})


def content(epoch, position, width=WIDTH):
    return ((np.arange(width, dtype=np.int64) * 5 + position * 13 + epoch * 101) % 251).astype(np.uint8)


class Engine:
    """Rows of `content`. Options: fail_at, slow (seconds per row), leave_at (the process exits), hang."""

    def __init__(self, plan, threads, kernels, allow_extern=False):
        self.options = plan.above[0].start.options
        if self.options.get("refuse"):
            raise DataError("E0810", "there is no file `x.tar`", Where("train.pipe", 3, 9))
        self.stats = SimpleNamespace(records=0, bad_count=2)

    def length(self, epoch):
        return self.options["rows"]

    def run(self, epoch, start, skip, sink):
        rows, width = self.options["rows"], self.options["width"]
        at = start + skip
        while at < rows:
            count = min(self.options.get("chunk", 8), rows - at)
            room = sink.reserve(count)
            if room is None:
                return
            if self.options.get("fail_at") == at:
                raise DataError("E0801", "this JPEG ends early", Where("train.pipe", 3, 9), "12 of 30 bytes",
                                "a.jpg of x.tar", epoch, at, ("leave it out",))
            if self.options.get("bug_at") == at:
                raise ZeroDivisionError("a bug")
            if self.options.get("leave_at") == at:
                os._exit(9)
            while self.options.get("hang"):
                time.sleep(1)
            time.sleep(self.options.get("slow", 0) * count)
            images = view(room.address["image"], (count, width), np.dtype(np.uint8))
            for k in range(count):
                images[k] = content(epoch, at + k, width)
            positions = np.arange(at, at + count)
            view(room.address["label"], (count,), np.dtype(np.int64))[:] = positions + 1000 * epoch
            view(room.address["_id"], (count,), np.dtype(np.uint64))[:] = positions
            view(room.address["_next"], (count,), np.dtype(np.int64))[:] = positions + 1
            view(room.address["_skip"], (count,), np.dtype(np.int64))[:] = 0
            sink.commit(room, count, {})
            self.stats.records += count
            at += count
        sink.end_epoch(epoch)


def make(workers="threads", as_="numpy", memory=None, **options):
    made = plan(**options)
    return Loader(made, as_=as_, memory=memory, workers=workers, engine="fakes:Engine")


def labels(loader, most=None):
    seen = []
    for batch in loader:
        seen += batch.label.tolist()
        if most is not None and len(seen) >= most:
            break
    return seen


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
