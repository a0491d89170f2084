"""From tree expressions to typed graph nodes: dispatch, names, lines, types, and the ground the other modules share.

`Elaborator(context)` reads expressions in a `Scope`. What fails is reported once and becomes an unknown `Value`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from ..dsl.types import BOOL, F32, I64, INTS, NUMBERS, WEAK_FLOAT, WEAK_INT, Type
from . import arithmetic, bounds, builds, calls, conform, functions, indexing, randomness, slips, templates
from .graph import Node, const, fresh_id, node, number, var, walk
from .promote import as_dim, cast, dim_node
from .scope import Context, Function, Scope, Value, unknown
from .universals import universals
from .words import default_text, described, type_text

MOST_EXPRESSIONS = 60_000


class Elaborator:
    """One per check; see the module. The methods below are what the modules beside this one build on."""

    def __init__(self, context: Context):
        self.context = context
        self.stack: list[Function] = []                     # functions being inlined
        self.items: dict[Node, tuple[Node, ...]] = {}       # a list's node → its scalars
        self.flexible: dict[Node, Node | int | None] = {}   # unknowns of a function that is checked alone
        self.stops: dict[Node, int | Node] = {}             # a binder → its range
        self.places: dict[Node, tuple[Span, str]] = {}      # nodes that reasons may point at
        self.line: tree.Bind | tree.Draw | tree.Value | None = None
        self.circles: set[frozenset[str]] = set()           # circles of functions that are reported
        self.work = 0                                       # expressions read, those of inlined bodies each time
        self.told_size = False
        self._quiet = 0

    # --- what streams and names call ------------------------------------------------------------

    def expr(self, scope: Scope, e: tree.Expr, expected: Type | None = None) -> Value:
        """The value of an expression; `expected` only lets a number without a type take its dtype."""
        self.work += 1
        if self.work > MOST_EXPRESSIONS:
            return self._too_large(scope, e)
        value = self._dispatch(scope, e)
        if expected is not None and value.node is not None and value.type.weak and not value.type.dims:
            value = self.adapt(value, expected.dtype)
        if value.node is not None and value.node.op != "const" and not self._quiet:
            self.context.made(value.node, e.span)
        return value

    def bind(self, scope: Scope, line: tree.Bind) -> None:
        """`name: type = value`: adds the name (and dimension names) to the scope."""
        with self.at_line(line):
            value = self.expr(scope, line.value)
            if line.type is not None:
                value = self.check_type(value, line.type, scope)
            scope.names[line.name] = value.at(line.name_span)

    def draw(self, scope: Scope, line: tree.Draw) -> None:
        """`name ~ distribution(…)`"""
        with self.at_line(line):
            value = randomness.draw(self, scope, line)
            if line.type is not None:
                value = self.check_type(value, line.type, scope)
            scope.names[line.name] = value.at(line.name_span)

    def condition(self, scope: Scope, e: tree.Expr) -> Value:
        """A scalar bool, as `where` and `check` need it."""
        value = self.expr(scope, e)
        if not value.known or not self.plain(scope, value, e.span, "a condition"):
            return unknown(e.span)
        if value.type != BOOL:
            self.not_a_condition(scope, value, e.span)
            return unknown(e.span)
        if value.node is not None:
            scope.held.extend(universals(value.node))
        return value

    def type_of(
        self, scope: Scope, written: tree.TypeExpr, bind_dims: Callable[[int], Node | int] | None = None
    ) -> Type:
        """The type as written. `bind_dims(axis)` gives the dimension for `_` and for a name met first (then bound)."""
        return conform.type_of(self, scope, written, bind_dims)

    def check_type(self, value: Value, written: tree.TypeExpr, scope: Scope) -> Value:
        """`value` if it has the written type (dimension names met first are bound), else a problem."""
        return conform.check_type(self, value, written, scope)

    def constant(self, scope: Scope, e: tree.Expr, expected: Type | None = None) -> Any:
        """The Python value of an expression that must be constant; None (reported) where it isn't. Lists for tensors."""
        value = self.constant_value(scope, e, expected)
        return None if value.node is None else python_value(value.node)

    def constant_value(self, scope: Scope, e: tree.Expr, expected: Type | None = None) -> Value:
        """The same as a `Value` whose node is a `const`: what a `let` or a param's default stands for."""
        value = self.expr(scope, e, expected)
        return templates.constant(self, scope, value, e.span)

    def function_alone(self, fn: Function) -> None:
        """Check a function that nobody calls, with dimensions that unify."""
        functions.alone(self, fn)

    # --- expressions ----------------------------------------------------------------------------

    def _dispatch(self, scope: Scope, e: tree.Expr) -> Value:
        match e:
            case tree.Name():
                return self.name(scope, e)
            case tree.Number():
                return literal(e)
            case tree.Truth():
                return Value(const(e.value, BOOL), BOOL, e.span)
            case tree.String():
                return templates.text(self, scope, e)
            case tree.Binary():
                return arithmetic.binary(self, scope, e)
            case tree.Unary():
                return arithmetic.unary(self, scope, e)
            case tree.Compare():
                return arithmetic.compare(self, scope, e)
            case tree.If():
                return arithmetic.choose(self, scope, e)
            case tree.Array():
                return builds.array(self, scope, e)
            case tree.Build():
                return builds.build(self, scope, e)
            case tree.Reduce():
                return builds.reduce(self, scope, e)
            case tree.At():
                return indexing.at(self, scope, e)
            case tree.Filled():
                return indexing.filled(self, scope, e)
            case tree.Part():
                return self.part(scope, e)
            case tree.Call():
                return calls.call(self, scope, e)
        raise TypeError(f"not an expression: {type(e).__name__}")

    def name(self, scope: Scope, e: tree.Name) -> Value:
        found = scope.names.get(e.id)
        if found is None:
            found = scope.file.value(e.id)
            if found is not None and e.id in scope.file.params and not self._quiet:
                self.context.param_uses.setdefault(scope.file.origin(e.id), []).append((e.span, scope.below_share))
        if found is None and e.id == "epoch":
            return Value(node("epoch", type=I64), WEAK_INT, e.span)
        if found is None:
            return slips.unknown_name(self, scope, e)
        return found.at(e.span)

    def part(self, scope: Scope, e: tree.Part) -> Value:
        slip = slips.attribute(self, scope, e)
        if slip is not None:
            return slip
        value = self.expr(scope, e.value)
        if not value.known:
            return unknown(e.span)
        if value.parts is not None:
            if e.name in value.parts:
                return value.parts[e.name].at(e.span)
        else:
            for name, type in value.type.parts:
                if name == e.name and value.node is not None:
                    return Value(node("part", value.node, type=type, name=name), type, e.span)
        return slips.no_part(self, scope, e, value)

    def _too_large(self, scope: Scope, e: tree.Expr) -> Value:
        """Functions that call functions many times over can make a short program endless."""
        if not self.told_size:
            self.told_size = True
            span = scope.calls[0][1] if scope.calls else e.span
            self.context.report(Problem("E0129", "this program is too large to be checked", span, "here it grows past all bounds",
                                        notes=(f"it comes to more than {MOST_EXPRESSIONS:,} expressions, calls written out",)))
        return unknown(e.span)

    # --- shared ground --------------------------------------------------------------------------

    @contextmanager
    def at_line(self, line: tree.Bind | tree.Draw | tree.Value) -> Iterator[None]:
        before, self.line = self.line, line
        try:
            yield
        finally:
            self.line = before

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Problems found inside aren't reported: for looking at types ahead of time."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    @property
    def silent(self) -> bool:
        return self._quiet > 0

    def problem(
        self, scope: Scope, code: str, title: str, span: Span, label: str = "", reasons: Sequence[Label] = (),
        notes: Sequence[str] = (), fixes: Sequence[Fix] = (),
    ) -> None:
        """Report a mistake. One inside the library, or that depends on a call, names the call."""
        if self._quiet:
            return
        library = scope.file.library is None and bool(scope.calls) and scope.calls[0][1].file != span.file
        if library:
            name, place = next((c for c in reversed(scope.calls) if c[1].file != span.file), scope.calls[0])
            notes = (*notes, f"inside `{name}`, at `{self.context.text(span) or '…'}`")
            self.context.report(Problem(code, title, place, f"in this call of `{name}`", notes=tuple(notes)))
            return
        if scope.calls:
            name, place = scope.calls[-1]
            notes = (*notes, f"met in the call `{_short(self.context.text(place)) or name}`")
        near = tuple(r for r in reasons if r.span.file == span.file)
        self.context.report(Problem(code, title, span, label, near, tuple(notes), tuple(fixes)))

    def fail(self, scope: Scope, code: str, title: str, span: Span, label: str = "", **more: Any) -> Value:
        self.problem(scope, code, title, span, label, **more)
        return unknown(span)

    def text(self, span: Span) -> str:
        return self.context.text(span)

    def outer(self, span: Span) -> Span:
        """A span with the brackets `(…)` around it: edits that cut must not leave one half."""
        text = self.context.texts.get(span.file, "")
        while True:
            before = len(text[: span.start].rstrip())
            after = span.end + len(text[span.end :]) - len(text[span.end :].lstrip())
            if before == 0 or text[before - 1] != "(" or text[after : after + 1] != ")":
                return span
            span = Span(span.file, before - 1, after + 1)

    def plain(self, scope: Scope, value: Value, span: Span, need: str) -> bool:
        """Is this a value that may be used: not missing, not several. `need` completes "… needs a value"."""
        if value.type.missing:
            self._missing(scope, value, span, need)
            return False
        return self.whole(scope, value, span)

    def whole(self, scope: Scope, value: Value, span: Span) -> bool:
        """Not several results at once."""
        names = [n for n, _ in value.type.parts] or list(value.parts or ())
        if value.type.dtype != "struct":
            return True
        what = _short(self.text(span)) or "this"
        fixes = [Fix(f"take `{n}`", (Edit(Span(span.file, span.end, span.end), f".{n}"),)) for n in names[:1]]
        self.problem(scope, "E0207", f"`{what}` is several values, and one is needed", span,
                     "has " + ", ".join(f"`.{n}`" for n in names), fixes=fixes)
        return False

    def _missing(self, scope: Scope, value: Value, span: Span, need: str) -> None:
        what = _short(self.text(span)) or "this"
        default = default_text(value.type)
        edit = Edit(Span(span.file, span.end, span.end), f" ?? {default}")
        self.problem(
            scope, "E0205", f"`{what}` may be missing, and {need} needs a value", span, type_text(scope, value.type),
            reasons=self.gap_reasons(value), fixes=[Fix("say what stands in for a gap", (edit,))],
        )

    def gap_reasons(self, value: Value) -> list[Label]:
        """Where a `?` comes from, if that is a declared column or annotation."""
        if value.node is None:
            return []
        for n in walk(value.node):
            written = self.context.types.get(n)
            if written is not None and written.missing:
                at = Span(written.span.file, written.dtype_span.start, written.dtype_span.end + 1)
                return [Label(at, "`?` lets this have gaps")]
        return []

    def not_a_condition(self, scope: Scope, value: Value, span: Span) -> None:
        if value.type.dtype == "bool":
            what = _short(self.text(span))
            fixes = [Fix("all of them must hold", (Edit(span, f"all({self.text(span)})"),))]
            self.problem(scope, "E0202", f"`{what}` is many conditions, and one is needed", span,
                         type_text(scope, value.type), notes=["`all(…)` or `any(…)` makes one of them"], fixes=fixes)
            return
        fixes = []
        if value.type.dtype in NUMBERS and not value.type.dims:
            fixes = [Fix("compare it", (Edit(span, f"{self.text(span)} != 0"),))]
        self.problem(scope, "E0202", "a condition is true or false", span, described(scope, value.type), fixes=fixes)

    # nodes

    def adapt(self, value: Value, dtype: str) -> Value:
        """A scalar (or constant tensor) as `dtype`, exactly or to the nearest float."""
        if value.node is None or (value.type.dtype == dtype and not value.type.weak):
            return value
        if value.type.dtype not in (*NUMBERS, "bool") or dtype not in (*NUMBERS, "bool"):
            return value
        if dtype in INTS and value.type.dtype not in (*INTS, "bool"):
            return value
        made = cast(value.node, dtype)
        return replace(value, node=made, type=replace(value.type, dtype=dtype, weak=False))

    def scalar(self, value: Value, dtype: str) -> Node:
        """The node of a scalar value, cast to `dtype`."""
        assert value.node is not None
        return cast(value.node, dtype)

    def tensor(self, value: Value, dtype: str) -> Value:
        """A value of any rank with its elements cast to `dtype`."""
        if value.node is None or value.type.dtype == dtype:
            return value if not value.type.weak else replace(value, type=value.type.strong())
        if not value.type.dims or value.node.op == "const":
            return self.adapt(value, dtype)
        return self.each(value.type.dims, value.span, lambda at: self.adapt(self.element(value, at), dtype))

    def element(self, value: Value, at: Sequence[Node], guard: bool = False) -> Value:
        """One element, all indexes given (and known to be inside, or guarded)."""
        assert value.node is not None
        t = value.node
        type = replace(value.type, dims=(), missing=value.type.missing or guard)
        items = self.items.get(t)
        certain = not guard and all(
            i.op == "const" and isinstance(d, int) and 0 <= i["value"] < d for i, d in zip(at, t.type.dims, strict=True)
        )
        if items is not None and certain:
            return Value(items[at[0]["value"]], type, value.span)
        if t.op == "const" and certain:
            flat = 0
            for i, d in zip(at, t.type.dims, strict=True):
                flat = flat * d + i["value"]
            return Value(const(t["value"][flat], t.type.element), type, value.span)
        made = node("index", t, *at, type=replace(t.type, dims=(), missing=type.missing), guard=guard)
        return Value(made, type, value.span)

    def variables(self, dims: Sequence[int | Node]) -> list[Node]:
        """New binders over these dimensions."""
        made = [var(fresh_id()) for _ in dims]
        for v, d in zip(made, dims, strict=True):
            self.stops[v] = d
        return made

    def each(self, dims: Sequence[int | Node], span: Span, body: Callable[[list[Node]], Value]) -> Value:
        """The tensor whose element at each place is `body(place)`."""
        at = self.variables(dims)
        return self.built(body(at), dims, at, span)

    def built(self, body: Value, dims: Sequence[int | Node], at: Sequence[Node], span: Span) -> Value:
        if body.node is None:
            return unknown(span)
        n = body.node
        type = replace(body.type, dims=(*dims, *body.type.dims))
        if n.op == "index" and not n["guard"] and n.args[1:] == tuple(at) and n.args[0].type.dims == tuple(dims):
            whole = n.args[0]
            if not any(x in at for x in walk(whole)):
                return Value(whole, type, span)
        made = node("build", n, *(dim_node(d) for d in dims), ids=tuple(v["id"] for v in at),
                    type=n.type.with_dims((*dims, *n.type.dims)))
        return Value(made, type, span)

    def lift(self, scope: Scope, span: Span, values: Sequence[Value], make: Callable[[list[Value]], Value], what: str) -> Value:
        """`make` of scalars, applied element by element where some of the values are tensors of one shape."""
        if not any(v.type.dims for v in values):
            return make(list(values))
        dims = self.common_dims(scope, span, values, what)
        if dims is None:
            return unknown(span)
        return self.each(dims, span, lambda at: make([self.element(v, at) if v.type.dims else v for v in values]))

    # dimensions

    def common_dims(self, scope: Scope, span: Span, values: Sequence[Value], what: str) -> tuple[int | Node, ...] | None:
        """The one shape of the tensors among these values; E0203 where they differ."""
        tensors = [v for v in values if v.type.dims]
        first = tensors[0].type.dims
        for other in tensors[1:]:
            dims = other.type.dims
            alike = len(dims) == len(first) and all(
                self.same_size(scope, a, b, span) for a, b in zip(first, dims, strict=True)
            )
            if not alike:
                arithmetic.shapes_differ(self, scope, span, tensors, what)
                return None
        return tuple(self.settled(d) for d in first)

    def settled(self, dim: int | Node) -> int | Node:
        """What a flexible dimension turned out to be."""
        while not isinstance(dim, int) and self.flexible.get(dim) is not None:
            dim = self.flexible[dim]  # type: ignore[assignment]
        return dim

    def equal(self, a: int | Node, b: int | Node) -> bool | None:
        """Are two sizes equal: yes, no, or not known before the program runs. Flexible ones become equal."""
        a, b = self.settled(a), self.settled(b)
        if a is b or a == b:
            return True
        for x, y in ((a, b), (b, a)):
            if not isinstance(x, int) and x in self.flexible:
                self.flexible[x] = y
                return True
        if isinstance(a, int) and isinstance(b, int):
            return False
        if bounds.equal(a, b):
            return True
        x, y = dim_node(a), dim_node(b)
        if bounds.less(x, y, bounds.Facts()) or bounds.less(y, x, bounds.Facts()):
            return False
        if self.loose(x) or self.loose(y):
            return True
        return None

    def same_size(self, scope: Scope, a: int | Node, b: int | Node, span: Span) -> bool:
        """As `equal`; what can only be known at run time is put down to be checked for each record."""
        answer = self.equal(a, b)
        if answer is not None:
            return answer
        x, y = dim_node(a), dim_node(b)
        if any(n.op == "var" for n in walk(x, y)):
            return False
        facts = scope.facts or bounds.Facts()
        condition = node("apply", x, y, type=BOOL, fn="eq")
        if bounds.contradicts(condition, facts):
            return False
        if not self._quiet and not any(s[:2] == (x, y) for s in scope.sizes):
            scope.sizes.append((x, y, span))
            scope.facts = facts.given(condition)
        return True

    def loose(self, n: Node) -> bool:
        """Does this depend on what a function checked alone doesn't know."""
        return bool(self.flexible) and any(x in self.flexible for x in walk(n))

    def facts(self, scope: Scope) -> bounds.Facts:
        return scope.facts or bounds.Facts()

    def assuming(self, scope: Scope, condition: Node, holds: bool = True) -> Scope:
        """A scope that stands under a condition."""
        if not holds:
            condition = node("apply", condition, type=BOOL, fn="not")
        return scope.child(facts=self.facts(scope).given(condition))

    def size(self, scope: Scope, value: Value) -> int | Node:
        """A whole number as a dimension; below 0 counts as 0."""
        dim = as_dim(self.scalar(value, "i64"))
        if isinstance(dim, int):
            return max(dim, 0)
        if self.loose(dim) or bounds.at_most(number(0), dim, self.facts(scope)):
            return dim
        return node("apply", dim, number(0), type=I64, fn="max")


def literal(e: tree.Number) -> Value:
    if isinstance(e.value, float):
        return Value(const(e.value, F32), WEAK_FLOAT, e.span)
    if e.value > 2**63 - 1:
        return Value(const(e.value, Type("u64")), Type("u64"), e.span)
    return Value(number(e.value), WEAK_INT, e.span)


def python_value(n: Node) -> Any:
    """A `const` as Python has it: nested lists for tensors."""
    if not n.type.dims:
        return n["value"]
    flat = list(n["value"])
    for size in reversed(n.type.dims[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)] if size else []
    return flat


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"

