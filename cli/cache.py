"""`pipec cache`: where the user's cache is, what it holds, and how to make it smaller."""
from __future__ import annotations

import argparse

from ..runtime import caches
from ..runtime.limits import show_size
from . import UsageError


def cache(arguments: argparse.Namespace) -> int:
    """Show what the cache holds, or delete from it."""
    if arguments.action == "clear":
        gone = caches.clear(arguments.keep or 0)
        print(f"deleted {gone.count:,} entr{'y' if gone.count == 1 else 'ies'}, {show_size(gone.size)}")
        return 0
    if arguments.keep is not None:
        raise UsageError("--keep goes with `pipec cache clear`")
    print(caches.folder())
    for kind, found in caches.contents().items():
        print(f"  {kind:<9} {found.count:>6,} entries  {show_size(found.size):>9}")
    print(f"  limit     {show_size(caches.limit())} (PIPEC_CACHE_LIMIT), the least recently used go first")
    return 0
