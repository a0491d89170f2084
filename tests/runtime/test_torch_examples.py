"""Two ranks of DistributedDataParallel over one stream, and loaders in DataLoader workers, which say what to do.

The other examples run with the slow tests.
"""
from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pipec.compiler.compile import plan_for

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "examples" / "torch"


def command(*words, **environment):
    more = {name: str(value) for name, value in environment.items()}
    return subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}, cwd=FOLDER.parents[1])


def output(process):
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 0, text
    return text


def test_ddp(spots, runtime):
    """As torchrun starts them."""
    for run in ("train", "val"):
        plan_for(str(FOLDER / "spots.pipe"), {"data": str(spots)}, run)   # compiled here once, not by each of them
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [command(FOLDER / "ddp.py", "--data", spots, "--share", RANK=r, LOCAL_RANK=r, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2,
                     MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for r in range(2)]
    text, _ = map(output, ranks)
    assert "epoch 1: 7 steps," in text and "of 101 right" in text and "weights equal on all ranks" in text


class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.fixture
def loader(spots):
    import pipec

    with pipec.open(FOLDER / "spots.pipe", run="val", data=str(spots), workers="threads") as opened:
        yield opened


def test_a_loader_in_a_dataloader(loader):
    batches = list(torch.utils.data.DataLoader(Wrapped(loader), batch_size=None))
    assert [len(label) for _, label in batches] == [32, 32, 32, 5]


def test_a_loader_in_workers_says_what_to_do(loader):
    for start, said in (("fork", "without DataLoader workers"), ("spawn", "call pipec.open there")):
        with pytest.raises((RuntimeError, TypeError), match=said):
            list(torch.utils.data.DataLoader(Wrapped(loader), batch_size=None, num_workers=1, multiprocessing_context=start))
    assert sum(len(label) for _, label in loader) == 101   # and it is unharmed


def test_a_loader_in_a_forked_child(loader):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(iter(loader))
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert "open the program here too" in said.read()
    os.waitpid(child, 0)
    assert np.concatenate([label.numpy() for _, label in loader]).shape == (101,)
