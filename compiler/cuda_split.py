"""Loop IR of one kernel → phases for a GPU: what each thread works out for itself, what one thread does for a record, and
loops whose turns all threads share.

A phase is one launch, so that what a phase wrote is there for the next. Turns may be shared where it is proved that no two
of them touch the same element of memory (`spread`).

    t = philox(…)                       again      each thread, in each phase that needs it
    for i in range(n - 1): order[…] = … one        phase 0: one thread for each record
    for i in range(n):                  all        phase 1: element (i, j) is one thread's turn
        for j in range(m): out[i * m + j] = images[order[i] * m + j]
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..dsl.types import BYTES_PER_VALUE
from .cuda_proofs import Ends, Proofs, own_elements
from .emit_numba import children, expressions, walk
from .loops import Alloc, Const, Expr, Fail, For, If, Kernel, Let, Load, Set, Stmt, Store, Var

SCRATCH, ESCAPE = "next scratch", "next output"   # where the next memory is taken, as names of locals
LARGEST_LOCAL = 1024   # bytes of a turn's own memory, beyond which a loop isn't shared


@dataclass(frozen=True)
class Level:
    """One loop of a nest: `lets` are made when its variable is known."""

    var: str
    start: Expr
    stop: Expr
    lets: tuple[Stmt, ...]


@dataclass(frozen=True)
class Nest:
    """Loops whose turns are independent of one another; `body` is one turn."""

    levels: tuple[Level, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Item:
    """A statement of a kernel, done where all `guards` (name of a bool, what it must be) hold.

    kind "again": each thread does it in each phase; "one": one thread of a record; "all": threads share it (a `Nest`, or a
    `Store` that one of them does). `phase` is the launch it belongs to, 0 for "again".
    """

    stmt: Stmt | Nest
    kind: Literal["again", "one", "all"]
    guards: tuple[tuple[str, bool], ...] = ()
    phase: int = 0


def phases(kernel: Kernel) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """The kernel's statements in order, and what each phase is: "one" or "all"."""
    items = list(_classified(kernel))
    kinds: list[str] = []
    touched: tuple[set[str], set[str]] = (set(), set())   # read and written in the last phase
    placed: list[Item] = []
    for item in items:
        if item.kind == "again":
            placed.append(item)
            continue
        reads, writes = _touched(item.stmt)
        clash = bool(reads & touched[1] or writes & (touched[0] | touched[1]))
        if not kinds or kinds[-1] != item.kind or (item.kind == "all" and clash):
            kinds.append(item.kind)
            touched = (set(), set())
        touched[0].update(reads)
        touched[1].update(writes)
        placed.append(replace(item, phase=len(kinds) - 1))
    if "all" not in kinds:
        kinds = ["one"]
        placed = [replace(i, kind="one", phase=0) for i in placed]
    return tuple(_joined(placed)), tuple(kinds)


def _joined(items: list[Item]) -> list[Item]:
    """What stands within a phase of one thread and needs what that finds out is done by this thread, too."""
    ends = {i.phase: k for k, i in enumerate(items) if i.kind == "one"}
    found: list[Item] = []
    phase, made = -1, set[str]()
    for k, item in enumerate(items):
        if item.kind == "one" and item.phase != phase:
            phase, made = item.phase, set()
        inside = item.kind == "again" and k < ends.get(phase, -1)
        if inside and (used_by(statements(item.stmt), item) | assigned_by(statements(item.stmt))) & made:
            item = replace(item, kind="one", phase=phase)
        if item.kind == "one":
            made |= assigned_by(statements(item.stmt))
        found.append(item)
    return found


def assigned_by(body: Iterable[Stmt]) -> set[str]:
    """Locals and buffers that get a value; where memory is taken, `SCRATCH` or `ESCAPE` does."""
    body = list(body)
    found = {s.var if isinstance(s, Let | Set) else s.buffer for s in walk(body) if isinstance(s, Let | Set | Alloc)}
    return found | {ESCAPE if s.escapes else SCRATCH for s in walk(body) if isinstance(s, Alloc)}


def used_by(body: Sequence[Stmt], item: Item) -> set[str]:
    """Variables and buffers that a statement reads or stores to; where it takes memory, `SCRATCH` or `ESCAPE`."""
    roots = list(expressions(body))
    if isinstance(item.stmt, Nest):
        roots += [e for level in item.stmt.levels for e in (level.start, level.stop)]
    found = {e.name if isinstance(e, Var) else e.buffer for r in roots for e in every(r) if isinstance(e, Var | Load)}
    if not isinstance(item.stmt, Nest):   # whose memory is the turn's own
        found |= {ESCAPE if s.escapes else SCRATCH for s in walk(body) if isinstance(s, Alloc)}
    return found | {s.buffer for s in walk(body) if isinstance(s, Store)} | {name for name, _ in item.guards}


def _classified(kernel: Kernel) -> Iterable[Item]:
    written = {s.buffer for s in walk(kernel.body) if isinstance(s, Store)}
    proofs = Proofs(kernel.body)
    names = {s.var for s in walk(kernel.body) if isinstance(s, Let | For)}
    for stmt, guards in _flat(kernel.body, (), names):
        found: Nest | None = None
        if isinstance(stmt, For):
            found = spread(stmt, proofs)
        if found is not None:
            yield Item(found, "all", guards)
        elif isinstance(stmt, Store) and not _reads((stmt,)) & written:
            yield Item(stmt, "all", guards)
        elif _again(stmt, written):
            yield Item(stmt, "again", guards)
        else:
            yield Item(stmt, "one", guards)


def _flat(body: Sequence[Stmt], guards: tuple[tuple[str, bool], ...], names: set[str]
          ) -> Iterable[tuple[Stmt, tuple[tuple[str, bool], ...]]]:
    """Statements with the conditions they stand below; an `If` around loops becomes a condition of each statement in it."""
    for s in body:
        if isinstance(s, If) and any(isinstance(inner, For | Store) for inner in walk((s,))):
            name = _fresh("when", names)
            yield Let(name, s.condition), guards
            yield from _flat(s.then, (*guards, (name, True)), names)
            yield from _flat(s.other, (*guards, (name, False)), names)
        else:
            yield s, guards


def _fresh(hint: str, names: set[str]) -> str:
    name, k = hint, 0
    while name in names:
        k += 1
        name = f"{hint}_{k}"
    names.add(name)
    return name


def _again(s: Stmt, written: set[str]) -> bool:
    """May every thread do it, as often as it likes, with the same outcome?"""
    return not any(isinstance(i, For | Store) for i in walk((s,))) and not _reads((s,)) & written


def _reads(body: Iterable[Stmt]) -> set[str]:
    return {e.buffer for root in expressions(body) for e in every(root) if isinstance(e, Load)}


def every(root: Expr) -> Iterable[Expr]:
    """Every expression in one, each once."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if id(e) not in seen:
            seen.add(id(e))
            yield e
            stack += children(e)


def statements(stmt: Stmt | Nest) -> tuple[Stmt, ...]:
    """A nest as the statements that its turn consists of."""
    if isinstance(stmt, Nest):
        return (*(s for level in stmt.levels for s in level.lets), *stmt.body)
    return (stmt,)


def _touched(stmt: Stmt | Nest) -> tuple[set[str], set[str]]:
    """Buffers read and written, those of a turn apart."""
    body = statements(stmt)
    own = {s.buffer for s in walk(body) if isinstance(s, Alloc)} if isinstance(stmt, Nest) else set()
    ends = [e for level in stmt.levels for e in (level.start, level.stop)] if isinstance(stmt, Nest) else []
    reads = _reads(body) | {e.buffer for root in ends for e in every(root) if isinstance(e, Load)}
    return reads - own, {s.buffer for s in walk(body) if isinstance(s, Store)} - own


# --- loops whose turns are independent --------------------------------------------------------------


def spread(loop: For, proofs: Proofs) -> Nest | None:
    """The loop as a nest of as many loops as can be proved independent; None where not even the outer one can."""
    inner = tuple(walk(loop.body))
    if any(isinstance(s, Fail) or (isinstance(s, Alloc) and (s.escapes or not _small(s))) for s in inner):
        return None
    made = {s.var for s in inner if isinstance(s, Let | For)}
    if any(isinstance(s, Set) and s.var not in made for s in inner):
        return None
    whole = _nest(loop, proofs)
    for depth in range(len(whole.levels), 0, -1):
        nest = _shortened(whole, depth)
        changed = {s.var for s in walk(nest.body) if isinstance(s, Set)}
        outside = {s.var for level in nest.levels for s in level.lets if isinstance(s, Let)}
        if not changed & outside and own_elements([level.var for level in nest.levels], nest.body, statements(nest), proofs):
            return nest
    return None


def _small(s: Alloc) -> bool:
    return isinstance(s.count, Const) and 0 < int(s.count.value) * BYTES_PER_VALUE[s.dtype] <= LARGEST_LOCAL


def _nest(loop: For, proofs: Proofs) -> Nest:
    """Loops inside one another with nothing but locals between them; at the bottom, loops that follow one another over
    touching ranges become one over all."""
    levels = [Level(loop.var, loop.start, loop.stop, ())]
    body = loop.body
    while True:
        lets = tuple(s for s in body if isinstance(s, Let))
        rest = body[len(lets):]
        bound = {level.var for level in levels} | {s.var for level in levels for s in level.lets if isinstance(s, Let)}
        bound |= {s.var for s in lets}
        if body[: len(lets)] != lets or not rest or not all(isinstance(s, For) for s in rest):
            return Nest(tuple(levels), body)
        loops = [s for s in rest if isinstance(s, For)]
        touching = all(a.stop == b.start for a, b in itertools.pairwise(loops))
        if not touching or _uses((loops[0].start, loops[-1].stop), bound):
            return Nest(tuple(levels), body)
        levels[-1] = replace(levels[-1], lets=lets)
        if len(loops) == 1:
            levels.append(Level(loops[0].var, loops[0].start, loops[0].stop, ()))
            body = loops[0].body
            continue
        at = Var(f"{loops[0].var} of all", "i64")
        proofs.known[at.name] = Ends(loops[0].start, loops[-1].stop)
        proofs.known.update({part.var: at for part in loops})
        levels.append(Level(at.name, loops[0].start, loops[-1].stop, ()))
        parts = []
        for k, part in enumerate(loops):
            inside: list[Expr] = [at >= part.start] * (k > 0) + [at < part.stop] * (k < len(loops) - 1)
            parts.append(If(functools.reduce(lambda a, b: a & b, inside), (Let(part.var, at), *part.body)))
        return Nest(tuple(levels), tuple(parts))


def _uses(roots: Iterable[Expr], names: set[str]) -> bool:
    return any(isinstance(e, Var) and e.name in names for root in roots for e in every(root))


def _shortened(nest: Nest, depth: int) -> Nest:
    """The nest with only its first `depth` loops shared; the others are loops of a turn."""
    body = nest.body
    for level in reversed(nest.levels[depth:]):
        body = (For(level.var, level.start, level.stop, (*level.lets, *body)),)
    levels = list(nest.levels[:depth])
    if depth < len(nest.levels):
        body = (*levels[-1].lets, *body)
        levels[-1] = replace(levels[-1], lets=())
    return Nest(tuple(levels), body)

