"""Problems as text, as JSON, and their edits."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipec.dsl.problems import Edit, Fix, Label, PipeError, Problem, Span
from pipec.dsl.render import MAX_WIDTH, apply_edits, location, render, render_data_error, to_json

FILE = "p.pipe"


def span(text: str, what: str, nth: int = 0, file: str = FILE) -> Span:
    at = -1
    for _ in range(nth + 1):
        at = text.index(what, at + 1)
    return Span(file, at, at + len(what))


def lines(*rows: tuple[int, str]) -> str:
    """A text whose given lines (counted from 1) hold the given rows."""
    out = [""] * max(number for number, _ in rows)
    for number, row in rows:
        out[number - 1] = row
    return "\n".join(out) + "\n"


def test_labels_of_one_line():
    text = lines((28, "  (img / 255 - MEAN) / STD"))
    problem = Problem(
        "E0203", "`-` needs two tensors of the same shape, or a scalar", span(text, "img / 255 - MEAN"),
        "these shapes differ", (Label(span(text, "img / 255"), "f32[h, w, c]"), Label(span(text, "MEAN"), "f32[3]")),
        ("only a scalar spreads over a tensor; unlike shapes meet through named indexes",),
        (Fix("say which index each one takes",
             (Edit(span(text, "(img / 255 - MEAN) / STD"), "[(img[y, x, k] / 255 - MEAN[k]) / STD[k] for k, y, x]"),)),),
    )  # fmt: skip
    assert render([problem], {FILE: text}) == """\
error[E0203]: `-` needs two tensors of the same shape, or a scalar
  --> p.pipe:28:4
   |
28 |   (img / 255 - MEAN) / STD
   |    ^^^^^^^^^^^^^^^^ these shapes differ
   |    --------- f32[h, w, c]
   |                ---- f32[3]
   |
   = note: only a scalar spreads over a tensor; unlike shapes meet through named indexes
help: say which index each one takes
   |
28 -   (img / 255 - MEAN) / STD
28 +   [(img[y, x, k] / 255 - MEAN[k]) / STD[k] for k, y, x]"""


def test_distant_lines():
    text = lines((13, '  image: u8[32, 32, 3] from "x_train"'), (19, "  dy ~ integers(-reach, reach)"),
                 (22, "  moved = [image[y + dy, x, c] for y < 32, x < 32, c]"))  # fmt: skip
    problem = Problem(
        "E0401", "`y + dy` may fall outside `image`", span(text, "y + dy"), "-4 to 35",
        (Label(span(text, "32"), "0 to 31"), Label(span(text, "integers(-reach, reach)"), "-4 to 4"),
         Label(span(text, "y < 32"), "0 to 31")),
    )  # fmt: skip
    assert render([problem], {FILE: text}) == """\
error[E0401]: `y + dy` may fall outside `image`
  --> p.pipe:22:18
   |
13 |   image: u8[32, 32, 3] from "x_train"
   |             -- 0 to 31
...
19 |   dy ~ integers(-reach, reach)
   |        ----------------------- -4 to 4
...
22 |   moved = [image[y + dy, x, c] for y < 32, x < 32, c]
   |                  ^^^^^^ -4 to 35
   |                                    ------ 0 to 31"""


def test_neighbouring_lines_and_gutter():
    text = lines((9, "let MEAN = [125.3, 123.0, 113.9"), (10, "let STD = [63.0, 62.1, 66.7]"))
    end = text.index("113.9") + 5
    problem = Problem(
        "E0002", "this `[` is never closed", span(text, "["), "opened here",
        (Label(span(text, "let", 1), "a new declaration starts before it ends"),),
        fixes=(Fix("close it", (Edit(Span(FILE, end, end), "]"),)),),
    )  # fmt: skip
    assert render([problem], {FILE: text}) == """\
error[E0002]: this `[` is never closed
  --> p.pipe:9:12
   |
 9 | let MEAN = [125.3, 123.0, 113.9
   |            ^ opened here
10 | let STD = [63.0, 62.1, 66.7]
   | --- a new declaration starts before it ends
   |
help: close it
   |
 9 - let MEAN = [125.3, 123.0, 113.9
 9 + let MEAN = [125.3, 123.0, 113.9]"""


def test_several_files_and_edits():
    here, there = "use f from \"b.pipe\"\n\nlet x = f(1)\n", "fn f(x: i64) -> i64\n  x\n"
    edits = (Edit(span(here, "f"), "g"), Edit(span(here, "f", 2), "g"), Edit(span(there, "f", 1, "b.pipe"), "g"))
    problem = Problem("E0101", "no", span(here, "f(1)"), "here", (Label(span(there, "x", 0, "b.pipe"), "there"),),
                      fixes=(Fix("rename", edits), Fix("or think")))  # fmt: skip
    assert render([problem], {FILE: here, "b.pipe": there}) == """\
error[E0101]: no
 --> p.pipe:3:9
  |
3 | let x = f(1)
  |         ^^^^ here
 ::: b.pipe:1:6
  |
1 | fn f(x: i64) -> i64
  |      - there
  |
help: rename
 --> b.pipe:1
  |
1 - fn f(x: i64) -> i64
1 + fn g(x: i64) -> i64
 --> p.pipe:1
  |
1 - use f from "b.pipe"
1 + use g from "b.pipe"
...
3 - let x = f(1)
3 + let x = g(1)
help: or think"""


def test_fix_that_adds_and_removes_lines():
    text = "let a = 1\nlet b = 2\nlet c = 3\n"
    add = Fix("add", (Edit(Span(FILE, 10, 10), "let new = 0\n"),))
    remove = Fix("remove", (Edit(Span(FILE, 10, 20), ""),))
    shown = render([Problem("E0101", "t", Span(FILE, 10, 13), fixes=(add, remove))], {FILE: text})
    assert shown.split("help: ")[1:] == ["add\n  |\n2 + let new = 0\n", "remove\n  |\n2 - let b = 2"]


def test_wide_characters_tabs_and_control_characters():
    text = '\tx = "日本" + y\x1b[31m\n'
    shown = render([Problem("E0101", "bad \x1b[2J", span(text, "y"), "here")], {FILE: text}).split("\n")
    assert "\x1b" not in "".join(shown)
    assert shown[3] == '1 |     x = "日本" + y<1b>[31m'
    assert shown[4] == "  |" + " " * 18 + "^ here"     # the two wide characters count twice


def test_long_lines_are_cut_around_the_mark():
    text = "let x = [" + "1, " * 5000 + "oops, " + "2, " * 5000 + "3]\n"
    fix = Fix("fix", (Edit(span(text, "oops"), "0"),))
    shown = render([Problem("E0101", "t", span(text, "oops"), "here", fixes=(fix,))], {FILE: text}).split("\n")
    assert all(len(row) < MAX_WIDTH + 20 for row in shown)
    assert shown[3].index("oops") == shown[4].index("^^^^")
    assert "oops" in shown[-2] and "oops" not in shown[-1]


def test_span_of_several_lines_and_empty_span():
    text = "let x = [\n  1,\n]\n"
    assert "^ all" in render([Problem("E0101", "t", Span(FILE, 8, 15), "all")], {FILE: text})
    assert render([Problem("E0013", "t", Span(FILE, 0, 0), "x")], {FILE: ""}).endswith("1 |\n  | ^ x")


def test_file_without_text():
    shown = render([Problem("E0012", "`a.pipe` can't be read", Span("a.pipe", 0, 0), "no such file")], {})
    assert shown == "error[E0012]: `a.pipe` can't be read\n --> a.pipe\n  = note: no such file"


def test_color_only_when_asked():
    problem = Problem("E0101", "t", Span(FILE, 0, 3), "here", fixes=(Fix("x", (Edit(Span(FILE, 0, 3), "fn"),)),))
    plain, coloured = render([problem], {FILE: "let"}), render([problem], {FILE: "let"}, color=True)
    assert "\x1b[" not in plain and "\x1b[1;31m" in coloured


@dataclass
class Where:
    file: str
    start: int
    end: int


@dataclass
class Failed:
    code: str
    title: str
    where: Where | None
    label: str
    record: str
    epoch: int | None
    position: int | None
    notes: tuple[str, ...] = field(default=())


def test_data_error():
    text = lines((33, "  raw: u8[h, w, 3] = decode_image(jpg)"))
    at = text.index("decode_image")
    error: Any = Failed(
        "E0801", "this JPEG ends early", Where(FILE, at, at + 17), "21,004 of 98,311 bytes decoded",
        "n01440764_10026 of train-000017.tar", 3, None,
        ("`skip_bad(at_most=0.001)` after `from` leaves such records out and counts them",),
    )  # fmt: skip
    assert render_data_error(error, {FILE: text}) == """\
error[E0801]: this JPEG ends early
  --> p.pipe:33:22
   |
33 |   raw: u8[h, w, 3] = decode_image(jpg)
   |                      ^^^^^^^^^^^^^^^^^ 21,004 of 98,311 bytes decoded
   |
   = note: record n01440764_10026 of train-000017.tar, epoch 3
   = note: `skip_bad(at_most=0.001)` after `from` leaves such records out and counts them"""
    error.where, error.position, error.notes = None, 7, ()
    assert render_data_error(error, {}) == """\
error[E0801]: this JPEG ends early
  = note: 21,004 of 98,311 bytes decoded
  = note: record n01440764_10026 of train-000017.tar, position 7 of epoch 3"""
    error.record = ""
    assert render_data_error(error, {}).endswith("  = note: every record before position 7 of epoch 3 was delivered")


def test_json():
    text = "let a = 1\nlet b = c\n"
    fix = Fix("use it", (Edit(span(text, "c"), "a"),))
    problem = Problem("E0101", "t", span(text, "c"), "l", (Label(span(text, "a"), "r"),), ("n",), (fix,))
    assert json.loads(to_json([problem], {FILE: text})) == [
        {
            "code": "E0101", "title": "t", "file": FILE, "line": 2, "column": 9, "end": {"line": 2, "column": 10},
            "label": "l",
            "reasons": [{"file": FILE, "line": 1, "column": 5, "end": {"line": 1, "column": 6}, "text": "r"}],
            "notes": ["n"],
            "fixes": [{"title": "use it", "edits": [
                {"file": FILE, "line": 2, "column": 9, "end": {"line": 2, "column": 10}, "text": "a"}]}],
        }
    ]  # fmt: skip


def test_edits():
    def edit(start: int, end: int, new: str) -> Edit:
        return Edit(Span(FILE, start, end), new)

    assert apply_edits("abc", [edit(2, 3, "Z"), edit(0, 0, "x"), edit(0, 0, "y"), edit(0, 1, "A")]) == "xyAbZ"
    with pytest.raises(ValueError, match="overlap"):
        apply_edits("abc", [edit(0, 2, ""), edit(1, 3, "")])
    assert location(Span(FILE, 5, 6), {FILE: "abc\ndef"}) == (2, 2)
    assert "E0101" in str(PipeError((Problem("E0101", "t", Span(FILE, 0, 1)),), {FILE: "x"}))


@given(st.text(max_size=60), st.integers(-5, 70), st.integers(-5, 70), st.text(max_size=5))
def test_any_span_of_any_text_renders(text: str, start: int, length: int, new: str):
    where = Span(FILE, max(start, 0), max(start, 0) + max(length, 0))
    fixes = (Fix("f", (Edit(where, new),)),)
    problem = Problem("E0001", text, where, text, (Label(where, "x"),), (text,), fixes)
    shown = render([problem], {FILE: text})
    assert "\x1b" not in shown
    to_json([problem], {FILE: text})
