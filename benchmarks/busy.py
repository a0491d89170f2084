"""`python -m benchmarks busy`: W1's loader beside a busy trainer, against what loader and trainer do alone.

Two trainers, both on one core: `launches` makes many small torch operations, as a loop that waits for a GPU's queue does;
`python` is half that and half pure Python, which holds the interpreter's lock. The loader has the other cores' threads.

What the machine itself takes from a trainer whose other cores are busy is measured in the same rounds: beside processes that
only count, and beside the plain C program that decodes the same JPEGs and has nothing to do with the trainer.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import data
from .limits import plain_c

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent
KINDS = ("launches", "python")
COUNTS = [sys.executable, "-c", "while True: pass"]


def step_of(kind: str) -> Callable[[], None]:
    """One training step of about 10 ms that doesn't look at the batch."""
    import torch

    torch.set_num_threads(1)
    weights, x = torch.randn(64, 64), torch.randn(16, 64)

    def launches(count: int) -> None:
        y = x
        for _ in range(count):
            y = torch.relu(y @ weights) * 0.1

    def python(count: int) -> None:
        total = 0
        for i in range(count):
            total += i * i % 7

    if kind == "launches":
        return lambda: launches(700)

    def both() -> None:
        launches(350)
        python(70_000)

    return both


def measured(kind: str, loads: bool, trains: bool, seconds: float, threads: int) -> dict[str, float]:
    """Batches and steps per second, after a warm-up. The loader is read in a thread when a trainer runs beside it."""
    step = step_of(kind)
    counts = {"batches": 0, "steps": 0}
    over = threading.Event()
    first = threading.Event()

    def read() -> None:
        import pipec

        with pipec.open(str(HERE / "W1.pipe"), threads=threads, root=str(data.FOLDER / "tar")) as loader:
            while not over.is_set():
                for _ in loader:
                    counts["batches"] += 1
                    first.set()
                    if over.is_set():
                        break

    reader = threading.Thread(target=read)
    if loads:
        reader.start()
        first.wait()
    begin = time.perf_counter() + 1.0
    while time.perf_counter() < begin:
        step() if trains else time.sleep(0.05)
    counts.update(batches=0, steps=0)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if trains:
            step()
            counts["steps"] += 1
        else:
            time.sleep(0.05)
    took = time.perf_counter() - begin
    result = {name: count / took for name, count in counts.items()}
    over.set()
    return result


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks busy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--one", nargs=3, metavar=("KIND", "LOADS", "TRAINS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        kind, loads, trains = options.one
        print(json.dumps(measured(kind, loads == "1", trains == "1", options.seconds, options.threads)), flush=True)
        os._exit(0)
    data.images()
    beside: dict[str, list[list[str]]] = {"processes that only count": [COUNTS] * options.threads}
    beside |= {name: [command] for name, command in plain_c("W1", options.threads, 3600.0).items() if "region" in name}
    for kind in KINDS:
        print(report(kind, options, beside), flush=True)


def report(kind: str, options: argparse.Namespace, beside: dict[str, list[list[str]]]) -> str:
    runs: dict[str, tuple[str, list[list[str]]]] = {"10": ("10", []), "01": ("01", []), "11": ("11", [])}
    runs |= {name: ("01", commands) for name, commands in beside.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, (which, commands) in runs.items():
            command = [sys.executable, "-m", "benchmarks", "busy", "--one", kind, *which, "--seconds", str(options.seconds),
                       "--threads", str(options.threads)]
            with running(commands):
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
            found[name].append(json.loads(done.stdout.strip().splitlines()[-1]))
    loader, trainer = _median(found["10"], "batches"), _median(found["01"], "steps")
    loads, trains = _median(found["11"], "batches"), _median(found["11"], "steps")
    lines = [f"{kind}: the loader keeps {loads / loader:.0%} of its {128 * loader:,.0f} images/s, the trainer "
             f"{trains / trainer:.0%} of its {trainer:,.1f} steps/s "
             f"(loader threads: {options.threads}, medians of {options.rounds})"]
    lines += [f"  the trainer beside {name}: {_median(found[name], 'steps') / trainer:.0%}" for name in beside]
    return "\n".join(lines)


@contextlib.contextmanager
def running(commands: list[list[str]]) -> Iterator[None]:
    others = [subprocess.Popen(c, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for c in commands]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def _median(results: list[dict[str, float]], what: str) -> float:
    return statistics.median(r[what] for r in results)
