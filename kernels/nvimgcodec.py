"""Windows of JPEGs by nvImageCodec's CPU decoder: the extra `pipec[nvimgcodec]`, whose licence asks for an NVIDIA GPU."""
from __future__ import annotations

import glob
import threading
from importlib import import_module
from typing import Any

import numpy as np

from .imagefile import Header, one_scan
from .jpeg import Absent, Provider, Window

NAME = "nvImageCodec"


class _Decoders(threading.local):
    """One decoder for each thread: a shared one corrupts memory."""

    def __init__(self, library: Any):
        kind = library.BackendKind.CPU_ONLY
        self.decoder = library.Decoder(backends=[library.Backend(kind)], max_num_cpu_threads=1)
        self.params = {space: library.DecodeParams(apply_exif_orientation=False, color_spec=space)
                       for space in (library.ColorSpec.SRGB, library.ColorSpec.GRAY)}


def load() -> Provider | Absent:
    if not glob.glob("/dev/nvidia[0-9]*"):
        return Absent(NAME, "its licence allows it only where an NVIDIA GPU is, and there is none")
    try:
        library = import_module("nvidia.nvimgcodec")
    except ImportError:
        return Absent(NAME, "not installed: pip install 'pipec[nvimgcodec]'")
    decoders = _Decoders(library)

    def decode(data: bytes, header: Header, shrink: int, window: Window, out: np.ndarray) -> bool:
        if shrink != 1 or out.shape[2] == 4 or not one_scan(data, header):
            return False
        return _decode(library, decoders, data, window, out)

    return Provider(NAME, library.__version__, decode, fixed=60_000.0, reads_on=True)


def _decode(library: Any, decoders: _Decoders, data: bytes, window: Window, out: np.ndarray) -> bool:
    space = library.ColorSpec.GRAY if out.shape[2] == 1 else library.ColorSpec.SRGB
    region = library.Region(window.top, window.left, window.top + window.rows, window.left + window.columns)
    source = library.DecodeSource(library.CodeStream(data), region)
    image = decoders.decoder.decode(source, params=decoders.params[space])
    pixels = None if image is None else np.asarray(image.cpu())
    if pixels is None or pixels.shape[:2] != out.shape[:2]:
        return False
    np.copyto(out, pixels.reshape(out.shape))
    return True
