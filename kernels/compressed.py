"""Compressed files (gzip, zstd, bzip2, xz) as files that can be read at random: unpacked once into the bounded cache.

In: a file's bytes in order and what identifies it. Out: size and bytes at any place of what is packed in it.
"""
from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections.abc import Callable
from typing import IO, Any

from .cached import Pinned, Writer
from .remote import shared
from .sources import SourceError

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
PIECE = 1 << 20


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
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
            raise Damaged(f"`{self.shown}` can't be unpacked past byte {done:,} of its content: {said}") from None
