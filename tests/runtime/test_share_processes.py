"""Real processes around one stream: killed, stopped, forked, starving for the lock; servers that die and come back."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from pipec.runtime import rendezvous
from pipec.runtime.errors import DataError
from served import consumer, report, serving, storm

TRAINER = Path(__file__).parent / "trainer.py"
PLAN = {"rows": 400, "width": 3001}


pytestmark = pytest.mark.usefixtures("runtime")


class Trainer:
    """A process of trainer.py and its ledger."""

    number = 0

    def __init__(self, tmp_path, **options):
        Trainer.number += 1
        self.path = tmp_path / f"ledger-{Trainer.number}"
        options = {"plan": PLAN, "ledger": str(self.path), **options}
        self.process = subprocess.Popen([sys.executable, str(TRAINER), json.dumps(options)])

    def lines(self):
        if not self.path.exists():
            return []
        text = self.path.read_text()
        return [json.loads(line) for line in text.split("\n")[1:-1] if line]

    def labels(self):
        return [label for line in self.lines() if isinstance(line, list) for label in line[1]]

    def errors(self):
        return [line["error"] for line in self.lines() if isinstance(line, dict) and "error" in line]

    def state(self):
        return next(line["state"] for line in self.lines() if isinstance(line, dict) and "state" in line)

    def is_ready(self):
        """Wait until it has its place in the stream."""
        fakes.until(lambda: (self.path.exists() and self.path.read_text()) or self.process.poll() is not None)
        assert self.process.poll() is None
        return self

    def reaches(self, count):
        """Wait until it has this many records."""
        def there():
            ended = self.process.poll() is not None       # first, or it might write its last ones and end in between
            labels = self.labels()
            assert len(labels) >= count or not ended, (len(labels), self.errors())
            return len(labels) >= count

        fakes.until(there, lambda: f"{len(self.labels())} records of {count}")
        return self

    def ends(self):
        assert self.process.wait(fakes.PATIENT) == 0
        return self.labels()

    def kill(self):
        self.process.kill()
        self.process.wait()


def epochs(count, rows=PLAN["rows"]):
    return [1000 * e + k for e in range(count) for k in range(rows)]


@pytest.mark.parametrize("fork", [False, True])
def test_a_killed_consumer_stops_nobody(tmp_path, fork):
    """Also one whose forked child lives on, with its socket and its mappings."""
    gate = tmp_path / "gate"
    with serving(plan=fakes.plan(**PLAN), most=8, wait_for=2) as server:
        victim = Trainer(tmp_path, name=server.settings.name, batch=8, keep=3, stop_at=32, fork=fork, gate=str(gate), gate_at=400)
        other = Trainer(tmp_path, name=server.settings.name, batch=5, epochs=2)
        victim.reaches(32)
        fakes.until(lambda: any(m.blocked and m.pid == victim.process.pid for m in report(server).members))   # others wait
        victim.kill()
        assert other.ends() == epochs(2)
        assert any("process has ended" in line or "has left" in line for line in server.lines)
    gate.touch()


@pytest.mark.parametrize("when_slow", ["wait", "drop", "skip"])
def test_a_stopped_consumer(tmp_path, when_slow):
    with serving(plan=fakes.plan(**PLAN), most=8, wait_for=2, patience=1e6) as server:
        gate = tmp_path / "gate"
        stopped = Trainer(tmp_path, name=server.settings.name, batch=8, when_slow=when_slow)
        other = Trainer(tmp_path, name=server.settings.name, batch=5, gate=str(gate))
        stopped.reaches(16)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        gate.touch()                                      # only now, or it might overtake the other one before
        server.writer.readers.patience = 0.3                      # nor is it sent away before
        try:
            if when_slow == "wait":
                other.reaches(16)
                time.sleep(0.5)
                assert other.process.poll() is None and len(other.labels()) < PLAN["rows"]
            else:
                assert other.ends() == epochs(1)
        finally:
            os.kill(stopped.process.pid, signal.SIGCONT)
        seen = stopped.ends()
        assert other.ends() == epochs(1)
        lost = PLAN["rows"] - len(seen)
        match when_slow:
            case "wait":
                assert seen == epochs(1) and not stopped.errors()
            case "drop":
                assert "E0832" in stopped.errors()[0] and seen == epochs(1)[: len(seen)]
            case "skip":
                assert lost > 0 and stopped.lines()[-1] == {"end": lost} and seen == sorted(set(seen))


def test_a_consumer_that_holds_the_interpreter_lock_loses_nothing(tmp_path):
    with serving(plan=fakes.plan(**PLAN), most=8, wait_for=2) as server:
        busy = Trainer(tmp_path, name=server.settings.name, batch=8, hold=1.5)
        other = Trainer(tmp_path, name=server.settings.name, batch=8)
        assert busy.ends() == other.ends() == epochs(1)


def test_a_shared_server_that_is_killed_is_started_again(tmp_path):
    """Nobody sees an error, nothing is lost or doubled, whoever is ahead."""
    start, killed = tmp_path / "start", tmp_path / "killed"
    trainers = [Trainer(tmp_path, name="auto", share=True, batch=batch, epochs=2, linger=1.0, start=str(start), **gate)
                for batch, gate in ((8, {}), (5, {"gate": str(killed), "gate_at": 100}), (32, {}))]
    for trainer in trainers:
        trainer.is_ready()
    start.touch()
    for trainer in trainers:                              # the slowest one stands still, so none of them comes to the end
        trainer.reaches(100)
    os.kill(rendezvous.look("auto", fakes.PATIENT).pid, signal.SIGKILL)
    killed.touch()
    for trainer in trainers:
        assert trainer.ends() == epochs(2) and not trainer.errors()
    fakes.until(lambda: not rendezvous.names())           # the second one lingers, and ends


def test_a_named_server_that_is_killed_resumes_exactly(tmp_path):
    plan, gate = fakes.plan(**PLAN), tmp_path / "gate"
    with serving(plan=plan, most=8, wait_for=2, name="named") as server:
        trainers = [Trainer(tmp_path, name="named", batch=batch, epochs=2, gate=str(gate), gate_at=60) for batch in (8, 5)]
        for trainer in trainers:
            trainer.reaches(60)
        server.draining = True                            # as if it had gone: what was there is delivered first
        server.wake()
        fakes.until(lambda: server.drain_until is not None)
        gate.touch()
        for trainer in trainers:
            trainer.ends()
    states = [trainer.state() for trainer in trainers]
    with serving(plan=plan, most=8, wait_for=2, name="named"):
        again = [Trainer(tmp_path, name="named", batch=batch, epochs=2 - state["epoch"], state=state)
                 for batch, state in zip((13, 5), states, strict=True)]
        for old, new in zip(trainers, again, strict=True):
            assert old.labels() + new.ends() == epochs(2)


def test_attach_and_detach_again_and_again():
    with serving(plan=fakes.plan(rows=300, width=64, slow=0.0005), most=8) as server:
        storm(server, 60)


def test_many_consumers():
    with serving(plan=fakes.plan(rows=64, width=64), most=8, wait_for=64) as server:
        loaders = [consumer(server, 8) for _ in range(64)]
        iterators = [iter(loader) for loader in loaders]
        for start in range(0, 64, 8):
            for iterator in iterators:
                assert next(iterator).label.tolist() == list(range(start, start + 8))
        for loader in loaders:
            loader.close()


STRANGER = """
import os, socket, sys
os.setgid(12345), os.setuid(12345)
sock = socket.socket(socket.AF_UNIX)
if sys.argv[1] == "serves":
    sock.bind(sys.argv[2])
    sock.listen()
    print("ready", flush=True)
    sys.stdin.read()
else:
    sock.connect(sys.argv[2])
    print(sock.recv(1) == b"")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_another_users_server_and_consumer(monkeypatch):
    """Also where the folder lets them in, as it doesn't: who they are is asked of the kernel."""
    with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:
        os.chmod(open_to_all, 0o777)
        there = os.path.join(open_to_all, "theirs")
        with subprocess.Popen([sys.executable, "-c", STRANGER, "serves", there], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as server:
            assert server.stdout.readline() == "ready\n"
            os.symlink(there, rendezvous.socket_path("x"))
            with pytest.raises(DataError, match=r"E0830: the server `x` is another user's"):
                rendezvous.connect("x")
            server.stdin.close()
        with serving(plan=fakes.plan(rows=30, width=64)) as server:
            before, here = report(server).rejected, os.path.join(open_to_all, "ours")
            os.link(rendezvous.socket_path(server.settings.name), here)
            os.chmod(here, 0o666)
            said = subprocess.run([sys.executable, "-c", STRANGER, "reads", here], capture_output=True, text=True, check=False)
            assert said.stdout == "True\n", said.stderr
            assert report(server).rejected == before + 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_another_users_folder_and_socket(tmp_path, monkeypatch):
    there = tmp_path / "theirs"
    there.mkdir()
    os.chown(there, 12345, 12345)
    monkeypatch.setenv("PIPEC_RUNTIME", str(there))
    with pytest.raises(DataError, match=r"E0830: .*another user's"):
        rendezvous.connect("x")
