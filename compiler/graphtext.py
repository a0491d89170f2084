"""The graph as text, and back: `parse_graph(print_graph(g))` is `g`, where binders are numbered in order (`renumbered`).

One line per node, `name = op(args, attr=value, …) : type`; the last line is the result and has no name. A scalar
function is written as a call, a scalar constant where it is used: `add(x, 4)`, `mul(y, 0.5:f32)`. Dims are ints or
names. Text may come from anywhere: what isn't a graph gives a `GraphTextError` that names the line.
"""
from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from ..dsl.types import DTYPES, I64, Type
from .graph import STREAM_OPS, Node, fresh_id, node, var, walk
from .graphtokens import GraphTextError, Line, lines
from .rules import everywhere, inner

# op → attributes that it must have
ATTRS: dict[str, frozenset[str]] = {
    op: frozenset(names.split())
    for op, names in {
        "const": "value", "field": "name", "count": "", "extent": "axis", "param": "name", "epoch": "", "weight": "default name",
        "draw": "dist path indexes", "var": "id", "apply": "fn", "cast": "mode", "select": "", "index": "guard",
        "fill": "", "missing": "", "build": "ids", "reduce": "ids kind", "call": "op", "extern": "target",
        "part": "name", "source": "columns kind options paths", "map": "names", "zip": "names", "emit": "names",
    }.items()
}
OPS = frozenset(ATTRS) | STREAM_OPS | {"sample"}
ARGS = {"select": 3, "fill": 2, "missing": 1, "cast": 1, "part": 1, "const": 0, "field": 0, "var": 0, "param": 0, "epoch": 0,
        "weight": 0}
KINDS_OF_TYPE = frozenset((*DTYPES, "stream", "struct", "unknown"))
WORDS = frozenset(("true", "false", "nan", "inf"))
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*")
LARGEST_ID = 100_000


# --- printing -------------------------------------------------------------------------------------


def print_graph(root: Node) -> str:
    """The text of everything `root` is made of."""
    return print_lines(root)[0]


def print_lines(root: Node) -> tuple[str, list[Node]]:
    """The text, and for each of its lines the node of `root` that it stands for."""
    before: dict[Node, Node] = {}
    root = renumbered(root, lambda old, new: before.setdefault(new, old))
    lines: list[Node] = []
    names: dict[Node, str] = {}
    taken: dict[str, int] = dict.fromkeys(WORDS, 1)
    text = []
    for n in walk(root, into=inner):
        if _is_inline(n) and n is not root:
            names[n] = f"{_value(n['value'])}{_suffix(n)}"
            continue
        lines.append(before.get(n, n))
        body = f"{_head(n, names)} : {_type(n.type, names)}"
        if n is root:
            text.append(body)
        else:
            names[n] = _name(n, taken)
            text.append(f"{names[n]} = {body}")
    return "\n".join(text) + "\n", lines


def renumbered(root: Node, moved: Callable[[Node, Node], object] | None = None) -> Node:
    """`root` with its binders' ids counted from 1 in the order of `print_graph`; `moved(old, new)` is told of each change."""
    ids: dict[int, int] = {}
    for n in walk(root, into=inner):
        for id in (n["id"],) if n.op == "var" else n.get("ids", ()):
            ids.setdefault(id, len(ids) + 1)
    if all(old == new for old, new in ids.items()):
        return root

    def step(n: Node) -> Node | None:
        if n.op == "var":
            return var(ids[n["id"]])
        if n.op not in ("build", "reduce"):
            return None
        return node(n.op, *n.args, type=n.type, **{**dict(n.attrs), "ids": tuple(ids[i] for i in n["ids"])})

    return everywhere(root, step, moved, steps=1)


def _is_inline(n: Node) -> bool:
    plain = n.op == "const" and not n.type.dims and n.type.dtype in DTYPES and not (n.type.weak or n.type.missing)
    return plain and not n.type.parts and isinstance(n["value"], (bool, int, float, str))


def _suffix(n: Node) -> str:
    return "" if _usual(n["value"]) == n.type.dtype else f":{n.type.dtype}"


def _usual(value: Any) -> str:
    """The dtype that an inline constant has where none is written."""
    return {bool: "bool", int: "i64", str: "text"}.get(type(value), "")


def _head(n: Node, names: dict[Node, str]) -> str:
    attrs = dict(n.attrs)
    head = n.op
    if n.op == "apply" and NAME.fullmatch(str(n["fn"])) and n["fn"] not in OPS:
        head = attrs.pop("fn")
    listed = [names[a] for a in n.args] + [f"{k}={_value(v)}" for k, v in attrs.items()]
    return f"{head}({', '.join(listed)})"


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return "nan" if math.isnan(value) else repr(value)
        case str():
            return json.dumps(value)
        case tuple():
            return "(" + ", ".join(map(_value, value)) + ("," if len(value) == 1 else "") + ")"
        case _:
            raise TypeError(f"a graph has no attributes of type {type(value).__name__}")


def _type(t: Type, names: dict[Node, str]) -> str:
    if t.dtype == "stream" and not (t.dims or t.missing or t.weak):
        return _parts(t, names)
    text = ("weak " if t.weak else "") + t.dtype + ("?" if t.missing else "")
    if t.dims:
        text += "[" + ", ".join(names[d] if isinstance(d, Node) else str(d) for d in t.dims) + "]"
    return f"{text} {_parts(t, names)}" if t.parts else text


def _parts(t: Type, names: dict[Node, str]) -> str:
    listed = (f"{n if FIELD_NAME.fullmatch(n) else json.dumps(n)}: {_type(p, names)}" for n, p in t.parts)
    return "{" + ", ".join(listed) + "}"


def _name(n: Node, taken: dict[str, int]) -> str:
    """A name that tells what it is, not taken yet."""
    match n.op:
        case "field" | "param" | "weight":
            hint = str(n["name"])
        case "extent":
            hint = f"{n.get('field') or n.get('op') or 'size'}_{n['axis']}"
        case "draw":
            hint = str(n["path"]).rsplit("/", 1)[-1].split(".")[0]
        case "var":
            hint = f"i{n['id']}"
        case op if op in STREAM_OPS or op in ("sample", "count", "epoch"):
            hint = op
        case _:
            hint = ""
    hint = re.sub(r"\W", "_", hint, flags=re.ASCII)
    if not NAME.fullmatch(hint):
        hint = "v" + hint
    name = hint if hint not in taken and hint != "v" else f"{hint}{taken.setdefault(hint, 1)}"
    while name in taken:
        taken[hint] += 1
        name = f"{hint}{taken[hint]}" if hint == "v" else f"{hint}_{taken[hint]}"
    taken[name] = 1
    return name


# --- parsing --------------------------------------------------------------------------------------


def parse_graph(text: str) -> Node:
    """The graph that `text` describes."""
    return parse_lines(text)[-1]


def parse_lines(text: str) -> list[Node]:
    """The node of each line that isn't empty; the last one is the graph."""
    made_of: list[Node] = []
    named: dict[str, Node] = {}
    result: Node | None = None
    highest = 0
    for line in lines(text):
        if result is not None:
            raise line.error("the line before has no name, so nothing may follow it")
        name = _definition(line)
        if name in named or name in WORDS:
            raise line.error(f"`{name}` is taken")
        made = _node(line, named)
        made_of.append(made)
        highest = max(highest, _largest_id(line, made))
        line.end()
        if name is None:
            result = made
        else:
            named[name] = made
    if result is None:
        raise GraphTextError(len(text.splitlines()) or 1, "no result: the last line must have no name")
    while highest and fresh_id() <= highest:  # so that no new binder gets an id of these
        pass
    return made_of


def _definition(line: Line) -> str | None:
    if line.peek(1) != "=":
        return None
    name = line.name("a name")
    line.expect("=")
    return name


def _node(line: Line, named: dict[str, Node]) -> Node:
    head = line.name("an operation")
    line.expect("(")
    args: list[Node] = []
    attrs: dict[str, Any] = {}
    while not line.accept(")"):
        if args or attrs:
            line.expect(",")
        if line.peek(1) == "=":
            key = line.name("an attribute")
            line.expect("=")
            if key in attrs or key == "type":
                raise line.error(f"attribute `{key}` can't stand here")
            attrs[key] = line.value()
        elif attrs:
            raise line.error("args stand before attributes")
        else:
            args.append(_arg(line, named))
    line.expect(":")
    type = _read_type(line, named)
    if head not in OPS:
        if attrs:
            raise line.error(f"`{head}` is a scalar function and takes no attributes")
        head, attrs = "apply", {"fn": head}
    _check(line, head, args, attrs, type)
    return node(head, *args, type=type, **attrs)


def _arg(line: Line, named: dict[str, Node]) -> Node:
    token = line.peek()
    if NAME.fullmatch(token) and token not in WORDS:
        name = line.name("a name")
        if name not in named:
            raise line.error(f"`{name}` isn't defined above")
        return named[name]
    value = line.value()
    dtype = line.name("a dtype") if line.accept(":") else _usual(value)
    if dtype not in DTYPES or isinstance(value, tuple):
        raise line.error(f"a constant needs a dtype, not `{dtype}`" if dtype else "a constant needs a dtype")
    return node("const", type=Type(dtype), value=value)


def _read_type(line: Line, named: dict[str, Node], depth: int = 0) -> Type:
    if depth > 6:
        raise line.error("types are nested too deeply")
    if line.peek() == "{":
        return Type("stream", parts=_read_parts(line, named, depth))
    weak = line.accept("weak")
    dtype = line.name("a type")
    if dtype not in KINDS_OF_TYPE:
        raise line.error(f"`{dtype}` isn't a dtype")
    missing = line.accept("?")
    dims: list[Node | int] = []
    if line.accept("["):
        while not line.accept("]"):
            if dims:
                line.expect(",")
            dims.append(_dim(line, named))
    parts = _read_parts(line, named, depth) if line.peek() == "{" else ()
    return Type(dtype, tuple(dims), missing, weak, parts)


def _dim(line: Line, named: dict[str, Node]) -> Node | int:
    if line.peek().isdigit():
        return int(line.value())
    dim = _arg(line, named)
    if dim.type.dtype != "i64" or dim.type.dims:
        raise line.error("a dim is an i64")
    return dim


def _read_parts(line: Line, named: dict[str, Node], depth: int) -> tuple[tuple[str, Type], ...]:
    line.expect("{")
    parts: list[tuple[str, Type]] = []
    while not line.accept("}"):
        if parts:
            line.expect(",")
        name = line.field_name()
        line.expect(":")
        parts.append((name, _read_type(line, named, depth + 1)))
    if len({n for n, _ in parts}) < len(parts):
        raise line.error("two parts have one name")
    return tuple(parts)


def _check(line: Line, op: str, args: list[Node], attrs: dict[str, Any], type: Type) -> None:
    """What every reader of a graph takes for granted."""
    lacking = sorted(ATTRS.get(op, frozenset()) - attrs.keys())
    if lacking:
        raise line.error(f"`{op}` needs the attribute `{lacking[0]}`")
    if op in ARGS and len(args) != ARGS[op]:
        raise line.error(f"`{op}` takes {ARGS[op]} args, not {len(args)}")
    if op in STREAM_OPS and type.dtype != "stream":
        raise line.error(f"`{op}` gives a stream")
    if op in ("build", "reduce"):
        ids = attrs["ids"]
        if not isinstance(ids, tuple) or not ids or len(ids) != len(args) - 1 or len(set(ids)) < len(ids):
            raise line.error(f"`{op}` takes a body and one size for each of its ids")
    if op == "var" and type != I64:
        raise line.error("a var is an i64")
    if op == "const" and type.dims and not isinstance(attrs["value"], tuple):
        raise line.error("a constant tensor has a tuple of values")
    for name in ("name", "fn", "mode", "kind", "dist", "path", "target", "op"):
        if name in attrs and op in ATTRS and not isinstance(attrs[name], str):
            raise line.error(f"`{name}` of `{op}` is a text")


def _largest_id(line: Line, n: Node) -> int:
    ids = (n["id"],) if n.op == "var" else n["ids"] if n.op in ("build", "reduce") else ()
    if not all(type(i) is int and 0 < i <= LARGEST_ID for i in ids):
        raise line.error(f"ids of binders are from 1 to {LARGEST_ID}")
    return max(ids, default=0)
