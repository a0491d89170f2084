"""What goes wrong while data is read: the record, the program line, the reason, the last good position."""
from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field


def warn(text: str) -> None:
    """A warning, at the line of the user's that led to it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pipec."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


@dataclass(frozen=True)
class Where:
    """A place in a program: characters `start` to `end` of `file`."""

    file: str
    start: int
    end: int


class SettingError(ValueError):
    """An environment variable of ours holds what it can't."""


@dataclass
class DataError(Exception):
    """Data can't be used as the program says (E06xx, E08xx). Shown by `dsl.render` like a program's problem.

    `record` names file and member ("n01440764_10026 of train-000017.tar"), `position` its source position; without a
    record it is the one from which a run can be resumed. A loader adds how far the loop got as a note.
    """

    code: str
    title: str
    where: Where | None = None
    label: str = ""
    record: str = ""
    epoch: int | None = None
    position: int | None = None
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        parts = [f"{self.code}: {self.title}"]
        if self.record:
            place = "" if self.position is None else f"position {self.position} of "
            parts.append(f"record {self.record}" + (f", {place}epoch {self.epoch}" if self.epoch is not None else ""))
        else:
            from ..dsl.render import reached

            parts += reached(self.epoch, self.position)
        return "; ".join([*parts, *self.notes])

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.code, self.title, self.where, self.label, self.record, self.epoch, self.position, self.notes)
        return (DataError, fields)
