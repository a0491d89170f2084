"""Which segments below `share()` run on a device when a loader asks for one: a plan goes in, the first of them and a reason out.

What runs there is the largest end of the part below `share()` that is kernels alone.
"""
from __future__ import annotations

from collections.abc import Mapping

from .below import one_by_one
from .blocks import DTYPES
from .onchip import on_device
from .plan import DeviceKernel, Plan, Program, RunKernel, Segment


def begins(plan: Plan, place: Mapping[str, str]) -> tuple[int, str]:
    """The number of the first segment on the device (`len(plan.below)`: none is), and why the one before stays on the CPU.

    Raises ValueError, see `first_on_device`.
    """
    kernels = {k.name: k for k in plan.device}
    least, count = first_on_device(plan, place), len(plan.below)
    apart = one_by_one(plan, lambda step, slots: on_device(step, slots, kernels))
    if apart is not None:
        return count, apart
    begin, why = count, None
    while begin and why is None:
        number = begin - 1
        why = f"{', '.join(place)} is to be made there" if number < least else stays(plan.below[number], number, kernels)
        begin -= why is None
    if begin and begin < count:
        apart = one_by_one(plan, lambda step, _: isinstance(step, RunKernel))
        if apart is not None:
            return count, f"{why}, and {apart}"
    return begin, why or ""


def stays(segment: Segment, number: int, kernels: Mapping[str, DeviceKernel]) -> str | None:
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


def first_on_device(plan: Plan, place: Mapping[str, str]) -> int:
    """The number of the first segment below `share()` that stands after all that make fields which `place` keeps on the CPU.

    What is made of these fields in later segments (behind `batch`, say) runs on the device. Raises ValueError for a name that no
    line below `share()` makes, and for another place than "cpu".
    """
    made = {name: number for number, segment in enumerate(plan.below) for name, slot in segment.program.outputs
            if not slot.startswith("field.")}
    for name, where in place.items():
        if name not in made:
            raise ValueError(f"place: `{name}` isn't made below `share()`; what can be placed: " + (", ".join(made) or "nothing"))
        if where != "cpu":
            raise ValueError(f'place: `{name}` can be kept on the "cpu", not {where!r}; what isn\'t named goes to the device')
    return max((made[name] + 1 for name in place), default=0)
