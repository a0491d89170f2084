"""Level 1: the typed graph. One class, `Node(op, args, attrs, type)`, equal nodes are one object.

Values (functions of one frame, that is of one record, or of one batch after `batch`):

    op       args                       attrs               meaning
    const                               value               a scalar, or a tensor as a flat tuple (C order)
    field                               name                a field of this frame
    count                                                   records in this frame (after batch, window, each)
    extent   the operator's args        op, part, axis      a size that only a call's result has
    extent                              field, axis         a size that only a field has
    param                               name                a param that may still be set (used only below share)
    epoch                                                   number of the epoch, i64
    weight                              name, default       what consumers returned for this record, f32
    draw     parameters…, indexes…      dist, path, indexes one draw; the last `indexes` args are binders' values
    var                                 id                  a binder of the enclosing build or reduce, i64
    apply    scalars                    fn                  a scalar function (kernels.scalar)
    cast     x                          mode                to `type.dtype`; mode "round" | "truncate" | "exact"
    select   condition, a, b                                lazily one of two scalars
    index    tensor, i, j, …            guard               one element, all indexes given; guard=True: `?` outside
    fill     x, default                                     `x ?? default`, scalars
    missing  x                                              is this scalar missing
    build    body, extents…             ids                 body at every place; a tensor body's dims come last
    reduce   body, extents…             ids, kind           sum prod min max any all argmax argmin first
    call     operator's args            op                  an operator (kernels.ops), tensors in, tensor or struct out
    extern   args                       target              a user's function "module:name"
    part     x                          name                one result of an operator that has several

Streams (the first args are streams, then values of the frame before them):

    source   path and option consts     kind, columns       columns: ((field, name in the data, type text), …)
    map      stream, values…            names               a new frame with these fields
    where    stream, condition
    check    stream, condition
    shuffle  stream                     chunk, mix, window, key
    take repeat shard skip_bad balance  stream, …           see compiler.stages
    each     stream                     fields
    batch    stream, n?, by?, budget?   has, whole, pad, edges
    window   stream, n, stride          rest, pad
    pack     stream, n, by              open
    mix      streams…                   names, weights, until
    zip      streams…                   names
    sample   stream, other              name, path, times
    share    stream                     end
    emit     stream                     names
"""
from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

from ..dsl.problems import Span
from ..dsl.types import I64, Type

STREAM_OPS = frozenset((
    "source", "map", "where", "check", "shuffle", "take", "repeat", "shard", "skip_bad", "balance", "each", "batch",
    "window", "pack", "mix", "zip", "sample", "share", "emit",
))


class Node:
    """A node of the graph. Never made directly: `node(…)` returns the one object for equal contents."""

    __slots__ = ("__weakref__", "args", "attrs", "number", "op", "type")
    op: str
    args: tuple[Node, ...]
    attrs: tuple[tuple[str, Any], ...]
    type: Type
    number: int  # in order of creation; args come before their users

    def __getitem__(self, name: str) -> Any:
        """The attribute `name`; raises KeyError where there is none."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def __repr__(self) -> str:
        inner = ", ".join([f"%{a.number}" for a in self.args] + [f"{k}={v!r}" for k, v in self.attrs])
        return f"%{self.number} = {self.op}({inner}) : {self.type.dtype}[{len(self.type.dims)}]"


_nodes: WeakValueDictionary[Any, Node] = WeakValueDictionary()
_lock = threading.Lock()
_next = [0]


def _key(value: Any) -> Any:
    """Tells 1 from 1.0 from True, 0.0 from -0.0, and nan equal to itself."""
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    if isinstance(value, float):
        return ("f", "nan" if math.isnan(value) else value.hex())
    return (type(value).__name__, value)


def node(op: str, /, *args: Node, type: Type, **attrs: Any) -> Node:
    """The node with these contents. Attribute values are ints, floats, strings, bools and tuples of them."""
    listed = tuple(sorted(attrs.items()))
    key = (op, args, tuple((k, _key(v)) for k, v in listed), type)
    with _lock:
        found = _nodes.get(key)
        if found is None:
            found = object.__new__(Node)
            found.op, found.args, found.attrs, found.type = op, args, listed, type
            found.number = _next[0]
            _next[0] += 1
            _nodes[key] = found
        return found


def fresh_id() -> int:
    """A binder's id, never used before in this process."""
    with _lock:
        _next[0] += 1
        return _next[0]


def const(value: Any, type: Type) -> Node:
    return node("const", type=type, value=value)


def number(value: int) -> Node:
    """An i64 constant."""
    return node("const", type=I64, value=int(value))


def var(id: int) -> Node:
    return node("var", type=I64, id=id)


def children(n: Node) -> tuple[Node, ...]:
    """Args, then the nodes that the type's dims mention."""
    return n.args + tuple(d for d in n.type.dims if isinstance(d, Node))


def walk(*roots: Node, into: Callable[[Node], Sequence[Node]] = attrgetter("args")) -> Iterator[Node]:
    """Every node reachable through args (not types), or what else `into` names, each once, what it is made of before it."""
    seen: set[Node] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        n, done = stack.pop()
        if done:
            yield n
        elif n not in seen:
            seen.add(n)
            stack.append((n, True))
            stack.extend((a, False) for a in reversed(into(n)) if a not in seen)


def made_of(root: Node, into: Callable[[Node], Sequence[Node]]) -> Iterator[Node]:
    """The nodes of `root` as a rewrite visits them: each after what it is made of, of which the last comes first.

    New nodes are numbered as they are made, and sums are ordered by these numbers: another order gives other kernels.
    """
    return walk(root, into=lambda n: into(n)[::-1])


Moved = Callable[[Node, Node], None]


def inherit(spans: dict[Node, tuple[Span, ...]]) -> Moved:
    """What a rewrite tells (old, new): the new node also comes from the places of the old one."""
    def moved(old: Node, new: Node) -> None:
        mine = spans.get(old, ())
        if mine and new.op != "const":
            spans[new] = tuple(dict.fromkeys((*spans.get(new, ()), *mine)))

    return moved


def rewrite(root: Node, change: Callable[[Node], Node | None], moved: Moved | None = None) -> Node:
    """`root` with `change` applied bottom-up: once to each node whose args (and dims) are already changed.

    `change` returns the replacement or None. The result isn't visited again. `moved` is told of every node that another
    takes the place of.
    """
    done: dict[Node, Node] = {}
    for n in made_of(root, children):
        args, dims = tuple(done[a] for a in n.args), tuple(done[d] if isinstance(d, Node) else d for d in n.type.dims)
        same = args == n.args and dims == n.type.dims
        new = n if same else node(n.op, *args, type=n.type.with_dims(dims), **dict(n.attrs))
        changed = change(new)
        done[n] = new if changed is None else changed
        if moved is not None and done[n] is not n:
            moved(n, done[n])
    return done[root]


def substitute(root: Node, replace: dict[Node, Node], moved: Moved | None = None) -> Node:
    """`root` with nodes replaced; ids of binders are unique, so nothing can be captured."""
    return rewrite(root, lambda n: replace.get(n), moved)


@dataclass(frozen=True)
class ParamInfo:
    """A param of the program that is run. `value` is a Python value; `open`: used only below `share()`."""

    name: str
    type: Type
    value: Any
    help: str
    open: bool
    span: Span


@dataclass(frozen=True)
class Program:
    """A checked program: the graph of its one run (an `emit` node) and what stands beside the graph."""

    name: str                      # of the pipeline
    path: str                      # of the file
    emit: Node
    seed: int | None
    params: tuple[ParamInfo, ...]
    texts: dict[str, str] = field(compare=False)                 # path → text
    spans: dict[Node, tuple[Span, ...]] = field(compare=False)   # node → places it comes from
