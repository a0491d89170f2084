"""The processes of test_soak.py: a server of the fake engine, and training loops that behave badly.

A training loop checks every record itself: position follows position, epoch follows epoch, from where it joined; what is lost
is counted. Its ledger has a line (JSON) for each thing of note: where it joined, a violation ("wrong"), an error, an end.
"""
from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
import fakes
import numpy as np
import pipec
from pipec.runtime.errors import DataError
from pipec.runtime.server import Server, Settings, run_server
from served import consumer, layout_of

SAYS_EVERY = 1.0                       # seconds
PASSED, DROPPED, GONE = "E0831", "E0832", ("E0807", "E0830")


def serve(name, plan):
    plan = fakes.plan(**plan)
    run_server(Server(plan, layout_of(plan, 64), Settings(name, engine="fakes:Engine", patience=1.0), say=print))


class Wrong(Exception):
    """The stream isn't what it has to be."""


class Loop:
    """One training loop: attaches, checks, keeps batches, breaks off, attaches again."""

    def __init__(self, out, rng, rows, width, program, name, batch, when_slow, join, rate, keep, odd):
        self.out, self.rng, self.rows, self.width, self.program, self.name = out, rng, rows, width, program, name
        self.batch, self.when_slow, self.join, self.rate, self.keep, self.odd = batch, when_slow, join, rate, keep, odd
        self.leaving = False
        self.next = None                                  # the record that has to come, counted over all epochs
        self.seen = self.lost = self.lost_before = 0
        self.kept = []
        self.said = 0.0
        self.loader = None

    def say(self, **what):
        print(json.dumps({"at": time.time(), "pid": self.name, "seen": self.seen, "lost": self.lost, **what}), file=self.out)
        self.said = time.monotonic()

    def attach(self, state=None, join=None):
        join = join or self.join
        self.lost_before = 0
        if self.program is not None:
            self.loader = pipec.open(self.program, share=True, as_="numpy", memory="8MB", batch_size=self.batch,
                                     when_slow=self.when_slow, join=join)
            if state is not None:
                self.loader.load_state_dict(state)
        else:
            self.loader = consumer(self.name, self.batch, join=join, when_slow=self.when_slow,
                                   plan=fakes.plan(rows=self.rows, width=self.width), state=state)
        if state is None:
            self.next = None

    def check(self, batch):
        labels = batch.label.tolist()
        first = divmod(labels[0], 1000)
        first = first[0] * self.rows + first[1]
        if self.next is None:                             # it may have been overtaken before its first record
            joined, self.lost_before = self.loader.joined, self.loader.stats()["lost"]
            if first != joined["epoch"] * self.rows + joined["position"] + self.lost_before:
                raise Wrong(f"record {first} came, it joined at {joined}, {self.lost_before} were lost")
            self.say(joined=first, batch=self.batch, when_slow=self.when_slow, join=self.join)
            self.next = first
        if first != self.next:
            lost = self.loader.stats()["lost"] - self.lost_before
            self.lost += lost
            self.lost_before += lost
            if first - self.next != lost or self.when_slow != "skip":
                raise Wrong(f"record {first} came, {self.next} was to come, {lost} were lost")
        self.next = first + len(labels)
        for k, (label, image) in enumerate(zip(labels, batch.image, strict=True)):
            if label != divmod(first + k, self.rows)[0] * 1000 + (first + k) % self.rows:
                raise Wrong(f"record {first + k} is labelled {label}")
            if not (image[::61] == fakes.content(*divmod(label, 1000), self.width)[::61]).all():
                raise Wrong(f"record {first + k} has other bytes")
        self.seen += len(labels)

    def look_after(self, batch):
        """Keep it for a while; what was kept has to be as it was."""
        if self.keep:
            self.kept.append((batch, np.array(batch.image)))
            if len(self.kept) > self.keep:
                old, copy = self.kept.pop(self.rng.randrange(len(self.kept)))
                if not (old.image == copy).all():
                    raise Wrong("a kept batch has changed")
        if time.monotonic() > self.said + SAYS_EVERY:
            self.say()
        time.sleep(len(batch.label) / self.rate)
        if self.odd and self.rng.random() < 0.002:
            time.sleep(self.rng.random() * 2)

    def epoch(self):
        """False: it left early."""
        for batch in self.loader:
            self.check(batch)
            self.look_after(batch)
            if self.leaving:
                return False
            if self.odd and self.when_slow != "skip" and self.rng.random() < 0.001:   # go on with the next epoch
                self.next = (self.next - 1) // self.rows * self.rows + self.rows
                return False
        return True

    def run(self, state):
        self.attach(state)
        while not self.leaving:
            try:
                self.epoch()
            except DataError as error:
                state = self.loader.state_dict()
                self.say(error=error.code, text=str(error).splitlines()[0])
                if error.code == PASSED:
                    self.loader.close()
                    self.attach(join=self.rng.choice(["epoch", "now"]))
                elif error.code == DROPPED:
                    self.loader.close()
                    self.attach(state)
                else:
                    raise
        self.say(end=True, state=self.loader.state_dict())
        self.loader.close()


def train(name, ledger, seed, rows, width, program=None, batch=32, when_slow="wait", join="epoch", rate=1e9, keep=0, odd=True,
          state=None, first=None):
    with open(ledger, "a", buffering=1) as out:
        loop = Loop(out, random.Random(seed), rows, width, program, name, batch, when_slow, join, rate, keep, odd)
        signal.signal(signal.SIGTERM, lambda *_: setattr(loop, "leaving", True))
        loop.say(begins=True)
        loop.next = first
        try:
            loop.run(state)
        except BaseException as error:
            loop.say(wrong=f"{type(error).__name__}: {error}")
            raise


if __name__ == "__main__":
    {"serve": serve, "train": train}[sys.argv[1]](**json.loads(sys.argv[2]))
