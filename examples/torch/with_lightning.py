"""Lightning: a loader is a dataloader, and its state lies in Lightning's checkpoints.

    python examples/torch/with_lightning.py --data /tmp/spots --devices 2
"""
from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

import lightning
import pipec
import torch
from spots import PROGRAM, make_data, network
from torch import nn


class Spots(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        right = (self.net(batch[0]).argmax(1) == batch[1]).float()
        self.log("right", right.mean(), batch_size=len(right))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 2e-3)


class Data(lightning.LightningDataModule):
    """Opens the loaders where the ranks are known."""

    def __init__(self, data: Path):
        super().__init__()
        self.data = data

    def _open(self, run: str) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        return pipec.open(PROGRAM, run=run, data=str(self.data), rank=self.trainer.global_rank, world=self.trainer.world_size)

    def train_dataloader(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        return self._open("train")

    def val_dataloader(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        return self._open("val")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("spots-data"))
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    make_data(args.data)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp" if args.devices > 1 else "auto", max_epochs=args.epochs,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Spots(), datamodule=Data(args.data), ckpt_path=args.resume)
    if args.save:
        trainer.save_checkpoint(args.save)
    if trainer.is_global_zero:
        print(f"{trainer.global_step} steps, right {float(trainer.callback_metrics['right']):.3f}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
