"""The files of a source, by path or by address: read at any place, opened, and told apart the same way wherever they are."""
from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any

from . import fetch
from .compressed import Damaged, Sliding, Unpacked, kind_of
from .ops import BadRecord
from .remote import Remote, RemoteFile, opened

WINDOWS = 4   # files read front to back at once


class Files:
    """At most `limit` files open at once. What is remote is asked about first and must then stay as it is.

    `pread` may be called from several threads at once. With `stream` packed files are read front to back, not unpacked
    into the cache. Raises SourceError where an address can't be read.
    """

    def __init__(self, paths: Sequence[str], limit: int = 128, stream: bool = False):
        self.paths, self.limit, self.stream = list(paths), limit, stream
        self._open: OrderedDict[int, _Shared] = OrderedDict()
        self._lock = threading.Lock()
        far = [n for n, p in enumerate(self.paths) if fetch.is_remote(p)]
        self.sliding: OrderedDict[int, Sliding] = OrderedDict()   # those that hold a window, the last used ones
        self.far: dict[int, Remote | Unpacked | Sliding] = dict(zip(far, fetch.every([self.paths[n] for n in far], opened)))

    def size(self, number: int) -> int:
        """Raises OSError."""
        return self.far[number].size if number in self.far else os.path.getsize(self.paths[number])

    def identity(self, number: int) -> str:
        """What changes when the file's content does. Raises OSError."""
        if number in self.far:
            return self.far[number].identity
        path = self.paths[number]
        stat = os.stat(path)
        return f"{os.path.abspath(path)}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}"

    def open(self, number: int) -> IO[bytes]:
        """The file as a seekable object. Raises OSError."""
        if number in self.far:
            return RemoteFile(self.far[number])  # type: ignore[return-value]
        return open(self.paths[number], "rb")

    def packed(self, number: int) -> str | None:
        """How a file is compressed, if it is: from then on it is what is packed in it. Raises OSError."""
        with self.open(number) as file:
            kind = kind_of(file.read(8))
        if kind is not None:
            far, path = self.far.get(number), self.paths[number]
            again: Callable[[], Any] = partial(open, path, "rb") if far is None else partial(RemoteFile, far)
            made = Sliding if self.stream else Unpacked
            self.far[number] = made(self.identity(number), kind, again, self.shown(number))
        return kind

    def is_file(self, number: int) -> bool:
        return number in self.far or os.path.isfile(self.paths[number])

    def local(self, number: int) -> str:
        """Where the whole file lies on this machine, as long as this is held. Raises SourceError."""
        far = self.far.get(number)
        assert not isinstance(far, Sliding)
        return self.paths[number] if far is None else far.whole().path

    def _slide(self, number: int, far: Sliding) -> None:
        """Let go of windows that were used before the last `WINDOWS` ones."""
        with self._lock:
            self.sliding[number] = far
            self.sliding.move_to_end(number)
            gone = self.sliding.popitem(last=False)[1] if len(self.sliding) > WINDOWS else None
        if gone is not None:
            with gone.lock:
                gone.close()

    def shown(self, number: int) -> str:
        """The file's name for people."""
        return os.path.basename(fetch.shown(self.paths[number]))

    def shown_path(self, number: int) -> str:
        return fetch.shown(self.paths[number])

    def pread(self, number: int, size: int, offset: int) -> bytes:
        """`size` bytes at `offset` of file `number`. Raises BadRecord, SourceError."""
        far = self.far.get(number)
        if far is not None:
            if isinstance(far, Sliding):
                self._slide(number, far)
            try:
                data = far.pread(size, offset)
            except Damaged as error:
                raise BadRecord("E0801", str(error)) from None
            if len(data) < size:
                raise BadRecord("E0801", f"`{self.shown(number)}` ends early")
            return data
        shared = self._take(number)
        try:
            data = os.pread(shared.fd, size, offset)
            while len(data) < size:
                more = os.pread(shared.fd, size - len(data), offset + len(data))
                if not more:
                    raise BadRecord("E0801", f"`{os.path.basename(self.paths[number])}` ends early")
                data += more
            return data
        except OSError as error:
            raise BadRecord("E0801", f"`{self.paths[number]}` can't be read: {error.strerror}") from None
        finally:
            self._give(shared)

    def _take(self, number: int) -> _Shared:
        with self._lock:
            shared = self._open.get(number)
            if shared is None:
                try:
                    shared = _Shared(os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC))
                except OSError as error:
                    raise BadRecord("E0801", f"`{self.paths[number]}` can't be read: {error.strerror}") from None
                self._open[number] = shared
            self._open.move_to_end(number)
            shared.users += 1
            if len(self._open) > self.limit:
                _, oldest = self._open.popitem(last=False)
                oldest.drop()
            return shared

    def _give(self, shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            if shared.users == 0 and shared.dropped:
                os.close(shared.fd)

    def __del__(self) -> None:
        for shared in self._open.values():
            os.close(shared.fd)


def content(path: str) -> bytes:
    """All of a file. Raises BadRecord, SourceError."""
    try:
        if fetch.is_remote(path):
            file = opened(path)
            return file.pread(file.size, 0)
        with open(path, "rb") as near:
            return near.read()
    except (OSError, MemoryError) as error:
        raise BadRecord("E0801", f"`{path}` can't be read: {getattr(error, 'strerror', None) or 'it is too large'}") from None


class _Shared:
    """An open file that is closed when the last reader is done with it."""

    def __init__(self, fd: int):
        self.fd, self.users, self.dropped = fd, 0, False

    def drop(self) -> None:
        self.dropped = True
        if self.users == 0:
            os.close(self.fd)
