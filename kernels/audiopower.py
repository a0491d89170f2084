"""Power spectra of overlapping frames of a wave: by products of matrices where windows are short, by a library's FFT else.

A real frame x of N samples under a window that is symmetric about N/2 folds into sums and differences of x[n] and x[N - n],
which split by even and odd n: frequencies k and N/2 - k are then the sum and the difference of the same two products. That
is a quarter of the plain transform's work, and done for many frames at once it takes less time than their FFTs.
"""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

LONGEST = 640    # of a window for matrices; an FFT is quicker beyond
AT_ONCE = 256    # frames: their sums and products stay in the cache


@functools.lru_cache(maxsize=32)
def hann(win: int) -> Any:
    """The periodic Hann window, f32[win]."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / win)).astype(np.float32)


def powers(out: Any, wave: Any, win: int, hop: int) -> None:
    """`out[t, k]` f32: the power of frequency k in the Hann-windowed frame that begins at sample t × hop."""
    if win % 4 or win > LONGEST or hop >= win:
        frames = np.lib.stride_tricks.sliding_window_view(wave, win)[: len(out) * hop : hop]
        parts = np.fft.rfft(frames * hann(win), axis=1).astype(np.complex64, copy=False).view(np.float32)
        parts *= parts
        np.add(parts[:, ::2], parts[:, 1::2], out=out)
        return
    columns = _columns(wave, hop, len(out) + win // hop)
    for first in range(0, len(out), AT_ONCE):
        part = out[first : first + AT_ONCE]
        _folded(part, _samples(columns[:, first:], win, hop, len(part)), win)


def _columns(wave: Any, hop: int, steps: int) -> Any:
    """f32[hop, steps]: sample n of a step of the wave in row n, zeros beyond the end."""
    if steps * hop > len(wave):
        wave = np.concatenate([wave, np.zeros(steps * hop - len(wave), np.float32)])
    return np.ascontiguousarray(wave[: steps * hop].reshape(steps, hop).T)


def _samples(columns: Any, win: int, hop: int, count: int) -> Any:
    """f32[win, count]: sample n of each frame in row n."""
    samples = np.empty((win, count), np.float32)
    for step in range(-(-win // hop)):
        rows = samples[step * hop : (step + 1) * hop]
        rows[:] = columns[: len(rows), step : step + count]
    return samples


@functools.lru_cache(maxsize=8)
def _weights(win: int) -> tuple[Any, Any, Any, Any]:
    """Cosines and sines [n, k] times the window, k to win / 4, for even n from 2 and odd n from 1, both to win / 2."""
    half = win // 2
    n = np.arange(half + 1)
    angle = 2 * np.pi * (np.outer(n, np.arange(win // 4 + 1)) % win) / win
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / win)
    window[half] /= 2                                     # its sample is added to itself; sample 0 weighs nothing
    cosines, sines = ((f(angle) * window[:, None]).astype(np.float32) for f in (np.cos, np.sin))
    return cosines[2::2].copy(), cosines[1::2].copy(), sines[2::2].copy(), sines[1::2].copy()


def _folded(out: Any, samples: Any, win: int) -> None:
    half, quarter = win // 2, win // 4
    parts = []
    for first, cosines, sines in zip((2, 1), _weights(win)[:2], _weights(win)[2:], strict=True):
        low, high = samples[first : half + 1 : 2], samples[win - first : half - 1 : -2]
        parts.append(((low + high).T @ cosines, (low - high).T @ sines))
    (even, even_sine), (odd, odd_sine) = parts
    real, imaginary = even + odd, even_sine + odd_sine
    real *= real
    imaginary *= imaginary
    np.add(real, imaginary, out=out[:, : quarter + 1])
    even -= odd
    even *= even
    even_sine -= odd_sine
    even_sine *= even_sine
    even += even_sine
    out[:, quarter + 1 :] = even[:, quarter - 1 :: -1]
