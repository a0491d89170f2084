"""What names mean at one place of a program, and what one check collects: values, scopes, problems, origins of nodes.

`names.py` makes the `FileScope`s, `streams.py` the `Scope` of each frame; `elaborate.py` reads and extends them.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..dsl import tree
from ..dsl.problems import Problem, Span
from ..dsl.types import UNKNOWN, Type
from .graph import Node

if TYPE_CHECKING:
    from .bounds import Facts


@dataclass(frozen=True)
class Value:
    """What a name or an expression stands for.

    `type` is `UNKNOWN` for a failed line: it agrees with everything and gives no second message. `node` is None for
    those and for values with named `parts` (results of a function with several, structs). The node's own type is
    never weak; only `type` says whether the number has a dtype of its own. `span` is where it was made.
    """

    node: Node | None
    type: Type
    span: Span
    parts: dict[str, Value] | None = None

    @property
    def known(self) -> bool:
        return self.type.dtype != "unknown"

    def at(self, span: Span) -> Value:
        """The same value as seen at another place."""
        return replace(self, span=span)


def unknown(span: Span) -> Value:
    return Value(None, UNKNOWN, span)


@dataclass
class Context:
    """One check: `texts` (path → text), the problems found, the places each node comes from."""

    texts: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    spans: dict[Node, list[Span]] = field(default_factory=dict)
    # name of a param → where it is used and whether that is below `share()`; filled while expressions are elaborated
    param_uses: dict[tuple[str, str], list[tuple[Span, bool]]] = field(default_factory=dict)
    # the type written for a field (a schema's column, an annotation): messages point at its `?` and dimensions
    types: dict[Node, tree.TypeExpr] = field(default_factory=dict)
    reported: set[tuple[str, Span]] = field(default_factory=set)

    def report(self, problem: Problem) -> None:
        """Keep a problem; a second one of the same kind at the same place (a body met twice) is dropped."""
        key = (problem.code, problem.span)
        if key not in self.reported:
            self.reported.add(key)
            self.problems.append(problem)

    def made(self, node: Node, span: Span) -> Node:
        """Remember where a node comes from; returns the node."""
        places = self.spans.setdefault(node, [])
        if span not in places:
            places.append(span)
        return node

    def text(self, span: Span) -> str:
        """What the program says under a span."""
        return self.texts.get(span.file, "")[span.start : span.end]


@dataclass(frozen=True)
class Function:
    """A function and the file whose names its body sees."""

    declaration: tree.Fn | tree.Extern
    file: FileScope

    @property
    def head(self) -> tree.Head:
        return self.declaration.head

    @property
    def name(self) -> str:
        return self.head.name

    @property
    def draws(self) -> bool:
        """Does a line of it use `~`."""
        return isinstance(self.declaration, tree.Fn) and any(isinstance(s, tree.Draw) for s in self.declaration.steps)


@dataclass(eq=False)
class FileScope:
    """The declarations visible in one file, by name; those brought in by `use` stand beside its own.

    `params` and `lets` are evaluated: a constant, or for a param that stays settable a `param` node. `library` is
    std.pipe's scope (None for std.pipe itself). `uses` tells where a brought-in name was asked for.
    """

    path: str
    fns: dict[str, Function] = field(default_factory=dict)
    params: dict[str, Value] = field(default_factory=dict)
    lets: dict[str, Value] = field(default_factory=dict)
    schemas: dict[str, Any] = field(default_factory=dict)
    pipelines: dict[str, Any] = field(default_factory=dict)
    uses: dict[str, Span] = field(default_factory=dict)
    library: FileScope | None = None
    # where the params that came by `use` are declared: name here → (path, name there)
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)

    def function(self, name: str) -> Function | None:
        """Own and used functions, then the library's."""
        found = self.fns.get(name)
        return found or (self.library.fns.get(name) if self.library else None)

    def value(self, name: str) -> Value | None:
        found = self.params.get(name)
        return found or self.lets.get(name)

    def origin(self, param: str) -> tuple[str, str]:
        """The file that declares a param and its name there: the key of `Context.param_uses`."""
        return self.origins.get(param, (self.path, param))


@dataclass
class Scope:
    """The names at one point of a pipeline or of a function's body.

    `names` holds fields, arguments and binders; `dims` the dimension names of annotations and signatures (an int or
    an i64 node). `path` is the draw path so far, `indexes` the binders' values that join it. `drawn` (path → place)
    and `sizes` are shared by all scopes of a pipeline; `child()` copies `names` and `dims` and keeps the rest.
    """

    file: FileScope
    names: dict[str, Value] = field(default_factory=dict)
    dims: dict[str, Node | int] = field(default_factory=dict)
    rest: tuple[Node | int, ...] | None = None      # what `...` of a signature stands for
    words: dict[str, Type] = field(default_factory=dict)    # what `num` and the like stand for in a signature
    facts: Facts | None = None
    path: str = ""
    below_share: bool = False
    indexes: tuple[Node, ...] = ()
    drawn: dict[str, Span] = field(default_factory=dict)
    # two sizes that only a record's data can show equal (E0803), and where: the pipeline adds a `check` for each
    sizes: list[tuple[Node, Node, Span]] = field(default_factory=list)
    # `all(…)` conditions of `where` and `check` above: facts about each element
    held: list[Node] = field(default_factory=list)
    function: Function | None = None        # whose body this is; None in a pipeline
    calls: tuple[tuple[str, Span], ...] = ()  # the calls we are inside of, outermost first
    count: Node | int | None = None         # the first dimension of every field after `batch`, `window`, `each`

    def child(self, **changes: Any) -> Scope:
        """A scope inside this one: new names don't leak out."""
        return replace(self, **{"names": dict(self.names), "dims": dict(self.dims), **changes})

    def look_up(self, name: str) -> Value | None:
        """Fields, arguments and binders hide params and lets."""
        found = self.names.get(name)
        return found or self.file.value(name)
