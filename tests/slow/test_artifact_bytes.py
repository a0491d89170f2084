"""Artifacts with changed bytes, many of them, and the graphs of all examples."""
from __future__ import annotations

from pathlib import Path

import pytest
import test_artifact
from test_artifact import cache, made  # noqa: F401

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.pipe"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(8))
def test_damaged_bytes_of_every_member(seed: int, made: Path) -> None:  # noqa: F811
    found = test_artifact.fuzz(made, 1000, 100 + seed)
    assert found["refused"] > 200 and found["again"] > 200


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_graphs_of_programs_pass(path: Path) -> None:
    test_artifact.typed_again(path)
