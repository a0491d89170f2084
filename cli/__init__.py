"""The `pipec` command. Exit status: 0 fine, 1 the data, 2 the program or the command line, 3 a mistake in pipec, 130 Ctrl-C."""
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
    top = argparse.ArgumentParser(prog="pipec", description=DESCRIPTION, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"pipec {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help_: str, *, program: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_, description=help_[0].upper() + help_[1:] + ".", allow_abbrev=False)
        sub.add_argument("--plain", action="store_true", help="no colours, no progress bars")
        if program:
            what = "a program" if name == "compile" else "a program or an artifact"
            sub.add_argument("file", metavar="FILE", help=f"{what}; FILE:NAME is its pipeline NAME")
            sub.add_argument("settings", nargs="*", metavar="name=value", help="params of the program")
        return sub

    new = command("new", "write a first program for data that is there: tar shards, class folders, arrays, tables", program=False)
    new.add_argument("data", metavar="DATA", help="a folder, a tar (or a pattern of tars), or a file that ends in .npz .npy .csv "
                                                  ".tsv .jsonl .parquet .arrow .lmdb or .txt")
    new.add_argument("-o", "--output", metavar="FILE", help="write here instead of to the terminal")

    check = command("check", "check a program: all mistakes at once, without reading data")
    check.add_argument("--data", action="store_true", help="also compare schemas with the data's own headers")
    check.add_argument("--format", choices=("text", "json"), default="text", help="of the mistakes; json for editors")

    fmt = command("fmt", "format programs in place", program=False)
    fmt.add_argument("files", nargs="+", metavar="FILE", help="a program")
    fmt.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file isn't formatted")

    run = command("run", "run a program without a training loop and measure it")
    _running(run)
    run.add_argument("--interpret", action="store_true", help="run the reference evaluator instead of machine code")
    run.add_argument("--epochs", type=_count, default=1, metavar="N", help="how many; default: 1")
    run.add_argument("--batches", type=_count, metavar="N", help="stop after N batches")
    run.add_argument("--bad", action="store_true", help="list the bad records at the end")

    show = command("show", "look at values: a contact sheet, or all fields of one record")
    _running(show)
    show.add_argument("-n", type=_count, default=16, metavar="N", help="records on the sheet; default: 16")
    show.add_argument("-o", "--output", metavar="PNG", help="where the picture goes; default: sheet.png, or the field's name")
    show.add_argument("--record", type=_place, metavar="P", help="print the fields of the record at position P")
    show.add_argument("--field", action="append", metavar="NAME", help="only this field; an image is also written to PNG")
    show.add_argument("--epoch", type=_place, default=0, metavar="E", help="whose order and draws; default: 0")

    explain = command("explain", "explain the plan of a program, or an error code", program=False)
    explain.add_argument("code", metavar="FILE|CODE", nargs="?",
                         help="a program, an artifact, or a code such as E0203; without it, all codes")
    explain.add_argument("settings", nargs="*", metavar="name=value", help="params of the program")
    explain.add_argument("--measure", action="store_true", help="also run it a while and show what each step costs")
    explain.add_argument("--seconds", type=float, default=2.0, metavar="S", help="how long to run it for --measure; default: 2")
    explain.add_argument("--html", metavar="PATH", help="write a page with the graph drawn")
    explain.add_argument("--device", metavar="DEVICE", help="what loaders will ask for, such as cuda: which steps run there")
    explain.add_argument("--place", action="append", default=[], metavar="FIELD=cpu",
                         help="with --device: make this field on the CPU")
    explain.add_argument("--without", action="append", default=[], metavar="PASS", help="leave a pass out")
    explain.add_argument("--allow-extern", action="store_true", help="let --measure run the program's `extern fn`")

    dump = command("dump", "print what a program becomes on its way to machine code")
    dump.add_argument("--after", default="fuse", metavar="PASS", help="check, a pass, plan, numba or cuda; default: fuse")
    dump.add_argument("--without", action="append", default=[], metavar="PASS", help="leave a pass out")

    compile = command("compile", "compile a program to an artifact: one file that starts without being compiled")
    compile.add_argument("-o", "--output", metavar="FILE.pipec", help="default: beside the program, under its name")

    cache = command("cache", "show the compile cache, or empty it", program=False)
    cache.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="default: show")
    cache.add_argument("--keep", type=_size, metavar="SIZE", help="clear: leave the most recently used up to SIZE")

    serve = command("serve", "run a program as a server that several trainings on this machine read from")
    _running(serve)
    serve.add_argument("--name", metavar="NAME", help="what `pipec.attach` calls it; default: named after the file")
    serve.add_argument("--wait-for", type=_count, default=1, metavar="N", help="begin when N consumers are there; default: 1")
    serve.add_argument("--epochs", type=_count, metavar="N", help="end after N epochs; default: when stopped")
    serve.add_argument("--max-skew", type=_count, metavar="N",
                       help="records that the fastest may be ahead of the slowest; default: what the ring holds")
    serve.add_argument("--patience", type=_seconds, default=10.0, metavar="SECONDS",
                       help='how long a consumer with when_slow="drop" may hold the others back; default: 10')
    serve.add_argument("--metrics", type=_place, metavar="PORT", help="Prometheus text on this port of 127.0.0.1; 0: any")

    command("ps", "list the servers of this user", program=False)

    top_ = command("top", "watch a server: rates, the ring, each consumer, and who holds whom back", program=False)
    top_.add_argument("name", metavar="NAME", nargs="?", help="of the server; needed where there are several")
    top_.add_argument("--every", type=_seconds, default=0.5, metavar="SECONDS", help="between two pages; default: 0.5")
    top_.add_argument("--once", action="store_true", help="print one page and end")

    stop = command("stop", "tell a server to deliver what is there and end", program=False)
    stop.add_argument("name", metavar="NAME", help="of the server; `pipec ps` lists them")

    command("doctor", "say what this machine offers pipec and what is missing", program=False)
    return top


def _running(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--threads", type=_count, metavar="N", help="worker threads; default: one per core")
    sub.add_argument("--memory", type=_size, metavar="SIZE", help="of the ring, such as 512MB or 2GB")
    sub.add_argument("--trust", action="store_true", help="of an artifact: run its machine code though your key didn't sign it")
    sub.add_argument("--allow-extern", action="store_true", help="let the program run its `extern fn`, Python code of yours")


def _count(text: str) -> int:
    return _whole(text, 1)


def _place(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number < 1 << 31:
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number from {least} on")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of seconds")
    return number


def _size(text: str) -> int:
    from ..runtime.limits import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; returns the exit status. argparse alone leaves by SystemExit."""
    top = parser()
    arguments, rest = top.parse_known_args(argv)
    if hasattr(arguments, "settings"):   # params may stand behind options too
        given = [r for r in rest if "=" in r and not r.startswith("-")]
        arguments.settings += given
        rest = [r for r in rest if r not in given]
    if rest:
        unknown = ", ".join(f"`{r}`" for r in rest)
        top.exit(2, f"pipec {arguments.command} doesn't know {unknown}; `pipec {arguments.command} --help` lists what it knows\n")
    try:
        status = _reported(arguments)
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:                # `pipec dump … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if status == 130:
        exec("")   # Python ends by SIGINT itself if the last text it ran, of a dataclass or so, was interrupted; now that's this
    return status


def _reported(arguments: argparse.Namespace) -> int:
    """The command's exit status; what it raises goes to stderr in words."""
    from ..dsl.problems import PipeError
    from ..runtime.errors import DataError, SettingError
    from .report import data_text, mistake_text, report_program

    colour = colours(arguments)
    try:
        return _dispatch(arguments)
    except PipeError as error:
        report_program(error, getattr(arguments, "format", "text"), colour)
        return 2
    except DataError as error:
        print(data_text(error, colour), file=sys.stderr)
        return 1
    except (UsageError, SettingError) as error:
        text, status = str(error), 2
    except BrokenPipeError:
        raise
    except OSError as error:
        text, status = f"`{error.filename}`: {error.strerror}" if error.filename else str(error), 1
    except MemoryError:
        text, status = "not enough memory", 1
    except Exception as error:
        if "PIPEC_DEBUG" in os.environ:
            raise
        text, status = mistake_text(error), 3
    print(f"pipec {arguments.command}: {text}", file=sys.stderr)
    return status


def _dispatch(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "check" | "explain" | "fmt" | "dump":
            from . import programs

            status: int = getattr(programs, arguments.command)(arguments)
            return status
        case "compile":
            from .compile import compile

            return compile(arguments)
        case "cache":
            from .cache import cache

            return cache(arguments)
        case "run":
            from .run import run

            return run(arguments)
        case "serve" | "ps" | "stop":
            from . import serve

            ended: int = getattr(serve, arguments.command)(arguments)
            return ended
        case "doctor":
            from .doctor import doctor

            return doctor(arguments)
        case "top":
            from .top import top

            return top(arguments)
        case "show":
            from .show import show

            return show(arguments)
        case _:
            from .new import new

            return new(arguments)


def colours(arguments: argparse.Namespace) -> bool:
    """May errors be coloured?"""
    return not arguments.plain and sys.stderr.isatty() and "NO_COLOR" not in os.environ


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


def writable(path: str, kind: str) -> None:
    """Say before the work, not after it, that a file can't be written there. `kind`: what -o names, "a PNG file"."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise UsageError(f"`{path}` is a folder: -o names {kind}")
    if not os.path.isdir(folder):
        raise UsageError(f"`{path}` can't be written: there is no folder `{folder}`")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f"`{path}` can't be written: permission denied")
