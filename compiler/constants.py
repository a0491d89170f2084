"""Params and lets of all files as constants: overrides, defaults, what is required, what a trainer may set below `share`."""
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from ..dsl.types import Type
from ..runtime.settings import ParamError
from .elaborate import Elaborator
from .graph import node
from .names import LIBRARY, Files, Module, mentions
from .params import from_default, from_override, placeholder
from .scope import Scope, Value, unknown
from .words import similar


@dataclass(frozen=True)
class ParamAt:
    """A param: where it is declared, and its name in the run file (None: it can't be set from there)."""

    module: Module
    declaration: tree.Param
    name: str | None

    @property
    def key(self) -> tuple[str, str]:
        return (self.module.path, self.declaration.name)


class Constants:
    """Evaluates the params and lets of all files, used files first, and remembers what may be set."""

    def __init__(self, files: Files, main: Module, elaborator: Elaborator, overrides: Mapping[str, Any],
                 complete: bool = True):
        self.files, self.main, self.elaborator, self.complete = files, main, elaborator, complete
        self.context = files.context
        self.overrides: dict[tuple[str, str], Any] = {}
        self.params = self._settable()
        self.values: dict[tuple[str, str], Any] = {}     # param → Python value, None where it has none
        self.types: dict[tuple[str, str], Type] = {}
        self.missing: list[ParamAt] = []
        self._opened: list[tuple[ParamAt, Value]] = []
        self.seed = main.seed.value if main.seed else None
        self._take(overrides)

    def _settable(self) -> list[ParamAt]:
        """Params of the run file, its own and those imported by name, then all others."""
        found: dict[tuple[str, str], ParamAt] = {}
        for name in [n for d in self.main.file.declarations for n in _names_in_order(d)]:
            owner = self.main.owner(name)
            if owner is not None and isinstance(owner.own[name], tree.Param):
                found.setdefault((owner.path, name), ParamAt(owner, owner.own[name], name))
        for module in self._all():
            for name, declaration in module.own.items():
                if isinstance(declaration, tree.Param):
                    found.setdefault((module.path, name), ParamAt(module, declaration, None))
        return list(found.values())

    def _all(self) -> list[Module]:
        library = [self.files.library_module] if self.files.library_module else []
        return [*library, *self.files.modules.values()]

    def _take(self, overrides: Mapping[str, Any]) -> None:
        by_name = {p.name: p for p in self.params if p.name is not None}
        for name, value in overrides.items():
            if name == "seed" and "seed" not in by_name:
                self._set_seed(value)
            elif name in by_name:
                self.overrides[by_name[name].key] = value
            else:
                self._no_param(name, list(by_name))

    def _set_seed(self, value: Any) -> None:
        try:
            self.seed = int(str(value).replace("_", "")) if not isinstance(value, bool | float) else int("x")
        except ValueError:
            span = self.main.seed.span if self.main.seed else Span(self.main.path, 0, 0)
            self.context.report(Problem("E0704", f"`seed` must be a whole number, not `{value}`", span))

    def _no_param(self, name: str, known: list[str]) -> None:
        alike = similar(name, known)
        hidden = [p for p in self.params if p.name is None and p.declaration.name == name and p.module.path != LIBRARY]
        notes = (f"`{alike}` is a param with a similar name",) if alike else ()
        if hidden:
            via = os.path.basename(hidden[0].module.path)
            notes = (f"`{via}` has such a param; import it by name to set it: use {name} from \"{via}\"",)
        params = ", ".join(known) if known else "none"
        self.context.report(Problem("E0703", f"this program has no param `{name}`", Span(self.main.path, 0, 0), "", (),
                                    (*notes, f"its params: {params}")))

    # --- values -------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Fill `params` and `lets` of every file's scope."""
        for module in self._all():
            scope = Scope(module.scope)
            for name, (target, _) in module.brought.items():
                self._copy(module, target, name)
            for declaration in self._in_order(module):
                if isinstance(declaration, tree.Let):
                    module.scope.lets[declaration.name] = self._let(scope, declaration)
                else:
                    module.scope.params[declaration.name] = self._param(scope, module, declaration)

    def _copy(self, module: Module, target: Module, name: str) -> None:
        for kind in ("params", "lets"):
            found = getattr(target.scope, kind).get(name)
            if found is not None:
                getattr(module.scope, kind)[name] = found

    def _in_order(self, module: Module) -> list[Any]:
        """Lets and params, each after those it mentions, also inside the functions it calls; circles are reported."""
        wanted = {n: d for n, d in module.own.items() if isinstance(d, tree.Let | tree.Param)}
        order: list[Any] = []
        state: dict[str, int] = {}

        def visit(name: str, trail: list[str]) -> None:
            declaration = module.own.get(name)
            if declaration is None or state.get(name) == 2 or isinstance(declaration, tree.Schema | tree.Pipeline):
                return
            if state.get(name) == 1:
                circle = trail[trail.index(name):]
                if any(n in wanted for n in circle):
                    self._constant_circle(module, [*circle, name], wanted)
                return
            state[name] = 1
            for other in sorted(mentions(_right_side(declaration))):
                if other != name or name in wanted:
                    visit(other, [*trail, name])
            state[name] = 2
            if name in wanted:
                order.append(declaration)

        for name in wanted:
            visit(name, [])
        return order

    def _constant_circle(self, module: Module, circle: list[str], wanted: dict[str, Any]) -> None:
        first = next(n for n in circle if n in wanted)
        module.scope.lets.setdefault(first, unknown(wanted[first].span))
        self.context.report(Problem("E0118", f"`{first}` depends on itself", wanted[first].name_span, "", (),
                                    (f"the circle: {' → '.join(circle)}",)))

    def _let(self, scope: Scope, declaration: tree.Let) -> Value:
        value = self.elaborator.expr(scope, declaration.value)
        if not value.known:
            return unknown(declaration.name_span)
        found = self.elaborator.constant(scope, declaration.value)
        if found is None:
            return unknown(declaration.name_span)
        return from_default(found, value.type, declaration.name_span)

    def _param(self, scope: Scope, module: Module, declaration: tree.Param) -> Value:
        here = next(p for p in self.params if p.key == (module.path, declaration.name))
        declared = self._declared_type(scope, declaration)
        if declared is None:
            return unknown(declaration.name_span)
        value: Value | None = None
        if declaration.default is not None:
            value = self._default(scope, declaration, declared if declaration.type else None)
        if here.key in self.overrides:
            base = declared if declaration.type else _of_any_size(value.type) if value is not None else declared
            value = self._override(here, base) or value
        if value is None:
            return self._required(here, declared)
        self.types[here.key] = value.type
        self.values[here.key] = value.node["value"] if value.node is not None else None
        return value

    def _declared_type(self, scope: Scope, declaration: tree.Param) -> Type | None:
        if declaration.type is None and declaration.default is None:
            self.context.report(Problem(
                "E0705", f"`{declaration.name}` needs a type or a default", declaration.name_span,
                "neither is given", (), ("a param without a default must be set by whoever runs the program",),
                (Fix("give its type", (Edit(_after(declaration.name_span), ": i64"),)),)))
            return None
        if declaration.type is None:
            return Type("unknown")
        declared = self.elaborator.type_of(scope, declaration.type)
        return None if declared.dtype == "unknown" else declared

    def _default(self, scope: Scope, declaration: tree.Param, declared: Type | None) -> Value:
        assert declaration.default is not None
        found = self.elaborator.expr(scope, declaration.default)
        value = self.elaborator.constant(scope, declaration.default) if found.known else None
        if value is None:
            return unknown(declaration.name_span)
        try:
            return from_default(value, declared or found.type, declaration.name_span)
        except ParamError as error:
            self.context.report(Problem("E0705", f"the default of `{declaration.name}` {error}",
                                        declaration.default.span, "", (
                                            Label(declaration.type.span, "declared here"),) if declaration.type else ()))
            return unknown(declaration.name_span)

    def _override(self, here: ParamAt, base: Type) -> Value | None:
        given = self.overrides[here.key]
        if base.dtype == "unknown":
            return None
        try:
            return from_override(given, base, here.declaration.name_span)
        except ParamError as error:
            self.context.report(Problem("E0704", f"`{here.name}` {error}", here.declaration.name_span,
                                        here.declaration.help))
            return None

    def _required(self, here: ParamAt, declared: Type) -> Value:
        self.missing.append(here)
        self.types[here.key] = declared
        self.values[here.key] = None
        if self.complete and here.name is not None:
            help_text = f"  # {here.declaration.help}" if here.declaration.help else ""
            self.context.report(Problem(
                "E0701", f"`{here.name}` must be set: it has no default", here.declaration.name_span, "", (),
                (f"on the command line: {here.name}=…{help_text}", f"in Python: pipec.open(…, {here.name}=…)")))
            return unknown(here.declaration.name_span)
        return placeholder(here.declaration.name, declared, here.declaration.name_span)

    # --- params that each trainer may set (rule 7) -----------------------------------------------

    def open(self, uses: Mapping[tuple[str, str], list[tuple[Span, bool]]]) -> None:
        """From here on, params that no line above used are `param` nodes of which only the declaration is known."""
        for param in self.params:
            value = self._value(param)
            if param.name is None or value is None or value.node is None or uses.get(param.key) or value.node.type.dtype in (
                    "text", "path", "bytes"):
                continue
            made = Value(node("param", type=value.type.strong(), name=param.name), value.type, value.span)
            self._opened.append((param, value))
            self._everywhere(param, made)

    def close(self) -> None:
        """All params are constants again."""
        for param, value in self._opened:
            self._everywhere(param, value)
        self._opened.clear()

    def _value(self, param: ParamAt) -> Value | None:
        return param.module.scope.params.get(param.declaration.name)

    def _everywhere(self, param: ParamAt, value: Value) -> None:
        for module in self._all():
            for name in module.scope.params:
                if module.scope.origin(name) == param.key:
                    module.scope.params[name] = value

    def unimported(self) -> None:
        """Report required params of used files that this program needs and the run file did not import."""
        if not self.complete:
            return
        for param in self.missing:
            if param.name is None and self.context.param_uses.get(param.key):
                self._unimported(param)

    def _unimported(self, param: ParamAt) -> None:
        use = next((d for d in self.main.file.declarations if isinstance(d, tree.Use)
                    and any(self.main.brought.get(n.id, (None,))[0] is not None
                            and self._leads(self.main.brought[n.id][0], param.module)
                            for n in d.names if n.id in self.main.brought)), None)
        span = use.path.span if use else Span(self.main.path, 0, 0)
        name = param.declaration.name
        direct = use is not None and self.main.brought[use.names[0].id][0] is param.module
        fixes = (Fix("import it by name", (Edit(_after(use.names[-1].span), f", {name}"),)),) if use and direct else ()
        self.context.report(Problem(
            "E0708", f"what is used from here needs the param `{name}`, which has no default", span, "",
            (Label(param.declaration.name_span, "declared here, without a default"),),
            ("a param of another file can be set only if it is imported by name",), fixes))

    def _leads(self, start: Module, goal: Module) -> bool:
        return start is goal or any(self._leads(m, goal) for m, _ in start.brought.values())


def _names_in_order(declaration: Any) -> list[str]:
    match declaration:
        case tree.Use(names=names):
            return [n.id for n in names]
        case tree.Param(name=name):
            return [name]
        case _:
            return []


def _right_side(declaration: Any) -> Any:
    match declaration:
        case tree.Let(value=value):
            return value
        case tree.Param(type=type, default=default):
            return (type, default)
        case _:
            return declaration


def _of_any_size(type: Type) -> Type:
    """A list without a declared type may be set to one of another length."""
    return type.with_dims(tuple("_" for _ in type.dims))


def _after(span: Span) -> Span:
    return Span(span.file, span.end, span.end)
