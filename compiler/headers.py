"""Conditions on an image's size ask its header, so that images which leave are never decoded."""
from __future__ import annotations

from collections.abc import Callable

from ..dsl.types import I64
from .graph import Node, node, number, walk
from .rules import everywhere


def by_header(condition: Node, made: Callable[[Node], Node]) -> Node:
    """The condition with `image_size` for the sides of decoded images; as it is where it needs pixels, too.

    What `where` and `check` ask is part of the program's meaning: an image that they leave out by its size isn't bad,
    whatever its pixels are. `made` is told of new calls.
    """
    if any(n.op == "call" and n["op"] == "decode_image" for n in walk(condition)):
        return condition

    def step(n: Node) -> Node | None:
        if n.op != "extent" or n.get("op") != "decode_image" or n["axis"] > 1:
            return None
        size = made(node("call", *n.args, type=I64.with_dims((2,)), op="image_size"))
        return node("index", size, number(n["axis"]), type=I64, guard=False)

    return everywhere(condition, step, None, 1)
