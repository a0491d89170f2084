"""What consumer and server have to agree on beside the release of pipec, as one short text that changes when it does."""
from __future__ import annotations

import hashlib
from functools import cache
from types import ModuleType
from typing import Any

import msgspec

from .. import __version__
from . import layout, messages, plan


@cache
def wire_version() -> str:
    """Of this process: the release, and a digest of messages, plans and the words of shared memory."""
    seen = repr([shape(module) for module in (messages, layout, plan)])
    return f"{__version__}/{hashlib.blake2b(seen.encode(), digest_size=6).hexdigest()}"


def shape(module: ModuleType) -> list[tuple[str, Any]]:
    """A module's structs with their fields' types, and its numbers."""
    found: list[tuple[str, Any]] = []
    for name, value in sorted(vars(module).items()):
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            found.append((name, [(field, value.__annotations__.get(field)) for field in value.__struct_fields__]))
        elif name.isupper() and isinstance(value, int):
            found.append((name, value))
    return found
