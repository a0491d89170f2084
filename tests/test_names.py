"""Names across files, params and their overrides, the seed, and which pipeline is run."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipec.compiler.check import check, outline
from pipec.compiler.graph import Program, walk
from pipec.dsl.problems import PipeError, Problem
from pipec.dsl.render import apply_edits

COMMON = """param size = 4        # of everything
param root: path      # where the data is
let TWO = 2
schema S
  y: i64
fn double(x: i64) -> i64
  x * TWO
fn sized(x: i64) -> i64
  x * size
fn rooted(x: i64) -> i64
  if root == "a" then x else 0
pipeline data
  from npz("a.npz") as S
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writer(**texts: str) -> str:
        for name, text in texts.items():
            (tmp_path / f"{name}.pipe").write_text(text)
        return str(tmp_path / "main.pipe")

    return writer


def failed(path: str, overrides: dict[str, Any] | None = None, run: str | None = None) -> list[Problem]:
    with pytest.raises(PipeError) as caught:
        check(path, overrides or {}, run)
    str(caught.value)
    return list(caught.value.problems)


def one(path: str, overrides: dict[str, Any] | None = None, run: str | None = None) -> Problem:
    problems = failed(path, overrides, run)
    assert len(problems) == 1, [p.title for p in problems]
    return problems[0]


def value(program: Program, name: str) -> Any:
    return next(p.value for p in program.params if p.name == name)


MAIN = "use {} from \"common.pipe\"\npipeline p\n  from npz(\"x\") as S\n  z = {}\n"


# --- use --------------------------------------------------------------------------------------


def test_every_kind_can_be_brought_in(write: Any) -> None:
    path = write(common=COMMON, main="use S, double, TWO, size, data, root from \"common.pipe\"\npipeline p\n  from data\n"
                                     "  z = double(y) + TWO + size\n")
    found = check(path, {"root": "/d"})
    assert [p.name for p in found.params] == ["size", "root"]


def test_imported_code_sees_its_own_params(write: Any) -> None:
    path = write(common=COMMON, main=MAIN.format("S, sized", "sized(y)"))
    assert [p.name for p in check(path).params] == []
    assert one(path, {"size": 3}).code == "E0703"
    assert "import it by name" in one(path, {"size": 3}).notes[0]
    path = write(common=COMMON, main=MAIN.format("S, sized, size", "sized(y)"))
    program = check(path, {"size": 7})
    assert value(program, "size") == 7
    assert any(n.op == "const" and n["value"] == 7 for n in walk(program.emit))


def test_a_required_param_must_be_imported_if_it_is_used(write: Any) -> None:
    check(write(common=COMMON, main=MAIN.format("S, double", "double(y)")))
    path = write(common=COMMON, main=MAIN.format("S, rooted", "rooted(y)"))
    problem = one(path)
    assert problem.code == "E0708"
    text = apply_edits(Path(path).read_text(), problem.fixes[0].edits)
    assert text.startswith("use S, rooted, root from")
    Path(path).write_text(text)
    check(path, {"root": "a"})


def test_names_pass_through_a_file_that_uses_them(write: Any) -> None:
    path = write(common=COMMON, between="use S, size from \"common.pipe\"\nlet THREE = 3\n",
                 main="use S, size, THREE from \"between.pipe\"\npipeline p\n  from npz(\"x\") as S\n  z = y * size + THREE\n")
    assert value(check(path, {"size": "9"}), "size") == 9


def test_paths_of_use_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.pipe").write_text("use K from \"b.pipe\"\nlet L = K + 1\n")
    (tmp_path / "lib" / "b.pipe").write_text("let K = 1\n")
    main = tmp_path / "main.pipe"
    main.write_text("use L from \"lib/a.pipe\"\nschema S\n  y: i64\npipeline p\n  from npz(\"x\") as S\n  z = y + L\n")
    check(str(main))


def test_a_file_that_is_not_there(write: Any) -> None:
    path = write(common=COMMON, main="use S from \"comon.pipe\"\npipeline p\n  from npz(\"x\") as S\n  z = y\n")
    problem = one(path)
    assert problem.code == "E0110"
    assert "common.pipe" in problem.fixes[0].edits[0].text


def test_a_name_that_is_not_there(write: Any) -> None:
    problem = one(write(common=COMMON, main=MAIN.format("S, dubble", "dubble(y)")))
    assert (problem.code, problem.fixes[0].edits[0].text) == ("E0112", "double")


def test_a_circle_of_files_is_shown(write: Any) -> None:
    path = write(main="use A from \"b.pipe\"\nschema S\n  y: i64\npipeline p\n  from npz(\"x\") as S\n  z = A + y\n",
                 b="use B from \"c.pipe\"\nlet A = B\n", c="use X from \"main.pipe\"\nlet B = 1\n")
    problem = one(path)
    assert problem.code == "E0111"
    assert problem.notes[0] == "the circle: main.pipe → b.pipe → c.pipe → main.pipe"


def test_mistakes_in_a_used_file_come_with_its_path(write: Any) -> None:
    path = write(common="let A = 1 +\n", main="use A from \"common.pipe\"\nschema S\n  y: i64\npipeline p\n"
                                              "  from npz(\"x\") as S\n  z = A + y\n")
    problem = one(path)
    assert problem.code.startswith("E00") and problem.span.file.endswith("common.pipe")


def test_a_function_of_the_file_hides_the_librarys(write: Any) -> None:
    check(write(main="schema S\n  y: i64\nfn one_hot(x: i64, a: bool) -> i64\n  if a then x else 0\npipeline p\n"
                     "  from npz(\"x\") as S\n  z = one_hot(y, true)\n"))


def test_constants_may_stand_in_any_order(write: Any) -> None:
    program = check(write(main="let A = f(3) + B\nlet B = size\nparam size = K\nlet K = 4\n"
                               "fn f(x: i64) -> i64\n  x * K\nschema S\n"
                               "  y: i64\npipeline p\n  from npz(\"x\") as S\n  z = y + A\n"))
    assert value(program, "size") == 4
    assert any(n.op == "const" and n["value"] == 16 for n in walk(program.emit))


# --- params -----------------------------------------------------------------------------------

PARAMS = """param count = 3
param rate = 0.5
param small: u8 = 7
param flag = true
param name = "a"
param data: path = "x"
param edges = [1, 2, 3]
param pair: f32[2] = [0, 1]
schema S
  y: i64
pipeline p
  from npz(data) as S
"""


@pytest.mark.parametrize(("name", "given", "want"), [
    ("count", "1_000", 1000), ("count", 5, 5), ("count", "-3", -3), ("count", np.int32(4), 4), ("count", "1e3", 1000),
    ("rate", "2", 2.0), ("rate", "1e-3", 0.001), ("rate", 1, 1.0), ("small", "255", 255), ("flag", "false", False),
    ("flag", False, False), ("name", "true", "true"), ("data", Path("/a/b"), "/a/b"), ("edges", "[4,5]", (4, 5)),
    ("edges", "4, 5", (4, 5)), ("edges", [1, 2, 3, 4], (1, 2, 3, 4)), ("pair", "[1, 2.5]", (1.0, 2.5)),
    ("pair", np.array([3, 4]), (3.0, 4.0)),
])
def test_overrides(write: Any, name: str, given: Any, want: Any) -> None:
    found = value(check(write(main=PARAMS), {name: given}), name)
    assert found == want and type(found) is type(want)


@pytest.mark.parametrize(("name", "given", "says"), [
    ("count", "many", "`count` is i64, and `many` is no whole number"),
    ("count", "2.5", "`count` is i64, and 2.5 is no whole number"),
    ("count", True, "`count` is i64, not `True`"),
    ("count", [1], "`count` is i64, not a list"),
    ("rate", "fast", "`rate` is f32, and `fast` is no number"),
    ("small", "300", "`small` is u8, which holds 0 to 255, not 300"),
    ("flag", "maybe", "`flag` is true or false, not `maybe`"),
    ("name", 3, "`name` is text, not `3`"),
    ("edges", "[1, x]", "write it as [1, 2, 3]"),
    ("pair", "[1, 2, 3]", "`pair` holds 3 values where its type says 2"),
    ("pair", 1.0, "`pair` is f32[2], not one value"),
])
def test_overrides_that_do_not_fit(write: Any, name: str, given: Any, says: str) -> None:
    problem = one(write(main=PARAMS), {name: given})
    assert problem.code == "E0704" and says in problem.title


def test_a_param_that_is_not_there(write: Any) -> None:
    problem = one(write(main=PARAMS), {"cuont": 3})
    assert problem.code == "E0703"
    assert problem.notes == ("`count` is a param with a similar name",
                             "its params: count, rate, small, flag, name, data, edges, pair")


def test_a_required_param(write: Any) -> None:
    path = write(main="param data: path   # the file\nschema S\n  y: i64\npipeline p\n  from npz(data) as S\n")
    assert one(path).code == "E0701"
    assert value(check(path, {"data": "x"}), "data") == "x"
    check(path, complete=False)
    assert outline(path).required == ("data",)


def test_help_is_the_comment(write: Any) -> None:
    path = write(main="param n = 1   # how many\nschema S\n  y: i64\npipeline p\n  from npz(\"a\") as S\n")
    assert check(path).params[0].help == "how many"


def test_seed_can_be_overridden(write: Any) -> None:
    path = write(main="seed 3\nschema S\n  y: i64\npipeline p\n  from npz(\"a\") as S\n  shuffle()\n")
    assert check(path).seed == 3
    assert check(path, {"seed": "44"}).seed == 44
    assert one(path, {"seed": "x"}).code == "E0704"
    path = write(main="schema S\n  y: i64\npipeline p\n  from npz(\"a\") as S\n  shuffle()\n")
    assert one(path).code == "E0706"
    assert check(path, {"seed": 5}).seed == 5


def test_the_seed_is_the_run_files(write: Any) -> None:
    path = write(a="seed 9\nschema S\n  y: i64\npipeline d\n  from npz(\"a\") as S\n  shuffle()\n",
                 main="use d from \"a.pipe\"\nseed 2\npipeline p\n  from d\n")
    assert check(path).seed == 2


# --- which pipeline ---------------------------------------------------------------------------

TWO = "schema S\n  y: i64\npipeline a\n  from npz(\"a\") as S\npipeline b\n  from npz(\"b\") as S\n"


def test_the_one_no_other_uses_is_run(write: Any) -> None:
    assert check(write(main=TWO + "pipeline c\n  from mix(a, b, until=\"all\")\n")).name == "c"


def test_several_need_a_name(write: Any) -> None:
    path = write(main=TWO)
    problem = one(path)
    assert problem.code == "E0115" and "main.pipe:a, main.pipe:b" in problem.notes[0]
    assert check(path, run="b").name == "b"
    assert one(path, run="bb").code == "E0115"
    assert check(path, complete=False).name == "a"
    assert outline(path).run is None


def test_a_pipeline_brought_in_can_be_named(write: Any) -> None:
    path = write(common=COMMON, main="use data from \"common.pipe\"\nseed 1\n")
    assert check(path, run="data").name == "data"


def test_pipelines_that_are_not_run_are_checked_too(write: Any) -> None:
    path = write(main=TWO.replace("from npz(\"b\") as S", "from npz(\"b\") as S\n  z = q"))
    assert [p.code for p in failed(path, run="a")] == ["E0101"]
