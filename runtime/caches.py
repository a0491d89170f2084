"""The user's cache folder as a whole: what it holds, how large it is, and what goes first.

Objects lie in the folder itself, every other kind in a folder of its own: `plans`, indexes of data, copies of remote files.
"""
from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..kernels import kept
from .errors import SettingError
from .limits import parse_size

DEFAULT_LIMIT = 512 << 20
YOUNG_SECONDS = 120.0     # what was used just now is about to be used: a process has found it, its producer hasn't yet
OWN_LIMITS = ("remote",)  # kinds that keep a limit of their own
KEY = "key"


@dataclass(frozen=True)
class Entry:
    """One file: when it was last used (s), its size, where it is."""

    used: float
    size: int
    kind: str
    path: str


@dataclass(frozen=True)
class Amount:
    count: int = 0
    size: int = 0

    def and_one(self, size: int) -> Amount:
        return Amount(self.count + 1, self.size + size)


def folder() -> str:
    return kept.folder()


def limit() -> int:
    """Bytes that all entries together may take: `PIPEC_CACHE_LIMIT`, such as 200MB. Raises SettingError."""
    given = os.environ.get("PIPEC_CACHE_LIMIT")
    if not given:
        return DEFAULT_LIMIT
    try:
        return parse_size(given)
    except ValueError:
        raise SettingError(f"PIPEC_CACHE_LIMIT={given!r}: write bytes as a number, or a size like \"500MB\"") from None


def entries() -> Iterator[Entry]:
    """Every entry; files that another process is still writing are among them."""
    root = folder()
    for place, _, names in os.walk(root):
        inside = os.path.relpath(place, root)
        kind = "objects" if inside == "." else inside.split(os.sep)[0]
        for name in names:
            if inside == "." and (name.startswith(KEY) or name.startswith(f".{KEY}")):
                continue
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                info = os.stat(path, follow_symlinks=False)
                yield Entry(info.st_mtime, info.st_size, kind, path)


def contents() -> dict[str, Amount]:
    """How many entries there are of each kind, and their bytes."""
    found: dict[str, Amount] = {}
    for entry in entries():
        found[entry.kind] = found.get(entry.kind, Amount()).and_one(entry.size)
    return dict(sorted(found.items()))


def bound() -> Amount:
    """Delete what was used longest ago until all entries together are within the limit; what is young stays."""
    return _shrink([e for e in entries() if e.kind not in OWN_LIMITS], limit(), time.time() - YOUNG_SECONDS)


def clear(keep: int = 0) -> Amount:
    """Delete all entries, or those used longest ago until `keep` bytes are left."""
    return _shrink(list(entries()), keep, float("inf"))


def _shrink(found: list[Entry], most: int, before: float) -> Amount:
    total, gone = sum(e.size for e in found), Amount()
    for entry in sorted(found, key=lambda e: e.used):
        if total <= most or entry.used >= before:
            break
        with contextlib.suppress(OSError):
            os.unlink(entry.path)
            total, gone = total - entry.size, gone.and_one(entry.size)
    return gone
