"""Values of params: a default, or what a command line (text) or Python gives, as a constant of the param's type."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..dsl import parse, tree
from ..dsl.problems import PipeError, Span
from ..dsl.types import BOOL, TEXT, WEAK_FLOAT, WEAK_INT, Type
from ..runtime.settings import ParamError, fitted, flattened, scalar
from .graph import const, node
from .scope import Value


def from_default(value: Any, type: Type, span: Span) -> Value:
    """A folded Python value (nested sequences for tensors) as a constant; raises ParamError if it doesn't fit `type`."""
    flat, dims = flattened(value)
    if type.dtype == "unknown":
        type = natural(flat)
    if type.dims and type.rank != len(dims):
        raise ParamError(f"has {len(dims)} dimensions, not the {type.rank} of its type")
    for expected, found in zip(type.dims, dims, strict=False):
        if isinstance(expected, int) and expected != found:
            raise ParamError(f"holds {found} values where its type says {expected}")
    if not type.dims and dims and not type.weak:
        raise ParamError(f"is a list, and {shown(type)} is one value")
    return _constant([fitted(v, type.dtype) for v in flat], type.with_dims(dims), span)


def from_override(given: Any, type: Type, span: Span) -> Value:
    """What a person gave for a param of this type; text is read as the language writes values."""
    if isinstance(given, str) and type.dims:
        given = _list(given, type)
    elif isinstance(given, str) and type.dtype not in ("text", "path"):
        given = scalar(given, type.dtype)
    elif hasattr(given, "tolist"):
        given = given.tolist()
    elif isinstance(given, os.PathLike):
        given = os.fspath(given)
    _, dims = flattened(given)
    if bool(dims) != bool(type.dims):
        raise ParamError(f"is {shown(type)}, not {'a list' if dims else 'one value'}")
    return from_default(given, type, span)


def placeholder(name: str, type: Type, span: Span) -> Value:
    """What stands for a required param while a program is only checked."""
    if type.dtype in ("text", "path"):
        return Value(const("", Type(type.dtype)), type, span)
    return Value(node("param", type=type.strong(), name=name), type, span)


def natural(flat: Sequence[Any]) -> Type:
    """The type of values that were written without one."""
    if all(isinstance(v, bool) for v in flat):
        return BOOL
    if all(isinstance(v, str) for v in flat):
        return TEXT
    return WEAK_INT if all(isinstance(v, int) for v in flat) else WEAK_FLOAT


def shown(type: Type) -> str:
    """A type with the dims that are numbers."""
    dims = ", ".join(str(d) if isinstance(d, int) else "_" for d in type.dims)
    return str(type.dtype) + (f"[{dims}]" if dims else "")


def _constant(flat: list[Any], type: Type, span: Span) -> Value:
    value = tuple(flat) if type.dims else flat[0]
    return Value(const(value, type.strong()), type, span)


def _list(text: str, type: Type) -> Any:
    """`[1, 2]` as text; `1,2` too, since a shell's brackets want quotes."""
    written = text.strip() if text.strip().startswith("[") else f"[{text}]"
    try:
        declaration = parse.parse(f"let value = {written}\n", "<value>").declarations[0]
    except PipeError:
        raise ParamError(f"is {shown(type)}; write it as [1, 2, 3], not `{text}`") from None
    assert isinstance(declaration, tree.Let)
    return _literal(declaration.value, type, text)


def _literal(expr: Any, type: Type, text: str) -> Any:
    match expr:
        case tree.Array(items=items):
            return [_literal(i, type, text) for i in items]
        case tree.Number(value=value) | tree.String(value=value) | tree.Truth(value=value):
            return value
        case tree.Unary(op="-", value=tree.Number(value=value)):
            return -value
    raise ParamError(f"is {shown(type)}; write it as [1, 2, 3], not `{text}`")
