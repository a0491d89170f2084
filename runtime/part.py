"""One ring of bytes of the memfd: where a position lies, and its pages, taken as they are first used."""
from __future__ import annotations

import errno
import os

from .limits import MARGIN, available, too_little
from .memory import PAGE, STEP, Mapping, reserve


class Part:
    """One ring of bytes of the memfd, mapped, and how much of it has its pages."""

    def __init__(self, fd: int, offset: int, size: int):
        self.fd, self.offset, self.size = fd, offset, size
        self.map = Mapping(fd, offset, size, double=True, write=True)
        self.taken = 0

    @property
    def whole(self) -> bool:
        """Has every byte its page?"""
        return self.taken >= self.size

    def at(self, position: int) -> int:
        return self.map.address + position % self.size

    def take_pages(self, end: int) -> None:
        """Have pages for every byte before position `end`: in steps, on the first lap only."""
        while self.taken < min(end, self.size):
            step = min(max(STEP, PAGE), self.size - self.taken)
            room = available()
            if room.free < step + MARGIN:
                raise too_little(step + MARGIN, room.free, room.source, "the next part of the ring",
                                 "give the process more memory, or write a smaller `memory=`")
            try:
                reserve(self.fd, self.offset + self.taken, step)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                    raise
                raise too_little(step, room.free, os.strerror(error.errno), "the next part of the ring",
                                 "give the process more memory, or write a smaller `memory=`") from error
            self.taken += step
