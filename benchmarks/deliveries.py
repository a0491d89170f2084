"""Which rows consumers get: TensorSocket's two wrong deliveries beside ours, the same rows read in the same batches.

`report(python)` runs both and says what came. TensorSocket 0.0.5 loses the last rows of an epoch, and repeats and leaves
out rows where a consumer's batches don't divide the producer's.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .share import ROOT

ROWS = 320
CASES = ((32, 32), (8, 10), (8, 12), (8, 20))   # batches of the loader, batches of the consumer
PROGRAM = """
param root: path
param size = 8

schema Row
  number: i64

pipeline rows
  from npz("{root}/rows.npz") as Row
  share()
  batch(size)
  emit number
"""


class Rows:
    """A loader of numbered rows."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return ROWS // self.size

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        import torch

        for first in range(0, ROWS, self.size):
            yield (torch.arange(first, first + self.size),)


def produce(port: int, size: int) -> None:
    """One epoch of TensorSocket's producer, as its documentation has it."""
    from tensorsocket import TensorProducer

    for _ in TensorProducer(Rows(size), port, port + 1, heart_ports=(port + 2, port + 3)):
        pass
    threading.Event().wait(20)         # what was sent is still read


def receive(port: int, size: int) -> None:
    """Print the rows of one epoch."""
    from tensorsocket import TensorConsumer

    found: list[int] = []
    late = threading.Timer(30, lambda: (print(json.dumps(found), flush=True), os._exit(0)))
    late.start()
    for (rows,) in TensorConsumer(port, port + 1, heart_ports=(port + 2, port + 3), batch_size=size):
        found += rows.tolist()
    print(json.dumps(found), flush=True)
    os._exit(0)


def theirs(python: str, made: int, read: int) -> list[int]:
    from .share_peers import free_port

    port, command = str(free_port()), [python, "-m", "benchmarks.deliveries"]
    producer = subprocess.Popen([*command, "produce", port, str(made)], cwd=ROOT, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run([*command, "receive", port, str(read)], cwd=ROOT, capture_output=True, text=True, timeout=120)
        return [int(n) for n in json.loads(done.stdout.strip().splitlines()[-1])]
    finally:
        producer.kill()
        producer.wait()


def ours(sizes: list[int]) -> list[list[int]]:
    """One epoch of one server, read by consumers with batches of these sizes at once."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "rows.npz", number=np.arange(ROWS))
        program = Path(folder) / "rows.pipe"
        program.write_text(PROGRAM)
        name = f"deliveries-{os.getpid()}"
        server = subprocess.Popen([sys.executable, "-m", "pipec", "serve", str(program), f"root={folder}", "--name", name,
                                   "--wait-for", str(len(sizes)), "--epochs", "1"], cwd=ROOT, stdout=subprocess.DEVNULL)
        script = ("import sys, json, pipec; print(json.dumps([int(n) for b in pipec.attach(sys.argv[1], size=int(sys.argv[2]), "
                  "as_='numpy', wait=60.0) for n in b.number]))")
        try:
            readers = [subprocess.Popen([sys.executable, "-c", script, name, str(size)], stdout=subprocess.PIPE, text=True)
                       for size in sizes]
            return [[int(n) for n in json.loads(r.communicate(timeout=120)[0].splitlines()[-1])] for r in readers]
        finally:
            server.terminate()
            server.wait(30)


def verdict(rows: list[int]) -> str:
    """What is wrong with rows that should be 0, 1, 2 …"""
    lost, twice = ROWS - len(set(rows)), len(rows) - len(set(rows))
    if rows == list(range(ROWS)):
        return f"all {ROWS}, in order"
    if rows == list(range(len(rows))):
        return f"{len(rows)} of {ROWS}, the last {lost} are lost"
    return f"wrong from row {next(n for n, row in enumerate(rows) if row != n)} on: {lost} lost, {twice} twice"


def report(python: str | None) -> str:
    """A line for each case; without an interpreter that has TensorSocket only ours."""
    lines = [f"which of {ROWS} rows of an epoch arrive"]
    for (made, read), rows in zip(CASES, ours([read for _, read in CASES]), strict=True):
        said = f"; TensorSocket: {verdict(theirs(python, made, read))}" if python else ""
        lines.append(f"  batches of {made} read in batches of {read}: pipec: {verdict(rows)}{said}")
    return "\n".join(lines)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["produce", port, size]:
            produce(int(port), int(size))
        case ["receive", port, size]:
            receive(int(port), int(size))
