"""Which record stands at which position: keyed permutations and the orders built from them.

Everything here is a function of (seed, epoch, path in the program, position) in O(1) memory, so it does
not depend on threads, ranks, restarts or consumers. Orders work on whole NumPy arrays of positions.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .blocks import address_of

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

FOREVER = 1 << 50  # positions of an endless stream
SMALL = 10_000  # below, a permutation is a Fisher–Yates table
MANY = 256      # positions from which on machine code is worth linking
ROUNDS = 10     # of the Feistel network; fewer repeat orders of tiny sets too often


def key(seed: int, epoch: int, path: str) -> int:
    """The 64-bit key of an order: blake2b of seed, epoch and the stage's path."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{epoch}\0{path}".encode(), digest_size=8).digest(), "little")


def mix64(x: Words) -> Words:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def child_ids(ids: Words, place: Words | int) -> Words:
    """Ids of records made from records: the row of `each`, the turn of `repeat`. Place 0 keeps the id."""
    if not np.any(place):
        return np.array(ids)
    with np.errstate(over="ignore"):
        mixed = mix64(ids + mix64(np.asarray(place, np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
    return np.where(np.asarray(place) == 0, ids, mixed)


def _shuffled(n: int, k: int) -> Ints:
    """0 … n - 1 in the order of random words, ties by place: a uniform permutation up to 64-bit ties."""
    with np.errstate(over="ignore"):
        words = mix64(mix64(np.arange(n, dtype=np.uint64) + np.uint64(k)) ^ np.uint64(k >> 1))
    return np.argsort(words, kind="stable").astype(np.int64)


class Permutation:
    """A keyed permutation of 0 … n - 1: `p[positions]` and its inverse."""

    def __init__(self, n: int, k: int):
        self.n, self.key = n, k
        self.table = _shuffled(n, k) if n < SMALL else None
        self.half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
        self.mask = np.uint64((1 << int(self.half)) - 1)
        with np.errstate(over="ignore"):
            rounds = np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            self.round_keys = mix64(rounds ^ np.uint64(k))

    def __getitem__(self, positions: Ints) -> Ints:
        if self.table is not None:
            return self.table[positions]
        if len(positions) >= MANY:
            return self._at_once(np.array(positions, np.int64))
        return self._walk(positions, self._forward)

    def _at_once(self, positions: Ints) -> Ints:
        """The same as `_walk` of `_forward`, by machine code, in place."""
        from .permute import permute

        places, count = np.arange(len(positions)), len(positions)
        permute()(address_of(positions), address_of(places), count, self.n, int(self.half), address_of(self.round_keys))
        return positions

    def inverse(self, indexes: Ints) -> Ints:
        """The positions at which these records stand."""
        if self.table is not None:
            return np.argsort(self.table)[indexes]
        return self._walk(indexes, self._backward)

    def _walk(self, positions: Ints, step: Callable[[Words], Words]) -> Ints:
        """Feistel values beyond n are permuted again until they fall inside (cycle walking)."""
        x = step(np.asarray(positions).astype(np.uint64))
        outside = np.flatnonzero(x >= self.n)
        while len(outside):
            x[outside] = again = step(x[outside])
            outside = outside[again >= self.n]
        walked: Ints = x.astype(np.int64)
        return walked

    def _forward(self, x: Words) -> Words:
        left, right = x >> self.half, x & self.mask
        for k in self.round_keys:
            left, right = right, left ^ (mix64(right + k) & self.mask)
        return (left << self.half) | right

    def _backward(self, x: Words) -> Words:
        left, right = x >> self.half, x & self.mask
        for k in self.round_keys[::-1]:
            left, right = right ^ (mix64(left + k) & self.mask), left
        return (left << self.half) | right


class Order(Protocol):
    """Positions 0 … len - 1 of a stream, each with the source record that stands there and its turn.

    A turn tells repetitions of one record within an epoch apart; it enters the record's id.
    """

    @property
    def length(self) -> int: ...

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        """(source indexes, turns) at these positions."""
        ...


@dataclass(frozen=True)
class InOrder:
    """The source's own order."""

    length: int

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        return np.asarray(positions, np.int64), np.zeros(len(positions), np.uint64)


@dataclass(frozen=True)
class Shuffled:
    """`shuffle()`: one permutation of everything."""

    inner: Order
    permutation: Permutation

    @property
    def length(self) -> int:
        return self.inner.length

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        return self.inner.at(self.permutation[positions])


class InBlocks:
    """An order of which whole blocks of positions are computed at once and the last few kept: for readers that go on
    from position to position. A reader that jumps gets what it asks for, no more."""

    SIZE, KEPT = 1 << 12, 16

    def __init__(self, inner: Order):
        self.inner, self.length = inner, inner.length
        self.blocks: dict[int, tuple[Ints, Words]] = {}
        self.last = 0   # block of the last request

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        first = int(positions[0]) // self.SIZE if len(positions) else 0
        near, self.last = abs(first - self.last) <= 1, first
        if not near or int(positions[-1]) // self.SIZE != first or (positions // self.SIZE != first).any():
            return self.inner.at(positions)
        found = self.blocks.get(first)
        if found is None:
            start = first * self.SIZE
            found = self.inner.at(np.arange(start, min(start + self.SIZE, self.length)))
            if len(self.blocks) >= self.KEPT:
                self.blocks = {}
            self.blocks[first] = found
        inside = positions - first * self.SIZE
        return found[0][inside], found[1][inside]


class Windowed:
    """`shuffle(window=n)`: permutes inside consecutive blocks of n."""

    def __init__(self, inner: Order, window: int, k: int):
        self.inner, self.window, self.key, self.length = inner, window, k, inner.length
        self.tables: dict[int, Permutation] = {}

    def _block(self, block: int) -> Permutation:
        found = self.tables.get(block)
        if found is None:
            size = min(self.window, self.length - block * self.window)
            if len(self.tables) > 8:
                self.tables.clear()
            found = self.tables[block] = Permutation(size, key(self.key, block, "window"))
        return found

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        blocks = positions // self.window
        out = np.empty_like(positions)
        for b in np.unique(blocks):
            inside = blocks == b
            out[inside] = b * self.window + self._block(int(b))[positions[inside] - b * self.window]
        return self.inner.at(out)


class Chunked:
    """`shuffle(chunk=c, mix=m)`: permutes chunks of c records, then the records within m chunks."""

    def __init__(self, inner: Order, chunk: int, mix: int, k: int):
        self.inner, self.length, self.chunk, self.mix, self.key = inner, inner.length, chunk, mix, k
        count = -(-self.length // chunk)
        self.chunks = Permutation(count, k)
        # The last chunk may be short: everything after its slot moves forward by what it lacks.
        self.lack = count * chunk - self.length
        self.short = int(self.chunks.inverse(np.array([count - 1]))[0]) if count else 0
        self.pools: dict[int, Permutation] = {}

    def _start(self, slot: Ints | int) -> Ints | int:
        return slot * self.chunk - np.where(np.asarray(slot) > self.short, self.lack, 0)

    def _pool(self, pool: int, size: int) -> Permutation:
        found = self.pools.get(pool)
        if found is None:
            if len(self.pools) > 8:
                self.pools.clear()
            found = self.pools[pool] = Permutation(size, key(self.key, pool, "pool"))
        return found

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        span = self.chunk * self.mix
        pools = positions // span
        pools = np.where(positions >= self._start((pools + 1) * self.mix), pools + 1, pools)
        out = np.empty_like(positions)
        for g in np.unique(pools):
            inside = pools == g
            start = int(self._start(int(g) * self.mix))
            end = min(int(self._start((int(g) + 1) * self.mix)), self.length)
            mixed = start + self._pool(int(g), end - start)[positions[inside] - start]
            slot = mixed // self.chunk
            slot = np.where(mixed >= self._start(slot + 1), slot + 1, slot)
            out[inside] = self.chunks[slot] * self.chunk + (mixed - self._start(slot))
        return self.inner.at(out)


@dataclass(frozen=True)
class Taken:
    """`take(n)`: the first n positions."""

    inner: Order
    count: int

    @property
    def length(self) -> int:
        return min(self.count, self.inner.length)

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        return self.inner.at(positions)


@dataclass(frozen=True)
class Repeated:
    """`repeat(n)`: everything n times; the turn joins the record's id."""

    inner: Order
    count: int

    @property
    def length(self) -> int:
        return self.inner.length * self.count

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        indexes, turns = self.inner.at(positions % self.inner.length)
        turn = (positions // self.inner.length).astype(np.uint64)
        return indexes, turns * np.uint64(self.count) + turn


class Balanced:
    """`balance(field)`: values take turns, each value's records in order; the epoch keeps its length."""

    def __init__(self, inner: Order, values: Sequence[object]):
        """`values`: the field's value at each position of `inner`."""
        self.inner, self.length = inner, inner.length
        members: dict[object, list[int]] = {}
        for position, value in enumerate(values):
            members.setdefault(value, []).append(position)
        ordered = sorted(members, key=lambda v: (str(type(v)), v))
        self.members = [np.array(members[v], np.int64) for v in ordered]

    def at(self, positions: Ints) -> tuple[Ints, Words]:
        out, turn = np.empty_like(positions), np.zeros(len(positions), np.uint64)
        which, nth = positions % len(self.members), positions // len(self.members)
        for c in np.unique(which):
            inside, rows = which == c, self.members[int(c)]
            out[inside] = rows[nth[inside] % len(rows)]
            turn[inside] = (nth[inside] // len(rows)).astype(np.uint64)
        indexes, turns = self.inner.at(out)
        with np.errstate(over="ignore"):
            return indexes, turns * np.uint64(0x100000001) + turn
