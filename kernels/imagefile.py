"""What an image file says about itself before any pixel is decoded: format, size, EXIF orientation, wholeness.

Bytes go in, a `Header` comes out, or `BadRecord`. Everything here is bounded by the length of the bytes.
"""
from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from .ops import BadRecord

_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)   # not a byte of data, nor a restart
# A progressive file of a megabyte may hold 50,000 scans, each of which walks the whole image.
MOST_SCANS = 500
IMAGE_KINDS = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF")

_FIRST_BYTES = (
    (b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF87a", "GIF"), (b"GIF89a", "GIF"), (b"BM", "BMP"),
    (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"II+\0", "TIFF"), (b"MM\0+", "TIFF"),
    (b"%PDF", "PDF file"), (b"PK\x03\x04", "zip file"), (b"\x1f\x8b", "gzip file"), (b"\x28\xb5\x2f\xfd", "zstd file"),
    (b"BZh", "bzip2 file"), (b"\xfd7zXZ", "xz file"), (b"7z\xbc\xaf", "7z file"), (b"fLaC", "FLAC sound"),
    (b"OggS", "Ogg sound"), (b"ID3", "MP3 sound"), (b"RF64", "WAV (RF64) sound"), (b"RIFX", "WAV (RIFX) sound"),
    (b"riff\x2e\x91\xcf\x11", "WAV (W64) sound"), (b".snd", "AU sound"), (b"caff", "CAF sound"),
    (b"PAR1", "Parquet file"), (b"\x93NUMPY", "NumPy array"),
    (b"\x00\x00\x00\x0cjP", "JPEG 2000 image"), (b"\xff\x4f\xff\x51", "JPEG 2000 image"),
    (b"\xff\x0a", "JPEG XL image"), (b"\x00\x00\x00\x0cJXL", "JPEG XL image"), (b"8BPS", "Photoshop file"),
    (b"\x00\x00\x01\x00", "icon file"), (b"\x76\x2f\x31\x01", "OpenEXR image"), (b"\x1a\x45\xdf\xa3", "Matroska video"),
    (b"version https://git-lfs", "Git LFS pointer"),
)
_BRANDS = {b"avif": "AVIF image", b"avis": "AVIF image", b"heic": "HEIC image", b"heix": "HEIC image",
           b"mif1": "HEIF image", b"msf1": "HEIF image"}


@dataclass(frozen=True)
class Header:
    """`bits` and `channels` are as stored (a palette has 1); `whole`: the format's end marker was found."""

    kind: str
    width: int
    height: int
    channels: int = 3
    bits: int = 8
    orientation: int = 1
    whole: bool = True
    progressive: bool = False
    most: int = 0  # pixels that may be decoded
    scan: int = 0  # where a JPEG's first scan begins, after its marker
    frame: int = 0  # where its frame header tells the size: bits, height, width, channels


def bad(reason: str, label: str = "") -> BadRecord:
    """This record's bytes can't be decoded."""
    return BadRecord("E0801", reason, label)


def article(kind: str) -> str:
    """"a PNG", "an AVIF image"."""
    return f"an {kind}" if kind[0] in "AEIOU" or kind.startswith(("MP", "xz")) else f"a {kind}"


def sniff(data: bytes) -> str:
    """What these bytes are, by their content: one of `IMAGE_KINDS`, another kind's name, or ""."""
    for start, kind in _FIRST_BYTES:
        if data.startswith(start):
            return kind
    if data[:4] == b"RIFF":
        return {b"WEBP": "WebP", b"WAVE": "WAV sound", b"AVI ": "AVI video"}.get(data[8:12], "RIFF file")
    if data[:4] == b"FORM":
        return {b"AIFF": "AIFF sound", b"AIFC": "AIFF sound"}.get(data[8:12], "IFF file")
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "MP4 video")
    if data[257:262] == b"ustar":
        return "tar file"
    start = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "HTML page"
    if start.startswith(b"<svg") or (start.startswith(b"<?xml") and b"<svg" in start):
        return "SVG drawing"
    if start.startswith(b"<?xml"):
        return "XML text"
    if start.startswith((b"{", b"[")):
        return "JSON text"
    return "text" if start and all(32 <= b < 127 or b in b"\t\r\n" for b in start) else ""


def read_header(data: bytes) -> Header:
    """The header of an image; raises BadRecord where there is none or it can't be read."""
    kind = sniff(data)
    if not data:
        raise bad("there is no data", "0 bytes")
    if kind not in IMAGE_KINDS:
        begins = f"begins with {data[:8].hex(' ')}"
        raise bad(f"this is {article(kind)}, not an image it reads" if kind else "this is no image it knows", begins)
    try:
        header = _READERS[kind](data)
    except (struct.error, IndexError):
        raise bad(f"this {kind} ends early", f"its header isn't complete in {len(data):,} bytes") from None
    if header.width <= 0 or header.height <= 0:
        raise bad(f"this {kind} has no pixels", f"{header.width} × {header.height}")
    return header


def ends_early(header: Header, data: bytes) -> BadRecord:
    return bad(f"this {header.kind} ends early", f"no end marker in its {len(data):,} bytes")


# --- EXIF ---------------------------------------------------------------------------------------


def exif_orientation(tiff: bytes) -> int:
    """Tag 0x0112 of an EXIF block (a small TIFF), 1 where it is missing or makes no sense."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if at + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, at)
    for i in range(min(count, (len(tiff) - at - 2) // 12)):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, at + 2 + 12 * i)
        if tag == 0x0112:
            return value if kind == 3 and 1 <= value <= 8 else 1
    return 1


# --- one reader per format ----------------------------------------------------------------------


def _jpeg(data: bytes) -> Header:
    """Walks the segments up to the first scan; after it the end marker can't be taken for anything else."""
    at, orientation, frame = 2, 1, None
    while True:
        at = data.find(b"\xff", at)
        if at < 0:
            raise IndexError
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:
            continue
        if marker == 0xD9:
            raise bad("this JPEG has no pixels", "its end marker comes before the first scan")
        (length,) = struct.unpack_from(">H", data, at)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            bits, height, width, channels = struct.unpack_from(">BHHB", data, at + 2)
            frame = (width, height, channels, bits, marker in (0xC2, 0xC6, 0xCA, 0xCE), at + 2)
        elif marker == 0xE1 and data[at + 2 : at + 8] == b"Exif\0\0":
            orientation = exif_orientation(data[at + 8 : at + length])
        elif marker == 0xDA:
            break
        at += max(length, 2)
    if frame is None:
        raise bad("this JPEG's header can't be read", "a scan comes before the frame")
    width, height, channels, bits, progressive, told = frame
    if progressive and data.count(b"\xff\xda", at) > MOST_SCANS:
        raise bad("this JPEG has too many scans", f"more than {MOST_SCANS}")
    whole = data.rfind(b"\xff\xd9", at) >= 0   # from the end, where it is in whole files
    return Header("JPEG", width, height, channels, bits, orientation, whole, progressive, scan=at, frame=told)


def one_scan(data: bytes, header: Header) -> bool:
    """Does a JPEG end where its first scan does: nothing that follows can be damaged then."""
    found = _MARKER.search(data, header.scan + 4)
    return found is not None and found[0] == b"\xff\xd9"


def jpeg_scans_complete(data: bytes) -> bool:
    """Whether a progressive JPEG's scans refine every coefficient of every component to its last bit."""
    rough: set[tuple[int, int]] = set()
    at = 2
    while (at := data.find(b"\xff", at)) >= 0 and at + 4 <= len(data):
        marker, (length,) = data[at + 1], struct.unpack_from(">H", data, at + 2)
        if marker in (0x00, 0x01, 0xFF) or 0xD0 <= marker <= 0xD9:
            at += 1 if marker == 0xFF else 2
            continue
        body = data[at + 4 : at + 2 + length]
        if marker in (0xC2, 0xC6, 0xCA, 0xCE):
            rough = {(c, k) for c in body[6::3] for k in range(64)}
        elif marker == 0xDA and body and len(body) >= 4 + 2 * body[0]:
            first, last, bits = body[1 + 2 * body[0] :][:3]
            if bits & 15 == 0:
                rough -= {(c, k) for c in body[1 : 1 + 2 * body[0] : 2] for k in range(first, last + 1)}
        at += 2 + max(length, 2)
    return not rough


def _png(data: bytes) -> Header:
    width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    orientation, whole, at = 1, False, 8
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"eXIf":
            orientation = exif_orientation(data[at + 8 : at + 8 + min(length, 1 << 16)])
        if kind == b"IEND":
            whole = True
            break
        at += 12 + length
    # Only the end chunk itself is missing: the chunks before it are complete.
    whole = whole or at == len(data) or (at < len(data) and b"\0\0\0\0IEND".startswith(data[at:]))
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 0)
    if not channels:
        raise bad("this PNG's header can't be read", f"colour type {colour}")
    return Header("PNG", width, height, channels, bits, orientation, whole)


def _webp(data: bytes) -> Header:
    (length,) = struct.unpack_from("<I", data, 4)
    kind, orientation, width, height, channels = data[12:16], 1, 0, 0, 3
    if kind == b"VP8X":
        flags, w, h = data[20], data[24:27], data[27:30]
        width, height = int.from_bytes(w, "little") + 1, int.from_bytes(h, "little") + 1
        channels = 4 if flags & 16 else 3
        at = 30
        while flags & 8 and at + 8 <= len(data):
            name, size = struct.unpack_from("<4sI", data, at)
            if name == b"EXIF":
                block = data[at + 8 : at + 8 + min(size, 1 << 16)]
                orientation = exif_orientation(block.removeprefix(b"Exif\0\0"))
            at += 8 + size + (size & 1)
    elif kind == b"VP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        width, height, channels = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1, 4 if packed >> 28 & 1 else 3
    elif kind == b"VP8 ":
        width, height = (v & 0x3FFF for v in struct.unpack_from("<HH", data, 26))
    else:
        raise bad("this WebP's header can't be read", f"its first chunk is {kind!r}")
    return Header("WebP", width, height, channels, orientation=orientation, whole=len(data) >= length + 8)


def _gif(data: bytes) -> Header:
    width, height = struct.unpack_from("<HH", data, 6)
    return Header("GIF", width, height, 1)


def _bmp(data: bytes) -> Header:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if size == 12 else "<ii", data, 18)
    return Header("BMP", width, abs(height))


def _tiff(data: bytes) -> Header:
    """Only that there is a first directory; its tags are many, so the decoder reads them."""
    if data[2] in b"+":
        raise bad("this is a BigTIFF, which it doesn't read")
    order = "<" if data[:2] == b"II" else ">"
    (at,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, at)
    found = {0x0100: 0, 0x0101: 0, 0x0102: 1, 0x0112: 1, 0x0115: 1}
    for i in range(count):
        tag, kind, _ = struct.unpack_from(order + "HHI", data, at + 2 + 12 * i)
        if tag in found and kind in (3, 4):
            (found[tag],) = struct.unpack_from(order + ("H" if kind == 3 else "I"), data, at + 10 + 12 * i)
    orientation = found[0x0112] if 1 <= found[0x0112] <= 8 else 1
    return Header("TIFF", found[0x0100], found[0x0101], found[0x0115], orientation=orientation)


_READERS = {"JPEG": _jpeg, "PNG": _png, "WebP": _webp, "GIF": _gif, "BMP": _bmp, "TIFF": _tiff}
