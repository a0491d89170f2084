"""Functions of a program or of std.pipe: inlined at each call, or checked alone where nobody calls them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import DTYPE_VARIABLES, I64, INTS, Type
from . import conform
from .graph import Node, node
from .scope import Function, Scope, Value, unknown
from .signatures import Given, all_scalars, arguments, dtype_of, passed

if TYPE_CHECKING:
    from .elaborate import Elaborator

DEEPEST = 60    # calls inside calls; only a circle or a very strange program has more


def call(el: Elaborator, scope: Scope, fn: Function, e: tree.Call, path: str | None = None) -> Value:
    """The value of a call; `path` is the draw path where the function draws."""
    if isinstance(fn.declaration, tree.Extern):
        from .calls import Opaque, opaque

        target = fn.declaration.target.value
        return opaque(el, scope, Opaque(fn.head, "extern", {"target": target}, f"extern {target}", fn.file), e)
    if fn in el.stack or len(el.stack) > DEEPEST:
        return _circle(el, scope, fn, e)
    given = arguments(el, scope, fn.head, e)
    if given is None:
        return unknown(e.span)
    if path is None and all_scalars(fn.head):
        values = {g.formal.name: el.expr(scope, g.value).at(g.span) for g in given if g.value is not None}
        if not all(v.known for v in values.values()):
            return unknown(e.span)
        if any(v.type.dims for v in values.values()):
            names = list(values)
            return el.lift(
                scope, e.span, list(values.values()),
                lambda each: _inline(el, scope, fn, e, given, dict(zip(names, each, strict=True))), f"`{fn.name}`",
            )
        return _inline(el, scope, fn, e, given, values)
    return _inline(el, scope, fn, e, given, None, path)


def _inline(
    el: Elaborator, scope: Scope, fn: Function, e: tree.Call, given: Sequence[Given], values: dict[str, Value] | None,
    path: str | None = None,
) -> Value:
    callee = Scope(
        fn.file, facts=scope.facts, path=path or scope.path, below_share=scope.below_share, indexes=scope.indexes,
        drawn=scope.drawn, sizes=scope.sizes, held=scope.held, function=fn, calls=(*scope.calls, (fn.name, e.span)),
    )
    if passed(el, scope, callee, fn.head, given, values) is None:
        return unknown(e.span)
    return body(el, callee, fn).at(e.span)


def body(el: Elaborator, callee: Scope, fn: Function) -> Value:
    """The lines of a function and its result, checked against the head."""
    assert isinstance(fn.declaration, tree.Fn)
    el.stack.append(fn)
    try:
        value: Value | None = None
        for step in fn.declaration.steps:
            match step:
                case tree.Bind():
                    el.bind(callee, step)
                case tree.Draw():
                    el.draw(callee, step)
                case tree.Value():
                    with el.at_line(step):
                        value = el.expr(callee, step.value)
        if fn.head.results:
            return _several(el, callee, fn)
        return _one(el, callee, fn, value)
    finally:
        el.stack.pop()


def _one(el: Elaborator, callee: Scope, fn: Function, value: Value | None) -> Value:
    written = fn.head.result
    assert written is not None
    if value is None:
        last = fn.declaration.steps[-1] if isinstance(fn.declaration, tree.Fn) and fn.declaration.steps else None
        span = last.span if last is not None else fn.head.span
        name = last.name if isinstance(last, (tree.Bind, tree.Draw)) else None
        fixes = [Fix(f"give `{name}`", (Edit(Span(span.file, span.end, span.end), f"\n  {name}"),))] if name else []
        return el.fail(callee, "E0122", f"the last line of `{fn.name}` is to be its value", span, "sets a name", fixes=fixes)
    return result(el, callee, written, value, value.span)


def result(el: Elaborator, callee: Scope, written: tree.TypeExpr, value: Value, span: Span) -> Value:
    """`value` as the type that a head promises."""
    if not conform.known_dtype(el, callee, written) or not value.known:
        return unknown(span)
    if value.type.missing and not written.missing:
        el.plain(callee, value, span, "the result")
        return unknown(span)
    word = callee.words.get(written.dtype)
    dtype = dtype_of(callee, written)
    if dtype in DTYPE_VARIABLES:
        fitted: Value | None = value
    elif word is not None and word.weak and value.type.weak and value.type.dtype == dtype:
        fitted = value
    elif written.dtype in ("num", "int") and dtype in INTS and value.type.dtype == "i64":
        fitted = value      # arithmetic on narrow integers is exact
    else:
        fitted = conform.as_written(el, callee, value, dtype, span, written.span)
    if fitted is None or not conform.unify(el, callee, written, fitted, span):
        return unknown(span)
    return fitted


def _several(el: Elaborator, callee: Scope, fn: Function) -> Value:
    parts: dict[str, Value] = {}
    for formal in fn.head.results:
        value = callee.names.get(formal.name)
        if value is None:
            el.problem(callee, "E0122", f"no line of `{fn.name}` sets its result `{formal.name}`", formal.name_span,
                       "promised here")
            return unknown(fn.head.span)
        parts[formal.name] = result(el, callee, formal.type, value, value.span)
    type = Type("struct", parts=tuple((name, v.type) for name, v in parts.items()))
    return Value(None, type, fn.head.span, parts)


def _circle(el: Elaborator, scope: Scope, fn: Function, e: tree.Call) -> Value:
    start = el.stack.index(fn) if fn in el.stack else 0
    names = [f.name for f in el.stack[start:]] + [fn.name]
    if frozenset(names) in el.circles:
        return unknown(e.span)
    if not el.silent:
        el.circles.add(frozenset(names))
    reasons = [Label(f.head.name_span, "part of the circle") for f in el.stack[start:] if f.head.name_span.file == e.span.file]
    return el.fail(
        scope, "E0127", f"`{fn.name}` calls itself", e.fn_span, " → ".join(names), reasons=reasons[:6],
        notes=["every program ends, so there is no recursion; a `for` with a size runs over places"],
    )


# --- alone --------------------------------------------------------------------------------------


def alone(el: Elaborator, fn: Function) -> None:
    """Check a function without a call: its sizes are unknowns that become equal where the body needs it."""
    scope = Scope(fn.file, path=fn.name, function=fn)
    el.flexible = {}
    try:
        formals = [*fn.head.formals, *fn.head.results] if isinstance(fn.declaration, tree.Extern) else fn.head.formals
        for formal in formals:
            scope.names[formal.name] = _unknown_argument(el, scope, fn, formal)
        if isinstance(fn.declaration, tree.Fn):
            body(el, scope, fn)
        elif fn.head.result is not None:
            conform.known_dtype(el, scope, fn.head.result, words=False)
    finally:
        el.flexible = {}


def _unknown_argument(el: Elaborator, scope: Scope, fn: Function, formal: tree.Formal) -> Value:
    written = formal.type
    if not conform.known_dtype(el, scope, written, words=not isinstance(fn.declaration, tree.Extern)):
        return unknown(formal.name_span)
    name = f"{fn.name}.{formal.name}"

    def free(axis: int) -> Node:
        made = node("extent", type=I64, field=name, axis=axis)
        el.flexible[made] = None
        return made

    dtype = written.dtype
    if dtype in DTYPE_VARIABLES:
        dtype = "i64" if dtype == "int" else "f32"
        scope.words[written.dtype] = Type(dtype)
    type = conform.type_of(el, scope, replace(written, dtype=dtype), free)
    if type.dtype == "unknown":
        return unknown(formal.name_span)
    made = node("field", type=type, name=name)
    el.flexible[made] = None
    if formal.default is not None:
        el.expr(scope, formal.default)
    return Value(made, type, formal.name_span)
