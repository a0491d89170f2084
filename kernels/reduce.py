"""Reductions: a list of values in, one value out, in an order that is part of the language.

**Order.** Elements are numbered k = 0, 1, … in C order over the binders, the first binder slowest. Element k goes to lane
k % 16. Every lane starts with the identity and takes its elements in order: `lane = combine(lane, element)`. Then a tree: for
half in 8, 4, 2, 1, lane j = combine(lane j, lane j + half) for j < half; lane 0 is the result. So f32 sums have one value.

    kind     elements       result   identity                       combine(a, b)
    sum      i64 f32 f64    same     0 (floats: 0.0)                a + b; of i64 an error where a step is past i64
    prod     i64 f32 f64    same     1                              a * b; likewise
    min max  i64 f32 f64    same     the greatest / least number    the scalar functions min / max (NaN wins)
                                     (floats: inf / -inf)
    any all  bool           bool     false / true                   or / and

`argmax argmin first` (results i64) have no lanes: the place k of the first greatest (least) element, where a NaN is greater
(less) than everything; the place of the first true element. Of nothing, or where none is true, the result is missing; so are
min and max of nothing. f16 and bf16 are computed with in f32 and the result is rounded once, at the end.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .scalar import ARRAYS, NUMPY, PRIMITIVES, add_overflow, mul_overflow

KINDS = ("sum", "prod", "min", "max", "any", "all", "argmax", "argmin", "first")
LANES = 16


def identity(kind: str, dtype: str) -> Any:
    """What lanes start with, as a Python value; dtype "i64", "f32", "f64" or "bool"."""
    match kind:
        case "sum" | "any":
            return False if kind == "any" else 0.0 if dtype != "i64" else 0
        case "prod" | "all":
            return True if kind == "all" else 1.0 if dtype != "i64" else 1
        case "min":
            return 2**63 - 1 if dtype == "i64" else math.inf
        case "max":
            return -(2**63) if dtype == "i64" else -math.inf
    raise ValueError(f"{kind} has no identity")


_OVERFLOW = {"sum": add_overflow, "prod": mul_overflow}
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "prod": np.multiply, "min": PRIMITIVES["min"], "max": PRIMITIVES["max"],
    "any": np.logical_or, "all": np.logical_and,
}


def lanes(kind: str, values: Any) -> tuple[Any, Any]:
    """`values` (elements along the last axis) combined in the order of the lanes, and where a step was past i64."""
    combine, checked = _COMBINE[kind], _OVERFLOW.get(kind) if values.dtype.kind == "i" else None
    start = identity(kind, "i64" if values.dtype.kind == "i" else "f64")
    lane = np.full((*values.shape[:-1], LANES), start, values.dtype)
    bad = np.zeros(values.shape[:-1], np.bool_)

    def step(a: Any, b: Any) -> Any:
        nonlocal bad
        if checked:
            bad = bad | checked(ARRAYS, a, b).any(-1)
        return combine(a, b)

    with np.errstate(all="ignore"):
        for begin in range(0, values.shape[-1], LANES):
            row = values[..., begin : begin + LANES]
            lane[..., : row.shape[-1]] = step(lane[..., : row.shape[-1]], row)
        for half in (8, 4, 2, 1):
            lane[..., :half] = step(lane[..., :half], lane[..., half : 2 * half])
    return lane[..., 0].copy(), bad


def reference(kind: str, values: Any) -> tuple[Any, Any]:
    """(result, bad) along the last axis; `bad`: past i64, or for `first argmax argmin min max` that there is none.

    `values` are i64, bool or float arrays.
    """
    nothing = np.full(values.shape[:-1], values.shape[-1] == 0)
    half = values.dtype in (NUMPY["f16"], NUMPY["bf16"])
    wide = values.astype(np.float32) if half else values
    match kind:
        case "first":
            place = np.argmax(values, -1) if values.shape[-1] else np.zeros(values.shape[:-1])
            return np.asarray(place, np.int64), ~values.any(-1)
        case "argmax" | "argmin":
            if values.shape[-1] == 0:
                return np.zeros(values.shape[:-1], np.int64), nothing
            return np.asarray((np.argmax if kind == "argmax" else np.argmin)(wide, axis=-1), np.int64), nothing
    result, bad = lanes(kind, wide)
    return result.astype(values.dtype) if half else result, bad | nothing if kind in ("min", "max") else bad
