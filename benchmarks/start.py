"""`python -m benchmarks start [FILE name=value …]`: how long a program takes to its first batch, cold and warm.

Cold: nothing compiled, an empty cache. Warm: the program unchanged. Each start is a process of its own, with the bytecode
of Python's modules there. One batch of work is what the first batch of another epoch takes in the same process, whose producer
has nothing ready. Without FILE it is `examples/imagenet.pipe` over photos made here.
"""
from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
STAGES = ("python", "imports", "plan", "producer", "first batch")
# Prints seconds since the start of the process: imports, plan, loader with its producer, first batch; what one batch takes then.
ONE = """
import gc, json, sys, time
started = float(sys.argv[1])
said = {}
gc.disable()           # as `pipec.open` does it
def lap(name): said[name] = time.time() - started
lap("python")
from pipec.runtime.opening import plan_of
from pipec.runtime.spawned import producer
process = producer()   # from here on as `pipec.open` does it
from pipec.runtime import loader, below
lap("imports")
plan = plan_of(sys.argv[2], dict(s.split("=", 1) for s in sys.argv[3:]), None, False)
lap("plan")
opened = loader.Loader(plan, as_="numpy", threads=2, spawned=process)
gc.enable()
lap("producer")
batch = next(iter(opened))
lap("first batch")
with open(f"/proc/{process.process.pid}/stat") as stat:
    times = stat.read().rpartition(")")[2].split()[11:13]
said["cpu of the producer"] = sum(map(int, times)) / 100
said["cpu of the trainer"] = time.process_time()


def idle():            # the ring is full: the producer waits
    written = -1
    while written != (written := opened.stats()["producer"]["written_bytes"]):
        time.sleep(0.5)


works = []
for epoch in (1, 2, 3):
    batch = None
    idle()
    opened.set_epoch(epoch)
    begun = time.time()
    batch = next(iter(opened))
    works.append(time.time() - begun)
said["one batch"] = sorted(works)[1]
opened.close()
said["compiled"], said["llvm"] = "numba" in sys.modules, "llvmlite" in sys.modules
print(json.dumps(said))
"""


def main(listed: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks start", description=__doc__)
    parser.add_argument("file", nargs="?", metavar="FILE")
    parser.add_argument("settings", nargs="*", metavar="name=value")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(listed)
    with tempfile.TemporaryDirectory(prefix="pipec-start-") as folder:
        environment = dict(os.environ, PYTHONPYCACHEPREFIX=f"{folder}/bytecode")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        file, settings = options.file, options.settings
        if file is None:
            file, settings = str(ROOT / "examples" / "imagenet.pipe"), [f"root={photos(Path(folder))}"]
        run(file, settings, environment | {"PIPEC_CACHE": f"{folder}/first"})    # writes the bytecode
        cold = [run(file, settings, environment | {"PIPEC_CACHE": f"{folder}/cold{n}"}) for n in range(options.rounds)]
        warm = [run(file, settings, environment | {"PIPEC_CACHE": f"{folder}/cold0"}) for _ in range(options.rounds)]
    assert all(r["compiled"] for r in cold) and not any(r["compiled"] or r["llvm"] for r in warm)
    print(f"{os.path.basename(file)}, {len(os.sched_getaffinity(0))} cores, medians of {options.rounds}, seconds")
    for name, rounds in (("cold", cold), ("warm", warm)):
        first, cpu = middle(rounds, "first batch"), [middle(rounds, f"cpu of the {who}") for who in ("trainer", "producer")]
        print(f"  {name}: first batch after {first:.2f}; CPU until then: trainer {cpu[0]:.2f}, producer {cpu[1]:.2f}")
        steps = [f"{b} {middle(rounds, b) - (middle(rounds, a) if a else 0):.2f}" for a, b in pairwise(["", *STAGES])]
        print("        " + ", ".join(steps))
    work = middle(warm, "one batch")
    print(f"  warm, less one batch of work ({work:.2f}): {middle(warm, 'first batch') - work:.2f}")


def run(file: str, settings: list[str], environment: dict[str, str]) -> dict[str, float]:
    """One start."""
    done = subprocess.run([sys.executable, "-c", ONE, str(time.time()), file, *settings], env=environment, cwd=ROOT,
                          check=True, capture_output=True)
    said: dict[str, float] = json.loads(done.stdout)
    return said


def middle(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(r[name] for r in rounds)


def photos(folder: Path, count: int = 1280) -> Path:
    """A shard of JPEGs of 500 × 375 that look a little like photos."""
    from PIL import Image

    random = np.random.default_rng(0)
    where = folder / "photos"
    where.mkdir()
    with tarfile.open(where / "train-0.tar", "w") as shard:
        for n in range(count):
            coarse = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            picture = io.BytesIO()
            Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(picture, "JPEG", quality=90)
            for name, content in ((f"{n:05}.jpg", picture.getvalue()), (f"{n:05}.cls", str(n % 1000).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                shard.addfile(info, io.BytesIO(content))
    return where
