"""The files of a program and what their names mean: `use`, duplicates, params with their overrides, lets, the pipeline to run.

In: the path of a file and `name=value` overrides. Out: `Module`s whose `FileScope`s the elaborator reads.
"""
from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..dsl import parse, tree
from ..dsl.problems import Edit, Fix, Label, PipeError, Problem, Span
from .scope import Context, FileScope, Function, unknown
from .words import listed, similar

LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dsl", "std.pipe")


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
        context.report(Problem("E0115", "this file has no pipeline, so there is nothing to run", Span(main.path, 0, 0), "", (),
                               ("a pipeline begins with `pipeline NAME`, and its lines stand below, indented by two spaces",)))
    elif free:
        name = os.path.basename(main.path)
        spans = [main.own[n].name_span for n in free]
        context.report(Problem(
            "E0115", f"there are {len(free)} pipelines that could be run", spans[1], "",
            tuple(Label(s, "or this one" if k else "this one") for k, s in enumerate(spans) if k != 1),
            (f"say which: {', '.join(f'{name}:{n}' for n in free)}",)))
    return None

