"""One file far away, read in ranges: blocks of it are kept in the cache on disk, and fetched ahead where it is read in order.

In: an address (`s3:// gs:// http:// https:// hf://`). Out: its size, what identifies its content, and bytes at any place.
"""
from __future__ import annotations

import hashlib
import io
import os
import queue
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from . import fetch
from .cached import Cache, Pinned
from .ops import BadRecord
from .sources import SourceError

if TYPE_CHECKING:
    from concurrent.futures import Future  # takes long to load, and most files are near

BLOCK = 1 << 20
RUN = 8            # blocks that one request asks for at most
AHEAD = 16         # blocks that are fetched ahead at most
RECENT = 48        # blocks kept in memory, of all files together
THREADS = 8


class Pool:
    """A few threads that end with the process, whatever they wait for."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self.process, self.started = os.getpid(), 0
        self.lock = threading.Lock()

    def submit(self, work: Callable[[], Any], future: Future[Any]) -> None:
        with self.lock:
            if self.started < THREADS:
                self.started += 1
                threading.Thread(target=self._run, name="pipec-remote", daemon=True).start()
        self.work.put((future, work))

    def _run(self) -> None:
        while True:
            future, work = self.work.get()
            try:
                future.set_result(work())
            except BaseException as error:   # handed to whoever waits
                future.set_exception(error)


class Shared:
    """What all remote files of this process have in common."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.cache, self.pool = Cache(), Pool()
        self.recent: OrderedDict[str, bytes] = OrderedDict()
        self.lock = threading.Lock()

    def remember(self, name: str, data: bytes) -> None:
        with self.lock:
            self.recent[name] = data
            self.recent.move_to_end(name)
            while len(self.recent) > RECENT:
                self.recent.popitem(last=False)

    def block(self, name: str, size: int) -> bytes | None:
        with self.lock:
            found = self.recent.get(name)
            if found is not None:
                self.recent.move_to_end(name)
        if found is None and (found := self.cache.get(name, size)) is not None:
            self.remember(name, found)
        return found


_shared: list[Shared] = []
_opening = threading.Lock()


def shared() -> Shared:
    with _opening:
        if not _shared or _shared[0].process != os.getpid():   # threads and locks don't outlive a fork
            _shared[:] = [Shared()]
        return _shared[0]


def opened(url: str) -> Remote:
    """The file at an address as it is now. Raises SourceError."""
    return Remote(url, fetch.about(url), shared())


class Remote:
    """A file of known size and content. `pread` may be called from several threads."""

    def __init__(self, url: str, about: fetch.About, ours: Shared):
        self.url, self.about, self.ours = url, about, ours
        self._forget()
        about_it = about.tag or uuid.uuid4().hex   # without a tag what is kept serves this run only
        self.identity = f"{url}\0{about.size}\0{about_it}"
        self.key = hashlib.blake2b(self.identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self.all: Pinned | None = None
        if about.size is None or not about.ranges:
            self.whole()

    def _forget(self) -> None:
        self.process, self.lock = os.getpid(), threading.Lock()
        self.flying: dict[int, Future[dict[int, bytes]]] = {}
        self.last, self.ahead = -1, 0

    @property
    def size(self) -> int:
        if self.all is not None:
            return os.fstat(self.all.fd).st_size
        assert self.about.size is not None
        return self.about.size

    def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes at `offset`, fewer at the end of the file. Raises SourceError."""
        size = min(size, max(0, self.size - offset))
        if size <= 0:
            return b""
        try:
            return self._ranges(size, offset) if self.all is None else _pread(self.all.fd, size, offset)
        except fetch.NoRanges:
            return _pread(self.whole().fd, size, offset)

    def _ranges(self, size: int, offset: int) -> bytes:
        first, last = offset // BLOCK, (offset + size - 1) // BLOCK
        if first == last:
            return self._blocks(first, last)[0][offset - first * BLOCK : offset - first * BLOCK + size]
        out = bytearray()
        for start in range(first, last + 1, AHEAD):   # what is held at once is bounded
            for b, data in enumerate(self._blocks(start, min(last, start + AHEAD - 1)), start):
                out += memoryview(data)[max(0, offset - b * BLOCK) : offset + size - b * BLOCK]
        return bytes(out)

    def whole(self) -> Pinned:
        """All of it as one file of the cache. Raises SourceError."""
        if self.all is None:
            found = self.ours.cache.whole(f"{self.key}.whole", self._fill, f"`{fetch.shown(self.url)}`")
            with self.lock:
                self.all = self.all or found
        return self.all

    def _fill(self, writer: Any) -> None:
        if self.about.size is None or not self.about.ranges:
            fetch.all_of(self.url, self.about, writer.write)
            return
        try:
            for offset in range(0, self.about.size, RUN * BLOCK):
                data = self._ranges(min(RUN * BLOCK, self.about.size - offset), offset)
                writer.write(data)
        except fetch.NoRanges:
            if offset:
                raise SourceError("E0812", f"`{fetch.shown(self.url)}`: the server gave ranges, then none") from None
            fetch.all_of(self.url, self.about, writer.write)

    # --- blocks -----------------------------------------------------------------------------------

    def _blocks(self, first: int, last: int) -> list[bytes]:
        """Blocks `first` to `last`; those after them are fetched ahead if the file is being read in order."""
        if self.process != os.getpid():   # threads, and what they were about to bring, don't outlive a fork
            self.ours = shared()
            self._forget()
        found = {}
        for b in range(first, last + 1):
            if (data := self.ours.block(self._name(b), self._length(b))) is not None:
                found[b] = data
        with self.lock:
            waiting = self._missing([b for b in range(first, last + 1) if b not in found], found)
            if last != self.last:
                self._read_ahead(first, last)
        for future in dict.fromkeys(waiting):
            found.update(future.result())
        return [found[b] for b in range(first, last + 1)]

    def _read_ahead(self, first: int, last: int) -> None:
        in_order = 0 <= self.last <= first <= self.last + self.ahead + 1
        self.ahead = min(AHEAD, 2 * self.ahead or 2) if in_order else 0
        self.last = last
        blocks = -(-self.size // BLOCK)
        end = min(blocks, last + 1 + self.ahead)
        beyond = [b for b in range(last + 1, end) if b not in self.flying and not self._here(b)]
        if 2 * len(beyond) >= self.ahead or end == blocks:   # few requests for many blocks
            self._send(beyond)

    def _here(self, block: int) -> bool:
        name = self._name(block)
        return name in self.ours.recent or self.ours.cache.has(name, self._length(block))

    def _missing(self, blocks: list[int], found: dict[int, bytes]) -> list[Future[dict[int, bytes]]]:
        """The requests that bring blocks; those that have come in the meantime are put into `found`."""
        waiting, absent = [], []
        for b in blocks:
            if b in self.flying:
                waiting.append(self.flying[b])
            elif (data := self.ours.recent.get(self._name(b))) is not None:
                found[b] = data
            else:
                absent.append(b)
        return waiting + self._send(absent)

    def _send(self, blocks: list[int]) -> list[Future[dict[int, bytes]]]:
        """Ask for blocks, those that follow each other in one request."""
        runs: list[list[int]] = []
        for b in blocks:
            if runs and runs[-1][-1] == b - 1 and len(runs[-1]) < RUN:
                runs[-1].append(b)
            else:
                runs.append([b])
        sent = []
        for run in runs:
            from concurrent.futures import Future

            future: Future[dict[int, bytes]] = Future()
            self.flying.update(dict.fromkeys(run, future))
            self.ours.pool.submit(partial(self._fetched, run), future)
            sent.append(future)
        return sent

    def _fetched(self, run: list[int]) -> dict[int, bytes]:
        try:
            start = run[0] * BLOCK
            data = fetch.bytes_of(self.url, start, run[-1] * BLOCK + self._length(run[-1]), self.about)
            made = {b: data[b * BLOCK - start : b * BLOCK - start + BLOCK] for b in run}
            for b, part in made.items():
                self.ours.remember(self._name(b), part)
                self.ours.cache.put(self._name(b), part)
            return made
        finally:
            with self.lock:
                for b in run:
                    self.flying.pop(b, None)

    def _name(self, block: int) -> str:
        return f"{self.key}.{block}"

    def _length(self, block: int) -> int:
        return min(BLOCK, self.size - block * BLOCK)


def _pread(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise BadRecord("E0801", "the file ends early")
        data += more
    return data


class Readable(Protocol):
    """Bytes at any place of something of known size."""

    @property
    def size(self) -> int: ...

    def pread(self, size: int, offset: int) -> bytes: ...


class RemoteFile(io.RawIOBase):
    """What can be read at any place as a seekable file object."""

    def __init__(self, file: Readable):
        super().__init__()
        self.file, self.at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.file.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        data = self.file.pread(len(buffer), self.at)
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        data = self.file.pread(self.file.size - self.at if size is None or size < 0 else size, self.at)
        self.at += len(data)
        return data
