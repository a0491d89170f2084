"""The engine of local rewrites: laws as pattern → result, tried at every node, bottom-up, until none applies.

Patterns are Python call syntax over function names of the language: `add(x, 0)`, `select(not_(c), a, b)`; the ops
`select fill missing` go by their own names, a name is a variable (the same one twice must be the same node), a literal
is a constant of exactly that value. A variable that the result lacks must be unable to fail, so that no run-time error
disappears; `lazy` names those that wouldn't have been computed anyway.
"""
from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..dsl.types import BOOL, FLOATS, INTS, Type
from .graph import Node, children, made_of, node

OPS = ("select", "fill", "missing")
MOST_STEPS = 30  # at one node
BOOLEAN = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "missing"])
KINDS = {
    "int": ("i64",),
    "float": FLOATS,
    "wide": ("f32", "f64"),
    "number": ("i64", *FLOATS),
    "bool": ("bool",),
    "any": (*INTS, *FLOATS, "bool"),
}


@dataclass(frozen=True)
class Variable:
    name: str
    kind: str


@dataclass(frozen=True)
class Literal:
    value: bool | int | float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


@dataclass(frozen=True)
class Form:
    """`head` applied to parts: an `apply` of that function, or one of `OPS`."""

    head: str
    parts: tuple[Any, ...]


Pattern = Variable | Literal | Form


@dataclass(frozen=True)
class Law:
    """`left` means the same as `right` wherever `when` allows it."""

    text: str
    left: Form
    right: Pattern
    dropped: tuple[str, ...]
    when: Callable[[dict[str, Node]], bool] | None


def law(
    kind: str, left: str, right: str, lazy: str = "", when: Callable[[dict[str, Node]], bool] | None = None, **kinds: str
) -> Law:
    """A law from text; variables are of `kind` unless named in `kinds`."""
    read = _Reader(kind, kinds)
    a, b = read(left), read(right)
    assert isinstance(a, Form)
    gone = tuple(sorted(variables(a) - variables(b) - set(lazy.split())))
    return Law(f"{left} -> {right} ({kind})", a, b, gone, when)


def variables(p: Pattern) -> set[str]:
    match p:
        case Variable(name):
            return {name}
        case Form(_, parts):
            return {v for q in parts for v in variables(q)}
        case _:
            return set()


class _Reader:
    def __init__(self, kind: str, kinds: dict[str, str]):
        self.kind, self.kinds = kind, kinds

    def __call__(self, text: str) -> Pattern:
        return self.pattern(ast.parse(text, mode="eval").body)

    def pattern(self, tree: ast.expr) -> Pattern:
        match tree:
            case ast.Name(name):
                return Variable(name, self.kinds.get(name, self.kind))
            case ast.Constant(bool() | int() | float() as value):
                return Literal(value)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
                return Literal(-value)
            case ast.Call(ast.Name(head), args):
                return Form(head.rstrip("_"), tuple(self.pattern(a) for a in args))
            case _:
                raise ValueError(f"not a pattern: {ast.unparse(tree)}")


# --- matching and building ------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Are two constants one value: 0.0 and -0.0, 1 and 1.0 and True all differ."""
    return type(a) is type(b) and (a == b or (a != a and b != b)) and str(a) == str(b)


def match(p: Pattern, n: Node, bound: dict[str, Node]) -> bool:
    """Does `n` have the form `p`; fills `bound`."""
    match p:
        case Variable(name, kind):
            if n.type.dims or n.type.dtype not in KINDS[kind]:
                return False
            return bound.setdefault(name, n) is n
        case Literal(value):
            return n.op == "const" and not n.type.dims and same(constant_value(n), value)
        case Form(head, parts):
            name = n["fn"] if n.op == "apply" else n.op
            if (n.op == "apply") == (head in OPS) or name != head or len(parts) != len(n.args):
                return False
            return all(match(q, a, bound) for q, a in zip(parts, n.args, strict=True))


def constant_value(n: Node) -> Any:
    """A scalar constant's value, as bool, int or float after its dtype."""
    kind: Any = bool if n.type.dtype == "bool" else float if n.type.dtype in FLOATS else int
    return kind(n["value"]) if n.type.dtype in (*INTS, *FLOATS, "bool") else n["value"]


def make(p: Pattern, bound: dict[str, Node], type: Type) -> Node:
    """The node of form `p`. Operands of one function have one dtype: that of the variables among them, else `type`'s."""
    match p:
        case Variable(name):
            return bound[name]
        case Literal(value):
            return node("const", type=type, value=value)
        case Form(head, parts):
            own = BOOL if head in BOOLEAN else type
            inside = next((bound[q.name].type for q in reversed(parts) if isinstance(q, Variable)), own)
            args = [make(q, bound, BOOL if head == "select" and at == 0 else inside) for at, q in enumerate(parts)]
            return node(head, *args, type=own) if head in OPS else node("apply", *args, type=own, fn=head)


def applied(law: Law, n: Node, total: Callable[[Node], bool]) -> Node | None:
    """What `law` makes of `n`; None where it doesn't apply. The type stays."""
    bound: dict[str, Node] = {}
    if not match(law.left, n, bound) or (law.when is not None and not law.when(bound)):
        return None
    if not all(total(bound[name]) for name in law.dropped):
        return None
    result = make(law.right, bound, n.type)
    return result if result.type == n.type else None


def by_head(laws: Iterable[Law]) -> dict[str, list[Law]]:
    table: dict[str, list[Law]] = {}
    for one in laws:
        table.setdefault(one.left.head, []).append(one)
    return table


# --- everywhere -----------------------------------------------------------------------------------

Step = Callable[[Node], Node | None]
Moved = Callable[[Node, Node], object]


def everywhere(root: Node, step: Step, moved: Moved | None = None, steps: int = MOST_STEPS) -> Node:
    """`root` with `step` applied at every node, args first, up to `steps` times until it has nothing to change.

    `moved(old, new)` is told of every node that another one takes the place of.
    """
    done: dict[Node, Node] = {}
    for n in made_of(root, inner):
        new = rebuilt(n, done)
        for _ in range(steps):
            changed = step(new)
            if changed is None or changed is new:
                break
            new = changed
        done[n] = new
        if moved is not None and new is not n:
            moved(n, new)
    return done[root]


def inner(n: Node) -> tuple[Node, ...]:
    """Args, and the nodes that the dims of its type or of its fields' types mention."""
    if not n.type.parts:
        return children(n)
    return (*children(n), *(d for _, t in n.type.parts for d in t.dims if isinstance(d, Node)))


def rebuilt(n: Node, done: dict[Node, Node]) -> Node:
    args = tuple(done[a] for a in n.args)
    type = with_dims(n.type, lambda d: done[d])
    return n if args == n.args and type == n.type else node(n.op, *args, type=type, **dict(n.attrs))


def with_dims(type: Type, change: Callable[[Node], Node | int]) -> Type:
    """`type` with its dims changed, in its parts too."""
    if not type.parts and not any(isinstance(d, Node) for d in type.dims):
        return type
    dims = tuple(change(d) if isinstance(d, Node) else d for d in type.dims)
    parts = tuple((name, with_dims(t, change)) for name, t in type.parts)
    return Type(type.dtype, dims, type.missing, type.weak, parts)
