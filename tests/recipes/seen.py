"""What a recipe's records hold and what was drawn for them, for plain scripts that recompute all the rest.

Draws are recorded while the interpreter works: they are numbers from a generator that has tests of its own.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from pipec.compiler.check import check
from pipec.compiler.evaluate import Run, _plain
from pipec.compiler.evaluate_values import Evaluator


@dataclass(frozen=True)
class Seen:
    """One record: its fields above a stage, and its draws by the end of their paths."""

    fields: dict[str, Any]
    draws: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def draw(self, end: str, *at: int) -> Any:
        """The draw at this path behind the pipeline's name, as `flip.bernoulli/u.uniform`; below builds at these outer places.

        What stands below one more build is an array.
        """
        (found,) = (v for path, v in self.draws.items() if path.partition("/")[2] == end)
        here = {place[len(at) :]: v for place, v in found.items() if place[: len(at)] == at}
        return here[()] if () in here else np.array([here[k,] for k in range(len(here))])


def seen(path: Any, above: str = "batch", run: str | None = None, wanted: tuple[str, ...] = (), **params: Any) -> list[Seen]:
    """The records of epoch 0 in their order, as they are above the last stage `above` (`batch/map`: above the lines that
    stand above the last batch).

    `wanted`: the fields that are computed (none given: all).
    """
    program = check(str(path), params, run)
    node = program.emit
    for stage in above.split("/"):
        while node.op != stage:
            node = node.args[0]
        node = node.args[0]
    stream = Run(program, 0, 0, {})
    stream.need(node, set(wanted) or {name for name, _ in node.type.parts})
    drawn: dict[int, dict[str, Any]] = {}
    inner = Evaluator._draw

    def recorded(self: Any, c: Any, n: Any) -> Any:
        cells = inner(self, c, n)
        indexes = [self.at(c, a).values for a in n.args[len(n.args) - n["indexes"] :]]
        values = np.asarray(cells.values)
        shape = np.broadcast_shapes(*map(np.shape, indexes), values.shape[: c.axes])
        kept = drawn.setdefault(self.frame.id, {}).setdefault(n["path"], {})
        for place in np.ndindex(shape):
            value = np.broadcast_to(values, shape + values.shape[c.axes :])[place]
            kept[tuple(int(np.broadcast_to(i, shape)[place]) for i in indexes)] = value
        return cells

    with patch.object(Evaluator, "_draw", recorded):
        return [Seen({k: _plain(v) for k, v in r.fields.items()}, drawn.get(r.id, {})) for r in stream.records(node)]


def chunks(rows: list[Any], size: int, whole: bool = False) -> list[list[Any]]:
    """Rows in batches."""
    made = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [m for m in made if len(m) == size] if whole else made


def padded(rows: list[Any], fill: Any) -> np.ndarray:
    """Arrays of unlike lengths as one, `fill` behind the shorter ones."""
    rows = [np.asarray(r) for r in rows]
    out = np.full((len(rows), max(len(r) for r in rows), *rows[0].shape[1:]), fill, rows[0].dtype)
    for row, values in zip(out, rows):
        row[: len(values)] = values
    return out


def assert_like_pixels(found: Any, expected: Any, levels: int, odd: float, mean: float) -> None:
    """u8 images of which at most the share `odd` of the values is more than `levels` off, and these little on average."""
    assert np.shape(found) == np.shape(expected)
    off = np.abs(np.asarray(found).astype(int) - np.asarray(expected).astype(int))
    assert (off > levels).mean() <= odd, (off > levels).mean()
    assert off.mean() <= mean, off.mean()


def assert_alike(batches: list[dict[str, Any]], expected: list[dict[str, Any]], **tolerance: float) -> None:
    """The same batches of the same fields; `tolerance`: how far values of a field may be off, others are equal."""
    assert len(batches) == len(expected) > 0
    for batch, wanted in zip(batches, expected):
        assert set(batch) == set(wanted)
        for name, values in wanted.items():
            found = np.asarray(batch[name])
            assert found.shape == np.shape(values), name
            if name in tolerance:
                np.testing.assert_allclose(found, values, rtol=0, atol=tolerance[name], err_msg=name)
            else:
                np.testing.assert_array_equal(found, values, err_msg=name)
