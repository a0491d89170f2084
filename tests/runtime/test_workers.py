"""Programs that call the user's Python run in worker processes: same rows in the same order, into the same ring; and workers
that die."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from pipec.compiler.compile import plan_for
from pipec.runtime.errors import DataError
from pipec.runtime.loader import Loader
from pipec.runtime.ranks import rank_spec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from fakes import alive, until  # noqa: E402

PROGRAM = """seed 3

extern fn FN(x: i64) -> TYPE from "slow_ops:FN"

schema Sample
  x: i64

pipeline train
  from csv("ROOT/rows.csv") as Sample
  LINES
  y = FN(x)
  share()
  batch(8, pad=PAD)
  FILL
  emit x, y
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def planned(folder, fn, type_="i64", lines="shuffle()", fill="", rows=101):
    (folder / "rows.csv").write_text("x\n" + "\n".join(map(str, range(rows))))
    text = PROGRAM.replace("FN", fn).replace("TYPE", type_).replace("ROOT", str(folder)).replace("LINES", lines)
    path = folder / "train.pipe"
    path.write_text(text.replace("PAD", "true" if fill else "false").replace("  FILL\n", f"  {fill}\n" if fill else ""))
    return plan_for(str(path), {}, None)


def opened(plan, workers="process", threads=2, **options):
    return Loader(plan, as_="numpy", workers=workers, threads=threads, allow_extern=True, **options)


def epochs(plan, workers, threads=2, count=2, **options):
    with opened(plan, workers, threads, **options) as loader:
        return [[[np.asarray(v).tolist() for v in b] for b in loader] for _ in range(count)]


def test_rows_of_fixed_size(tmp_path):
    plan = planned(tmp_path, "tripled")
    found = epochs(plan, "process")
    assert found == epochs(plan, "threads") and sum(len(x) for x, _ in found[0]) == 101


def test_each_process_has_its_share(tmp_path):
    plan = planned(tmp_path, "where")
    with opened(plan) as loader:
        producer = loader._box.process.pid
        pids = {int(y) for b in loader for y in b.y}
    assert len(pids) == 2 and producer not in pids
    until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(("fn", "type_", "fill"), [("shaped", "f32[_]", "y = y ?? 0"), ("named", "text", "")])
def test_rows_of_varying_size(tmp_path, fn, type_, fill):
    plan = planned(tmp_path, fn, type_, fill=fill)
    assert epochs(plan, "process") == epochs(plan, "threads")


def test_ranks_and_resuming(tmp_path):
    plan = planned(tmp_path, "tripled")
    whole = [b for b in epochs(plan, "threads", count=1)[0]]
    order = [x for xs, _ in whole for x in xs]
    with opened(plan, ranks=rank_spec(1, 2)) as loader:
        mine = [x for b in loader for x in b.x.tolist()]
        assert mine[:8] == order[8:16]
    with opened(plan) as loader:
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert [b.x.tolist() for b in loader] == [xs for xs, _ in whole[1:]]


@pytest.mark.parametrize("lines", ["shuffle()", "skip_bad(at_most=0.5)\n  shuffle()"])
def test_exceptions_are_those_of_threads(tmp_path, lines):
    plan = planned(tmp_path, "wrong_at_seven", lines=lines)
    told = []
    for workers in ("process", "threads"):
        try:
            told.append(epochs(plan, workers, count=1))
        except DataError as error:
            told.append((error.code, error.title, error.record, error.position, error.label))
    assert told[0] == told[1]
    if "skip_bad" in lines:
        assert 7 not in [x for xs, _ in told[0][0] for x in xs] and sum(len(xs) for xs, _ in told[0][0]) == 100
    else:
        assert told[0][0] == "E0811" and "seven" in told[0][1]


def test_a_record_that_ends_processes_is_named(tmp_path):
    plan = planned(tmp_path, "deadly_at_seven", lines="")
    with opened(plan) as loader, pytest.raises(DataError) as caught:
        list(loader)
    error = caught.value
    assert error.code == "E0811" and "exited with 3" in error.title and "rows.csv" in error.record and error.position == 7


def test_a_process_that_was_killed_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEC_TEST_ONCE", str(tmp_path / "once"))
    plan = planned(tmp_path, "deadly_once")
    with opened(plan) as loader:
        seen = sorted(x for b in loader for x in b.y.tolist())
    assert (tmp_path / "once").exists() and seen == list(range(101))


def test_a_loader_closes_in_the_middle_of_a_function(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEC_TEST_ONCE", str(tmp_path / "there"))
    plan = planned(tmp_path, "endless", lines="")
    loader = opened(plan)
    producer = loader._box.process.pid
    iterator = iter(loader)
    next(iterator)
    until((tmp_path / "there").exists)
    del iterator
    children = Path(f"/proc/{producer}/task/{producer}/children").read_text().split()
    assert len(children) == 2
    loader.close()
    until(lambda: not any(map(alive, children)))


def test_functions_of_two_processes_run_at_the_same_time(tmp_path, monkeypatch):
    """Though each of them holds its interpreter."""
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("PIPEC_TEST_FOLDER", str(tmp_path / "there"))
    (batches,) = epochs(planned(tmp_path, "together"), "process", count=1)
    assert {y for _, ys in batches for y in ys} == {2}


def test_a_slow_record_stops_no_finished_ones(tmp_path, monkeypatch):
    """While one stands still, the other process makes those after it, and they are delivered in order."""
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("PIPEC_TEST_FOLDER", str(tmp_path / "there"))
    (batches,) = epochs(planned(tmp_path, "first_waits", lines="", rows=400), "process", count=1)
    assert [x for xs, _ in batches for x in xs] == list(range(400)) and batches[0][1][0] >= 40
