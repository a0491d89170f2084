"""`pipec.open` starts the producer's process before it knows the program: it is the one that is used, or none is left."""
from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pipec
import pytest
from pipec.dsl.problems import PipeError
from pipec.runtime import opening

PROGRAM = """schema Row
  a: i64

pipeline train
  from npz("{data}") as Row
  batch({n})
  emit a
"""


@pytest.fixture()
def started(monkeypatch):
    """The processes that were started ahead."""
    made = []

    def producer():
        made.append(start())
        return made[-1]

    start = opening.producer
    monkeypatch.setattr(opening, "producer", producer)
    return made


def written(folder, n="2"):
    np.savez(folder / "d.npz", a=np.arange(4))
    (folder / "p.pipe").write_text(PROGRAM.format(data=folder / "d.npz", n=n))
    return folder / "p.pipe"


def test_it_is_the_producer(started, tmp_path):
    with pipec.open(written(tmp_path), as_="numpy") as loader:
        assert [list(b.a) for b in loader] == [[0, 1], [2, 3]]
        assert loader._box.process is started[0].process
    assert started[0].process.returncode == 0 and len(started) == 1


@pytest.mark.parametrize("given", [{}, {"none": 3}, {"world": 2}, {"rank": 7, "world": 2}, {"as_": "tf"}], ids=str)
def test_mistakes_leave_no_process(started, tmp_path, given):
    with pytest.raises((PipeError, ValueError)):
        pipec.open(written(tmp_path, "2" if given else "no"), **given)
    (process,) = [s.process for s in started]
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.parametrize("threads", [0, -1, "2", True])
def test_threads_are_counted(started, tmp_path, threads):
    with pytest.raises(ValueError, match="a whole number from 1 on"):
        pipec.open(written(tmp_path), threads=threads)
    assert not started


def test_none_for_threads(started, tmp_path):
    with pipec.open(written(tmp_path), as_="numpy", workers="threads") as loader:
        assert len(list(loader)) == 2
        assert 0 <= loader.stats()["wait_share"] <= 1
    assert not started


OPENED = """
import sys, pipec
if __name__ == "__main__":
    with pipec.open(sys.argv[1], as_="numpy", threads=2) as loader:
        rows = sorted(int(a) for batch in loader for a in batch.a)
        for process in ("self", loader._box.process.pid):
            with open(f"/proc/{process}/maps") as maps:
                loaded = maps.read()
            print([name for name in ("llvmlite", "numba", "torch", "simplejpeg") if name in loaded])
    print(rows)
"""


def test_neither_process_of_a_warm_start_loads_llvm(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path / "cache"))
    path = written(tmp_path)
    path.write_text("seed 7\n" + path.read_text().replace("  batch", "  shuffle()\n  a = a * a + 1\n  batch"))
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", OPENED, str(path)], capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines()[:2] == ["[]", "[]"], done.stderr
    assert done.stdout.splitlines()[2] == "[1, 2, 5, 10]"
