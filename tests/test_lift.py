"""Conditions move above stages and into sources; what leaves the program, and where it stands, stays."""
from __future__ import annotations

from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest
from pipec.compiler import lift
from pipec.compiler.check import check
from pipec.compiler.compile import transformed
from pipec.compiler.graph import walk
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.kernels.rowgroups import fails
from pipec.kernels.sources import open_source
from running import assert_same, run_compiled, run_interpreted

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
HEAD = """seed 2

schema Row
  k: i64
  score: f32
  name: text
  values: i32[n]
  maybe: i64?

pipeline p
  from parquet("{data}") as Row
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(1)
    count = 60
    table = pa.table({
        "k": np.arange(count), "score": (np.arange(count) / 8 - 3).astype(np.float32), "name": [f"row {i}" for i in range(count)],
        "values": pa.array([list(range(i % 4)) for i in range(count)], pa.list_(pa.int32())),
        "maybe": pa.array([None if i % 3 else int(rng.integers(100)) for i in range(count)], pa.int64())})
    path = tmp_path_factory.mktemp("lift") / "d.parquet"
    pq.write_table(table, path, row_group_size=10)
    return str(path)


def checked(body, data):
    return check("p.pipe", text=(HEAD + "".join(f"  {line}\n" for line in body.strip().splitlines())).replace("{data}", data))


def source_of(program):
    return next(n for n in walk(transformed(program.emit, until="lift_filters")) if n.op == "source")


def told(program):
    return dict(source_of(program)["options"]).get("where", ())


def groups_skipped(program):
    """How many row groups of the source aren't read."""
    node = source_of(program)
    source = open_source(node["kind"], node["paths"], dict(node["options"]), node["columns"])
    source.read_many(np.arange(len(source)))
    return len(source.skipped)


SKIPPED = {   # lines, what the source is told, row groups that aren't read
    "few": ("where k < 25\nemit k, name", {("k", "lt", 25, "i64")}, 3),
    "the other way round": ("where 25 <= k\nfilled = maybe ?? -1\nemit k, filled", {("k", "ge", 25, "i64")}, 2),
    "one": ("where k == 33\nemit k", {("k", "eq", 33, "i64")}, 5),
    "two at once": ("where 15 <= k < 25 and score > -2.5\nemit k, score",
                    {("k", "ge", 15, "i64"), ("k", "lt", 25, "i64"), ("score", "gt", -2.5, "f32")}, 4),
    "two lines, shuffled": ("shuffle()\nwhere score >= 0\nwhere k < 40\nemit k, score",
                            {("score", "ge", 0.0, "f32"), ("k", "lt", 40, "i64")}, 4),
    "with a fraction": ("where k < 19.5\nemit k", {("k", "lt", 19.5, "f32")}, 4),
    "after a take": ("take(45)\nwhere k > 41\nemit k", {("k", "gt", 41, "i64")}, 4),
    "below share": ("big = f32(k) * 2\nshare()\nwhere k < 10\nbatch(4)\nemit k, big", {("k", "lt", 10, "i64")}, 5),
    "drawn elsewhere": ("x ~ uniform(0, 1)\nwhere k < 10\nemit k, x", {("k", "lt", 10, "i64")}, 5),
    "a list must be whole": ("where k < 10\nemit k, values", {("k", "lt", 10, "i64")}, 0),
    "something else": ("where k % 2 == 0\nemit k", set(), 0),
    "either": ("where k < 10 or k > 50\nemit k", set(), 0),
    "before a take": ("where score >= 0\ntake(5)\nwhere k < 40\nemit k", {("score", "ge", 0.0, "f32")}, 2),
    "after a check": ("check(score < 99)\nwhere k < 10\nemit k, score", set(), 0),
    "missing": ("where (maybe ?? 5) < 10\nemit k", set(), 0),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_row_groups_are_skipped(data, name):
    body, conditions, groups = SKIPPED[name]
    program = checked(body, data)
    assert set(told(program)) == conditions
    assert not conditions or groups_skipped(program) == groups


def test_what_leaves_stays(data):
    for name in ("two lines, shuffled", "below share", "before a take", "few"):
        program = checked(SKIPPED[name][0], data)
        reference, code = run_interpreted(program)
        assert reference and code is None
        compiled, code = run_compiled(program, threads=2)
        assert code is None
        assert_same(compiled, reference)
        if name == "below share":
            assert_same(run_compiled(program, chunk=7, resumed=1)[0], reference)


def test_above_each_and_sample(data):
    program = checked("each(values)\nwhere k < 30\nemit k, values", data)
    stages = [n.op for n in walk(transformed(program.emit, until="lift_filters"))]
    assert stages.index("where") < stages.index("each")
    assert_same(run_compiled(program)[0], run_interpreted(program)[0])
    text = HEAD.replace("pipeline p", "pipeline q").replace("{data}", data) + "  emit k, score\n\n" + HEAD.split("\n\n")[2]
    text = text.replace("{data}", data) + "  other ~ sample(q)\n  where k < 30\n  third = other.k\n  emit k, third\n"
    program = check("p.pipe", text=text, run="p")
    stages = [n.op for n in walk(transformed(program.emit, until="lift_filters"))]
    assert stages.index("where") < stages.index("sample")
    assert_same(run_compiled(program)[0], run_interpreted(program)[0])


@pytest.mark.parametrize("body", [
    "each(values)\nwhere values < 2\nemit k",                                             # asks about the row
    "c = k * k * k * k\nshare()\nwhere k < 10\nemit k, c",   # may fail above
    "share()\nx ~ uniform(0, 1)\nwhere x < 0.5\nemit k",                                 # drawn
    "share()\nwhere k < 10\ntake(3)\nemit k",                                            # counted
])
def test_conditions_that_stay(data, body):
    program = checked(body, data)
    stages = [n.op for n in walk(transformed(program.emit, until="lift_filters"))]
    assert stages.index("where") > stages.index("each" if "each" in body else "share")
    assert not told(program)


@pytest.mark.parametrize("fn, holds", [("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal),
                                       ("eq", np.equal)])
def test_what_statistics_prove(fn, holds):
    for low in range(-3, 4):
        for high in range(low, 4):
            for number in (-4, -3, -1, 0, 2, 3, 9):
                known = SimpleNamespace(has_min_max=True, min=low, max=high)
                assert fails(known, True, fn, number, "i64") == (not holds(np.arange(low, high + 1), number).any() if fn != "eq"
                                                                  else not low <= number <= high)
    assert not fails(None, True, fn, 3, "i64")
    assert not fails(SimpleNamespace(has_min_max=True, min=float("nan"), max=2.0), True, fn, 9.0, "f32")
    assert not fails(SimpleNamespace(has_min_max=False), True, fn, 9, "i64")


def test_the_example_of_the_docstring():
    text = lift.lift_filters.__doc__ or ""
    before, after = (dedent(t).strip() + "\n" for t in text.split("Before:\n")[1].split("After:\n"))
    assert print_graph(lift.lift_filters(parse_graph(before), {})) == print_graph(parse_graph(after))
