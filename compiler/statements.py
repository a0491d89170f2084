"""Statements of one kernel under construction: what to compute goes in; loops, branches, locals and arguments come out.

A statement list is a `Frame`. A value moves out of every loop whose binder it doesn't use, but a value that can fail (or
costs much) never leaves the `If` it stands under (`home`). Where that is inside a loop that doesn't change it, it is computed
at the first turn that asks (`Late`).
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..dsl.types import Type
from .graph import Node, var
from .held import Scalar, Tensor, held, loaded, lying, stored, zero
from .loops import Argument, Buffer, Builder, Const, Expr, If, Stmt, Var
from .totality import WORTH_A_BRANCH, Facts


@dataclass(eq=False)
class Late:
    """A value that is computed where it is first asked for: its locals or memory, and the local that tells whether it is."""

    value: Scalar | Tensor
    made: Var
    needs: dict[Node, None] = field(default_factory=dict)   # other such values that are computed whenever this one is


@dataclass(eq=False)
class Frame:
    """One statement list under construction. `ids`: the binders its loops brought; `branch`: it is inside an If."""

    body: list[Stmt]
    ids: frozenset[int] = frozenset()
    branch: bool = False
    makes: bool = False            # … one in which something is computed for all turns of a loop around it
    nonempty: Expr | None = None   # of a loop: does it run at all; None where that is known
    scalars: dict[Node, Scalar] = field(default_factory=dict)
    tensors: dict[Node, Tensor] = field(default_factory=dict)
    late: dict[Node, Late] = field(default_factory=dict)   # what statements further in compute at most once for this frame


class Statements:
    """The kernel `name` under construction, of which `facts` tells what fails and what costs much."""

    def __init__(self, name: str, facts: Facts):
        self.name, self.facts = name, facts
        self.k = Builder()
        self.frames = [Frame(self.k.body)]
        self.arguments: list[Argument] = []
        self.places: dict[tuple[str, str, int], str] = {}   # (kind, slot, axis) → name of the argument

    # --- arguments ---

    def argument(self, kind: str, slot: str, dtype: str, axis: int = 0, writes: bool = False) -> str:
        """The name under which the body sees one entry of the argument table."""
        key = (kind, slot, axis)
        if key not in self.places:
            hint = slot.rsplit(":", 1)[-1].replace("field.", "").lstrip("@")
            hint = {"data": hint, "mask": f"{hint}_missing", "size": f"{hint}_size{axis}"}[kind]
            self.places[key] = self.k.name(hint)
            self.arguments.append(Argument(kind, self.places[key], dtype, slot, axis, writes))
        return self.places[key]

    def memory(self, slot: str, type: Type) -> Tensor:
        """A slot that is full already, as a tensor of its type."""
        dims = tuple(
            Const(d, "i64") if isinstance(d, int) else self.size(slot, axis) for axis, d in enumerate(type.dims)
        )
        dtype = lying(type.dtype)
        data = Buffer(self.argument("data", slot, dtype), dtype, dims)
        mask = Buffer(self.argument("mask", slot, "bool"), "bool", dims) if type.missing else None
        return Tensor(data, mask)

    def size(self, slot: str, axis: int) -> Expr:
        return Var(self.argument("size", slot, "i64", axis), "i64")

    def cell(self, slot: str, dtype: str) -> Expr:
        """The scalar in a slot."""
        dtype = lying(dtype)
        return loaded(Buffer(self.argument("data", slot, dtype), dtype, ()), Const(0, "i64"))

    # --- frames ---

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[None]:
        """Statements go to the end of an outer frame for a while, that is before the statement under construction."""
        depth = self.frames.index(frame)
        kept, self.frames, body = self.frames, self.frames[: depth + 1], self.k.body
        self.k.body = frame.body
        try:
            yield
        finally:
            self.frames, self.k.body = kept, body

    @contextmanager
    def loop(self, extent: Expr, id: int, hint: str = "i") -> Iterator[Var]:
        with self.k.loop(extent, hint) as v:
            runs = None if isinstance(extent, Const) and extent.value > 0 else extent > 0
            self.frames.append(Frame(self.k.body, frozenset((id,)), nonempty=runs))
            self.frames[-1].scalars[var(id)] = Scalar(v)
            try:
                yield v
            finally:
                self.frames.pop()

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[None]:
        with self.k.when(condition):
            self.frames.append(Frame(self.k.body, branch=True))
            try:
                yield
            finally:
                self.frames.pop()

    @contextmanager
    def other_branch(self) -> Iterator[None]:
        """The else of the `branch` just before it, which is taken off: what moves out of the else must come first."""
        last = self.k.body.pop()
        assert isinstance(last, If)
        outer, self.k.body = self.k.body, []
        self.frames.append(Frame(self.k.body, branch=True))
        try:
            yield
        finally:
            self.frames.pop()
            other, self.k.body = self.k.body, outer
        self.k.body.append(If(last.condition, last.then, tuple(other)))

    # --- where what is computed may stand ---

    def home(self, n: Node) -> tuple[Frame, Frame, Expr | None]:
        """Where `n` may be computed first, which frame may know of it, and under which condition.

        What can fail must not fail for the sake of a loop that doesn't run: outside of such a loop it is computed
        only where the loop runs, and only that loop may use it.
        """
        free, fails = self.facts.free(n), self.facts.fails(n)
        stays = fails or not (self.facts.cost(n) <= WORTH_A_BRANCH or self.facts.shared(n))
        knower, guard = self.frames[-1], None
        for frame in reversed(self.frames):
            if guard is None:
                knower = frame
            if frame is self.frames[0] or frame.ids & free or (frame.branch and stays):
                return frame, knower, guard
            if fails and frame.nonempty is not None:
                guard = frame.nonempty if guard is None else guard & frame.nonempty
        raise AssertionError("the first frame takes everything")

    def outer(self, n: Node, home: Frame) -> Frame | None:
        """The frame around the outermost loop around `home` that doesn't change `n`, if turns should share it."""
        if not home.branch or self.facts.cost(n) <= WORTH_A_BRANCH:
            return None
        if self.facts.rather_again(n) and not any(f.makes for f in self.frames):
            return None
        free, found = self.facts.free(n), None
        for outer, inner in reversed(list(itertools.pairwise(self.frames[: self.frames.index(home) + 1]))):
            if inner.ids & free:
                break
            if inner.ids and all(isinstance(d, int) or self.ready(d, outer) for d in n.type.dims):
                found = outer
        return found

    def ready(self, n: Node, frame: Frame) -> bool:
        """May this scalar be computed in that frame, or does it know it."""
        known = any(n in f.scalars for f in self.frames[: self.frames.index(frame) + 1])
        return known or n.op == "const" or not (self.facts.fails(n) or self.facts.cost(n) > WORTH_A_BRANCH)

    def found_late(self, n: Node) -> Late | None:
        return next((f.late[n] for f in reversed(self.frames) if n in f.late), None)

    def learn(self, knower: Frame, n: Node) -> None:
        late = self.found_late(n)
        assert late is not None
        if isinstance(late.value, Tensor):
            knower.tensors[n] = late.value
        else:
            knower.scalars[n] = late.value

    # --- locals and memory ---

    def known(self, n: Node) -> Tensor | None:
        return next((frame.tensors[n] for frame in reversed(self.frames) if n in frame.tensors), None)

    def local(self, e: Expr) -> Expr:
        return e if isinstance(e, (Var, Const)) else self.k.let(e, "a")

    def locals(self, type: Type) -> tuple[Var, Var | None]:
        """Locals for a scalar, to be assigned."""
        value = self.k.let(zero(held(type.dtype)), "v")
        return value, self.k.let(Const(True, "bool"), "gone") if type.missing else None

    def kept(self, frame: Frame, s: Scalar) -> Scalar:
        """The scalar as locals of the frame, unless it is as cheap as a local."""
        with self.inside(frame):
            value = s.value if isinstance(s.value, (Var, Const)) else self.k.let(s.value, "v")
            missing = s.missing
            if missing is not None and not isinstance(missing, (Var, Const)):
                missing = self.k.let(missing, "gone")
        return Scalar(value, missing)

    def assign(self, value: Var, gone: Var | None, s: Scalar) -> None:
        self.k.set(value, s.value)
        if gone is not None:
            self.k.set(gone, Const(False, "bool") if s.missing is None else s.missing)

    def either(self, c: Expr, n: Node, then: Callable[[], Scalar], other: Callable[[], Scalar] | None = None) -> Scalar:
        """One of two scalars (or nothing in particular), only that one computed. `n` has their type."""
        value, gone = self.locals(n.type)
        with self.branch(c):
            self.assign(value, gone, then())
        if other is not None:
            with self.other_branch():
                self.assign(value, gone, other())
        return Scalar(value, gone)

    def scratch(self, type: Type, dims: list[Expr]) -> Tensor:
        data = self.k.scratch(lying(type.dtype), *dims, hint="whole")
        return Tensor(data, self.k.scratch("bool", *dims, hint="whole_missing") if type.missing else None)

    def element(self, t: Tensor, places: Sequence[Expr]) -> Scalar:
        at = t.data.flat(places)
        return Scalar(loaded(t.data, at), None if t.mask is None else loaded(t.mask, at))

    def put(self, out: Tensor, places: tuple[Expr, ...], s: Scalar) -> None:
        at = out.data.flat(places)
        self.k.put(out.data, at, stored(s.value, out.data.dtype))
        if out.mask is not None:
            self.k.put(out.mask, at, Const(False, "bool") if s.missing is None else s.missing)
