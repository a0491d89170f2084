"""What lowering must know of a value before it places it: which binders it needs, whether it can fail, what it costs."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from ..dsl.types import BYTES_PER_VALUE, FLOATS, I64, INT_RANGE, INTS
from ..kernels.ops import OPERATORS
from ..kernels.scalar import SCALARS
from . import bounds
from .graph import Node, const, var, walk

# No record has more places than this: an extent, and what counts them, is bounded by memory and patience.
LONGEST = 2**47
I64_LOW, I64_HIGH = INT_RANGE["i64"]
Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)
HEAVY = 1000.0
EXPANDED = 10.0   # an operator that is one expression
# A side of a `select` dearer than this is worth a branch; below, both sides are computed and it vectorises.
WORTH_A_BRANCH = 40.0
# A tensor of no more bytes, and a reduction of no more elements, that can't end the record is rather computed at each turn
# of a loop than at the first that asks: then turns depend on nothing but their binders, and threads can share them.
SMALL = 1024
MANY, WORTH_CODE = 3, 400.0


def expands(n: Node) -> bool:
    """Is this a call of an operator that is one expression."""
    return n.op == "call" and OPERATORS[n["op"]].expand is not None


def lies(n: Node) -> bool:
    """Does a step of its own make this tensor, so that only reading it costs anything."""
    call = n.args[0] if n.op == "part" else n
    return call.op == "extern" or (call.op == "call" and OPERATORS[call["op"]].cpu is not None)


class Facts:
    """Properties of the nodes below `roots`, each found once. One object per frame that is lowered."""

    def __init__(self, roots: Iterable[Node]) -> None:
        self.extents: dict[int, Node] = {}   # of each binder
        self.uses: Counter[Node] = Counter()
        for n in walk(*roots):
            self.uses.update(n.args)
            if n.op in ("build", "reduce"):
                self.extents.update(zip(n["ids"], n.args[1:], strict=True))
        self.guarded: set[Node] = set()      # library calls that run only where they are asked for: told by lowering
        self._inside: dict[tuple[Node, Node | int], bool] = {}
        self._free: dict[Node, frozenset[int]] = {}
        self._ends: dict[Node, bool] = {}
        self._fails: dict[Node, bool] = {}
        self._cost: dict[Node, float] = {}
        self._interval: dict[Node, Interval] = {}
        self._needed: dict[Node, dict[Node, None]] = {}

    def free(self, n: Node) -> frozenset[int]:
        """Ids of binders that `n` uses and doesn't bind itself."""
        found = self._free.get(n)
        if found is None:
            if n.op == "var":
                found = frozenset((n["id"],))
            else:
                inner = [self.free(a) for a in n.args] + [self.free(d) for d in n.type.dims if isinstance(d, Node)]
                found = frozenset().union(*inner) - frozenset(n.get("ids", ()))
            self._free[n] = found
        return found

    def cost(self, n: Node) -> float:
        """Rough work in additions, of one evaluation; loops and calls count as heavy."""
        found = self._cost.get(n)
        if found is None:
            match n.op:
                case "const" | "var" | "field" | "param" | "epoch" | "count" | "extent":
                    found = 0.0
                case "call" if expands(n):
                    found = EXPANDED + sum(map(self.cost, n.args))
                case "reduce" | "build" | "call" | "extern":
                    found = HEAVY
                case "apply":
                    found = SCALARS[n["fn"]].cost + sum(map(self.cost, n.args))
                case "draw":
                    found = 60.0 + sum(map(self.cost, n.args))
                case "index" if lies(n.args[0]):
                    found = 2.0 + sum(map(self.cost, n.args[1:]))
                case "index":
                    found = 2.0 + sum(map(self.cost, n.args))
                case _:
                    found = 1.0 + sum(map(self.cost, n.args))
            self._cost[n] = found
        return found

    def rather_again(self, n: Node) -> bool:
        """Is `n` rather computed at each turn that asks than once for all turns of a loop."""
        sizes = [const(d, I64) if isinstance(d, int) else d for d in n.type.dims] or list(n.args[1:] if n.op == "reduce" else ())
        if self.ends(n) or any(s.op != "const" for s in sizes):
            return False
        return math.prod(int(s["value"]) for s in sizes) * BYTES_PER_VALUE.get(n.type.dtype, 8) <= SMALL

    def shared(self, n: Node) -> bool:
        """Is this a number of the whole record that so many branches may use that one evaluation before all of them is worth
        less than its code in each."""
        return n.type.is_scalar and not self.free(n) and self.uses[n] >= MANY and self.cost(n) <= WORTH_CODE

    def one_choice(self, n: Node) -> bool:
        """Is one condition, which no binder changes, what chooses every element of this build, and a side dear."""
        body = n.args[0]
        if body.op != "select" or self.free(body.args[0]) & set(n["ids"]) or self.fails(body.args[0]):
            return False
        return max(map(self.cost, body.args[1:])) > WORTH_A_BRANCH

    def needed(self, n: Node) -> dict[Node, None]:
        """Tensors of which evaluating `n` reads an element, whatever its conditions say."""
        found = self._needed.get(n)
        if found is None:
            match n.op:
                case "select":
                    condition, a, b = (self.needed(x) for x in n.args)
                    found = condition | {t: None for t in a if t in b}
                case "fill":
                    found = self.needed(n.args[0])
                case "call" if expands(n):
                    found = {t: None for arg in n.args for t in self.needed(arg)}
                case "build" | "reduce" | "call" | "extern":
                    found = {}
                case "apply" if n["fn"] in ("and", "or"):
                    found = self.needed(n.args[0])
                case _:
                    found = self._read(n.args[0]) if n.op == "index" else {}
                    for arg in n.args:
                        found = found | self.needed(arg)
            self._needed[n] = found
        return found

    def _read(self, t: Node) -> dict[Node, None]:
        """The tensors without which this one can't be read."""
        if t.op == "call":
            found = {t: None}
            for a in t.args:
                found = found | (self.needed(a) if a.type.is_scalar else self._read(a))
            return found
        if t.op != "build":
            return {}
        inner = self.needed(t.args[0])
        return {t: None} | {x: None for x in inner if not self.free(x) & set(t["ids"])}

    def ends(self, n: Node) -> bool:
        """May evaluating `n` end the record."""
        found = self._ends.get(n)
        if found is None:
            found = self._ends[n] = self.own_end(n) or any(map(self.ends, n.args))
        return found

    def fails(self, n: Node) -> bool:
        """May evaluating `n` where nobody asks for it end the record, or read outside memory (an index that is only
        proved under a condition)."""
        found = self._fails.get(n)
        if found is None:
            wild = n in self.guarded or (n.op == "index" and not n["guard"] and not self.inside(n))
            found = self._fails[n] = wild or self.own_end(n) or any(map(self.fails, n.args))
        return found

    def own_end(self, n: Node) -> bool:
        match n.op:
            case "apply":
                return self.overflows(n)
            case "cast":
                return self.changes(n)
            case "draw":
                return self.may_be_empty(n)
            case "call":
                return OPERATORS[n["op"]].digests and any(a.type.dtype in FLOATS for a in n.args)   # refused there
            case "reduce":
                return n["kind"] in ("sum", "prod") and n.type.dtype in INTS and not self.fits(n)
        return False

    def may_be_empty(self, n: Node) -> bool:
        """May the bounds of this draw hold nothing."""
        low, high = (*n.args, *n.args)[:2]
        if n["dist"] == "uniform":
            known = low.op == "const" and high.op == "const"
            return not (known and low["value"] <= high["value"] < math.inf and low["value"] > -math.inf)
        if n["dist"] == "permutation":
            return not bounds.at_most(0, low)
        return not bounds.less(low, high)

    def inside(self, n: Node) -> bool:
        """Is this `index` inside whatever the conditions around it say, if only its binders are in their ranges."""
        return all(map(self._within, n.args[1:], n.args[0].type.dims))

    def _within(self, i: Node, dim: Node | int) -> bool:
        if i.op == "var" and self.extents.get(i["id"]) is dim:
            return True
        found = self._inside.get((i, dim))
        if found is None:
            known = bounds.Facts()
            for id in sorted(self.free(i)):
                if id in self.extents:
                    known = known.ranged(var(id), self.extents[id])
            found = bounds.at_most(0, i, known) and bounds.less(i, dim, known)
            self._inside[i, dim] = found
        return found

    def overflows(self, n: Node) -> bool:
        """May this integer `apply` be past i64 (or undefined)."""
        scalar = SCALARS[n["fn"]]
        if scalar.overflow is None or n.type.dtype not in INTS:
            return False
        return not self.fits(n)

    def changes(self, n: Node) -> bool:
        """May this "exact" cast meet a number past i64 (it keeps the low bits of what doesn't fit less)."""
        source, target = n.args[0].type.dtype, n.type.dtype
        return source == "u64" and target == "i64" and n["mode"] == "exact" and self.interval(n.args[0])[1] > I64_HIGH

    def fits(self, n: Node) -> bool:
        low, high = self._exact(n)
        if low >= I64_LOW and high <= I64_HIGH:
            return True
        return n.op == "apply" and bounds.fits_i64(n)

    def interval(self, n: Node) -> Interval:
        """Least and greatest value of an integer node; an operation that would go past i64 ends the record."""
        found = self._interval.get(n)
        if found is None:
            low, high = self._exact(n)
            if n.type.dtype in INTS:
                own = INT_RANGE[n.type.dtype]
                low, high = max(low, own[0]), min(high, own[1])
            found = self._interval[n] = (low, high)
        return found

    def _exact(self, n: Node) -> Interval:
        if n.type.dtype in FLOATS:
            return EVERYTHING
        match n.op:
            case "const" if n.type.is_scalar and not isinstance(n["value"], str):
                return int(n["value"]), int(n["value"])
            case "var" | "extent" | "count":
                return 0, LONGEST
            case "draw" if n["dist"] == "integers":
                return self.interval(n.args[0])[0], self.interval(n.args[1])[1] - 1
            case "select":
                a, b = self.interval(n.args[1]), self.interval(n.args[2])
                return min(a[0], b[0]), max(a[1], b[1])
            case "fill":
                a, b = self.interval(n.args[0]), self.interval(n.args[1])
                return min(a[0], b[0]), max(a[1], b[1])
            case "cast" if n.args[0].type.dtype in INTS:
                low, high = self.interval(n.args[0])
                own = INT_RANGE.get(n.type.dtype, (0, 1))
                # what doesn't fit saturates or keeps its low bits
                return (low, high) if own[0] <= low and high <= own[1] else own
            case "build" | "index":
                return self._element(n.args[0])
            case "reduce":
                return self._reduced(n)
            case "apply" if n.args[0].type.dtype in INTS:
                return arithmetic(n["fn"], [self.interval(a) for a in n.args])
        return INT_RANGE.get(n.type.dtype, (0, 1))

    def _element(self, n: Node) -> Interval:
        if n.op == "build":
            return self.interval(n.args[0])
        if n.op == "draw" and n["dist"] == "permutation":
            return 0, LONGEST
        if n.op == "const" and n.type.dtype in INTS and n["value"]:
            return min(n["value"]), max(n["value"])
        if n.op == "call" and n.type.dtype in INTS:
            return bounds.interval(n)
        return INT_RANGE.get(n.type.dtype, EVERYTHING)

    def _reduced(self, n: Node) -> Interval:
        low, high = self.interval(n.args[0])
        most = 1
        for extent in n.args[1:]:
            most *= int(self.interval(extent)[1])
        most = min(most, LONGEST)
        match n["kind"]:
            case "sum":
                return min(low, 0) * most, max(high, 0) * most
            case "min" | "max" | "first":
                return low, high
            case "argmax" | "argmin":
                return 0, most
            case "any" | "all":
                return 0, 1
        return EVERYTHING


def arithmetic(fn: str, args: list[Interval]) -> Interval:
    a = args[0]
    b = args[1] if len(args) > 1 else (0, 0)
    match fn:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "neg":
            return -a[1], -a[0]
        case "mul":
            ends = [x * y for x in a for y in b]
            return min(ends), max(ends)
        case "abs":
            return 0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1]))
        case "floordiv" if b[0] > 0:
            return min(a[0] // b[0], a[0] // b[1]), max(a[1] // b[0], a[1] // b[1])
        case "floordiv":
            return -max(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1]))
        case "mod" if b[0] > 0:
            return 0, b[1] - 1
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "clamp":
            c = args[2]
            return min(max(a[0], b[0]), c[0]), min(max(a[1], b[1]), c[1])
        case "sign":
            return -1, 1
        case "relu":
            return max(a[0], 0), max(a[1], 0)
        case "floor" | "ceil" | "round" | "trunc":
            return a
        case "bit_and" if a[0] >= 0 and b[0] >= 0:
            return 0, min(a[1], b[1])
        case "shift_right" if b[0] >= 0:
            return min(a[0], 0), max(a[1], 0)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return 0, 1
    return EVERYTHING

