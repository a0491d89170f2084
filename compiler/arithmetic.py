"""Operators and `if`: from their operands to scalar nodes, element by element where operands are tensors."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import BOOL, INT_RANGE, INTS, NUMBERS, Type
from . import bounds, reindex, slips
from .graph import Node, const
from .promote import agree, apply, as_dtype, can_fail, conjunction, is_const, meet, select
from .scope import Scope, Value, unknown
from .words import described, type_text

if TYPE_CHECKING:
    from .elaborate import Elaborator

FUNCTIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "^": "pow"}
COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
LOGICAL = {"and", "or"}
LARGEST = 2**47


# --- + - * / // % ^ -----------------------------------------------------------------------------


def binary(el: Elaborator, scope: Scope, e: tree.Binary) -> Value:
    if e.op in LOGICAL:
        return _logical(el, scope, e)
    operands = [el.expr(scope, e.left), el.expr(scope, e.right)]
    if not all(v.known for v in operands):
        return unknown(e.span)
    if not all([el.plain(scope, v, x.span, f"`{e.op}`") for v, x in zip(operands, (e.left, e.right), strict=True)]):
        return unknown(e.span)
    common = meet([v.type.element for v in operands])
    if common is None:
        return _not_numbers(el, scope, f"`{e.op}`", operands, (e.left, e.right), e.span)
    if e.op == "/" and common.dtype in INTS:
        common = Type("f32", weak=common.weak)
    if e.op in ("//", "%") and common.dtype in INTS and not _divisor(el, scope, operands[1], e):
        return unknown(e.span)
    result = el.lift(scope, e.span, operands, lambda two: _applied(el, FUNCTIONS[e.op], two, common, e.span), f"`{e.op}`")
    if e.op == "^" and common.dtype in INTS:
        return _power(el, scope, e, operands[1], result)
    return result


def _applied(el: Elaborator, fn: str, operands: Sequence[Value], common: Type, span: Span) -> Value:
    made = apply(fn, *(el.scalar(v, common.dtype) for v in operands), dtype=common.dtype)
    if not el.silent:
        el.context.made(made, span)
    return Value(made, common, span)


def _divisor(el: Elaborator, scope: Scope, value: Value, e: tree.Binary) -> bool:
    """Integer divisors must provably not be 0; True unless that is reported."""
    sample = el.element(value, el.variables(value.type.dims)) if value.type.dims else value
    n = el.scalar(sample, "i64")
    if bounds.nonzero(n, el.facts(scope)) or el.loose(n):
        return True
    what = el.text(e.right.span)
    if is_const(n):
        el.problem(scope, "E0405", f"`{e.op}` can't divide by 0", e.right.span, "this is 0")
        return False
    low, high = bounds.interval(n, el.facts(scope))
    fixes = []
    if low >= 0 and not value.type.dims:
        fixes = [Fix("let 1 be the least", (Edit(e.right.span, f"max({what}, 1)"),))]
    elif not value.type.dims:
        fixes = [Fix("divide only where it isn't 0", (Edit(e.span, f"(if {what} != 0 then {el.text(e.span)} else 0)"),))]
    el.problem(scope, "E0405", f"`{what}` may be 0, and `{e.op}` divides by it", e.right.span,
               indexing_range(low, high), reasons=reasons(el, scope, n, e.right.span),
               notes=[] if fixes else ["`check(…)`, `where` or `if` above it can rule 0 out"], fixes=fixes)
    return False


def _power(el: Elaborator, scope: Scope, e: tree.Binary, exponent: Value, result: Value) -> Value:
    sample = el.element(exponent, el.variables(exponent.type.dims)) if exponent.type.dims else exponent
    n = el.scalar(sample, "i64")
    if bounds.interval(n, el.facts(scope))[1] < 0:
        edit = Edit(e.left.span, f"f32({el.text(e.left.span)})")
        return el.fail(scope, "E0202", "a whole number to a power below 0 is a fraction", e.span,
                       fixes=[Fix("start from a fraction", (edit,))])
    return result


def _not_numbers(
    el: Elaborator, scope: Scope, need: str, operands: Sequence[Value], written: Sequence[tree.Expr], span: Span
) -> Value:
    """E0202: arithmetic on truths, texts and bytes."""
    for value, e in zip(operands, written, strict=True):
        if value.type.dtype in NUMBERS:
            continue
        fixes = []
        if value.type.dtype == "bool":
            fixes = [Fix("count true as 1 and false as 0", (Edit(e.span, f"i32({el.text(e.span)})"),))]
        return el.fail(scope, "E0202", f"{need} needs numbers", e.span, described(scope, value.type), fixes=fixes)
    return unknown(span)


def unary(el: Elaborator, scope: Scope, e: tree.Unary) -> Value:
    value = el.expr(scope, e.value)
    if not value.known or not el.plain(scope, value, e.value.span, f"`{e.op}`"):
        return unknown(e.span)
    if e.op == "not":
        if value.type.dtype != "bool":
            return _not_truths(el, scope, e.op, value, e.value)
        return el.lift(scope, e.span, [value], lambda one: _applied(el, "not", one, BOOL, e.span), "`not`")
    common = meet([value.type.element])
    if common is None:
        return _not_numbers(el, scope, "`-`", [value], [e.value], e.span)
    if value.node is not None and is_const(value.node):
        return Value(_negative(value.node, common), common, e.span)
    return el.lift(scope, e.span, [value], lambda one: _applied(el, "neg", one, common, e.span), "`-`")


def _negative(n: Node, common: Type) -> Node:
    if common.dtype in INTS:
        return apply("neg", const(as_dtype(n["value"], common.dtype), Type(common.dtype)), dtype=common.dtype)
    return const(-float(n["value"]), Type(common.dtype))


# --- and or not, comparisons ----------------------------------------------------------------------


def _not_truths(
    el: Elaborator, scope: Scope, op: str, value: Value, e: tree.Expr, beside: tree.Expr | None = None
) -> Value:
    """`beside`: what stands on the other side of `op`."""
    fixes = []
    if isinstance(beside, tree.Binary):
        beside = beside.right
    if isinstance(e, tree.Number) and isinstance(beside, tree.Compare) and len(beside.ops) == 1:     # `x == 1 or 2`
        edit = f"{el.text(beside.operands[0].span)} {beside.ops[0]} {el.text(e.span)}"
        fixes = [Fix("compare it, too", (Edit(e.span, edit),))]
    elif value.type.dtype in NUMBERS:
        simple = isinstance(e, (tree.Name, tree.Call, tree.At, tree.Part, tree.Number))
        edit = f"{el.text(e.span)} != 0" if simple and op != "not" else f"({el.text(e.span)} != 0)"
        fixes = [Fix("compare it", (Edit(e.span, edit),))]
    return el.fail(scope, "E0202", f"`{op}` joins conditions", e.span, described(scope, value.type), fixes=fixes)


def _logical(el: Elaborator, scope: Scope, e: tree.Binary) -> Value:
    left = el.expr(scope, e.left)
    inner = scope
    if left.node is not None and left.type == BOOL:
        inner = el.assuming(scope, left.node, e.op == "and")
    right = el.expr(inner, e.right)
    for value, side in ((left, e.left), (right, e.right)):
        if not value.known or not el.plain(scope, value, side.span, f"`{e.op}`"):
            return unknown(e.span)
        if value.type.dtype != "bool":
            return _not_truths(el, scope, e.op, value, side, e.left if side is e.right else None)

    def both(two: list[Value]) -> Value:
        a, b = (v.node for v in two)
        assert a is not None and b is not None
        if e.op == "and":
            return Value(conjunction((a, b)), BOOL, e.span)
        made = select(a, const(True, BOOL), b) if can_fail(b) else apply("or", a, b, dtype="bool")
        return Value(made, BOOL, e.span)

    return el.lift(scope, e.span, [left, right], both, f"`{e.op}`")


def compare(el: Elaborator, scope: Scope, e: tree.Compare) -> Value:
    slip = slips.compared_with_none(el, scope, e)
    if slip is not None:
        return slip
    operands = [el.expr(scope, x) for x in e.operands]
    if not all(v.known for v in operands):
        return unknown(e.span)
    for value, x in zip(operands, e.operands, strict=True):
        if not el.plain(scope, value, x.span, f"`{e.ops[0]}`"):
            return unknown(e.span)
    for i, op in enumerate(e.ops):
        if not _comparable(el, scope, op, operands[i : i + 2], e.operands[i : i + 2], e.span):
            return unknown(e.span)

    def chain(each: list[Value]) -> Value:
        pairs = [_compared(el, COMPARISONS[op], each[i], each[i + 1]) for i, op in enumerate(e.ops)]
        return Value(conjunction(pairs), BOOL, e.span)

    return el.lift(scope, e.span, operands, chain, f"`{e.ops[0]}`")


def _compared(el: Elaborator, fn: str, a: Value, b: Value) -> Node:
    common = meet([a.type, b.type])
    if common is None:
        assert a.node is not None and b.node is not None
        return apply(fn, a.node, b.node, dtype="bool")
    return apply(fn, el.scalar(a, common.dtype), el.scalar(b, common.dtype), dtype="bool")


def _comparable(
    el: Elaborator, scope: Scope, op: str, values: Sequence[Value], written: Sequence[tree.Expr], span: Span
) -> bool:
    types = [v.type.element for v in values]
    if meet(types) is not None:
        return True
    kinds = {("text" if t.dtype == "path" else t.dtype) for t in types}
    if len(kinds) > 1:
        labels = [Label(x.span, described(scope, v.type)) for v, x in zip(values, written, strict=True)]
        el.problem(scope, "E0202", f"`{op}` compares values of one kind", span, reasons=labels)
        return False
    if op in ("==", "!=") or kinds <= {"text", "bytes"}:
        return True
    fixes = []
    if kinds == {"bool"}:
        fixes = [Fix("count true as 1 and false as 0", tuple(Edit(x.span, f"i32({el.text(x.span)})") for x in written))]
    el.problem(scope, "E0202", f"`{op}` compares numbers", written[0].span, described(scope, values[0].type), fixes=fixes)
    return False


# --- if -------------------------------------------------------------------------------------------


def choose(el: Elaborator, scope: Scope, e: tree.If) -> Value:
    condition = el.expr(scope, e.condition)
    yes = no = scope
    if condition.node is not None and condition.type == BOOL:
        yes, no = el.assuming(scope, condition.node), el.assuming(scope, condition.node, False)
    branches = [el.expr(yes, e.then), el.expr(no, e.other)]
    if not condition.known or not all(v.known for v in branches):
        return unknown(e.span)
    if not el.plain(scope, condition, e.condition.span, "a condition"):
        return unknown(e.span)
    if condition.type.dtype != "bool":
        el.not_a_condition(scope, condition, e.condition.span)
        return unknown(e.span)
    if not all([el.plain(scope, v, x.span, "`if`") for v, x in zip(branches, (e.then, e.other), strict=True)]):
        return unknown(e.span)
    common = chosen_type(el, scope, branches)
    if common is None:
        labels = [Label(x.span, described(scope, v.type)) for v, x in zip(branches, (e.then, e.other), strict=True)]
        return el.fail(scope, "E0202", "both branches of an `if` give the same kind of value", e.span, reasons=labels)
    if condition.node is not None and is_const(condition.node):
        taken = branches[0] if condition.node["value"] else branches[1]
        made = el.tensor(taken, common.dtype)
        return Value(made.node, Type(common.dtype, made.type.dims, weak=common.weak), e.span)

    def one(three: list[Value]) -> Value:
        c, a, b = three
        assert c.node is not None
        return Value(select(c.node, el.scalar(a, common.dtype), el.scalar(b, common.dtype)), common, e.span)

    return el.lift(scope, e.span, [condition, *branches], one, "`if`")


def chosen_type(el: Elaborator, scope: Scope, values: Sequence[Value]) -> Type | None:
    """The dtype of one among several values: a dtype is kept unless a number doesn't fit it, then it is i64."""
    common = agree([v.type.element for v in values])
    if common is None or common.weak or common.dtype not in INTS:
        return common
    return common if all(fits(el, scope, v, common.dtype) for v in values if v.type.weak) else Type("i64")


def fits(el: Elaborator, scope: Scope, value: Value, dtype: str) -> bool:
    """Does a whole number certainly lie in the range of an integer dtype."""
    if value.node is None:
        return True
    low, high = INT_RANGE[dtype]
    if value.node.op == "const":
        numbers = value.node["value"] if value.type.dims else (value.node["value"],)
        return all(low <= n <= high for n in numbers)
    sample = el.element(value, el.variables(value.type.dims)) if value.type.dims else value
    assert sample.node is not None
    least, most = bounds.interval(sample.node, el.facts(scope))
    return low <= least and most <= high


# --- messages -------------------------------------------------------------------------------------


def shapes_differ(el: Elaborator, scope: Scope, span: Span, tensors: Sequence[Value], what: str) -> None:
    """E0203, with the expression rewritten through named indexes where that is possible."""
    if el.silent:
        return
    labels = [Label(v.span, type_text(scope, v.type)) for v in tensors if v.span.start >= span.start]
    fix = reindex.through_indexes(el, scope, span)
    el.problem(
        scope, "E0203", f"{what} needs two tensors of the same shape, or a scalar", span, "these shapes differ", reasons=labels,
        notes=["only a scalar spreads over a tensor; unlike shapes meet through named indexes"],
        fixes=[fix] if fix else [],
    )


def indexing_range(low: float, high: float) -> str:
    """`0 to 31`, `-4 or more`, for labels; "" where nothing is known."""
    inf = float("inf")
    if high >= LARGEST:     # a size or an integer of which nothing is known
        high = inf
    if low <= -LARGEST:
        low = -inf
    if low == -inf and high == inf:
        return ""
    if high == inf:
        return f"{low} or more"
    if low == -inf:
        return f"{high} or less"
    return str(low) if low == high else f"{low} to {high}"


def reasons(el: Elaborator, scope: Scope, n: Node, main: Span) -> list[Label]:
    """The ranges of what an integer is made of, where they are known and have a place."""
    from .graph import walk

    found: list[Label] = []
    for part in walk(n):
        place = el.places.get(part)
        if place is None or place[0].file != main.file or place[0] == main:
            continue
        text = indexing_range(*bounds.interval(part, el.facts(scope))) or place[1]
        if text:
            found.append(Label(place[0], text))
    return list({label.span: label for label in found}.values())

