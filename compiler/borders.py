"""Bytes of one record at each border of a plan (disk → host → ring → trainer → device), and what of it could be cached."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..dsl.types import Type
from ..runtime.plan import Column, Plan, Program, Slot, reached
from .costs import LENGTH, UNKNOWN, Sizes, width
from .graph import Node, walk

DRAWN = frozenset(("draw", "epoch", "weight"))


@dataclass(frozen=True)
class Border:
    """What crosses a border for one record; `assumed`: sizes are guesses, since only the data tells them."""

    name: str
    bytes: float
    assumed: bool
    columns: tuple[tuple[str, str], ...]   # (name, type)


def column_bytes(column: Column) -> tuple[float, bool]:
    """(bytes in one row, are they assumed)."""
    unknown = None in column.dims or column.dtype in LENGTH
    count = 1.0
    for d in column.dims:
        count *= UNKNOWN if d is None else d
    return count * (LENGTH.get(column.dtype, width(column.dtype)) + (1 if column.missing else 0)), unknown


def type_text(column: Column) -> str:
    dims = ", ".join("_" if d is None else str(d) for d in column.dims)
    return column.dtype + ("?" if column.missing else "") + (f"[{dims}]" if column.dims else "")


def _border(name: str, columns: Iterable[Column], seen: float | None = None) -> Border:
    listed = tuple(columns)
    found = [column_bytes(c) for c in listed]
    size = sum(b for b, _ in found) if seen is None else seen
    return Border(name, size, seen is None and any(a for _, a in found), tuple((c.name, type_text(c)) for c in listed))


def borders(plan: Plan, read: Mapping[str, float] | None = None, row: float | None = None, batch: int = 1,
            devices: tuple[str, ...] | None = None) -> list[Border]:
    """The borders of a plan. `read`: bytes of the source's fields as measured, `row` of a row of the ring; what is
    delivered is told for one of `batch` records. `devices` of the segments below, where a loader asks for one."""
    inputs = [(s, p) for s, p in _sources(plan)]
    fields = [Column(name, slot.dtype, slot.dims, slot.missing) for s, p in inputs for name, slot in _inputs(p)]
    seen = sum(read.values()) if read else None
    listed = [_border("disk → host", fields, seen), _border("host → ring", plan.rows, row)]
    delivered = [Column(c.name, c.dtype, c.dims[1:] if batch > 1 and c.dims and c.dims[0] in (None, batch) else c.dims, c.missing)
                 for c in plan.emit]
    if devices is not None:
        narrow = "cpu" not in devices      # the rows themselves are uploaded
        listed.append(_border("host → device", plan.rows if narrow else delivered, row if narrow else None))
    listed.append(_border("ring → training loop", delivered))
    return listed


def _sources(plan: Plan) -> Iterable[tuple[str, Program]]:
    return ((s.start.options["kind"], s.program) for s in reached(plan.above) if s.start.kind == "source")


def _inputs(program: Program) -> Iterable[tuple[str, Slot]]:
    sizes = Sizes(program)
    for name, slot in program.inputs:
        yield name, sizes.slots[slot]


def frontier(outputs: Mapping[str, Node]) -> dict[str, Node]:
    """The draw-free tensors and library results that drawn values are made of, and draw-free outputs that take work."""
    found: dict[str, Node] = {}
    known: dict[Node, bool] = {}

    def is_drawn(n: Node) -> bool:
        if n not in known:
            for m in walk(n):
                known[m] = m.op in DRAWN or any(known[a] for a in m.args)
        return known[n]

    for name, out in outputs.items():
        if not is_drawn(out):
            if works(out):
                found[name] = out
            continue
        for n in walk(out):
            if is_drawn(n):
                for a in n.args:
                    if not is_drawn(a) and works(a) and (not a.type.is_scalar or a.op == "reduce"):
                        found.setdefault(str(a.get("op") or a.get("target") or f"{name}.{a.op}"), a)
    return found


def works(n: Node) -> bool:
    """Does a value take work that a cache would save: a library call, or loops over data."""
    has_field = any(m.op == "field" for m in walk(n))
    return has_field and any(m.op in ("call", "extern", "reduce", "build") for m in walk(n))


def type_bytes(t: Type) -> tuple[float, bool]:
    """(bytes of a value, are they assumed)."""
    dims = tuple(d if isinstance(d, int) else d["value"] if d.op == "const" else None for d in t.dims)
    image = {3: (375, 500, 3)}.get(len(dims), ()) if t.dtype == "u8" else ()
    count = 1.0
    for k, d in enumerate(dims):
        count *= (image[k] if image else UNKNOWN) if d is None else d
    return count * LENGTH.get(t.dtype, width(t.dtype)), None in dims or t.dtype in LENGTH
