"""`resize`: a box of an image resampled to another size, the same bits from NumPy and from loop IR.

Weights are made in f64 from + - * / and comparisons only; pixels are weighted in f32, down the columns first, then
along the rows, each sum from its first tap to its last.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import scalar
from .lanes import BLOCK, FOUR, apart, element, interleave, weigh
from .ops import op

SUPPORT = {"bilinear": 1.0, "bicubic": 2.0, "area": 0.5}
FILTERS = ("bilinear", "nearest", "bicubic", "area")
CHUNK = 128             # elements of a row that are weighted and turned at once: they stay in the nearest cache
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


def _places(k: Any, size: Any, start: Any, length: Any, out: Any, i: Any, filter: str, antialias: Any) -> tuple[Any, Any, Any]:
    """For pixel i of the result: its centre in the span, the filter's reach there, and one over the filter's unit."""
    low, high = _span(k, size, start, length)
    scale = _scale(k, length, out)
    wide = k.let(k.select(antialias & (scale > 1.0), scale, 1.0), "wide")
    support = k.let(k.call("min", wide * SUPPORT[filter], k.cast(high - low, "f64")), "support")
    return _center(k, i, start - k.cast(low, "f64"), scale, high - low), support, 1.0 / wide


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
    center, support, narrow = _places(k, np.int64(size), begin, extent, np.int64(out), np.arange(out), filter, antialias)
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
    steps[:1] = (start - np.float64(low)) + scale * 0.5
    return low + _nearest(k, np.add.accumulate(steps), high - low)


def _pass(x: Any, first: Any, count: Any, weights: Any) -> Any:
    """Weighted sums over axis 0 of x [n, m]: [out, m]."""
    result = weights[:, :1] * x[first]
    for t in range(1, weights.shape[1]):
        more = t < count
        result[more] += weights[more, t : t + 1] * x[first[more] + t]
    return result


def _resized(img: Any, box: Any, height: int, width: int, filter: str, antialias: bool) -> Any:
    h, w = img.shape[:2]
    return _part_resized(img, (0, 0), (h, w), box, height, width, (0, 0, height, width), filter, antialias)


def _part_resized(img: Any, origin: Any, size: Any, box: Any, height: int, width: int, cut: Any, filter: str,
                  antialias: bool) -> Any:
    """A cut (top, left, rows, columns) of the resized image, of whose pixels `img` has those from `origin` on."""
    y, x, rows, columns = (max(int(v), 0) for v in cut)
    rest = img.shape[2:]
    if 0 in size or 0 in rest or rows == 0 or columns == 0:
        return np.zeros((rows, columns, *rest), img.dtype)
    top, left, tall, broad = (np.float64(v) for v in np.asarray(box))
    down, across = slice(y, y + rows), slice(x, x + columns)
    if filter == "nearest":
        ys = nearest(size[0], top, tall, height)[down] - origin[0]
        return img[ys[:, None], nearest(size[1], left, broad, width)[across] - origin[1]]
    firsts, counts, weights = (a[down] for a in taps(size[0], top, tall, height, filter, antialias))
    flat = img.reshape(img.shape[0], -1).astype(np.float32)
    done = _pass(flat, firsts - origin[0], counts, weights).reshape(rows, img.shape[1], -1)
    turned = np.ascontiguousarray(done.transpose(1, 0, 2)).reshape(img.shape[1], -1)
    firsts, counts, weights = (a[across] for a in taps(size[1], left, broad, width, filter, antialias))
    done = _pass(turned, firsts - origin[1], counts, weights).reshape(columns, rows, -1)
    return np.ascontiguousarray(done.transpose(1, 0, 2)).reshape(rows, columns, *rest)


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


@dataclass(frozen=True)
class Axis:
    """One axis of a resize: `size` pixels of the image, of which those from `origin` on are there; the box from `start`,
    `length` long, becomes `out` pixels, of which `count` from `begin` on are made."""

    size: Any
    start: Any
    length: Any
    out: Any
    count: Any
    begin: Any = 0
    origin: Any = 0

    def place(self, i: Any) -> Any:
        """The number, in the whole result, of pixel i of those that are made."""
        return i if isinstance(self.begin, int) else i + self.begin

    def here(self, pixel: Any) -> Any:
        """The place, in what is there of the image, of one of its pixels."""
        return pixel if isinstance(self.origin, int) else pixel - self.origin


def _lower_taps(k: Any, axis: Axis, filter: str, antialias: Any) -> Any:
    """Scratch with what `taps` gives, taps counted from the first pixel that is read; this pixel, and how many there are."""
    low, high = _span(k, axis.size, axis.start, axis.length)
    size = k.let(high - low, "size")
    scale = _scale(k, axis.length, axis.out)
    wide = k.let(k.select(antialias & (scale > 1.0), scale, 1.0), "wide")
    support = k.let(k.call("min", wide * SUPPORT[filter], k.cast(size, "f64")), "support")
    narrow = k.let(1.0 / wide, "narrow")
    offset = k.let(axis.start - k.cast(low, "f64"), "offset")
    most = k.let(k.call("min", k.cast(support * 2.0, "i64", "truncate") + 2, size), "most")
    firsts, counts = k.scratch("i64", axis.count, hint="firsts"), k.scratch("i64", axis.count, hint="counts")
    weights, row = k.scratch("f32", axis.count, most, hint="weights"), k.scratch("f64", most, hint="weighing")
    with k.loop(axis.count) as i:
        center = k.let(_center(k, axis.place(i), offset, scale, size), "center")
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
    begin, last = k.let(firsts[0], "begin"), axis.count - 1
    length = k.let(firsts[last] + counts[last] - begin, "length")
    with k.loop(axis.count) as i:
        k.store(firsts, (i,), firsts[i] - begin)
    return firsts, counts, weights, k.let(axis.here(low + begin), "first"), length


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


def _there(size: Any, first: Any, count: Any) -> Any:
    """Does the part of an image hold these pixels: it does, but for a graph that nobody made here."""
    return (first >= 0) & (first + count <= size)


def _lower_nearest(k: Any, out: Any, img: Any, axes: Any, channels: Any) -> None:
    starts, height = [], out.dims[0]
    for axis, there in zip(axes, img.dims):
        low, high = _span(k, axis.size, axis.start, axis.length)
        scale = _scale(k, axis.length, axis.out)
        place = k.let((axis.start - k.cast(low, "f64")) + scale * 0.5, "place")
        if not isinstance(axis.origin, int):
            height = k.let(k.select(_there(there, axis.here(low), high - low), height, 0), "height")
        if not isinstance(axis.begin, int):
            with k.loop(axis.begin):
                k.set(place, place + scale)
        index = k.scratch("i64", axis.count, hint="nearest")
        with k.loop(axis.count) as i:
            k.store(index, (i,), axis.here(low + _nearest(k, place, high - low)))
            k.set(place, place + scale)
        starts.append(index)
    ys, xs = starts
    with k.loop(height, "y") as y:
        source = k.let(ys[y] * img.dims[1], "source")
        with k.loop(out.dims[1], "x") as x:
            a = k.let((source + xs[x]) * channels, "a")
            b = k.let((y * out.dims[1] + x) * channels, "b")
            with k.loop(channels, "c") as c:
                k.put(out, b + c, img.at(a + c))


def _lower_weighted(k: Any, out: Any, img: Any, axes: Any, channels: Any, filter: str, antialias: Any) -> None:
    first_y, count_y, weight_y, y0, down = _lower_taps(k, axes[0], filter, antialias)
    first_x, count_x, weight_x, x0, across = _lower_taps(k, axes[1], filter, antialias)
    height = axes[0].count
    if not isinstance(axes[0].origin, int):
        height = k.let(k.select(_there(img.dims[0], y0, down) & _there(img.dims[1], x0, across), height, 0), "height")
    stride = k.let(img.dims[1] * channels, "stride")
    length = k.let(across * channels, "length")
    wide = k.let(out.dims[1] * channels, "wide")
    rows, half_turned = k.scratch("f32", BLOCK, CHUNK, hint="rows"), k.scratch("f32", BLOCK, CHUNK, hint="half_turned")
    turned = k.scratch("f32", length + CHUNK, BLOCK, hint="turned")
    sums = k.scratch("f32", wide, BLOCK, hint="sums")
    pixels, half_back = (k.scratch(out.dtype, wide, BLOCK, hint=hint) for hint in ("pixels", "half_back"))
    with k.loop((height + (BLOCK - 1)) // BLOCK, "block") as block:
        parts = (img.dims[1] * channels + (CHUNK - 1)) // CHUNK     # of a whole row; a crop has fewer
        with k.loop((length + (CHUNK - 1)) // CHUNK, "chunk", usual=(parts + 1) // 2) as chunk:
            begin = k.let(chunk * CHUNK, "begin")
            some = k.let(k.call("min", length - begin, k.let(CHUNK, "most")), "some")
            with k.loop(BLOCK, "r") as r:
                i = k.let(k.call("min", block * BLOCK + r, height - 1), "i")
                weigh(k, rows, r * CHUNK, some, img, (y0 + first_y[i]) * stride + x0 * channels + begin, stride,
                      weight_y, i, count_y[i])
            # The chunk's end may hold what was there before: that is turned, too, and never read.
            interleave(k, half_turned, 0, rows, CHUNK * FOUR)
            interleave(k, turned, begin * BLOCK, half_turned, CHUNK * FOUR)
        with k.loop(out.dims[1], "j") as j:
            lanes = channels * BLOCK
            weigh(k, sums, j * lanes, lanes, turned, first_x[j] * lanes, lanes,
                  weight_x, j, count_x[j])
        with k.loop(wide * BLOCK, "t") as t:
            k.put(pixels, t, back(k, sums.at(t), out.dtype, filter))
        apart(k, half_back, pixels, wide * FOUR)
        apart(k, pixels, half_back, wide * FOUR)
        place = k.let(block * BLOCK * wide, "place")
        with k.loop(k.call("min", height - block * BLOCK, k.let(BLOCK, "lanes")) * wide, "t") as t:
            k.put(out, place + t, element(pixels, t))


def _lower_resize(k: Any, out: Any, img: Any, axes: Any, filter: str, antialias: Any) -> None:
    channels = product(img.dims[2:])
    some = (axes[0].size > 0) & (axes[1].size > 0) & (axes[0].count > 0) & (axes[1].count > 0)
    with k.when(some):
        if _checked(filter) == "nearest":
            _lower_nearest(k, out, img, axes, channels)
        else:
            _lower_weighted(k, out, img, axes, channels, filter, antialias)
    with k.otherwise(), k.loop(out.dims[0] * out.dims[1] * channels, "t") as t:
        k.put(out, t, 0)


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
        axes = (Axis(img.dims[0], top, tall, height, height), Axis(img.dims[1], left, broad, width, width))
        _lower_resize(k, out, img, axes, filter, antialias)


@op('resize_part(img: any[a, b, ...], origin: i64[4], size: i64[2], box: num[4], height: i64, width: i64, top: i64, '
    'left: i64, rows: i64, columns: i64, filter: text = "bilinear", antialias: bool = true) -> any[rows, columns, ...]')
class resize_part:
    """Rows `top` to top + rows and as many columns of `resize(image, box, height, width, …)`, from a part of the image.

    `img` holds the pixels of an image of `size` (height, width) from `origin` (top, left) on, at least those that
    `resize_window` names. The compiler writes this where a resized image is cropped or an image is decoded in part.
    """

    def ref(img: Any, origin: Any, size: Any, box: Any, height: int, width: int, top: int, left: int, rows: int, columns: int,
            filter: str, antialias: bool = True) -> Any:
        result = _part_resized(img, [int(v) for v in origin], [int(v) for v in size], box, int(height), int(width),
                               (top, left, rows, columns), _checked(filter), bool(antialias))
        return as_dtype(result, img.dtype)

    def lower(k: Any, out: Any, img: Any, origin: Any, size: Any, box: Any, height: Any, width: Any, top: Any, left: Any,
              rows: Any, columns: Any, filter: str, antialias: Any) -> None:
        y, x, tall, broad = (k.let(k.cast(box[i], "f64"), "box") for i in range(4))
        _lower_resize(k, out, img, (Axis(size[0], y, tall, height, rows, top, origin[0]),
                                    Axis(size[1], x, broad, width, columns, left, origin[1])), filter, antialias)


def _read(k: Any, size: Any, start: Any, length: Any, out: Any, begin: Any, count: Any, filter: str, antialias: Any) -> Any:
    """First pixel that `count` pixels of the result from `begin` on are made of, and how many there are."""
    low, high = _span(k, size, start, length)
    if filter == "nearest":
        return low, high - low
    center, support, _ = _places(k, size, start, length, out, begin, filter, antialias)
    first, _ = _window(k, center, support, high - low)
    center, support, _ = _places(k, size, start, length, out, begin + count - 1, filter, antialias)
    last, taps_of_last = _window(k, center, support, high - low)
    return low + first, k.call("max", last + taps_of_last - first, first * 0)


@op('resize_window(size: i64[2], box: num[4], height: i64, width: i64, top: i64, left: i64, rows: i64, columns: i64, '
    'filter: text = "bilinear", antialias: bool = true) -> i64[4]')
class resize_window:
    """The part of an image (top, left, height, width) that `resize_part` with the same arguments reads.

    An image without pixels, or no rows or columns, read nothing.
    """

    def ref(size: Any, box: Any, height: int, width: int, top: int, left: int, rows: int, columns: int, filter: str,
            antialias: bool = True) -> Any:
        y, x, tall, broad = (np.float64(v) for v in np.asarray(box))
        h, w = (np.int64(v) for v in size)
        if 0 in (h, w) or rows <= 0 or columns <= 0:
            return np.zeros(4, np.int64)
        k = scalar.Arrays()
        first, tall_ = _read(k, h, y, tall, np.int64(height), np.int64(top), np.int64(rows), _checked(filter), antialias)
        start, broad_ = _read(k, w, x, broad, np.int64(width), np.int64(left), np.int64(columns), filter, antialias)
        return np.array([first, start, tall_, broad_], np.int64)

    def lower(k: Any, out: Any, size: Any, box: Any, height: Any, width: Any, top: Any, left: Any, rows: Any, columns: Any,
              filter: str, antialias: Any) -> None:
        y, x, tall, broad = (k.let(k.cast(box[i], "f64"), "box") for i in range(4))
        h, w = k.let(size[0], "h"), k.let(size[1], "w")
        with k.when((h > 0) & (w > 0) & (rows > 0) & (columns > 0)):
            down = _read(k, h, y, tall, height, top, rows, _checked(filter), antialias)
            across = _read(k, w, x, broad, width, left, columns, filter, antialias)
            for place, value in enumerate((down[0], across[0], down[1], across[1])):
                k.put(out, place, value)
        with k.otherwise():
            for place in range(4):
                k.put(out, place, 0)
