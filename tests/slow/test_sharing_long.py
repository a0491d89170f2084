"""The proofs of sharing at full length: stops of 30 seconds, storms, much noise, a batch kept for 1,000 steps, a
thousand runs of the model."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parent.parent / "runtime"
sys.path.insert(0, str(RUNTIME))
import fakes  # noqa: E402
from served import consumer, report, serving, storm  # noqa: E402
from test_share_processes import PLAN, Trainer, epochs  # noqa: E402
from test_sharing import epoch_of, together  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when_slow", ["wait", "drop", "skip"])
def test_stopped_for_30_seconds(tmp_path, when_slow):
    with serving(plan=fakes.plan(**PLAN), most=8, wait_for=2, patience=1e6) as server:
        stopped = Trainer(tmp_path, name=server.settings.name, batch=8, when_slow=when_slow)
        other = Trainer(tmp_path, name=server.settings.name, batch=5, gate=str(tmp_path / "gate"))
        stopped.reaches(16)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        (tmp_path / "gate").touch()                       # only now, or it might overtake the other one before
        server.writer.readers.patience = 5                        # nor is it sent away before
        try:
            time.sleep(30)
            if when_slow == "wait":
                assert other.process.poll() is None and len(other.labels()) < PLAN["rows"]
                member = next(m for m in report(server).members if m.pid == stopped.process.pid)
                assert member.blocked > 20
            else:
                assert other.process.poll() == 0 and other.ends() == epochs(1)
        finally:
            os.kill(stopped.process.pid, signal.SIGCONT)
        seen = stopped.ends()
        assert other.ends() == epochs(1)
        match when_slow:
            case "wait":
                assert seen == epochs(1) and not stopped.errors()
            case "drop":
                assert "E0832" in stopped.errors()[0] and seen == epochs(1)[: len(seen)]
            case "skip":
                assert stopped.lines()[-1] == {"end": PLAN["rows"] - len(seen)} and seen == sorted(set(seen))
                assert len(seen) < PLAN["rows"]


@pytest.mark.timeout(300)
def test_a_lock_held_for_five_seconds(tmp_path):
    with serving(plan=fakes.plan(**PLAN), most=8, wait_for=2) as server:
        busy = Trainer(tmp_path, name=server.settings.name, batch=8, hold=5.0)
        other = Trainer(tmp_path, name=server.settings.name, batch=8)
        assert busy.ends() == other.ends() == epochs(1)


@pytest.mark.timeout(300)
def test_500_come_and_go_in_a_minute():
    with serving(plan=fakes.plan(rows=300, width=64, slow=0.0005), most=8) as server:
        started = time.monotonic()
        storm(server, 500)
        assert time.monotonic() - started < 60


@pytest.mark.timeout(300)
@pytest.mark.parametrize("as_", ["numpy", "torch"])
def test_a_batch_kept_for_a_thousand_steps(as_):
    with serving(plan=fakes.plan(rows=900, width=30_011), most=8, wait_for=2) as server:
        keeper, other = consumer(server, 8, as_=as_), consumer(server, 8)

        def keeps():
            kept, steps = None, 0
            while steps < 1001:
                for batch in keeper:
                    if kept is None:
                        kept, copy = batch, batch.image[:].clone() if as_ == "torch" else batch.image.copy()
                    steps += 1
                    assert steps % 50 or bool((kept.image == copy).all())
            keeper.close()
            return bool((kept.image == copy).all())

        kept, *_ = together([keeps, lambda: [epoch_of(other, 30_011) for _ in range(9)] and other.close()])
        assert kept


def long(*arguments, **environment):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=0", *arguments]
    done = subprocess.run(command, cwd=RUNTIME, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.timeout(600)
def test_much_noise():
    long("test_share_fuzz.py", "-k", "noise", PIPEC_FUZZ="4000")


@pytest.mark.timeout(3600)
def test_a_thousand_runs_of_the_model():
    long("test_ring_model.py", PIPEC_MODEL="1000")


@pytest.mark.timeout(600)
def test_tensorsocket_beside_ours():
    """What it loses and repeats, in the cases of tests/runtime/test_share_cases.py. Needs an interpreter that has it."""
    python = os.environ.get("PIPEC_TENSORSOCKET")
    if not python:
        pytest.skip("PIPEC_TENSORSOCKET=… is a python with tensorsocket 0.0.5")
    done = subprocess.run([sys.executable, "-m", "benchmarks", "share", "--only", "deliveries", "--python", python],
                          cwd=RUNTIME.parents[1], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if "TensorSocket: " in line and "batches of" in line]
    assert len(lines) == 4 and all("pipec: all 320, in order" in line for line in lines)
    assert "256 of 320, the last 64 are lost" in lines[0] and all("wrong from row 60 on" in line for line in lines[1:])
