"""Where each column of the ring lies in its memory: from columns and a number of bytes to offsets and capacities.

A field of fixed size is a ring of rows, addressed by byte: row r starts at (r × row bytes) mod size. A field of
varying size is a ring of bytes, and a table of fixed rows (start, bytes, dims) says where each value lies.
"""
from collections.abc import Sequence

import msgspec

from .blocks import DTYPES
from .limits import available, too_little
from .memory import PAGE, pages
from .plan import Column

WORD = 64                              # each counter has a cache line of its own
# In the header, written by the producer. INTACT: rows before it may be overwritten. RUN: how often it began anew. HOLDER: the
# number of the reader that wakes the producer when it passes ROOM_WANTED, 0: any.
HEAD, ENDS, ROOM_WANTED, HEAP_WANTED, INTACT, RUN, HOLDER = range(0, 7 * WORD, WORD)
END_TABLE = PAGE                       # (epoch, row it ends before), by number of the end mod END_COUNT
END_COUNT = 256
HEADER = END_TABLE + pages(END_COUNT * 16)
# In a consumer's control page. GENERATION: of the place it has taken. WAITED: nanoseconds. SINCE: when it began to wait, 0
# where it doesn't. LOST: rows passed unread.
RELEASED, POSITION, WANTED, ENDS_READ, GENERATION, WAITED, SINCE, TAKEN, LOST = range(0, 9 * WORD, WORD)
ALIGN = 64                             # of each value in a byte ring
SHARE = 4                              # one reservation or one batch takes at most this part of the ring
MOST_ROWS = 1 << 40
DEFAULT_BYTES = 1 << 30
DEFAULT_HEAP = 64 << 20
POINTS = ("_next", "_skip")
POINTS_STAY = 1                        # of so many rows before those in the ring, so that a reader's own can be found again
HIDDEN = (Column("_id", "u64", ()), Column("_next", "i64", ()), Column("_skip", "i64", ()), Column("_count", "i64", ()))


class Place(msgspec.Struct, frozen=True):
    """One column: `size` bytes at `offset` of the memfd for rows of `row_bytes`; `heap` bytes for varying values."""

    name: str
    dtype: str
    dims: tuple[int | None, ...]
    row_bytes: int
    offset: int
    size: int
    heap_offset: int = 0
    heap: int = 0

    @property
    def ragged(self) -> bool:
        return self.heap > 0


class Layout(msgspec.Struct, frozen=True):
    """The whole memfd: `total` bytes, room for `capacity` rows."""

    places: tuple[Place, ...]
    capacity: int
    total: int


def columns_of(rows: Sequence[Column]) -> list[Column]:
    """All columns of the ring: the rows', a mask for each that may be missing, and the hidden ones."""
    masks = [Column(f"{c.name}?", "bool", c.dims) for c in rows if c.missing]
    return [*rows, *masks, *HIDDEN]


def is_ragged(column: Column) -> bool:
    return column.dtype not in DTYPES or None in column.dims


def row_bytes(column: Column) -> int:
    """Bytes of one row: of the value itself, or of its entry in the table."""
    if is_ragged(column):
        return 8 * (2 + len(column.dims))
    count = 1
    for dim in column.dims:
        count *= dim or 0
    return count * int(DTYPES[column.dtype].itemsize)


def plan_layout(rows: Sequence[Column], most: int, memory: int | None = None, chunk: int = 64,
                ahead: int = 0, heap: int = DEFAULT_HEAP) -> Layout:
    """Room for at least SHARE × the larger of `most` (rows one batch takes) and `chunk` (rows reserved at once).

    Without `memory` the ring is made as large as reading ahead pays (`ahead` rows are in work at once), within what
    limits leave; `heap` bytes then go to each field of varying size. Raises E0809.
    """
    columns = columns_of(rows)
    fixed = sum(row_bytes(c) for c in columns)
    heaps = sum(is_ragged(c) for c in columns)
    rounding = HEADER + (len(columns) + heaps) * PAGE

    def needed(rows: int) -> tuple[int, int]:
        """Bytes for values of varying size, and in all."""
        for_heaps = heaps * (heap if heap > DEFAULT_HEAP else max(1 << 20, rows * 1024))
        return for_heaps, rows * fixed + for_heaps + rounding

    while memory is not None and chunk > most and needed(SHARE * chunk)[1] > memory:
        chunk //= 2                    # smaller tasks cost time, not records
    need_rows = SHARE * max(most, chunk)
    heap_need, need = needed(need_rows)
    room = available()
    usable = room.free // 2            # copies of batches that are kept, and the training itself, need some too
    if memory is None:
        wanted = need + ahead * fixed + heaps * max(0, heap - heap_need // max(1, heaps))
        budget = max(need, min(wanted, usable, DEFAULT_BYTES))
    else:
        budget = memory
    what = f"{need_rows:,} records of {fixed:,} bytes"
    if budget < need:
        raise too_little(need, budget, "given by `memory=`", what, f"write memory={need} or more, or use smaller batches")
    if budget > usable:
        raise too_little(budget, usable, f"half of what is free, by the {room.source}", what,
                         "give the process more memory, use smaller batches, or write a smaller `memory=`")
    for_heaps = max(heap_need, (budget - rounding - need_rows * fixed) // 2) if heaps else 0
    capacity = min(MOST_ROWS, (budget - rounding - for_heaps) // fixed)
    return _lay_out(columns, max(need_rows, capacity), for_heaps // heaps if heaps else 0)


def _lay_out(columns: Sequence[Column], capacity: int, heap: int) -> Layout:
    places, offset = [], HEADER
    for column in columns:
        width = row_bytes(column)
        size = max(PAGE, pages((capacity + POINTS_STAY * (column.name in POINTS)) * width))
        place = Place(column.name, column.dtype, column.dims, width, offset, size)
        offset += size
        if is_ragged(column):
            place = msgspec.structs.replace(place, heap_offset=offset, heap=pages(heap))
            offset += place.heap
        places.append(place)
    return Layout(tuple(places), capacity, offset)


def check_layout(layout: Layout) -> None:
    """Refuse a layout from another process whose parts don't lie inside its memory. Raises ValueError."""
    inside = 0 < layout.capacity <= MOST_ROWS and HEADER <= layout.total < 1 << 46
    for p in layout.places:
        width = row_bytes(Column(p.name, p.dtype, p.dims))
        inside = inside and p.row_bytes == width and all(d is None or d >= 0 for d in p.dims)
        for start, size in ((p.offset, p.size), (p.heap_offset, p.heap)):
            inside = inside and start >= 0 and size >= 0 and start + size <= layout.total and (start | size) % PAGE == 0
        inside = inside and layout.capacity * width <= p.size and p.size > 0
        inside = inside and (p.heap > 0) == is_ragged(Column(p.name, p.dtype, p.dims))
    if not inside:
        raise ValueError("the layout of the ring doesn't fit its memory")
