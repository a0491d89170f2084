"""`pipec serve`, `ps`, `top` and `stop` as a user types them, around one tiny program."""
from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import fake_cupy
import numpy as np
import pytest
from cuda_host import needs_compiler
from msgspec.structs import replace
from pipec import attach
from pipec import open as pipec_open
from pipec.cli import serve as servecommands
from pipec.cli.top import screen
from pipec.runtime import layout, rendezvous
from pipec.runtime.errors import DataError
from pipec.runtime.limits import Room
from pipec.runtime.messages import Counts, Member, Report
from rich.console import Console

PROGRAM = """seed 3
param size = 8
param batch_size = 32

schema Row
  x: i64
  img: u8[8, 8]

pipeline train
  from npz("rows.npz") as Row
  shuffle()
  small = [img[i, j] for i < size, j < size]
  share()
  y = x * 2
  batch(batch_size)
  emit small, x, y
"""
ROWS = 200
PATIENT = 120                          # seconds: the machine may be busy


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, runtime):
    np.savez(tmp_path / "rows.npz", x=np.arange(ROWS), img=np.zeros((ROWS, 8, 8), np.uint8))
    (tmp_path / "train.pipe").write_text(PROGRAM)
    monkeypatch.setattr(rendezvous.look, "__defaults__", (PATIENT,))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pipec(command):
    return command


def until(condition):
    end = time.monotonic() + PATIENT
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


class Served:
    """A process of `pipec serve`, and what it prints."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([sys.executable, "-m", "pipec", "serve", *arguments], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")), daemon=True)
        self.reader.start()

    def says(self, words, count=1):
        def there():
            all_read = not self.reader.is_alive()         # first, or it might read the line and end in between
            found = sum(words in line for line in list(self.lines)) >= count
            assert found or not all_read, self.lines
            return found

        until(there)
        return next(line for line in self.lines if words in line)

    def ends(self):
        status = self.process.wait(PATIENT)
        self.reader.join(PATIENT)
        return status


@pytest.fixture
def serve():
    made = []

    def start(*arguments):
        made.append(Served(*arguments))
        made[-1].says("serving")
        return made[-1]

    yield start
    for served in made:
        served.process.kill()
        served.process.wait()


def watched(pipec, address):
    """After the first epoch; the second one, the last, is in the ring."""
    until(lambda: rendezvous.look("demo").state == "finished")
    status, out, _ = pipec("top", "demo", "--once", "--every", "0.1")
    assert status == 0, out
    for words in ("#1", "#2", "when slow", "records/s", "finished", "Nobody waits", "disk → host", "host → ring",
                  "ring → training loops"):
        assert words in out, out
    text = urllib.request.urlopen(address, timeout=PATIENT).read().decode()
    assert f'pipec_rows_total{{server="demo"}} {2 * ROWS}.0' in text
    assert text.count(f"}} {ROWS}.0") >= 2 and text.count("pipec_consumer_taken_total{") == 2
    read = next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("pipec_read_total{"))
    assert read >= os.path.getsize("rows.npz")
    assert address.startswith("http://127.0.0.1:")
    port = int(address.split(":")[2].split("/")[0])       # on loopback, and nowhere else
    listening = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there = [local for local, _, state in listening if local.endswith(f":{port:04X}") and state == "0A"]
    assert there == [f"0100007F:{port:04X}"]


def test_an_evening_of_a_server(serve, pipec):
    served = serve("train.pipe", "--name", "demo", "--wait-for", "2", "--epochs", "2", "--metrics", "0")
    first = attach("demo", as_="numpy", batch_size=7)
    served.says("attached  #1")
    status, out, _ = pipec("ps")
    assert status == 0 and "waiting" in out and "demo" in out and str(served.process.pid) in out
    assert "`demo` waits: 1 of 2 consumers are here that the server waits for" in out
    assert "It waits: 1 of 2 consumers" in pipec("top", "demo", "--once", "--every", "0.1")[1]
    second = attach("demo", as_="numpy", fields=["y"])
    orders = []
    for _ in range(2):
        batches = [b for b in first]
        assert [len(b.x) for b in batches] == [7] * 28 + [4]
        order = np.concatenate([b.x for b in batches])
        assert sorted(order) == list(range(ROWS))
        others = [b.y for b in second]
        assert (np.concatenate(others) == 2 * order).all()
        orders.append(order.tolist())
        if len(orders) == 1:
            watched(pipec, served.says("metrics").split()[-1])
    assert orders[0] != orders[1]
    for loader in (first, second):
        with pytest.raises(DataError, match="E0833"):
            next(iter(loader))
        loader.close()
    assert served.ends() == 0
    assert sum("detached" in line for line in served.lines) == 2 and "stopped" in served.lines[-1]
    assert pipec("ps")[1].startswith("no servers")


@pytest.mark.parametrize("how", ["term", "stop"])
def test_it_delivers_what_is_there_and_ends(serve, pipec, how):
    served = serve("train.pipe", "size=4")
    loader = attach("train", as_="numpy", batch_size=10)
    batches = iter(loader)
    seen = next(batches).x.tolist()
    until(lambda: rendezvous.look("train").rows >= ROWS)  # all of the epoch is there
    if how == "term":
        served.process.send_signal(signal.SIGTERM)
    else:
        stopped = threading.Thread(target=lambda: seen.append(pipec("stop", "train")[0]))
        stopped.start()
    labels = list(seen[:10])
    with pytest.raises(DataError, match="E0834"):
        while True:
            for batch in batches:
                labels += batch.x.tolist()
            batches = iter(loader)
    loader.close()
    assert served.ends() == 0
    if how == "stop":
        stopped.join(PATIENT)
        assert seen[10:] == [0]
    assert sorted(labels[:ROWS]) == list(range(ROWS))


def test_a_named_server_that_is_killed_is_served_again(serve, pipec):
    """In the middle of an epoch: each loop is told where, and goes on there at the next server, which replaces the socket."""
    arguments = ("train.pipe", "--name", "demo", "--wait-for", "2")
    served = serve(*arguments)
    loaders = [attach("demo", as_="numpy", batch_size=size) for size in (7, 16)]
    seen, iterators = [[], []], [iter(loader) for loader in loaders]
    for labels, batches in zip(seen, iterators, strict=True):
        for _ in range(3):
            labels += next(batches).x.tolist()
    served.process.kill()
    served.process.wait()
    for labels, batches, loader in zip(seen, iterators, loaders, strict=True):
        with pytest.raises(DataError, match="E0807: the producer is gone") as told:
            while True:
                for batch in batches:
                    labels += batch.x.tolist()
                batches = iter(loader)
        assert told.value.epoch * ROWS + told.value.position == len(labels)
    with pytest.raises(DataError, match=r"E0830: .*it was killed, and its socket doesn't answer any more"):
        attach("demo")
    assert pipec("ps")[1].startswith("no servers")
    serve(*arguments)
    epochs = max(map(len, seen)) // ROWS + 2              # what was in the ring was still delivered
    threads = [threading.Thread(target=rest_of, args=(*pair, epochs)) for pair in zip(loaders, seen, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT)
        assert not thread.is_alive()
    with pipec_open("train.pipe", as_="numpy") as alone:
        order = [x for _ in range(epochs) for b in alone for x in b.x.tolist()]
    assert seen == [order, order]


def rest_of(loader, labels, epochs):
    with loader:
        while loader.state_dict()["epoch"] < epochs:
            labels += [x for b in loader for x in b.x.tolist()]


def test_a_port_that_is_none(pipec):
    status, _, err = pipec("serve", "train.pipe", "--metrics", "99999")
    assert status == 1 and "E0836" in err and "port 99999 of 127.0.0.1 can't be used: there is no such port" in err


def test_what_stands_above_share_is_the_servers(serve, folder):
    """Another program may stand below it, where the lines above are the same, in whatever file and place."""
    serve("train.pipe", "--name", "demo", "--wait-for", "2", "size=4")
    with pytest.raises(Exception, match="E0702"):
        attach("demo", size=6)
    text = PROGRAM.replace("x * 2", "x * 3").replace("param size", "# mine\nparam size")
    (folder / "mine.pipe").write_text(text.replace("  shuffle()\n", ""))
    with pytest.raises(DataError, match=r"E0835: the lines above `share\(\)` of `mine.pipe` aren't those"):
        attach("demo", program="mine.pipe")
    (folder / "mine.pipe").write_text(text)
    with attach("demo", as_="numpy", program="mine.pipe") as mine, attach("demo", as_="numpy") as loader:
        own, first = next(iter(mine)), next(iter(loader))
        assert first.small.shape == (32, 4, 4) and (own.x == first.x).all()
        assert (own.y == 3 * first.x).all() and (first.y == 2 * first.x).all()


@needs_compiler
def test_a_server_for_loaders_on_devices(serve, folder, monkeypatch):
    """Rows are as narrow as devices want them; a consumer on the CPU gets the same values, in its own lines or the server's."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    text = PROGRAM.replace("emit small", "emit big").replace("batch(batch_size)", "batch(1000)").replace(
        "  share()", "  big = [f32(img[i, j]) * 0.5 + f32(i) for i, j]\n  share()")
    (folder / "big.pipe").write_text(text)
    serve("big.pipe", "--device", "cuda", "--wait-for", "3")
    with (attach("big", as_="cupy") as far, attach("big", as_="numpy") as near,
          attach("big", as_="numpy", program="big.pipe") as own):
        for loader in (far, near, own):
            assert [c.dtype for c in loader.plan.rows if c.name == "big"] == ["u8"]
        first, second, third = (next(iter(loader)) for loader in (far, near, own))
        expected = np.zeros((ROWS, 8, 8), np.float32) + np.arange(8, dtype=np.float32)[:, None]
        assert type(first.big) is not np.ndarray
        for found in (first.big.get(), second.big, third.big):
            assert found.dtype == np.float32 and (found == expected).all()


def test_names(serve, pipec, monkeypatch):
    for command in (["stop", "nobody"], ["top", "nobody"]):
        status, _, err = pipec(*command)
        assert status == 2 and "there is no server `nobody`" in err and "pipec ps" in err
        status, _, err = pipec(command[0], "no/name")
        assert status == 2 and "letters, digits" in err
    status, _, err = pipec("top")
    assert status == 2 and "there are no servers" in err
    with pytest.raises(DataError, match="E0830: there is no server `nobody`; there are none"):
        attach("nobody")
    served = serve("train.pipe", "--name", "demo")
    with pytest.raises(DataError, match=r"E0830: .*these are there: demo"):
        attach("nobody")
    status, _, err = pipec("serve", "train.pipe", "--name", "demo")
    assert status == 2 and "there is a server `demo` already" in err and "pipec stop demo" in err
    status, _, err = pipec("serve", "train.pipe", "--name", "no/name")
    assert status == 2 and "letters, digits" in err
    monkeypatch.setattr(servecommands, "STOP_SECONDS", 1)
    monkeypatch.setattr(rendezvous.look, "__defaults__", (1,))
    pid = str(served.process.pid)
    served.process.send_signal(signal.SIGSTOP)            # or a process that hangs
    assert [line.split() for line in pipec("ps")[1].splitlines()[1:]] == [["demo", pid, "no", "answer"]]
    status, _, err = pipec("top", "demo", "--once")
    assert status == 2 and f"`demo`, process {pid}, gives no answer: it hangs, or is of another version" in err
    status, _, err = pipec("stop", "demo")
    assert status == 2 and f"`demo` hasn't ended after 1 seconds; it is process {pid}: `kill -9 {pid}`" in err


def test_too_little_memory(pipec, monkeypatch):
    monkeypatch.setattr(layout, "available", lambda: Room(33 << 20, "control group /job with a limit of 34.6 MB"))
    status, _, err = pipec("serve", "train.pipe", "batch_size=100000")
    assert status == 1 and "E0809" in err and "not enough memory" in err and "limit of 34.6 MB" in err
    assert not os.listdir(os.environ["PIPEC_RUNTIME"]) if os.path.exists(os.environ["PIPEC_RUNTIME"]) else True


@pytest.mark.parametrize("width", [80, 160])
def test_a_page_of_top_is_not_cut(width):
    slow = Member(1, 4_194_304, "train_resnet.py", "wait", (12, 1_281_167), 131_072, 10_000, 0, 0.0, 9.0, 10.0)
    now = Report("imagenet", 77, "train.pipe", "running", 10.0, 12, 1_281_167, 20_000, 3_011_000_000, 9, 10, 1 << 30, 9.0,
                 (slow, replace(slow, number=2, blocked=0.0, waited=9.0)), 0, Counts({}), (), 2_000_000_000)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(now, None, width))
    text = console.export_text()
    assert "…" not in text and ("process" in text.split("consumer")[1]) == (width == 160)
    for words in ("1,281,167", "131,072", "90 %", "disk → host", "200.0 MB/s", "100,000", "301.1 MB/s", "150,550",
                  "#1 train_resnet.py holds the others back."):
        assert words in text, text
