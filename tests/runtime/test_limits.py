"""Memory limits: sizes as text, control groups of both versions with all their ancestors, pages that can't be had."""
from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from pipec.runtime import limits, memory
from pipec.runtime import part as parts
from pipec.runtime.errors import DataError
from pipec.runtime.layout import plan_layout
from pipec.runtime.plan import Column


@pytest.mark.parametrize(("text", "size"), [
    (4096, 4096), ("4096", 4096), ("2GB", 2 * 10**9), ("2gib", 2**31), (" 1.5 MB ", 1_500_000), ("7 kb", 7000)])
def test_sizes(text, size):
    assert limits.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1 XB", "2GB;", 0, -5, True, "1e9", "9" * 40, None])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="memory="):
        limits.parse_size(text)


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


MOUNTS2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
MOUNTS1 = "31 20 0:27 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def test_the_machine(tmp_path):
    root = tree(tmp_path, {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"})
    assert limits.available(root) == limits.Room(8000 * 1024, "free memory of this machine")
    assert limits.available(str(tmp_path / "nothing")).free == limits.UNLIMITED


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_version_2_and_its_ancestors(tmp_path, depth):
    folders = ["sys/fs/cgroup", "sys/fs/cgroup/a", "sys/fs/cgroup/a/b"]
    files = {"proc/meminfo": "MemAvailable: 99999999 kB\n", "proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": MOUNTS2}
    for k, folder in enumerate(folders):
        files |= {f"{folder}/memory.max": "1000000\n" if k == depth else "max\n", f"{folder}/memory.current": "300000\n",
                  f"{folder}/memory.stat": "anon 5\ninactive_file 50000\n"}
    room = limits.available(tree(tmp_path, files))
    assert room.free == 750_000 and "control group" in room.source and "1.0 MB" in room.source


@pytest.mark.parametrize("mount_root", ["/", "/docker/x"])
def test_version_1_also_in_a_container(tmp_path, mount_root):
    inside = "" if mount_root != "/" else "docker/x/"
    folder = f"sys/fs/cgroup/memory/{inside}job"
    root = tree(tmp_path, {
        "proc/meminfo": "MemAvailable: 99999999 kB\n", "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/x/job\n0::/\n",
        "proc/self/mountinfo": MOUNTS1.format(root=mount_root), f"{folder}/memory.limit_in_bytes": "5000000\n",
        f"{folder}/memory.usage_in_bytes": "4900000\n", f"{folder}/memory.stat": "total_inactive_file 1000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n"})
    assert limits.available(root).free == 101_000


def test_more_used_than_allowed(tmp_path):
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": MOUNTS2,
                           "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "300\n"})
    assert limits.available(root).free == 0


def test_a_ring_is_planned_within_the_limit(monkeypatch):
    from pipec.runtime import layout

    image = [Column("image", "u8", (3, 224, 224))]
    monkeypatch.setattr(layout, "available", lambda: limits.Room(400 << 20, "control group /job with a limit of 1 GB"))
    assert plan_layout(image, 128).total <= 200 << 20
    with pytest.raises(DataError) as caught:
        plan_layout(image, 512)
    told = str(caught.value)
    assert "308.4 MB" in told and "209.7 MB" in told and "control group /job" in told and "smaller batches" in told
    with pytest.raises(DataError, match="control group /job"):
        plan_layout(image, 64, 300 << 20)


def test_pages_that_cannot_be_had(monkeypatch):
    fd = memory.create("test", 64 << 20)
    part = parts.Part(fd, 0, 64 << 20)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parts, "reserve", refuse)
    with pytest.raises(DataError, match="E0809"):
        part.take_pages(5)
    monkeypatch.undo()
    part.take_pages(5)
    assert part.taken == memory.STEP and os.fstat(fd).st_blocks * 512 >= memory.STEP
    monkeypatch.setattr(parts, "available", lambda: limits.Room(1 << 20, "free memory of this machine"))
    part.take_pages(memory.STEP)
    with pytest.raises(DataError, match="free memory of this machine"):
        part.take_pages(memory.STEP + 1)
    os.close(fd)


def test_a_small_tmpfs_is_an_error_not_a_crash(tmp_path):
    """Pages of a real file system that is full."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        fd = os.open(tmp_path / "ring", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 64 << 20)
        part = parts.Part(fd, 0, 64 << 20)
        with pytest.raises(DataError, match="E0809"):
            part.take_pages(64 << 20)
        os.close(fd)
    finally:
        del part
        subprocess.run(["umount", tmp_path], check=True)


def test_a_memfd_that_could_shrink_is_refused():
    good = memory.create("good", 8192)
    memory.check_received(good, 8192)
    with pytest.raises(ValueError, match="small"):
        memory.check_received(good, 8193)
    with pytest.raises(OSError, match="permitted"):
        os.ftruncate(good, 4096)
    unsealed = os.memfd_create("bad", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 8192)
    with pytest.raises(ValueError, match="shrink"):
        memory.check_received(unsealed, 8192)
    memory.seal(good)
    memory.Mapping(good, 0, 8192, double=True, write=False, copy_on_write=True)
    with pytest.raises(OSError, match="mmap"):
        memory.Mapping(good, 0, 8192, double=False, write=True)
    for fd in (good, unsealed):
        os.close(fd)
