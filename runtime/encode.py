"""Values of varying size as bytes of the ring: from arrays, texts and bytes to (bytes, their number, dims)."""
from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np

from .blocks import DTYPES
from .layout import ALIGN, Place


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def encode(place: Place, value: Any) -> tuple[Any, int, tuple[int, ...]]:
    """(bytes as an array, their number or -1 for none, dims) of one value."""
    if place.dtype in DTYPES:
        array = np.ascontiguousarray(value, DTYPES[place.dtype])
        if array.ndim != len(place.dims):
            array = array.reshape(np.shape(value))        # ascontiguousarray makes 1-d of a scalar
        if len(array.shape) != len(place.dims):
            raise ValueError(f"`{place.name}` has {len(array.shape)} dims, not {len(place.dims)}")
        return array.reshape(-1).view(np.uint8), array.nbytes, array.shape
    if place.dims:
        objects = np.asarray(value, object)
        data = msgspec.msgpack.encode([_text(v) for v in objects.reshape(-1)])
        return np.frombuffer(data, np.uint8), len(data), objects.shape
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.item()
    if value is None:
        return np.empty(0, np.uint8), -1, ()
    text = _text(value)
    data = text.encode() if isinstance(text, str) else bytes(text)
    return np.frombuffer(data, np.uint8), len(data), ()


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes):
        return value
    return bytes(value) if isinstance(value, bytearray | memoryview | np.ndarray) else os.fspath(value)
