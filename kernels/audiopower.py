"""Power spectra of overlapping frames of a wave: by our own extension (`sound.c`) where it is built and half the window is a
product of 2, 3, 4 and 5, by a library's FFT else."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .extensions import sound

LONGEST = 16_384   # of a window whose transform stays in the cache


@functools.lru_cache(maxsize=32)
def hann(win: int) -> Any:
    """The periodic Hann window, f32[win]."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / win)).astype(np.float32)


def powers(out: Any, wave: Any, win: int, hop: int) -> None:
    """`out[t, k]` f32: the power of frequency k in the Hann-windowed frame that begins at sample t × hop."""
    extension, plan = sound(), _plan(win)
    if extension and plan and len(out):
        extension.powers(np.ascontiguousarray(wave), out, win, min(hop, len(wave)), *plan)
        return
    frames = np.lib.stride_tricks.sliding_window_view(wave, win)[: len(out) * hop : hop]
    parts = np.fft.rfft(frames * hann(win), axis=1).astype(np.complex64, copy=False).view(np.float32)
    parts *= parts
    np.add(parts[:, ::2], parts[:, 1::2], out=out)


@functools.lru_cache(maxsize=32)
def _plan(win: int) -> tuple[Any, Any] | None:
    """Tables f32 and radices i32 of the passes over win / 2 complex values, None for other windows."""
    if win % 2 or not 4 <= win <= LONGEST:
        return None
    left, radices, twiddles = win // 2, [], []
    for radix in (5, 4, 3, 2):
        while left % radix == 0:
            twiddles.append(_turns(left, np.outer(np.arange(left // radix), np.arange(1, radix))))
            left //= radix
            radices.append(radix)
    if left > 1:
        return None
    tables = np.concatenate([0.5 * hann(win).astype(np.float64), *twiddles, _turns(win, np.arange(win // 4 + 1))])
    return tables.astype(np.float32), np.array(radices, np.int32)


def _turns(period: int, k: Any) -> Any:
    """exp(-2πi k / period), real and imaginary parts beside each other."""
    angle = 2 * np.pi * (k.reshape(-1) % period) / period
    return np.stack([np.cos(angle), -np.sin(angle)], 1).reshape(-1)
