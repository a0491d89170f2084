"""`sample_grid`: an image read at a grid of places between its pixels, the same bits from NumPy and from loop IR.

Weights and sums are f32, from the upper left of the four pixels around a place to the lower right.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from .lanes import as_f32
from .ops import op
from .resize import as_dtype, back, product

FILTERS = ("bilinear", "nearest")


def _checked(filter: str) -> str:
    if filter not in FILTERS:
        raise ValueError(f"filter {filter!r} is neither bilinear nor nearest")
    return filter


# --- NumPy ------------------------------------------------------------------------------------------------------


def _nearest(img: Any, rows: Any, columns: Any, fill: Any) -> Any:
    h, w = img.shape[:2]
    y, x = np.rint(rows), np.rint(columns)
    inside = (y >= 0) & (y < np.float32(h)) & (x >= 0) & (x < np.float32(w))
    out = np.empty((*rows.shape, *img.shape[2:]), img.dtype)
    out[...] = as_dtype(np.full(1, fill, np.float32), img.dtype)
    out[inside] = img[y[inside].astype(np.int64), x[inside].astype(np.int64)]
    return out


def _bilinear(img: Any, rows: Any, columns: Any, fill: Any) -> Any:
    h, w = img.shape[:2]
    out = np.full((*rows.shape, *img.shape[2:]), fill, np.float32)
    touches = (rows > -1) & (rows < np.float32(h)) & (columns > -1) & (columns < np.float32(w))
    y, x = rows[touches], columns[touches]
    top, left = np.floor(y), np.floor(x)
    down, across = y - top, x - left
    up, back_ = np.float32(1) - down, np.float32(1) - across
    y0, x0 = top.astype(np.int64), left.astype(np.int64)
    total = cover = None
    for dy, dx, weight in ((0, 0, up * back_), (0, 1, up * across), (1, 0, down * back_), (1, 1, down * across)):
        inside = (y0 + dy >= 0) & (y0 + dy < h) & (x0 + dx >= 0) & (x0 + dx < w)
        weight = np.where(inside, weight, np.float32(0))
        pixels = img[np.clip(y0 + dy, 0, h - 1), np.clip(x0 + dx, 0, w - 1)].astype(np.float32)
        term = _along(weight, pixels) * pixels
        total = term if total is None else total + term
        cover = weight if cover is None else cover + weight
    whole = (y0 >= 0) & (y0 < h - 1) & (x0 >= 0) & (x0 < w - 1)
    out[touches] = np.where(_along(whole, total), total, (total - fill) * _along(cover, total) + fill)
    return out


def _along(x: Any, like: Any) -> Any:
    """One value a pixel, beside that pixel's channels."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


# --- loop IR ----------------------------------------------------------------------------------------------------


class _Reader:
    """Loop IR for one place of the result at a time."""

    def __init__(self, k: Any, out: Any, img: Any, fill: Any):
        self.k, self.out, self.img, self.fill = k, out, img, fill
        self.h, self.w = img.dims[:2]
        self.channels = product(img.dims[2:])
        self.high, self.wide = k.let(k.cast(self.h, "f32"), "high"), k.let(k.cast(self.w, "f32"), "wide")
        self.some = k.let((self.h > 0) & (self.w > 0), "some")

    def filled(self, at: Any) -> None:
        with self.k.loop(self.channels, "c") as c:
            self.k.put(self.out, at + c, self.stored(self.fill))

    def stored(self, value: Any, convex: bool = False) -> Any:
        """A sum as an element; u8 sums that aren't of pixels alone are clamped."""
        return back(self.k, value, self.out.dtype, "bilinear" if convex else "bicubic")

    def nearest(self, at: Any, y: Any, x: Any) -> None:
        k = self.k
        y, x = k.let(k.call("rint", y), "y"), k.let(k.call("rint", x), "x")
        with k.when(self.some & (y >= 0.0) & (y < self.high) & (x >= 0.0) & (x < self.wide)):
            source = k.let((_i64(k, y) * self.w + _i64(k, x)) * self.channels, "source")
            with k.loop(self.channels, "c") as c:
                k.put(self.out, at + c, self.img.at(source + c))
        with k.otherwise():
            self.filled(at)

    def bilinear(self, at: Any, y: Any, x: Any) -> None:
        k = self.k
        with k.when(self.some & (y > -1.0) & (y < self.high) & (x > -1.0) & (x < self.wide)):
            top, left = k.let(k.call("floor", y), "top"), k.let(k.call("floor", x), "left")
            down, across = k.let(y - top, "down"), k.let(x - left, "across")
            up, back_ = k.let(1.0 - down, "up"), k.let(1.0 - across, "back")
            y0, x0 = k.let(_i64(k, top), "y0"), k.let(_i64(k, left), "x0")
            weights = [k.let(weight, "weight") for weight in (up * back_, up * across, down * back_, down * across)]
            with k.when((y0 >= 0) & (y0 < self.h - 1) & (x0 >= 0) & (x0 < self.w - 1)):
                self.inner(at, y0, x0, weights)
            with k.otherwise():
                self.border(at, y0, x0, weights)
        with k.otherwise():
            self.filled(at)

    def inner(self, at: Any, y0: Any, x0: Any, weights: list[Any]) -> None:
        k = self.k
        first = k.let((y0 * self.w + x0) * self.channels, "first")
        second = k.let(first + self.w * self.channels, "second")
        with k.loop(self.channels, "c") as c:
            corners = (first + c, first + self.channels + c, second + c, second + self.channels + c)
            k.put(self.out, at + c, self.stored(self.sum(corners, weights), convex=True))

    def border(self, at: Any, y0: Any, x0: Any, weights: list[Any]) -> None:
        k = self.k
        corners, shares = [], []
        for (dy, dx), weight in zip(((0, 0), (0, 1), (1, 0), (1, 1)), weights, strict=True):
            inside = (y0 + dy >= 0) & (y0 + dy < self.h) & (x0 + dx >= 0) & (x0 + dx < self.w)
            shares.append(k.let(k.select(inside, weight, 0.0), "share"))
            row, column = _clipped(k, y0 + dy, self.h), _clipped(k, x0 + dx, self.w)
            corners.append(k.let((row * self.w + column) * self.channels, "corner"))
        cover = k.let(shares[0] + shares[1] + shares[2] + shares[3], "cover")
        with k.loop(self.channels, "c") as c:
            total = self.sum([corner + c for corner in corners], shares)
            k.put(self.out, at + c, self.stored((total - self.fill) * cover + self.fill))

    def sum(self, places: Any, weights: list[Any]) -> Any:
        terms = [weight * as_f32(self.k, self.img, place) for place, weight in zip(places, weights, strict=True)]
        return terms[0] + terms[1] + terms[2] + terms[3]


def _i64(k: Any, x: Any) -> Any:
    return k.cast(x, "i64", "truncate")


def _clipped(k: Any, i: Any, size: Any) -> Any:
    return k.call("min", k.call("max", i, size * 0), size - 1)


_PHOTO = np.array([[[10, 0], [20, 0]], [[30, 0], [40, 8]]], np.uint8)
_ROWS = np.array([[0.0, 0.5, 1.0], [-0.5, 9.0, 1.4]], np.float32)
_COLUMNS = np.array([[0.0, 0.5, 1.0], [0.0, 0.0, 0.6]], np.float32)


@op("sample_grid(img: any[h, w, ...], rows: f32[height, width], columns: f32[height, width], "
    'filter: text = "bilinear", fill: f32 = 0.0) -> any[height, width, ...]')
class sample_grid:
    """Read an image at places between its pixels: the result's pixel at y, x is the image at rows[y, x], columns[y, x].

    Whole numbers are the middles of pixels. "bilinear" blends the four pixels around a place, "nearest" takes the
    nearest one (half to even). Outside the image is `fill`, and half a pixel around it blends into `fill` as
    torchvision's grids do: with v the blend in which outside counts 0 and s the share of it that is inside, the result
    is (v - fill) × s + fill. Computed in f32 and rounded once, half to even.
    """

    def ref(img: Any, rows: Any, columns: Any, filter: str = "bilinear", fill: float = 0.0) -> Any:
        at = np.asarray(rows, np.float32), np.asarray(columns, np.float32)
        if 0 in img.shape[:2]:
            made = np.full((*at[0].shape, *img.shape[2:]), fill, np.float32)
        elif _checked(filter) == "nearest":
            return _nearest(img, *at, np.float32(fill))
        else:
            made = _bilinear(img, *at, np.float32(fill))
        return as_dtype(made, img.dtype)

    def lower(k: Any, out: Any, img: Any, rows: Any, columns: Any, filter: str, fill: Any) -> None:
        reader = _Reader(k, out, img, k.let(fill, "fill", "f32"))
        read = reader.nearest if _checked(filter) == "nearest" else reader.bilinear
        with k.loop(out.dims[0], "i") as i, k.loop(out.dims[1], "j") as j:
            place = k.let(i * out.dims[1] + j, "place")
            read(k.let(place * reader.channels, "at"), k.let(rows.at(place), "y"), k.let(columns.at(place), "x"))

    examples = (
        ((_PHOTO, _ROWS, _COLUMNS, "bilinear", 0.0),
         np.array([[[10, 0], [25, 2], [40, 8]], [[2, 0], [0, 0], [13, 2]]], np.uint8)),
        ((_PHOTO, _ROWS, _COLUMNS, "nearest", 7.0),
         np.array([[[10, 0], [10, 0], [40, 8]], [[10, 0], [7, 7], [40, 8]]], np.uint8)),
    )
