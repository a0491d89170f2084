"""The main job on real photos: shards, a compiled program, a small network that learns from it.

Takes the freely licensed photos that scikit-image ships, cuts crops of many sizes into JPEG tar shards (one
class per photo), trains on the crops from some regions of each photo and measures on regions that training never saw.
"""
from __future__ import annotations

import argparse
import io
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "photos.pipe")
BATCH = 64  # as in the program
PHOTOS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "grass.png", "gravel.png",
          "hubble_deep_field.jpg", "ihc.png", "retina.jpg", "rocket.jpg")
GRID = 4  # each photo is GRID × GRID regions; those on a diagonal are held out


def held_out(row: int, column: int) -> bool:
    return (row + column) % GRID == 0


def make_shards(folder: Path, train: int, val: int, seed: int = 5) -> None:
    """Write train-*.tar and val-*.tar of JPEG crops (72 to 128 px) into `folder`, unless just these are there."""
    done, made = folder / "done", f"{train} {val} {seed}"
    if done.exists() and done.read_text() == made:
        return
    import skimage
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for old in (done, *folder.glob("train-*.tar"), *folder.glob("val-*.tar")):
        old.unlink(missing_ok=True)
    rng = np.random.default_rng(seed)
    photos = [Image.open(Path(skimage.__file__).parent / "data" / name).convert("RGB") for name in PHOTOS]
    photos = [p.resize((max(600, p.width), round(p.height * max(600, p.width) / p.width))) for p in photos]
    for split, count in (("train", train), ("val", val)):
        samples = [_crop(photos, k % len(photos), split == "val", rng) for k in range(count)]
        order = rng.permutation(count)
        for shard, start in enumerate(range(0, count, 500)):
            with tarfile.open(folder / f"{split}-{shard:03d}.tar", "w") as tar:
                for k in order[start : start + 500]:
                    jpeg, label = samples[k]
                    for name, data in ((f"{k:06d}.jpg", jpeg), (f"{k:06d}.cls", str(label).encode())):
                        member = tarfile.TarInfo(name)
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
    done.write_text(made)


def _crop(photos: list[Any], label: int, val: bool, rng: np.random.Generator) -> tuple[bytes, int]:
    """A random crop inside one region of the photo, as JPEG of random quality."""
    photo = photos[label]
    regions = [(r, c) for r in range(GRID) for c in range(GRID) if held_out(r, c) == val]
    row, column = regions[rng.integers(len(regions))]
    high, wide = photo.height // GRID, photo.width // GRID
    tall, broad = int(rng.integers(min(72, high), min(128, high) + 1)), int(rng.integers(min(72, wide), min(128, wide) + 1))
    top = row * high + int(rng.integers(0, high - tall + 1))
    left = column * wide + int(rng.integers(0, wide - broad + 1))
    out = io.BytesIO()
    photo.crop((left, top, left + broad, top + tall)).save(out, "JPEG", quality=int(rng.integers(75, 96)))
    return out.getvalue(), label


def network(classes: int) -> Any:
    """A small convolutional network on 64 × 64 pixels."""
    from torch import nn

    def block(inside: int, out: int) -> list[Any]:
        return [nn.Conv2d(inside, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(*block(3, 24), *block(24, 48), *block(48, 96), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                         nn.Linear(4 * 96, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE.parent / "demo-data", help="where the shards and the sheet go")
    parser.add_argument("--train", type=int, default=4000, help="training crops")
    parser.add_argument("--val", type=int, default=800, help="held-out crops")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    started = time.perf_counter()
    make_shards(options.data, options.train, options.val)
    print(f"{options.train:,} training and {options.val:,} held-out crops of {len(PHOTOS)} photos in {options.data}: "
          f"{time.perf_counter() - started:.1f} s")
    model = train(options.data, options.epochs, options.train // BATCH)
    right, total = measure(model, options.data)
    write_sheet(options.data)
    print(f"held-out accuracy: {100 * right / total:.1f} %")


def train(data: Path, epochs: int, steps: int) -> Any:
    """Train a network on the pipeline `train`, `steps` batches an epoch; says where the time went."""
    import pipec
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    torch.manual_seed(0)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))  # so small a network is faster so, and data needs cores too
    model = network(len(PHOTOS))
    opened = time.perf_counter()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * steps)
    columns = (TextColumn("epoch {task.fields[epoch]} of " + str(epochs)), BarColumn(), MofNCompleteColumn(),
               TextColumn("loss {task.fields[loss]:.3f}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with pipec.open(PROGRAM, run="train", root=str(data)) as loader, Progress(*columns) as progress:
        task = progress.add_task("", total=epochs * steps, epoch=1, loss=float("nan"))
        first = waited = worked = 0.0
        for epoch in range(epochs):
            asked = time.perf_counter()
            for image, cls in loader:
                got = time.perf_counter()
                if not first:
                    first = got - opened
                else:
                    waited += got - asked
                loss = torch.nn.functional.cross_entropy(model(image), cls)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.update(task, advance=1, epoch=epoch + 1, loss=loss.item())
                asked = time.perf_counter()
                worked += asked - got
        stats = loader.stats()
    took = waited + worked
    print(f"first batch after {first:.1f} s (compiling included); then {took:.1f} s: {worked:.1f} s training, "
          f"{waited:.1f} s ({waited / took:.0%}) waiting for data")
    print(f"{stats['records']:,} records, {stats['bytes'] / 1e6:,.0f} MB: {stats['records'] / took:,.0f} records/s; "
          f"{stats['producer']['cpu_seconds']:.1f} s of CPU in the producer")
    return model


def measure(model: Any, data: Path) -> tuple[int, int]:
    """(right, all) of the held-out crops, through the pipeline `val`."""
    import pipec
    import torch

    right = total = 0
    model.eval()
    with pipec.open(PROGRAM, run="val", root=str(data)) as loader, torch.no_grad():
        for image, cls in loader:
            right += int((model(image).argmax(1) == cls).sum())
            total += len(cls)
    return right, total


def write_sheet(data: Path) -> None:
    """The contact sheet that `pipec show` makes of the first training crops."""
    from pipec.cli import main as pipec_command

    pipec_command(["show", f"{PROGRAM}:train", f"root={data}", "-n", "25", "-o", os.fspath(data / "sheet.png")])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
