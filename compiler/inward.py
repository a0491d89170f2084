"""A loop over few channels around loops over pixels, turned inside out: a kernel goes in, the same values come out.

Where pixels hold their channels side by side and the result has planes, each plane would read every third byte; with the
channels innermost a pixel is read once, and vector instructions take the bytes apart.

    for i in range(3):                          for j in range(h):
        for j in range(h):                          for k in range(w):
            for k in range(w):             →            for i in range(3):
                out[(i*h + j)*w + k] = …[(j*w + k)*3 + i]    out[…] = …
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .cuda_proofs import Proofs, own_elements
from .cuda_split import every
from .emit_numba import expressions
from .loops import Apply, Const, Expr, For, If, Kernel, Let, Load, Stmt, Store, Var

MOST = 4   # channels


def inward(kernel: Kernel) -> Kernel:
    """The kernel with its loops over channels innermost where that is faster and changes no value."""
    proofs = Proofs(kernel.body)
    return replace(kernel, body=tuple(_turned(kernel.body, proofs)))


def _turned(body: Sequence[Stmt], proofs: Proofs) -> Iterator[Stmt]:
    for s in body:
        match s:
            case For():
                yield _nest(s, proofs) or replace(s, body=tuple(_turned(s.body, proofs)))
            case If(then=then, other=other):
                yield replace(s, then=tuple(_turned(then, proofs)), other=tuple(_turned(other, proofs)))
            case _:
                yield s


def _nest(outer: For, proofs: Proofs) -> Stmt | None:
    """The loops around a store with the outer one innermost; None where that may not be or doesn't pay."""
    if not (isinstance(outer.stop, Const) and outer.start == Const(0, "i64") and 1 < outer.stop.value <= MOST):
        return None
    loops, lets, body = [outer], list[list[Let]](), outer.body
    while body and isinstance(last := body[-1], For) and all(isinstance(s, Let) for s in body[:-1]):
        loops.append(last)
        lets.append([s for s in body[:-1] if isinstance(s, Let)])
        body = last.body
    lets.append([])   # those of the innermost loop stand in `body`
    if len(loops) < 2 or not all(isinstance(s, Let | Store) for s in body):
        return None
    turn = [*(s for some in lets for s in some), *body]
    if not _reads_across(turn, outer.var, loops[-1].var, proofs) or not own_elements([s.var for s in loops], body, turn, proofs):
        return None
    inside, moving = lets[0], {outer.var} | {s.var for s in lets[0]}   # what belongs into the innermost loop
    kept: list[list[Let]] = []
    for loop, some in zip(loops[1:], lets[1:], strict=True):
        if _names((loop.start, loop.stop)) & moving:
            return None
        kept.append([])
        for s in some:
            if _names((s.value,)) & moving:
                inside.append(s)
                moving.add(s.var)
            else:
                kept[-1].append(s)
    made: tuple[Stmt, ...] = (replace(outer, body=(*inside, *body)),)
    for loop, some in zip(reversed(loops[1:]), reversed(kept), strict=True):
        made = (replace(loop, body=(*some, *made)),)
    return made[0]


def _reads_across(turn: Sequence[Stmt], channel: str, pixel: str, proofs: Proofs) -> bool:
    """Is something read at pixel × channels + channel?"""
    for root in expressions(turn):
        for e in every(root):
            match e:
                case Load(index=Apply(fn="add", args=(Apply(fn="mul", args=(at, Const())), Var(name=name)))) if name == channel:
                    if any(isinstance(p, Var) and p.name == pixel for p in proofs.parts(at)):
                        return True
    return False


def _names(roots: Iterable[Expr]) -> set[str]:
    return {e.name for root in roots for e in every(root) if isinstance(e, Var)}
