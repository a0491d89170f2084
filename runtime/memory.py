"""Shared memory: memfds, mappings that stand twice back to back, copy-on-write pages found and dropped.

Goes in: sizes in bytes, multiples of PAGE. Comes out: addresses. Linux only.
"""
from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource

import numpy as np

PAGE = mmap.PAGESIZE
STEP = 16 << 20                        # pages are asked for in steps of this size, as the ring is first filled

READ, WRITE, SHARED, PRIVATE, FIXED, ANONYMOUS, NORESERVE = 1, 2, 1, 2, 0x10, 0x20, 0x4000
DONT_NEED = 4
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 0x10
ADD_SEALS, GET_SEALS = 1033, 1034
FAILED = ctypes.c_void_p(-1).value

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def pages(size: int) -> int:
    """`size` rounded up to whole pages, in bytes."""
    return -(-size // PAGE) * PAGE


def create(name: str, size: int) -> int:
    """A new memfd of `size` bytes that can't change its size. Its pages are taken when they are first used."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, ADD_SEALS, SEAL_SHRINK | SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def seal(fd: int) -> None:
    """Let nobody map `fd` writable from now on (private copies excepted) nor change its seals."""
    try:
        fcntl.fcntl(fd, ADD_SEALS, SEAL_FUTURE_WRITE)
    except OSError as error:                      # Linux before 5.1 doesn't know it
        if error.errno != errno.EINVAL:
            raise
    fcntl.fcntl(fd, ADD_SEALS, SEAL_SEAL)


def check_received(fd: int, size: int) -> None:
    """Refuse a memfd from another process that is smaller than said or could shrink under us (that is SIGBUS)."""
    if os.fstat(fd).st_size < size or not fcntl.fcntl(fd, GET_SEALS) & SEAL_SHRINK:
        raise ValueError("shared memory from the other process is too small, or could shrink")


def _map(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    got = libc.mmap(address, size, protection, flags, fd, offset)
    if got is None or got == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {size:,} bytes: {os.strerror(number)}")
    return int(got)


class Mapping:
    """Bytes `offset` to `offset + size` of `fd` at `address`, and once more right behind when `double`.

    Any `size` bytes from any start below `size` are then one contiguous run. `copy_on_write` pages can be
    written to without anybody else seeing it. Unmapped when the object goes.
    """

    def __init__(self, fd: int, offset: int, size: int, *, double: bool, write: bool, copy_on_write: bool = False):
        self.size = size
        self.length = 2 * size if double else size
        self.address = 0
        flags = PRIVATE | NORESERVE if copy_on_write else SHARED
        protection = READ | WRITE if write or copy_on_write else READ
        base = _map(None, self.length, 0, PRIVATE | ANONYMOUS | NORESERVE, -1, 0)
        self.address = base
        try:
            for start in range(base, base + self.length, size):
                _map(start, size, protection, flags | FIXED, fd, offset)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self.address:
            libc.munmap(self.address, self.length)
            self.address = 0

    def __del__(self) -> None:
        self.close()


def reserve(fd: int, start: int, size: int) -> None:
    """Take the pages of a range now, so that a lack of them is an OSError here and not SIGBUS in a kernel."""
    os.posix_fallocate(fd, start, size)


def drop(address: int, size: int) -> None:
    """Forget private copies of these pages: the next read sees the shared bytes again."""
    if libc.madvise(address, size, DONT_NEED):
        raise OSError(ctypes.get_errno(), "madvise")


class Pagemap:
    """Which pages of this process are private copies: present or swapped, and not a page of a file."""

    def __init__(self) -> None:
        try:
            self.fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.fd = -1

    def private(self, address: int, count: int) -> np.ndarray:
        """One bool for each of `count` pages from `address`; all True where the kernel doesn't say."""
        try:
            words = np.frombuffer(os.pread(self.fd, count * 8, address // PAGE * 8), np.uint64)
        except OSError:
            return np.ones(count, bool)
        if len(words) != count:
            return np.ones(count, bool)
        used = (words >> np.uint64(62)) != 0
        private: np.ndarray = used & ((words >> np.uint64(61)) & np.uint64(1) == 0)
        return private

    def drop_private(self, address: int, count: int) -> None:
        """Drop those of `count` pages that are private copies; shared ones keep their place in the page table."""
        private = self.private(address, count)
        if not private.any():
            return
        edges = np.flatnonzero(np.diff(np.concatenate(([False], private, [False]))))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            drop(address + start * PAGE, (stop - start) * PAGE)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def faults() -> int:
    """Pages that this process has got without reading a file: it rises whenever a shared page becomes a private copy."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
