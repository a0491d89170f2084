"""What the examples beside this file share: data, a small network, one step of training."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

PROGRAM = str(Path(__file__).resolve().parent / "spots.pipe")


def make_data(folder: Path, train: int = 2003, val: int = 403) -> None:
    """Write train.npz and val.npz, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("val", val)):
        path = folder / f"{name}.npz"
        if path.exists():
            continue
        rng = np.random.default_rng(count)
        image = rng.integers(0, 120, (count, 16, 16, 3), np.uint8)
        label = rng.integers(0, 4, count)
        for k in range(count):
            y, x = 2 + 8 * (label[k] // 2), 2 + 8 * (label[k] % 2)
            image[k, y : y + 4, x : x + 4] += 100
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, image=image, label=label)
        partial.rename(path)   # ranks may make it at the same time


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, image: torch.Tensor, label: torch.Tensor) -> float:
    loss = nn.functional.cross_entropy(model(image), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def checksum(model: nn.Module) -> str:
    """The same for the same weights, bit for bit."""
    return f"{sum(int(p.detach().view(torch.int32).to(torch.int64).sum()) for p in model.parameters()):x}"
