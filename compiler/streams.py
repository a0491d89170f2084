"""Pipelines to stream nodes: `from` and what it reads, lines about one record, `emit`, params below `share`.

In: a pipeline's declaration and the values of its arguments. Out: the `Frame` at its end, for the one that is run an `emit` node.
"""
from __future__ import annotations

from typing import Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from ..dsl.types import I64, Type
from . import bounds
from .branches import Branches
from .constants import Constants
from .elaborate import Elaborator
from .emission import Emission
from .frames import COUNT, Frame, field_node, stream_type
from .frames import sizes as sizes_of
from .graph import Node, node
from .names import Declared, kind_of, whole_lines
from .scope import Scope, Value, unknown
from .sources import KINDS, SchemaReader, TextError, expanded, report_kind
from .stacked import named, report_smaller, smaller_batch, spoiled_problem
from .stages import Stages
from .words import listed, similar


class Pipelines:
    """All pipelines of a check."""

    def __init__(self, elaborator: Elaborator, constants: Constants):
        self.elaborator, self.context, self.constants = elaborator, elaborator.context, constants
        self.schemas = SchemaReader(elaborator.context, elaborator)
        self.building: list[str] = []
        self.bad: set[str] = set()          # pipelines in a circle

    def run(self, declared: Declared, arguments: dict[str, Value] | None = None) -> Node | None:
        """The `emit` node of a pipeline that is run; None where it has problems that leave none."""
        name = declared.declaration.name
        builder = PipelineBuilder(self, declared, arguments or {}, name, True)
        try:
            frame = builder.build()
            if frame is None:
                return None
            emission = Emission(self.elaborator)
            frame = builder.stages.sized(emission.visible(frame, declared.declaration))
            return emission.emit(frame, declared.declaration)
        finally:
            self.constants.close()

    def branch(self, declared: Declared, arguments: dict[str, Value], path: str) -> Frame | None:
        """The frame at the end of a pipeline that another one reads."""
        builder = PipelineBuilder(self, declared, arguments, path, False)
        frame = builder.build()
        return builder.stages.sized(Emission(self.elaborator).visible(frame, declared.declaration)) if frame else None


class PipelineBuilder:
    """One pipeline, line by line."""

    def __init__(self, pipelines: Pipelines, declared: Declared, arguments: dict[str, Value], path: str, top: bool):
        self.all, self.declaration, self.module = pipelines, declared.declaration, declared.module
        self.elaborator, self.context = pipelines.elaborator, pipelines.context
        self.arguments, self.path, self.top = arguments, path, top
        self.stages = Stages(self.elaborator, self.context.texts, self.taken, top)
        self.branches = Branches(self)

    def taken(self, name: str) -> bool:
        """Is this the name of a param, let, pipeline or argument."""
        return name in self.arguments or self.owner(name) is not None

    def owner(self, name: str) -> tuple[str, Span | None] | None:
        declaration = self.module.declaration(name)
        if isinstance(declaration, tree.Param | tree.Let | tree.Pipeline):
            span = self.module.scope.uses.get(name) or declaration.name_span
            return kind_of(declaration), span
        formal = next((f for f in self.declaration.formals if f.name == name), None)
        return ("argument", formal.name_span) if formal else None

    def build(self) -> Frame | None:
        """The frame after the last line; None where there is nothing to read."""
        lines = self.declaration.lines
        frame = self._start(lines)
        if frame is None:
            return None
        for line in lines:
            if isinstance(line, tree.From):
                continue
            frame = self._line(frame, line)
        return frame

    def problem(self, code: str, title: str, span: Span, label: str = "", reasons: tuple[Label, ...] = (),
                notes: tuple[str, ...] = (), fixes: tuple[Fix, ...] = ()) -> None:
        near = tuple(r for r in reasons if r.span.file == span.file)
        self.context.report(Problem(code, title, span, label, near, notes, fixes))

    # --- order of lines -------------------------------------------------------------------------

    def _start(self, lines: tuple[tree.Line, ...]) -> Frame | None:
        froms = [line for line in lines if isinstance(line, tree.From)]
        if not froms:
            self.problem("E0505", f"pipeline `{self.declaration.name}` has no `from` line", self.declaration.name_span,
                         "reads nothing", (), ('for example: from tar("train-*.tar") as Sample',))
            return None
        if lines[0] is not froms[0]:
            self.problem("E0505", "`from` must be the first line", froms[0].span, "", (
                Label(lines[0].span, "needs records to work on"),), (),
                self.stages.move_up(froms[0].span, lines[0].span, "move it up"))
        for extra in froms[1:]:
            self.problem("E0505", "a pipeline reads from one place", extra.span, "a second `from`",
                         (Label(froms[0].span, "first here"),),
                         ("`from mix(a, b, …)` and `from zip(x=a, y=b)` bring pipelines together",))
        self._order(lines)
        return self._from(froms[0])

    def _order(self, lines: tuple[tree.Line, ...]) -> None:
        emits = [line for line in lines if isinstance(line, tree.Emit)]
        for extra in emits[1:]:
            self.problem("E0505", "`emit` may stand only once", extra.span, "a second time",
                         (Label(emits[0].span, "first here"),), ("one line names all that leaves: emit image, cls",))
        if len(emits) == 1 and lines[-1] is not emits[0] and not isinstance(lines[-1], tree.From):
            text = self.context.texts[emits[0].span.file]
            moved, last = whole_lines(text, emits[0].span), whole_lines(text, lines[-1].span)
            body = text[moved.start:moved.end]
            ending = "" if text[last.start:last.end].endswith("\n") else "\n"
            self.problem("E0505", "`emit` must be the last line", emits[0].span, "",
                         (Label(lines[-1].span, "never reached"),), (),
                         (Fix("move it down", (Edit(moved, ""), Edit(Span(last.file, last.end, last.end), ending + body))),))
        for number, line in enumerate(lines):
            if not isinstance(line, tree.Stage) or line.call.fn != "skip_bad" or number < 2:
                continue
            first = next(x for x in lines if isinstance(x, tree.Stage) and x.call.fn == "skip_bad")
            if first is line:
                self._late_skip(lines, number)
            else:
                cut = whole_lines(self.context.texts[line.span.file], line.span)
                self.problem("E0505", "`skip_bad` may stand only once", line.span, "a second time",
                             (Label(first.span, "first here"),), (), (Fix("leave it out", (Edit(cut, ""),)),))

    def _late_skip(self, lines: tuple[tree.Line, ...], number: int) -> None:
        line = lines[number]
        if any(isinstance(x, tree.Stage) and x.call.fn == "share" for x in lines[:number]):
            return
        self.problem("E0505", "`skip_bad` must stand right after `from`", line.span, "",
                     (Label(lines[0].span, "it covers every line from here on"),), (),
                     self.stages.move_up(line.span, lines[1].span, "move it up"))

    # --- from -------------------------------------------------------------------------------------

    def _from(self, line: tree.From) -> Frame | None:
        scope = Scope(self.module.scope, names=dict(self.arguments), path=self.path, facts=bounds.Facts())
        name = line.source.id if isinstance(line.source, tree.Name) else line.source.fn
        if name in self.module.scope.pipelines:
            return self.branches.other(line, scope)
        if isinstance(line.source, tree.Name):
            if (self.module.path, name) not in self.all.constants.files.lost:
                self._no_pipeline(line.source)
            return None
        if name in ("mix", "zip"):
            return self.branches.mix(line, scope) if name == "mix" else self.branches.zip(line, scope)
        return self._source(line, line.source, scope)

    def _no_pipeline(self, source: tree.Name) -> None:
        known = list(self.module.scope.pipelines)
        alike = similar(source.id, [k for k in known if k != self.declaration.name])
        fixes = (Fix("a pipeline with a similar name exists", (Edit(source.span, alike),)),) if alike else ()
        kind = f'`{source.id}` is a source: write {source.id}("…") as Schema' if source.id in KINDS else ""
        notes = (kind,) if kind else (f"pipelines: {', '.join(known)}",)
        self.problem("E0101", f"there is no pipeline `{source.id}`", source.span, "not found", (), notes, fixes)

    def _source(self, line: tree.From, call: tree.Call, scope: Scope) -> Frame | None:
        kind = call.fn if call.fn in KINDS else None
        if kind is None:
            report_kind(self.context, call.fn, call.fn_span, list(self.module.scope.pipelines))
        schema = self._schema(line)
        if schema is None:
            return None
        columns = self.all.schemas.read(Scope(schema.module.scope, facts=bounds.Facts()), schema.declaration, kind)
        paths, options = self._arguments(call, scope) if kind else ((), {})
        return self._opened(line, scope, kind or "tar", paths, options, columns, schema)

    def _schema(self, line: tree.From) -> Declared | None:
        if line.schema is None:
            at = Span(line.span.file, line.source.span.end, line.source.span.end)
            schemas = list(self.module.scope.schemas)
            fixes = (Fix("name the schema", (Edit(at, f" as {schemas[0]}"),)),) if len(schemas) == 1 else ()
            self.problem("E0505", "a source needs a schema", line.source.span, "what its records hold isn't said", (),
                         ('write `from … as Sample`, and above: schema Sample',), fixes)
            return None
        found: Declared | None = self.module.scope.schemas.get(line.schema)
        span = line.schema_span or line.span
        if found is None and (self.module.path, line.schema) not in self.all.constants.files.lost:
            known = list(self.module.scope.schemas)
            alike = similar(line.schema, known)
            fixes = (Fix("a schema with a similar name exists", (Edit(span, alike),)),) if alike else ()
            shown = listed(known)
            notes = (f"schemas: {shown}",) if shown else ("declare it: schema Name, with a column on each indented line",)
            self.problem("E0101", f"there is no schema `{line.schema}`", span, "not found", (), notes, fixes)
        return found

    def _arguments(self, call: tree.Call, scope: Scope) -> tuple[tuple[str, ...], dict[str, Any]]:
        kind = KINDS[call.fn]
        paths: list[str] = []
        options: dict[str, Any] = {}
        reader = self.stages.reader
        for argument in call.args:
            if argument.name is None:
                paths += self._paths(argument.value, scope)
            elif argument.name not in kind.options:
                alike = similar(argument.name, kind.options)
                name_span = Span(argument.span.file, argument.span.start, argument.span.start + len(argument.name))
                fixes = (Fix(f"it is called `{alike}` here", (Edit(name_span, alike),)),) if alike else ()
                notes = (f"its options: {', '.join(kind.options) or 'none'}",)
                reader.bad(name_span, f"`{call.fn}` has no option `{argument.name}`", "not known", notes, fixes)
            else:
                value = self.elaborator.constant(scope, argument.value)
                if value is not None:
                    self._option(options, argument, value, kind.options[argument.name])
        if not any(a.name is None for a in call.args):
            reader.bad(call.span, f"`{call.fn}` needs a path", "", (f"{call.fn}: {kind.doc}",))
        return tuple(paths), options

    def _option(self, options: dict[str, Any], argument: tree.Argument, value: Any, type: Type) -> None:
        assert argument.name is not None
        values = value if isinstance(value, list) else [value]
        want = {"bool": bool, "i64": int, "text": str}[type.dtype]
        good = all(isinstance(v, want) and (want is not int or not isinstance(v, bool)) for v in values)
        if not good or isinstance(value, list) != bool(type.dims):
            need = {"bool": "true or false", "i64": "a whole number", "text": "a text"}[type.dtype]
            need = "a list of texts" if type.dims else need
            example = {"a text": '"…"', "a list of texts": '["…", "…"]', "true or false": "true", "a whole number": "8"}[need]
            self.stages.reader.bad(argument.value.span, f"`{argument.name}` is {need}", notes=(
                f"write {argument.name}={example}",))
            return
        options[argument.name] = tuple(value) if isinstance(value, list) else value

    def _paths(self, e: tree.Expr, scope: Scope) -> list[str]:
        value = self.elaborator.constant(scope, e)
        if value is None:
            return []
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(t, str) for t in texts):
            self.stages.reader.bad(e.span, "a path is a text", "", ('for example: from tar("train-*.tar") as Sample',))
            return []
        try:
            return [p for t in texts for p in expanded(t)]
        except TextError as error:
            self.stages.reader.bad(e.span, str(error), notes=error.notes)
            return []

    def _opened(self, line: tree.From, scope: Scope, kind: str, paths: tuple[str, ...], options: dict[str, Any],
                columns: Any, schema: Declared) -> Frame:
        """The frame of a source: sizes named in the schema are those of the first column that has them."""
        sizes: dict[str, Node] = {}
        fields: dict[str, Value] = {}
        written = {c.name: c.type for c in schema.declaration.columns}
        for name, type, span in columns.fields:
            if type.dtype == "unknown":
                fields[name] = unknown(span)
                continue
            dims: list[int | Node] = []
            for axis, dim in enumerate(type.dims):
                extent = node("extent", type=I64, field=name, axis=axis)
                dims.append(dim if isinstance(dim, int) else extent if dim == "_" else sizes.setdefault(dim, extent))
            known = Type(type.dtype, tuple(dims), type.missing)
            made = self.context.made(field_node(name, known), span)
            self.context.types[made] = written[name]
            fields[name] = Value(made, known, span)
            owner = self.owner(name)
            if owner is not None:
                self.taken_name(name, span, owner)
        known_fields = [(n, v.type) for n, v in fields.items() if v.known]
        if kind == "bin" and len(columns.attr) > 1:   # where each field lies depends on all of them, read or not
            options = {**options, "layout": tuple((name, text) for name, _, text in columns.attr)}
        stream = self.context.made(node("source", type=stream_type(known_fields), kind=kind, paths=paths,
                                        options=tuple(sorted(options.items())), columns=columns.attr), line.span)
        scope.dims = dict(sizes)
        scope.names = {**self.arguments, **sizes_of(scope.dims, scope), **fields}
        frame = Frame(stream, scope, fields, dict(self.arguments))
        frame.streamed = line.source.span if options.get("stream") else None
        return frame

    # --- lines about one record ---------------------------------------------------------------------

    def _line(self, frame: Frame, line: tree.Line) -> Frame:
        self._needs(frame, line)
        match line:
            case tree.Bind() | tree.Draw():
                frame = self._binding(frame, line)
            case tree.Where():
                condition = self.elaborator.condition(frame.scope, line.condition)
                if condition.known:
                    frame = self.stages.sized(frame)
                    frame = self.stages.require(frame, "where", condition, line.span)
            case tree.Stage():
                shared = frame.scope.below_share
                frame = self.stages.stage(frame, line)
                if frame.scope.below_share and not shared:
                    self.all.constants.open(self.context.param_uses)
            case tree.Emit():
                return frame
        return self.stages.sized(frame)

    def _needs(self, frame: Frame, line: tree.Line) -> None:
        """Report a field that could not be stacked, where something names it."""
        if not frame.spoiled:
            return
        for name, span in named(line):
            for whole in [n for n in frame.spoiled if n == name or (n.startswith(f"{name}.") and isinstance(line, tree.Emit))]:
                spoiled_problem(self.context, self.context.texts, frame, whole, span, self.declaration)

    def _binding(self, frame: Frame, line: tree.Bind | tree.Draw) -> Frame:
        owner = self.owner(line.name)
        if owner is not None:
            self.taken_name(line.name, line.name_span, owner)
            frame.fields[line.name] = frame.scope.names[line.name] = unknown(line.name_span)
            return frame
        frame.spoiled.pop(line.name, None)
        if isinstance(line, tree.Draw) and line.call.fn == "sample" and self.module.scope.function("sample") is None:
            return self.branches.sample(frame, line)
        if isinstance(line, tree.Draw):
            if not self._whole_permutation(frame, line):
                self.elaborator.draw(frame.scope, line)
        elif not self._smaller(frame, line):
            self.elaborator.bind(frame.scope, line)
        value = frame.scope.names.get(line.name) or unknown(line.name_span)
        frame.fields.pop(line.name, None)
        frame.fields[line.name] = value
        frame.hidden.pop(line.name, None)
        if line.type is not None and value.node is not None:
            self.context.types[value.node] = line.type
        if line.type is not None and not value.known:
            self._lost_sizes(frame, line.type)
        return frame

    def _lost_sizes(self, frame: Frame, written: tree.TypeExpr) -> None:
        """The sizes that a failed line would have bound agree with everything."""
        for dim in written.dims:
            found = frame.scope.look_up(dim.id) if isinstance(dim, tree.Name) else None
            if isinstance(dim, tree.Name) and dim.id != "_" and dim.id not in frame.scope.dims and (
                    found is None or not found.known):
                frame.fields[dim.id] = frame.scope.names[dim.id] = unknown(dim.span)

    def taken_name(self, name: str, span: Span, owner: tuple[str, Span | None], here: bool = True) -> None:
        """E0114; `here`: the name itself stands at `span`."""
        kind, place = owner
        reasons = (Label(place, f"{'an' if kind == 'argument' else 'a'} {kind}"),) if place and place.file == span.file else ()
        self.problem("E0114", f"a field can't take the name of the {kind} `{name}`", span, "already taken", reasons,
                     ("a name that is set from outside keeps its meaning on every line",),
                     (Fix("give the field a name of its own", (Edit(span, f"{name}_"),)),)
                     if span.file == self.module.path and here else ())

    # rule 11

    def _smaller(self, frame: Frame, line: tree.Bind) -> bool:
        """Was `f32[n, …]` written below a `batch(n)` that keeps a smaller last batch; then it is reported."""
        if line.type is None or not line.type.dims or not smaller_batch(self.context, frame, line.type.dims[0]):
            return False
        value = self.elaborator.expr(frame.scope, line.value)
        frame.scope.names[line.name] = value.at(line.name_span)
        if value.known and value.type.dims and value.type.dims[0] is COUNT:
            report_smaller(self.context, frame, line.type.dims[0])
        elif value.known:
            frame.scope.names[line.name] = self.elaborator.check_type(value, line.type, frame.scope).at(line.name_span)
        return True

    def _whole_permutation(self, frame: Frame, line: tree.Draw) -> bool:
        args = line.call.args
        if line.call.fn != "permutation" or line.binders or len(args) != 1 or not smaller_batch(
                self.context, frame, args[0].value):
            return False
        report_smaller(self.context, frame, args[0].value)
        frame.scope.names[line.name] = unknown(line.name_span)
        return True
