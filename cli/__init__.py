"""The `pipec` command. Exit status: 0 fine, 1 the data, 2 the program or the command line, 130 Ctrl-C."""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__

DESCRIPTION = "A compiled language for machine-learning input pipelines."


class UsageError(Exception):
    """The command line can't be carried out; the text says why and what to do."""


def parser() -> argparse.ArgumentParser:
    """All commands. FILE is `train.pipe` or, for one of several pipelines, `train.pipe:val`."""
    top = argparse.ArgumentParser(prog="pipec", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"pipec {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help_: str, *, program: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_, description=help_[0].upper() + help_[1:] + ".")
        sub.add_argument("--plain", action="store_true", help="no colours, no progress bars")
        if program:
            sub.add_argument("file", metavar="FILE", help="a program; FILE:NAME runs the pipeline NAME")
            sub.add_argument("settings", nargs="*", metavar="name=value", help="params of the program")
        return sub

    check = command("check", "check a program: all mistakes at once, without reading data")
    check.add_argument("--data", action="store_true", help="also compare schemas with the data's own headers")
    check.add_argument("--format", choices=("text", "json"), default="text")

    explain = command("explain", "explain an error code: a failing program, the rule, the repair", program=False)
    explain.add_argument("code", metavar="CODE", nargs="?", help="such as E0203; without it, a list of all")

    fmt = command("fmt", "format programs in place", program=False)
    fmt.add_argument("files", nargs="+", metavar="FILE")
    fmt.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file isn't formatted")

    dump = command("dump", "print what a program becomes on its way to machine code")
    dump.add_argument("--after", default="fuse", metavar="PASS", help="check, simplify, prune, fuse, plan or numba")
    dump.add_argument("--without", action="append", default=[], metavar="PASS", help="leave a pass out")

    run = command("run", "run a program without a training loop and measure it")
    _running(run)
    run.add_argument("--interpret", action="store_true", help="run the reference evaluator instead of machine code")
    run.add_argument("--epochs", type=int, default=1, metavar="N")
    run.add_argument("--batches", type=int, metavar="N", help="stop after N batches")
    run.add_argument("--bad", action="store_true", help="list every bad record at the end")

    show = command("show", "look at values: a contact sheet, or all fields of one record")
    _running(show)
    show.add_argument("-n", type=int, default=16, metavar="N", help="records on the sheet")
    show.add_argument("-o", "--output", default="sheet.png", metavar="PNG")
    show.add_argument("--record", type=int, metavar="P", help="print the fields of the record at position P")
    show.add_argument("--field", action="append", metavar="NAME", help="only this field; an image is also written to PNG")
    show.add_argument("--epoch", type=int, default=0, metavar="E")

    new = command("new", "write a first program for data: tar shards, class folders, .npz", program=False)
    new.add_argument("data", metavar="DATA", help="a folder, a tar (or pattern of tars), an .npz or .npy")
    new.add_argument("-o", "--output", metavar="FILE", help="write here instead of to the terminal")
    return top


def _running(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--threads", type=int, metavar="N", help="worker threads; default: one per core")
    sub.add_argument("--memory", metavar="SIZE", help="of the ring, such as 512MB or 2GB")
    sub.add_argument("--allow-extern", action="store_true", help="let the program run its `extern fn`, Python code of yours")


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; returns the exit status and never raises."""
    top = parser()
    arguments, rest = top.parse_known_args(argv)
    if hasattr(arguments, "settings"):   # params may stand behind options too
        arguments.settings += [r for r in rest if "=" in r and not r.startswith("-")]
        rest = [r for r in rest if r not in arguments.settings]
    if rest:
        top.error(f"{arguments.command} doesn't know {' '.join(rest)}")
    from ..dsl.problems import PipeError
    from ..runtime.errors import DataError

    colour = not arguments.plain and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    try:
        return _dispatch(arguments)
    except PipeError as error:
        return _report_program(error, arguments, colour)
    except DataError as error:
        from .report import data_text

        print(data_text(error, colour), file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"pipec {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        print(f"pipec {arguments.command}: not enough memory", file=sys.stderr)
        return 1
    except OSError as error:
        told = f"`{error.filename}`: {error.strerror}" if error.filename else str(error)
        print(f"pipec {arguments.command}: {told}", file=sys.stderr)
        return 1


def _dispatch(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "check" | "explain" | "fmt" | "dump":
            from . import programs

            status: int = getattr(programs, arguments.command)(arguments)
            return status
        case "run":
            from .run import run

            return run(arguments)
        case "show":
            from .show import show

            return show(arguments)
        case _:
            from .new import new

            return new(arguments)


def _report_program(error: object, arguments: argparse.Namespace, colour: bool) -> int:
    from ..dsl.problems import PipeError
    from ..dsl.render import render, to_json

    assert isinstance(error, PipeError)
    if getattr(arguments, "format", "text") == "json":
        print(to_json(error.problems, error.texts))
    else:
        print(render(error.problems, error.texts, color=colour), file=sys.stderr)
        count = len(error.problems)
        print(f"\n{count} problem{'s' if count > 1 else ''}; `pipec explain {error.problems[0].code}` says more", file=sys.stderr)
    return 2


def split_file(file: str) -> tuple[str, str | None]:
    """`train.pipe:val` as path and pipeline."""
    path, colon, run = file.rpartition(":")
    if colon and run.isidentifier() and path:
        return path, run
    return file, None


def settings_of(listed: Sequence[str]) -> dict[str, str]:
    """`name=value` arguments. Raises UsageError for anything else."""
    out: dict[str, str] = {}
    for text in listed:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"`{text}` is no param: write name=value")
        if name in out:
            raise UsageError(f"`{name}` is set twice")
        out[name] = value
    return out
