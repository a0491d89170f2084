"""Operators on columns and rows of numbers: running sums, buckets, places, counts, hashes and bytes of texts."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import scalar
from .extensions import sound
from .ops import BadRecord, op
from .random import signed

_WIDE = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"}
_NAMES = {np.dtype(v): k for k, v in scalar.NUMPY.items()}


def _running(x: Any, step: str) -> Any:
    """x[0], x[0] ∘ x[1], …: integers in i64, f16 and bf16 in f32, from the first to the last."""
    name = _NAMES[x.dtype]
    wide = x.astype(scalar.NUMPY[_WIDE.get(name, "i64")])
    if step in ("add", "mul") and wide.dtype == np.int64:
        return scalar.cast(_saturating(wide, step), name, "round")
    if step in ("add", "mul"):
        ufunc = np.add if step == "add" else np.multiply
        with np.errstate(all="ignore"):
            return scalar.cast(ufunc.accumulate(wide), name, "round")
    out = wide.copy()
    for i in range(1, len(out)):
        out[i] = scalar.PRIMITIVES[step](out[i - 1], out[i])
    return scalar.cast(out, name, "round")


def _saturating(wide: Any, step: str) -> Any:
    """Running sums or products that stay at the ends of i64 instead of passing them."""
    out, total = wide.copy(), int(wide[0]) if len(wide) else 0
    for i in range(1, len(wide)):
        exact = total + int(wide[i]) if step == "add" else total * int(wide[i])
        out[i] = total = min(max(exact, -(2**63)), 2**63 - 1)
    return out


def _lower_running(k: Any, out: Any, x: Any, step: str) -> None:
    wide = _WIDE.get(x.dtype, "i64")
    mode = "exact" if x.dtype in _WIDE else "round"
    with k.when(x.dims[0] > 0):
        total = k.let(k.cast(x[0], wide), "total")
        k.store(out, (0,), k.cast(total, x.dtype, mode))
        with k.loop(x.dims[0], "i", 1) as i:
            value = k.let(k.cast(x[i], wide), "value")
            stops = wide == "i64" and step in ("add", "mul")
            k.set(total, _saturated(k, step, total, value) if stops else k.call(step, total, value))
            k.store(out, (i,), k.cast(total, x.dtype, mode))


def _saturated(k: Any, step: str, total: Any, value: Any) -> Any:
    past = scalar.SCALARS[step].overflow
    assert past is not None
    negative = (value < 0) if step == "add" else ((total < 0).ne(value < 0))
    limit = k.select(negative, k.let(-(2**63)), k.let(2**63 - 1))
    return k.select(past(k, total, value), limit, k.call(step, total, value))


@op("cumsum(x: num[n]) -> num[n]")
class cumsum:
    """Sums of the first 1, 2, 3, … elements.

    Integers are added in i64, where sums stop at the ends, and saturate in their own width.
    """

    def ref(x: Any) -> Any:
        return _running(x, "add")

    def lower(k: Any, out: Any, x: Any) -> None:
        _lower_running(k, out, x, "add")

    examples = (((np.array([1, 2, 3]),), np.array([1, 3, 6])),)


@op("cumprod(x: num[n]) -> num[n]")
class cumprod:
    """Products of the first 1, 2, 3, … elements.

    Integers are multiplied in i64, where products stop at the ends, and saturate in their own width.
    """

    def ref(x: Any) -> Any:
        return _running(x, "mul")

    def lower(k: Any, out: Any, x: Any) -> None:
        _lower_running(k, out, x, "mul")

    examples = (((np.array([1, 2, 3]),), np.array([1, 2, 6])),)


@op("cummax(x: num[n]) -> num[n]")
class cummax:
    """The greatest of the first 1, 2, 3, … elements; what follows a NaN is NaN."""

    def ref(x: Any) -> Any:
        return _running(x, "max")

    def lower(k: Any, out: Any, x: Any) -> None:
        _lower_running(k, out, x, "max")

    def ranges(x: Any) -> Any:
        return x

    examples = (((np.array([1, 3, 2]),), np.array([1, 3, 3])),)


@op("cummin(x: num[n]) -> num[n]")
class cummin:
    """The least of the first 1, 2, 3, … elements; what follows a NaN is NaN."""

    def ref(x: Any) -> Any:
        return _running(x, "min")

    def lower(k: Any, out: Any, x: Any) -> None:
        _lower_running(k, out, x, "min")

    def ranges(x: Any) -> Any:
        return x

    examples = (((np.array([3, 1, 2]),), np.array([3, 1, 1])),)


@op("bucketize(x: num, edges: num[k], right: bool = false) -> i64")
class bucketize:
    """How many of the sorted edges lie below x: the number of its bucket, 0 to k.

    An x equal to an edge belongs to the bucket below it, with `right=true` to the one above (as torch.bucketize).
    A NaN is above every edge.
    """

    def ref(x: Any, edges: Any, right: bool) -> Any:
        beyond = (x < edges) if right else (x <= edges)
        return np.int64(np.count_nonzero(~np.asarray(beyond)))

    def lower(k: Any, out: Any, x: Any, edges: Any, right: Any) -> None:
        count = k.let(0, "count")
        wide = x.dtype
        with k.loop(edges.dims[0]) as i:
            edge = k.let(k.cast(edges[i], wide), "edge")
            beyond = k.select(right, x < edge, x <= edge)
            k.set(count, count + k.cast(~beyond, "i64"))
        k.store(out, (), count)

    def ranges(x: Any, edges: Any, right: Any) -> Any:
        return (0, float("inf"))

    def stop(x: Any, edges: Any, right: Any) -> Any:
        return edges[0] + 1

    examples = (((np.int64(4), np.array([1, 2, 4, 8]), False), 2),)


@op("histogram(x: int[n], bins: i64) -> i64[bins]")
class histogram:
    """How often each of 0 to bins - 1 occurs; other numbers are not counted."""

    def ref(x: Any, bins: int) -> Any:
        wide = x.astype(np.int64)
        return np.bincount(wide[(wide >= 0) & (wide < bins)], minlength=bins)[:bins].astype(np.int64)

    def lower(k: Any, out: Any, x: Any, bins: Any) -> None:
        with k.loop(out.dims[0]) as j:
            k.store(out, (j,), 0)
        with k.loop(x.dims[0]) as i:
            v = k.let(k.cast(x[i], "i64"), "v")
            with k.when((v >= 0) & (v < out.dims[0])):
                k.store(out, (v,), out[v] + 1)

    examples = (((np.array([0, 2, 2, 9]), 3), np.array([1, 0, 2])),)


def _products(alloc: Any, x: Any, weight: Any) -> Any:
    out = alloc((len(x), len(weight)), np.float32)
    extension = sound()
    if extension and len(x) >= 16 and len(weight) and weight.shape[1] >= 64:   # a bank of filters: a band of each row
        x, weight = np.ascontiguousarray(x), np.ascontiguousarray(weight)
        if extension.products(x, weight, out, weight.shape[1]):
            return out
    return np.matmul(x, weight.T, out=out)


@op("linear(x: f32[t, k], weight: f32[m, k]) -> f32[t, m]")
class linear:
    """Each row's products with each row of weights, summed, as torch.nn.functional.linear.

    The same as `[sum(x[s, j] * weight[i, j] for j) for s, i]` but for the order of the sums, which is a library's (BLAS):
    faster where both are large, and the last bits may differ between machines.
    """

    def ref(x: Any, weight: Any) -> Any:
        return _products(np.empty, np.asarray(x, np.float32), np.asarray(weight, np.float32))

    def cost(args: Any, results: Any) -> Any:
        return 5_000 + args[0][0] * args[0][1] * args[1][0] / 70

    def cpu(alloc: Any, x: Any, weight: Any) -> Any:
        return _products(alloc, x, weight)

    examples = (((np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 0], [1, -1], [0.5, 0.5]], np.float32)),
                 np.array([[1, -1, 1.5], [3, -1, 3.5]], np.float32)),)


@op("indices(mask: bool[n]) -> i64[m]")
class indices:
    """The places where the mask is true, in order."""

    def ref(mask: Any) -> Any:
        return np.flatnonzero(mask).astype(np.int64)

    def cost(args: Any, results: Any) -> Any:
        return 15_000 + args[0][0]

    def cpu(alloc: Any, mask: Any) -> Any:
        found = np.flatnonzero(mask)
        out = alloc(found.shape, np.int64)
        out[...] = found
        return out

    def ranges(mask: Any) -> Any:
        return (0, float("inf"))

    def stop(mask: Any) -> Any:
        return mask[0]

    examples = (((np.array([True, False, True]),), np.array([0, 2])),)


_MUR, _SHIFT = 0xC6A4A7935BD1E995, 47
_GOLDEN, _MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def digest(value: Any) -> int:
    """64 bits (u64) that stand for a value: an integer's own, or MurmurHash64A (seed 0) of a text's UTF-8 or of bytes."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    elif not isinstance(value, bytes | bytearray | memoryview):
        return int(digits(value)) & _ALL
    return int(digests(np.frombuffer(value, np.uint8), np.array([0, len(value)]))[0])


_ALL = 2**64 - 1


def digests(data: Any, ends: Any) -> Any:
    """MurmurHash64A (seed 0), u64[n], of n strings that lie one after the other in `data` (u8), between `ends` (n + 1)."""
    begins, sizes = ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64)
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    words = np.lib.stride_tricks.as_strided(padded.view(np.uint8), (len(data) + 1, 8), (1, 1))
    m, r = np.uint64(_MUR), np.uint64(_SHIFT)
    with np.errstate(over="ignore"):
        h = sizes.astype(np.uint64) * m
        for k in range(int(sizes.max(initial=0)) // 8 + 1):
            rows = np.flatnonzero(sizes >= 8 * k + 1)
            rest = sizes[rows] - 8 * k
            word = np.ascontiguousarray(words[begins[rows] + 8 * k]).view("<u8")[:, 0]
            cut = rest < 8
            word[cut] &= (np.uint64(1) << (8 * rest[cut]).astype(np.uint64)) - np.uint64(1)
            mixed = word * m
            mixed ^= mixed >> r
            mixed *= m
            mixed[cut] = word[cut]   # what is left over is not mixed by itself
            h[rows] = (h[rows] ^ mixed) * m
        h ^= h >> r
        h *= m
        return h ^ (h >> r)


def _salted(k: Any, bits: Any, salt: Any) -> Any:
    """SplitMix64's finalizer of bits + salt × golden ratio, shifted right by one: over loop IR or NumPy's i64."""
    z = bits + salt * signed(_GOLDEN)
    for shift, factor in zip((30, 27), _MIX):
        z = k.let(k.call("bitxor", z, k.call("ushr", z, shift))) * signed(factor)
    z = k.let(z)
    return k.call("ushr", k.call("bitxor", z, k.call("ushr", z, 31)), 1)


def _hash(bits: int, salt: int) -> Any:
    with np.errstate(over="ignore"):
        return _salted(scalar.ARRAYS, np.asarray(signed(bits)), np.asarray(signed(int(salt) & _ALL)))[()]


def digits(value: Any) -> str:
    """An integer as it is written in decimal."""
    if isinstance(value, float | np.floating | bytes):
        raise BadRecord("E0801", "it takes an integer or a text")
    return str(int(value))


@op("hash(value: any, salt: i64 = 0) -> i64")
class hash_:
    """A number from 0 to 2^63 - 1 that depends on nothing but the value, a text, bytes or an integer, and the salt.

    With d the integer itself, or MurmurHash64A (seed 0) of a text's UTF-8 or of the bytes: SplitMix64's finalizer of
    d + salt × 0x9E3779B97F4A7C15 modulo 2^64, shifted right by one bit.
    """

    digests = True

    def ref(value: Any, salt: int) -> Any:
        return _hash(digest(value), salt)

    def expand(k: Any, value: Any, salt: Any) -> Any:
        return _salted(k, k.cast(value, "i64"), salt)

    def ranges(value: Any, salt: Any) -> Any:
        return (0, 2**63 - 1)

    examples = ((("abc", 0), 4538615379635924670), ((-7, 3), 8365612164934435592))


@op("cross(a: any, b: any, salt: i64 = 0) -> i64")
class cross:
    """The `hash` of a pair of texts, or of integers, in this order: hash(a, salt=hash(b, salt)).

    So ("a", "bc") and ("ab", "c") stay apart. Of a text and an integer, `hash(text, salt=integer)` is one.
    """

    digests = True

    def ref(a: Any, b: Any, salt: int) -> Any:
        return _hash(digest(a), int(_hash(digest(b), salt)))

    def expand(k: Any, a: Any, b: Any, salt: Any) -> Any:
        return _salted(k, k.cast(a, "i64"), k.let(_salted(k, k.cast(b, "i64"), salt)))

    def ranges(a: Any, b: Any, salt: Any) -> Any:
        return (0, 2**63 - 1)

    examples = ((("a", "bc", 0), 5509717632844511136), ((1, 23, 0), 3646655161556874293))


@op("utf8(value: text) -> u8[n]")
class utf8:
    """The bytes of a text in UTF-8."""

    def ref(value: Any) -> Any:
        return np.frombuffer(value.encode("utf-8", "surrogatepass"), np.uint8)

    def cpu(alloc: Any, value: str) -> Any:
        data = value.encode("utf-8", "surrogatepass")
        out = alloc((len(data),), np.uint8)
        out[...] = np.frombuffer(data, np.uint8)
        return out

    examples = ((("aé",), np.array([97, 195, 169], np.uint8)),)
