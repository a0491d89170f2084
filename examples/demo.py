"""The main job on real photos: shards, a compiled program, a small network that learns from it.

Takes the freely licensed photos that scikit-image ships, cuts crops of many sizes into JPEG tar shards (one
class per photo), trains on the crops from some regions of each photo and measures on regions that training never saw.
"""
from __future__ import annotations

import argparse
import io
import os
import tarfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PHOTOS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "grass.png", "gravel.png",
          "hubble_deep_field.jpg", "ihc.png", "retina.jpg", "rocket.jpg")
GRID = 4  # each photo is GRID × GRID regions; those on a diagonal are held out


def held_out(row: int, column: int) -> bool:
    return (row + column) % GRID == 0


def make_shards(folder: Path, train: int, val: int, seed: int = 5) -> None:
    """Write train-*.tar and val-*.tar of JPEG crops (72 to 128 px) into `folder`, unless they are there."""
    if (folder / "done").exists():
        return
    import skimage
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
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
    (folder / "done").touch()


def _crop(photos: list, label: int, val: bool, rng: np.random.Generator) -> tuple[bytes, int]:
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


def network(classes: int):
    """A small convolutional network on 64 × 64 pixels."""
    from torch import nn

    def block(inside: int, out: int) -> list:
        return [nn.Conv2d(inside, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(*block(3, 24), *block(24, 48), *block(48, 96), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                         nn.Linear(4 * 96, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE.parent / "demo-data")
    parser.add_argument("--train", type=int, default=4000, help="training crops")
    parser.add_argument("--val", type=int, default=800, help="held-out crops")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    started = time.perf_counter()
    make_shards(options.data, options.train, options.val)
    print(f"shards of {options.train:,} + {options.val:,} crops of {len(PHOTOS)} photos: {time.perf_counter() - started:.1f} s")
    train(options.data, options.epochs)


def train(data: Path, epochs: int) -> None:
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    import pipec

    torch.manual_seed(0)
    program = str(HERE / "photos.pipe")
    opened = time.perf_counter()
    with pipec.open(program, root=str(data)) as loader, pipec.open(program, run="val", root=str(data)) as held:
        model = network(len(PHOTOS))
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * 64)
        first, waited, steps = 0.0, 0.0, 0
        columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(),
                   TextColumn("loss {task.fields[loss]:.3f}"), TimeElapsedColumn())
        with Progress(*columns) as progress:
            task = progress.add_task("", total=None, epoch=1, loss=float("nan"))
            for epoch in range(epochs):
                progress.update(task, epoch=epoch + 1)
                asked = time.perf_counter()
                for image, cls in loader:
                    now = time.perf_counter()
                    first = first or now - opened
                    waited += now - asked
                    loss = torch.nn.functional.cross_entropy(model(image), cls)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if schedule.last_epoch < schedule.total_steps:
                        schedule.step()
                    steps += 1
                    progress.update(task, advance=1, loss=loss.item())
                    asked = time.perf_counter()
        trained = time.perf_counter() - opened
        right = total = 0
        model.eval()
        with torch.no_grad():
            for image, cls in held:
                right += int((model(image).argmax(1) == cls).sum())
                total += len(cls)
        print(f"first batch after {first:.2f} s; {steps} steps in {trained:.1f} s, of which {waited:.1f} s "
              f"({waited / trained:.0%}) waiting for data; training used the rest")
    write_sheet(program, data)
    print(f"held-out accuracy: {100 * right / total:.1f} %")


def write_sheet(program: str, data: Path) -> None:
    """The contact sheet that `pipec show` makes."""
    from pipec.cli import main as pipec_command

    sheet = data / "sheet.png"
    pipec_command(["show", program, f"root={data}", "-n", "25", "-o", os.fspath(sheet)])


if __name__ == "__main__":
    main()
