"""What a caller of a kernel on a GPU knows before it runs: scratch, sizes and places of what it makes, and whether records,
apart from their sizes, decide on failures and memory.
"""
from __future__ import annotations

from collections.abc import Iterable

from ..dsl.types import BYTES_PER_VALUE
from .cuda_split import every
from .emit_numba import walk
from .loops import Alloc, Argument, Const, Expr, Fail, For, If, Kernel, Let, Load, Set, Stmt, Var


def scratch(kernel: Kernel, saved: int) -> int | None:
    """Bytes of scratch for a record, with room for `saved` values; None where only running tells."""
    total = 64 + 8 * saved
    for s in walk(kernel.body):
        if isinstance(s, Alloc) and not s.escapes:
            if not isinstance(s.count, Const):
                return None
            total += int(s.count.value) * BYTES_PER_VALUE[s.dtype] + 128
    return -(-total // 64) * 64


def outputs(kernel: Kernel) -> tuple[str, ...] | None:
    """Slots whose memory the kernel takes itself, in the order in which it does; None where only running tells."""
    slots = {a.name: a.slot for a in kernel.arguments if a.writes and a.kind != "size"}
    taken = [s.buffer for s in walk(kernel.body) if isinstance(s, Alloc) and s.escapes]
    plain = [s.buffer for s in kernel.body if isinstance(s, Alloc) and s.escapes]
    whole = taken == plain and set(taken) == set(slots) and not any(a.kind == "mask" and a.writes for a in kernel.arguments)
    return tuple(slots[b] for b in taken) if whole else None


def steady(kernel: Kernel) -> bool:
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


def told(kernel: Kernel, a: Argument) -> tuple[str, int]:
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
