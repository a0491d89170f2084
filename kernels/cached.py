"""A folder of files bounded in bytes, shared by all processes of a user: what came from far away or was unpacked.

In: a name and bytes, or a function that writes a whole file. Out: those bytes again, or a descriptor of that file. What
was used longest ago is deleted first; files that somebody holds open through `whole` are not.
"""
from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

from . import kept
from .sources import SourceError

SETTING = "PIPEC_REMOTE_CACHE"
DEFAULT = 20 << 30
STEP = 8 << 20          # bytes of a whole file that are accounted for at once
FRESH = 60.0            # seconds for which a use isn't noted again
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def limit() -> int:
    """Bytes that the cache may take: `$PIPEC_REMOTE_CACHE` ("50GB"), else 20 GiB or half of what the disk has free."""
    text = os.environ.get(SETTING)
    if text is None:
        there = kept.folder()
        while not os.path.isdir(there) and os.path.dirname(there) != there:
            there = os.path.dirname(there)
        return min(DEFAULT, shutil.disk_usage(there).free // 2)
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?i?)B?\s*", text)
    if match is None or match[2] not in UNITS:
        raise SourceError("E0813", f"{SETTING} is `{text[:40]}`, which is no size", (f"write it like {SETTING}=50GB",))
    return int(float(match[1]) * UNITS[match[2]])


class Writer(Protocol):
    """Where `whole` puts a file, piece after piece."""

    def write(self, data: bytes) -> None: ...


class Cache:
    """The cache in one folder. Any number of threads and processes may use it at once."""

    def __init__(self, folder: str | None = None, limit_bytes: int | None = None):
        self.folder = folder or os.path.join(kept.folder(), "remote")
        self.limit = limit() if limit_bytes is None else limit_bytes
        with suppress(OSError):   # one that can't be written to keeps nothing
            os.makedirs(self.folder, mode=0o700, exist_ok=True)

    # --- blocks -----------------------------------------------------------------------------------

    def get(self, name: str, size: int) -> bytes | None:
        """The bytes put there under that name, None if they are gone or damaged."""
        path = os.path.join(self.folder, name)
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read(size + 5)
                if time.time() - os.fstat(file.fileno()).st_mtime > FRESH:
                    os.utime(path)
        except OSError:
            return None
        if len(data) != size + 4 or zlib.crc32(data[:size]) != int.from_bytes(data[size:], "little"):
            return None
        return data[:size]

    def has(self, name: str, size: int) -> bool:
        """Is there something of that size; `get` says whether it is whole."""
        try:
            return os.stat(os.path.join(self.folder, name)).st_size == size + 4
        except OSError:
            return False

    def put(self, name: str, data: bytes) -> bool:
        """Keep some bytes, if there is room for them; no errors."""
        path = os.path.join(self.folder, name)
        temporary = f"{path}.{os.getpid()}.{time.monotonic_ns():x}.part"
        try:
            with open(temporary, "xb", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                if self._reserve(file.fileno(), len(data) + 4):
                    file.write(data + zlib.crc32(data).to_bytes(4, "little"))
                    self._rename(temporary, path)
                    return True
        except OSError:
            pass
        with suppress(OSError):
            os.unlink(temporary)
        return False

    # --- whole files ------------------------------------------------------------------------------

    def whole(self, name: str, make: Callable[[Writer], None], what: str) -> Pinned:
        """A whole file, made if it isn't there; it stays there as long as the result is held.

        `what` names it in messages. Raises SourceError E0813 where the cache has no room for it, and what `make` raises.
        """
        path = os.path.join(self.folder, name)
        _many_files()
        try:
            with self._alone(f"lock.{zlib.crc32(name.encode()) % 256:02x}"):   # one process makes it, others wait
                fd = _pinned(path)
                return Pinned(path, self._made(path, make, what) if fd is None else fd)
        except OSError as error:
            raise SourceError("E0813", f"{what} can't be kept in `{self.folder}`: {error.strerror}",
                              ("PIPEC_CACHE names another folder",)) from None

    def _made(self, path: str, make: Callable[[Writer], None], what: str) -> int:
        temporary = f"{path}.{os.getpid()}.part"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            writer = _Whole(self, fd, what)
            make(writer)
            self._reserve(fd, -writer.left)
            self._rename(temporary, path)
            return fd
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                os.unlink(temporary)
            with suppress(OSError), self._locked():
                self._record(self._count()[0])
            raise

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        fd = os.open(os.path.join(self.folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    # --- the bound --------------------------------------------------------------------------------

    def _reserve(self, fd: int, size: int) -> bool:
        """Make a file longer, and room for that; False if what is in use leaves none."""
        if size > self.limit:
            return False
        with self._locked():
            total = self._total()
            if total + size > self.limit:
                total = self._evict(max(0, self.limit - size))
            if total + size > self.limit:
                return False
            os.ftruncate(fd, os.fstat(fd).st_size + size)   # so that whoever counts what is there counts it too
            self._record(total + size)
            return True

    def _rename(self, temporary: str, path: str) -> None:
        with self._locked():   # a file that moves while a folder is listed may be missed, and not be counted
            os.replace(temporary, path)

    def _locked(self) -> AbstractContextManager[None]:
        return self._alone("lock.total")

    def _total(self) -> int:
        try:
            with open(os.path.join(self.folder, "total"), "rb") as file:
                return int(file.read(24))
        except (OSError, ValueError):
            return self._count()[0]

    def _record(self, total: int) -> None:
        with open(os.path.join(self.folder, "total"), "wb") as file:
            file.write(b"%d" % total)

    def _count(self) -> tuple[int, list[tuple[float, int, str]]]:
        """Bytes in the folder, and its files by last use."""
        found = []
        for entry in os.scandir(self.folder):
            with suppress(OSError):   # gone in the meantime
                if not entry.name.startswith("lock.") and entry.name != "total":
                    stat = entry.stat()
                    found.append((stat.st_mtime, stat.st_size, entry.path))
        return sum(size for _, size, _ in found), sorted(found)

    def _evict(self, most: int) -> int:
        """Delete files until a tenth less than `most` bytes are left; the bytes that are left."""
        total, files = self._count()
        for _, size, path in files:
            if total <= most * 9 // 10:
                break
            if _free(path):
                total -= size
        return total


class Pinned:
    """A whole file of the cache. `path` is there, and `fd` open, as long as this is held."""

    def __init__(self, path: str, fd: int):
        self.path, self.fd = path, fd

    def __del__(self) -> None:
        os.close(self.fd)


class _Whole:
    """A file that is written piece by piece, each accounted for before it takes room on the disk."""

    def __init__(self, cache: Cache, fd: int, what: str):
        self.cache, self.fd, self.what, self.left, self.written = cache, fd, what, 0, 0

    def write(self, data: bytes) -> None:
        while self.left < len(data):
            step = next((n for n in (STEP, len(data) - self.left) if self.cache._reserve(self.fd, n)), None)
            if step is None:
                raise SourceError("E0813", f"there is no room for {self.what}",
                                  (f"the cache in `{self.cache.folder}` holds {self.cache.limit:,} bytes at most,"
                                   f" and {self.written:,} of this file, with what else is in use, fill them",
                                   f"{SETTING}=… allows more, PIPEC_CACHE names another folder"))
            self.left += step
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.fd, view):]
        except OSError as error:
            raise SourceError("E0813", f"there is no room for {self.what}: {error.strerror}",
                              (f"it is kept in `{self.cache.folder}`; PIPEC_CACHE names another folder",)) from None
        self.left -= len(data)
        self.written += len(data)


def _many_files() -> None:
    """As many open files as this process may have: each whole file that is held is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    if 0 <= soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _pinned(path: str) -> int | None:
    """A descriptor of a file that isn't being deleted, None if it isn't there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_SH)
    if os.fstat(fd).st_nlink:
        with suppress(OSError):
            os.utime(fd)
        return fd
    os.close(fd)
    return None


def _free(path: str) -> bool:
    """Delete a file that nobody holds."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
