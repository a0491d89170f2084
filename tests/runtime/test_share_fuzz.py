"""Noise on a server's socket and in control pages: whoever makes it is dropped and counted, nobody else notices."""
from __future__ import annotations

import array
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pipec import attach
from pipec.compiler.compile import plan_for
from pipec.runtime import rendezvous
from pipec.runtime.memory import PAGE, Mapping, create
from pipec.runtime.messages import Ask, Attach, Channel, Gone, Group, Join, Look, Open, Seek, Stop, Welcome
from pipec.runtime.wire import wire_version

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from served import consumer, layout_of, report, serving

VERSION = wire_version()
PEERS = int(os.environ.get("PIPEC_FUZZ", "250"))


pytestmark = pytest.mark.usefixtures("runtime")


def framed(message):
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4, "little") + data


def some_message(rng):
    number = rng.choice([0, 1, -1, 1 << 62, -(1 << 63)])
    return rng.choice([
        Look(), Ask(), Attach(VERSION, "x"), Attach("99", "x" * 5000), Attach(VERSION, "y", "never"), Join(number),
        Join(1, "now", (number, number, number)), Join(2, "yesterday"), Join(3, group=Group("g", 2, 5, number, number)),
        Seek(1, 0, 0, 0), {"type": "Join"}, [1, 2], Open(b"", layout_of(fakes.plan(rows=9, width=64)), "os:system", {}),
    ])


def some_fds(rng):
    kind = rng.choice(["none", "page", "small", "pipe", "zero", "many"])
    match kind:
        case "page":
            return [create("control", PAGE)]
        case "small":
            return [create("control", 100)]
        case "pipe":
            return list(os.pipe())
        case "zero":
            return [os.open("/dev/zero", os.O_RDWR)]
        case "many":
            return [create("control", PAGE) for _ in range(12)]
    return []


def send(sock, data, fds=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights)


def noise(rng, name):
    """One peer that says what it shouldn't."""
    sock = rendezvous.connect(name)
    assert sock is not None
    fds = []
    with sock:
        try:
            for _ in range(rng.randint(1, 4)):
                match rng.randrange(5):
                    case 0:
                        data = rng.randbytes(rng.randint(1, 300))
                    case 1:
                        data = (1 << rng.randint(20, 31)).to_bytes(4, "little") + rng.randbytes(50)
                    case 2:
                        data = framed(some_message(rng))[: rng.randint(1, 40)]
                    case 3:
                        data = bytearray(framed(some_message(rng)))
                        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                    case _:
                        data = framed(some_message(rng))
                got = some_fds(rng)
                fds += got
                send(sock, bytes(data), got)
        except OSError:
            pass
    for fd in fds:
        os.close(fd)


def broken_page(rng, name):
    """A member whose control page says what can't be."""
    sock = rendezvous.connect(name)
    channel = Channel(sock)
    control = create("control", PAGE)
    try:
        channel.send(Attach(VERSION, "liar"), (control,))
        assert isinstance(channel.receive(wait=True), Welcome)
        channel.send(Join(1, rng.choice(["now", "epoch"])))
        page = Mapping(control, 0, PAGE, double=False, write=True)
        words = np.frombuffer((memory_at(page.address)), np.int64)
        for _ in range(20):
            words[rng.randrange(0, PAGE // 8, 8)] = rng.choice([1, -1, rng.getrandbits(62), 5])
            time.sleep(0.002)
        del words
        page.close()
    except Gone:
        pass
    finally:
        channel.close()
        os.close(control)


def memory_at(address):
    import ctypes

    return (ctypes.c_char * PAGE).from_address(address)


def test_noise_harms_nobody():
    rng = random.Random(7)
    with serving(plan=fakes.plan(rows=300, width=64), most=8) as server:
        steady = consumer(server, 8)
        leave, seen, problems = threading.Event(), [], []

        def reads():
            try:
                while not leave.is_set():
                    for batch in steady:
                        seen.extend(batch.label.tolist())
            except BaseException as error:
                problems.append(error)

        reader = threading.Thread(target=reads)
        reader.start()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(PEERS):
            assert not problems, problems
            (noise if rng.random() < 0.8 else broken_page)(rng, server.settings.name)
        length = len(seen)
        # it goes on, and the liars are gone
        fakes.until(lambda: problems or (len(report(server).members) == 1 and len(seen) >= length + 900))
        assert not problems, problems
        assert report(server).rejected > PEERS // 10
        assert any("released of" in line or "detached" in line for line in server.lines)
        leave.set()
        reader.join(fakes.PATIENT)
        assert not reader.is_alive() and not problems
        assert seen == [1000 * (k // 300) + k % 300 for k in range(len(seen))]
        fakes.until(lambda: len(os.listdir("/proc/self/fd")) <= before + 4)
        steady.close()


def test_who_says_nothing_is_dropped(monkeypatch):
    from pipec.runtime import server as servers

    monkeypatch.setattr(servers, "HELLO_SECONDS", 0.3)
    with serving(plan=fakes.plan(rows=30, width=64)) as server:
        with rendezvous.connect(server.settings.name) as sock:
            assert sock.recv(1) == b""
        monkeypatch.setattr(servers, "HELLO_SECONDS", fakes.PATIENT)   # who asks here may be slow
        assert report(server).rejected == 1


def test_anybody_of_this_user_may_look_and_stop():
    with serving(plan=fakes.plan(rows=30, width=64)) as server:
        sock = rendezvous.connect(server.settings.name)
        channel = Channel(sock)
        channel.send(Look())
        assert channel.receive(wait=True).name == server.settings.name
        channel.send(Stop())
        server.thread.join(fakes.PATIENT)
        assert not server.thread.is_alive()
        channel.close()


def test_kernels_that_a_server_sends_are_not_run(tmp_path):
    """Whatever it says they are: who attaches has its own, from its cache or from the program's file."""
    np.savez(tmp_path / "rows.npz", x=np.arange(30))
    (tmp_path / "train.pipe").write_text(
        f'schema Row\n  x: i64\n\npipeline train\n  from npz("{tmp_path}/rows.npz") as Row\n  share()\n  batch(4)\n'
        "  y = x * 2\n  emit y\n")
    plan = plan_for(str(tmp_path / "train.pipe"), {}, None)
    assert plan.kernels
    body = f"    open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    theirs = tuple(msgspec.structs.replace(k, text=k.text.split("\n", 1)[0] + "\n" + body) for k in plan.kernels)
    with serving(plan=fakes.plan(rows=30, width=64), name="liar") as server:
        server.encoded = msgspec.msgpack.encode(msgspec.structs.replace(plan, kernels=theirs))
        with attach("liar", as_="numpy") as loader:
            assert loader.plan.kernels == plan.kernels != theirs
    assert not (tmp_path / "ran").exists()
