"""Proofs about positions in memory: do different turns of a loop touch different elements.

A position `(a * D + b) * E + c` with 0 ≤ b < D and 0 ≤ c < E has the digits a, b, c, and differs where one of them does. So
turns are apart where every store's digits hold each of the loops' variables at one place, and alone there.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .emit_numba import children, expressions, walk
from .loops import Alloc, Apply, Cast, Const, Expr, For, Let, Load, Select, Set, Stmt, Store, Var

DEEPEST = 12   # steps of a proof


@dataclass(frozen=True)
class Ends:
    """What is known of a loop's variable."""

    start: Expr
    stop: Expr


class Proofs:
    """What the names of a kernel stand for: locals that never change, and the ends of loops."""

    def __init__(self, body: Iterable[Stmt]):
        statements = list(walk(body))
        names = Counter(s.var for s in statements if isinstance(s, Let | For))
        self.changed = {s.var for s in statements if isinstance(s, Set)} | {n for n, times in names.items() if times > 1}
        self.written = {s.buffer for s in statements if isinstance(s, Store)}
        self.known: dict[str, Expr | Ends] = {}
        for s in statements:
            if isinstance(s, Let | For) and s.var not in self.changed:
                self.known[s.var] = s.value if isinstance(s, Let) else Ends(s.start, s.stop)

    def meant(self, e: Expr) -> Expr:
        """The expression that a local stands for, as far as that is one."""
        for _ in range(DEEPEST):
            known = self.known.get(e.name) if isinstance(e, Var) else None
            if known is None or isinstance(known, Ends):
                break
            e = known
        return e

    def same(self, a: Expr, b: Expr) -> bool:
        """Are they written alike, of parts that mean the same wherever they stand?"""
        a, b = self.meant(a), self.meant(b)
        if not (isinstance(a, Var | Const) or isinstance(b, Var | Const) or _size(a) < 40):
            return False
        return a == b and self.fixed(a, set())

    def fixed(self, e: Expr, moving: set[str]) -> bool:
        """Does it mean the same everywhere, as long as `moving` names stay away?"""
        if _named(e, self) & (self.changed | moving):
            return False
        return not any(isinstance(p, Load) and p.buffer in self.written for p in self.parts(e))

    def parts(self, e: Expr) -> list[Expr]:
        """All parts of an expression, also of the locals in it."""
        found: list[Expr] = []
        seen: set[int] = set()
        stack = [e]
        while stack:
            part = stack.pop()
            if id(part) not in seen:
                seen.add(id(part))
                found.append(part)
                known = self.known.get(part.name) if isinstance(part, Var) else None
                stack += [known.start, known.stop] if isinstance(known, Ends) else [known] if known is not None else []
                stack += children(part)
        return found

    def from_zero(self, e: Expr, steps: int = DEEPEST) -> bool:
        """Is it proved that e ≥ 0?"""
        if steps == 0:
            return False
        match self.meant(e):
            case Const(value=value):
                return bool(value >= 0)
            case Var(name=name):
                ends = self.known.get(name)
                return isinstance(ends, Ends) and self.from_zero(ends.start, steps - 1)
            case Apply(fn="max", args=args):
                return any(self.from_zero(a, steps - 1) for a in args)
            case Apply(fn="min" | "add" | "mul" | "floordiv", args=args):
                return all(self.from_zero(a, steps - 1) for a in args)
            case Apply(fn="mod", args=(_, Const(value=value))):
                return bool(value > 0)
            case Apply(fn="bitand", args=args):
                return any(isinstance(a, Const) and a.value >= 0 for a in args)
            case Select(then=then, other=other):
                return self.from_zero(then, steps - 1) and self.from_zero(other, steps - 1)
            case Cast(value=Load(dtype="u8" | "u16" | "u32"), mode="exact"):
                return True
        return False

    def below(self, e: Expr, stop: Expr, steps: int = DEEPEST) -> bool:
        """Is it proved that e < stop? Where e is a loop's variable, the loop's body runs, so that its range isn't empty."""
        if steps == 0:
            return False
        e, end = self.meant(e), self.meant(stop)
        match e:
            case Const(value=value):
                return isinstance(end, Const) and bool(value < end.value)
            case Var(name=name):
                ends = self.known.get(name)
                return isinstance(ends, Ends) and self.at_most(ends.stop, stop, steps - 1)
            case Apply(fn="min", args=args):
                return any(self.below(a, stop, steps - 1) for a in args)
            case Apply(fn="max", args=args):
                return all(self.below(a, stop, steps - 1) for a in args)
            case Apply(fn="mod", args=(_, Const(value=value))) if value > 0:
                return self.at_most(Const(value, "i64"), stop, steps - 1)
            case Apply(fn="bitand", args=(_, Const(value=value))) if value >= 0:
                return isinstance(end, Const) and bool(value < end.value)
            case Select(then=then, other=other):
                return self.below(then, stop, steps - 1) and self.below(other, stop, steps - 1)
        return False

    def at_most(self, a: Expr, b: Expr, steps: int = DEEPEST) -> bool:
        """Is it proved that a ≤ b?"""
        if steps == 0:
            return False
        if self.same(a, b):
            return True
        a, b = self.meant(a), self.meant(b)
        match a:
            case Const(value=value) if isinstance(b, Const):
                return bool(value <= b.value)
            case Apply(fn="min", args=args):
                return any(self.at_most(x, b, steps - 1) for x in args)
            case Apply(fn="max", args=args):
                return all(self.at_most(x, b, steps - 1) for x in args)
            case Select(then=then, other=other):
                return self.at_most(then, b, steps - 1) and self.at_most(other, b, steps - 1)
        return False

    def digits(self, position: Expr) -> list[tuple[Expr, Expr | None]]:
        """The digits of a position with their dims, the last first; the first one has none."""
        found: list[tuple[Expr, Expr | None]] = []
        while True:
            match position:
                case Apply(fn="add", args=(Apply(fn="mul", args=(rest, dim)), last)) if (
                        self.from_zero(last) and self.below(last, dim)):
                    found.append((last, dim))
                    position = rest
                case _:
                    return [*found, (position, None)]


def _size(e: Expr) -> int:
    """Number of parts, up to 40."""
    count, stack = 0, [e]
    while stack and count < 40:
        stack += children(stack.pop())
        count += 1
    return count


def _named(e: Expr, proofs: Proofs) -> set[str]:
    """Variables that a value depends on, also by way of locals."""
    return {p.name for p in proofs.parts(e) if isinstance(p, Var)}


Place = tuple[int, Expr, tuple[Expr | None, ...]]   # of a variable: number of the digit, the digit, all dims


def own_elements(shared: Sequence[str], body: Sequence[Stmt], turn: Sequence[Stmt], proofs: Proofs) -> bool:
    """Does each turn (a value of every variable in `shared`) store only to elements that no other turn touches?"""
    own = {s.buffer for s in walk(turn) if isinstance(s, Alloc)}
    stores = [(s.buffer, s.index) for s in walk(turn) if isinstance(s, Store) and s.buffer not in own]
    written = {b for b, _ in stores}
    loads = _loads(turn, written)
    moving = set(shared) | {s.var for s in walk(turn) if isinstance(s, Let | For)}
    places: dict[tuple[str, str], Place] = {}
    for buffer, index in (*stores, *loads):
        digits = proofs.digits(index)
        dims = tuple(d for _, d in digits)
        if not all(d is None or proofs.fixed(d, moving) for d in dims):
            return False
        for var in shared:
            at = [k for k, (digit, _) in enumerate(digits) if _alone(digit, var, moving, proofs)]
            if not at:
                return False
            place: Place = (at[0], proofs.meant(digits[at[0]][0]), dims)
            known = places.setdefault((buffer, var), place)
            if known != place:
                return False
    return True


def _loads(turn: Sequence[Stmt], written: set[str]) -> list[tuple[str, Expr]]:
    found: list[tuple[str, Expr]] = []
    seen: set[int] = set()
    for root in expressions(turn):
        stack = [root]
        while stack:
            e = stack.pop()
            if id(e) not in seen:
                seen.add(id(e))
                if isinstance(e, Load) and e.buffer in written:
                    found.append((e.buffer, e.index))
                stack += children(e)
    return found


def _alone(digit: Expr, var: str, moving: set[str], proofs: Proofs) -> bool:
    """Is the digit `var`, or `var` plus or minus something that is the same in all turns?"""
    digit = proofs.meant(digit)
    match digit:
        case Var(name=name):
            return name == var
        case Apply(fn="add", args=(a, b)) | Apply(fn="sub", args=(a, b)):
            fixed = [proofs.fixed(x, moving) for x in (a, b)]
            return (fixed[1] and _alone(a, var, moving, proofs)) or (fixed[0] and _alone(b, var, moving, proofs))
    return False
