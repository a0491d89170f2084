"""The examples for PyTorch users on two ranks, each with a producer of its own: DDP, Lightning, Accelerate."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


def output(*words):
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=280,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp(data, ranks):
    text = output("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, FOLDER / "ddp.py", "--data", data)
    assert re.search(r"epoch 1: \d+ steps, \d+ of 101 right", text) and "weights equal on all ranks" in text


def test_lightning(data, tmp_path):
    pytest.importorskip("lightning")
    os.chdir(tmp_path)
    assert "14 steps, right " in output(FOLDER / "with_lightning.py", "--data", data, "--devices", 2)


def test_accelerate(data):
    pytest.importorskip("accelerate")
    text = output("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, FOLDER / "with_accelerate.py", "--data",
                  data)
    assert re.search(r"epoch 1: \d+ of 101 right", text)
