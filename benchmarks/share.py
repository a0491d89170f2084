"""`python -m benchmarks share`: what it costs to hand one stream to k consumers, against tf.data service, TensorSocket,
loaders of their own and a plain ring.

Consumers are processes that touch one byte of every page of every batch. The plain ring is forty lines of shared memory
and semaphores, as one would write it by hand: batches of one size, all consumers in lockstep within its four slots.
"""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SHAPE = 128, (224, 224, 3)
ROWS = 1 << 20                         # of an epoch of ready-made rows
ROOT = Path(__file__).parent.parent
PAGE = 4096
PAUSE = 0.005                          # seconds, in which a batch is surely made
MOST = {"TensorSocket": 2}             # consumers: a batch is pickled for each, which takes gigabytes


# --- what is measured ---------------------------------------------------------------------------


def touch(batch: np.ndarray) -> int:
    return int(batch.reshape(-1).view(np.uint8)[::PAGE].sum())


class Ready:
    """An engine whose rows are ready: it copies them into the ring as fast as there is room, or (option) not even that."""

    def __init__(self, plan: Any, threads: int, kernels: Any, allow_extern: bool = False):
        from types import SimpleNamespace

        options = plan.above[0].start.options
        self.copy = options["copy"]
        self.source = [np.random.default_rng(k).integers(0, 256, (BATCH, *SHAPE), np.uint8) for k in range(4)]
        self.stats = SimpleNamespace(records=0)

    def length(self, epoch: int) -> int:
        return ROWS

    def run(self, epoch: int, start: int, skip: int, sink: Any) -> None:
        from pipec.runtime.blocks import address_of, view

        numbers, ones = np.arange(ROWS + 1), np.ones(BATCH, np.int64)   # made for thousands of rows at once by a real engine, too
        at_numbers, at_ones = address_of(numbers), address_of(ones)
        for at in range(start, ROWS, BATCH):
            room = sink.reserve(BATCH)
            if room is None:
                return
            place = room.address
            if self.copy:
                np.copyto(view(place["image"], (BATCH, *SHAPE), np.dtype(np.uint8)), self.source[at // BATCH % 4])
            ctypes.memmove(place["_id"], at_numbers + 8 * at, 8 * BATCH)
            ctypes.memmove(place["_next"], at_numbers + 8 * at + 8, 8 * BATCH)
            ctypes.memset(place["_skip"], 0, 8 * BATCH)
            ctypes.memmove(place["_count"], at_ones, 8 * BATCH)
            self.stats.records += BATCH
            sink.commit(room, BATCH, {})
        sink.end_epoch(epoch)


def ready_plan(copy: bool) -> Any:
    from pipec.runtime.plan import Column, Plan, Program, Segment, Slot, Start

    start = Start("source", {"copy": copy})
    slot = Slot("field.image", "u8", SHAPE)
    record = Program((slot,), (("image", "field.image"),), (), (("image", "field.image"),))
    whole = Slot("field.image", "u8", (None, *SHAPE))
    after = Program((whole,), (("image", "field.image"),), (), (("image", "field.image"),))
    n = Slot("n", "i64", (), value=(BATCH,))
    batch = Start("batch", {"has": ("n",), "whole": False, "edges": None}, Program((n,), (), (), (("n", "n"),)))
    column = Column("image", "u8", SHAPE)
    return Plan("ready", "ready.pipe", 1, (), (Segment(start, Program((), (), (), ())),),
                (Segment(Start("ring"), record), Segment(batch, after)), (column,), (Column("image", "u8", (None, *SHAPE)),),
                (), {}, "ready")


def serve_ready(name: str, copy: bool, k: int) -> None:
    from pipec.runtime.layout import plan_layout
    from pipec.runtime.server import Server, Settings, run_server

    plan = ready_plan(copy)
    run_server(Server(plan, plan_layout(plan.rows, BATCH), Settings(name, engine="benchmarks.share:Ready", wait_for=k)))


class Batch:
    """What `measured` reads of a peer: an image field."""

    def __init__(self, image: Any):
        self.image = image


def consume(name: str, seconds: float, pause: float, field: str, out: str) -> None:
    """Attach, read for some time, write what was measured."""
    import pipec

    batches: Iterator[Any] = iter(forever(pipec.attach(name, as_="numpy", wait=30.0)))
    touch(getattr(next(batches), field))
    write(out, measured(batches, field, seconds, pause))


def attach_times(name: str, out: str) -> None:
    """Seconds from `attach` to the first batch of a stream that others read, the first (with its imports) left out."""
    import pipec

    took = []
    for _ in range(8):
        begun = time.perf_counter()
        loader = pipec.attach(name, as_="numpy", join="now", wait=30.0)
        touch(next(iter(loader)).image)
        took.append(time.perf_counter() - begun)
        loader.close()
    write(out, {"attach": statistics.median(took[1:])})


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def measured(batches: Iterator[Any], field: str, seconds: float, pause: float = 0.0) -> dict[str, Any]:
    """Records, CPU seconds and times of `next` of a loop of so many seconds; with a pause the producer gets ahead."""
    records, took = 0, []
    cpu, started = time.process_time(), time.perf_counter()
    while (now := time.perf_counter()) < started + seconds:
        batch = next(batches)
        took.append(time.perf_counter() - now)
        image = getattr(batch, field)
        touch(np.asarray(image))
        records += len(image)
        del batch, image
        if pause:
            time.sleep(pause)
    spent = time.perf_counter() - started
    return {"records": records, "seconds": spent, "cpu": time.process_time() - cpu, "batches": len(took),
            "p50": float(np.percentile(took, 50)), "p99": float(np.percentile(took, 99))}


def write(out: str, result: dict[str, Any]) -> None:
    Path(out).write_text(json.dumps(result))


# --- runs ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([sys.executable, "-m", "benchmarks.share", *arguments], cwd=ROOT)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(30)


def gathered(commands: list[list[str]], folder: str, seconds: float) -> list[dict[str, Any]]:
    """Results of our processes that run at once."""
    return collected([[sys.executable, "-m", "benchmarks.share", *c] for c in commands], folder, seconds)


def collected(commands: list[list[str]], folder: str, seconds: float) -> list[dict[str, Any]]:
    """What commands that run at once write to the files that they are given last; none where one fails or hangs."""
    outs = [Path(folder) / f"out-{j}" for j in range(len(commands))]
    running = [subprocess.Popen([*c, str(out)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for c, out in zip(commands, outs, strict=True)]
    until = time.monotonic() + 120 + 4 * seconds
    for each in running:
        try:
            each.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
    return [json.loads(out.read_text()) for out in outs] if all(out.exists() for out in outs) else []


def tree_cpu(pid: int) -> float:
    """CPU seconds of a process and its children."""
    import psutil

    root = psutil.Process(pid)
    total = 0.0
    for each in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def ours_ready(k: int, seconds: float, copy: bool = True, pause: float = 0.0) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, process("serve-ready", "bench", str(int(copy)), str(k)):
        return gathered([["consume", "bench", str(seconds), str(pause), "image"]] * k, folder, seconds)


def attaching() -> float:
    """Median seconds from `attach` to the first batch."""
    with tempfile.TemporaryDirectory() as folder, process("serve-ready", "bench", "1", "1"):
        gone = str(Path(folder) / "steady")
        steady = subprocess.Popen([sys.executable, "-m", "benchmarks.share", "consume", "bench", "60", "0", "image", gone],
                                  cwd=ROOT)
        try:
            time.sleep(3)
            return float(gathered([["attach", "bench"]], folder, 30)[0]["attach"])
        finally:
            steady.kill()
            steady.wait()


def ours_served(program: str, k: int, seconds: float, threads: int) -> list[dict[str, Any]]:
    """k consumers of `pipec serve`."""
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, "-m", "pipec", "serve", program, f"root={root()}", "--name", "bench",
                                   "--threads", str(threads), "--wait-for", str(k)], cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            return gathered([["consume", "bench", str(seconds), "0", "image"]] * k, folder, seconds)
        finally:
            server.terminate()
            server.wait(30)


def independent(program: str, kind: str, k: int, seconds: float, threads: int) -> list[dict[str, Any]]:
    """k loaders of their own: "ours", "shared" (`share=True`) or "torch"."""
    with tempfile.TemporaryDirectory() as folder:
        each = max(1, threads // k) if kind != "shared" else threads
        return gathered([["alone", kind, program, str(each), str(seconds)]] * k, folder, seconds)


def alone(kind: str, program: str, threads: int, seconds: float, out: str) -> None:
    """One loader of its own, in a process that also trains."""
    if kind == "torch":
        from .peers import PEERS

        epoch = PEERS["W1"]["opencv"]("W1", threads)
        batches = (Batch(np.asarray(batch[0])) for k in itertools.count() for batch in epoch(k))
    else:
        import pipec

        batches = forever(pipec.open(program, threads=threads, as_="numpy", share=kind == "shared", root=root()))
    touch(np.asarray(next(batches).image))
    write(out, measured(batches, "image", seconds))


def root() -> str:
    """Where W1's shards are."""
    from . import data

    return str(data.FOLDER / "tar")


def rate(results: list[dict[str, Any]]) -> float:
    """Records delivered per second, by all."""
    return sum(r["records"] / r["seconds"] for r in results)


def compare(rounds: int, seconds: float, runs: dict[str, Any]) -> dict[str, list[list[dict[str, Any]]]]:
    """Every run once per round, in turn."""
    results: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            if (found := run()):
                results[name].append(found)
                print(f"  round {number + 1}, {name}: {rate(found):,.0f} records/s", file=sys.stderr)
            else:
                print(f"  {name}: a run failed", flush=True)
    return {name: found for name, found in results.items() if found}


def middle(results: list[list[dict[str, Any]]], of: Any) -> float:
    return statistics.median(of(r) for r in results)


@dataclass(frozen=True)
class Asked:
    """What the command line asks for; `peers` are interpreters by the peer that runs in them."""

    rounds: int
    seconds: float
    threads: int
    ks: list[int]
    peers: dict[str, str]

    def peer_runs(self, kind: str, pause: float = 0.0, ks: list[int] | None = None) -> dict[str, Any]:
        from . import share_peers

        return {f"{peer}, {k}": lambda k=k, peer=peer: share_peers.run(self.peers[peer], peer, kind, k, self.seconds,
                                                                       self.threads, pause)
                for k in ks or self.ks for peer in self.peers if k <= MOST.get(peer, k)}


def ready_table(asked: Asked) -> str:
    from .share_ring import plain_ring

    runs: dict[str, Any] = {}
    for k in asked.ks:
        runs[f"pipec, {k}"] = lambda k=k: ours_ready(k, asked.seconds)
        runs[f"pipec, no copy, {k}"] = lambda k=k: ours_ready(k, asked.seconds, copy=False)
        runs[f"plain ring, {k}"] = lambda k=k: plain_ring(k, asked.seconds, True)
        runs[f"plain ring, no copy, {k}"] = lambda k=k: plain_ring(k, asked.seconds, False)
    results = compare(asked.rounds, asked.seconds, runs | asked.peer_runs("ready"))
    lines = [f"ready-made batches of {BATCH} × {' × '.join(map(str, SHAPE))} u8, written once; medians of {asked.rounds}",
             f"{'':24}{'records/s':>12}{'ours/it':>9}{'per batch and consumer: CPU µs':>32}{'next p50 µs':>13}{'p99 µs':>9}"]
    for name, found in results.items():
        mine = results.get(f"pipec, {'no copy, ' * ('no copy' in name)}{name.rpartition(' ')[2]}")
        cpu = middle(found, lambda r: sum(x["cpu"] for x in r) / sum(x["batches"] for x in r))
        ratio = f"{middle(mine, rate) / middle(found, rate):.2f}" if mine else ""
        lines.append(f"{name:24}{middle(found, rate):>12,.0f}{ratio:>9}{1e6 * cpu:>32.0f}{times(found)}")
    return "\n".join(lines)


def times(found: list[list[dict[str, Any]]]) -> str:
    """Columns: how long `next` takes the first consumer, µs."""
    return f"{1e6 * middle(found, lambda r: r[0]['p50']):>13.0f}{1e6 * middle(found, lambda r: r[0]['p99']):>9.0f}"


def ahead_table(asked: Asked) -> str:
    """Hand-over where the producer is ahead: what `next` takes a consumer that pauses after each batch."""
    from .share_ring import plain_ring

    runs: dict[str, Any] = {"pipec, 1": lambda: ours_ready(1, asked.seconds, pause=PAUSE),
                            "plain ring, 1": lambda: plain_ring(1, asked.seconds, True, PAUSE)}
    results = compare(asked.rounds, asked.seconds, runs | asked.peer_runs("ready", PAUSE, [1]))
    lines = [f"the same while the producer is ahead: a consumer that pauses {1000 * PAUSE:.0f} ms after each batch",
             f"{'':24}{'next p50 µs':>13}{'p99 µs':>9}"]
    lines += [f"{name:24}{times(found)}" for name, found in results.items()]
    lines.append(f"attach to a running server, to the first batch: {1000 * attaching():.0f} ms")
    return "\n".join(lines)


def images_table(asked: Asked) -> str:
    from . import data

    data.images()
    program, seconds, threads = "benchmarks/W1.pipe", asked.seconds, asked.threads
    runs: dict[str, Any] = {}
    for k in asked.ks:
        runs[f"pipec serve, {k}"] = lambda k=k: ours_served(program, k, seconds, threads)
    for k in sorted({1, max(asked.ks)}):
        runs[f"own pipec loaders, {k}"] = lambda k=k: independent(program, "ours", k, seconds, threads)
        runs[f"own torch loaders, {k}"] = lambda k=k: independent(program, "torch", k, seconds, threads)
    runs["share=True, 1"] = lambda: independent(program, "shared", 1, seconds, threads)
    results = compare(asked.rounds, seconds, runs | asked.peer_runs("W1"))
    one = middle(results[f"pipec serve, {asked.ks[0]}"], rate)
    lines = [f"W1 (JPEG → 224 f32), batches of {BATCH}, {threads} threads; medians of {asked.rounds}",
             f"{'':24}{'records/s, all together':>24}{'× one of ours':>16}"]
    for name, found in results.items():
        lines.append(f"{name:24}{middle(found, rate):>24,.0f}{middle(found, rate) / one:>16.2f}")
    own, shared = results.get("own pipec loaders, 1"), results.get("share=True, 1")
    if own and shared:
        lines.append(f"one script, share=True against a producer of its own: {middle(shared, rate) / middle(own, rate):.3f} ×")
    return "\n".join(lines)


def found_peers(wanted: list[str], pythons: list[str]) -> dict[str, str]:
    """The first interpreter that has each peer; says which aren't there."""
    from . import share_peers

    has = {python: share_peers.there(python) for python in pythons}
    found = {}
    for peer in wanted:
        where = next((python for python in pythons if peer in has[python]), None)
        if where is None:
            print(f"  {peer}: left out, it isn't installed")
        else:
            found[peer] = where
            print(f"  {peer}: {share_peers.DIFFERS[peer]}")
    return found


def main(arguments: list[str]) -> None:
    from . import share_peers
    from .deliveries import report
    from .report import machine

    parser = argparse.ArgumentParser(prog="python -m benchmarks share", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="an interpreter that has peers")
    parser.add_argument("--against", metavar="NAME,…", default=",".join(share_peers.MODULE),
                        help=f"peers beside the plain ring and loaders of their own; default: {', '.join(share_peers.MODULE)}")
    parser.add_argument("--only", choices=("ready", "ahead", "images", "deliveries"))
    options = parser.parse_args(arguments)
    pythons = [*dict.fromkeys([*options.python, sys.executable])]
    print(machine(pythons))
    peers = found_peers([p for p in options.against.split(",") if p], pythons)
    asked = Asked(options.rounds, options.seconds, options.threads, options.consumers, peers)
    parts = {"deliveries": lambda: report(peers.get("TensorSocket")), "ready": lambda: ready_table(asked),
             "ahead": lambda: ahead_table(asked), "images": lambda: images_table(asked)}
    for name, part in parts.items():
        if options.only in (None, name):
            print(part(), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve-ready", name, copy, k]:
            serve_ready(name, copy == "1", int(k))
        case ["attach", name, out]:
            attach_times(name, out)
        case ["consume", name, seconds, pause, field, out]:
            consume(name, float(seconds), float(pause), field, out)
        case ["alone", kind, program, threads, seconds, out]:
            alone(kind, program, int(threads), float(seconds), out)
        case rest:
            main(rest)
