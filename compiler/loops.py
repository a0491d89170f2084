"""Level 3: loop IR. One kernel is bounded loops over flat memory; `Builder` makes them readably.

Expressions are `Const Var Load Apply Cast Select`; statements `For Let Set Store If Alloc Fail`.
Integers are i64 while they are computed with; u8 … i32 live in memory only. Booleans are dtype
"bool", one byte in memory. Float arithmetic is strict, in the dtype of its operands.

Operators' `lower(k, out, *args)` get a `Builder` as `k`, tensors as `Buffer`, scalars as `Expr` and
texts as `str`:

    with k.loop(h, "y") as y:
        with k.loop(w, "x") as x:
            k.store(out, (y, x), k.cast(img[y, w - 1 - x], "f32") * 0.5)
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Union

# --- expressions ------------------------------------------------------------------------------


class Expr:
    """Arithmetic on expressions makes expressions; Python numbers take the other side's dtype."""

    dtype: str

    def __add__(self, o: Any) -> Expr: return binary("add", self, o)
    def __radd__(self, o: Any) -> Expr: return binary("add", o, self)
    def __sub__(self, o: Any) -> Expr: return binary("sub", self, o)
    def __rsub__(self, o: Any) -> Expr: return binary("sub", o, self)
    def __mul__(self, o: Any) -> Expr: return binary("mul", self, o)
    def __rmul__(self, o: Any) -> Expr: return binary("mul", o, self)
    def __truediv__(self, o: Any) -> Expr: return binary("div", self, o)
    def __rtruediv__(self, o: Any) -> Expr: return binary("div", o, self)
    def __floordiv__(self, o: Any) -> Expr: return binary("floordiv", self, o)
    def __mod__(self, o: Any) -> Expr: return binary("mod", self, o)
    def __lt__(self, o: Any) -> Expr: return binary("lt", self, o)
    def __le__(self, o: Any) -> Expr: return binary("le", self, o)
    def __gt__(self, o: Any) -> Expr: return binary("gt", self, o)
    def __ge__(self, o: Any) -> Expr: return binary("ge", self, o)
    def __and__(self, o: Any) -> Expr: return binary("and", self, o)
    def __or__(self, o: Any) -> Expr: return binary("or", self, o)
    def __invert__(self) -> Expr: return Apply("not", (self,), "bool")
    def __neg__(self) -> Expr: return Apply("neg", (self,), self.dtype)
    def eq(self, o: Any) -> Expr: return binary("eq", self, o)
    def ne(self, o: Any) -> Expr: return binary("ne", self, o)


@dataclass(frozen=True)
class Const(Expr):
    value: Any
    dtype: str


@dataclass(frozen=True)
class Var(Expr):
    name: str
    dtype: str


@dataclass(frozen=True)
class Load(Expr):
    """Element `index` (flat, in elements) of the memory called `buffer`."""

    buffer: str
    index: Expr
    dtype: str


@dataclass(frozen=True)
class Apply(Expr):
    """A scalar function: a row of kernels.scalar, or an integer wrap-around primitive of kernels.random."""

    fn: str
    args: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True)
class Cast(Expr):
    """To `dtype`; mode "round" (half to even, saturate), "truncate", "exact" or "bits" (same bits)."""

    value: Expr
    dtype: str
    mode: str = "exact"


@dataclass(frozen=True)
class Select(Expr):
    """Both sides are evaluated; neither may fail."""

    condition: Expr
    then: Expr
    other: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.then.dtype


COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
MOST_PLACES = 1 << 46   # of one tensor: far more than memory holds, far from where i64 ends


def as_expr(value: Any, dtype: str) -> Expr:
    """A Python number as a constant of `dtype`."""
    return value if isinstance(value, Expr) else Const(value, dtype)


def binary(fn: str, a: Any, b: Any) -> Expr:
    dtype = a.dtype if isinstance(a, Expr) else b.dtype
    a, b = as_expr(a, dtype), as_expr(b, dtype)
    if a.dtype != b.dtype:
        raise TypeError(f"{fn} of {a.dtype} and {b.dtype}")
    return Apply(fn, (a, b), "bool" if fn in COMPARISONS or fn in ("and", "or") else dtype)


# --- statements -------------------------------------------------------------------------------


@dataclass(frozen=True)
class For:
    """`var` from `start` to `stop` - 1. `usual`: about how many turns that is, for estimates, where only data tells."""

    var: str
    start: Expr
    stop: Expr
    body: tuple[Stmt, ...]
    usual: Expr | None = None


@dataclass(frozen=True)
class Let:
    """A new local; mutable ones are changed by `Set`."""

    var: str
    value: Expr


@dataclass(frozen=True)
class Set:
    var: str
    value: Expr


@dataclass(frozen=True)
class Store:
    buffer: str
    index: Expr
    value: Expr


@dataclass(frozen=True)
class If:
    condition: Expr
    then: tuple[Stmt, ...]
    other: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Alloc:
    """`count` elements for `buffer`, 64-byte aligned: scratch (until the record's end) or, escaping, an output.

    Too little memory ends the kernel with status -1; the caller gives more and runs it again.
    """

    buffer: str
    dtype: str
    count: Expr
    escapes: bool = False


@dataclass(frozen=True)
class Fail:
    """End this record with the number of an error site (`plan.Site`), 1 or more."""

    site: int


Stmt = Union[For, Let, Set, Store, If, Alloc, Fail]


@dataclass(frozen=True)
class Buffer:
    """Memory seen as a tensor in C order; `b[i, j]` reads an element."""

    name: str
    dtype: str
    dims: tuple[Expr, ...]

    def flat(self, index: Sequence[Any]) -> Expr:
        """Position of an element, in elements."""
        if len(index) != len(self.dims):
            raise TypeError(f"{self.name} has {len(self.dims)} dimensions, {len(index)} indexes given")
        at: Expr = Const(0, "i64")
        for i, d in zip(index, self.dims):
            at = as_expr(i, "i64") if at == Const(0, "i64") else at * d + as_expr(i, "i64")
        return at

    def __getitem__(self, index: Any) -> Expr:
        index = index if isinstance(index, tuple) else (index,)
        loaded = Load(self.name, self.flat(index), self.dtype)
        return Cast(loaded, "i64") if self.dtype in ("u8", "i8", "u16", "i16", "u32", "i32") else loaded

    def at(self, position: Any) -> Expr:
        """The element at a flat position."""
        loaded = Load(self.name, as_expr(position, "i64"), self.dtype)
        return Cast(loaded, "i64") if self.dtype in ("u8", "i8", "u16", "i16", "u32", "i32") else loaded


@dataclass
class Builder:
    """Collects statements; see the module's example. Names it is given are made unique."""

    body: list[Stmt] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)

    def name(self, hint: str) -> str:
        n = self.names.get(hint, 0)
        self.names[hint] = n + 1
        return f"{hint}_{n}" if n else hint

    @contextmanager
    def _block(self) -> Iterator[list[Stmt]]:
        outer, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = outer

    @contextmanager
    def loop(self, stop: Any, hint: str = "i", start: Any = 0, usual: Any = None) -> Iterator[Var]:
        v = Var(self.name(hint), "i64")
        with self._block() as body:
            yield v
        self.body.append(For(v.name, as_expr(start, "i64"), as_expr(stop, "i64"), tuple(body),
                             None if usual is None else as_expr(usual, "i64")))

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        with self._block() as body:
            yield
        self.body.append(If(condition, tuple(body)))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The else of the `when` just before it."""
        with self._block() as body:
            yield
        last = self.body.pop()
        assert isinstance(last, If)
        self.body.append(If(last.condition, last.then, tuple(body)))

    def let(self, value: Any, hint: str = "t", dtype: str = "i64") -> Var:
        """A local with this value (`dtype` only matters for Python numbers); `set` may change it."""
        e = as_expr(value, dtype)
        v = Var(self.name(hint), e.dtype)
        self.body.append(Let(v.name, e))
        return v

    def set(self, v: Var, value: Any) -> None:
        self.body.append(Set(v.name, as_expr(value, v.dtype)))

    def store(self, b: Buffer, index: Sequence[Any], value: Any) -> None:
        """Store one element; a value of another dtype must be cast by the caller (ints excepted)."""
        self.put(b, b.flat(index), value)

    def put(self, b: Buffer, position: Any, value: Any) -> None:
        """Store at a flat position."""
        self.body.append(Store(b.name, as_expr(position, "i64"), as_expr(value, b.dtype)))

    def scratch(self, dtype: str, *dims: Any, hint: str = "scratch") -> Buffer:
        """Memory for this record, not cleared."""
        sizes = tuple(as_expr(d, "i64") for d in dims)
        b = Buffer(self.name(hint), dtype, sizes)
        self.body.append(Alloc(b.name, dtype, self.places(sizes)))
        return b

    def places(self, dims: Sequence[Expr]) -> Expr:
        """How many elements there are; sizes out of data whose product is past i64 ask for more memory than there is."""
        count: Expr = Const(1, "i64")
        for d in dims:
            count = d if count == Const(1, "i64") else count * d
        if isinstance(count, Const) or sum(d != Const(1, "i64") for d in dims) < 2 or all(isinstance(d, Const) for d in dims):
            return count
        about: Expr = Const(1.0, "f64")
        for d in dims:
            about = about * Cast(d, "f64")
        return self.let(Select(about < Const(float(MOST_PLACES), "f64"), count, Const(MOST_PLACES, "i64")), "places")

    def cast(self, value: Expr, dtype: str, mode: str = "exact") -> Expr:
        return value if value.dtype == dtype else Cast(value, dtype, mode)

    def select(self, condition: Expr, then: Any, other: Any) -> Expr:
        dtype = then.dtype if isinstance(then, Expr) else other.dtype
        return Select(condition, as_expr(then, dtype), as_expr(other, dtype))

    def call(self, fn: str, *args: Any, dtype: str | None = None) -> Expr:
        """A scalar function by name; its result has the arguments' dtype unless said otherwise."""
        own = next(a.dtype for a in args if isinstance(a, Expr))
        return Apply(fn, tuple(as_expr(a, own) for a in args), dtype or own)

    def fail(self, site: int) -> None:
        self.body.append(Fail(site))


@dataclass(frozen=True)
class Argument:
    """One i64 of a kernel's argument table.

    kind "data": the address of a slot's memory; "mask": of its missing mask (one byte each, 1 = missing);
    "size": the extent of `axis`. `writes`: the kernel sets it (an escaping output of unknown size).
    """

    kind: str
    name: str     # of the buffer or variable in the body
    dtype: str
    slot: str
    axis: int = 0
    writes: bool = False


@dataclass(frozen=True)
class Kernel:
    """`void kernel(i64 n, i64* table, i64* status, i64* arena)`: the body for each record r < n.

    `table[r * len(arguments) + j]` is argument j of record r. A record whose `status[r]` isn't 0 on
    entry is passed over; a failing one leaves its site there. `arena` = next and end address for escaping
    outputs, then begin and end of scratch, which starts anew for each record.
    """

    name: str
    arguments: tuple[Argument, ...]
    body: tuple[Stmt, ...]
