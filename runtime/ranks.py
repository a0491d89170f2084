"""Data-parallel ranks over one stream of rows: which rows are a rank's, and a reader that delivers just those.

Step t of a group of `world` ranks is rows [t·world·chunk, (t+1)·world·chunk) of the epoch; rank r gets the r-th run of
`chunk` rows in it, so a batch stays a view of the ring. Progress is that of the whole step: a state resumes under any
other world size and batch size.
"""
from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..dsl.problems import PipeError, Problem, Span
from .below import Below, Progress
from .below import Rows as RowsOf
from .errors import DataError
from .inputs import keeps_all
from .plan import Plan, Require

ENDS = ("drop", "pad", "uneven")
DATA_DIMS = ("dp", "data", "dp_replicate", "dp_shard", "replicate", "shard", "fsdp", "ddp", "batch")
Ints = NDArray[np.int64]


# --- who am I -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankSpec:
    """A loader's place in a group: it delivers share `rank` of `world`, each step in `micro_batches` parts."""

    rank: int = 0
    world: int = 1
    micro_batches: int = 1

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
    if sizes is None:
        return RankSpec(rank, world, micro_batches)
    return _in_mesh(rank, world, sizes, micro_batches)


def _torch_rank() -> tuple[int, int]:
    torch = importlib.import_module("torch")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
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


def _in_mesh(rank: int, world: int, sizes: Sequence[tuple[str, int]], micro_batches: int) -> RankSpec:
    shape = tuple(n for _, n in sizes)
    if math.prod(shape) != world:
        raise ValueError(f"mesh={shape}, world={world}: the mesh has {math.prod(shape)} ranks")
    coordinates = np.unravel_index(rank, shape)
    share, shares = 0, 1
    for (name, n), c in zip(sizes, coordinates, strict=True):
        if name in DATA_DIMS:
            share, shares = share * n + int(c), shares * n
    return RankSpec(share, shares, micro_batches)


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
        return np.minimum((np.minimum(local // self.chunk, total // self.step) + 1) * self.step, total)

    def valid(self, local: Ints, total: int) -> NDArray[np.bool_]:
        """False for rows that only fill up."""
        last, rest = divmod(total, self.step)
        return local < last * self.chunk + self.part(rest).valid


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
    span = plan.below[0].start.options.get("span")
    return PipeError((Problem(
        "E0840", f'`share(end="{end}")` gives all ranks equally many batches, and a line below decides how many there are',
        Span(*span) if span else Span(plan.path, 0, 0), notes=(
            "stand `where`, and `batch` by length, above `share`: then whole batches are dealt out",
            'or write `share(end="uneven")`, where ranks may get different numbers of batches')),), dict(plan.texts))


# --- readers ------------------------------------------------------------------------------------


class Skipped(Protocol):
    """Rows passed over: how many, and where to resume after them."""

    count: int
    next: int
    skip: int


class Source(Protocol):
    """The reader of all rows. Both wait for n rows; there are fewer at the epoch's end, and None after it."""

    def take(self, n: int) -> RowsOf | None: ...
    def skip(self, n: int) -> Skipped | None: ...


class Dealer(Protocol):
    def take(self, n: int) -> RowsOf | None: ...


@dataclass
class Picked:
    """Rows of one rank. Hidden fields `_next` and `_skip` are those of the whole step; `_valid` is there only where some
    rows fill up."""

    count: int
    fields: Mapping[str, Any]


def reader(source: Source, dealt: Deal, left: int | None = None) -> Dealer:
    """The rank's rows of `source`. `left`: rows left in the epoch, where that is known."""
    if dealt.world == 1 and dealt.end != "pad":
        return source
    return ByRow(source, dealt) if dealt.chunk == 1 and not dealt.whole else ByStep(source, dealt, left)


class ByStep:
    """`take` gives the rank's batch of one step."""

    def __init__(self, source: Source, dealt: Deal, left: int | None = None):
        self.source, self.deal, self.left = source, dealt, left
        self.over = False   # the source has only its end left

    def take(self, n: int) -> RowsOf | None:
        """The rows of one step, `Deal.chunk` of them whatever `n` says; None after the epoch's last."""
        if self.over:
            return self._end()
        if self.left is not None:
            rows = min(self.left, self.deal.step)
            self.left -= rows
            self.over = self.left == 0
            return self._known(rows)
        return self._ahead() if self.deal.whole and self.deal.end != "pad" else self._looking()

    def _end(self) -> None:
        if self.source.skip(1) is not None:
            raise DataError("E0807", "the producer gave more rows than it said")

    def _known(self, rows: int) -> RowsOf | None:
        """A step of so many rows."""
        part = self.deal.part(rows)
        if part.size == 0:
            if rows:
                self._pass(rows)
            return self._end()
        before = self._pass(part.first) if part.first else None
        taken = self.source.take(part.read)
        if taken is None or taken.count < part.read or (before is not None and before.count < part.first):
            raise DataError("E0807", "the producer gave fewer rows than it said")
        rest = rows - part.first - part.read
        return _filled(taken, part, self._pass(rest) if rest else None)

    def _pass(self, rows: int) -> Skipped:
        passed = self.source.skip(rows)
        if passed is None or passed.count < rows:
            raise DataError("E0807", "the producer gave fewer rows than it said")
        return passed

    def _ahead(self) -> RowsOf | None:
        """A step of unknown length, of which the rank gets its whole batch or nothing."""
        deal = self.deal
        before = self.source.skip(deal.rank * deal.chunk) if deal.rank else None
        if deal.rank and (before is None or before.count < deal.rank * deal.chunk):
            return self._nothing(before is None)
        taken = self.source.take(deal.chunk)
        if taken is None or taken.count < deal.chunk:
            return self._nothing(taken is None)
        rest = deal.step - (deal.rank + 1) * deal.chunk
        after = self.source.skip(rest) if rest else None
        self.over = bool(rest) and (after is None or after.count < rest)
        if self.over and deal.end == "drop":
            return self._nothing(after is None)
        if self.over and after is None:
            self.source = _Ended()
        return _filled(taken, deal.part(deal.step), after)

    def _nothing(self, ended: bool) -> None:
        self.over = True
        return None if ended else self._end()

    def _looking(self) -> RowsOf | None:
        """A step of unknown length, of which the rank gets some even if it is short: rows before its own are kept until
        that is clear."""
        deal, pieces = self.deal, list[RowsOf]()
        total, ended = 0, False
        for _ in range(deal.rank + 1):
            piece = self.source.take(deal.chunk)
            ended = piece is None
            if piece is not None:
                pieces.append(piece)
                total += piece.count
            if piece is None or piece.count < deal.chunk:
                self.over = True
                break
        after: Skipped | None = None
        if not self.over and deal.rank + 1 < deal.world:
            after = self.source.skip(deal.step - total)
            ended = after is None
            total += after.count if after is not None else 0
            self.over = total < deal.step
        part = deal.part(total)
        if part.size == 0:
            return None if ended else self._end()
        if ended:
            self.source = _Ended()
        return _filled(_between(pieces, part.first, part.first + part.read), part, after or _last(pieces[-1]))


class _Ended:
    """A source whose end has been read."""

    def take(self, n: int) -> RowsOf | None:
        return None

    def skip(self, n: int) -> Skipped | None:
        return None


class ByRow:
    """`take` gives some of the rank's rows, every `world`-th."""

    def __init__(self, source: Source, dealt: Deal):
        self.source, self.deal = source, dealt
        self.seen = 0                          # rows of the step that is open
        self.waiting: Picked | None = None     # the rank's row in it
        self.last: RowsOf | None = None        # rows, the last of which is the last one read
        self.ready: list[Picked] = []

    def take(self, n: int) -> RowsOf | None:
        while not self.ready:
            rows = self.source.take(n)
            if rows is None:
                return self._end()
            self._deal(rows)
        return self.ready.pop(0)

    def _deal(self, rows: RowsOf) -> None:
        world, count = self.deal.world, rows.count
        starts = -self.seen                                # where the open step began, as a row of these
        if self.waiting is not None and starts + world <= count:
            self._deliver(self.waiting, rows, starts + world - 1)
            self.waiting = None
        mine = np.arange(starts + self.deal.rank if starts + self.deal.rank >= 0 else starts + self.deal.rank + world,
                         count, world)
        ends = mine + (world - 1 - self.deal.rank)
        whole = mine[ends < count]
        if len(whole):
            ends = ends[: len(whole)]
            picked = _slice(rows, slice(int(whole[0]), int(whole[-1]) + 1, world))
            self.ready.append(_stamped(picked, rows.fields["_next"][ends], rows.fields["_skip"][ends]))
        if len(mine) > len(whole):
            self.waiting = _slice(rows, slice(int(mine[-1]), int(mine[-1]) + 1))
        self.seen = (self.seen + count) % world
        self.last = rows if self.seen else None

    def _deliver(self, picked: Picked, rows: RowsOf, end: int) -> None:
        self.ready.append(_stamped(picked, rows.fields["_next"][end:end + 1], rows.fields["_skip"][end:end + 1]))

    def _end(self) -> RowsOf | None:
        """The step that is open when the epoch ends."""
        seen, waiting, last, self.waiting, self.last, self.seen = self.seen, self.waiting, self.last, None, None, 0
        if not seen or self.deal.end == "drop" or (waiting is None and self.deal.end == "uneven"):
            return None
        assert last is not None
        self.source = _Ended()
        end = last.count - 1
        row = waiting or _slice(last, slice(end, end + 1))
        made = _stamped(row, last.fields["_next"][end:], last.fields["_skip"][end:])
        if waiting is None:
            made = Picked(1, {**made.fields, "_valid": np.zeros(1, np.bool_)})
        return made


def _slice(rows: RowsOf, part: slice) -> Picked:
    fields = {name: values[part] for name, values in rows.fields.items()}
    return Picked(len(fields["_next"]), fields)


def _stamped(rows: Picked, nexts: Ints, skips: Ints) -> Picked:
    return Picked(rows.count, {**rows.fields, "_next": np.array(nexts), "_skip": np.array(skips)})


def _last(rows: RowsOf) -> Skipped:
    return Passed(rows.count, int(rows.fields["_next"][-1]), int(rows.fields["_skip"][-1]))


@dataclass(frozen=True)
class Passed:
    """See `Skipped`."""

    count: int
    next: int
    skip: int


def _between(pieces: Sequence[RowsOf], first: int, end: int) -> Picked:
    """Rows `first` … `end` - 1 of consecutive pieces: a view where they lie in one."""
    parts = []
    for piece in pieces:
        low, high = max(0, first), min(piece.count, end)
        if low < high:
            parts.append(_slice(piece, slice(low, high)))
        first, end = first - piece.count, end - piece.count
    if len(parts) == 1:
        return parts[0]
    fields = {name: _joined([p.fields[name] for p in parts]) for name in parts[0].fields}
    return Picked(sum(p.count for p in parts), fields)


def _joined(values: Sequence[Any]) -> Any:
    return [v for part in values for v in part] if isinstance(values[0], list) else np.concatenate(values)


def _filled(rows: RowsOf, part: Part, after: Skipped | None) -> Picked:
    """The rows repeated up to the part's size, resuming `after` them all."""
    nexts, skips = np.array(rows.fields["_next"]), np.array(rows.fields["_skip"])
    if after is not None:
        nexts[-1], skips[-1] = after.next, after.skip
    fields: dict[str, Any] = {**rows.fields, "_next": nexts, "_skip": skips}
    if part.size == part.valid:
        return Picked(rows.count, fields)
    which = np.arange(part.size) % part.read
    fields = {name: [v[i] for i in which] if isinstance(v, list) else v[which] for name, v in fields.items()}
    fields["_next"][-1], fields["_skip"][-1] = nexts[-1], skips[-1]
    return Picked(part.size, {**fields, "_valid": np.arange(part.size) < part.valid})


# --- a producer of one's own ----------------------------------------------------------------------


def check_own(plan: Plan) -> None:
    """Raise PipeError E0841 where a producer can't be told to make only one rank's records: some are left out, or are
    made of several, so that their numbers aren't known before they are made."""
    if len(plan.above) == 1 and keeps_all(plan.above[0]):
        return
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


class Masked:
    """Rows of a producer that makes only this rank's, with `_valid` where some fill up."""

    def __init__(self, source: Source, dealt: Deal, total: int):
        """`total`: rows of all ranks that were left in the epoch where it begins."""
        self.source, self.deal, self.total, self.done = source, dealt, total, 0

    def take(self, n: int) -> RowsOf | None:
        rows = self.source.take(n)
        if rows is None:
            return None
        valid = self.deal.valid(np.arange(self.done, self.done + rows.count), self.total)
        self.done += rows.count
        return rows if valid.all() else Picked(rows.count, {**rows.fields, "_valid": valid})


# --- micro-batches --------------------------------------------------------------------------------


def parts(batches: Iterator[tuple[dict[str, Any], Progress]], count: int, done: int = 0,
          start: tuple[int, int] = (0, 0)) -> Iterator[tuple[dict[str, Any], Progress]]:
    """Each batch as `count` views, of lengths that differ by one at most; the first `done` of the first batch are left
    out. Progress within a batch is where the batch began, `start` for the first, and the parts that are done."""
    for fields, progress in batches:
        size = _front(fields)
        cuts = [0, *np.cumsum([size // count + (k < size % count) for k in range(count)]).tolist()]
        for k in range(done, count):
            some = {name: value[cuts[k]:cuts[k + 1]] for name, value in fields.items()}
            inside = slice(cuts[k], cuts[k + 1])
            last = k == count - 1
            yield some, replace(progress, part=0 if last else k + 1, records=cuts[k + 1] - cuts[k],
                                next=progress.next if last else start[0], skip=progress.skip if last else start[1],
                                ids=_cut(progress.ids, inside), valid=_cut(progress.valid, inside))
        done, start = 0, (progress.next, progress.skip)


def _cut(values: Any, inside: slice) -> Any:
    return None if values is None else values[inside]


def _front(fields: Mapping[str, Any]) -> int:
    """The first dimension that all fields share."""
    sizes = {name: len(v) if isinstance(v, list) or np.ndim(v) else None for name, v in fields.items()}
    size = next(iter(sizes.values()))
    odd = next((name for name, n in sizes.items() if n != size or n is None), None)
    if size is None or odd is not None:
        raise ValueError(f"micro_batches= cuts batches along their first dimension, and `{odd}` hasn't that of the others")
    return size
