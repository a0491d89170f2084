"""Level 2: what the runtime runs. Frozen dataclasses, JSON in an artifact; made by `compiler.lower`.

A plan is a chain of stages. Work on one frame (a record, or a batch) is a `Program`: slots of memory and
steps that fill them. A step runs over a chunk of frames at once.
"""
from __future__ import annotations

from typing import Any, Union

import msgspec


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
    """Fill `outputs` (slots) by a kernel; `fresh` are those outputs that the executor must allocate first."""

    kernel: str
    args: tuple[Arg, ...]
    outputs: tuple[str, ...]


class CallOperator(msgspec.Struct, frozen=True, tag="call"):
    """Fill `outputs` by an operator's `cpu`, one frame at a time. `args` are slots in the head's order."""

    op: str
    args: tuple[str, ...]
    outputs: tuple[str, ...]
    site: int


class CallExtern(msgspec.Struct, frozen=True, tag="extern"):
    """Fill `outputs` by the user's function `target`; results are checked against the slots."""

    target: str
    args: tuple[str, ...]
    outputs: tuple[str, ...]
    site: int


class Require(msgspec.Struct, frozen=True, tag="require"):
    """Frames whose `slot` is false leave in silence (kind "where") or are bad (kind "check")."""

    slot: str
    kind: str
    site: int


Step = Union[RunKernel, CallOperator, CallExtern, Require]


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


class Stage(msgspec.Struct, frozen=True):
    """One stage of a stream. `kind` is the graph's stream op, or "program", or "ring" (what a consumer reads).

    `options` are the stage's constants by name; values that depend on open params are slots of a program.
    """

    kind: str
    inputs: tuple[Stage, ...] = ()
    options: dict[str, Any] = {}
    program: Program | None = None
    span: tuple[str, int, int] | None = None


class Column(msgspec.Struct, frozen=True):
    """One emitted field: dims without the batch's own first dimension where `stacked`."""

    name: str
    dtype: str
    dims: tuple[int | None, ...]
    missing: bool = False


class KernelText(msgspec.Struct, frozen=True):
    """A kernel as Python text for Numba, and the key of its object in the compile cache."""

    name: str
    text: str
    key: str


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
    above: Stage
    below: Stage
    rows: tuple[Column, ...]      # the ring's columns
    emit: tuple[Column, ...]      # what a consumer gets
    kernels: tuple[KernelText, ...]
    texts: dict[str, str]
    fingerprint: str              # of program, params and seed
