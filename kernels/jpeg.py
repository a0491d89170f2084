"""Pixels of a JPEG, or of a window of it, from the decoders that this machine has; the same pixels from each.

simplejpeg decodes whole images and is always there. The others decode only what a window needs: our C extension over
libjpeg-turbo, libturbojpeg 3 of the system, nvImageCodec (an extra); where there is none of them, simplejpeg itself, told that
the image is less tall (`jpegtop`). Which of them decodes an image is a matter of cost. A provider is asked only for files of
which it gives the very pixels of decode-then-crop, must compare well with simplejpeg on small images when it is loaded, and
gives up where it meets any damage; the whole image is decoded then.
"""
from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import simplejpeg

from . import kept
from .imagefile import Header, bad, read_header

SPACES = {1: "GRAY", 3: "RGB", 4: "RGBA"}
SHRINKS = (1, 2, 4, 8)
# Sides from which on every decoder means the same by a half, a quarter and an eighth.
LEAST_SIDE = 16
# CPU nanoseconds: for each byte that is read, for each pixel that is made.
PER_BYTE, PER_PIXEL = 6.0, 1.7


class Window(NamedTuple):
    """Part of a stored (not yet turned) and shrunk image, in pixels."""

    top: int
    left: int
    rows: int
    columns: int


Decode = Callable[[bytes, Header, int, Window, np.ndarray], bool]


@dataclass(frozen=True)
class Provider:
    """A decoder of windows. `decode(data, header, shrink, window, out)` fills `out` [rows, columns, channels] and says
    so, or leaves the file to others. `cost(…)`: CPU nanoseconds, to compare."""

    name: str
    version: str
    decode: Decode
    factor: float = 1.0     # of the work on pixels, against simplejpeg's
    fixed: float = 0.0      # nanoseconds for each image
    reads_on: bool = False  # the data below the window are read too
    skimmed: float = 0.0    # nanoseconds for each byte that is looked at beforehand
    whole_rows: bool = False  # pixels beside the window and above it are made too

    def cost(self, data: bytes, header: Header, shrink: int, window: Window) -> float:
        height = -(-header.height // shrink)
        read = 1.0 if self.reads_on else min(1.0, (window.top + window.rows + 16) / height)
        area = (window.rows + 16) * (window.columns + 16)
        if self.whole_rows:
            area = (window.top + window.rows + 16) * shrunk(header.width, shrink)
        return self.fixed + (PER_BYTE * read + self.skimmed) * len(data) + PER_PIXEL * self.factor * area


@dataclass(frozen=True)
class Absent:
    """A provider that can't be used here, and why."""

    name: str
    reason: str


def shrunk(size: int, shrink: int) -> int:
    return -(-size // shrink)


# --- whole images ---------------------------------------------------------------------------------------------------


def whole_to(data: bytes, header: Header, shrink: int, out: np.ndarray) -> None:
    """All pixels at 1/shrink by the JPEG's own transform (a side becomes ceil(side / shrink)), which fill `out`, damaged data
    as far as they go. Raises BadRecord."""
    sides = {} if shrink == 1 else {
        "min_height": shrunk(header.height, shrink), "min_width": shrunk(header.width, shrink), "min_factor": shrink}
    end = out.reshape(-1)[-len(_UNTOUCHED[0]) :]
    for mark in _UNTOUCHED:
        end[:] = mark[-len(end) :]
        try:
            made = simplejpeg.decode_jpeg(data, SPACES[out.shape[2]], buffer=out, strict=False, **sides)
        except (ValueError, MemoryError, TypeError) as e:
            raise bad("this JPEG can't be decoded", str(e)[:120]) from None
        if made.shape[:2] != out.shape[:2]:
            raise bad("this JPEG can't be decoded", "its header tells two sizes")
        if end.tobytes() != mark[-len(end) :].tobytes():
            return
    raise bad("this JPEG can't be decoded", "its data are damaged before the first pixel")


# What lies in the last pixels before they are decoded. An error after a warning isn't told by simplejpeg, which leaves its memory
# as it was then: if not even the second of these has gone, nothing was decoded.
_UNTOUCHED = (np.arange(7, 39, dtype=np.uint8) * 5, np.arange(7, 39, dtype=np.uint8) * 5 ^ 255)


def decodes_strictly(data: bytes, space: str) -> bool:
    """Is there nothing to be said against the data?"""
    try:
        simplejpeg.decode_jpeg(data, space, strict=True)
    except (ValueError, MemoryError, TypeError):
        return False
    return True


class _Scratch(threading.local):
    """Memory for whole images of which only a window is wanted, one for each thread."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """Not aligned: at aligned addresses libjpeg-turbo's vector code writes past the caches, from where it is read back."""
        if size > 64 << 20:
            return np.empty(size, np.uint8)
        if len(self.memory) <= size:
            self.memory = np.empty(size + size // 4 + 1, np.uint8)
        return self.memory[1 : size + 1]


_scratch = _Scratch()


def scratch(rows: int, columns: int, channels: int) -> np.ndarray:
    """Memory of this thread for a whole image, until the next one."""
    return _scratch.take(rows * columns * channels).reshape(rows, columns, channels)


# --- windows --------------------------------------------------------------------------------------------------------


def decode_window(data: bytes, header: Header, shrink: int, window: Window, out: np.ndarray) -> None:
    """Fill `out` u8[rows, columns, channels] with the window of the decoded image. Raises BadRecord."""
    height, width, channels = shrunk(header.height, shrink), shrunk(header.width, shrink), out.shape[2]
    if window.rows == height and window.columns == width and out.flags.c_contiguous:
        return whole_to(data, header, shrink, out)
    if plain(header) and (provider := cheapest(data, header, shrink, window)) is not None \
            and provider.decode(data, header, shrink, window, out):
        return None
    pixels = scratch(height, width, channels)
    whole_to(data, header, shrink, pixels)
    np.copyto(out, pixels[window.top : window.top + window.rows, window.left : window.left + window.columns])
    return None


def plain(header: Header) -> bool:
    """May a part be decoded alone? What the header can't tell, providers look at themselves."""
    return header.whole and not header.progressive and header.bits == 8 and header.channels in (1, 3)


def cheapest(data: bytes, header: Header, shrink: int, window: Window) -> Provider | None:
    """The provider that does this window with the least work, None where decoding the whole image is less."""
    there = usable()
    if not there:
        return None
    whole = Window(0, 0, shrunk(header.height, shrink), shrunk(header.width, shrink))
    least, best = PER_BYTE * len(data) + PER_PIXEL * whole.rows * whole.columns, None
    for provider in there:
        cost = provider.cost(data, header, shrink, window)
        if cost < least:
            least, best = cost, provider
    return best


# --- providers ------------------------------------------------------------------------------------------------------


@cache
def providers() -> tuple[Provider | Absent, ...]:
    """Every provider of windows, loaded and compared, or why it can't be used; where there is none, what simplejpeg can do."""
    found = tuple(_found(name, load) for name, load in _LOADERS.items())
    return found if any(isinstance(p, Provider) for p in found) else (*found, _top())


@cache
def usable() -> tuple[Provider, ...]:
    return tuple(p for p in providers() if isinstance(p, Provider))


def _found(name: str, load: Callable[[], Provider | Absent]) -> Provider | Absent:
    try:
        found = load()
        if isinstance(found, Provider) and (difference := _once_compared(found)):
            return Absent(name, difference)
        return found
    except Exception as error:   # what a foreign library raises when it is loaded
        return Absent(name, f"it can't be loaded: {str(error).splitlines()[0][:160] if str(error) else type(error).__name__}")


def _once_compared(provider: Provider) -> str:
    """What `compared` says. That nothing differs is kept for these very libraries: comparing takes as long as thirty images."""
    libraries = _libraries()
    place = kept.place("decoders", libraries, f"{provider.name} {provider.version}")
    if libraries and os.path.exists(place):
        return ""
    difference = compared(provider)
    if libraries and not difference:
        kept.put(place, lambda path: open(path, "w").close())
    return difference


def _libraries() -> str:
    """The machine, and which decoders are loaded: their files, sizes and times; "" where the system doesn't say."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip() for line in maps if "jpeg" in line or "nvimgcodec" in line}
        states = [(path, os.stat(path)) for path in sorted(paths)]
    except OSError:
        return ""
    files = [f"{path} {state.st_size} {state.st_mtime_ns} {state.st_ino}" for path, state in states]
    return "\n".join((*os.uname()[1:], *files)) if files else ""


def compared(provider: Provider) -> str:
    """"" if a provider agrees with simplejpeg on small images of all kinds that it takes, else what differs."""
    rng, tried = np.random.default_rng(5), 0
    pixels = rng.integers(0, 256, (83, 101, 3), np.uint8)
    for sampling in ("444", "422", "420", "440"):
        data = simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)
        header = read_header(data)
        for shrink in SHRINKS:
            height, width = shrunk(83, shrink), shrunk(101, shrink)
            whole = np.empty((height, width, 3), np.uint8)
            whole_to(data, header, shrink, whole)
            for top, left in ((0, 0), (height // 3, width // 2), (height // 2, 1)):
                window = Window(top, left, height - top - height // 4, width - left - width // 5)
                out = np.zeros((window.rows, window.columns, 3), np.uint8)
                if not provider.decode(data, header, shrink, window, out):
                    continue
                tried += 1
                if not np.array_equal(out, whole[top : top + window.rows, left : left + window.columns]):
                    return f"its pixels differ from simplejpeg's ({sampling}, 1/{shrink})"
    return "" if tried else "it decodes none of the images that it is tried with"


def _extension() -> Provider | Absent:
    try:
        region = import_module(f"{__package__}._jpegregion")
    except ImportError:
        return Absent("C extension _jpegregion", "not built: when pipec is installed, it needs a C compiler and "
                                                 "libjpeg-turbo's headers (Debian: libjpeg-dev)")

    def decode(data: bytes, header: Header, shrink: int, window: Window, out: np.ndarray) -> bool:
        done: bool = region.decode_window(data, out, header.height, header.width, *window, out.shape[2], shrink)
        return done

    return Provider("C extension _jpegregion", f"libjpeg-turbo {region.VERSION}", decode)


def _turbojpeg() -> Provider | Absent:
    from .turbojpeg import load

    return load()


def _nvimgcodec() -> Provider | Absent:
    from .nvimgcodec import load

    return load()


def _top() -> Provider:
    from .jpegtop import load

    return load()


_LOADERS: dict[str, Callable[[], Provider | Absent]] = {
    "C extension _jpegregion": _extension, "libturbojpeg 3": _turbojpeg, "nvImageCodec": _nvimgcodec,
}


@contextlib.contextmanager
def only(*chosen: Provider) -> Any:
    """Inside, these providers are the ones there are, for tests and measurements."""
    global usable
    before, usable = usable, cache(lambda: chosen)
    try:
        yield
    finally:
        usable = before
