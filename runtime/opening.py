"""Opening a program: a path goes in; its plan is found or made, its producer started, and its loader comes out.

The producer's process starts first, so that both processes load what they need at the same time.
"""
from __future__ import annotations

import builtins
import gc
import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .spawned import producer  # nothing else of ours before it is started: importing takes both processes long

SUFFIX = ".pipec"   # of artifacts

if TYPE_CHECKING:
    from .loader import Loader
    from .plan import Plan


def open(path: str | os.PathLike[str], *, threads: int | None = None, as_: str = "torch",
         memory: int | str | None = None, workers: str = "process", run: str | None = None,
         allow_extern: bool = False, trust: bool = False, device: Any = None,
         place: Mapping[str, str] | None = None,
         rank: int | str | None = None, world: int | None = None,
         mesh: Any = None, micro_batches: int = 1, share: bool = False, when_slow: str = "wait", join: str = "epoch",
         **params: Any) -> Loader:
    """Compile a program (once; kept in a cache) or take an artifact (`x.pipec`), and start its producer.

    `as_`: "torch", "numpy" or "jax", or "cupy" on a GPU. `device="cuda"` (or "cuda:1"): the lines below `share()` run on
    that GPU, and batches are there; `place={"image": "cpu"}` keeps on the CPU what makes `image`: the lines up to the next
    `batch` or the end. `memory`: size of the ring, in bytes or like "2GB". `run`: the pipeline, where the file
    has several. `workers="threads"` runs the producer in this process, for debugging. `params` set the program's; an
    artifact's where they are open. `trust`: run an artifact's machine code though nobody known signed it.
    `rank`, `world`, `mesh`, `micro_batches`: the place in a data-parallel group, see `ranks.rank_spec`.
    `share=True`: all who open the same lines above `share()` on this machine read one stream, of a server that the first
    one starts and that ends a while after the last has left; `when_slow` and `join` are those of `attach`.
    """
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise ValueError(f"threads={threads!r}: a whole number from 1 on; without it there is one for each core")
    spawned = producer() if workers == "process" and not share else None
    collects = gc.isenabled()
    gc.disable()   # most of what is made here stays: looking for garbage among it is time lost
    try:
        from .externs import refuse_externs
        from .ranks import rank_spec

        spec = rank_spec(rank, world, mesh, micro_batches)
        on_device = wants_device(as_, device)
        plan = plan_of(os.fspath(path), params, run, trust, on_device, for_device=on_device and not share)
        if not allow_extern:
            refuse_externs(plan)
        if share:
            from .joining import shared

            return shared(plan, threads=threads, as_=as_, memory=memory, allow_extern=allow_extern, ranks=spec,
                          when_slow=when_slow, join=join, device=device, place=place)
        from .loader import Loader

        return Loader(plan, threads=threads, as_=as_, memory=memory, workers=workers, device=device, place=place,
                      allow_extern=allow_extern, ranks=spec, spawned=spawned)
    except BaseException:
        if spawned is not None:
            spawned.close()
        raise
    finally:
        if collects:
            gc.enable()


def wants_device(as_: str, device: Any) -> bool:
    """Do the lines below `share()` run on a GPU?"""
    return as_ == "cupy" or device not in (None, "cpu")


def is_artifact(path: str) -> bool:
    """By name, or by the first bytes of a zip."""
    if path.endswith(SUFFIX):
        return True
    try:
        with builtins.open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def plan_of(path: str, params: Mapping[str, Any], run: str | None, trust: bool, on_device: bool = False,
            for_device: bool = False) -> Plan:
    """The plan of a program or an artifact. The compiler is imported only where there is something to compile.

    `on_device`: CUDA texts are needed, which an artifact's graph is compiled for. `for_device`: the ring is cut for devices,
    since all who read it, or most, are on some; an artifact that was compiled so is cut so in any case.
    """
    from . import plancache

    if is_artifact(path):
        from .artifact import plan_of

        return plan_of(path, params, run, trust, on_device, for_device)
    kept = plancache.find(path, params, run, for_device)
    if kept is not None:
        return kept
    plan_for: Callable[..., Plan] = importlib.import_module("pipec.compiler.compile").plan_for
    return plan_for(path, params, run, on_device=for_device)
