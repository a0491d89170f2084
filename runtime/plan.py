"""Level 2: what the runtime runs. Frozen dataclasses, JSON in an artifact; made by `compiler.lower`.

A plan is a chain of segments, each from the start of a frame (a record, or a batch) to its end. Work on one frame
is a `Program`: slots of memory and steps that fill them. A step runs over a chunk of frames at once.
"""
from collections.abc import Iterable, Iterator
from typing import Any, Union

import msgspec

# No `from __future__ import annotations`: msgspec would have to compile each of them when the first plan is read.


class Slot(msgspec.Struct, frozen=True):
    """Memory of one value in one frame. A dim is a number, or None where it differs from frame to frame.

    dtype "bytes", "text", "path" are Python objects. `missing`: a mask stands beside the values.
    `value` holds the elements of a constant in C order.
    """

    name: str
    dtype: str
    dims: tuple[int | None, ...] = ()
    missing: bool = False
    value: tuple[Any, ...] | None = None

    @property
    def fixed(self) -> bool:
        return self.dtype not in ("bytes", "text", "path") and None not in self.dims


class Site(msgspec.Struct, frozen=True):
    """A place in the program where a record can fail: an E08xx code, its title, and where."""

    number: int
    code: str
    title: str
    file: str
    start: int
    end: int


class Arg(msgspec.Struct, frozen=True):
    """One argument of a kernel: see compiler.loops.Argument."""

    kind: str      # "data" | "mask" | "size"
    slot: str
    axis: int = 0
    writes: bool = False


class RunKernel(msgspec.Struct, frozen=True, tag="kernel"):
    """Fill `outputs` (slots) by a kernel. `memory`: the site of what may take more memory than there is, 0 where nothing may."""

    kernel: str
    args: tuple[Arg, ...]
    outputs: tuple[str, ...]
    memory: int = 0


class CallOperator(msgspec.Struct, frozen=True, tag="call"):
    """Fill `outputs` by an operator's `cpu`, one frame at a time. `args` are slots in the head's order.

    `when`: a slot that tells whether the call is asked for in a frame; a later step for the same outputs fills others.
    """

    op: str
    args: tuple[str, ...]
    outputs: tuple[str, ...]
    site: int
    when: str | None = None


class CallExtern(msgspec.Struct, frozen=True, tag="extern"):
    """Fill `outputs` by the user's function `target`; results are checked against the slots."""

    target: str
    args: tuple[str, ...]
    outputs: tuple[str, ...]
    site: int
    when: str | None = None


class EachArg(msgspec.Struct, frozen=True):
    """One argument of a call made at every place: the element of `slot` at the binders `places`, or all of it (None).

    `default` stands for a missing element.
    """

    slot: str
    places: tuple[int, ...] | None = None
    default: Any = None


class CallEach(msgspec.Struct, frozen=True, tag="each"):
    """Fill `output`, place by place, by an operator's `cpu`. `dims`: numbers, or slots of i64.

    `when` has the dims of the output and tells at which places the call is asked for.
    """

    op: str
    args: tuple[EachArg, ...]
    output: str
    dims: tuple[int | str, ...]
    site: int
    when: str | None = None


class Require(msgspec.Struct, frozen=True, tag="require"):
    """Frames whose `slot` is false leave in silence (kind "where") or are bad (kind "check")."""

    slot: str
    kind: str
    site: int


Step = Union[RunKernel, CallOperator, CallExtern, CallEach, Require]


class Program(msgspec.Struct, frozen=True):
    """Work on one frame. `inputs`: (field, slot) filled before the steps; `outputs`: (field, slot) afterwards.

    Slots with set names, where a kernel asks for them: "@id" i64 record id, "@epoch" i64, "@count" i64
    records in this frame, "@keys" u64[len(draws)] Philox keys of `draws` (paths), "param.NAME" open params.
    """

    slots: tuple[Slot, ...]
    inputs: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str], ...]
    draws: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()


class Order(msgspec.Struct, frozen=True):
    """A change of order: op "shuffle" (chunk, mix, window, key), "take" (n), "repeat" (n, 0 = for ever), "shard",
    "balance" (field, key). It permutes positions, so it commutes with everything about one record."""

    op: str
    options: dict[str, Any] = {}


class Start(msgspec.Struct, frozen=True):
    """What begins a frame.

    kind "source" (kind, paths, options, columns), "ring" (what a consumer reads), "each" (fields), "batch" (has,
    whole, edges, padded: fields padded to the largest, by: the field that holds `by`), "window" (rest, padded), "pack"
    (fields, open, by), "sample" (name, path, times), "mix" (weights, until, key), "zip" (names).
    `number` computes "n", "stride" and "budget" where they are there. `inputs` are the segments of other pipelines.
    """

    kind: str
    options: dict[str, Any] = {}
    number: Program | None = None
    inputs: tuple[tuple["Segment", ...], ...] = ()


class Segment(msgspec.Struct, frozen=True):
    """From the start of a frame to its end: orders of positions, then the program of each frame.

    `takes` are (m, n): of the records for which the first m requirements hold, the first n. `at_most`: the share of
    bad records that is left out; None stops at the first.
    """

    start: Start
    program: Program
    orders: tuple[Order, ...] = ()
    takes: tuple[tuple[int, int], ...] = ()
    at_most: float | None = None

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program,) if self.start.number is None else (self.program, self.start.number)


def reached(segments: Iterable[Segment]) -> Iterator[Segment]:
    """These segments, then those of the pipelines that they read, and so on."""
    waiting = list(segments)
    for segment in waiting:
        yield segment
        for branch in segment.start.inputs:
            waiting += branch


class Column(msgspec.Struct, frozen=True):
    """One field of the ring's rows, or of what a consumer gets: None for a dim that differs."""

    name: str
    dtype: str
    dims: tuple[int | None, ...]
    missing: bool = False


class KernelText(msgspec.Struct, frozen=True):
    """A kernel as Python text for Numba, and the key of its object in the compile cache."""

    name: str
    text: str
    key: str


class DeviceKernel(msgspec.Struct, frozen=True):
    """A kernel as CUDA C (`compiler.emit_cuda`).

    `launches`: (symbol, "one" or "all") in order, one after the other: with a thread for each record, or with threads that
    share a record. `scratch`: bytes for each record, None where only running tells. `steady`: sizes, counts and params alone
    decide whether a record fails and how much memory it takes. `outputs`: slots whose memory it takes itself, in order, each
    from a multiple of 64 on; None where only running tells.
    `sizes`: (slot, axis, how, number) of what it writes: how "const" is the number itself, "size" the argument of that number,
    "number" the one value that this argument points to (the count of records, a param), "" unknown.
    """

    name: str
    text: str
    launches: tuple[tuple[str, str], ...]
    scratch: int | None
    steady: bool = False
    outputs: tuple[str, ...] | None = ()
    sizes: tuple[tuple[str, int, str, int], ...] = ()


class Param(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    value: Any
    help: str
    open: bool


class Plan(msgspec.Struct, frozen=True):
    """A whole program. `above` runs in the producer and ends in the ring's rows; `below` runs in each consumer."""

    name: str
    path: str
    seed: int | None
    params: tuple[Param, ...]
    above: tuple[Segment, ...]
    below: tuple[Segment, ...]
    rows: tuple[Column, ...]      # the ring's columns
    emit: tuple[Column, ...]      # what a consumer gets
    kernels: tuple[KernelText, ...]
    texts: dict[str, str]
    fingerprint: str              # of program, params and seed, and of the files it names
    files: dict[str, str] = {}    # files that operators read: path → hash of the content
    device: tuple[DeviceKernel, ...] = ()   # those kernels of `below` that a GPU may run
    for_device: bool = False      # is the ring cut for loaders on devices: what they widen themselves crosses it narrow
