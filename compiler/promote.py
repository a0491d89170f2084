"""Numbers that meet: which dtype they take, casts between them, and arithmetic on constants done at once.

Nodes made here are scalars (or constant tensors); the types of nodes are never weak.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..dsl.types import BOOL, FLOATS, INT_RANGE, INTS, NUMBERS, OBJECTS, Type
from .graph import Node, const, node, number

I64_LEAST, I64_MOST = INT_RANGE["i64"]


def meet(types: Sequence[Type]) -> Type | None:
    """The dtype of arithmetic on these (scalar) types: exact integers are i64. None where they aren't numbers."""
    if any(t.dtype not in NUMBERS for t in types):
        return None
    weak = all(t.weak for t in types)
    floats = {t.dtype for t in types if not t.weak and t.dtype in FLOATS}
    if floats:
        return Type(_widest(floats))
    if any(t.dtype in FLOATS for t in types):
        return Type("f32", weak=weak)
    return Type("i64", weak=weak)


def _widest(floats: set[str]) -> str:
    if "f64" in floats:
        return "f64"
    return floats.pop() if len(floats) == 1 else "f32"


def agree(types: Sequence[Type]) -> Type | None:
    """The dtype of one value chosen among several (`if`, `??`, a list): no arithmetic, so a dtype is kept.

    None where they have nothing in common, e.g. a number and a text.
    """
    strong = {t.dtype for t in types if not t.weak}
    if not strong:
        return meet(types)
    if len(strong) == 1:
        own = next(iter(strong))
        if all(t.dtype == own or (t.dtype in NUMBERS and own in FLOATS) for t in types):
            return Type(own)
        if own in INTS and all(t.dtype in INTS for t in types):
            return Type(own)
    if {t.dtype for t in types} == {"text", "path"}:
        return Type("text")
    return meet([t for t in types if not t.weak or t.dtype in FLOATS])


def one_dtype(types: Iterable[Type], word: str) -> Type | None:
    """What a word like `num` of a signature stands for, given its arguments; None where they don't fit it."""
    listed = list(types)
    common = agree(listed)
    if common is None:
        return None
    if word == "float" and common.dtype in INTS:
        return Type("f32", weak=common.weak)
    fits = {"any": True, "num": common.dtype in NUMBERS, "int": common.dtype in INTS, "float": common.dtype in FLOATS}
    return common if fits[word] else None


# --- constants --------------------------------------------------------------------------------


def is_const(n: Node) -> bool:
    return n.op == "const" and not n.type.dims


def as_dtype(value: Any, dtype: str) -> Any:
    """A Python value as one of `dtype` (floats are kept as written: a wider dtype may come)."""
    if dtype in FLOATS:
        return float(value)
    if dtype == "bool":
        return bool(value)
    return value if dtype in OBJECTS else int(value)


def cast(n: Node, dtype: str, mode: str = "exact") -> Node:
    """`n` as `dtype`. Constants are rewritten; the mode only matters for integers."""
    if n.type.dtype == dtype:
        return n
    if {n.type.dtype, dtype} <= {"text", "path"}:
        return n
    to = Type(dtype, n.type.dims, n.type.missing)
    if n.op == "const":
        values = n["value"] if n.type.dims else (n["value"],)
        changed = [_changed(v, n.type.dtype, dtype, mode) for v in values]
        if None not in changed:
            return const(tuple(changed) if n.type.dims else changed[0], to)
    if n.op == "index" and n.args[0].op == "const":
        table = cast(n.args[0], dtype, mode)
        if table.op == "const":
            return node("index", table, *n.args[1:], type=to, guard=n["guard"])
    return node("cast", n, type=to, mode="exact" if dtype in FLOATS else mode)


def _changed(value: Any, old: str, dtype: str, mode: str) -> Any:
    """A constant cast to `dtype`, or None where that is left for later."""
    if dtype in FLOATS:
        return float(value)
    if dtype == "bool":
        return bool(value != 0)
    if dtype not in INTS:
        return None
    low, high = INT_RANGE[dtype]
    if old in FLOATS:
        if value != value:
            return 0
        if value in (float("inf"), float("-inf")):
            return high if value > 0 else low
        value = round(_exactly(value, old)) if mode == "round" else int(_exactly(value, old))
        return min(max(value, low), high)
    value = int(value)
    if mode == "exact" and not low <= value <= high:
        return None
    return min(max(value, low), high)


def _exactly(value: float, dtype: str) -> float:
    from ..kernels.scalar import literal

    return float(literal(value, dtype))


_INTEGERS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else None, "mod": lambda a, b: a % b if b else None,
    "neg": lambda a: -a, "min": min, "max": max, "abs": abs,
}
_COMPARED: dict[str, Callable[..., Any]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}
_TRUTHS: dict[str, Callable[..., Any]] = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "not": lambda a: not a}


def apply(fn: str, *args: Node, dtype: str) -> Node:
    """A scalar function of scalars that have its dtypes already; of constants, its value."""
    if all(is_const(a) for a in args):
        value = _folded(fn, args, dtype)
        if value is not None:
            return const(value, Type(dtype))
    return node("apply", *args, type=Type(dtype), fn=fn)


def _folded(fn: str, args: tuple[Node, ...], dtype: str) -> Any:
    values = [a["value"] for a in args]
    kind = args[0].type.dtype
    if fn in _TRUTHS:
        return _TRUTHS[fn](*values)
    if fn in _COMPARED and (kind in INTS or kind in OBJECTS or kind == "bool"):
        return _COMPARED[fn](*values)
    if fn in _INTEGERS and kind in INTS:
        value = _INTEGERS[fn](*values)
        return value if value is not None and I64_LEAST <= value <= I64_MOST else None
    return _by_reference(fn, values, args)


def _by_reference(fn: str, values: list[Any], args: tuple[Node, ...]) -> Any:
    """The value the reference gives; None where it can't (an overflow is left to be met at run time)."""
    import numpy as np

    from ..kernels import scalar

    row = scalar.SCALARS.get(fn)
    if row is None or any(a.type.dtype in OBJECTS for a in args):
        return None
    arrays = [scalar.literal(v, a.type.dtype) for v, a in zip(values, args, strict=True)]
    with np.errstate(all="ignore"):
        if row.overflow is not None and args[0].type.dtype in INTS and np.any(row.overflow(scalar.ARRAYS, *arrays)):
            return None
        return np.asarray(row.ref(*arrays)).item()


# --- scalar nodes -----------------------------------------------------------------------------


def select(condition: Node, then: Node, other: Node) -> Node:
    if is_const(condition):
        return then if condition["value"] else other
    if then is other:
        return then
    missing = then.type.missing or other.type.missing
    return node("select", condition, then, other, type=Type(then.type.dtype, missing=missing))


def conjunction(parts: Sequence[Node]) -> Node:
    """All of these conditions; the later ones are only evaluated where the earlier hold, if they could fail."""
    result = parts[0]
    for part in parts[1:]:
        result = select(result, part, const(False, BOOL)) if can_fail(part) else apply("and", result, part, dtype="bool")
    return result


def can_fail(n: Node) -> bool:
    """Might evaluating this, where its facts don't hold, read outside or divide by zero."""
    seen: set[Node] = set()
    stack = [n]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if (at.op == "index" and not at["guard"]) or at.op in ("call", "extern"):
            return True
        if at.op == "apply" and at["fn"] in ("floordiv", "mod") and not is_const(at.args[1]):
            return True
        stack.extend(at.args)
    return False


# --- dimensions -------------------------------------------------------------------------------


def dim_node(dim: int | Node) -> Node:
    return number(dim) if isinstance(dim, int) else dim


def as_dim(n: Node) -> int | Node:
    """An i64 node as a dimension: an int where it is one."""
    if is_const(n):
        return int(n["value"])
    if n.op == "apply":
        from .simplify import simplify

        n = simplify(n)
        if is_const(n):
            return int(n["value"])
    return n
