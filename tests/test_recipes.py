"""The recipes of texts, tables and sound: compiled = interpreted, and both equal to a plain script with the same draws."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recipes import data, texts
from recipes.seen import assert_alike, seen
from running import assert_same, delivered, interpreted

EXAMPLES = Path(__file__).parent.parent / "examples"


def both(name, **params):
    """What a recipe delivers, compiled and interpreted alike."""
    found = delivered(EXAMPLES / f"{name}.pipe", run="train", **params)
    assert_same(found, interpreted(EXAMPLES / f"{name}.pipe", run="train", **params))
    return found


@pytest.mark.parametrize("name", ["bert", "t5", "pack"])
def test_short(name):
    assert len((EXAMPLES / f"{name}.pipe").read_text().splitlines()) < 45


def test_bert(tmp_path):
    data.tokenizer(tmp_path / "tokenizer.json", "[CLS]", "[SEP]")
    data.articles(tmp_path / "a.jsonl", np.random.default_rng(1), 40)
    params = {"data": f"{tmp_path}/*.jsonl", "tokenizer": f"{tmp_path}/tokenizer.json", "longest": 10, "rate": 0.5, "batch_size": 6}
    found = both("bert", **params)
    assert_alike(found, texts.bert(seen(EXAMPLES / "bert.pipe", **params), tmp_path / "tokenizer.json", 10, 0.5, 6))
    hidden = np.concatenate([b["input"][b["target"] >= 0] for b in found])
    assert len(hidden) > 60 and 0.6 < (hidden == 103).mean() < 0.95


def test_t5(tmp_path):
    np.random.default_rng(2).integers(2, 32_000, 640).astype(np.uint16).tofile(tmp_path / "a.bin")
    params = {"corpus": f"{tmp_path}/*.bin", "length": 60, "batch_size": 3}
    assert_alike(both("t5", **params), texts.t5(seen(EXAMPLES / "t5.pipe", **params), 60, 0.15, 3.0, 3))


def test_pack(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 50_000, int(rng.integers(0, 40))).astype(np.int32) for _ in range(30)]
    parquet.write_table(pyarrow.table({"tokens": pyarrow.array(documents, pyarrow.list_(pyarrow.int32()))}), tmp_path / "a.parquet")
    params = {"data": f"{tmp_path}/*.parquet", "length": 16, "batch_size": 4}
    found = both("pack", **params)
    assert_alike(found, texts.packed(seen(EXAMPLES / "pack.pipe", "each", **params), 16, 4))
    tokens = sum(int((b["segment"] > 0).sum()) for b in found)
    assert tokens == sum(len(d) + 1 for d in documents)     # no token is lost
