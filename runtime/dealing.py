"""Readers for one rank of a group: rows of everybody go in, the rank's rows come out, each step's in one run.

Around them `Group`, what a loader that is a rank does differently.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .below import Below
from .below import Rows as RowsOf
from .errors import DataError, warn
from .feedback import names_in
from .order import FOREVER
from .plan import Plan, Segment, reached
from .progress import Progress
from .ranks import Deal, Part, RankSpec, check_own, deal, launched

Ints = NDArray[np.int64]


Skipped = tuple[int, int, int]
"""Rows passed over: how many, and where to resume after them (`_next`, `_skip`)."""


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

    def _end(self) -> RowsOf | None:
        if self.source.skip(1) is not None:
            raise DataError("E0807", "the producer gave more rows than it said")
        return None

    def _known(self, rows: int) -> RowsOf | None:
        """A step of so many rows."""
        part = self.deal.part(rows)
        if part.size == 0:
            if rows:
                self._pass(rows)
            return self._end()
        if part.first:
            self._pass(part.first)
        taken = self.source.take(part.read)
        if taken is None or taken.count < part.read:
            raise DataError("E0807", "the producer gave fewer rows than it said")
        rest = rows - part.first - part.read
        return _filled(taken, part, self._pass(rest) if rest else None)

    def _pass(self, rows: int) -> Skipped:
        passed = self.source.skip(rows)
        if passed is None or passed[0] < rows:
            raise DataError("E0807", "the producer gave fewer rows than it said")
        return passed

    def _ahead(self) -> RowsOf | None:
        """A step of unknown length, of which the rank gets its whole batch or nothing."""
        deal = self.deal
        before = self.source.skip(deal.rank * deal.chunk) if deal.rank else None
        if deal.rank and (before is None or before[0] < deal.rank * deal.chunk):
            return self._nothing(before is None)
        taken = self.source.take(deal.chunk)
        if taken is None or taken.count < deal.chunk:
            return self._nothing(taken is None)
        rest = deal.step - (deal.rank + 1) * deal.chunk
        after = self.source.skip(rest) if rest else None
        self.over = bool(rest) and (after is None or after[0] < rest)
        if self.over and deal.end == "drop":
            return self._nothing(after is None)
        if self.over and after is None:
            self.source = _Ended()
        return _filled(taken, deal.part(deal.step), after)

    def _nothing(self, ended: bool) -> RowsOf | None:
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
            total += after[0] if after is not None else 0
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
    return rows.count, int(rows.fields["_next"][-1]), int(rows.fields["_skip"][-1])


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
        nexts[-1], skips[-1] = after[1:]
    fields: dict[str, Any] = {**rows.fields, "_next": nexts, "_skip": skips}
    if part.size == part.valid:
        return Picked(rows.count, fields)
    which = np.arange(part.size) % part.read
    fields = {name: [v[i] for i in which] if isinstance(v, list) else v[which] for name, v in fields.items()}
    fields["_next"][-1], fields["_skip"][-1] = nexts[-1], skips[-1]
    return Picked(part.size, {**fields, "_valid": np.arange(part.size) < part.valid})


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
            yield some, progress._replace(
                part=0 if last else k + 1, records=cuts[k + 1] - cuts[k], next=progress.next if last else start[0],
                skip=progress.skip if last else start[1], ids=_cut(progress.ids, inside), valid=_cut(progress.valid, inside))
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


ALONE = [1, 0, 1]   # see `Group.state`

# --- a loader's part ------------------------------------------------------------------------------


def group_of(plan: Plan, below: Any, spec: RankSpec, own: bool) -> Group | None:
    """None where the loader is alone and nothing is filled up."""
    if spec.members == 1 and launched() > 1 and _shards(plan.above):
        warn(f'`shard()` deals out nothing by itself, so each of the {launched()} ranks of this launch gets all records: open, '
             'or attach, with `rank="torch"`')
    if spec.alone and (not plan.below or plan.below[0].start.options.get("end") != "pad"):
        return None
    return Group(plan, below, spec, own)


def part_of(state: Mapping[str, Any], group: Group | None, counted: bool) -> int:
    """The micro-batches that are done where a loader's state goes on. `counted`: it counts batches of one rank.

    Raises ValueError where that tells nothing in this group.
    """
    part, then = state.get("part", 0), list(state.get("group", ALONE))
    now = ALONE if group is None else group.state
    if not isinstance(part, int) or not 0 <= part < max(1, then[-1]):
        raise ValueError("not a state of a loader: `part` has to be a number of micro-batches")
    if part and then != now:
        raise ValueError(f"this state was taken within a step of {then[0]} ranks, {then[2]} micro-batches each: load it into "
                         "such a group, or take it after the last micro-batch of a step")
    if counted and then[0] != now[0]:
        raise ValueError(f"lines below `share` hold records back, so this state goes on only in a group of {then[0]} ranks, "
                         f"not {now[0]}")
    return part


def _shards(segments: Sequence[Segment]) -> bool:
    """Does a line of these, or of pipelines that they read, ask for files to be dealt out."""
    return any(order.op == "shard" for s in reached(segments) for order in s.orders)


class Group:
    """What a loader that is a rank of a group does differently. `own`: its producer makes this rank's records only."""

    def __init__(self, plan: Plan, below: Below, spec: RankSpec, own: bool = False):
        """Raises PipeError E0840 (the lines below `share` make different numbers of batches), E0841 (not `own`)."""
        self.spec, self.deal, self.own = spec, deal(plan, below, spec), own and spec.world > 1
        self.stacks, self.drops_smaller = below.stacks, below.drops_smaller
        if spec.world > 1 and _shards(plan.above):
            warn("`shard()` changes nothing: each rank gets records of its own already, whatever files these lie in; leave the "
                 "line out")
        if self.own:
            check_own(plan, bool(names_in(plan)))

    @property
    def state(self) -> list[int]:
        """What has to be the same where a state within a step is resumed."""
        return [self.spec.world, self.deal.chunk, self.spec.micro_batches]

    @property
    def options(self) -> dict[str, Any]:
        """What an engine of one's own is made with."""
        return {"deal": asdict(self.deal)} if self.own else {}

    def reader(self, source: Source, at: int, length: int | None) -> Dealer:
        """The rank's rows of a reader that stands at position `at` of an epoch of `length` rows, where that is known."""
        left = None if length is None else max(0, length - at)
        if self.own:
            return Masked(source, self.deal, FOREVER - at if left is None else left)
        return reader(source, self.deal, left)

    def batches(self, found: Iterator[tuple[dict[str, Any], Progress]], part: int,
                start: tuple[int, int]) -> Iterator[tuple[dict[str, Any], Progress]]:
        """The batches in micro-batches, from the batch that begins at `start` (next, skip) on, `part` of it left out."""
        return parts(found, self.spec.micro_batches, part, start) if self.spec.micro_batches > 1 else found

    def count(self, rows: int, size: int | None) -> int:
        """What the loop gets of an epoch of `rows` rows, in batches of `size` (None: each row is one)."""
        count = self.deal.batches(rows) if self.stacks else self.deal.rows(rows)
        if size is not None and not self.stacks:
            count = count // size if self.drops_smaller else -(-count // size)
        return count * self.spec.micro_batches
