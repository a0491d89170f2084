"""What a kernel costs, estimated: loop IR and sizes go in, nanoseconds and bytes of one record come out.

A model for comparing plans, not a promise: sizes that nobody knows before the data are assumed, and an element of a
loop that becomes vector code counts an eighth. `pipec explain --measure` shows how far off it is.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..kernels.ops import OPERATORS
from ..kernels.scalar import SCALARS
from ..runtime.plan import Program, Slot
from .loops import Alloc, Apply, Cast, Const, Expr, Fail, For, If, Kernel, Let, Load, Select, Set, Stmt, Store, Var

OPERATION = 0.25       # ns of an addition in scalar code
VECTOR = 8.0           # elements that vector code computes at once
RECORD = 60.0          # ns of one record in a kernel's loop over records
STEP = 60_000.0        # ns of Python around a step of one chunk of records
CONDITION, JUDGED = 1_500.0, 10_000.0   # ns of a record in `where` or `check`, which is judged in Python, and of a chunk
CALL = 12_000.0        # ns of a library call of which nothing is known, Python around it included
FUNCTION = 100_000.0   # ns of a user's function
BYTE = 0.06            # ns of a byte that goes through memory
UPLOAD = 0.08          # ns of a byte on its way to a device (12 GB/s)
ON_DEVICE, LAUNCH = 0.002, 5_000.0   # ns of a byte that a kernel there reads or writes, and of starting a kernel
OBJECT, OBJECT_BYTE = 20_000.0, 0.3    # ns of bytes or a text that is read by itself, and of each of its bytes
CELL, WORD, LIST, LIST_BYTE = 200.0, 400.0, 20_000.0, 4.0   # ns of a table's number, text or list, and of a list's byte
MAPPED, ARRAY = 500.0, 35_000.0        # ns of a record of a mapped file, and of an array in a file of its own
LINE, LINE_BYTE = 10_000.0, 15.0       # ns of a line of text that holds a record, and of its bytes
FILES = frozenset(("tar", "folder", "files"))
TABLES, LINES = frozenset(("parquet", "arrow", "feather")), frozenset(("csv", "tsv", "jsonl"))
ASSUMED = {"u8": (375, 500, 3)}   # dims of an image that nobody knows before it is read
UNROLLED = 4           # rounds of a loop that becomes straight code
FEW = 8.0              # rounds of a loop of which nothing is known
UNKNOWN = 256          # any other size that only the data tells
LENGTH = {"bytes": 100_000, "text": 24, "path": 64}
WIDTH = {"u8": 1, "i8": 1, "bool": 1, "u16": 2, "i16": 2, "f16": 2, "bf16": 2, "u32": 4, "i32": 4, "f32": 4}


def width(dtype: str) -> int:
    """Bytes of an element in memory."""
    return WIDTH.get(dtype, 8)


@dataclass
class Sizes:
    """Dims of slots: what the plan says, what was `seen` when it ran, or what is assumed."""

    program: Program
    seen: Mapping[str, float] = field(default_factory=dict)   # bytes of a slot per record
    shapes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = {s.name: s for s in self.program.slots}

    def dims(self, name: str) -> tuple[float, ...]:
        slot = self.slots[name]
        unknown = [k for k, d in enumerate(slot.dims) if d is None]
        if not unknown:
            return tuple(float(d or 0) for d in slot.dims)
        if len(self.shapes.get(name, ())) == len(slot.dims):
            return self.shapes[name]
        image = ASSUMED.get(slot.dtype, ())
        guess = image if len(image) == len(slot.dims) else (UNKNOWN,) * len(slot.dims)
        return tuple(float(g if d is None else d) for g, d in zip(guess, slot.dims, strict=True))

    def lengths(self, name: str) -> tuple[float, ...]:
        """Dims of a slot; those of a text or of bytes end with its length."""
        slot, dims = self.slots[name], self.dims(name)
        return (*dims, self.bytes(name) / max(1.0, math.prod(dims))) if slot.dtype in LENGTH else dims

    def bytes(self, name: str) -> float:
        """Bytes of a slot in one record."""
        if name in self.seen:
            return self.seen[name]
        slot = self.slots[name]
        each = LENGTH.get(slot.dtype, width(slot.dtype)) + (1 if slot.missing else 0)
        return math.prod(self.dims(name)) * each

    def assumed(self, name: str) -> bool:
        slot = self.slots.get(name)
        return slot is not None and name not in self.seen and (None in slot.dims or slot.dtype in LENGTH)


def kernel_ns(kernel: Kernel, sizes: Sizes, given: Mapping[str, float] | None = None) -> float:
    """Nanoseconds of one record. `given`: numbers that slots hold, where they are known."""
    held = {a.name: (given or {})[a.slot] for a in kernel.arguments if a.kind == "data" and a.slot in (given or {})}
    known: dict[str, float] = {}
    for a in kernel.arguments:
        if a.kind == "size" and not a.writes:
            known[a.name] = sizes.dims(a.slot)[a.axis]
    return RECORD + _Counter(known, held).body(kernel.body)


def read_ns(kind: str, slots: Sequence[Slot], sizes: Sizes) -> float:
    """Nanoseconds of reading one record's fields from a source."""
    size = sum(sizes.bytes(s.name) for s in slots)
    if kind in TABLES:
        return sum(LIST + LIST_BYTE * sizes.bytes(s.name) if None in s.dims else
                   (WORD if s.dtype in LENGTH else CELL) * math.prod(sizes.dims(s.name)) for s in slots)
    if kind in LINES:
        return LINE + LINE_BYTE * size
    mapped = not any(s.dtype in LENGTH for s in slots)
    parsed = sum(bool(s.dims) for s in slots if s.dtype not in LENGTH)
    return MAPPED if mapped and kind not in FILES else OBJECT + ARRAY * parsed + OBJECT_BYTE * size


class _Counter:
    """`once`: costs of what is computed at the first turn that asks, and how often any asks, by the local that tells."""

    def __init__(self, known: dict[str, float], held: Mapping[str, float]):
        self.known, self.held = known, held      # numbers by local, and by buffer of one number
        self.unrolled = False                    # is a loop around vector code
        self.share = 1.0                         # how often the branch is taken that is being looked at
        self.began: dict[str, float] = {}        # `share` where the local became false
        self.once: dict[str, tuple[float, float]] = {}

    def body(self, body: Sequence[Stmt]) -> float:
        total = sum(map(self.statement, body))
        return total + sum(math.prod(self.once.pop(s.var)) for s in body if isinstance(s, Let) and s.var in self.once)

    def statement(self, s: Stmt) -> float:
        match s:
            case For():
                return self.loop(s)
            case Let(var=var, value=value) | Set(var=var, value=value):
                self.began.setdefault(var, self.share)
                found = self.value(value)
                if found is not None:
                    self.known[var] = found
                return OPERATION * self.work(value)
            case Store(index=index, value=value):
                return OPERATION * (1 + self.work(index) / 4 + self.work(value))
            case If(condition=condition, then=then, other=()) if (made := _made(then)) is not None:
                cost, asked = self.once.get(made, (0.0, 0.0))
                self.once[made] = max(cost, self.body(then)), min(1.0, asked + self.share / self.began.get(made, self.share))
                return OPERATION * (1 + self.work(condition))
            case If(condition=condition, then=then, other=other):
                if not other:
                    return OPERATION * (1 + self.work(condition)) + self.body(then)
                self.share /= 2
                sides = self.body(then) + self.body(other)
                self.share *= 2
                return OPERATION * (1 + self.work(condition)) + sides / 2
            case Alloc(count=count):
                return 5 * OPERATION + OPERATION * self.work(count)
            case Fail():
                return 0.0
        raise TypeError(f"no cost of {s}")

    def loop(self, s: For) -> float:
        start, stop = self.value(s.start), self.value(s.stop)
        usual = None if s.usual is None or stop is not None else self.value(s.usual)
        trips = (FEW if usual is None else usual) if stop is None else max(0.0, stop - (start or 0.0))
        self.known[s.var] = (start or 0.0) + trips / 2
        if self.unrolled:                # in vector code of the loop around
            return trips * self.body(s.body)
        self.unrolled = at_once = vectors(s)
        inner = self.body(s.body)
        self.unrolled = False
        return trips * (inner / VECTOR if at_once else inner + OPERATION) + OPERATION

    def value(self, e: Expr) -> float | None:
        """About the value of a number, where it can be told."""
        match e:
            case Const(value=value):
                return float(value) if isinstance(value, int | float) else None
            case Var(name=name):
                return self.known.get(name)
            case Load(buffer=name):
                return self.held.get(name)
            case Cast(value=inner):
                return self.value(inner)
            case Select(then=then, other=other):
                a, b = self.value(then), self.value(other)
                return b if a is None else a if b is None else (a + b) / 2
            case Apply(fn=fn, args=args):
                found = [self.value(a) for a in args]
                given = [v for v in found if v is not None]
                if fn in ("min", "max", "clamp") and given:   # of what is known
                    return min(given) if fn == "min" else max(given) if fn == "max" else given[0]
                if len(given) == len(found):
                    return _applied(fn, given)
        return None

    def work(self, e: Expr) -> float:
        """Operations of an expression; a subexpression that stands twice is computed once."""
        seen: set[int] = set()

        def count(x: Expr) -> float:
            if id(x) in seen:
                return 0.0
            seen.add(id(x))
            match x:
                case Load(index=index):
                    return 1.0 + count(index) / 4
                case Apply(fn=fn, args=args):
                    scalar = SCALARS.get(fn)
                    own = scalar.cost if scalar is not None else 60.0 if fn == "philox" else 1.0
                    return own + sum(map(count, args))
                case Cast(value=value, dtype=dtype, mode=mode):
                    half = "f16" in (dtype, value.dtype) or "bf16" in (dtype, value.dtype)
                    return (6.0 if half or mode == "round" else 1.0) + count(value)
                case Select(condition=condition, then=then, other=other):
                    return 1.0 + count(condition) + count(then) + count(other)
            return 0.0

        return count(e)


def _made(body: Sequence[Stmt]) -> str | None:
    """The local that says from now on that this was computed: `values.Late`."""
    last = body[-1] if body else None
    return last.var if isinstance(last, Set) and isinstance(last.value, Const) and last.value.value is True else None


def vectors(loop: For) -> bool:
    """Does a loop look as if it became vector code: nothing in it fails or is kept for the next turn, choices are between
    numbers, and stores fill consecutive places. Short loops in it are unrolled."""
    stores = _stores(loop.body, set())
    return stores is not None and all(_step(index, loop.var) in (1, len(stores)) for index in stores)


def _stores(body: Sequence[Stmt], own: set[str]) -> list[Expr] | None:
    """Where one turn stores, None where it isn't straight code. `own`: locals that the turn begins with."""
    found: list[Expr] = []
    for s in body:
        match s:
            case Let(var=var):
                own.add(var)
            case Set(var=var) if var in own:
                pass
            case Store(index=index):
                found.append(index)
            case If(then=then, other=other) if _stores(then, own) == _stores(other, own) == []:
                pass
            case For(start=Const(value=int(start)), stop=Const(value=int(stop)), body=inner) if stop - start <= UNROLLED:
                more = _stores(inner, own)
                if more is None:
                    return None
                found += more * (stop - start)
            case _:
                return None
    return found


def _step(index: Expr, var: str) -> int:
    """How far apart turns of a loop are in a sum of its variable and what it doesn't change, as far as one can see; 0: unknown.

    As many stores as that fill the places between.
    """
    match index:
        case Var(name=name):
            return int(name == var)
        case Apply(fn="add", args=(a, b)):
            return _step(a, var) or _step(b, var)
        case Apply(fn="mul", args=(a, Const(value=int(by)))):
            return _step(a, var) * by
    return 0


def _applied(fn: str, args: list[float]) -> float | None:
    a, b = (*args, 0.0, 0.0)[:2]
    match fn:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div" | "floordiv":
            return a / b if b else None
        case "neg":
            return -a
        case "shl" | "shr" | "ushr" if 0 <= b < 64:
            return a * 2**b if fn == "shl" else a / 2**b
        case "bitand":
            return a if b < 0 else min(a, b)
        case "mod":
            return b / 2
        case "floor" | "ceil" | "round" | "trunc" | "rint":
            return a
    return None


def call_ns(op: str, sizes: Sequence[tuple[float, ...]], result: Sequence[tuple[float, ...]]) -> float:
    """Nanoseconds of one library call: the operator's own `cost` of its arguments' and results' dims where it has one."""
    cost: Callable[..., float] | None = OPERATORS[op].cost
    return CALL if cost is None else float(cost(tuple(sizes), tuple(result)))


def is_slot_of_data(slot: Slot) -> bool:
    return not slot.name.startswith(("@", "param.", "const"))
