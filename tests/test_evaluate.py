"""Values and streams as the language defines them, on graphs made by hand and on small programs."""
from __future__ import annotations

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.evaluate import constant, evaluate, made_record, record
from pipec.compiler.evaluate_values import Cells, Evaluator, Frame
from pipec.compiler.graph import const, fresh_id, node, number, var
from pipec.dsl.types import BOOL, F32, I64, Type
from pipec.runtime.errors import DataError


def apply(fn, *args, type=None):
    return node("apply", *args, type=type or args[0].type, fn=fn)


def tensor(values, dtype="i64"):
    return const(tuple(values), Type(dtype, (len(values),)))


def build(body, *binders, dtype=None, dims=None):
    ids = tuple(v["id"] for v, _ in binders)
    return node("build", body, *(n if not isinstance(n, int) else number(n) for _, n in binders),
                type=Type(dtype or body.type.dtype, dims or tuple(n for _, n in binders)), ids=ids)


def reduced(kind, body, *binders, type=None):
    ids = tuple(v["id"] for v, _ in binders)
    return node("reduce", body, *(n if not isinstance(n, int) else number(n) for _, n in binders), type=type or body.type,
                ids=ids, kind=kind)


def index(t, *at, guard=False):
    return node("index", t, *at, type=Type(t.type.dtype, (), guard), guard=guard)


def test_constant_folds_with_the_reference_functions():
    assert constant(apply("add", number(2), number(3))) == 5
    third = apply("div", const(1.0, F32), const(3.0, F32))
    assert constant(third) == float(np.float32(1) / np.float32(3))
    assert constant(tensor((1, 2, 3))) == (1, 2, 3)
    assert constant(node("cast", const(2.5, F32), type=Type("u8"), mode="round")) == 2


def test_integers_past_i64_fail_only_where_they_are_asked_for():
    big = number(2**63 - 1)
    with pytest.raises(DataError) as e:
        constant(apply("add", big, number(1)))
    assert e.value.code == "E0802"
    lazy = node("select", const(True, BOOL), number(7), apply("add", big, number(1)), type=I64)
    assert constant(lazy) == 7


def test_select_is_lazy_place_by_place():
    i = var(fresh_id())
    big = apply("add", number(2**63 - 3), i)
    chosen = node("select", apply("lt", i, number(3), type=BOOL), big, number(-1), type=I64)
    assert constant(build(chosen, (i, 5))) == (2**63 - 3, 2**63 - 2, 2**63 - 1, -1, -1)
    with pytest.raises(DataError):
        constant(build(big, (i, 5)))


def test_gather_transpose_and_partial_body():
    i, j = var(fresh_id()), var(fresh_id())
    t = const(tuple(range(6)), Type("u8", (2, 3)))
    turned = build(index(t, j, i), (i, 3), (j, 2))
    assert constant(turned) == (0, 3, 1, 4, 2, 5)
    k = var(fresh_id())
    rows = build(tensor((7, 8)), (k, 3), dims=(3, 2))
    assert constant(rows) == (7, 8, 7, 8, 7, 8)
    inner = build(apply("mul", i, j), (j, 2))
    assert constant(build(inner, (i, 3), dims=(3, 2))) == (0, 0, 0, 1, 0, 2)


def test_guarded_reads_are_missing_until_filled():
    i = var(fresh_id())
    at = apply("sub", i, number(1))
    read = index(tensor((4, 5)), at, guard=True)
    filled = node("fill", read, number(-9), type=I64)
    assert constant(build(filled, (i, 4))) == (-9, 4, 5, -9)
    assert constant(build(node("missing", read, type=BOOL), (i, 4))) == (True, False, False, True)
    nothing = index(const((), Type("i64", (0,))), at, guard=True)
    assert constant(build(node("fill", nothing, at, type=I64), (i, 2))) == (-1, 0)


def test_reductions_below_binders():
    i, j = var(fresh_id()), var(fresh_id())
    t = const(tuple(range(6)), Type("i64", (2, 3)))
    assert constant(build(reduced("sum", index(t, i, j), (j, 3)), (i, 2))) == (3, 12)
    assert constant(reduced("argmax", index(t, i, j), (i, 2), (j, 3))) == 5
    ragged = build(reduced("sum", apply("add", j, number(1)), (j, i)), (i, 5))
    assert constant(ragged) == (0, 1, 3, 6, 10)
    empty = reduced("max", j, (j, 0), type=Type("i64", (), True))
    assert constant(empty) is None


def test_draws_depend_on_id_epoch_path_and_binders():
    i = var(fresh_id())

    def drawn(path="p/x.uniform", **frame):
        one = node("draw", const(0.0, F32), const(1.0, F32), i, type=F32, dist="uniform", path=path, indexes=1)
        return Evaluator(Frame(**frame)).value(build(one, (i, 4))).values.tolist()

    assert len(set(drawn())) == 4
    assert drawn(id=3) == drawn(id=3) != drawn(id=4)
    assert drawn(epoch=1) != drawn(epoch=2) and drawn(seed=1) != drawn(seed=2) and drawn(path="q") != drawn()
    order = node("draw", number(6), type=Type("i64", (6,)), dist="permutation", path="p", indexes=0)
    assert sorted(constant(order)) == list(range(6))
    none = node("draw", number(3), number(3), type=I64, dist="integers", path="p", indexes=0)
    with pytest.raises(DataError) as e:
        constant(none)
    assert e.value.code == "E0804"


def test_fields_extents_and_half_precision():
    image = node("field", type=Type("f16", (2, 2)), name="image")
    i, j = var(fresh_id()), var(fresh_id())
    frame = Frame({"image": Cells(np.array([[1, 2], [3, 1000]], np.float16))})
    size = node("extent", type=I64, field="image", axis=0)
    double = build(apply("mul", index(image, i, j), index(image, i, j)), (i, size), (j, size), dims=(2, 2))
    got = Evaluator(frame).value(double).values
    assert got.dtype == np.float16 and got.tolist() == [[1, 4], [9, np.inf]]


def test_text_and_logic():
    word = const("cat", Type("text"))
    assert constant(apply("eq", word, const("cat", Type("text")), type=BOOL)) is True
    i = var(fresh_id())
    words = const(("a", "b"), Type("text", (2,)))
    same = apply("eq", index(words, i), const("b", Type("text")), type=BOOL)
    assert constant(build(same, (i, 2))) == (False, True)
    beyond = apply("gt", apply("add", number(2**63 - 1), number(1)), number(0), type=BOOL)
    assert constant(apply("and", const(False, BOOL), beyond)) is False


def test_deep_chains_of_choices_stay_cheap():
    i = var(fresh_id())
    x = i
    for step in range(60):
        even = apply("eq", apply("mod", x, number(2)), number(0), type=BOOL)
        x = node("select", even, apply("add", x, number(step)), apply("sub", x, number(1)), type=I64)
    assert len(constant(build(x, (i, 4)))) == 4


def test_long_chains_of_lines_are_no_deep_recursion():
    x = number(0)
    for _ in range(1500):
        x = apply("add", x, number(1))
    assert constant(x) == 1500


# --- whole programs -------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a program over arrays: `run(text, x=…)` saves them as data.npz and gives what `emit` delivers."""
    monkeypatch.chdir(tmp_path)

    def go(text, epoch=0, start=0, **arrays):
        np.savez("data.npz", **arrays)
        return list(evaluate(check("p.pipe", text=text), epoch, start))

    return go


HEAD = """seed 7
schema Row
  x: i64

"""


def column(batches, name="x"):
    return [np.ma.filled(b[name], -1).tolist() for b in batches]


def test_records_pass_lines_in_order(run):
    got = run(HEAD + """pipeline train
  from npz("data.npz") as Row
  where x % 2 == 0
  y = x * x
  take(3)
  emit y
""", x=np.arange(20))
    assert column(got, "y") == [0, 4, 16]


def test_a_shuffle_is_a_permutation_of_the_epoch(run):
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  shuffle()\n  batch(10)\n  emit x\n"
    first, again, other = run(text, x=np.arange(25)), run(text, x=np.arange(25)), run(text, 1, x=np.arange(25))
    flat = [v for b in column(first) for v in b]
    assert [len(b) for b in column(first)] == [10, 10, 5] and sorted(flat) == list(range(25))
    assert column(first) == column(again) != column(other)
    resumed = run(text, start=20, x=np.arange(25))
    assert column(resumed) == [flat[20:]]


def test_draws_follow_the_record_not_its_place(run):
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  {}k ~ integers(0, 1000000)\n  emit x, k\n"
    plain = {int(r["x"]): int(r["k"]) for r in run(text.format(""), x=np.arange(30))}
    mixed = {int(r["x"]): int(r["k"]) for r in run(text.format("shuffle()\n  "), x=np.arange(30))}
    assert plain == mixed and len(set(plain.values())) == 30


def test_repeat_draws_anew(run):
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  repeat(3)\n  k ~ integers(0, 1000000)\n  emit x, k\n"
    got = run(text, x=np.arange(4))
    assert column(got) == [0, 1, 2, 3] * 3 and len({int(r["k"]) for r in got}) == 12


def test_balance_shows_every_value_equally_often(run):
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  balance(x)\n  emit x\n"
    got = run(text, x=np.array([0] * 9 + [1] * 2 + [2]))
    assert len(got) == 12 and sorted(column(got)) == [0] * 4 + [1] * 4 + [2] * 4


def test_windows(run):
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  window({})\n  emit {}\n"
    tokens = np.array([1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9, 0])
    assert column(run(text.format("4", "x"), x=tokens)) == [[1, 2, 3, 0], [4, 5, 0, 6], [7, 8, 9, 0]]
    assert column(run(text.format("5, stride=4, rest=\"drop\"", "x"), x=tokens)) == [[1, 2, 3, 0, 4], [4, 5, 0, 6, 7]]
    assert column(run(text.format("5, stride=4", "x"), x=tokens))[-1] == [7, 8, 9, 0]
    filled = text.format("5, pad=true", "y").replace("  emit", "  y = x ?? -1\n  emit")
    assert column(run(filled, x=tokens), "y")[-1] == [9, 0, -1, -1, -1]
    assert column(run(text.format("2, stride=5", "x"), x=tokens)) == [[1, 2], [5, 0], [9, 0]]
    assert column(run(text.format("3, stride=1", "x"), x=np.arange(5))) == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_each_and_padding(run):
    text = """seed 7
schema Row
  x: i64
  t: i64[n]

pipeline train
  from npz("data.npz") as Row
  s = [t[i] * 10 for i < min(x, n)]
  {}
  emit {}
"""
    x, t = np.array([2, 0, 3]), np.arange(9).reshape(3, 3)
    assert column(run(text.format("each(t)", "x, t"), x=x, t=t), "t") == list(range(9))
    padded = run(text.format("batch(2, pad=true)\n  v = s ?? -1\n  m = missing(s)", "v, m"), x=x, t=t)
    assert column(padded, "v") == [[[0, 10], [-1, -1]], [[60, 70, 80]]]
    assert column(padded, "m")[0] == [[False, False], [True, True]]


def test_batches_of_like_length_and_by_budget(run):
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  batch({})\n  emit x\n"
    x = np.array([1, 9, 2, 8, 3, 7, 4])
    assert column(run(text.format("2, by=x, edges=[5, 10]"), x=x)) == [[1, 2], [9, 8], [3, 4], [7]]
    assert column(run(text.format("budget=10, by=x"), x=x)) == [[1], [9], [2], [8], [3], [7], [4]]
    assert column(run(text.format("2, whole=true"), x=x)) == [[1, 9], [2, 8], [3, 7]]


def test_pack_lays_records_end_to_end(run):
    got = run("""seed 7
schema Row
  x: i64

pipeline train
  from npz("data.npz") as Row
  t: i64[d] = [x * 10 + i for i < max(x, 0)]
  pack(6, by=d)
  t = t ?? -1
  s = segment ?? 0
  p = position ?? 0
  emit t, s, p
""", x=np.array([0, 1, 0, 0, 2, 3, 4, 5]))     # those of no length take no number
    assert column(got, "s") == [[1, 2, 2, 3, 3, 3], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]
    assert column(got, "p")[0] == [0, 0, 1, 0, 1, 2]
    assert column(got, "t") == [[10, 20, 21, 30, 31, 32], [40, 41, 42, 43, -1, -1], [50, 51, 52, 53, 54, -1]]


MIX = """seed 7
schema Row
  x: i64

pipeline one(data: path)
  from npz(data) as Row

pipeline train
  from mix(one("a.npz"), one("b.npz"), one("c.npz"){})
  emit x
"""


@pytest.fixture
def three(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("a", [0, 1, 2]), ("b", [10, 11, 12, 13]), ("c", [20, 21, 22, 23, 24])):
        np.savez(f"{name}.npz", x=np.array(numbers))


def test_mix_in_turns(three):
    def mixed(options):
        return column(evaluate(check("p.pipe", text=MIX.format(options))))

    assert mixed(', until="first"') == [0, 10, 20, 1, 11, 21, 2, 12, 22]
    assert mixed(', until="all"') == [0, 10, 20, 1, 11, 21, 2, 12, 22, 0, 13, 23, 1, 10, 24]
    assert mixed(", until=4") == [0, 10, 20, 1]


def test_mix_by_weights(three):
    got = column(evaluate(check("p.pipe", text=MIX.format(", weights=[0.7, 0.2, 0.1], until=5000"))))
    counts = np.bincount(np.array(got) // 10)
    assert np.all(np.abs(counts - [3500, 1000, 500]) < [130, 113, 85])


def test_zip_and_sample(three):
    text = """seed 7
schema Row
  x: i64

pipeline one(data: path)
  from npz(data) as Row

pipeline train
  from {}
  emit u, v
"""
    zipped = list(evaluate(check("p.pipe", text=text.format("zip(l=one(\"c.npz\"), r=one(\"a.npz\"))\n  u = l.x\n  v = r.x"))))
    assert column(zipped, "u") == [20, 21, 22, 23, 24] and column(zipped, "v") == [0, 1, 2, 0, 1]
    sampled = list(evaluate(check("p.pipe", text=text.format(
        "one(\"c.npz\")\n  other ~ sample(one(\"a.npz\"))\n  u = x\n  v = other.x"))))
    assert column(sampled, "u") == [20, 21, 22, 23, 24] and set(column(sampled, "v")) <= {0, 1, 2}


def test_bad_records_stop_the_run_or_are_left_out(run):
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  {}check(x != 3)\n  emit x\n"
    with pytest.raises(DataError) as e:
        run(text.format(""), x=np.arange(6))
    assert e.value.code == "E0805" and e.value.position == 3 and e.value.record
    assert column(run(text.format("skip_bad(at_most=0.2)\n  "), x=np.arange(6))) == [0, 1, 2, 4, 5]
    with pytest.raises(DataError) as e:
        run(text.format("skip_bad(at_most=0.1)\n  "), x=np.arange(6))
    assert e.value.code == "E0806"


def test_what_nothing_emitted_needs_cannot_fail(run):
    got = run(HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  y = x * 9223372036854775807\n  emit x\n", x=np.arange(3))
    assert column(got) == [0, 1, 2]
    with pytest.raises(DataError) as e:
        run(HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  y = x * 9223372036854775807\n  emit y\n", x=np.arange(3))
    assert e.value.code == "E0802" and e.value.where is not None


def test_show_gives_every_field_of_one_record(run, tmp_path):
    np.savez("data.npz", x=np.arange(5) * 2)
    text = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n  y = x + 1\n  batch(2)\n  emit x\n"
    assert {k: int(v) for k, v in record(check("p.pipe", text=text), 3).items()} == {"x": 6, "y": 7}


def test_show_gives_records_that_stages_make(run, tmp_path):
    np.savez("data.npz", x=np.arange(10) * 2)
    head = HEAD + "pipeline train\n  from npz(\"data.npz\") as Row\n"
    program = check("p.pipe", text=head + "  y = x + 1\n  window(3)\n  z = sum(y[i] for i)\n  batch(2)\n  emit z\n")
    name, fields = made_record(program, 2)
    assert name == "3 records, the first is row 6 of data.npz"
    assert fields["y"].tolist() == [13, 15, 17] and int(fields["z"]) == 45
    with pytest.raises(LookupError, match="no record 9"):
        made_record(program, 9)
    assert made_record(check("p.pipe", text=head + "  batch(2)\n  emit x\n"), 0) is None
    text = HEAD + """pipeline other
  from npz("data.npz") as Row

pipeline train
  from npz("data.npz") as Row
  o ~ sample(other)
  y = x * 100 + o.x
  batch(2)
  emit y
"""
    found = record(check("p.pipe", text=text), 3)
    delivered = [int(y) for b in evaluate(check("p.pipe", text=text)) for y in b["y"]]
    assert int(found["y"]) == delivered[3] == 600 + int(found["o.x"])
