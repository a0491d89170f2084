"""CUDA C of loop IR's expressions and statements; `emit_cuda` puts functions and launches around them."""
from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from ..dsl.types import BYTES_PER_VALUE
from .cuda_split import Nest, statements
from .emit_numba import Interner, walk
from .emit_numba import const_text as python_text
from .loops import Alloc, Apply, Cast, Const, Expr, Fail, For, If, Let, Load, Select, Set, Stmt, Store, Var
from .routines import routine_of
from .spelling import STORED, Names, clean, wrap

ATOM, UNARY, TERNARY = 20, 15, 1
INFIX = {"mul": ("*", 13), "div": ("/", 13), "add": ("+", 12), "sub": ("-", 12), "lt": ("<", 10), "le": ("<=", 10),
         "gt": (">", 10), "ge": (">=", 10), "eq": ("==", 9), "ne": ("!=", 9), "xor": ("!=", 9), "bitand": ("&", 8),
         "bitxor": ("^", 7), "bitor": ("|", 6), "and": ("&&", 5), "or": ("||", 4)}
WRAPS = frozenset(("add", "sub", "mul"))   # of integers: functions, since C leaves overflow undefined
PLAIN = frozenset(("shl", "shr", "ushr", "mulhi"))
LINE = 100
WORDS = {"f16": "u16", "bf16": "u16", "u64": "i64"}   # what a value is while it is computed with
INTS = frozenset(("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"))
C_WORDS = frozenset(re.findall(r"\w+", """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
    constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false float
    for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register requires return short signed sizeof static static_assert struct switch template this
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq n
    table status arena row lane lanes scratch scratch_end escape escape_end saved r now rest e FN threadIdx
    blockIdx blockDim gridDim warpSize NULL INFINITY NAN
"""))


@cache
def prelude() -> str:
    """What stands before kernels on the device."""
    return (Path(__file__).parent.parent / "kernels" / "cuda.h").read_text(encoding="utf-8")


@cache
def reserved() -> frozenset[str]:
    """Names that a kernel's own may not be."""
    patterns = (r"^FN \w+ (\w+)\(", r"^typedef .* (\w+);", r"^#define (\w+)")
    return C_WORDS.union(*(re.findall(p, prelude(), re.M) for p in patterns), ("floor", "ceil", "rint", "sqrt", "fabs"))


def word(dtype: str) -> str:
    return WORDS.get(dtype, dtype)


def const_text(c: Const) -> str:
    """A constant, as C takes it."""
    if c.dtype == "bool":
        return "true" if c.value else "false"
    if c.dtype in ("f32", "f64"):
        text = python_text(c)
        number = text[4:-1]
        if number in ("inf", "-inf", "nan"):
            bits = {"f32": (0x7F800000, 0x7FC00000), "f64": (0x7FF0 << 48, 0x7FF8 << 48)}[c.dtype][number == "nan"]
            sign = "-" if number[0] == "-" else ""
            return f"{sign}{c.dtype}_of_bits({bits:#x}ll)"
        return f"{c.dtype}({number})"
    if c.dtype in ("f16", "bf16"):
        return f"f32_to_{c.dtype}({const_text(Const(c.value, 'f32'))})"
    text = python_text(c)
    return text.replace("-9223372036854775807", "-9223372036854775807ll") if text[0] == "(" else (
        text if abs(int(text)) < 2**31 else text + "ll")


def cast_text(value: str, source: str, target: str, mode: str) -> str:
    if source == target:
        return value
    if mode == "bits":
        return _bits(value, source, target)
    if source in ("f16", "bf16"):
        value, source = f"{source}_to_f32({value})", "f32"
        if target == "f32":
            return value
    if source in ("f32", "f64"):
        return _from_float(value, source, target, mode)
    if target == "bool":
        return f"({value} != 0)"
    if target in ("f32", "f64"):
        return f"{target}(u64({value}))" if source == "u64" else f"{target}({value})"
    if target in ("f16", "bf16"):
        return f"f32_to_{target}(f32({value}))"
    if mode == "exact":
        return f"{word(target)}({value})"
    if source == "u64":
        value = f"u64_to_i64({value})"
    return value if target == "i64" else f"saturate_{target}({value})"


def _bits(value: str, source: str, target: str) -> str:
    if source in ("f32", "f64"):
        return f"{source}_bits({value})"
    return f"{target}_of_bits({value})" if target in ("f32", "f64") else f"{word(target)}({value})"


def _from_float(value: str, source: str, target: str, mode: str) -> str:
    if target == "bool":
        return f"({value} != 0)"
    if target in ("f32", "f64"):
        return f"{target}({value})"
    if target in ("f16", "bf16"):
        return f"f32_to_{target}({value if source == 'f32' else f'f32({value})'})"
    return f"{source}_to_{target}({f'rint_{source}({value})' if mode == 'round' else value})"


def c_names(taken: Iterable[str]) -> Names:
    """C names for a kernel's own."""
    return Names(reserved().union(taken), "_", "v", lambda raw: re.sub("__+", "_", clean(raw)))


class Printer:
    """Lines of one function's body."""

    def __init__(self, names: Names, held: dict[str, str], written: dict[str, int] | None = None):
        """`held`: dtype of each buffer; `written`: place in the row of each size and address that the kernel tells."""
        self.names, self.held, self.written = names, held, written or {}
        self.lines: list[str] = []
        self.indent = 1
        self.local = False     # inside a turn: memory is the turn's own

    def put(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    # --- expressions ---

    def texts(self, roots: Sequence[Expr], places: Sequence[bool] = ()) -> list[str]:
        """Text of each root; parts used more than once, and very long ones, become locals first. `places`: which roots are
        positions in memory, which never wrap around."""
        pool = Interner()
        tops = [pool.number(r) for r in roots]
        uses = pool.uses(tops)
        wraps = _wrapping(pool, [t for t, place in zip(tops, places or [False] * len(tops)) if not place])
        text: list[tuple[str, int]] = []
        for n, e in enumerate(pool.exprs):
            t = self.one(e, [text[p] for p in pool.parts[n]], wraps[n])
            if not isinstance(e, (Const, Var)) and (uses[n] > 1 or (len(t[0]) > LINE and n not in tops)):
                local = self.names.temporary()
                self.put(f"const {word(e.dtype)} {local} = {t[0]};")
                t = (local, ATOM)
            text.append(t)
        return [text[top][0] for top in tops]

    def one(self, e: Expr, parts: list[tuple[str, int]], wraps: bool) -> tuple[str, int]:
        args = [t for t, _ in parts]
        match e:
            case Const():
                t = const_text(e)
                return t, (UNARY if t.startswith("-") else ATOM)
            case Var(name=name):
                return self.names[name], ATOM
            case Load(buffer=b, dtype=dtype):
                loaded = f"{self.names[b]}[{args[0]}]"
                return (f"{loaded} != 0", 9) if dtype == "bool" else (f"i64({loaded})" if dtype == "u64" else loaded, ATOM)
            case Apply():
                return self.apply(e, parts, wraps)
            case Cast(value=v, dtype=d, mode=m):
                return cast_text(args[0], v.dtype, d, m), ATOM if v.dtype != d else parts[0][1]
            case Select():
                return f"{wrap(parts[0], 2)} ? {wrap(parts[1], 2)} : {wrap(parts[2], 2)}", TERNARY
        raise TypeError(f"no text for {type(e).__name__}")

    def apply(self, e: Apply, parts: list[tuple[str, int]], wraps: bool) -> tuple[str, int]:
        fn, args, of = e.fn, ", ".join(t for t, _ in parts), e.args[0].dtype
        if fn in WRAPS and of in INTS and wraps:
            return f"{fn}({args})", ATOM
        if fn in INFIX:
            sign, level = INFIX[fn]
            if fn in ("bitand", "bitor", "bitxor", "and", "or"):   # beside other signs these read better in parentheses
                left = wrap(parts[0], ATOM if parts[0][1] != level else level)
                return f"{left} {sign} {wrap(parts[1], UNARY)}", level
            return f"{wrap(parts[0], level)} {sign} {wrap(parts[1], level + 1)}", level
        if fn == "neg":
            return (f"sub(0, {args})", ATOM) if of in INTS else (f"-{wrap(parts[0], ATOM)}", UNARY)
        if fn == "not":
            return f"!{wrap(parts[0], ATOM)}", UNARY
        r = routine_of(e)
        if r is not None:
            return f"{r.name}({args})", ATOM
        return (f"{fn}({args})" if fn in PLAIN else f"{fn}_{'i64' if of in INTS else of}({args})"), ATOM

    # --- statements ---

    def block(self, body: Iterable[Stmt]) -> None:
        self.indent += 1
        for s in body:
            self.statement(s)
        self.indent -= 1

    def statement(self, s: Stmt) -> None:
        match s:
            case For():
                self.loop(s)
            case Let(var=v, value=value) | Set(var=v, value=value):
                self.assign(v, self.texts([value])[0])
            case Store(buffer=b, index=index, value=value):
                i, t = self.texts([index, value], [True, False])
                self.put(f"{self.names[b]}[{i}] = {self.stored(b, t, value.dtype)};")
            case If(condition=c, then=then, other=other):
                self.put(f"if ({self.texts([c])[0]}) {{")
                self.block(then)
                if other:
                    self.put("} else {")
                    self.block(other)
                self.put("}")
            case Alloc():
                self.alloc(s)
            case Fail(site=site):
                self.put(f"return {site};")
            case _:
                raise TypeError(f"no text for {type(s).__name__}")

    def loop(self, s: For) -> None:
        a, b = self.texts([s.start, s.stop])
        end, v = b, self.names[s.var]
        if not (b.isdigit() or re.fullmatch(r"\w+", b)):
            end = self.names.temporary()
            self.put(f"const i64 {end} = {b};")
        mark = ""
        if not self.local and any(isinstance(i, Alloc) and not i.escapes for i in walk(s.body)):
            mark = self.names.temporary()   # an earlier turn's scratch is free again
            self.put(f"const i64 {mark} = scratch;")
        self.put(f"for (i64 {v} = {a}; {v} < {end}; {v}++) {{")
        if mark:
            self.put(f"    scratch = {mark};")
        self.block(s.body)
        self.put("}")

    def assign(self, raw: str, text: str) -> None:
        self.put(f"{self.names[raw]} = {text};")
        if raw in self.written:
            self.put(f"row[{self.written[raw]}] = {self.names[raw]};")

    def stored(self, buffer: str, text: str, dtype: str) -> str:
        held = self.held[buffer]
        target = STORED.get(held, held)
        return text if target in ("f32", "f64", word(dtype)) else f"{target}({text})"

    def alloc(self, s: Alloc) -> None:
        held = STORED.get(s.dtype, s.dtype)
        name, size = self.names[s.buffer], BYTES_PER_VALUE[s.dtype]
        (count,) = self.texts([s.count])
        if self.local:
            self.put(f"{held} {name}[{count}];")
            return
        free, end = ("escape", "escape_end") if s.escapes else ("scratch", "scratch_end")
        if count.isdigit():
            size = (int(count) * size + 63) // 64 * 64
            self.put(f"if ({end} - {free} < {size + 63}) return -1;")
        else:
            if not re.fullmatch(r"\w+", count):
                count, text = self.names.temporary(), count
                self.put(f"const i64 {count} = {text};")
            self.put(f"if ({count} > ({end} - {free} - 63) / {size}) return -1;")
        self.put(f"{name} = ({held}*){free};")
        if s.buffer in self.written:
            self.put(f"row[{self.written[s.buffer]}] = {free};")
        taken = str(size) if count.isdigit() else f"(max_i64({count}, 0) * {size} + 63) / 64 * 64"
        self.put(f"{free} = {free} + {taken};")

    # --- a nest ---

    def nest(self, n: Nest) -> None:
        """Loops whose turns the threads of a record share."""
        ends = self.texts([e for level in n.levels for e in (level.start, level.stop)])
        counts = []
        self.put("{")
        self.indent += 1
        for k in range(len(n.levels)):
            a, b = ends[2 * k : 2 * k + 2]
            count = b if a == "0" and b.isdigit() else self.names.temporary()
            if count != b:
                self.put(f"const i64 {count} = extent({a}, {b});")
            counts.append(count)
        self.put(f"for (i64 e = lane; e < {_product(counts)}; e += lanes) {{")
        self.indent += 1
        self._unravel(n, ends, counts)
        self.local = True
        for made in locals_of(statements(n)):
            self.put(f"{word(made[1])} {self.names[made[0]]};")
        for level in n.levels:
            for s in level.lets:
                self.statement(s)
        for s in n.body:
            self.statement(s)
        self.local = False
        for _ in range(2):
            self.indent -= 1
            self.put("}")

    def _unravel(self, n: Nest, ends: list[str], counts: list[str]) -> None:
        if len(n.levels) > 1:
            self.put("i64 rest = e;")
        for k in reversed(range(len(n.levels))):
            value = "e" if len(n.levels) == 1 else "rest" if k == 0 else f"digit(rest, {counts[k]})"
            start = "" if ends[2 * k] == "0" else f"{ends[2 * k]} + "
            self.put(f"const i64 {self.names[n.levels[k].var]} = {start}{value};")


def _product(counts: Sequence[str]) -> str:
    """Of numbers and names; of numbers alone C would make it an int."""
    known = math.prod(int(c) for c in counts if c.isdigit())
    named = [c for c in counts if not c.isdigit()]
    text = str(known) if known < 2**31 else f"{known}ll"
    return " * ".join(named if named and known == 1 else [*named, text])


def _wrapping(pool: Interner, values: Iterable[int]) -> list[bool]:
    """Which parts are values, and not only part of positions in memory."""
    wraps = [False] * len(pool.exprs)
    for top in values:
        wraps[top] = True
    for n in reversed(range(len(pool.exprs))):
        e = pool.exprs[n]
        inside = isinstance(e, Load) or (isinstance(e, Apply) and e.fn in WRAPS and not wraps[n])
        for p in pool.parts[n]:
            wraps[p] = wraps[p] or not inside
    return wraps


def locals_of(body: Iterable[Stmt]) -> list[tuple[str, str]]:
    """Name and dtype of every local made in these statements."""
    found = {s.var: s.value.dtype for s in walk(body) if isinstance(s, Let)}
    return list(found.items())
