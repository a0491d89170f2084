"""Values of one frame to steps: output nodes and conditions go in; kernels, library calls and slots come out.

Conditions stand in program order, each as early as the library calls it needs allow, and what comes after one is
only computed where it holds. One kernel takes everything between two library calls.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ..dsl.problems import Span
from ..dsl.types import BOOL, FLOATS, OBJECTS, Type
from ..kernels import ops
from ..runtime import plan
from ..runtime.feedback import PREFIX as WEIGHT
from ..runtime.feedback import told_by
from .asked import TRUE, conditions
from .graph import Node, children, const, node, rewrite, var
from .loops import Kernel
from .totality import Facts
from .values import Lowering

Spans = dict[Node, tuple[Span, ...]]


class Unsupported(Exception):
    """What checks but can't be lowered: a title in lower case, and the node it is about."""

    def __init__(self, title: str, n: Node):
        self.title, self.node = title, n
        super().__init__(title)


def nothing(type: Type) -> Node:
    """A value for where nobody asks."""
    return const("" if type.dtype in OBJECTS else False if type.dtype == "bool" else 0.0 if type.dtype in FLOATS else 0, type)


@dataclass
class Told:
    """What became of a frame, for people: its outputs and conditions, and the nodes that each step computes; the stages
    that it was made of, where there are any."""

    outputs: dict[str, Node] = field(default_factory=dict)
    conditions: tuple[Node, ...] = ()
    steps: dict[int, tuple[Node, ...]] = field(default_factory=dict)
    stored: dict[int, tuple[Node, ...]] = field(default_factory=dict)   # tensors that a kernel keeps for itself
    program: plan.Program | None = None
    start: Node | None = None
    stages: tuple[Node, ...] = ()


def lower_frame(
    name: str, outputs: dict[str, Node], requires: list[tuple[str, Node]], spans: Spans, told: Told | None = None
) -> tuple[plan.Program, list[Kernel]]:
    """The program of one frame. `requires`: ("where" | "check", condition) in program order.

    Inputs are the `field` nodes met, as slots `field.NAME`. `told` is filled.
    """
    outputs = {name: lifted(n) for name, n in outputs.items()}
    requires = [(kind, lifted(c)) for kind, c in requires]
    frame = _Frame(name, spans, [*([c] for _, c in requires), list(outputs.values())])
    for number, (kind, condition) in enumerate(requires):
        frame.require(number, kind, condition)
    program = frame.finish(outputs)
    if told is not None:
        told.outputs, told.conditions, told.steps = outputs, tuple(c for _, c in requires), frame.told
        told.stored = frame.stored
        told.program = program
    return program, frame.kernels


def is_library(n: Node) -> bool:
    """Is this a call that a step of its own makes, not a kernel."""
    return n.op == "extern" or (n.op == "call" and ops.OPERATORS[n["op"]].cpu is not None)


def lifted(root: Node) -> Node:
    """`root` with each library call under binders as one call at every place: a tensor, indexed by the binders.

    Such a node has the extents behind its args, and the attributes `ids` and `given` (the number of its args).
    """
    facts = Facts((root,))

    def change(n: Node) -> Node | None:
        if not is_library(n) or n.get("ids") is not None:
            return None
        ids = tuple(sorted(facts.free(n)))
        if not ids:
            return None
        extents = [facts.extents[id] for id in ids]
        if n.op == "extern" or not n.type.is_scalar or n.type.dtype == "struct" or any(map(facts.free, extents)):
            raise Unsupported(f"`{n.get('op') or n['target']}` of each place can't be kept yet: it isn't one value at each", n)
        dims = tuple(e["value"] if e.op == "const" else e for e in extents)
        every = node("call", *n.args, *extents, type=n.type.with_dims(dims), op=n["op"], ids=ids, given=len(n.args))
        return node("index", every, *map(var, ids), type=n.type, guard=False)

    return rewrite(root, change)


def reachable(*roots: Node) -> list[Node]:
    """Every node below the roots, through args and dims, args first."""
    found: dict[Node, None] = {}
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        n, done = stack.pop()
        if done:
            found[n] = None
        elif n not in found:
            stack.append((n, True))
            stack.extend((c, False) for c in reversed(_below(n)) if c not in found)
    return list(found)


def _below(n: Node) -> tuple[Node, ...]:
    parts = tuple(d for _, t in n.type.parts for d in t.dims if isinstance(d, Node))
    return children(n) + (parts if n.op == "part" else ())


@dataclass
class _Frame:
    """The frame under construction: slots and steps so far, and the kernel that is still open."""

    name: str
    spans: Spans
    goals: list[list[Node]]      # what conditions need, one by one, then the outputs
    slots: dict[str, plan.Slot] = field(default_factory=dict)
    steps: list[plan.Step] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    sites: list[plan.Site] = field(default_factory=list)
    draws: list[str] = field(default_factory=list)
    lying: dict[Node, str] = field(default_factory=dict)       # nodes whose values earlier steps put into slots
    constants: dict[Node, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roots = [n for goals in self.goals for n in goals]
        self.facts = Facts(self.roots)
        self.ran: dict[Node, Node] = {}              # library calls that steps make, and where
        self.calls: dict[tuple[str, tuple[Node, ...]], Node] = {}
        for n in [*self.spans, *reachable(*self.roots)]:
            if n.op == "call":
                self.calls[n["op"], n.args] = n
        self.facts.guarded = {c for goals in self.goals for c in self.conditions(goals)}
        self.open: Lowering | None = None
        self.stack = ExitStack()
        self.made: dict[Node, str] = {}              # by the open kernel
        self.partly: list[str] = []                  # by the open kernel, in some frames only
        self.after: list[tuple[plan.Step, Node]] = []     # what must follow the open kernel, and its condition
        self.told: dict[int, tuple[Node, ...]] = {}  # of each step
        self.stored: dict[int, tuple[Node, ...]] = {}

    # --- slots ---

    def add(self, slot: plan.Slot) -> str:
        self.slots[slot.name] = slot
        return slot.name

    def slot_for(self, name: str, type: Type) -> str:
        dims = tuple(d if isinstance(d, int) else None for d in type.dims)
        return self.add(plan.Slot(name, type.dtype, dims, type.missing))

    def slot(self, n: Node) -> str | None:
        """The slot where `n` lies, or of whose size it tells."""
        if n.op == "field":
            if n not in self.lying:
                self.inputs[n["name"]] = self.lying[n] = self.slot_for(f"field.{n['name']}", n.type)
            return self.lying[n]
        if n.op == "extent":
            return self.sized(n)
        if n.op == "param" and n.type.dims:
            return f"param.{n['name']}"
        return self.lying.get(n)

    def sized(self, n: Node) -> str | None:
        wanted = n.get("field")
        if wanted is None:
            call = self.calls.get((n["op"], n.args))
            return None if call is None else self.lying.get(self.result(call, n.get("part")))
        for f in reachable(*self.roots):
            if f.op == "field" and f["name"] == wanted:
                return self.slot(f)
        # Nothing but the size of that field is used.
        return self.inputs.get(wanted) or self.unseen(wanted, n)

    def unseen(self, name: str, extent: Node) -> str:
        known = [f for f in self.spans if f.op == "field" and f["name"] == name]
        if known:
            slot = self.slot(known[0])
            assert slot is not None
            return slot
        raise TypeError(f"the size of `{name}` is used, but there is no such field")

    def result(self, call: Node, part: str | None) -> Node:
        if not part or call.type.dtype != "struct":
            return call
        return node("part", call, type=dict(call.type.parts)[part], name=part)

    def constant(self, n: Node) -> str:
        if n not in self.constants:
            value = n["value"] if isinstance(n["value"], tuple) else (n["value"],)
            dims = tuple(d for d in n.type.dims if isinstance(d, int))
            self.constants[n] = self.add(plan.Slot(f"const{len(self.constants)}", n.type.dtype, dims, False, value))
        return self.constants[n]

    def site(self, code: str, title: str, n: Node) -> int:
        """The number of the error site where `n` fails."""
        span = next(iter(self.places(n)), Span("", 0, 0))
        for s in self.sites:
            if (s.code, s.title, s.file, s.start, s.end) == (code, title, span.file, span.start, span.end):
                return s.number
        self.sites.append(plan.Site(len(self.sites) + 1, code, title, span.file, span.start, span.end))
        return len(self.sites)

    def places(self, n: Node) -> tuple[Span, ...]:
        """Where `n` comes from; where nobody says, the place of what it is made of."""
        found = self.spans.get(n)
        if found:
            return tuple(found)
        return next((tuple(self.spans[c]) for c in reversed(reachable(n)) if self.spans.get(c)), ())

    def draw(self, path: str) -> int:
        if path not in self.draws:
            self.draws.append(path)
        return self.draws.index(path)

    # --- kernels ---

    def kernel(self) -> Lowering:
        if self.open is None:
            self.open = Lowering(
                f"{self.name}_{len(self.kernels)}", self.facts, self.slot, self.constant, self.site, self.draw
            )
        return self.open

    def compute(self, n: Node, name: str) -> str:
        """A slot that the open kernel fills with `n`."""
        if n in self.made:
            return self.made[n]
        slot = self.slot_for(name, n.type)
        self.kernel().output(n, slot, n.type)
        self.made[n] = slot
        return slot

    def close(self) -> None:
        """End the open kernel: its step, then what must follow it."""
        if self.open is not None:
            self.stack.close()
            kernel = self.open.kernel()
            self.kernels.append(kernel)
            args = tuple(plan.Arg(a.kind, a.slot, a.axis, a.writes) for a in kernel.arguments)
            self.given(kernel)
            self.stored[len(self.steps)] = tuple(self.open.stored)
            self.step(plan.RunKernel(kernel.name, args, (*self.made.values(), *self.partly), self.largest()), *self.open.met)
        for step, condition in self.after:
            self.step(step, condition)
        self.lying |= self.made
        self.open, self.made, self.partly, self.after = None, {}, [], []

    def largest(self) -> int:
        """The site of the open kernel's tensor that may become largest, of those whose size only the data tells; 0: none."""
        assert self.open is not None
        unknown = {n: sum(not isinstance(d, int) for d in n.type.dims) for n in (*self.made, *self.open.stored)}
        found = max(unknown, key=unknown.__getitem__, default=None)
        return self.site("E0814", "", found) if found is not None and unknown[found] else 0

    def step(self, step: plan.Step, *nodes: Node) -> None:
        self.told[len(self.steps)] = nodes
        self.steps.append(step)

    def given(self, kernel: Kernel) -> None:
        """Slots that the runtime fills by their names."""
        params = {f"param.{n['name']}": n.type for n in reachable(*self.roots) if n.op == "param"}
        for a in kernel.arguments:
            if a.slot.startswith("@") or a.slot.startswith("param."):
                of = params.get(a.slot, Type(a.dtype))
                dims = (len(self.draws),) if a.slot == "@keys" else of.dims
                default = (told_by(a.slot)[1],) if a.slot.startswith(WEIGHT) else None   # where nobody returned anything
                self.add(plan.Slot(a.slot, of.dtype, dims, value=default))

    # --- goals ---

    def require(self, number: int, kind: str, condition: Node) -> None:
        self.run_calls([condition])
        site = self.site("E0805", "`check` was false", condition) if kind == "check" else 0
        if condition.op == "const" and condition["value"]:
            return
        slot = self.where_it_lies(condition) or self.compute(condition, f"{kind}{number}")
        low = self.kernel()
        self.stack.enter_context(low.branch(low.expr(condition)))
        self.after.append((plan.Require(slot, kind, site), condition))

    def finish(self, outputs: dict[str, Node]) -> plan.Program:
        self.run_calls(list(outputs.values()))
        names: list[tuple[str, str]] = []
        for name, n in outputs.items():
            names.append((name, self.where_it_lies(n) or self.compute(n, f"out.{name}")))
        self.close()
        return plan.Program(
            tuple(self.slots.values()), tuple(sorted(self.inputs.items())), tuple(self.steps), tuple(names),
            tuple(self.draws), tuple(self.sites),
        )

    def where_it_lies(self, n: Node) -> str | None:
        """The slot of a value that needs no computing, or that a slot holds by now."""
        if n.op == "const":
            return self.constant(n)
        return None if n.op == "extent" else self.slot(n)

    # --- library calls ---

    def run_calls(self, goals: list[Node]) -> None:
        """Steps for every library call that the goals need and that hasn't run, level by level."""
        asked = self.conditions(goals)
        waiting = [c for c in self.needed_calls(goals, all=True) if self.more(c, asked.get(c, TRUE))]
        while waiting:
            unmade = set(waiting)
            ready = [c for c in waiting if not self.calls_in(list(c.args)) & unmade
                     and not self.calls_in([asked.get(c, TRUE)]) & unmade]
            if not ready:    # two calls of which each says where the other is asked for: one always runs
                ready = [next(c for c in waiting if not self.calls_in(list(c.args)) & unmade)]
                asked.pop(ready[0])
            makers = [self.each_step(c, asked) if c.get("ids") else self.call_step(c, asked) for c in ready]
            self.close()
            for c, make in zip(ready, makers, strict=True):
                self.step(make(), c)
            waiting = [c for c in waiting if c not in ready]

    def conditions(self, goals: list[Node]) -> dict[Node, Node]:
        """Where each library call that isn't always needed is asked for."""
        return conditions(goals, filter(is_library, reachable(*self.roots)), self.facts, self.called)

    def called(self, extent: Node) -> Node | None:
        return None if extent.get("field") is not None else self.calls.get((extent["op"], extent.args))

    def more(self, call: Node, condition: Node) -> bool:
        """Is the call asked for where it hasn't run."""
        return not self.has_run(call) or self.ran[call] not in (TRUE, condition)

    def calls_in(self, values: list[Node]) -> set[Node]:
        return set(self.needed_calls(values, all=True))

    def needed_calls(self, goals: Iterable[Node], all: bool = False) -> list[Node]:
        found: dict[Node, None] = {}
        for n in reachable(*goals):
            n = (self.called(n) or n) if n.op == "extent" else n
            if is_library(n) and (all or not self.has_run(n)):
                found[n] = None
        return list(found)

    def has_run(self, call: Node) -> bool:
        parts = [p for p, _ in call.type.parts] if call.type.dtype == "struct" else [None]
        return all(self.result(call, p) in self.lying for p in parts)

    def call_argument(self, a: Node) -> str:
        return self.where_it_lies(a) or self.compute(a, f"arg{len(self.slots)}")

    def call_step(self, c: Node, asked: dict[Node, Node]) -> Callable[[], plan.Step]:
        """The call's step, to be made when the kernel that computes its arguments is closed."""
        condition = self.ran[c] = asked.get(c, TRUE)
        when = None if condition is TRUE else self.call_argument(condition)
        if condition is TRUE:
            self.keep(c)
        with self.only_where(condition):
            args = tuple(self.call_argument(a) for a in c.args)

        def make() -> plan.Step:
            called = c["op"] if c.op == "call" else c["target"]
            outputs = []
            for part, type in c.type.parts if c.type.dtype == "struct" else ((None, c.type),):
                n = self.result(c, part)
                outputs.append(self.lying.get(n) or self.lies_in(n, self.call_slot(part or called, type)))
            if c.op == "call":
                site = self.site("E0801", f"`{called}` can't use this record's data", c)
                return plan.CallOperator(called, args, tuple(outputs), site, when)
            site = self.site("E0811", f"the extern function {called} failed", c)
            return plan.CallExtern(called, args, tuple(outputs), site, when)

        return make

    def keep(self, c: Node) -> None:
        """Small tensors that this call's arguments are computed from, and that are needed again after it, get slots, so that
        no later kernel computes them again."""
        before = set(reachable(*c.args))
        stack = list(c.args)
        while stack:
            n = stack.pop()
            if n.op == "call" and not is_library(n) and n not in self.made:
                stack += n.args
            elif n.op == "build" and all(isinstance(d, int) for d in n.type.dims) and not self.facts.free(n) \
                    and any(n in u.args for u in reachable(*self.roots) if u not in before):
                self.compute(n, f"kept{len(self.slots)}")

    @contextmanager
    def only_where(self, condition: Node) -> Iterator[None]:
        """What is computed here is computed only where the condition holds, and nothing else may use it."""
        if condition is TRUE:
            yield
            return
        low, made = self.kernel(), dict(self.made)
        with low.branch(low.expr(condition)):
            yield
        self.partly += [slot for n, slot in self.made.items() if n not in made]
        self.made = made

    def call_slot(self, name: str, type: Type) -> str:
        number = sum(isinstance(s, plan.CallOperator | plan.CallExtern | plan.CallEach) for s in self.steps)
        return self.slot_for(f"call{number}.{name}", type)

    def lies_in(self, n: Node, slot: str) -> str:
        self.lying[n] = slot
        return slot

    def each_step(self, c: Node, asked: dict[Node, Node]) -> Callable[[], plan.Step]:
        condition, before = asked.get(c, TRUE), self.ran.get(c)
        if before is not None and TRUE not in (condition, before):
            condition = node("apply", before, condition, type=BOOL, fn="or")
        self.ran[c] = condition
        extents = c.args[c["given"] :]
        dims = tuple(e["value"] if e.op == "const" else self.call_argument(e) for e in extents)
        when, somewhere = None, TRUE
        if condition is not TRUE:
            when = self.call_argument(node("build", condition, *extents, type=BOOL.with_dims(c.type.dims), ids=c["ids"]))
            somewhere = node("reduce", condition, *extents, type=BOOL, ids=c["ids"], kind="any")
        with self.only_where(somewhere):
            args = tuple(self.each_argument(a, c["ids"], condition) for a in c.args[: c["given"]])

        def make() -> plan.Step:
            output = self.lying.get(c) or self.lies_in(c, self.call_slot(c["op"], c.type))
            site = self.site("E0801", f"`{c['op']}` can't use this record's data", c)
            return plan.CallEach(c["op"], args, output, dims, site, when)

        return make

    def each_argument(self, a: Node, ids: tuple[int, ...], condition: Node) -> plan.EachArg:
        """An argument that may depend on the binders: computed for all places, but texts that lie somewhere are looked up."""
        used = tuple(id for id in ids if id in self.facts.free(a))
        if not used:
            return plan.EachArg(self.call_argument(a))
        index, default = (a.args[0], a.args[1]) if a.op == "fill" else (a, None)
        if a.type.dtype in OBJECTS and self.lies_at_binders(index) and (default is None or default.op == "const"):
            places = tuple(ids.index(p["id"]) for p in index.args[1:])
            return plan.EachArg(self.call_argument(index.args[0]), places, None if default is None else default["value"])
        if condition is not TRUE and self.facts.fails(a):
            used = ids
            a = node("select", condition, a, nothing(a.type), type=a.type)
        extents = [self.facts.extents[id] for id in used]
        dims = tuple(e["value"] if e.op == "const" else e for e in extents)
        every = node("build", a, *extents, type=a.type.with_dims(dims + a.type.dims), ids=used)
        return plan.EachArg(self.call_argument(every), tuple(ids.index(id) for id in used))

    def lies_at_binders(self, n: Node) -> bool:
        """Is this an element, at binders alone, of what lies somewhere."""
        return (n.op == "index" and not n["guard"] and all(p.op == "var" for p in n.args[1:])
                and self.where_it_lies(n.args[0]) is not None)
