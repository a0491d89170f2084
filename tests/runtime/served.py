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
        thread.join(20)
        servers.DRAIN_SECONDS = whole
        assert not thread.is_alive()
        assert made.problem is None, made.problem


def consumer(server, batch=32, state=None, join="epoch", when_slow="wait", plan=None, ask=True, as_="numpy"):
    """A loader of a server's stream."""
    name = server if isinstance(server, str) else server.settings.name
    plan = plan if plan is not None else server.plan
    stream = Shared(sharing.Server(name), label="test", when_slow=when_slow, join=join, writable=as_ == "torch")
    stream.connect(10)
    below = fakes.Below(plan)
    below.batch_size = batch
    made = Loader(plan, as_=as_, stream=stream, below=below)
    if state is not None:
        made.load_state_dict(state)
    if ask:
        stream.ask_for(join, None if state is None else made.place())
    return made


def report(server):
    return rendezvous.look(server.settings.name)
