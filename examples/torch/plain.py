"""A plain loop that goes on after a kill: the loader's state lies in the checkpoint, beside the weights.

    python examples/torch/plain.py --data /tmp/spots --checkpoint /tmp/spots/last.pt
"""
from __future__ import annotations

import argparse
import os
from pathlib import Path

import pipec
import torch
from spots import PROGRAM, checksum, make_data, network, train_step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("spots-data"))
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    args = parser.parse_args()
    make_data(args.data)
    torch.set_num_threads(1)
    model, step = network(), 0
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    with pipec.open(PROGRAM, run="train", data=str(args.data)) as loader:
        if args.checkpoint is not None and args.checkpoint.exists():
            saved = torch.load(args.checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])   # the next iteration is the rest of that epoch
            step = saved["step"]
            print(f"goes on at step {step}", flush=True)
        for epoch in range(loader.state_dict()["epoch"], args.epochs):
            loss = 0.0
            for image, label in loader:
                loss = train_step(model, optimizer, image, label)
                step += 1
                if args.checkpoint is not None and step % args.every == 0:
                    partial = args.checkpoint.with_suffix(".partial")
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                                "loader": loader.state_dict(), "step": step}, partial)
                    os.replace(partial, args.checkpoint)
                    print(f"step {step}", flush=True)
            print(f"epoch {epoch}: loss {loss:.4f}, step {step}", flush=True)
    print(f"weights {checksum(model)}")


if __name__ == "__main__":
    main()
