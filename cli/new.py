"""`pipec new DATA`: a first program for some data, with the schema read off it."""
from __future__ import annotations

import argparse
import glob
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..dsl.failure import KEYWORDS
from ..dsl.format import format_text
from ..kernels.sources import DAMAGE
from . import UsageError
from .newtables import ENDINGS, columns_of, kind_of

TAKEN = KEYWORDS | frozenset(("root", "size", "batch_size", "seed", "train", "image", "crop", "flip", "epoch", "Record"))
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
    kind = kind_of(path)
    if kind is not None and path.exists():
        found = _rows(kind, path)
    elif path.is_dir():
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
        raise UsageError(f"`{data}`: a program can be written for tar shards, class folders, .npz, .npy and tables"
                         f" ({' '.join(ENDINGS)}); records of `bin` don't say what they hold: write a schema")
    return _text(found)


def _rows(kind: str, path: Path) -> Found:
    options, pattern, columns, image = columns_of(kind, path)
    names = _fields([n for n, _ in columns])
    root, base = (path, pattern) if pattern else (path.parent, path.name)
    return Found(f"{kind}({_under_root(base)}{options})", str(root), tuple((names[n], t, n) for n, t in columns),
                 None if image is None else names[image])


def _tar(pattern: str, first: str) -> Found:
    from ..kernels.tar import scan

    shard = scan(first)
    if not shard.offsets:
        raise UsageError(f"`{first}` has no samples: {next(iter(shard.faults.values()), 'it is empty')}")
    columns, image = [], None
    for name, field in _fields(list(shard.offsets)).items():
        columns.append((field, _member_type(first, shard.offsets[name], shard.sizes[name], name), name))
        if image is None and name.rpartition(".")[2] in IMAGES:
            image = field
    folder, base = os.path.split(pattern)
    return Found(f"tar({_under_root(base)})", folder or ".", tuple(columns), image)


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


def _fields(names: Sequence[str]) -> dict[str, str]:
    """A field name for each name in the data: a word of its own that nothing else in the program has."""
    out: dict[str, str] = {}
    for name in names:
        field = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).strip("_")
        field = field if field and not field[0].isdigit() else f"m_{field}".rstrip("_")
        while field in TAKEN or field in out.values():
            field += "_"
        out[name] = field
    return out


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
        arrays = _headers(path)
    except (OSError, *DAMAGE) as error:
        raise UsageError(f"`{path}` can't be read: {error}") from None
    columns = []
    lengths = [shape[0] for shape, _ in arrays.values() if shape]
    fields = _fields(list(arrays))
    for name, (shape, stored) in arrays.items():
        kind = stored.name.rstrip("0123456789")
        if not shape or shape[0] != lengths[0] or kind not in words or set(name) & set("{|"):
            continue
        dtype = "bool" if kind == "bool" else words[kind] + str(8 * stored.itemsize)
        dims = f"[{', '.join(map(str, shape[1:]))}]" if len(shape) > 1 else ""
        columns.append((fields[name], dtype + dims, name))
    if not columns:
        raise UsageError(f"`{path}` holds no arrays of numbers of one length")
    kind = "npy" if path.suffix == ".npy" else "npz"
    return Found(f"{kind}({_under_root(path.name)})", str(path.parent), tuple(columns), None)


def _under_root(base: str) -> str:
    if "{" in base:
        raise UsageError(f"`{base}`: rename it, a text of the language can't hold its braces")
    return _quoted("{root}/" + base)


def _root(folder: str) -> str:
    if "{" in folder:
        return "param root: path          # set it: a text of the language can't hold the braces of this folder's name"
    return f"param root: path = {_quoted(folder)}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def _headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of each array, without reading it."""
    if path.suffix == ".npy":
        with open(path, "rb") as file:
            return {"x": _header(file)}
    out = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                out[name.removesuffix(".npy")] = _header(file)
    return out


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _text(found: Found) -> str:
    lines = ["# Written by `pipec new`; look at it with `pipec show`, then change it.", "",
             _root(os.path.abspath(found.root))]
    if found.image:
        lines.append("param size = 224          # side of the square crop, in pixels")
    lines += ["param batch_size = 64", "", "seed 0", "", "schema Record"]
    for field, type_text, name in found.columns:
        lines.append(f"  {field}: {type_text}" + (f" from {_quoted(name)}" if name != field else ""))
    lines += ["", "pipeline train", f"  from {found.call} as Record", "  shuffle()"]
    gaps = [(f, t) for f, t, _ in found.columns if "?" in t]
    ragged = [(f, t) for f, t, _ in found.columns if "_" in t and t[:4] not in ("text", "byte")]
    lines += [_filled(f, t) for f, t in gaps if "_" not in t and t[:4] != "byte"]
    if found.image:
        lines += [f"  image = decode_image({found.image})", "  crop ~ random_resized_crop(image, size, size)",
                  "  flip ~ bernoulli(0.5)", "  image = mirror(crop, flip)"]
    numbers = [f for f, t, _ in found.columns if t[:4] not in ("text", "byte")]
    texts = [f for f, t, _ in found.columns if t[:4] == "text" and "_" not in t]
    emitted = (["image"] if found.image else []) + numbers + texts
    lines += ["  share()", f"  batch(batch_size{', pad=true' if ragged else ''})"]
    lines += [_filled(f, t) for f, t in ragged]
    lines.append(f"  emit {', '.join(emitted or [found.columns[0][0]])}")
    text = "\n".join(lines) + "\n"
    return format_text(text, "new.pipe")


def _filled(field: str, type_text: str) -> str:
    """The line that says what stands where a value is missing."""
    return f"  {field} = {field} ?? " + {"text": '""', "bool": "false"}.get(type_text[:4], "0")
