"""The examples for PyTorch users: a loop that goes on after a kill, and two ranks, each with a producer of its own: DDP,
Lightning, Accelerate."""
from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "examples" / "torch"


def inside(script, monkeypatch, *words):
    """A script's `main` in this process."""
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(str(FOLDER / script), run_name="__main__")


def test_resume_after_a_kill(spots, tmp_path, monkeypatch, capsys):
    threads = torch.get_num_threads()
    inside("plain.py", monkeypatch, "--data", spots)
    torch.set_num_threads(threads)
    whole = capsys.readouterr().out
    assert "epoch 1: " in whole
    words = (FOLDER / "plain.py", "--data", spots, "--checkpoint", tmp_path / "last.pt", "--every", 1)
    killed = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE, text=True)
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


def output(*words):
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=280,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp(spots, ranks):
    text = output("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, FOLDER / "ddp.py", "--data", spots)
    assert re.search(r"epoch 1: \d+ steps, \d+ of 101 right", text) and "weights equal on all ranks" in text


def test_lightning(spots, tmp_path):
    pytest.importorskip("lightning")
    os.chdir(tmp_path)
    assert "14 steps, right " in output(FOLDER / "with_lightning.py", "--data", spots, "--devices", 2)


def test_accelerate(spots):
    pytest.importorskip("accelerate")
    text = output("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, FOLDER / "with_accelerate.py", "--data",
                  spots)
    assert re.search(r"epoch 1: \d+ of 101 right", text)
