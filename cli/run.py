"""`pipec run`: a program without a training loop, with a progress bar and what it achieved."""
from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import settings_of, split_file

ASK_SECONDS = 0.5        # between two looks at the producer's counts
ENDLESS = 1 << 40        # positions of an epoch that never ends


def run(arguments: argparse.Namespace) -> int:
    return _interpret(arguments) if arguments.interpret else _compiled(arguments)


def open_program(arguments: argparse.Namespace) -> Any:
    """The loader of the command line's program. User code is looked for beside the program, too."""
    from ..runtime.opening import open as open_loader

    path, pipeline = split_file(arguments.file)
    beside(path, arguments.allow_extern)
    settings: dict[str, Any] = dict(settings_of(arguments.settings))
    return open_loader(path, threads=arguments.threads, as_="numpy", memory=arguments.memory, run=pipeline,
                       allow_extern=arguments.allow_extern, trust=arguments.trust, **settings)


def checked_program(arguments: argparse.Namespace) -> Any:
    """The checked program for the reference evaluator. Raises PipeError where it may not run user code and would."""
    from ..compiler.artifact import program_at
    from ..compiler.graph import walk
    from ..runtime.externs import extern_refused

    path, pipeline = split_file(arguments.file)
    program = program_at(path, settings_of(arguments.settings), pipeline)
    beside(path, arguments.allow_extern)
    for node in walk(program.emit) if not arguments.allow_extern else ():
        if node.op == "extern":
            spans = program.spans.get(node, ())
            raise extern_refused(node["target"], spans[0] if spans else None, path, program.texts)
    return program


def beside(path: str, allowed: bool) -> None:
    """Let Python find modules beside the program, where it may run user code at all."""
    folder = os.path.dirname(os.path.abspath(path))
    if allowed and folder not in sys.path:
        sys.path.insert(0, folder)


def _compiled(arguments: argparse.Namespace) -> int:
    path, _ = split_file(arguments.file)
    meter = Meter(time.perf_counter())
    with open_program(arguments) as loader:
        meter.batched = makes_batches(loader.plan)
        done = _fraction(loader, arguments, meter)
        status = _measure(_limited((loader for _ in range(arguments.epochs)), arguments.batches), meter, done, arguments, path)
        stats = loader.stats()
    count, bad = stats["bad_records"], stats["bad"]
    if count:
        print(f"{count:,} bad record{'s were' if count > 1 else ' was'} left out"
              + ("" if arguments.bad else "; --bad lists them") + (":" if arguments.bad else ""))
        if arguments.bad and count > len(bad):
            print(f"  the last {len(bad)} of them:")
        for name, reason in bad if arguments.bad else ():
            print(f"  {name}: {reason}")
    return status


def makes_batches(plan: Any) -> bool:
    """Does the plan deliver batches of records, or records?"""
    return any(s.start.kind == "batch" for s in (*plan.above, *plan.below))


def _interpret(arguments: argparse.Namespace) -> int:
    from ..compiler.evaluate import evaluate
    from ..compiler.graph import walk

    path, _ = split_file(arguments.file)
    meter = Meter(time.perf_counter())
    program = checked_program(arguments)
    meter.batched = any(n.op == "batch" for n in walk(program.emit))
    epochs = (evaluate(program, epoch=epoch) for epoch in range(arguments.epochs))
    return _measure(_limited(epochs, arguments.batches), meter, _part(meter, arguments.batches), arguments, path)


def _limited(epochs: Iterator[Any], batches: int | None) -> Iterator[Any]:
    return itertools.islice(itertools.chain.from_iterable(epochs), batches)


def _measure(batches: Iterator[Any], meter: Meter, done: Callable[[], float | None], arguments: argparse.Namespace,
             path: str) -> int:
    """Take all batches and print what was achieved; Ctrl-C ends it early."""
    status = 0
    try:
        for batch in _shown(batches, meter, done, arguments.plain):
            meter.add(batch)
    except KeyboardInterrupt:
        status = 130
    print(("stopped early: " if status else "") + meter.summary(path))
    return status


class Meter:
    """Counts records and bytes; rates are from the first batch on, so compiling and starting are not in them."""

    def __init__(self, started: float):
        self.started, self.first, self.last = started, 0.0, 0.0
        self.batched = True
        self.batches = self.records = self.bytes = self.bad = 0
        self.first_records = self.first_bytes = 0

    def add(self, batch: Any) -> None:
        self.last = time.perf_counter()
        count, size = _extent(batch, self.batched)
        if not self.batches:
            self.first, self.first_records, self.first_bytes = self.last, count, size
        self.batches += 1
        self.records += count
        self.bytes += size

    def rates(self) -> tuple[float, float] | None:
        """(records, MB) per second since the first batch came."""
        took = self.last - self.first
        if took <= 0:
            return None
        return (self.records - self.first_records) / took, (self.bytes - self.first_bytes) / took / 1e6

    def speed(self) -> str:
        rates = self.rates()
        return "" if rates is None else f"{shown(rates[0])} records/s, {shown(rates[1])} MB/s"

    def summary(self, path: str) -> str:
        if not self.batches:
            return f"{path}: no records"
        kept = f" in {self.batches:,} batch{'es' if self.batches > 1 else ''}" if self.batched else ""
        after = f", {self.speed()} after the first" if self.rates() else ""
        records = f"{self.records:,} record{'s' if self.records != 1 else ''}"
        what = "batch" if self.batched else "record"
        return f"{path}: {records}{kept}{after}\nfirst {what} after {self.first - self.started:.2f} s"


def shown(rate: float) -> str:
    """A rate with as many digits as tell something."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _extent(batch: Any, batched: bool) -> tuple[int, int]:
    """(records, bytes) of a batch, a named tuple or a dict of fields."""
    fields = list(batch.values() if isinstance(batch, dict) else batch)
    sizes = [len(v) for v in fields if isinstance(v, list) or np.ndim(v)]
    return sizes[0] if batched and sizes else 1, sum(_bytes(v) for v in fields)


def _bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(_bytes(v) for v in value)
    return value.nbytes if hasattr(value, "nbytes") else len(value) if isinstance(value, bytes | str) else 0


def _part(meter: Meter, batches: int | None) -> Callable[[], float | None]:
    return lambda: meter.batches / batches if batches else None


def _fraction(loader: Any, arguments: argparse.Namespace, meter: Meter) -> Callable[[], float | None]:
    """How much of the work is done, 0 to 1, None where that isn't known; also keeps the meter's count of bad records."""
    asked, positions = 0.0, 0

    def done() -> float | None:
        nonlocal asked, positions
        if time.perf_counter() - asked > ASK_SECONDS:
            stats = loader.stats()
            positions, meter.bad = stats["producer"].get("positions", 0), stats["bad_records"]
            asked = time.perf_counter()
        state = loader.state_dict()
        parts = [meter.batches / arguments.batches] if arguments.batches else []
        if 0 < positions < ENDLESS and (state["next"] or not state["skip"]):
            parts.append((state["epoch"] + state["next"] / positions) / arguments.epochs)
        return min(1.0, max(parts)) if parts else None

    return done


def _shown(batches: Iterator[Any], meter: Meter, done: Callable[[], float | None], plain: bool) -> Iterator[Any]:
    """Draw a progress bar on a terminal while the batches pass."""
    if plain or not sys.stderr.isatty():
        yield from batches
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(14), TextColumn("{task.fields[told]}"), TextColumn("ETA"), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, told="waiting for the first batch")
        last = 0.0
        for batch in batches:
            yield batch
            now = time.perf_counter()
            if now - last < 0.1:
                continue
            last = now
            part = done()
            told = [meter.speed() or f"{meter.batches:,} batches", f"first batch {meter.first - meter.started:.1f} s"]
            told += [f"{meter.bad:,} bad"] if meter.bad else []
            progress.update(task, completed=part or 0, total=None if part is None else 1, told=" · ".join(told))
