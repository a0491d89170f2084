"""Streams as the language defines them: every stage as a plain generator over records, values by `evaluate_values`.

`evaluate(program)` yields what leaves `emit`, one dict per record (after `batch`: per batch); `record(program, position)` gives
every field of one source record. Only fields that something emitted needs are computed, in the order of the program.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..kernels import random
from ..kernels.ops import BadRecord
from ..kernels.sources import Source, SourceError, open_source
from ..runtime import order as orders
from ..runtime.errors import DataError, Where
from .evaluate_frames import Record, batch, child, each, pack, stack, window
from .evaluate_values import Cells, Evaluator, Frame, cells_of, constant
from .graph import Node, Program, children
from .prune import simplest

__all__ = ["constant", "evaluate", "record"]
FOREVER = 1 << 50   # positions of an endless stream
MOST_READ = 200_000   # source records that are gone through to show one that stages make of them
SAME_FRAME = frozenset(("where", "check", "shuffle", "take", "repeat", "shard", "skip_bad", "balance", "share"))
ORDERS = frozenset(("shuffle", "repeat", "balance"))
MADE = {"each": each, "batch": batch, "window": window, "pack": pack}
Unread = Record | DataError      # a source record, or why it can't be read


def evaluate(
    program: Program, epoch: int = 0, start: int = 0, params: Mapping[str, Any] | None = None,
    weights: Mapping[str, Mapping[int, float]] | None = None
) -> Iterator[dict[str, Any]]:
    """What `emit` delivers in this epoch, from source position `start` on. Raises DataError.

    `weights`: what consumers returned, by name and by record id.
    """
    run = Run(program, epoch, start, params or {}, weights=weights or {})
    for record in run.records(program.emit.args[0]):
        yield {name: _plain(record.fields[name]) for name in program.emit["names"]}


def record(program: Program, position: int, epoch: int = 0) -> dict[str, Any]:
    """The fields that the record at a source position has before it is stacked with others.

    Raises DataError where it is bad, also under `skip_bad`, and LookupError where it is left out or isn't there.
    """
    return named_record(program, position, epoch)[1]


def named_record(program: Program, position: int, epoch: int = 0) -> tuple[str, dict[str, Any]]:
    """The record's name for people and its fields, as `record`."""
    first = _first_frame(program.emit)
    run = Run(program, epoch, position, {}, strict=True)
    run.need(first, {name for name, _ in first.type.parts})
    made = next(run.records(first), None)
    if made is None:
        raise LookupError(f"the epoch has no record at position {position:,} or after it")
    if made.position != position:
        raise LookupError(f"the record at position {position:,} is left out by `where`; "
                          f"the next that stays is at {made.position:,}")
    return made.name, {name: _plain(cells) for name, cells in made.fields.items()}


def made_record(program: Program, number: int, epoch: int = 0) -> tuple[str, dict[str, Any]] | None:
    """The record of this number that the stages make of others (windows, rows, mixes), before a batch: its name for people
    and its fields. None where there are no such stages, or more than `MOST_READ` source records to go through."""
    chain = _above_batch(program.emit)
    if all(n.op in ("source", "map", "sample") or n.op in SAME_FRAME for n in chain):
        return None
    run = Run(program, epoch, 0, {}, strict=True)
    last = next((n for n in chain if n.op == "map"), chain[0])
    run.need(last, {name for name, _ in last.type.parts})
    if sum(len(run.source(n)) for n in run.needed if n.op == "source") > MOST_READ:
        return None
    made = next(itertools.islice(run.records(last), number, None), None)
    if made is None:
        raise LookupError(f"the epoch has no record {number:,}")
    name = made.name if made.count == 1 else f"{made.count:,} records, the first is {made.name}"
    return name, {name: _plain(cells) for name, cells in made.fields.items()}


def _above_batch(emit: Node) -> list[Node]:
    """The stream's nodes from the last one above its first batch to the (first) source."""
    chain = [emit.args[0]]
    while chain[-1].args and chain[-1].op != "source":
        chain.append(chain[-1].args[0])
    last = max((k for k, n in enumerate(chain) if n.op == "batch"), default=-1)
    return chain[last + 1 :]


def _first_frame(emit: Node) -> Node:
    """The end of the frames that begin at the (first) source and have a record for each of its records."""
    frame = list(itertools.takewhile(lambda n: n.op in ("source", "map", "sample") or n.op in SAME_FRAME,
                                     reversed(_above_batch(emit))))
    maps = [n for n in frame if n.op == "map"] or frame[-1:]
    return maps[-1 if any(n.op == "sample" for n in frame) else 0]


def _plain(cells: Cells) -> Any:
    """A NumPy array; texts and bytes as Python objects; masked where something is missing."""
    values = np.asarray(cells.values)
    if values.dtype == object:
        return values.item() if values.ndim == 0 else values.tolist()
    if cells.missing is not None and np.any(cells.missing):
        return np.ma.MaskedArray(values, np.broadcast_to(cells.missing, values.shape))
    return values


def fields_in(*roots: Node) -> set[str]:
    """Names of the fields that values mention, also in the dims of their types."""
    seen: set[Node] = set()
    stack, names = list(roots), set()
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            name = n["name"] if n.op == "field" else n.get("field") if n.op == "extent" else None
            names |= {name} if name is not None else set()
            stack.extend(children(n))
    return names


class Run:
    """One epoch of one program."""

    def __init__(self, program: Program, epoch: int, start: int, params: Mapping[str, Any],
                 strict: bool = False, weights: Mapping[str, Mapping[int, float]] | None = None):
        """`strict`: a bad record raises, also under `skip_bad`."""
        self.weights = weights or {}
        self.program, self.epoch, self.start, self.strict = program, epoch, start, strict
        self.params = {p.name: p.value for p in program.params} | dict(params)
        self.needed: dict[Node, set[str]] = {}
        self.sources: dict[Node, Source] = {}
        self.bad = 0
        self.need(program.emit, set(program.emit["names"]))

    # --- which fields anything needs ------------------------------------------------------------

    def need(self, n: Node, names: set[str]) -> None:
        """Note that these fields of a stream are needed, and what they need of the streams before."""
        known = self.needed.setdefault(n, set())
        known |= names
        match n.op:
            case "source":
                return
            case "map":
                chosen = [v for name, v in zip(n["names"], n.args[1:], strict=True) if name in known]
                self.need(n.args[0], fields_in(*chosen))
            case "mix":
                for branch in n.args:
                    self.need(branch, known)
            case "zip" | "sample":
                own = n["names"] if n.op == "zip" else ("", n["name"])
                for branch, prefix in zip(n.args, own, strict=True):
                    dot = f"{prefix}." if prefix else ""
                    wanted = {m.removeprefix(dot) for m in known if m.startswith(dot)} if dot else known
                    self.need(branch, wanted & {name for name, _ in branch.type.parts})
            case _:
                own = {name for name, _ in n.args[0].type.parts}
                self.need(n.args[0], (known | fields_in(*n.args[1:]) | set(n.get("fields") or ())) & own)

    # --- values ---------------------------------------------------------------------------------

    def evaluator(self, r: Record) -> Evaluator:
        return Evaluator(Frame(r.fields, r.id, r.count, self.epoch, self.program.seed or 0, self.params, self.program.spans,
                               self.weights))

    def number(self, n: Node) -> int:
        """A stage's number: of constants, params and the epoch."""
        value = int(self.evaluator(Record({}, 0, 0)).scalar(n))
        if value < 1:
            raise self.fail("E0804", f"a stage's number is {value}, it must be 1 or more", n)
        return value

    def fail(self, code: str, title: str, n: Node, r: Record | None = None) -> DataError:
        spans = self.program.spans.get(n, ())
        where = Where(spans[0].file, spans[0].start, spans[0].end) if spans else None
        return DataError(code, title, where, "", r.name if r else "", self.epoch, r.position if r else None)

    # --- streams --------------------------------------------------------------------------------

    def records(self, n: Node, turn: int = 0) -> Iterator[Record]:
        """The records of a stream; `turn` counts its repetitions by `mix` and `zip`, each newly shuffled."""
        match n.op:
            case "each" | "batch" | "window" | "pack":
                yield from MADE[n.op](self, n, self.records(n.args[0], turn))
            case "mix" | "zip" | "sample":
                yield from getattr(self, "_" + n.op)(n, turn)
            case _:
                yield from self.segment(n, turn)

    def segment(self, n: Node, turn: int = 0) -> Iterator[Record]:
        """Records of one frame: its stages, then its `map`."""
        stages: list[Node] = []
        at = n.args[0] if n.op == "map" else n
        while at.op in SAME_FRAME:
            stages.insert(0, at)
            at = at.args[0]
        left = {s: self.number(s.args[1]) for s in stages if s.op == "take"}
        for r in self._ordered(at, stages, turn):
            judged = self._judged(n, stages, left, r, at)
            if judged is not None:
                yield judged
            if any(count <= 0 for count in left.values()):
                return

    def _judged(self, n: Node, stages: Sequence[Node], left: dict[Node, int], r: Unread, start: Node) -> Record | None:
        """The record after its frame's stages and map; None if it leaves. A bad one raises, or is counted."""
        at_most, source = self._tolerance(stages, start)
        try:
            if isinstance(r, DataError):
                raise r
            return self._through(n, stages, left, r)
        except DataError as error:
            if not isinstance(r, DataError):
                error = replace(error, record=r.name, epoch=self.epoch, position=r.position)
            if at_most is None:
                raise error from None
            self.bad += 1
            total = len(self.source(source))
            if self.bad > at_most * total:
                title = f"{self.bad} of {total:,} records are bad, more than `at_most={at_most}` allows"
                raise replace(error, code="E0806", title=title, label=error.title) from None
            return None

    def _tolerance(self, stages: Sequence[Node], start: Node) -> tuple[float | None, Node]:
        """What `skip_bad` allows for the source that the frame's records come from: it covers every line below it."""
        at_most = next((s["at_most"] for s in stages if s.op == "skip_bad"), None)
        while start.op != "source" and start.op not in ("mix", "zip"):
            start = start.args[0]
            at_most = start["at_most"] if start.op == "skip_bad" else at_most
        return None if self.strict or start.op != "source" else at_most, start

    def _through(self, n: Node, stages: Sequence[Node], left: dict[Node, int], r: Record) -> Record | None:
        values = self.evaluator(r)
        conditions = 0
        for stage in stages:
            if stage.op in ("where", "check"):
                conditions += 1
                if not values.scalar(stage.args[1]):
                    if stage.op == "where":
                        return None
                    code = stage.get("code") or "E0805"
                    title = "`check` was false" if code == "E0805" else "two sizes of this record differ"
                    raise self.fail(code, title, stage, r)
            elif stage.op == "take" and conditions:
                left[stage] -= 1
        if n.op != "map":
            return r
        fields = {name: values.value(v) for name, v in zip(n["names"], n.args[1:], strict=True) if name in self.needed[n]}
        return replace(r, fields=fields)

    # --- sources and orders -----------------------------------------------------------------------

    def source(self, n: Node) -> Source:
        """The opened source; of its columns only those that are needed."""
        if n not in self.sources:
            names = self.needed[n] or {simplest(dict(n.type.parts))}   # where nothing is needed, records still count
            columns = [c for c in n["columns"] if c[0] in names]
            try:
                self.sources[n] = open_source(n["kind"], n["paths"], dict(n["options"]), columns)
            except SourceError as error:
                raise replace(self.fail(error.code, error.title, n), notes=error.notes) from None
        return self.sources[n]

    def _ordered(self, start: Node, stages: Sequence[Node], turn: int) -> Iterator[Unread]:
        """Records in the order that the frame's shuffles ask for; a source record that can't be read is an exception."""
        changes, conditions = [], False
        for s in stages:
            conditions = conditions or s.op in ("where", "check")
            if s.op in ORDERS or (s.op == "take" and not conditions):
                changes.append(s)
        read: Callable[[int], Unread]
        if start.op == "source":
            length, read = len(self.source(start)), lambda i: self._read(start, i)
        elif changes:
            listed = list(self.records(start, turn))
            length, read = len(listed), lambda i: listed[i]
        else:
            yield from self.records(start, turn)
            return
        order: orders.Order = orders.InOrder(length)
        for s in changes:
            order = self._order(s, order, read, turn)
        for position in range(self.start if start.op == "source" else 0, order.length):
            (index,), (again,) = order.at(np.array([position], np.int64))
            r = read(int(index))
            if isinstance(r, DataError):
                yield replace(r, position=position)
            elif isinstance(r, Record):
                yield replace(r, id=child(r.id, int(again) + turn), position=position if start.op == "source" else r.position)

    def _order(self, s: Node, inner: orders.Order, read: Callable[[int], Unread], turn: int) -> orders.Order:
        if inner.length == 0:
            return inner
        match s.op:
            case "shuffle":
                key = orders.key(self.program.seed or 0, self.epoch, s["key"] + (f"#{turn}" if turn else ""))
                if s["window"]:
                    return orders.Windowed(inner, s["window"], key)
                if s["chunk"]:
                    return orders.Chunked(inner, s["chunk"], s["mix"], key)
                return orders.Shuffled(inner, orders.Permutation(inner.length, key))
            case "take":
                return orders.Taken(inner, self.number(s.args[1]))
            case "repeat":
                return orders.Repeated(inner, self.number(s.args[1]) if s["has"] else FOREVER // inner.length)
        indexes, _ = inner.at(np.arange(inner.length))
        values = [self._balanced(s, read(int(i))) for i in indexes]
        return orders.Balanced(inner, values)

    def _balanced(self, s: Node, r: Unread) -> Any:
        return self.evaluator(r).scalar(s.args[1]) if isinstance(r, Record) else -1

    def _read(self, n: Node, index: int) -> Unread:
        source = self.source(n)
        name = source.name(index)
        id = int(source.ids(np.array([index]))[0])
        types = dict(n.type.parts)
        try:
            values = source.read(index)
            fields = {f: cells_of(values[f], types[f]) for f in values if f in types}
        except BadRecord as bad:
            return replace(self.fail(bad.code, bad.reason, n), label=bad.label, record=name)
        except SourceError as error:   # a server that can't be reached makes no record bad: the run ends
            raise replace(self.fail(error.code, error.title, n), notes=error.notes) from None
        wrong = _sizes_differ(n, fields)
        return replace(self.fail("E0803", wrong, n), record=name) if wrong else Record(fields, id, index, name)

    # --- several streams --------------------------------------------------------------------------

    def _mix(self, n: Node, turn: int) -> Iterator[Record]:
        """In turns, or by weights: the choice at place p is a draw of id p. A branch's number joins the ids of its records."""
        until, key = n["until"], random.draw_key(self.program.seed or 0, n["key"], self.epoch)
        ends = np.cumsum(np.array(n["weights"], np.float64))
        branches = [Again(self, b, turn) for b in n.args]
        place = 0
        while place != until and not (until == "all" and all(b.seen for b in branches)):
            which = place % len(branches)
            if n["weights"]:
                u = random.DRAWS["uniform"].ref(key, place + (turn << 40), 0, np.float32(0), np.float32(1))
                which = min(int(np.searchsorted(ends, float(u), "right")), len(branches) - 1)
            if until == "first" and branches[which].seen:
                return
            r = next(branches[which], None)
            if r is None:
                return
            yield replace(r, id=child(r.id, which))
            place += 1

    def _zip(self, n: Node, turn: int) -> Iterator[Record]:
        """Side by side until the first stream ends; the others repeat, newly shuffled."""
        first, *others = n.args
        repeated = [Again(self, b, turn) for b in others]
        for r in self.records(first, turn):
            beside = [next(b, None) for b in repeated]
            if None in beside:
                return
            rows = [r, *(b for b in beside if b is not None)]
            fields = {f"{name}.{k}": v for name, row in zip(n["names"], rows, strict=True) for k, v in row.fields.items()}
            yield replace(r, fields=fields)

    def _sample(self, n: Node, turn: int) -> Iterator[Record]:
        """One record of the other stream (or `times` of them), chosen by a draw, beside each record."""
        stream, other = n.args
        count, reached = self._reached(other)
        key, draw = random.draw_key(self.program.seed or 0, n["path"], self.epoch), random.DRAWS["integers"]
        for r in self.records(stream, turn):
            if not count:
                raise self.fail("E0804", "`sample` of a pipeline without records", n, r)
            chosen = [reached(int(draw.ref(key, r.id, k, np.int64(0), np.int64(count)))) for k in range(max(1, n["times"]))]
            found = chosen[0].fields
            if n["times"]:
                found = {k: stack([c.fields[k] for c in chosen], len(chosen), False) for k in found}
            yield replace(r, fields={**r.fields, **{f"{n['name']}.{k}": v for k, v in found.items()}})


    def _reached(self, n: Node) -> tuple[int, Callable[[int], Record]]:
        """How many records a stream has, and any one of them; where nothing changes their order, only it is read."""
        start = n.args[0] if n.op == "map" else n
        if start.op != "source":
            before, self.start = self.start, 0
            listed = list(self.records(n))
            self.start = before
            return len(listed), listed.__getitem__

        def read(index: int) -> Record:
            r = self._read(start, index)
            if isinstance(r, DataError):
                raise replace(r, position=index)
            try:
                made = self._through(n, (), {}, replace(r, id=child(r.id, 0)))
            except DataError as error:
                raise replace(error, record=r.name, epoch=self.epoch, position=index) from None
            assert made is not None   # no condition stands here
            return made

        return len(self.source(start)), read


def _sizes_differ(n: Node, fields: Mapping[str, Cells]) -> str:
    """What is wrong with the sizes of a source record, if anything is: a name of the schema has one size, a number is that."""
    known: dict[str, int] = {}
    for name, _, text in n["columns"]:
        dims = [d.strip() for d in text.partition("[")[2].rstrip("]").split(",") if d.strip()]
        for dim, size in zip(dims, np.shape(fields[name].values) if name in fields else (), strict=False):
            wanted = int(dim) if dim.isdigit() else known.setdefault(dim, size)
            if dim != "_" and size != wanted:
                return f"a size of `{name}` is {size}, not {wanted}"
    return ""


class Again:
    """A stream's records again and again, each time newly shuffled; `seen`: all of them have passed once."""

    def __init__(self, run: Run, stream: Node, turn: int):
        self.run, self.stream, self.turn = run, stream, turn << 16
        self.rest = run.records(stream, self.turn)
        self.ahead = next(self.rest, None)

    @property
    def seen(self) -> bool:
        return self.turn & 0xFFFF > 0 or self.ahead is None

    def __iter__(self) -> Again:
        return self

    def __next__(self) -> Record:
        if self.ahead is None:
            self.turn += 1
            self.rest = self.run.records(self.stream, self.turn)
            self.ahead = next(self.rest, None)
        if self.ahead is None:
            raise StopIteration
        record, self.ahead = self.ahead, next(self.rest, None)
        return record
