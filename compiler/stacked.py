"""What `batch` and `window` can't stack, and the smaller last one that they keep: messages E0502 and E0515."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from .frames import COUNT, Frame, Stacked, varies
from .names import parts_of, whole_lines
from .scope import Context, Value
from .words import type_text


def named(line: tree.Line) -> Iterator[tuple[str, Span]]:
    """Names of values that a line mentions and that no binder of the line hides."""
    binders = {p.name for p in parts_of(line) if isinstance(p, tree.Binder)}
    if isinstance(line, tree.Emit):
        yield from ((o.name, o.name_span) for o in line.outputs)
    elif isinstance(line, tree.Bind):
        yield from _named(line.value, binders)
    elif isinstance(line, tree.Draw):
        yield from _named((line.call, line.binders), binders)
    else:
        yield from _named(line, binders)


def _named(thing: Any, binders: set[str]) -> Iterator[tuple[str, Span]]:
    found = sorted([*((p.id, p.span) for p in parts_of(thing) if isinstance(p, tree.Name)), *(
        (f"{p.value.id}.{p.name}", p.span) for p in parts_of(thing)
        if isinstance(p, tree.Part) and isinstance(p.value, tree.Name))], key=lambda f: f[1])
    yield from ((n, s) for n, s in found if n not in binders)


def smaller_batch(context: Context, frame: Frame, size: tree.Expr) -> bool:
    """Is this expression the `n` of a stage above that keeps a smaller last batch."""
    if not frame.stacked or not frame.stacked[-1].smaller or not frame.stacked[-1].n_text:
        return False
    plain = "".join(context.text(size.span).split()).replace("_", "")
    return plain == "".join(frame.stacked[-1].n_text.split()).replace("_", "")


def report_smaller(context: Context, frame: Frame, size: tree.Expr) -> None:
    """E0515 (rule 11)."""
    stacked = frame.stacked[-1]
    what = context.text(size.span)
    context.report(Problem(
        "E0515", f"the last {stacked.stage} may hold fewer than `{what}` records", size.span, f"up to {what}",
        (Label(stacked.span, "keeps what is left as a smaller one"),),
        ("or name the dimension: a new name here is bound to the number of records",), _whole(context, stacked)))


def spoiled_problem(context: Context, texts: dict[str, str], frame: Frame, name: str, use: Span,
                    declaration: tree.Pipeline) -> None:
    """E0502, once for a field."""
    spoiled = frame.spoiled.pop(name)
    value, span = spoiled.value, spoiled.span
    origin = _origin(context, frame, value, span.file)
    if spoiled.reason == "epoch":
        origin = (Label(value.span, "changes with the epoch"),) if value.span.file == span.file else ()
        context.report(Problem("E0502", f"the size of `{name}` has no upper bound, so it can't be batched", span,
                               "stacks equal shapes only", (*origin, Label(use, "needed here")),
                               ("a size may use `epoch` within bounds: min(128 + 8 * epoch, 224)",)))
        return
    smaller = next((s for s in frame.stacked if s.smaller and s.span != span), None)
    if smaller is not None and COUNT in value.type.dims and smaller.span.file == span.file:
        _uneven_batches(context, name, span, smaller, use)
        return
    notes = (f"`resize({name}, box, size, size)` gives every record one size",) if value.type.rank == 3 else ()
    context.report(Problem(
        "E0502", f"`{name}` changes size from record to record, so it can't be batched", span, "stacks equal shapes only",
        (*origin, Label(use, "needed here")) if use.file == span.file else origin, notes,
        _fixes(texts, frame, name, spoiled.stage, span, use, declaration)))


def _uneven_batches(context: Context, name: str, span: Span, smaller: Stacked, use: Span) -> None:
    """Batches of batches, of which the last may be smaller."""
    context.report(Problem(
        "E0502", f"the last {smaller.stage} may be smaller than the others, so `{name}` can't be batched again", span,
        "stacks equal shapes only", (Label(smaller.span, f"keeps a smaller last {smaller.stage}"), Label(use, "needed here")),
        (), _whole(context, smaller)))


def _whole(context: Context, stacked: Stacked) -> tuple[Fix, ...]:
    """The fix that leaves a smaller last batch or window out."""
    if stacked.stage not in ("batch", "window"):
        return ()
    end = stacked.span.end - 1
    comma = "" if context.texts[stacked.span.file][end - 1] == "(" else ", "
    more = 'rest="drop"' if stacked.stage == "window" else "whole=true"
    return (Fix("leave a smaller last one out", (Edit(Span(stacked.span.file, end, end), comma + more),)),)


def _origin(context: Context, frame: Frame, value: Value, file: str) -> tuple[Label, ...]:
    """Where a size comes from: the dimensions that were written for the field, else the field's line."""
    written = context.types.get(value.node) if value.node is not None else None
    moving = [d.span for d, known in zip(written.dims, value.type.dims, strict=False) if varies(known)] if written else []
    if moving and moving[0].file == file:
        return (Label(moving[0].to(moving[-1]), "read from each record"),)
    shown = type_text(frame.scope, value.type)
    return (Label(value.span, f"{shown}, of a size read from each record"),) if value.span.file == file else ()


def _fixes(texts: dict[str, str], frame: Frame, name: str, stage: str, span: Span, use: Span,
           declaration: tree.Pipeline) -> tuple[Fix, ...]:
    """Stack after the line that makes the sizes equal, or pad."""
    text = texts[span.file]
    fixes: list[Fix] = []
    below = [line for line in declaration.lines if line.span.file == span.file and line.span.start > span.start
             and any(n == name for n, _ in named(line))]
    sized = any("resize" in p.fn or "crop" in p.fn for line in below for p in parts_of(line) if isinstance(p, tree.Call))
    if sized and all(isinstance(line, tree.Bind | tree.Draw) for line in below):
        here, there = whole_lines(text, span), whole_lines(text, below[-1].span)
        fixes.append(Fix(f"{stage} after the sizes are equal", (
            Edit(here, ""), Edit(Span(span.file, there.end, there.end), text[here.start:here.end]))))
    if stage in ("batch", "window"):
        at = span.end - 1
        comma = "" if text[at - 1] == "(" else ", "
        fixes.append(Fix("or pad each batch to its largest record" if fixes else "pad each batch to its largest record",
                         (Edit(Span(span.file, at, at), f"{comma}pad=true"),)))
    return tuple(fixes)
