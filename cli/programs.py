"""Commands about programs: `check`, `explain`, `fmt`, `dump`. None of them reads data, `check --data` apart."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import UsageError, settings_of, split_file


def check(arguments: argparse.Namespace) -> int:
    from ..compiler.check import check as check_program

    path, run = split_file(arguments.file)
    program = check_program(path, settings_of(arguments.settings), run)
    if arguments.data:
        from ..compiler.compile import lowered
        from ..runtime.feed import Feed

        plan = lowered(program).plan
        feed = Feed(plan, plan.above[0], {}, allow_extern=True)
        print(f"{path}: fine; {len(feed.source):,} records in the source")
    elif arguments.format == "json":
        print("[]")
    else:
        print(f"{path}: fine")
    return 0


def explain(arguments: argparse.Namespace) -> int:
    from ..dsl.explain import codes, page

    if arguments.code is None:
        for code in codes():
            found = page(code)
            assert found is not None
            print(f"{code}  {found.title}")
        return 0
    found = page(arguments.code.upper())
    if found is None:
        raise UsageError(f"there is no error {arguments.code}; `pipec explain` lists all")
    print(found.text.rstrip())
    return 0


def fmt(arguments: argparse.Namespace) -> int:
    from ..dsl.format import format_text
    from ..dsl.parse import read

    unformatted = 0
    for path in arguments.files:
        text = read(path)
        formatted = format_text(text, path)
        raw = Path(path).read_bytes()
        if raw == formatted.encode():
            continue
        unformatted += 1
        if arguments.check:
            print(f"{path}: not formatted")
        else:
            Path(path).write_bytes(formatted.encode())
            print(f"{path}: formatted")
    return 1 if arguments.check and unformatted else 0


def dump(arguments: argparse.Namespace) -> int:
    from ..compiler.check import check as check_program
    from ..compiler.compile import lowered, pass_names, transformed
    from ..compiler.graphtext import print_graph

    names = pass_names()
    known = ("check", *names, "plan", "numba")
    for name in (arguments.after, *arguments.without):
        if name not in known:
            raise UsageError(f"there is no pass `{name}`; there are: {', '.join(known)}")
    path, run = split_file(arguments.file)
    program = check_program(path, settings_of(arguments.settings), run)
    if arguments.after == "check":
        print(print_graph(program.emit))
    elif arguments.after in names:
        print(print_graph(transformed(program.emit, arguments.without, arguments.after)))
    else:
        compiled = lowered(program, arguments.without)
        if arguments.after == "plan":
            import msgspec

            sys.stdout.write(msgspec.json.format(msgspec.json.encode(compiled.plan), indent=2).decode() + "\n")
        else:
            from ..compiler.emit_numba import kernel_text

            for kernel in compiled.kernels:
                print(kernel_text(kernel))
    return 0
