"""Consumer and server of different versions: both are told so, whatever has changed in what they say."""
from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from pipec.runtime import rendezvous, sharing, wire
from pipec.runtime.errors import DataError
from pipec.runtime.messages import Attach, Channel, Failed, Look, Stop

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from served import consumer, serving

pytestmark = pytest.mark.usefixtures("runtime")


def module(**names):
    made = ModuleType("made")
    vars(made).update(names)
    return made


def struct(name, *fields):
    return msgspec.defstruct(name, fields)


def test_the_version_changes_with_fields_types_and_words():
    seen = [wire.shape(module(**names)) for names in (
        {"Join": struct("Join", ("number", int))}, {"Join": struct("Join", ("number", str))},
        {"Join": struct("Join", ("number", int), ("when", str, "now"))}, {"Joins": struct("Joins", ("number", int))},
        {"Join": struct("Join", ("number", int)), "HEAD": 64}, {"Join": struct("Join", ("number", int)), "HEAD": 0})]
    assert all(seen.count(one) == 1 for one in seen)
    names = {name for part in (wire.messages, wire.layout, wire.plan) for name, _ in wire.shape(part)}
    assert {"Attach", "Group", "Layout", "Plan", "RunKernel", "RELEASED", "HEAD"} <= names


def test_what_versions_say_to_each_other_stays():
    """These are what tells who is of which version, and ends a server: a change locks older ones out."""
    assert [(kind.__name__, kind.__struct_fields__) for kind in (Attach, Failed, Look, Stop)] == [
        ("Attach", ("version", "label", "when_slow")),
        ("Failed", ("generation", "code", "title", "where", "label", "record", "epoch", "position", "notes")),
        ("Look", ()), ("Stop", ())]


def test_another_version_is_told(monkeypatch):
    with serving(plan=fakes.plan(rows=30, width=64)) as served:
        monkeypatch.setattr(sharing, "wire_version", lambda: "9.9/abc")
        with pytest.raises(DataError, match=r"E0830: .*of another version of pipec.* the consumer of 9.9/abc.*`pipec stop test-"):
            consumer(served)


@pytest.mark.parametrize("first", [{"type": "Enter", "version": 3}, {"type": "Attach", "release": "9.9"}])
def test_who_begins_with_an_unknown_message_is_told(first):
    with serving(plan=fakes.plan(rows=30, width=64)) as served:
        sock = rendezvous.connect(served.settings.name)
        channel = Channel(sock)
        data = msgspec.msgpack.encode(first)
        sock.sendall(len(data).to_bytes(4, "little") + data)
        answer = channel.receive(wait=True)
        assert answer.code == "E0830" and "another version" in answer.title and wire.wire_version() in answer.notes[0]
        channel.close()


def test_a_server_that_answers_with_an_unknown_message():
    sock = rendezvous.listen("older")
    sock.setblocking(True)

    def answers():
        peer, _ = sock.accept()
        with peer:
            peer.recv(1 << 16)
            data = msgspec.msgpack.encode({"type": "Come", "in": 1})
            peer.sendall(len(data).to_bytes(4, "little") + data)
            peer.recv(1)

    thread = threading.Thread(target=answers)
    thread.start()
    with sock, pytest.raises(DataError, match="E0830: the server `older` is of another version of pipec than this consumer"):
        consumer("older", plan=fakes.plan(rows=30, width=64))
    thread.join(fakes.PATIENT)
    assert not thread.is_alive()
