"""The loaders that are compared: `PEERS[name](workload, threads)` gives `epoch(i)`, an iterable of batches.

Every peer reads the same files, draws the same kind of boxes and delivers the same shapes and dtypes. The OpenCV
loader doesn't antialias (OpenCV's bilinear resize doesn't); the others do.
"""
from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import data

HERE = Path(__file__).parent
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN, CIFAR_STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
BATCH = {"W1": 128, "W1u8": 128, "W4": 512}
Epochs = Callable[[int], Iterable[Any]]


def ours(workload: str, threads: int) -> Epochs:
    import pipec

    root = str(data.FOLDER if workload == "W4" else data.FOLDER / "tar")
    loader = pipec.open(str(HERE / f"{workload}.pipe"), threads=threads, root=root)

    def epoch(_: int) -> Iterable[Any]:
        return iter(loader)

    return epoch


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params: (top, left, height, width)."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def _torch_images(workload: str, threads: int, crop: Callable[[str], Any]) -> Epochs:
    """A torch DataLoader over the JPEG files; `crop` gives a u8 H×W×3 array or image."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    files = sorted(str(p) for p in (data.FOLDER / "jpeg").glob("*/*.jpg"))
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    class Photos(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> Any:
            pixels = np.asarray(crop(files[i]))
            if random.random() < 0.5:
                pixels = pixels[:, ::-1]
            pixels = np.ascontiguousarray(pixels)
            label = int(Path(files[i]).parent.name[5:])
            if workload == "W1u8":
                return torch.from_numpy(pixels), label
            image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255)
            return image.sub_(mean).div_(std), label

    loader = DataLoader(Photos(), batch_size=BATCH[workload], shuffle=True, num_workers=threads, persistent_workers=True)
    return lambda _: loader


def torch_pillow(workload: str, threads: int) -> Epochs:
    from PIL import Image

    def crop(path: str) -> Any:
        image = Image.open(path).convert("RGB")
        top, left, h, w = random_box(image.height, image.width)
        return image.crop((left, top, left + w, top + h)).resize((224, 224), Image.Resampling.BILINEAR)

    return _torch_images(workload, threads, crop)


def torch_opencv(workload: str, threads: int) -> Epochs:
    import cv2

    cv2.setNumThreads(0)

    def crop(path: str) -> Any:
        image = cv2.cvtColor(cv2.imread(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        top, left, h, w = random_box(*image.shape[:2])
        return cv2.resize(image[top : top + h, left : left + w], (224, 224), interpolation=cv2.INTER_LINEAR)

    return _torch_images(workload, threads, crop)


def torch_batched(workload: str, threads: int) -> Epochs:
    """W4 as people write it when DataLoader is too slow: whole batches in NumPy, by index arrays."""
    import numpy as np
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    torch.set_num_threads(1)
    loaded = np.load(data.FOLDER / "cifar10.npz")
    images, labels = loaded["x_train"], loaded["y_train"].astype(np.int64)
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    mean, std = np.float32(CIFAR_MEAN), np.float32(CIFAR_STD)

    class Batches(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, indexes: Any) -> Any:
            rng = np.random.default_rng()
            n = len(indexes)
            dy, dx = rng.integers(0, 9, n), rng.integers(0, 9, n)
            windows = np.lib.stride_tricks.sliding_window_view(padded, (32, 32), axis=(1, 2))
            batch = windows[np.asarray(indexes), dy, dx]                   # n, 3, 32, 32
            flip = rng.random(n) < 0.5
            batch[flip] = batch[flip][..., ::-1]
            out = (batch.transpose(0, 2, 3, 1).astype(np.float32) - mean) / std
            planes = np.ascontiguousarray(out.transpose(0, 3, 1, 2)).astype(np.float16)
            return torch.from_numpy(planes), torch.from_numpy(labels[indexes])

    sampler = BatchSampler(RandomSampler(range(len(images))), BATCH[workload], False)
    loader = DataLoader(Batches(), sampler=sampler, batch_size=None, num_workers=threads, persistent_workers=True)
    return lambda _: loader


def torch_records(workload: str, threads: int) -> Epochs:
    """W4 the usual way: one record at a time."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    loaded = np.load(data.FOLDER / "cifar10.npz")
    images, labels = loaded["x_train"], loaded["y_train"].astype(np.int64)
    mean, std = torch.tensor(CIFAR_MEAN).view(3, 1, 1), torch.tensor(CIFAR_STD).view(3, 1, 1)

    class Records(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, i: int) -> Any:
            padded = np.pad(images[i], ((4, 4), (4, 4), (0, 0)))
            y, x = random.randrange(9), random.randrange(9)
            part = padded[y : y + 32, x : x + 32]
            part = part[:, ::-1] if random.random() < 0.5 else part
            image = torch.from_numpy(np.ascontiguousarray(part.transpose(2, 0, 1))).float()
            return ((image - mean) / std).half(), labels[i]

    loader = DataLoader(Records(), batch_size=BATCH[workload], shuffle=True, num_workers=threads, persistent_workers=True)
    return lambda _: loader


PEERS: dict[str, dict[str, Callable[[str, int], Epochs]]] = {
    "W1": {"pipec": ours, "torch + Pillow": torch_pillow, "torch + OpenCV": torch_opencv},
    "W1u8": {"pipec": ours, "torch + Pillow": torch_pillow, "torch + OpenCV": torch_opencv},
    "W4": {"pipec": ours, "torch, batched NumPy": torch_batched, "torch, by record": torch_records},
}
