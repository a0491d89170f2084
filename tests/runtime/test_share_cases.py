"""Cases of sharing that another loader gets wrong, and consumers that keep too much."""
from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from pipec.runtime import attach
from pipec.runtime import server as servers
from pipec.runtime.errors import DataError
from pipec.runtime.limits import Room

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from served import consumer, layout_of, report, serving
from test_sharing import epoch_of, together

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize(("chunk", "batches"), [(64, (32, 32)), (64, (64, 64)), (8, (10, 12, 20)), (8, (8, 10, 12, 20, 320))])
def test_320_records(chunk, batches):
    """TensorSocket 0.0.5 delivers 256 of the 320 (the last producer batch is lost), and repeats and reorders records where
    consumers ask for 10, 12 and 20 of producer batches of 8."""
    plan = fakes.plan(rows=320, width=5003, chunk=chunk)
    with serving(layout_of(plan, 64, chunk=64), plan, wait_for=len(batches)) as server:
        loaders = [consumer(server, batch) for batch in batches]

        def read(loader):
            with loader:
                return [epoch_of(loader, 5003) for _ in range(3)]

        for seen in together([lambda loader=loader: read(loader) for loader in loaders]):
            assert seen == [[1000 * epoch + k for k in range(320)] for epoch in range(3)]


def test_who_keeps_too_much_gets_an_error_and_others_go_on(monkeypatch):
    monkeypatch.setattr(attach, "available", lambda: Room(0, "this test"))   # no more than the ring's size is copied aside
    width, rows = 30_011, 900
    with serving(plan=fakes.plan(rows=rows, width=width), most=8, wait_for=2) as server:
        assert 3 * server.layout.total < rows * width
        keeper, other = consumer(server, 8), consumer(server, 8)

        def keeps():
            kept = []
            with pytest.raises(DataError, match=r"E0808: .* batches are still held and fill the ring") as caught:
                for batch in keeper:
                    kept.append(batch)
            assert "allowed" in str(caught.value)
            labels = [label for batch in kept for label in batch.label.tolist()]
            assert labels == list(range(len(labels))) and keeper.state_dict()["next"] == len(labels)
            del batch
            kept.clear()                                  # then it may go on
            with keeper:
                return labels + epoch_of(keeper, width)

        for seen in together([keeps, lambda: epoch_of(other, width)]):
            assert seen == list(range(rows))


def test_the_last_epochs_may_take_as_long_as_they_like(monkeypatch):
    """All is written and in the ring: the server stays until it was read, also from another place of it."""
    monkeypatch.setattr(servers, "DRAIN_SECONDS", 0.1)
    with serving(plan=fakes.plan(rows=60, width=64), most=64, epochs=3) as server:
        loader = consumer(server, 8)
        batches = iter(loader)
        next(batches)
        fakes.until(lambda: report(server).state == "finished")
        time.sleep(0.3)                                   # longer than one that hurries would stay
        with pytest.raises(DataError, match="E0833"):
            consumer(server, 8)
        del batches                                       # left early: the next epoch is there
        assert [epoch_of(loader, 64) for _ in range(2)] == [[1000 * e + k for k in range(60)] for e in (1, 2)]
        with pytest.raises(DataError, match="E0833"):
            epoch_of(loader, 64)
        server.thread.join(fakes.PATIENT)
        assert not server.thread.is_alive()
    with serving(plan=fakes.plan(rows=60, width=64), most=64, epochs=3) as server:
        next(iter(consumer(server, 8)))
        server.stop()                                     # told to end, it doesn't wait for ever
        server.thread.join(fakes.PATIENT)
        assert not server.thread.is_alive()


@pytest.mark.parametrize("epochs", [1, 3])
def test_all_who_were_waited_for_see_the_first_epoch(epochs):
    """However short it is."""
    for _ in range(15):
        with serving(plan=fakes.plan(rows=3, width=8), wait_for=3, epochs=epochs) as server:
            loaders = [consumer(server, 2) for _ in range(3)]
            for loader in loaders:
                assert [epoch_of(loader, 8) for _ in range(epochs)] == [[1000 * e + k for k in range(3)] for e in range(epochs)]
                loader.close()


def test_a_state_loaded_in_the_middle_of_an_epoch_waits_for_nobody():
    """Not for the epoch to end, which the place asked for before would have done: one thread may have both loaders."""
    with serving(plan=fakes.plan(rows=400, width=64), most=8) as server:
        loader = consumer(server, 8)
        batches = iter(loader)
        states = []
        for _ in range(30):
            next(batches)
            states.append(loader.state_dict())
        late, passed = consumer(server, 8), consumer(server, 8)
        late.load_state_dict(states[-1])
        assert next(iter(late)).label.tolist() == list(range(240, 248))
        passed.load_state_dict(states[1])
        with pytest.raises(DataError, match="E0831"):     # with no producer of its own, as `attach` has none
            next(iter(passed))
        for each in (late, passed):
            each.close()
        assert next(batches).label.tolist() == list(range(240, 248))
        loader.close()
