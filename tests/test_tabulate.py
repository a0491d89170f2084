"""Functions of one byte as tables: the docstring's example, the same bits, what stays as it is."""
from __future__ import annotations

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.compile import transformed
from pipec.compiler.graph import Node, walk
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.compiler.tabulate import tabulate
from running import assert_same, run_compiled, run_interpreted


def example(title: str) -> str:
    assert tabulate.__doc__ is not None
    part = tabulate.__doc__.split(f"{title}:")[1].split("\n\n")[1]
    return "\n".join(line.strip() for line in part.splitlines()) + "\n"


def tables(n: Node) -> list[Node]:
    return [m for m in walk(n) if m.op == "const" and m.type.dims == (256,)]


def test_the_example_of_the_docstring() -> None:
    after = tabulate(parse_graph(example("Before")))
    (table,) = tables(after)
    assert np.array_equal(np.float32(table["value"]), np.sqrt(np.arange(256, dtype=np.float32) / np.float32(255)))
    stated = example("After").replace("TABLE", "t")
    numbers = ", ".join(map(repr, table["value"]))
    assert print_graph(after) == print_graph(parse_graph(f"t = const(value=({numbers})) : f32[256]\n{stated}"))


PROGRAM = """schema Row
  img: u8[4, 5, 3]
  b: u8
pipeline p
  from npz("{0}") as Row
  lin = [if img[y, x, c] <= 10 then img[y, x, c] / 255 / 12.92 else ((img[y, x, c] / 255 + 0.055) / 1.055) ^ 2.4 for c, y, x]
  loud = [f16(log(img[y, x, 0] - 3.0)) for y, x]
  wide = [sqrt((img[y + 2, x, 1] ?? 7) / 255) for y < 4, x]
  both = [exp(img[y, x, 0]) * img[y, x, 1] for y, x]
  whole = sum(i64(sin(img[y, x, 2]) * 1000) for y, x)
  once = exp(b)
  cheap = [img[y, x, c] * 2 + 1 for c, y, x]
  emit lin, loud, wide, both, whole, once, cheap
"""


@pytest.fixture
def program(tmp_path):
    rng = np.random.default_rng(2)
    np.savez(tmp_path / "d.npz", img=rng.integers(0, 256, (9, 4, 5, 3), np.uint8), b=np.arange(9, dtype=np.uint8))
    return check("p.pipe", text=PROGRAM.replace("{0}", str(tmp_path / "d.npz")))


def test_no_bit_changes(program) -> None:
    reference, _ = run_interpreted(program)
    for without in ((), ("tabulate",), ("fuse",)):
        assert_same(run_compiled(program, without)[0], reference)


def test_what_becomes_a_table(program) -> None:
    found = tables(transformed(program.emit))
    assert len(found) == 5                       # lin, loud, wide, exp of both, sin; not cheap, not once
    assert sorted(t.type.dtype for t in found) == ["f16", "f32", "f32", "f32", "i64"]
    assert not tables(transformed(program.emit, ("tabulate",)))
    again = transformed(program.emit)
    assert tabulate(again) is again
