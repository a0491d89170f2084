"""`pipec explain FILE`: the plan of a program as a table: lines, kernels, devices, cost, what was fused, bytes at borders."""
from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import UsageError, for_device, settings_of, split_file

if TYPE_CHECKING:
    from ..compiler.report import Part, Report, Row

TEXT = 52    # of a program's line, at most


def explain_plan(arguments: argparse.Namespace) -> int:
    """Print the plan, or write it as a page. Raises PipeError, and DataError with `--measure`."""
    report = made_report(arguments)
    if arguments.html is not None:
        from .planpage import page

        _write(arguments.html, page(report))
        print(f"{arguments.html}: the plan of {report.path}:{report.name}")
        return 0
    print(text(report))
    return 0


def made_report(arguments: argparse.Namespace) -> Report:
    from ..compiler.artifact import made_for_device, program_at
    from ..compiler.compile import _with_kernels, lowered, pass_names
    from ..compiler.report import report
    from ..runtime.placement import first_on_device
    from .run import beside

    on_device = for_device(arguments.device)
    for name in arguments.without:
        if name not in pass_names():
            raise UsageError(f"there is no pass `{name}`; there are: {', '.join(pass_names())}")
    path, run = split_file(arguments.code)
    program = program_at(path, settings_of(arguments.settings), run)
    device = None if "place" in arguments.without else arguments.device
    made_so = made_for_device(path)
    compiled = lowered(program, arguments.without, on_device=made_so or (on_device and device is not None))
    place = settings_of(arguments.place)
    try:
        first_on_device(compiled.plan, place)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if place and arguments.device in (None, "cpu"):
        raise UsageError("--place keeps on the CPU what --device cuda would move: name a device too")
    notes = ["`place` is left out: all of it runs on the CPU"] if device != arguments.device else []
    if made_so:
        notes.append("this artifact was compiled for loaders on a device: what these widen themselves crosses the ring narrow")
    if not arguments.measure:
        return report(compiled, device=device, place=place, notes=notes)
    from ..compiler.native import build
    from ..runtime.trial import trial

    beside(path, arguments.allow_extern)
    plan = _with_kernels(compiled.plan, build(compiled.kernels))
    return report(compiled, trial(plan, arguments.seconds, arguments.allow_extern), device, place, notes)


def _write(path: str, content: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(f"`{path}` can't be written: {error.strerror or error}") from None


def text(report: Report) -> str:
    """The plan for a terminal."""
    measured = report.measured > 0
    told = f", measured over {report.measured:,} rows of the ring, on one thread" if measured else ""
    out = [f"{report.path}:{report.name}{told}"]
    places = {"above": "above share(): once for all consumers", "below": "below share(): in each consumer"}
    shown = ""
    for part in report.parts:
        if part.place != shown:
            shown = part.place
            out += ["", places[shown]]
        of = f" (of {part.records:,} records; figures are for one)" if part.records > 1 else ""
        out += ["", f"  {part.title}{of}", *_table(part, measured)]
    assumed = any(row.assumed for part in report.parts for row in part.rows)
    if assumed:
        out += ["", "  ~ sizes that only the data tells are assumed" + ("" if measured else "; --measure looks")]
    out += ["", *_listed("fused", report.fused), *_listed("not fused", report.apart)]
    out += ["bytes of one record"]
    out += [f"  {b.name:<22}{shown_bytes(b.bytes, b.assumed):>12}   {_columns(b.columns)}" for b in report.borders]
    out += [""]
    if report.cached:
        out += ["the same in every epoch, so a cache could hold it"]
        out += [f"  {name:<22}{shown_bytes(size, guess):>12}   {line or ''}" for name, line, size, guess in report.cached]
    else:
        out += ["nothing that takes work is the same in every epoch: there is nothing to cache"]
    out += ["", *report.notes]
    return "\n".join(out).rstrip()


def _table(part: Part, measured: bool) -> Iterable[str]:
    width = max([len(r.name) for r in part.rows] + [6])
    wide = max([len(shown_line(line)) for r in part.rows for line in r.lines] + [4])
    columns = ["est. ns", *(["measured"] if measured else []), "bytes"]
    yield f"    {'line':<{wide}}  {'kernel':<{width}}  {'device':<6}" + "".join(f"{c:>13}" for c in columns)
    for row in part.rows:
        first, *others = [shown_line(line) for line in row.lines] or [""]
        cells = "".join(f"{c:>13}" for c in _figures(row, measured))
        device = "" if row.kind == "frame" else row.device
        yield f"    {first:<{wide}}  {row.name:<{width}}  {device:<6}{cells}".rstrip()
        yield from (f"    {line}" for line in others)


def _figures(row: Row, measured: bool) -> list[str]:
    if row.kind == "frame":
        return []
    seen = "" if row.seen_ns is None else shown_number(row.seen_ns)
    size = row.bytes if row.seen_bytes is None else row.seen_bytes
    told = "" if row.kind == "condition" else shown_bytes(size, row.assumed and row.seen_bytes is None)
    return [("~" if row.assumed else "") + shown_number(row.ns), *([seen] if measured else []), told]


def shown_line(line: Any) -> str:
    shortened = line.text if len(line.text) <= TEXT else line.text[: TEXT - 1] + "…"
    return f"{os.path.basename(line.file)}:{line.number:<3} {shortened}"


def shown_number(value: float) -> str:
    return f"{value:,.0f}"


def shown_bytes(value: float, assumed: bool) -> str:
    return ("~" if assumed else "") + (f"{value:,.0f}" if value < 1e7 else f"{value / 1e6:,.1f} M")


def _columns(columns: Iterable[tuple[str, str]]) -> str:
    listed = [f"{name} {type_}" for name, type_ in columns]
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")


def _listed(title: str, told: Iterable[str]) -> list[str]:
    found = list(told)
    return [title, *(f"  {t}" for t in found), ""] if found else []
