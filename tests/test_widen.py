"""Columns that cross the ring narrow: the docstring's example, the same bits, when it pays, what stays above and why."""
from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.compile import lowered, transformed
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.compiler.report import report
from pipec.compiler.retype import check_graph
from pipec.compiler.widen import Widening, widen
from running import assert_same, run_compiled, run_interpreted


def test_the_example_of_the_docstring() -> None:
    before, after = (dedent(t).strip() + "\n" for t in str(widen.__doc__).split("Before:\n")[1].split("After:\n"))
    assert print_graph(widen(parse_graph(before))) == print_graph(parse_graph(after))


HEAD = """seed 4
schema Row
  img: u8[16, 20, 3]
  big: i64[16]
  n: i64
pipeline p
  from npz("{data}") as Row
"""
SCALED = "image = [(f32(img[y, x, c]) - 120) / 58.5 for c, y, x]"
HALVED = "image = [f32(img[y, x, c]) * 0.5 for c, y, x]"
# Lines, whether `image` is narrow where the loop is on the CPU, and where it is on a device.
CASES = {
    "read by the loop below": ([HALVED, "share()", "total = sum(image[c, y, x] for c, y, x)", "emit total, n"], True, True),
    "dearer than the bytes": ([SCALED, "share()", "total = sum(image[c, y, x] for c, y, x)", "emit total, n"], False, True),
    "delivered as it is": ([SCALED, "share()", "batch(64)", "emit image, n"], False, True),
    "a batch above": ([SCALED, "batch(64)", "share()", "emit image, n"], False, True),
    "no share": ([SCALED, "batch(64)", "emit image, n"], False, True),
    "drawn places stay above": (
        ["flip ~ bernoulli(0.5)", "image = [f32(img[y, (if flip then 19 - x else x), c]) / 255 for c, y, x]", "share()",
         "batch(64)", "emit image"], False, True),
    "filled": (["d ~ integers(-3, 4)", "image = [f32(img[y + d, x, c] ?? 7) * 0.5 for y < 16, x, c]", "share()", "batch(64)",
                "emit image, n"], False, True),
    "few records to a launch": ([SCALED, "share()", "batch(4)", "emit image, n"], False, False),
    "two places": (["image = [f32(img[y, x, 0]) + img[15 - y, x, 1] for y, x]", "share()", "batch(64)", "emit image"],
                   False, False),
    "drawn numbers": (["r ~ uniform(0, 1)", "image = [img[y, x, 0] * r for y, x]", "share()", "batch(64)", "emit image"],
                      False, False),
    "bad records are told above": (["skip_bad(at_most=1.0)", "check(n % 3 != 0)", SCALED, "share()", "batch(64)",
                                    "emit image, n"], False, True),
}


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(2)
    np.savez(tmp_path / "d.npz", img=rng.integers(0, 256, (11, 16, 20, 3), np.uint8), n=np.arange(11),
             big=rng.integers(-2**62, 2**62, (11, 16)))
    return str(tmp_path / "d.npz")


def rows(compiled) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    return {c.name: (c.dtype, c.dims) for c in compiled.plan.rows}


@pytest.mark.parametrize("name", CASES)
def test_no_bit_changes(name, data) -> None:
    lines, cpu, device = CASES[name]
    program = check("p.pipe", text=HEAD.replace("{data}", data) + "".join(f"  {line}\n" for line in lines))
    reference, code = run_interpreted(program)
    assert (rows(lowered(program))["image"][0] == "u8") is cpu
    made = lowered(program, on_device=True)
    assert (rows(made)["image"][0] == "u8") is device
    check_graph(transformed(program.emit, on_device=True), program.params, True)
    left = lowered(program, ["cut"], on_device=True)
    assert rows(left)["image"][0] == "f32" and not left.widenings
    for options in ({}, {"on_device": True}, {"without": ("cut",)}, {"without": ("place", "fuse"), "on_device": True}):
        got, got_code = run_compiled(program, **options)
        assert got_code == code
        assert_same(got, reference)


def test_what_stands_twice_is_counted_once() -> None:
    squares = "".join(f"q{i} = mul(q{i - 1}, q{i - 1}) : f32\n" for i in range(1, 200))
    text = dedent(str(widen.__doc__).split("Before:\n")[1].split("After:\n")[0]).strip() + "\n"
    told: list[Widening] = []
    widen(parse_graph(text.replace("half = mul(wide, 0.5:f32)", f"q0 = mul(wide, 0.5:f32) : f32\n{squares}half = neg(q199)")),
          told=told)
    assert [w.costs < 1e5 for w in told] == [True]


def test_figures_are_told(data) -> None:
    lines = CASES["delivered as it is"][0]
    program = check("p.pipe", text=HEAD.replace("{data}", data) + "".join(f"  {line}\n" for line in lines))
    (kept,) = report(lowered(program)).notes
    assert "crosses the ring as 3,840 bytes, not as the 960 it is made of" in kept
    notes = report(lowered(program, on_device=True), device="cuda").notes
    assert any("crosses the ring as 960 bytes instead of 3,840" in note and "--without cut" in note for note in notes)
