"""Check a whole program: files, names, functions, pipelines. Out: the graph of its one run, or every problem in file order."""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, PipeError, Problem, Span
from ..dsl.types import Type
from ..runtime.settings import shown
from . import bounds
from .constants import Constants
from .elaborate import Elaborator
from .graph import Node, ParamInfo, Program, walk
from .names import Declared, Files, Module, choose, pipeline_circles, used_pipelines
from .params import placeholder
from .scope import Context, Function, Scope, Value
from .streams import Pipelines
from .weights import misplaced

RANDOM = ("draw", "shuffle", "balance", "sample")


def check(path: str, overrides: Mapping[str, Any] | None = None, run: str | None = None, text: str | None = None,
          complete: bool = True) -> Program:
    """The checked program of a file's one run. Raises PipeError with all problems.

    With `complete` false, required params need no values: what `pipec check` and editors ask for.
    """
    return Check(path, overrides or {}, run, text, complete).program()


@dataclass(frozen=True)
class Outline:
    """What a command line shows of a file: its params with help, its pipelines, the one that is run (None: name one)."""

    params: tuple[ParamInfo, ...]
    required: tuple[str, ...]
    pipelines: tuple[str, ...]
    run: str | None
    seed: int | None


def outline(path: str, text: str | None = None) -> Outline:
    """The params of a file, also where its lines have mistakes. Raises PipeError where its names can't be read."""
    work = Check(path, {}, None, text, complete=False)
    work.load()
    work.raise_problems()
    context = Context()
    run = choose(context, work.main, None)
    required = tuple(p.name for p in work.constants.missing if p.name is not None)
    own = tuple(n for n, d in work.main.own.items() if isinstance(d, tree.Pipeline))
    return Outline(work.params(None), required, own, run, work.constants.seed)


def sharing_problem(path: str, name: str, asked: Any, overrides: Mapping[str, Any] | None = None, run: str | None = None,
                    text: str | None = None) -> Problem | None:
    """E0702 if a trainer that joins a running stream may not set this param to `asked`; None if it may."""
    work = Check(path, overrides or {}, run, text, complete=False)
    program = work.program()
    return work.sharing(program, name, asked)


class Check:
    """One check of one file."""

    def __init__(self, path: str, overrides: Mapping[str, Any], run: str | None, text: str | None, complete: bool):
        self.path, self.overrides, self.wanted, self.text, self.complete = path, overrides, run, text, complete
        self.context = Context()
        self.elaborator = Elaborator(self.context)

    def load(self) -> None:
        """Files, names, params and lets."""
        self.files = Files(self.context)
        try:
            self.main: Module = self.files.open(self.path, self.text)
        except PipeError as error:
            raise PipeError(error.problems, {**self.context.texts, **error.texts}) from None
        self.constants = Constants(self.files, self.main, self.elaborator, self.overrides, self.complete)
        self.constants.evaluate()

    def program(self) -> Program:
        """Everything. Raises PipeError."""
        self.load()
        circles = pipeline_circles(self.context, self.main)
        self.pipelines = Pipelines(self.elaborator, self.constants)
        self.pipelines.bad = circles
        self.run = choose(self.context, self.main, self.wanted, any_will_do=not self.complete)
        emit = self._run(self.run) if self.run is not None and self.run not in circles else None
        self.uses = dict(self.context.param_uses)
        if emit is not None:
            self._seed(emit)
        self.constants.unimported()
        self._others(circles)
        self._functions()
        self._schemas()
        self.raise_problems()
        if emit is not None:
            self.context.problems += misplaced(emit, self.context.spans)
            self.raise_problems()
        if emit is None or self.run is None:
            raise PipeError((Problem("E0115", "there is nothing to run", Span(self.path, 0, 0)),), self.context.texts)
        spans = {n: tuple(s) for n, s in self.context.spans.items()}
        return Program(self.run, self.path, emit, self.constants.seed, self.params(emit), dict(self.context.texts), spans)

    def raise_problems(self) -> None:
        """Raise what was found: the run file first, each file from top to bottom."""
        texts = self.context.texts
        found = [p for p in self.context.problems if not self._follows(p)]
        if found:
            files = list(texts)
            order = sorted(found, key=lambda p: (p.span.file != self.path, files.index(p.span.file)
                                                 if p.span.file in files else -1, p.span.start, p.code))
            raise PipeError(tuple(order), texts)

    def _follows(self, problem: Problem) -> bool:
        """Does this only say again that a name could not be brought in."""
        first = re.match(r"\w+", self.context.text(problem.span))
        return problem.code.startswith("E01") and first is not None and problem.code not in ("E0110", "E0111", "E0112") and (
            problem.span.file, first.group()) in self.files.lost

    # --- the parts of a program -------------------------------------------------------------------

    def _run(self, name: str) -> Node | None:
        declared: Declared = self.main.scope.pipelines[name]
        return self.pipelines.run(declared, self._stand_ins(declared))

    def _stand_ins(self, declared: Declared) -> dict[str, Value]:
        """Values for the arguments of a pipeline that is checked by itself."""
        out: dict[str, Value] = {}
        scope = Scope(declared.module.scope, facts=bounds.Facts())
        for formal in declared.declaration.formals:
            type = self.elaborator.type_of(scope, formal.type)
            if formal.default is not None:
                out[formal.name] = self.elaborator.constant_value(scope, formal.default)
            elif type.dtype != "unknown":
                out[formal.name] = placeholder(formal.name, type, formal.name_span)
        if out and self.run == declared.declaration.name and self.complete:
            self.context.report(Problem(
                "E0117", f"pipeline `{self.run}` takes arguments, so it can't be run by itself",
                declared.declaration.name_span, "", (), (f"read it from another pipeline: from {self.run}(…)",)))
        return out

    def _others(self, circles: set[str]) -> None:
        """Pipelines that the run doesn't reach have mistakes too."""
        own = [n for n, d in self.main.own.items() if isinstance(d, tree.Pipeline)]
        reached = self._reached(self.run)
        used = {u for n in own for u, _ in used_pipelines(self.main, self.main.own[n])}
        saved, self.context.param_uses = self.context.param_uses, {}
        try:
            for name in own:
                if name not in reached and name not in circles and (name not in used or self.main.own[name].formals):
                    self._run(name)
        finally:
            self.context.param_uses = saved

    def _reached(self, name: str | None) -> set[str]:
        seen: set[str] = set()
        waiting = [name] if name else []
        while waiting:
            one = waiting.pop()
            if one not in seen and one in self.main.scope.pipelines:
                seen.add(one)
                found: Declared = self.main.scope.pipelines[one]
                waiting += [n for n, _ in used_pipelines(found.module, found.declaration)]
        return seen

    def _functions(self) -> None:
        """Functions nobody calls have mistakes too."""
        saved, self.context.param_uses = self.context.param_uses, {}
        try:
            for declaration in self.main.own.values():
                if isinstance(declaration, tree.Fn | tree.Extern):
                    self.elaborator.function_alone(Function(declaration, self.main.scope))
        finally:
            self.context.param_uses = saved

    def _schemas(self) -> None:
        for declaration in self.main.own.values():
            if isinstance(declaration, tree.Schema):
                self.pipelines.schemas.read(Scope(self.main.scope, facts=bounds.Facts()), declaration, None)

    def _seed(self, emit: Node) -> None:
        """E0706: something is drawn or shuffled and no seed is declared."""
        if self.constants.seed is not None:
            return
        random = [n for n in walk(emit) if n.op in RANDOM or (n.op == "mix" and n["weights"])]
        if not random:
            return
        places = sorted(s for n in random for s in self.context.spans.get(n, ()) if s.file == self.path)
        span = places[0] if places else self.main.scope.pipelines[self.run or ""].declaration.name_span
        at = Span(self.path, *[self._seed_place()] * 2)
        self.context.report(Problem(
            "E0706", "this program draws at random and has no `seed`", span, "random from here on", (),
            ("every random value depends on the seed, so a run can be repeated",),
            (Fix("declare one", (Edit(at, "seed 0\n\n"),)),)))

    def _seed_place(self) -> int:
        """Before the first declaration that isn't `use` or `param`, above the comment that belongs to it."""
        text = self.main.file.text
        first = next((d.span.start for d in self.main.file.declarations if not isinstance(d, tree.Use | tree.Param)),
                     len(text))
        start = text.rfind("\n", 0, first) + 1
        while start > 0 and text[text.rfind("\n", 0, start - 1) + 1:start].startswith("#"):
            start = text.rfind("\n", 0, start - 1) + 1
        return start

    # --- params -----------------------------------------------------------------------------------

    def params(self, emit: Node | None) -> tuple[ParamInfo, ...]:
        """The params that may be set from the run file."""
        shared = emit is not None and any(n.op == "share" for n in walk(emit))
        infos = []
        for param in self.constants.params:
            if param.name is None:
                continue
            type = self.constants.types.get(param.key, Type("unknown"))
            used_above = emit is not None and any(not below for _, below in self.uses.get(param.key, ()))
            free = shared and not used_above and type.dtype not in ("text", "path", "bytes", "unknown")
            infos.append(ParamInfo(param.name, type, self.constants.values.get(param.key), param.declaration.help, free,
                                   param.declaration.name_span))
        return tuple(infos)

    def sharing(self, program: Program, name: str, asked: Any) -> Problem | None:
        """E0702 for one param, with the lines that use it above `share`."""
        info = next((p for p in program.params if p.name == name), None)
        if info is None:
            known = ", ".join(p.name for p in program.params if p.open) or "none"
            return Problem("E0703", f"this program has no param `{name}`", Span(self.path, 0, 0), "", (),
                           (f"this trainer may set: {known}",))
        if info.open or asked == info.value:
            return None
        key = next(p.key for p in self.constants.params if p.name == name)
        above = [s for s, below in self.uses.get(key, ()) if not below]
        share = next((s for n in walk(program.emit) if n.op == "share" for s in program.spans.get(n, ())), None)
        reasons = [Label(s, "used here, above `share`") for s in above[:1]]
        if share is not None:
            reasons.append(Label(share, "lines above this run once, for every trainer"))
        free = ", ".join(p.name for p in program.params if p.open) or "none"
        notes = (f"this trainer may set: {free}", "to change it for all of them: "
                 f"pipec serve {os.path.basename(self.path)} {name}={shown(asked)}")
        title = f"a trainer can't set `{name}`: the work it changes is already shared"
        return Problem("E0702", title, info.span, f"asked for {shown(asked)}, served with {shown(info.value)}",
                       tuple(reasons), notes if share is not None else (
                           *notes, "without a `share()` line everything is shared"))
