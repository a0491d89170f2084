"""The `pipec` command. Exit status: 0 fine, 1 the data, 2 the program or the command line, 3 a mistake in pipec, 130 Ctrl-C."""
from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from .commandline import parser


class UsageError(Exception):
    """The command line can't be carried out; the text says why and what to do."""


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
    from ..runtime.spawned import LIBRARIES
    from .report import data_text, mistake_text, report_program

    colour = colours(arguments)
    for name, value in LIBRARIES.items():   # what runs here runs as in a producer, and what `explain` measures, too
        os.environ.setdefault(name, value)
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
    """`train.pipe:val` as path and pipeline. Raises UsageError for a Python file."""
    path, colon, run = file.rpartition(":")
    if not (colon and run.isidentifier() and path):
        path, run = file, ""
    if path.endswith(".py"):
        raise UsageError(f"`{path}` is Python: name a program (.pipe) or an artifact (.pipec); Python opens one by `pipec.open`")
    return path, run or None


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


def for_device(device: str | None) -> bool:
    """Will loaders ask for a GPU? `device` is what --device says. Raises UsageError for a name that no device has."""
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UsageError(f"there is no device `{device}`: --device is cpu, cuda or cuda:N")
    return device not in (None, "cpu")


def writable(path: str, kind: str) -> None:
    """Say before the work, not after it, that a file can't be written there. `kind`: what -o names, "a PNG file"."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise UsageError(f"`{path}` is a folder: -o names {kind}")
    if not os.path.isdir(folder):
        raise UsageError(f"`{path}` can't be written: there is no folder `{folder}`")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f"`{path}` can't be written: permission denied")
