"""Where each step below `share()` runs when a loader asks for a device: a plan goes in, a place and the reason come out.

What runs there is decided as `runtime.device` does it: the largest end of the part below `share()` that is kernels alone.
The bytes that are uploaded tell whether that pays: rows travel as they lie in the ring and are widened there.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..runtime.blocks import DTYPES
from ..runtime.onchip import on_device
from ..runtime.placement import first_on_device
from ..runtime.plan import DeviceKernel, Plan, Program, Segment

CPU = "cpu"


@dataclass(frozen=True)
class Placement:
    """The places of the segments below `share()`, and what that does to the bytes uploaded for one record."""

    devices: tuple[str, ...]
    reasons: tuple[str, ...]      # why a segment stays on the CPU


def placed(plan: Plan, device: str | None, place: Mapping[str, str] | None = None) -> Placement:
    """Without a device all run on the CPU. `place` names fields that are made there. Raises ValueError, see `first_on_device`."""
    if device in (None, CPU):
        return Placement((CPU,) * len(plan.below), ())
    kernels = {k.name: k for k in plan.device}
    least = first_on_device(plan, place or {})
    devices, reasons = [CPU] * len(plan.below), []
    for number in reversed(range(len(plan.below))):
        why = f"{', '.join(place or ())} is to be made there" if number < least else stays(plan.below[number], number, kernels)
        if why is not None:
            reasons.append(f"{plan.below[number].start.kind} stays on the CPU: {why}")
            break
        devices[number] = str(device)
    return Placement(tuple(devices), tuple(reasons))


def stays(segment: Segment, number: int, kernels: dict[str, DeviceKernel]) -> str | None:
    """Why a segment can't run on a device; None where it can."""
    program, slots = segment.program, {s.name: s for s in segment.program.slots}
    if segment.start.kind == "sample" or segment.takes:
        return "which records there are is told on the CPU"
    if number > 1 and segment.start.kind != "share":
        return "frames are put together on the CPU"
    if any(slots[slot].dtype not in DTYPES for slot in _seen(program)):
        return "texts and bytes stay where Python's objects are"
    if any(slots[slot].missing for slot in _seen(program)):
        return "fields with gaps have masks beside them"
    if not all(on_device(step, slots, kernels) for step in program.steps):
        return "a step of it is a library call, or a kernel whose memory only running tells"
    return None


def _seen(program: Program) -> list[str]:
    """The slots of what a program reads and of what it makes."""
    return [slot for _, slot in program.inputs] + [slot for _, slot in program.outputs if not slot.startswith("field.")]
