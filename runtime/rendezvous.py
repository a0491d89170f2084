"""Where servers and those who look for them meet: a folder of the user's with a socket and a lock for each name.

A server holds its name's lock for as long as it lives, so a socket file without one is a dead server's.
"""
from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from .errors import DataError
from .messages import Channel, Gone, Look, Report

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
LONGEST = 107                          # bytes of a Unix socket's path


class Taken(Exception):
    """Another server holds this name."""


def folder() -> Path:
    """`$PIPEC_RUNTIME`, `$XDG_RUNTIME_DIR/pipec` or `/tmp/pipec-UID`; only its owner may enter. Raises DataError E0830."""
    given, runtime = os.environ.get("PIPEC_RUNTIME"), os.environ.get("XDG_RUNTIME_DIR")
    place = Path(given) if given else Path(runtime) / "pipec" if runtime else Path(f"/tmp/pipec-{os.getuid()}")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(place, follow_symlinks=False)
    except OSError as error:
        raise DataError("E0830", f"no place for sockets: `{place}`: {error.strerror}",
                        notes=("set PIPEC_RUNTIME to a folder of yours with a short path",)) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise DataError("E0830", f"no place for sockets: `{place}` is another user's",
                        notes=("set PIPEC_RUNTIME to a folder of yours with a short path",))
    if found.st_mode & 0o077:
        os.chmod(place, 0o700)
    return place


def check_name(name: str) -> str:
    """Raises ValueError for what can't name a server."""
    if not NAME.fullmatch(name):
        raise ValueError(f"name={name!r}: a server's name is letters, digits, `_`, `-` and `.`, 64 at most")
    return name


def socket_path(name: str) -> Path:
    path = folder() / f"{check_name(name)}.sock"
    if len(os.fsencode(path)) > LONGEST:
        raise DataError("E0830", f"no place for sockets: `{path}` is longer than {LONGEST} bytes",
                        notes=("set PIPEC_RUNTIME to a folder of yours with a short path",))
    return path


def lock(name: str, kind: str = "lock", wait: bool = False) -> int:
    """An fd that holds the name until it is closed or its process ends. Raises Taken."""
    fd = os.open(folder() / f"{check_name(name)}.{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        os.close(fd)
        raise Taken(name) from error
    return fd


def listen(name: str) -> socket.socket:
    """A socket at the name, for who holds its lock: one that a dead server left is replaced."""
    path = socket_path(name)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    finally:
        os.umask(old)
    sock.listen(128)
    sock.setblocking(False)
    return sock


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other side."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def connect(name: str) -> socket.socket | None:
    """A connection to the server of this name; None where there is none. Raises DataError for another user's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(os.fspath(socket_path(name)))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise DataError("E0830", f"the server `{name}` can't be reached: {error.strerror}", notes=(
            f"its socket is `{socket_path(name)}`", "`pipec ps` lists the servers of this user and machine")) from error
    except BaseException:
        sock.close()
        raise
    if peer(sock)[1] != os.getuid():
        sock.close()
        raise DataError("E0830", f"the server `{name}` is another user's", notes=(
            "consumers and their server have to be one user's: serve it yourself, or run the training as that user",))
    return sock


def other_version(name: str, server: str = "", consumer: str = "") -> DataError:
    """The error where a consumer and the server of this name don't speak the same language."""
    told = f"it is of {server}" + (f", the consumer of {consumer}" if consumer else "")
    return DataError("E0830", f"the server `{name}` is of another version of pipec than this consumer", notes=(
        *([told] if server else []), f"`pipec stop {name}`, and serve again with the version that the trainings use"))


def names() -> list[str]:
    """Names with a socket, of living servers or dead ones."""
    return sorted(p.stem for p in folder().glob("*.sock") if NAME.fullmatch(p.stem))


def look(name: str, seconds: int = 2) -> Report | None:
    """What the server of this name says; None where none answers."""
    sock = connect(name)
    if sock is None:
        return None
    channel = Channel(sock, send_seconds=seconds)
    answers_within(sock, seconds)
    try:
        channel.send(Look())
        answer = channel.receive(wait=True)
        return answer if isinstance(answer, Report) else None
    except Gone:
        return None
    finally:
        channel.close()


def answers_within(sock: socket.socket, seconds: int) -> None:
    """Who waits for a message gets none after this time."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def process_of(name: str) -> int | None:
    """Of the server of this name, also where it doesn't answer; None where there is none."""
    sock = connect(name)
    if sock is None:
        return None
    with sock:
        return peer(sock)[0]


def reports() -> Iterator[Report]:
    """Of all servers that answer."""
    for name in names():
        report = look(name)
        if report is not None:
            yield report
