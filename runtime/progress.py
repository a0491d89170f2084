"""How far a loop has come: what each batch carries beside its fields."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Progress(NamedTuple):
    """Where to resume after a batch; `records` were delivered by it. Where `Below.replays`, `skip` counts batches.

    `part`: that many micro-batches were delivered of the batch that begins here. `ids` u64[records]: the records' ids,
    None where a batch isn't made of the ring's rows. `valid` bool[records]: False for records that only fill up the
    last batch of a rank; None where there are none.
    """

    next: int
    skip: int
    records: int
    part: int = 0
    ids: NDArray[np.uint64] | None = None
    valid: NDArray[np.bool_] | None = None
