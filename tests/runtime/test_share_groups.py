"""Ranks of a shared stream begin together, also at a server that was started again, and who waits is told for whom."""
from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from pipec.runtime import places, rendezvous
from served import consumer, report, serving
from test_share_processes import PLAN, Trainer
from test_sharing import epoch_of, together

pytestmark = pytest.mark.usefixtures("runtime")


def test_ranks_begin_together_again_at_a_server_that_is_started_again(tmp_path):
    """One is stopped while the server dies: the new one begins when it has come, where both of them were."""
    gate = tmp_path / "gate"
    ranks = [Trainer(tmp_path, name="group", share=True, batch=8, epochs=2, linger=1.0, rank=(r, 2), gate=str(gate), gate_at=40)
             for r in (0, 1)]
    for trainer in ranks:
        trainer.reaches(40)
    os.kill(ranks[1].process.pid, signal.SIGSTOP)
    try:
        first = rendezvous.look("group", fakes.PATIENT).pid
        os.kill(first, signal.SIGKILL)
        gate.touch()

        def waits():
            assert ranks[0].process.poll() is None
            seen = rendezvous.look("group", fakes.PATIENT)
            return seen if seen is not None and seen.pid != first and seen.waits else None

        seen = fakes.until(waits)
        assert seen.waits == ("group `trainer`: 1 of 2 ranks are here, missing: rank 1",) and seen.rows == 0
    finally:
        os.kill(ranks[1].process.pid, signal.SIGCONT)
    dealt = [[label for e in range(2) for step in range(0, PLAN["rows"], 16)
              for label in range(1000 * e + step + 8 * r, 1000 * e + step + 8 * r + 8)] for r in (0, 1)]
    assert [trainer.ends() for trainer in ranks] == dealt and not any(trainer.errors() for trainer in ranks)


def test_who_waits_for_others_is_told_for_whom(monkeypatch):
    monkeypatch.setattr(places, "A_WORD", 0.1)
    with serving(plan=fakes.plan(rows=64, width=64), wait_for=3) as server:
        one = consumer(server, 8, rank=(1, 2))
        with pytest.warns(RuntimeWarning, match="group `test`: 1 of 2 ranks are here, missing: rank 0") as told:
            reader = threading.Thread(target=lambda: epoch_of(one, 64))
            reader.start()
            fakes.until(lambda: told.list)
        assert report(server).waits == ("group `test`: 1 of 2 ranks are here, missing: rank 0",)
        again = consumer(server, 8, rank=(1, 2))          # the same rank doesn't make the group whole
        assert "1 of 2" in report(server).waits[0] and report(server).rows == 0
        zero = consumer(server, 8, rank=(0, 2))
        fakes.until(lambda: report(server).waits[-1] == "2 of 3 consumers are here that the server waits for")
        again.close()
        alone = consumer(server, 8)
        together([lambda: epoch_of(zero, 64), lambda: epoch_of(alone, 64)])
        reader.join(fakes.PATIENT)
        assert not reader.is_alive() and report(server).waits == ()
        fakes.until(lambda: [m.number for m in report(server).members] == [1, 3, 4])   # looking makes no consumers
        for loader in (one, zero, alone):
            loader.close()


def test_who_comes_late_is_told_that_it_waits_for_the_next_epoch(monkeypatch):
    monkeypatch.setattr(places, "A_WORD", 0.1)
    with serving(plan=fakes.plan(rows=400, width=64), most=8) as server:
        one = iter(consumer(server, 8))
        for _ in range(30):                               # the epoch's start has left the ring
            next(one)
        late = consumer(server, 8)
        seen = []
        with pytest.warns(RuntimeWarning, match="epoch 0 is under way, and `join=\"epoch\"` begins at the next") as told:
            reader = threading.Thread(target=lambda: seen.extend(epoch_of(late, 64)))
            reader.start()
            fakes.until(lambda: told.list)
        assert "epoch 0 is under way" in report(server).waits[0]
        rest = [label for batch in one for label in batch.label.tolist()]
        reader.join(fakes.PATIENT)
        assert rest == list(range(240, 400)) and seen == list(range(1000, 1400))
        late.close()


@pytest.mark.parametrize("epoch", [0, 40])
def test_ranks_go_on_together_where_their_states_say(epoch, monkeypatch):
    """Far ahead of the stream, or behind it: nothing in between is made, since nobody else reads. The first to get its place
    doesn't read on over that of the second, however long this one's takes."""
    give = places.Places._give

    def slowly(self, client):
        given = give(self, client)
        time.sleep(0.2)
        return given

    monkeypatch.setattr(places.Places, "_give", slowly)
    rows, batch = 400, 8
    with serving(plan=fakes.plan(rows=rows, width=64), most=8) as server:
        ranks = [consumer(server, batch, rank=(r, 2)) for r in (0, 1)]
        read = together([lambda rank=rank: [b.label.tolist() for b in rank] for rank in ranks])
        assert [len(batches) for batches in read] == [25, 25]
        state = {**ranks[0].state_dict(), "epoch": epoch, "next": 32}
        before = server.writer.head

        def goes_on(rank):
            rank.load_state_dict(state)
            return [b.label.tolist() for b in rank]

        read = together([lambda rank=rank: goes_on(rank) for rank in ranks])
        starts = range(1000 * epoch + 32, 1000 * epoch + rows, 2 * batch)
        assert read == [[list(range(s + batch * r, s + batch * (r + 1))) for s in starts] for r in (0, 1)]
        assert server.writer.head - before < 3 * rows
        for rank in ranks:
            rank.close()


def test_ranks_that_load_a_state_in_the_middle_of_an_epoch_wait_for_one_another_only():
    """Not for the epoch to end, which nobody reads on to here. The first has loaded its state before the second has come."""
    with serving(plan=fakes.plan(rows=400, width=64), most=8) as server:
        loader = consumer(server, 8)
        batches = iter(loader)
        for _ in range(30):
            next(batches)
        state = {**loader.state_dict(), "group": [2, 8, 1]}
        got = {}

        def goes_on(number):
            rank = consumer(server, 8, rank=(number, 2))
            with rank:
                rank.load_state_dict(state)
                got[number] = next(iter(rank)).label.tolist()

        first = threading.Thread(target=goes_on, args=(0,))
        first.start()
        fakes.until(lambda: any(m.number == 2 for m in report(server).members) and report(server).waits)
        second = threading.Thread(target=goes_on, args=(1,))
        second.start()
        for thread in (first, second):
            thread.join(fakes.PATIENT)
            assert not thread.is_alive()
        assert got == {0: list(range(240, 248)), 1: list(range(248, 256))}
        assert next(batches).label.tolist() == list(range(240, 248))
        loader.close()


def test_a_group_of_another_size_goes_on_in_mid_epoch():
    """Two ranks, then three, then one, at one server: every record once, in the order of the stream."""
    with serving(plan=fakes.plan(rows=101, width=64), most=8) as server:
        seen, state = [], None
        for world, steps in ((2, 3), (3, 2), (1, 100)):
            ranks = [consumer(server, 8, state, rank=(r, world) if world > 1 else None) for r in range(world)]

            def some(rank, steps=steps):
                return [b.label.tolist() for b in itertools.islice(rank, steps)], rank.state_dict()

            read = together([lambda rank=rank: some(rank) for rank in ranks])
            seen += [label for step in itertools.zip_longest(*[batches for batches, _ in read]) for b in step for label in b]
            states = [state for _, state in read]
            state = states[0]
            assert all((s["epoch"], s["next"]) == (state["epoch"], state["next"]) for s in states)
            for rank in ranks:
                rank.close()
        assert seen == list(range(101)) and (state["epoch"], state["next"]) == (1, 0)
