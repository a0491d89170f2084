"""Arguments against a head: positional, named and default ones; words like `num`; dimensions bound in the callee."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import DTYPE_VARIABLES, FLOATS, Type
from . import conform
from .graph import Node
from .promote import one_dtype
from .scope import Scope, Value
from .words import counted, described, dim_text, free_name, similar, type_text

if TYPE_CHECKING:
    from ..kernels.ops import Operator
    from .elaborate import Elaborator


@cache
def head_of(text: str) -> tree.Head:
    """An operator's head, parsed once."""
    from ..dsl.parse import parse_head

    return parse_head(text)


@cache
def operators() -> dict[str, Operator]:
    """The registry, with the modules that fill it imported."""
    from ..kernels.ops import OPERATORS, Registry

    for module in Registry.modules:
        import_module(f"{__package__.rpartition('.')[0]}.kernels.{module}")
    return OPERATORS


@dataclass(frozen=True)
class Given:
    """One argument as it was written; `value` is None where the default stands."""

    formal: tree.Formal
    value: tree.Expr | None
    span: Span
    call: tree.Call | None = None


def arguments(el: Elaborator, scope: Scope, head: tree.Head, e: tree.Call) -> list[Given] | None:
    """Which argument goes where; None after a problem."""
    places = {f.name: f for f in head.formals}
    found: dict[str, tree.Argument] = {}
    ok = True
    positional = [a for a in e.args if a.name is None]
    for i, a in enumerate(positional):
        if i >= len(head.formals):
            _too_many(el, scope, head, e, positional)
            ok = False
            break
        found[head.formals[i].name] = a
    for a in e.args:
        if a.name is None:
            continue
        if a.name not in places:
            _unknown(el, scope, head, a, found)
            ok = False
        elif a.name in found:
            _twice(el, scope, e, a)
            ok = False
        else:
            found[a.name] = a
    lacking = [f for f in head.formals if f.name not in found and f.default is None]
    if lacking and ok:
        _lacking(el, scope, head, e, lacking)
        ok = False
    if not ok:
        for a in e.args:        # other mistakes inside are told as well
            el.expr(scope, a.value)
        return None
    return [
        Given(f, found[f.name].value, found[f.name].value.span, e) if f.name in found else Given(f, None, e.span)
        for f in head.formals
    ]


def _too_many(el: Elaborator, scope: Scope, head: tree.Head, e: tree.Call, positional: Sequence[tree.Argument]) -> None:
    most = len(head.formals)
    first, last = positional[most], positional[-1]
    start = el.outer(positional[most - 1].span).end if most else first.span.start
    named_between = any(a.name is not None and first.span.start < a.span.start < last.span.start for a in e.args)
    end = el.outer(last.span).end if most else last.span.end
    fixes = [] if named_between else [Fix("leave it out", (Edit(Span(e.span.file, start, end), ""),))]
    takes = counted(most, "argument") if most else "no arguments"
    el.problem(scope, "E0123", f"`{head.name}` takes {takes}", first.span, f"number {most + 1}",
               notes=[signature(head)], fixes=fixes)


def _unknown(el: Elaborator, scope: Scope, head: tree.Head, a: tree.Argument, found: dict[str, tree.Argument]) -> None:
    assert a.name is not None
    free = [f.name for f in head.formals if f.name not in found]
    near = similar(a.name, free) or next((n for n in free if n.startswith(a.name)), None)
    near = near or (free[0] if len(free) == 1 else None)
    place = Span(a.span.file, a.span.start, a.span.start + len(a.name))
    fixes = [Fix(f"write `{near}`", (Edit(place, near),))] if near else []
    el.problem(scope, "E0121", f"`{head.name}` has no argument `{a.name}`", place, "not one of its arguments",
               notes=[signature(head)], fixes=fixes)


def _twice(el: Elaborator, scope: Scope, e: tree.Call, a: tree.Argument) -> None:
    before = max((el.outer(x.span).end for x in e.args if x.span.end <= a.span.start), default=a.span.start)
    fixes = [Fix("keep the first", (Edit(Span(a.span.file, before, a.span.end), ""),))]
    el.problem(scope, "E0123", f"`{a.name}` is given twice", a.span, "a second time", fixes=fixes)


def _lacking(el: Elaborator, scope: Scope, head: tree.Head, e: tree.Call, lacking: Sequence[tree.Formal]) -> None:
    names = " and ".join(f"`{f.name}`" for f in lacking)
    el.problem(scope, "E0122", f"`{head.name}` needs {names}", e.fn_span.to(e.span), "not given", notes=[signature(head)])


def signature(head: tree.Head) -> str:
    """For notes: `resize(img, box, height, width, filter=…)`."""
    parts = [f.name if f.default is None else f"{f.name}=…" for f in head.formals]
    return f"it is {head.name}({', '.join(parts)})"


# --- values -------------------------------------------------------------------------------------


def passed(
    el: Elaborator, scope: Scope, callee: Scope, head: tree.Head, given: Sequence[Given],
    evaluated: dict[str, Value] | None = None,
) -> dict[str, Value] | None:
    """The values of the arguments, with the dtypes the head asks for, and bound as names of `callee`.

    `evaluated` are values known already. Words are left in `callee.words`, dimensions in `callee.dims`.
    """
    values: dict[str, Value] = {}
    failed = False
    for g in given:
        value = _value(el, scope, callee, g, evaluated or {})
        values[g.formal.name] = value
        callee.names[g.formal.name] = value
        failed = failed or not value.known
    if failed:
        return None
    for g in given:
        if not _present(el, scope, head, g, values[g.formal.name]):
            return None
    if not _words(el, scope, callee, head, given, values):
        return None
    for g in given:
        dtype = dtype_of(callee, g.formal.type)
        what = f"`{g.formal.name}` of `{head.name}`"
        if _scaled_already(el, scope, g, values[g.formal.name], dtype, what):
            return None
        fitted = conform.as_written(el, scope, values[g.formal.name], dtype, g.span, _at(g.formal), what)
        if fitted is None:
            return None
        values[g.formal.name] = fitted
        callee.names[g.formal.name] = fitted
    return values if _dims(el, scope, callee, given, values) else None


def _value(el: Elaborator, scope: Scope, callee: Scope, g: Given, evaluated: dict[str, Value]) -> Value:
    if g.formal.name in evaluated:
        return evaluated[g.formal.name]
    if g.value is not None:
        return el.expr(scope, g.value).at(g.span)
    assert g.formal.default is not None
    return el.expr(callee, g.formal.default).at(g.span)


def _scaled_already(el: Elaborator, scope: Scope, g: Given, value: Value, dtype: str, what: str) -> bool:
    """`normalize(image / 255, …)`: a function of u8 images does that itself, and rounding to u8 would leave 0 and 1."""
    e = g.value
    if dtype != "u8" or not isinstance(e, tree.Binary) or e.op != "/" or value.type.dtype not in FLOATS:
        return False
    with el.quietly():
        left = el.expr(scope, e.left)
    if left.type.dtype != "u8":
        return False
    el.problem(scope, "E0201", f"{what} is u8, and this is {value.type.dtype}", g.span, described(scope, value.type),
               fixes=[Fix("give it the u8 values", (Edit(g.span, el.text(e.left.span)),))])
    return True


def _at(formal: tree.Formal) -> Span | None:
    """Where a formal's type stands, if that is in a program."""
    return formal.type.span if formal.type.span.file not in ("<head>", "") else None


def _present(el: Elaborator, scope: Scope, head: tree.Head, g: Given, value: Value) -> bool:
    if value.type.missing and not g.formal.type.missing:
        return el.plain(scope, value, g.span, f"`{head.name}`")
    return el.whole(scope, value, g.span)


def _words(
    el: Elaborator, scope: Scope, callee: Scope, head: tree.Head, given: Sequence[Given], values: dict[str, Value]
) -> bool:
    for word in dict.fromkeys(g.formal.type.dtype for g in given if g.formal.type.dtype in DTYPE_VARIABLES):
        mine = [g for g in given if g.formal.type.dtype == word]
        types = [values[g.formal.name].type.element for g in mine]
        found = one_dtype(types, word)
        if found is None:
            _unfit(el, scope, head, word, mine, values)
            return False
        callee.words[word] = found
    return True


def _unfit(
    el: Elaborator, scope: Scope, head: tree.Head, word: str, mine: Sequence[Given], values: dict[str, Value]
) -> None:
    needs = {"any": "values of one kind", "num": "numbers", "int": "whole numbers", "float": "numbers"}[word]
    bad = next((g for g in mine if one_dtype([values[g.formal.name].type.element], word) is None), mine[0])
    value = values[bad.formal.name]
    fixes = []
    if value.type.dtype == "bool" and word != "any":
        fixes = [Fix("count true as 1 and false as 0", (Edit(bad.span, f"i32({el.text(bad.span)})"),))]
    elif word == "int" and value.type.dtype in DTYPE_VARIABLES["float"]:
        fixes = [Fix("cut the fraction off", (Edit(bad.span, f"i64({el.text(bad.span)})"),))]
    reasons = [Label(g.span, described(scope, values[g.formal.name].type)) for g in mine if g is not bad]
    el.problem(scope, "E0202", f"`{head.name}` needs {needs}", bad.span, described(scope, value.type),
               reasons=reasons, fixes=fixes)


def dtype_of(callee: Scope, written: tree.TypeExpr) -> str:
    found = callee.words.get(written.dtype)
    return found.dtype if found is not None else written.dtype


def _dims(
    el: Elaborator, scope: Scope, callee: Scope, given: Sequence[Given], values: dict[str, Value]
) -> bool:
    """Names met alone are bound first, so that expressions like `2 * n` may stand before them."""
    for g in given:
        value, written = values[g.formal.name], g.formal.type
        wanted, dims = written.dims, value.type.dims
        if len(dims) < len(wanted) or (len(dims) > len(wanted) and not written.rest):
            wrong_rank(el, scope, callee, g, value)
            return False
        if written.rest and len(wanted) > 1 and _a_batch_of_them(scope, value, len(wanted)):
            _one_for_each(el, scope, g, value)
            return False
        for e, dim in zip(wanted, dims, strict=False):
            if isinstance(e, tree.Name) and e.id != "_" and e.id not in callee.dims and callee.look_up(e.id) is None:
                conform.bind_name(el, callee, e.id, el.settled(dim), e.span)
    for g in given:
        if not _compare(el, scope, callee, g, values[g.formal.name]):
            return False
    scope.facts = callee.facts
    return True


def _a_batch_of_them(scope: Scope, value: Value, wanted: int) -> bool:
    """Does the first dimension count records, where a function asks for [h, w, ...] and would take it for a height?"""
    dims, node = value.type.dims, value.node
    if scope.count is None or scope.function is not None or node is None or len(dims) <= wanted:
        return False
    if isinstance(scope.count, int):     # a number proves little: the other dimensions may be as large
        return dims[0] == scope.count and node.op == "field" and len(dims) > wanted + 1
    return dims[0] is scope.count


def _one_for_each(el: Elaborator, scope: Scope, g: Given, value: Value) -> None:
    fixes = []
    if g.call is not None and isinstance(g.value, tree.Name | tree.Part):
        b = free_name("b", [*scope.names, *scope.file.params, *scope.file.lets])
        text, start, end = el.text(g.call.span), g.span.start - g.call.span.start, g.span.end - g.call.span.start
        made = f"[{text[:start]}{text[start:end]}[{b}]{text[end:]} for {b}]"
        fixes = [Fix("one for each record", (Edit(g.call.span, made),))]
    asked = _a(conform.head_type(g.formal.type))
    el.problem(scope, "E0204", f"`{g.formal.name}` is {asked}, and this is a batch of them", g.span,
               type_text(scope, value.type), notes=["above `batch` there is one"], fixes=fixes)


def _compare(el: Elaborator, scope: Scope, callee: Scope, g: Given, value: Value) -> bool:
    written = g.formal.type
    for e, dim in zip(written.dims, value.type.dims, strict=False):
        if isinstance(e, tree.Name) and e.id == "_":
            continue
        known = conform.size_of(el, callee, e)
        if known is None:
            return False
        if not el.same_size(callee, known, dim, g.span):
            wrong_size(el, scope, callee, g, e, known, value)
            return False
    if written.rest:
        rest = tuple(value.type.dims[len(written.dims) :])
        if callee.rest is None:
            callee.rest = rest
        elif len(rest) != len(callee.rest) or not all(
            el.same_size(callee, a, b, g.span) for a, b in zip(callee.rest, rest, strict=True)
        ):
            wrong_rank(el, scope, callee, g, value)
            return False
    return True


def wrong_rank(el: Elaborator, scope: Scope, callee: Scope, g: Given, value: Value) -> None:
    asked = conform.head_type(g.formal.type)
    at = _at(g.formal)
    what = f"`{g.formal.name}`"
    notes = []
    if not g.formal.type.dims and value.type.dims:
        notes = [f"for each of them, write `[… {el.text(g.span)}[i] … for i]`"]
    el.problem(scope, "E0204", f"{what} is {_a(asked)}, and this is {_a(type_text(scope, value.type))}", g.span,
               type_text(scope, value.type), reasons=[Label(at, "asked for")] if at else [], notes=notes)


def _a(text: str) -> str:
    return f"`{text}`" if "[" in text else f"one {text}"


def wrong_size(
    el: Elaborator, scope: Scope, callee: Scope, g: Given, e: tree.Expr, known: int | Node, value: Value
) -> None:
    asked, at = conform.head_type(g.formal.type), _at(g.formal)
    name = e.id if isinstance(e, tree.Name) else el.text(e.span) or str(known)
    size = dim_text(scope, known)
    note = f"`{name}` is {size} here" if size not in ("_", name) else ""
    el.problem(scope, "E0204", f"`{g.formal.name}` is `{asked}`, and this is `{type_text(scope, value.type)}`", g.span,
               type_text(scope, value.type), reasons=[Label(at, "asked for")] if at else [], notes=[note] if note else [])


# --- results ------------------------------------------------------------------------------------


def result_type(
    el: Elaborator, callee: Scope, written: tree.TypeExpr, unnamed: Callable[[int], int | Node]
) -> Type | None:
    """The type of a result; `unnamed(axis)` gives the sizes that the head's arguments don't."""
    word = callee.words.get(written.dtype)
    dims: list[int | Node] = []
    for axis, e in enumerate(written.dims):
        alone = isinstance(e, tree.Name) and (e.id == "_" or (e.id not in callee.dims and callee.look_up(e.id) is None))
        if alone:
            assert isinstance(e, tree.Name)
            dims.append(unnamed(axis))
            if e.id != "_":
                callee.dims[e.id] = dims[-1]
            continue
        dim = conform.size_of(el, callee, e)
        if dim is None:
            return None
        dims.append(max(dim, 0) if isinstance(dim, int) else dim)
    if written.rest:
        dims += list(callee.rest or ())
    weak = bool(word is not None and word.weak)
    return Type(word.dtype if word else written.dtype, tuple(dims), written.missing, weak)


def all_scalars(head: tree.Head) -> bool:
    """Parameters and the one result are scalars: it applies to tensors element by element."""
    return head.result is not None and not head.result.dims and not head.result.rest and all(
        not f.type.dims and not f.type.rest for f in head.formals
    )

