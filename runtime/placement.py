"""What users keep on the CPU though a loader asks for a device: names of fields in, the first segment that may run there out."""
from __future__ import annotations

from collections.abc import Mapping

from .plan import Plan


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
