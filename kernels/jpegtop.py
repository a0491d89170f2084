"""Windows of JPEGs by simplejpeg, which decodes whole images: of a copy whose header says that the image ends below the window.

Nothing above the window's end depends on what follows, so the pixels are those of the whole image; what lies below is neither
read (but for the end marker) nor turned into pixels.
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import simplejpeg

from .imagefile import Header, one_scan
from .jpeg import Provider, Window, scratch, whole_to
from .ops import BadRecord

NAME = "simplejpeg, without what lies below"
# Rows below the window that are decoded too: chroma is interpolated from its neighbours, and blocks are up to 32 rows tall.
MARGIN = 32


def load() -> Provider:
    return Provider(NAME, simplejpeg.__version__, decode, fixed=20_000.0, skimmed=1.5, whole_rows=True)


def decode(data: bytes, header: Header, shrink: int, window: Window, out: np.ndarray) -> bool:
    tall = (window.top + window.rows) * shrink + MARGIN
    if tall >= header.height or not one_pass(data, header) or not one_scan(data, header):
        return False
    at = header.frame + 1   # of the height, after the bits
    told = b"".join((memoryview(data)[:at], tall.to_bytes(2, "big"), memoryview(data)[at + 2 :]))
    pixels = scratch(-(-tall // shrink), -(-header.width // shrink), out.shape[2])
    try:
        whole_to(told, replace(header, height=tall), shrink, pixels)
    except BadRecord:
        return False
    np.copyto(out, pixels[window.top : window.top + window.rows, window.left : window.left + window.columns])
    return True


def one_pass(data: bytes, header: Header) -> bool:
    """Are rows decoded one after the other, blocks at most 32 pixels tall: Huffman codes (SOF0, SOF1), all components in the
    first scan. Damage is met in the same order then, however many rows are asked for."""
    told = data[header.frame - 3 : header.frame + 6 + 3 * header.channels]   # from the marker to the last component
    if told[:1] not in (b"\xc0", b"\xc1") or data[header.scan + 2 : header.scan + 3] != told[8:9]:
        return False
    return told[8] == header.channels and all(factors & 15 <= 4 for factors in told[10::3])
