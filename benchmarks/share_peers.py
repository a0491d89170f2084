"""tf.data service and TensorSocket (CPU tensors) as peers of sharing: their servers and consumers, each a process of its own.

`python -m benchmarks.share_peers serve NAME KIND PORT THREADS` and `… consume NAME KIND PORT THREADS SECONDS PAUSE NUMBER
OUT`, where KIND is "ready" (batches made before) or "W1". `there(python)` lists those that an interpreter has.
"""
from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .share import BATCH, ROOT, SHAPE, Batch, collected, measured, touch, write

MODULE = {"tf.data service": "tensorflow", "TensorSocket": "tensorsocket"}
DIFFERS = {"tf.data service": "batches go over a socket, uncompressed; who is slow misses some; photos decoded as tf.data's",
           "TensorSocket": "tensors of the CPU are pickled for every consumer; photos through a torch DataLoader and OpenCV"}
EPOCHS = 1000                          # of photos, in one epoch of a server: what peers do between epochs isn't measured


# --- tf.data service ------------------------------------------------------------------------------------------------------


def serve_tf(kind: str, port: int, threads: int) -> None:
    from .tf_peers import tensorflow

    service = tensorflow(threads).data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=port))
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=f"localhost:{port}", heartbeat_interval_ms=100))
    worker.join()
    dispatcher.join()


def read_tf(kind: str, port: int, threads: int, number: int) -> Iterator[Batch]:
    from . import image_peers
    from .tf_peers import tensorflow

    tf = tensorflow(threads)
    service = tf.data.experimental.service
    if kind == "ready":
        made = tf.data.Dataset.from_tensors(np.random.default_rng(0).integers(0, 256, (BATCH, *SHAPE), np.uint8)).repeat()
    else:
        made = image_peers.tf_photos("W1", threads).repeat()
    shared = made.apply(service.distribute(
        processing_mode=service.ShardingPolicy.OFF, service=f"grpc://localhost:{port}", job_name="shared", compression=None,
        cross_trainer_cache=service.CrossTrainerCache(trainer_id=str(number)), max_outstanding_requests=2))
    for batch in shared.as_numpy_iterator():
        yield Batch(batch[0] if isinstance(batch, tuple) else batch)


# --- TensorSocket ---------------------------------------------------------------------------------------------------------


class Batches:
    """A loader as TensorSocket wants it: tuples of tensors, of a known number."""

    def __init__(self, kind: str, threads: int):
        import torch

        torch.set_num_threads(1)
        if kind == "ready":
            self.count = 4000
            self.made = [torch.randint(0, 256, (BATCH, *SHAPE), dtype=torch.uint8) for _ in range(4)]
            return
        from . import image_peers

        self.loader: Any = image_peers.PEERS["opencv"]("W1", threads)(0)
        self.made, self.count = [], EPOCHS * (len(image_peers.files("W1")) // BATCH)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self.made:
            for k in range(self.count):
                yield (self.made[k % len(self.made)],)
        for _ in range(0 if self.made else EPOCHS):
            for images, labels in self.loader:
                if len(images) == BATCH:
                    yield images, labels


def serve_socket(kind: str, port: int, threads: int) -> None:
    from tensorsocket import TensorProducer

    loader = Batches(kind, threads)
    producer = TensorProducer(loader, port, port + 1, heart_ports=(port + 2, port + 3), producer_batch_size=2,
                              rubber_band_pct=8 / len(loader))
    while True:
        with contextlib.suppress(StopIteration):
            for _ in producer:
                pass


def read_socket(kind: str, port: int, threads: int, number: int) -> Iterator[Batch]:
    import torch
    from tensorsocket import TensorConsumer

    torch.set_num_threads(1)
    consumer = TensorConsumer(port, port + 1, heart_ports=(port + 2, port + 3), batch_size=BATCH)
    for _ in itertools.count():
        for batch in consumer:
            yield Batch(batch[0].numpy())


# --- runs -----------------------------------------------------------------------------------------------------------------


SERVE: dict[str, Callable[[str, int, int], None]] = {"tf.data service": serve_tf, "TensorSocket": serve_socket}
READ: dict[str, Callable[[str, int, int, int], Iterator[Batch]]] = {"tf.data service": read_tf, "TensorSocket": read_socket}


def there(python: str) -> list[str]:
    """Which of the peers that interpreter has."""
    done = subprocess.run([python, "-m", "benchmarks.share_peers", "there"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split("\n") if done.returncode == 0 else []


def free_port() -> int:
    """The first of four free ports."""
    for first in range(23_000 + os.getpid() % 500 * 20, 60_000, 4):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + 4):
                held.enter_context(socket.socket()).bind(("localhost", port))
            return first
    raise RuntimeError("there are no four free ports")


def run(python: str, peer: str, kind: str, k: int, seconds: float, threads: int, pause: float = 0.0) -> list[dict[str, Any]]:
    """Results of k consumers of a peer's server."""
    port, command = str(free_port()), [python, "-m", "benchmarks.share_peers"]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([*command, "serve", peer, kind, port, str(threads)], cwd=ROOT, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return collected([[*command, "consume", peer, kind, port, str(threads), str(seconds), str(pause), str(j)]
                              for j in range(k)], folder, seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, 9)   # with a loader's workers
            server.wait()


def consume(peer: str, kind: str, port: int, threads: int, seconds: float, pause: float, number: int, out: str) -> None:
    batches = READ[peer](kind, port, threads, number)
    touch(np.asarray(next(batches).image))
    time.sleep(1.0)                    # others join
    for _ in range(4):
        next(batches)
    write(out, measured(batches, "image", seconds, pause))
    os._exit(0)                        # threads of the library aren't waited for


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["there"]:
            print("\n".join(name for name, module in MODULE.items() if importlib.util.find_spec(module)))
        case ["serve", peer, kind, port, threads]:
            SERVE[peer](kind, int(port), int(threads))
        case ["consume", peer, kind, port, threads, seconds, pause, number, out]:
            consume(peer, kind, int(port), int(threads), float(seconds), float(pause), int(number), out)
