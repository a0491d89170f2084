"""Rows of which some columns vary in size (texts, arrays of any length) as arrays, the values of such a column as a list.

A place in the ring and a count go in; large columns come out over the ring itself, small ones as copies. Where each value lies
is said by another process, so it is checked.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from .attachment import gone_error
from .blocks import DTYPES, view
from .even import Plain
from .layout import Layout, Place
from .lease import Leases, Span, bytes_at
from .memory import Mapping

A_BITE = 1 << 20                       # whoever keeps one row of those that are taken at once keeps all of them
BYTES, TEXTS = msgspec.msgpack.Decoder(list[bytes | None]), msgspec.msgpack.Decoder(list[str | None])


class UnevenRows:
    """For one reader."""

    def __init__(self, layout: Layout, plain: Plain, share_from: int | None, read_only: bool):
        """`share_from`: columns of so many bytes lie over the ring, None: none do."""
        self.places, self.plain, self.share_from, self.read_only = layout.places, plain, share_from, read_only
        self.tables = {p.name: Mapping(plain.fd, p.offset, p.size, double=True, write=False) for p in layout.places if p.ragged}

    def bite(self, position: int, count: int) -> int:
        """How many of these rows make about A_BITE."""
        sizes = np.full(count, sum(p.row_bytes for p in self.places))
        for place in self.places:
            if place.ragged:
                sizes += np.maximum(self._entries(place, position, count)[:, 1], 0)
        return max(1, int(np.searchsorted(np.cumsum(sizes), A_BITE, "right")))

    def take(self, leases: Leases, position: int, count: int) -> tuple[dict[str, Any], Any, int]:
        """The rows from `position` on, what keeps them in the ring where some of it does, and their bytes. Raises E0807."""
        entries = {p.name: self._entries(p, position, count) for p in self.places if p.ragged}
        spans = [self._span(k, place, position, count, entries.get(place.name)) for k, place in enumerate(self.places)]
        large = [s for s in spans if self.share_from is not None and s.size >= self.share_from
                 and self.places[s.part].dtype in DTYPES]
        lease = None
        if large:
            window = leases.window(large)
            lease = leases.hold(window, position, position + count, large)
        fields: dict[str, Any] = {}
        for place, span in zip(self.places, spans):
            shared = span in large
            address = window.address(span) if shared else self._plain_address(span)
            if place.ragged:
                data = bytes_at(lease if shared else self, address, span.size, self.read_only)
                fields[place.name] = self._values(place, data, entries[place.name], shared)
            elif shared:
                data = bytes_at(lease, address, span.size, self.read_only)
                fields[place.name] = data.view(DTYPES[place.dtype]).reshape((count, *place.dims))
            else:
                fields[place.name] = self._copied(place, address, count)
        return fields, lease, sum(s.size for s in spans)

    @staticmethod
    def _span(number: int, place: Place, position: int, count: int, entries: np.ndarray | None) -> Span:
        if entries is None:
            return Span(number, position * place.row_bytes, count * place.row_bytes)
        first, last = entries[0], entries[-1]
        return Span(number, int(first[0]), int(last[0]) + max(0, int(last[1])) - int(first[0]))

    def _plain_address(self, span: Span) -> int:
        mapping = self.plain.of(span.part)
        return mapping.address + span.position % mapping.size

    def _copied(self, place: Place, address: int, count: int) -> np.ndarray:
        raw: bytes | bytearray = ctypes.string_at(address, count * place.row_bytes)
        if not self.read_only:
            raw = bytearray(raw)
        made = np.frombuffer(raw, DTYPES[place.dtype])
        return made.reshape((count, *place.dims)) if place.dims else made   # type: ignore[arg-type]

    def _own(self, data: np.ndarray) -> np.ndarray:
        copy = np.array(data)
        copy.flags.writeable = not self.read_only
        return copy

    def _entries(self, place: Place, position: int, count: int) -> np.ndarray:
        """Start, bytes and dims of each value."""
        table = self.tables[place.name]
        words = place.row_bytes // 8
        at = table.address + position * place.row_bytes % table.size
        entries = view(at, (count, words), np.dtype(np.int64)).copy()
        starts, sizes = entries[:, 0], entries[:, 1]
        good = (starts[0] >= 0 and (np.diff(starts) >= 0).all() and (sizes >= -1).all() and (sizes <= place.heap).all()
                and (starts[:-1] + np.maximum(sizes[:-1], 0) <= starts[1:]).all() and (entries[:, 2:] >= 0).all()
                and starts[-1] - starts[0] + max(0, int(sizes[-1])) <= place.heap)
        if not good:
            raise gone_error(f"its table of `{place.name}` is wrong")
        return entries

    def _values(self, place: Place, data: np.ndarray, entries: np.ndarray, shared: bool) -> list[Any]:
        base = int(entries[0, 0])
        raw = data if shared else (data.tobytes() if place.dtype not in DTYPES else self._own(data))
        values = []
        for start, size, *dims in entries.tolist():
            piece = raw[start - base : start - base + max(0, size)]
            try:
                values.append(_value(place, piece, size, dims))
            except (ValueError, msgspec.MsgspecError) as error:
                raise gone_error(f"a value of `{place.name}` is wrong: {error}") from error
        return values


def _value(place: Place, piece: Any, size: int, dims: Sequence[int]) -> Any:
    if place.dtype in DTYPES:
        return piece.view(DTYPES[place.dtype]).reshape(dims)
    if place.dims:
        values = np.empty(dims, object)
        values.reshape(-1)[:] = (BYTES if place.dtype == "bytes" else TEXTS).decode(piece)
        return values
    if size < 0:
        return None
    return bytes(piece) if place.dtype == "bytes" else piece.decode()
