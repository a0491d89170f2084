"""A training process for tests: reads a shared stream and writes a line for each batch: seconds, then labels.

Options are JSON: see `main`. What goes wrong is written as a line, too, and iterating goes on after it.
"""
from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import fakes
import numpy as np
from pipec.runtime.errors import DataError
from pipec.runtime.loader import Loader
from pipec.runtime.server import Settings
from pipec.runtime.session import Session
from pipec.runtime.sharing import Server, Shared, Start
from served import consumer, layout_of, ranked


def shared(name, plan, batch, linger, rank):
    """As `pipec.open(share=True)`: whoever comes first starts the server."""
    layout = layout_of(plan, 32)
    settings = Settings(name=name, engine="fakes:Engine", linger=linger, fresh=True)
    stream = Shared(Server(name, Start(plan, layout, settings)), label="trainer", writable=False)
    stream.own = lambda: Session(plan, layout, settings.engine, {"threads": 1}, "process", writable=False)
    stream.connect()
    below = fakes.below(plan, batch)
    made = Loader(plan, as_="numpy", stream=stream, below=below, ranks=ranked(stream, rank))
    stream.ask_for("epoch", None, together=True)
    return made


def wait_for(gate):
    """Until there is this file, or whoever started us has gone."""
    parent = os.getppid()
    while not os.path.exists(gate):
        if os.getppid() != parent:
            sys.exit("nobody opens the gate")
        time.sleep(0.01)


def spin(seconds):
    """Hold the interpreter lock: one call of C that never lets go."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        sum(range(3_000_000))


def main(name, ledger, plan, batch=32, epochs=1, when_slow="wait", share=False, linger=5.0, hold=0.0, fork=False,
         state=None, errors=3, keep=0, stop_at=None, start=None, gate=None, gate_at=1, rank=None):
    """`start`: a file that has to be there before the first batch; `gate`: and one to go on after `gate_at` records.
    `stop_at`: records after which it writes its state and stays as it is. `fork`: with a child that holds what its parent
    had until there is the file `gate`. `rank`: (which, of how many)."""
    plan = fakes.plan(**plan)
    width = plan.rows[0].dims[0]
    loader = shared(name, plan, batch, linger, rank) if share else consumer(
        name, batch, when_slow=when_slow, plan=plan, state=state, rank=rank)
    if fork and os.fork() == 0:
        fakes.until(lambda: os.path.exists(gate))
        os._exit(0)
    kept = []
    done = count = seen = 0
    with open(ledger, "w", buffering=1) as out:
        if start is not None:
            loader._box.first()                           # it has its place
        print("ready", file=out)
        if start is not None:
            wait_for(start)
        while done < epochs:
            try:
                for b in loader:
                    for label, image in zip(b.label.tolist(), b.image, strict=True):
                        expected = fakes.content(*divmod(label, 1000), width)
                        assert np.array_equal(image[::61], expected[::61]), label
                    print(json.dumps([time.time(), b.label.tolist()]), file=out)
                    kept = [*kept, (b, b.image.copy())][-keep:] if keep else []
                    count, seen = count + 1, seen + len(b.label)
                    if stop_at is not None and seen >= stop_at:
                        print(json.dumps({"state": loader.state_dict()}), file=out)
                        wait_for("/nothing/opens/it")
                    if gate is not None and seen >= gate_at:
                        wait_for(gate)
                    if hold and count == 2:
                        spin(hold)
                done += 1
            except DataError as error:
                print(json.dumps({"error": str(error), "state": loader.state_dict()}), file=out)
                errors -= 1
                if not errors or error.code in ("E0831", "E0832", "E0833", "E0834"):
                    break
        for b, copy in kept:
            assert np.array_equal(b.image, copy)
        print(json.dumps({"end": loader.stats()["lost"]}), file=out)
    loader.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
