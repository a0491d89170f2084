"""Sizes out of data that ask for more memory than there is: that record is bad, with a message that says what to do."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.kernels.ops import BadRecord
from pipec.runtime import blocks
from pipec.runtime.blocks import Bump
from pipec.runtime.errors import DataError
from running import run_compiled, run_interpreted

PROGRAM = """
schema Row
  n: i64

pipeline p
  from npz("data.npz") as Row{bad}
  {lines}
  emit {name}
"""
LINES = {
    "output": ("x = [f32(i) * f32(j) for i < n, j < n]", "x"),
    "past i64": ("x = [u8(i + j + k) for i < n, j < n, k < n]", "x"),
}
SIZES = [3, 2**31 - 1, 5, 2**62, 4]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPEC_CACHE", str(tmp_path / "cache"))
    np.savez("data.npz", n=np.array(SIZES, np.int64))

    def checked(lines: str, name: str, bad: str = "") -> Any:
        Path("p.pipe").write_text(PROGRAM.format(lines=lines, name=name, bad=bad))
        return check("p.pipe", {})

    return checked


@pytest.mark.parametrize("which", ["output", "past i64"])
def test_such_a_record_is_bad_and_the_others_are_not(program: Any, which: str) -> None:
    made = program(*LINES[which], "\n  skip_bad(at_most=1.0)")
    for records, code in (run_compiled(made, threads=1), run_interpreted(made)):
        assert code is None
        assert [r["x"].shape[0] for r in records] == [3, 5, 4]
        if which == "output":
            assert all(np.array_equal(r["x"], np.outer(*[np.arange(len(r["x"]), dtype="f4")] * 2)) for r in records)


@pytest.mark.parametrize("which", ["output", "past i64"])
def test_without_skip_bad_the_run_ends_and_says_what_to_do(program: Any, which: str) -> None:
    made = program(*LINES[which])
    for records, code in (run_compiled(made, threads=1), run_interpreted(made)):
        assert code == "E0814" and len(records) == 1


def test_scratch_is_let_go_after_a_record_that_asks_for_too_much(program: Any, monkeypatch: Any) -> None:
    asked: list[int] = []
    real = blocks.Block.at_least
    monkeypatch.setattr(blocks.Block, "at_least", lambda self, size: asked.append(size) or real(self, size))
    made = program(*LINES["output"], "\n  skip_bad(at_most=1.0)")
    records, code = run_compiled(made, threads=1)
    assert code is None and len(records) == 3
    assert max(asked) <= blocks.MOST_MEMORY and min(asked[-3:]) < 1 << 22


def test_what_operators_take(monkeypatch: Any) -> None:
    bump = Bump()
    for shape in ((1 << 40, 1 << 20), (1 << 38,)):
        with pytest.raises(BadRecord) as caught:
            bump.take(shape, np.uint8)
        assert caught.value.code == "E0814" and "more than there is" in caught.value.reason
    assert bump.take((3, 4), np.float32).shape == (3, 4)


def test_the_message(program: Any) -> None:
    from pipec.compiler.compile import _with_kernels, lowered
    from pipec.compiler.native import build
    from pipec.runtime.loader import Loader

    compiled = lowered(program(*LINES["output"]))
    plan = _with_kernels(compiled.plan, build(compiled.kernels))
    with Loader(plan, as_="numpy", workers="threads", threads=1) as loader, pytest.raises(DataError) as caught:
        list(loader)
    assert caught.value.code == "E0814" and caught.value.position == 1 and "`min`" in caught.value.label
    where, written = caught.value.where, LINES["output"][0]
    assert where is not None and Path("p.pipe").read_text()[where.start:where.end] == written.removeprefix("x = ")
