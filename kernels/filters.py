"""`convolve` and `channel_histograms`: separable filters and counts of values, the same bits from NumPy and from loop IR.

Sums are f32, down the columns first, then along the rows, each from its first tap to its last.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from .lanes import as_f32
from .ops import op
from .resize import as_dtype, back, product

# Taps that are added at once, so that sums are loaded and stored less often; their order stays.
GROUP = 4


def _reflected(k: Any, i: Any, size: Any) -> Any:
    """The pixel that a place beyond the edge shows: the image is mirrored there, its edge not repeated."""
    period = k.call("max", (size - 1) * 2, size * 0 + 1)
    i = i % period
    return k.call("min", i, k.call("max", size - 1, size * 0) * 2 - i)


# --- NumPy ------------------------------------------------------------------------------------------------------


def _pass(x: Any, weights: Any) -> Any:
    """Weighted sums along axis 0."""
    n, count = len(x), len(weights)
    places = np.arange(1 - count // 2 - 1, n + count - 1 - count // 2)
    period = max(2 * (n - 1), 1)
    places = places % period
    padded = x[np.minimum(places, 2 * (n - 1) - places)]
    total = weights[0] * padded[:n]
    for t in range(1, count):
        total = total + weights[t] * padded[t : t + n]
    return total


# --- loop IR ----------------------------------------------------------------------------------------------------


def _weighted(k: Any, into: Any, at: Any, length: Any, source: Any, begins: Any, weights: Any, count: Any) -> None:
    """into[at + i] = the sum over taps t of weights[t] × source[begins(t) + i], for i < length."""

    def add(first: Any, group: int, fresh: bool) -> None:
        taps = [k.let(weights.at(first + g), "weight") for g in range(group)]
        places = [k.let(begins(first + g), "there") for g in range(group)]
        with k.loop(length, "i") as i:
            terms = [w * as_f32(k, source, p + i) for w, p in zip(taps, places, strict=True)]
            total = terms[0] if fresh else into.at(at + i) + terms[0]
            for term in terms[1:]:
                total = total + term
            k.put(into, at + i, total)

    add(k.let(0, "tap"), 1, True)
    groups = k.let((count - 1) // GROUP, "groups")
    with k.loop(groups, "group") as group:
        add(k.let(group * GROUP + 1, "tap"), GROUP, False)
    with k.loop(count, "tap", start=groups * GROUP + 1) as tap:
        add(tap, 1, False)


def _lower_convolve(k: Any, out: Any, img: Any, down: Any, across: Any) -> None:
    h, w = img.dims[:2]
    channels = product(img.dims[2:])
    wide = k.let(w * channels, "wide")
    m, n = down.dims[0], across.dims[0]
    left = k.let(n // 2, "left")
    line = k.scratch("f32", (w + n) * channels, hint="line")
    sums = k.scratch("f32", wide, hint="sums")
    begin = k.let(left * channels, "begin")

    def beyond(x: Any) -> None:
        """One place beyond the ends of the row."""
        source = k.let((left + _reflected(k, x, w)) * channels, "source")
        target = k.let((left + x) * channels, "target")
        with k.loop(channels, "c") as c:
            k.put(line, target + c, line.at(source + c))

    with k.loop(h, "y") as y:
        _weighted(k, line, begin, wide, img, lambda t: _reflected(k, y + t - m // 2, h) * wide, down, m)
        with k.loop(left, "p") as p:
            beyond(k.let(p - left, "x"))
        with k.loop(n - 1 - left, "p") as p:
            beyond(k.let(p + w, "x"))
        _weighted(k, sums, k.let(0, "none"), wide, line, lambda t: t * channels, across, n)
        with k.loop(wide, "i") as i:
            k.put(out, y * wide + i, back(k, sums.at(i), out.dtype, "bicubic"))


_STRIPE = np.array([[0, 0, 90, 0], [0, 0, 90, 0], [40, 0, 90, 9]], np.uint8)
_THIRDS = np.array([0.25, 0.5, 0.25], np.float32)


@op("convolve(img: num[h, w, ...], down: f32[m], across: f32[n]) -> num[h, w, ...]")
class convolve:
    """Weight every pixel's neighbours: `down` the column, then `across` the row.

    The weight at m // 2 belongs to the pixel itself. Beyond its edges the image is mirrored, the edge itself not
    repeated ("reflect" in torch and NumPy). Computed in f32 and rounded once, half to even; u8 saturates.
    """

    def ref(img: Any, down: Any, across: Any) -> Any:
        if 0 in img.shape:
            return img.copy()
        down, across = np.asarray(down, np.float32), np.asarray(across, np.float32)
        if not len(down) or not len(across):
            return np.zeros_like(img)
        columns = _pass(img.reshape(img.shape[0], -1).astype(np.float32), down).reshape(img.shape)
        rows = _pass(np.moveaxis(columns, 1, 0), across)
        return as_dtype(np.ascontiguousarray(np.moveaxis(rows, 0, 1)), img.dtype)

    def lower(k: Any, out: Any, img: Any, down: Any, across: Any) -> None:
        with k.when((down.dims[0] > 0) & (across.dims[0] > 0)):
            _lower_convolve(k, out, img, down, across)
        with k.otherwise(), k.loop(out.dims[0] * out.dims[1] * product(out.dims[2:]), "t") as t:
            k.put(out, t, 0)

    examples = (
        ((_STRIPE, _THIRDS, _THIRDS), np.array([[0, 22, 45, 45], [5, 25, 46, 46], [10, 28, 46, 47]], np.uint8)),
    )


@op("channel_histograms(img: u8[h, w, c]) -> i64[c, 256]")
class channel_histograms:
    """Count how often each channel has each of the values 0 to 255."""

    def ref(img: Any) -> Any:
        channels = img.reshape(-1, img.shape[2]).T
        return np.stack([np.bincount(channel, minlength=256) for channel in channels]).astype(np.int64)

    def lower(k: Any, out: Any, img: Any) -> None:
        channels = img.dims[2]
        with k.loop(channels * 256, "i") as i:
            k.put(out, i, 0)
        with k.loop(img.dims[0] * img.dims[1], "pixel") as pixel, k.loop(channels, "c") as c:
            at = k.let(c * 256 + img.at(pixel * channels + c), "at")
            k.put(out, at, out.at(at) + 1)

    def ranges(*_: Any) -> tuple[int, int]:
        return 0, 2**47   # no record has more pixels
