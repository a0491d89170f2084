"""Windows of JPEGs by libturbojpeg 3 or newer, where the system has it, through ctypes."""
from __future__ import annotations

import ctypes
import os
import threading

import numpy as np

from .imagefile import Header, one_scan
from .jpeg import Absent, Provider, Window

NAME = "libturbojpeg 3"
SYSTEM = "libturbojpeg.so.0"   # of versions 2 and 3
# turbojpeg.h
_DECOMPRESS = 1
_STOP_ON_WARNING, _SUBSAMPLING, _WIDTH, _HEIGHT, _PRECISION, _SPACE, _PROGRESSIVE, _ARITHMETIC = 0, 4, 5, 6, 7, 8, 12, 14
_BLOCK_WIDTH = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8}     # of TJSAMP_444, 422, 420, GRAY, 440
_FORMATS = {1: 6, 3: 0, 4: 7}                       # TJPF_GRAY, RGB, RGBA


class _Scaling(ctypes.Structure):
    _fields_ = [("num", ctypes.c_int), ("denom", ctypes.c_int)]


class _Region(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int) for n in ("x", "y", "w", "h")]


class _Handles(threading.local):
    """One decompressor for each thread."""

    def __init__(self, library: ctypes.CDLL):
        self.library, self.handle, self.memory = library, None, np.empty(0, np.uint8)
        self.renew()

    def renew(self) -> None:
        """A new decompressor: one that has met damage may fail on the next file too."""
        self.__del__()
        self.handle = self.library.tj3Init(_DECOMPRESS)
        if not self.handle:
            raise MemoryError
        self.library.tj3Set(self.handle, _STOP_ON_WARNING, 1)

    def __del__(self) -> None:
        if self.handle:
            self.library.tj3Destroy(self.handle)
            self.handle = None

    def at_least(self, size: int) -> np.ndarray:
        if len(self.memory) < size:
            self.memory = np.empty(size + size // 4, np.uint8)
        return self.memory


def load() -> Provider | Absent:
    """The system's library, or the one that the environment variable PIPEC_TURBOJPEG names."""
    path = os.environ.get("PIPEC_TURBOJPEG")
    try:
        library = ctypes.CDLL(path or SYSTEM)
    except OSError:
        if path:
            raise
        return Absent(NAME, "the system has no libturbojpeg (conda, Fedora and Homebrew have version 3)")
    if not hasattr(library, "tj3SetCroppingRegion"):
        return Absent(NAME, f"{path or SYSTEM} is older than version 3")
    _declare(library)
    handles = _Handles(library)

    def decode(data: bytes, header: Header, shrink: int, window: Window, out: np.ndarray) -> bool:
        return _decode(handles, data, header, shrink, window, out)

    return Provider(NAME, path or SYSTEM, decode, fixed=60_000.0, reads_on=True)


def _declare(library: ctypes.CDLL) -> None:
    handle, number = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("tj3Init", handle, [number]), ("tj3Destroy", None, [handle]), ("tj3Set", number, [handle, number, number]),
        ("tj3Get", number, [handle, number]), ("tj3SetScalingFactor", number, [handle, _Scaling]),
        ("tj3SetCroppingRegion", number, [handle, _Region]),
        ("tj3DecompressHeader", number, [handle, ctypes.c_char_p, ctypes.c_size_t]),
        ("tj3Decompress8", number, [handle, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, number, number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _decode(handles: _Handles, data: bytes, header: Header, shrink: int, window: Window, out: np.ndarray) -> bool:
    if not one_scan(data, header):
        return False
    channels = out.shape[2]
    # Chroma is interpolated from its neighbours, so two more columns on either side are decoded, and cut off.
    end = min(window.left + window.columns + 2, -(-header.width // shrink))
    left = _ready(handles, data, header, shrink, window, end)
    if left is None:
        handles.renew()
        return False
    wide = end - left
    memory = handles.at_least(window.rows * wide * channels)
    if handles.library.tj3Decompress8(handles.handle, data, len(data), memory.ctypes.data, wide * channels, _FORMATS[channels]):
        handles.renew()
        return False
    pixels = memory[: window.rows * wide * channels].reshape(window.rows, wide, channels)
    np.copyto(out, pixels[:, window.left - left : window.left - left + window.columns])
    return True


def _ready(handles: _Handles, data: bytes, header: Header, shrink: int, window: Window, end: int) -> int | None:
    """The decompressor told what to decode; the first column that it will give. None where it can't."""
    library, handle = handles.library, handles.handle
    library.tj3SetCroppingRegion(handle, _Region(0, 0, 0, 0))
    if library.tj3DecompressHeader(handle, data, len(data)):
        return None
    told = {k: library.tj3Get(handle, k) for k in (_SUBSAMPLING, _WIDTH, _HEIGHT, _PRECISION, _SPACE, _PROGRESSIVE, _ARITHMETIC)}
    step = _BLOCK_WIDTH.get(told[_SUBSAMPLING], 0) // shrink
    if not step or (told[_WIDTH], told[_HEIGHT], told[_PRECISION]) != (header.width, header.height, 8) \
            or told[_SPACE] > 2 or told[_PROGRESSIVE] > 0 or told[_ARITHMETIC] > 0:
        return None
    left = max(window.left - 2, 0) // step * step
    region = _Region(left, window.top, end - left, window.rows)
    failed = library.tj3SetScalingFactor(handle, _Scaling(1, shrink)) or library.tj3SetCroppingRegion(handle, region)
    return None if failed else left
