"""Accelerate: the model is prepared, a loader needs nothing: it gets its rank from the accelerator.

    accelerate launch --cpu --num_processes 2 examples/torch/with_accelerate.py --data /tmp/spots
"""
from __future__ import annotations

import argparse
from pathlib import Path

import pipec
import torch
from accelerate import Accelerator
from spots import PROGRAM, make_data, network
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("spots-data"))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    make_data(args.data)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 2e-3))
    data = {"data": str(args.data), "rank": accelerator.process_index, "world": accelerator.num_processes}
    with pipec.open(PROGRAM, run="train", **data) as train, pipec.open(PROGRAM, run="val", **data) as val:
        accelerator.register_for_checkpointing(train)   # its state_dict goes where accelerator.save_state puts the others
        for epoch in range(args.epochs):
            for image, label in train:
                loss = nn.functional.cross_entropy(model(image), label)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
            counts = torch.zeros(2, dtype=torch.int64)
            with torch.no_grad():
                for image, label in val:
                    right = accelerator.unwrap_model(model)(image).argmax(1) == label
                    counts += torch.tensor([int(right.sum()), len(label)])
            counts = accelerator.reduce(counts, "sum")
            accelerator.print(f"epoch {epoch}: {int(counts[0])} of {int(counts[1])} right")
    accelerator.end_training()


if __name__ == "__main__":
    main()
