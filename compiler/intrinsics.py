"""The names that kernel texts use, as Numba intrinsics, so that a text can be compiled as the Python it is.

Importing this module imports numba. The codes are those of `compiler.instructions`.
"""
# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import operator
from collections.abc import Callable
from types import CodeType
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import lower_builtin, lower_cast, models, register_model

from .instructions import FUNCTIONS, LLVM, Code, call, convert
from .routines import Routine, named

SCALARS: dict[str, Any] = {
    "u8": types.uint8, "i8": types.int8, "u16": types.uint16, "i16": types.int16, "u32": types.uint32,
    "i32": types.int32, "u64": types.uint64, "i64": types.int64, "f32": types.float32, "f64": types.float64,
}
MEMORY: dict[str, Any] = SCALARS | {"bool": types.uint8, "f16": types.uint16, "bf16": types.uint16}
VALUES: dict[str, Any] = SCALARS | {"bool": types.boolean, "f16": types.uint16, "bf16": types.uint16}


def make(name: str, signature: Callable[..., Any], code: Code) -> Any:
    """A function for Numba: `signature(*argument types)` gives result and argument types, `code` the instructions."""

    def function(*args: Any) -> Any:
        raise TypeError(f"{name} is for compiled code")

    class Rule(AbstractTemplate):
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            return signature(*[types.unliteral(t) for t in args])

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return code(builder, *args)

    function.__name__ = name
    infer_global(function, types.Function(Rule))
    lower_builtin(function, types.VarArg(types.Any))(generate)
    return function


def same1(a: Any) -> Any: return a(a)
def same2(a: Any, b: Any) -> Any: return widest(a, b)(widest(a, b), widest(a, b))


def widest(a: Any, b: Any) -> Any:
    """Numba types small literals and range variables as it likes; every integer computed with is i64."""
    if isinstance(a, types.Integer) and isinstance(b, types.Integer):
        return types.int64
    return a


def chosen(c: Any, a: Any, b: Any) -> Any:
    t = widest(a, b)
    return t(types.boolean, t, t)


ONE_ARGUMENT = frozenset(("abs", "floor", "ceil", "rint", "sqrt"))
_made: dict[str, Any] = {}


class Memory(types.Type):
    """Memory that a name of the text stands for, as elements of one dtype; `written`: all names whose memory is written."""

    def __init__(self, element: str, place: str = "", written: frozenset[str] = frozenset()):
        self.element, self.place, self.written = element, place, written
        self.dtype: Any = MEMORY[element]
        super().__init__(name=f"memory({element}, {place}, {sorted(written)})")


@register_model(Memory)
class MemoryModel(models.PrimitiveModel):
    def __init__(self, manager: Any, memory: Memory):
        super().__init__(manager, memory, ir.PointerType(_element(memory.element)))


def _element(dtype: str) -> Any:
    return LLVM["u8" if dtype == "bool" else dtype]


@lower_cast(Memory, Memory)
def _same_memory(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return value


@lower_builtin(operator.getitem, Memory, types.Integer)
def _load(context: Any, b: Any, sig: Any, args: Any) -> Any:
    loaded = b.load(_place(b, *args))
    _tell_apart(b, loaded, sig.args[0])
    return loaded


@lower_builtin(operator.setitem, Memory, types.Integer, types.Any)
def _store(context: Any, b: Any, sig: Any, args: Any) -> Any:
    memory, index, value = args
    _tell_apart(b, b.store(value, _place(b, memory, index)), sig.args[0])
    return context.get_dummy_value()


def _place(b: Any, memory: Any, index: Any) -> Any:
    """Where an element lies. What is in memory has a position far below 2**63, so nothing that makes it up wraps around."""
    stack = [index]
    while stack:
        v = stack.pop()
        if isinstance(v, ir.Instruction) and v.opname in ("add", "sub", "mul") and "nsw" not in v.flags:
            v.flags.append("nsw")
            stack += v.operands
    return b.gep(memory, [index], inbounds=True)


def _tell_apart(b: Any, access: Any, memory: Memory) -> None:
    """Memory that the kernel writes is no other name's memory, so that loops become vector code without checks."""
    made = vars(b.module).setdefault("_told_apart", {})
    if memory not in made:
        made[memory] = _scopes(b.module, memory)
    for name, scopes in made[memory]:
        access.set_metadata(name, scopes)


def _scopes(module: Any, memory: Memory) -> list[tuple[str, Any]]:
    domain = module.add_metadata(["memory"])
    others = {name: module.add_metadata([f"memory {name}", domain]) for name in sorted(memory.written)}
    own = [others.pop(memory.place)] if memory.place in others else []
    told = (("alias.scope", own), ("noalias", list(others.values())))
    return [(name, module.add_metadata(scopes)) for name, scopes in told if scopes]


@infer_global(operator.getitem)
class _Read(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Memory):
            return args[0].dtype(args[0], types.int64)
        return None


@infer_global(operator.setitem)
class _Write(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Memory):
            return types.none(args[0], types.int64, args[0].dtype)
        return None


def _pointer(dtype: str) -> Any:
    memory = Memory(dtype)
    return make(f"at_{dtype}", lambda a: memory(types.int64), lambda b, a: b.inttoptr(a, ir.PointerType(_element(dtype))))


def _named(name: str) -> Any:
    if name in SCALARS:
        return SCALARS[name]
    if name.startswith("at_"):
        return _pointer(name[3:])
    if name in FUNCTIONS:
        rule, code = FUNCTIONS[name]
        if rule == "chosen":
            return make(name, chosen, code)
        return make(name, same1, code) if name in ONE_ARGUMENT else make(name, same2, code)
    if "_to_" in name:
        source, rest = name.split("_to_")
        target, _, mode = rest.partition("_")
        result: Any = VALUES[target]
        given = VALUES[source]
        return make(name, lambda a: result(given), convert(source, target, mode or "exact"))
    r = named(name)
    if r is not None:
        return _routine(r)
    raise KeyError(name)


def _routine(r: Routine) -> Any:
    given = [VALUES[p.dtype] for p in r.params]
    signature = VALUES[r.result.dtype](*given)
    return make(r.name, lambda *_: signature, lambda b, *args: call(b, r, list(args)))


def namespace(code: CodeType) -> dict[str, Any]:
    """Globals for the function of a text."""
    names: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "range": range}
    for name in code.co_names:
        if name not in names:
            if name not in _made:
                _made[name] = _named(name)
            names[name] = _made[name]
    return names
