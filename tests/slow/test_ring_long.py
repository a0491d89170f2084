"""Longer versions of tests/runtime: many opens, many wake-ups, many stories, a real control group."""
from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parent.parent / "runtime"
sys.path.insert(0, str(RUNTIME))
from fakes import labels, make  # noqa: E402
from pair import Pair  # noqa: E402
from pipec.runtime import attach  # noqa: E402
from pipec.runtime.plan import Column  # noqa: E402
from test_lease import Story  # noqa: E402
from test_loader import census, resident  # noqa: E402
from test_ring import fill  # noqa: E402


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("workers", "times"), [("threads", 3000), ("process", 1000)])
def test_many_opens(workers, times):
    def once():
        with make(workers, rows=40, width=3000) as loader:
            labels(loader, 32)

    for _ in range(20):
        once()
    gc.collect()
    before, memory = census(), resident()
    for _ in range(times):
        once()
    gc.collect()
    assert census() == before and resident() - memory < 16 << 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rows", [1, 3])
def test_wake_ups(rows):
    with Pair([Column("label", "i64", ())], most=rows, chunk=1, memory=40_000) as pair:
        pair.run(fill([], 1, 600_000, 1))
        count = 0
        while (got := pair.reader.take(rows)) is not None:
            assert int(got.fields["_id"][0]) == count
            count += got.count
        assert count == 600_000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 160))
def test_stories(monkeypatch, seed):
    monkeypatch.setattr(attach, "COPY_BELOW", 5000)
    for widths in ((5003,), (4096, 70_000), (1, 9001, 300), (4095, 4097), (12_288,)):
        Story(seed, widths, bool(seed % 2)).run(600)


GROUP = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
sys.path.insert(0, sys.argv[2])
from fakes import make
from pipec.runtime.errors import DataError
try:
    make("process", memory="300MB")
except DataError as error:
    print(error.code, "limit of 419.4 MB" in str(error))
loader = make("process", rows=5000, width=300_011)
kept = []
try:
    for batch in loader:
        kept.append(batch.image)
except DataError as error:
    print(error.code, len(kept) > 5)
"""


def test_a_real_control_group():
    """Errors with figures, where the kernel would kill."""
    own = next((line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None)
    group = Path(f"/sys/fs/cgroup/memory{own}/pipec-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(400 << 20))
    except OSError:
        pytest.skip("needs the right to make a memory control group (version 1)")
    try:
        command = [sys.executable, "-c", GROUP, group, RUNTIME]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.split() == ["E0809", "True", "E0808", "True"], done.stderr
    finally:
        group.rmdir()
