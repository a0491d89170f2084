"""Pipelines that another one reads: `from other`, `mix`, `zip` and `x ~ sample(p)`."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from ..dsl.types import I64, Type
from ..runtime.settings import ParamError
from . import bounds
from .arguments import FROM_STAGES, added, fits
from .elaborate import python_value
from .frames import Dim, Frame, entered, field_node, gathered, leaves, mapped, stream_type, varies
from .graph import Node, node
from .names import Declared
from .params import from_default
from .scope import Scope, Value, unknown
from .words import similar, type_text

if TYPE_CHECKING:
    from .streams import PipelineBuilder, Pipelines


@dataclass(frozen=True)
class Branch:
    """One pipeline of a `mix` or `zip`: its name there, the expression, the frame at its end after a map."""

    name: str
    expr: tree.Expr
    frame: Frame


class Branches:
    """The `from` lines and draws of one pipeline that read other pipelines."""

    def __init__(self, builder: PipelineBuilder):
        self.builder, self.elaborator, self.context = builder, builder.elaborator, builder.context

    def other(self, line: tree.From, scope: Scope) -> Frame | None:
        """`from other`: its records as they are."""
        name = line.source.id if isinstance(line.source, tree.Name) else line.source.fn
        if line.schema is not None:
            span = line.schema_span or line.span
            self.builder.problem("E0505", f"`{name}` is a pipeline, and its fields are known", span, "", (), (), (
                Fix("leave the schema out", (Edit(Span(span.file, line.source.span.end, span.end), ""),)),))
        frame = self._pipeline(line.source, scope, f"{scope.path}/{name}")
        if frame is None:
            return None
        fields = dict(frame.fields)
        self._free(fields, line.source.span)
        own = replace(frame.scope, file=scope.file, names={**scope.names, **fields}, dims={}, path=scope.path,
                      drawn=scope.drawn, below_share=False)
        return replace(frame, scope=own, hidden={}, arguments=dict(self.builder.arguments))

    def _free(self, fields: dict[str, Value], span: Span) -> None:
        """Fields that come from elsewhere may not take the names of params, lets and pipelines of this file."""
        for name in fields:
            owner = self.builder.owner(name)
            if owner is not None:
                self.builder.taken_name(name, span, owner, False)

    def _pipeline(self, e: tree.Expr, scope: Scope, path: str) -> Frame | None:
        """The frame of a pipeline that an expression names."""
        name = e.id if isinstance(e, tree.Name) else e.fn if isinstance(e, tree.Call) else None
        span = e.fn_span if isinstance(e, tree.Call) else e.span
        declared = self.builder.module.scope.pipelines.get(name) if name else None
        if declared is None:
            if name is None or (self.builder.module.path, name) not in self.builder.all.constants.files.lost:
                self._no_pipeline(name, span)
            return None
        if declared.declaration.name in self.builder.all.bad:
            return None
        call = e if isinstance(e, tree.Call) else tree.Call(name or "", span, (), span)
        arguments = arguments_of(self.builder.all, declared, call, scope)
        return None if arguments is None else self.builder.all.branch(declared, arguments, path)

    def _no_pipeline(self, name: str | None, span: Span) -> None:
        known = list(self.builder.module.scope.pipelines)
        alike = similar(name, known) if name else None
        fixes = (Fix("a pipeline with a similar name exists", (Edit(span, alike),)),) if alike else ()
        title = f"there is no pipeline `{name}`" if name else "a pipeline's name belongs here"
        self.builder.problem("E0101", title, span, "not found", (), (f"pipelines: {', '.join(known)}",), fixes)

    def _branches(self, call: tree.Call, scope: Scope, given: list[tuple[str, str, tree.Argument]]) -> list[Branch] | None:
        """The frames of all branches; `given` are (name, draw-path part, argument)."""
        found = []
        for name, part, argument in given:
            frame = self._pipeline(argument.value, scope, f"{scope.path}/{part}")
            if frame is not None:
                found.append(Branch(name, argument.value, mapped(self.context, frame, argument.span)))
        return found if len(found) == len(given) else None

    def _part(self, e: tree.Expr, place: str) -> str:
        name = e.id if isinstance(e, tree.Name) else e.fn if isinstance(e, tree.Call) else "?"
        return f"{name}.{place}"

    # --- mix ----------------------------------------------------------------------------------------

    def mix(self, line: tree.From, scope: Scope) -> Frame | None:
        call = line.source
        assert isinstance(call, tree.Call)
        streams = [a for a in call.args if a.name is None]
        options = self._options(call, scope)
        given = [(self._part(a.value, str(k)), self._part(a.value, str(k)), a) for k, a in enumerate(streams)]
        branches = self._branches(call, scope, given)
        weights = self._weights(options, len(streams), call)
        until = self._until(options, call)
        if len(streams) < 2:
            self.builder.stages.reader.bad(call.span, "`mix` needs two pipelines or more", "", (
                f"for example: {FROM_STAGES['mix']}",))
            return None
        if branches is None or weights is None or until is None:
            return None
        fields = self._united(branches)
        if fields is None:
            return None
        self._free(fields, call.span)
        key = self.builder.stages.key(_at(branches[0].frame, scope), "mix")
        stream = self.context.made(node(
            "mix", *(b.frame.stream for b in branches), type=stream_type((n, v.type) for n, v in fields.items()),
            names=tuple(b.name for b in branches), weights=weights, until=until, key=key), line.span)
        return self._begun(scope, stream, fields, branches, [("mix", call.span)])

    def _begun(self, scope: Scope, stream: Node, fields: dict[str, Value], branches: list[Branch],
               stages: list[tuple[str, Span]]) -> Frame:
        structured = gathered(fields)
        own = replace(scope, names={**scope.names, **structured}, dims={}, facts=bounds.Facts(), held=[], count=None)
        frame = Frame(stream, own, structured, dict(self.builder.arguments), stages=stages)
        frame.streamed = next((b.frame.streamed for b in branches if b.frame.streamed), None)
        return frame

    def _options(self, call: tree.Call, scope: Scope) -> dict[str, tuple[Any, Span]]:
        options: dict[str, tuple[Any, Span]] = {}
        for argument in call.args:
            if argument.name in ("weights", "until"):
                value = self.elaborator.constant(scope, argument.value)
                options[argument.name] = (value, argument.value.span)
            elif argument.name is not None:
                alike = similar(argument.name, ("weights", "until"))
                at = Span(argument.span.file, argument.span.start, argument.span.start + len(argument.name))
                fixes = (Fix(f"it is called `{alike}` here", (Edit(at, alike),)),) if alike else ()
                self.builder.stages.reader.bad(at, f"`mix` has no argument `{argument.name}`", "not known",
                                               ("its arguments: pipelines, then weights, until",), fixes)
        return options

    def _weights(self, options: dict[str, tuple[Any, Span]], count: int, call: tree.Call) -> tuple[float, ...] | None:
        if "weights" not in options:
            return ()
        value, span = options["weights"]
        bad = self.builder.stages.reader.bad
        if value is None:
            return None
        if not fits("floats", value)[0] or any(w < 0 for w in value) or sum(value) <= 0:
            bad(span, "`weights` of `mix` is a list of numbers, none below 0 and not all 0")
            return None
        if len(value) != count:
            bad(span, f"`mix` has {count} pipelines and {len(value)} weights", "one for each belongs here")
            return None
        total = float(sum(value))
        return tuple(float(w) / total for w in value)

    def _until(self, options: dict[str, tuple[Any, Span]], call: tree.Call) -> str | int | None:
        bad = self.builder.stages.reader.bad
        if "until" not in options:
            bad(call.span, "`mix` needs `until`: where an epoch ends", "not given", (
                '"first": when one of them ends; "all": when all were read once, shorter ones repeat; or a number of records',),
                (Fix("until all were read", (added(call, 'until="all"'),)),))
            return None
        value, span = options["until"]
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value in ("first", "all") or whole:
            return value  # type: ignore[no-any-return]
        if value is not None:
            bad(span, '`until` of `mix` is "first", "all" or a number of records')
        return None

    def _united(self, branches: list[Branch]) -> dict[str, Value] | None:
        """The fields that all branches have alike; E0508 where they differ."""
        flats = [dict(leaves(b.frame.fields)) for b in branches]
        first = flats[0]
        table: dict[tuple[Dim, ...], Dim] = {}
        fields: dict[str, Value] = {}
        for branch, flat in zip(branches[1:], flats[1:], strict=True):
            extra = sorted(flat.keys() ^ first.keys())
            if extra:
                name = extra[0]
                lacks = branches[0] if name not in first else branch
                self._unlike(branch, branches[0], f"the field `{name}` is missing in `{self._text(lacks.expr)}`")
                return None
        for name, value in first.items():
            types = [flat[name].type for flat in flats]
            odd = next((k for k, t in enumerate(types) if (t.dtype, t.rank) != (value.type.dtype, value.type.rank)), None)
            if odd is not None:
                self._types_differ(branches, odd, name, types)
                return None
            dims = []
            for axis, each in enumerate(zip(*(t.dims for t in types), strict=True)):
                if any(isinstance(d, int) and isinstance(each[0], int) and d != each[0] for d in each):
                    odd = next(k for k, d in enumerate(each) if d != each[0])
                    self._types_differ(branches, odd, name, types)
                    return None
                fixed = len(set(each)) == 1 and not varies(each[0])
                extent = node("extent", type=I64, field=name, axis=axis)
                dims.append(each[0] if fixed else table.setdefault(each, extent))
            type = Type(value.type.dtype, tuple(dims), any(t.missing for t in types), all(t.weak for t in types))
            fields[name] = Value(field_node(name, type), type, value.span)
        return fields

    def _types_differ(self, branches: list[Branch], odd: int, name: str, types: list[Type]) -> None:
        a, b = (type_text(branches[k].frame.scope, types[k]) for k in (0, odd))
        self._unlike(branches[odd], branches[0], f"`{name}` is {a} there and {b} here")

    def _unlike(self, branch: Branch, first: Branch, note: str) -> None:
        self.builder.problem("E0508", "pipelines that are mixed must have the same fields", branch.expr.span, "other fields",
                             (Label(first.expr.span, "the first one"),), (
                                 note, "`emit` at a pipeline's end says which fields it gives"))

    def _text(self, e: tree.Expr) -> str:
        return self.context.text(e.span)

    # --- zip ----------------------------------------------------------------------------------------

    def zip(self, line: tree.From, scope: Scope) -> Frame | None:
        call = line.source
        assert isinstance(call, tree.Call)
        loose = [a for a in call.args if a.name is None]
        if loose or len(call.args) < 2:
            fixes = tuple(Fix("name it", (Edit(Span(a.span.file, a.span.start, a.span.start), "first="),))
                          for a in loose[:1] if len(loose) == 1)
            self.builder.stages.reader.bad(
                (loose[0] if loose else call).span, "`zip` takes two pipelines or more, each by a name of its own",
                "has no name" if loose else "", (f"for example: {FROM_STAGES['zip']}; then left.image is a field",), fixes)
            return None
        given = [(a.name or "", self._part(a.value, a.name or ""), a) for a in call.args]
        for name, _, argument in given:
            if self.builder.taken(name):
                owner = self.builder.owner(name)
                assert owner is not None
                at = argument.span.start
                self.builder.taken_name(name, Span(argument.span.file, at, at + len(name)), owner)
                return None
        branches = self._branches(call, scope, given)
        if branches is None:
            return None
        fields: dict[str, Value] = {}
        for branch in branches:
            fields |= renamed(branch.frame, branch.name)
        stream = self.context.made(node(
            "zip", *(b.frame.stream for b in branches), type=stream_type((n, v.type) for n, v in fields.items()),
            names=tuple(b.name for b in branches)), line.span)
        return self._begun(scope, stream, fields, branches, [*branches[0].frame.stages, ("zip", call.span)])

    # --- sample ---------------------------------------------------------------------------------------

    def sample(self, frame: Frame, line: tree.Draw) -> Frame:
        """`x ~ sample(p)`: a record of p beside each record."""
        call = line.call
        lost = replace(frame)
        lost.fields = {**frame.fields, line.name: unknown(line.name_span)}
        lost.scope.names[line.name] = unknown(line.name_span)
        if len(call.args) != 1 or call.args[0].name is not None:
            self.builder.stages.reader.bad(call.span, "`sample` takes one pipeline", "", ("for example: other ~ sample(p)",))
            return lost
        if frame.scope.below_share:
            share = frame.passed("share")
            self.builder.problem("E0507", "`sample` can't stand below `share`", call.fn_span, "reads records of its own",
                                 (Label(share, "lines below run in each trainer"),) if share else ())
            return lost
        times = self._times(frame, line)
        path = f"{frame.scope.path}/{line.name}.sample"
        other = self._pipeline(call.args[0].value, frame.scope, f"{path}/{self._part(call.args[0].value, '')[:-1]}")
        if other is None or times is None or not self._readable(other, call.args[0].value):
            return lost
        if path in frame.scope.drawn:
            self.builder.problem("E0303", f"`{line.name}` is drawn twice in the same way", line.name_span,
                                 "the same values again", (Label(frame.scope.drawn[path], "first here"),), (), (
                                     Fix("give it another name", (Edit(line.name_span, f"{line.name}_2"),)),))
            return lost
        frame.scope.drawn[path] = line.name_span
        frame = mapped(self.context, frame, line.span)
        inside = mapped(self.context, other, line.span)
        added = renamed(inside, line.name, (times,) if times else ())
        if times and any(varies(d) for v in added.values() for d in v.type.dims):
            self.builder.stages.reader.bad(call.span, "several records can be drawn only where every field has one size",
                                           "", ("give the fields one size in the pipeline that is sampled",))
            return lost
        fields = {**dict(leaves(frame.fields)), **added}
        fields = {n: v for n, v in fields.items() if n != line.name}
        every = [*((n, v.type) for n, v in fields.items()), *((n, I64) for n in frame.hidden)]
        stream = self.context.made(node("sample", frame.stream, inside.stream, type=stream_type(every), name=line.name,
                                        path=path, times=times), line.span)
        made = entered(frame, stream, gathered(fields), frame.hidden, frame.scope.dims, frame.conditions)
        return made

    def _times(self, frame: Frame, line: tree.Draw) -> int | None:
        if not line.binders:
            return 0
        binder = line.binders[0]
        reader = self.builder.stages.reader
        if len(line.binders) > 1 or binder.limit is None:
            reader.bad(binder.span, "say how many records to draw", "", ("for example: others ~ [sample(p) for k < 3]",))
            return None
        found = reader.count(frame, "sample", binder.name, binder.limit)
        if found is not None and found.op != "const":
            reader.bad(binder.limit.span, "the number of records drawn must be known when the program is compiled")
            return None
        return int(found["value"]) if found is not None else None

    def _readable(self, other: Frame, e: tree.Expr) -> bool:
        """Can any record of this pipeline be read by its number."""
        blocks = ("skip_bad", "each", "batch", "pack", "mix", "where", "shard", "window", "repeat", "balance")
        chain = []
        n: Node | None = other.stream
        while n is not None and n.op != "source":
            chain.append(n)
            n = n.args[0] if n.args and n.args[0].type.dtype == "stream" else None
        bad = next((s for s in chain if s.op in blocks), None)
        if bad is None and other.streamed is None:
            return True
        where = self.context.spans.get(bad, [None])[0] if bad is not None else other.streamed
        reasons = (Label(where, "leaves its records without numbers of their own"),) if where else ()
        self.builder.problem("E0512", f"`{self._text(e)}` can't be sampled: its records can't be read at random", e.span, "",
                             reasons, ("a pipeline of a source, lines, `check`, `take` and `shuffle` can be",))
        return False


def renamed(frame: Frame, name: str, front: tuple[int, ...] = ()) -> dict[str, Value]:
    """The fields of a frame as parts of `name`."""
    table: dict[Node, Dim] = {}
    out = {}
    for field, value in leaves(frame.fields):
        dims = []
        for axis, dim in enumerate(value.type.dims):
            if isinstance(dim, Node) and varies(dim):
                extent = node("extent", type=I64, field=f"{name}.{field}", axis=axis + len(front))
                dims.append(table.setdefault(dim, extent))
            else:
                dims.append(dim)
        type = replace(value.type, dims=(*front, *dims))
        out[f"{name}.{field}"] = Value(field_node(f"{name}.{field}", type), type, value.span)
    return out


def _at(frame: Frame, scope: Scope) -> Frame:
    return replace(frame, scope=scope)


def arguments_of(pipelines: Pipelines, declared: Declared, call: tree.Call, scope: Scope) -> dict[str, Value] | None:
    """The values of a pipeline's arguments at one use; None where they don't fit (reported, E0117)."""
    formals = declared.declaration.formals
    context, elaborator = pipelines.context, pipelines.elaborator
    names = [f.name for f in formals]
    out: dict[str, Value] = {}
    own = Scope(declared.module.scope, facts=bounds.Facts())
    shape = f"`{call.fn}({', '.join(f'{f.name}: {context.text(f.type.span)}' for f in formals)})`"
    for number, argument in enumerate(call.args):
        name = argument.name or (names[number] if number < len(names) else None)
        if name is None or name not in names or name in out:
            title = f"`{call.fn}` has no argument `{name}`" if name and name not in names else (
                f"`{call.fn}` takes {len(names)} arguments, not {len(call.args)}")
            context.report(Problem("E0117", title, argument.span, "", (), (f"it is {shape}",)))
            return None
        formal = formals[names.index(name)]
        value = elaborator.constant_value(scope, argument.value)
        if value.node is None:
            return None
        fitted = fit_argument(pipelines, own, formal, value, argument.value.span)
        if fitted is None:
            return None
        out[name] = fitted
    for formal in formals:
        if formal.name not in out and formal.default is not None:
            out[formal.name] = elaborator.constant_value(own, formal.default)
        elif formal.name not in out:
            context.report(Problem("E0117", f"`{call.fn}` needs `{formal.name}`", call.span, "not given", (),
                                   (f"it is {shape}",)))
            return None
    return out


def fit_argument(pipelines: Pipelines, own: Scope, formal: tree.Formal, value: Value, span: Span) -> Value | None:
    """A constant as an argument of the formal's type."""
    type = pipelines.elaborator.type_of(own, formal.type)
    if type.dtype == "unknown" or value.node is None:
        return None
    try:
        made = from_default(python_value(value.node), type, span)
    except ParamError as error:
        pipelines.context.report(Problem("E0117", f"the argument `{formal.name}` {error}", span, "",
                                         (Label(formal.type.span, "declared here"),)
                                         if formal.type.span.file == span.file else ()))
        return None
    return made
