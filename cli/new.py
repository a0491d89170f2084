"""`pipec new DATA`: a first program for some data, with the schema read off it."""
from __future__ import annotations

import argparse
import glob
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import UsageError

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")


@dataclass(frozen=True)
class Found:
    """What the data is: the source line's call, the schema's columns, the field that holds an image."""

    call: str
    root: str
    columns: tuple[tuple[str, str, str], ...]   # (field, type, name in the data)
    image: str | None
    classes: int | None = None


def new(arguments: argparse.Namespace) -> int:
    text = program_for(arguments.data)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        with open(arguments.output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"`{arguments.output}` exists already") from None
    except OSError as error:
        raise UsageError(f"`{arguments.output}` can't be written: {error.strerror}") from None
    print(f"{arguments.output}: try `pipec show {arguments.output}`")
    return 0


def program_for(data: str) -> str:
    """The text of the program. Raises UsageError where nothing is found that a source can read."""
    path = Path(os.path.expanduser(data))
    if path.is_dir():
        tars = sorted(path.glob("*.tar"))
        found = _tar(str(path / "*.tar"), str(tars[0])) if tars else _folder(path)
    elif glob.has_magic(data) or path.suffix == ".tar":
        matched = sorted(glob.glob(os.path.expanduser(data)))
        if not matched:
            raise UsageError(f"no file matches `{data}`")
        found = _tar(os.path.expanduser(data), matched[0])
    elif path.suffix in (".npz", ".npy"):
        found = _arrays(path)
    elif not path.exists():
        raise UsageError(f"there is no `{data}`")
    else:
        raise UsageError(f"`{data}`: a program can be written for tar shards, class folders, .npz and .npy")
    return _text(found)


def _tar(pattern: str, first: str) -> Found:
    from ..kernels.tar import scan

    shard = scan(first)
    if not shard.offsets:
        raise UsageError(f"`{first}` has no samples: {next(iter(shard.faults.values()), 'it is empty')}")
    columns, image = [], None
    for name in shard.offsets:
        field = _field_name(name)
        columns.append((field, _member_type(first, shard.offsets[name], shard.sizes[name], name), name))
        if image is None and name.rpartition(".")[2] in IMAGES:
            image = field
    folder, base = os.path.split(pattern)
    return Found(f'tar("{{root}}/{base}")', folder or ".", tuple(columns), image)


def _member_type(path: str, offsets: list[int], sizes: list[int], name: str) -> str:
    """cls and the like hold a number, txt a text; everything else is bytes."""
    place = next(i for i, s in enumerate(sizes) if s >= 0)
    with open(path, "rb") as file:
        file.seek(offsets[place])
        data = file.read(min(sizes[place], 64))
    last = name.rpartition(".")[2]
    if last in ("cls", "cls2", "id", "index") and data.strip().lstrip(b"-").isdigit():
        return "i64"
    if last in ("txt", "text", "caption", "json"):
        return "text"
    return "bytes"


def _field_name(name: str) -> str:
    field = "".join(c if c.isalnum() else "_" for c in name).strip("_")
    return field if field and not field[0].isdigit() else f"m_{field}"


def _folder(path: Path) -> Found:
    from ..kernels.folder import FolderSource
    from ..kernels.sources import SourceError

    try:
        source = FolderSource((str(path),), {}, (("photo", (("file",),), "bytes"),))
    except SourceError as error:
        raise UsageError(f"{error.title}; {'; '.join(error.notes)}") from None
    columns = (("photo", "bytes", "file"), ("label", "i64", "class"))
    return Found('folder("{root}")', str(path), columns, "photo", len(source.classes))


def _arrays(path: Path) -> Found:
    words = {"uint": "u", "int": "i", "float": "f", "bool": "bool"}
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else {n: loaded[n] for n in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        raise UsageError(f"`{path}` can't be read: {error}") from None
    columns = []
    lengths = [a.shape[0] for a in arrays.values() if a.ndim]
    for name, array in arrays.items():
        kind = array.dtype.name.rstrip("0123456789")
        if not array.ndim or array.shape[0] != lengths[0] or kind not in words:
            continue
        dtype = "bool" if kind == "bool" else words[kind] + str(8 * array.dtype.itemsize)
        dims = f"[{', '.join(map(str, array.shape[1:]))}]" if array.ndim > 1 else ""
        columns.append((_field_name(name), dtype + dims, name))
    if not columns:
        raise UsageError(f"`{path}` holds no arrays of numbers of one length")
    kind = "npy" if path.suffix == ".npy" else "npz"
    return Found(f'{kind}("{{root}}/{path.name}")', str(path.parent), tuple(columns), None)


def _text(found: Found) -> str:
    lines = ["# Written by `pipec new`; look at it with `pipec show`, then change it.", "",
             f'param root: path = "{os.path.abspath(found.root)}"']
    if found.image:
        lines.append("param size = 224          # side of the square crop, in pixels")
    lines += ["param batch_size = 64", "", "seed 0", "", "schema Record"]
    for field, type_text, name in found.columns:
        lines.append(f"  {field}: {type_text}" + (f' from "{name}"' if name != field else ""))
    lines += ["", "pipeline train", f"  from {found.call} as Record", "  shuffle()"]
    emitted = [f for f, t, _ in found.columns if t not in ("bytes", "text")]
    if found.image:
        lines += [f"  image = decode_image({found.image})", "  crop ~ random_resized_crop(image, size, size)",
                  "  flip ~ bernoulli(0.5)", "  image = mirror(crop, flip)"]
        emitted = ["image", *emitted]
    emitted += [f for f, t, _ in found.columns if t == "text"]
    lines += ["  share()", "  batch(batch_size)", f"  emit {', '.join(emitted or [found.columns[0][0]])}"]
    return "\n".join(lines) + "\n"
