"""Loop IR printed as Python: a `Kernel` goes in, the text of one function over one record comes out.

The routines that it calls (`compiler.routines`) stand before it, each one function. The text runs two ways with the same
bits: compiled by Numba with the names of `compiler.intrinsics`, and as plain Python with those of `compiler.emulate`. The
kernel's function reads `table` (the record's row of the argument table) and `arena` (both addresses) and returns 0, the
number of an error site, or -1 where memory is short.
"""
from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from ..dsl.types import BYTES_PER_VALUE
from .loops import (
    Alloc,
    Apply,
    Argument,
    Cast,
    Const,
    Expr,
    Fail,
    For,
    If,
    Kernel,
    Let,
    Load,
    Select,
    Set,
    Stmt,
    Store,
    Var,
)
from .routines import Routine, called, routine_of
from .spelling import STORED, Names, clean, wrap

INFIX = {
    "mul": ("*", 7), "div": ("/", 7), "add": ("+", 6), "sub": ("-", 6), "bitand": ("&", 4), "bitor": ("|", 4),
    "bitxor": ("^", 4), "and": ("&", 4), "or": ("|", 4),
    "lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "eq": ("==", 3), "ne": ("!=", 3), "xor": ("!=", 3),
}
CHAINS = frozenset(("add", "mul"))
ATOM = 10
DEEPEST = 24   # nested calls and parentheses in one line of text; CPython's parser stops at 200
LINE = 100
HEADING = "# one record: "
RESERVED = frozenset((
    "table", "arena", "row", "scratch", "scratch_end", "escape",
    "i64", "u64", "i32", "u32", "i16", "u16", "i8", "u8", "f32", "f64", "inf", "nan", "range",
    "select", "min", "max", "abs", "floor", "ceil", "rint", "sqrt", "floordiv", "mod", "shl", "shr", "ushr", "mulhi",
))


def children(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Load(index=index):
            return (index,)
        case Apply(args=args):
            return args
        case Cast(value=value):
            return (value,)
        case Select(condition=c, then=a, other=b):
            return (c, a, b)
    return ()


def _float_text(value: float, dtype: str) -> str:
    value = float(value)
    if math.isnan(value):
        return f"{dtype}(nan)"
    if math.isinf(value):
        return f"{dtype}({'-' if value < 0 else ''}inf)"
    if dtype == "f64":
        return f"f64({value!r})"
    value = float(const_number(Const(value, "f32")))
    if math.isinf(value):
        return f"f32({'-' if value < 0 else ''}inf)"
    for digits in range(6, 18):
        short = repr(float(f"{value:.{digits}g}"))
        if struct.pack("f", float(short)) == struct.pack("f", value):
            return f"f32({short})"
    return f"f32({value!r})"


def const_text(c: Const) -> str:
    if c.dtype == "bool":
        return str(bool(c.value))
    if c.dtype in ("f32", "f64"):
        return _float_text(c.value, c.dtype)
    if c.dtype in ("f16", "bf16"):
        return f"f32_to_{c.dtype}({_float_text(c.value, 'f32')})"
    value = int(c.value)
    if c.dtype == "u64" and value >= 2**63:
        value -= 2**64
    if value == -(2**63):
        return f"(-{2**63 - 1} - 1)"
    return str(value)


def const_number(c: Const) -> int | float | bool:
    """The constant's value as LLVM takes it: f32 rounded, u64 as the i64 with its bits."""
    if c.dtype == "bool":
        return bool(c.value)
    if c.dtype == "f32":
        try:
            return float(struct.unpack("f", struct.pack("f", float(c.value)))[0])
        except OverflowError:
            return math.copysign(math.inf, c.value)
    return float(c.value) if c.dtype == "f64" else int(c.value)


class Interner:
    """Gives equal expressions one number, in time linear in the number of objects (they share parts)."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.by_object: dict[int, int] = {}
        self.exprs: list[Expr] = []
        self.parts: list[tuple[int, ...]] = []

    def number(self, root: Expr) -> int:
        stack = [root]
        while stack:
            e = stack[-1]
            if id(e) in self.by_object:
                stack.pop()
                continue
            waiting = [c for c in children(e) if id(c) not in self.by_object]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            parts = tuple(self.by_object[id(c)] for c in children(e))
            key = self._key(e, parts)
            if key not in self.numbers:
                self.numbers[key] = len(self.exprs)
                self.exprs.append(e)
                self.parts.append(parts)
            self.by_object[id(e)] = self.numbers[key]
        return self.by_object[id(root)]

    def uses(self, tops: Iterable[int]) -> list[int]:
        """How often each number is a part of another one, or one of `tops`."""
        counts = Counter(chain(tops, *self.parts))
        return [counts[n] for n in range(len(self.exprs))]

    @staticmethod
    def _key(e: Expr, parts: tuple[int, ...]) -> Any:
        match e:
            case Const(dtype=d):
                return ("const", const_text(e), d)
            case Var(name=n, dtype=d):
                return ("var", n, d)
            case Load(buffer=b, dtype=d):
                return ("load", b, d, parts)
            case Apply(fn=f, dtype=d):
                return ("apply", f, d, parts)
            case Cast(dtype=d, mode=m):
                return ("cast", d, m, parts)
        return ("select", parts)


class Printer:
    """Lines of one function's body; `taken` are names that no local may have."""

    def __init__(self, taken: Iterable[str] = ()):
        self.lines: list[str] = []
        self.indent = 0
        self.names = Names(RESERVED.union(taken), "at_", "_")
        self.written: dict[str, int] = {}

    def put(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    # --- expressions ---

    def texts(self, *roots: Expr) -> list[str]:
        """Text of each root; parts used more than once, and very long ones, become locals first."""
        pool = Interner()
        tops = [pool.number(r) for r in roots]
        uses = pool.uses(tops)
        text: list[str] = []
        level: list[int] = []
        depth: list[int] = []
        for n, e in enumerate(pool.exprs):
            parts = pool.parts[n]
            t, lv = self.one(e, [(text[p], level[p]) for p in parts])
            d = 1 + max((depth[p] for p in parts), default=0)
            trivial = isinstance(e, (Const, Var))
            if not trivial and (uses[n] > 1 or ((d > DEEPEST or len(t) > LINE) and n not in tops)):
                local = self.names.temporary()
                self.put(f"{local} = {t}")
                t, lv, d = local, ATOM, 1
            text.append(t)
            level.append(lv)
            depth.append(d)
        return [text[top] for top in tops]

    def one(self, e: Expr, parts: list[tuple[str, int]]) -> tuple[str, int]:
        args = [t for t, _ in parts]
        match e:
            case Const():
                t = const_text(e)
                return t, (5 if t.startswith("-") else ATOM)
            case Var(name=name):
                return self.names[name], ATOM
            case Load(buffer=b, dtype="bool"):
                return f"{self.names[b]}[{args[0]}] != 0", 3
            case Load(buffer=b):
                return f"{self.names[b]}[{args[0]}]", ATOM
            case Apply(fn=fn) if fn in INFIX:
                return self.infix(fn, parts)
            case Apply(fn="neg"):
                return f"-{wrap(parts[0], 8)}", 5
            case Apply(fn="not"):
                return f"(not {wrap(parts[0], 4)})", ATOM
            case Apply(fn=fn):
                r = routine_of(e)
                return f"{fn if r is None else r.name}({', '.join(args)})", ATOM
            case Cast(value=v, dtype=d, mode=m):
                return cast_text(args[0], v.dtype, d, m), ATOM
            case Select():
                return f"select({', '.join(args)})", ATOM
        raise TypeError(f"no text for {type(e).__name__}")

    def infix(self, fn: str, parts: list[tuple[str, int]]) -> tuple[str, int]:
        sign, level = INFIX[fn]
        # `a - b + c` reads left to right, so the left side needs no parentheses at the same level.
        left = wrap(parts[0], level if level >= 6 else level + 2)
        return f"{left} {sign} {wrap(parts[1], level + 1 if level >= 6 else level + 2)}", level

    # --- statements ---

    def block(self, body: tuple[Stmt, ...], first: str = "") -> None:
        self.indent += 1
        before = len(self.lines)
        if first:   # an earlier turn's scratch is free again
            self.put(first)
        for s in body:
            self.statement(s)
        if len(self.lines) == before:
            self.put("pass")
        self.indent -= 1

    def statement(self, s: Stmt) -> None:
        match s:
            case For(var=v, start=start, stop=stop, body=body):
                a, b = self.texts(start, stop)
                mark = self.names.temporary() if any(isinstance(i, Alloc) and not i.escapes for i in walk(body)) else ""
                if mark:
                    self.put(f"{mark} = scratch")
                self.put(f"for {self.names[v]} in range({b if a == '0' else f'{a}, {b}'}):")
                self.block(body, f"scratch = {mark}" if mark else "")
            case Let(var=v, value=value) | Set(var=v, value=value):
                (t,) = self.texts(value)
                self.put(f"{self.names[v]} = {t}")
                if v in self.written:
                    self.put(f"row[{self.written[v]}] = {self.names[v]}")
            case Store(buffer=b, index=index, value=value):
                i, t = self.texts(index, value)
                self.put(f"{self.names[b]}[{i}] = {self.stored(b, t, value.dtype)}")
            case If(condition=c, then=then, other=other):
                (t,) = self.texts(c)
                self.put(f"if {t}:")
                self.block(then)
                if other:
                    self.put("else:")
                    self.block(other)
            case Alloc():
                self.alloc(s)
            case Fail(site=site):
                self.put(f"return {site}")
            case _:
                raise TypeError(f"no text for {type(s).__name__}")

    def stored(self, buffer: str, text: str, dtype: str) -> str:
        held = self.held[buffer]
        if held in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "bool"):
            return f"{STORED.get(held, held)}({text})"
        return text

    def alloc(self, s: Alloc) -> None:
        (count,) = self.texts(s.count)
        size, name = BYTES_PER_VALUE[s.dtype], self.names[s.buffer]
        free, end = ("escape[0]", "escape[1]") if s.escapes else ("scratch", "scratch_end")
        self.put(f"if {count} > ({end} - {free} - 63) // {size}:" if not count.isdigit() else
                 f"if {end} - {free} < {int(count) * size + 63}:")
        self.put("    return -1")
        self.put(f"{name} = at_{s.dtype}({free})")
        if s.escapes:
            self.put(f"row[{self.written[s.buffer]}] = {free}")
        self.put(f"{free} = {free} + (max({count}, 0) * {size} + 63) // 64 * 64" if not count.isdigit() else
                 f"{free} = {free} + {(int(count) * size + 63) // 64 * 64}")

    # --- the whole ---

    def routine(self, r: Routine) -> list[str]:
        self.put(f"def {r.name}({', '.join(self.names[p.name] for p in r.params)}):")
        self.indent += 1
        for s in r.body:
            self.statement(s)
        (result,) = self.texts(r.result)
        self.put(f"return {result}")
        return self.lines

    def whole(self, k: Kernel) -> list[str]:
        allocs = [s for s in walk(k.body) if isinstance(s, Alloc)]
        self.written = {a.name: j for j, a in enumerate(k.arguments) if a.writes}
        self.held = {a.name: ("bool" if a.kind == "mask" else a.dtype) for a in k.arguments if a.kind != "size"}
        self.held |= {a.buffer: a.dtype for a in allocs}
        self.put(f"{HEADING}{', '.join(map(argument_text, k.arguments))}")
        self.put(f"def {clean(k.name)}(table, arena):")
        self.indent += 1
        self.put("row = at_i64(table)")
        for j, a in enumerate(k.arguments):
            if not a.writes:
                self.put(self.argument(j, a))
        if any(not s.escapes for s in allocs):
            self.put("scratch = at_i64(arena)[2]")
            self.put("scratch_end = at_i64(arena)[3]")
        if any(s.escapes for s in allocs):
            self.put("escape = at_i64(arena)")
        for s in k.body:
            self.statement(s)
        if not (k.body and isinstance(k.body[-1], Fail)):
            self.put("return 0")
        return self.lines

    def argument(self, j: int, a: Argument) -> str:
        if a.kind == "size":
            return f"{self.names[a.name]} = row[{j}]"
        dtype = "bool" if a.kind == "mask" else a.dtype
        return f"{self.names[a.name]} = at_{dtype}(row[{j}])"


def argument_text(a: Argument) -> str:
    """What the comment above the function says of one argument; slots' names go through `clean`, being the user's."""
    place = f"{a.kind} of {clean(a.slot)}" + (f" axis {a.axis}" if a.kind == "size" else f" {a.dtype}")
    return place + (" (written)" if a.writes else "")


def arguments_of(text: str) -> int:
    """How many arguments the kernel of this text has."""
    head = text.rpartition(HEADING)[2].split("\n", 1)[0]
    return len(head.split(", ")) if head else 0


def cast_text(value: str, source: str, target: str, mode: str) -> str:
    if mode == "exact" and target in ("f32", "f64", "i64") and source not in ("f16", "bf16", "bool", "f32", "f64", "u64"):
        return f"{target}({value})"
    if mode == "exact" and (source, target) in (("f64", "f32"), ("f32", "f64")):
        return f"{target}({value})"
    return f"{source}_to_{target}{'' if mode == 'exact' else '_' + mode}({value})"


def walk(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer ones first."""
    for s in body:
        yield s
        match s:
            case For(body=inner):
                yield from walk(inner)
            case If(then=then, other=other):
                yield from walk(then)
                yield from walk(other)


def expressions(body: Iterable[Stmt]) -> Iterator[Expr]:
    """Every expression that stands in a statement, inner statements' too."""
    for s in walk(body):
        match s:
            case For(start=start, stop=stop):
                yield from (start, stop)
            case Let(value=value) | Set(value=value):
                yield value
            case Store(index=index, value=value):
                yield from (index, value)
            case If(condition=condition):
                yield condition
            case Alloc(count=count):
                yield count


def routines_of(kernel: Kernel) -> dict[str, Routine]:
    """The routines that a kernel calls."""
    pool = Interner()
    for e in expressions(kernel.body):
        pool.number(e)
    return called(pool.exprs)


def kernel_text(kernel: Kernel) -> str:
    """The kernel as Python text; equal kernels give equal text, which names the compiled object in the cache."""
    routines = routines_of(kernel)
    parts = [Printer().routine(r) for r in routines.values()]
    parts.append(Printer([clean(kernel.name), *routines]).whole(kernel))
    return "\n".join("\n".join(lines) + "\n" for lines in parts)
