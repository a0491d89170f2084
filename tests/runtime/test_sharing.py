"""One stream and many consumers: every record once for each, in order, whoever joins, stalls or leaves."""
from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from pipec.runtime import rendezvous
from pipec.runtime.errors import DataError

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from fakes import content
from served import consumer, report, serving

pytestmark = pytest.mark.usefixtures("runtime")


def epoch_of(loader, width, most=None):
    """Labels of an iteration, every image compared with what it should be."""
    seen = []
    for batch in loader:
        for label, image in zip(batch.label.tolist(), batch.image, strict=True):
            epoch, position = divmod(label, 1000)
            assert (image[::97] == content(epoch, position, width)[::97]).all()
        seen += batch.label.tolist()
        if most is not None and len(seen) >= most:
            break
    return seen


def together(functions):
    """Run these at once; returns their results."""
    results, problems = [None] * len(functions), []

    def run(k, function):
        try:
            results[k] = function()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(fakes.PATIENT)
        assert not thread.is_alive()
    if problems:
        raise problems[0]
    return results


@pytest.mark.parametrize("batches", [(1,), (7, 32), (1, 7, 32, 100), (1, 7, 7, 32, 100, 128, 128, 33)], ids=len)
def test_everybody_sees_every_record_once_in_order(batches):
    """Rings wrap several times, no page divides a record, no batch the epoch; 128 is more than a share of the ring."""
    rows, epochs = 331, 3
    with serving(plan=fakes.plan(rows=rows, width=30_011), wait_for=len(batches)) as server:
        loaders = [consumer(server, batch) for batch in batches]

        def read(loader):
            out = [epoch_of(loader, 30_011) for _ in range(epochs)]
            loader.close()
            return out

        for seen in together([lambda loader=loader: read(loader) for loader in loaders]):
            assert seen == [[1000 * epoch + k for k in range(rows)] for epoch in range(epochs)]


def test_it_begins_when_all_are_there():
    with serving(plan=fakes.plan(rows=50, width=64), wait_for=3) as server:
        first = [consumer(server), consumer(server)]
        time.sleep(0.2)
        assert report(server).rows == 0
        first.append(consumer(server))
        for seen in together([lambda loader=loader: epoch_of(loader, 64) for loader in first]):
            assert seen == list(range(50))


@pytest.mark.parametrize("seen", [0, 0.5, 0.99])
@pytest.mark.parametrize("join", ["epoch", "now"])
def test_joining_late(seen, join):
    rows = 400
    with serving(plan=fakes.plan(rows=rows, width=64), most=8) as server:
        first = consumer(server, 8)
        old = epoch_of(first, 64, seen * rows) if seen else []
        late = consumer(server, 8, join=join)
        if join == "now":
            start = late.joined                           # the producer is up to a ring ahead, maybe in the next epoch
            stands = start["epoch"] * rows + start["position"]
            assert start["unseen"] == start["position"] and len(old) <= stands <= len(old) + server.layout.capacity
            got, rest = together([lambda: last_epoch_of(late), lambda: resumed(first) + epoch_of(first, 64)])
            assert got == [1000 * start["epoch"] + k for k in range(start["position"], rows)]
        else:
            if not seen:
                assert late.joined["epoch"] == 0          # its first rows are still there
            got, rest = together([lambda: last_epoch_of(late), lambda: resumed(first) + epoch_of(first, 64)])
            assert got == ([k for k in range(rows)] if not seen else [1000 + k for k in range(rows)])
        assert (old + rest)[:rows] == list(range(rows))
        first.close()


def last_epoch_of(loader):
    """An epoch, then it leaves: nobody has to wait for it."""
    with loader:
        return epoch_of(loader, 64)


def resumed(loader):
    """The rest of an epoch that was left early."""
    loader.load_state_dict(loader.state_dict())
    return epoch_of(loader, 64)


def test_a_state_resumes_exactly():
    rows = 300
    with serving(plan=fakes.plan(rows=rows, width=64), most=8) as server:
        first = consumer(server, 7)
        seen = epoch_of(first, 64, 100)
        state = first.state_dict()
        first.close()
        for batch in (7, 13):
            again = consumer(server, batch, state=state)
            assert seen + epoch_of(again, 64) == list(range(rows))
            assert epoch_of(again, 64) == [1000 + k for k in range(rows)]
            again.close()


def test_a_state_behind_the_stream_is_refused():
    with serving(plan=fakes.plan(rows=900, width=64), most=8) as server:
        first = consumer(server, 7)
        seen = epoch_of(first, 64, 50)
        state = first.state_dict()
        epoch_of(first, 64, 800)
        late = consumer(server, 7, state=state)
        with pytest.raises(DataError, match="E0831: the stream has passed position 5"):
            next(iter(late))
        assert len(seen) >= 50
        late.close()
        first.close()


def test_leaving_an_epoch_early_goes_on_with_the_next():
    with serving(plan=fakes.plan(rows=200, width=64), most=8, wait_for=2) as server:
        one, two = consumer(server, 8), consumer(server, 8)

        def breaks():
            assert epoch_of(one, 64, 40) == list(range(40))
            return epoch_of(one, 64)

        got, all_ = together([breaks, lambda: epoch_of(two, 64) + epoch_of(two, 64)])
        assert got == [1000 + k for k in range(200)]
        assert all_ == [1000 * e + k for e in range(2) for k in range(200)]


def test_epochs_end_and_a_stop_ends():
    with serving(plan=fakes.plan(rows=50, width=64), epochs=2) as server:
        loader = consumer(server)
        assert [len(epoch_of(loader, 64)) for _ in range(2)] == [50, 50]
        with pytest.raises(DataError, match=r"E0833: .*has delivered its 2 epochs"):
            epoch_of(loader, 64)
        server.thread.join(fakes.PATIENT)
        assert not server.thread.is_alive()
        assert rendezvous.names() == []
    with serving(plan=fakes.plan(rows=500, width=64), most=8) as server:
        loader = consumer(server, 8)
        batches = iter(loader)
        first = [label for _ in range(3) for label in next(batches).label.tolist()]
        server.stop()
        with pytest.raises(DataError, match="E0834"):
            while True:
                first += next(batches).label.tolist()
        assert first == list(range(len(first))) and len(first) >= 24
        state = loader.state_dict()
    with serving(plan=fakes.plan(rows=500, width=64), most=8) as server:
        again = consumer(server, 8, state=state)
        assert first + epoch_of(again, 64) == list(range(500))


def test_an_error_reaches_all_with_its_record_and_can_be_passed():
    with serving(plan=fakes.plan(rows=100, width=64, fail_at=48), wait_for=2) as server:
        loaders = [consumer(server, 6), consumer(server, 16)]

        def read(loader):
            seen = []
            with pytest.raises(DataError) as caught:
                for batch in loader:
                    seen += batch.label.tolist()
            return caught.value, seen, loader.state_dict()

        results = together([lambda loader=loader: read(loader) for loader in loaders])
        for (error, seen, state), batch in zip(results, (6, 16), strict=True):
            assert error.code == "E0801" and "a.jpg of x.tar" in str(error)
            assert seen == list(range(48 // batch * batch)) and state["next"] == len(seen)
        together([lambda loader=loader: read(loader) for loader in loaders])   # the same again: nobody hangs


def test_a_slow_consumer_holds_the_others_back_or_not():
    rows = 900
    with serving(plan=fakes.plan(rows=rows, width=64), most=8, wait_for=2) as server:
        slow, fast = consumer(server, 8), consumer(server, 8)
        held = iter(slow)
        next(held)
        batches = iter(fast)
        reader = threading.Thread(target=lambda: [next(batches) for _ in range(rows // 8)])
        reader.start()

        def members():
            return sorted(report(server).members, key=lambda m: m.number)

        fakes.until(lambda: members()[0].lag > members()[1].lag and server.writer.head >= server.layout.capacity - 8)
        before = [m.blocked for m in members()]
        fakes.until(lambda: members()[0].blocked > before[0] + 0.3)
        assert server.writer.head <= server.layout.capacity + 8
        assert members()[1].blocked == before[1]          # only who holds the oldest row is blamed
        del held
        slow.close()
        reader.join(fakes.PATIENT)
        assert not reader.is_alive()


def test_skip_loses_records_and_counts_them():
    rows = 900
    with serving(plan=fakes.plan(rows=rows, width=64), most=8, wait_for=2) as server:
        slow, fast = consumer(server, 8, when_slow="skip"), consumer(server, 8)
        mine = iter(slow)
        first = next(mine)
        kept = first.image.copy()
        assert epoch_of(fast, 64) == list(range(rows))
        seen = first.label.tolist() + [label for batch in mine for label in batch.label.tolist()]
        lost = slow.stats()["lost"]
        assert lost > 0 and len(seen) + lost == rows and seen == sorted(set(seen))
        assert (first.image == kept).all()
        assert report(server).members[0].lost == lost


def test_drop_detaches_with_an_error():
    with serving(plan=fakes.plan(rows=900, width=64), most=8, wait_for=2, patience=1e6) as server:
        slow, fast = consumer(server, 8, when_slow="drop"), consumer(server, 8)
        mine = iter(slow)
        first = next(mine)
        kept = first.image.copy()
        server.writer.readers.patience = 0.3                      # not before it has a batch
        assert epoch_of(fast, 64) == list(range(900))
        assert (first.image == kept).all()
        with pytest.raises(DataError, match="E0832"):
            for batch in mine:
                assert (batch.image[:, 0] == [content(0, p, 64)[0] for p in batch.label]).all()
        assert any("held the others back" in line for line in server.lines)
        fast.close()


def test_the_fastest_is_at_most_max_skew_ahead():
    with serving(plan=fakes.plan(rows=900, width=64), most=64, wait_for=2, max_skew=40) as server:
        slow, fast = consumer(server, 8), consumer(server, 8)
        next(iter(slow))
        batches = iter(fast)
        for _ in range(4):
            next(batches)
        time.sleep(0.3)
        assert server.writer.head <= 48
        big = consumer(server, 64)                        # asks for more at once than the skew: it gets it
        slow.close()
        fast.close()
        assert next(iter(big)).label.tolist()[:2]


def test_a_kept_batch_never_changes_and_stops_nobody():
    with serving(plan=fakes.plan(rows=900, width=5000), most=8, wait_for=2) as server:
        keeper, other = consumer(server, 8), consumer(server, 8)
        mine = iter(keeper)
        kept = [next(mine) for _ in range(3)]
        copies = [(b.image.copy(), b.label.copy()) for b in kept]
        (_, seen) = together([lambda: [b.label.tolist() for b in mine], lambda: epoch_of(other, 5000)])
        assert seen == list(range(900))
        for batch, (image, label) in zip(kept, copies, strict=True):
            assert (batch.image == image).all() and (batch.label == label).all()


def test_writing_into_a_batch_touches_nobody_elses():
    with serving(plan=fakes.plan(rows=300, width=30_011), most=8, wait_for=2) as server:
        writer, other = consumer(server, 8, as_="torch"), consumer(server, 8)

        def writes():
            for _ in range(3):
                for batch in writer:
                    batch.image.mul_(0)

        def reads():
            return [epoch_of(other, 30_011) for _ in range(3)]

        _, seen = together([writes, reads])
        assert seen == [[1000 * e + k for k in range(300)] for e in range(3)]


def test_two_servers_of_one_name_and_a_dead_ones_socket(tmp_path):
    from pipec.runtime.rendezvous import Taken

    with serving(plan=fakes.plan(rows=50, width=64), name="same") as server:
        with pytest.raises(Taken), serving(plan=fakes.plan(), name="same"):
            pass
        assert report(server).name == "same"
    path = rendezvous.socket_path("same")
    assert not path.exists()
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving(plan=fakes.plan(rows=50, width=64), name="same") as server:
        assert len(epoch_of(consumer(server), 64)) == 50


def test_an_epoch_that_nobody_reads_isnt_made():
    with serving(plan=fakes.plan(rows=100_000, width=64), most=8) as server:
        loader = consumer(server, 8)
        next(iter(loader))
        loader.close()
        fakes.until(lambda: report(server).state == "waiting")
        before = server.writer.head
        time.sleep(0.3)
        assert server.writer.head == before < 10_000
        late = consumer(server, 8)
        assert late.joined["epoch"] == 1
        assert next(iter(late)).label.tolist() == [1000 + k for k in range(8)]
        late.close()


def test_views_are_what_numpy_gets_and_they_are_read_only():
    with serving(plan=fakes.plan(rows=64, width=30_011)) as server:
        batch = next(iter(consumer(server)))
        assert isinstance(batch.image, np.ndarray) and not batch.image.flags.writeable
        with pytest.raises(ValueError):
            batch.image[0] = 1
