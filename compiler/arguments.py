"""The arguments of stages: what each stage takes, and reading them from a line; messages E0501 and E0503."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from ..dsl.types import I64
from .elaborate import Elaborator
from .frames import Frame
from .graph import Node, walk
from .names import mentions
from .scope import Scope, Value
from .words import similar, type_text


@dataclass(frozen=True)
class Formal:
    """One argument. Kinds: count (i64 ≥ 1, the same for all records), value (of the frame, an i64 scalar), field, bool,
    int, fraction, text, ints (rising), floats, until. `named`: only by name."""

    name: str
    kind: str
    required: bool = False
    named: bool = True


@dataclass(frozen=True)
class Spec:
    """A stage: its arguments and a line that shows it."""

    formals: tuple[Formal, ...]
    example: str
    doc: str


def _spec(example: str, doc: str, *formals: Formal) -> Spec:
    return Spec(formals, example, doc)


RANKS = ("a loader is told which rank of how many it is where it is opened: `rank=` and `world=`, or `rank=\"torch\"`",)
N = Formal("n", "count", True, False)
BY = Formal("by", "value")
SPECS: dict[str, Spec] = {
    "shuffle": _spec("shuffle()", "permutes the records, newly in every epoch",
                     Formal("chunk", "count"), Formal("mix", "count"), Formal("window", "count")),
    "batch": _spec("batch(32)", "makes one record of n", Formal("n", "count", False, False), Formal("whole", "bool"),
                   Formal("pad", "bool"), BY, Formal("edges", "ints"), Formal("budget", "count")),
    "window": _spec("window(128, stride=64)", "makes one record of n that follow each other", N,
                    Formal("stride", "count"), Formal("rest", "text"), Formal("pad", "bool")),
    "pack": _spec("pack(2048, by=length)", "lays short records end to end in rows of n places", N,
                  Formal("by", "value", True), Formal("open", "count")),
    "take": _spec("take(1000)", "keeps the first n records", N),
    "repeat": _spec("repeat(3)", "goes through the records n times", Formal("n", "count", False, False)),
    "shard": _spec("shard()", "changes nothing: ranks get records of their own, whatever files these lie in"),
    "skip_bad": _spec("skip_bad(at_most=0.001)", "leaves out records that can't be read", Formal("at_most", "fraction", True)),
    "balance": _spec("balance(label)", "gives every value of a field equally often", Formal("field", "field", True, False)),
    "share": _spec("share()", "lines above run once for all trainers, lines below in each", Formal("end", "text")),
    "check": _spec("check(label < 1000)", "calls a record bad where the condition is false",
                   Formal("condition", "condition", True, False)),
    "each": _spec("each(boxes, classes)", "makes a record of every place of a field's first dimension"),
}
FROM_STAGES = {"mix": "from mix(a, b, until=\"all\")", "zip": "from zip(left=a, right=b)"}
HABITS = {  # names of other tools: (stage or None, what to say)
    "filter": ("where", "a line `where condition` keeps some records"),
    "map": (None, "a line `name = expression` says what happens to each record"),
    "prefetch": ("", "threads and prefetch belong to the plan, not to the program"),
    "cache": ("", "caches belong to the plan, not to the program"),
    "num_workers": ("", "threads belong to the plan, not to the program"),
    "to": ("", "devices belong to the plan, not to the program"),
    "unbatch": ("each", "`each(a, b)` makes a record of every place of their first dimension"),
    "flatten": ("each", "`each(a, b)` makes a record of every place of their first dimension"),
    "interleave": (None, FROM_STAGES["mix"]), "padded_batch": ("batch", "`batch(n, pad=true)`"),
    "bucket": ("batch", "`batch(n, by=length, edges=[…])` batches records of like length"),
    "bucket_by_sequence_length": ("batch", "`batch(n, by=length, edges=[…])` batches records of like length"),
    "split": (None, "`take(n)` keeps the first n records"), "limit": ("take", ""), "head": ("take", ""),
    "group": ("batch", ""), "collate": ("batch", ""), "require": ("check", ""), "assert": ("check", ""),
}
ARGUMENT_HABITS = {
    ("batch", "drop_last"): "whole", ("batch", "drop_remainder"): "whole", ("batch", "drop_uneven"): "whole",
    ("batch", "padding"): "pad", ("batch", "boundaries"): "edges", ("batch", "buckets"): "edges",
    ("batch", "max_tokens"): "budget", ("batch", "key"): "by", ("shuffle", "buffer_size"): "window",
    ("shuffle", "buffer"): "window", ("shuffle", "size"): "window", ("shuffle", "n"): "window",
    ("window", "shift"): "stride", ("window", "step"): "stride", ("window", "hop"): "stride",
    ("skip_bad", "max"): "at_most", ("skip_bad", "limit"): "at_most", ("pack", "length"): "by",
}


@dataclass
class Given:
    """The arguments of one line: values by name (`nodes` for counts and values), the places they stand at."""

    values: dict[str, Any]
    spans: dict[str, Span]
    failed: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)


class ArgumentReader:
    """Reads the arguments of stages."""

    def __init__(self, elaborator: Elaborator):
        self.elaborator, self.context = elaborator, elaborator.context

    def bad(self, span: Span, title: str, label: str = "", notes: tuple[str, ...] = (), fixes: tuple[Fix, ...] = (),
            reasons: tuple[Label, ...] = ()) -> None:
        self.context.report(Problem("E0503", title, span, label, reasons, notes, fixes))

    def read(self, frame: Frame, call: tree.Call) -> Given:
        """All arguments of a stage's line; `failed` where one was reported."""
        spec = SPECS[call.fn]
        given = Given({}, {})
        places = iter([f for f in spec.formals if not f.named])
        for argument in call.args:
            formal = self._formal(call, spec, argument, places, given)
            if formal is None:
                given.failed = True
                continue
            value = self._value(frame, call.fn, formal, argument.value)
            given.spans[formal.name] = argument.value.span
            if value is None:
                given.failed = True
            else:
                given.values[formal.name] = value
        missing = [f.name for f in spec.formals if f.required and f.name not in given.spans]
        if missing and not given.failed:
            what = ", ".join(f"`{m}`" for m in missing)
            self.bad(call.span, f"`{call.fn}` needs {what}", "not given", (f"for example: {spec.example}",))
            given.failed = True
        return given

    def _formal(self, call: tree.Call, spec: Spec, argument: tree.Argument, places: Any, given: Given) -> Formal | None:
        if argument.name is None:
            formal = next(places, None)
            if formal is None:
                self._too_many(call, spec, argument)
            return formal
        formal = next((f for f in spec.formals if f.name == argument.name), None)
        if formal is None:
            self._no_argument(call, spec, argument)
        elif formal.name in given.spans:
            self.bad(argument.span, f"`{argument.name}` is given twice", "a second time", reasons=(
                Label(given.spans[formal.name], "first here"),))
            return None
        return formal

    def _too_many(self, call: tree.Call, spec: Spec, argument: tree.Argument) -> None:
        names = [f.name for f in spec.formals if f.named]
        if call.fn == "shuffle":
            fixes = (Fix("permute inside blocks of that many records", (Edit(_at(argument.value.span), "window="),)),
                     Fix("permute all records", (Edit(argument.span, ""),)))
            self.bad(argument.span, "`shuffle` takes its arguments by name", "which one isn't said",
                     ("`shuffle()` permutes the whole source and needs no buffer",), fixes)
            return
        notes = (f"by name it takes: {', '.join(names)}",) if names else (f"for example: {spec.example}",)
        notes = RANKS if call.fn == "shard" else notes
        self.bad(argument.span, f"`{call.fn}` takes no more values here", "one too many", notes)

    def _no_argument(self, call: tree.Call, spec: Spec, argument: tree.Argument) -> None:
        assert argument.name is not None
        names = [f.name for f in spec.formals]
        alike = ARGUMENT_HABITS.get((call.fn, argument.name)) or similar(argument.name, names)
        name_span = Span(argument.span.file, argument.span.start, argument.span.start + len(argument.name))
        fixes = (Fix(f"it is called `{alike}` here", (Edit(name_span, alike),)),) if alike else ()
        notes = (f"its arguments: {', '.join(names)}",) if names else RANKS if call.fn == "shard" else ("it takes no arguments",)
        if not alike:
            fixes = (Fix("leave it out", (Edit(removal(call, argument, self.context.texts), ""),)),)
        self.bad(name_span, f"`{call.fn}` has no argument `{argument.name}`", "not known", notes, fixes)

    # --- values -------------------------------------------------------------------------------

    def _value(self, frame: Frame, stage: str, formal: Formal, e: tree.Expr) -> Any:
        match formal.kind:
            case "count":
                return self.count(frame, stage, formal.name, e)
            case "value":
                return self.scalar(frame, stage, formal.name, e)
            case "condition":
                found = self.elaborator.condition(frame.scope, e)
                return found if found.known else None
            case "field":
                return self.field(frame, e)
        return self._constant(frame, stage, formal, e)

    def without_fields(self, frame: Frame) -> Scope:
        return Scope(frame.scope.file, names=dict(frame.arguments), path=frame.scope.path,
                     below_share=frame.scope.below_share)

    def no_fields(self, frame: Frame, stage: str, name: str, e: tree.Expr) -> bool:
        """Report an argument that names a field where it must be the same for all records."""
        used = mentions(e) & (frame.fields.keys() | frame.hidden.keys()) - frame.arguments.keys()
        if not used:
            return True
        self.bad(e.span, f"`{name}` of `{stage}` must be the same for all records", f"`{sorted(used)[0]}` is a field",
                 ("it may be made of numbers, lets and params",))
        return False

    def count(self, frame: Frame, stage: str, name: str, e: tree.Expr) -> Node | None:
        """An i64 node ≥ 1 made of constants and params."""
        if not self.no_fields(frame, stage, name, e):
            return None
        value = self.elaborator.expr(self.without_fields(frame), e, I64)
        if not value.known or value.node is None:
            return None
        if value.type.dtype != "i64" or value.type.dims or value.type.missing:
            self.bad(e.span, f"`{name}` of `{stage}` is a whole number", type_text(frame.scope, value.type))
            return None
        node = value.node
        if node.op == "const":
            if node["value"] < 1:
                self.bad(e.span, f"`{name}` of `{stage}` must be at least 1", f"{node['value']}")
                return None
        elif any(n.op == "epoch" for n in walk(node)):
            self.bad(e.span, f"`{name}` of `{stage}` can't change with the epoch", "uses `epoch`")
            return None
        return node

    def scalar(self, frame: Frame, stage: str, name: str, e: tree.Expr) -> Value | None:
        """An i64 scalar of the frame."""
        value = self.elaborator.expr(frame.scope, e, I64)
        if not value.known or value.node is None:
            return None
        if value.type.missing:
            self.elaborator.plain(frame.scope, value, e.span, f"`{name}`")
            return None
        if value.type.dtype not in ("i64", "i32", "u32", "i16", "u16", "i8", "u8") or value.type.dims:
            self.bad(e.span, f"`{name}` of `{stage}` is one whole number per record", type_text(frame.scope, value.type))
            return None
        return self.elaborator.adapt(value, "i64")

    def field(self, frame: Frame, e: tree.Expr) -> Any:
        """(name, value) of a scalar field."""
        if not isinstance(e, tree.Name):
            self.bad(e.span, "a field's name belongs here", "an expression", ("give the expression a name first",))
            return None
        value = self.elaborator.expr(frame.scope, e)
        if not value.known or value.node is None:
            return None
        if e.id not in frame.fields:
            self.bad(e.span, f"`{e.id}` is no field", "the same for all records")
            return None
        if value.type.dims or value.type.missing or value.type.dtype in ("f16", "bf16", "f32", "f64", "bytes"):
            self.bad(e.span, f"`{e.id}` can't be counted by its values", type_text(frame.scope, value.type),
                     ("a whole number, a bool or a text can",))
            return None
        return e.id, value

    def _constant(self, frame: Frame, stage: str, formal: Formal, e: tree.Expr) -> Any:
        if not self.no_fields(frame, stage, formal.name, e):
            return None
        value = self.elaborator.constant(self.without_fields(frame), e)
        if value is None:
            return None
        good, need = fits(formal.kind, value)
        if good:
            return value
        self.bad(e.span, f"`{formal.name}` of `{stage}` is {need}", "", fixes=self._truth(formal, e, value))
        return None

    def _truth(self, formal: Formal, e: tree.Expr, value: Any) -> tuple[Fix, ...]:
        if formal.kind == "bool" and value in (0, 1):
            return (Fix("say so", (Edit(e.span, "true" if value else "false"),)),)
        return ()


def fits(kind: str, value: Any) -> tuple[bool, str]:
    """Is a folded value of this kind; and what the kind is, in words."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "bool":
            return isinstance(value, bool), "true or false"
        case "text":
            return isinstance(value, str), "a text"
        case "fraction":
            number = whole or isinstance(value, float)
            return number and 0 <= value <= 1, "a share from 0 to 1"
        case "ints":
            numbers = isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
            return numbers and len(value) > 0 and sorted(set(value)) == value, "a list of rising whole numbers"
        case "floats":
            return isinstance(value, list) and all(isinstance(v, int | float) for v in value), "a list of numbers"
    return True, kind


def removal(call: tree.Call, argument: tree.Argument, texts: dict[str, str]) -> Span:
    """The place of an argument with the comma that goes with it."""
    index = call.args.index(argument)
    if index > 0:
        return Span(argument.span.file, call.args[index - 1].span.end, argument.span.end)
    if len(call.args) > 1:
        return Span(argument.span.file, argument.span.start, call.args[1].span.start)
    return argument.span


def added(call: tree.Call, text: str) -> Edit:
    """The edit that gives a call one more argument."""
    at = Span(call.span.file, call.span.end - 1, call.span.end - 1)
    return Edit(at, f", {text}" if call.args else text)


def _at(span: Span) -> Span:
    return Span(span.file, span.start, span.start)
