"""Values that a person gives for params (text of a command line, values of Python): checked, as the dtype holds them."""
from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..dsl.problems import PipeError, Problem, Span
from ..dsl.types import FLOATS, INT_RANGE, INTS
from .plan import Param, Plan


class ParamError(Exception):
    """Completes the sentence "`name` …", e.g. "is i64, and `abc` is no whole number"."""


def fitted(value: Any, dtype: str) -> Any:
    """`value` as dtype holds it; raises ParamError."""
    if dtype == "bool":
        if isinstance(value, bool):
            return value
        raise ParamError(f"is true or false, not `{value}`")
    if dtype in ("text", "path"):
        if isinstance(value, str):
            return value
        raise ParamError(f"is {dtype}, not `{value}`")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParamError(f"is {dtype}, not `{value}`")
    if dtype in FLOATS:
        return float(value)
    if dtype in INTS:
        return _whole(value, dtype)
    raise ParamError(f"can't be of type {dtype}")


def _whole(value: int | float, dtype: str) -> int:
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        raise ParamError(f"is {dtype}, and {value} is no whole number")
    low, high = INT_RANGE[dtype]
    if not low <= value <= high:
        raise ParamError(f"is {dtype}, which holds {low:,} to {high:,}, not {int(value):,}")
    return int(value)


def scalar(text: str, dtype: str) -> Any:
    """The number or truth value that a command line's text writes; raises ParamError."""
    plain = text.strip().replace("_", "")
    if dtype == "bool":
        known = {"true": True, "false": False, "True": True, "False": False}
        if plain in known:
            return known[plain]
        raise ParamError(f"is true or false, not `{text}`")
    try:
        return int(plain) if plain.lstrip("+-").isdigit() else float(plain)
    except ValueError:
        kind = "whole number" if dtype in INTS else "number"
        raise ParamError(f"is {dtype}, and `{text}` is no {kind}") from None


def flattened(value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Values in C order and dims of nested lists, tuples or an array."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return [value], ()
    parts = [flattened(v) for v in value]
    inner = {dims for _, dims in parts}
    if len(inner) > 1:
        raise ParamError("has rows of unlike length")
    return [v for flat, _ in parts for v in flat], (len(value), *(inner.pop() if inner else ()))


# --- open params of a plan ------------------------------------------------------------------------


def settled(plan: Plan, given: Mapping[str, Any], whole: str) -> Plan:
    """`plan` with the open params that `given` names set. Raises PipeError (E0703, E0704, E0712) for others.

    `whole` names what fixes the rest, for messages: "this artifact".
    """
    if not given:
        return plan
    return msgspec.structs.replace(plan, params=set_params(plan.params, given, whole, plan.path, plan.seed, plan.texts))


def set_params(params: Sequence[Param], given: Mapping[str, Any], whole: str, path: str, seed: int | None,
               texts: Mapping[str, str]) -> tuple[Param, ...]:
    """`params` with their new values. `path`, `texts`: the program's, for messages."""
    made = {p.name: p for p in params}
    free = "these can be set: " + (", ".join(p.name for p in params if p.open) or "none")
    problems = []
    for name, value in given.items():
        try:
            made[name] = _set(made.get(name) or _seed(seed, name), name, value)
        except _Fixed as fixed:
            again = f"compile the program again to change it: pipec compile {os.path.basename(path)} {name}={shown(fixed.asked)}"
            problems.append(Problem("E0712", f"`{name}` is fixed: {whole} was compiled with {name}={shown(fixed.now)}",
                                    Span(path, 0, 0), notes=(free, again)))
        except LookupError:
            problems.append(Problem("E0703", f"this program has no param `{name}`", Span(path, 0, 0), notes=(free,)))
        except ParamError as error:
            problems.append(Problem("E0704", f"`{name}` {error}", Span(path, 0, 0)))
    if problems:
        raise PipeError(tuple(problems), dict(texts))
    return tuple(made[p.name] for p in params)


class _Fixed(Exception):
    def __init__(self, now: Any, asked: Any):
        self.now, self.asked = now, asked


def _seed(seed: int | None, name: str) -> Param:
    """The seed, which is set like a param."""
    if name != "seed" or seed is None:
        raise LookupError(name)
    return Param("seed", "i64", seed, "", False)


def _set(param: Param, name: str, given: Any) -> Param:
    asked = _value(given, param.value, param.dtype)
    if not param.open and asked != param.value:
        raise _Fixed(param.value, asked)
    return msgspec.structs.replace(param, value=asked)


def _value(given: Any, now: Any, dtype: str) -> Any:
    """`given` as a value of the shape that the param has now."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    tensor = isinstance(now, list | tuple)
    if isinstance(given, str) and tensor:
        given = [part for part in given.strip().strip("[]").split(",") if part.strip()]
    flat, dims = flattened(given)
    if bool(dims) != tensor:
        raise ParamError(f"is {'a list' if tensor else 'one value'} of type {dtype}, not {'a list' if dims else 'one value'}")
    if tensor and len(flat) != len(now):
        raise ParamError(f"holds {len(now)} values, not {len(flat)}")
    text = dtype in ("text", "path")
    made = [fitted(scalar(v, dtype) if isinstance(v, str) and not text else v, dtype) for v in flat]
    return tuple(made) if tensor else made[0]


def shown(value: Any) -> str:
    """A param's value as a command line writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(shown(v) for v in value) + "]"
    return str(value)
