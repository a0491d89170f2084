"""Data-parallel ranks over one stream of rows: who a loader is in its group, and which rows are its.

Step t of a group of `world` ranks is rows [t·world·chunk, (t+1)·world·chunk) of the epoch; rank r gets the r-th run of
`chunk` rows in it, so a batch stays a view of the ring. Progress is that of the whole step: a state resumes under any
other world size and batch size.
"""
from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .inputs import keeps_all
from .plan import Plan, Require

if TYPE_CHECKING:
    from ..dsl.problems import PipeError  # loaded where there is something to say
    from .below import Below

ENDS = ("drop", "pad", "uneven")
DATA_DIMS = ("dp", "data", "dp_replicate", "dp_shard", "replicate", "shard", "fsdp", "ddp", "batch")
Ints = NDArray[np.int64]


# --- who am I -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankSpec:
    """A loader's place in a group: it delivers share `rank` of `world`, each step in `micro_batches` parts.

    `here`: processes of the group on this machine, which a shared stream lets in together; `group` tells groups apart.
    `member`: this process's number among the `members` of the group; with a mesh several have one share.
    """

    rank: int = 0
    world: int = 1
    micro_batches: int = 1
    here: int = field(default=1, compare=False)
    group: str = field(default="", compare=False)
    member: int = field(default=0, compare=False)
    members: int = field(default=1, compare=False)

    @property
    def alone(self) -> bool:
        return self.world == 1 and self.micro_batches == 1


def rank_spec(rank: int | str | None = None, world: int | None = None, mesh: Any = None,
              micro_batches: int = 1) -> RankSpec:
    """What `rank=`, `world=`, `mesh=` and `micro_batches=` say together.

    `rank`: a number, or "torch": that of torch.distributed, else of the environment (RANK, WORLD_SIZE).
    `mesh`: numbers (dp, tp, pp, …) by which ranks are counted, the last one fastest; a dict of them by name; or
    a torch DeviceMesh. Ranks of equal data coordinates get the same batches. Raises ValueError.
    """
    if not isinstance(micro_batches, int) or micro_batches < 1:
        raise ValueError(f"micro_batches={micro_batches!r}: a number from 1 on")
    if rank == "torch":
        rank, found = _torch_rank()
        world = found if world is None else world
    if isinstance(rank, str):
        raise ValueError(f'rank={rank!r}: a number, or "torch" for the rank that torchrun gives')
    sizes = None if mesh is None else _mesh(mesh)
    if sizes is not None and rank is None:
        rank = _coordinate(mesh, sizes)
    if sizes is not None and world is None:
        world = math.prod(n for _, n in sizes)
    if rank is None and world is None:
        return RankSpec(0, 1, micro_batches)
    if rank is None or world is None:
        raise ValueError("rank= and world= go together: which of how many")
    if not isinstance(world, int) or world < 1 or not isinstance(rank, int) or not 0 <= rank < world:
        raise ValueError(f"rank={rank!r}, world={world!r}: ranks count from 0 to world - 1")
    share, shares = (rank, world) if sizes is None else _in_mesh(rank, world, sizes)
    return RankSpec(share, shares, micro_batches, _here(world), f"{world} {_launch()}", rank, world)


def _here(world: int) -> int:
    """Processes of the group on this machine, as torchrun tells; else it is all of them."""
    try:
        return int(os.environ["LOCAL_WORLD_SIZE"]) if int(os.environ["WORLD_SIZE"]) == world else world
    except (KeyError, ValueError):
        return world


def launched() -> int:
    """How many ranks torchrun, or whoever it was, has started, as the environment tells; 1 where it doesn't."""
    try:
        return int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 1


def _launch() -> str:
    """What ranks of one launch have in common."""
    told = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")]
    return ":".join(told)[:200]


def _torch_rank() -> tuple[int, int]:
    torch = sys.modules.get("torch")   # else nothing is initialised there
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise ValueError('rank="torch": torch.distributed isn\'t initialised, and RANK and WORLD_SIZE aren\'t set (torchrun '
                         "sets them)") from None


def _mesh(mesh: Any) -> list[tuple[str, int]]:
    """Names and sizes of a mesh's dims. Of plain numbers the first is the data's."""
    if isinstance(mesh, Mapping):
        named = list(mesh.items())
    elif hasattr(mesh, "mesh_dim_names") and hasattr(mesh, "mesh"):
        shape = [int(n) for n in mesh.mesh.shape]
        names = mesh.mesh_dim_names or [f"dim{k}" if k else "dp" for k in range(len(shape))]
        named = list(zip(names, shape, strict=True))
    else:
        sizes = [mesh] if isinstance(mesh, int) else list(mesh)
        named = [(f"dim{k}" if k else "dp", n) for k, n in enumerate(sizes)]
    if not named or not all(isinstance(n, int) and n >= 1 for _, n in named):
        raise ValueError(f"mesh={mesh!r}: numbers from 1 on, like (4, 2, 1) for 4 data-parallel groups of 2 ranks")
    if not any(name in DATA_DIMS for name, _ in named):
        raise ValueError(f"mesh={mesh!r}: none of its dims is a data-parallel one; these are: {', '.join(DATA_DIMS)}")
    return named


def _coordinate(mesh: Any, sizes: Sequence[tuple[str, int]]) -> int | None:
    """This process's number in a DeviceMesh."""
    get = getattr(mesh, "get_coordinate", None)
    coordinates = get() if get is not None else None
    if coordinates is None:
        return None
    return int(np.ravel_multi_index(tuple(coordinates), tuple(n for _, n in sizes)))


def _in_mesh(rank: int, world: int, sizes: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """(the rank's data coordinate, how many there are)."""
    shape = tuple(n for _, n in sizes)
    if math.prod(shape) != world:
        raise ValueError(f"mesh={shape}, world={world}: the mesh has {math.prod(shape)} ranks")
    coordinates = np.unravel_index(rank, shape)
    share, shares = 0, 1
    for (name, n), c in zip(sizes, coordinates, strict=True):
        if name in DATA_DIMS:
            share, shares = share * n + int(c), shares * n
    return share, shares


# --- which rows are mine ------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Of a step: rows `first` … `first + read - 1` are read, the first `valid` of them are the rank's own, and they are
    repeated up to `size` rows."""

    first: int
    read: int
    valid: int
    size: int


@dataclass(frozen=True)
class Deal:
    """How steps are dealt out. `whole`: a batch of fewer than `chunk` rows isn't delivered.

    Of the last, smaller step ranks get contiguous runs. `end` "uneven": all of it, runs differ by one row at most; "drop":
    runs of equal length, up to world - 1 rows are left out; "pad": runs filled up to equal length. With `whole`, "drop"
    leaves all of it out, "pad" fills runs up to `chunk`, "uneven" gives the first ranks whole batches as far as it goes.
    """

    rank: int
    world: int
    chunk: int = 1
    end: str = "uneven"
    whole: bool = False

    @property
    def step(self) -> int:
        return self.world * self.chunk

    def part(self, rows: int) -> Part:
        """The rank's part of a step of `rows` rows, fewer than `step` only at the epoch's end."""
        if rows == self.step or (self.whole and self.end == "uneven" and (self.rank + 1) * self.chunk <= rows):
            return Part(self.rank * self.chunk, self.chunk, self.chunk, self.chunk)
        if rows == 0 or (self.whole and self.end != "pad"):
            return Part(0, 0, 0, 0)
        base, more = divmod(rows, self.world)
        if self.end == "drop":
            return Part(self.rank * base, base, base, base)
        first, valid = self.rank * base + min(self.rank, more), base + (self.rank < more)
        if self.end == "uneven":
            return Part(first if valid else 0, valid, valid, valid)
        size = self.chunk if self.whole else -(-rows // self.world)
        return Part(first, valid, valid, size) if valid else Part(rows - 1, 1, 0, size)

    def rows(self, total: int) -> int:
        """Rows that the rank delivers of an epoch (or its rest) of `total`."""
        steps, rest = divmod(total, self.step)
        return steps * self.chunk + self.part(rest).size

    def batches(self, total: int) -> int:
        """Batches of `chunk` rows, the last one smaller unless `whole`."""
        steps, rest = divmod(total, self.step)
        return steps + (self.part(rest).size > 0)

    def positions(self, local: Ints, total: int) -> Ints:
        """Where the rank's rows 0 … `rows(total)` - 1 stand among all."""
        steps = local // self.chunk
        found: Ints = steps * self.step + self.rank * self.chunk + local % self.chunk
        last, rest = divmod(total, self.step)
        part, over = self.part(rest), local >= last * self.chunk
        if over.any():
            inside = local[over] - last * self.chunk
            found[over] = last * self.step + part.first + inside % max(1, part.read)
        return found

    def ends(self, local: Ints, total: int) -> Ints:
        """Where the steps end in which the rank's rows stand."""
        ends: Ints = np.minimum((np.minimum(local // self.chunk, total // self.step) + 1) * self.step, total)
        return ends

    def valid(self, local: Ints, total: int) -> NDArray[np.bool_]:
        """False for rows that only fill up."""
        last, rest = divmod(total, self.step)
        valid: NDArray[np.bool_] = local < last * self.chunk + self.part(rest).valid
        return valid


def end_rule(plan: Plan) -> str:
    """"drop", "pad" or "uneven": what `share(end=…)` says; else "drop" where a `batch` is `whole`, or "uneven"."""
    said = plan.below[0].start.options.get("end") if plan.below else None
    if said:
        return str(said)
    whole = any(s.start.kind == "batch" and s.start.options.get("whole") for s in (*plan.above, *plan.below))
    return "drop" if whole and counts_batches(plan) else "uneven"


def counts_batches(plan: Plan) -> bool:
    """Does the number of rows alone tell how many batches the lines below `share` make of them?"""
    for segment in plan.below:
        options = segment.start.options
        if options.get("edges") or "budget" in (options.get("has") or ()):
            return False
        if any(isinstance(step, Require) and step.kind == "where" for step in segment.program.steps):
            return False
    return True


def deal(plan: Plan, below: Below, spec: RankSpec) -> Deal:
    """How a program's rows are dealt out: by whole batches where these are plain runs of rows, else row by row.

    Raises PipeError E0840 where ranks have to get equally many batches and lines below `share` decide how many.
    """
    end = end_rule(plan)
    if spec.world > 1 and end != "uneven" and not counts_batches(plan):
        raise _unequal(plan, end)
    whole = below.drops_smaller
    if not below.stacks:
        return Deal(spec.rank, spec.world, 1, end)
    return Deal(spec.rank, spec.world, below.batch_size or 1, end, whole)


def _unequal(plan: Plan, end: str) -> PipeError:
    from ..dsl.problems import PipeError, Problem, Span

    span = plan.below[0].start.options.get("span")
    return PipeError((Problem(
        "E0840", f'`share(end="{end}")` gives all ranks equally many batches, and a line below decides how many there are',
        Span(*span) if span else Span(plan.path, 0, 0), notes=(
            "stand `where`, and `batch` by length, above `share`: then whole batches are dealt out",
            'or write `share(end="uneven")`, where ranks may get different numbers of batches')),), dict(plan.texts))


# --- a producer of one's own ----------------------------------------------------------------------


def check_own(plan: Plan, weighs: bool = False) -> None:
    """Raise PipeError E0841 where a producer can't be told to make only one rank's records: some are left out, or are
    made of several, so that their numbers aren't known before they are made; or where ranks return values (`weighs`)."""
    if not weighs and len(plan.above) == 1 and keeps_all(plan.above[0]):
        return
    from ..dsl.problems import PipeError, Problem, Span

    if weighs:
        raise PipeError((Problem(
            "E0841", "the values that ranks return for `weight` have to reach one producer, so they can't have their own",
            Span(plan.path, 0, 0), notes=("`share=True`, or `pipec serve` and `pipec.attach`",)),), dict(plan.texts))
    raise PipeError((Problem(
        "E0841", "which records are whose isn't known before they are made, so ranks can't have producers of their own",
        Span(plan.path, 0, 0), notes=(
            "a line above `share` leaves records out, or makes several of one or one of several",
            "one producer for the ranks of a machine: `share=True`, or `pipec serve` and `pipec.attach`")),), dict(plan.texts))


class Picks:
    """Of an epoch's positions from `start` on, those of one rank."""

    def __init__(self, dealt: Deal, start: int, length: int):
        """`length`: positions of the epoch."""
        self.deal, self.start, self.total = dealt, start, max(0, length - start)
        self.length = dealt.rows(self.total)

    def positions(self, first: int, count: int) -> Ints:
        """Where the rank's rows `first` … `first + count - 1` stand in the epoch."""
        return self.start + self.deal.positions(np.arange(first, first + count), self.total)

    def nexts(self, first: int, count: int) -> Ints:
        """Where to resume after each of them: the end of its step."""
        return self.start + self.deal.ends(np.arange(first, first + count), self.total)
