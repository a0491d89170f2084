"""Kernel texts as plain Python over real memory: what Numba makes of a text is tested against this.

Slow by a factor of thousands; every value is a NumPy scalar of the dtype that the compiled kernel computes in.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import ml_dtypes
import numpy as np

from ..dsl.types import INT_RANGE
from .emit_numba import arguments_of

SCALARS: dict[str, Any] = {
    "u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16, "u32": np.uint32, "i32": np.int32,
    "u64": np.uint64, "i64": np.int64, "f32": np.float32, "f64": np.float64,
}
MEMORY = SCALARS | {"bool": np.uint8, "f16": np.uint16, "bf16": np.uint16}
SHORT = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
WORD = 2**64


class Pointer:
    """Memory from an address on, as elements of one dtype."""

    def __init__(self, address: int, dtype: str):
        self.address, self.dtype = int(address), np.dtype(MEMORY[dtype])

    def _view(self, i: int) -> np.ndarray[Any, Any]:
        place = self.address + int(i) * self.dtype.itemsize
        return np.frombuffer((ctypes.c_char * self.dtype.itemsize).from_address(place), self.dtype)

    def __getitem__(self, i: int) -> Any:
        return self._view(i)[0]

    def __setitem__(self, i: int, value: Any) -> None:
        self._view(i)[0] = value


def wrap(n: int) -> Any:
    """The low 64 bits of a Python integer, as i64."""
    n %= WORD
    return np.int64(n - WORD if n >= WORD // 2 else n)


def is_float(x: Any) -> bool:
    return isinstance(x, (float, np.floating))


def least(x: Any, y: Any) -> Any:
    if is_float(x):
        return x if np.isnan(x) or x < y else y
    return x if x < y else y


def greatest(x: Any, y: Any) -> Any:
    if is_float(x):
        return x if np.isnan(x) or x > y else y
    return x if x > y else y


def floordiv(x: Any, y: Any) -> Any:
    if is_float(x):
        return np.floor(x / y)
    return wrap(int(x) // (int(y) or 1))


def mod(x: Any, y: Any) -> Any:
    if is_float(x):
        return x - floordiv(x, y) * y
    return wrap(int(x) % (int(y) or 1))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "select": lambda c, x, y: x if c else y,
    "min": least, "max": greatest,
    "abs": lambda x: np.abs(x) if is_float(x) else wrap(abs(int(x))),
    "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "sqrt": np.sqrt, "floordiv": floordiv, "mod": mod,
    "shl": lambda x, n: wrap(int(x) << (int(n) & 63)), "shr": lambda x, n: wrap(int(x) >> (int(n) & 63)),
    "ushr": lambda x, n: wrap((int(x) % WORD) >> (int(n) & 63)),
    "mulhi": lambda x, y: wrap(((int(x) % WORD) * (int(y) % WORD)) >> 64),
}


def convert(source: str, target: str, mode: str) -> Callable[[Any], Any]:
    def code(x: Any) -> Any:
        if mode == "bits":
            return same_bits(x, source, target)
        if source in SHORT:
            x = np.uint16(x).view(SHORT[source]).astype(np.float32)
        if target == "bool":
            return bool(x != 0)
        if target in SHORT:
            return np.asarray(np.float32(x)).astype(SHORT[target]).view(np.uint16)[()]
        if target in ("f32", "f64"):
            return SCALARS[target](x)
        if is_float(x):
            return from_float(x, target, mode)
        low, high = INT_RANGE[target]
        n = min(max(int(x), low), high) if mode != "exact" else int(x)
        bits = np.dtype(SCALARS[target]).itemsize * 8
        n %= 2**bits
        return SCALARS[target](n - 2**bits if n > high else n)

    return code


def same_bits(x: Any, source: str, target: str) -> Any:
    if source == "f32":
        return np.int64(np.float32(x).view(np.uint32))
    if target == "f32":
        return np.uint32(int(x) % 2**32).view(np.float32)
    return np.asarray(x, dtype=MEMORY[source]).view(MEMORY[target])[()]


def from_float(x: Any, target: str, mode: str) -> Any:
    low, high = INT_RANGE[target]
    if np.isnan(x):
        return SCALARS[target](0)
    if np.isinf(x):
        return SCALARS[target](low if x < 0 else high)
    n = int(np.rint(x)) if mode == "round" else int(x)
    return SCALARS[target](min(max(n, low), high))


def counted(*ends: int) -> Iterator[Any]:
    return map(np.int64, range(*map(int, ends)))


def _named(name: str) -> Any:
    if name in SCALARS:
        return SCALARS[name]
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name.startswith("at_"):
        return lambda address: Pointer(address, name[3:])
    source, rest = name.split("_to_")
    target, _, mode = rest.partition("_")
    return convert(source, target, mode or "exact")


def load(text: str) -> Callable[[int, int, int, int], None]:
    """The kernel of this text, called as the compiled one: `kernel(n, table, status, arena)`."""
    module = compile(text, "<kernel>", "exec")
    functions = [c for c in module.co_consts if isinstance(c, CodeType)]
    names: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "range": counted}
    made = {c.co_name for c in functions}
    names |= {name: _named(name) for c in functions for name in c.co_names if name not in names and name not in made}
    exec(module, names)
    record, stride = names[functions[-1].co_name], 8 * arguments_of(text)

    def kernel(n: int, table: int, status: int, arena: int) -> None:
        statuses = Pointer(status, "i64")
        for r in range(n):
            if statuses[r] == 0:
                with np.errstate(all="ignore"):
                    statuses[r] = record(table + r * stride, arena)
                if statuses[r] == -1:
                    return

    return kernel
