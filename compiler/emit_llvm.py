"""Loop IR as LLVM IR: a `Kernel` goes in, the text of a module with one function over many records comes out.

Every operation is the one that `compiler.intrinsics` states for the kernel's Python text, so both make the same bits;
this way takes milliseconds where Numba's type inference takes seconds. Memory that the kernel writes is told apart
from all other memory, so that loops become vector code without checks.
"""
from __future__ import annotations

import re
from typing import Any

from llvmlite import ir

from ..dsl.types import BYTES_PER_VALUE
from .emit_numba import Interner, clean, walk
from .instructions import I64, LLVM, operation
from .loops import (
    Alloc,
    Apply,
    Expr,
    Fail,
    For,
    If,
    Kernel,
    Let,
    Load,
    Set,
    Stmt,
    Store,
    Var,
)

BYTE = LLVM["u8"]
# Loops of more instructions gain little as vector code, and cost most of the time that compiling takes.
LONG = 250

def memory_type(dtype: str) -> Any:
    return BYTE if dtype == "bool" else LLVM[dtype]


def positions(pool: Interner, tops: list[int]) -> set[int]:
    """Sums and products that make up a position in memory: what is in memory has a position far below 2**63."""
    stack = [p for e, parts in zip(pool.exprs, pool.parts, strict=True) if isinstance(e, Load) for p in parts] + tops
    found: set[int] = set()
    while stack:
        n = stack.pop()
        e = pool.exprs[n]
        if n not in found and isinstance(e, Apply) and e.fn in ("add", "sub", "mul"):
            found.add(n)
            stack.extend(pool.parts[n])
    return found


class Emitter:
    """One kernel. Locals that are set live in stack slots, which LLVM turns into registers."""

    def __init__(self, kernel: Kernel, symbol: str):
        self.kernel = kernel
        self.module = ir.Module(clean(kernel.name))
        self.record = ir.Function(self.module, ir.FunctionType(I64, [I64, I64]), f"{symbol}_record")
        self.record.linkage = "internal"
        self.b = ir.IRBuilder(self.record.append_basic_block("entry"))
        self.values: dict[str, Any] = {}     # locals that never change
        self.places: dict[str, Any] = {}     # stack slots of those that do
        self.pointers: dict[str, Any] = {}
        self.dtypes: dict[str, str] = {}
        self.long_loops = 0
        self.changed = {s.var for s in walk(kernel.body) if isinstance(s, Set)}
        self.rows = {a.name: j for j, a in enumerate(kernel.arguments) if a.writes}
        self._tell_memory_apart()

    def _tell_memory_apart(self) -> None:
        written = sorted({s.buffer for s in walk(self.kernel.body) if isinstance(s, Store)})
        domain = self.module.add_metadata(["memory"])
        scopes = {name: self.module.add_metadata([f"memory {i}", domain]) for i, name in enumerate(written)}
        self.own = {name: self.module.add_metadata([s]) for name, s in scopes.items()}
        self.others = {name: self.module.add_metadata([s for o, s in scopes.items() if o != name]) for name in written}
        self.every = self.module.add_metadata(list(scopes.values()))

    # --- memory ---

    def local(self, type: Any) -> Any:
        """A stack slot, made in the entry block so that loops don't grow the stack."""
        with self.b.goto_entry_block():
            return self.b.alloca(type)

    def constant(self, n: int) -> Any:
        return ir.Constant(I64, n)

    def pointer(self, name: str, dtype: str, address: Any) -> None:
        self.dtypes[name] = dtype
        self.pointers[name] = self.b.inttoptr(address, ir.PointerType(memory_type(dtype)))

    def load(self, name: str, at: Any) -> Any:
        loaded = self.b.load(self.b.gep(self.pointers[name], [at], inbounds=True))
        self.mark(loaded, name)
        return self.b.icmp_unsigned("!=", loaded, ir.Constant(BYTE, 0)) if self.dtypes[name] == "bool" else loaded

    def store(self, name: str, at: Any, value: Any) -> None:
        want = memory_type(self.dtypes[name])
        if isinstance(want, ir.IntType) and value.type.width != want.width:
            value = (self.b.zext if value.type.width < want.width else self.b.trunc)(value, want)
        self.mark(self.b.store(value, self.b.gep(self.pointers[name], [at], inbounds=True)), name)

    def mark(self, instruction: Any, name: str) -> None:
        if name in self.own:
            instruction.set_metadata("alias.scope", self.own[name])
            if len(self.own) > 1:
                instruction.set_metadata("noalias", self.others[name])
        elif self.own:
            instruction.set_metadata("noalias", self.every)

    def cell(self, base: Any, j: int) -> Any:
        return self.b.gep(base, [self.constant(j)])

    # --- expressions ---

    def exprs(self, *roots: Expr, places: int = 0) -> list[Any]:
        """Values of the roots; the first `places` of them are positions in memory."""
        pool = Interner()
        tops = [pool.number(r) for r in roots]
        bounded = positions(pool, tops[:places])
        made: list[Any] = []
        for n, (e, parts) in enumerate(zip(pool.exprs, pool.parts, strict=True)):
            value = self.one(e, [made[p] for p in parts])
            if n in bounded and isinstance(value, ir.Instruction) and "nsw" not in value.flags:
                value.flags.append("nsw")
            made.append(value)
        return [made[t] for t in tops]

    def one(self, e: Expr, parts: list[Any]) -> Any:
        match e:
            case Var(name=name):
                return self.values[name] if name in self.values else self.b.load(self.places[name])
            case Load(buffer=buffer):
                return self.load(buffer, parts[0])
            case _:
                return operation(self.b, e, parts)

    # --- statements ---

    def block(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        match s:
            case For():
                self.loop(s)
            case Let(var=v, value=e) | Set(var=v, value=e):
                self.bind(v, self.exprs(e)[0])
            case Store(buffer=buffer, index=index, value=e):
                at, value = self.exprs(index, e, places=1)
                self.store(buffer, at, value)
            case If():
                self.branch(s)
            case Alloc():
                self.alloc(s)
            case Fail(site=site):
                self.leave(site)
            case _:
                raise TypeError(f"no LLVM code for {type(s).__name__}")

    def bind(self, name: str, value: Any) -> None:
        if name in self.changed:
            if name not in self.places:
                self.places[name] = self.local(value.type)
            self.b.store(value, self.places[name])
        else:
            self.values[name] = value
        if name in self.rows:
            self.b.store(value, self.cell(self.row, self.rows[name]))

    def leave(self, status: int) -> None:
        self.b.ret(self.constant(status))
        self.b.position_at_end(self.b.append_basic_block("after"))

    def branch(self, s: If) -> None:
        (condition,) = self.exprs(s.condition)
        if not s.other:
            with self.b.if_then(condition):
                self.block(s.then)
            return
        with self.b.if_else(condition) as (then, other):
            with then:
                self.block(s.then)
            with other:
                self.block(s.other)

    def loop(self, s: For) -> None:
        start, stop = self.exprs(s.start, s.stop)
        mark = None
        if any(isinstance(i, Alloc) and not i.escapes for i in walk(s.body)):
            mark = self.b.load(self.scratch)   # an earlier turn's scratch is free again
        place = self.local(I64)
        self.b.store(start, place)
        test, body, after = (self.b.append_basic_block(n) for n in ("test", "body", "done"))
        self.b.branch(test)
        self.b.position_at_end(test)
        at = self.b.load(place)
        self.b.cbranch(self.b.icmp_signed("<", at, stop), body, after)
        self.b.position_at_end(body)
        if mark is not None:
            self.b.store(mark, self.scratch)
        self.bind(s.var, at)
        before = self.size()
        self.block(s.body)
        self.b.store(self.b.add(at, self.constant(1), flags=("nsw",)), place)
        again = self.b.branch(test)
        if self.size() - before > LONG:
            self.long_loops += 1
            again.set_metadata("llvm.loop", self.module.add_metadata([f"long loop {self.long_loops}"]))
        self.b.position_at_end(after)

    def size(self) -> int:
        return sum(len(block.instructions) for block in self.record.blocks)

    def alloc(self, s: Alloc) -> None:
        """Bump allocation; sizes are multiples of 64 bytes, a count that doesn't fit ends the kernel."""
        (count,) = self.exprs(s.count)
        size = BYTES_PER_VALUE[s.dtype]
        place = self.cell(self.arena, 0) if s.escapes else self.scratch
        end = self.b.load(self.cell(self.arena, 1 if s.escapes else 3))
        free = self.b.load(place)
        room = self.b.sub(self.b.sub(end, free), self.constant(63))
        fits = self.b.icmp_signed("<=", count, self.b.sdiv(room, self.constant(size)))
        with self.b.if_then(self.b.or_(self.b.not_(fits), self.b.icmp_signed("<", room, self.constant(0))), likely=False):
            self.leave(-1)
        self.pointer(s.buffer, s.dtype, free)
        if s.escapes:
            self.b.store(free, self.cell(self.row, self.rows[s.buffer]))
        count = self.b.select(self.b.icmp_signed("<", count, self.constant(0)), self.constant(0), count)
        taken = self.b.and_(self.b.add(self.b.mul(count, self.constant(size)), self.constant(63)), self.constant(-64))
        self.b.store(self.b.add(free, taken), place)

    # --- the whole ---

    def emit(self) -> str:
        table, arena = self.record.args
        self.row = self.b.inttoptr(table, ir.PointerType(I64))
        self.arena = self.b.inttoptr(arena, ir.PointerType(I64))
        self.scratch = self.local(I64)
        self.b.store(self.b.load(self.cell(self.arena, 2)), self.scratch)
        for j, a in enumerate(self.kernel.arguments):
            if a.writes:
                continue
            value = self.b.load(self.cell(self.row, j))
            if a.kind == "size":
                self.values[a.name] = value
            else:
                self.pointer(a.name, "bool" if a.kind == "mask" else a.dtype, value)
        self.block(self.kernel.body)
        self.b.ret(self.constant(0))
        return self.marked()

    def marked(self) -> str:
        """Tell LLVM to leave long loops alone. What names a loop must name itself, which llvmlite can't write."""
        marks = [self.module.add_metadata(["llvm.loop.vectorize.enable", ir.Constant(ir.IntType(1), 0)]),
                 self.module.add_metadata(["llvm.loop.unroll.disable"])]
        wanted = ", ".join(m.get_reference() for m in marks)
        return re.sub(r'(?m)^(!\d+) = !\{ !"long loop \d+" \}$', rf"\1 = distinct !{{ \1, {wanted} }}", str(self.module))


def module_text(kernel: Kernel, symbol: str) -> str:
    """A module whose internal function `{symbol}_record` handles one record: status = f(row of the table, arena)."""
    return Emitter(kernel, symbol).emit()
