"""Where each step below `share()` runs when a loader asks for a device: a plan goes in, a place and the reason come out.

What runs there is what `runtime.placement` tells the loader. The bytes that are uploaded tell whether that pays: rows travel as
they lie in the ring and are widened there.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..runtime.placement import begins
from ..runtime.plan import Plan

CPU = "cpu"


@dataclass(frozen=True)
class Placement:
    """The places of the segments below `share()`, and what that does to the bytes uploaded for one record."""

    devices: tuple[str, ...]
    reasons: tuple[str, ...]      # why a segment stays on the CPU


def placed(plan: Plan, device: str | None, place: Mapping[str, str] | None = None) -> Placement:
    """Without a device all run on the CPU. `place` names fields that are made there. Raises ValueError, see `begins`."""
    count = len(plan.below)
    if device in (None, CPU):
        return Placement((CPU,) * count, ())
    begin, why = begins(plan, place or {})
    names = [plan.below[k].start.kind for k in range(begin)] if begin < count else []
    what = names[-1] if names else "what stands below share()"
    reasons = (f"{what} stays on the CPU: {why}",) if why else ()
    return Placement((CPU,) * begin + (str(device),) * (count - begin), reasons)
