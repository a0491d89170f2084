"""`python -m benchmarks counters`: what the counts that `pipec top` shows cost the producer and a consumer.

A writer and a reader of one ring take turns in one thread, with the lines that count and without them, some batches each,
again and again; what is told is CPU time. Batches of 128 × 224 × 224 × 3 u8 are ready-made: "written" copies them into the
ring and reads a byte of every page, which is the least that any use of them takes; "handed over" does neither.
"""
from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import re
import socket
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .share import BATCH, SHAPE, touch

COUNTING = re.compile(r"^(\s*)(self\.(rows|bytes|lost) [+-]?= |self\.waited\b.* [+-]?= |self\._store\((TAKEN|WAITED|SINCE|LOST), "
                      r"|self\._blame\().*$", re.MULTILINE)
AT_ONCE = {"handed over": 100, "written": 10}   # batches with, then batches without


def without_counts(cls: type) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Methods that count: (as they are, without the lines that do)."""
    found: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
    for name, method in vars(cls).items():
        if not inspect.isfunction(method) or name == "__init__":
            continue
        text = textwrap.dedent(inspect.getsource(method))
        left, count = COUNTING.subn(r"\1pass", text)
        if count:
            made: dict[str, Any] = {}
            exec(compile("from __future__ import annotations\n" + left, f"<{cls.__name__}.{name}>", "exec"),
                 vars(sys.modules[cls.__module__]) | {"__builtins__": __builtins__}, made)
            found[name] = (method, made[name])
    return found


@contextlib.contextmanager
def ring() -> Iterator[tuple[Any, Any, Any]]:
    """A writer, its sink, and a reader in this process."""
    from pipec.runtime.attach import RowReader
    from pipec.runtime.attachment import Attachment
    from pipec.runtime.consumer import Consumer
    from pipec.runtime.layout import plan_layout
    from pipec.runtime.memory import create, seal
    from pipec.runtime.messages import Channel
    from pipec.runtime.plan import Column
    from pipec.runtime.ring import Writer

    layout = plan_layout((Column("image", "u8", SHAPE),), BATCH)
    near, far = socket.socketpair()
    attachment = Attachment(Channel(near), None)
    attachment.ring_fd = create("ring", layout.total)
    attachment.data_fd, attachment.room_fd, attachment.heap_fd = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3))
    writer = Writer(layout, attachment.ring_fd, attachment.room_fd, attachment.heap_fd)
    seal(attachment.ring_fd)
    reader = RowReader(attachment, layout, writable=False)
    writer.join(Consumer(attachment.control_fd, attachment.data_fd))
    sink = writer.begin()
    reader.place(0, 0)
    try:
        yield writer, sink, reader
    finally:
        sink.stop()
        writer.close()
        reader.leases.close()
        attachment.close()
        far.close()


def hand_over(sink: Any, reader: Any, batches: int, source: np.ndarray | None) -> float:
    """CPU seconds for so many batches, written from `source`."""
    from pipec.runtime.blocks import view

    began = time.process_time()
    for _ in range(batches):
        room = sink.reserve(BATCH)
        if source is not None:
            np.copyto(view(room.address["image"], source.shape, source.dtype), source)
        sink.commit(room, BATCH, {})
        image = reader.take(BATCH).fields["image"]
        if source is not None:
            touch(image)
        del image
    return time.process_time() - began


def measured(rounds: int, at_once: int, written: bool) -> tuple[float, float]:
    """(CPU µs of a batch with counts, median of what counting adds to it), over pairs of runs next to each other."""
    whole: list[float] = []
    added: list[float] = []
    source = np.random.default_rng(1).integers(0, 256, (BATCH, *SHAPE), np.uint8) if written else None
    with ring() as (writer, sink, reader):
        methods = [(cls, name, *both) for cls in (type(writer), type(reader)) for name, both in without_counts(cls).items()]
        if not {"take", "_put_fixed"} <= {name for _, name, *_ in methods}:
            raise SystemExit("the lines that count aren't found any more: `COUNTING` has to say what they look like")

        def run(counting: bool) -> float:
            for cls, name, with_them, left in methods:
                setattr(cls, name, with_them if counting else left)
            return hand_over(sink, reader, at_once, source)

        try:
            for counting in (True, False):                # pages are there from now on
                run(counting)
            for number in range(rounds):
                first = number % 2 == 0
                spent = {first: run(first), not first: run(not first)}
                whole.append(spent[True])
                added.append(spent[True] - spent[False])
        finally:
            run(True)
    return 1e6 * statistics.median(whole) / at_once, 1e6 * statistics.median(added) / at_once


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks counters", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args(arguments)
    print(f"a batch of {BATCH} × {' × '.join(map(str, SHAPE))} u8 through the ring, writer and one reader together; "
          f"medians of {options.rounds} pairs; numpy {np.__version__}")
    handed, added = measured(options.rounds, AT_ONCE["handed over"], False)
    written, _ = measured(max(1, options.rounds // 10), AT_ONCE["written"], True)
    print(f"handed over  {handed:10.1f} µs of CPU, of which counting {added:5.2f} µs: {100 * added / handed:.2f} %")
    print(f"written      {written:10.1f} µs of CPU; counting is the same: {100 * added / written:.2f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
