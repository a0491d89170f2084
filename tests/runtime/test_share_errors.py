"""What ends a stream reaches all who read it, soon, with the record and where to go on."""
from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from pipec.runtime import rendezvous, sharing
from pipec.runtime.errors import DataError
from served import consumer, serving
from test_sharing import together

pytestmark = pytest.mark.usefixtures("runtime")
SOON = 20.0                            # seconds; it is a few milliseconds, and a second is promised on a machine that is free


class Failing:
    """The fake engine, which fails at record 48 when all consumers wait for it; `at` is when."""

    def __init__(self, monkeypatch, consumers):
        self.waiting, self.at, run = threading.Semaphore(0), 0.0, fakes.Engine.run

        def gated(engine, epoch, start, skip, sink):
            try:
                run(engine, epoch, start, skip, sink)
            except DataError:
                for _ in range(consumers):
                    assert self.waiting.acquire(timeout=fakes.PATIENT)
                self.at = time.monotonic()
                raise

        monkeypatch.setattr(fakes.Engine, "run", gated)


def test_an_error_reaches_all_soon_with_the_record_and_where_to_go_on(monkeypatch):
    batches = (6, 16, 48, 100)
    failing = Failing(monkeypatch, len(batches))
    with serving(plan=fakes.plan(rows=100, width=64, fail_at=48), wait_for=len(batches)) as server:
        loaders = [consumer(server, batch) for batch in batches]

        def read(loader, batch):
            seen, loop = [], iter(loader)
            with pytest.raises(DataError) as caught:
                for _ in range(48 // batch):
                    seen += next(loop).label.tolist()
                failing.waiting.release()
                next(loop)
            return caught.value, seen, time.monotonic(), loader.state_dict()

        results = together([lambda loader=loader, batch=batch: read(loader, batch)
                            for loader, batch in zip(loaders, batches, strict=True)])
        late = [at - failing.at for _, _, at, _ in results]
        print(f"the error came after {', '.join(f'{1000 * seconds:.1f}' for seconds in late)} ms")
        assert max(late) < SOON
        for (error, seen, _, state), batch in zip(results, batches, strict=True):
            told = str(error)
            assert "E0801: this JPEG ends early" in told and "record a.jpg of x.tar, position 48 of epoch 0" in told
            assert seen == list(range(48 // batch * batch)) and state["next"] == len(seen)
            assert not seen or f"every record before position {len(seen)} was delivered" in told


def test_a_server_that_goes_between_two_epochs_is_told_at_once(monkeypatch):
    """Unless another one is there, which goes on."""
    monkeypatch.setattr(sharing, "AGAIN_SECONDS", 0.2)
    plan = fakes.plan(rows=50, width=64)
    with serving(plan=plan, name="one") as server:
        loader = consumer(server, 7)
        assert len([b for b in loader]) == 8
    with serving(plan=plan, name="one"):
        assert [label for b in loader for label in b.label.tolist()] == [1000 + k for k in range(50)]
    with pytest.raises(DataError, match="E0834"):
        next(iter(loader))
    with pytest.raises(DataError, match="E0830: there is no server `one`; there are none; start it: `pipec serve FILE"):
        next(iter(loader))
    with socket.socket(socket.AF_UNIX) as dead:           # as a server that is killed leaves it
        dead.bind(str(rendezvous.socket_path("one")))
    with pytest.raises(DataError, match="there was one: it was killed"):
        sharing.Server("one").connect(0.0)
    with serving(plan=plan, name="one"):
        assert [label for b in loader for label in b.label.tolist()] == [2000 + k for k in range(50)]
    loader.close()


def test_who_was_too_slow_is_told_also_where_all_its_rows_are_in_the_ring():
    with serving(plan=fakes.plan(rows=200, width=64), most=64, wait_for=2, max_skew=40, patience=0.1) as server:
        slow, fast = consumer(server, 8, when_slow="drop"), consumer(server, 8)
        mine = iter(slow)
        seen = next(mine).label.tolist()
        assert [label for b in fast for label in b.label.tolist()] == list(range(200))
        fakes.until(lambda: any("held the others back" in line for line in server.lines))
        assert seen + [label for b in mine for label in b.label.tolist()] == list(range(200))
        with pytest.raises(DataError, match="E0832"):
            next(iter(slow))
        assert next(iter(slow)).label.tolist() == list(range(1000, 1008))
        for loader in (slow, fast):
            loader.close()
