"""Graph text: every graph comes back as itself; text that is no graph is refused with its line."""
from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipec.compiler import prune, simplify
from pipec.compiler.graph import Node, const, fresh_id, node, number, var
from pipec.compiler.graphtext import GraphTextError, parse_graph, print_graph, renumbered
from pipec.dsl.types import BOOL, F32, I64, TEXT, Type


def chain() -> Node:
    """A pipeline with most kinds of nodes."""
    h, w = (node("extent", type=I64, field="image", axis=a) for a in (0, 1))
    image = node("field", type=Type("u8", (h, w, 3)), name="image")
    label = node("field", type=I64, name="label")
    words = node("field", type=Type("text", (4,), missing=True), name="words")
    columns = (("image", (("png", "jpg"),), "u8[h, w, 3]"), ("label", (("label",),), "i64"))
    parts = (("image", image.type), ("label", I64), ("words", words.type), ("clip.rate", I64), ('odd "name', F32))
    data = node("source", type=Type("stream", parts=parts), kind="tar", paths=("a-*.tar",), options=(), columns=columns)
    kept = node("where", data, node("apply", label, number(3), type=BOOL, fn="lt"), type=data.type)
    mixed = node("shuffle", kept, type=data.type, chunk=0, mix=0, window=0, key="train/shuffle")
    y, x, c = (var(fresh_id()) for _ in range(3))
    reach = node("param", type=I64, name="reach")
    shift = node("draw", number(-4), reach, type=I64, dist="integers", path="train/dy.integers", indexes=0)
    row = node("apply", y, shift, type=I64, fn="add")
    pixel = node("index", image, row, x, c, type=Type("u8", missing=True), guard=True)
    filled = node("fill", pixel, const(0, Type("u8")), type=Type("u8"))
    scale = node("index", const((0.1, float("inf"), float("nan")), Type("f32", (3,))), c, type=F32, guard=False)
    body = node("apply", node("cast", filled, type=F32, mode="exact"), scale, type=F32, fn="mul")
    built = node("build", body, h, w, number(3), type=Type("f32", (h, w, 3)), ids=(y["id"], x["id"], c["id"]))
    k = var(fresh_id())
    any_gap = node("reduce", node("missing", node("index", words, k, type=Type("text", missing=True), guard=False), type=BOOL),
                   number(4), type=BOOL, ids=(k["id"],), kind="any")
    coin = node("select", any_gap, const(-0.0, F32), const(1.5, F32), type=F32)
    struct = Type("struct", parts=(("samples", Type("f32", (h, 2))), ("rate", I64)))
    call = node("call", image, const('say "ö"\n', TEXT), type=struct, op="decode")
    rate = node("part", call, type=I64, name="rate")
    own = node("extern", image, type=Type("u8", (h, w)), target="module:name")
    out = Type("stream", parts=(("image", built.type), ("coin", F32), ("rate", I64), ("own", own.type)))
    mapped = node("map", mixed, built, coin, rate, own, type=out, names=("image", "coin", "rate", "own"))
    count = node("count", type=I64)
    batched = Type("stream", parts=tuple((n, t.with_dims((count, *t.dims))) for n, t in out.parts))
    batch = node("batch", mapped, number(8), type=batched, has=("n",), whole=False, pad=True, edges=())
    return node("emit", node("share", batch, type=batched), type=batched, names=("image", "coin", "rate", "own"))


def test_round_trip() -> None:
    graph = renumbered(chain())
    text = print_graph(graph)
    assert parse_graph(text) is graph
    assert print_graph(chain()) == text
    assert all(len(line) < 400 for line in text.splitlines())
    assert "v1 = fill(" in text or "= fill(" in text


@pytest.mark.parametrize(
    "value",
    [0, -5, 2**63 - 1, -(2**63), 2**64 - 1, 0.1, -0.0, 0.0, 1e300, 5e-324, math.inf, -math.inf, math.nan, True, False,
     "", "a\"b\\c\nd\u0000é\ud800", (), (1,), (1, 2.0, "x", (True, (math.nan, ()))), 1e22, 123456789.0],
    ids=repr,
)
def test_every_attribute_value(value: object) -> None:
    for n in (node("param", type=I64, name="x", extra=value), const(value, Type("f32"))):
        held = node("select", n, n, n, type=F32)
        assert parse_graph(print_graph(held)) is held
        assert parse_graph(print_graph(n)) is n


@pytest.mark.parametrize("type", [
    Type("u8"), Type("u8", missing=True), Type("f32", weak=True), Type("i64", (), True, True), Type("u8", (0, 3)),
    Type("text", (2,), True), Type("stream"), Type("struct"), Type("unknown"), Type("stream", parts=(("", F32),)),
    Type("struct", parts=(("a", Type("struct", parts=(("b.c", Type("bool", (1,))),))),)),
], ids=str)
def test_every_type(type: Type) -> None:
    n = node("param", type=type, name="x")
    assert parse_graph(print_graph(n)) is n


def test_functions_named_like_operations() -> None:
    for fn in ("select", "add", "two words", "", "true", "weak"):
        n = node("apply", number(1), number(2), type=I64, fn=fn)
        assert parse_graph(print_graph(n)) is n


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    nodes: list[Node] = [number(1), const(0.5, F32), node("field", type=I64, name="a b"), node("field", type=I64, name="a_b")]
    for _ in range(rng.randrange(40)):
        a, b = rng.choice(nodes), rng.choice(nodes)
        match rng.randrange(4):
            case 0:
                v = var(fresh_id())
                body = node("apply", v, a, type=I64, fn="add")
                nodes.append(node("build", body, number(3), type=Type("i64", (3,)), ids=(v["id"],)))
            case 1:
                nodes.append(node("apply", a, b, type=I64, fn=rng.choice(["add", "min", "fill"])))
            case 2:
                nodes.append(node("call", a, b, type=Type("u8", (2, node("field", type=I64, name="n"))), op="resize"))
            case _:
                nodes.append(node("extent", a, type=I64, op="resize", part="", axis=rng.randrange(3)))
    graph = renumbered(node("select", *rng.choices(nodes, k=3), type=I64))
    text = print_graph(graph)
    assert parse_graph(text) is graph
    assert print_graph(parse_graph(text)) == text


def test_deep_graphs() -> None:
    n = node("field", type=I64, name="x")
    for k in range(5000):
        n = node("apply", n, number(k), type=I64, fn="add")
    assert parse_graph(print_graph(n)) is n


@pytest.mark.parametrize(("text", "line", "reason"), [
    ("", 1, "no result"),
    ("x = field(name=\"x\") : i64\n", 1, "no result"),
    ("x = field(name=\"x\") : i64\nadd(x, y) : i64\n", 2, "`y` isn't defined"),
    ("field(name=\"x\") : i65\n", 1, "isn't a dtype"),
    ("field() : i64\n", 1, "needs the attribute `name`"),
    ("select(true, 1) : i64\n", 1, "takes 3 args, not 2"),
    ("field(name=\"x\" : i64\n", 1, "expected `,`"),
    ("field(name=\"x) : i64\n", 1, "unexpected character"),
    ("field(name=3) : i64\n", 1, "is a text"),
    ("const(value=99999999999999999999999) : i64\n", 1, "beyond 64 bits"),
    ("const(value=" + "(" * 50 + ")" * 50 + ") : i64\n", 1, "nested too deeply"),
    ("var(id=0) : i64\n", 1, "from 1 to"),
    ("var(id=99999999) : i64\n", 1, "from 1 to"),
    ("var(id=1) : f32\n", 1, "a var is an i64"),
    ("x = field(name=\"x\") : i64\nx = field(name=\"y\") : i64\n", 2, "taken"),
    ("field(name=\"x\") : i64\nfield(name=\"y\") : i64\n", 2, "nothing may follow"),
    ("field(name=\"x\") : i64 i64\n", 1, "the line's end"),
    ("x = field(name=\"x\") : f32\nfield(name=\"y\") : f32[x]\n", 2, "a dim is an i64"),
    ("build(1, 2, ids=(1, 1)) : i64[2]\n", 1, "one size for each"),
    ("field(\"x\", name=\"x\", name=\"y\") : i64\n", 1, "can't stand here"),
    ("field(name=\"x\", type=1) : i64\n", 1, "can't stand here"),
    ("add(1.5, 1) : i64\n", 1, "a constant needs a dtype"),
    ("add(1, 2, fn=\"x\") : i64\n", 1, "takes no attributes"),
    ("share(1) : i64\n", 1, "gives a stream"),
    ("param(name=\"\\x\") : i64\n", 1, "unknown escape"),
    ("param(name=\"x\") : " + "{a: " * 20 + "i64" + "}" * 20, 1, "nested too deeply"),
    ("param(name=\"x\") : {a: i64, a: i64}", 1, "two parts have one name"),
    ("\x00\n", 1, "unexpected character"),
    ("é = 1\n", 1, "unexpected character"),
])
def test_what_is_no_graph(text: str, line: int, reason: str) -> None:
    with pytest.raises(GraphTextError) as caught:
        parse_graph(text)
    assert caught.value.line == line
    assert reason in caught.value.reason


def test_damaged_text_never_does_anything_else() -> None:
    text = print_graph(chain())
    rng = random.Random(1)
    for _ in range(400):
        letters = list(text)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(letters))
            letters[at] = rng.choice([*'()[]{},:="?.-019anx\n \\', ""])
        damaged = "".join(letters)
        try:
            parsed = parse_graph(damaged)
        except GraphTextError:
            continue
        assert isinstance(parsed, Node)


def test_new_binders_stay_new() -> None:
    parse_graph("i = var(id=90000) : i64\nbuild(i, 3, ids=(90000,)) : i64[3]\n")
    assert fresh_id() > 90000


@pytest.mark.parametrize("module", [simplify, prune])
def test_examples_of_passes(module: object) -> None:
    before, after = (_indented(part) for part in str(module.__doc__).split("Before:")[1].split("After:"))
    run = module.simplify if module is simplify else module.prune  # type: ignore[attr-defined]
    assert print_graph(run(parse_graph(before))) == print_graph(parse_graph(after))


def _indented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.startswith("    "))
