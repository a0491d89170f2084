"""What the names in kernel texts mean in machine code: each is a few LLVM instructions, put where it stands.

A code is a function of an LLVM builder and the arguments' values. Routines become functions of their own, which the
kernel's code calls and LLVM puts in place.
"""
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ..runtime.objects import target
from .emit_numba import INFIX, Interner, const_number
from .loops import Apply, Cast, Const, Expr, Select, Var
from .routines import Routine, routine_of

LLVM = {
    "bool": ir.IntType(1), "u8": ir.IntType(8), "i8": ir.IntType(8), "u16": ir.IntType(16), "i16": ir.IntType(16),
    "u32": ir.IntType(32), "i32": ir.IntType(32), "u64": ir.IntType(64), "i64": ir.IntType(64),
    "f16": ir.IntType(16), "bf16": ir.IntType(16), "f32": ir.FloatType(), "f64": ir.DoubleType(),
}
I32, I64 = LLVM["i32"], LLVM["i64"]
Code = Callable[..., Any]   # (ir builder, *llvm values) -> llvm value


def llvm_call(b: Any, name: str, result: Any, *args: Any) -> Any:
    fnty = ir.FunctionType(result, [a.type for a in args])
    module = b.module
    fn = module.globals.get(name) or ir.Function(module, fnty, name)
    return b.call(fn, args)


def suffix(t: Any) -> str:
    return {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(t) or f"i{t.width}"


def is_float(v: Any) -> bool:
    return isinstance(v.type, (ir.FloatType, ir.DoubleType))


def overloaded(name: str) -> Code:
    """The LLVM intrinsic `name`, overloaded on its first argument."""
    return lambda b, *args: llvm_call(b, f"llvm.{name}.{suffix(args[0].type)}", args[0].type, *args)


# --- arithmetic ---


def zero(v: Any) -> Any: return ir.Constant(v.type, 0)
def number(v: Any, n: Any) -> Any: return ir.Constant(v.type, n)


def safe_divisor(b: Any, y: Any) -> Any:
    """Division by 0 would kill the process; proofs exclude it, but both sides of a select are evaluated."""
    return b.select(b.icmp_signed("==", y, zero(y)), number(y, 1), y)


def divmod_floor(b: Any, x: Any, y: Any) -> tuple[Any, Any]:
    d = safe_divisor(b, y)
    # i64's least value divided by -1 traps: negate by hand instead.
    minus = b.icmp_signed("==", d, number(d, -1))
    d = b.select(minus, number(d, 1), d)
    q, r = b.sdiv(x, d), b.srem(x, d)
    down = b.and_(b.icmp_signed("!=", r, zero(r)), b.icmp_signed("<", b.xor(r, d), zero(r)))
    q = b.select(down, b.sub(q, number(q, 1)), q)
    r = b.select(down, b.add(r, d), r)
    return b.select(minus, b.sub(zero(x), x), q), r


def floordiv(b: Any, x: Any, y: Any) -> Any:
    if is_float(x):
        return llvm_call(b, f"llvm.floor.{suffix(x.type)}", x.type, b.fdiv(x, y))
    return divmod_floor(b, x, y)[0]


def mod(b: Any, x: Any, y: Any) -> Any:
    if is_float(x):
        return b.fsub(x, b.fmul(floordiv(b, x, y), y))
    if isinstance(y, ir.Constant) and isinstance(y.constant, int) and x.type == I64 and y.constant in QUOTIENT_IS_NEAR:
        return near_mod(b, x, y)
    return divmod_floor(b, x, y)[1]


QUOTIENT_IS_NEAR = range(1 << 12, 1 << 31)


def near_mod(b: Any, x: Any, y: Any) -> Any:
    """x mod a number of QUOTIENT_IS_NEAR, by a product with its reciprocal: vectors have no products of 128 bits.

    |x / y| is at most 2^51 and three times rounded to 53 bits, so it is wrong by less than 3/4: its floor by at most 1.
    """
    f64 = LLVM["f64"]
    near = b.fmul(b.sitofp(x, f64), ir.Constant(f64, 1.0 / y.constant))
    r = b.sub(x, b.mul(b.fptosi(overloaded("floor")(b, near), I64), y))
    r = b.select(b.icmp_signed("<", r, zero(r)), b.add(r, y), r)
    return b.select(b.icmp_signed(">=", r, y), b.sub(r, y), r)


def least(b: Any, x: Any, y: Any) -> Any:
    if not is_float(x):
        return b.select(b.icmp_signed("<", x, y), x, y)
    return b.select(b.fcmp_unordered("uno", x, x), x, b.select(b.fcmp_ordered("<", x, y), x, y))


def greatest(b: Any, x: Any, y: Any) -> Any:
    if not is_float(x):
        return b.select(b.icmp_signed(">", x, y), x, y)
    return b.select(b.fcmp_unordered("uno", x, x), x, b.select(b.fcmp_ordered(">", x, y), x, y))


def absolute(b: Any, x: Any) -> Any:
    if is_float(x):
        return overloaded("fabs")(b, x)
    return b.select(b.icmp_signed("<", x, zero(x)), b.sub(zero(x), x), x)


def unsigned_high(b: Any, x: Any, y: Any) -> Any:
    wide = ir.IntType(128)
    product = b.mul(b.zext(x, wide), b.zext(y, wide))
    return b.trunc(b.lshr(product, ir.Constant(wide, 64)), I64)


# --- conversions ---


def has_halves() -> bool:
    """Does this CPU convert f16 itself. Without, LLVM would call a library that isn't there."""
    t = target()
    return t.triple.startswith("aarch64") or "+f16c" in t.features.split(",")


def half_of_float(b: Any, x: Any) -> Any:
    """f32 to the bits of f16, to nearest even: by the CPU, or in integer operations as NumPy does it."""
    if has_halves():
        return b.bitcast(b.fptrunc(x, ir.HalfType()), LLVM["f16"])
    v = b.bitcast(x, I32)
    c = lambda n: ir.Constant(I32, n)  # noqa: E731
    sign = b.and_(b.lshr(v, c(16)), c(0x8000))
    a = b.and_(v, c(0x7FFFFFFF))
    # Normal results: rebias the exponent, then round the 13 bits that go away to nearest even.
    odd = b.and_(b.lshr(a, c(13)), c(1))
    normal = b.lshr(b.add(b.add(a, c(0xC8000FFF)), odd), c(13))
    # Subnormal results: adding 0.5 puts the bits that stay at the low end, rounded by the addition itself.
    shifted = b.fadd(b.bitcast(a, ir.FloatType()), ir.Constant(ir.FloatType(), 0.5))
    small = b.sub(b.bitcast(shifted, I32), c(0x3F000000))
    # NumPy keeps the upper bits of a nan, and some bit must stay set.
    payload = b.lshr(b.and_(a, c(0x7FFFFF)), c(13))
    nan = b.or_(c(0x7C00), b.select(b.icmp_signed("==", payload, c(0)), c(1), payload))
    h = b.select(b.icmp_signed("<", a, c(0x38800000)), small, normal)
    h = b.select(b.icmp_signed(">=", a, c(0x477FF000)), c(0x7C00), h)
    h = b.select(b.icmp_signed(">", a, c(0x7F800000)), nan, h)
    return b.trunc(b.or_(h, sign), LLVM["f16"])


def float_of_half(b: Any, h: Any) -> Any:
    if has_halves():
        return b.fpext(b.bitcast(h, ir.HalfType()), ir.FloatType())
    c = lambda n: ir.Constant(I32, n)  # noqa: E731
    v = b.zext(h, I32)
    sign = b.shl(b.and_(v, c(0x8000)), c(16))
    a = b.shl(b.and_(v, c(0x7FFF)), c(13))
    normal = b.add(a, c(0x38000000))
    special = b.add(a, c(0x70000000))
    magic = ir.Constant(I32, 0x38800000)
    small = b.bitcast(
        b.fsub(b.bitcast(b.add(a, magic), ir.FloatType()), b.bitcast(magic, ir.FloatType())), I32
    )
    out = b.select(b.icmp_signed("<", a, c(0x00800000)), small, normal)
    out = b.select(b.icmp_signed(">=", a, c(0x0F800000)), special, out)
    return b.bitcast(b.or_(out, sign), ir.FloatType())


def brain_of_float(b: Any, x: Any) -> Any:
    """f32 to the bits of bf16, to nearest even; nan becomes the quiet nan of its sign, as ml_dtypes does it."""
    v = b.bitcast(x, I32)
    c = lambda n: ir.Constant(I32, n)  # noqa: E731
    odd = b.and_(b.lshr(v, c(16)), c(1))
    rounded = b.lshr(b.add(b.add(v, c(0x7FFF)), odd), c(16))
    nan = b.or_(b.and_(b.lshr(v, c(16)), c(0x8000)), c(0x7FC0))
    return b.trunc(b.select(b.fcmp_unordered("uno", x, x), nan, rounded), LLVM["bf16"])


RANGES = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65535), "i16": (-32768, 32767), "u32": (0, 2**32 - 1),
          "i32": (-(2**31), 2**31 - 1)}


NARROW = ("u8", "i8", "u16", "i16")


def to_narrow(b: Any, x: Any, target: str) -> Any:
    """A float to an integer of 8 or 16 bits, kept inside its range; not a number is 0. By way of i32, since LLVM's own
    saturating conversion to these isn't made vector code."""
    low, high = (ir.Constant(x.type, float(v)) for v in RANGES[target])
    zero = ir.Constant(x.type, 0.0)
    if target[0] == "i":
        x = b.select(b.fcmp_unordered("uno", x, x), zero, x)
    x = b.select(b.fcmp_ordered(">", x, low), x, low)
    x = b.select(b.fcmp_ordered("<", x, high), x, high)
    return b.trunc(b.fptosi(x, I32), LLVM[target])


def to_integer(b: Any, x: Any, target: str, mode: str) -> Any:
    if mode == "round":
        x = overloaded("rint")(b, x)
    if target in NARROW:
        return to_narrow(b, x, target)
    letter, width = ("u" if target[0] == "u" else "s"), LLVM[target]
    return llvm_call(b, f"llvm.fpto{letter}i.sat.{suffix(width)}.{suffix(x.type)}", width, x)


def convert(source: str, target: str, mode: str) -> Code:
    """How a value of one dtype becomes another; see `loops.Cast`."""

    def code(b: Any, x: Any) -> Any:
        if mode == "bits":
            return same_bits(b, x, target)
        held = source
        if source == "f16":
            x, held = float_of_half(b, x), "f32"
        elif source == "bf16":
            wide = b.shl(b.zext(x, I32), ir.Constant(I32, 16))
            x, held = b.bitcast(wide, ir.FloatType()), "f32"
        if held in ("f32", "f64"):
            return from_float(b, x, target, mode)
        return from_integer(b, x, held, target, mode)

    return code


def same_bits(b: Any, x: Any, target: str) -> Any:
    if x.type == LLVM["f32"]:
        return b.zext(b.bitcast(x, I32), I64)
    if target == "f32":
        return b.bitcast(b.trunc(x, I32), LLVM["f32"])
    return x if x.type == LLVM[target] else b.bitcast(x, LLVM[target])


def from_float(b: Any, x: Any, target: str, mode: str) -> Any:
    single = x.type == ir.FloatType()
    if target == "bool":
        return b.fcmp_unordered("!=", x, ir.Constant(x.type, 0.0))
    if target == "f64":
        return b.fpext(x, ir.DoubleType()) if single else x
    if target == "f32":
        return x if single else b.fptrunc(x, ir.FloatType())
    if target == "f16":
        return half_of_float(b, x if single else b.fptrunc(x, ir.FloatType()))
    if target == "bf16":
        return brain_of_float(b, x if single else b.fptrunc(x, ir.FloatType()))
    return to_integer(b, x, target, mode)


def from_integer(b: Any, x: Any, source: str, target: str, mode: str) -> Any:
    signed = source[0] == "i"
    wide = x if x.type.width == 64 else (b.sext if signed else b.zext)(x, I64)
    if target == "bool":
        return b.icmp_signed("!=", wide, zero(wide))
    if target in ("f32", "f64"):
        return (b.sitofp if source != "u64" else b.uitofp)(wide, LLVM[target])
    if target in ("f16", "bf16"):
        return from_float(b, b.sitofp(wide, ir.FloatType()), target, "exact")
    if mode != "exact" and source == "u64" and target != "u64":
        wide = b.select(b.icmp_signed("<", wide, zero(wide)), number(wide, 2**63 - 1), wide)
    if mode != "exact" and target in RANGES:
        low, high = (ir.Constant(I64, n) for n in RANGES[target])
        wide = b.select(b.icmp_signed("<", wide, low), low, wide)
        wide = b.select(b.icmp_signed(">", wide, high), high, wide)
    if mode != "exact" and target == "u64" and source != "u64":
        wide = b.select(b.icmp_signed("<", wide, zero(wide)), zero(wide), wide)
    return wide if target in ("i64", "u64") else b.trunc(wide, LLVM[target])


# --- the functions ---

FUNCTIONS: dict[str, tuple[str, Code]] = {   # name → (how it is typed, code)
    "select": ("chosen", lambda b, c, x, y: b.select(c, x, y)),
    "min": ("same", least), "max": ("same", greatest), "abs": ("same", absolute),
    "floor": ("same", overloaded("floor")), "ceil": ("same", overloaded("ceil")), "rint": ("same", overloaded("rint")),
    "sqrt": ("same", overloaded("sqrt")), "floordiv": ("same", floordiv), "mod": ("same", mod),
    "shl": ("same", lambda b, x, n: b.shl(x, n)), "shr": ("same", lambda b, x, n: b.ashr(x, n)),
    "ushr": ("same", lambda b, x, n: b.lshr(x, n)), "mulhi": ("same", unsigned_high),
}

COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "xor": "!="}
PLAIN = {"add": "add", "sub": "sub", "mul": "mul", "bitand": "and_", "bitor": "or_", "bitxor": "xor", "and": "and_", "or": "or_"}
FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


def primitive(b: Any, fn: str, parts: list[Any]) -> Any:
    floats = is_float(parts[0])
    if fn in COMPARED:
        if not floats:
            return b.icmp_signed(COMPARED[fn], *parts)
        unequal = b.fcmp_unordered if fn == "ne" else b.fcmp_ordered
        return unequal(COMPARED[fn], *parts)
    if fn in INFIX:
        return getattr(b, FLOAT[fn] if floats else PLAIN[fn])(*parts)
    if fn == "neg":
        return b.fneg(parts[0]) if floats else b.neg(parts[0])
    if fn == "not":
        return b.not_(parts[0])
    return FUNCTIONS[fn][1](b, *parts)


def literal(b: Any, e: Const) -> Any:
    if e.dtype in ("f16", "bf16"):
        number = ir.Constant(LLVM["f32"], const_number(Const(e.value, "f32")))
        return convert("f32", e.dtype, "exact")(b, number)
    return ir.Constant(LLVM[e.dtype], const_number(e))


def operation(b: Any, e: Expr, parts: list[Any]) -> Any:
    """The value of an expression whose parts' values are known."""
    match e:
        case Const():
            return literal(b, e)
        case Cast(value=v, dtype=d, mode=m):
            return convert(v.dtype, d, m)(b, parts[0])
        case Select():
            return b.select(*parts)
        case Apply(fn=fn):
            r = routine_of(e)
            return primitive(b, fn, parts) if r is None else call(b, r, parts)
    raise TypeError(f"no LLVM code for {type(e).__name__}")


# --- routines ---

# Short ones are always put in place, so that loops around them become vector code.
SHORT = 150


def call(b: Any, r: Routine, args: list[Any]) -> Any:
    """A call of the routine, which the module gets with its first call."""
    fn = b.module.globals.get(r.name) or define(b.module, r)
    return b.call(fn, args)


def define(module: Any, r: Routine) -> Any:
    fn = ir.Function(module, ir.FunctionType(LLVM[r.result.dtype], [LLVM[p.dtype] for p in r.params]), r.name)
    fn.linkage = "internal"
    fn.attributes.add("nounwind")
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    known = {p.name: a for p, a in zip(r.params, fn.args, strict=True)}
    for s in r.body:
        known[s.var] = _value(b, known, s.value)
    b.ret(_value(b, known, r.result))
    if len(fn.entry_basic_block.instructions) < SHORT:
        fn.attributes.add("alwaysinline")
    return fn


def _value(b: Any, known: dict[str, Any], root: Expr) -> Any:
    pool = Interner()
    top = pool.number(root)
    made: list[Any] = []
    for e, parts in zip(pool.exprs, pool.parts, strict=True):
        made.append(known[e.name] if isinstance(e, Var) else operation(b, e, [made[p] for p in parts]))
    return made[top]
