"""Where indexes of data files are kept in the user's cache: one file for each state of a data file."""
from __future__ import annotations

import hashlib
import os
from collections.abc import Callable


def folder() -> str:
    """The user's cache: `$PIPEC_CACHE`, else `$XDG_CACHE_HOME/pipec`, else `~/.cache/pipec`."""
    own = os.environ.get("PIPEC_CACHE")
    return own or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pipec")


def place(kind: str, identity: str, about: str) -> str:
    """The index's path: another one when what identifies the data file (path, size, time, …), or `about`, changes."""
    name = f"{about}\0{identity}"
    return os.path.join(folder(), kind, hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest())


def put(path: str, write: Callable[[str], None]) -> None:
    """Keep a file there, whole or not at all; `write` gets the path to write to. The cache only saves time: no errors."""
    temporary = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
