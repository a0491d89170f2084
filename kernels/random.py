"""Randomness: Philox 4x32-10 and the primitive distributions, in NumPy and in loop IR by the same text.

A draw's words depend on (seed, epoch, record id, path) and the values of the binders it stands under, on nothing else:

    key      blake2b of "SEED\\0EPOCH\\0PATH" in UTF-8, 8 bytes, little endian: `draw_key`, once per draw and epoch
    fold     0 without binders, else the outermost binder's value, then for every further one
             fold * 0x9E3779B97F4A7C15 + value, modulo 2**64: `fold`
    counter  (fold mod 2**32, (fold // 2**32 + block) mod 2**32, id mod 2**32, id // 2**32), id unsigned
    words    philox(counter, key), four u32; `block` is 0 unless a distribution needs more words

    uniform(low, high)   u = (word 0 >> 8) / 2**24 in f32; min(low + u * (high - low), high) in f32
    integers(a, b)       a + the upper 64 bits of (word 1 * 2**32 + word 0) * (b - a)
    permutation(n)       begin with 0, 1, … n - 1; for t = 0 … n - 2 and i = n - 1 - t, swap places i and j, where
                         j = the upper 64 bits of (word 1 * 2**32 + word 0 of block t) * (i + 1)

In loop IR, key, id and fold are i64 with the bits of the unsigned number.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .scalar import ARRAYS

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as i64


def draw_key(seed: int, path: str, epoch: int) -> int:
    """The key (u64) of the draw at `path` in this epoch."""
    digest = hashlib.blake2b(f"{seed}\0{epoch}\0{path}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def signed(bits: int) -> int:
    """The i64 with the bits of this u64."""
    return bits - 2**64 if bits >= 2**63 else bits


def _halves(k: Any, x: Any) -> tuple[Any, Any]:
    return k.let(k.call("bitand", x, _LOW)), k.let(k.call("ushr", x, 32))


def _philox(k: Any, counter: Sequence[Any], key: Any) -> tuple[Any, Any, Any, Any]:
    c0, c1, c2, c3 = counter
    k0, k1 = _halves(k, key)
    for _ in range(10):
        high0, low0 = _halves(k, c0 * _MULTIPLIERS[0])[::-1]
        high1, low1 = _halves(k, c2 * _MULTIPLIERS[1])[::-1]
        c0 = k.let(k.call("bitxor", k.call("bitxor", high1, c1), k0))
        c2 = k.let(k.call("bitxor", k.call("bitxor", high0, c3), k1))
        c1, c3 = low1, low0
        k0 = k.let(k.call("bitand", k0 + _WEYL[0], _LOW))
        k1 = k.let(k.call("bitand", k1 + _WEYL[1], _LOW))
    return c0, c1, c2, c3


def philox(counter: Sequence[Any], key: Any) -> tuple[Any, Any, Any, Any]:
    """Four arrays of u32 words as i64, for four counter words and a key (u64), which broadcast."""
    with np.errstate(over="ignore"):
        words = [np.asarray(c).astype(np.int64) for c in counter]
        return _philox(ARRAYS, words, np.asarray(key).astype(np.uint64).astype(np.int64))


def fold(k: Any, indexes: Sequence[Any]) -> Any:
    """One number for the values of the binders, outermost first."""
    if not indexes:
        return k.let(0)
    result = indexes[0]
    for value in indexes[1:]:
        result = result * _GOLDEN + value
    return k.let(result)


def _words(k: Any, key: Any, id: Any, at: Any, block: Any) -> tuple[Any, Any, Any, Any]:
    low, high = _halves(k, at)
    high = k.let(k.call("bitand", high + block, _LOW))
    return _philox(k, (low, high, *_halves(k, id)), key)


def draw_bits(k: Any, key: Any, id: Any, at: Any, block: Any) -> Any:
    """word 1 * 2**32 + word 0, as i64. Loop IR calls this `philox`."""
    words = _words(k, key, id, at, block)
    return k.call("bitor", k.call("shl", words[1], 32), words[0])


def _drawn(k: Any, key: Any, id: Any, at: Any, block: Any = 0) -> Any:
    return draw_bits(k, key, id, at, block) if k is ARRAYS else k.let(k.call("philox", key, id, at, block), "bits")


def _uniform(k: Any, key: Any, id: Any, at: Any, low: Any, high: Any) -> Any:
    word = k.call("ushr", k.call("bitand", _drawn(k, key, id, at), _LOW), 8)
    u = k.cast(word, "f32") * 2.0**-24
    return k.call("min", low + u * (high - low), high)


def _uniform_empty(k: Any, low: Any, high: Any) -> Any:
    span = k.let(high - low)
    return ~((span >= 0.0) & (span < float("inf")))


def _integers(k: Any, key: Any, id: Any, at: Any, a: Any, b: Any) -> Any:
    return a + k.call("mulhi", _drawn(k, key, id, at), b - a)


def _permutation(k: Any, out: Any, key: Any, id: Any, at: Any, n: Any) -> None:
    """Into the buffer `out` of loop IR."""
    with k.loop(n, "p") as p:
        k.store(out, (p,), p)
    with k.loop(n - 1, "t") as t:
        i = k.let(n - 1 - t)
        j = k.let(k.call("mulhi", _drawn(k, key, id, at, t), i + 1))
        kept = k.let(out[i])
        k.store(out, (i,), out[j])
        k.store(out, (j,), kept)


def _permutation_ref(key: Any, id: Any, at: Any, n: Any) -> Any:
    size = int(n)
    result = np.arange(size, dtype=np.int64)
    if size > 1:
        t = np.arange(size - 1, dtype=np.int64)
        with np.errstate(over="ignore"):
            key, id, at = _bits(key, id, at)
            chosen = ARRAYS.call("mulhi", _drawn(ARRAYS, key, id, at, t), size - t)
        for i, j in zip(range(size - 1, 0, -1), chosen.tolist(), strict=True):
            result[i], result[j] = result[j], result[i]
    return result


def _bits(*numbers: Any) -> list[Any]:
    """As i64 arrays with the same bits."""
    arrays: list[Any] = [n if isinstance(n, np.ndarray | np.generic) else np.asarray(n, _fitting(n)) for n in numbers]
    return [np.asarray(a).astype(np.int64) for a in arrays]


def _fitting(n: int) -> type:
    return np.uint64 if n >= 2**63 else np.int64


@dataclass(frozen=True)
class Distribution:
    """One primitive distribution.

    `ref(key, id, fold, *params)`: NumPy, everything broadcasts (a permutation: scalars only). `expand(k, key, id, fold,
    *params)`: the same over expressions; a tensor-valued one has `lower(k, out, key, id, fold, *params)` instead.
    `empty(k, *params)`, in both worlds: the bounds hold nothing (E0804). Params are of the head's dtypes, unnamed floats f32.
    """

    name: str
    head: str
    doc: str
    dtypes: tuple[str, ...]
    ref: Callable[..., Any]
    expand: Callable[..., Any] | None
    lower: Callable[..., None] | None
    empty: Callable[..., Any]


def _reference(expand: Callable[..., Any]) -> Callable[..., Any]:
    def ref(key: Any, id: Any, at: Any, *params: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(expand(ARRAYS, *_bits(key, id, at), *params))

    return ref


DRAWS: dict[str, Distribution] = {
    d.name: d
    for d in (
        Distribution("uniform", "uniform(low: f32, high: f32) -> f32", "Any number from low to high, evenly.",
                     ("f32", "f32"), _reference(_uniform), _uniform, None, _uniform_empty),
        Distribution("integers", "integers(a: i64, b: i64) -> i64", "A whole number with a ≤ x < b, evenly.",
                     ("i64", "i64"), _reference(_integers), _integers, None, lambda k, a, b: b <= a),
        Distribution("permutation", "permutation(n: i64) -> i64[n]", "The numbers 0 … n - 1 in any order, evenly.",
                     ("i64",), _permutation_ref, None, _permutation, lambda k, n: n < 0),
    )
}
