"""The files that operators of a graph read by a constant path (`tokenize`, `lookup`), with the hashes of what they hold."""
from __future__ import annotations

from ..runtime.plancache import content_hash
from .graph import Node, walk
from .signatures import head_of, operators


def mentioned(emit: Node) -> dict[str, str]:
    """Path → hash of the content; "" for what can't be read, which the operator will say of every record."""
    paths: dict[str, None] = {}
    for n in walk(emit):
        if n.op == "call":
            for formal, arg in zip(head_of(operators()[n["op"]].head).formals, n.args):
                if formal.type.dtype == "path" and arg.op == "const":
                    paths[arg["value"]] = None
    return {path: content_hash(path) for path in sorted(paths)}
