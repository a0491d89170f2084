"""Operators that turn the bytes of image files into pixels.

JPEG goes through libjpeg-turbo (simplejpeg) straight into the result's memory; PNG, WebP, GIF (first frame), BMP
and TIFF go through Pillow's own readers, one class per format, so that nothing is guessed from a file's name.
"""
from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import simplejpeg
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

from .imagefile import Header, article, bad, ends_early, jpeg_scans_complete, read_header, sniff
from .ops import BadRecord, op

# What a file's oddities mean is decided here; Pillow's warnings about them would be a second voice.
warnings.filterwarnings("ignore", module=r"PIL\.")

_PLUGINS: dict[str, Callable[[io.BytesIO], Any]] = {
    "JPEG": JpegImagePlugin.JpegImageFile, "PNG": PngImagePlugin.PngImageFile, "WebP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile, "BMP": BmpImagePlugin.BmpImageFile, "TIFF": TiffImagePlugin.TiffImageFile,
}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Whatever a parser says about damaged bytes: Pillow's readers raise nearly anything.
_DAMAGE = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError,
           AssertionError, RuntimeError, NotImplementedError, MemoryError, Warning, Image.DecompressionBombError)


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
    header = read_header(data)
    _limit(header.kind, header.width, header.height, max_pixels)
    if not header.whole and cut == "refuse" and header.kind != "JPEG":
        raise ends_early(header, data)
    return data, replace(header, most=int(max_pixels))


def _limit(kind: str, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        label = f"{width:,} × {height:,} is more than max_pixels={int(max_pixels)}"
        raise bad(f"this {kind} has too many pixels", label)


# --- JPEG ---------------------------------------------------------------------------------------


def _jpeg_decode(data: bytes, space: str, buffer: np.ndarray | None, strict: bool) -> Any:
    try:
        return simplejpeg.decode_jpeg(data, space, buffer=buffer, strict=strict)
    except (ValueError, MemoryError, TypeError) as e:
        raise bad("this JPEG can't be decoded", str(e)[:120]) from None


def _require_whole(data: bytes, header: Header) -> None:
    """A JPEG without its end marker is whole only if, the marker added, not one of its bits is missing."""
    if header.whole:
        return
    try:
        _jpeg_decode(data + b"\xff\xd9", "CMYK" if header.channels == 4 else "GRAY", None, strict=True)
    except BadRecord:
        raise ends_early(header, data) from None
    if header.progressive and not jpeg_scans_complete(data):
        raise ends_early(header, data)


def _jpeg(data: bytes, header: Header, channels: int, out: np.ndarray | None) -> Any:
    """Pixels of a JPEG, in `out` where that has their size. Grey from colour is the file's own luma."""
    if header.channels == 4:
        return _as_u8(_opened(data if header.whole else data + b"\xff\xd9", header, True), header, channels)
    space = {1: "GRAY", 3: "RGB", 4: "RGBA"}[channels]
    pixels = _jpeg_decode(data, space, out, strict=False)
    return pixels.reshape(pixels.shape[0], pixels.shape[1], channels)


# --- every other format -------------------------------------------------------------------------


def _opened(data: bytes, header: Header, fill: bool, layout: str = "") -> Any:
    """The decoded image in its own mode; `layout` makes the PNG reader take pixels in another byte order."""
    try:
        image = _PLUGINS[header.kind](io.BytesIO(data))
        if layout:
            image.tile = [tile._replace(args=layout) for tile in image.tile]
    except _DAMAGE as e:
        raise bad(f"this {header.kind}'s header can't be read", str(e)[:120]) from None
    width, height = image.size
    _limit(header.kind, width, height, header.most)
    try:
        image.load()
    except _DAMAGE as e:
        if not (fill and image._im is not None):
            early = "truncated" in str(e) or "not enough" in str(e)
            what = "ends early" if early else "can't be decoded"
            raise bad(f"this {header.kind} {what}", str(e)[:120]) from None
        image = Image.Image._new(image, image.im)
    return image


def _whole_png(data: bytes, header: Header) -> bytes:
    """Adds the end chunk that Pillow asks for, to a PNG that lacks nothing else."""
    if header.kind != "PNG" or b"IEND" in data[-12:]:
        return data
    end = b"\0\0\0\0IEND\xaeB`\x82"
    kept = next((n for n in range(11, 0, -1) if data.endswith(end[:n]) and header.whole), 0)
    return data[: len(data) - kept] + end


def _wide(data: bytes, header: Header, image: Image.Image) -> Any:
    """The 16-bit values of an image that has them, [h, w, channels]; None for any other."""
    if image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.uint16, copy=False)[:, :, None]
    if header.kind == "PNG" and header.bits == 16 and header.channels in (3, 4):
        # Pillow keeps the high bytes only; read in the other byte order it keeps the low ones.
        low = _opened(data, header, True, f"{image.mode};16L")
        return np.asarray(image).astype(np.uint16) << 8 | np.asarray(low)
    return None


def _as_u8(image: Image.Image, header: Header, channels: int, wide: np.ndarray | None = None) -> Any:
    """u8[h, w, channels] of a decoded image: 16 bits scaled by 255/65535, alpha dropped, grey by ITU-R 601."""
    if wide is not None:
        narrow = np.rint(wide.astype(np.float32) / np.float32(257)).astype(np.uint8)
        image = Image.fromarray(narrow[:, :, 0] if narrow.shape[2] == 1 else narrow)
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise bad(f"this {header.kind} holds {image.mode} values, which have no scale of their own")
    mode = _MODES[channels]
    if mode != "RGBA":
        image.info.pop("transparency", None)
        if image.mode == "P" or (mode == "L" and image.mode not in ("1", "L", "LA", "RGB")):
            image = image.convert("RGB")
    try:
        image = image if image.mode == mode else image.convert(mode)
    except _DAMAGE as e:
        raise bad(f"this {header.kind}'s colours ({image.mode}) can't be converted", str(e)[:120]) from None
    return np.asarray(image).reshape(image.height, image.width, channels)


def _stored_orientation(pixels: np.ndarray, header: Header) -> Any:
    """Undoes the turn that Pillow's TIFF reader makes by itself."""
    if header.kind != "TIFF" or header.orientation == 1:
        return pixels
    return turned(pixels, {6: 8, 8: 6}.get(header.orientation, header.orientation))


def _image(data: Any, channels: int, orient: bool, cut: str, max_pixels: int, alloc: Callable[..., Any]) -> Any:
    if channels not in _MODES:
        raise bad(f"`channels` is 1, 3 or 4, not {channels}")
    data, header = _checked(data, cut, max_pixels)
    orientation = header.orientation if orient else 1
    if header.kind == "JPEG":
        if cut == "refuse":
            _require_whole(data, header)
        out = None
        if orientation == 1 and header.channels != 4:
            out = alloc((header.height, header.width, channels), np.uint8)
        pixels = _jpeg(data, header, channels, out)
        if out is not None:
            return out
    else:
        data = _whole_png(data, header)
        image = _opened(data, header, cut == "fill")
        pixels = _stored_orientation(_as_u8(image, header, channels, _wide(data, header, image)), header)
    return _placed(turned(pixels, orientation), alloc)


def _placed(pixels: np.ndarray, alloc: Callable[..., Any]) -> Any:
    out = alloc(pixels.shape, pixels.dtype.type)
    np.copyto(out, pixels)
    return out


@op('decode_image(data: bytes, channels: i64 = 3, orient: bool = true, cut: text = "refuse", '
    "max_pixels: i64 = 100_000_000) -> u8[h, w, channels]")
class decode_image:
    """Decode a JPEG, PNG, WebP, GIF (first frame), BMP or TIFF, known by its content, to u8.

    `channels`: 1 grey, 3 RGB, 4 RGB and alpha. Palettes are resolved, alpha is dropped (not blended), CMYK and 16-bit
    values are converted (v × 255 / 65535, rounded), grey is ITU-R 601 (for a JPEG the file's own luma). EXIF
    orientation is applied unless `orient=false`. An image with more than `max_pixels` is refused before it is decoded.
    A record is bad if its header can't be read or its data ends early; a file that lacks only its end marker is whole.
    `cut="fill"` takes what a cut file holds (not for WebP).
    """

    least_sizes = {("", 0): 1, ("", 1): 1}  # noqa: RUF012

    def ref(data: Any, channels: int, orient: bool, cut: str, max_pixels: int) -> Any:
        return _image(data, int(channels), bool(orient), cut, max_pixels, np.empty)

    def cpu(alloc: Any, data: bytes, channels: int, orient: bool, cut: str, max_pixels: int) -> Any:
        return _image(data, int(channels), bool(orient), cut, max_pixels, alloc)


def _stored(data: bytes, header: Header) -> Any:
    """One channel as the file stores it: palette indexes, 0/1 of a bitmap, unscaled grey."""
    data = _whole_png(data, header)
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
        pixels = _jpeg(data, header, 1, None)[:, :, 0]
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

    def cpu(alloc: Any, data: bytes, orient: bool, max_pixels: int) -> Any:
        return _mask(data, bool(orient), max_pixels, alloc)


def _u16(data: Any, channels: int, orient: bool, max_pixels: int, alloc: Callable[..., Any]) -> Any:
    data, header = _checked(data, "refuse", max_pixels)
    if header.kind not in ("PNG", "TIFF"):
        raise bad(f"this is {article(sniff(data))}, which has no 16-bit values; decode_image reads it")
    data = _whole_png(data, header)
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

    def cpu(alloc: Any, data: bytes, channels: int, orient: bool, max_pixels: int) -> Any:
        return _u16(data, int(channels), bool(orient), max_pixels, alloc)
