"""Bytes that a producer and its worker processes have read from files, as the system counts them.

It counts what was asked for with `read`, also where it lay in memory already, or what came from the disk for mapped files,
whichever is more. Counting costs the producer nothing.
"""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

ASKED, FROM_DISK = b"rchar:", b"read_bytes:"


def bytes_read(pid: int) -> int | None:
    """Of one process since it began; None where the system doesn't tell."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            told = dict(zip(*[iter(file.read().split())] * 2, strict=False))
        return max(int(told[ASKED]), int(told[FROM_DISK]))
    except (OSError, KeyError, ValueError):
        return None


class Reading:
    """Bytes read since it was made by this process, and by workers in all."""

    def __init__(self) -> None:
        self.before = bytes_read(os.getpid())

    def count(self, engine: Any) -> int | None:
        """`engine`: whose workers count, too."""
        now = bytes_read(os.getpid())
        if now is None or self.before is None:
            return None
        return now - self.before + sum(bytes_read(pid) or 0 for pid in _workers(engine))


def _workers(engine: Any) -> Sequence[int]:
    workers = getattr(engine, "workers", None)
    return [p.process.pid for p in workers.all] if workers is not None else []
