"""`resize`: a box of an image resampled to another size, the same bits from NumPy and from loop IR.

Weights are made in f64 from + - * / and comparisons only; pixels are weighted in f32, down the columns first, then
along the rows, each sum from its first tap to its last.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from . import scalar
from .ops import op

SUPPORT = {"bilinear": 1.0, "bicubic": 2.0, "area": 0.5}
FILTERS = ("bilinear", "nearest", "bicubic", "area")
# Rows that are done together: the horizontal pass then adds whole vectors of one column each.
BLOCK = 16
_WHOLE = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")


def _checked(filter: str) -> str:
    if filter not in FILTERS:
        raise ValueError(f"filter {filter!r} is none of {', '.join(FILTERS)}")
    return filter


# --- weights, once for NumPy arrays and once for loop IR: `k` is what selects, floors and casts --------------------


def _inside(k: Any, x: Any, low: Any, high: Any) -> Any:
    """x between low and high; low where x is not a number."""
    return k.select(x > low, k.select(x < high, x, high), low)


def _whole(k: Any, x: Any) -> Any:
    return k.cast(k.call("floor", x), "i64", "truncate")


def _span(k: Any, size: Any, start: Any, length: Any) -> tuple[Any, Any]:
    """First pixel that the box touches and the one after the last, at least one pixel of the image."""
    most = k.cast(size, "f64")
    low = k.let(k.call("min", _whole(k, _inside(k, start, 0.0, most)), size - 1), "low")
    end = k.cast(k.call("ceil", _inside(k, start + length, 0.0, most)), "i64", "truncate")
    return low, k.let(k.call("max", end, low + 1), "high")


def _filter(k: Any, name: str, x: Any) -> Any:
    """Weight of a pixel at distance x, in units of the filter."""
    if name == "area":
        return k.cast((x > -0.5) & (x <= 0.5), "f64")
    x = k.call("abs", x)
    if name == "bilinear":
        return k.select(x < 1.0, 1.0 - x, 0.0)
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return k.select(x < 1.0, near, k.select(x < 2.0, far, 0.0))


def _scale(k: Any, length: Any, out: Any) -> Any:
    """Pixels of the box per pixel of the result."""
    return k.let(k.select(length > 0.0, length, 0.0) / k.cast(out, "f64"), "scale")


def _center(k: Any, i: Any, offset: Any, scale: Any, size: Any) -> Any:
    """The middle of pixel i of the result, counted from the span's first pixel, so that ties are where a crop has them."""
    return _inside(k, offset + (k.cast(i, "f64") + 0.5) * scale, 0.0, k.cast(size, "f64"))


def _window(k: Any, center: Any, support: Any, size: Any) -> tuple[Any, Any]:
    """First tap and number of taps."""
    first = k.call("min", _whole(k, k.call("max", center - support + 0.5, center * 0.0)), size - 1)
    last = k.call("max", k.call("min", _whole(k, center + support + 0.5), size), first + 1)
    return first, last - first


def _distance(k: Any, pixel: Any, center: Any, narrow: Any) -> Any:
    """From a pixel's middle to the centre, in units of the filter; Pillow's own order of operations."""
    return (k.cast(pixel, "f64") - center + 0.5) * narrow


def _nearest(k: Any, place: Any, size: Any) -> Any:
    """The pixel of the span at this place."""
    return k.call("min", _whole(k, _inside(k, place, 0.0, k.cast(size, "f64"))), size - 1)


# --- NumPy ------------------------------------------------------------------------------------------------------


def taps(size: int, start: float, length: float, out: int, filter: str, antialias: bool) -> tuple[Any, Any, Any]:
    """For each of `out` pixels: first tap, number of taps, and f32 weights [out, most taps]."""
    k = scalar.Arrays()
    begin, extent = np.float64(start), np.float64(length)
    low, high = _span(k, np.int64(size), begin, extent)
    scale = _scale(k, extent, np.int64(out))
    wide = np.where(antialias & (scale > 1.0), scale, 1.0)
    support = np.minimum(SUPPORT[filter] * wide, np.float64(high - low))
    narrow = 1.0 / wide
    center = _center(k, np.arange(out), begin - np.float64(low), scale, high - low)
    first, count = _window(k, center, support, high - low)
    most = int(count.max()) if out else 0
    weights = np.zeros((out, most))
    total = np.zeros(out)
    for t in range(most):
        w = _filter(k, filter, _distance(k, first + t, center, narrow))
        weights[:, t] = np.where(t < count, w, 0.0)
        total = np.where(t < count, total + w, total)
    one = total == 0.0
    weights[one, 0] = 1.0
    total[one] = 1.0
    return first + low, count, (weights / total[:, None]).astype(np.float32)


def nearest(size: int, start: Any, length: Any, out: int) -> Any:
    """For each of `out` pixels, the pixel that is taken: the one under its middle, found by adding the scale up as
    Pillow does, so that ties fall as there."""
    k = scalar.Arrays()
    low, high = _span(k, np.int64(size), start, length)
    scale = _scale(k, length, np.int64(out))
    steps = np.full(out, scale)
    steps[0] = (start - np.float64(low)) + scale * 0.5
    return low + _nearest(k, np.add.accumulate(steps), high - low)


def _pass(x: Any, first: Any, count: Any, weights: Any) -> Any:
    """Weighted sums over axis 0 of x [n, m]: [out, m]."""
    result = weights[:, :1] * x[first]
    for t in range(1, weights.shape[1]):
        more = t < count
        result[more] += weights[more, t : t + 1] * x[first[more] + t]
    return result


def _resized(img: Any, box: Any, height: int, width: int, filter: str, antialias: bool) -> Any:
    h, w, rest = img.shape[0], img.shape[1], img.shape[2:]
    if 0 in img.shape or height <= 0 or width <= 0:
        return np.zeros((max(height, 0), max(width, 0), *rest), img.dtype)
    top, left, tall, broad = (np.float64(v) for v in np.asarray(box))
    if filter == "nearest":
        return img[nearest(h, top, tall, height)[:, None], nearest(w, left, broad, width)]
    flat = img.reshape(h, -1).astype(np.float32)
    down = _pass(flat, *taps(h, top, tall, height, filter, antialias)).reshape(height, w, -1)
    across = np.ascontiguousarray(down.transpose(1, 0, 2)).reshape(w, -1)
    done = _pass(across, *taps(w, left, broad, width, filter, antialias)).reshape(width, height, -1)
    return np.ascontiguousarray(done.transpose(1, 0, 2)).reshape(height, width, *rest)


def as_dtype(x: Any, dtype: Any) -> Any:
    """f32 results in the image's dtype: integers round half to even and saturate, bool is the nearer one."""
    if x.dtype == dtype:
        return x
    if dtype == np.bool_:
        return x > np.float32(0.5)
    if np.issubdtype(dtype, np.integer):
        return scalar.cast(x, np.dtype(dtype).kind + str(np.dtype(dtype).itemsize * 8), "round").astype(dtype)
    return x.astype(dtype)


# --- loop IR ----------------------------------------------------------------------------------------------------


def _lower_taps(k: Any, size: Any, start: Any, length: Any, out: Any, filter: str, antialias: Any) -> Any:
    """Scratch with what `taps` gives, taps counted from `low`; then low and high of the span."""
    low, high = _span(k, size, start, length)
    size = k.let(high - low, "size")
    scale = _scale(k, length, out)
    wide = k.let(k.select(antialias & (scale > 1.0), scale, 1.0), "wide")
    support = k.let(k.call("min", wide * SUPPORT[filter], k.cast(size, "f64")), "support")
    narrow = k.let(1.0 / wide, "narrow")
    offset = k.let(start - k.cast(low, "f64"), "offset")
    most = k.let(k.call("min", k.cast(support * 2.0, "i64", "truncate") + 2, size), "most")
    firsts, counts = k.scratch("i64", out, hint="firsts"), k.scratch("i64", out, hint="counts")
    weights, row = k.scratch("f32", out, most, hint="weights"), k.scratch("f64", most, hint="weighing")
    with k.loop(out) as i:
        center = k.let(_center(k, i, offset, scale, size), "center")
        first, count = _window(k, center, support, size)
        k.store(firsts, (i,), first)
        k.store(counts, (i,), count)
        total = k.let(0.0, "total", "f64")
        with k.loop(counts[i], "t") as t:
            w = k.let(_filter(k, filter, _distance(k, firsts[i] + t, center, narrow)), "weight")
            k.store(row, (t,), w)
            k.set(total, total + w)
        with k.when(total.eq(0.0)):
            k.store(row, (0,), 1.0)
            k.set(total, 1.0)
        with k.loop(counts[i], "t") as t:
            k.store(weights, (i, t), k.cast(row[t] / total, "f32"))
    return firsts, counts, weights, low, high


# 1.5 × 2^23: added to an f32 below 2^22, it leaves the number, rounded half to even, in the lowest bits.
_TO_BITS = 12582912.0


def back(k: Any, value: Any, dtype: str, filter: str) -> Any:
    """An f32 sum as an element of the result."""
    if dtype == "f32":
        return value
    if dtype == "u8":
        if filter == "bicubic":  # the others' weights aren't negative and add up to 1
            value = k.select(value > 0.0, k.select(value < 255.0, value, 255.0), 0.0)
        return k.cast(k.call("bitand", k.cast(value + _TO_BITS, "i64", "bits"), 255), "u8")
    if dtype == "bool":
        return value > 0.5
    return k.cast(value, dtype, "round" if dtype in _WHOLE else "exact")


def product(dims: Any) -> Any:
    """Number of elements of the dimensions after the second."""
    count: Any = 1
    for d in dims:
        count = d if isinstance(count, int) else count * d
    return count


def _lower_nearest(k: Any, out: Any, img: Any, axes: Any, channels: Any) -> None:
    starts = []
    for size, start, length, n in axes:
        low, high = _span(k, size, start, length)
        scale = _scale(k, length, n)
        place = k.let((start - k.cast(low, "f64")) + scale * 0.5, "place")
        index = k.scratch("i64", n, hint="nearest")
        with k.loop(n) as i:
            k.store(index, (i,), low + _nearest(k, place, high - low))
            k.set(place, place + scale)
        starts.append(index)
    ys, xs = starts
    with k.loop(out.dims[0], "y") as y:
        source = k.let(ys[y] * img.dims[1], "source")
        with k.loop(out.dims[1], "x") as x:
            a = k.let((source + xs[x]) * channels, "a")
            b = k.let((y * out.dims[1] + x) * channels, "b")
            with k.loop(channels, "c") as c:
                k.put(out, b + c, img.at(a + c))


def _lower_weighted(k: Any, out: Any, img: Any, axes: Any, channels: Any, filter: str, antialias: Any) -> None:
    (h, top, tall, height), (w, left, broad, width) = axes
    first_y, count_y, weight_y, y0, _ = _lower_taps(k, h, top, tall, height, filter, antialias)
    first_x, count_x, weight_x, x0, x1 = _lower_taps(k, w, left, broad, width, filter, antialias)
    stride = k.let(img.dims[1] * channels, "stride")
    length = k.let((x1 - x0) * channels, "length")
    wide = k.let(out.dims[1] * channels, "wide")
    rows = k.scratch("f32", BLOCK, length, hint="rows")
    turned = k.scratch("f32", length, BLOCK, hint="turned")
    sums = k.scratch("f32", wide, BLOCK, hint="sums")
    pixels = k.scratch(out.dtype, wide, BLOCK, hint="pixels")
    with k.loop((height + (BLOCK - 1)) // BLOCK, "block") as block:
        with k.loop(BLOCK, "r") as r:
            i = k.let(k.call("min", block * BLOCK + r, height - 1), "i")
            _weigh(k, rows, r * length, length, img, (y0 + first_y[i]) * stride + x0 * channels, stride,
                   weight_y, i, count_y[i])
        with k.loop(length, "t") as t, k.loop(BLOCK, "r") as r:
            k.store(turned, (t, r), rows[r, t])
        with k.loop(out.dims[1], "j") as j:
            lanes = channels * BLOCK
            _weigh(k, sums, j * lanes, lanes, turned, first_x[j] * lanes, lanes,
                   weight_x, j, count_x[j])
        # Converted where a vector holds one column, before single elements go to their rows.
        with k.loop(wide, "t") as t, k.loop(BLOCK, "r") as r:
            k.store(pixels, (t, r), back(k, sums[t, r], out.dtype, filter))
        with k.loop(k.call("min", height - block * BLOCK, k.let(BLOCK, "lanes")), "r") as r:
            place = k.let((block * BLOCK + r) * wide, "place")
            with k.loop(wide, "t") as t:
                k.put(out, place + t, _stored(pixels, t * BLOCK + r))


def _weigh(k: Any, into: Any, at: Any, length: Any, source: Any, begin: Any, step: Any, weights: Any, i: Any,
           count: Any) -> None:
    """into[at + t] = the weighted sum over taps n of source[begin + n × step + t], for t < length.

    Two taps go at once, always added from the first to the last, so that sums are stored half as often.
    """
    at, begin, count = k.let(at, "at"), k.let(begin, "begin"), k.let(count, "count")

    def add(n: Any, group: int, fresh: bool) -> None:
        w = [k.let(weights[i, n + g], "w") for g in range(group)]
        place = [k.let(begin + (n + g) * step, "there") for g in range(group)]
        with k.loop(length, "t") as t:
            terms = [w[g] * as_f32(k, source, place[g] + t) for g in range(group)]
            total = terms[0] if fresh else into.at(at + t) + terms[0]
            for term in terms[1:]:
                total = total + term
            k.put(into, at + t, total)

    done = k.let(2, "done")
    with k.when(count >= 2):
        add(k.let(0, "n"), 2, True)
    with k.otherwise():
        add(k.let(0, "n"), 1, True)
        k.set(done, 1)
    with k.loop((count - done) // 2, "pair") as pair:
        add(done + pair * 2, 2, False)
    with k.when(((count - done) % 2).eq(1)):
        add(count - 1, 1, False)


def _stored(source: Any, position: Any) -> Any:
    """An element in its own dtype; by way of i64 a conversion wouldn't become one vector instruction."""
    loaded = source.at(position)
    return getattr(loaded, "value", loaded)


def as_f32(k: Any, source: Any, position: Any) -> Any:
    return k.cast(_stored(source, position), "f32")


@op('resize(img: any[h, w, ...], box: num[4], height: i64, width: i64, filter: text = "bilinear", '
    "antialias: bool = true) -> any[height, width, ...]")
class resize:
    """Resample a box (top, left, height, width, in pixels) of an image to height by width.

    `filter` is "bilinear", "nearest", "bicubic" or "area", with half-pixel centres. A filter widens as the image
    shrinks (`antialias=false` keeps it narrow, as OpenCV does), except for "nearest", which never blends.
    Only pixels that the box touches are read, as if the image had been cropped first; the edges of the box may be
    fractional, and then place the result's pixels. A box that reaches outside is cut to the image, whose edge is
    repeated. Computed in f32 and rounded once, half to even: within 1 of Pillow for u8, nearest equal to it; bicubic
    may be a few levels away beside black or white, where Pillow also clips between its two passes.
    """

    def ref(img: Any, box: Any, height: int, width: int, filter: str, antialias: bool = True) -> Any:
        result = _resized(img, box, int(height), int(width), _checked(filter), bool(antialias))
        return as_dtype(result, img.dtype)

    def lower(k: Any, out: Any, img: Any, box: Any, height: Any, width: Any, filter: str, antialias: Any) -> None:
        top, left, tall, broad = (k.let(k.cast(box[i], "f64"), "box") for i in range(4))
        axes = ((img.dims[0], top, tall, height), (img.dims[1], left, broad, width))
        channels = product(img.dims[2:])
        some = (img.dims[0] > 0) & (img.dims[1] > 0)
        with k.when(some):
            if _checked(filter) == "nearest":
                _lower_nearest(k, out, img, axes, channels)
            else:
                _lower_weighted(k, out, img, axes, channels, filter, antialias)
        with k.otherwise(), k.loop(out.dims[0] * out.dims[1] * channels, "t") as t:
            k.put(out, t, 0)
