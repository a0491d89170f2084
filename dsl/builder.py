"""What lark reduces becomes the tree: one method per rule of grammar.lark, children in, `Part` out.

No lark is imported here. Children are tokens and parts; a part knows where it starts and ends with
its brackets, its node only where the node itself does: `(a + b) * c` starts at the bracket, `a + b` after it.
"""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from . import tree
from .problems import Span

# Deeper trees would exhaust the stack of whoever walks them; a person stops far earlier.
MAX_DEPTH = 64
LARGEST = 2**64 - 1
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


class TooDeep(Exception):
    """An expression is nested too deeply; `start` and `end` say where."""

    def __init__(self, start: int, end: int):
        self.start, self.end = start, end


class BadNumber(Exception):
    """A number that no type can hold."""

    def __init__(self, start: int, end: int):
        self.start, self.end = start, end


class Part:
    """A node on its way into a larger one."""

    __slots__ = ("depth", "end_pos", "node", "start_pos")

    def __init__(self, node: Any, start_pos: int, end_pos: int, depth: int):
        self.node, self.start_pos, self.end_pos, self.depth = node, start_pos, end_pos, depth


def _is(child: Any, text: str) -> bool:
    return not isinstance(child, Part) and str(child) == text


def _parts(children: list[Any]) -> list[Any]:
    return [c for c in children if isinstance(c, Part)]


def _nodes(children: list[Any], kind: Any = object) -> tuple[Any, ...]:
    return tuple(c.node for c in children if isinstance(c, Part) and isinstance(c.node, kind))


def _first(children: list[Any], kind: Any) -> Any:
    return next((c.node for c in children if isinstance(c, Part) and isinstance(c.node, kind)), None)


def unquote(quoted: str) -> str:
    """The text that a quoted literal stands for."""
    out, chars = [], iter(quoted[1:-1])
    for char in chars:
        out.append(_ESCAPES[next(chars)] if char == "\\" else char)
    return "".join(out)


class Builder:
    """The callbacks of one file; `file` is the path that spans name."""

    def __init__(self) -> None:
        self.file = ""

    # --- helpers

    def _span(self, first: Any, last: Any = None) -> Span:
        return Span(self.file, first.start_pos, (last or first).end_pos)

    def _part(self, node: Any, children: list[Any], step: int = 1) -> Part:
        start, end = children[0].start_pos, children[-1].end_pos
        depth = step + max((c.depth for c in children if isinstance(c, Part)), default=0)
        if depth > MAX_DEPTH:
            raise TooDeep(start, end)
        return Part(node, start, end, depth)

    def _around(self, children: list[Any]) -> Span:
        return self._span(children[0], children[-1])

    # --- expressions

    def name(self, c: list[Any]) -> Part:
        return self._part(tree.Name(str(c[0]), self._around(c)), c)

    def number(self, c: list[Any]) -> Part:
        written = str(c[0])
        value: int | float
        if c[0].type == "INT":
            value = int(written) if len(written) < 40 else LARGEST + 1
        else:
            value = float(written.replace("_", ""))
        if (value > LARGEST and c[0].type == "INT") or math.isinf(value):
            raise BadNumber(c[0].start_pos, c[0].end_pos)
        return self._part(tree.Number(value, self._around(c)), c)

    def string(self, c: list[Any]) -> Part:
        return self._part(self._string(c[0]), c)

    def _string(self, token: Any) -> tree.String:
        return tree.String(unquote(str(token)), self._span(token))

    def truth(self, c: list[Any]) -> Part:
        return self._part(tree.Truth(str(c[0]) == "true", self._around(c)), c)

    def group(self, c: list[Any]) -> Part:
        return self._part(c[1].node, c)

    def if_(self, c: list[Any]) -> Part:
        condition, then, other = _nodes(c)
        return self._part(tree.If(condition, then, other, self._around(c)), c)

    def binary(self, c: list[Any]) -> Part:
        left: Part = c[0]
        for i in range(1, len(c), 2):
            around = [left, c[i], c[i + 1]]
            node = tree.Binary(str(c[i]), left.node, c[i + 1].node, self._span(c[i]), self._around(around))
            left = self._part(node, around)
        return left

    any = all = sum = product = power = binary

    def unary(self, c: list[Any]) -> Part:
        return self._part(tree.Unary(str(c[0]), c[1].node, self._around(c)), c)

    def compare(self, c: list[Any]) -> Part:
        ops = tuple(str(op) for op in c[1::2])
        return self._part(tree.Compare(_nodes(c), ops, self._around(c)), c)

    def filled(self, c: list[Any]) -> Part:
        left: Part = c[0]
        for default in c[2::2]:
            around = [left, default]
            left = self._part(tree.Filled(left.node, default.node, self._around(around)), around)
        return left

    def at(self, c: list[Any]) -> Part:
        value, *indexes = _nodes(c)
        return self._part(tree.At(value, tuple(indexes), self._around(c)), c)

    def part(self, c: list[Any]) -> Part:
        return self._part(tree.Part(c[0].node, str(c[2]), self._span(c[2]), self._around(c)), c)

    def slice(self, c: list[Any]) -> Part:
        at = next(i for i, child in enumerate(c) if _is(child, ":"))
        start = c[0].node if at else None
        stop = c[-1].node if at < len(c) - 1 else None
        return self._part(tree.Slice(start, stop, self._around(c)), c)

    def array(self, c: list[Any]) -> Part:
        return self._part(tree.Array(_nodes(c), self._around(c)), c)

    def build(self, c: list[Any]) -> Part:
        return self._part(tree.Build(c[1].node, c[3].node, self._around(c)), c)

    def reduce(self, c: list[Any]) -> Part:
        node = tree.Reduce(str(c[0]), self._span(c[0]), c[2].node, c[4].node, self._around(c))
        return self._part(node, c)

    def named(self, c: list[Any]) -> Part:
        return self._part(tree.Argument(str(c[0]), c[2].node, self._around(c)), c, step=0)

    def call(self, c: list[Any]) -> Part:
        args = tuple(
            p.node if isinstance(p.node, tree.Argument) else tree.Argument(None, p.node, p.node.span)
            for p in _parts(c)
        )
        return self._part(tree.Call(str(c[0]), self._span(c[0]), args, self._around(c)), c)

    def binders(self, c: list[Any]) -> Part:
        return self._part(_nodes(c, tree.Binder), c, step=0)

    def binder(self, c: list[Any]) -> Part:
        limit = c[2].node if len(c) > 1 else None
        return self._part(tree.Binder(str(c[0]), limit, self._around(c)), c, step=0)

    # --- types and heads

    def type(self, c: list[Any]) -> Part:
        missing = any(_is(child, "?") for child in c)
        dims, rest = _first(c, tuple) or ((), False)
        node = tree.TypeExpr(str(c[0]), missing, dims, rest, self._around(c), self._span(c[0]))
        return self._part(node, c)

    def dims(self, c: list[Any]) -> Part:
        return self._part((_nodes(c), _is(c[-1], "...")), c)

    def formal(self, c: list[Any]) -> Part:
        default = c[4].node if len(c) > 3 else None
        node = tree.Formal(str(c[0]), c[2].node, default, self._around(c), self._span(c[0]))
        return self._part(node, c)

    def formals(self, c: list[Any]) -> Part:
        return self._part(_nodes(c, tree.Formal), c)

    def head(self, c: list[Any]) -> Part:
        arrow = next(i for i, child in enumerate(c) if _is(child, "->"))
        formals = _first(c[:arrow], tuple) or ()
        result = _first(c[arrow:], tree.TypeExpr)
        results = _first(c[arrow:], tuple) or ()
        node = tree.Head(str(c[0]), formals, result, results, self._around(c), self._span(c[0]))
        return self._part(node, c)

    def operator(self, c: list[Any]) -> tree.Head:
        head: tree.Head = c[0].node
        return head

    # --- lines

    def column(self, c: list[Any]) -> tree.Column:
        source = self._string(c[4]) if len(c) > 3 else None
        return tree.Column(str(c[0]), c[2].node, source, self._span(c[0]), self._around(c))

    def source(self, c: list[Any]) -> Part:
        schema, schema_span = (str(c[3]), self._span(c[3])) if len(c) > 2 else (None, None)
        return self._part(tree.From(c[1].node, schema, schema_span, self._around(c)), c)

    def bind(self, c: list[Any]) -> Part:
        node = tree.Bind(
            str(c[0]), _first(c[:-1], tree.TypeExpr), c[-1].node, self._span(c[0]), self._span(c[-2]), self._around(c)
        )
        return self._part(node, c)

    def draw(self, c: list[Any]) -> Part:
        call, binders = c[-1].node if isinstance(c[-1].node, tuple) else (c[-1].node, ())
        type_ = _first(c[:-1], tree.TypeExpr)
        node = tree.Draw(str(c[0]), type_, call, binders, self._span(c[0]), self._span(c[-2]), self._around(c))
        return self._part(node, c)

    def draws(self, c: list[Any]) -> Part:
        return self._part((c[1].node, c[3].node), c)

    def where(self, c: list[Any]) -> Part:
        return self._part(tree.Where(c[1].node, self._around(c)), c)

    def output(self, c: list[Any]) -> Part:
        node = tree.Output(str(c[0]), _first(c, tree.TypeExpr), self._around(c), self._span(c[0]))
        return self._part(node, c)

    def emit(self, c: list[Any]) -> Part:
        return self._part(tree.Emit(_nodes(c), self._around(c)), c)

    def value(self, c: list[Any]) -> tree.Value:
        return tree.Value(c[0].node, self._around(c))

    def operation(self, c: list[Any]) -> tree.Stage:
        return tree.Stage(c[0].node, self._around(c))

    def step(self, c: list[Any]) -> tree.Step:
        line: tree.Step = c[0].node
        return line

    def stage(self, c: list[Any]) -> tree.Line:
        line: tree.Line = c[0].node
        return line

    # --- declarations

    def declaration(self, c: list[Any]) -> tree.Declaration:
        declared: tree.Declaration = c[0]
        return declared

    def use(self, c: list[Any]) -> tree.Use:
        names = tuple(tree.Name(str(t), self._span(t)) for t in c[1:-2:2])
        return tree.Use(names, self._string(c[-1]), self._around(c))

    def param(self, c: list[Any]) -> tree.Param:
        default = c[-1].node if len(c) > 2 and _is(c[-2], "=") else None
        return tree.Param(str(c[1]), _first(c, tree.TypeExpr), default, "", self._span(c[1]), self._around(c))

    def seed(self, c: list[Any]) -> tree.Seed:
        return tree.Seed(self.number([c[1]]).node.value, self._around(c))

    def let(self, c: list[Any]) -> tree.Let:
        return tree.Let(str(c[1]), c[3].node, self._span(c[1]), self._around(c))

    def schema(self, c: list[Any]) -> tree.Schema:
        return tree.Schema(str(c[1]), (), self._span(c[1]), self._around(c))

    def fn(self, c: list[Any]) -> tree.Fn:
        return tree.Fn(c[1].node, (), self._around(c))

    def extern(self, c: list[Any]) -> tree.Extern:
        return tree.Extern(c[2].node, self._string(c[-1]), self._around(c))

    def pipeline(self, c: list[Any]) -> tree.Pipeline:
        formals = _first(c, tuple) or ()
        return tree.Pipeline(str(c[1]), formals, (), self._span(c[1]), self._around(c))


def with_body(declared: tree.Declaration, lines: list[Any]) -> tree.Declaration:
    """`declared` with the lines below it."""
    span = declared.span.to(lines[-1].span) if lines else declared.span
    match declared:
        case tree.Schema():
            return replace(declared, columns=tuple(lines), span=span)
        case tree.Fn():
            return replace(declared, steps=tuple(lines), span=span)
        case tree.Pipeline():
            return replace(declared, lines=tuple(lines), span=span)
    return declared
