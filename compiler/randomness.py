"""`name ~ distribution(…)` to `draw` nodes with their paths; E0301 where `=` would bind a draw."""
from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import INTS, Type
from . import bounds, builds, functions, slips
from .graph import Node, node
from .promote import is_const
from .scope import FileScope, Scope, Value, unknown
from .signatures import arguments, head_of, passed, result_type
from .words import free_name

if TYPE_CHECKING:
    from .elaborate import Elaborator

NO_NAMES = FileScope("<distributions>")


def primitives() -> list[str]:
    from ..kernels.random import DRAWS

    return list(DRAWS)


def is_primitive(name: str) -> bool:
    from ..kernels.random import DRAWS

    return name in DRAWS


def draw(el: Elaborator, scope: Scope, line: tree.Draw) -> Value:
    """The value of a draw line."""
    e = line.call
    own = scope.file.function(e.fn)
    if not (own.draws if own is not None else is_primitive(e.fn)):
        return _draws_nothing(el, scope, line)
    path = f"{scope.path}/{line.name}.{e.fn}"
    if path in scope.drawn and not el.silent:
        return _twice(el, scope, line, scope.drawn[path])
    scope.drawn[path] = line.span
    if not line.binders:
        return _drawn(el, scope, e, path)
    bound = builds.bind_binders(el, scope, line.binders, [e])
    if bound is None:
        return unknown(e.span)
    inner, at, dims = bound
    inner.indexes = (*scope.indexes, *at)
    body = _drawn(el, inner, e, path)
    if not body.known or not builds.one_size(el, scope, body, at, e.span, line.binders):
        return unknown(e.span)
    return el.built(body, [el.settled(d) for d in dims], at, e.span)


def _drawn(el: Elaborator, scope: Scope, e: tree.Call, path: str) -> Value:
    own = scope.file.function(e.fn)
    if own is not None:
        value = functions.call(el, scope, own, e, path)
    else:
        value = _primitive(el, scope, e, path)
    if value.node is not None and not el.silent:
        el.places.setdefault(value.node, (e.span, ""))
        el.context.made(value.node, e.span)
    return value


def _primitive(el: Elaborator, scope: Scope, e: tree.Call, path: str) -> Value:
    from ..kernels.random import DRAWS

    head = head_of(DRAWS[e.fn].head)
    given = arguments(el, scope, head, e)
    if given is None:
        return unknown(e.span)
    callee = Scope(NO_NAMES, facts=scope.facts, sizes=scope.sizes)
    values = passed(el, scope, callee, head, given)
    if values is None:
        return unknown(e.span)
    params = [v.node for v in values.values() if v.node is not None]
    if _empty(el, scope, e, params):
        return unknown(e.span)
    assert head.result is not None
    type = result_type(el, callee, head.result, lambda axis: 0)
    assert type is not None
    made = node("draw", *params, *scope.indexes, dist=e.fn, path=path, indexes=len(scope.indexes), type=type.strong())
    return Value(made, Type(type.dtype, type.dims, weak=True), e.span)


def _empty(el: Elaborator, scope: Scope, e: tree.Call, params: list[Node]) -> bool:
    """E0304: bounds between which there is nothing, already here."""
    if len(params) != 2:
        return False
    low, high = params
    if low.type.dtype in INTS:
        nothing = bounds.at_most(high, low, el.facts(scope)) and not el.loose(low) and not el.loose(high)
    else:
        nothing = is_const(low) and is_const(high) and low["value"] > high["value"]
    if not nothing:
        return False
    notes = ["`integers(a, b)` gives a, …, b - 1"] if low.type.dtype in INTS else []
    fixes = []
    if low.type.dtype in INTS and len(e.args) == 2 and bounds.equal(low, high):
        second = e.args[1].value
        fixes = [Fix("let the last one be drawn too", (Edit(Span(second.span.file, second.span.end, second.span.end), " + 1"),))]
    elif len(e.args) == 2 and all(a.name is None for a in e.args):
        a, b = (x.value.span for x in e.args)
        fixes = [Fix("swap them", (Edit(a, el.text(b)), Edit(b, el.text(a))))]
    el.problem(scope, "E0304", f"`{e.fn}` has nothing to choose from", e.span, "no value lies between these",
               notes=notes, fixes=fixes)
    return True


def _draws_nothing(el: Elaborator, scope: Scope, line: tree.Draw) -> Value:
    e = line.call
    from . import calls

    if scope.file.function(e.fn) is None and e.fn not in calls.known_functions(scope):
        return slips.unknown_function(el, scope, e)
    edit = Edit(line.op_span, "=")
    el.problem(scope, "E0302", f"`{e.fn}` draws nothing, so `~` has no meaning here", line.op_span, "binds random values",
               fixes=[Fix("write `=`", (edit,))])
    return unknown(line.span)


def _twice(el: Elaborator, scope: Scope, line: tree.Draw, first: Span) -> Value:
    """E0303: the same name and distribution would draw the same value again."""
    before = el.context.texts.get(first.file, "")
    number = before.count("\n", 0, first.start) + 1
    fixes = []
    if first.file == line.span.file and first.start < line.span.start:
        new = free_name(f"{line.name}_1", scope.names)
        place = Span(first.file, first.start, first.start + len(line.name))
        used = Span(first.file, first.end, line.span.end)
        edits = [Edit(place, new)] + [
            Edit(Span(used.file, used.start + m.start(), used.start + m.end()), new)
            for m in re.finditer(rf"(?<![\w.\"]){re.escape(line.name)}(?!\w|\s*=[^=])", el.text(used))
            if used.start + m.start() != line.name_span.start
        ]
        fixes = [Fix("give the first draw another name", tuple(edits))]
    el.problem(
        scope, "E0303", f"this would draw the same as line {number}", line.name_span, "the same name and distribution",
        reasons=[Label(Span(first.file, first.start, first.start + len(line.name)), "drawn here first")],
        notes=["a draw is told from others by its name, so each needs its own"], fixes=fixes,
    )
    return unknown(line.span)


# --- `=` with a draw ------------------------------------------------------------------------------


def needs_tilde(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    """E0301"""
    line = el.line
    direct = isinstance(line, tree.Bind) and (line.value is e or (isinstance(line.value, tree.Build) and line.value.body is e))
    reasons, notes = _first_draw(el, scope, e)
    notes.append("`~` marks every random value, so a line with `=` is the same in every run and may be cached")
    if direct and isinstance(line, tree.Bind):
        el.problem(scope, "E0301", f"`{e.fn}` draws at random, so `=` can't bind its result", line.op_span, "needs `~`",
                   reasons=reasons, notes=notes, fixes=[Fix("draw it", (Edit(line.op_span, "~"),))])
        return unknown(e.span)
    el.problem(scope, "E0301", f"`{e.fn}` draws at random, so it needs a line of its own", e.fn_span, "needs `~`",
               reasons=reasons, notes=notes, fixes=_own_line(el, scope, e))
    return unknown(e.span)


def _first_draw(el: Elaborator, scope: Scope, e: tree.Call) -> tuple[list[Label], list[str]]:
    own = scope.file.function(e.fn)
    if own is None or not isinstance(own.declaration, tree.Fn):
        return [], []
    first = next((s for s in own.declaration.steps if isinstance(s, tree.Draw)), None)
    if first is None:
        return [], []
    if first.span.file == e.span.file:
        return [Label(first.op_span, "the first draw inside it")], []
    return [], [f"the first draw inside it: `{el.text(first.span)}`"]


def _own_line(el: Elaborator, scope: Scope, e: tree.Call) -> list[Fix]:
    """A line above that draws, and its name in place of the call."""
    text = el.context.texts.get(e.span.file, "")
    start = el.line.span.start if el.line is not None else text.rfind("\n", 0, e.span.start) + 1
    indent = text[text.rfind("\n", 0, start) + 1 : start] if el.line is not None else ""
    if el.line is None:
        rest = text[start : e.span.start]
        indent = rest[: len(rest) - len(rest.lstrip())]
        start += len(indent)
    binders = [n for n, v in scope.names.items() if v.node is not None and v.node.op == "var"]
    if indent.strip() or any(builds.mentions(n, a.value) for n in binders for a in e.args):
        return []
    name = free_name(f"{e.fn}_drawn", [*scope.names, *scope.file.params, *scope.file.lets])
    above = Edit(Span(e.span.file, start, start), f"{name} ~ {el.text(e.span)}\n{indent}")
    return [Fix("draw it in a line above", (above, Edit(e.span, name)))]
