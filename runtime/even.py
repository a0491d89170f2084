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
from .lease import Lease, Leases, Span, bytes_at
from .memory import Mapping

LEFT_OUT = ("_next", "_skip", "_count")   # where the reader is brief


class Piece(NamedTuple):
    """One column of a batch: its byte ring, bytes of a row and of all rows, and how they are seen."""

    part: int
    name: str
    row_bytes: int
    size: int
    dtype: Any
    shape: tuple[int, ...]


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
        self.names: dict[str, Any] = {}
        self.planned = (0, False)
        self.large: list[Piece] = []
        self.small: list[Piece] = []

    def _plan(self, count: int, brief: bool) -> None:
        self.planned, self.names, self.large, self.small = (count, brief), {}, [], []
        for part, place in enumerate(self.places):
            if brief and place.name in LEFT_OUT:
                continue
            self.names[place.name] = None                 # fields keep the columns' order
            size = count * place.row_bytes
            shape = (count, *(int(d or 0) for d in place.dims))
            shared = self.share_from is not None and size >= self.share_from
            piece = Piece(part, place.name, place.row_bytes, size, DTYPES[place.dtype], shape)
            (self.large if shared else self.small).append(piece)

    def take(self, leases: Leases, position: int, count: int, brief: bool) -> tuple[dict[str, Any], Lease | None]:
        """The rows from `position` on, and what keeps them in the ring where some arrays lie in it. `brief`: see Rows.point."""
        if self.planned != (count, brief):
            self._plan(count, brief)
        fields, lease = self.names.copy(), None
        if self.large:
            spans = [Span(part, position * row_bytes, size) for part, _, row_bytes, size, _, _ in self.large]
            window = leases.window(spans)
            lease = leases.hold(window, position, position + count, spans)
            for span, (_, name, _, size, dtype, shape) in zip(spans, self.large):
                fields[name] = bytes_at(lease, window.address(span), size, self.read_only).view(dtype).reshape(shape)
        for part, name, row_bytes, size, dtype, shape in self.small:
            mapping = self.plain.of(part)
            raw: bytes | bytearray = ctypes.string_at(mapping.address + position * row_bytes % mapping.size, size)
            made = np.frombuffer(raw if self.read_only else bytearray(raw), dtype)
            fields[name] = made.reshape(shape) if len(shape) > 1 else made
        return fields, lease
