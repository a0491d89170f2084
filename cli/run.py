"""`pipec run`: a program without a training loop, with a progress bar and what it achieved."""
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import UsageError, settings_of, split_file


def run(arguments: argparse.Namespace) -> int:
    if arguments.epochs < 1 or (arguments.batches is not None and arguments.batches < 1):
        raise UsageError("--epochs and --batches are 1 or more")
    if arguments.interpret:
        return _interpret(arguments)
    from ..runtime.loader import open as open_loader

    path, pipeline = split_file(arguments.file)
    started = time.perf_counter()
    loader = open_loader(path, threads=arguments.threads, as_="numpy", memory=arguments.memory, run=pipeline,
                         allow_extern=arguments.allow_extern, **settings_of(arguments.settings))
    with loader:
        try:
            total: int | None = len(loader) * arguments.epochs
        except TypeError:
            total = None
        if arguments.batches is not None:
            total = min(total or arguments.batches, arguments.batches)
        meter = Meter(started)
        for batch in _shown(_epochs(loader, arguments.epochs, arguments.batches), total, meter, arguments.plain):
            meter.add(batch)
        stats = loader.stats()
    print(meter.summary(path))
    bad = stats.get("bad", [])
    count = stats.get("bad_records", len(bad))
    if count:
        print(f"{count:,} bad records were left out{':' if arguments.bad else ' (--bad lists them)'}")
        for name, reason in bad if arguments.bad else []:
            print(f"  {name}: {reason}")
    return 0


def _epochs(loader: Any, epochs: int, batches: int | None) -> Iterator[Any]:
    left = batches
    for _ in range(epochs):
        for batch in loader:
            yield batch
            if left is not None:
                left -= 1
                if left == 0:
                    return


class Meter:
    """Counts records and bytes from the first batch on."""

    def __init__(self, started: float):
        self.started, self.first, self.last = started, 0.0, 0.0
        self.batches = self.records = self.bytes = 0
        self.first_records = 0

    def add(self, batch: Any) -> None:
        self.last = time.perf_counter()
        count, size = _extent(batch)
        if not self.batches:
            self.first, self.first_records = self.last, count
        self.batches += 1
        self.records += count
        self.bytes += size

    def rate(self) -> float:
        """Records per second since the first batch came."""
        took = self.last - self.first
        return (self.records - self.first_records) / took if took > 0 else 0.0

    def summary(self, path: str) -> str:
        if not self.batches:
            return f"{path}: no records"
        took = self.last - self.first
        speed = f", {self.rate():,.0f} records/s, {self.bytes / self.batches * (self.batches - 1) / took / 1e6:,.0f} MB/s" \
            if took > 0 else ""
        return (f"{path}: {self.records:,} records in {self.batches:,} batches{speed}\n"
                f"first batch after {self.first - self.started:.2f} s")


def _extent(batch: Any) -> tuple[int, int]:
    """(records, bytes) of a batch, a named tuple or a dict of fields."""
    fields = batch.values() if isinstance(batch, dict) else batch
    count, size = 1, 0
    for k, value in enumerate(fields):
        if k == 0:
            count = len(value) if np.ndim(value) or isinstance(value, list) else 1
        size += value.nbytes if hasattr(value, "nbytes") else len(value) if isinstance(value, bytes | str) else 0
    return count, size


def _shown(batches: Iterator[Any], total: int | None, meter: Meter, plain: bool) -> Iterator[Any]:
    """Draw a progress bar on a terminal while the batches pass."""
    if plain or not sys.stderr.isatty():
        yield from batches
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("batches"), TextColumn("{task.fields[rate]}"),
               TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total, rate="waiting for the first batch")
        for batch in batches:
            yield batch
            progress.update(task, advance=1, rate=f"{meter.rate():,.0f} records/s")


def _interpret(arguments: argparse.Namespace) -> int:
    from ..compiler.check import check
    from ..compiler.evaluate import evaluate

    path, pipeline = split_file(arguments.file)
    started = time.perf_counter()
    program = check(path, settings_of(arguments.settings), pipeline)
    meter = Meter(started)

    def epochs() -> Iterator[Any]:
        left = arguments.batches
        for epoch in range(arguments.epochs):
            for batch in evaluate(program, epoch=epoch):
                yield batch
                if left is not None:
                    left -= 1
                    if left == 0:
                        return

    for batch in _shown(epochs(), arguments.batches, meter, arguments.plain):
        meter.add(batch)
    print(meter.summary(path))
    return 0
