"""The names that kernel texts use, as Numba intrinsics, so that a text can be compiled as the Python it is.

Importing this module imports numba. The codes are those of `compiler.instructions`.
"""
from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .instructions import FUNCTIONS, LLVM, Code, convert

SCALARS = {
    "u8": types.uint8, "i8": types.int8, "u16": types.uint16, "i16": types.int16, "u32": types.uint32,
    "i32": types.int32, "u64": types.uint64, "i64": types.int64, "f32": types.float32, "f64": types.float64,
}
MEMORY = SCALARS | {"bool": types.uint8, "f16": types.uint16, "bf16": types.uint16}
VALUES = SCALARS | {"bool": types.boolean, "f16": types.uint16, "bf16": types.uint16}


def make(name: str, signature: Callable[..., Any], code: Code) -> Any:
    """An intrinsic: `signature(*argument types)` gives result and argument types."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return code(builder, *args)

    def two(typingctx: Any, *a: Any) -> Any:
        return signature(*[types.unliteral(t) for t in a]), generate

    counts: dict[int, Any] = {
        1: lambda typingctx, a: two(typingctx, a),
        2: lambda typingctx, a, b: two(typingctx, a, b),
        3: lambda typingctx, a, b, c: two(typingctx, a, b, c),
    }
    fn = counts[signature.__code__.co_argcount if signature.__defaults__ is None else 1]
    fn.__name__ = name
    return intrinsic(fn)


def same1(a: Any) -> Any: return a(a)
def same2(a: Any, b: Any) -> Any: return widest(a, b)(widest(a, b), widest(a, b))


def widest(a: Any, b: Any) -> Any:
    """Numba types small literals and range variables as it likes; every integer computed with is i64."""
    if isinstance(a, types.Integer) and isinstance(b, types.Integer):
        return types.int64
    return a


def chosen(c: Any, a: Any, b: Any) -> Any:
    t = widest(a, b)
    return t(types.boolean, t, t)


ONE_ARGUMENT = frozenset(("abs", "floor", "ceil", "rint", "sqrt"))
_made: dict[str, Any] = {}


def _pointer(dtype: str) -> Any:
    pointer = types.CPointer(MEMORY[dtype])
    return make(f"at_{dtype}", lambda a: pointer(types.int64),
                lambda b, a: b.inttoptr(a, ir.PointerType(LLVM["u8" if dtype == "bool" else dtype])))


def _named(name: str) -> Any:
    if name in SCALARS:
        return SCALARS[name]
    if name.startswith("at_"):
        return _pointer(name[3:])
    if name in FUNCTIONS:
        rule, code = FUNCTIONS[name]
        return make(name, chosen if rule == "chosen" else same1 if name in ONE_ARGUMENT else same2, code)
    if "_to_" in name:
        source, rest = name.split("_to_")
        target, _, mode = rest.partition("_")
        result: Any = VALUES[target]
        given = VALUES[source]
        return make(name, lambda a: result(given), convert(source, target, mode or "exact"))
    raise KeyError(name)


def namespace(code: CodeType) -> dict[str, Any]:
    """Globals for the text of a kernel compiled to `code` (a module with one function)."""
    inner = next(c for c in code.co_consts if isinstance(c, CodeType))
    names: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "range": range}
    for name in inner.co_names:
        if name not in names:
            if name not in _made:
                _made[name] = _named(name)
            names[name] = _made[name]
    return names
