"""The data that all loaders of a workload read: JPEG files and the same files in tar shards, a CIFAR-like .npz.

Photos are crops of the freely licensed ones that scikit-image ships, at the sizes of ImageNet's.
"""
from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "data"
PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg",
          "motorcycle_left.png")


def images(count: int = 1500) -> Path:
    """`FOLDER/jpeg/classNN/*.jpg` and `FOLDER/tar/*.tar`: 500 × 375 px in the mean, quality 88 to 95."""
    done = FOLDER / "images-done"
    if done.exists():
        return FOLDER
    import skimage
    from PIL import Image

    rng = np.random.default_rng(0)
    photos = [Image.open(Path(skimage.__file__).parent / "data" / p).convert("RGB") for p in PHOTOS]
    samples = []
    for k in range(count):
        photo = photos[k % len(photos)]
        wide = int(rng.integers(400, 601))
        size = (wide, round(wide * rng.uniform(0.66, 0.84)))
        scale = rng.uniform(0.5, 1.0)
        broad = int(min(photo.width, photo.height * size[0] / size[1]) * scale)
        tall = int(broad * size[1] / size[0])
        left, top = int(rng.integers(0, photo.width - broad + 1)), int(rng.integers(0, photo.height - tall + 1))
        part = photo.crop((left, top, left + broad, top + tall)).resize(size, Image.Resampling.BICUBIC)
        picture = np.asarray(part).astype(np.int16)
        picture = np.clip(picture + rng.normal(0, 4, (*picture.shape[:2], 1)).astype(np.int16), 0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "JPEG", quality=int(rng.integers(88, 96)))
        samples.append((out.getvalue(), k % 10))
    for k, (data, label) in enumerate(samples):
        folder = FOLDER / "jpeg" / f"class{label:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"img{k:05d}.jpg").write_bytes(data)
    _shards("train", samples, 500)
    done.touch()
    return FOLDER


def large(count: int = 80) -> Path:
    """`FOLDER/large/classNN/*.jpg` and `FOLDER/tar/large-*.tar`: photos 4000 px wide, with grain, quality 88 to 93."""
    done = FOLDER / "large-done"
    if done.exists():
        return FOLDER
    import skimage
    from PIL import Image

    rng = np.random.default_rng(1)
    photos = [Image.open(Path(skimage.__file__).parent / "data" / p).convert("RGB") for p in PHOTOS]
    samples = []
    for k in range(count):
        photo = photos[k % len(photos)]
        size = (4000, round(4000 / (1.5, 4 / 3, 16 / 9)[int(rng.integers(3))]))
        broad = int(min(photo.width, photo.height * size[0] / size[1]) * rng.uniform(0.7, 1.0))
        tall = int(broad * size[1] / size[0])
        left, top = int(rng.integers(0, photo.width - broad + 1)), int(rng.integers(0, photo.height - tall + 1))
        picture = np.asarray(photo.crop((left, top, left + broad, top + tall)).resize(size, Image.Resampling.BICUBIC))
        grain = rng.normal(0, 3, (size[1], size[0], 1)).astype(np.int16)
        out = io.BytesIO()
        noisy = np.clip(picture.astype(np.int16) + grain, 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(out, "JPEG", quality=int(rng.integers(88, 94)))
        samples.append((out.getvalue(), k % 10))
        folder = FOLDER / "large" / f"class{k % 10:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"img{k:05d}.jpg").write_bytes(out.getvalue())
    _shards("large", samples, 40)
    done.touch()
    return FOLDER


def _shards(name: str, samples: list[tuple[bytes, int]], per: int) -> None:
    (FOLDER / "tar").mkdir(parents=True, exist_ok=True)
    for shard in range(0, len(samples), per):
        with tarfile.open(FOLDER / "tar" / f"{name}-{shard // per:03d}.tar", "w") as tar:
            for k in range(shard, min(shard + per, len(samples))):
                for ending, content in (("jpg", samples[k][0]), ("cls", str(samples[k][1]).encode())):
                    member = tarfile.TarInfo(f"img{k:05d}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def cifar(count: int = 50_000) -> Path:
    """`FOLDER/cifar10.npz`: x_train u8[count, 32, 32, 3], y_train u8[count], random values."""
    path = FOLDER / "cifar10.npz"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        np.savez(path, x_train=rng.integers(0, 256, (count, 32, 32, 3), np.uint8), y_train=rng.integers(0, 10, count, np.uint8))
    return path
