"""Which segments of a chain give records that can be read at any place, and the feed made of them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .plan import Plan, Require, Segment

if TYPE_CHECKING:
    from .execute import Kernel
    from .feed import Feed, Input


def reachable(segments: Sequence[Segment]) -> int:
    """How many leading segments give records that can be read at any place."""
    done = 0
    for segment in segments:
        start = segment.start
        match start.kind:
            case "source":
                reaches = done == 0
            case "window":
                reaches = done > 0 and keeps_all(segments[done - 1])
            case "mix" | "zip":
                reaches = all(reachable(b) == len(b) and keeps_all(b[-1]) for b in start.inputs)
            case _:
                reaches = False
        if not reaches:
            break
        done += 1
    return done


def keeps_all(segment: Segment) -> bool:
    """Does every position have a record: nothing leaves any out."""
    left_out = any(isinstance(s, Require) and s.kind == "where" for s in segment.program.steps)
    return not (left_out or segment.takes or segment.at_most is not None)


def feed_of(plan: Plan, segments: Sequence[Segment], kernels: Mapping[str, Kernel], allow_extern: bool = False,
            params: Mapping[str, Any] | None = None) -> Feed:
    """The feed of segments that are all `reachable`. Opens sources; raises DataError where one can't be read."""
    from .feed import Feed  # here, since who only asks which segments these are loads none of this

    feed: Feed | None = None
    for segment in segments:
        start = segment.start
        branches = [feed_of(plan, b, kernels, allow_extern, params) for b in start.inputs]
        source: Input
        match start.kind:
            case "mix" | "zip":
                from .several import Mixed, Zipped

                source = Mixed(plan, start, branches) if start.kind == "mix" else Zipped(start, branches)
            case "window":
                from .numbers import Numbers
                from .windows import Windows

                assert feed is not None
                source = Windows(feed, start, Numbers(start, kernels, params or {}))
            case _:
                from .source import FromSource

                source = FromSource(start)
        feed = Feed(plan, segment, source, kernels, allow_extern, params)
    assert feed is not None
    return feed
