"""No record is lost or doubled on its way through packing, batching by length and a ring that wraps many times."""
from collections import Counter

import numpy as np
import pytest
from pipec.runtime.opening import open as open_loader

COUNT = 4000
STAGES = {
    "pack": ("pack(128, by=k, open=32)", ["doc = doc ?? -1", "emit doc, n"]),
    "edges": ("batch(24, by=k, edges=[8, 16, 32, 64], pad=true)", ["doc = doc ?? -1", "emit doc, n"]),
    "budget": ("batch(budget=1500, by=k, pad=true)", ["doc = doc ?? -1", "emit doc, n"]),
    "both": ("batch(budget=900, by=k, edges=[8, 16, 32, 64], pad=true)", ["doc = doc ?? -1", "emit doc, n"]),
    "plain": ("batch(7, pad=true)", ["doc = doc ?? -1", "emit doc, n"]),
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """JSON lines: document n is k times its number."""
    folder, rng = tmp_path_factory.mktemp("ledger"), np.random.default_rng(0)
    lengths = rng.integers(0, 100, COUNT)
    with open(folder / "x.jsonl", "w") as file:
        for n, k in enumerate(lengths.tolist()):
            file.write(f'{{"n": {n}, "doc": {[n] * k}}}\n')
    return folder, lengths


@pytest.mark.parametrize("stage", STAGES)
def test_every_record_comes_once(documents, in_threads, tmp_path, stage):
    folder, lengths = documents
    line, rest = STAGES[stage]
    path = tmp_path / "p.pipe"
    path.write_text("seed 4\nschema Row\n  n: i64\n  doc: i64[k]\npipeline p\n"
                    f'  from jsonl("{folder}/x.jsonl") as Row\n  shuffle()\n  ' + "\n  ".join([line, *rest]) + "\n")
    seen, tokens = Counter(), Counter()
    with open_loader(str(path), as_="numpy", threads=2, memory="4MB") as loader:
        for batch in loader:
            seen.update(np.asarray(batch.n).tolist())
            tokens.update(np.asarray(batch.doc)[np.asarray(batch.doc) >= 0].tolist())
    assert seen == Counter(range(COUNT))
    assert tokens == +Counter(dict(enumerate(lengths.tolist())))
