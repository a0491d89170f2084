"""A hypothesis strategy for whole `.pipe` programs over a small .npz or Parquet file, with only defined behaviour.

A program that doesn't check, or fails while it runs, is a bug. Expressions and lines come from `generated_lines`.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from generated_data import COLUMNS, GAPS, SAFE, TABLE, Kind
from generated_lines import Writer
from hypothesis import strategies as st


@dataclass(frozen=True)
class Case:
    """How a program is run: the epoch, passes left out, threads, positions per task (None: as ever), and after how many
    deliveries the run is broken off and resumed from its state (None: never). `narrow`: what can cross the ring narrow does."""

    epoch: int = 0
    without: tuple[str, ...] = ()
    threads: int = 2
    chunk: int | None = None
    resumed: int | None = None
    narrow: bool = False


def cases() -> st.SearchStrategy[Case]:
    from pipec.compiler.compile import pass_names

    names = pass_names()
    left_out = st.one_of(st.just(()), st.sets(st.sampled_from(names)).map(lambda s: tuple(n for n in names if n in s)))
    return st.builds(Case, epoch=st.sampled_from((0, 1, 7)), without=left_out, threads=st.integers(1, 4),
                     chunk=st.sampled_from((None, 1, 3, 64)), resumed=st.sampled_from((None, 1, 2, 5)), narrow=st.booleans())


def functions(w: Writer) -> list[str]:
    """Declarations of a few functions, with dims and with a draw."""
    out: list[str] = []
    if w.chance(2):
        inner = Writer(w.draw, {"a": Kind("float"), "k": Kind("int", (), SAFE)}, bounds={})
        inner.made = 500
        out += ["fn scaled(a: f32, k: i64) -> f32", f"  f32({inner.scalar('float', 2)})", ""]
        w.functions["scaled"] = ((Kind("float"), Kind("int")), Kind("float"))
    if w.chance(3):
        inner = Writer(w.draw, {"y": Kind("float", ("len",)), "z": Kind("float", ("len",))}, {"j": "len"}, bounds={"len": 40})
        inner.made = 600
        out += ["fn across(y: f32[len]) -> f32", "  z = [y[i] * 0.5 for i]",
                f"  f32(sum({inner.scalar('float', 2)} for j < len))", ""]
        w.functions["across"] = ((Kind("float", ("len",)),), Kind("float"))
    if w.chance(4):
        out += ["fn ends(y: f32[len]) -> (low: f32, all: f32[len])", "  low = min(y) ?? 0", "  all = [y[i] - low for i]", ""]
        w.functions["ends"] = ((Kind("float", ("len",)),), Kind("struct"))
    if w.chance(4):
        out += ["fn noise(a: f32) -> f32", "  g ~ normal()", "  i ~ integers(0, 3)", "  a + g * i", ""]
        w.functions["noise"] = ((Kind("float"),), Kind("drawn"))
    return out


@dataclass(frozen=True)
class Source:
    """Where the records of `p` come from: the line, the pipelines before it, and what its fields are called there."""

    line: str
    file: str
    table: bool = False
    pipelines: tuple[str, ...] = ()
    given: str = ""              # before the names of fields

    @property
    def columns(self) -> dict[str, tuple[str, Kind]]:
        return TABLE if self.table else COLUMNS


def sources(w: Writer) -> Source:
    table = w.chance(3)
    file = 'parquet("{data}.parquet")' if table else 'npz("{data}")'
    match w.number(0, 11):
        case 10:
            until = w.pick(('"first"', '"all"', "25"))
            weights = w.pick((", weights=[0.7, 0.3]", ""))
            below = w.pick((("shuffle()",), ("where few < 2",), ("shuffle(chunk=4, mix=2)", "where flag"), (),
                            ("skip_bad(at_most=0.9)", "shuffle()", "check(n % 5 != 0)")))
            return Source(f"mix(left, right{weights}, until={until})", file, table, (
                "pipeline left", f"  from {file} as Row", "", "pipeline right", f"  from {file} as Row",
                *(f"  {line}" for line in below), ""))
        case 11:
            return Source("zip(one=left, two=right)", file, table, (
                "pipeline left", f"  from {file} as Row", "", "pipeline right", f"  from {file} as Row",
                "  shuffle()", ""), "one.")
    return Source(f"{file} as Row", file, table)


@st.composite
def programs(draw: Callable, lines: int = 6, depth: int = 3) -> str:
    """The text of a program that reads `{data}` (to be put in by `str.replace`)."""
    w = Writer(draw)
    declared = functions(w)
    source = sources(w)
    w.names = {name: kind for name, (text, kind) in source.columns.items() if name not in GAPS}
    w.bounds["size"] = 6
    w.table = source.table
    w.epochs = w.chance(4)
    body: list[str] = []
    for _ in range(w.number(1, lines)):
        _line(w, body, depth)
    _order(w, body, source)
    if not source.pipelines and w.chance(8):
        body = ["skip_bad(at_most=1.0)", *body, f"check({w.truth(1)})"]
    w.epochs = False      # a size may depend on it only with a bound
    _stages(w, body, depth)
    if w.chance(4):
        body.append("scaled_up = scale * HALF + TABLE[1]")
        declared = ["param scale = 3", "let HALF = 0.5", "let TABLE = [2, 3, 5]", "", *declared]
        w.names["scaled_up"] = Kind("float")
    return _text(source, declared, [*body, f"emit {', '.join(_emitted(w))}"])


def _line(w: Writer, body: list[str], depth: int) -> None:
    """A line, and now and then a condition, a proof or a record of another pipeline."""
    w.add(body, depth)
    if w.chance(8):
        body.append(f"where {w.truth(1)}")
    if w.chance(10) and not w.proved and all(w.names.get(n, Kind("none")).dims for n in ("iv", "mask", "v")):
        w.proved = True      # a second one might contradict the first, and prove nothing
        made, name, k = w.proven()
        body += made
        w.names[name] = k
    if w.chance(12):
        name = w.fresh("o")
        body += [f"{name} ~ sample(other)", f"{name}y = {name}.y", f"{name}z = {name}.z"]
        w.names |= {f"{name}y": Kind("float", ("3",)), f"{name}z": Kind("int", (), 255)}


def _order(w: Writer, body: list[str], source: Source) -> None:
    """Stages that say which records there are, and in which order."""
    plain = not source.pipelines
    order = w.pick(("", "take(11)", "", *(("shuffle()", "shuffle(chunk=4, mix=2)", "shuffle(window=5)", "repeat(2)",
                                          "shuffle() repeat(2)", "balance(few) shuffle()") if plain else ())))
    for stage in order.replace(") ", ")|").split("|"):
        if stage:
            last = next((i for i, line in enumerate(body) if "sample(" in line), len(body))
            body.insert(0 if "balance" in stage else w.number("balance(few)" in body, last), stage)


def _stages(w: Writer, body: list[str], depth: int) -> None:
    """What stands below the lines about a record: `share`, `each`, `window`, `pack`, `batch`."""
    shared = w.chance(3)
    if shared:
        body.append("share()")
        if w.chance(2):
            w.add(body, depth - 1)
    elif w.chance(6):
        _each(w, body)
    elif w.chance(8) and not _window(w, body):
        return
    elif w.chance(6) and _pack(w, body):
        pass
    if w.chance(2):
        _batch(w, body, depth)
        if not shared and w.chance(4):
            body.append("share()")
            w.add(body, 1)


def _text(source: Source, declared: list[str], body: list[str]) -> str:
    used = {"n", *re.findall(r"\w+", " ".join([*body, *source.pipelines]))}
    sampled = any("sample(other)" in line for line in body)
    needed = {name for name, (text, _) in source.columns.items() if used & {name, *re.findall(r"\bw\b", text)}}
    if sampled:
        declared = [*declared, "pipeline other", f"  from {source.file} as Row", "  shuffle()", "  r ~ uniform(0, 1)",
                    "  y = [v[i] * r for i]", "  z = b", "  emit y, z", ""]
    held = needed | ({"v", "b"} if sampled else set())
    columns = [f"  {name}: {text}" for name, (text, _) in source.columns.items() if name in held]
    if source.pipelines:
        given = [f"{name}: {text} = {source.given}{name}" for name, (text, _) in source.columns.items() if name in needed]
        body = given + body
    return "\n".join(["seed 11", "", "schema Row", *columns, "", *declared, *source.pipelines, "pipeline p",
                      f"  from {source.line}", *(f"  {line}" for line in body), ""])


def _window(w: Writer, body: list[str]) -> bool:
    """Are all windows equally large, so that they may be batched?"""
    n = w.number(2, 3)
    drop = w.chance(2)
    stride, rest = w.pick(("", ", stride=1", ", stride=5")), ', rest="drop"' if drop else ""
    body.append(f"window({n}{stride}{rest})")
    _stacked(w, str(n) if drop else "rows")
    return drop


def _pack(w: Writer, body: list[str]) -> bool:
    """Rows of records of length `size`; what is put end to end is filled."""
    along = [n for n, k in w.names.items() if k.dims == ("size",)]
    if "size" not in w.names or not along or w.names["size"].dims:
        return False
    body.append(f"pack({w.number(6, 9)}, by=size{w.pick(('', ', open=2'))})")
    kinds = {n: w.names[n] for n in along}
    w.batched, w.table, w.texts, w.bounds = True, False, [], {"rows": 9}
    body += [f"{n} = {n} ?? {'false' if k.base == 'bool' else 0}" for n, k in kinds.items()]
    body += ["segment = segment ?? 0", "position = position ?? -1", "count = sum(size[q] for q)"]
    w.names = {n: Kind(k.base, ("rows",), k.bound) for n, k in kinds.items()} | {
        "segment": Kind("int", ("rows",), 19), "position": Kind("int", ("rows",), 9), "count": Kind("int", (), 99)}
    return True


def _stacked(w: Writer, first: str) -> dict[str, Kind]:
    """The fields with a dimension more; those that can't be stacked are gone."""
    w.batched, w.table = True, False
    w.names_above = dict(w.names)
    w.bounds = {"rows": 8}
    names = {name: Kind(k.base, (first, *k.dims), k.bound) for name, k in w.names.items()
             if not {"size", "w"} & set(k.dims)}
    w.names = {name: k for name, k in names.items() if len(k.dims) <= 3}
    return names


def _each(w: Writer, body: list[str]) -> None:
    vectors = [n for n, k in w.names.items() if k.dims and k.dims[0] in ("3", "w", "size")]
    if vectors:
        name = w.pick(vectors)
        body.append(f"each({name})")
        k = w.names[name]
        w.names[name] = Kind(k.base, k.dims[1:], k.bound)
        w.add(body, 1)


def _batch(w: Writer, body: list[str], depth: int) -> None:
    """`batch` and lines on whole batches; fields whose size differs are left out, or padded and filled."""
    ragged = [n for n, k in w.names.items() if "size" in k.dims]
    n = w.number(1, 7)
    whole = w.chance(3)
    form = f"batch({n}, whole=true" if whole else f"batch({n}"
    if w.chance(5) and "size" in w.names and not w.names["size"].dims:
        whole, form = False, w.pick((f"batch({n}, by=size, edges=[1, 4]", "batch(budget=17, by=size + 1"))
    first = str(n) if whole else "rows"
    pad = bool(ragged) and w.chance(2)
    body.append(form + (", pad=true)" if pad else ")"))
    names = _stacked(w, first)
    for name in ragged:
        if pad:
            body.append(f"{name} = {name} ?? {'false' if w.names_above[name].base == 'bool' else '0'}")
    for _ in range(w.number(0, 2)):
        w.add(body, depth - 1)
    w.names |= {name: k for name, k in names.items() if name not in w.names}
    if pad:
        w.names |= {name: Kind("float", ("rows", "pad")) for name in ragged}


def _emitted(w: Writer) -> list[str]:
    """The lines' results, and some fields; never one of a size that can't be delivered."""
    made = [n for n in w.names if n not in COLUMNS]
    kept = [n for n in made if not w.chance(6)] or made
    fields = [n for n in w.names if n in COLUMNS]
    return (kept[-6:] + w.texts[-2:] + ([w.pick(fields)] if fields and (w.chance(2) or not kept) else [])) or ["n"]
