"""`pipec top`: what a server does right now, told again and again: rate, ring, consumers, and who holds whom back."""
from __future__ import annotations

import argparse
import os
import sys
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..runtime.limits import show_size
from ..runtime.messages import Member, Report
from ..runtime.rendezvous import check_name, look, process_of, reports
from . import UsageError

WIDE = 110                             # columns that a page needs where all is shown
WAITS = 0.05                           # of the time: less isn't worth a word


def top(arguments: argparse.Namespace) -> int:
    """Show a server until it ends or Ctrl-C."""
    name = arguments.name or _only()
    width = None if sys.stdout.isatty() else 160          # a page for a file isn't cut where a terminal would end
    console = Console(width=width, no_color=arguments.plain or "NO_COLOR" in os.environ, highlight=False)
    before, now = None, _look(name)
    if arguments.once or not console.is_terminal:
        time.sleep(arguments.every)
        before, now = now, _look(name)
        console.print(screen(now, before, console.width))
        return 0
    with Live(screen(now, None, console.width), console=console, auto_refresh=False, screen=True) as live:
        while (after := look(name)) is not None:
            before, now = now, after
            live.update(screen(now, before, console.width), refresh=True)
            time.sleep(arguments.every)
    console.print(f"`{name}` has ended")
    return 0


def _only() -> str:
    found = [r.name for r in reports()]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError("there are no servers: `pipec serve FILE --name NAME` starts one")
    raise UsageError(f"there are several servers, name one of them: {', '.join(found)}")


def _look(name: str) -> Report:
    try:
        report = look(check_name(name))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if report is not None:
        return report
    if (pid := process_of(name)) is not None:
        raise UsageError(f"`{name}`, process {pid}, gives no answer: it hangs, or is of another version of pipec; "
                         f"`pipec stop {name}` ends it")
    raise UsageError(f"there is no server `{name}`; `pipec ps` lists those there are")


def screen(now: Report, before: Report | None, width: int = WIDE) -> RenderableType:
    """A report as a page of so many columns; rates since the one before."""
    parts: list[RenderableType] = []
    for part in (_head(now, before), _borders(now, before), _members(now, before, width)):
        parts += [part, Text()]
    parts += [Text(line) for line in in_words(now, before).splitlines()]
    bad = now.counts.bad[-5:]
    if bad:
        parts += [Text(), Text("bad records", style="bold")]
        parts += [Text(f"  epoch {epoch}  {record}: {reason}") for epoch, record, reason in bad]
    return Group(*parts)


def rate(now: float, before: float, seconds: float) -> str:
    return f"{(now - before) / seconds:,.0f}" if seconds > 0 else "–"


def _head(now: Report, before: Report | None) -> Table:
    table = Table.grid(padding=(0, 3))
    since = now.seconds - before.seconds if before else now.seconds
    rows, waited = (before.rows, before.waited) if before else (0, 0.0)
    bad = sum(now.counts.bad_counts.values())
    table.add_row(f"[bold]{now.name}[/]", now.program, f"process {now.pid}", now.state)
    table.add_row("epoch", f"{now.epoch}, position {now.position:,}", "records/s", rate(now.rows, rows, since))
    waits = min(1.0, (now.waited - waited) / since) if since > 0 else 0.0
    table.add_row("ring", f"{100 * now.fill // max(1, now.capacity)} % of {now.capacity:,} records, {show_size(now.total)}",
                  "producer waits", f"{100 * waits:.0f} %")
    table.add_row("bad records", f"{bad:,}", "refused peers", str(now.rejected))
    return table


def _borders(now: Report, before: Report | None) -> Table:
    """What crosses each border, as `pipec explain` names them. A consumer takes views: its bytes aren't copied."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in ("border", "bytes/s", "a record"):
        table.add_column(name, justify="left" if name == "border" else "right")
    since = now.seconds - before.seconds if before else now.seconds
    old = {m.number: m.taken for m in before.members} if before else {}
    taken = sum(m.taken - old.get(m.number, 0) for m in now.members)
    per = now.bytes / now.rows if now.rows else 0.0
    read, written = (before.read or 0, before.bytes) if before else (0, 0)
    for name, grown, each in (("disk → host", None if now.read is None else now.read - read, (now.read or 0) / max(1, now.rows)),
                              ("host → ring", now.bytes - written, per),
                              (f"ring → training loop{'s' * (len(now.members) != 1)}", taken * per, per)):
        speed = f"{show_size(int(grown / since))}/s" if grown is not None and since > 0 else "–"
        table.add_row(name, speed, f"{each:,.0f}" if grown is not None and now.rows else "–")
    return table


def _members(now: Report, before: Report | None, width: int) -> Table:
    """Where there is no room, what says least is left out."""
    names = ["consumer", "process", "records/s", "epoch", "position", "behind", "waits", "holds back", "lost", "when slow"]
    if width < WIDE:
        names.remove("process")
        if all(m.when_slow == "wait" for m in now.members):
            names.remove("when slow")
    table = Table(box=None, pad_edge=False, padding=(0, 2 if width >= WIDE else 1))
    for name in names:
        table.add_column(name, justify="left" if name in ("consumer", "when slow") else "right", no_wrap=name != "consumer")
    old = {m.number: m for m in before.members} if before else {}
    for m in now.members:
        was = old.get(m.number)
        seconds = m.seconds - was.seconds if was else m.seconds
        epoch, position = m.place if m.place else ("–", None)
        told = {"consumer": f"#{m.number} {m.label}", "process": str(m.pid),
                "records/s": rate(m.taken, was.taken if was else 0, seconds), "epoch": str(epoch),
                "position": "–" if position is None else f"{position:,}", "behind": f"{m.lag:,}",
                "waits": share(m, was, "waited"), "holds back": share(m, was, "blocked"), "lost": f"{m.lost:,}",
                "when slow": m.when_slow}
        table.add_row(*(told[name] for name in names))
    if not now.members:
        table.add_row("nobody is attached")
    return table


def fraction(now: Member, before: Member | None, what: str) -> float:
    """The part of the time since the last report that went into waiting, or others' waiting for it."""
    seconds = now.seconds - before.seconds if before else now.seconds
    spent: float = getattr(now, what) - (getattr(before, what) if before else 0.0)
    return min(1.0, spent / seconds) if seconds > 0 else 0.0


def share(now: Member, before: Member | None, what: str) -> str:
    return f"{100 * fraction(now, before, what):.0f} %"


def in_words(now: Report, before: Report | None) -> str:
    """Who waits for whom."""
    return "\n".join(f"It waits: {why}." for why in now.waits) or _in_words(now, before)


def _in_words(now: Report, before: Report | None) -> str:
    old = {m.number: m for m in before.members} if before else {}
    slow = [m for m in now.members if fraction(m, old.get(m.number), "blocked") > WAITS]
    waiting = [m for m in now.members if fraction(m, old.get(m.number), "waited") > WAITS]
    if not now.members:
        return "The producer rests: nobody reads."
    names = ", ".join(f"#{m.number} {m.label}" for m in slow)
    if slow and waiting:
        return f"{names} {'hold' if len(slow) > 1 else 'holds'} the others back."
    if slow:
        return f"The producer waits for its consumers ({names}): the loaders are fast enough."
    if waiting:
        return "The consumers wait for the producer: it is the bottleneck."
    return "Nobody waits."
