"""A hypothesis strategy for whole `.pipe` programs over one small .npz file, with only defined behaviour.

A program that doesn't check, or fails while it runs, is a bug. Expressions and lines come from `generated_lines`.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from generated_data import COLUMNS, SAFE, Kind
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


@st.composite
def programs(draw: Callable, lines: int = 6, depth: int = 3) -> str:
    """The text of a program that reads `{data}` (to be put in by `str.replace`)."""
    w = Writer(draw)
    declared = functions(w)
    w.names = {name: kind for name, (_, kind) in COLUMNS.items()}
    w.bounds["size"] = 6
    body: list[str] = []
    for _ in range(w.number(1, lines)):
        w.add(body, depth)
        if w.chance(8):
            body.append(f"where {w.truth(1)}")
        if w.chance(12):
            name = w.fresh("o")
            body += [f"{name} ~ sample(other)", f"{name}y = {name}.y", f"{name}z = {name}.z"]
            w.names |= {f"{name}y": Kind("float", ("3",)), f"{name}z": Kind("int", (), 255)}
    order = w.pick(("", "", "shuffle()", "shuffle(chunk=4, mix=2)", "shuffle(window=5)", "take(11)", "repeat(2)",
                    "shuffle() repeat(2)", "balance(few) shuffle()"))
    for stage in order.replace(") ", ")|").split("|"):
        if stage:
            last = next((i for i, line in enumerate(body) if "sample(" in line), len(body))
            body.insert(0 if "balance" in stage else w.number("balance(few)" in body, last), stage)
    if w.chance(8):
        body = ["skip_bad(at_most=1.0)", *body, f"check({w.truth(1)})"]
    shared = w.chance(3)
    if shared:
        body.append("share()")
        if w.chance(2):
            w.add(body, depth - 1)
    elif w.chance(6):
        _each(w, body)
    if w.chance(2):
        _batch(w, body, depth)
        if not shared and w.chance(4):
            body.append("share()")
            w.add(body, 1)
    emitted = _emitted(w)
    lines_of_p = [*body, f"emit {', '.join(emitted)}"]
    used = {"n", *re.findall(r"\w+", " ".join(lines_of_p))}
    columns = [f"  {name}: {text}" for name, (text, _) in COLUMNS.items() if used & {name, *re.findall(r"\bw\b", text)}]
    if any("sample(other)" in line for line in body):
        declared += ["pipeline other", '  from npz("{data}") as Row', "  shuffle()", "  r ~ uniform(0, 1)",
                     "  y = [v[i] * r for i]", "  z = b", "  emit y, z", ""]
        lines_of_schema = {name: f"  {name}: {text}" for name, (text, _) in COLUMNS.items()}
        columns = [line for name, line in lines_of_schema.items() if line in columns or name in ("v", "b")]
    if w.chance(4):
        declared = ["param scale = 3", "let HALF = 0.5", "let TABLE = [2, 3, 5]", "", *declared]
        lines_of_p[-1:-1] = ["scaled_up = scale * HALF + TABLE[1]"]
        lines_of_p[-1] += ", scaled_up"
    return "\n".join(["seed 11", "", "schema Row", *columns, "", *declared, "pipeline p", '  from npz("{data}") as Row',
                      *(f"  {line}" for line in lines_of_p), ""])


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
    if w.chance(5) and "size" in w.names:
        whole, form = False, w.pick((f"batch({n}, by=size, edges=[1, 4]", "batch(budget=17, by=size + 1"))
    first = str(n) if whole else "rows"
    pad = bool(ragged) and w.chance(2)
    body.append(form + (", pad=true)" if pad else ")"))
    w.batched = True
    w.names_above = dict(w.names)
    w.bounds = {"rows": 8}
    names = {}
    for name, k in w.names.items():
        if name in ragged or "w" in k.dims:
            continue
        names[name] = Kind(k.base, (first, *k.dims), k.bound)
    w.names = {name: k for name, k in names.items() if len(k.dims) <= 3}
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
    return (kept[-6:] + ([w.pick([n for n in w.names if n in COLUMNS])] if w.chance(2) or not kept else [])) or ["n"]
