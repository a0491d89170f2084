"""The registry of operators: every operator is defined once, by a head and a class.

    @op("resize(img: any[h, w, ...], box: num[4], height: i64, width: i64, filter: text) -> any[height, width, ...]")
    class resize:
        \"\"\"Resample `box` of an image. First sentence = the documentation's summary.\"\"\"
        def ref(img, box, height, width, filter): ...       # NumPy: the definition
        def lower(k, out, img, box, height, width, filter): ...  # loop IR, or instead of it:
        def cpu(alloc, img, box, height, width, filter): ...     # calls a library, releases the GIL

Heads are text here; the compiler parses them when it first asks, so that importing `kernels` for
its codecs loads neither lark nor numba.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


class BadRecord(Exception):
    """Raised by `ref` and `cpu` where this record's data can't be read.

    `reason` completes the sentence "<operator>: …" in lower case, e.g. "this JPEG ends early".
    `code` is the E08xx code.
    """

    def __init__(self, code: str, reason: str, label: str = ""):
        self.code, self.reason, self.label = code, reason, label
        super().__init__(reason)


@dataclass(frozen=True)
class Operator:
    """One operator.

    `ref(*args)` gets NumPy arrays and Python scalars in the head's order and returns the result
    (a tuple for a head with several results). `lower(k, out, *args)` writes the same bits with the
    builder `k` of loop IR. `cpu(alloc, *args)` replaces `lower` where a library does the work;
    `alloc(shape, dtype)` gives memory that the runtime owns. Beside it `gpu(xp, *args)` may do the same below `share()` on
    a GPU: `xp` is CuPy, arrays are its arrays, numbers and texts constants of the program. `ranges(*intervals)` gives the least
    and greatest value of the result where that is known. `examples` are ((args…), result) pairs. `least_sizes`
    tells sizes of the result that are never 0: {(part, axis): 1}, with part "" where there is one result.
    An operator with a number as result may give `expand(k, *args)` in place of `lower`: the number as an expression.
    With `digests`, they get 64 bits (`table.digest`, as i64) in place of each text.
    `cost(args, results)` gives ns of one call out of the dims of each; those of a text or of bytes end with its length.
    `stop(*dims)` gives what every value of an integer result stays below, out of the args' dims (numbers or symbols).
    """

    name: str
    head: str
    doc: str
    ref: Callable[..., Any]
    lower: Callable[..., Any] | None = None
    cpu: Callable[..., Any] | None = None
    cost: Callable[..., float] | None = None
    ranges: Callable[..., Any] | None = None
    examples: tuple[Any, ...] = field(default=(), compare=False)
    least_sizes: Any = field(default_factory=dict, compare=False)
    stop: Callable[..., Any] | None = None
    digests: bool = False
    expand: Callable[..., Any] | None = None
    gpu: Callable[..., Any] | None = None


class Registry(dict[str, Operator]):
    """Operators by name. One that isn't here yet is looked for in the modules that define operators, so that a process
    that only runs a plan imports them when it first needs one, and no more than it needs."""

    modules = ("decode", "resize", "text", "table", "audio", "filters", "warp")   # what is called most first

    def __missing__(self, name: str) -> Operator:
        for module in self.modules:
            import_module(f"{__package__}.{module}")
            if name in self:
                return self[name]
        raise KeyError(name)


OPERATORS: dict[str, Operator] = Registry()


def op(head: str) -> Callable[[type], Operator]:
    """Register the decorated class as the operator whose signature is `head`."""

    def register(cls: type) -> Operator:
        name = head.split("(", 1)[0].strip()
        members = vars(cls)
        if name in OPERATORS:
            raise ValueError(f"operator {name} is defined twice")
        if sum(k in members for k in ("lower", "cpu", "expand")) != 1:
            raise ValueError(f"operator {name} needs either lower, expand or cpu")
        optional = {k: members.get(k) for k in ("lower", "cpu", "gpu", "cost", "ranges", "stop", "expand")}
        OPERATORS[name] = Operator(
            name, head, cls.__doc__ or "", members["ref"], examples=tuple(members.get("examples", ())),
            least_sizes=dict(members.get("least_sizes", {})), digests=bool(members.get("digests", False)), **optional
        )
        return OPERATORS[name]

    return register
