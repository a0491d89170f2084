"""The C extension that writes and takes batches (`giver.c`, `handover.c`), where it is built; `ring`, `attach` and `lease` do
the same without it, slower."""
from __future__ import annotations

from functools import cache
from typing import Any

from ..kernels.extensions import built
from .layout import (
    ENDS,
    GENERATION,
    HEAD,
    HEAP_WANTED,
    HOLDER,
    INTACT,
    POSITION,
    RELEASED,
    ROOM_WANTED,
    RUN,
    SINCE,
    TAKEN,
    WAITED,
    WANTED,
)

WORDS = ((HEAD, ENDS, ROOM_WANTED, HEAP_WANTED, INTACT, RUN, HOLDER),
         (RELEASED, POSITION, WANTED, GENERATION, WAITED, SINCE, TAKEN))


@cache
def handover() -> Any | None:
    """The extension, None where it isn't built, or was for another layout of the ring's words."""
    made = built(__package__, "_handover")
    return made if made is not None and made.WORDS == WORDS else None
