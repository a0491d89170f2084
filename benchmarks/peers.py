"""The loaders that are compared: `PEERS[workload][name](workload, threads)` gives `epoch(i)`, an iterable of batches.

Every peer reads the same data, draws the same kind of boxes and delivers the same shapes and dtypes; what differs is said
in `DIFFERS`. A module beside this one that defines PEERS, BATCH, PREPARE and DIFFERS by workload, and MODULE by peer, is
found by being in `MORE`.
"""
from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import data, image_peers
from .image_peers import Epochs

HERE = Path(__file__).parent
CIFAR_MEAN, CIFAR_STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
MORE = ("token_peers", "table_peers", "audio_peers", "tf_peers")


def ours(workload: str, threads: int) -> Epochs:
    import pipec

    root = str(data.FOLDER / "tar" if workload in image_peers.BATCH else data.FOLDER)
    loader = pipec.open(str(HERE / f"{workload}.pipe"), threads=threads, root=root)

    def epoch(_: int) -> Iterable[Any]:
        return iter(loader)

    return epoch


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


def ffcv_cifar(workload: str, threads: int) -> Epochs:
    """W4 by FFCV, from a file of its own with raw pixels."""
    import numpy as np
    import torch
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, RandomTranslate, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    torch.set_num_threads(1)
    path, loaded = data.FOLDER / "cifar.beton", np.load(data.FOLDER / "cifar10.npz")
    if not path.exists():
        fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
        pairs = list(zip(loaded["x_train"], loaded["y_train"].tolist(), strict=True))
        DatasetWriter(str(path), fields, num_workers=threads).from_indexed_dataset(pairs)
    gap = tuple(int(m) for m in CIFAR_MEAN)
    steps = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(4, fill=gap),
             NormalizeImage(np.array(CIFAR_MEAN), np.array(CIFAR_STD), np.float16), ToTensor(),
             ToTorchImage(channels_last=False)]
    loader = Loader(str(path), batch_size=BATCH[workload], num_workers=threads, order=OrderOption.RANDOM, os_cache=True,
                    drop_last=True, pipelines={"image": steps, "label": [IntDecoder(), ToTensor()]})
    return lambda _: loader


BATCH: dict[str, int] = {**image_peers.BATCH, "W4": 512}
PREPARE: dict[str, Callable[[], Any]] = {
    "W1": data.images, "W1u8": data.images, "W2": data.images, "W3": data.large, "W3full": data.large, "W4": data.cifar}
DIFFERS: dict[str, dict[str, str]] = {workload: image_peers.DIFFERS for workload in image_peers.BATCH}
DIFFERS["W4"] = {"ffcv": "reads a file of its own, raw pixels; the mean colour beyond the edges"}
MODULE: dict[str, str] = {**image_peers.MODULE, "torch-batched": "torch", "torch-records": "torch"}
PEERS: dict[str, dict[str, Callable[[str, int], Epochs]]] = {
    **{workload: {"pipec": ours, **image_peers.PEERS} for workload in image_peers.BATCH},
    "W4": {"pipec": ours, "torch-batched": torch_batched, "torch-records": torch_records, "ffcv": ffcv_cifar},
}
for _name in MORE:
    if importlib.util.find_spec(f"{__package__}.{_name}") is not None:
        _module = importlib.import_module(f"{__package__}.{_name}")
        for _table, _mine in ((BATCH, "BATCH"), (PREPARE, "PREPARE"), (MODULE, "MODULE"), (PEERS, "PEERS"), (DIFFERS, "DIFFERS")):
            for _key, _value in getattr(_module, _mine, {}).items():
                _table[_key] = {**_table.get(_key, {}), **_value} if isinstance(_value, dict) else _value


def there(name: str) -> bool:
    """Is what this peer needs installed."""
    module = MODULE.get(name)
    try:
        return module is None or importlib.util.find_spec(module) is not None
    except ImportError:   # of a package above it
        return False
