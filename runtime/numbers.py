"""The sizes that a stage is given as expressions of params and `epoch`: n, stride, budget."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import DataError, Where
from .execute import Kernel, Runner
from .plan import Start


class Numbers:
    """The numbers of one stage."""

    def __init__(self, start: Start, kernels: Mapping[str, Kernel], params: Mapping[str, Any]):
        self.start = start
        self.runner = Runner(start.number, kernels, params) if start.number else None

    def at(self, epoch: int) -> dict[str, int]:
        """Their values in an epoch, by name. Raises DataError E0804 where one is below 1."""
        if self.runner is None:
            return {}
        self.runner.start_epoch(epoch, [])
        frames = self.runner.frames(1, np.zeros(1, np.uint64))
        self.runner.run(frames)
        out = {}
        for name, slot in self.runner.program.outputs:
            out[name] = int(self.runner.value(frames, slot, 0))
            if out[name] < 1:
                span = self.start.options.get("span")
                raise DataError("E0804", f"`{name}` of `{self.start.kind}` is {out[name]}, it must be 1 or more",
                                Where(*span) if span else None, epoch=epoch)
        return out
