"""What a plan is, for people: a compiled program (and a trial run of it) goes in, rows, fusions and borders come out."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..runtime import plan as plans
from ..runtime.below import one_by_one
from ..runtime.clock import READ, Clock
from ..runtime.engine import UNKNOWN_ARRAY, UNKNOWN_BYTES
from ..runtime.inputs import reachable
from ..runtime.streams import BYTES as ROWS_BYTES
from ..runtime.streams import MOST_AT_ONCE
from ..runtime.trial import Trial
from .borders import Border, borders, column_bytes, frontier, type_bytes
from .compile import Compiled
from .costs import BYTE, CALL, CONDITION, FUNCTION, JUDGED, LENGTH, STEP, TABLES, Sizes, call_ns, kernel_ns, read_ns
from .fuse import explained
from .graph import Node
from .lines import Line, Lines, lines_of
from .lower import Told
from .place import placed
from .widen import Widening

QUIET = frozenset(("field", "const", "var", "param", "epoch", "count", "extent", "weight"))


@dataclass(frozen=True)
class Row:
    """One step: the lines it does, and what it costs for one record. `bytes` are those it writes."""

    name: str
    kind: str                       # "read" | "kernel" | "call" | "extern" | "condition" | "frame"
    lines: tuple[Line, ...]
    device: str
    ns: float
    bytes: float
    assumed: bool                   # are sizes guessed
    seen_ns: float | None = None
    seen_bytes: float | None = None
    kept: tuple[str, ...] = ()      # what lies in memory between loops of the kernel, and why


@dataclass(frozen=True)
class Part:
    """The steps of one frame. `records`: of how many records it is made, where that is known."""

    name: str
    title: str
    place: str                      # "above" | "below"
    rows: tuple[Row, ...]
    records: int = 1


@dataclass(frozen=True)
class Report:
    name: str
    path: str
    parts: tuple[Part, ...]
    borders: tuple[Border, ...]
    fused: tuple[str, ...]
    apart: tuple[str, ...]          # what wasn't fused, and why
    cached: tuple[tuple[str, Line | None, float, bool], ...]   # (what, line, bytes, assumed) of the part without draws
    notes: tuple[str, ...] = ()
    measured: int = 0               # records that the trial ran


@dataclass
class _Maker:
    compiled: Compiled
    trial: Trial | None
    fused: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    unit: str = "each record"

    def __post_init__(self) -> None:
        self.program = self.compiled.program
        self.lines = Lines(self.program.texts)
        self.kernels = {k.name: k for k in self.compiled.kernels}

    def parts(self) -> list[Part]:
        found, records = [], 1
        for name, told in self.compiled.told.items():
            if told.program is None or name.endswith("_n"):
                continue
            records = self.records(told, records) if "_" not in name else 1
            rows = self.rows(name, told, records)
            if rows:
                found.append(Part(name, self.title(name, told), "below" if name.startswith("below") else "above", rows, records))
        order = list(self.compiled.told)   # branches stand before the frame that they are put together for
        found.sort(key=lambda p: (p.place, p.name.split("_")[0], "_" not in p.name, order.index(p.name)))
        return found

    def title(self, name: str, told: Told) -> str:
        kind = told.start.op if told.start is not None else "ring"
        branch = f" in a branch of {name.split('_')[1].rstrip('0123456789')}" if "_" in name else ""
        if kind in ("batch", "window", "pack"):
            self.unit = f"each {kind}"
        elif kind not in ("share", "ring") or name == "below0":
            self.unit = {"each": "each part of a record", "source": "each record"}.get(kind, self.unit)
        return self.unit + branch

    def records(self, told: Told, before: int) -> int:
        """Of how many records a frame is made, as far as the program says."""
        start = told.start
        if start is None or start.op != "batch":
            return before
        size = dict(zip(start["has"], start.args[1:], strict=True)).get("n")
        value = None if size is None else size["value"] if size.op == "const" else self.param(size)
        return before * max(1, int(value or 1))

    def param(self, n: Node) -> int | None:
        return next((p.value for p in self.program.params if n.op == "param" and p.name == n["name"]), None)

    def rows(self, name: str, told: Told, records: int) -> tuple[Row, ...]:
        program = told.program
        assert program is not None
        clock = self.trial.clock(program) if self.trial is not None else None
        chunk = self.chunk(name, told, program, records)
        seen = {s.name: size for s in program.slots if clock is not None and (size := clock.each(s.name)) is not None}
        shapes = {name: shape for name in seen if clock is not None and (shape := clock.shape(name)) is not None}
        sizes = Sizes(program, seen, shapes)
        guessed = Sizes(program) if self.trial is None else sizes   # measured: how far off is the model, sizes apart
        conditions = [s for s in told.stages if s.op in ("where", "check")]
        given = {c: self.lines.first(self.program.spans.get(s, ())) for c, s in zip(told.conditions, conditions)}
        of = lines_of([*told.outputs.values(), *told.conditions], self.program.spans, self.lines,
                      {c: line for c, line in given.items() if line is not None})
        why = explained(list(told.outputs.values()))
        rows = [self.start(told, program, guessed, clock, records)]
        for number, step in enumerate(program.steps):
            nodes = told.steps.get(number, ())
            lines = tuple(sorted({of[n] for n in nodes if n in of and n.op not in QUIET}))
            kept = tuple(f"{_named(n, of)}: {why.get(n) or _own(n)}" for n in told.stored.get(number, ()))
            rows.append(self.step(step, lines, guessed, sizes, clock, number, records, chunk, kept))
        self.fusions(name, [r for r in rows if r.lines], records)
        return tuple(r for r in rows if r.lines or r.kind != "frame")

    def chunk(self, name: str, told: Told, program: plans.Program, records: int) -> int:
        """How many frames a step is run over at a time."""
        place, _, branch = name.partition("_")
        if place.startswith("below"):
            apart = one_by_one(self.compiled.plan, lambda step, _: isinstance(step, plans.RunKernel))
            return self.batch if place == "below0" and apart is None else 1
        if not branch and int(place.removeprefix("above")) >= reachable(self.compiled.plan.above):
            return 1
        inputs = [s for s in program.slots if s.name in {slot for _, slot in program.inputs}]
        table = told.start is not None and told.start.op == "source" and told.start["kind"] in TABLES
        heavy = (not table and any(s.dtype in LENGTH for s in inputs)) or any(
            not isinstance(s, plans.RunKernel | plans.Require) for s in program.steps)
        rows = sum(UNKNOWN_BYTES if guess and c.dtype == "bytes" else UNKNOWN_ARRAY if guess else size
                   for c in self.compiled.plan.rows for size, guess in (column_bytes(c),))
        return 8 if heavy else int(min(max(ROWS_BYTES // max(1.0, rows), 1), MOST_AT_ONCE))

    @property
    def batch(self) -> int:
        """Records of a batch, where the program says."""
        records = 1
        for name, told in self.compiled.told.items():
            records = self.records(told, records) if "_" not in name else records
        return records

    def start(self, told: Told, program: plans.Program, sizes: Sizes, clock: Clock | None, records: int) -> Row:
        start = told.start
        stages = [*([start] if start is not None else []), *(s for s in told.stages if s.op not in ("where", "check"))]
        lines = sorted({line for s in stages if (line := self.lines.first(self.program.spans.get(s, ()))) is not None})
        if start is None or start.op != "source":
            return Row(start.op if start is not None else "ring", "frame", tuple(lines), "cpu", 0.0, 0.0, False)
        size = sum(sizes.bytes(slot) for _, slot in program.inputs)
        assumed = any(sizes.assumed(slot) for _, slot in program.inputs)
        ns = read_ns(start["kind"], [sizes.slots[slot] for _, slot in program.inputs], sizes)
        seen_ns = seen_bytes = None
        if clock is not None and (spent := clock.ns(READ)) is not None:
            seen_ns = spent / records
            seen_bytes = sum(clock.each(slot) or 0.0 for _, slot in program.inputs)
        return Row(f"read {start['kind']}", "read", tuple(lines), "cpu", ns, size, assumed, seen_ns, seen_bytes)

    def step(self, step: plans.Step, lines: tuple[Line, ...], guessed: Sizes, sizes: Sizes, clock: Clock | None, number: int,
             records: int, chunk: int, kept: tuple[str, ...]) -> Row:
        outputs: tuple[str, ...] = ()
        match step:
            case plans.RunKernel():
                name, kind, outputs = step.kernel, "kernel", step.outputs
                params = {f"param.{p.name}": p.value for p in self.program.params if isinstance(p.value, int | float)}
                slots = {a.slot for a in step.args if a.kind == "data" and a.slot in guessed.slots and guessed.slots[a.slot].dims}
                ns = kernel_ns(self.kernels[step.kernel], guessed, {**params, "@count": records})
                ns += BYTE * sum(map(guessed.bytes, slots))
            case plans.CallOperator():
                name, kind, outputs = step.op, "call", step.outputs
                ns = call_ns(step.op, [guessed.lengths(a) for a in step.args], [guessed.lengths(o) for o in step.outputs])
            case plans.CallEach():
                name, kind, outputs = step.op, "call", (step.output,)
                count = 1.0
                for d in guessed.dims(step.output):
                    count *= d
                ns = CALL / 8 * count
            case plans.CallExtern():
                name, kind, outputs, ns = step.target, "extern", step.outputs, FUNCTION
            case plans.Require():
                name, kind, ns = step.kind, "condition", CONDITION + JUDGED / chunk
        size = sum(guessed.bytes(o) for o in outputs)
        assumed = any(guessed.assumed(s) for s in (*outputs, *(getattr(a, "slot", a) for a in getattr(step, "args", ()))))
        spent = clock.ns(number) if clock is not None else None
        seen = None if spent is None else sum(sizes.bytes(o) for o in outputs) / records
        ns += STEP / chunk if kind == "kernel" else 0.0
        return Row(name, kind, lines, "cpu", ns / records, size / records, assumed, None if spent is None else spent / records,
                   seen, kept)

    def fusions(self, name: str, rows: Sequence[Row], records: int) -> None:
        steps = [r for r in rows if r.kind in ("kernel", "call", "extern")]
        for row in steps:
            if row.kind == "kernel" and len(row.lines) > 1:
                self.fused.append(f"{_places(row.lines)} are one kernel, {row.name}")
            self.apart += [f"{row.name} keeps {told}" for told in row.kept]
            if row.kind == "call":
                self.apart.append(f"{row.name} ({_places(row.lines)}) is a library call: what it reads and gives lies in memory")
            if row.kind == "extern":
                self.apart.append(f"{row.name} ({_places(row.lines)}) is your own function: the compiler can't look into it")


def _in_the_producer(plan: plans.Plan, parts: Sequence[Part]) -> list[str]:
    """Calls of the user's Python above `share` that worker processes don't run."""
    first = reachable(plan.above)
    late = {f"above{k}" for k in range(first, len(plan.above))}
    return [f"{row.name} ({_places(row.lines)}) runs in the producer's own process, one call after the other: worker processes "
            "run the lines above the first `batch`, `each` or `pack`"
            for part in parts if part.name in late for row in part.rows if row.kind == "extern"]


def _places(lines: Sequence[Line]) -> str:
    if not lines:
        return "no line of a pipeline"
    numbers = [line.number for line in lines]
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    run = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2
    return f"lines {numbers[0]}–{numbers[-1]}" if run else f"lines {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _named(n: Node, of: dict[Node, Line]) -> str:
    line = f" of line {of[n].number}" if n in of else ""
    what = f"the result of {n['op']}" if n.op == "call" else "a draw of many numbers" if n.op == "draw" else "a tensor"
    return what + line + " in memory"


def _own(n: Node) -> str:
    if n.op == "call":
        return "it has loops of its own"
    if n.op == "part":
        return "one of several results of an operator"
    return "all of it is asked for at once"


def _widened(w: Widening, line: Line | None) -> str:
    """What `cut` did with a column that could cross the ring narrower, and by which figures."""
    where = "" if line is None else f", made by line {line.number},"
    figures = f"that costs each consumer about {w.costs:,.0f} ns a record and saves it {w.saves:,.0f}"
    if w.moved:
        return (f"{w.column}{where} crosses the ring as {w.narrow:,.0f} bytes instead of {w.wide:,.0f} and is widened "
                f"below share(): {figures}; `--without cut` leaves it above")
    return (f"{w.column}{where} crosses the ring as {w.wide:,.0f} bytes, not as the {w.narrow:,.0f} it is made of: widened below "
            f"share(), {figures}")


def report(compiled: Compiled, trial: Trial | None = None, device: str | None = None,
           place: Mapping[str, str] | None = None, notes: Sequence[str] = ()) -> Report:
    """What there is to say about a plan; with `trial`, also what its steps cost when it ran.

    `device`, `place`: what the loaders will ask for. `notes` that the caller has stand first.
    """
    maker = _Maker(compiled, trial)
    placement = placed(compiled.plan, device, place)
    devices = {f"below{i}": d for i, d in enumerate(placement.devices)}
    parts = [replace(p, rows=tuple(replace(r, device=devices.get(p.name, "cpu")) for r in p.rows)) for p in maker.parts()]
    records = max((p.records for p in parts), default=1)
    read = None
    for told in compiled.told.values():
        clock = trial.clock(told.program) if trial is not None else None
        if clock is not None and told.start is not None and told.start.op == "source" and told.program is not None:
            read = (read or {}) | {f"{id(told)}{slot}": clock.each(slot) or 0.0 for _, slot in told.program.inputs}
    found = borders(compiled.plan, read, trial.row_bytes if trial is not None and trial.rows else None, records,
                    None if device in (None, "cpu") else placement.devices)
    cached: list[tuple[str, Line | None, float, bool]] = []
    notes = [*notes, *placement.reasons, *_in_the_producer(compiled.plan, parts)]
    first = compiled.parts.above[:1]
    if first and first[0].kind == "source":
        of = lines_of(list(first[0].outputs.values()), compiled.program.spans, maker.lines)
        for name, n in frontier(first[0].outputs).items():
            size, assumed = type_bytes(n.type)
            cached.append((name, of.get(n), size, assumed))
    of = lines_of([w.value for w in compiled.widenings], compiled.program.spans, maker.lines)
    notes += [_widened(w, of.get(w.value)) for w in compiled.widenings]
    return Report(compiled.plan.name, compiled.plan.path, tuple(parts), tuple(found), tuple(dict.fromkeys(maker.fused)),
                  tuple(dict.fromkeys(maker.apart)), tuple(cached), tuple(notes),
                  measured=trial.rows if trial is not None else 0)
