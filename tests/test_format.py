"""The formatter: one layout, the same tree, comments kept, and doing it twice changes nothing."""
from __future__ import annotations

from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipec.dsl import tree
from pipec.dsl.format import expr_text, format_text
from pipec.dsl.parse import parse, tokens
from pipec.dsl.problems import PipeError, Span

HERE = Span("", 0, 0)


def bare(value: Any) -> Any:
    """A tree without its spans and without the text of the file."""
    if isinstance(value, tuple):
        return tuple(bare(item) for item in value)
    if isinstance(value, tree.File):
        return bare(value.declarations)
    if is_dataclass(value):
        kept = (f.name for f in fields(value) if not f.name.endswith("span"))
        return (type(value).__name__, *((name, bare(getattr(value, name))) for name in kept))
    return (type(value).__name__, value)


def comments(text: str) -> list[str]:
    return [str(t).rstrip() for t in tokens(text) if t.type == "COMMENT"]


def formatted(text: str) -> str:
    new = format_text(text)
    assert bare(parse(new)) == bare(parse(text))
    assert comments(new) == comments(text)
    assert format_text(new) == new
    return new


MESSY = """\


#  top
use   Sample,standardize from"base.pipe"
param root:path="/data"#  where
param size=224 # side
param longer_name = [ 1 ,2 ] ;
""".replace(" ;", "") + """\


let   MEAN=[
0.485,0.456, # two
     # own line
        0.406,


        f( 1,
  2 ) ]
schema S
    jpg :bytes from"jpg"
    # a column
    x:i32 ? [ n ,3,size//2 , ... ]
    # the end of the body
# the next one
fn f( x : u8 [h,w],y:i64=- 3 )->( a:f32 , b : f32 )
\ta~uniform( - 1,+1 )
\tb=[sum(x [ i ,j]*- 2 for j<w) for i,k<3]
# in column 1, in the body
\tc = if not ( a<b ) then-a^- 2 else x[ 1 : , : n,:] ?? - 1

   # last
""".replace("+1", "1")

TIDY = """\
#  top
use Sample, standardize from "base.pipe"
param root: path = "/data"     #  where
param size = 224               # side
param longer_name = [1, 2]

let MEAN = [
  0.485, 0.456,  # two
  # own line
  0.406,

  f(1,
    2)]
schema S
  jpg: bytes from "jpg"
  # a column
  x: i32?[n, 3, size // 2, ...]
  # the end of the body
# the next one
fn f(x: u8[h, w], y: i64 = -3) -> (a: f32, b: f32)
  a ~ uniform(-1, 1)
  b = [sum(x[i, j] * -2 for j < w) for i, k < 3]
  # in column 1, in the body
  c = if not (a < b) then -a ^ -2 else x[1:, :n, :] ?? -1

  # last
"""


def test_messy_program():
    expected = TIDY.replace('"/data"     #', '"/data"  #').replace("224               #", "224            #")
    assert formatted(MESSY) == expected


def test_tidy_program_stays():
    assert formatted(TIDY) == TIDY


def test_comments_are_aligned_with_their_neighbours():
    text = "let a = 1  # x\nlet bcd = 2 # y\n\nlet e = 3 # z\nlet f = 4\nlet g = 5               # w\n"
    assert formatted(text) == (
        "let a = 1    # x\nlet bcd = 2  # y\n\nlet e = 3  # z\nlet f = 4\nlet g = 5               # w\n"
    )


def test_spaces():
    def line(text: str) -> str:
        return formatted(f"let x={text}\n").removeprefix("let x = ").rstrip()

    assert line("f(a=1,b=-2)") == "f(a=1, b=-2)"
    assert line("f(a=[ 1 ],b=(c))") == "f(a=[1], b=(c))"
    assert line("a-  -b") == "a - -b"
    assert line("x [ (a) : (b) ]  .  rate") == "x[(a):(b)].rate"
    assert line("a==b and(c)or[d][0]") == "a == b and (c) or [d][0]"
    assert line("lo<=j<hi") == "lo <= j < hi"
    assert line("3 . rate") == "3.rate"
    assert line("x[- 1]") == "x[-1]"
    long = " + ".join(f"name_{i}" for i in range(40))
    assert line(long) == long


def test_what_does_not_parse_is_refused():
    with pytest.raises(PipeError):
        format_text("let x = (\n")
    with pytest.raises(TypeError):
        expr_text(None)     # type: ignore[arg-type]


# --- trees of any shape -----------------------------------------------------------------------

NAMES = ["a", "bc", "x1", "seed", "let", "where", "_"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "^", "and", "or"]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]


def any_expr(random: Random, depth: int) -> Any:
    """An expression of any shape; not a hypothesis strategy over nodes, which is slow to shrink."""

    def inner() -> Any:
        return any_expr(random, depth - random.randint(1, 3))

    def some(least: int = 1) -> tuple[Any, ...]:
        return tuple(inner() for _ in range(random.randint(least, 3)))

    def name() -> str:
        return random.choice(NAMES)

    def maybe(value: Any) -> Any:
        return random.choice([value, None])

    def binders() -> tuple[tree.Binder, ...]:
        return tuple(tree.Binder(name(), maybe(inner()), HERE) for _ in range(random.randint(1, 3)))

    if depth <= 0:
        numbers = [0, 1, 2**64 - 1, 0.5, 1e-10, 1e300, random.randrange(10**6), random.random()]
        texts = ["", 'a"b', "\\n", "\n\t", "# no", "{a..b}", "日本"]
        return random.choice([
            tree.Name(name(), HERE), tree.Number(random.choice(numbers), HERE), tree.String(random.choice(texts), HERE),
            tree.Truth(random.random() < 0.5, HERE),
        ])  # fmt: skip
    match random.randrange(11):
        case 0:
            return tree.Array(some(), HERE)
        case 1:
            return tree.Build(inner(), binders(), HERE)
        case 2:
            return tree.Reduce(name(), HERE, inner(), binders(), HERE)
        case 3:
            args = tuple(tree.Argument(maybe(name()), value, HERE) for value in some(0))
            return tree.Call(name(), HERE, args, HERE)
        case 4:
            slices = tuple(tree.Slice(maybe(inner()), maybe(inner()), HERE) for _ in range(2))
            return tree.At(inner(), random.choice([some(), slices, (*some(), *slices)]), HERE)
        case 5:
            return tree.Part(inner(), name(), HERE, HERE)
        case 6:
            return tree.Filled(inner(), inner(), HERE)
        case 7:
            return tree.Unary(random.choice(["-", "not"]), inner(), HERE)
        case 8:
            return tree.If(inner(), inner(), inner(), HERE)
        case 9:
            terms = (inner(), *some())
            return tree.Compare(terms, tuple(random.choice(COMPARISONS) for _ in terms[1:]), HERE)
    return tree.Binary(random.choice(OPERATORS), inner(), inner(), HERE, HERE)


SEEDS = st.integers(0, 2**40)


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_text_of_any_expression_reads_back(seed: int):
    expr = any_expr(Random(seed), 7)
    text = f"let x = {expr_text(expr)}\n"
    assert bare(parse(text).declarations[0].value) == bare(expr)
    assert format_text(text) == text


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_any_spacing_formats_to_the_same_tree(seed: int):
    random = Random(seed)
    rows = ["param p: f32[n, 3] = 1 # help", "pipeline q", "  from f ( x ) as S"]
    rows += [f"  y{i}: i64 = {expr_text(any_expr(random, 5))} # c{i}" for i in range(2)]
    rows += ["  z ~ [f(a = 1) for i < 3]", "  # own", "  emit y0: f32[1, 2], z"]
    text = ""
    for row in rows:
        depth = 0
        text += " " * (len(row) - len(row.lstrip()))
        for token in tokens(row):
            depth += (token.type in ("LPAR", "LSQB")) - (token.type in ("RPAR", "RSQB"))
            gaps = [" ", "  ", "\t", "\n    ", "  # in\n  "] if depth else [" ", "   ", "\t"]
            if token.type in ("THEN", "ELSE") and random.random() < 0.5:
                text += random.choice(["\n ", "  # before\n      ", "\n\n\t", "\n"])
            text += str(token) + ("" if token.type == "COMMENT" else random.choice(gaps))
        text += random.choice(["\n", "\n\n", "\n\n\n  # c\n"])
    formatted(text)


def test_rows_that_go_on_with_a_choice():
    text = """pipeline q
  from f(x) as S
  y = if a then 1
      else if b then g(
        2)                  # two
      # or
      else 3
  w = if a
      then 1
      else 2
  z = [if a then 1
       else 2 for i < 3]
"""
    assert format_text(text) == text.replace("      # or", "  # or")
    flat = text.replace("      # or\n", "").replace("  # two", "")
    flat = flat.replace("\n      then", " then").replace("\n      else", " else").replace("\n       else", " else")
    assert bare(parse(text)) == bare(parse(flat))
