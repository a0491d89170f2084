"""`pipec show`: what a program delivers, as a contact sheet, or every field of one record as text."""
from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import UsageError, settings_of, split_file


def show(arguments: argparse.Namespace) -> int:
    if arguments.record is not None:
        return _record(arguments)
    from .sheet import contact_sheet

    records = list(_records(arguments))
    if not records:
        print("no records")
        return 1
    picture = contact_sheet(records)
    try:
        picture.save(arguments.output, "PNG")
    except (OSError, ValueError) as error:
        raise UsageError(f"`{arguments.output}` can't be written: {error}") from None
    print(f"{arguments.output}: {len(records)} records")
    return 0


def _records(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The first n records as compiled code delivers them, batches taken apart."""
    from ..runtime.loader import open as open_loader

    if arguments.n < 1:
        raise UsageError("-n is 1 or more")
    path, pipeline = split_file(arguments.file)
    loader = open_loader(path, threads=arguments.threads, as_="numpy", memory=arguments.memory, run=pipeline,
                         allow_extern=arguments.allow_extern, **settings_of(arguments.settings))
    left = arguments.n
    with loader:
        loader.set_epoch(arguments.epoch)
        for batch in loader:
            for record in apart(batch._asdict()):
                yield {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in record.items()}
                left -= 1
                if left == 0:
                    return


def apart(batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of a batch; fields that don't have the batch's first dimension go with each."""
    sizes = [len(v) for v in batch.values() if isinstance(v, list) or np.ndim(v)]
    if not sizes or len(set(sizes)) > 1 or all(np.ndim(v) == 3 for v in batch.values() if np.ndim(v)):
        yield dict(batch)
        return
    for i in range(sizes[0]):
        yield {name: v[i] if isinstance(v, list) or np.ndim(v) else v for name, v in batch.items()}


def _record(arguments: argparse.Namespace) -> int:
    """All fields of one record before, between and after the program's lines, by the reference evaluator."""
    from ..compiler.check import check
    from ..compiler.evaluate import record

    path, pipeline = split_file(arguments.file)
    program = check(path, settings_of(arguments.settings), pipeline)
    fields = record(program, arguments.record, arguments.epoch)
    wanted = arguments.field or list(fields)
    for name in wanted:
        if name not in fields:
            raise UsageError(f"there is no field `{name}`; there are: {', '.join(fields)}")
        print(f"{name}: {described(fields[name])}")
    for name in arguments.field or ():
        from .sheet import as_image

        image = as_image(np.asarray(fields[name])) if isinstance(fields[name], np.ndarray) else None
        if image is not None:
            goal = Path(arguments.output if arguments.output != "sheet.png" else f"{name}.png")
            image.save(goal, "PNG")
            print(f"  written to {goal}")
    return 0


def described(value: Any) -> str:
    """A value in one or two lines: type, range and the first elements."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes, {value[:16]!r}…"
    if isinstance(value, str):
        return repr(value if len(value) < 200 else value[:200] + "…")
    array: NDArray[Any] = np.asarray(value)
    if array.ndim == 0:
        return f"{array.dtype} {array}"
    shape = "×".join(map(str, array.shape))
    if array.size == 0:
        return f"{array.dtype} [{shape}]"
    head = ", ".join(f"{v:.6g}" if array.dtype.kind == "f" else str(v) for v in array.ravel()[:8])
    wide = array.astype(np.float64) if array.dtype.kind not in "bOSU" else None
    spread = f", {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}" if wide is not None else ""
    return f"{array.dtype} [{shape}]{spread}: {head}{' …' if array.size > 8 else ''}"
