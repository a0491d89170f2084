"""The cache folder: unchanged programs start without compiling, processes share it, kills leave it whole, it stays bounded."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pipec.cli import main
from pipec.runtime import caches, objects, plancache

PROGRAM = """
seed 3
schema Sample
  x: f32[4]

pipeline train
  from npz("{data}") as Sample
  shuffle()
  y = [x[i] * {factor} for i]
  emit y
"""
# A process that opens a program and says what it loaded.
OPEN = """
import sys
from pipec.runtime import plancache
plancache.version = lambda: b"1"     # of a checkout that others may be editing
import pipec
if __name__ == "__main__":
    with pipec.open(sys.argv[1], as_="numpy", threads=1) as loader:
        total = sum(float(r.y.sum()) for r in loader)
    print(total, [m for m in ("numba", "lark", "llvmlite", "pipec.compiler") if m in sys.modules], flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PIPEC_KEY", raising=False)
    monkeypatch.delenv("PIPEC_CACHE_LIMIT", raising=False)
    (tmp_path / "opened.py").write_text(OPEN)
    return tmp_path / "cache"


def program(where: Path, factor: int = 2) -> Path:
    np.savez(where / "data.npz", x=np.ones((10, 4), "f4"))
    path = where / f"p{factor}.pipe"
    path.write_text(PROGRAM.format(data=where / "data.npz", factor=factor))
    return path


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(path.parent / "opened.py"), str(path)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def opened(path: Path) -> str:
    process = start(path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out.strip()


def test_an_unchanged_program_starts_without_compiling(tmp_path: Path) -> None:
    path = program(tmp_path)
    assert opened(path).startswith("80.0 ['numba'")
    assert opened(path) == "80.0 []"
    path.write_text(path.read_text().replace("* 2", "* 3"))
    assert opened(path).startswith("120.0 ['numba'")


def test_processes_that_start_at_once_and_are_killed(tmp_path: Path, cache: Path) -> None:
    """Some are killed wherever they are; the others, and whoever comes after, get right numbers."""
    paths = [program(tmp_path, factor) for factor in (2, 3)]
    processes = [start(paths[n % 2]) for n in range(4)]
    for n, process in enumerate(processes[:2]):
        time.sleep(0.7 + n)
        process.send_signal(signal.SIGKILL)
    for n, process in enumerate(processes):
        out, err = process.communicate(timeout=240)
        assert n < 2 or (process.returncode == 0 and out.split()[0] == ("80.0", "120.0")[n % 2]), err
    assert [opened(p) for p in paths] == ["80.0 []", "120.0 []"]
    assert (cache / "key").stat().st_mode & 0o777 == 0o600


def known(path: str) -> str | None:
    """The hash of the program whose plan is kept."""
    found = plancache.find(path, {}, None)
    return None if found is None else found.fingerprint


def test_a_damaged_or_foreign_plan_counts_as_absent(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipec.compiler.compile import plan_for

    path = str(program(tmp_path))
    made = plan_for(path)
    assert known(path) == made.fingerprint
    (entry,) = (cache / "plans").iterdir()
    good = entry.read_bytes()
    for damaged in (good[:-1], good[:40], b"", good[:50] + bytes([good[50] ^ 1]) + good[51:]):
        entry.write_bytes(damaged)
        assert known(path) is None
    entry.write_bytes(good)
    assert known(path) == made.fingerprint
    monkeypatch.setenv("PIPEC_KEY", "another")
    assert known(path) is None


def test_tables_that_a_program_reads_are_part_of_it(tmp_path: Path) -> None:
    from pipec.compiler.compile import plan_for

    table, source = tmp_path / "t.csv", tmp_path / "p.pipe"
    table.write_text("k,v\na,1\n")
    source.write_text(f'schema R\n  w: text\n\npipeline p\n  from lines("w.txt") as R\n'
                      f'  n = lookup(w, "{table}", key="k", column="v") ?? -1\n  emit n\n')
    first = plan_for(str(source))
    assert known(str(source)) == first.fingerprint
    table.write_text("k,v\na,2\n")
    assert known(str(source)) is None
    second = plan_for(str(source))
    assert second.fingerprint != first.fingerprint
    table.write_text("k,v\na,1\n")
    assert plan_for(str(source)).fingerprint == first.fingerprint


def test_a_cache_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """A good one is read all the same; where something must be compiled, the message says what the folder is for."""
    source = program(tmp_path)
    assert main(["run", str(source), "--plain"]) == 0
    put = objects._put

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(objects, "_put", full)
    assert main(["run", str(source), "--plain"]) == 0
    capsys.readouterr()
    other = program(tmp_path, 5)
    assert main(["run", str(other), "--plain"]) == 1
    said = capsys.readouterr().err
    assert "No space left on device; machine code is kept there, and PIPEC_CACHE=FOLDER names another place" in said
    monkeypatch.setattr(objects, "_put", put)
    for place, why in (("/dev/null/cache", "Not a directory"), ("/proc/cache", "No such file or directory")):
        monkeypatch.setenv("PIPEC_CACHE", place)
        assert main(["run", str(other), "--plain"]) == 1
        assert f"`{place}`: {why}; machine code" in capsys.readouterr().err


def test_two_keys_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes over what another key has signed: each finds its own again."""
    from pipec.compiler.compile import plan_for

    path = str(program(tmp_path))
    (kernel,) = plan_for(path).kernels
    monkeypatch.setenv("PIPEC_KEY", "a team's")
    assert known(path) is None
    plan_for(path)
    assert known(path) is not None
    monkeypatch.delenv("PIPEC_KEY")
    assert known(path) is not None and objects.holds(kernel.key)


def fill(cache: Path, sizes: dict[str, int], age: float) -> None:
    for name, size in sizes.items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(b"x" * size)
        os.utime(cache / name, (time.time() - age, time.time() - age))


def test_the_cache_is_bounded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects.user_key()
    fill(cache, {"a.o": 1000, "tar/old": 5000}, 9000)
    fill(cache, {"b.o": 1000, "plans/p": 1000}, 4000)
    fill(cache, {"c.o": 4000}, 1)
    monkeypatch.setenv("PIPEC_CACHE_LIMIT", "6kB")
    assert caches.bound() == caches.Amount(2, 6000)
    assert sorted(p.name for p in cache.rglob("*") if p.is_file()) == ["b.o", "c.o", "key", "p"]
    monkeypatch.setenv("PIPEC_CACHE_LIMIT", "1kB")
    caches.bound()
    assert sorted(p.name for p in cache.rglob("*") if p.is_file()) == ["c.o", "key"]   # what is in use now stays
    monkeypatch.setenv("PIPEC_CACHE_LIMIT", "much")
    with pytest.raises(ValueError, match="PIPEC_CACHE_LIMIT"):
        caches.bound()


def test_a_limit_that_is_no_size(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPEC_CACHE_LIMIT", "abc")
    assert main(["cache"]) == 2
    assert capsys.readouterr().err == "pipec cache: PIPEC_CACHE_LIMIT='abc': write bytes as a number, or a size like \"500MB\"\n"


def test_the_command(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith(str(cache))
    objects.user_key()
    fill(cache, {"a.o": 3000}, 100)
    fill(cache, {"b.o": 1000, "plans/p": 1000}, 0)
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "objects        2 entries     4.0 kB" in out and "plans          1 entries     1.0 kB" in out and "536.9 MB" in out
    assert main(["cache", "clear", "--keep", "2kB"]) == 0
    assert "deleted 1 entry, 3.0 kB" in capsys.readouterr().out
    assert main(["cache", "--keep", "2kB"]) == 2 and "goes with" in capsys.readouterr().err
    assert main(["cache", "clear"]) == 0
    assert [p.name for p in cache.rglob("*") if p.is_file()] == ["key"]
