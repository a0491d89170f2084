"""Level 0: a program as it was written, one frozen dataclass per grammar rule, with spans.

Names, types and numbers are not resolved here; `compiler.check` does that.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from .problems import Span

# --- expressions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """`1_000`, `0.5`, `1e-3`: an int if it was written without a point or exponent."""

    value: int | float
    span: Span


@dataclass(frozen=True)
class String:
    """A quoted text, escapes resolved; `{…}` is still in it."""

    value: str
    span: Span


@dataclass(frozen=True)
class Truth:
    value: bool
    span: Span


@dataclass(frozen=True)
class Name:
    id: str
    span: Span


@dataclass(frozen=True)
class Array:
    """`[a, b, c]`"""

    items: tuple[Expr, ...]
    span: Span


@dataclass(frozen=True)
class Binder:
    """`i` or `i < n`"""

    name: str
    limit: Expr | None
    span: Span


@dataclass(frozen=True)
class Build:
    """`[body for i, j < n]`"""

    body: Expr
    binders: tuple[Binder, ...]
    span: Span


@dataclass(frozen=True)
class Reduce:
    """`sum(body for k)`"""

    fn: str
    fn_span: Span
    body: Expr
    binders: tuple[Binder, ...]
    span: Span


@dataclass(frozen=True)
class Argument:
    """One argument of a call; `name` is None for a positional one."""

    name: str | None
    value: Expr
    span: Span


@dataclass(frozen=True)
class Call:
    fn: str
    fn_span: Span
    args: tuple[Argument, ...]
    span: Span


@dataclass(frozen=True)
class Slice:
    """`a:b` inside an index; either end may be left out."""

    start: Expr | None
    stop: Expr | None
    span: Span


@dataclass(frozen=True)
class At:
    """`t[i, j]`, `t[a:b]`"""

    value: Expr
    indexes: tuple[Expr | Slice, ...]
    span: Span


@dataclass(frozen=True)
class Part:
    """`clip.rate`"""

    value: Expr
    name: str
    name_span: Span
    span: Span


@dataclass(frozen=True)
class Filled:
    """`x ?? default`"""

    value: Expr
    default: Expr
    span: Span


@dataclass(frozen=True)
class Binary:
    """`op` is one of `+ - * / // % ^ and or`; `op_span` is the operator's own place."""

    op: str
    left: Expr
    right: Expr
    op_span: Span
    span: Span


@dataclass(frozen=True)
class Unary:
    """`op` is `-` or `not`."""

    op: str
    value: Expr
    span: Span


@dataclass(frozen=True)
class Compare:
    """A chain `a <= b < c`: n operands, n - 1 operators (`== != < <= > >=`)."""

    operands: tuple[Expr, ...]
    ops: tuple[str, ...]
    span: Span


@dataclass(frozen=True)
class If:
    condition: Expr
    then: Expr
    other: Expr
    span: Span


Expr = Union[
    Number, String, Truth, Name, Array, Build, Reduce, Call, At, Part, Filled, Binary, Unary, Compare, If
]

# --- types and heads --------------------------------------------------------------------------


@dataclass(frozen=True)
class TypeExpr:
    """`f32?[n, 3, size // 2, ...]`: `dims` are expressions, `rest` is true for a final `...`.

    A dimension written `_` is `Name("_")`.
    """

    dtype: str
    missing: bool
    dims: tuple[Expr, ...]
    rest: bool
    span: Span
    dtype_span: Span


@dataclass(frozen=True)
class Formal:
    """`x: f32[n] = 1` in a head, a result list or a pipeline's arguments."""

    name: str
    type: TypeExpr
    default: Expr | None
    span: Span
    name_span: Span


@dataclass(frozen=True)
class Head:
    """`f(x: type, …) -> type`; `results` is a tuple of formals where there are several."""

    name: str
    formals: tuple[Formal, ...]
    result: TypeExpr | None
    results: tuple[Formal, ...]
    span: Span
    name_span: Span


# --- lines ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class From:
    """`from tar("…") as Sample` or `from other`; `source` is a Call or a Name."""

    source: Call | Name
    schema: str | None
    schema_span: Span | None
    span: Span


@dataclass(frozen=True)
class Bind:
    """`name: type = value`"""

    name: str
    type: TypeExpr | None
    value: Expr
    name_span: Span
    op_span: Span
    span: Span


@dataclass(frozen=True)
class Draw:
    """`name: type ~ call` or `name ~ [call for i < n]` (then `binders` is not empty)."""

    name: str
    type: TypeExpr | None
    call: Call
    binders: tuple[Binder, ...]
    name_span: Span
    op_span: Span
    span: Span


@dataclass(frozen=True)
class Where:
    condition: Expr
    span: Span


@dataclass(frozen=True)
class Output:
    name: str
    type: TypeExpr | None
    span: Span
    name_span: Span


@dataclass(frozen=True)
class Emit:
    outputs: tuple[Output, ...]
    span: Span


@dataclass(frozen=True)
class Value:
    """The last line of a function: its value."""

    value: Expr
    span: Span


@dataclass(frozen=True)
class Stage:
    """Any other line of a pipeline: `shuffle()`, `batch(n)`, `check(x > 0)`."""

    call: Call
    span: Span


Step = Union[Bind, Draw, Value]
Line = Union[From, Bind, Draw, Where, Emit, Stage]

# --- declarations -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    names: tuple[Name, ...]
    path: String
    span: Span


@dataclass(frozen=True)
class Param:
    """`help` is the text of the comment on the same line, "" if there is none."""

    name: str
    type: TypeExpr | None
    default: Expr | None
    help: str
    name_span: Span
    span: Span


@dataclass(frozen=True)
class Seed:
    value: int
    span: Span


@dataclass(frozen=True)
class Let:
    name: str
    value: Expr
    name_span: Span
    span: Span


@dataclass(frozen=True)
class Column:
    """`field: type from "name in the data"`; `source` is None where the names are equal."""

    name: str
    type: TypeExpr
    source: String | None
    name_span: Span
    span: Span


@dataclass(frozen=True)
class Schema:
    name: str
    columns: tuple[Column, ...]
    name_span: Span
    span: Span


@dataclass(frozen=True)
class Fn:
    head: Head
    steps: tuple[Step, ...]
    span: Span


@dataclass(frozen=True)
class Extern:
    """`target` is "module:name"."""

    head: Head
    target: String
    span: Span


@dataclass(frozen=True)
class Pipeline:
    name: str
    formals: tuple[Formal, ...]
    lines: tuple[Line, ...]
    name_span: Span
    span: Span


Declaration = Union[Use, Param, Seed, Let, Schema, Fn, Extern, Pipeline]


@dataclass(frozen=True)
class File:
    """One `.pipe` file: its path as given, its text (line ends normalised), its declarations."""

    path: str
    text: str
    declarations: tuple[Declaration, ...]
