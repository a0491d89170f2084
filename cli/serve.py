"""`pipec serve`, `ps` and `stop`: servers that many trainings read from."""
from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from . import UsageError, for_device, settings_of, split_file

STOP_SECONDS = 30                      # until a server has to have ended that was told to


def serve(arguments: argparse.Namespace) -> int:
    """Serve a program until told to stop, or for `--epochs`."""
    from ..runtime.below import Below
    from ..runtime.externs import refuse_externs
    from ..runtime.limits import show_size
    from ..runtime.loader import layout_for
    from ..runtime.objects import load
    from ..runtime.opening import plan_of
    from ..runtime.rendezvous import Taken
    from ..runtime.server import Server, Settings, run_server
    from .run import beside

    path, run = split_file(arguments.file)
    given = settings_of(arguments.settings)
    beside(path, arguments.allow_extern)
    plan = plan_of(path, given, run, arguments.trust, for_device=for_device(arguments.device))
    if not arguments.allow_extern:
        refuse_externs(plan)
    threads = arguments.threads or len(os.sched_getaffinity(0))
    below = Below(plan, load(plan.kernels), None, arguments.allow_extern)
    below.start_epoch(0)
    layout = layout_for(plan, below, threads, arguments.memory)
    settings = Settings(
        name=arguments.name or os.path.splitext(os.path.basename(path))[0], threads=threads, wait_for=arguments.wait_for,
        epochs=arguments.epochs, max_skew=arguments.max_skew, patience=arguments.patience, allow_extern=arguments.allow_extern)
    try:
        server = Server(plan, layout, settings, given, run, _say)
    except ValueError as error:                           # no name for a server
        raise UsageError(str(error)) from error
    except Taken as error:
        raise UsageError(f"there is a server `{settings.name}` already: `--name` another, or "
                         f"`pipec stop {settings.name}`") from error
    _say(f"serving   {arguments.file} as `{settings.name}`: {layout.capacity:,} records, "
         f"{show_size(layout.total)} of shared memory")
    if arguments.metrics is not None:
        from ..runtime.metrics import expose

        port = expose(server, arguments.metrics)
        _say(f"metrics   http://127.0.0.1:{port}/metrics")
    run_server(server)
    _say("stopped")
    return 0


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def ps(arguments: argparse.Namespace) -> int:
    """List this user's servers."""
    from ..runtime.rendezvous import names, process_of, reports

    table = Table(box=None, pad_edge=False)
    for column in ("name", "process", "state", "epoch", "position", "consumers", "ring", "program"):
        table.add_column(column, justify="right" if column in ("process", "epoch", "position", "consumers") else "left")
    found = list(reports())
    mute = {name: pid for name in set(names()) - {r.name for r in found} if (pid := process_of(name)) is not None}
    for r in found:
        table.add_row(r.name, str(r.pid), r.state, str(r.epoch), f"{r.position:,}", str(len(r.members)),
                      f"{100 * r.fill // max(1, r.capacity)} %", r.program)
    for name, pid in sorted(mute.items()):
        table.add_row(name, str(pid), "no answer")
    if not table.row_count:
        print("no servers: `pipec serve FILE --name NAME` starts one")
        return 0
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, no_color=arguments.plain or "NO_COLOR" in os.environ).print(table)
    for r in found:
        for why in r.waits:
            print(f"`{r.name}` waits: {why}")
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Tell a server to deliver what is there and end; wait until it has."""
    from ..runtime.messages import Channel, Gone, Stop
    from ..runtime.rendezvous import answers_within, check_name, connect, peer

    try:
        sock: Any = connect(check_name(arguments.name))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if sock is None:
        raise UsageError(f"there is no server `{arguments.name}`; `pipec ps` lists those there are")
    channel = Channel(sock)
    answers_within(sock, STOP_SECONDS)
    pid, _ = peer(sock)
    try:
        channel.send(Stop())
        while channel.receive(wait=True) is not None:
            pass
    except Gone:
        pass
    finally:
        channel.close()
    until = time.monotonic() + STOP_SECONDS
    while (sock := connect(arguments.name)) is not None:   # it drains
        sock.close()
        if time.monotonic() > until:
            raise UsageError(f"`{arguments.name}` hasn't ended after {STOP_SECONDS} seconds; it is process {pid}: "
                             f"`kill -9 {pid}` ends it at once")
        time.sleep(0.1)
    return 0
