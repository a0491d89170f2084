"""Expressions to typed nodes: their types, the shape of their graphs, and their values under the definition."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pipec.compiler import check
from pipec.compiler.evaluate_values import Cells, Evaluator, Frame
from pipec.compiler.graph import Node, walk
from pipec.dsl.problems import PipeError
from pipec.dsl.types import Type

HEAD = """\
seed 1

let MEAN = [0.485, 0.456, 0.406]
let TABLE = [i * i for i < 10]

param keep = 0.875

schema S
  image: u8[4, 6, 3]
  label: u8
  half: f16[3]
  wave: f32[n]
  spot: f32[m]
  wide: f64
  counts: i32?[5]
  order: i64[4]
  flag: bool
  mask: bool[4]

fn standardize(img: u8[h, w, c]) -> f32[c, h, w]
  [(img[y, x, k] / 255 - MEAN[k]) / 2 for k, y, x]

fn ends(x: num[n]) -> (low: num, high: num, all: num[n])
  low = min(x) ?? 0
  high = max(x) ?? 0
  all = [x[i] for i]

fn square(a: num) -> num
  a * a

fn lerped(a: f32, b: f32, t: f32 = 0.5) -> f32
  a + (b - a) * t

"""
FIELDS: dict[str, Any] = {
    "image": np.arange(72, dtype=np.uint8).reshape(4, 6, 3) * 3,
    "label": np.uint8(7),
    "half": np.array([1, 2, 3], np.float16),
    "wave": np.array([0.5, -1, 4], np.float32),
    "spot": np.array([1, 2, 3], np.float32),
    "wide": np.float64(0.1),
    "order": np.array([2, 0, 3, 1]),
    "flag": np.True_,
    "mask": np.array([True, False, True, True]),
}


def nodes(lines: str, names: list[str] | None = None) -> dict[str, Node]:
    """The fields that the lines set (or some of them)."""
    names = names or list(dict.fromkeys(line.split()[0].rstrip(":").split(":")[0] for line in lines.strip().splitlines()))
    body = "".join(f"  {line}\n" for line in lines.strip().splitlines())
    text = f'{HEAD}pipeline p\n  from parquet("a.parquet") as S\n{body}  emit {", ".join(names)}\n'
    stream = check.check("p.pipe", text=text).emit.args[0]
    found: dict[str, Node] = {}
    while stream.op != "source":
        if stream.op == "map":
            for name, value in zip(stream["names"], stream.args[1:], strict=True):
                found.setdefault(name, value)
        stream = stream.args[0]
    return {name: found[name] for name in names}


def node(lines: str) -> Node:
    return list(nodes(lines).values())[-1]


def value(n: Node) -> Any:
    fields = {k: Cells(np.asarray(v)) for k, v in FIELDS.items()}
    fields["counts"] = Cells(np.array([5, 0, 7, 0, 9], np.int32), np.array([False, True, False, True, False]))
    return Evaluator(Frame(fields)).value(n).values


def shown(type: Type) -> str:
    dims = [str(d) if isinstance(d, int) else d.get("field", d.op) for d in type.dims]
    return type.dtype + ("?" if type.missing else "") + (f"[{', '.join(dims)}]" if dims else "")


# expression, its type, its value (None: not looked at)
VALUES: list[tuple[str, str, Any]] = [
    # numbers
    ("label + 250", "i64", 257),
    ("image[3, 5, 2] * image[3, 5, 2]", "i64", 213 * 213),
    ("label - 8", "i64", -1),
    ("label / 255", "f32", np.float32(7) / np.float32(255)),
    ("7 / 2", "f32", 3.5),
    ("-7 // 2", "i64", -4),
    ("-7 % 3", "i64", 2),
    ("2 ^ 10", "i64", 1024),
    ("label * 0.5", "f32", 3.5),
    ("wide + 0.2", "f64", 0.1 + 0.2),
    ("wide + 1", "f64", 1.1),
    ("half * 0.1", "f16[3]", (np.array([1, 2, 3], np.float16) * np.float16(0.1))),
    ("f16(label / 3)", "f16", np.float16(7 / 3)),
    ("u8(300)", "u8", 255),
    ("u8(2.5)", "u8", 2),
    ("u8(3.5)", "u8", 4),
    ("u8(-1)", "u8", 0),
    ("i64(-2.7)", "i64", -2),
    ("i32(flag)", "i32", 1),
    ("bool(label)", "bool", True),
    ("1 - keep", "f32", np.float32(1) - np.float32(0.875)),
    ("keep * min(3, label)", "f32", 0.875 * 3),
    ("max(1, label, 3)", "i64", 7),
    ("log1p(label)", "f32", None),
    ("epoch + 1", "i64", 1),
    # conditions
    ("0 <= label < 10", "bool", True),
    ("label == 7 and not flag", "bool", False),
    ("image > 3", "bool[4, 6, 3]", None),
    ("if flag then label else 0", "u8", 7),
    ("if flag then label else -1", "i64", 7),
    ("if flag then 0.5 else label", "f32", 0.5),
    ("if mask then order else 0", "i64[4]", [2, 0, 3, 1] * np.array([1, 0, 1, 1])),
    ("if flag then wave else 0", "f32[wave]", FIELDS["wave"]),
    # tensors
    ("image / 255", "f32[4, 6, 3]", FIELDS["image"].astype(np.float32) / np.float32(255)),
    ("[MEAN[k] * half[k] for k]", "f16[3]", None),
    ("[MEAN[k] + 1 for k]", "f32[3]", None),
    ("[f16(MEAN[k]) for k]", "f16[3]", np.array([0.485, 0.456, 0.406], np.float16)),
    ("[MEAN[k] * wide for k]", "f64[3]", np.array([0.485, 0.456, 0.406]) * 0.1),
    ("TABLE[3]", "i64", 9),
    ("[label, 3, 255]", "u8[3]", [7, 3, 255]),
    ("[label, 3, 256]", "i64[3]", [7, 3, 256]),
    ("[(6 - label) / 2, 1, keep]", "f32[3]", [-0.5, 1, 0.875]),
    ("[[1, 2], [3, 4]]", "i64[2, 2]", [[1, 2], [3, 4]]),
    ("[order, order]", "i64[2, 4]", [[2, 0, 3, 1]] * 2),
    ("[one_hot(order[b], 5) for b]", "f32[4, 5]", np.eye(5)[[2, 0, 3, 1]]),
    ("one_hot(label, 10)", "f32[10]", np.eye(10)[7]),
    ("image[1]", "u8[6, 3]", FIELDS["image"][1]),
    ("image[1, 2]", "u8[3]", FIELDS["image"][1, 2]),
    ("image[1:3, 2:4]", "u8[2, 2, 3]", FIELDS["image"][1:3, 2:4]),
    ("image[:, :2, 0]", "u8[4, 2]", FIELDS["image"][:, :2, 0]),
    ("image[[2, 0, 0]]", "u8[3, 6, 3]", FIELDS["image"][[2, 0, 0]]),
    ("order[[label, 9]] ?? -1", "i64[2]", [-1, -1]),
    ("wave[1] ?? 0", "f32", -1),
    ("wave[9] ?? 2", "f32", 2),
    ("wave[-1:2] ?? 0", "f32[3]", [0, 0.5, -1]),
    ("[if i < n then wave[i] else 0 for i < 5]", "f32[5]", [0.5, -1, 4, 0, 0]),
    ("[image[y, if flag then 5 - x else x, 0] for y, x]", "u8[4, 6]", FIELDS["image"][:, ::-1, 0]),
    ("counts ?? 0", "i32[5]", [5, 0, 7, 0, 9]),
    ("counts ?? 0.5", "f32[5]", [5, 0.5, 7, 0.5, 9]),
    ("missing(counts)", "bool[5]", [False, True, False, True, False]),
    ("counts[1:3] ?? -1", "i32[2]", [-1, 7]),
    ("counts[8] ?? -1", "i32", -1),
    ("concat(order, [9, 8])", "i64[6]", [2, 0, 3, 1, 9, 8]),
    ("wave + spot", "f32[wave]", [1.5, 1, 7]),
    ("[wave[i] for i]", "f32[wave]", FIELDS["wave"]),
    # reductions
    ("sum(image)", "i64", int(FIELDS["image"].sum())),
    ("mean(image)", "f32", None),
    ("mean(wave) ?? 0", "f32", np.float32(3.5) / 3),
    ("max(wave) ?? 0", "f32", 4),
    ("max(order)", "i64", 3),
    ("argmax(order)", "i64", 2),
    ("first(mask) ?? -1", "i64", 0),
    ("sum(mask)", "i64", 3),
    ("any(mask) and all(mask)", "bool", False),
    ("sum(order[i] * order[i] for i)", "i64", 14),
    ("[sum(image[y, x, k] for k) for y, x]", "i64[4, 6]", FIELDS["image"].astype(int).sum(2)),
    ("[max(image[y]) for y]", "i64[4]", FIELDS["image"].max((1, 2))),
    ("sum(image[y] for y)", "i64[6, 3]", FIELDS["image"].astype(int).sum(0)),
    ("std(order)", "f32", np.std([2, 0, 3, 1], ddof=1)),
    ("var(order, correction=0)", "f32", 1.25),
    # functions
    ("standardize(image)", "f32[3, 4, 6]", None),
    ("square(image)", "i64[4, 6, 3]", FIELDS["image"].astype(int) ** 2),
    ("square(3)", "i64", 9),
    ("square(half)", "f16[3]", [1, 4, 9]),
    ("lerped(0, 10)", "f32", 5),
    ("lerped(b=1, a=3, t=0.25)", "f32", 2.5),
    ("lerped(wave, 0)", "f32[wave]", [0.25, -0.5, 2]),
    ('hash("{keep}", salt=label) >= 0', "bool", True),
]


@pytest.mark.parametrize(("written", "type", "expected"), VALUES, ids=[v[0] for v in VALUES])
def test_values(written: str, type: str, expected: Any) -> None:
    n = node(f"a = {written}")
    assert shown(n.type) == type
    assert not n.type.weak
    found = value(n)
    if expected is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-6 if n.type.dtype != "f16" else 1e-3)
        if n.type.dtype not in ("f32", "f64", "f16"):
            np.testing.assert_array_equal(found, expected)


def test_small_floats_keep_their_digits_until_a_dtype_is_known() -> None:
    assert value(node("a = wide * 0.1")) == 0.1 * 0.1
    n = node("a = [MEAN[k] * wide for k]")
    assert value(n).tolist() == [0.485 * 0.1, 0.456 * 0.1, 0.406 * 0.1]


def test_results_of_functions_have_names() -> None:
    found = nodes("r = ends(wave)\na = r.low\nb = r.high - r.low\nc = r.all", ["a", "b", "c"])
    assert value(found["a"]) == -1
    assert value(found["b"]) == 5
    assert shown(found["c"].type) == "f32[wave]"


def test_annotations_bind_sizes() -> None:
    found = nodes("b: f32[k] = concat(wave, [1.0, 2.0])\na = k * 2\nc: i64[p, p] = [i + j for i < 4, j < 4]\nd = p")
    assert value(found["a"]) == 10
    assert found["d"].op == "const" and found["d"]["value"] == 4


def test_a_permutation_may_index_what_it_is_as_long_as() -> None:
    n = node("o ~ permutation(n)\na = wave[o]")
    assert shown(n.type) == "f32[wave]"
    assert any(x.op == "draw" and x["path"] == "p/o.permutation" for x in walk(n))


def test_paths_of_draws() -> None:
    found = nodes("a ~ normal()\nb ~ [uniform(0, i + 1) for i < 3]\nc ~ [normal() for i < 2]")
    paths = {x["path"]: x for n in found.values() for x in walk(n) if x.op == "draw"}
    assert set(paths) == {"p/a.normal/u.uniform", "p/a.normal/turn.uniform", "p/b.uniform", "p/c.normal/u.uniform",
                          "p/c.normal/turn.uniform"}
    assert paths["p/b.uniform"]["indexes"] == 1 and paths["p/b.uniform"].args[-1].op == "var"
    assert paths["p/a.normal/u.uniform"]["indexes"] == 0


def test_two_sizes_from_data_are_checked_for_each_record() -> None:
    text = f'{HEAD}pipeline p\n  from parquet("a.parquet") as S\n  a = wave + spot\n  emit a\n'
    emit = check.check("p.pipe", text=text).emit
    stream, checks = emit.args[0], []
    while stream.op != "source":
        checks += [stream] if stream.op == "check" else []
        stream = stream.args[0]
    assert len(checks) == 1 and checks[0].args[1]["fn"] == "eq"


def test_whole_tensors_are_scalars_inside() -> None:
    n = node("a = (image / 255 - 0.5) * 2")
    for x in walk(n):
        if x.op in ("apply", "cast", "select", "fill", "index"):
            assert x.type.is_scalar


def test_a_constant_condition_takes_one_branch() -> None:
    assert shown(node("a = if keep > 0.5 then image else image[:2]").type) == "u8[4, 6, 3]"


def test_conditions_are_facts() -> None:
    assert shown(node("a = if 0 <= label < 3 then MEAN[label] else 0").type) == "f32"
    assert shown(node("a = n > 2 and wave[2] > 0").type) == "bool"
    assert shown(node("a = n <= 2 or wave[2] > 0").type) == "bool"
    with pytest.raises(PipeError):
        node("a = n > 2 or wave[2] > 0")


def test_a_lazy_condition_reads_nothing_outside() -> None:
    assert not value(node("a = n > 9 and wave[9] > 0"))


def test_a_check_of_all_elements_covers_reads_through_them() -> None:
    lines = "check(all(order >= 0) and all(order < n))\na = wave[order]\nb = [wave[order[i]] for i]"
    text = f'{HEAD}pipeline p\n  from parquet("a.parquet") as S\n  ' + lines.replace("\n", "\n  ") + "\n{}  emit a, b\n"
    check.check("p.pipe", text=text.format(""))
    check.check("p.pipe", text=text.format("  batch(4)\n"))
    for condition in ("all(order >= 0)", "any(order >= 0) and all(order < n)", "all(0 <= order <= n)"):
        with pytest.raises(PipeError):
            check.check("p.pipe", text=text.replace("all(order >= 0) and all(order < n)", condition).format(""))
