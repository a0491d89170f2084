"""Commands about programs: `check`, `explain`, `fmt`, `dump`. None of them reads data, `check --data` apart."""
from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..dsl.problems import PipeError, Problem, Span
from ..runtime.artifact import is_artifact
from . import UsageError, colours, for_device, settings_of, split_file
from .compile import check_artifact

if TYPE_CHECKING:
    from ..compiler.graph import Node, Program


def check(arguments: argparse.Namespace) -> int:
    """All mistakes of the file, whichever of its pipelines they are in; required params need no values yet."""
    from ..compiler.check import check as check_program
    from ..compiler.check import outline

    path, run = split_file(arguments.file)
    settings = settings_of(arguments.settings)
    if is_artifact(path):
        return check_artifact(path, settings, run, arguments)
    check_program(path, settings, run, complete=False)
    if arguments.data:
        return _check_data(path, settings, [run] if run else _runnable(path), arguments)
    if arguments.format == "json":
        print("[]")
        return 0
    unset = [name for name in outline(path).required if name not in settings]
    print(f"{path}: fine" + (f"; a run needs {', '.join(f'{name}=…' for name in unset)}" if unset else ""))
    return 0


def _runnable(path: str) -> list[str]:
    """The pipelines of a file that can be run by themselves."""
    from ..compiler.check import check as check_program
    from ..compiler.check import outline

    found = outline(path)
    if found.run is not None:
        return [found.run]
    names = []
    for name in found.pipelines:
        try:
            check_program(path, {}, name)
        except PipeError as error:
            if any(p.code == "E0117" for p in error.problems):
                continue   # it takes arguments
        names.append(name)
    return names


def _check_data(path: str, settings: dict[str, str], runs: list[str], arguments: argparse.Namespace) -> int:
    """Open every source of every pipeline with its whole schema; all that is wrong is told, not the first only."""
    from ..compiler.check import check as check_program
    from ..compiler.graph import walk
    from .report import report_program

    problems: dict[Problem, None] = {}
    texts: dict[str, str] = {}
    counts = {}
    for run in runs:
        program = check_program(path, settings, run)
        for node in walk(program.emit):
            if node.op == "source":
                length, wrong = _opened(program, node)
                problems.update(dict.fromkeys(wrong))
                texts.update(program.texts)
                counts[", ".join(node["paths"])] = length
    if problems:
        report_program(PipeError(tuple(problems), texts), arguments.format, colours(arguments))
        return 1
    if arguments.format == "json":
        print("[]")
        return 0
    for paths, length in counts.items():
        print(f"{path}: fine; {length:,} records in {paths}")
    return 0


def _opened(program: Program, node: Node) -> tuple[int, list[Problem]]:
    """(records, what is wrong) of one source."""
    from ..compiler.compile import column_spans
    from ..kernels.sources import SourceError, open_source

    spans = column_spans(program, node)
    origin = program.spans.get(node, (Span(program.path, 0, 0),))[0]
    wrong: list[Problem] = []

    def attempt(columns: Any) -> int | None:
        try:
            return len(open_source(node["kind"], node["paths"], dict(node["options"]), columns))
        except SourceError as error:
            place = spans.get(error.field or "")
            wrong.append(Problem(error.code, error.title, Span(*place) if place else origin, notes=error.notes))
            return None

    length = attempt(node["columns"])
    if length is None and wrong[0].code in ("E0601", "E0602"):
        first = wrong.pop()
        for column in node["columns"]:
            attempt((column,))
        wrong = wrong or [first]
    return length or 0, wrong


def names_program(text: str) -> bool:
    """Is this a program's file rather than an error's code."""
    path, _ = split_file(text)
    return os.path.isfile(path) or path.endswith((".pipe", ".pipec")) or os.sep in path


def explain(arguments: argparse.Namespace) -> int:
    from ..dsl.explain import codes, page

    if arguments.code is not None and names_program(arguments.code):
        from .plan import explain_plan

        return explain_plan(arguments)
    if arguments.code is None:
        for code in codes():
            found = page(code)
            assert found is not None
            print(f"{code}  {found.title}")
        return 0
    found = page(arguments.code)
    if found is None:
        raise UsageError(f"there is no error {arguments.code}; `pipec explain` lists all")
    print(f"{found.code}: {found.title}\n")
    for paragraph in found.rule.split("\n\n"):
        print(textwrap.fill(" ".join(paragraph.split()), 100, break_long_words=False, break_on_hyphens=False) + "\n")
    for heading, program in (("Wrong", found.wrong), ("Right", found.right), ("A program that can meet it", found.program)):
        if program:
            print(f"{heading}:\n\n{textwrap.indent(program.rstrip(), '    ')}\n")
    return 0


def fmt(arguments: argparse.Namespace) -> int:
    """Formats what it can; files with mistakes stay as they are and are reported together."""
    from ..dsl.format import format_text
    from ..dsl.parse import read

    unformatted = 0
    wrong: list[PipeError] = []
    for path in arguments.files:
        try:
            formatted = format_text(read(path), path).encode()
        except PipeError as error:
            wrong.append(error)
            continue
        if Path(path).read_bytes() == formatted:
            continue
        unformatted += 1
        if arguments.check:
            print(f"{path}: not formatted")
        else:
            Path(path).write_bytes(formatted)
            print(f"{path}: formatted")
    if wrong:
        texts = {file: text for error in wrong for file, text in error.texts.items()}
        raise PipeError(tuple(p for error in wrong for p in error.problems), texts)
    return 1 if arguments.check and unformatted else 0


def dump(arguments: argparse.Namespace) -> int:
    from ..compiler.artifact import made_for_device, program_at
    from ..compiler.compile import lowered, pass_names, transformed
    from ..compiler.deep import deep
    from ..compiler.graphtext import print_graph

    names = pass_names()
    for name, known in ((arguments.after, ("check", *names, "plan", "numba", "cuda")), *((n, names) for n in arguments.without)):
        if name == "place" and known is not names:
            raise UsageError("`place` changes no graph: `pipec explain --device cuda` shows where each part runs")
        if name not in known:
            raise UsageError(f"there is no pass `{name}`; there are: {', '.join(known)}")
    path, run = split_file(arguments.file)
    on_device = for_device(arguments.device)
    program = program_at(path, settings_of(arguments.settings), run)
    on_device = made_for_device(path) or on_device
    if arguments.after == "check":
        print(print_graph(program.emit))
    elif arguments.after in names:
        print(print_graph(deep(lambda: transformed(program.emit, arguments.without, arguments.after, on_device=on_device))))
    else:
        compiled = lowered(program, arguments.without, on_device=on_device)
        if arguments.after == "plan":
            import msgspec

            shown = msgspec.structs.replace(compiled.plan, device=())
            print(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
        else:
            from ..compiler.emit_cuda import device_kernel
            from ..compiler.emit_numba import kernel_text
            from ..compiler.inward import inward

            for kernel in compiled.kernels:
                print(kernel_text(inward(kernel)) if arguments.after == "numba" else device_kernel(kernel).text)
    return 0
