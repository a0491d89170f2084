"""Values of one frame to loop IR: nodes go in, statements of one kernel and the arguments they need come out.

Statements are put where they run least often: a value moves out of every loop whose binder it doesn't use, but a
value that can fail (or costs much) never leaves the `If` it stands under. Where that is inside a loop that doesn't change
it, it is computed at the first turn that asks (`late`).
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..dsl.types import FLOATS, OBJECTS, Type
from ..kernels import ops
from ..kernels.random import signed
from ..kernels.scalar import SCALARS
from ..kernels.table import digest
from ..runtime.feedback import slot_of
from .fuse import copied
from .graph import Node, node, var, walk
from .held import Scalar, Tensor, chosen, constant, convert, held, loaded, lying, meeting, recast, rounded, stored, typed, zero
from .loops import (
    Alloc,
    Argument,
    Buffer,
    Builder,
    Cast,
    Const,
    Expr,
    If,
    Kernel,
    Let,
    Load,
    Select,
    Stmt,
    Var,
)
from .routines import applied
from .split import split
from .totality import WORTH_A_BRANCH, Facts, expands

# A value cheaper than this is written out again where it is used again.
WORTH_KEEPING = 4.0


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


class Lowering:
    """The kernel `name` under construction.

    `slot(node)` names the slot of a tensor or scalar that lies in memory already (a field, a call's result), or
    None. `constant(node)` gives the slot of a constant tensor. `site(code, title, node)` numbers an error site.
    """

    def __init__(self, name: str, facts: Facts, slot: Callable[[Node], str | None],
                 constant: Callable[[Node], str], site: Callable[[str, str, Node], int], draw: Callable[[str], int]):
        self.name, self.facts = name, facts
        self.slot, self.constant, self.site, self.draw_number = slot, constant, site, draw
        self.k = Builder()
        self.frames = [Frame(self.k.body)]
        self.arguments: list[Argument] = []
        self.places: dict[tuple[str, str, int], str] = {}   # (kind, slot, axis) → name of the argument
        self.met: dict[Node, None] = {}                     # every node that the kernel computes
        self.stored: dict[Node, None] = {}                  # … those tensors that it keeps in memory for itself

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

    # --- what is computed at the first turn that asks ---

    def late(self, n: Node, home: Frame, knower: Frame, guard: Expr | None) -> Scalar | Tensor | None:
        """`n` computed in `home`, where that didn't happen before; None where it is to be computed at each turn."""
        late = self.found_late(n)
        if late is None:
            outer = self.outer(n, home)
            if outer is None:
                return None
            with self.inside(outer):
                value = self.scratch(n.type, [self.dim(d) for d in n.type.dims]) if n.type.dims else Scalar(*self.locals(n.type))
                late = outer.late[n] = Late(value, self.k.let(Const(False, "bool"), "made"))
        asked = ~late.made if guard is None else guard & ~late.made
        with self.inside(home), self.branch(asked):
            self.frames[-1].makes = True
            self.make(n, late)
        for m in (n, *late.needs):
            self.learn(knower, m)
        return late.value

    def make(self, n: Node, late: Late) -> None:
        """Compute it, in a branch of its own. What that always needs is known by all who know this value."""
        match late.value:
            case Tensor() as tensor:
                self.write(n, tensor, ())
            case Scalar(value=Var() as value, missing=gone):
                assert gone is None or isinstance(gone, Var)
                self.assign(value, gone, self.compute(n))
        for m in late.needs:
            self.tensor(m) if m.type.dims else self.scalar(m)
        around = self.frames[: 1 + next(k for k, f in enumerate(self.frames) if f.late.get(n) is late)]
        here = self.frames[-1]
        late.needs |= {m: None for m in (*here.tensors, *here.scalars) if any(m in f.late for f in around)}
        self.k.set(late.made, Const(True, "bool"))

    def learn(self, knower: Frame, n: Node) -> None:
        late = self.found_late(n)
        assert late is not None
        if isinstance(late.value, Tensor):
            knower.tensors[n] = late.value
        else:
            knower.scalars[n] = late.value

    def found_late(self, n: Node) -> Late | None:
        return next((f.late[n] for f in reversed(self.frames) if n in f.late), None)

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

    # --- scalars ---

    def expr(self, n: Node) -> Expr:
        """A scalar that can't be missing."""
        return self.scalar(n).value

    def scalar(self, n: Node) -> Scalar:
        if n.op == "const":
            if n.type.dtype in OBJECTS:
                return Scalar(self.cell(self.constant(n), n.type.dtype))
            return Scalar(constant(n["value"], n.type.dtype))
        for frame in reversed(self.frames):
            if n in frame.scalars:
                # The second use: now a local pays, above all where the first was outside this loop.
                if frame is not self.frames[-1] or self.facts.cost(n) > WORTH_KEEPING:
                    frame.scalars[n] = self.kept(frame, frame.scalars[n])
                return frame.scalars[n]
        self.met[n] = None
        home, knower, guard = self.home(n)
        late = self.late(n, home, knower, guard)
        if isinstance(late, Scalar):
            return late
        with self.inside(home):
            made = self.compute(n) if guard is None else self.either(guard, n, lambda: self.compute(n))
        if home is not self.frames[-1]:
            made = self.kept(home, made)
        knower.scalars[n] = made
        return made

    def kept(self, frame: Frame, s: Scalar) -> Scalar:
        """The scalar as locals of the frame, unless it is as cheap as a local."""
        with self.inside(frame):
            value = s.value if isinstance(s.value, (Var, Const)) else self.k.let(s.value, "v")
            missing = s.missing
            if missing is not None and not isinstance(missing, (Var, Const)):
                missing = self.k.let(missing, "gone")
        return Scalar(value, missing)

    def compute(self, n: Node) -> Scalar:
        if expands(n) and self.slot(n) is None:
            return Scalar(self.expanded(n))
        if n.op in ("field", "extern", "call", "part") or (n.op != "extent" and self.slot(n) is not None):
            return self.lying(n)
        match n.op:
            case "count":
                return Scalar(self.cell("@count", "i64"))
            case "epoch":
                return Scalar(self.cell("@epoch", "i64"))
            case "weight":
                return Scalar(self.cell(slot_of(n["name"], n["default"]), "f32"))
            case "param":
                return Scalar(self.cell(f"param.{n['name']}", n.type.dtype))
            case "extent":
                return Scalar(self.extent(n))
            case "apply":
                return Scalar(self.apply(n))
            case "cast":
                return self.cast(n)
            case "select":
                return self.select(n)
            case "index":
                return self.index(n)
            case "fill":
                return self.fill(n)
            case "missing":
                gone = self.scalar(n.args[0]).missing
                return Scalar(Const(False, "bool") if gone is None else gone)
            case "draw":
                from .draws import scalar_draw

                return Scalar(scalar_draw(self, n))
            case "reduce":
                from .reductions import reduction

                return reduction(self, n)
        raise TypeError(f"no scalar code for {n.op}")

    def lying(self, n: Node) -> Scalar:
        """A scalar that some memory holds."""
        t = self.tensor(n)
        at = Const(0, "i64")
        return Scalar(loaded(t.data, at), None if t.mask is None else loaded(t.mask, at))

    def extent(self, n: Node) -> Expr:
        """A size that only the slot knows."""
        slot = self.slot(n)
        if slot is None:
            raise TypeError("a size whose tensor isn't in memory")
        return self.size(slot, n["axis"])

    def apply(self, n: Node) -> Expr:
        if n["fn"] in ("and", "or") and self.lazy(n.args[1]):
            return self.both(n)
        args = [self.expr(a) for a in n.args]
        scalar = SCALARS[n["fn"]]
        if n.args[0].type.dtype in OBJECTS and n["fn"] in ("eq", "ne"):
            self.argument("data", "@alike", "i64")   # equal texts must have equal numbers here
        elif n.args[0].type.dtype in OBJECTS:
            args = [self.rank(a) for a in args]
        dtype = meeting(scalar.operands, args)
        args = [a if a.dtype == dtype else recast(a, dtype) for a in args]
        if scalar.overflow is not None and dtype == "i64" and self.facts.overflows(n):
            args = [self.local(a) for a in args]
            with self.branch(scalar.overflow(self.k, *args)):
                self.k.fail(self.site("E0802", past_i64(n["fn"]), n))
        return rounded(typed(applied(self.k, n["fn"], args), n.type.dtype), n.type.dtype)

    def rank(self, text: Expr) -> Expr:
        """The place of a text among all that the kernel may meet, in order."""
        return Load(self.argument("data", "@order", "i64"), text, "i64")

    def lazy(self, n: Node) -> bool:
        """Must `n` not be computed where it isn't asked for, or is it too dear."""
        return self.facts.fails(n) or self.facts.cost(n) > WORTH_A_BRANCH

    def both(self, n: Node) -> Expr:
        """`and`, `or` whose second side is only computed where the first doesn't decide."""
        first = self.local(self.expr(n.args[0]))
        result = self.k.let(first, "both")
        with self.branch(first if n["fn"] == "and" else ~first):
            self.k.set(result, self.expr(n.args[1]))
        return result

    def local(self, e: Expr) -> Expr:
        return e if isinstance(e, (Var, Const)) else self.k.let(e, "a")

    def cast(self, n: Node) -> Scalar:
        source = self.scalar(n.args[0])
        value, target = source.value, n.type.dtype
        if target == n.args[0].type.dtype or target in OBJECTS:
            return source
        if n.args[0].type.dtype == "u64" and target != "u64":
            value = self.local(value)
            if self.facts.changes(n):   # held as i64, what is past i64 looks negative
                with self.branch(value < 0):
                    self.k.fail(self.site("E0802", "integer past i64", n))
            value = Cast(value, "u64")
        return Scalar(convert(value, target, n["mode"]), source.missing)

    def select(self, n: Node) -> Scalar:
        condition, a, b = n.args
        c = self.expr(condition)
        if isinstance(c, Const):
            return self.scalar(a if c.value else b)
        for t in self.facts.needed(a):
            if t in self.facts.needed(b):   # made once, not in each side
                self.tensor(t)
        if not (self.lazy(a) or self.lazy(b)):
            x, y = self.scalar(a), self.scalar(b)
            return Scalar(Select(c, x.value, y.value), chosen(c, x.missing, y.missing))
        return self.either(c, n, lambda: self.scalar(a), lambda: self.scalar(b))

    def either(self, c: Expr, n: Node, then: Callable[[], Scalar], other: Callable[[], Scalar] | None = None) -> Scalar:
        """One of two scalars (or nothing in particular), only that one computed. `n` has their type."""
        value, gone = self.locals(n.type)
        with self.branch(c):
            self.assign(value, gone, then())
        if other is not None:
            with self.other_branch():
                self.assign(value, gone, other())
        return Scalar(value, gone)

    def locals(self, type: Type) -> tuple[Var, Var | None]:
        """Locals for a scalar, to be assigned."""
        value = self.k.let(zero(held(type.dtype)), "v")
        return value, self.k.let(Const(True, "bool"), "gone") if type.missing else None

    def assign(self, value: Var, gone: Var | None, s: Scalar) -> None:
        self.k.set(value, s.value)
        if gone is not None:
            self.k.set(gone, Const(False, "bool") if s.missing is None else s.missing)

    def index(self, n: Node) -> Scalar:
        tensor, *indexes = n.args
        places = [self.expr(i) for i in indexes]
        if not n["guard"]:
            return self.element(self.tensor(tensor), places)
        t = self.tensor(tensor)
        inside: Expr | None = None
        for i, (at, dim) in enumerate(zip(places, t.data.dims, strict=True)):
            places[i] = at = self.local(at)
            both = (at >= 0) & (at < dim)
            inside = both if inside is None else inside & both
        assert inside is not None
        value = self.k.let(zero(held(n.type.dtype)), "v")
        gone = self.k.let(Const(True, "bool"), "gone")
        with self.branch(inside):
            self.assign(value, gone, self.element(t, places))
        return Scalar(value, gone)

    def element(self, t: Tensor, places: Sequence[Expr]) -> Scalar:
        at = t.data.flat(places)
        return Scalar(loaded(t.data, at), None if t.mask is None else loaded(t.mask, at))

    def fill(self, n: Node) -> Scalar:
        x, default = n.args
        s = self.scalar(x)
        if s.missing is None:
            return s
        missing, value = s.missing, s.value
        if self.lazy(default):
            missing, value = self.local(missing), self.local(value)
            return self.either(missing, n, lambda: self.scalar(default), lambda: Scalar(value))
        d = self.scalar(default)
        return Scalar(Select(missing, d.value, value), d.missing)

    # --- tensors ---

    def tensor(self, n: Node) -> Tensor:
        """`n` in memory: where it lies already, or in scratch of the outermost frame that can hold it."""
        known = self.known(n)
        if known is not None:
            return known
        slot = self.constant(n) if n.op == "const" else self.slot(n)
        if slot is not None:
            made = self.frames[0].tensors[n] = self.memory(slot, n.type)
            return made
        self.stored[n] = None
        home, knower, guard = self.home(n)
        late = self.late(n, home, knower, guard)
        if isinstance(late, Tensor):
            return late
        with self.inside(home):
            made = self.scratch(n.type, [self.dim(d) for d in n.type.dims])
            if guard is None:
                self.write(n, made, ())
            else:
                with self.branch(guard):
                    self.write(n, made, ())
        knower.tensors[n] = made
        return made

    def known(self, n: Node) -> Tensor | None:
        return next((frame.tensors[n] for frame in reversed(self.frames) if n in frame.tensors), None)

    def scratch(self, type: Type, dims: list[Expr]) -> Tensor:
        data = self.k.scratch(lying(type.dtype), *dims, hint="whole")
        return Tensor(data, self.k.scratch("bool", *dims, hint="whole_missing") if type.missing else None)

    def dim(self, d: Node | int) -> Expr:
        return Const(d, "i64") if isinstance(d, int) else self.expr(d)

    def write(self, n: Node, out: Tensor, before: tuple[Expr, ...]) -> None:
        """Fill the part of `out` at indexes `before` with the tensor (or scalar) `n`."""
        self.met[n] = None
        known = self.known(n)
        if known is not None:
            self.copy(known, out, before)
        elif n.type.is_scalar and (n.op not in ("call", "part") or expands(n)):
            self.put(out, before, self.scalar(n))
        elif n.op == "build":
            self.write_build(n, out, before)
        elif n.op in ("call", "draw") and not before and self.slot(n) is None:
            self.write_whole(n, out)
        elif n.op == "part" and not before and self.slot(n) is None:
            self.copy(self.part(n), out, before)
        else:
            self.copy(self.tensor(n), out, before)

    def write_build(self, n: Node, out: Tensor, before: tuple[Expr, ...]) -> None:
        body, *extents = n.args
        if self.facts.one_choice(n):
            return self.write_chosen(n, out, before)
        elements = listed(n)
        if elements is not None:
            for at, element in enumerate(elements):
                self.write(element, out, (*before, Const(at, "i64")))
            return

        def nest(rest: list[tuple[int, Node]], places: tuple[Expr, ...]) -> None:
            if not rest:
                return self.write(body, out, places)
            (id, extent), *inner = rest
            with self.loop(self.expr(extent), id, BINDERS[min(len(places), len(BINDERS) - 1)]) as v:
                nest(inner, (*places, v))

        nest(list(zip(n["ids"], extents, strict=True)), before)

    def write_chosen(self, n: Node, out: Tensor, before: tuple[Expr, ...]) -> None:
        """A build whose elements are all chosen by one condition: it is asked once, and only one side has loops."""
        condition, *sides = n.args[0].args
        c = self.expr(condition)
        then, other = (side_of(n, s) for s in sides)
        if isinstance(c, Const):
            return self.write(then if c.value else other, out, before)
        first, second = (self.facts.needed(s) for s in sides)
        shared = [t for t in first if t in second and not self.facts.free(t) & set(n["ids"])]   # made once, not in each side
        runs: Expr | None = None
        for extent in n.args[1:] if any(map(self.facts.fails, shared)) else ():   # of an empty build nothing may fail
            e = self.expr(extent)
            if not (isinstance(e, Const) and e.value > 0):
                runs = e > 0 if runs is None else runs & (e > 0)
        with nullcontext() if runs is None else self.branch(self.local(runs)):
            for t in shared:
                self.tensor(t)
            with self.branch(self.local(c)):
                self.write(then, out, before)
            with self.other_branch():
                self.write(other, out, before)

    def write_whole(self, n: Node, out: Tensor) -> None:
        if n.op == "draw":
            from .draws import tensor_draw

            return tensor_draw(self, n, out.data)
        self.call(n, out.data)

    def call(self, n: Node, out: Any) -> None:
        """An operator's own loops, writing into `out` (a tuple for several results)."""
        operator = ops.OPERATORS[n["op"]]
        assert operator.lower is not None
        operator.lower(self.k, out, *map(self.operand, n.args))

    def expanded(self, n: Node) -> Expr:
        """The number that an operator gives as an expression."""
        operator = ops.OPERATORS[n["op"]]
        assert operator.expand is not None
        made: Expr = operator.expand(self.k, *[self.digest(a, n) if operator.digests else self.operand(a) for a in n.args])
        return made

    def digest(self, a: Node, call: Node) -> Expr:
        """64 bits that stand for a text or an integer."""
        if a.op == "const" and a.type.dtype in OBJECTS:
            return Const(signed(digest(a["value"])), "i64")
        if a.type.dtype in FLOATS:
            self.k.fail(self.site("E0801", f"{call['op']}: it takes an integer or a text", call))
            return Const(0, "i64")
        value = self.local(self.expr(a))
        return Load(self.argument("data", "@digests", "i64"), value, "i64") if a.type.dtype in OBJECTS else value

    def operand(self, a: Node) -> Any:
        if a.op == "const" and a.type.dtype in OBJECTS:
            return a["value"]
        if a.type.is_scalar:
            return self.local(self.expr(a))
        return self.tensor(a).data

    def part(self, n: Node) -> Tensor:
        """One result of an operator with several; the first one asked for computes all."""
        call, name = n.args[0], n["name"]
        for frame in reversed(self.frames):
            for other in frame.tensors:
                if other.op == "part" and other.args[0] is call and other["name"] == name:
                    return frame.tensors[other]
        home, _, _ = self.home(call)
        with self.inside(home):
            buffers = []
            for part, type in call.type.parts:
                t = self.scratch(type, [self.dim(d) for d in type.dims])
                buffers.append(t.data)
                home.tensors[_part(call, part, type)] = t
            self.call(call, tuple(buffers))
        return home.tensors[_part(call, name, n.type)]

    def copy(self, source: Tensor, out: Tensor, before: tuple[Expr, ...]) -> None:
        def nest(dims: tuple[Expr, ...], places: tuple[Expr, ...]) -> None:
            if not dims:
                return self.put(out, (*before, *places), self.element(source, places))
            with self.k.loop(dims[0], "i") as v:
                nest(dims[1:], (*places, v))

        nest(source.data.dims, ())

    def put(self, out: Tensor, places: tuple[Expr, ...], s: Scalar) -> None:
        at = out.data.flat(places)
        self.k.put(out.data, at, stored(s.value, out.data.dtype))
        if out.mask is not None:
            self.k.put(out.mask, at, Const(False, "bool") if s.missing is None else s.missing)

    # --- results ---

    def output(self, n: Node, slot: str, type: Type) -> None:
        """Fill a slot with `n`. A size not known beforehand is written to the argument table, with the address."""
        if all(isinstance(d, int) for d in type.dims):
            return self.write(n, self.memory(slot, type), ())
        dims: list[Expr] = []
        for axis, d in enumerate(type.dims):
            name = self.argument("size", slot, "i64", axis, writes=True)
            self.k.body.append(Let(name, self.dim(d)))
            dims.append(Const(d, "i64") if isinstance(d, int) else Var(name, "i64"))
        data = self.escaping("data", slot, lying(type.dtype), dims)
        mask = self.escaping("mask", slot, "bool", dims) if type.missing else None
        self.write(n, Tensor(data, mask), ())
        self.frames[-1].tensors[n] = Tensor(data, mask)

    def escaping(self, kind: str, slot: str, dtype: str, dims: list[Expr]) -> Buffer:
        name = self.argument(kind, slot, dtype, writes=True)
        self.k.body.append(Alloc(name, dtype, self.k.places(dims), escapes=True))
        return Buffer(name, dtype, tuple(dims))

    def kernel(self) -> Kernel:
        return Kernel(self.name, tuple(self.arguments), split(self.frames[0].body))


BINDERS = ("i", "j", "k", "l")
LONGEST_LIST = 16   # whose elements are written one by one


def listed(build: Node) -> list[Node] | None:
    """The elements of a build that was written as a short list, `[a, b, c]`: none of them needs the binder."""
    body, extent, *more = build.args
    if more or extent.op != "const" or not 0 < extent["value"] <= LONGEST_LIST:
        return None
    elements = []
    for at in range(extent["value"]):
        element = body
        while element.op == "select" and (chosen := _is_place(element.args[0], build["ids"][0], at)) is not None:
            element = element.args[1 if chosen else 2]
        elements.append(element)
    bound = var(build["ids"][0])
    return elements if elements[0] is not body and not any(bound in walk(e) for e in elements) else None


def _is_place(condition: Node, id: int, at: int) -> bool | None:
    """Does `condition` say that the binder is `at`; None where it says something else."""
    if condition.op != "apply" or condition["fn"] != "eq":
        return None
    binder, place = condition.args
    return bool(place["value"] == at) if binder is var(id) and place.op == "const" else None


def side_of(build: Node, side: Node) -> Node:
    """`build` with only this side of its choice; where that is all of a tensor, the tensor."""
    made = node("build", side, *build.args[1:], type=build.type, ids=build["ids"])
    return copied(made) or made


def _part(call: Node, name: str, type: Type) -> Node:
    return node("part", call, type=type, name=name)


def past_i64(fn: str) -> str:
    return f"the result of `{fn}` is past i64" if fn not in ("floordiv", "mod") else "division by zero or past i64"
