"""Loops over guarded reads, cut in three: kernels' statements go in, the same statements with fewer conditions come out.

`image[y + dy, x + dx] ?? 0` asks at every element whether it is inside. For one row the answer is yes from some x to some
other x, both known before the loop, so

    for k in range(n):                      for k in range(low): …outside…
        if k + d >= 0 & k + d < m: …        for k in range(low, high): …inside, no condition…
        …                                   for k in range(high, n): …outside…

The middle loop becomes vector code. Order and results of all statements stay.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .emit_numba import Interner, expressions, walk
from .loops import Alloc, Apply, Cast, Const, Expr, Fail, For, If, Let, Load, Select, Set, Stmt, Store, Var

# Longer bodies aren't written three times.
LONGEST = 120
# Numbers kept within this can be added to positions and sizes without passing i64.
FAR = 2**61
ZERO = Const(0, "i64")


@dataclass(frozen=True)
class Range:
    """k from `low` to `high` - 1."""

    low: Expr
    high: Expr


@dataclass(frozen=True)
class Line:
    """slope * k + base, slope 1 or -1; or one of two of these, by a condition that k doesn't change."""

    slope: int
    base: Expr


@dataclass(frozen=True)
class Either:
    condition: Expr
    then: Form
    other: Form


Form = Line | Either


class _Loop:
    """What is known of one loop: its variable, what its body changes, what its body's locals are."""

    def __init__(self, loop: For):
        self.var = loop.var
        self.changed = {loop.var} | {s.var for s in walk(loop.body) if isinstance(s, Let | Set | For)}
        sets = {s.var for s in walk(loop.body) if isinstance(s, Set)}
        lets = Counter(s.var for s in walk(loop.body) if isinstance(s, Let))
        self.locals = {s.var: s.value for s in walk(loop.body) if isinstance(s, Let) and s.var not in sets and lets[s.var] == 1}
        self.ends = {s.var: s for s in (loop, *walk(loop.body)) if isinstance(s, For)}

    def steady(self, e: Expr) -> Expr | None:
        """The expression as it may stand before the loop, if k doesn't change it (and it can't fail and is cheap)."""
        match e:
            case Const():
                return e
            case Var(name=name):
                if name in self.locals:
                    return self.steady(self.locals[name])
                return None if name in self.changed else e
            case Apply(fn=fn, args=args) if fn in ("add", "sub", "mul", "neg", "ge", "gt", "le", "lt", "and", "or", "not"):
                steady = [self.steady(a) for a in args]
                return None if None in steady else replace(e, args=tuple(s for s in steady if s is not None))
            case Select(condition=c, then=a, other=b):
                parts = [self.steady(p) for p in (c, a, b)]
                return None if None in parts else Select(*(p for p in parts if p is not None))
        return None

    def form(self, e: Expr) -> Form | None:
        """The expression as a line in k."""
        match e:
            case Var(name=name) if name == self.var:
                return Line(1, ZERO)
            case Var(name=name) if name in self.locals:
                return self.form(self.locals[name])
            case Apply(fn="add" | "sub" as fn, args=(a, b)):
                if (more := self.steady(b)) is not None and (line := self.form(a)) is not None:
                    return _moved(line, more, fn)
                if (more := self.steady(a)) is not None and (line := self.form(b)) is not None:
                    return _moved(line if fn == "add" else _turned(line), more, "add")
            case Select(condition=c, then=a, other=b):
                condition, then, other = self.steady(c), self.form(a), self.form(b)
                if condition is not None and then is not None and other is not None:
                    return Either(condition, then, other)
        return None

    def sure(self, e: Expr) -> bool:
        """Does a condition on the variable of this loop or one inside follow from that loop's ends."""
        match e:
            case Apply(fn="ge", args=(Var(name=name), Const(value=0))) if name in self.ends:
                start = self.ends[name].start
                return isinstance(start, Const) and start.value >= 0
            case Apply(fn="lt", args=(Var(name=name), stop)) if name in self.ends:
                return self.ends[name].stop == stop
        return False


def _sum(fn: str, a: Expr, b: Expr) -> Expr:
    """a + b or a - b, of constants at once."""
    if isinstance(b, Const) and isinstance(a, Const):
        return Const(a.value + b.value if fn == "add" else a.value - b.value, "i64")
    if b == ZERO or (a == ZERO and fn == "add"):
        return a if b == ZERO else b
    return Apply(fn, (a, b), "i64")


def _moved(form: Form, more: Expr, fn: str) -> Form:
    if isinstance(form, Either):
        return Either(form.condition, _moved(form.then, more, fn), _moved(form.other, more, fn))
    return Line(form.slope, _sum(fn, form.base, more))


def _turned(form: Form) -> Form:
    if isinstance(form, Either):
        return Either(form.condition, _turned(form.then), _turned(form.other))
    return Line(-form.slope, _sum("sub", ZERO, form.base))


def _near(e: Expr) -> Expr:
    if isinstance(e, Const):
        return Const(min(max(e.value, -FAR), FAR), "i64")
    return Apply("min", (Apply("max", (e, Const(-FAR, "i64")), "i64"), Const(FAR, "i64")), "i64")


def _small(e: Expr) -> bool:
    return isinstance(e, Const) and abs(e.value) < 2**40


def _difference(a: Expr, b: Expr) -> Expr:
    """a - b, or where that is far from 0 some number as far."""
    if _small(a) or _small(b):
        return _sum("sub", _near(a), _near(b))
    d = Apply("sub", (a, b), "i64")
    signs = Apply("bitand", (Apply("bitxor", (a, b), "i64"), Apply("bitxor", (a, d), "i64")), "i64")
    return Select(signs < 0, Select(a < 0, Const(-FAR, "i64"), Const(FAR, "i64")), _near(d))


def _range(form: Form, bound: Expr, least: bool) -> Range:
    """Where the form is at least the bound, or below it."""
    if isinstance(form, Either):
        a, b = _range(form.then, bound, least), _range(form.other, bound, least)
        return Range(_chosen(form.condition, a.low, b.low), _chosen(form.condition, a.high, b.high))
    if form.slope > 0:
        end = _difference(bound, form.base)
    else:
        end = _sum("add", _difference(form.base, bound), Const(1, "i64"))
    if (form.slope > 0) == least:
        return Range(end, Const(4 * FAR - 1, "i64"))
    return Range(Const(-4 * FAR, "i64"), end)


def _chosen(condition: Expr, a: Expr, b: Expr) -> Expr:
    return a if a == b else Select(condition, a, b)


def conjuncts(e: Expr) -> Iterator[Expr]:
    match e:
        case Apply(fn="and", args=args):
            for a in args:
                yield from conjuncts(a)
        case _:
            yield e


@dataclass(frozen=True)
class _Guard:
    """An `If` that a range of k decides, provided that `always` (which k doesn't change) holds."""

    statement: If
    ranges: tuple[Range, ...]
    always: tuple[Expr, ...]


def _guard(loop: _Loop, s: If) -> _Guard | None:
    ranges: list[Range] = []
    always: list[Expr] = []
    for e in conjuncts(s.condition):
        steady = loop.steady(e)
        if loop.sure(e):
            continue
        if steady is not None:
            always.append(steady)
        elif isinstance(e, Apply) and e.fn in ("ge", "lt") and (form := loop.form(e.args[0])) is not None:
            bound = loop.steady(e.args[1])
            if bound is None:
                return None
            ranges.append(_range(form, bound, e.fn == "ge"))
        else:
            return None
    return _Guard(s, tuple(ranges), tuple(always)) if ranges else None


def split(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements with their loops cut where that pays, inner loops first."""
    return tuple(made for s in body for made in _statement(s))


def _statement(s: Stmt) -> Iterable[Stmt]:
    match s:
        case For():
            return _cut(replace(s, body=split(s.body)))
        case If():
            return [replace(s, then=split(s.then), other=split(s.other))]
    return [s]


def _cut(loop: For) -> Iterable[Stmt]:
    """Where a body may fail, its sums may pass i64 too, and a line in k may not be one; elsewhere they were proved not to."""
    conditions = [s for s in walk(loop.body) if isinstance(s, If)]
    if not conditions or loop.start != ZERO or any(isinstance(s, Fail) for s in walk(loop.body)):
        return [loop]
    known = _Loop(loop)
    guards = [g for g in (_guard(known, s) for s in conditions) if g is not None]
    if not guards or _size(loop.body) > LONGEST:
        return [loop]
    low, high = f"{loop.var}_low", f"{loop.var}_high"
    inside = {id(g.statement): True for g in guards}
    outside = {id(g.statement): False for g in guards} if len(guards) == 1 else {}
    return [*_ends(loop, guards, low, high),
            For(loop.var, loop.start, Var(low, "i64"), settled(_decided(loop.body, outside))),
            For(loop.var, Var(low, "i64"), Var(high, "i64"), settled(_decided(loop.body, inside))),
            For(loop.var, Var(high, "i64"), loop.stop, settled(_decided(loop.body, outside)))]


def _ends(loop: For, guards: Sequence[_Guard], low: str, high: str) -> list[Stmt]:
    first, last = loop.start, loop.stop
    for r in (r for g in guards for r in g.ranges):
        first = first if _never(r.low) else Apply("max", (first, r.low), "i64")
        last = last if _never(r.high) else Apply("min", (last, r.high), "i64")
    holds: Expr | None = None
    for e in (e for g in guards for e in g.always):
        holds = e if holds is None else holds & e
    if holds is not None:   # nothing is inside: the first loop does it all
        first = Select(holds, first, loop.stop)
    first = Apply("min", (first, loop.stop), "i64")
    return [Let(low, first), Let(high, Apply("max", (last, Var(low, "i64")), "i64"))]


def _never(end: Expr) -> bool:
    """Does this end of a range lie outside of every loop."""
    return isinstance(end, Const) and abs(end.value) > 2 * FAR


def _decided(body: Sequence[Stmt], answers: dict[int, bool]) -> tuple[Stmt, ...]:
    """The statements with these conditions' answers known."""
    made: list[Stmt] = []
    for s in body:
        match s:
            case If() if id(s) in answers:
                made += _decided(s.then if answers[id(s)] else s.other, answers)
            case If():
                made.append(replace(s, then=_decided(s.then, answers), other=_decided(s.other, answers)))
            case For():
                made.append(replace(s, body=_decided(s.body, answers)))
            case _:
                made.append(s)
    return tuple(made)


def settled(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Without locals that turned out to be constants: those of this list that are set nowhere or once more in this list."""
    here = [s.var for s in body if isinstance(s, Set)]
    deep = [s.var for s in walk(body) if isinstance(s, Set)]
    known: dict[str, Const] = {}
    made: list[Stmt] = []
    for s in body:
        s = _put(s, known)
        match s:
            case Let(var=v, value=Const() as c) if deep.count(v) == here.count(v) <= 1:
                known[v] = c
            case Set(var=v, value=value) if v in known:
                del known[v]
                if isinstance(value, Const):
                    known[v] = value
                else:
                    made.append(Let(v, value))
            case _:
                made.append(s)
    return tuple(made)


def _put(s: Stmt, known: dict[str, Const]) -> Stmt:
    """The statement with constants for these locals."""
    if not known:
        return s
    match s:
        case For(start=start, stop=stop, body=body):
            return replace(s, start=_known(start, known), stop=_known(stop, known), body=tuple(_put(i, known) for i in body))
        case If(condition=c, then=then, other=other):
            return If(_known(c, known), tuple(_put(i, known) for i in then), tuple(_put(i, known) for i in other))
        case Let(value=value) | Set(value=value):
            return replace(s, value=_known(value, known))
        case Store(index=index, value=value):
            return replace(s, index=_known(index, known), value=_known(value, known))
        case Alloc(count=count):
            return replace(s, count=_known(count, known))
    return s


def _known(root: Expr, known: dict[str, Const]) -> Expr:
    made: dict[int, Expr] = {}

    def new(e: Expr) -> Expr:
        if id(e) not in made:
            made[id(e)] = _rebuilt(e, known, new)
        return made[id(e)]

    return new(root)


def _rebuilt(e: Expr, known: dict[str, Const], new: Callable[[Expr], Expr]) -> Expr:
    match e:
        case Var(name=name) if name in known:
            return known[name]
        case Load(index=index):
            return replace(e, index=new(index))
        case Apply(args=args):
            return replace(e, args=tuple(map(new, args)))
        case Cast(value=value):
            return replace(e, value=new(value))
        case Select(condition=c, then=a, other=b):
            c = new(c)
            return new(a if c.value else b) if isinstance(c, Const) else Select(c, new(a), new(b))
    return e


def _size(body: Sequence[Stmt]) -> int:
    pool = Interner()
    for e in expressions(body):
        pool.number(e)
    return len(pool.exprs)
