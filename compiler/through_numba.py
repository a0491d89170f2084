"""Kernel texts to LLVM IR through Numba: the text of a function goes in, the text of an LLVM module comes out.

Numba reads the function's bytecode, and its lowering writes the LLVM code. Between these stands a pass of ours in place of
Numba's inference: every name of a kernel has one type, known from its first assignment, so one walk finds all types.
"""
# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Any

from numba import types
from numba.core import bytecode, callconv, cgutils, funcdesc, ir, lowering, targetconfig, typing
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext
from numba.core.interpreter import Interpreter
from numba.core.typing.templates import Signature

from .intrinsics import Memory, namespace

# Loops of more instructions gain little as vector code, and cost most of the time that compiling takes.
LONG = 250


class Plain(callconv.MinimalCallConv):
    """Arguments and the result as they are: kernels raise nothing."""

    def get_function_type(self, restype: Any, argtypes: Any) -> Any:
        from llvmlite import ir as llvm

        return llvm.FunctionType(self.context.get_value_type(restype), [self.context.get_value_type(t) for t in argtypes])

    def get_arguments(self, func: Any) -> Any:
        return func.args

    def decorate_function(self, fn: Any, args: Any, argtypes: Any, noalias: bool = False) -> None:
        fn.linkage = "internal"
        fn.attributes.add("nounwind")

    def return_value(self, builder: Any, retval: Any) -> None:
        builder.ret(retval)

    def return_user_exc(self, builder: Any, *_: Any, **__: Any) -> None:
        builder.unreachable()   # for a `range` whose step is 0


class Typing(typing.context.BaseContext):
    """Numba's rules for numbers and loops, without those for arrays and the rest, whose loading takes most of a second."""


class Context(CPUContext):
    """Numba's target for this CPU, with plain calls and as few rules."""

    def load_additional_registries(self) -> None:
        from numba.cpython import builtins, numbers, rangeobj  # noqa: F401

    @functools.cached_property
    def call_conv(self) -> Any:
        return Plain(self)

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        key = (fn, sig.args, sig.return_type)
        if key not in _found:
            _found[key] = super().get_function(fn, sig, _firstcall)
        return _found[key]


_found: dict[Any, Any] = {}


@functools.cache
def contexts() -> tuple[Any, Any, Any]:
    """Typing context, target context and flags, made once."""
    flags: Any = Flags()
    flags.error_model, flags.no_cpython_wrapper, flags.no_cfunc_wrapper = "numpy", True, True
    typer = Typing()
    target = Context(typer, "cpu")
    target.refresh()
    return typer, target.subtarget(error_model=callconv.create_error_model("numpy", target)), flags


class Types:
    """Types of all names of one function, and the signature of every call in it."""

    def __init__(self, typer: Any, function: Any, written: frozenset[str]):
        self.typer, self.written = typer, written
        self.known: dict[str, Any] = {}
        self.calls: dict[Any, Signature] = {}
        for name in function.arg_names:
            self.known["arg." + name] = types.int64
        for _, block in sorted(function.blocks.items()):
            for s in block.body:
                if isinstance(s, ir.Assign):
                    found = self.value(s.value)
                    if isinstance(found, Memory) and not s.target.name.startswith("$"):
                        found = Memory(found.element, s.target.name, written)
                    self.known.setdefault(s.target.name, found)
                elif isinstance(s, ir.SetItem):
                    memory = self.of(s.target)
                    self.calls[s] = types.none(memory, types.int64, memory.dtype)

    def of(self, v: Any) -> Any:
        return self.known[v.name]

    def value(self, v: Any) -> Any:
        match v:
            case ir.Arg():
                return types.int64
            case ir.Const(value=value):
                return types.boolean if isinstance(value, bool) else types.int64 if isinstance(value, int) else types.float64
            case ir.Global(value=value):
                return _value_type(value)
            case ir.Var():
                return self.of(v)
        signature = self.expr(v)
        if isinstance(signature, Signature):
            self.calls[v] = signature
            return signature.return_type
        return signature

    def expr(self, e: Any) -> Any:
        match e.op:
            case "binop":
                return _call_type(_value_type(e.fn), self.of(e.lhs), self.of(e.rhs))
            case "unary":
                return _call_type(_value_type(e.fn), self.of(e.value))
            case "call":
                return _call_type(self.of(e.func), *map(self.of, e.args))
            case "getitem":
                memory = self.of(e.value)
                return memory.dtype(memory, types.int64)
            case "getiter" | "iternext":
                return _call_type(e.op, self.of(e.value))
            case "pair_first":
                return self.of(e.value).first_type
            case "pair_second":
                return self.of(e.value).second_type
            case "cast":
                return self.of(e.value)
        raise TypeError(f"a kernel's text has no {e.op}")


@functools.cache
def _value_type(value: Any) -> Any:
    return types.float64 if isinstance(value, float) else contexts()[0].resolve_value_type(value)


@functools.cache
def _call_type(function: Any, *args: Any) -> Any:
    return contexts()[0].resolve_function_type(function, args, {})


class Reader(Interpreter):
    """Numba's reader of bytecode, without its search for `with`, `try` and long lists of arguments."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        return func_ir


class Lower(lowering.Lower):
    """Numba's lowering, without what only objects with counted references need.

    Long loops are marked so that LLVM leaves them as they are.
    """

    def lower_block(self, block: Any) -> None:
        self.pre_block(block)
        for inst in block.body:
            self.loc = inst.loc
            self.lower_inst(inst)
            if isinstance(inst, ir.Jump) and self.blkmap[inst.target].is_terminated:
                self._again(self.blkmap[inst.target])

    def _applied(self, function: Any, signature: Signature, args: Sequence[Any], result: Any) -> Any:
        given = [self.context.cast(self.builder, self.loadvar(a.name), self.typeof(a.name), t)
                 for a, t in zip(args, signature.args, strict=True)]
        made = self.context.get_function(function, signature)(self.builder, given)
        return self.context.cast(self.builder, made, signature.return_type, result)

    def lower_call(self, resty: Any, expr: Any) -> Any:
        return self._applied(self.typeof(expr.func.name), self.fndesc.calltypes[expr], expr.args, resty)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        made = self._applied(_value_type(op), self.fndesc.calltypes[expr], (expr.lhs, expr.rhs), resty)
        if "nsw" in getattr(made, "flags", ()):   # Numba promises LLVM that nothing overflows, and our checks would go
            made.flags.remove("nsw")
        return made

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Signature) -> Any:
        return self._applied(operator.getitem, signature, (value, index), resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Signature) -> Any:
        return self._applied(operator.setitem, signature, (target_var, index_var, value_var), types.none)

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        return cgutils.alloca_once(self.builder, lltype, name=name)

    def decref(self, typ: Any, val: Any) -> None:
        pass

    incref = decref

    def _again(self, head: Any) -> None:
        blocks = self.function.blocks
        size = sum(len(b.instructions) for b in blocks[blocks.index(head):])
        if size > LONG:
            self.long_loops = getattr(self, "long_loops", 0) + 1
            mark = self.module.add_metadata([f"long loop {self.long_loops}"])
            self.builder.block.terminator.set_metadata("llvm.loop", mark)


@global_compiler_lock
def module_text(text: str, symbol: str) -> str:
    """LLVM IR whose internal function `{symbol}_record` is the kernel's: status = f(row of the table, arena)."""
    code = [c for c in compile(text, "<kernel>", "exec").co_consts if isinstance(c, CodeType)][-1]   # after the routines
    function = FunctionType(code, namespace(code))
    identity = bytecode.FunctionIdentity.from_function(function)
    read = Reader(identity).interpret(bytecode.ByteCode(identity))
    written = frozenset(s.target.name for b in read.blocks.values() for s in b.body if isinstance(s, ir.SetItem))
    typer, target, flags = contexts()
    target.refresh()   # with the intrinsics made for this text
    found = Types(typer, read, written - {"row", "escape"})
    described = funcdesc.PythonFunctionDescriptor.from_specialized_function(
        read, found.known, types.int64, found.calls, mangler=lambda *_, **__: f"{symbol}_record", inline=False, noalias=False,
        abi_tags=())
    library = target.codegen().create_library(symbol)
    with targetconfig.ConfigStack().enter(flags), target.push_code_library(library):
        lower = Lower(target, library, described, read)
        lower.lower_normal_function(described)
    return re.sub(r"\b(add|sub|mul) nsw\b", r"\1", str(lower.module))   # sums of i64 wrap: hashes and draws rely on it
