"""Compressed files (gzip, zstd, bzip2, xz) as files that can be read at random: unpacked once into the bounded cache, or,
where a program reads them front to back, again and again through a window in memory.

In: a file's bytes in order and what identifies it. Out: size and bytes at any place of what is packed in it.
"""
from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from .cached import Pinned, Writer
from .remote import shared
from .sources import SourceError

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
PIECE = 1 << 20
WINDOW = 64 << 20   # bytes of a file read front to back that are kept in memory


class Damaged(Exception):
    """What is packed can't be unpacked to its end."""


def kind_of(start: bytes) -> str | None:
    """How a file that begins so is packed."""
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)


def unpacking(kind: str, file: IO[bytes]) -> IO[bytes]:
    """What is packed, as a stream. Raises SourceError where that needs a package that isn't there."""
    import bz2
    import gzip
    import lzma

    if kind != "zstd":
        readers: dict[str, Any] = {"gzip": gzip.GzipFile, "bzip2": bz2.BZ2File, "xz": lzma.LZMAFile}
        return readers[kind](**{"fileobj" if kind == "gzip" else "filename": file})  # type: ignore[no-any-return]
    try:
        import pyarrow as pa
    except ImportError:
        raise SourceError("E0810", "files packed with zstd are read with the package pyarrow, which isn't installed",
                          ("pip install 'pipec[tables]'",)) from None
    return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")  # type: ignore[no-any-return]


class Unpacked:
    """What is packed in a file. It is unpacked when it is first needed, and again if the cache has lost it.

    Raises SourceError where the cache has no room, Damaged where the file is cut or broken.
    """

    def __init__(self, identity: str, kind: str, open_file: Callable[[], IO[bytes]], shown: str):
        self.identity, self.kind, self.open_file, self.shown = f"{identity}\0{kind}", kind, open_file, shown
        self.lock = threading.Lock()
        self.all: Pinned | None = None

    def whole(self) -> Pinned:
        with self.lock:
            if self.all is None:
                key = hashlib.blake2b(self.identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
                self.all = shared().cache.whole(f"{key}.whole", self._fill, f"what is packed in `{self.shown}`")
            return self.all

    @property
    def size(self) -> int:
        return os.fstat(self.whole().fd).st_size

    def pread(self, size: int, offset: int) -> bytes:
        fd = self.whole().fd
        data = os.pread(fd, size, offset)
        while data and len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
            data += more
        return data

    def _fill(self, writer: Writer) -> None:
        done = 0
        try:
            with self.open_file() as file, unpacking(self.kind, file) as stream:
                while piece := stream.read(PIECE):
                    writer.write(piece)
                    done += len(piece)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise _damaged(self.shown, done, error) from None


def _damaged(shown: str, done: int, error: Exception) -> Damaged:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
    return Damaged(f"`{shown}` can't be unpacked past byte {done:,} of its content: {said}")


class Sliding:
    """What is packed in a file, read front to back: nothing is kept but the last `WINDOW` bytes, in memory.

    A read that is further back begins at the front again. Raises Damaged.
    """

    def __init__(self, identity: str, kind: str, open_file: Callable[[], IO[bytes]], shown: str):
        self.identity, self.kind, self.open_file, self.shown = f"{identity}\0{kind}", kind, open_file, shown
        self.lock = threading.Lock()
        self.pieces: deque[bytes] = deque()
        self.begin = self.end = 0        # of what the pieces hold
        self.stream: IO[bytes] | None = None
        self.length: int | None = None

    @property
    def size(self) -> int:
        with self.lock:
            while self.length is None:
                self._step(self.end)
            return self.length

    def pread(self, size: int, offset: int) -> bytes:
        with self.lock:
            if offset < self.begin or self.stream is None:
                self.close()
            while self.end < offset + size and self._step(offset):
                pass
            return self._held(size, offset)

    def close(self) -> None:
        """Forget all; the next read begins at the front."""
        self.pieces.clear()
        self.begin = self.end = 0
        self.stream = None

    def _step(self, wanted: int) -> bool:
        """Unpack one more piece, and forget those far before it that are not `wanted`; False at the end."""
        try:
            if self.stream is None:
                self.stream = unpacking(self.kind, self.open_file())
            piece = self.stream.read(PIECE)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise _damaged(self.shown, self.end, error) from None
        if not piece:
            self.length = self.end
            return False
        self.pieces.append(piece)
        self.end += len(piece)
        while self.begin + len(self.pieces[0]) <= min(wanted, self.end - WINDOW):
            self.begin += len(self.pieces.popleft())
        return True

    def _held(self, size: int, offset: int) -> bytes:
        out, at = bytearray(), self.begin
        for piece in self.pieces:
            if at + len(piece) > offset and at < offset + size:
                out += memoryview(piece)[max(0, offset - at) : offset + size - at]
            at += len(piece)
        return bytes(out)
