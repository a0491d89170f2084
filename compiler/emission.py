"""The end of a pipeline: `emit`, its types, and the messages for fields that can't leave as they are."""
from __future__ import annotations

from dataclasses import replace

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from .elaborate import Elaborator
from .frames import COUNT, Frame, leaves, mapped, stream_type
from .graph import Node, node
from .names import whole_lines
from .scope import Value, unknown
from .stacked import report_smaller, smaller_batch, spoiled_problem
from .words import default_text, listed, similar, type_text


class Emission:
    """Reads the `emit` line of one pipeline."""

    def __init__(self, elaborator: Elaborator):
        self.elaborator, self.context = elaborator, elaborator.context

    def emit(self, frame: Frame, declaration: tree.Pipeline) -> Node | None:
        """The `emit` node of the pipeline that is run; `frame` holds the visible fields only."""
        line = _emit_line(declaration)
        span = line.span if line else declaration.name_span
        places = {o.name: o.name_span for o in line.outputs} if line else {}
        good = True
        for name, value in frame.fields.items():
            good &= self._leaves(frame, declaration, name, value, places.get(name, span))
        if not good:
            return None
        flat: dict[str, Value] = {}
        for name, value in leaves(frame.fields):
            plain = name.replace(".", "_")
            if plain in flat:
                self.context.report(Problem("E0113", f"two fields would leave as `{plain}`", places.get(plain, span), "", (),
                                            (f"`{name}` is one of them; give the other a name of its own",)))
                return None
            flat[plain] = value
        last = mapped(self.context, replace(frame, fields=flat, scope=replace(frame.scope, dims={})), span)
        return self.context.made(node("emit", _only(last, flat), type=stream_type((n, v.type) for n, v in last.fields.items()),
                                      names=tuple(flat)), span)

    def visible(self, frame: Frame, declaration: tree.Pipeline) -> Frame:
        """The frame with the fields that `emit` lists, or all of them."""
        line = _emit_line(declaration)
        if line is None:
            return frame
        fields: dict[str, Value] = {}
        for output in line.outputs:
            if output.name in fields:
                self._twice(line, output)
                continue
            value = self._output(frame, declaration, output)
            fields[output.name] = value
        return replace(frame, fields=fields)

    def _twice(self, line: tree.Emit, output: tree.Output) -> None:
        index = line.outputs.index(output)
        cut = Span(output.span.file, line.outputs[index - 1].span.end, output.span.end)
        first = next(o for o in line.outputs if o.name == output.name)
        self.context.report(Problem("E0113", f"`{output.name}` is emitted twice", output.span, "a second time",
                                    (Label(first.span, "first here"),), (), (Fix("once is enough", (Edit(cut, ""),)),)))

    def _output(self, frame: Frame, declaration: tree.Pipeline, output: tree.Output) -> Value:
        value = frame.fields.get(output.name)
        if value is None and output.name in frame.hidden:
            dims = Value(frame.hidden[output.name], frame.hidden[output.name].type, output.name_span)
            value = dims
        if value is None:
            value = self._dimension(frame, output)
        if value is None:
            self._unknown(frame, declaration, output)
            return unknown(output.name_span)
        if output.type is None or not value.known:
            return value
        small = bool(output.type.dims) and smaller_batch(self.context, frame, output.type.dims[0])
        if small and value.type.dims and value.type.dims[0] is COUNT:
            report_smaller(self.context, frame, output.type.dims[0])
            return value
        if value.type.missing and not output.type.missing:
            return value  # `_leaves` says so, in its own words
        seen = value.at(output.name_span)
        return self.elaborator.check_type(seen, output.type, frame.scope)

    def _dimension(self, frame: Frame, output: tree.Output) -> Value | None:
        """A size that is bound from data is a number too."""
        dim = frame.scope.dims.get(output.name)
        if isinstance(dim, Node):
            return Value(dim, dim.type, output.name_span)
        return None

    def _unknown(self, frame: Frame, declaration: tree.Pipeline, output: tree.Output) -> None:
        scope = frame.scope
        if scope.file.value(output.name) is not None or output.name in frame.arguments:
            text = self.context.texts[output.span.file]
            line = _emit_line(declaration)
            assert line is not None
            start = whole_lines(text, line.span).start
            self.context.report(Problem(
                "E0101", f"`emit` lists fields, and `{output.name}` is the same for all records", output.name_span, "no field",
                (), (), (Fix("make it a field", (
                    Edit(Span(output.span.file, start, start), f"  {output.name}_ = {output.name}\n"),
                    Edit(output.name_span, f"{output.name}_"))),)))
            return
        known = [*frame.fields, *frame.hidden]
        alike = similar(output.name, known)
        fixes = (Fix("a field with a similar name exists", (Edit(output.name_span, alike),)),) if alike else ()
        shown = listed(known)
        notes = (f"fields at this point: {shown}",) if shown else ()
        self.context.report(Problem("E0101", f"nothing here is called `{output.name}`", output.name_span, "not found", (),
                                    notes, fixes))

    def _leaves(self, frame: Frame, declaration: tree.Pipeline, name: str, value: Value, span: Span) -> bool:
        """May this field leave; reported where it may not."""
        spoiled = [n for n in frame.spoiled if n == name or n.startswith(f"{name}.")]
        for whole in spoiled:
            spoiled_problem(self.context, self.context.texts, frame, whole, span, declaration)
        if spoiled:
            return False
        if value.type.dtype == "struct":
            gaps = [n for n, v in leaves({name: value}) if v.type.missing]
            name = gaps[0] if gaps else name
        if not value.known or not (value.type.missing or (value.type.dtype == "struct" and gaps)):
            return value.known
        self._missing(frame, declaration, name, value, span)
        return False

    def _missing(self, frame: Frame, declaration: tree.Pipeline, name: str, value: Value, span: Span) -> None:
        line = _emit_line(declaration) or declaration.lines[-1]
        text = self.context.texts[line.span.file]
        lines = whole_lines(text, line.span)
        at = lines.start if isinstance(line, tree.Emit) else lines.end
        ending = "" if at == lines.start or text[lines.start:lines.end].endswith("\n") else "\n"
        fill = f"{ending}  {name} = {name} ?? {default_text(value.type)}\n"
        fixes = (Fix("say what stands in for a gap", (Edit(Span(line.span.file, at, at), fill),)),) if "." not in name else ()
        pads = next((s for s in frame.stacked if s.stage in ("batch", "window", "pack")), None)
        reasons = (Label(pads.span, "leaves places that no record fills"),) if pads and "pad" in self.context.text(pads.span) \
            else tuple(self.elaborator.gap_reasons(value))
        self.context.report(Problem(
            "E0205", f"`{name}` may be missing, and `emit` needs every value", span, type_text(frame.scope, value.type),
            reasons, (f"`missing({name})` is the mask",), fixes))


def _emit_line(declaration: tree.Pipeline) -> tree.Emit | None:
    return next((line for line in declaration.lines if isinstance(line, tree.Emit)), None)


def _only(frame: Frame, wanted: dict[str, Value]) -> Node:
    """The last map with just the fields that leave."""
    made = frame.stream
    keep = [(n, v) for n, v in zip(made["names"], made.args[1:], strict=True) if n in wanted]
    types = dict(made.type.parts)
    return node("map", made.args[0], *(v for _, v in keep), names=tuple(n for n, _ in keep),
                type=stream_type((n, types[n]) for n, _ in keep))
