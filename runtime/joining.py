"""Ways into a shared stream: `attach` to a server by name, or `shared`, where the first who comes starts it."""
from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..dsl.problems import PipeError
from . import loader as loaders
from .consumers import check_kind, writes
from .externs import refuse_externs
from .limits import parse_size
from .loader import Loader, layout_for
from .messages import Group
from .objects import Missing, load
from .opening import plan_of, wants_device
from .plan import Plan
from .ranks import RankSpec, rank_spec
from .server import Settings
from .session import Session
from .settings import settled
from .sharing import LINGER, Server, Shared, Start, checked_plan, label, share_key


def attach(name: str, *, as_: str = "torch", when_slow: str = "wait", join: str = "epoch",
           state: Mapping[str, Any] | None = None, fields: Sequence[str] | None = None, program: str | None = None,
           run: str | None = None, allow_extern: bool = False, wait: float = 0.0, rank: int | str | None = None,
           world: int | None = None, mesh: Any = None, micro_batches: int = 1, device: Any = None,
           place: Mapping[str, str] | None = None, **params: Any) -> Loader:
    """Become one of the consumers of the server `name`, which `pipec serve` started on this machine.

    `params` set what lines below `share()` use, for this consumer alone. `fields`: only these of the program's. `program`:
    a file of one's own whose lines above `share()` are the server's. `state`: a `state_dict` to go on from. `wait`:
    seconds for which the server may not be there yet.

    `when_slow`: "wait" holds the other consumers back while this one is slow; "drop" does so for as long as the server
    allows and then detaches it with an error; "skip" never does, and this consumer loses records, which are counted.
    Consumers that may be overtaken get copies. `join`: "epoch" begins with the next epoch (or this one, while its first
    rows are there), "now" where the stream is; `loader.joined` tells where that was. `rank`, `world`, `mesh`,
    `micro_batches`: see `ranks.rank_spec`.

    Raises DataError E0830 where there is no such server, E0831 where the stream has passed `state`; PipeError E0702
    for a param that lines above `share()` use.
    """
    spec = rank_spec(rank, world, mesh, micro_batches)
    check_kind(as_)
    stream = Shared(Server(name), label=label(), when_slow=when_slow, join=join, writable=writes(as_))
    welcome = stream.connect(wait)
    try:
        served = checked_plan(welcome)
        plan = _own_plan(served, welcome.given, params, program, run or welcome.run, wants_device(as_, device))
        return _loader(stream, plan, as_=as_, allow_extern=allow_extern, ranks=spec, state=state, fields=fields, threads=None,
                       device=device, place=place)
    except BaseException:
        stream.close()
        raise


def shared(plan: Plan, *, threads: int | None, as_: str, memory: int | str | None, allow_extern: bool, ranks: RankSpec,
           when_slow: str, join: str, device: Any = None, place: Mapping[str, str] | None = None) -> Loader:
    """A loader of the stream that all share who open the same lines above `share()` in this folder; the first starts it."""
    count = threads or len(os.sched_getaffinity(0))
    below = importlib.import_module("pipec.runtime.below").Below(plan, load(plan.kernels), None, allow_extern)
    below.start_epoch(0)
    layout = layout_for(plan, below, count, None if memory is None else parse_size(memory))
    key = share_key(plan)
    settings = Settings(name=f"share-{key[:20]}", threads=count, linger=LINGER, fresh=True, allow_extern=allow_extern)
    stream = Shared(Server(settings.name, Start(plan, layout, settings)), label=label(), when_slow=when_slow, join=join,
                    writable=writes(as_))
    welcome = stream.connect()
    try:
        checked_plan(welcome)
        stream.own = lambda: Session(plan, layout, loaders.ENGINE, {
            "threads": count, "allow_extern": allow_extern, "processes": True}, "process", writable=writes(as_))
        return _loader(stream, plan, as_=as_, allow_extern=allow_extern, ranks=ranks, state=None, fields=None, threads=threads,
                       device=device, place=place)
    except BaseException:
        stream.close()
        raise


def _loader(stream: Shared, plan: Plan, *, as_: str, allow_extern: bool, ranks: RankSpec, state: Mapping[str, Any] | None,
            fields: Sequence[str] | None, threads: int | None, device: Any,
            place: Mapping[str, str] | None) -> Loader:
    if not allow_extern:
        refuse_externs(plan, below_only=True)
    made = Loader(plan, threads=threads, as_=as_, allow_extern=allow_extern, ranks=ranks, stream=stream, fields=fields,
                  device=device, place=place)
    if stream.join == "now" and ranks.world > 1:
        raise ValueError('join="now": ranks of a group begin together, with an epoch')
    if stream.when_slow == "skip" and ranks.world > 1:
        raise ValueError('when_slow="skip": ranks of a group deal out one stream, so none of them may lose records')
    if stream.join == "now" and made.replays:
        raise ValueError('join="now": lines below `share()` hold records back or count them, so this program is read from the '
                         "start of an epoch")
    if state is not None:
        made.load_state_dict(state)
    stream.group = Group(ranks.group, ranks.here, ranks.member, ranks.members)
    stream.moved = False                                  # the place that is asked for is that of `state`
    stream.ask_for(stream.join, None if state is None else made.place(), together=True)
    return made


def _own_plan(served: Plan, given: Mapping[str, Any], params: Mapping[str, Any], program: str | None, run: str | None,
              on_device: bool = False) -> Plan:
    """What this consumer runs: the server's plan with params of its own, or one compiled for it, as it is `on_device`: CUDA
    texts that somebody else sends aren't run.

    Raises PipeError E0702 where the lines above `share()` aren't the server's.
    """
    free = {p.name for p in served.params if p.open}
    if program is None and set(params) <= free and not on_device:
        try:
            load(served.kernels)
            return settled(served, params, "this server")
        except Missing:                                   # its objects aren't in our cache: they are made again
            pass
    path = program or served.path
    plan = plan_of(path, {**given, **params}, run, False, on_device, served.for_device)
    if share_key(plan) == share_key(served) and (program or plan.texts == served.texts):
        return plan
    raise _differs(served, given, params, path, run, changed=plan.texts != served.texts and not program)


def _differs(served: Plan, given: Mapping[str, Any], params: Mapping[str, Any], path: str, run: str | None,
             changed: bool) -> Exception:
    from .errors import DataError

    if changed:
        return DataError("E0835", f"`{path}` has changed since the server began", notes=(
            "stop the server and serve again, or attach with the params that need no compiling: "
            + (", ".join(p.name for p in served.params if p.open) or "none"),))
    problem_of = importlib.import_module("pipec.compiler.check").sharing_problem
    for name, value in params.items():
        problem = problem_of(path, name, value, given, run)
        if problem is not None:
            return PipeError((problem,), dict(served.texts))
    return DataError("E0835", f"the lines above `share()` of `{path}` aren't those that the server runs", notes=(
        f"it runs `{served.path}` with " + (", ".join(f"{k}={v}" for k, v in given.items()) or "no params set"),
        "lines below `share()` may differ; params, schema, seed and the lines above have to be the same"))


