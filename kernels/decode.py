"""Operators that turn the bytes of image files into pixels.

JPEG goes through libjpeg-turbo (simplejpeg) straight into the result's memory; PNG, WebP, GIF (first frame), BMP
and TIFF go through Pillow's own readers, one class per format, so that nothing is guessed from a file's name.
"""
from __future__ import annotations

import io
import math
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from . import jpeg
from .imagefile import Header, article, bad, ends_early, jpeg_scans_complete, read_header, sniff
from .ops import op

if TYPE_CHECKING:
    from PIL.Image import Image

# What a file's oddities mean is decided here; Pillow's warnings about them would be a second voice.
warnings.filterwarnings("ignore", module=r"PIL\.")

_PLUGINS = {   # modules of Pillow, which is loaded where it is needed: most producers meet nothing but JPEGs
    "JPEG": ("JpegImagePlugin", "JpegImageFile"), "PNG": ("PngImagePlugin", "PngImageFile"),
    "WebP": ("WebPImagePlugin", "WebPImageFile"), "GIF": ("GifImagePlugin", "GifImageFile"),
    "BMP": ("BmpImagePlugin", "BmpImageFile"), "TIFF": ("TiffImagePlugin", "TiffImageFile"),
}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@cache
def _damage() -> tuple[type[BaseException], ...]:
    """Whatever a parser says about damaged bytes: Pillow's readers raise nearly anything."""
    from PIL.Image import DecompressionBombError

    return (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError, AssertionError,
            RuntimeError, NotImplementedError, MemoryError, Warning, DecompressionBombError)


def _reader(kind: str) -> Any:
    """Pillow's class for files of this kind."""
    module, name = _PLUGINS[kind]
    return getattr(import_module(f"PIL.{module}"), name)


def turned(image: np.ndarray, orientation: int) -> Any:
    """An image as a viewer shows it, given its EXIF orientation (1 to 8); a view."""
    if orientation >= 5:
        image = image.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return image[:, ::-1] if orientation in (2, 3, 6, 7) else image


def _checked(data: Any, cut: str, max_pixels: int) -> tuple[bytes, Header]:
    """The bytes and their header, if the image may be decoded."""
    data = data if isinstance(data, bytes) else bytes(data)
    if cut not in ("refuse", "fill"):
        raise bad(f'`cut` is "refuse" or "fill", not "{cut}"')
    header = _headers.of(data)
    _limit(header.kind, header.width, header.height, max_pixels)
    if not header.whole and cut == "refuse" and header.kind != "JPEG":
        raise ends_early(header, data)
    own = header.kind == "JPEG" and header.channels != 4   # not by way of Pillow
    return data, header if own else replace(header, most=int(max_pixels))


class _Headers(threading.local):
    """The headers of the files that this thread has looked at last: first for their sizes, then to decode them."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[bytes, Header]] = {}

    def of(self, data: bytes) -> Header:
        found = self.known.get(id(data))   # kept alive, so nobody else has its id
        if found is not None:
            return found[1]
        header = read_header(data)
        if len(data) <= SMALL_FILE:
            if len(self.known) >= MOST_HEADERS:
                self.known.clear()
            self.known[id(data)] = data, header
        return header


SMALL_FILE, MOST_HEADERS = 1 << 18, 32   # whose headers are kept: 8 MB of files
_headers = _Headers()


def _limit(kind: str, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        label = f"{width:,} × {height:,} is more than max_pixels={int(max_pixels)}"
        raise bad(f"this {kind} has too many pixels", label)


# --- JPEG ---------------------------------------------------------------------------------------


def _require_whole(data: bytes, header: Header) -> None:
    """A JPEG without its end marker is whole only if, the marker added, not one of its bits is missing."""
    if header.whole:
        return
    if not jpeg.decodes_strictly(data + b"\xff\xd9", "CMYK" if header.channels == 4 else "GRAY"):
        raise ends_early(header, data)
    if header.progressive and not jpeg_scans_complete(data):
        raise ends_early(header, data)


def _own_decoder(header: Header, shrink: int) -> bool:
    """Does a JPEG go through libjpeg-turbo: not in four colours, nor tiny and shrunk, where decoders differ."""
    small = min(header.height, header.width) < jpeg.LEAST_SIDE and shrink > 1
    return header.kind == "JPEG" and header.channels != 4 and not small


# --- every other format -------------------------------------------------------------------------


def _started(data: bytes, header: Header, layout: str = "") -> Any:
    """Pillow's image before any pixel is decoded; `layout` makes the PNG reader take pixels in another byte order."""
    try:
        image = _reader(header.kind)(io.BytesIO(_whole_png(data, header)))
        if layout:
            image.tile = [tile._replace(args=layout) for tile in image.tile]
    except _damage() as e:
        raise bad(f"this {header.kind}'s header can't be read", str(e)[:120]) from None
    return image


def _opened(data: bytes, header: Header, fill: bool, layout: str = "") -> Any:
    """The decoded image in its own mode."""
    from PIL.Image import Image

    image = _started(data, header, layout)
    width, height = image.size
    _limit(header.kind, width, height, header.most)
    try:
        image.load()
    except _damage() as e:
        if not (fill and image._im is not None):
            early = "truncated" in str(e) or "not enough" in str(e)
            what = "ends early" if early else "can't be decoded"
            raise bad(f"this {header.kind} {what}", str(e)[:120]) from None
        image = Image._new(image, image.im)
    return image


def _whole_png(data: bytes, header: Header) -> bytes:
    """Adds the end chunk that Pillow asks for, to a PNG that lacks nothing else."""
    if header.kind != "PNG" or b"IEND" in data[-12:]:
        return data
    end = b"\0\0\0\0IEND\xaeB`\x82"
    kept = next((n for n in range(11, 0, -1) if data.endswith(end[:n]) and header.whole), 0)
    return data[: len(data) - kept] + end


def _wide(data: bytes, header: Header, image: Image) -> Any:
    """The 16-bit values of an image that has them, [h, w, channels]; None for any other."""
    if image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.uint16, copy=False)[:, :, None]
    if header.kind == "PNG" and header.bits == 16 and header.channels in (3, 4):
        # Pillow keeps the high bytes only; read in the other byte order it keeps the low ones.
        low = _opened(data, header, True, f"{image.mode};16L")
        return np.asarray(image).astype(np.uint16) << 8 | np.asarray(low)
    return None


def _as_u8(image: Image, header: Header, channels: int, wide: np.ndarray | None = None) -> Any:
    """u8[h, w, channels] of a decoded image: 16 bits scaled by 255/65535, alpha dropped, grey by ITU-R 601."""
    from PIL.Image import fromarray

    if wide is not None:
        narrow = np.rint(wide.astype(np.float32) / np.float32(257)).astype(np.uint8)
        image = fromarray(narrow[:, :, 0] if narrow.shape[2] == 1 else narrow)
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise bad(f"this {header.kind} holds {image.mode} values, which have no scale of their own")
    mode = _MODES[channels]
    if mode != "RGBA":
        image.info.pop("transparency", None)
        if image.mode == "P" or (mode == "L" and image.mode not in ("1", "L", "LA", "RGB")):
            image = image.convert("RGB")
    try:
        image = image if image.mode == mode else image.convert(mode)
    except _damage() as e:
        raise bad(f"this {header.kind}'s colours ({image.mode}) can't be converted", str(e)[:120]) from None
    return np.asarray(image).reshape(image.height, image.width, channels)


def _stored_orientation(pixels: np.ndarray, header: Header) -> Any:
    """Undoes the turn that Pillow's TIFF reader makes by itself."""
    if header.kind != "TIFF" or header.orientation == 1:
        return pixels
    return turned(pixels, {6: 8, 8: 6}.get(header.orientation, header.orientation))


def _stored_pixels(data: bytes, header: Header, channels: int, fill: bool, shrink: int) -> Any:
    """Pixels of the whole image as stored, before any turn, by way of Pillow."""
    if header.kind == "JPEG" and header.channels != 4:
        pixels = np.empty((header.height, header.width, channels), np.uint8)
        jpeg.whole_to(data, header, 1, pixels)
    else:
        if header.kind == "JPEG":
            data = data if header.whole else data + b"\xff\xd9"
        image = _opened(data, header, fill or header.kind == "JPEG")
        wide = None if header.kind == "JPEG" else _wide(data, header, image)
        pixels = _stored_orientation(_as_u8(image, header, channels, wide), header)
        if header.kind == "TIFF" and pixels.shape[:2] != (header.height, header.width):
            raise bad("this TIFF can't be decoded", "its header tells two sizes")
    return pixels if shrink == 1 else _means(pixels, shrink)


def _means(pixels: np.ndarray, shrink: int) -> Any:
    """Each block of shrink × shrink pixels (at the edges what there is of it) as its mean."""
    from PIL.Image import fromarray

    planes = [fromarray(np.ascontiguousarray(pixels[:, :, c])).reduce(shrink) for c in range(pixels.shape[2])]
    return np.stack([np.asarray(p) for p in planes], axis=2)


def _asked(data: Any, channels: int, cut: str, max_pixels: int, shrink: int) -> tuple[bytes, Header]:
    """The bytes and header of an image that may be decoded so."""
    if channels not in _MODES:
        raise bad(f"`channels` is 1, 3 or 4, not {channels}")
    if shrink not in jpeg.SHRINKS:
        raise bad(f"`shrink` is 1, 2, 4 or 8, not {shrink}")
    data, header = _checked(data, cut, max_pixels)
    if header.kind == "JPEG" and cut == "refuse":
        _require_whole(data, header)
    return data, header


def _image(data: Any, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int, alloc: Callable[..., Any],
           window: Any = None) -> Any:
    """The image, or the part of it in a window (top, left, height, width) that is cut to the image."""
    data, header = _asked(data, channels, cut, max_pixels, shrink)
    orientation = header.orientation if orient else 1
    if not _own_decoder(header, shrink):
        pixels = turned(_stored_pixels(data, header, channels, cut == "fill", shrink), orientation)
        if window is not None:
            top, left, rows, columns = _inside(window, *pixels.shape[:2])
            pixels = pixels[top : top + rows, left : left + columns]
        return _placed(pixels, alloc)
    height, width = jpeg.shrunk(header.height, shrink), jpeg.shrunk(header.width, shrink)
    part = jpeg.Window(0, 0, height, width) if window is None else _as_stored(window, height, width, orientation)
    shape = (part.rows, part.columns, channels)
    if 0 in shape:
        return alloc((shape[1], shape[0], channels) if orientation >= 5 else shape, np.uint8)
    pixels = alloc(shape, np.uint8) if orientation == 1 else np.empty(shape, np.uint8)
    jpeg.decode_window(data, header, shrink, part, pixels)
    return pixels if orientation == 1 else _placed(turned(pixels, orientation), alloc)


def _inside(window: Any, height: int, width: int) -> tuple[int, int, int, int]:
    """The part of a window that lies in the image."""
    top, left, rows, columns = (int(v) for v in window)
    low, start = min(max(top, 0), height), min(max(left, 0), width)
    return low, start, max(0, min(top + rows, height) - low), max(0, min(left + columns, width) - start)


def _as_stored(window: Any, height: int, width: int, orientation: int) -> jpeg.Window:
    """A window of the turned image as one of the stored image, which has this height and width."""
    tall, wide = (width, height) if orientation >= 5 else (height, width)
    top, left, rows, columns = _inside(window, tall, wide)
    if orientation in (2, 3, 6, 7):
        left = wide - left - columns
    if orientation in (3, 4, 7, 8):
        top = tall - top - rows
    return jpeg.Window(left, top, columns, rows) if orientation >= 5 else jpeg.Window(top, left, rows, columns)


def _placed(pixels: np.ndarray, alloc: Callable[..., Any]) -> Any:
    out = alloc(pixels.shape, pixels.dtype.type)
    np.copyto(out, pixels)
    return out


@op('decode_image(data: bytes, channels: i64 = 3, orient: bool = true, cut: text = "refuse", '
    "max_pixels: i64 = 100_000_000, shrink: i64 = 1) -> u8[h, w, channels]")
class decode_image:
    """Decode a JPEG, PNG, WebP, GIF (first frame), BMP or TIFF, known by its content, to u8.

    `channels`: 1 grey, 3 RGB, 4 RGB and alpha. Palettes are resolved, alpha is dropped (not blended), CMYK and 16-bit
    values are converted (v × 255 / 65535, rounded), grey is ITU-R 601 (for a JPEG the file's own luma). EXIF
    orientation is applied unless `orient=false`. An image with more than `max_pixels` is refused before it is decoded.
    A record is bad if its header can't be read or its data ends early; a file that lacks only its end marker is whole.
    `cut="fill"` takes what a cut file holds (not for WebP).
    `shrink` is 1, 2, 4 or 8: a side of n pixels becomes ceil(n / shrink). A JPEG is shrunk by its own transform, which
    is quicker than decoding it whole and blends a little less than averaging does; other files, JPEGs in CMYK and those
    with a side below 16 pixels by the mean of each block.
    """

    least_sizes = {("", 0): 1, ("", 1): 1}  # noqa: RUF012

    def ref(data: Any, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int = 1) -> Any:
        return _image(data, int(channels), bool(orient), cut, max_pixels, int(shrink), np.empty)

    def cost(args: Any, results: Any) -> Any:
        return 40_000 + 5 * math.prod(results[0][:2])

    def cpu(alloc: Any, data: bytes, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int = 1) -> Any:
        return _image(data, int(channels), bool(orient), cut, max_pixels, int(shrink), alloc)


def _size(data: Any, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int) -> Any:
    data, header = _asked(data, channels, cut, max_pixels, shrink)
    width, height = header.width, header.height
    if header.kind not in ("JPEG", "TIFF"):   # a GIF's first frame may be larger than its header says
        width, height = _started(data, header).size
    sides = jpeg.shrunk(height, shrink), jpeg.shrunk(width, shrink)
    return np.array(sides[::-1] if orient and header.orientation >= 5 else sides, np.int64)


@op('image_size(data: bytes, channels: i64 = 3, orient: bool = true, cut: text = "refuse", '
    "max_pixels: i64 = 100_000_000, shrink: i64 = 1) -> i64[2]")
class image_size:
    """Height and width that `decode_image` with the same arguments gives, read from the file's header.

    A record is bad here if its header can't be read, its data ends early or the image is too large.
    """

    def ref(data: Any, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int) -> Any:
        return _size(data, int(channels), bool(orient), cut, max_pixels, int(shrink))

    def cost(args: Any, results: Any) -> Any:
        return 20_000

    def cpu(alloc: Any, data: bytes, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int) -> Any:
        return _size(data, int(channels), bool(orient), cut, max_pixels, int(shrink))

    def ranges(*intervals: Any) -> Any:
        return 1, 2**32   # formats have no longer sides


@op("image_orientation(data: bytes) -> i64")
class image_orientation:
    """The EXIF orientation in an image file's header, 1 to 8; 1, as stored, where none is.

    `decode_image` applies it unless `orient=false`; `orient` and `orient_boxes` take it.
    """

    def ref(data: Any) -> Any:
        return np.int64(read_header(bytes(data)).orientation)

    def cpu(alloc: Any, data: bytes) -> Any:
        return np.int64(read_header(bytes(data)).orientation)

    def ranges(data: Any) -> Any:
        return 1, 8


@op('decode_region(data: bytes, window: i64[4], channels: i64 = 3, orient: bool = true, cut: text = "refuse", '
    "max_pixels: i64 = 100_000_000, shrink: i64 = 1) -> u8[h, w, channels]")
class decode_region:
    """The part of `decode_image(data, …)` that lies in a window (top, left, height, width), without decoding the rest.

    What of the window lies outside of the image is left out. The pixels are those of the whole image, decoded and cut.
    A crop or a resize of `decode_image` becomes this by itself: it need not be written.
    """

    def ref(data: Any, window: Any, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int) -> Any:
        image = _image(data, int(channels), bool(orient), cut, max_pixels, int(shrink), np.empty)
        top, left, rows, columns = _inside(window, *image.shape[:2])
        return np.ascontiguousarray(image[top : top + rows, left : left + columns])

    def cost(args: Any, results: Any) -> Any:
        return 40_000 + 5 * math.prod(results[0][:2])   # of the part; more where only whole images can be decoded

    def cpu(alloc: Any, data: bytes, window: Any, channels: int, orient: bool, cut: str, max_pixels: int, shrink: int) -> Any:
        return _image(data, int(channels), bool(orient), cut, max_pixels, int(shrink), alloc, window)


def _stored(data: bytes, header: Header) -> Any:
    """One channel as the file stores it: palette indexes, 0/1 of a bitmap, unscaled grey."""
    image = _opened(data, header, False)
    if _wide(data, header, image) is not None:
        raise bad(f"this {header.kind} has 16-bit values; decode_u16 keeps them")
    if image.mode not in ("1", "L", "P"):
        raise bad(f"a mask has one channel, and this {header.kind} is {image.mode}")
    pixels = np.asarray(image).astype(np.uint8, copy=False)
    if header.kind == "PNG" and image.mode == "L" and header.bits in (2, 4):
        pixels = pixels // (255 // (2**header.bits - 1))
    return pixels


def _mask(data: Any, orient: bool, max_pixels: int, alloc: Callable[..., Any]) -> Any:
    data, header = _checked(data, "refuse", max_pixels)
    if header.kind == "JPEG":
        _require_whole(data, header)
        if header.channels != 1:
            raise bad(f"a mask has one channel, and this JPEG has {header.channels}")
        whole = np.empty((header.height, header.width, 1), np.uint8)
        jpeg.whole_to(data, header, 1, whole)
        pixels = whole[:, :, 0]
    else:
        pixels = _stored_orientation(_stored(data, header), header)
    return _placed(turned(pixels, header.orientation if orient else 1), alloc)


@op("decode_mask(data: bytes, orient: bool = true, max_pixels: i64 = 100_000_000) -> u8[h, w]")
class decode_mask:
    """Decode a label mask: the numbers as stored, never turned into colours.

    A palette image gives its indexes, a grey one its values (of a 1, 2 or 4-bit PNG unscaled, so 0 and 1, 0 to 3,
    0 to 15). An image with several channels or 16-bit values is refused.
    """

    least_sizes = {("", 0): 1, ("", 1): 1}  # noqa: RUF012

    def ref(data: Any, orient: bool, max_pixels: int) -> Any:
        return _mask(data, bool(orient), max_pixels, np.empty)

    def cost(args: Any, results: Any) -> Any:
        return 60_000 + 1.5 * math.prod(results[0])

    def cpu(alloc: Any, data: bytes, orient: bool, max_pixels: int) -> Any:
        return _mask(data, bool(orient), max_pixels, alloc)


def _u16(data: Any, channels: int, orient: bool, max_pixels: int, alloc: Callable[..., Any]) -> Any:
    data, header = _checked(data, "refuse", max_pixels)
    if header.kind not in ("PNG", "TIFF"):
        raise bad(f"this is {article(sniff(data))}, which has no 16-bit values; decode_image reads it")
    image = _opened(data, header, False)
    wide = _wide(data, header, image)
    if wide is None:
        raise bad(f"this {header.kind} has no 16-bit values ({image.mode}); decode_image reads it")
    if wide.shape[2] != channels:
        raise bad(f"this {header.kind} has {wide.shape[2]} channels, not {channels}")
    return _placed(turned(_stored_orientation(wide, header), header.orientation if orient else 1), alloc)


@op("decode_u16(data: bytes, channels: i64 = 1, orient: bool = true, max_pixels: i64 = 100_000_000) "
    "-> u16[h, w, channels]")
class decode_u16:
    """Decode a 16-bit PNG or TIFF as stored (depth, flow), nothing scaled.

    `channels` must be what the file has: 1 for grey, 3 for RGB, 4 with alpha. An 8-bit file is refused.
    """

    least_sizes = {("", 0): 1, ("", 1): 1}  # noqa: RUF012

    def ref(data: Any, channels: int, orient: bool, max_pixels: int) -> Any:
        return _u16(data, int(channels), bool(orient), max_pixels, np.empty)

    def cost(args: Any, results: Any) -> Any:
        return 60_000 + 8 * math.prod(results[0])

    def cpu(alloc: Any, data: bytes, channels: int, orient: bool, max_pixels: int) -> Any:
        return _u16(data, int(channels), bool(orient), max_pixels, alloc)
