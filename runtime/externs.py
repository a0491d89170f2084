"""Python code of the user's that a program calls: refused where the run doesn't allow it."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .plan import CallExtern, Plan, reached

if TYPE_CHECKING:
    from ..dsl.problems import PipeError, Span  # loaded where there is something to say


def refuse_externs(plan: Plan, below_only: bool = False) -> None:
    """Raise PipeError E0811 where the plan calls the user's Python and the run doesn't allow it."""
    segments = reached(plan.below if below_only else (*plan.above, *plan.below))
    for program in (p for s in segments for p in s.programs):
        for step in program.steps:
            if isinstance(step, CallExtern):
                from ..dsl.problems import Span

                site = next((s for s in program.sites if s.number == step.site), None)
                span = Span(site.file, site.start, site.end) if site else None
                raise extern_refused(step.target, span, plan.path, plan.texts)


def extern_refused(target: str, span: Span | None, path: str, texts: Mapping[str, str]) -> PipeError:
    """E0811: the program calls `target`, and nobody said that it may."""
    from ..dsl.problems import PipeError, Problem, Span

    return PipeError((Problem(
        "E0811", f"this program runs Python code, `{target}`, and this run doesn't allow it", span or Span(path, 0, 0),
        notes=("if you trust it: `--allow-extern` on the command line, `allow_extern=True` in Python",)),), dict(texts))
