"""A plan as one page of HTML with its graph drawn; nothing in it is fetched from anywhere."""
from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from .plan import shown_bytes, shown_line, shown_number

if TYPE_CHECKING:
    from ..compiler.report import Part, Report, Row

WIDE, LEFT, LINE, GAP = 1120, 24, 18, 26
BAR = 180      # pixels of the costliest step's bar
INDENT = 190   # from a box's edge to its lines of the program
LETTER = 7.9   # pixels of a letter of the drawing, at most
STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #667085; --line: #c4cad4; --card: #ffffff; --page: #f4f6f9;
  --kernel: #2f6fde; --call: #b4540a; --read: #2a7d4f; --other: #7a8194; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf1; --soft: #9aa4b5; --line: #414a5a; --card: #1f2530; --page: #151a22;
  --kernel: #6f9dff; --call: #f0995a; --read: #62c08d; --other: #9aa4b5; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin-top: 2rem }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--ink); font: 13px ui-monospace, monospace }
svg .soft { fill: var(--soft) } svg .title { font: 600 13px system-ui, sans-serif }
svg .card { fill: var(--card); stroke: var(--line) } svg .edge { stroke: var(--soft); fill: none }
svg .ring { stroke: var(--kernel); stroke-dasharray: 6 5 }
.kernel { fill: var(--kernel) } .call, .extern { fill: var(--call) } .read { fill: var(--read) }
.frame, .condition { fill: var(--other) }
table { border-collapse: collapse; width: 100%; background: var(--card) }
td, th { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } code { font: 13px ui-monospace, monospace }
p.soft, li.soft { color: var(--soft) }
"""


def page(report: Report) -> str:
    """The page's text."""
    title = f"{os.path.basename(report.path)}:{report.name}"
    told = f"Measured over {report.measured:,} records on one thread." if report.measured else "Figures are estimates."
    assumed = any(r.assumed for p in report.parts for r in p.rows)
    told += " Sizes that only the data tells are assumed where a figure has a ~." if assumed else ""
    parts = [
        f"<h1>{escape(title)}</h1><p class=soft>{escape(told)}</p>", _drawn(report), "<h2>Steps</h2>", _table(report),
        *_list("Fused", report.fused), *_list("Not fused, and why", report.apart),
        "<h2>Bytes of one record at each border</h2><table>",
        *(f"<tr><td>{escape(b.name)}<td class=n>{shown_bytes(b.bytes, b.assumed)}<td><code>"
          f"{escape(', '.join(f'{n} {t}' for n, t in b.columns))}</code>" for b in report.borders), "</table>",
        "<h2>The same in every epoch, so a cache could hold it</h2>", *_cached(report),
        *_list("Notes", report.notes)]
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{escape(title)}</title><style>{STYLE}</style><body>{''.join(parts)}</body></html>\n")


def _cached(report: Report) -> Iterable[str]:
    if not report.cached:
        yield "<p>Nothing that takes work.</p>"
        return
    yield "<table>"
    for name, line, size, guess in report.cached:
        yield f"<tr><td><code>{escape(name)}</code><td class=n>{shown_bytes(size, guess)}<td>{escape(str(line or ''))}"
    yield "</table>"


def _list(title: str, told: Iterable[str]) -> Iterable[str]:
    found = list(told)
    if found:
        yield f"<h2>{title}</h2><ul>" + "".join(f"<li>{escape(t)}</li>" for t in found) + "</ul>"


def _cost(row: Row) -> float:
    return row.ns if row.seen_ns is None else row.seen_ns


def _table(report: Report) -> str:
    measured = report.measured > 0
    columns = ["est. ns", *(["measured"] if measured else []), "bytes"]
    head = "<tr><th>line<th>kernel<th>device" + "".join(f"<th class=n>{c}" for c in columns)
    out = ["<table>", head]
    for part in report.parts:
        for row in part.rows:
            lines = "<br>".join(f"<code>{escape(shown_line(line))}</code>" for line in row.lines)
            quiet = row.kind == "frame"
            cells = ["" if quiet else ("~" if row.assumed else "") + shown_number(row.ns)]
            cells += ["" if row.seen_ns is None else shown_number(row.seen_ns)] if measured else []
            cells.append("" if quiet else shown_bytes(row.bytes if row.seen_bytes is None else row.seen_bytes,
                                                      row.assumed and row.seen_bytes is None))
            figures = "".join(f"<td class=n>{c}" for c in cells)
            out.append(f"<tr><td>{lines}<td><code>{escape(row.name)}</code><td>{'' if quiet else row.device}{figures}")
    return "".join([*out, "</table>"])


def _drawn(report: Report) -> str:
    """The graph: a box for each step, from the source down, with the ring between producer and consumers."""
    most = max((_cost(r) for p in report.parts for r in p.rows), default=1.0) or 1.0
    out: list[str] = []
    y, place = 8, "above"
    ring = next((b for b in report.borders if b.name.endswith("ring")), None)
    last = None
    for part in report.parts:
        if part.place != place:
            place = part.place
            y += 14
            told = f"the ring: {shown_bytes(ring.bytes, ring.assumed)} bytes for each record" if ring is not None else "the ring"
            out.append(f"<line class=ring x1={LEFT} x2={WIDE - LEFT} y1={y} y2={y} />"
                       f"<text class=soft x={LEFT} y={y - 7}>above share(): once for all consumers</text>"
                       f"<text class=soft x={WIDE - LEFT} y={y - 7} text-anchor=end>{told}</text>"
                       f"<text class=soft x={LEFT} y={y + 17}>below share(): in each consumer</text>")
            y += 28
        out.append(f"<text class=title x={LEFT} y={y + 14}>{escape(_title(part))}</text>")
        y += 24
        for row in part.rows:
            if last is not None:
                x = LEFT + 40
                out.append(f"<path class=edge d='M{x} {last} V{y - 5} M{x - 4} {y - 10} L{x} {y - 4} L{x + 4} {y - 10}'/>")
            box, tall = _box(row, y, most)
            out.append(box)
            y += tall
            last = y
            y += GAP
    return f"<svg viewBox='0 0 {WIDE} {y}' role=img aria-label='The plan as a graph'>{''.join(out)}</svg>"


def _title(part: Part) -> str:
    return part.title + (f" of {part.records:,} records (figures are for one)" if part.records > 1 else "")


def _box(row: Row, y: int, most: float) -> tuple[str, int]:
    tall = LINE * max(1, len(row.lines)) + 16
    wide = WIDE - 2 * LEFT
    size = row.bytes if row.seen_bytes is None else row.seen_bytes
    told = "" if row.kind == "frame" else f"{shown_number(_cost(row))} ns on the {row.device}, {shown_bytes(size, False)} B"
    parts = [f"<rect class=card x={LEFT} y={y} width={wide} height={tall} rx=7 />",
             f"<rect class={row.kind} x={LEFT} y={y} width=5 height={tall} rx=2 />",
             f"<text x={LEFT + 18} y={y + 21}>{_shortened(row.name, INDENT - 18)}</text>"]
    for k, line in enumerate(row.lines):
        room = wide - INDENT - 24 - (LETTER * len(told) if k == 0 else 0)
        parts.append(f"<text class=soft x={LEFT + INDENT} y={y + 21 + k * LINE}>{_shortened(shown_line(line), room)}</text>")
    if told:
        bar = max(2, round(BAR * _cost(row) / most))
        x = WIDE - LEFT - BAR - 12
        parts += [f"<rect class={row.kind} x={x} y={y + tall - 9} width={bar} height=4 rx=2><title>{escape(told)}</title></rect>",
                  f"<text class=soft x={WIDE - LEFT - 12} y={y + 19} text-anchor=end>{escape(told)}</text>"]
    return "".join(parts), tall


def _shortened(text: str, room: float) -> str:
    """What of a text fits into so many pixels; pointing at it shows all of it."""
    letters = max(1, int(room / LETTER) - 1)
    return escape(text) if len(text) <= letters else f"{escape(text[: letters - 1])}…<title>{escape(text)}</title>"
