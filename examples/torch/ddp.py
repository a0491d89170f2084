"""DistributedDataParallel: ranks deal out one stream, and evaluation counts every record once.

    torchrun --nproc-per-node 2 examples/torch/ddp.py --data /tmp/spots

With `share=True` the ranks of a machine read one producer's stream; without it each has a producer of its own, which
reads and decodes this rank's records only.
"""
from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import pipec
import torch
import torch.distributed as dist
from spots import PROGRAM, checksum, make_data, network, train_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model: nn.Module, loader: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, int]:
    """(right, all) over all ranks."""
    counts = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for image, label in loader:   # ranks may get different numbers of batches: no collective in here
            counts += torch.tensor([int((model(image).argmax(1) == label).sum()), len(label)])
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("spots-data"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--share", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    make_data(args.data)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    data = {"data": str(args.data), "rank": "torch", "share": args.share}
    with pipec.open(PROGRAM, run="train", **data) as train, pipec.open(PROGRAM, run="val", **data) as val:
        for epoch in range(args.epochs):
            steps = 0
            for image, label in train:
                train_step(model, optimizer, image, label)
                steps += 1
            right, count = evaluate(model.module, val)
            if rank == 0:
                print(f"epoch {epoch}: {steps} steps, {right} of {count} right", flush=True)
    sums = [None] * dist.get_world_size()
    dist.all_gather_object(sums, checksum(model.module))
    if rank == 0:
        print("weights equal on all ranks" if len(set(sums)) == 1 else "weights differ")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
