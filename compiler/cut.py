"""Cuts a graph into sections, each from the start of a frame to its end, and those at `share()` in two.

A plain `batch` that nothing but `share` or `emit` follows moves below the cut: the ring then holds
records, and a batch is a view of it.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from ..dsl.types import I64, Type
from .graph import Node, node, rewrite
from .promote import dim_node

STARTS = frozenset(("source", "each", "batch", "window", "pack", "mix", "zip", "sample", "share"))
BY = "@by"   # the field that holds `by` of a batch or pack where that is an expression
SAME_FRAME = frozenset(("where", "check", "shuffle", "take", "repeat", "shard", "skip_bad", "balance"))


@dataclass(frozen=True)
class Section:
    """A section of the graph: its start, the stages that don't start a frame (in order), and its `map`."""

    start: Node
    stages: tuple[Node, ...]
    outputs: dict[str, Node] = field(hash=False)

    @property
    def kind(self) -> str:
        return self.start.op


def sections(stream: Node) -> list[Section]:
    """The segments of a stream in the order in which records pass them."""
    out: list[Section] = []
    outputs: dict[str, Node] | None = None
    by: Node | None = None      # the length of the batch below, where it isn't a field
    stages: list[Node] = []
    at = stream.args[0] if stream.op == "emit" else stream
    while True:
        if at.op == "map":
            if outputs is None:
                outputs = dict(zip(at["names"], at.args[1:], strict=True))
            else:   # a `sample` that nothing needs is gone between two maps
                outputs = {name: through(at, v) for name, v in outputs.items()}
                stages = [_moved(at, s) for s in stages]
            if by is not None:
                outputs[BY], by = through(at, by), None
        elif at.op in SAME_FRAME:
            stages.append(at)
        elif at.op in STARTS:
            if outputs is None:
                outputs = _handed_on(at)
            out.append(Section(at, tuple(reversed(stages)), outputs))
            outputs, stages = None, []
            if "by" in at.get("has", ()):
                by = at.args[1 + at["has"].index("by")]
            elif at.op == "pack":
                by = at.args[2]
            if by is not None and by.op == "field":
                by = None
            if at.op in ("source", "mix", "zip"):
                return out[::-1]
        else:
            raise ValueError(f"{at.op} is no stream")
        at = at.args[0]


def through(at: Node, n: Node) -> Node:
    """A value in terms of a map's fields as one in terms of the frame before the map."""
    values = dict(zip(at["names"], at.args[1:], strict=True))

    def change(m: Node) -> Node | None:
        if m.op == "field":
            value: Node = values[m["name"]]
            return value
        if m.op == "extent" and m.get("field") is not None:
            return dim_node(values[m["field"]].type.dims[m["axis"]])
        return None

    return rewrite(n, change)


def _moved(at: Node, stage: Node) -> Node:
    changed = tuple(through(at, a) for a in stage.args[1:])
    return node(stage.op, stage.args[0], *changed, type=stage.type, **dict(stage.attrs))


def _handed_on(start: Node) -> dict[str, Node]:
    return {name: node("field", type=t, name=name) for name, t in start.type.parts}


def is_identity(section: Section) -> bool:
    """Does the segment only hand its fields on?"""
    return not section.stages and all(v.op == "field" for v in section.outputs.values())


def is_plain_batch(section: Section) -> bool:
    return section.kind == "batch" and section.start["has"] == ("n",) and not section.start["pad"]


@dataclass(frozen=True)
class Cut:
    """`above` runs once; `rows` are the fields that the ring holds; `below` runs in each consumer."""

    above: list[Section]
    rows: dict[str, Type]
    below: list[Section]


def cut(emit: Node, batches: bool = True) -> Cut:
    """Split at `share()`; a trailing plain batch goes below, unless `batches` are to stay where they stand."""
    listed = sections(emit)
    at = next((i for i, p in enumerate(listed) if p.kind == "share"), len(listed))
    above, below = listed[:at], listed[at:]
    if batches and len(above) > 1 and is_plain_batch(above[-1]) and is_identity(above[-1]):
        below = [above[-1], *below]
        above = above[:-1]
    return Cut(above, {name: row_type(name, value.type) for name, value in above[-1].outputs.items()}, below)


def row_type(name: str, t: Type) -> Type:
    """The type of a ring's field; a size that isn't known now is that of the field itself, whatever it came from."""
    return t.with_dims(tuple(_own(name, axis, d) for axis, d in enumerate(t.dims)))


def _own(field: str, axis: int, dim: int | Node) -> int | Node:
    if isinstance(dim, int) or dim.op == "const":
        return dim
    return node("extent", type=I64, field=field, axis=axis)


def column_dims(t: Type) -> tuple[int | None, ...]:
    """Sizes known now, None for the others."""
    out: list[int | None] = []
    for d in t.dims:
        if isinstance(d, Node):
            d = d["value"] if d.op == "const" else None
        out.append(d)
    return tuple(out)
