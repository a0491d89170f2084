"""Half an hour (`PIPEC_SOAK` seconds) of training loops that join, stall, leave and are killed at random.

Every loop checks its own ledger, record by record; here it is looked after that nobody hangs, and that memory, fds and
processes stay as they were. A line a minute goes to stdout (`-s`).
"""
from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

RUNTIME = Path(__file__).parent.parent / "runtime"
sys.path.insert(0, str(RUNTIME))
import fakes  # noqa: E402
from pipec.runtime import rendezvous  # noqa: E402

SECONDS = float(os.environ.get("PIPEC_SOAK", "1800"))
SEED = int(os.environ.get("PIPEC_SOAK_SEED", "1"))
ROWS, WIDTH = 700, 3001
LOOPS = 6
SILENCE = 120                          # seconds without a word from a loop that isn't stopped: it hangs
ALLOWED = 6 << 20                      # bytes of private memory that a process may gain
SCRIPT = Path(__file__).parent / "soaking.py"

PROGRAM = """schema Row
  img: u8[3001]
  n: i64
param batch_size = 32
pipeline soak
  from npz("{0}") as Row
  image = [u8((i64(img[i]) + i64(epoch) * 101) % 251) for i]
  label = n + 1000 * i64(epoch)
  share()
  batch(batch_size)
  emit image, label
"""


started = []                           # processes, to be ended whatever happens


def command(what, **options):
    process = subprocess.Popen([sys.executable, str(SCRIPT), what, json.dumps(options)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL)
    started.append(process)
    return process


class Loop:
    """One place for a training process, again and again another one."""

    def __init__(self, number, rng, folder, steady, **options):
        self.rng, self.path, self.steady, self.options = rng, folder / f"ledger-{number}", steady, options
        self.process = None
        self.stopped_until = self.heard = self.due = 0.0
        self.leaving = False
        self.state = None
        self.read = 0
        self.begun = self.killed = self.left = self.stopped = self.resumed = 0
        self.errors, self.lost, self.seen = {}, 0, 0
        self.last = (0, 0)

    def start(self):
        rng = self.rng
        options = dict(self.options, ledger=str(self.path), seed=rng.getrandbits(32), odd=not self.steady)
        options |= {"batch": 32, "rate": 4000, "keep": 3} if self.steady else {
            "batch": rng.choice([1, 3, 7, 8, 32, 33, 64, 100]), "when_slow": rng.choice(["wait", "wait", "drop", "skip"]),
            "join": rng.choice(["epoch", "now"]), "rate": rng.choice([400, 1000, 5000, 1e9]), "keep": rng.choice([0, 0, 1, 6])}
        if self.state is not None and rng.random() < 0.6:
            options |= {"state": self.state, "first": self.state["epoch"] * ROWS + self.state["next"]}
            self.resumed += 1
        self.state = None
        self.process = command("train", **options)
        self.begun += 1
        self.leaving, self.heard = False, time.monotonic()

    def listen(self):
        """Read what the loop has said."""
        with open(self.path, "rb") as file:
            file.seek(self.read)
            data = file.read()
        complete = data.rfind(b"\n") + 1
        self.read += complete
        for line in data[:complete].splitlines():
            told = json.loads(line)
            self.heard = time.monotonic()
            assert "wrong" not in told, (self.path, told)
            if "begins" in told:
                self.last = (0, 0)
            self.seen += told["seen"] - self.last[0]
            self.lost += told["lost"] - self.last[1]
            self.last = (told["seen"], told["lost"])
            if "error" in told:
                self.errors[told["error"]] = self.errors.get(told["error"], 0) + 1
            if "end" in told:
                self.state = told["state"]

    def look_after(self):
        """Whatever is due."""
        now = time.monotonic()
        if self.process is None:
            if self.rng.random() < 0.3:
                self.start()
            return
        if self.path.exists():
            self.listen()
        code = self.process.poll()
        if code is not None:
            assert (code, self.leaving) in ((0, True), (-signal.SIGKILL, True), (-signal.SIGTERM, True)), (self.path, code)
            started.remove(self.process)
            self.process = None
        elif self.stopped_until:
            if now > self.stopped_until:
                os.kill(self.process.pid, signal.SIGCONT)
                self.stopped_until, self.heard = 0.0, now
        else:
            assert now - self.heard < SILENCE, (self.path, "hangs")
            if not self.steady and not self.leaving:
                self.bother()

    def bother(self):
        chance = self.rng.random()
        if chance < 0.010:
            self.process.kill()
            self.leaving, self.killed = True, self.killed + 1
        elif chance < 0.020:
            self.process.terminate()
            self.leaving, self.left = True, self.left + 1
        elif chance < 0.035:
            os.kill(self.process.pid, signal.SIGSTOP)
            self.stopped_until = time.monotonic() + self.rng.choice([0.2, 1, 3, 6])
            self.stopped += 1
            if self.rng.random() < 0.2:                   # and dies so
                self.process.kill()
                self.stopped_until, self.leaving, self.killed = 0.0, True, self.killed + 1

    def go_on(self):
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)

    def end(self):
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if not self.leaving:
                self.process.terminate()
        self.leaving = True
        until = time.monotonic() + SILENCE
        while self.process.poll() is None:
            assert time.monotonic() < until, (self.path, "doesn't leave")
            time.sleep(0.1)
        self.listen()
        self.look_after()


class Figures:
    """Of a process, now and then."""

    def __init__(self):
        self.memory, self.fds, self.threads, self.members = [], [], [], []

    def take(self, pid, members=0):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            self.memory.append(next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss_Anon:")))
            self.fds.append(len(os.listdir(f"/proc/{pid}/fd")))
            self.threads.append(len(os.listdir(f"/proc/{pid}/task")))
            self.members.append(members)

    def growth(self):
        """Bytes from the second tenth to the last."""
        tenth = max(1, len(self.memory) // 10)
        return statistics.median(self.memory[-tenth:]) - statistics.median(self.memory[tenth : 2 * tenth])

    def last(self):
        return f"{self.memory[-1] >> 10} kB, {self.fds[-1]} fds, {self.threads[-1]} threads, {self.members[-1]} consumers" \
            if self.memory else "gone"


def soak(name, loops, pid_of, seconds, kill_server=0.0):
    """Bother everybody for a while. Returns figures of the server and of the steady loop, and how often it was killed."""
    rng = random.Random(SEED + 99)
    server, steady, killed = Figures(), Figures(), 0
    started = sampled = told = time.monotonic()
    progress = (started, 0)
    while (now := time.monotonic()) < started + seconds:
        for loop in loops:
            loop.look_after()
        if loops[0].seen > progress[1]:
            progress = (now, loops[0].seen)
        assert now - progress[0] < SILENCE, "the steady loop got nothing"
        if now > sampled + min(5.0, seconds / 50):
            sampled = now
            report = rendezvous.look(name) if rendezvous.names() else None
            if report is not None:
                server.take(report.pid, len(report.members))
                assert not psutil.Process(report.pid).children() and report.rejected == 0
            steady.take(loops[0].process.pid)
        if kill_server and rng.random() < 0.2 / kill_server and (pid := pid_of()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        if now > told + 60:
            told = now
            print(f"{now - started:6.0f} s: server {server.last()}; steady {steady.last()}, {loops[0].seen:,} records",
                  flush=True)
        time.sleep(0.2)
    return server, steady, killed


def end(loops):
    for loop in loops:                                    # one that stands still holds back those who leave before it
        loop.go_on()
    for loop in loops:
        loop.end()


def tell(loops, server, steady, killed):
    total = {key: sum(getattr(loop, key) for loop in loops) for key in
             ("begun", "killed", "left", "stopped", "resumed", "seen", "lost")}
    errors = {}
    for loop in loops:
        for code, count in loop.errors.items():
            errors[code] = errors.get(code, 0) + count
    print(f"loops: {total}, errors they passed: {errors}; servers killed: {killed}\n"
          f"server: private memory {server.growth() / 1024:+.0f} kB, fds {min(server.fds)}–{max(server.fds)}, "
          f"threads {min(server.threads)}–{max(server.threads)}\n"
          f"steady loop: private memory {steady.growth() / 1024:+.0f} kB, fds {min(steady.fds)}–{max(steady.fds)}, "
          f"{loops[0].seen:,} records", flush=True)
    return errors


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEC_RUNTIME", str(tmp_path / "run"))
    yield tmp_path
    for process in started:
        process.kill()
        process.wait()
    started.clear()


def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.timeout(0)
def test_a_server_and_six_loops(folder):
    plan = {"rows": ROWS, "width": WIDTH}
    process = command("serve", name="soak", plan={**plan, "slow": 0.0001})
    until = time.monotonic() + 60
    while not rendezvous.names():
        assert time.monotonic() < until
        time.sleep(0.05)
    at_first = fds(process.pid)
    loops = [Loop(k, random.Random(100 * SEED + k), folder, k == 0, name="soak", **plan) for k in range(LOOPS)]
    loops[0].start()
    server, steady, _ = soak("soak", loops, lambda: None, SECONDS)
    end(loops)
    errors = tell(loops, server, steady, 0)
    assert set(errors) <= {"E0831", "E0832"} and not loops[0].errors and not loops[0].lost
    assert server.growth() < ALLOWED and steady.growth() < ALLOWED
    assert all(fds <= at_first + 3 * (members + LOOPS) for fds, members in zip(server.fds, server.members, strict=True))
    until = time.monotonic() + 20
    while (report := rendezvous.look("soak")).members or fds(process.pid) > at_first + 2:   # our look's own, and the last run's
        assert time.monotonic() < until, (report.members, fds(process.pid), at_first)
        time.sleep(0.1)
    process.terminate()
    assert process.wait(30) == 0 and not rendezvous.names()


@pytest.mark.timeout(0)
def test_a_shared_stream_whose_server_is_killed(folder):
    """Nobody sees an error: a new server goes on where the loops are."""
    images = np.stack([fakes.content(0, k, WIDTH) for k in range(ROWS)])
    np.savez(folder / "rows.npz", img=images, n=np.arange(ROWS))
    program = folder / "soak.pipe"
    program.write_text(PROGRAM.format(folder / "rows.npz"))
    loops = [Loop(k, random.Random(200 * SEED + k), folder, k == 0, name="", rows=ROWS, width=WIDTH, program=str(program))
             for k in range(LOOPS)]
    loops[0].start()

    def pid():
        found = rendezvous.names()
        report = rendezvous.look(found[0]) if found else None
        return report.pid if report is not None else None

    until = time.monotonic() + 120
    while pid() is None:
        assert time.monotonic() < until
        time.sleep(0.2)
    name = rendezvous.names()[0]
    server, steady, killed = soak(name, loops, pid, SECONDS, kill_server=max(15, SECONDS / 60))
    end(loops)
    errors = tell(loops, server, steady, killed)
    assert set(errors) <= {"E0832"} and not loops[0].errors and not loops[0].lost and killed
    assert steady.growth() < ALLOWED
    until = time.monotonic() + 60
    while rendezvous.names():                             # the last one lingers, and ends
        assert time.monotonic() < until
        time.sleep(0.5)
