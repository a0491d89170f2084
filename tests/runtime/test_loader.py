"""Loaders over a fake engine: epochs, states, errors, processes that die, children, nothing left behind."""
from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pipec.runtime.errors import DataError
from pipec.runtime.messages import Channel, Open
from pipec.runtime.serve import Producer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import fakes  # noqa: E402
from fakes import PATIENT, alive, labels, make, until  # noqa: E402

BOTH = pytest.mark.parametrize("workers", ["threads", "process"])


@BOTH
def test_an_iteration_is_an_epoch(workers):
    with make(workers, rows=150) as loader:
        assert len(loader) == 5
        for epoch in range(3):
            at = 0
            for batch in loader:
                assert batch._fields == ("image", "label") and type(batch).__name__ == "train"
                assert batch.image.shape == (min(32, 150 - at), fakes.WIDTH)
                assert (batch.image[-1] == fakes.content(epoch, at + len(batch.label) - 1)).all()
                at += len(batch.label)
            assert at == 150


@pytest.mark.parametrize("as_", ["numpy", "torch"])
def test_batches_are_taken_by_the_extension_or_without_it(monkeypatch, as_):
    """Where all is as usual the extension does it: all but the last batch of an epoch, and the ends of epochs."""
    from pipec.runtime import attach, extension

    def read(taking):
        taken = []
        with make("threads", rows=150, as_=as_) as loader:
            seen = [[(b.label.tolist(), b.image.shape, b.image[-1].tolist(), b.ids.tolist(), loader.state_dict()) for b in loader]
                    for epoch in range(3)]
            reader = loader._box.reader
            assert (reader.taker is not None) == taking and reader.rows == 450
            assert loader.stats()["records"] == 450 and loader.stats()["moved"] == 0
            if taking:
                take = reader.taker.take
                monkeypatch.setattr(reader, "taker", type("Counting", (), {
                    "plan": reader.taker.plan, "take": lambda _, *args: taken.append(take(*args)) or taken[-1]})())
                assert sum(1 for _ in loader) == 5 and sum(made is not None for made in taken) == 4
        return seen

    with_it = extension.handover() is not None
    found = read(with_it)
    monkeypatch.setattr(attach, "handover", lambda: None)
    assert read(False) == found


@BOTH
def test_left_early_the_next_iteration_is_the_next_epoch(workers):
    with make(workers, width=100) as loader:
        for epoch in range(50):
            assert labels(loader, 96)[:1] == [1000 * epoch]
        assert labels(loader) == list(range(50_000, 51_000))
        for epoch in range(51, 251):
            assert next(iter(loader)).label[0] == 1000 * epoch


@BOTH
@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_a_state_is_what_the_loop_saw(workers, after):
    with make(workers, rows=150, width=50) as first, make(workers, rows=150, width=50) as second:
        got = []
        for k, batch in enumerate(first):
            got += batch.label.tolist()
            if k == after:
                time.sleep(0.05)                      # let it read ahead
                state = msgspec.json.decode(msgspec.json.encode(first.state_dict()))
                break
        else:
            state = first.state_dict()
        second.load_state_dict(state)
        assert got + (labels(second) if len(got) < 150 else []) == list(range(150))
        if len(got) < 150:
            assert labels(second)[0] == 1000


def test_a_state_goes_with_its_program():
    with make(rows=10) as loader:
        for wrong in ({}, {**loader.state_dict(), "program": "other"}, {**loader.state_dict(), "next": -1},
                      {**loader.state_dict(), "skip": "x"}):
            with pytest.raises(ValueError):
                loader.load_state_dict(wrong)


def test_set_epoch():
    with make(rows=70, width=50) as loader:
        loader.set_epoch(7)
        assert labels(loader)[0] == 7000
        assert labels(loader)[0] == 8000
        loader.set_epoch(9)
        assert labels(loader)[0] == 9000
        loader.set_epoch(2)
        labels(loader, 32)
        state = loader.state_dict()
        loader.set_epoch(2)
        assert labels(loader)[0] == 2000
        loader.load_state_dict(state)
        loader.set_epoch(2)                           # as in `for epoch in range(state["epoch"], …)`
        assert labels(loader)[0] == 2032


def test_an_older_iteration_stops():
    with make(rows=100, width=50) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        next(new)
        with pytest.raises(RuntimeError, match="another"):
            next(old)
        assert next(new).label[0] == 1032


@BOTH
def test_an_error_in_the_data_arrives_as_it_is(workers):
    with make(workers, width=50, fail_at=104) as loader:
        seen = []
        with pytest.raises(DataError) as caught:
            for batch in loader:
                seen += batch.label.tolist()
        error = caught.value
        assert seen == list(range(96))
        assert (error.code, error.title, error.label, error.record, error.epoch, error.position) == (
            "E0801", "this JPEG ends early", "12 of 30 bytes", "a.jpg of x.tar", 0, 104)
        assert "leave it out" in error.notes
        assert error.where.file == "train.pipe"
        assert loader.state_dict()["next"] == 96
        with pytest.raises(DataError):
            next(iter(loader))                        # goes on there, and meets it again
        loader.set_epoch(0)
        assert labels(loader, 64) == list(range(64))


@BOTH
def test_errors_at_the_start(workers):
    with pytest.raises(DataError, match="E0810"):
        make(workers, refuse=True)
    with pytest.raises(DataError, match="E0809") as caught:
        make(workers, memory="2MB")
    assert "memory=" in str(caught.value)
    with pytest.raises(ValueError, match="memory="):
        make(workers, memory="much")


def test_a_bug_in_the_producer_is_told():
    with make(width=50, bug_at=0) as loader, pytest.raises(DataError, match="ZeroDivisionError"):
        next(iter(loader))


def test_producer_killed():
    with make("process", slow=0.01, chunk=1) as loader:
        seen, iterator = [], iter(loader)
        for _ in range(2):
            seen += next(iterator).label.tolist()
        loader._box.process.kill()
        with pytest.raises(DataError, match="E0807") as caught:
            for batch in iterator:
                seen += batch.label.tolist()
        assert caught.value.position == len(seen) and "state_dict" in str(caught.value)
        more = labels(loader, 32)                     # a new producer goes on there
        assert seen + more == list(range(len(seen) + 32))


def test_producer_leaves_by_itself():
    with make("process", leave_at=64) as loader, pytest.raises(DataError, match="E0807"):
        labels(loader)


def script(body):
    """Run a training script; its standard output."""
    text = f"import os, sys, time; sys.path.insert(0, {str(HERE)!r})\nfrom fakes import labels, make\n"
    command = [sys.executable, "-c", text + textwrap.dedent(body)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("hang", [False, True])
def test_consumer_killed(forked, hang):
    """Also while a forked child of the consumer lives on and holds copies of its sockets."""
    child = script(f"""
        loader = make("process", hang={hang})
        iterator = iter(loader)
        {"" if hang else "next(iterator)"}
        pid = os.fork() if {forked} else 0
        if pid == 0 and {forked}:
            os.close(1); os.close(2); time.sleep(600); os._exit(0)
        print(loader._box.process.pid, pid, flush=True)
        {"next(iterator)" if hang else "time.sleep(600)"}
    """)
    producer, heir = map(int, child.stdout.readline().split())
    try:
        assert alive(producer)
        child.kill()
        until(lambda: not alive(producer))
        assert not forked or alive(heir)
    finally:
        if heir:
            os.kill(heir, signal.SIGKILL)
        child.kill()
        child.communicate()


def test_ctrl_c():
    child = script("""
        loader = make("process", rows=10_000, slow=0.05)
        print(loader._box.process.pid, flush=True)
        try:
            for batch in loader:
                if batch.label[0] == 0:
                    print("going", flush=True)
        except KeyboardInterrupt:
            print("interrupted", loader.state_dict()["epoch"], flush=True)
        assert labels(loader, 32)[0] == 1000
        loader.close()
        print("closed", flush=True)
    """)
    producer = int(child.stdout.readline())
    assert child.stdout.readline() == "going\n"
    os.kill(producer, signal.SIGINT)                  # a terminal sends it to both
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENT)
    assert out.split() == ["interrupted", "0", "closed"] and err == "" and not alive(producer)


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "1 / 0", "del loader, batch", "pass", "sys.stdout.flush(); os._exit(0)"])
def test_whatever_ends_the_script_ends_the_producer(end):
    child = script(f"""
        loader = make("process")
        batch = next(iter(loader))
        print(loader._box.process.pid, flush=True)
        {end}
    """)
    out, err = child.communicate(timeout=PATIENT)
    assert ("ZeroDivisionError" in err) == (end == "1 / 0") and (err == "" or end == "1 / 0")
    until(lambda: not alive(int(out)))


def test_a_forked_child_is_refused():
    child = script("""
        loader = make("process")
        batch = next(iter(loader))
        pid = os.fork()
        if pid == 0:
            held = batch.image.sum()
            del batch
            try:
                next(iter(loader))
            except RuntimeError as error:
                print(error, flush=True)
            sys.exit(0)
        os.waitpid(pid, 0)
        kept = batch.image.copy()
        for _ in range(3):
            labels(loader)
        assert (batch.image == kept).all()
        print("fine")
    """)
    out, err = child.communicate(timeout=PATIENT)
    assert "forked child" in out and out.endswith("fine\n") and err == ""


def test_a_loader_is_not_pickled():
    import pickle

    with make(rows=10) as loader, pytest.raises(TypeError, match=r"pipec\.open"):
        pickle.dumps(loader)


def test_closed():
    loader = make(rows=100)
    batch = next(iter(loader))
    kept = batch.image.copy()
    loader.close()
    loader.close()
    assert (batch.image == kept).all()
    for use in (lambda: next(iter(loader)), lambda: len(loader), loader.stats):
        with pytest.raises(ValueError, match="closed"):
            use()


def census():
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    children = [p for p in Path("/proc/self/task").glob("*/children") if p.read_text().strip()]
    return len(os.listdir("/proc/self/fd")), threading.active_count(), maps.count("memfd:pipec"), len(children)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(("workers", "times"), [("threads", 100), ("process", 4)])
def test_nothing_is_left_behind(workers, times):
    def once():
        loader = make(workers, rows=40, width=3000)
        labels(loader, 32)
        loader.close()

    for _ in range(5 if workers == "threads" else 2):
        once()
    before, memory = census(), resident()
    for _ in range(times):
        once()
    until(lambda: census() == before, lambda: (census(), before))
    assert resident() - memory < 8 << 20


def test_forgotten_loaders_leave_nothing_either():
    make(rows=40)
    before = census()
    for _ in range(10):
        iterator = iter(make(rows=40))
        next(iterator)
        del iterator
    until(lambda: census() == before, lambda: (census(), before))


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_on_the_socket(seed):
    """The producer takes nothing from them, and leaves."""
    rng = random.Random(seed)
    near, far = socket.socketpair()
    producer = Producer(Channel(far))
    thread = threading.Thread(target=producer.serve, daemon=True)
    thread.start()
    with near:
        if seed % 2:                                  # a good start, then noise
            plan = fakes.plan()
            channel = Channel(near)
            from pipec.runtime.loader import layout_for
            from pipec.runtime.memory import PAGE, create

            control = create("control", PAGE)
            layout = layout_for(plan, fakes.below(plan, 32), 1, None)
            channel.send(Open(msgspec.msgpack.encode(plan), layout, "fakes:Engine", {}), (control,))
            os.close(control)
        data = rng.randbytes(rng.choice([1, 4, 5, 100, 5000]))
        if seed % 3 == 0:
            data = len(data).to_bytes(4, "little") + data
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        thread.join(PATIENT)
        assert not thread.is_alive()


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_from_the_producer(seed):
    with make(rows=1000, slow=0.002) as loader:
        iterator = iter(loader)
        next(iterator)
        junk = random.Random(seed).randbytes(50)
        loader._box.attachment.channel.buffer += len(junk).to_bytes(4, "little") + junk
        loader._box.attachment.news = True
        with pytest.raises(DataError, match="E0807"):
            list(iterator)


def test_broken_control_page():
    """A consumer that says it released what it never had is left alone by the producer."""
    with make(rows=1000, width=1000) as loader:
        iterator = iter(loader)
        next(iterator)
        reader = loader._box.reader
        reader._store(0, 1 << 50)
        reader.taker, reader.atomics = None, reader.atomics._replace(publish=lambda *_: 0)
        os.eventfd_write(loader._box.attachment.room_fd, 1)
        with pytest.raises(DataError, match="E0807"):
            list(iterator)


torch = pytest.importorskip("torch")


def test_torch_tensors_are_ours():
    """In-place operations stay in their batch, on every lap; kept batches don't change."""
    with make(as_="torch", rows=1000) as loader:
        kept, at = [], 0
        for step, batch in enumerate(loader):
            assert batch.image.dtype == torch.uint8 and batch.label.dtype == torch.int64
            right = torch.from_numpy(np.stack([fakes.content(0, at + k) for k in (0, len(batch.label) - 1)]))
            assert torch.equal(batch.image[[0, -1]], right)
            if step % 2:
                batch.image.bitwise_not_()
            if step % 5 == 0:
                kept.append((at, step % 2, batch.image))
            at += len(batch.label)
        for at, turned, image in kept:
            right = torch.from_numpy(fakes.content(0, at + 3))
            assert torch.equal(image[3], 255 - right if turned else right)


def test_torch_types():
    import ml_dtypes
    from pipec.runtime.consumers import to_torch

    half = np.arange(4).astype(ml_dtypes.bfloat16)
    assert to_torch(half).dtype == torch.bfloat16 and to_torch(half).tolist() == [0, 1, 2, 3]
    assert to_torch(np.float32(1.5)).shape == () and to_torch("a") == "a"
    got = to_torch([np.arange(2), b"x"])
    assert torch.equal(got[0], torch.arange(2)) and got[1] == b"x"
    fixed = np.arange(3)
    fixed.flags.writeable = False
    to_torch(fixed).add_(1)
    assert fixed.tolist() == [0, 1, 2]


def test_the_producer_imports_no_compiler():
    code = "import sys, pipec.runtime.serve, pipec.runtime.engine\n"
    code += "print([m for m in ('numba', 'lark', 'torch', 'pipec.compiler') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
