"""`pipec show`: what a program delivers, as a contact sheet, or every field of one record as text."""
from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from . import UsageError, writable
from .run import checked_program, makes_batches, open_program


def show(arguments: argparse.Namespace) -> int:
    if arguments.record is not None:
        return _record(arguments)
    if arguments.field:
        raise UsageError("--field goes with --record")
    from .sheet import contact_sheet

    output = arguments.output or "sheet.png"
    writable(output, "a PNG file")
    records = list(_records(arguments))
    if not records:
        print("no records")
        return 1
    _save(contact_sheet(records), output)
    print(f"{output}: {len(records)} record{'s' if len(records) > 1 else ''}")
    return 0


def _save(picture: Image.Image, path: str) -> None:
    try:
        picture.save(path, "PNG")
    except OSError as error:
        raise UsageError(f"`{path}` can't be written: {error.strerror or error}") from None


def _records(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The first n records as compiled code delivers them, batches taken apart."""
    left = arguments.n
    with open_program(arguments) as loader:
        loader.set_epoch(arguments.epoch)
        batched = makes_batches(loader.plan)
        for batch in loader:
            fields = batch._asdict()
            for record in apart(fields) if batched else (fields,):
                yield {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in record.items()}
                left -= 1
                if left == 0:
                    return


def apart(batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of a batch; fields that don't have the batch's first dimension go with each."""
    sizes = [len(v) for v in batch.values() if isinstance(v, list) or np.ndim(v)]
    if not sizes:
        yield dict(batch)
        return
    count = max(set(sizes), key=sizes.count)
    for i in range(count):
        yield {name: v[i] if (isinstance(v, list) or np.ndim(v)) and len(v) == count else v for name, v in batch.items()}


def _record(arguments: argparse.Namespace) -> int:
    """All fields of one record before, between and after the program's lines, by the reference evaluator."""
    from ..compiler.evaluate import made_record, named_record

    program = checked_program(arguments)
    try:
        made = made_record(program, arguments.record, arguments.epoch)
        name, fields = made or named_record(program, arguments.record, arguments.epoch)
    except LookupError as error:
        raise UsageError(str(error)) from None
    wanted = arguments.field or list(fields)
    for field in wanted:
        if field not in fields:
            raise UsageError(f"there is no field `{field}`; there are: {', '.join(fields)}")
    print(f"{'record' if made else 'position'} {arguments.record:,} of epoch {arguments.epoch}: {name}")
    width = max(len(field) for field in wanted)
    for field in wanted:
        print(f"  {field:<{width}}  {described(fields[field])}")
    for field in arguments.field or ():
        _write_field(field, fields[field], arguments)
    return 0


def _write_field(name: str, value: Any, arguments: argparse.Namespace) -> None:
    from .sheet import as_image

    image = as_image(np.asarray(value)) if isinstance(value, np.ndarray) else None
    if image is not None:
        goal = arguments.output if arguments.output and len(arguments.field) == 1 else f"{name}.png"
        writable(goal, "a PNG file")
        _save(image, goal)
        print(f"`{name}` as an image: {goal}")


def described(value: Any) -> str:
    """A value in one line: type, range and the first elements; `?` where one is missing."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {value[:12].hex(' ')}{' …' if len(value) > 12 else ''}"
    if isinstance(value, str):
        return repr(str(value) if len(value) < 200 else value[:200] + "…")   # NumPy's texts show their type
    if value is None:
        return "missing"
    array: NDArray[Any] = np.ma.asarray(value) if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    if array.dtype.kind in "OUS":
        return ", ".join(_text(v) for v in array.ravel()[:4]) + (" …" if array.size > 4 else "")
    dtype = type_name(array.dtype)
    if array.ndim == 0:
        return f"{dtype} {_number(array)}"
    head = f"{dtype}[{', '.join(map(str, array.shape))}]"
    if array.size == 0:
        return head
    first = ", ".join(_number(v) for v in array.ravel()[:6]) + (" …" if array.size > 6 else "")
    if array.dtype.kind == "b" or array.size <= 6:
        return f"{head}  {first}"
    wide = array.astype(np.float64)
    return f"{head}  {_number(array.min())} to {_number(array.max())}, mean {wide.mean():.4g}: {first}"


def _text(value: Any) -> str:
    return "?" if value is None or value is np.ma.masked else described(value)


def _number(value: Any) -> str:
    if value is np.ma.masked or np.ma.is_masked(value):
        return "?"
    item = np.asarray(value)
    if item.dtype.kind == "b":
        return "true" if item else "false"
    return f"{float(item):.4g}" if item.dtype.kind == "f" or item.dtype.name == "bfloat16" else str(item)


def type_name(dtype: np.dtype[Any]) -> str:
    """A dtype as programs write it."""
    if dtype.name == "bfloat16":
        return "bf16"
    return "bool" if dtype.kind == "b" else f"{dtype.kind}{8 * dtype.itemsize}"
