"""How messages speak: types and dimensions as people write them, similar names, names not yet taken."""
from __future__ import annotations

from collections.abc import Iterable

from ..dsl import tree
from ..dsl.types import FLOATS, INTS, Type
from .graph import Node
from .scope import Scope

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%"}


def type_text(scope: Scope, type: Type) -> str:
    """`f32?[h, w, 3]`"""
    if type.dtype == "struct":
        return "(" + ", ".join(f"{name}: {type_text(scope, t)}" for name, t in type.parts) + ")"
    dims = "[" + ", ".join(dim_text(scope, d) for d in type.dims) + "]" if type.dims else ""
    return type.dtype + ("?" if type.missing else "") + dims


def described(scope: Scope, type: Type) -> str:
    """For labels: `a number`, `f32[3]`."""
    if type.weak and not type.dims:
        return "a fraction" if type.dtype in FLOATS else "a whole number"
    return type_text(scope, type)


def dim_text(scope: Scope, dim: int | Node) -> str:
    """A number, a name that stands for it here, or `_`."""
    return _dim_text(scope, dim) or "_"


def _dim_text(scope: Scope, dim: int | Node, depth: int = 4) -> str | None:
    if isinstance(dim, int):
        return str(dim)
    if dim.op == "const":
        return str(dim["value"])
    for name, known in scope.dims.items():
        if known is dim:
            return name
    for name, value in scope.names.items():
        if value.node is dim:
            return name
    if dim.op in ("field", "param"):
        return str(dim["name"])
    if dim.op == "apply" and dim["fn"] in SIGNS and depth:
        a, b = (_dim_text(scope, x, depth - 1) for x in dim.args)
        return f"{a} {SIGNS[dim['fn']]} {b}" if a and b else None
    return None


def writable_dim(scope: Scope, dim: int | Node) -> str | None:
    """The dimension as an expression that can stand in the program here, or None."""
    if isinstance(dim, int):
        return str(dim)
    if dim.op == "const":
        return str(dim["value"])
    for name, value in {**scope.file.lets, **scope.file.params, **scope.names}.items():
        if value.node is dim:
            return name
    return None


def size_text(scope: Scope, e: tree.Expr, axis: int, dim: int | Node) -> str | None:
    """The size of `e` along an axis as it can be written here; in a function, by the name its head gives."""
    if scope.function is not None and isinstance(e, tree.Name):
        for formal in scope.function.head.formals:
            if formal.name == e.id and axis < len(formal.type.dims):
                named = formal.type.dims[axis]
                if isinstance(named, tree.Name) and named.id in scope.names:
                    return named.id
    return writable_dim(scope, dim)


def default_text(type: Type) -> str:
    """What stands in for a gap in an edit."""
    if type.dtype in INTS or type.dtype in FLOATS:
        return "0"
    return "false" if type.dtype == "bool" else '""'


def distance(a: str, b: str, most: int) -> int:
    """Changes of one letter (two swapped count as one) from `a` to `b`; more than `most` is `most + 1`."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        new = [i]
        for j, y in enumerate(b, 1):
            cost = min(row[j] + 1, new[j - 1] + 1, row[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            new.append(cost)
        before, row = row, new
    return min(row[-1], most + 1)


def similar(name: str, names: Iterable[str]) -> str | None:
    """The nearest name within a third of the length."""
    most = len(name) // 3
    found = [(distance(name.lower(), other.lower(), most), other) for other in sorted(set(names)) if other != name]
    near = [pair for pair in found if pair[0] <= most]
    return min(near)[1] if near else None


def listed(names: Iterable[str], most: int = 10) -> str | None:
    """The names with commas if there are ten or fewer."""
    known = sorted(set(names))
    return ", ".join(known) if 0 < len(known) <= most else None


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """`wanted`, or with a number behind it."""
    used = set(taken)
    return wanted if wanted not in used else next(f"{wanted}_{i}" for i in range(2, 10_000) if f"{wanted}_{i}" not in used)


def counted(n: int, word: str) -> str:
    """`1 index`, `2 indexes`."""
    ending = "es" if word.endswith(("x", "s")) else "s"
    return f"{n} {word}" if n == 1 else f"{n} {word}{ending}"
