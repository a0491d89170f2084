"""Loop IR printed as CUDA C: a `Kernel` goes in, the text of its launches and what a caller has to know come out.

A kernel is one `__global__` function for each phase (`cuda_split`), called with (n, table, status, arena) like the compiled
one, except that every record has its own five numbers in `arena`: next and end address for escaping outputs, begin and end
of scratch, and, told by the kernel, where its outputs end. In a phase "one" a thread works on a record alone; in a
phase "all" the threads along x share the loops of record y. The names used are those of `kernels/cuda.h`; after
`kernels/cuda_host.h` the same text runs on the host.
"""
from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from ..dsl.types import BYTES_PER_VALUE
from ..runtime.plan import DeviceKernel
from .cuda_split import Item, Nest, every, phases, statements
from .emit_numba import Interner, argument_text, clean, expressions, routines_of, walk
from .emit_numba import const_text as python_text
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
from .routines import Routine, routine_of

ATOM, UNARY, TERNARY = 20, 15, 1
INFIX = {"mul": ("*", 13), "div": ("/", 13), "add": ("+", 12), "sub": ("-", 12), "lt": ("<", 10), "le": ("<=", 10),
         "gt": (">", 10), "ge": (">=", 10), "eq": ("==", 9), "ne": ("!=", 9), "xor": ("!=", 9), "bitand": ("&", 8),
         "bitxor": ("^", 7), "bitor": ("|", 6), "and": ("&&", 5), "or": ("||", 4)}
WRAPS = frozenset(("add", "sub", "mul"))   # of integers: functions, since C leaves overflow undefined
PLAIN = frozenset(("shl", "shr", "ushr", "mulhi"))
LINE = 100
HELD = {"f16": "u16", "bf16": "u16", "bool": "u8"}          # how a dtype lies in memory where that differs
WORDS = {"f16": "u16", "bf16": "u16", "u64": "i64"}         # what a value is while it is computed with
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


def wrap(part: tuple[str, int], level: int) -> str:
    return part[0] if part[1] >= level else f"({part[0]})"


class Names:
    """C names for a kernel's own, each once."""

    def __init__(self, taken: Iterable[str]):
        self.taken = set(reserved()).union(taken)
        self.given: dict[str, str] = {}
        self.temporaries = 0

    def __getitem__(self, raw: str) -> str:
        found = self.given.get(raw)
        if found is None:
            found = re.sub("__+", "_", clean(raw))
            while found in self.taken or found[0] == "_" or "_to_" in found:   # names with `_` in front are the compiler's
                found = f"v{found}" if found[0] == "_" else found.replace("_to_", "_") + "_"
            self.taken.add(found)
            self.given[raw] = found
        return found

    def temporary(self) -> str:
        while True:
            name = f"t{self.temporaries}"
            self.temporaries += 1
            if name not in self.taken:
                self.taken.add(name)
                return name


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
        uses = [0] * len(pool.exprs)
        for parts in pool.parts:
            for p in parts:
                uses[p] += 1
        for top in tops:
            uses[top] += 1
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
        target = HELD.get(held, held)
        return text if target in ("f32", "f64", word(dtype)) else f"{target}({text})"

    def alloc(self, s: Alloc) -> None:
        held = HELD.get(s.dtype, s.dtype)
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
        self.put(f"for (i64 e = lane; e < {' * '.join(counts)}; e += lanes) {{")
        self.indent += 1
        self._unravel(n, ends, counts)
        self.local = True
        for made in _locals(statements(n)):
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


def _locals(body: Iterable[Stmt]) -> list[tuple[str, str]]:
    """Name and dtype of every local made in these statements."""
    found = {s.var: s.value.dtype for s in walk(body) if isinstance(s, Let)}
    return list(found.items())


# --- functions --------------------------------------------------------------------------------------


def routine_text(r: Routine) -> list[str]:
    names = Names([r.name])
    p = Printer(names, {})
    heads = ", ".join(f"{word(v.dtype)} {names[v.name]}" for v in r.params)
    for s in r.body:
        text = p.texts([s.value])[0]
        p.put(f"const {word(s.value.dtype)} {names[s.var]} = {text};")
    p.put(f"return {p.texts([r.result])[0]};")
    return [f"static __device__ {word(r.result.dtype)} {r.name}({heads}) {{", *p.lines, "}"]


class _Phases:
    """A kernel and its phases, while they are printed."""

    def __init__(self, kernel: Kernel, taken: Iterable[str]):
        self.kernel, self.taken = kernel, tuple(taken)
        self.items, self.kinds = phases(kernel)
        self.bodies = [statements(i.stmt) for i in self.items]
        self.used = [_used(b, i) for b, i in zip(self.bodies, self.items)]
        self.assigned = [_assigned(b) for b in self.bodies]
        self.written = {a.name: j for j, a in enumerate(kernel.arguments) if a.writes}
        self.stored = {s.buffer for s in walk(kernel.body) if isinstance(s, Store)}
        self.allocs = {s.buffer: s for s in walk(kernel.body) if isinstance(s, Alloc)}
        self.held = {a.name: ("bool" if a.kind == "mask" else a.dtype) for a in kernel.arguments if a.kind != "size"}
        self.held |= {a.buffer: a.dtype for a in self.allocs.values()}
        own = {i.phase: k + 1 for k, i in enumerate(self.items) if i.kind != "again"}   # the last one of each phase
        self.ends = [*(own[k] for k in range(len(self.kinds) - 1)), len(self.items)]
        self.saves = self._saves()

    def _saves(self) -> dict[tuple[int, str], int]:
        """What a phase of one thread finds out and later ones need: (phase, name) → place."""
        saves: dict[tuple[int, str], int] = {}
        for k, item in enumerate(self.items):
            if item.kind != "one":
                continue
            made = self.assigned[k]
            later: set[str] = set()
            for other, used in zip(self.items[k + 1 :], self.used[k + 1 :]):
                if other.kind == "again" or other.phase != item.phase:
                    later |= used
            scratch = {"scratch"} if any(isinstance(s, Alloc) and not s.escapes for s in walk(self.bodies[k])) else set()
            escape = {"escape"} if any(isinstance(s, Alloc) and s.escapes for s in walk(self.bodies[k])) else set()
            for name in sorted((made & later) | scratch | escape):
                if item.phase < len(self.kinds) - 1:
                    saves.setdefault((item.phase, name), len(saves))
        return saves

    def dtype(self, name: str) -> str:
        if name in ("scratch", "escape"):
            return "i64"
        if name in self.allocs:
            return ""
        return next(s.value.dtype for b in self.bodies for s in walk(b) if isinstance(s, Let) and s.var == name)

    def text(self, phase: int) -> list[str]:
        """The function of a phase: 0, the number of an error site, or -1 where memory is short."""
        p = Printer(Names(self.taken), self.held)
        wanted = self._wanted(phase)
        used = {name for k in wanted for name in self.used[k] | self.assigned[k]} | {"scratch", "escape"}
        self._open(p, wanted, used)
        for k, item in enumerate(self.items[: self.ends[phase]]):
            if item.kind != "again" and item.phase < phase and k + 1 == self.ends[item.phase]:
                for (of, name), place in self.saves.items():
                    if of == item.phase and name in used:
                        p.put(f"{self._shown(p, name)} = *({self._pointee(name)}*)(saved + {place});")
            elif k in wanted:
                p.written = self.written if self._home(k) == phase else {}
                self._item(p, item)
        for (of, name), place in self.saves.items():
            if of == phase:
                p.put(f"*({self._pointee(name)}*)(saved + {place}) = {self._shown(p, name)};")
        if phase == len(self.kinds) - 1 and any(a.escapes for a in self.allocs.values()):
            p.put("arena[4] = escape;")
        p.put("return 0;")
        return p.lines

    def _wanted(self, phase: int) -> set[int]:
        """The statements that a phase has to do: its own, and of those that every thread does, what they need.

        A record's failures and sizes are told by the first phase whose own work comes after them.
        """
        needed: set[str] = set()
        wanted: set[int] = set()
        end = self.ends[phase]
        for k in reversed(range(end)):
            item, body = self.items[k], self.bodies[k]
            own = item.kind != "again" and item.phase == phase
            if item.kind != "again" and not own:
                continue
            tells = self._home(k) == phase and (
                any(isinstance(s, Fail) for s in walk(body)) or bool(self.assigned[k] & set(self.written)))
            keeps = any(isinstance(s, Alloc) for s in walk(body))
            if own or tells or keeps or self.assigned[k] & needed:
                wanted.add(k)
                needed |= self.used[k] | (self.assigned[k] if own else set())   # what it changes only sometimes
        return wanted

    def _home(self, k: int) -> int:
        """The first phase that comes to statement `k`."""
        return next(phase for phase, end in enumerate(self.ends) if k < end)

    def _open(self, p: Printer, wanted: set[int], used: set[str]) -> None:
        """Arguments, memory and locals of a function."""
        for j, a in enumerate(self.kernel.arguments):
            if not a.writes and a.name in used:
                p.put(self._argument(p, j, a))
        own = {s.buffer for i in self.items if isinstance(i.stmt, Nest) for s in walk(statements(i.stmt)) if isinstance(s, Alloc)}
        shared = [a for a in self.allocs.values() if a.buffer not in own]
        if any(not a.escapes for a in shared) or self.saves:
            p.put("i64 scratch = arena[2];")
            p.put("const i64 scratch_end = arena[3];")
        if any(a.escapes for a in shared):
            p.put("i64 escape = arena[0];")
            p.put("const i64 escape_end = arena[1];")
        if self.saves:
            p.put(f"if ({8 * len(self.saves) + 63} > scratch_end - scratch) return -1;")
            p.put("i64* const saved = (i64*)scratch;")
            p.put(f"scratch = scratch + {(8 * len(self.saves) + 63) // 64 * 64};")
        for a in shared:
            if a.buffer in used:
                p.put(f"{HELD.get(a.dtype, a.dtype)}* {p.names[a.buffer]} = 0;")
        declared: set[str] = set()
        for k, item in enumerate(self.items):
            if isinstance(item.stmt, Nest):
                continue
            for name, dtype in _locals(self.bodies[k]):
                if (k in wanted or name in used) and name not in declared:
                    declared.add(name)
                    p.put(f"{word(dtype)} {p.names[name]} = {'false' if dtype == 'bool' else 0};")

    def _argument(self, p: Printer, j: int, a: Argument) -> str:
        if a.kind == "size":
            return f"const i64 {p.names[a.name]} = row[{j}];"
        held = ("" if a.name in self.stored else "const ") + ("u8" if a.kind == "mask" else HELD.get(a.dtype, a.dtype))
        return f"{held}* const __restrict__ {p.names[a.name]} = ({held}*)row[{j}];"

    def _item(self, p: Printer, item: Item) -> None:
        guards = " && ".join(("" if yes else "!") + p.names[name] for name, yes in item.guards)
        single = item.kind == "all" and isinstance(item.stmt, Store)
        if single:
            guards = " && ".join(filter(None, (guards, "lane == 0")))
        if guards:
            p.put(f"if ({guards}) {{")
            p.indent += 1
        if isinstance(item.stmt, Nest):
            p.nest(item.stmt)
        else:
            p.statement(item.stmt)
        if guards:
            p.indent -= 1
            p.put("}")

    def _shown(self, p: Printer, name: str) -> str:
        return name if name in ("scratch", "escape") else p.names[name]

    def _pointee(self, name: str) -> str:
        if name in self.allocs:
            held = self.allocs[name].dtype
            return f"{HELD.get(held, held)}*"
        return word(self.dtype(name))


def _assigned(body: Iterable[Stmt]) -> set[str]:
    return {s.var if isinstance(s, Let | Set) else s.buffer for s in walk(body) if isinstance(s, Let | Set | Alloc)}


def _used(body: Sequence[Stmt], item: Item) -> set[str]:
    """Variables and buffers that a statement reads or stores to."""
    roots = list(expressions(body))
    if isinstance(item.stmt, Nest):
        roots += [e for level in item.stmt.levels for e in (level.start, level.stop)]
    found = {e.name if isinstance(e, Var) else e.buffer for r in roots for e in every(r) if isinstance(e, Var | Load)}
    return found | {s.buffer for s in walk(body) if isinstance(s, Store)} | {name for name, _ in item.guards}


LAUNCH = {
    "one": """\
extern "C" __global__ void {symbol}(i64 n, i64* table, i64* status, i64* arena) {{
    for (i64 r = i64(blockIdx.x) * blockDim.x + threadIdx.x; r < n; r += i64(gridDim.x) * blockDim.x)
        if (status[r] == 0) status[r] = {symbol}_record(table + {stride} * r, arena + 5 * r, 0, 1);
}}""",
    "all": """\
extern "C" __global__ void {symbol}(i64 n, i64* table, i64* status, i64* arena) {{
    const i64 lane = i64(blockIdx.x) * blockDim.x + threadIdx.x, lanes = i64(gridDim.x) * blockDim.x;
    for (i64 r = blockIdx.y; r < n; r += gridDim.y)
        if (status[r] == 0) {{
            const i64 now = {symbol}_record(table + {stride} * r, arena + 5 * r, lane, lanes);
            if (now != 0) status[r] = now;   // the same in all threads
        }}
}}"""}


def device_kernel(kernel: Kernel) -> DeviceKernel:
    """The kernel for a GPU. Equal kernels give equal texts."""
    routines = routines_of(kernel)
    name = Names(routines)[kernel.name]
    made = _Phases(kernel, [name, *routines])
    lines = [line for r in routines.values() for line in [*routine_text(r), ""]]
    lines.append(f"// one record: {', '.join(map(argument_text, kernel.arguments))}")
    launches = []
    for k, kind in enumerate(made.kinds):
        symbol = name if len(made.kinds) == 1 else f"{name}_{k}"
        launches.append((symbol, kind))
        lines.append(f"static __device__ i64 {symbol}_record(i64* row, i64* arena, i64 lane, i64 lanes) {{")
        lines += [*made.text(k), "}", *LAUNCH[kind].format(symbol=symbol, stride=max(1, len(kernel.arguments))).split("\n"), ""]
    return DeviceKernel(
        name=kernel.name, text="\n".join(lines), launches=tuple(launches),
        scratch=_scratch(made), steady=_steady(kernel), outputs=_outputs(kernel),
        sizes=tuple((a.slot, a.axis, *_told(kernel, a)) for a in kernel.arguments if a.writes and a.kind == "size"))


def _scratch(made: _Phases) -> int | None:
    """Bytes of scratch for a record, None where only running tells."""
    total = 64 + 8 * len(made.saves)
    for s in made.allocs.values():
        if s.escapes:
            continue
        if not isinstance(s.count, Const):
            return None
        total += int(s.count.value) * BYTES_PER_VALUE[s.dtype] + 128
    return math.ceil(total / 64) * 64


def _outputs(kernel: Kernel) -> tuple[str, ...] | None:
    """Slots whose memory the kernel takes itself, in the order in which it does; None where only running tells."""
    slots = {a.name: a.slot for a in kernel.arguments if a.writes and a.kind != "size"}
    taken = [s.buffer for s in walk(kernel.body) if isinstance(s, Alloc) and s.escapes]
    plain = [s.buffer for s in kernel.body if isinstance(s, Alloc) and s.escapes]
    whole = taken == plain and set(taken) == set(slots) and not any(a.kind == "mask" and a.writes for a in kernel.arguments)
    return tuple(slots[b] for b in taken) if whole else None


def _steady(kernel: Kernel) -> bool:
    """Do sizes, counts and params alone decide whether a record fails and how much memory it takes?"""
    plain = {a.name for a in kernel.arguments if a.slot == "@count" or a.slot.startswith("param.")}
    moving: set[str] = set()

    def moves(*roots: Expr) -> bool:
        return any((isinstance(e, Load) and e.buffer not in plain) or (isinstance(e, Var) and e.name in moving)
                   for r in roots for e in every(r))

    def follow(body: Iterable[Stmt], unsure: bool) -> bool:
        steady = True
        for s in body:
            match s:
                case Let(var=v, value=value) | Set(var=v, value=value):
                    if unsure or moves(value):
                        moving.add(v)
                case If(condition=c, then=then, other=other):
                    steady &= follow(then, unsure or moves(c)) and follow(other, unsure or moves(c))
                case For(start=start, stop=stop, body=inner):
                    steady &= follow(inner, unsure or moves(start, stop))
                case Alloc(count=count):
                    steady &= not (unsure or moves(count))
                case Fail():
                    steady &= not unsure
        return steady

    before = -1
    while before < len(moving):   # what a loop's turn changes, the next one sees
        before = len(moving)
        result = follow(kernel.body, False)
    return result


def _told(kernel: Kernel, a: Argument) -> tuple[str, int]:
    """How a caller knows a size that the kernel tells: ("size", argument), ("number", argument) or ("const", n), else ("", 0)."""
    made = [s for s in walk(kernel.body) if isinstance(s, Let | Set)]
    changed = {s.var for s in made if isinstance(s, Set)}
    values = {s.var: s.value for s in kernel.body if isinstance(s, Let) and s.var not in changed}
    value: Expr | None = Var(a.name, "i64")
    while isinstance(value, Var) and value.name in values:
        value = values[value.name]
    match value:
        case Const(value=number):
            return "const", int(number)
        case Var(name=name):
            return next((("size", j) for j, other in enumerate(kernel.arguments)
                         if other.name == name and other.kind == "size" and not other.writes), ("", 0))
        case Load(buffer=name, index=Const(value=0)):
            return next((("number", j) for j, other in enumerate(kernel.arguments)
                         if other.name == name and (other.slot == "@count" or other.slot.startswith("param."))), ("", 0))
    return "", 0
