"""`python -m benchmarks kernel`: crop, antialiased resize, mirror and normalise alone, against Pillow's crop and resize alone.

Both work on the same decoded pixels, one thread; ours also mirrors, normalises and writes f32 planes.
"""
from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HEIGHT, WIDTH, COUNT, OUT = 375, 500, 32, 224
TOP, LEFT, TALL, WIDE = 50, 30, 262, 440     # the mean box of W1
PROGRAM = f"""
schema Photo
  photo: u8[{HEIGHT}, {WIDTH}, 3]
  flip: bool

pipeline p
  from npz("{{data}}") as Photo
  crop = resize(photo, [{TOP}, {LEFT}, {TALL}, {WIDE}], {OUT}, {OUT})
  image = normalize(mirror(crop, flip), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
  emit image
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks kernel", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(arguments).rounds
    rng = np.random.default_rng(0)
    photos = rng.integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)
    ours, theirs = _ours(photos, rng.random(COUNT) < 0.5), _pillow(photos)
    times: dict[str, list[float]] = {"pipec": [], "Pillow": []}
    for _ in range(rounds):
        for name, work in (("pipec", ours), ("Pillow", theirs)):
            start = time.thread_time_ns()
            work()
            times[name].append((time.thread_time_ns() - start) / COUNT / 1e6)
    median = {name: statistics.median(t) for name, t in times.items()}
    print(f"{TALL} × {WIDE} to {OUT} × {OUT}, CPU ms for each image, medians of {rounds}")
    print(f"pipec: resize, mirror, normalise, f32 planes   {median['pipec']:.3f}")
    print(f"Pillow: crop and resize                        {median['Pillow']:.3f}")
    print(f"ours takes {median['pipec'] / median['Pillow']:.2f} of Pillow's time")


def _ours(photos: np.ndarray, flips: np.ndarray) -> Callable[[], None]:
    from pipec.compiler.compile import plan_for
    from pipec.runtime.execute import Runner
    from pipec.runtime.objects import load

    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "d.npz", photo=photos, flip=flips)
        program = Path(folder) / "p.pipe"
        program.write_text(PROGRAM.replace("{data}", f"{folder}/d.npz"))
        plan = plan_for(str(program))
        runner = Runner(plan.above[0].program, load(plan.kernels))
    runner.start_epoch(0, [])
    ids = np.arange(COUNT, dtype=np.uint64)

    def work() -> None:
        frames = runner.frames(COUNT, ids)
        for field, slot in runner.program.inputs:
            runner.give_array(frames, slot, photos if field == "photo" else flips)
        runner.run(frames)

    work()
    return work


def _pillow(photos: np.ndarray) -> Callable[[], None]:
    from PIL import Image

    images = [Image.fromarray(p) for p in photos]

    def work() -> None:
        for image in images:
            image.crop((LEFT, TOP, LEFT + WIDE, TOP + TALL)).resize((OUT, OUT), Image.Resampling.BILINEAR)

    return work
