"""Fusion: what is built only to be indexed is computed where it is indexed, so no memory lies between.

A build stays in memory where it is wanted whole, where several places want elements that aren't cheap, where a
loop around would compute elements again and again, where an element that nobody asks for may end the record, and
where one condition chooses all elements (lowering then asks it once).
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..dsl.problems import Span
from ..dsl.types import BOOL
from .graph import Moved, Node, inherit, node, number, rewrite, substitute, var, walk
from .totality import EXPANDED, HEAVY, Facts, expands

# An element with less work than this is computed again rather than stored and loaded.
CHEAP = 12.0
ROUNDS = 40
Spans = dict[Node, tuple[Span, ...]]
MOST_VISITS = 50_000


@dataclass
class Uses:
    """How one build is used. `again`: some loop would compute the same element more than once."""

    indexed: set[Node] = field(default_factory=set)
    whole: bool = False
    again: bool = False


def fuse(emit: Node, spans: Spans | None = None) -> Node:
    """Index a build: compute its element in place.

    Before:

        x = field(name="x") : f32[4]
        i = var(id=1) : i64
        a = index(x, i, guard=false) : f32
        twice = mul(a, 2.0:f32) : f32
        all = build(twice, 4, ids=(1,)) : f32[4]
        j = var(id=2) : i64
        b = index(all, j, guard=false) : f32
        more = add(b, 1.0:f32) : f32
        build(more, 4, ids=(2,)) : f32[4]

    After:

        x = field(name="x") : f32[4]
        j = var(id=1) : i64
        a = index(x, j, guard=false) : f32
        twice = mul(a, 2.0:f32) : f32
        more = add(twice, 1.0:f32) : f32
        build(more, 4, ids=(1,)) : f32[4]
    """
    moved = None if spans is None else inherit(spans)
    for _ in range(ROUNDS):
        emit = rewrite(emit, copied, moved)
        chosen = inlinable(emit)
        if not chosen:
            return emit
        emit = rewrite(emit, partial(inlined, chosen=chosen, moved=moved), moved)
    return emit


# --- rewriting ----------------------------------------------------------------------------------


def copied(n: Node) -> Node | None:
    """`[t[i, j] for i, j]` over all of t is t."""
    if n.op != "build" or n.args[0].op != "index" or n.args[0]["guard"]:
        return None
    tensor, *places = n.args[0].args
    if tensor.op == "var" or tuple(places) != tuple(map(var, n["ids"])) or tensor.type != n.type:
        return None
    free = Facts(()).free(tensor)
    return None if free & set(n["ids"]) else tensor


def inlined(n: Node, chosen: frozenset[Node], moved: Moved | None = None) -> Node | None:
    match n.op:
        case "index" if n.args[0] in chosen and not n["guard"]:
            return element(n.args[0], n.args[1:], moved)
        case "fill" if reads_outside(n.args[0], chosen):
            build, *places = n.args[0].args
            value, default = element(build, tuple(places), moved), n.args[1]
            if value.type.missing:
                value = node("fill", value, default, type=n.type)
            return node("select", within(build, places), value, default, type=n.type)
        case "missing" if reads_outside(n.args[0], chosen):
            build, *places = n.args[0].args
            value, inside = element(build, tuple(places), moved), within(build, places)
            gone = node("missing", value, type=BOOL) if value.type.missing else node("const", type=BOOL, value=False)
            return node("select", inside, gone, node("const", type=BOOL, value=True), type=BOOL)
    return None


def reads_outside(n: Node, chosen: frozenset[Node]) -> bool:
    return n.op == "index" and n["guard"] and n.args[0] in chosen


def element(build: Node, places: tuple[Node, ...], moved: Moved | None = None) -> Node:
    """The build's body at these places."""
    ids = build["ids"]
    body = substitute(build.args[0], dict(zip(map(var, ids), places, strict=False)), moved)
    rest = places[len(ids) :]
    return node("index", body, *rest, type=body.type.element, guard=False) if rest else body


def within(build: Node, places: list[Node]) -> Node:
    """Is every place inside."""
    result: Node | None = None
    for place, dim in zip(places, build.type.dims, strict=True):
        end = dim if isinstance(dim, Node) else number(dim)
        for condition in (
            node("apply", place, number(0), type=BOOL, fn="ge"), node("apply", place, end, type=BOOL, fn="lt")
        ):
            result = condition if result is None else node("apply", result, condition, type=BOOL, fn="and")
    assert result is not None
    return result


# --- choosing -----------------------------------------------------------------------------------


def inlinable(emit: Node) -> frozenset[Node]:
    """Builds whose every index is to be replaced now: inner ones first, so that each element is looked at once."""
    facts = Facts((emit,))
    work = Work()
    read = surely_read(v for n in walk(emit) if n.op == "map" for v in n.args[1:])
    wanted = [b for b, u in uses(emit, facts).items() if pays(b, u, facts, work, b in read)]
    chosen: set[Node] = set(wanted)
    for b in wanted:
        if any(n.op == "index" and n.args[0] in chosen for n in walk(b.args[0]) if n is not b):
            chosen.discard(b)
    return frozenset(chosen)


def pays(build: Node, u: Uses, facts: Facts, work: Work, read: bool = False) -> bool:
    """Is computing elements where they are indexed right, and cheaper than memory."""
    return bool(u.indexed) and stored_for(build, u, facts, work, read) is None


def surely_read(values: Iterable[Node]) -> set[Node]:
    """Tensors of which some element is read whenever these values of a frame are computed."""
    found: set[Node] = set()
    for value in values:
        found |= {n.args[0] for n in sure(value) if n.op == "index"}
    return found


def sure(value: Node) -> set[Node]:
    """Nodes that are evaluated (a tensor: at one place at least) whenever `value` is."""
    found: set[Node] = set()
    stack = [value]
    while stack:
        n = stack.pop()
        if n in found:
            continue
        found.add(n)
        match n.op:
            case "select" | "fill":
                stack.append(n.args[0])
            case "apply" if n["fn"] in ("and", "or"):
                stack.append(n.args[0])
            case "build" | "reduce":
                runs = all(e.op == "const" and e["value"] > 0 for e in n.args[1:])
                stack.extend(n.args if runs else n.args[1:])
            case _:
                stack.extend(n.args)
    return found


def ends_apart(build: Node, facts: Facts, read: bool) -> bool:
    """May an element end the record where computing only some elements, or none, would not.

    What is the same for all elements, and evaluated for each, is evaluated as often as any is asked for.
    """
    if not facts.ends(build.args[0]):
        return False
    if not read:
        return True
    ids, known = set(build["ids"]), sure(build.args[0])
    seen: set[Node] = set()
    stack = [build.args[0]]
    while stack:
        n = stack.pop()
        if n in seen or not facts.ends(n) or (n in known and not facts.free(n) & ids):
            continue
        if facts.own_end(n):
            return True
        seen.add(n)
        stack.extend(n.args)
    return False


def stored_for(build: Node, u: Uses, facts: Facts, work: Work, read: bool = False) -> str | None:
    """Why a build lies in memory instead of being computed where it is read; None where it is computed there.

    `read`: some element of it is read in any case.
    """
    if not u.indexed:
        return "all of it is asked for at once"
    if ends_apart(build, facts, read):
        return "an element may end the record, also one that nobody reads"
    if facts.one_choice(build):
        return "one condition chooses all elements, and is asked once"
    if any(n["guard"] and not build.args[0].type.is_scalar for n in u.indexed):
        return "it is read outside its edge, and its elements are tensors"
    if work.of(build.args[0]) <= CHEAP:
        return None
    if u.whole:
        return "it is read by element and asked for as a whole, too"
    if u.again:
        return "a loop would compute elements again and again"
    return None if len(u.indexed) == 1 else "several places read it, and its elements aren't cheap"


def explained(roots: Sequence[Node]) -> dict[Node, str]:
    """Every build that lies in memory although it is read by element, and why."""
    facts, work = Facts(roots), Work()
    found: dict[Node, str] = {}
    read = surely_read(roots)
    for root in roots:
        for build, u in uses(root, facts).items():
            why = stored_for(build, u, facts, work, build in read) if u.indexed else None
            if why is not None:
                found[build] = why
    return found


class Work:
    """Rough work of one evaluation of a scalar whose tensors lie in memory."""

    def __init__(self) -> None:
        self.known: dict[Node, float] = {}

    def of(self, n: Node) -> float:
        found = self.known.get(n)
        if found is None:
            match n.op:
                case "index":
                    found = 2.0 + sum(self.of(p) for p in n.args[1:])
                case "build":
                    found = self.of(n.args[0])   # the element of a build of tensors
                case "const" | "var" | "field" | "param" | "epoch" | "count" | "extent" | "part":
                    found = 0.0
                case "call" if expands(n):
                    found = EXPANDED + sum(map(self.of, n.args))
                case "reduce" | "call" | "extern":
                    found = HEAVY
                case "apply":
                    from ..kernels.scalar import SCALARS

                    found = SCALARS[n["fn"]].cost + sum(map(self.of, n.args))
                case "draw":
                    found = 60.0
                case _:
                    found = 1.0 + sum(map(self.of, n.args))
            self.known[n] = found
        return found


def uses(emit: Node, facts: Facts) -> dict[Node, Uses]:
    """Uses of every build that is indexed somewhere, in the order they are met."""
    found: dict[Node, Uses] = defaultdict(Uses)
    seen: set[tuple[Node, tuple[int, ...]]] = set()
    stack: list[tuple[Node, tuple[int, ...]]] = [(emit, ())]
    while stack:
        n, around = stack.pop()
        if (n, around) in seen:
            continue
        seen.add((n, around))
        if len(seen) > MOST_VISITS:
            for u in found.values():
                u.again = True
            return found
        for child, inside, how in below(n, around, facts):
            stack.append((child, inside))
            if child.op == "build":
                u = found[child]
                if how == "index":
                    u.indexed.add(n)
                    u.again = u.again or repeated(n, around, facts)
                else:
                    u.whole = True
        if n.op not in ("fill", "missing"):
            for a in n.args:   # a gap in a build that isn't filled at once needs the mask in memory
                if a.op == "index" and a["guard"] and a.args[0].op == "build":
                    found[a.args[0]].whole = found[a.args[0]].again = True
    return found


def below(n: Node, around: tuple[int, ...], facts: Facts) -> Iterator[tuple[Node, tuple[int, ...], str]]:
    """Args of `n`, the binders around each (outermost first), and how `n` uses it."""
    for k, a in enumerate(n.args):
        inside = around
        if n.op in ("build", "reduce") and k == 0:
            # Memory is filled once for each value of the binders it depends on.
            outer = tuple(i for i in around if i in facts.free(n)) if n.op == "build" else around
            inside = outer + tuple(n["ids"])
        direct = n.op == "index" and k == 0
        nested = n.op == "build" and k == 0   # the rows of a build of builds are written in place
        yield a, inside, "index" if direct else "row" if nested else "whole"


def repeated(index: Node, around: tuple[int, ...], facts: Facts) -> bool:
    """Would a loop that changes nothing about this element compute it again, from outside of one that does; or is the
    place read from data, as in a table, where it may recur at any time."""
    if any(n.op in ("index", "reduce") for place in index.args[1:] for n in walk(place)):
        return True
    needed = facts.free(index)
    innermost = max((k for k, id in enumerate(around) if id in needed), default=-1)
    return any(id not in needed for id in around[:innermost])
