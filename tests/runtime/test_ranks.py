"""Ranks: every record once, equal counts where promised, the same global order whatever the world and the batch."""
from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from pipec.runtime import dealing, ranks
from pipec.runtime.progress import Progress
from pipec.runtime.ranks import Deal, Picks, RankSpec, rank_spec

WORLDS = range(1, 6)
ENDS = ("drop", "pad", "uneven")


@dataclass
class Rows:
    count: int
    fields: dict


class Source:
    """Rows `at` … `total` - 1 of an epoch, then one end; `exact=False` gives fewer than asked for."""

    def __init__(self, total, at=0, bites=None):
        self.total, self.at, self.bites, self.ended = total, at, bites, 0

    def _next(self, n):
        assert not self.ended, "read beyond the epoch's end"
        if self.bites is not None:
            n = min(n, int(self.bites.integers(1, 8)))
        n = min(n, self.total - self.at)
        self.at += n
        if n == 0:
            self.ended += 1
        return n

    def take(self, n):
        n = self._next(n)
        rows = np.arange(self.at - n, self.at)
        return Rows(n, {"x": rows * 3, "text": [f"{r}" for r in rows], "_id": rows.astype(np.uint64), "_next": rows + 1,
                        "_skip": np.zeros(n, np.int64), "_count": np.ones(n, np.int64)}) if n else None

    def skip(self, n):
        bites, self.bites = self.bites, None
        n = self._next(n)
        self.bites = bites
        return (n, self.at, 0) if n else None


def batches(total, deal, at=0, known=True, bites=None, chunk=None):
    """What a rank gets: (rows, valid, next) of each batch."""
    source = Source(total, at, bites)
    reader = dealing.reader(source, deal, total - at if known else None)
    out = []
    while (rows := reader.take(chunk or deal.chunk)) is not None:
        if rows.count < deal.chunk and deal.whole:   # as `Below` does
            continue
        ids = rows.fields["_id"].tolist()
        assert (rows.fields["x"] == np.array(ids) * 3).all() and rows.fields["text"] == [str(i) for i in ids]
        assert len(ids) == rows.count
        valid = rows.fields.get("_valid", np.ones(rows.count, bool)).tolist()
        out.append((ids, valid, int(rows.fields["_next"][-1])))
    assert source.ended == 1
    return out


def delivered(got):
    """The records of all ranks that aren't there to fill up."""
    return sorted(i for rank in got for ids, valid, _ in rank for i, v in zip(ids, valid, strict=True) if v)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_batches_of_a_group(world, known, end):
    for chunk in (1, 2, 7, 10):
        for total in (0, 1, world * chunk - 1, world * chunk, world * chunk + 1, 3 * world * chunk + world // 2, 101):
            for whole in (False, True):
                got = [batches(total, Deal(r, world, chunk, end, whole), known=known) for r in range(world)]
                steps, rest = divmod(total, world * chunk)
                counts = {len(g) for g in got}
                if end == "drop":
                    assert len(counts) == 1 and len({len(ids) for g in got for ids, *_ in g[-1:]}) <= 1
                    kept = total // world * world if not whole else steps * world * chunk
                    assert delivered(got) == list(range(kept)) and counts <= {steps, steps + (not whole)}
                elif end == "pad":
                    assert counts == {steps + (rest > 0)} and delivered(got) == list(range(total))
                    assert len({len(ids) for g in got for ids, *_ in g[-1:]}) <= 1
                elif not whole:
                    assert delivered(got) == list(range(total)) and max(counts) - min(counts) <= 1
                    sizes = [sum(len(ids) for ids, *_ in g) for g in got]
                    assert max(sizes) - min(sizes) <= 1 and all(all(v) for g in got for _, v, _ in g)
                else:
                    assert delivered(got) == list(range(total // chunk * chunk))
                for g in got:
                    assert [n for *_, n in g[:steps]] == [(t + 1) * world * chunk for t in range(steps)]
                    assert all(n == total for *_, n in g[steps:])
                    assert all(len(ids) == chunk for ids, *_ in g[:-1])
                    if whole:
                        assert all(len(ids) == chunk for ids, *_ in g)
                for r, g in enumerate(got):
                    assert [ids for ids, *_ in g[:steps]] == [
                        list(range(t * world * chunk + r * chunk, t * world * chunk + (r + 1) * chunk)) for t in range(steps)]


def test_ten_samples_over_four_ranks():
    for known in (True, False):
        got = [batches(10, Deal(r, 4, 8), known=known) for r in range(4)]
        assert [[ids for ids, *_ in g] for g in got] == [[[0, 1, 2]], [[3, 4, 5]], [[6, 7]], [[8, 9]]]
        got = [batches(10, Deal(r, 4, 8, "pad"), known=known) for r in range(4)]
        assert [g[0][:2] for g in got] == [([0, 1, 2], [True] * 3), ([3, 4, 5], [True] * 3),
                                           ([6, 7, 6], [True, True, False]), ([8, 9, 8], [True, True, False])]


def test_a_rank_with_nothing_of_its_own_is_filled_up():
    got = [batches(2, Deal(r, 3, 4, "pad", whole=True), known=False) for r in range(3)]
    assert [g[0][:2] for g in got] == [([0] * 4, [True] + [False] * 3), ([1] * 4, [True] + [False] * 3), ([1] * 4, [False] * 4)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("world", WORLDS)
def test_row_by_row(world, end):
    """What the lines below `share` make of rows is no plain batch: rows are dealt out one by one."""
    rng = np.random.default_rng(world)
    for total in (0, 1, 2, 3, 4, 5, 7, 64, 65, 130, 257):
        bites = rng if total % 2 else None
        got = [batches(total, Deal(r, world, 1, end), bites=bites, chunk=64) for r in range(world)]
        rows = [[i for ids, *_ in g for i in ids] for g in got]
        sizes = {len(r) for r in rows}
        whole = total // world * world
        if end == "drop":
            assert sizes == {total // world} and delivered(got) == list(range(whole))
        elif end == "pad":
            assert sizes == {-(-total // world)} and delivered(got) == list(range(total))
        else:
            assert max(sizes) - min(sizes) <= 1 and delivered(got) == list(range(total))
        for r, rank in enumerate(rows):
            assert rank[: total // world] == list(range(r, whole, world))
        for g in got:   # each batch ends where its last row's step ends
            assert all(n == min(total, (ids[-1] // world + 1) * world) for ids, *_ , n in g)


@pytest.mark.parametrize("end", ["uneven", "pad"])
def test_another_world_goes_on_in_the_same_order(end):
    rng = np.random.default_rng(5)
    for _ in range(25):
        total, at, seen = int(rng.integers(1, 400)), 0, []
        while at < total:
            world, chunk, known = int(rng.integers(1, 6)), int(rng.integers(1, 12)), bool(rng.integers(2))
            stop = int(rng.integers(1, 5))
            got = [batches(total, Deal(r, world, chunk, end), at, known)[:stop] for r in range(world)]
            ends = {g[-1][2] for g in got if len(g) == max(len(g) for g in got)}
            assert len(ends) == 1                           # the same state on every rank
            new = delivered(got)
            assert new == list(range(at, ends.pop()))
            seen += new
            at += len(new)
        assert seen == list(range(total))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("world", WORLDS)
def test_positions_of_a_producer_of_ones_own(world, end):
    for chunk in (1, 3, 8):
        for length, start in ((0, 0), (1, 0), (10, 0), (101, 0), (101, 17), (3 * world * chunk, world * chunk), (40, 40)):
            for whole in (False, True):
                for rank in range(world):
                    deal = Deal(rank, world, chunk, end, whole)
                    picks = Picks(deal, start, length)
                    wanted = batches(length, deal, start)
                    assert picks.length == sum(len(ids) for ids, *_ in wanted)
                    some = max(1, picks.length // 3)
                    runs = [(k, min(some, picks.length - k)) for k in range(0, picks.length, some)]
                    ids = [p for k, n in runs for p in picks.positions(k, n).tolist()]
                    nexts = [p for k, n in runs for p in picks.nexts(k, n).tolist()]
                    assert ids == [i for b, *_ in wanted for i in b]
                    assert nexts == [n for b, _, n in wanted for _ in b]
                    valid = [v for k, n in runs for v in deal.valid(np.arange(k, k + n), max(0, length - start)).tolist()]
                    assert valid == [v for _, vs, _ in wanted for v in vs]
                    assert deal.batches(length - start) == len(wanted)


def test_specs():
    assert rank_spec() == RankSpec() and RankSpec().alone
    assert rank_spec(2, 4) == RankSpec(2, 4)
    assert rank_spec(5, 8, mesh=(4, 2)) == RankSpec(2, 4)
    assert rank_spec(5, mesh=(4, 2, 1), micro_batches=3) == RankSpec(2, 4, 3)
    assert [rank_spec(r, mesh={"pp": 2, "dp": 3, "tp": 2}).rank for r in range(12)] == [0, 0, 1, 1, 2, 2] * 2
    assert [rank_spec(r, mesh={"dp_replicate": 2, "tp": 2, "dp_shard": 2}).rank for r in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    names = SimpleNamespace(mesh=np.arange(6).reshape(3, 2), mesh_dim_names=("dp", "tp"), get_coordinate=lambda: [2, 1])
    assert rank_spec(mesh=names) == RankSpec(2, 3)


@pytest.mark.parametrize(("wrong", "said"), [
    (dict(rank=1), "go together"), (dict(world=2), "go together"), (dict(rank=2, world=2), "0 to world - 1"),
    (dict(rank=-1, world=2), "0 to world - 1"), (dict(rank="0", world=2), "torch"),
    (dict(rank=0, world=6, mesh=(4, 2)), "8 ranks"),
    (dict(rank=0, mesh=(0, 2)), "from 1 on"), (dict(rank=0, mesh={"tp": 2}), "data-parallel"),
    (dict(micro_batches=0), "from 1 on"),
    (dict(rank=0, mesh=()), "from 1 on"),
])
def test_wrong_specs(wrong, said):
    with pytest.raises(ValueError, match=said):
        rank_spec(**wrong)


def test_how_many_are_on_this_machine(monkeypatch):
    assert rank_spec(3, 4).here == 4 and rank_spec(3, 4, mesh=(2, 2)).here == 4 and rank_spec().here == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_spec(3, 4).here == 2 and rank_spec(3, 8).here == 8


def test_the_rank_of_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="torchrun"):
        rank_spec("torch")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_spec("torch") == RankSpec(3, 4)
    assert rank_spec("torch", mesh=(2, 2)) == RankSpec(1, 2)


def stream(sizes):
    at = 0
    for n in sizes:
        at += n
        yield {"x": np.arange(at - n, at), "t": ["a"] * n}, Progress(at, 0, n, ids=np.arange(at - n, at).astype(np.uint64))


def test_micro_batches():
    got = list(dealing.parts(stream([8, 8, 5]), 3))
    assert [f["x"].tolist() for f, _ in got] == [
        [0, 1, 2], [3, 4, 5], [6, 7], [8, 9, 10], [11, 12, 13], [14, 15], [16, 17], [18, 19], [20]]
    assert [(p.next, p.part) for _, p in got] == [
        (0, 1), (0, 2), (8, 0), (8, 1), (8, 2), (16, 0), (16, 1), (16, 2), (21, 0)]
    assert all(p.ids.tolist() == f["x"].tolist() == list(p.ids) and p.records == len(f["t"]) for f, p in got)
    whole = next(dealing.parts(stream([8]), 2))[0]["x"]
    assert whole.base is not None                        # a view
    for k, (_, p) in enumerate(got[:-1], 1):             # resumed after each
        left = [n for n, end in ((8, 8), (8, 16), (5, 21)) if end > p.next]
        at = iter([(f, q) for f, q in stream([8, 8, 5])][3 - len(left):])
        rest = [f["x"].tolist() for f, _ in dealing.parts(at, 3, p.part, (p.next, p.skip))]
        assert rest == [f["x"].tolist() for f, _ in got[k:]]


def test_micro_batches_of_fields_that_have_no_batch_dimension():
    fields = {"x": np.zeros((4, 2)), "mean": np.float32(3)}
    with pytest.raises(ValueError, match="`mean`"):
        next(dealing.parts(iter([(fields, Progress(4, 0, 4))]), 2))


PROGRAM = """
param n = 4

seed 3

schema Sample
  x: i64

pipeline train
  from csv("ROOT/rows.csv") as Sample
  {above}
  share({end})
  {below}
  emit x
"""


def planned(tmp_path, above="shuffle()", end="", below="batch(n)"):
    from pipec.compiler.compile import plan_for

    path = tmp_path / "train.pipe"
    text = PROGRAM.replace("ROOT", str(tmp_path)).replace("{above}", above)
    path.write_text(text.replace("{end}", end).replace("{below}", below))
    return plan_for(str(path), {}, None)


def test_the_end_is_the_programs(tmp_path):
    (tmp_path / "rows.csv").write_text("x\n" + "\n".join(map(str, range(10))))
    assert ranks.end_rule(planned(tmp_path)) == "uneven"
    assert ranks.end_rule(planned(tmp_path, below="batch(n, whole=true)")) == "drop"
    assert ranks.end_rule(planned(tmp_path, end='end="pad"', below="batch(n, whole=true)")) == "pad"
    assert ranks.end_rule(planned(tmp_path, above="batch(n, whole=true)", below="check(x[0] >= 0)")) == "drop"
    plan = planned(tmp_path, end='end="drop"')
    assert ranks.deal(plan, made(plan), RankSpec(1, 3)) == Deal(1, 3, 4, "drop", False)
    plan = planned(tmp_path, below="where x > n - 2\n  batch(n)")
    assert ranks.deal(plan, made(plan), RankSpec(1, 3)) == Deal(1, 3, 1, "uneven")


def made(plan):
    from pipec.runtime.below import Below
    from pipec.runtime.objects import load

    below = Below(plan, load(plan.kernels))
    below.start_epoch(0)
    return below


def test_promises_that_cant_be_kept(tmp_path):
    from pipec.dsl.problems import PipeError

    (tmp_path / "rows.csv").write_text("x\n" + "\n".join(map(str, range(10))))
    plan = planned(tmp_path, end='end="drop"', below="where x > n - 2\n  batch(n)")
    with pytest.raises(PipeError) as caught:
        ranks.deal(plan, made(plan), RankSpec(1, 3))
    problem = caught.value.problems[0]
    assert problem.code == "E0840" and plan.texts[problem.span.file][problem.span.start:].startswith('share(end="drop")')
    assert ranks.deal(plan, made(plan), RankSpec(0, 1)).world == 1
    with pytest.raises(PipeError) as caught:
        planned(tmp_path, end='end="some"')
    assert caught.value.problems[0].code == "E0503"
    ranks.check_own(planned(tmp_path))
    for above in ("where x > 2", "skip_bad(at_most=0.1)", "batch(n)\n  x = x + 1"):
        with pytest.raises(PipeError) as caught:
            ranks.check_own(planned(tmp_path, above, below="check(epoch >= 0)"))
        assert caught.value.problems[0].code == "E0841"


# --- through `open`, each rank with a producer of its own


def opened(plan, rank, world, **options):
    from pipec.runtime.loader import Loader

    return Loader(plan, as_="numpy", workers="threads", threads=2, ranks=rank_spec(rank, world, **options))


def of_group(plan, world, state=None, stop=None, **options):
    """Batches of each rank of one epoch (or its rest), and the state after `stop` of them."""
    got, states = [], []
    for rank in range(world):
        with opened(plan, rank, world, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            elif stop is None:
                count = len(loader)
            mine = []
            for k, batch in enumerate(loader, 1):
                mine.append((batch.x.tolist(), None if batch.valid is None else batch.valid.tolist(), batch.ids.tolist()))
                if k == stop:
                    break
            assert state is not None or stop is not None or count == len(mine)
            states.append(json.loads(json.dumps(loader.state_dict())))
            got.append(mine)
    assert all(s == states[0] for s in states)
    return got, states[0]


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "rows.csv").write_text("x\n" + "\n".join(map(str, range(101))))
    return tmp_path


@pytest.mark.parametrize("below", ["batch(n)", "x = x + 0\n  batch(n)", "where x >= n - 4\n  batch(n)"])
def test_a_group_sees_what_one_sees(rows, below):
    plan = planned(rows, below=below)
    (alone,), _ = of_group(plan, 1) if below != "where x >= n - 4\n  batch(n)" else of_group(plan, 1, stop=999)
    order = [x for b, *_ in alone for x in b]
    assert sorted(order) == list(range(101)) != order
    for world in (2, 3):
        got, _ = of_group(plan, world, stop=999)
        assert sorted(x for g in got for b, *_ in g for x in b) == list(range(101))
        steps = 101 // (world * 4)
        for t in range(steps):
            assert sorted(x for g in got for x in g[t][0]) == sorted(order[t * world * 4 : (t + 1) * world * 4])


@pytest.mark.parametrize("end", ["uneven", "pad"])
def test_change_of_world_in_mid_epoch(rows, end):
    plan = planned(rows, end=f'end="{end}"')
    other = planned(rows, end=f'end="{end}"')
    (alone,), _ = of_group(plan, 1)
    order = [x for b, *_ in alone for x in b]
    first, state = of_group(plan, 3, stop=4)
    second, state = of_group(other, 2, state, stop=3)
    third, _ = of_group(plan, 4, state)
    seen = [[x for g in part for b, valid, _ in g for x, v in zip(b, valid or [True] * len(b), strict=True) if v]
            for part in (first, second, third)]
    assert [len(s) for s in seen] == [48, 24, 29]
    assert [sorted(s) for s in seen] == [sorted(order[:48]), sorted(order[48:72]), sorted(order[72:])]


def test_shard_has_no_effect_and_ranks_are_told(rows):
    plain, plan = planned(rows), planned(rows, above="shard()\n  shuffle()")
    with pytest.warns(RuntimeWarning, match=r"`shard\(\)` changes nothing: each rank gets records of its own") as told:
        got, _ = of_group(plan, 2)
    assert {w.filename for w in told} == {__file__} and got == of_group(plain, 2)[0]


def test_shard_without_ranks_in_a_launch_of_several(rows, monkeypatch):
    plan = planned(rows, above="shard()\n  shuffle()")
    alone = of_group(plan, 1)[0]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(RuntimeWarning, match=r'each of the 2 ranks of this launch gets all records: .* `rank="torch"`'):
        assert of_group(plan, 1)[0] == alone


def test_padding_is_told(rows):
    got, _ = of_group(planned(rows, end='end="pad"', below="batch(n, whole=true)"), 3)
    assert {len(g) for g in got} == {9} and {len(b) for g in got for b, *_ in g} == {4}
    assert sorted(x for g in got for b, v, _ in g for x, ok in zip(b, v or [True] * 4, strict=True) if ok) == list(range(101))
    assert all(v is None for g in got for _, v, _ in g[:-1])


def test_a_state_within_a_step(rows):
    plan = planned(rows)
    whole, _ = of_group(plan, 2, micro_batches=2)
    assert [len(b) for b, *_ in whole[0][:4]] == [2] * 4
    first, state = of_group(plan, 2, stop=5, micro_batches=2)
    assert (state["next"], state["part"]) == (16, 1)
    rest, _ = of_group(plan, 2, state, micro_batches=2)
    assert [a + b for a, b in zip(first, rest, strict=True)] == whole
    with pytest.raises(ValueError, match="within a step of 2 ranks"):
        of_group(plan, 3, state, micro_batches=2)
    _, state = of_group(plan, 2, stop=6, micro_batches=2)
    assert state["part"] == 0
    got, _ = of_group(plan, 1, state)
    assert len(got[0][0][0]) == 4


# --- through one shared stream


def test_ranks_of_a_shared_stream_begin_together(rows, monkeypatch):
    from pipec.runtime import joining

    monkeypatch.setattr(joining, "LINGER", 3.0)
    plan = planned(rows, end='end="pad"')
    got, failed = {}, []

    def run(rank):
        try:
            with joining.shared(plan, threads=1, as_="numpy", memory=None, allow_extern=False, ranks=rank_spec(rank, 3),
                                when_slow="wait", join="epoch") as loader:
                for _ in range(3):
                    epoch = loader.state_dict()["epoch"]
                    batches = [(b.x.tolist(), b.valid) for b in loader]
                    got[rank, epoch] = [x for xs, valid in batches for x, ok in zip(
                        xs, [True] * len(xs) if valid is None else valid, strict=True) if ok], len(batches)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.2)                                  # a stream that waits for nobody would be epochs ahead
    for thread in threads:
        thread.join(120)
    assert not failed and set(got) == {(rank, epoch) for rank in range(3) for epoch in range(3)}
    for epoch in range(3):
        assert sorted(x for rank in range(3) for x in got[rank, epoch][0]) == list(range(101))
        assert len({got[rank, epoch][1] for rank in range(3)}) == 1


def test_a_mesh_of_a_shared_stream(rows, monkeypatch):
    """Two data-parallel groups of two ranks: those of one group see the same, and nobody waits for anybody in vain."""
    from pipec.runtime import joining

    monkeypatch.setattr(joining, "LINGER", 3.0)
    plan, got = planned(rows), {}

    def run(rank):
        with joining.shared(plan, threads=1, as_="numpy", memory=None, allow_extern=False,
                            ranks=rank_spec(rank, mesh=(2, 2)), when_slow="wait", join="epoch") as loader:
            got[rank] = [b.x.tolist() for b in loader]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got[0] == got[1] and got[2] == got[3]
    assert sorted(x for rank in (0, 2) for b in got[rank] for x in b) == list(range(101))


@pytest.mark.parametrize(("options", "said"), [
    ({"when_slow": "skip", "join": "epoch"}, "none of them may lose records"),
    ({"when_slow": "wait", "join": "now"}, "begin together"),
])
def test_what_ranks_may_not_do(rows, options, said, monkeypatch):
    from pipec.runtime import joining

    monkeypatch.setattr(joining, "LINGER", 1.0)
    with pytest.raises(ValueError, match=said):
        joining.shared(planned(rows), threads=1, as_="numpy", memory=None, allow_extern=False, ranks=rank_spec(0, 2), **options)
