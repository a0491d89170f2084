"""Constants: texts with `{…}` in them, and expressions that must be known when the program is checked."""
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..dsl import tree
from ..dsl.problems import PipeError, Span
from ..dsl.types import TEXT
from . import folding
from .graph import const
from .scope import Scope, Value, unknown
from .words import described

if TYPE_CHECKING:
    from .elaborate import Elaborator

_HOLE = re.compile(r"\{([^{}\"]*)\}")
_OPENING = "let x = "


def text(el: Elaborator, scope: Scope, e: tree.String) -> Value:
    """A text; `{…}` holds a constant expression, `{a..b}` stays (with its ends evaluated)."""
    if "{" not in e.value:
        return Value(const(e.value, TEXT), TEXT, e.span)
    parts: list[str] = []
    at = 0
    for hole in _HOLE.finditer(e.value):
        parts.append(e.value[at : hole.start()])
        at = hole.end()
        filled = _hole(el, scope, e, hole)
        if filled is None:
            return unknown(e.span)
        parts.append(filled)
    parts.append(e.value[at:])
    return Value(const("".join(parts), TEXT), TEXT, e.span)


def _hole(el: Elaborator, scope: Scope, e: tree.String, hole: re.Match[str]) -> str | None:
    inner = hole.group(1)
    first, dots, last = inner.partition("..")
    if not dots:
        return _shown(_part(el, scope, e, inner, hole.start(1)))
    ends = [_part(el, scope, e, first, hole.start(1)), _part(el, scope, e, last, hole.start(1) + len(first) + 2)]
    if any(x is None for x in ends):
        return None
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in ends):
        el.problem(scope, "E0128", "a range in a text has whole ends", _place(el, e, hole.start(), hole.end()),
                   "`{1..3}`, for instance")
        return None
    widths = {len(first.strip()), len(last.strip())}
    keep = first.strip().isdigit() and last.strip().isdigit() and len(widths) == 1
    return "{" + (f"{first.strip()}..{last.strip()}" if keep else f"{ends[0]}..{ends[1]}") + "}"


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _part(el: Elaborator, scope: Scope, e: tree.String, inner: str, at: int) -> Any:
    """The value of the expression in a hole; None after a problem."""
    span = _place(el, e, at, at + len(inner))
    parsed = _parsed(inner.strip(), span, len(inner) - len(inner.lstrip()))
    if parsed is None:
        el.problem(scope, "E0128", "this isn't an expression", span, "inside `{…}` of a text",
                   notes=["`{…}` in a text holds a constant expression, `{a..b}` a range of numbers"])
        return None
    value = el.constant(scope, parsed)
    if isinstance(value, list):
        el.problem(scope, "E0128", "only one value can stand in a text", span, "a list")
        return None
    return value


def _parsed(inner: str, span: Span, lead: int) -> tree.Expr | None:
    """Parsed at its own place in the file: the text before it is blank."""
    from ..dsl.parse import parse

    if not inner or "\n" in inner or "#" in inner:
        return None
    start = span.start + lead
    padded = _OPENING + " " * max(start - len(_OPENING), 0) + inner
    try:
        declared = parse(padded, span.file).declarations
    except PipeError:
        return None
    only = declared[0] if len(declared) == 1 else None
    return only.value if isinstance(only, tree.Let) else None


def _place(el: Elaborator, e: tree.String, start: int, end: int) -> Span:
    """Where characters of a text's value stand in the file; the whole text where escapes make that unclear."""
    written = el.text(e.span)
    if written[1:-1] != e.value:
        return e.span
    return Span(e.span.file, e.span.start + 1 + start, e.span.start + 1 + end)


def constant(el: Elaborator, scope: Scope, value: Value, span: Span) -> Value:
    """The value as a constant; E0212 where it depends on a record, a draw, the epoch or a param that may still be set."""
    if not value.known:
        return unknown(span)
    if value.node is None:
        el.whole(scope, value, span)
        return unknown(span)
    if value.node.op == "const":
        return value
    folded = folding.fold(value.node)
    if folded is not None:
        return Value(folded, value.type, span)
    reason = folding.obstacle(value.node)
    return el.fail(scope, "E0212", "this must be known before the program runs", span, reason or described(scope, value.type),
                   notes=["numbers, lets and params may stand here"])
