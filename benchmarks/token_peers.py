"""W5, windows of tokens, as its users read them; and what W4 and W5 cost in plain C (`rows.c`), without a loader around it.

The C programs write into eight or forty batches in turn, as a loader must whose batches live longer than one step.
"""
from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import data

HERE = Path(__file__).parent
LENGTH, TOKENS = 1024, 100_000_000
Epochs = Callable[[int], Iterable[Any]]


def prepare() -> Path:
    """`FOLDER/tokens.bin`: 100 million u16 tokens, random."""
    import numpy as np

    path = data.FOLDER / "tokens.bin"
    if not path.exists():
        data.FOLDER.mkdir(parents=True, exist_ok=True)
        np.random.default_rng(0).integers(0, 50_257, TOKENS, np.uint16).tofile(path)
    return path


def ours(workload: str, threads: int) -> Epochs:
    import pipec

    loader = pipec.open(str(HERE / "W5.pipe"), threads=threads, root=str(data.FOLDER))
    return lambda _: iter(loader)


def torch_batched(workload: str, threads: int) -> Epochs:
    """Whole batches by one index array."""
    import numpy as np
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    torch.set_num_threads(1)
    count = (TOKENS - 1) // LENGTH

    class Batches(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.ids = np.memmap(data.FOLDER / "tokens.bin", np.uint16, "r")

        def __getitem__(self, indexes: Any) -> Any:
            places = np.asarray(indexes)[:, None] * LENGTH + np.arange(LENGTH + 1)
            windows = torch.from_numpy(self.ids[places].astype(np.int64))
            return windows[:, :-1], windows[:, 1:]

    sampler = BatchSampler(RandomSampler(range(count)), BATCH["W5"], True)
    loader = DataLoader(Batches(), sampler=sampler, batch_size=None, num_workers=threads, persistent_workers=True)
    return lambda _: loader


def torch_records(workload: str, threads: int) -> Epochs:
    """One window at a time."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)

    class Windows(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.ids = np.memmap(data.FOLDER / "tokens.bin", np.uint16, "r")

        def __len__(self) -> int:
            return (TOKENS - 1) // LENGTH

        def __getitem__(self, i: int) -> Any:
            window = torch.from_numpy(self.ids[i * LENGTH : (i + 1) * LENGTH + 1].astype(np.int64))
            return window[:-1], window[1:]

    loader = DataLoader(Windows(), batch_size=BATCH["W5"], shuffle=True, num_workers=threads, persistent_workers=True,
                        drop_last=True)
    return lambda _: loader


def grain_records(workload: str, threads: int) -> Epochs:
    """Grain's loader with worker processes."""
    import grain.python as grain
    import numpy as np

    class Windows:
        def __init__(self) -> None:
            self.ids = np.memmap(data.FOLDER / "tokens.bin", np.uint16, "r")

        def __len__(self) -> int:
            return (TOKENS - 1) // LENGTH

        def __getitem__(self, i: int) -> Any:
            window = self.ids[i * LENGTH : (i + 1) * LENGTH + 1].astype(np.int64)
            return window[:-1], window[1:]

    def epoch(number: int) -> Iterable[Any]:
        dataset = grain.MapDataset.source(Windows()).seed(number).shuffle().batch(BATCH["W5"])
        return iter(dataset.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=threads)))

    return epoch


def _library() -> ctypes.CDLL:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("there is no C compiler")
    built = Path(tempfile.mkdtemp(prefix="pipec-rows-")) / "rows.so"
    flags = ["-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", str(HERE / "rows.c"), "-o", str(built)]
    subprocess.run([compiler, *flags], check=True, capture_output=True)
    return ctypes.CDLL(str(built))


def plain_c(workload: str, threads: int, batches: int = 8) -> Epochs:
    """One thread, batches written in turn: as many as stay in a cache, or as many as a ring holds."""
    import numpy as np

    library, state = _library(), np.array([88172645463325252], np.uint64)
    size = BATCH[workload]

    def at(a: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(a.ctypes.data)

    number = ctypes.c_long
    if workload == "W5":
        ids = np.fromfile(data.FOLDER / "tokens.bin", np.uint16)
        rooms = [np.zeros((2, size, LENGTH), np.int64) for _ in range(batches)]

        def fill(room: Any) -> Any:
            windows = number((TOKENS - 1) // LENGTH)
            library.tokens(at(ids), windows, number(LENGTH), number(size), at(state), at(room[0]), at(room[1]))
            return room[0], room[1]
    else:
        loaded = np.load(data.FOLDER / "cifar10.npz")
        images, labels = loaded["x_train"], loaded["y_train"]
        rooms = [(np.zeros((size, 3, 32, 32), np.float16), np.zeros(size, np.int64)) for _ in range(batches)]

        def fill(room: Any) -> Any:
            library.cifar(at(images), at(labels), number(len(images)), number(size), at(state), at(room[0]), at(room[1]))
            return room

    def epoch(_: int) -> Iterator[Any]:
        for k in range(1000):
            yield fill(rooms[k % batches])

    return epoch


BATCH = {"W5": 64, "W4": 512}
PREPARE = {"W5": prepare}
MODULE = {"torch-batched": "torch", "torch-records": "torch", "grain": "grain", "plain C": "numpy",
          "plain C 40": "numpy"}
_ALONE = {"plain C": "no loader: one thread, random numbers from xorshift, eight batches written in turn",
          "plain C 40": "the same with forty batches, about as many as the ring holds"}
DIFFERS = {"W4": _ALONE, "W5": _ALONE}
PEERS: dict[str, dict[str, Callable[[str, int], Epochs]]] = {
    "W5": {"pipec": ours, "torch-batched": torch_batched, "torch-records": torch_records, "grain": grain_records,
           "plain C": plain_c, "plain C 40": partial(plain_c, batches=40)},
    "W4": {"plain C": plain_c}}
