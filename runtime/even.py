"""Rows whose columns all have a fixed size as arrays: what is the same for every batch of one size is worked out once.

A place in the ring and a count go in; arrays by column come out, large ones over the ring itself, small ones copies.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .blocks import DTYPES
from .layout import Place
from .lease import Lease, Leases, Span, Window, bytes_at
from .memory import Mapping

Names = tuple[str, ...]


class Column(NamedTuple):
    """One column of a batch: its byte ring, bytes of a row and of all rows, how they are seen, and do they lie over the ring."""

    part: int
    name: str
    row_bytes: int
    size: int
    dtype: Any
    shape: tuple[int, ...]
    shared: bool


class Plain:
    """Mappings of a ring's parts that nobody has written to, for what is copied at once."""

    def __init__(self, fd: int, parts: Sequence[tuple[int, int]]):
        """`fd` stays open for as long as this is used."""
        self.fd, self.parts = fd, parts
        self.maps: dict[int, Mapping] = {}

    def of(self, part: int) -> Mapping:
        mapping = self.maps.get(part)
        if mapping is None:
            offset, size = self.parts[part]
            mapping = self.maps[part] = Mapping(self.fd, offset, size, double=True, write=False)
        return mapping


class EvenRows:
    """For one reader."""

    def __init__(self, places: Sequence[Place], plain: Plain, share_from: int | None, read_only: bool):
        """`share_from`: arrays of so many bytes lie over the ring, None: none do."""
        self.places, self.plain, self.share_from, self.read_only = places, plain, share_from, read_only
        self.row_bytes = sum(p.row_bytes for p in places)
        self.planned: tuple[int, Names | None] = (0, None)
        self.columns: tuple[Column, ...] = ()

    def plan(self, count: int, only: Names | None) -> tuple[Column, ...]:
        """How `count` rows are seen: all columns, or these."""
        return tuple(self._column(part, place, count) for part, place in enumerate(self.places)
                     if only is None or place.name in only)

    def _column(self, part: int, place: Place, count: int) -> Column:
        size = count * place.row_bytes
        shape = (count, *(int(d or 0) for d in place.dims))
        shared = self.share_from is not None and size >= self.share_from
        return Column(part, place.name, place.row_bytes, size, DTYPES[place.dtype], shape, shared)

    def native(self, count: int, only: Names | None, window: Window) -> tuple[tuple[Any, ...], ...]:
        """The plan as `Taker.plan` wants it, with where each column is read: shared ones in `window`."""
        columns = self.plan(count, only)
        maps = (window.maps[c.part] if c.shared else self.plain.of(c.part) for c in columns)
        return tuple((*c, m.address, m.size) for c, m in zip(columns, maps, strict=True))

    def take(self, leases: Leases, position: int, count: int,
             only: Names | None) -> tuple[dict[str, Any], Lease | None]:
        """The rows from `position` on, and what keeps them in the ring where some arrays lie in it."""
        if self.planned != (count, only):
            self.planned, self.columns = (count, only), self.plan(count, only)
        lease = None
        if spans := [Span(c.part, position * c.row_bytes, c.size) for c in self.columns if c.shared]:
            window = leases.window(spans)
            lease = leases.hold(window, position, position + count, spans)
        fields: dict[str, Any] = {}
        for part, name, row_bytes, size, dtype, shape, shared in self.columns:
            if shared:
                at = window.address((part, position * row_bytes, size))
                fields[name] = bytes_at(lease, at, size, self.read_only).view(dtype).reshape(shape)
                continue
            mapping = self.plain.of(part)
            raw: bytes | bytearray = ctypes.string_at(mapping.address + position * row_bytes % mapping.size, size)
            made = np.frombuffer(raw if self.read_only else bytearray(raw), dtype)
            fields[name] = made.reshape(shape) if len(shape) > 1 else made
        return fields, lease
