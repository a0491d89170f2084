"""Types of values: a dtype, whether a value may be missing, and dimensions.

A dimension is an `int` or, where it is only known later, a graph node of type i64 (the compiler's
business; this module only stores it). `weak` marks a number without a type of its own (literal,
let, param, dimension, draw): it takes the dtype of the typed value it meets.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

INTS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
FLOATS = ("f16", "bf16", "f32", "f64")
NUMBERS = INTS + FLOATS
OBJECTS = ("bytes", "text", "path")
DTYPES = (*NUMBERS, "bool", *OBJECTS)
# Words that stand for a dtype in signatures, the same one wherever the word recurs.
DTYPE_VARIABLES = {"any": DTYPES, "num": NUMBERS, "int": INTS, "float": FLOATS}
BYTES_PER_VALUE = {
    "u8": 1, "i8": 1, "bool": 1, "u16": 2, "i16": 2, "f16": 2, "bf16": 2,
    "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8,
}
INT_RANGE = {
    "u8": (0, 2**8 - 1), "i8": (-(2**7), 2**7 - 1), "u16": (0, 2**16 - 1), "i16": (-(2**15), 2**15 - 1),
    "u32": (0, 2**32 - 1), "i32": (-(2**31), 2**31 - 1), "u64": (0, 2**64 - 1), "i64": (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True)
class Type:
    """`dtype`, `?` and dimensions of a value; `unknown` and `struct` are dtypes of the checker only.

    `parts` is used by dtype "struct" (operators with several results): ((name, Type), …).
    """

    dtype: str
    dims: tuple[Any, ...] = ()
    missing: bool = False
    weak: bool = False
    parts: tuple[tuple[str, Type], ...] = ()

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_scalar(self) -> bool:
        return not self.dims

    @property
    def element(self) -> Type:
        """The type of one element."""
        return replace(self, dims=())

    def with_dims(self, dims: tuple[Any, ...]) -> Type:
        return replace(self, dims=tuple(dims))

    def present(self) -> Type:
        """This type without `?`."""
        return replace(self, missing=False)

    def strong(self) -> Type:
        return replace(self, weak=False)


UNKNOWN = Type("unknown")
I64 = Type("i64")
F32 = Type("f32")
BOOL = Type("bool")
TEXT = Type("text")
WEAK_INT = Type("i64", weak=True)
WEAK_FLOAT = Type("f32", weak=True)
