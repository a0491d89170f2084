"""The stages of a pipeline: one function per stage, from its arguments to a stream node and the frame it delivers.

STREAM NODES, exactly as every reader of the graph may rely on them.

Each stream node has the type `Type("stream", parts=((field, Type), …))`: the fields of the frame it delivers, in
order. A dim in these types is an int or an i64 node in terms of the *same* frame: `count`, `extent(field=…, axis=…)`
(fields with an equal dim name the same node, that of the first such field), or an expression of `epoch` and `param`.
A struct field `clip` with parts is stored as the fields "clip.samples", "clip.rate".
Args that are values are in terms of the `field` nodes of args[0]'s frame. `n` and the like are i64 nodes: a `const`, or
below `share` also an expression of `param` nodes, or of `epoch` where it says so. Everything else is an attr.

New frame (fields are new): source each batch window pack mix zip sample share; their stream args, all branches of `mix
zip sample` too, are `map` nodes, and so is that of `emit`. Same frame: where check shuffle take repeat shard skip_bad balance.
Sizes bound from data by name are also i64 fields of the maps (until a `batch`, `window` or `pack`, from where they are
fields like others): a dim may be such a `field` node instead of an `extent`.

op        args                      attrs
source                              kind      "tar" "folder" "npz" "npy" "bin" … (compiler.sources.KINDS)
                                    paths     tuple of texts; {name} put in, {a..b} expanded; globs * ? [a-z] ** not expanded
                                    options   ((name, value), …), only those written, sorted by name
                                    columns   ((field, names, type text), …); names: a tuple with one entry per stacked
                                              column ("I{1..13}": 13 entries, stacked along the first dim; else 1), each
                                              a tuple of alternatives ("flac|wav": the first one present); type text as
                                              "i32?[13]", "u8[h, w, 3]": a name is a size of the data (same name = equal,
                                              else E0803), "_" any size
map       stream, value…            names     the new frame's fields, one value each (never a struct)
where     stream, condition
check     stream, condition         code      "E0805" (a line of the program), "E0803" (two sizes of one record are equal)
shuffle   stream                    chunk mix window   ints, 0 = not given: whole (0,0,0), (c, m, 0), (0, 0, w)
                                    key       text: the draw path of this shuffle, "train/shuffle"; a second one in
                                              the same pipeline has "train/shuffle2"
take      stream, n                           the first n records
repeat    stream, n?                has       ("n",) or (): without n for ever; the turn joins the record's id
shard     stream
skip_bad  stream                    at_most   float
balance   stream, value             field     name of the field; value: its node in this frame
                                    key       text, the draw path "train/balance"
each      stream                    fields    tuple of names; their first dim is dropped, others are repeated
batch     stream, n?, by?, budget?  has       which of ("n", "by", "budget") are there, in this order (n xor budget)
                                    whole     bool: a smaller last batch is left out; the new first dim is n itself
                                    pad       bool: fields whose size differs are padded to the largest and become `?`
                                    edges     tuple of ints, rising: batches hold records with the same
                                              bisect_left(edges, by); () with `budget`: batches in the order of records
window    stream, n, stride         rest      "keep" (smaller last ones, dim `count`) | "drop" (dim n)
                                    pad       bool: the last one is filled up with missing places (dim n, every field `?`)
pack      stream, n, by             open      int, rows open at once; fields (whose first dim is `by`) are laid end to
                                    fields    end in rows of n, `?`; the new i64?[n] fields `segment` (1, 2, …) and
                                              `position` (0, 1, … in each record) come last. Other fields have one
                                              entry per record in the row: first dim `count`
mix       streams…                  names     draw-path part of each branch; weights: floats summing to 1, () = take
                                    weights   turns; until: "first" | "all" (each seen once, shorter ones repeat) or an
                                    until     int: that many records; key: draw path "train/mix"
                                    key
zip       streams…                  names     fields of stream k are names[k] + "." + field; ends with the first
sample    stream, other             name      fields of `stream`, then name + "." + field of a record of `other` chosen
                                    path      uniformly by the draw `path`; times: 0, or the number of independent
                                    times     choices, then a first dim `times` and index k joins the path
share     stream                    end       what data-parallel ranks do with the rows at an epoch's end that aren't
                                              enough for all: "drop" | "pad" | "uneven", "" = not said
emit      stream                    names     what leaves, in order; args[0] is a map with just these names
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Problem, Span
from ..dsl.types import BOOL, I64, WEAK_INT, Type
from . import bounds
from .arguments import HABITS, SPECS, ArgumentReader, Given
from .elaborate import Elaborator
from .frames import (
    COUNT,
    Dim,
    Frame,
    Shape,
    Stacked,
    at_least,
    at_most,
    entered,
    field_node,
    gathered,
    leaves,
    mapped,
    reshape,
    sizes_as_fields,
    stream_type,
    varies,
)
from .graph import Node, node, number, walk
from .headers import by_header
from .names import whole_lines
from .promote import as_dim
from .scope import Value, unknown
from .words import similar, type_text

STRUCTURE = ("each", "pack", "batch", "mix")     # what may not stand above a shuffle
ABOVE_SHARE = ("shuffle", "shard", "repeat", "balance", "skip_bad", "each", "pack", "window")
FRAMES = ("each", "batch", "window", "pack", "share")  # a map stands before these


class Stages:
    """The stages of one pipeline. `taken(name)`: is this the name of a param, let or pipeline."""

    def __init__(self, elaborator: Elaborator, texts: dict[str, str], taken: Callable[[str], bool], top: bool):
        self.elaborator, self.context, self.texts, self.taken, self.top = (
            elaborator, elaborator.context, texts, taken, top)
        self.reader = ArgumentReader(elaborator)
        self.counts: dict[str, int] = {}

    def stage(self, frame: Frame, line: tree.Stage) -> Frame:
        """The frame after a stage's line; the same one where the line is wrong."""
        call = line.call
        make = getattr(self, f"_{call.fn}", None) if call.fn in SPECS else None
        if make is None:
            self._unknown(frame, line)
            return frame
        if frame.scope.below_share and call.fn in ABOVE_SHARE:
            self._below_share(frame, line)
            return frame
        if call.fn in FRAMES:
            frame = mapped(self.context, frame, line.span)
        if call.fn == "each":
            return self._each(frame, call)
        given = self.reader.read(frame, call)
        frame = self.sized(frame)
        made: Frame = make(frame, call, given)
        if made is not frame:
            made.stages = [*frame.stages, (call.fn, call.span)]
        return made

    def _node(self, frame: Frame, call: tree.Call, *args: Node, type: Type | None = None, **attrs: object) -> Node:
        made = node(call.fn, frame.stream, *args, type=type or frame.stream.type, **attrs)
        return self.context.made(made, call.span)

    def key(self, frame: Frame, stage: str) -> str:
        """The draw path of a stage that shuffles or chooses."""
        self.counts[stage] = self.counts.get(stage, 0) + 1
        number = self.counts[stage]
        return f"{frame.scope.path}/{stage}" + (str(number) if number > 1 else "")

    def problem(self, code: str, title: str, span: Span, label: str = "", reasons: tuple[Label, ...] = (),
                notes: tuple[str, ...] = (), fixes: tuple[Fix, ...] = ()) -> None:
        near = tuple(r for r in reasons if r.span.file == span.file)
        self.context.report(Problem(code, title, span, label, near, notes, fixes))

    # --- unknown stages and order ---------------------------------------------------------------

    def _unknown(self, frame: Frame, line: tree.Stage) -> None:
        call, name = line.call, line.call.fn
        known = [*SPECS, "where", "emit"]
        if name in ("mix", "zip"):
            self.problem("E0505", f"`{name}` says where records come from, so it stands after `from`", call.fn_span, "", (),
                         (), (Fix("write `from`", (Edit(Span(call.span.file, call.span.start, call.span.start), "from "),)),))
            return
        if name == "sample":
            self.problem("E0505", "`sample` draws a record, so it needs a name and `~`", call.fn_span, "", (),
                         ("for example: other ~ sample(p)",))
            return
        if name in HABITS:
            stage, say = HABITS[name]
            fixes: tuple[Fix, ...] = ()
            if stage:
                fixes = (Fix(f"`{stage}` does this", (Edit(call.fn_span, stage + (" " if stage == "where" else "")),)),)
            elif stage == "":
                fixes = (Fix("leave it out", (Edit(whole_lines(self.texts[call.span.file], line.span), ""),)),)
            self.problem("E0501", f"there is no stage `{name}`", call.fn_span, "not known", (), (say,) if say else (), fixes)
            return
        scope = frame.scope
        if scope.file.function(name) is not None or self._operator(name):
            self.problem("E0501", f"`{name}` is a function, and a line needs a name for its value", call.fn_span,
                         "no stage", (), ("a stage is one of: " + ", ".join(sorted(SPECS)),),
                         (Fix("name the value", (Edit(Span(call.span.file, call.span.start, call.span.start), "value = "),)),)
                         if not self._draws(scope.file.function(name)) else ())
            return
        alike = similar(name, known)
        fixes = (Fix("a stage with a similar name exists", (Edit(call.fn_span, alike),)),) if alike else ()
        self.problem("E0501", f"there is no stage `{name}`", call.fn_span, "not known", (),
                     (f"stages: {', '.join(sorted(known))}",), fixes)

    def _operator(self, name: str) -> bool:
        from .signatures import operators

        return name in operators()

    def _draws(self, function: object) -> bool:
        return bool(getattr(function, "draws", False))

    def move_up(self, line_span: Span, above: Span, title: str) -> tuple[Fix, ...]:
        """The fix that moves a line to just above another line."""
        text = self.texts[line_span.file]
        lines, target = whole_lines(text, line_span), whole_lines(text, above)
        moved = text[lines.start:lines.end]
        if not moved.endswith("\n"):
            moved += "\n"
        return (Fix(title, (Edit(Span(above.file, target.start, target.start), moved), Edit(lines, ""))),)

    def _below_share(self, frame: Frame, line: tree.Stage) -> None:
        share = frame.passed("share")
        assert share is not None
        self.problem("E0507", f"`{line.call.fn}` can't stand below `share`", line.call.fn_span,
                     "decides which records there are", (Label(share, "lines below run in each trainer"),),
                     ("every trainer gets the same records, in the same order",),
                     self.move_up(line.span, share, "move it above `share`"))

    # --- stages that keep the frame ---------------------------------------------------------------

    def _shuffle(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        if given.failed:
            return frame
        above = next(((n, s) for n, s in frame.stages if n in STRUCTURE), None)
        if above is not None:
            self._above_shuffle(call, *above)
            return frame
        sizes = {k: self._literal(given, k, call) for k in ("chunk", "mix", "window")}
        if None in sizes.values():
            return frame
        chunk, mix, window = (sizes[k] or 0 for k in ("chunk", "mix", "window"))
        if (window and (chunk or mix)) or bool(chunk) != bool(mix):
            self.problem("E0503", "`shuffle` has three forms: nothing, `chunk` with `mix`, or `window`", call.span, "", (),
                         ("shuffle()  shuffle(chunk=1024, mix=16)  shuffle(window=10_000)",))
            return frame
        if not window and (frame.streamed or frame.endless):
            self._needs_random(frame, call)
            return frame
        key = self.key(frame, "shuffle")
        return replace(frame, stream=self._above_samples(frame.stream, lambda s: self._node(
            replace(frame, stream=s), call, type=s.type, chunk=chunk, mix=mix, window=window, key=key)))

    def _above_samples(self, stream: Node, make: Callable[[Node], Node]) -> Node:
        """A stage that permutes, put above the `sample` lines before it: those are about one record, like the others."""
        passed: list[Node] = []
        at = stream
        while at.op in ("map", "where", "check", "sample"):
            passed.append(at)
            at = at.args[0]
        if not any(s.op == "sample" for s in passed):
            return make(stream)
        made = make(at)
        for old in reversed(passed):
            made = node(old.op, made, *old.args[1:], type=old.type, **dict(old.attrs))
            for span in self.context.spans.get(old, ()):
                self.context.made(made, span)
        return made

    def _literal(self, given: Given, name: str, call: tree.Call) -> int | None:
        """A count that must be a number when the program is compiled: 0 where it isn't given, None if it is wrong."""
        found = given.get(name)
        if found is None:
            return 0
        if found.op != "const":
            self.reader.bad(given.spans[name], f"`{name}` of `{call.fn}` must be known when the program is compiled")
            return None
        return int(found["value"])

    def _above_shuffle(self, call: tree.Call, stage: str, span: Span) -> None:
        if stage == "mix":
            self.problem("E0504", "`mix` may not stand above `shuffle`", call.span, "", (
                Label(span, "mixes here"),), ("shuffle inside each pipeline that is mixed",),
                (Fix("leave it out here", (Edit(whole_lines(self.texts[call.span.file], call.span), ""),)),))
            return
        self.problem("E0504", f"`{stage}` may not stand above `shuffle`", call.span, "permutes single records", (
            Label(span, "makes other records than the source has"),),
            ("which record stands where is computed from its number in the source",),
            self.move_up(call.span, span, f"shuffle before `{stage}`") if call.span.file == span.file else ())

    def _needs_random(self, frame: Frame, call: tree.Call) -> None:
        why = frame.streamed or frame.endless
        assert why is not None
        edit = Edit(Span(call.span.file, call.fn_span.end, call.span.end), "(window=10_000)")
        self.problem("E0512", "these records can't be read at random, so they can't be permuted as a whole", call.span, "",
                     (Label(why, "read front to back" if frame.streamed else "never ends"),), (),
                     (Fix("permute inside blocks", (edit,)),))

    def _take(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        if given.failed:
            return frame
        shuffle = frame.passed("shuffle")
        if shuffle is not None and shuffle.file == call.span.file:
            self.problem("E0506", "`take` below `shuffle` keeps other records in every epoch", call.span, "",
                         (Label(shuffle, "permuted anew in every epoch"),), (),
                         self.move_up(call.span, shuffle, "take first, then shuffle"))
            return frame
        return replace(frame, stream=self._node(frame, call, given.values["n"]), endless=None)

    def _repeat(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        if given.failed:
            return frame
        n = given.get("n")
        made = self._node(frame, call, *([n] if n is not None else []), has=("n",) if n is not None else ())
        return replace(frame, stream=made, endless=call.span if n is None else frame.endless)

    def _shard(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        return frame if given.failed else replace(frame, stream=self._node(frame, call))

    def _skip_bad(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        start = frame.stream
        while start.op not in ("source", "mix", "zip"):
            start = start.args[0]
        if start.op != "source" and not given.failed:
            self.context.report(Problem("E0505", f"below `from {start.op}` records are of several sources", call.span,
                                        "counts those of one", (), (
                f"write `skip_bad` right after the `from` of each pipeline that `{start.op}` brings together",)))
            return frame
        return frame if given.failed else replace(
            frame, stream=self._node(frame, call, at_most=float(given.values["at_most"])))

    def _balance(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        if given.failed:
            return frame
        name, value = given.values["field"]
        return replace(frame, stream=self._node(frame, call, value.node, field=name, key=self.key(frame, "balance")))

    def _check(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        return frame if given.failed else self.require(frame, "check", given.values["condition"], call.span, "E0805")

    def require(self, frame: Frame, op: str, condition: Value, span: Span, code: str = "") -> Frame:
        """`where` and `check`, and what follows from them."""
        assert condition.node is not None
        attrs = {"code": code} if op == "check" else {}
        asked = by_header(condition.node, lambda n: self.context.made(n, condition.span))
        made = self.context.made(node(op, frame.stream, asked, type=frame.stream.type, **attrs), span)
        facts = frame.scope.facts or bounds.Facts()
        if not bounds.contradicts(condition.node, facts):   # from what is never true everything would follow
            frame.scope.facts = facts.given(condition.node)
        return replace(frame, stream=made, conditions=[*frame.conditions, condition.node])

    def sized(self, frame: Frame) -> Frame:
        """Sizes that only a record can show equal become checks of the record."""
        waiting, frame.scope.sizes = frame.scope.sizes, []
        for a, b, span in waiting:
            equal = Value(node("apply", a, b, type=BOOL, fn="eq"), BOOL, span)
            frame = self.require(frame, "check", equal, span, "E0803")
        return frame

    def _share(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        if given.failed:
            return frame
        text = self.texts[call.span.file]
        remove = (Fix("leave it out", (Edit(whole_lines(text, call.span), ""),)),)
        end = given.get("end", "")
        if end not in ("", "drop", "pad", "uneven"):
            self.reader.bad(given.spans["end"], '`end` of `share` is "drop", "pad" or "uneven"', "", (
                "what ranks do with the last records, where there aren't equally many for all",))
            return frame
        first = frame.passed("share")
        if first is not None:
            self.problem("E0710", "`share` may stand only once", call.span, "a second time",
                         (Label(first, "shared here"),), (), remove)
            return frame
        if not self.top:
            self.problem("E0711", "`share` may stand only in the pipeline that is run", call.span,
                         "this pipeline is read by another", (), (), remove)
            return frame
        made = replace(frame, stream=self._node(frame, call, end=end))
        made.scope.below_share = True
        return made

    # --- stages that start a frame ------------------------------------------------------------------

    def _each(self, frame: Frame, call: tree.Call) -> Frame:
        names = [a.value.id for a in call.args if isinstance(a.value, tree.Name) and a.name is None]
        if len(names) != len(call.args) or not names:
            self.reader.bad(call.span, "`each` takes the names of fields", "", (f"for example: {SPECS['each'].example}",))
            return frame
        flat = dict(leaves(frame.fields))
        first: Dim | None = None
        for argument in call.args:
            value = self.elaborator.expr(frame.scope, argument.value)
            if not value.known:
                return frame
            assert isinstance(argument.value, tree.Name)
            if argument.value.id not in flat or not value.type.dims:
                self.reader.bad(argument.span, f"`{argument.value.id}` has no first dimension to take apart",
                                type_text(frame.scope, value.type),
                                ("it takes lists and tensors: each element becomes a record, with the other fields as they are",))
                return frame
            if first is not None and not self._same(frame, first, value.type.dims[0], argument.span, call):
                return frame
            first = value.type.dims[0] if first is None else first
        shaped = reshape(frame, "each", call.span, lambda n, t: Shape((), t.dims[1:] if n in names else t.dims), "keep")
        made = self._node(frame, call, fields=tuple(names), type=stream_type([
            *((n, v.type) for n, v in shaped.fields.items()), *((n, I64) for n in frame.hidden)]))
        dims = {n: d for n, d in frame.scope.dims.items() if not varies(d) or d in frame.hidden.values()}
        conditions = [c for c in frame.conditions if not any(n.op == "count" or n.get("field") in names or (
            n.op == "field" and n["name"] in names) for n in walk(c))]       # what isn't about the fields taken apart
        out = entered(frame, made, gathered(shaped.fields), frame.hidden, dims, conditions)
        out.stages = [*frame.stages, ("each", call.span)]
        return out

    def _same(self, frame: Frame, a: Dim, b: Dim, span: Span, call: tree.Call) -> bool:
        if self.elaborator.same_size(frame.scope, a, b, span):
            return True
        self.problem("E0203", "the fields of `each` must have equal first dimensions", span, "another length",
                     (Label(call.args[0].span, "the first one"),),
                     ("fields that aren't named are repeated for each element",))
        return False

    def _stack(self, frame: Frame, call: tree.Call, stream_args: list[Node], front: Dim, fill: bool, gaps: bool,
               smaller: bool, n_text: str, most: Node | None, **attrs: object) -> Frame:
        """`batch` and `window`: a dimension in front of every field."""
        shaped = reshape(frame, call.fn, call.span, lambda n, t: Shape((front,), t.dims, gaps), "pad" if fill else "spoil")
        sizes = sizes_as_fields(frame, front, self.taken)
        every = {**shaped.fields, **sizes}
        made = self._node(frame, call, *stream_args, type=stream_type((n, v.type) for n, v in every.items()), **attrs)
        conditions = [at_least(COUNT, 1)] if isinstance(front, Node) and front is COUNT else []
        if conditions and most is not None:
            conditions.append(at_most(COUNT, most))
        dims = {n: d for n, d in frame.scope.dims.items() if not varies(d)}
        every |= {n: unknown(s.value.span) for n, s in shaped.spoiled.items()}
        out = entered(frame, made, gathered(every), {}, dims, conditions, front)
        out.spoiled = dict(shaped.spoiled)
        out.stacked = [*frame.stacked, Stacked(call.fn, call.span, n_text, smaller)]
        return out

    def _batch(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        whole, pad = bool(given.get("whole")), bool(given.get("pad"))
        if given.failed:
            return self._stack(frame, call, [], COUNT, True, False, True, "", None, has=(), whole=False, pad=True, edges=())
        n, budget, by = given.get("n"), given.get("budget"), given.get("by")
        if (n is None) == (budget is None):
            self.reader.bad(call.span, "`batch` takes a number of records, or a `budget` of places",
                            "neither is given" if n is None else "both are given",
                            (f"for example: {SPECS['batch'].example}, batch(budget=40_000, by=length)",))
        if by is None and (budget is not None or "edges" in given):
            self.reader.bad(call.span, f"`{'budget' if budget is not None else 'edges'}` needs `by`, a record's length",
                            "not given", ("for example: batch(32, by=length, edges=[100, 200])",))
        if by is not None and budget is None and n is not None and "edges" not in given:
            self.reader.bad(given.spans["by"], "`by` needs `edges`, the lengths where one kind of batch ends and another begins",
                            "", ("for example: batch(32, by=length, edges=[100, 200])", "or a `budget` of places instead of n"))
        if budget is not None and whole:
            self.reader.bad(given.spans["whole"], "a batch by `budget` has no set number of records, so none is whole")
            whole = False
        args = [a for a in (n, by.node if by else None, budget) if a is not None]
        has = tuple(k for k, a in (("n", n), ("by", by), ("budget", budget)) if a is not None)
        front: Dim = as_dim(n) if whole and n is not None else COUNT
        text = self.context.text(given.spans["n"]) if "n" in given.spans else ""
        most = n if n is not None else budget
        return self._stack(frame, call, args, front, pad, False, not whole, text, most, has=has, whole=whole, pad=pad,
                           edges=tuple(given.get("edges", ())))

    def _window(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        rest, pad = given.get("rest", "keep"), bool(given.get("pad"))
        if given.failed:
            return self._stack(frame, call, [number(1), number(1)], COUNT, True, False, True, "", None, rest="keep", pad=True)
        if rest not in ("keep", "drop"):
            self.reader.bad(given.spans["rest"], '`rest` of `window` is "keep" or "drop"')
            rest = "keep"
        if rest == "drop" and pad:
            self.reader.bad(given.spans["pad"], "what is dropped isn't padded", reasons=(
                Label(given.spans["rest"], "drops the last, smaller window"),), notes=(
                '`pad=true` alone fills the last window up, `rest="drop"` alone leaves it out',))
            pad = False
        n = given.values["n"]
        smaller = rest == "keep" and not pad
        text = self.context.text(given.spans["n"])
        return self._stack(frame, call, [n, given.get("stride", n)], COUNT if smaller else as_dim(n), pad, pad, smaller,
                           text, n, rest=rest, pad=pad)

    def _pack(self, frame: Frame, call: tree.Call, given: Given) -> Frame:
        if given.failed:
            return frame
        n, by = given.values["n"], given.values["by"]
        opened = self._literal(given, "open", call)
        flat = dict(leaves(frame.fields))
        facts, length = frame.scope.facts or bounds.Facts(), by.node
        if not bounds.at_most(0, length, facts):     # `[… for i < by]` has max(by, 0) places
            length = node("apply", length, number(0), type=I64, fn="max")
        names = [k for k, v in flat.items() if v.type.dims and _same(v.type.dims[0], as_dim(length), facts)]
        if not names:
            self.reader.bad(given.spans["by"], f"no field has the length `{self.context.text(given.spans['by'])}`", "", (
                "the fields whose first dimension is this number are laid end to end",))
        if opened is None or not names:
            return frame
        width = as_dim(n)
        shaped = reshape(frame, "pack", call.span, lambda k, t: Shape((width,), t.dims[1:], True) if k in names
                         else Shape((COUNT,), t.dims), "spoil")
        extra = {k: Value(field_node(k, t), t, call.span) for k, t in (
            ("segment", replace(WEAK_INT, dims=(width,), missing=True)),
            ("position", replace(WEAK_INT, dims=(width,), missing=True)))}
        every = {**shaped.fields, **sizes_as_fields(frame, COUNT, self.taken), **extra}
        made = self._node(frame, call, n, length, open=opened or 64, fields=tuple(names),
                          type=stream_type((k, v.type) for k, v in every.items()))
        every |= {k: unknown(s.value.span) for k, s in shaped.spoiled.items()}
        out = entered(frame, made, gathered(every), {}, {k: d for k, d in frame.scope.dims.items() if not varies(d)},
                      [at_least(COUNT, 1)], COUNT)
        out.spoiled = dict(shaped.spoiled)
        out.stacked = [*frame.stacked, Stacked("pack", call.span, self.context.text(given.spans["n"]), True)]
        return out


def _same(a: int | Node, b: int | Node, facts: bounds.Facts) -> bool:
    """Are these sizes proved to be equal?"""
    return a is b or (bounds.at_most(a, b, facts) and bounds.at_most(b, a, facts))
