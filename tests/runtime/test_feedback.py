"""Values that consumers return: the table, what `weight` reads, resuming with the version an epoch began with."""
from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.compile import plan_for
from pipec.compiler.evaluate import evaluate
from pipec.dsl.problems import PipeError
from pipec.runtime import feedback
from pipec.runtime.errors import DataError
from pipec.runtime.feedback import FeedbackTable, Store, Values, names_in, slot_of, told_by
from pipec.runtime.loader import Loader
from pipec.runtime.ranks import rank_spec

PROGRAM = """seed 3

schema Sample
  x: i64

pipeline train
  from csv("ROOT/rows.csv") as Sample
  shuffle()
  w = weight("loss", default=0.5)
  u ~ uniform(0, 1)
  where u < w
  share()
  batch(8)
  emit x, w
"""


def give(table, name, ids, values):
    table.put(name, np.array(ids, "<u8").tobytes(), np.array(values, "<f4").tobytes())


def test_values_by_id():
    old = Values(np.array([2, 5, 9], np.uint64), np.array([1, 2, 3], np.float32))
    asked = np.array([9, 1, 2, 10, 5], np.uint64)
    assert old.of(asked, -1).tolist() == [3, -1, 1, -1, 2] and Values().of(asked, 7).tolist() == [7] * 5
    new = old.updated(Values(np.array([1, 5], np.uint64), np.array([8, 9], np.float32)))
    assert new.of(asked, -1).tolist() == [3, 8, 1, -1, 9]
    assert told_by(slot_of("a", 0.1)) == ("a", 0.1)


def test_the_mean_of_an_epoch_whatever_the_order():
    rng = np.random.default_rng(1)
    ids, values = rng.integers(0, 50, 1000), rng.normal(0, 1e3, 1000).astype(np.float32)
    versions = set()
    for _ in range(3):
        table = FeedbackTable(("loss",))
        order = rng.permutation(1000)
        for part in np.array_split(order, 7):
            give(table, "loss", ids[part], values[part])
        seen = table.snapshot(0)
        versions.add(seen.version)
    assert len(versions) == 1
    wanted = [np.mean(values[ids == i].astype(np.float64)) for i in range(50)]
    assert np.allclose(seen.tables["loss"].of(np.arange(50, dtype=np.uint64), 0), wanted, rtol=1e-6)


def test_an_epoch_sees_one_version():
    table = FeedbackTable(("loss",))
    at = np.array([1, 2], np.uint64)
    first = table.snapshot(0)
    give(table, "loss", [1, 1, 2], [2, 4, np.nan])
    assert table.snapshot(0, within=True) is first and table.last == (0, first)
    table.close(0, 0)
    second = table.snapshot(1)
    assert second.tables["loss"].of(at, 0).tolist() == [3, 0] and first.tables["loss"].of(at, 0).tolist() == [0, 0]
    give(table, "loss", [2], [7])
    table.close(0, 1)
    assert table.snapshot(2).tables["loss"].of(at, 0).tolist() == [3, 7]     # 1 keeps what it had


def test_an_epoch_waits_for_what_belongs_to_the_one_before():
    table = FeedbackTable(("loss",))
    table.members = lambda: (4, 6)
    table.snapshot(0)
    asked = []

    def stopped():
        asked.append(1)
        return len(asked) > 2

    table.close(4, 0)
    assert table.snapshot(1, stopped=stopped) is None and len(asked) == 3
    table.close(6, 0)
    assert table.snapshot(1) is not None


@pytest.mark.parametrize(("name", "ids", "values"), [("x", b"", b""), ("loss", b"1234567", b""), ("loss", bytes(16), bytes(4))])
def test_what_no_consumer_may_say(name, ids, values):
    with pytest.raises(ValueError):
        FeedbackTable(("loss",)).put(name, ids, values)


def test_bounded(monkeypatch):
    monkeypatch.setattr(feedback, "MOST_IDS", 10)
    table = FeedbackTable(("loss",))
    give(table, "loss", range(8), range(8))
    with pytest.raises(ValueError, match="more than"):
        give(table, "loss", range(3), range(3))


def test_versions_are_found_again(tmp_path):
    store = Store(tmp_path / "weights")
    table = FeedbackTable(("loss",), store)
    versions = []
    for epoch in range(6):
        versions.append(table.snapshot(epoch).version)
        give(table, "loss", [epoch, 90], [epoch, epoch])
        table.close(0, epoch)
    assert len(list(store.folder.iterdir())) == feedback.KEPT
    other = FeedbackTable(("loss",), store)
    other.resume(4, versions[4])
    assert other.snapshot(4, within=True).version == versions[4]
    other.resume(0, versions[0])
    assert other.snapshot(0).version == versions[0]                          # nothing had been returned
    for wrong in (versions[1], "0" * 32, "../../etc/passwd", ""):
        other.resume(1, wrong)
        with pytest.raises(DataError, match="E0842"):
            other.snapshot(1)
    path = store.folder / f"{versions[4]}.weights"
    path.write_bytes(path.read_bytes()[:50])
    assert store.find(versions[4]) is None


# --- in programs


@pytest.fixture
def program(tmp_path):
    (tmp_path / "rows.csv").write_text("x\n" + "\n".join(map(str, range(60))))
    path = tmp_path / "train.pipe"
    path.write_text(PROGRAM.replace("ROOT", str(tmp_path)))
    return str(path)


def run(loader, given=None, stop=None):
    """One epoch: (x, w, id) of each record; `given`: x → value to return."""
    seen = []
    for k, batch in enumerate(loader, 1):
        seen += zip(batch.x.tolist(), batch.w.tolist(), batch.ids.tolist(), strict=True)
        if given is not None:
            loader.feedback("loss", None if k % 2 else batch.ids, [given(x) for x in batch.x.tolist()])
        if k == stop:
            break
    return seen


def value(x):
    return float(np.float32(x / 60))


@pytest.mark.parametrize("workers", ["threads", "process"])
def test_importance_sampling(program, workers):
    plan = plan_for(program, {}, None)
    assert names_in(plan) == ("loss",)
    checked = check(program)
    table: dict[int, float] = {}
    with Loader(plan, as_="numpy", workers=workers, threads=2) as loader:
        for epoch in range(4):
            seen = run(loader, value)
            assert all(w == table.get(i, 0.5) for _, w, i in seen)
            meant = [(int(x), float(w)) for b in evaluate(checked, epoch, weights={"loss": table})
                     for x, w in zip(b["x"], b["w"], strict=True)]
            assert [(x, w) for x, w, _ in seen] == meant
            table |= {i: value(x) for x, _, i in seen}
    assert 0 < len(seen) < 60


def test_resumed_in_the_same_version(program, tmp_path):
    plan = plan_for(program, {}, None)
    with Loader(plan, as_="numpy", workers="threads", threads=1) as loader:
        run(loader, value)
        first = run(loader, value, stop=1)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = run_rest(loader, state)
    with Loader(plan, as_="numpy", workers="threads", threads=1) as other:
        other.load_state_dict(state)
        assert run(other) == rest
    assert any(w != 0.5 for _, w, _ in first + rest)
    with Loader(plan, as_="numpy", workers="threads", threads=1) as other:
        other.load_state_dict({**state, "weights": "1" * 32})
        with pytest.raises(DataError, match="E0842"):
            run(other)


def run_rest(loader, state):
    loader.load_state_dict(state)
    return run(loader)


def test_the_state_between_epochs(program):
    plan = plan_for(program, {}, None)
    with Loader(plan, as_="numpy", workers="threads") as loader:
        run(loader, value)
        state = loader.state_dict()
        second = run(loader)
    with Loader(plan, as_="numpy", workers="threads") as other:
        other.load_state_dict(state)
        assert run(other) == second


def test_what_a_loop_may_not_return(program):
    with Loader(plan_for(program, {}, None), as_="numpy", workers="threads") as loader:
        batch = next(iter(loader))
        with pytest.raises(ValueError, match="it reads `loss`"):
            loader.feedback("other", batch.ids, [0.0] * 8)
        with pytest.raises(ValueError, match="one value for each"):
            loader.feedback("loss", batch.ids, [0.0])


def test_ranks_need_one_producer(program):
    with pytest.raises(PipeError, match="E0841"):
        Loader(plan_for(program, {}, None), as_="numpy", workers="threads", ranks=rank_spec(0, 2))


@pytest.mark.parametrize(("line", "instead", "code"), [
    ('w = weight("loss", default=0.5)', 'w = weight("loss")', "E0122"),
    ('w = weight("loss", default=0.5)', 'w = weight(loss, default=0.5)', "E0202"),
    ('w = weight("loss", default=0.5)', 'w = weight("lo ss", default=0.5)', "E0202"),
    ('w = weight("loss", default=0.5)', 'w = weight("loss", default=x)', "E0202"),
    ("seed 3\n", 'seed 3\nlet W = weight("loss", default=1)\n', "E0212"),
    ("  share()\n  batch(8)\n", "  batch(8)\n  x = x + 1\n  share()\n", "E0516"),
    ("  share()\n", '  share()\n  where x > 0\n  w = weight("loss", default=1)\n', "E0516"),
])
def test_messages(program, line, instead, code):
    path = Path(program)
    path.write_text(path.read_text().replace(line, instead))
    with pytest.raises(PipeError) as caught:
        plan_for(program, {}, None)
    assert [p.code for p in caught.value.problems] == [code]


def test_two_consumers_of_one_server(program, monkeypatch):
    """Each returns values of half of the records it sees; both read the means of all of them in the next epoch."""
    from pipec.runtime import joining

    monkeypatch.setattr(joining, "LINGER", 3.0)
    plan = plan_for(program, {}, None)
    seen: dict[tuple[int, int], list] = {}
    failed = []

    def consume(number):
        try:
            with joining.shared(plan, threads=1, as_="numpy", memory=None, allow_extern=False,
                                ranks=replace(rank_spec(), here=2, group="both", member=number, members=2),
                                when_slow="wait", join="epoch") as loader:
                for epoch in range(3):
                    seen[number, epoch] = []
                    for batch in loader:
                        time.sleep(0.02 * number)         # the slower one holds the next epoch back
                        seen[number, epoch] += zip(batch.x.tolist(), batch.w.tolist(), batch.ids.tolist(), strict=True)
                        loader.feedback("loss", batch.ids, [value(x) if x % 2 == number else np.nan for x in batch.x.tolist()])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=consume, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    table: dict[int, float] = {}
    for epoch in range(3):
        assert seen[0, epoch] == seen[1, epoch] and seen[0, epoch]
        assert all(w == table.get(i, 0.5) for _, w, i in seen[0, epoch])
        table |= {i: value(x) for x, _, i in seen[0, epoch]}
