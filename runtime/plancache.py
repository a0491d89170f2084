"""Plans of programs that haven't changed: found again without lark, numba or the compiler.

An entry is a plan under an HMAC with the user's key. It counts only while every file that the
program was made of holds the same text, and this version of pipec made it.
"""
import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from . import caches
from .objects import folder, holds, own, target, user_key
from .plan import Plan

LARGEST = 64 << 20
LARGE = 1 << 20   # bytes of a file that isn't read at every start


class File(msgspec.Struct, frozen=True):
    """What a file held, and what `stat` said of it."""

    hash: str
    size: int
    mtime: int
    inode: int


class Entry(msgspec.Struct):
    """A plan and the files it depends on."""

    files: dict[str, File]
    plan: Plan


@cache
def version() -> bytes:
    """Tells builds of pipec apart, also in a checkout that is being edited."""
    root = Path(__file__).parent.parent
    made = hashlib.blake2b(digest_size=16)
    for part in ("dsl", "compiler", "kernels", "runtime"):
        for path in sorted((root / part).iterdir()):
            if path.suffix in (".py", ".pipe", ".lark"):
                info = path.stat()
                made.update(f"{path.name}\0{info.st_size}\0{info.st_mtime_ns}\0".encode())
    return made.digest()


def _path(path: str, overrides: Mapping[str, Any], run: str | None, on_device: bool) -> Path:
    told = repr((os.path.abspath(path), sorted((k, repr(v)) for k, v in overrides.items()), run, on_device))
    return _place(told)


def _made(identity: str, for_device: bool) -> Path:
    return _place(f"artifact {identity} {for_device}")


def _place(told: str) -> Path:
    name = hashlib.blake2b(version() + target().tag() + told.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
    return folder() / "plans" / own(name)


def content_hash(path: str) -> str:
    """Of a file's bytes; "" where it can't be read."""
    made = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                made.update(block)
    except OSError:
        return ""
    return made.hexdigest()


def _seen(path: str, known: str = "") -> File:
    """A file as it is now; `known` is its hash where that has just been found."""
    try:
        info = os.stat(path)
        return File(known or content_hash(path), info.st_size, info.st_mtime_ns, info.st_ino)
    except OSError:
        return File("", 0, 0, 0)


def _unchanged(path: str, before: File) -> bool:
    """Does it hold what it held; a large one is taken to, where size, time and inode are the same."""
    try:
        info = os.stat(path)
    except OSError:
        return False
    same = (info.st_size, info.st_mtime_ns, info.st_ino) == (before.size, before.mtime, before.inode)
    return before.hash != "" and ((same and before.size > LARGE) or content_hash(path) == before.hash)


def _mac(content: bytes) -> bytes:
    return hmac.new(user_key(), b"pipec plan\0" + content, hashlib.sha256).digest()


def find(path: str, overrides: Mapping[str, Any], run: str | None, on_device: bool = False) -> Plan | None:
    """The kept plan of a program, None where there is none or a file has changed. `on_device`: that of one loader that asks
    for a device."""
    return _found(_path(path, overrides, run, on_device))


def keep(path: str, overrides: Mapping[str, Any], run: str | None, plan: Plan, on_device: bool = False) -> None:
    """Keep a program's plan. Failing to (a full disk, a folder that can't be written) costs time only."""
    texts = {name: _seen(name) for name in plan.texts if os.path.exists(name)}
    _keep(_path(path, overrides, run, on_device), Entry(_files(plan) | texts, plan))


def find_made(identity: str, for_device: bool = False) -> Plan | None:
    """The kept plan of what an artifact's graph was compiled to here. `for_device`: cut for loaders on devices."""
    return _found(_made(identity, for_device))


def keep_made(identity: str, plan: Plan, for_device: bool = False) -> None:
    _keep(_made(identity, for_device), Entry(_files(plan), plan))


def _files(plan: Plan) -> dict[str, File]:
    return {path: _seen(path, known) for path, known in plan.files.items()}


def _found(place: Path) -> Plan | None:
    try:
        with open(place, "rb") as file:
            content = file.read(LARGEST)
        if len(content) < 32 or not hmac.compare_digest(content[:32], _mac(content[32:])):
            return None
        entry = msgspec.msgpack.decode(content[32:], type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None
    if not all(_unchanged(name, before) for name, before in entry.files.items()):
        return None
    if not all(holds(k.key) for k in entry.plan.kernels):
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return entry.plan


def _keep(goal: Path, entry: Entry) -> None:
    content = msgspec.msgpack.encode(entry)
    with contextlib.suppress(OSError):
        goal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = goal.with_name(f".{goal.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(_mac(content) + content)
        os.replace(temporary, goal)
    caches.bound()
