"""The process of a server that a consumer starts: its plan comes on stdin, and stdout tells whether it has begun."""
from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import msgspec

from .errors import DataError
from .layout import Layout
from .messages import failed
from .plan import Plan
from .rendezvous import Taken
from .server import Server, Settings, run_server


def main() -> None:
    name, plan, layout, settings = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[str, Plan, Layout, dict[str, Any]])
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)
    try:
        server = Server(plan, layout, replace(Settings(**settings), name=name))
    except Taken:                                         # another one was quicker
        os._exit(0)
    except DataError as error:
        os.write(out, msgspec.msgpack.encode(failed(0, error)))
        os._exit(1)
    os.close(out)                                         # whoever started us may connect
    run_server(server)
    os._exit(0)                                           # threads of the engine may still be in a library
