"""Pipelines: the graph that each stage makes, the frames, share and its params, and the example programs."""
from __future__ import annotations

from pathlib import Path

import pytest
from pipec.compiler.check import check, outline, sharing_problem
from pipec.compiler.graph import Node, Program, walk
from pipec.dsl.problems import PipeError
from pipec.dsl.types import Type

EXAMPLES = Path(__file__).parent.parent / "examples"
HEAD = """seed 1
param n = 8
param alpha = 0.5
schema S
  x: f32[4]
  y: i64
schema T
  jpg: bytes
  words: text?
  wave: f32[t]
schema D
  id: u16[k]
  kind: i64
"""


def program(lines: str, **overrides: object) -> Program:
    return check("case.pipe", overrides, text=HEAD + lines)


def stages(p: Program) -> list[Node]:
    """The stream nodes from the source on, along the first args."""
    found = [p.emit]
    while found[-1].op not in ("source", "mix", "zip"):
        found.append(found[-1].args[0])
    return found[::-1]


def ops(p: Program) -> list[str]:
    return [s.op for s in stages(p)]


def stage(p: Program, op: str) -> Node:
    return next(s for s in stages(p) if s.op == op)


def fields(n: Node) -> dict[str, Type]:
    return dict(n.type.parts)


def codes(lines: str, **overrides: object) -> list[str]:
    with pytest.raises(PipeError) as caught:
        program(lines, **overrides)
    return [p.code for p in caught.value.problems]


@pytest.mark.parametrize("name", ["imagenet", "imagenet_val", "cifar", "segment", "tokens", "clicks", "speech"])
def test_example_checks(name: str) -> None:
    found = check(str(EXAMPLES / f"{name}.pipe"))
    assert found.emit.op == "emit"
    for n in walk(found.emit):
        if n.type.dtype == "stream":
            assert n.op not in ("where",) or n.args[1].type == Type("bool")
            assert all(not t.weak for _, t in n.type.parts)


def test_order_of_stages_and_maps() -> None:
    p = program("pipeline p\n  from npz(\"a\") as S\n  skip_bad(at_most=0.5)\n  where y > 2\n  shuffle()\n  z = y + 1\n"
                "  share()\n  w = z * 2\n  batch(n)\n  emit w, x\n")
    assert ops(p) == ["source", "skip_bad", "where", "shuffle", "map", "share", "map", "batch", "map", "emit"]
    assert stage(p, "emit")["names"] == ("w", "x")
    assert stage(p, "shuffle")["key"] == "p/shuffle"
    assert stage(p, "skip_bad")["at_most"] == 0.5


def test_maps_hold_every_live_field() -> None:
    p = program("pipeline p\n  from npz(\"a\") as S\n  z = y + 1\n  share()\n")
    assert stages(p)[1]["names"] == ("x", "y", "z")
    assert fields(stage(p, "share"))["z"] == Type("i64")


def test_batch_puts_count_or_n_in_front() -> None:
    kept = program("pipeline p\n  from npz(\"a\") as S\n  batch(n)\n")
    assert fields(kept.emit)["x"].dims[0].op == "count"
    whole = program("pipeline p\n  from npz(\"a\") as S\n  batch(n, whole=true)\n")
    assert fields(whole.emit)["x"].dims == (8, 4)
    shared = program("pipeline p\n  from npz(\"a\") as S\n  share()\n  batch(n, whole=true)\n")
    assert fields(shared.emit)["x"].dims[0].op == "param"


def test_params_below_share_are_open() -> None:
    p = program("pipeline p\n  from npz(\"a\") as S\n  share()\n  batch(n)\n")
    assert {q.name: q.open for q in p.params} == {"n": True, "alpha": True}
    assert any(a.op == "param" for a in stage(p, "batch").args)
    above = program("pipeline p\n  from npz(\"a\") as S\n  take(n)\n  share()\n  batch(n)\n")
    assert {q.name: q.open for q in above.params} == {"n": False, "alpha": True}
    assert stage(above, "batch").args[1]["value"] == 8
    assert not any(q.open for q in program("pipeline p\n  from npz(\"a\") as S\n  batch(n)\n").params)


def test_a_param_in_a_let_is_fixed() -> None:
    p = program("let M = n * 2\npipeline p\n  from npz(\"a\") as S\n  share()\n  batch(M)\n")
    assert not next(q for q in p.params if q.name == "n").open


def test_a_param_below_share_proves_nothing() -> None:
    lines = "let L = [1, 2, 3]\npipeline p\n  from npz(\"a\") as S\n  {}share()\n  z = L[n - 6]\n"
    assert codes(lines.format("")) == ["E0401"]
    program(lines.format("where y < n\n  "))


def test_what_where_says_holds_below_share() -> None:
    program("let L = [1, 2, 3]\npipeline p\n  from npz(\"a\") as S\n  where 0 <= y < 3\n  share()\n  z = L[y]\n")
    program("let L = [1, 2, 3]\npipeline p\n  from npz(\"a\") as S\n  check(0 <= y < 3)\n  z = y\n  share()\n  w = L[z]\n")
    program("let L = [1, 2, 3]\npipeline p\n  from npz(\"a\") as S\n  k ~ integers(0, 3)\n  share()\n  w = L[k]\n")
    assert codes("let L = [1, 2, 3]\npipeline p\n  from npz(\"a\") as S\n  where 0 <= y < 3\n  y = y + 1\n  share()\n  w = L[y]\n"
                 ) == ["E0401"]


def test_sizes_become_fields_after_batch() -> None:
    p = program("pipeline p\n  from tar(\"a\") as T\n  w: f32[len] = wave\n  batch(n)\n  emit len\n")
    assert fields(p.emit)["len"].dims[0].op == "count"


def test_sizes_stay_dimensions_across_share() -> None:
    p = program("pipeline p\n  from tar(\"a\") as T\n  v = [wave[i] * 2 for i]\n  share()\n"
                "  w: f32[t] = [wave[i] + v[i] for i < t]\n"
                "  emit w\n")
    assert fields(p.emit)["w"].dims[0].op == "extent"


def test_padding() -> None:
    p = program("pipeline p\n  from tar(\"a\") as T\n  v = [wave[i] * 2 for i]\n  k = 1\n  batch(n, pad=true)\n"
                "  both = [(wave[b, i] ?? 0) + (v[b, i] ?? 0) for b, i]\n  emit both, k\n")
    assert fields(stage(p, "batch"))["wave"].missing
    assert not fields(stage(p, "batch"))["k"].missing
    assert fields(stage(p, "batch"))["wave"].dims[1] is fields(stage(p, "batch"))["v"].dims[1]


def test_batch_by_and_edges() -> None:
    b = stage(program("pipeline p\n  from tar(\"a\") as T\n  batch(n, by=t, edges=[10, 20], pad=true)\n  emit t\n"), "batch")
    assert (b["has"], b["edges"], b["pad"], b["whole"]) == (("n", "by"), (10, 20), True, False)
    assert b.args[2].op == "field" and b.args[2]["name"] == "t"
    b = stage(program("pipeline p\n  from tar(\"a\") as T\n  batch(budget=100, by=t, pad=true)\n  emit t\n"), "batch")
    assert b["has"] == ("by", "budget")


def test_window_and_pack() -> None:
    p = program("schema U\n  id: u16\npipeline p\n  from bin(\"a\") as U\n  window(9, stride=8, rest=\"drop\")\n  shuffle()\n")
    w = stage(p, "window")
    assert fields(w)["id"] == Type("u16", (9,)) and w.args[2]["value"] == 8 and w["rest"] == "drop"
    p = program("pipeline p\n  from tar(\"a\") as D\n  pack(64, by=k, open=16)\n  id = id ?? 0\n  segment = segment ?? 0\n"
                "  position = position ?? 0\n  emit id, segment, position\n")
    made = fields(stage(p, "pack"))
    assert made["id"] == Type("u16", (64,), True) and made["segment"] == Type("i64", (64,), True)
    assert made["kind"].dims[0].op == "count"
    assert stage(p, "pack")["open"] == 16 and stage(p, "pack")["fields"] == ("id",)


def test_each() -> None:
    p = program("pipeline p\n  from npz(\"a\") as S\n  each(x)\n  batch(n)\n")
    assert fields(stage(p, "each")) == {"x": Type("f32"), "y": Type("i64")}
    assert stage(p, "each")["fields"] == ("x",)


def test_mix() -> None:
    p = program("pipeline a\n  from npz(\"a\") as S\n  shuffle()\npipeline p\n  from mix(a, a, weights=[3, 1], until=100)\n")
    m = stage(p, "mix")
    assert (m["names"], m["weights"], m["until"], m["key"]) == (("a.0", "a.1"), (0.75, 0.25), 100, "p/mix")
    keys = sorted(n["key"] for n in walk(p.emit) if n.op == "shuffle")
    assert keys == ["p/a.0/shuffle", "p/a.1/shuffle"]


def test_mix_of_data_of_any_size() -> None:
    p = program("pipeline a\n  from tar(\"a\") as T\n  emit wave\npipeline p\n  from mix(a, a, until=\"first\")\n"
                "  z = sum(wave[i] for i)\n  emit z\n")
    assert fields(stage(p, "mix"))["wave"].dims[0].op == "extent"


def test_zip_and_its_parts() -> None:
    p = program("pipeline a\n  from npz(\"a\") as S\npipeline p\n  from zip(left=a, right=a)\n"
                "  z = left.x[0] + right.x[1]\n  both = left.y + right.y\n  batch(n)\n  emit z, both\n")
    assert list(fields(stages(p)[0])) == ["left.x", "left.y", "right.x", "right.y"]
    every = program("pipeline a\n  from npz(\"a\") as S\npipeline p\n  from zip(left=a, right=a)\n")
    assert every.emit["names"] == ("left_x", "left_y", "right_x", "right_y")


def test_sample() -> None:
    p = program("pipeline a\n  from npz(\"a\") as S\npipeline p\n  from npz(\"a\") as S\n  other ~ sample(a)\n"
                "  z = x[0] + other.x[0]\n  emit z\n")
    s = stage(p, "sample")
    assert (s["name"], s["path"], s["times"]) == ("other", "p/other.sample", 0)
    assert "other.x" in fields(s)
    p = program("pipeline a\n  from npz(\"a\") as S\npipeline p\n  from npz(\"a\") as S\n  others ~ [sample(a) for k < 3]\n"
                "  z = others.y[2] + y\n  emit z\n")
    assert fields(stage(p, "sample"))["others.x"].dims == (3, 4)


def test_structs_pass_through_frames() -> None:
    p = program("fn both(x: f32[4]) -> (least: f32, most: f32)\n  least = min(x)\n  most = max(x)\n"
                "pipeline p\n  from npz(\"a\") as S\n  r = both(x)\n  share()\n  d = r.most - r.least\n  batch(n)\n  emit d\n")
    assert {"r.least", "r.most"} <= set(fields(stage(p, "share")))


def test_from_another_pipeline() -> None:
    p = program("pipeline a\n  from npz(\"a\") as S\n  k ~ integers(0, 9)\n  shuffle()\n  emit x, k\npipeline p\n  from a\n"
                "  k2 ~ integers(0, 9)\n  batch(n)\n")
    assert p.emit["names"] == ("x", "k", "k2")
    assert {n["path"] for n in walk(p.emit) if n.op == "draw"} == {"p/a/k.integers", "p/k2.integers"}
    assert stage(p, "shuffle")["key"] == "p/a/shuffle"


def test_pipeline_arguments() -> None:
    p = program("pipeline a(files: path, m: i64 = 3)\n  from npz(files) as S\n  take(m)\npipeline p\n"
                "  from mix(a(\"x\"), a(\"y\", m=5), until=\"all\")\n")
    branches = [s for s in walk(p.emit) if s.op == "take"]
    assert sorted(t.args[1]["value"] for t in branches) == [3, 5]
    assert {s["paths"] for s in walk(p.emit) if s.op == "source"} == {("x",), ("y",)}


def test_paths_with_templates() -> None:
    p = program("param root: path = \"/d\"\npipeline p\n  from npz(\"{root}/a-{00..02}.npz\") as S\n")
    assert stages(p)[0]["paths"] == ("/d/a-00.npz", "/d/a-01.npz", "/d/a-02.npz")
    p = program("param root: path = \"/d\"\npipeline p\n  from npz(root) as S\n", root="x{1..2}*.npz")
    assert stages(p)[0]["paths"] == ("x1*.npz", "x2*.npz")


def test_columns_of_a_source() -> None:
    p = program("schema C\n  c: i32?[3] from \"I{1..3}\"\n  a: bytes from \"flac|wav\"\n  w: f32[m]\n  v: f32[m, _]\n"
                "pipeline p\n  from tar(\"a\") as C\n  where not any(missing(c))\n  emit a\n")
    assert stages(p)[0]["columns"] == (
        ("c", (("I1",), ("I2",), ("I3",)), "i32?[3]"), ("a", (("flac", "wav"),), "bytes"),
        ("w", (("w",),), "f32[m]"), ("v", (("v",),), "f32[m, _]"))


def test_sizes_only_known_at_run_time_are_checked() -> None:
    p = program("schema C\n  a: f32[m]\n  b: f32[l]\npipeline p\n  from tar(\"a\") as C\n  z = sum(a + b)\n  emit z\n")
    found = [s for s in stages(p) if s.op == "check"]
    assert [c["code"] for c in found] == ["E0803"]


def test_all_problems_at_once_in_file_order() -> None:
    found = codes("fn f(a: i64) -> i64\n  a + bb\npipeline p\n  from npz(\"a\") as S\n  z = y + q\n  bacth(3)\n  emit w\n"
                  "pipeline o\n  from npz(\"a\") as S\n  u = v\n")
    assert found == ["E0101", "E0101", "E0501", "E0101", "E0115", "E0101"]


def test_a_program_without_randomness_needs_no_seed() -> None:
    p = check("case.pipe", text="schema S\n  y: i64\npipeline p\n  from npz(\"a\") as S\n  batch(3)\n")
    assert p.seed is None
    assert program("pipeline p\n  from npz(\"a\") as S\n").seed == 1
    assert program("pipeline p\n  from npz(\"a\") as S\n", seed="12").seed == 12


def test_what_a_trainer_may_not_set() -> None:
    path = str(EXAMPLES / "imagenet.pipe")
    assert sharing_problem(path, "batch_size", 32) is None
    assert sharing_problem(path, "size", 224) is None
    problem = sharing_problem(path, "size", 192)
    assert problem is not None and problem.code == "E0702"
    assert problem.label == "asked for 192, served with 224"
    assert [r.text for r in problem.reasons] == ["used here, above `share`", "lines above this run once, for every trainer"]
    assert "batch_size, alpha" in problem.notes[0]


def test_outline() -> None:
    found = outline(str(EXAMPLES / "imagenet_val.pipe"))
    assert [p.name for p in found.params] == ["root", "size", "batch_size", "keep"]
    assert found.params[3].help.startswith("share of the shorter side")
    assert found.run == "val" and found.pipelines == ("val",)
