"""Values of one frame to loop IR: nodes go in, statements of one kernel and the arguments they need come out.

Here is what is computed once and used again, and which code writes it: `scalars`, `reductions`, `draws`, `elements`,
`operators`. Where it stands is `statements`' matter.
"""
from __future__ import annotations

from collections.abc import Callable

from ..dsl.types import OBJECTS, Type
from ..runtime.feedback import slot_of
from .draws import scalar_draw, tensor_draw
from .elements import write_build
from .graph import Node
from .held import Scalar, Tensor, constant, loaded, lying
from .loops import Alloc, Buffer, Const, Expr, Kernel, Let, Var
from .operators import call, expanded, part
from .reductions import reduction
from .scalars import apply, cast, fill, index, select
from .split import split
from .statements import Frame, Late, Statements
from .totality import WORTH_A_BRANCH, Facts, expands

# A value cheaper than this is written out again where it is used again.
WORTH_KEEPING = 4.0


class Lowering(Statements):
    """The kernel `name` under construction.

    `slot(node)` names the slot of a tensor or scalar that lies in memory already (a field, a call's result), or
    None. `constant(node)` gives the slot of a constant tensor. `site(code, title, node)` numbers an error site.
    """

    def __init__(self, name: str, facts: Facts, slot: Callable[[Node], str | None],
                 constant: Callable[[Node], str], site: Callable[[str, str, Node], int], draw: Callable[[str], int]):
        super().__init__(name, facts)
        self.slot, self.constant, self.site, self.draw_number = slot, constant, site, draw
        self.met: dict[Node, None] = {}                     # every node that the kernel computes
        self.stored: dict[Node, None] = {}                  # … those tensors that it keeps in memory for itself

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

    def compute(self, n: Node) -> Scalar:
        if expands(n) and self.slot(n) is None:
            return Scalar(expanded(self, n))
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
                return Scalar(apply(self, n))
            case "cast":
                return cast(self, n)
            case "select":
                return select(self, n)
            case "index":
                return index(self, n)
            case "fill":
                return fill(self, n)
            case "missing":
                gone = self.scalar(n.args[0]).missing
                return Scalar(Const(False, "bool") if gone is None else gone)
            case "draw":
                return Scalar(scalar_draw(self, n))
            case "reduce":
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

    def lazy(self, n: Node) -> bool:
        """Must `n` not be computed where it isn't asked for, or is it too dear."""
        return self.facts.fails(n) or self.facts.cost(n) > WORTH_A_BRANCH

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
            write_build(self, n, out, before)
        elif n.op in ("call", "draw") and not before and self.slot(n) is None:
            self.write_whole(n, out)
        elif n.op == "part" and not before and self.slot(n) is None:
            self.copy(part(self, n), out, before)
        else:
            self.copy(self.tensor(n), out, before)

    def write_whole(self, n: Node, out: Tensor) -> None:
        if n.op == "draw":
            return tensor_draw(self, n, out.data)
        call(self, n, out.data)

    def copy(self, source: Tensor, out: Tensor, before: tuple[Expr, ...]) -> None:
        def nest(dims: tuple[Expr, ...], places: tuple[Expr, ...]) -> None:
            if not dims:
                return self.put(out, (*before, *places), self.element(source, places))
            with self.k.loop(dims[0], "i") as v:
                nest(dims[1:], (*places, v))

        nest(source.data.dims, ())

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
