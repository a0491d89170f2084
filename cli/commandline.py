"""The command line's grammar: all commands of `pipec` and what each takes, as an argparse parser."""
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .. import __version__

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DESCRIPTION = "A compiled language for machine-learning input pipelines."


def parser() -> argparse.ArgumentParser:
    """All commands. FILE is `train.pipe` or, for one of several pipelines, `train.pipe:val`."""
    top = argparse.ArgumentParser(prog="pipec", description=DESCRIPTION, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"pipec {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for define in (_new, _check, _fmt, _run, _show, _explain, _dump, _compile, _cache, _serve, _ps, _top, _stop, _doctor):
        define(commands)
    return top


def _command(commands: Commands, name: str, help_: str, *, program: bool = True) -> argparse.ArgumentParser:
    sub = commands.add_parser(name, help=help_, description=help_[0].upper() + help_[1:] + ".", allow_abbrev=False)
    sub.add_argument("--plain", action="store_true", help="no colours, no progress bars")
    if program:
        what = "a program" if name == "compile" else "a program or an artifact"
        sub.add_argument("file", metavar="FILE", help=f"{what}; FILE:NAME is its pipeline NAME")
        sub.add_argument("settings", nargs="*", metavar="name=value", help="params of the program")
    return sub


def _new(commands: Commands) -> None:
    sub = _command(commands, "new",
                   "write a first program for data that is there: tar shards, class folders, arrays, tables", program=False)
    sub.add_argument("data", metavar="DATA", help="a folder, a tar (or a pattern of tars), or a file that ends in .npz .npy .csv "
                                                  ".tsv .jsonl .parquet .arrow .lmdb or .txt")
    sub.add_argument("-o", "--output", metavar="FILE", help="write here instead of to the terminal")


def _check(commands: Commands) -> None:
    sub = _command(commands, "check", "check a program: all mistakes at once, without reading data")
    sub.add_argument("--data", action="store_true", help="also compare schemas with the data's own headers")
    sub.add_argument("--format", choices=("text", "json"), default="text", help="of the mistakes; json for editors")


def _fmt(commands: Commands) -> None:
    sub = _command(commands, "fmt", "format programs in place", program=False)
    sub.add_argument("files", nargs="+", metavar="FILE", help="a program")
    sub.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file isn't formatted")


def _run(commands: Commands) -> None:
    sub = _command(commands, "run", "run a program without a training loop and measure it")
    _running(sub)
    sub.add_argument("--interpret", action="store_true", help="run the reference evaluator instead of machine code")
    sub.add_argument("--epochs", type=_count, default=1, metavar="N", help="how many; default: 1")
    sub.add_argument("--batches", type=_count, metavar="N", help="stop after N batches")
    sub.add_argument("--bad", action="store_true", help="list the bad records at the end")


def _show(commands: Commands) -> None:
    sub = _command(commands, "show", "look at values: a contact sheet, or all fields of one record")
    _running(sub)
    sub.add_argument("-n", type=_count, default=16, metavar="N", help="records on the sheet; default: 16")
    sub.add_argument("-o", "--output", metavar="PNG", help="where the picture goes; default: sheet.png, or the field's name")
    sub.add_argument("--record", type=_place, metavar="P", help="print the fields of the record at position P")
    sub.add_argument("--field", action="append", metavar="NAME", help="only this field; an image is also written to PNG")
    sub.add_argument("--epoch", type=_place, default=0, metavar="E", help="whose order and draws; default: 0")


def _explain(commands: Commands) -> None:
    sub = _command(commands, "explain", "explain the plan of a program, or an error code", program=False)
    sub.add_argument("code", metavar="FILE|CODE", nargs="?",
                     help="a program, an artifact, or a code such as E0203; without it, all codes")
    sub.add_argument("settings", nargs="*", metavar="name=value", help="params of the program")
    sub.add_argument("--measure", action="store_true", help="also run it a while and show what each step costs")
    sub.add_argument("--seconds", type=float, default=2.0, metavar="S", help="how long to run it for --measure; default: 2")
    sub.add_argument("--html", metavar="PATH", help="write a page with the graph drawn")
    sub.add_argument("--device", metavar="DEVICE", help="what loaders will ask for, such as cuda: which steps run there")
    sub.add_argument("--place", action="append", default=[], metavar="FIELD=cpu",
                     help="with --device: make this field on the CPU")
    sub.add_argument("--without", action="append", default=[], metavar="PASS", help="leave a pass out")
    sub.add_argument("--allow-extern", action="store_true", help="let --measure run the program's `extern fn`")


def _dump(commands: Commands) -> None:
    sub = _command(commands, "dump", "print what a program becomes on its way to machine code")
    sub.add_argument("--after", default="fuse", metavar="PASS", help="check, a pass, plan, numba or cuda; default: fuse")
    _for_device(sub)
    sub.add_argument("--without", action="append", default=[], metavar="PASS", help="leave a pass out")


def _compile(commands: Commands) -> None:
    sub = _command(commands, "compile", "compile a program to an artifact: one file that starts without being compiled")
    sub.add_argument("-o", "--output", metavar="FILE.pipec", help="default: beside the program, under its name")
    _for_device(sub)


def _cache(commands: Commands) -> None:
    sub = _command(commands, "cache", "show the compile cache, or empty it", program=False)
    sub.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="default: show")
    sub.add_argument("--keep", type=_size, metavar="SIZE", help="clear: leave the most recently used up to SIZE")


def _serve(commands: Commands) -> None:
    sub = _command(commands, "serve", "run a program as a server that several trainings on this machine read from")
    _running(sub)
    _for_device(sub)
    sub.add_argument("--name", metavar="NAME", help="what `pipec.attach` calls it; default: named after the file")
    sub.add_argument("--wait-for", type=_count, default=1, metavar="N", help="begin when N consumers are there; default: 1")
    sub.add_argument("--epochs", type=_count, metavar="N", help="end after N epochs; default: when stopped")
    sub.add_argument("--max-skew", type=_count, metavar="N",
                     help="records that the fastest may be ahead of the slowest; default: what the ring holds")
    sub.add_argument("--patience", type=_seconds, default=10.0, metavar="SECONDS",
                     help='how long a consumer with when_slow="drop" may hold the others back; default: 10')
    sub.add_argument("--metrics", type=_place, metavar="PORT", help="Prometheus text on this port of 127.0.0.1; 0: any")


def _ps(commands: Commands) -> None:
    _command(commands, "ps", "list the servers of this user", program=False)


def _top(commands: Commands) -> None:
    sub = _command(commands, "top", "watch a server: rates, the ring, each consumer, and who holds whom back", program=False)
    sub.add_argument("name", metavar="NAME", nargs="?", help="of the server; needed where there are several")
    sub.add_argument("--every", type=_seconds, default=0.5, metavar="SECONDS", help="between two pages; default: 0.5")
    sub.add_argument("--once", action="store_true", help="print one page and end")


def _stop(commands: Commands) -> None:
    sub = _command(commands, "stop", "tell a server to deliver what is there and end", program=False)
    sub.add_argument("name", metavar="NAME", help="of the server; `pipec ps` lists them")


def _doctor(commands: Commands) -> None:
    _command(commands, "doctor", "say what this machine offers pipec and what is missing", program=False)


def _running(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--threads", type=_count, metavar="N", help="worker threads; default: one per core")
    sub.add_argument("--memory", type=_size, metavar="SIZE", help="of the ring, such as 512MB or 2GB")
    sub.add_argument("--trust", action="store_true", help="of an artifact: run its machine code though your key didn't sign it")
    sub.add_argument("--allow-extern", action="store_true", help="let the program run its `extern fn`, Python code of yours")


def _for_device(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--device", metavar="DEVICE", help="cuda: made for loaders on a GPU, whose rows cross the ring narrow where "
                                                        "that is less to upload; others get the same values. Default: cpu")


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
