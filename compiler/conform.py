"""Written types against values: `u8[h, w, 3]` binds names met first and asks the others to be equal."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Label, Span
from ..dsl.types import DTYPE_VARIABLES, DTYPES, FLOATS, INT_RANGE, INTS, WEAK_INT, Type
from . import arithmetic, builds
from .graph import Node
from .promote import as_dim, dim_node
from .scope import Scope, Value, unknown
from .words import described, dim_text, similar, type_text

if TYPE_CHECKING:
    from .elaborate import Elaborator

REST = "..."
WIDER = {"f16": ("f32", "f64"), "bf16": ("f32", "f64"), "f32": ("f64",), "f64": ()}
OTHER_NAMES = {
    "int": "i64", "float": "f32", "double": "f64", "str": "text", "string": "text", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "long": "i64",
    "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "boolean": "bool", "byte": "u8",
}


def type_of(
    el: Elaborator, scope: Scope, written: tree.TypeExpr, bind_dims: Callable[[int], Node | int] | None
) -> Type:
    """The type as written; a problem gives the unknown type."""
    if not known_dtype(el, scope, written, words=False):
        return Type("unknown")
    dims: list[int | Node] = []
    for axis, e in enumerate(written.dims):
        unbound = isinstance(e, tree.Name) and (e.id == "_" or (e.id not in scope.dims and scope.look_up(e.id) is None))
        if unbound and bind_dims is not None:
            dim = bind_dims(axis)
            assert isinstance(e, tree.Name)
            if e.id != "_":
                bind_name(el, scope, e.id, dim, e.span)
            dims.append(dim)
            continue
        found = size_of(el, scope, e)
        if found is None:
            return Type("unknown")
        dims.append(found)
    return Type(written.dtype, tuple(dims), written.missing)


def known_dtype(el: Elaborator, scope: Scope, written: tree.TypeExpr, words: bool = True) -> bool:
    if written.dtype in DTYPES or (words and written.dtype in DTYPE_VARIABLES):
        return True
    span = written.dtype_span
    if written.dtype in DTYPE_VARIABLES and written.dtype not in OTHER_NAMES:
        el.problem(scope, "E0124", f"`{written.dtype}` stands for a dtype in signatures only", span,
                   notes=["dtypes: " + ", ".join(DTYPES)])
        return False
    near = OTHER_NAMES.get(written.dtype) or similar(written.dtype, DTYPES)
    fixes = [Fix(f"write `{near}`", (Edit(span, near),))] if near else []
    el.problem(scope, "E0124", f"no dtype is called `{written.dtype}`", span, "not a dtype",
               notes=["dtypes: " + ", ".join(DTYPES)], fixes=fixes)
    return False


def bind_name(el: Elaborator, scope: Scope, name: str, dim: int | Node, span: Span) -> None:
    """A dimension name is a number from here on."""
    scope.dims[name] = dim
    scope.names[name] = Value(dim_node(dim), WEAK_INT, span)
    if not isinstance(dim, int):
        el.places.setdefault(dim, (span, ""))


def size_of(el: Elaborator, scope: Scope, e: tree.Expr) -> int | Node | None:
    """A dimension's expression as a size; None after a problem."""
    if isinstance(e, tree.Name) and e.id in scope.dims:
        return scope.dims[e.id]
    if _untold(el, scope, e):
        return None
    value = el.expr(scope, e)
    if not value.known:
        return None
    if value.type.dims or value.type.dtype not in INTS or value.type.missing:
        el.problem(scope, "E0204", "a dimension is a whole number", e.span, described(scope, value.type))
        return None
    return as_dim(el.scalar(value, "i64"))


def _untold(el: Elaborator, scope: Scope, e: tree.Expr) -> bool:
    """Is there a name in a size like `2 * k` that nothing gives. It is told once, and unknown from then on."""
    if isinstance(e, tree.Name):
        return False
    for name in builds.names_in(e):
        if scope.look_up(name.id) is None and name.id != "epoch" and not similar(name.id, scope.names):
            scope.names[name.id] = unknown(name.span)
            el.problem(scope, "E0204", f"nothing tells the size `{name.id}`", name.span, "met first in an expression",
                       notes=[f"a size is named where it stands alone: `[{name.id}]`"])
            return True
    return False


# --- checking -----------------------------------------------------------------------------------


def check_type(el: Elaborator, value: Value, written: tree.TypeExpr, scope: Scope) -> Value:
    if not known_dtype(el, scope, written, words=False):
        return unknown(value.span)
    if not value.known:
        _bind_unknown(el, scope, written)
        return value
    if value.type.missing and not written.missing:
        el.plain(scope, value, value.span, f"`{el.text(written.span)}`")
        return unknown(value.span)
    fitted = as_written(el, scope, value, written.dtype, value.span, written.span)
    if fitted is None or not unify(el, scope, written, fitted, value.span):
        return unknown(value.span)
    if fitted.node is not None and fitted.node.op not in ("const",) and not el.silent:
        el.context.types.setdefault(fitted.node, written)
    return fitted


def _bind_unknown(el: Elaborator, scope: Scope, written: tree.TypeExpr) -> None:
    """The names that a failed line would have bound exist, so that using them gives no second message."""
    for e in written.dims:
        if isinstance(e, tree.Name) and e.id != "_" and e.id not in scope.dims and scope.look_up(e.id) is None:
            scope.names[e.id] = unknown(e.span)


def as_written(
    el: Elaborator, scope: Scope, value: Value, dtype: str, span: Span, asked: Span | None, what: str = ""
) -> Value | None:
    """`value` with its elements as `dtype` if that loses nothing; E0201 otherwise. `what` names an argument."""
    if not el.whole(scope, value, span):
        return None
    t = value.type
    if t.dtype == dtype or (t.dtype in ("text", "path") and dtype in ("text", "path")):
        return replace(value, type=replace(t, weak=False, dtype=dtype))
    if t.weak and dtype in INTS and t.dtype in INTS:
        if arithmetic.fits(el, scope, value, dtype):
            return el.tensor(value, dtype)
        _does_not_fit(el, scope, value, dtype, span, asked)
        return None
    if (t.weak and dtype in FLOATS) or dtype in WIDER.get(t.dtype, ()):
        return el.tensor(value, dtype)
    if t.dtype in INTS and dtype in INTS and _contains(dtype, t.dtype):
        return el.tensor(value, dtype)
    _wrong_dtype(el, scope, value, dtype, span, asked, what)
    return None


def _contains(wide: str, narrow: str) -> bool:
    (low, high), (least, most) = INT_RANGE[wide], INT_RANGE[narrow]
    return wide == "i64" or (low <= least and most <= high)


def _does_not_fit(el: Elaborator, scope: Scope, value: Value, dtype: str, span: Span, asked: Span | None) -> None:
    low, high = INT_RANGE[dtype]
    edit = Edit(span, f"{dtype}({el.text(span)})")
    reasons = [Label(asked, f"{low} to {high}")] if asked is not None else []
    if asked is None:
        el.problem(scope, "E0206", f"`{el.text(span)}` may not fit {dtype}", span, f"{dtype} holds {low} to {high}",
                   reasons=reasons, fixes=[Fix("let it stop at the ends", (edit,))])
        return
    el.problem(scope, "E0206", f"this number may not fit {dtype}", span, described(scope, value.type), reasons=reasons,
               fixes=[Fix("let it stop at the ends", (_cast_edit(el, span, dtype),))])


def _cast_edit(el: Elaborator, span: Span, dtype: str) -> Edit:
    return Edit(span, f"{dtype}({el.text(span)})")


def _wrong_dtype(
    el: Elaborator, scope: Scope, value: Value, dtype: str, span: Span, asked: Span | None, what: str
) -> None:
    t = value.type
    fixes = []
    castable = t.dtype in (*INTS, *FLOATS, "bool") and dtype in (*INTS, *FLOATS)
    if castable:
        fixes = [Fix(f"turn it into {dtype}", (_cast_edit(el, span, dtype),))]
    if t.dtype in INTS and dtype == "bool":
        fixes = [Fix("compare it", (Edit(span, f"{el.text(span)} != 0"),))]
    notes = []
    if t.dtype in FLOATS and dtype == "u8" and what:    # a conversion would make all pixels black
        fixes, notes = [], ["pixels are u8, from 0 to 255: give them as they were decoded, before they are divided"]
    reasons = [Label(asked, f"{dtype} is asked for")] if asked is not None else []
    title = f"{what} is {dtype}" if what else f"{dtype} is asked for"
    this = described(scope, t.element) if t.weak else t.dtype
    el.problem(scope, "E0201", f"{title}, and this is {this}", span, described(scope, t), reasons=reasons, notes=notes,
               fixes=fixes)


def unify(
    el: Elaborator, scope: Scope, written: tree.TypeExpr, value: Value, span: Span, result: bool = False
) -> bool:
    """Bind and compare dimensions; names are bound in `scope`. E0204 where the written ones can't hold."""
    dims = value.type.dims
    wanted = written.dims
    if len(dims) < len(wanted) or (len(dims) > len(wanted) and not written.rest):
        _wrong_rank(el, scope, written, value, span)
        return False
    for e, dim in zip(wanted, dims, strict=False):
        if not unify_dim(el, scope, written, e, dim, value, span):
            return False
    if written.rest:
        return _rest(el, scope, written, dims[len(wanted) :], value, span)
    return True


def unify_dim(
    el: Elaborator, scope: Scope, written: tree.TypeExpr, e: tree.Expr, dim: int | Node, value: Value, span: Span
) -> bool:
    if isinstance(e, tree.Name):
        if e.id == "_":
            return True
        if e.id not in scope.dims and scope.look_up(e.id) is None:
            bind_name(el, scope, e.id, el.settled(dim), e.span)
            return True
    known = size_of(el, scope, e)
    if known is None:
        return False
    if el.same_size(scope, known, dim, span):
        return True
    _wrong_size(el, scope, written, e, known, dim, value, span)
    return False


def _rest(
    el: Elaborator, scope: Scope, written: tree.TypeExpr, dims: Sequence[int | Node], value: Value, span: Span
) -> bool:
    """`...` stands for the same dimensions wherever it recurs in a signature."""
    known = scope.rest
    if known is None:
        scope.rest = tuple(dims)
        return True
    if len(known) == len(dims) and all(el.same_size(scope, a, b, span) for a, b in zip(known, dims, strict=True)):
        return True
    _wrong_rank(el, scope, written, value, span)
    return False


def _wrong_rank(el: Elaborator, scope: Scope, written: tree.TypeExpr, value: Value, span: Span) -> None:
    reasons = [] if written.span.file == "<head>" else [Label(written.span, "asked for")]
    asked = el.text(written.span) or head_type(written)
    title = f"`{asked}` is asked for, and this is {_article(scope, value.type)}"
    el.problem(scope, "E0204", title, span, type_text(scope, value.type), reasons=reasons)


def _article(scope: Scope, type: Type) -> str:
    return f"one {type.dtype}" if not type.dims else f"`{type_text(scope, type)}`"


def head_type(written: tree.TypeExpr) -> str:
    """A written type from its tree (operators' heads have no text at hand)."""
    dims = [d.id if isinstance(d, tree.Name) else str(d.value) if isinstance(d, tree.Number) else "…" for d in written.dims]
    dims += ["..."] if written.rest else []
    return written.dtype + ("?" if written.missing else "") + (f"[{', '.join(dims)}]" if dims else "")


def _wrong_size(
    el: Elaborator, scope: Scope, written: tree.TypeExpr, e: tree.Expr, known: int | Node, dim: int | Node, value: Value,
    span: Span,
) -> None:
    size = dim_text(scope, known)
    name = el.text(e.span) or (e.id if isinstance(e, tree.Name) else size)
    what = f"`{name}`" if name == size or size == "_" else f"`{name}` is {size}"
    got = dim_text(scope, dim)
    title = f"{what} and {got} are different sizes" if got != "_" else f"{what} isn't the size of this"
    fixes = []
    if written.span.file == span.file and isinstance(dim, int):
        fixes = [Fix("write the size it has", (Edit(e.span, str(dim)),))]
    reasons = [] if written.span.file == "<head>" else [Label(e.span, f"{size} is asked for" if size != "_" else "asked for")]
    el.problem(scope, "E0204", title, span, type_text(scope, value.type), reasons=reasons, fixes=fixes)

