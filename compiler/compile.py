"""From a program's text to a plan that runs: check, passes, cut, kernels, machine code.

An unchanged program isn't compiled again: its plan is kept in the user's cache beside its kernels.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..dsl.problems import PipeError, Problem, Span
from ..dsl.types import Type
from ..runtime import plan as plans
from ..runtime.inputs import reachable
from ..runtime.plan import Column, Plan
from .cut import BY, STARTS, Cut, Section, column_dims, cut, sections
from .deep import deep
from .graph import Node, Program, node, walk
from .lines import Lines, placed
from .loops import Kernel
from .retype import Checked

if TYPE_CHECKING:
    from .lower import Told
    from .widen import Widening

Spans = dict[Node, tuple[Span, ...]]
Pass = Callable[[Node, Spans], Node]


def passes(on_device: bool = False, told: list[Widening] | None = None) -> tuple[tuple[str, Pass], ...]:
    """The passes over the graph, in order. Each can be left out by name and changes no value.

    A pass gets the places that nodes come from and adds those of the nodes it makes. `on_device`, `told`: see `widen`.
    """
    from .fuse import fuse
    from .lift import lift_filters
    from .prune import prune
    from .regions import decode_regions
    from .simplify import simplify
    from .tabulate import tabulate
    from .widen import widen

    return (("simplify", simplify), ("prune", prune), ("lift_filters", lift_filters),
            ("decode_regions", decode_regions), ("fuse", fuse), ("tabulate", tabulate),
            ("cut", partial(widen, on_device=on_device, told=told)))


def pass_names() -> tuple[str, ...]:
    """The names of those that can be left out: the passes over the graph, and `place`, which gives a device its kernels."""
    return (*(name for name, _ in passes()), "place")


def transformed(emit: Node, without: Sequence[str] = (), until: str | None = None,
                spans: Spans | None = None, on_device: bool = False, told: list[Widening] | None = None) -> Node:
    """`emit` after the passes, up to and including `until`, leaving out those named in `without`.

    `spans` is kept up to date. A pass that changes what leaves the program is an error of ours, found here.
    """
    for name, apply in passes(on_device, told):
        if name not in without:
            before, emit = emit, apply(emit, {} if spans is None else spans)
            if delivered(emit) != delivered(before):
                raise AssertionError(f"pass {name} changed what the program delivers")
        if name == until:
            break
    return emit


def delivered(emit: Node) -> tuple[tuple[str, str, bool, int], ...]:
    """Name, dtype, `?` and number of dimensions of every field that leaves."""
    return tuple((name, t.dtype, t.missing, t.rank) for name, t in emit.type.parts)


@dataclass(frozen=True)
class Compiled:
    """A plan without machine code, and the kernels it needs; `emit` after the passes, and for each frame (`above0` …) what
    its steps compute."""

    plan: Plan
    kernels: tuple[Kernel, ...]
    program: Program
    told: dict[str, Told]
    parts: Cut
    widenings: tuple[Widening, ...]      # what `cut` moved across the ring, and what it thought of


def lowered(program: Program, without: Sequence[str] = (), untrusted: Checked | None = None,
            on_device: bool = False) -> Compiled:
    """The plan of a checked program. `untrusted`: its graph comes from anywhere, and this is what `retype` found.
    `on_device`: it is for loaders that ask for a device. Raises PipeError E0513 for what can't be compiled yet."""
    try:
        return deep(partial(_lowered, program, without, untrusted, on_device))
    except RecursionError:
        raise PipeError((Problem(
            "E0513", "values of this program are computed through too many steps, each from the one before",
            Span(program.path, 0, 0), notes=("a chain of some 600 lines is compiled",)),), dict(program.texts)) from None


def _lowered(program: Program, without: Sequence[str], untrusted: Checked | None, on_device: bool) -> Compiled:
    from .graphtext import print_graph
    from .harden import checked, guarded
    from .mentioned import mentioned

    spans = placed(program.emit, program.spans, Lines(program.texts))
    thought: list[Widening] = []
    emit = transformed(program.emit if untrusted is None else checked(program.emit, untrusted), without, spans=spans,
                       on_device=on_device, told=thought)
    if untrusted is not None:
        emit = guarded(emit)
    _carry_stages(program.emit, emit, spans)
    parts = cut(emit, batches="cut" not in without)
    lowering = _Lowering(replace(program, emit=emit, spans=spans))
    above = lowering.chain("above", parts.above)
    before = len(lowering.kernels)
    below = lowering.below(parts)
    params = tuple(plans.Param(p.name, p.type.dtype, p.value, p.help, p.open) for p in program.params)
    files = mentioned(program.emit)
    text = print_graph(program.emit)   # before the passes: what they do is no part of what the program means
    told = "\0".join([text, str(program.seed), *(f"{p.name}={p.value!r}" for p in params if not p.open), *files.values()])
    plan = Plan(
        name=program.name, path=program.path, seed=program.seed, params=params, above=above, below=below,
        rows=_columns(parts.rows), emit=_columns(dict(emit.args[0].type.parts)), kernels=(),
        texts=dict(program.texts), fingerprint=hashlib.blake2b(told.encode(), digest_size=16).hexdigest(), files=files,
        device=() if "place" in without else _for_device(lowering.kernels[before:]), for_device=on_device)
    return Compiled(plan, tuple(lowering.kernels), lowering.program, lowering.told, parts, tuple(thought))


def _for_device(below: Sequence[Kernel]) -> tuple[plans.DeviceKernel, ...]:
    """Kernels of the lines below `share` as CUDA C; those that compute a batch's size stay on the CPU."""
    wanted = [k for k in below if "_n_" not in k.name]
    if not wanted:
        return ()
    from .emit_cuda import device_kernel

    return tuple(map(device_kernel, wanted))


def _carry_stages(before: Node, after: Node, spans: Spans) -> None:
    """Stages that a pass made anew stand where those they replace stood."""
    old, new = ([n for n in walk(emit) if n.op in STARTS] for emit in (before, after))
    for op in {n.op for n in new}:
        were, are = ([n for n in nodes if n.op == op] for nodes in (old, new))
        if len(were) == len(are):
            for made, meant in zip(are, were, strict=True):
                if made not in spans and meant in spans:
                    spans[made] = spans[meant]


def _columns(fields: Mapping[str, Type]) -> tuple[Column, ...]:
    return tuple(Column(name, t.dtype, column_dims(t), t.missing) for name, t in fields.items())


class _Lowering:
    """Lowers segments and collects their kernels."""

    def __init__(self, program: Program):
        self.program = program
        self.kernels: list[Kernel] = []
        self.told: dict[str, Told] = {}

    def segment(self, name: str, section: Section) -> plans.Segment:
        requires = [(s.op, s.args[1]) for s in section.stages if s.op in ("where", "check")]
        program = self._frame(name, section.outputs, requires)
        self.told[name].start, self.told[name].stages = section.start, section.stages
        return plans.Segment(
            start=self._start(name, section), program=program,
            orders=tuple(_order(s) for s in section.stages
                         if s.op in ("shuffle", "repeat", "shard", "balance") or _early(s, section)),
            takes=tuple((_before(s, section), _int(s.args[1])) for s in section.stages
                        if s.op == "take" and not _early(s, section)),
            at_most=next((float(s["at_most"]) for s in section.stages if s.op == "skip_bad"), None))

    def chain(self, name: str, listed: Sequence[Section]) -> tuple[plans.Segment, ...]:
        """Segments one after the other. What is permuted must be records that can be read at any place."""
        chain = tuple(self.segment(f"{name}{i}", p) for i, p in enumerate(listed))
        reached = reachable(chain)
        for k, section in enumerate(listed):
            for stage in section.stages:
                if stage.op == "balance" and section.kind != "source":
                    raise self._not_yet(stage, f"`balance` below `{section.kind}` checks, but doesn't run yet")
                if stage.op == "shuffle" and not stage["window"] and k >= reached:
                    raise self._not_yet(stage, "`shuffle` of records that can't be read at any place checks, but doesn't run yet",
                                        "`shuffle(window=10_000)` permutes inside blocks, and runs")
        return chain

    def below(self, parts: Cut) -> tuple[plans.Segment, ...]:
        """The consumer's segments: what reads the ring comes first."""
        listed = list(parts.below)
        share = next((p.start for p in listed if p.kind == "share"), None)
        told = share is not None and bool(share.get("end"))
        first = plans.Start("ring", {"end": share["end"], "span": self._span(share)} if share is not None and told else {})
        if listed and listed[0].kind == "share":
            section = listed.pop(0)
            opened = self.segment("below0", section)
            head = plans.Segment(first, opened.program, opened.orders, opened.takes)
        else:
            handed_on = {n: node("field", type=t, name=n) for n, t in parts.rows.items()}
            head = plans.Segment(first, self._frame("below0", handed_on, []))
        return (head, *(self.segment(f"below{i}", p) for i, p in enumerate(listed, 1)))

    def _frame(self, name: str, outputs: dict[str, Node], requires: list[tuple[str, Node]]) -> plans.Program:
        from .lower import Told, Unsupported, lower_frame

        told = self.told[name] = Told()
        try:
            program, kernels = lower_frame(name, outputs, requires, self.program.spans, told)
        except Unsupported as u:
            raise self._not_yet(u.node, u.title, "`pipec run --interpret` runs it, slowly") from None
        self.kernels += kernels
        return program

    def _start(self, name: str, section: Section) -> plans.Start:
        start = section.start
        match start.op:
            case "source":
                options = {"kind": start["kind"], "paths": start["paths"], "columns": start["columns"],
                           "options": start["options"], "span": self._span(start),
                           "columns_spans": column_spans(self.program, start)}
                return plans.Start("source", options)
            case "each":
                return plans.Start("each", {"fields": start["fields"]})
            case "batch":
                return self._batch(name, start)
            case "window":
                padded = tuple(n for n, t in start.type.parts if t.missing) if start["pad"] else ()
                return plans.Start("window", {"rest": start["rest"], "padded": padded, "span": self._span(start)},
                                   self._numbers(name, start, {"n": start.args[1], "stride": start.args[2]}))
            case "pack":
                options = {"fields": start["fields"], "open": start["open"], "by": _by(start.args[2]), "span": self._span(start)}
                return plans.Start("pack", options, self._numbers(name, start, {"n": start.args[1]}))
            case "mix" | "zip":
                branches = tuple(self.chain(f"{name}_{start.op}{k}", sections(b)) for k, b in enumerate(start.args))
                shared = ("weights", "until", "key") if start.op == "mix" else ("names",)
                return plans.Start(start.op, {k: start[k] for k in shared} | {"span": self._span(start)}, inputs=branches)
            case "share":
                return plans.Start("share")
            case "sample":
                inner = self.chain(f"{name}_{start['name']}", sections(start.args[1]))
                return plans.Start("sample", {k: start[k] for k in ("name", "path", "times")}, inputs=(inner,))
        raise ValueError(f"{start.op} starts no frame")

    def _not_yet(self, stage: Node, title: str, *notes: str) -> PipeError:
        span = _first(self.program.spans.get(stage, ())) or Span(self.program.path, 0, 0)
        return PipeError((Problem("E0513", title, span, notes=notes),), dict(self.program.texts))

    def _at_least_one(self, stage: Node, name: str, value: Node) -> None:
        """E0503 where a param makes a stage's number too small; other expressions are judged when an epoch starts."""
        param = next((p for p in self.program.params if value.op == "param" and p.name == value["name"]), None)
        if param is not None and param.value is not None and param.value < 1:
            span = _first(self.program.spans.get(stage, ())) or param.span
            raise PipeError((Problem("E0503", f"`{name}` of `{stage.op}` must be at least 1", span,
                                     f"`{param.name}` is {param.value}"),), dict(self.program.texts))

    def _batch(self, name: str, start: Node) -> plans.Start:
        given = dict(zip(start["has"], start.args[1:], strict=True))
        options: dict[str, Any] = {"has": start["has"], "whole": start["whole"], "edges": start["edges"],
                                   "span": self._span(start)}
        before = dict(start.args[0].type.parts)
        if start["pad"]:
            options["padded"] = tuple(n for n, t in start.type.parts if n in before and t.missing and not before[n].missing)
        if "by" in given:
            options["by"] = _by(given["by"])
        return plans.Start("batch", options, self._numbers(name, start, {n: v for n, v in given.items() if n != "by"}))

    def _numbers(self, name: str, start: Node, numbers: dict[str, Node]) -> plans.Program:
        """What computes a stage's numbers."""
        for number, value in numbers.items():
            self._at_least_one(start, number, value)
        return self._frame(f"{name}_n", numbers, [])

    def _span(self, stage: Node) -> tuple[str, int, int] | None:
        return _span(self.program.spans.get(stage, ()))


def column_spans(program: Program, source: Node) -> dict[str, tuple[str, int, int]]:
    """Where the schema declares each field that a source gives."""
    types = dict(source.type.parts)
    named = {n["name"]: _span(spans) for n, spans in reversed(program.spans.items())
             if n.op == "field" and n["name"] in types and n.type.dtype == types[n["name"]].dtype}
    return {name: span for name, span in named.items() if span is not None}


def _first(spans: Sequence[Span]) -> Span | None:
    return spans[0] if spans else None


def _span(spans: Sequence[Span]) -> tuple[str, int, int] | None:
    return (spans[0].file, spans[0].start, spans[0].end) if spans else None


def _int(n: Node) -> int:
    return int(n["value"])


def _by(value: Node) -> str:
    """The field that holds the length by which records are put together."""
    return BY if value.op != "field" else str(value["name"])


def _early(stage: Node, section: Section) -> bool:
    """A `take` that no condition stands before counts positions."""
    return stage.op == "take" and _before(stage, section) == 0


def _before(stage: Node, section: Section) -> int:
    """How many conditions that are judged stand before a stage: what is always true has no step."""
    place = section.stages.index(stage)
    judged = (s.args[1] for s in section.stages[:place] if s.op in ("where", "check"))
    return sum(1 for condition in judged if not (condition.op == "const" and condition["value"]))


def _order(stage: Node) -> plans.Order:
    match stage.op:
        case "shuffle":
            return plans.Order("shuffle", {k: stage[k] for k in ("chunk", "mix", "window", "key")})
        case "take":
            return plans.Order("take", {"n": _int(stage.args[1])})
        case "repeat":
            return plans.Order("repeat", {"n": _int(stage.args[1]) if len(stage.args) > 1 else 0})
        case "balance":
            return plans.Order("balance", {"field": stage["field"], "key": stage["key"]})
    return plans.Order(stage.op)


def plan_for(path: str, overrides: Mapping[str, Any] | None = None, run: str | None = None,
             without: Sequence[str] = (), on_device: bool = False) -> Plan:
    """The plan of a program file, its machine code in the compile cache. `on_device`: for loaders that ask for a device.

    Raises PipeError where the program has mistakes.
    """
    from ..runtime import plancache

    overrides = dict(overrides or {})
    if not without:
        kept = plancache.find(path, overrides, run, on_device)
        if kept is not None:
            return kept
    from .check import check
    from .native import build

    program = check(path, overrides, run)
    compiled = lowered(program, without, on_device=on_device)
    plan = _with_kernels(compiled.plan, build(compiled.kernels))
    if not without:
        plancache.keep(path, overrides, run, plan, on_device)
    return plan


def _with_kernels(plan: Plan, kernels: Sequence[plans.KernelText]) -> Plan:
    import msgspec

    return msgspec.structs.replace(plan, kernels=tuple(kernels))


