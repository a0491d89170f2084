"""How much memory this process may still take: the machine's, and every control group's above it (v1 and v2).

Beyond a control group's limit the kernel kills a process instead of failing a call, so it is asked first.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import DataError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
UNLIMITED = 1 << 60                    # v1 writes a huge number where there is no limit
MARGIN = 32 << 20                      # left to the rest of the process


@dataclass(frozen=True)
class Room:
    """`free` bytes can still be taken; `source` says in words what sets the limit."""

    free: int
    source: str


def parse_size(text: int | str) -> int:
    """Bytes of 1_000_000, "512MB" (10⁶) or "2GiB" (2³⁰)."""
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
        if match is None or match[2].upper() not in UNITS:
            raise ValueError(f"memory={text!r}: write bytes as a number, or a size like \"500MB\" or \"2GB\"")
        size = int(float(match[1]) * UNITS[match[2].upper()])
    if not 0 < size < UNLIMITED:
        raise ValueError(f"memory={text!r}: a size has to be more than 0 and less than {show_size(UNLIMITED)}")
    return size


def show_size(size: int) -> str:
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def available(root: str = "/") -> Room:
    """The least room of the machine and of all control groups of this process. `root` is for tests."""
    rooms = [*_machine(Path(root)), *_groups(Path(root))]
    return min(rooms, key=lambda room: room.free, default=Room(UNLIMITED, "no limit is known"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _machine(root: Path) -> Iterator[Room]:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.M)
    if found:
        yield Room(int(found[1]) * 1024, "free memory of this machine")


def _groups(root: Path) -> Iterator[Room]:
    """Every memory group from the process's own up to the root of its mount."""
    own = [line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines() if line.count(":") >= 2]
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or not after or after[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if after[0] == "cgroup2" else 1
        if version == 1 and "memory" not in after[-1].split(","):
            continue
        for _, controllers, path in own:
            if (version == 2 and not controllers) or (version == 1 and "memory" in controllers.split(",")):
                mount = root / before[4].lstrip("/")
                yield from _ancestors(mount, _below(before[3], path), version)


def _below(mount_root: str, path: str) -> str:
    """The group's path under its mount, which may show only a part of the tree (containers)."""
    inside = path == mount_root or path.startswith(mount_root.rstrip("/") + "/")
    return path[len(mount_root.rstrip("/")):] if inside else "/"


def _ancestors(mount: Path, path: str, version: int) -> Iterator[Room]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    names = ("memory.max", "memory.current", "inactive_file") if version == 2 else (
        "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        limit, used = _read(folder / names[0]).strip(), _read(folder / names[1]).strip()
        if limit.isdigit() and used.isdigit() and int(limit) < UNLIMITED:
            cached = re.search(rf"^{names[2]} (\d+)", _read(folder / "memory.stat"), re.M)
            free = int(limit) - int(used) + (int(cached[1]) if cached else 0)
            yield Room(max(0, free), f"control group /{'/'.join(parts[:depth])} with a limit of {show_size(int(limit))}")


def too_little(need: int, have: int, source: str, what: str, *advice: str) -> DataError:
    """E0809 with its figures."""
    return DataError(
        "E0809", f"not enough memory for the ring: it needs {show_size(need)}, there are {show_size(have)}",
        notes=(f"needed for {what}: {need:,} bytes", f"there: {have:,} bytes ({source})", *advice),
    )
