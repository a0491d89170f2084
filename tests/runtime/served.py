"""A server of a fake engine in a thread, and its consumers, for tests of sharing."""
from __future__ import annotations

import itertools
import os
import threading
from contextlib import contextmanager

import fakes
from pipec.runtime import rendezvous, sharing
from pipec.runtime import server as servers
from pipec.runtime.layout import plan_layout
from pipec.runtime.loader import Loader
from pipec.runtime.messages import Group
from pipec.runtime.ranks import rank_spec
from pipec.runtime.server import Server, Settings
from pipec.runtime.sharing import Shared

numbers = itertools.count()


def layout_of(plan, most=32, memory=None, chunk=8):
    return plan_layout(plan.rows, most, memory, chunk)


@contextmanager
def serving(layout=None, plan=None, most=32, name=None, **settings):
    """A server in a thread; yields it. `plan`: options of the fake engine, else a plan."""
    plan = plan if plan is not None else fakes.plan()
    name = name or f"test-{os.getpid()}-{next(numbers)}"
    lines = []
    made = Server(plan, layout or layout_of(plan, most), Settings(name, engine="fakes:Engine", **settings), say=lines.append)
    made.lines, made.problem = lines, None

    def run():
        try:
            made.serve()
        except BaseException as error:
            made.problem = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    made.thread = thread
    try:
        yield made
    finally:
        servers.DRAIN_SECONDS, whole = 0.5, servers.DRAIN_SECONDS   # nobody reads any more
        made.stop()
        thread.join(fakes.PATIENT)
        servers.DRAIN_SECONDS = whole
        assert not thread.is_alive()
        assert made.problem is None, made.problem


def consumer(server, batch=32, state=None, join="epoch", when_slow="wait", plan=None, ask=True, as_="numpy", rank=None):
    """A loader of a server's stream. `rank`: (which, of how many)."""
    name = server if isinstance(server, str) else server.settings.name
    plan = plan if plan is not None else server.plan
    stream = Shared(sharing.Server(name), label="test", when_slow=when_slow, join=join, writable=as_ == "torch")
    stream.connect(fakes.PATIENT)
    below = fakes.below(plan, batch)
    made = Loader(plan, as_=as_, stream=stream, below=below, ranks=ranked(stream, rank))
    if state is not None:
        made.load_state_dict(state)
    if ask:
        stream.ask_for(join, None if state is None else made.place(), together=True)
    return made


def ranked(stream, rank):
    """A rank's specification, as its stream has to know it."""
    spec = rank_spec(*rank) if rank else rank_spec()
    stream.group = Group(spec.group, spec.here, spec.member, spec.members)
    return spec


def report(server):
    return rendezvous.look(server.settings.name, fakes.PATIENT)


def storm(server, guests):
    """Beside one that stays, so many come and go, and leave nothing."""
    steady = consumer(server, 8)
    leave, seen = threading.Event(), []

    def reads():
        while not leave.is_set():
            for batch in steady:
                seen.extend(batch.label.tolist())
                if leave.is_set():
                    return

    reader = threading.Thread(target=reads)
    reader.start()
    before = len(os.listdir("/proc/self/fd"))
    for k in range(guests):
        guest = consumer(server, 8, join="now")
        if k % 3:
            next(iter(guest))
        guest.close()
    leave.set()
    reader.join(fakes.PATIENT)
    rows = server.plan.above[0].start.options["rows"]
    assert not reader.is_alive() and seen == [1000 * (k // rows) + k % rows for k in range(len(seen))]
    fakes.until(lambda: len(report(server).members) == 1)     # it may still read that the last one left
    assert len(os.listdir("/proc/self/fd")) <= before + 8
    steady.close()
