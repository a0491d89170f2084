"""The examples for PyTorch users run, with and without a kill; loaders in DataLoader workers say what to do."""
from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "examples" / "torch"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    sys.path.insert(0, str(FOLDER))
    try:
        from spots import make_data
    finally:
        sys.path.remove(str(FOLDER))
    folder = tmp_path_factory.mktemp("spots")
    make_data(folder, 403, 101)
    return folder


def command(*words, **environment):
    more = {name: str(value) for name, value in environment.items()}
    return subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}, cwd=FOLDER.parents[1])


def output(process):
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 0, text
    return text


def inside(script, monkeypatch, *words):
    """A script's `main` in this process."""
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(str(FOLDER / script), run_name="__main__")


def test_resume_after_a_kill(data, tmp_path, monkeypatch, capsys):
    threads = torch.get_num_threads()
    inside("plain.py", monkeypatch, "--data", data)
    torch.set_num_threads(threads)
    whole = capsys.readouterr().out
    assert "epoch 1: " in whole
    words = (FOLDER / "plain.py", "--data", data, "--checkpoint", tmp_path / "last.pt", "--every", 1)
    killed = command(*words)
    for line in killed.stdout:
        if line == "step 9\n":
            killed.send_signal(signal.SIGKILL)
            break
    killed.wait()
    killed.stdout.close()
    inside("plain.py", monkeypatch, *words[1:])
    torch.set_num_threads(threads)
    rest = capsys.readouterr().out
    at = int(re.search(r"goes on at step (\d+)", rest)[1])
    assert 9 <= at < 26
    assert whole.splitlines()[-2:] == rest.splitlines()[-2:]   # the last loss, step and all weights, bit for bit


def test_ddp(data):
    """As torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [command(FOLDER / "ddp.py", "--data", data, "--share", RANK=r, LOCAL_RANK=r, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2,
                     MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for r in range(2)]
    text, _ = map(output, ranks)
    assert "epoch 1: 7 steps," in text and "of 101 right" in text and "weights equal on all ranks" in text


class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.fixture
def loader(data):
    import pipec

    with pipec.open(FOLDER / "spots.pipe", run="val", data=str(data), workers="threads") as opened:
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
