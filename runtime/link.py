"""What a loader holds of a stream: the connection to its producer, the reader of its rows, and what both have counted."""
from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

from .attach import RowReader
from .attachment import Attachment
from .layout import Layout

links: weakref.WeakSet[Link] = weakref.WeakSet()   # all of this process


class Link:
    """Ends when it is let go of; in a forked child it is let go of at once, so that the producer sees when we leave."""

    def __init__(self, writable: bool):
        """`writable`: the loop may write into its batches."""
        self.writable = writable
        self.pid = os.getpid()
        self.forked = False                               # this is a forked child: none of it is ours
        self.pidfd: int | None = None                     # of the producer's process
        self.attachment: Attachment
        self.reader: RowReader | None = None
        self.layout: Layout
        self.length: int | None = None                    # rows of an epoch, where that is known
        self.weights: dict[int, str] = {}                 # epoch → the version that it reads where it is resumed
        self.moved = False                                # the user has said where to go on, in all ranks of a group
        self.before = {"records": 0, "bytes": 0, "waited": 0.0, "lost": 0}
        links.add(self)

    def counts(self) -> dict[str, Any]:
        """Rows and bytes read, rows lost, seconds waited, and batches moved aside."""
        reader = self.reader
        if reader is None:
            return dict(self.before)
        now = {"records": reader.rows, "bytes": reader.bytes, "waited": reader.waited, "lost": reader.lost}
        moved = reader.leases.counts
        return {k: v + now[k] for k, v in self.before.items()} | {"moved": moved.moved, "moved_bytes": moved.moved_bytes}

    def leave(self) -> None:
        """Held arrays keep their memory."""
        if self.reader is not None:
            kept = self.counts()
            self.before = {k: kept[k] for k in self.before}
            self.reader.leases.close()
            self.reader = None
        if hasattr(self, "attachment"):
            self.attachment.close()
        self._forget_process()

    def let_go(self) -> None:
        """In a forked child."""
        self.forked = True
        if hasattr(self, "attachment"):
            with contextlib.suppress(OSError):
                self.attachment.close()
        if self.reader is not None:
            self.reader.leases.pagemap.close()
        self._forget_process()

    def _forget_process(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _after_fork() -> None:
    for link in list(links):
        link.let_go()


os.register_at_fork(after_in_child=_after_fork)
