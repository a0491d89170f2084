"""The files of a program and what their names mean: `use`, duplicates, params with their overrides, lets, the pipeline to run.

In: the path of a file and `name=value` overrides. Out: `Module`s whose `FileScope`s the elaborator reads.
"""
from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..dsl import parse, tree
from ..dsl.problems import Edit, Fix, Label, PipeError, Problem, Span
from ..dsl.types import Type
from .elaborate import Elaborator
from .graph import node
from .params import ParamError, from_default, from_override, placeholder
from .scope import Context, FileScope, Function, Scope, Value, unknown
from .words import listed, similar

LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dsl", "std.pipe")
NAMED = (tree.Param, tree.Let, tree.Schema, tree.Fn, tree.Extern, tree.Pipeline)


@dataclass(frozen=True)
class Declared:
    """A schema or pipeline and the file whose names it sees."""

    declaration: Any
    module: Module


@dataclass(eq=False)
class Module:
    """One file. `own` are its declarations by name; `brought` (module, declaration of `use`) by name."""

    path: str
    file: tree.File
    scope: FileScope
    own: dict[str, Any] = field(default_factory=dict)
    brought: dict[str, tuple[Module, tree.Use]] = field(default_factory=dict)
    seed: tree.Seed | None = None

    def owner(self, name: str) -> Module | None:
        """The module that declares what `name` means here."""
        if name in self.own:
            return self
        found = self.brought.get(name)
        return found[0].owner(name) if found else None

    def declaration(self, name: str) -> Any:
        owner = self.owner(name)
        return owner.own[name] if owner else None

    def visible(self) -> list[str]:
        return [*self.own, *self.brought]


@dataclass(frozen=True)
class ParamAt:
    """A param: where it is declared, and its name in the run file (None: it can't be set from there)."""

    module: Module
    declaration: tree.Param
    name: str | None

    @property
    def key(self) -> tuple[str, str]:
        return (self.module.path, self.declaration.name)


def name_of(declaration: Any) -> str:
    return declaration.head.name if isinstance(declaration, tree.Fn | tree.Extern) else declaration.name


def name_span(declaration: Any) -> Span:
    return declaration.head.name_span if isinstance(declaration, tree.Fn | tree.Extern) else declaration.name_span


KIND = {tree.Param: "param", tree.Let: "let", tree.Schema: "schema", tree.Fn: "fn", tree.Extern: "extern fn",
        tree.Pipeline: "pipeline"}


def kind_of(declaration: Any) -> str:
    return KIND[type(declaration)]


def parts_of(thing: Any) -> Iterator[Any]:
    """Every tree node in `thing`, itself included."""
    stack = [thing]
    while stack:
        part = stack.pop()
        if isinstance(part, tuple):
            stack.extend(part)
        elif dataclasses.is_dataclass(part) and not isinstance(part, Span | type):
            yield part
            stack.extend(getattr(part, f.name) for f in dataclasses.fields(part))


def mentions(thing: Any) -> set[str]:
    """Names that occur in a piece of the tree: values and functions."""
    found: set[str] = set()
    for part in parts_of(thing):
        if isinstance(part, tree.Name):
            found.add(part.id)
        elif isinstance(part, tree.Call | tree.Reduce):
            found.add(part.fn)
    return found


class Files:
    """All files of one check, read once each."""

    def __init__(self, context: Context):
        self.context = context
        self.modules: dict[str, Module] = {}          # real path → module
        self.opening: list[tuple[str, str]] = []      # (real path, path as shown) of files being read
        self.lost: set[tuple[str, str]] = set()       # (path, name) that `use` could not bring in
        self.library = self._library()

    def open(self, path: str, text: str | None = None) -> Module:
        """The run file and, before it, every file it uses. Raises PipeError where a file has syntax problems."""
        return self._open(path, text)

    def _library(self) -> FileScope:
        scope = FileScope(LIBRARY)
        file = _library_tree()
        if file is not None:
            self.context.texts[LIBRARY] = file.text
            module = Module(LIBRARY, file, scope)
            self._declare(module)
            self.library_module: Module | None = module
        else:
            self.library_module = None
        return scope

    def _open(self, path: str, text: str | None) -> Module:
        real = os.path.realpath(path)
        if real in self.modules:
            return self.modules[real]
        if text is None:
            text = parse.read(path)
        self.context.texts[path] = text
        file = parse.parse(text, path)
        module = Module(path, file, FileScope(path, library=self.library))
        self.opening.append((real, path))
        try:
            self._declare(module)
        finally:
            self.opening.pop()
        self.modules[real] = module
        return module

    def _declare(self, module: Module) -> None:
        for declaration in module.file.declarations:
            match declaration:
                case tree.Use():
                    self._use(module, declaration)
                case tree.Seed():
                    self._seed(module, declaration)
                case _:
                    self._own(module, declaration)

    def _own(self, module: Module, declaration: Any) -> None:
        name = name_of(declaration)
        if self._taken(module, name, name_span(declaration)):
            return
        module.own[name] = declaration
        match declaration:
            case tree.Fn() | tree.Extern():
                module.scope.fns[name] = Function(declaration, module.scope)
            case tree.Schema():
                module.scope.schemas[name] = Declared(declaration, module)
            case tree.Pipeline():
                module.scope.pipelines[name] = Declared(declaration, module)

    def _taken(self, module: Module, name: str, span: Span) -> bool:
        """Report a name that is declared twice in one file."""
        if name in module.own:
            first = name_span(module.own[name])
        elif name in module.brought:
            first = module.scope.uses[name]
        else:
            return False
        what = f"`{name}` is declared twice"
        self.context.report(Problem("E0113", what, span, "a second time", (Label(first, "first here"),),
                                    ("a name means one thing in a whole file",)))
        return True

    def _seed(self, module: Module, declaration: tree.Seed) -> None:
        if module.seed is not None:
            line = self._whole_lines(declaration.span)
            self.context.report(Problem(
                "E0113", "`seed` is declared twice", declaration.span, "a second time",
                (Label(module.seed.span, "first here"),), (), (Fix("keep one", (Edit(line, ""),)),)))
            return
        module.seed = declaration

    def _whole_lines(self, span: Span) -> Span:
        """The lines that a span touches, with the last line's end."""
        return whole_lines(self.context.texts.get(span.file, ""), span)

    # --- use ----------------------------------------------------------------------------------

    def _use(self, module: Module, use: tree.Use) -> None:
        target = self._target(module, use)
        for name in use.names:
            if target is None:
                self._failed(module, name, use)
            elif name.id not in target.own and name.id not in target.brought:
                self._unknown_name(module, target, name, use)
            elif not self._taken(module, name.id, name.span):
                self._bring(module, target, name, use)

    def _target(self, module: Module, use: tree.Use) -> Module | None:
        shown = os.path.normpath(os.path.join(os.path.dirname(module.path), use.path.value))
        real = os.path.realpath(shown)
        if real in [r for r, _ in self.opening]:
            self._circle(module, use, real, shown)
            return None
        if not os.path.exists(shown):
            self._no_file(use, shown)
            return None
        try:
            return self._open(shown, None)
        except PipeError as error:
            self.context.texts.update(error.texts)
            for problem in error.problems:
                self.context.report(problem)
            return None

    def _circle(self, module: Module, use: tree.Use, real: str, shown: str) -> None:
        reals = [r for r, _ in self.opening]
        start = reals.index(real)
        names = [os.path.basename(p) for _, p in self.opening[start:]] + [os.path.basename(shown)]
        self.context.report(Problem(
            "E0111", f"`{os.path.basename(module.path)}` uses itself" if len(names) == 2
            else "these files use each other in a circle", use.path.span, "leads back to where it started", (),
            (f"the circle: {' → '.join(names)}", "move what they share into a file of its own")))

    def _no_file(self, use: tree.Use, shown: str) -> None:
        folder = os.path.dirname(shown) or "."
        there = [f for f in os.listdir(folder) if f.endswith(".pipe")] if os.path.isdir(folder) else []
        alike = similar(os.path.basename(shown), there)
        prefix = use.path.value[: len(use.path.value) - len(os.path.basename(use.path.value))]
        fixes = (Fix("a file with a similar name exists", (Edit(use.path.span, f'"{prefix}{alike}"'),)),) if alike else ()
        notes = () if alike else noted(f"files in `{folder}`", there)
        self.context.report(Problem("E0110", f"there is no file `{shown}`", use.path.span,
                                    "not found, seen from this file", (), notes, fixes))

    def _unknown_name(self, module: Module, target: Module, name: tree.Name, use: tree.Use) -> None:
        alike = similar(name.id, target.visible())
        fixes = (Fix("a declaration with a similar name exists", (Edit(name.span, alike),)),) if alike else ()
        notes = () if alike else noted(f"`{use.path.value}` declares", target.visible())
        self.context.report(Problem("E0112", f"`{use.path.value}` declares no `{name.id}`", name.span,
                                    "not found there", (), notes, fixes))
        self._failed(module, name, use)

    def _failed(self, module: Module, name: tree.Name, use: tree.Use) -> None:
        """A name that could not be brought in agrees with everything, so that it gives no second message."""
        module.scope.lets.setdefault(name.id, unknown(name.span))
        self.lost.add((module.path, name.id))

    def _bring(self, module: Module, target: Module, name: tree.Name, use: tree.Use) -> None:
        module.brought[name.id] = (target, use)
        here, there = module.scope, target.scope
        here.uses[name.id] = name.span
        for kind in ("fns", "schemas", "pipelines"):
            if name.id in getattr(there, kind):
                getattr(here, kind)[name.id] = getattr(there, kind)[name.id]
        owner = target.owner(name.id)
        if owner is not None and isinstance(owner.own[name.id], tree.Param):
            here.origins[name.id] = (owner.path, name.id)


@lru_cache(maxsize=1)
def _library_tree() -> tree.File | None:
    if not os.path.exists(LIBRARY):
        return None
    return parse.parse(parse.read(LIBRARY), LIBRARY)


def noted(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """A note that lists names, where they are few enough."""
    shown = listed(names)
    return (f"{what}: {shown}",) if shown else ()


def whole_lines(text: str, span: Span) -> Span:
    """The lines that a span touches, with the last line's end."""
    start = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.end)
    return Span(span.file, start, len(text) if end < 0 else end + 1)


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


# --- which pipeline is run --------------------------------------------------------------------


def used_pipelines(module: Module, declaration: tree.Pipeline) -> list[tuple[str, Span]]:
    """Names of pipelines that a pipeline's `from`, `mix`, `zip` and `sample` mention, with the places."""
    found: list[tuple[str, Span]] = []
    for line in declaration.lines:
        start: Any = None
        if isinstance(line, tree.From):
            start = line.source
        elif isinstance(line, tree.Draw) and line.call.fn == "sample":
            start = tuple(a.value for a in line.call.args)
        elif isinstance(line, tree.Stage) and line.call.fn in ("mix", "zip"):
            start = line.call
        for part in parts_of(start) if start is not None else ():
            if isinstance(part, tree.Name) and part.id in module.scope.pipelines:
                found.append((part.id, part.span))
            elif isinstance(part, tree.Call) and part.fn in module.scope.pipelines:
                found.append((part.fn, part.fn_span))
    return found


def pipeline_circles(context: Context, main: Module) -> set[str]:
    """Pipelines that use themselves through others; one report per circle."""
    bad: set[str] = set()
    edges = {n: used_pipelines(m.module, m.declaration) for n, m in main.scope.pipelines.items()}

    def visit(name: str, trail: list[tuple[str, Span]]) -> None:
        for other, span in edges.get(name, ()):
            names = [n for n, _ in trail]
            if other in names:
                circle = names[names.index(other):]
                if not bad.issuperset(circle):
                    bad.update(circle)
                    context.report(Problem("E0116", f"pipeline `{other}` reads from itself", span, "", (),
                                           (f"the circle: {' → '.join([*circle, other])}",)))
            elif other not in bad:
                visit(other, [*trail, (other, span)])

    for name, found in main.scope.pipelines.items():
        if name not in bad:
            visit(name, [(name, found.declaration.name_span)])
    return bad


def choose(context: Context, main: Module, run: str | None, any_will_do: bool = False) -> str | None:
    """The pipeline to run: the one named, else the only one of this file that no other uses. Reports E0115.

    `any_will_do`: where several could be run, take the first, since nothing is going to run."""
    own = [n for n, d in main.own.items() if isinstance(d, tree.Pipeline)]
    everywhere = list(main.scope.pipelines)
    if run is not None:
        if run in everywhere:
            return run
        alike = similar(run, everywhere)
        note = (f"`{alike}` has a similar name",) if alike else ()
        context.report(Problem("E0115", f"this file has no pipeline `{run}`", Span(main.path, 0, 0), "", (),
                               (*note, f"its pipelines: {', '.join(everywhere) or 'none'}")))
        return None
    used = {n for name in own for n, _ in used_pipelines(main, main.own[name])}
    free = [n for n in own if n not in used and not main.own[n].formals] or [n for n in own if n not in used]
    if len(free) == 1 or (free and any_will_do):
        return free[0]
    if not own:
        context.report(Problem("E0115", "this file has no pipeline, so there is nothing to run", Span(main.path, 0, 0)))
    elif free:
        name = os.path.basename(main.path)
        spans = [main.own[n].name_span for n in free]
        context.report(Problem(
            "E0115", f"there are {len(free)} pipelines that could be run", spans[1], "",
            tuple(Label(s, "or this one" if k else "this one") for k, s in enumerate(spans) if k != 1),
            (f"say which: {', '.join(f'{name}:{n}' for n in free)}",)))
    return None

