"""Graphs from anywhere, checked like programs: every node's type must follow from its args, every attribute be allowed.

In: the root of a parsed graph. Out: nothing, or `IllTyped` with a reason; and the sizes that only a record can show
equal, frame by frame, which `harden` turns into checks.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..dsl.types import BOOL, DTYPES, FLOATS, INTS, NUMBERS, OBJECTS, Type
from ..kernels.random import DRAWS
from ..kernels.scalar import SCALARS
from ..runtime.settings import ParamError, fitted
from .graph import STREAM_OPS, Node, ParamInfo, walk
from .signatures import head_of, operators
from .totality import Facts

MOST_NODES = 60_000
ORDERED = ("lt", "le", "gt", "ge")
REDUCTIONS = ("sum", "prod", "min", "max", "any", "all", "argmax", "argmin", "first")


class IllTyped(Exception):
    """A node doesn't follow from its args; the text completes "it has a graph in which …"."""


def wrong(n: Node, why: str) -> IllTyped:
    name = n.get("fn") or n.get("op") or n.op
    return IllTyped(f"`{str(name)[:40]}` {why}")


def need(truth: bool, n: Node, why: str) -> None:
    if not truth:
        raise wrong(n, why)


Sizes = list[tuple[Node, Node]]


@dataclass
class Checked:
    """`equal`: of the frame that a stream delivers, sizes that must be equal in every record."""

    equal: dict[Node, Sizes] = field(default_factory=dict)


def check_graph(emit: Node, params: Sequence[ParamInfo], seeded: bool) -> Checked:
    """Check a whole graph. `seeded`: the program has a seed. Raises IllTyped."""
    from .retype_streams import Streams

    need(emit.op == "emit", emit, "isn't what leaves a program")
    nodes = list(walk(emit))
    if len(nodes) > MOST_NODES:
        raise IllTyped(f"there are more than {MOST_NODES:,} nodes")
    _binders(nodes)
    done = Checked()
    Streams({p.name: p for p in params}, seeded, done).emit(emit)
    return done


def _binders(nodes: Sequence[Node]) -> None:
    """Every binder has one range wherever it stands."""
    ranges: dict[int, Node] = {}
    for n in nodes:
        if n.op in ("build", "reduce"):
            for id, extent in zip(n["ids"], n.args[1:], strict=True):
                need(ranges.setdefault(id, extent) is extent, n, "binds a name that has another range elsewhere")


class Values:
    """The values of one frame: its fields, and what is computed from them."""

    def __init__(self, fields: Mapping[str, Type], params: Mapping[str, ParamInfo], seeded: bool, equal: Sizes):
        self.fields, self.params, self.seeded, self.equal = fields, params, seeded, equal
        self.seen: set[Node] = set()
        self.facts = Facts(())

    def check(self, root: Node) -> None:
        """Check a value of the frame: nothing in it is bound from outside."""
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            n, ready = stack.pop()
            if n in self.seen:
                continue
            if ready:
                self.one(n)
                self.seen.add(n)
            else:
                stack.append((n, True))
                stack.extend((a, False) for a in (*n.args, *dims_within(n.type)))
        need(not self.facts.free(root), root, "uses a name that nothing around it binds")

    def one(self, n: Node) -> None:
        """Check one node whose args are good."""
        need(n.op not in STREAM_OPS, n, "is a stream where a value belongs")
        need(not n.type.weak or n.op == "const", n, "has a type without a dtype of its own")
        rule = _RULES.get(n.op)
        need(rule is not None and (n.type.dtype in DTYPES or n.type.dtype == "struct"), n, "isn't a value")
        assert rule is not None
        rule(self, n)

    def is_type(self, n: Node, dtype: str, dims: Sequence[Any] = (), missing: bool = False) -> None:
        same = n.type.dtype == dtype and n.type.missing == missing and same_dims(n.type.dims, dims)
        need(same and (not n.type.parts or dtype == "struct"), n, "has a type that doesn't follow from its parts")

    # --- leaves ---

    def const(self, n: Node) -> None:
        dims, value = n.type.dims, n["value"]
        need(all(isinstance(d, int) and 0 <= d < 1 << 40 for d in dims) and not n.type.parts, n, "is a constant of no size")
        flat = value if dims else (value,)
        count = 1
        for d in dims:
            count *= d
        need(isinstance(flat, tuple) and len(flat) == count and not n.type.missing, n, "hasn't as many values as its type")
        try:
            need(all(type(v) in (bool, int, float, str) for v in flat), n, "holds what isn't a value")
            if n.type.dtype == "bytes":
                raise ParamError("can't be written")
            kind: Any = float if n.type.dtype in FLOATS else lambda v: v
            need(all(type(fitted(v, n.type.dtype)) is type(kind(v)) for v in flat), n, "holds a value that its type doesn't")
        except (ParamError, OverflowError, ValueError):
            raise wrong(n, "holds a value that its type doesn't") from None

    def field(self, n: Node) -> None:
        found = self.fields.get(n["name"])
        need(found is not None, n, f"asks for a field `{str(n['name'])[:40]}` that isn't there")
        assert found is not None
        need(found.dtype != "struct", n, "is a field that can't be read whole")
        self.is_type(n, found.dtype, found.dims, found.missing)

    def extent(self, n: Node) -> None:
        self.is_type(n, "i64")
        axis = n["axis"]
        need(type(axis) is int, n, "has an axis that is no number")
        if n.get("field") is not None:
            type_ = self.fields.get(n["field"])
            need(not n.args and type_ is not None, n, "is a size of a field that isn't there")
        elif operators().get(str(n.get("op"))) is not None:
            made = self.called(n, n["op"], "call", {"op": n["op"]})
            type_ = dict(made.type.parts).get(n.get("part", "")) if made.type.dtype == "struct" else made.type
        else:   # of an extern's result, whose size is what it is
            need(isinstance(n.get("op"), str), n, "is a size of nothing")
            return
        need(type_ is not None and 0 <= axis < len(type_.dims), n, "is a size that isn't there")

    def param(self, n: Node) -> None:
        found = self.params.get(n["name"])
        need(found is not None and found.open, n, f"asks for a param `{str(n['name'])[:40]}` that isn't open here")
        assert found is not None
        self.is_type(n, found.type.dtype, found.type.dims)

    def number(self, n: Node) -> None:
        self.is_type(n, "i64")
        need(not n.args, n, "takes no args")

    # --- scalars ---

    def scalars(self, n: Node, plain: bool = True) -> None:
        for a in n.args:
            need(a.type.is_scalar and not a.type.parts and not (plain and a.type.missing), n, "takes one value for each arg")

    def apply(self, n: Node) -> None:
        row = SCALARS.get(n["fn"])
        need(row is not None, n, "is no function")
        assert row is not None
        self.scalars(n)
        need(len(n.args) == row.arity, n, f"takes {row.arity} args")
        dtypes = {a.type.dtype for a in n.args}
        need(len(dtypes) == 1, n, "takes args of one type")
        (dtype,) = dtypes
        allowed: tuple[str, ...] = {"bool": ("bool",), "int": INTS, "float": FLOATS}.get(row.operands, NUMBERS)
        if row.operands == "any":
            allowed = DTYPES
        need(dtype in allowed, n, f"can't take {dtype}")
        self.is_type(n, "bool" if row.result == "bool" else dtype)

    def cast(self, n: Node) -> None:
        self.scalars(n, plain=False)
        need(n["mode"] in ("round", "truncate", "exact"), n, "has an unknown mode")
        source, to = n.args[0].type.dtype, n.type.dtype
        texts = {source, to} <= {"text", "path"}
        need(texts or (source not in OBJECTS and to not in OBJECTS), n, f"can't turn {source} into {to}")
        self.is_type(n, to, (), n.args[0].type.missing)

    def select(self, n: Node) -> None:
        self.scalars(n, plain=False)
        condition, a, b = n.args
        need(condition.type == BOOL and a.type.dtype == b.type.dtype, n, "chooses between unlike values")
        self.is_type(n, a.type.dtype, (), a.type.missing or b.type.missing)

    def index(self, n: Node) -> None:
        tensor, *places = n.args
        need(isinstance(n["guard"], bool) and tensor.type.rank == len(places) > 0, n, "takes an index for each dimension")
        need(all(p.type.is_scalar and p.type.dtype == "i64" and not p.type.missing for p in places), n, "takes i64 indexes")
        self.is_type(n, tensor.type.dtype, (), tensor.type.missing or n["guard"])

    def fill(self, n: Node) -> None:
        self.scalars(n, plain=False)
        x, default = n.args
        need(x.type.missing and x.type.dtype == default.type.dtype, n, "fills what has no gaps, or with another type")
        self.is_type(n, x.type.dtype, (), default.type.missing)

    def missing(self, n: Node) -> None:
        self.scalars(n, plain=False)
        self.is_type(n, "bool")

    # --- tensors ---

    def extents(self, n: Node) -> None:
        for e in n.args[1:]:
            need(e.type.is_scalar and e.type.dtype == "i64" and not e.type.missing, n, "has a range that is no i64")
            need(e.op != "const" or 0 <= e["value"] < 1 << 40, n, "has a range below 0, or without end")

    def build(self, n: Node) -> None:
        self.extents(n)
        body = n.args[0].type
        need(not body.parts and all(not self.facts.free(d) & set(n["ids"]) for d in body.dims if isinstance(d, Node)), n,
             "has elements of unlike size")
        self.is_type(n, body.dtype, (*n.args[1:], *body.dims), body.missing)

    def reduce(self, n: Node) -> None:
        self.extents(n)
        body, kind = n.args[0].type, n["kind"]
        need(kind in REDUCTIONS and body.is_scalar and not body.missing and not body.parts, n, "can't reduce this")
        truth = kind in ("any", "all", "first")
        need(body.dtype == "bool" if truth else body.dtype in (*FLOATS, "i64"), n, f"can't reduce {body.dtype} so")
        own = "i64" if kind in ("argmax", "argmin", "first") else body.dtype
        self.is_type(n, own, (), n.type.missing)
        need(kind != "first" or n.type.missing, n, "may have no place")

    def draw(self, n: Node) -> None:
        row = DRAWS.get(n["dist"])
        count = n["indexes"]
        need(row is not None and self.seeded, n, "draws from no known distribution, or without a seed")
        assert row is not None
        need(type(count) is int and count >= 0 and len(n.args) == len(row.dtypes) + count, n, "takes other args")
        self.scalars(n)
        wanted = (*row.dtypes, *["i64"] * count)
        need(all(a.type.dtype == t for a, t in zip(n.args, wanted, strict=True)), n, "takes other args")
        if n["dist"] == "permutation":
            self.is_type(n, "i64", (n.args[0],))
        else:
            self.is_type(n, "f32" if n["dist"] == "uniform" else "i64")

    def call(self, n: Node) -> None:
        need(set(dict(n.attrs)) == {"op"} and operators().get(n["op"]) is not None, n, "is no operator")
        made = self.called(n, n["op"], "call", {"op": n["op"]})
        need(made is n, n, "has a type that doesn't follow from its args")

    def called(self, n: Node, name: str, op: str, attrs: dict[str, str]) -> Node:
        """The call of an operator with these args, read by the same rules as in programs."""
        from .calls import Opaque, call_of

        head = head_of(operators()[name].head)
        need(len(n.args) == len(head.formals), n, f"takes {len(head.formals)} args")
        made, equal = call_of(Opaque(head, op, attrs, name), n.args)
        if made is None:
            raise wrong(n, "can't take these args")
        self.equal += [pair for pair in equal if pair not in self.equal]
        return made

    def extern(self, n: Node) -> None:
        module, colon, name = str(n["target"]).partition(":")
        need(bool(colon) and all(p.isidentifier() for p in (*module.split("."), name)), n, "names no function")
        need(all(t.dtype in DTYPES for t in ((p for _, p in n.type.parts) if n.type.parts else (n.type,))), n, "gives no value")

    def weight(self, n: Node) -> None:
        need(isinstance(n["default"], float) and str(n["name"]).isidentifier(), n, "is no weight")
        self.is_type(n, "f32", ())

    def part(self, n: Node) -> None:
        found = dict(n.args[0].type.parts).get(n["name"])
        need(n.args[0].type.dtype == "struct" and found is not None, n, "is a part that isn't there")
        assert found is not None
        self.is_type(n, found.dtype, found.dims, found.missing)


def same_dims(given: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Are these surely the same sizes: a number and its constant node are."""
    return len(given) == len(wanted) and all(plain_dim(a) == plain_dim(b) for a, b in zip(given, wanted))


def plain_dim(d: Any) -> Any:
    return d["value"] if isinstance(d, Node) and d.op == "const" else d


def dims_within(t: Type) -> list[Node]:
    """The nodes that a type's dims mention, those of its parts too."""
    return [d for d in t.dims if isinstance(d, Node)] + [d for _, p in t.parts for d in dims_within(p)]


_RULES: dict[str, Callable[[Values, Node], None]] = {
    "const": Values.const, "field": Values.field, "extent": Values.extent, "param": Values.param, "count": Values.number,
    "epoch": Values.number, "var": Values.number, "apply": Values.apply, "cast": Values.cast, "select": Values.select,
    "index": Values.index, "fill": Values.fill, "missing": Values.missing, "build": Values.build, "reduce": Values.reduce,
    "weight": Values.weight, "draw": Values.draw, "call": Values.call, "extern": Values.extern, "part": Values.part,
}
