"""Text to tree: spans, layout, and every slip with the edit that repairs it."""
from __future__ import annotations

import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipec.dsl import tree
from pipec.dsl.parse import MAX_PROBLEMS, parse, parse_head, read
from pipec.dsl.problems import PipeError, Problem, Span
from pipec.dsl.render import apply_edits, render

PROGRAM = """\
# A comment that belongs to the file.
use Sample, standardize from "base.pipe"

param root: path = "/data"     # where the data is
param size = 224
param need: i64
seed 17

let MEAN = [
  0.485, 0.456,   # two
  0.406,
]

schema Rec
  jpg: bytes from "jpg|png"
  counts: i32?[13]
  dense: f32[n, 3, size // 2, ...]

fn f(x: u8[h, w], y: i64 = 3) -> (a: f32[h], b: i64)
  g ~ uniform(0, 1)
  a = [sum(x[i, j] * 2 for j < w) for i]
  b = y

extern fn user(x: any) -> any from "mod:name"

pipeline other(files: path)
  from bin(files) as Rec
  window(size + 1, stride=size)

pipeline train
  from mix(other(root), weights=[1, 2])
  where 0 < size <= 10 and not all(missing(counts))
  k ~ [integers(0, 10) for i < 3, j]
  z: f32[3] = if a then -b ^ 2 else (c + d) * e ?? -1
  m = x[i, 1:, :n, :].rate
  batch(32)
  emit z: f32[32, 3], m
"""


def program(body: str) -> str:
    return f'schema S\n  x: f32[4]\n\npipeline p\n  from tar("a.tar") as S\n{body}'


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(PipeError) as caught:
        parse(text, "t.pipe")
    render(caught.value.problems, caught.value.texts)
    return caught.value.problems


def nodes(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [n for item in value for n in nodes(item)]
    if is_dataclass(value) and not isinstance(value, Span):
        return [value] + [n for f in fields(value) for n in nodes(getattr(value, f.name))]
    return []


def test_whole_program():
    file = parse(PROGRAM, "p.pipe")
    kinds = [type(d).__name__ for d in file.declarations]
    assert kinds == ["Use", "Param", "Param", "Param", "Seed", "Let", "Schema", "Fn", "Extern", "Pipeline", "Pipeline"]
    use, root, size, need, seed, let, schema, fn, extern, other, train = file.declarations
    assert [n.id for n in use.names] == ["Sample", "standardize"] and use.path.value == "base.pipe"
    assert (root.help, size.help, need.default, seed.value) == ("where the data is", "", None, 17)
    assert [n.value for n in let.value.items] == [0.485, 0.456, 0.406]
    assert [c.source and c.source.value for c in schema.columns] == ["jpg|png", None, None]
    assert schema.columns[1].type.missing and schema.columns[2].type.rest
    assert [f.name for f in fn.head.results] == ["a", "b"] and fn.head.result is None
    assert isinstance(fn.steps[0], tree.Draw) and isinstance(fn.steps[1].value.body, tree.Reduce)
    assert extern.target.value == "mod:name" and other.formals[0].name == "files"
    names = [type(line).__name__ for line in train.lines]
    assert names == ["From", "Where", "Draw", "Bind", "Bind", "Stage", "Emit"]
    assert [b.name for b in train.lines[2].binders] == ["i", "j"]
    chosen = train.lines[3].value
    assert isinstance(chosen, tree.If) and chosen.then.op == "-" and chosen.then.value.op == "^"
    assert isinstance(chosen.other.right, tree.Filled)
    at = train.lines[4].value.value
    assert [type(i).__name__ for i in at.indexes] == ["Name", "Slice", "Slice", "Slice"]
    assert at.indexes[1].stop is None and at.indexes[2].start is None


def test_spans_are_exact():
    file = parse(PROGRAM, "p.pipe")

    def text(span: Span) -> str:
        return PROGRAM[span.start : span.end]

    for node in nodes(file.declarations):
        assert node.span.file == "p.pipe"
        match node:
            case tree.Name():
                assert text(node.span) == node.id
            case tree.Number():
                assert float(text(node.span).replace("_", "")) == node.value
            case tree.Binary():
                assert text(node.op_span) == node.op
            case tree.Call() | tree.Reduce():
                assert text(node.fn_span) == node.fn and text(node.span).endswith(")")
            case tree.Formal() | tree.Param() | tree.Let() | tree.Column() | tree.Bind() | tree.Draw() | tree.Head():
                assert text(node.name_span) == node.name
            case tree.TypeExpr():
                assert text(node.dtype_span) == node.dtype and text(node.span).startswith(node.dtype)
    chosen = file.declarations[-1].lines[3].value
    assert text(chosen.other.span) == "(c + d) * e ?? -1"
    assert text(chosen.other.left.span) == "c + d"
    assert text(file.declarations[-1].span).endswith("emit z: f32[32, 3], m")


def test_precedence():
    def shape(e: Any) -> str:
        match e:
            case tree.Binary(op=op, left=a, right=b):
                return f"({shape(a)}{op}{shape(b)})"
            case tree.Unary(op=op, value=a):
                return f"({op} {shape(a)})"
            case tree.Compare(operands=operands, ops=ops):
                return "<" + "".join(f"{shape(o)}{op}" for o, op in zip(operands, (*ops, ""), strict=True)) + ">"
            case tree.Filled(value=a, default=b):
                return f"({shape(a)}??{shape(b)})"
            case tree.Name(id=name):
                return name
        return str(e.value)

    def expr(text: str) -> str:
        return shape(parse(f"let x = {text}").declarations[0].value)

    assert expr("a or b and not c < d <= e") == "(aor(band(not <c<d<=e>)))"
    assert expr("a - b - c * d") == "((a-b)-(c*d))"
    assert expr("-a ^ -b ^ c") == "(- (a^(- (b^c))))"
    assert expr("a ?? b ?? -1 * 2") == "(((a??b)??(- 1))*2)"


def test_heads():
    head = parse_head("resize(img: any[h, w, ...], filter: text = \"x\") -> any[height, ...]")
    assert head.name == "resize" and head.formals[1].default.value == "x" and head.result.rest
    assert [f.name for f in parse_head("d(x: bytes) -> (a: f32[n, 2], rate: i64)").results] == ["a", "rate"]
    for wrong in ("f(x) -> f32", "f(x: f32)", "f(x: f32) -> f32\ng() -> f32", ""):
        with pytest.raises(PipeError):
            parse_head(wrong)


def test_layout_is_lenient_where_it_means_nothing():
    same = ["pipeline p\n  x = f(1,\n2)\n  emit x\n", "pipeline p\r\n\tx = f(1,\r\n\r\n 2)\r\n\temit x",
            "\ufeffpipeline p\n   # a comment\n\n  x = f(1, 2) # more\n      emit x\n\n"]  # fmt: skip
    for text in same:
        (p,) = parse(text).declarations
        assert [type(line).__name__ for line in p.lines] == ["Bind", "Emit"]
    # words of declarations are names elsewhere
    parse("schema S\n  seed: i64\n  let: f32\n\npipeline use\n  from param(fn) as schema\n  where seed > let\n")


# A line of a pipeline (or a whole file) and its code; every fix must leave a text that parses.
SLIPS = [
    ("E0001", program("  y = x;\n")),
    ("E0001", program("  y = x \\\n    + 1\n")),
    ("E0001", program("  y = x\u00a0+ 1\n")),
    ("E0001", program("  größe = x\n")),
    ("E0001", program("  y = x $ 1\n").replace(" $ 1", " + 1$")),
    ("E0002", program("  y = f(x, [1, 2\n  emit y\n")),
    ("E0002", "let a = [1, 2\nlet b = 3\n"),
    ("E0002", program("  y = f(x")),
    ("E0003", program("  y = f(x))\n")),
    ("E0003", program("  y = f(x]\n")),
    ("E0003", program("  y = f(x[1)\n")),
    ("E0004", "let a = 1\n  let b = 2\n"),
    ("E0004", "  let a = 1\n"),
    ("E0004", "let a = 1\n  + 2\n"),
    ("E0004", program("y = x\nemit y\n")),
    ("E0004", 'pipeline p\nfrom tar("a") as S\ny = x\nemit y\n\nlet a = 1\n'),
    ("E0005", "pipeline p\n"),
    ("E0005", "fn f(x: i64) -> i64   # nothing\n\nlet a = 1\n"),
    ("E0005", "schema S\n"),
    ("E0007", program("  y = x +\n    1\n")),
    ("E0007", program("  y = x\n    + 1\n  emit y\n")),
    ("E0008", program("  from = x\n")),
    ("E0008", program("  emit x, for\n")),
    ("E0008", "schema S\n  where: f32\n"),
    ("E0009", "pipline p\n  from a\n"),
    ("E0009", "SIZE = 3\n"),
    ("E0014", program('  y = f("abc)\n')),
    ("E0014", program("  y = f('abc)\n")),
    ("E0014", program('  y = f("a\\d")\n')),
    ("E0020", program("  y = x ** 2\n")),
    ("E0020", program("  where (x > 1) & (x < 2)\n")),
    ("E0020", program("  where x > 1 || x < 2\n")),
    ("E0020", program("  where x > 1&&!y\n")),
    ("E0020", program("  y += x * 2\n")),
    ("E0020", program("  y := x\n")),
    ("E0020", program("  y = x ≤ 3\n")),
    ("E0020", "fn f(x: i64) => i64\n  x\n"),
    ("E0021", program("  y = f('bilinear')\n")),
    ("E0021", program("  y = f(“it's \\d”)\n")),
    ("E0021", program("  y = f('say \"hi\"')\n")),
    ("E0021", program('  y = f(f"{root}")\n')),
    ("E0022", program("  y = x if c else 0\n")),
    ("E0022", program("  y = f(x + 1 if c and d else x[1], 2)\n")),
    ("E0022", program("  y = if c: x else: 0\n").replace("else:", "else")),
    ("E0022", program("  y = if c then x else: 0\n")),
    ("E0022", program("  y = if c x else 0\n")),
    ("E0022", program("  y = if c then x\n")),
    ("E0022", program("  y = if c then x elif d then 2 else 0\n")),
    ("E0022", program("  y = c ? x : 0\n")),
    ("E0023", program("  y = f(x, antialias=True)\n")),
    ("E0023", program("  y = if x == None then 1 else 2\n")),
    ("E0023", program("  where x[1] is not None\n")),
    ("E0023", program("  y = f(x, axis=None)\n")),
    ("E0023", program("  y = f(axis=None, k=2)\n")),
    ("E0023", program("  y = f(x, None)\n")),
    ("E0024", program("  y = x[:, None]\n")),
    ("E0024", program("  y = x - MEAN[:, None, None]\n")),
    ("E0024", program("  y = a.b[None, :, i]\n")),
    ("E0025", program("  where x = 3\n")),
    ("E0025", program("  y = if x = 3 then 1 else 2\n")),
    ("E0025", program("  y == x\n")),
    ("E0025", "let a == 3\n"),
    ("E0026", "schema S\n  x f32\n"),
    ("E0026", "schema S\n  x = f32\n"),
    ("E0026", 'schema S\n  x: f32 "a"\n'),
    ("E0026", "fn f(x f32, y: f32) -> f32\n  x\n"),
    ("E0026", "fn f(x, y: f32) -> f32\n  x\n"),
    ("E0026", "fn f(x: f32)\n  x\n"),
    ("E0026", "fn f(x: f32): f32\n  x\n"),
    ("E0026", "fn f(x: f32) f32\n  x\n"),
    ("E0026", "fn f(x: f32):\n  x\n"),
    ("E0026", "fn f(x: f32) -> f32:\n  x\n"),
    ("E0026", "pipeline p:\n  from a\n"),
    ("E0026", 'extern fn f(x: f32) -> f32 "a:b"\n'),
    ("E0026", 'use a, b "c.pipe"\n'),
    ("E0026", 'pipeline p\n  tar("a") as S\n'),
    ("E0027", "def f(x: f32) -> f32\n  x\n"),
    ("E0027", "import mean\n"),
    ("E0027", "from lib.stats import mean, std\n"),
    ("E0028", program("  y = map(lambda a: a + 1, x)\n")),
    ("E0029", program("  for i in range(4):\n    y = x[i] * 2\n  emit y\n")),
    ("E0029", program("  for v in x:\n    y = v * v\n  emit y\n")),
    ("E0029", program("  y = [v * 2 for v in x]\n")),
    ("E0029", program("  y = sum(x[i] for i in range(len(x)))\n")),
    ("E0030", program("  emit x,\n")),
    ("E0030", program("  y = x[1,]\n")),
    ("E0030", program("  y = f(x,, 2)\n")),
    ("E0030", program("  y = [x[i] for i,]\n")),
    ("E0030", 'use a, from "b.pipe"\n'),
    ("E0030", "pipeline p()\n  from a\n"),
    ("E0031", "fn f(x: f32) -> f32\n  return x\n"),
    ("E0031", program("  return x\n")),
    ("E0031", program('  assert x > 0, "no"\n')),
    ("E0032", program("  y = x.mean()\n")),
    ("E0032", program("  y = x[1].clip(0, 1) + 2\n")),
    ("E0032", program("  y = np.exp(x)\n")),
    ("E0032", program("  y = random.uniform(0, 1)\n")),
    ("E0032", program("  y ~ torch.rand()\n")),
    ("E0033", program("  y = (x, 1)\n")),
    ("E0033", program("  a, b = f(x)\n")),
    ("E0033", program("  a, b = x, 2\n")),
    ("E0033", program("  a = x, 2\n")),
    ("E0034", program("  y ~ 3\n")),
    ("E0034", program("  y ~ f\n")),
    ("E0034", program("  y ~ uniform(0, 1) * 3\n")),
    ("E0034", program("  where ~ready\n")),
    ("E0035", program("  shuffle\n")),
    ("E0035", program("  batch 32\n")),
    ("E0036", program("  y = x + .5\n")),
    ("E0036", program("  y = x + 1.\n")),
    ("E0036", program("  y = 0xff\n")),
    ("E0036", program("  y = 3x\n")),
    ("E0038", program("  // a comment\n")),
    ("E0038", program('  """What it does."""\n  emit x\n')),
    ("E0035", program("  batch(32).shuffle()\n")),
    ("E0006", program("  y = max(x[0] 1)\n")),
    ("E0006", program("  emit x y\n")),
    ("E0025", program("  y = f(x, k: 3)\n")),
]


@pytest.mark.parametrize(("code", "text"), SLIPS)
def test_slip_is_named_and_every_fix_repairs_it(code: str, text: str):
    found = problems(text)
    assert {p.code for p in found} == {code}, render(found, {"t.pipe": text})
    repaired = text
    edits = []
    for problem in found:
        assert len(problem.fixes) == 1, problem.title
        assert problem.title[0] not in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" and not problem.title.endswith(".")
        edits += problem.fixes[0].edits
    repaired = apply_edits(text, edits)
    parse(repaired, "t.pipe")


@pytest.mark.parametrize(
    ("code", "line"),
    [("E0001", 'y = {"a": 1}'), ("E0001", "y = a @ b"), ("E0037", "y = x[::2]"), ("E0037", "y = x[..., 0]"),
     ("E0031", "if x > 3:"), ("E0031", "while x:"), ("E0033", "y = ()"), ("E0033", "y = []"), ("E0023", "y = None"),
     ("E0006", "y = f(x)(2)"), ("E0007", "y = -"), ("E0007", "emit"), ("E0024", "y = x[..., None]")],
)  # fmt: skip
def test_what_no_edit_repairs_gives_one_problem(code: str, line: str):
    assert [p.code for p in problems(program(f"  {line}\n  emit x\n"))] == [code]


def test_repairs_mean_what_was_meant():
    def repaired(line: str) -> str:
        found = problems(program(f"  {line}\n"))
        edits = [edit for p in found for edit in p.fixes[0].edits]
        return apply_edits(program(f"  {line}\n"), edits).split("as S\n  ")[1].rstrip()

    assert repaired("y = f(x + 1 if c and d else x[1], 2)") == "y = f(if c and d then x + 1 else x[1], 2)"
    assert repaired("y = x[:, None]") == "y = [x[i] for i, j < 1]"
    assert repaired("where x > 1&&!y") == "where x > 1 and not y"
    assert repaired("y += x * 2") == "y = y + (x * 2)"
    assert repaired("y = [v * 2 for v in x]") == "y = [x[i] * 2 for i]"
    assert repaired("y = sum(x[i] for i in range(len(x)))") == "y = sum(x[i] for i < len(x))"
    assert repaired("y = random.uniform(0, 1)") == "y ~ uniform(0, 1)"
    assert repaired("y = x[1].clip(0, 1) + 2") == "y = clip(x[1], 0, 1) + 2"
    assert repaired("a, b = f(x)") == "a_b = f(x)\n  a = a_b.a\n  b = a_b.b"
    assert repaired("y ~ uniform(0, 1) * 3") == "y_drawn ~ uniform(0, 1)\n  y = y_drawn * 3"
    assert repaired("for v in x:\n    y = v * v") == "y = [x[i] * x[i] for i]"
    assert repaired("where x[1] is not None") == "where not missing(x[1])"
    assert repaired("y = f(axis=None, k=2)") == "y = f(k=2)"


def test_all_problems_at_once_in_order_and_bounded():
    text = "let a = [1, 2\nlet b = 'x'\nfoo\npipeline p\n  x = 3 +\n  y = 1 1\n  z = 2 ** True\n  emit y,\n"
    found = problems(text)
    assert [p.code for p in found] == ["E0002", "E0021", "E0009", "E0007", "E0006", "E0020", "E0023", "E0030"]
    assert len(problems("let = 1\n" * 500)) == MAX_PROBLEMS
    assert len(problems("let a = $\n" * 500)) == MAX_PROBLEMS


def test_unclosed_bracket_points_at_what_follows():
    (problem,) = problems("let MEAN = [125.3, 123.0\nlet STD = [63.0]\n")
    assert problem.title == "this `[` is never closed" and problem.label == "opened here"
    assert problem.reasons[0].text == "a new declaration starts before it ends"
    assert problem.fixes[0].edits[0].text == "]"
    # the lines after it are read
    assert [p.code for p in problems(program("  y = f(x\n  z = 1 1\n  emit y\n"))] == ["E0002", "E0006"]


@pytest.mark.parametrize(
    "text",
    ["", "\n\n  \n", "# only a comment", "\0", "let x = \0", "(" * 10_000_000, "[" * 100_000, "let x = " + "(" * 10_000,
     "let x = " + "-" * 10_000 + "1", "let x = " + "not " * 10_000 + "1", "let x = " + "1 + " * 10_000 + "1",
     "let x = a" + "[0]" * 10_000, "let x = a" + ".b" * 10_000, "let x = " + "if a then b else " * 3_000 + "c",
     "let x = " + "2 ^ " * 10_000 + "2", "let x = " + "9" * 100_000, "let x = 1e999", "let x = a ?? " + "a ?? " * 10_000 + "b",
     "let x = " + "f(" * 10_000, "$" * 100_000, "\ud800", "a" * 900_000, ")" * 100_000, '"' * 10_001, "'" * 10_001,
     "pipeline p\n" + "  (\n" * 2000, "let x = \\\n" * 5000, "ß" * 100_000],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_hostile_texts_are_refused_in_bounded_time(text: str):
    started = time.process_time()
    found = problems(text)
    assert 0 < len(found) <= MAX_PROBLEMS
    assert time.process_time() - started < 20


def test_large_valid_texts_parse():
    assert len(parse("let x = [" + "1, " * 5000 + "]\n").declarations[0].value.items) == 5000
    assert len(parse("let x = 1\n" * 1000).declarations) == 1000


def test_reading(tmp_path: Path):
    def refused(content: bytes | None, name: str = "a.pipe") -> str:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(PipeError) as caught:
            read(path)
        assert caught.value.problems[0].code == "E0012"
        return str(caught.value)

    good = tmp_path / "good.pipe"
    good.write_bytes("\ufefflet é = 1\r\nlet b = 2\r".encode())
    assert read(good) == "let é = 1\nlet b = 2\n"
    assert "not UTF-8" in refused(b"let a = 1\nlet \xff = 1") and "line 2" in str(refused(b"let a = 1\nlet \xff = 1"))
    assert "NUL byte in line 2" in refused(b"let a = 1\n\0")
    assert "too long" in refused(b"x" * 1_000_001) and "too long" in refused("é".encode() * 3_000_000)
    assert "no such file" in refused(None, "missing.pipe")
    assert "folder" in refused(None, ".")
    assert "no file can have this name" in refused(None, "a\0b")


# --- anything at all --------------------------------------------------------------------------

WORDS = [*(  # noqa: SIM905
    "let fn pipeline schema use param seed extern from as for if then else and or not true None True emit where x y f32 "
    "( ) [ ] , : = ~ -> + - * ** / // % ^ ?? ? . ... == < <= & | ! ' \" 1 2.5 0x1 \"s\" # \\ $ é in lambda return import "
    "def elif is"
).split(), "\n", "\n  ", "\t"]  # fmt: skip


def only_problems(text: str) -> None:
    try:
        parse(text, "t.pipe")
    except PipeError as error:
        assert error.problems
        assert all(0 <= p.span.start <= p.span.end <= len(error.texts.get("t.pipe", "")) for p in error.problems)
        render(error.problems, error.texts)
        for problem in error.problems:
            for fix in problem.fixes:
                apply_edits(error.texts["t.pipe"], fix.edits)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "\n", "\n  "]), max_size=40).map(" ".join))
def test_token_soup(text: str):
    only_problems(text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join))
def test_token_soup_in_a_line(line: str):
    only_problems(program(f"  y = {line}\n  emit y\n"))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_programs(data: st.DataObject):
    text = PROGRAM
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "line", "swap"]))
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        if kind == "flip":
            text = text[:at] + data.draw(st.characters(codec="utf-8")) + text[at + 1 :]
        elif kind == "cut":
            text = text[:at] + text[at + data.draw(st.integers(1, 5)) :]
        else:
            rows = text.split("\n")
            row = rows.pop(at % len(rows))
            if kind == "swap":
                rows.insert(data.draw(st.integers(0, len(rows))), row)
            text = "\n".join(rows)
    only_problems(text)
