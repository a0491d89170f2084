"""Names that mean nothing here: similar ones are offered, and habits from Python and PyTorch repaired."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ..dsl import tree
from ..dsl.problems import Edit, Fix, Span
from ..dsl.types import DTYPES
from .scope import Scope, Value, unknown
from .words import described, listed, similar, size_text, type_text, writable_dim

if TYPE_CHECKING:
    from .elaborate import Elaborator

CONSTANTS = {"True": "true", "False": "false"}
MODULES = frozenset((
    "np", "numpy", "torch", "random", "math", "tf", "jnp", "F", "nn", "transforms", "T", "v2", "torchvision", "scipy", "cv2",
    "PIL", "os",
))
RENAMED = {
    "int": "i64", "float": "f32", "double": "f64", "long": "i64", "half": "f16", "uint8": "u8", "int64": "i64", "int32": "i32",
    "float32": "f32", "float16": "f16", "str": "text",
    "randint": "integers", "rand": "uniform", "randperm": "permutation", "gauss": "normal", "cat": "concat",
    "concatenate": "concat", "hflip": "mirror", "clip": "clamp", "nonzero": "indices", "isnan": "is_nan",
    "isinf": "is_inf", "isna": "missing", "isnull": "missing", "random": "uniform",
    "random_horizontal_flip": "random_flip", "horizontal_flip": "mirror", "vertical_flip": "upend", "vflip": "upend",
    "product": "prod", "amax": "max", "amin": "min", "average": "mean", "absolute": "abs", "fabs": "abs",
}
# Calls without a counterpart: what is written instead, as an edit made from the texts of the arguments.
REWRITTEN = {
    "arange": "[i for i < {0}]", "range": "[i for i < {0}]", "zeros": "[0.0 for i < {0}]", "ones": "[1.0 for i < {0}]",
    "square": "({0}) ^ 2", "zeros_like": "0", "where": "(if {0} then {1} else {2})", "tensor": "{0}", "array": "{0}",
    "linspace": "[{0} + ({1} - {0}) * i / ({2} - 1) for i < {2}]",
    "asarray": "{0}", "as_tensor": "{0}", "from_numpy": "{0}", "torch_tensor": "{0}",
}
# Functions without a counterpart, and what to do instead.
_NAMED = "dimensions have names: `[x[i, j] for j, i]` turns two of them; `to_chw(img)` is the usual one for images"
_SHAPE = "no function changes a shape: `[x[i // 4, i % 4] for i < 12]` says where each element comes from"
_ORDER = "nothing is sorted within a record: do it where the data is made, or in an `extern fn`"
INSTEAD = {
    "stack": "tensors of one shape between brackets, `[a, b]`, are one with a dimension more in front",
    **dict.fromkeys(("permute", "transpose", "swapaxes", "moveaxis", "rearrange"), _NAMED),
    **dict.fromkeys(("reshape", "view", "flatten", "ravel", "squeeze", "unsqueeze", "expand_dims"), _SHAPE),
    **dict.fromkeys(("sort", "argsort", "sorted", "topk", "unique"), _ORDER),
    "softmax": "a softmax is written `[exp(x[i]) / sum(exp(x[j]) for j) for i]`",
    "matmul": "`[sum(a[i, k] * b[k, j] for k) for i, j]` multiplies matrices",
    "to_tensor": "a loader gives tensors; `f32(to_chw(img)) / 255` is what torchvision's ToTensor makes of an image",
}


def unknown_name(el: Elaborator, scope: Scope, e: tree.Name) -> Value:
    """E0101, or what is said of names that aren't values."""
    name = e.id
    if name in CONSTANTS:
        return el.fail(scope, "E0126", f"`{CONSTANTS[name]}` is written with a small letter", e.span,
                       fixes=[Fix("write it so", (Edit(e.span, CONSTANTS[name]),))])
    if name in MODULES:
        return el.fail(scope, "E0126", f"there is no module `{name}`", e.span, "not needed",
                       notes=["functions are called by their own name: `mean(x)`"])
    if name == "None":
        return el.fail(scope, "E0126", "there is no `None`", e.span,
                       notes=["a value with gaps has a type with `?`; `missing(x)` asks, `x ?? v` fills"])
    other = _other_kind(el, scope, e)
    if other is not None:
        return other
    values = _values(scope)
    near = similar(name, values)
    here = [n for n in scope.names if not _is_binder(scope.names[n])]
    shown = listed(here)
    what = "names in this function" if scope.function else "fields at this point"
    notes = [f"{what}: {shown}"] if shown else []
    if near:
        kind = "field" if near in here and not scope.function else "value"
        fix = Fix(f"a {kind} with a similar name exists", (Edit(e.span, near),))
        return el.fail(scope, "E0101", f"nothing here is called `{name}`", e.span, "not found", notes=notes, fixes=[fix])
    return el.fail(scope, "E0101", f"nothing here is called `{name}`", e.span, "not found", notes=notes)


def _is_binder(value: Value) -> bool:
    return value.node is not None and value.node.op == "var"


def _values(scope: Scope) -> list[str]:
    return [*scope.names, *scope.file.params, *scope.file.lets, "epoch"]


def _other_kind(el: Elaborator, scope: Scope, e: tree.Name) -> Value | None:
    """A function, schema or pipeline used as a value."""
    from .calls import known_functions

    name = e.id
    for kind, names in (("schema", scope.file.schemas), ("pipeline", scope.file.pipelines)):
        if name in names:
            return el.fail(scope, "E0125", f"`{name}` is a {kind}, not a value", e.span)
    if name in known_functions(scope) and not similar(name, _values(scope)):
        notes = ["a function isn't a value: it is called where it is used"]
        return el.fail(scope, "E0125", f"`{name}` is a function, not a value", e.span, "not called", notes=notes)
    return None


def unknown_function(el: Elaborator, scope: Scope, e: tree.Call) -> Value:
    """E0102, with the name that was meant."""
    from .calls import known_functions

    values = [el.expr(scope, a.value) for a in e.args]
    name = e.fn
    if name == "len":
        return _length(el, scope, e, values)
    texts = [el.text(a.span) for a in e.args]
    if name in REWRITTEN and all(v.known for v in values):
        try:
            new = REWRITTEN[name].format(*texts)
        except IndexError:
            new = ""
        if new:
            instead = REWRITTEN[name].format("n", "a", "b")
            return el.fail(scope, "E0126", f"there is no `{name}`", e.fn_span, f"written `{instead}`",
                           fixes=[Fix("write it so", (Edit(e.span, new),))])
    known = known_functions(scope)
    if name in RENAMED and RENAMED[name] in known:
        new = RENAMED[name]
        return el.fail(scope, "E0126", f"`{name}` is called `{new}` here", e.fn_span,
                       fixes=[Fix(f"write `{new}`", (Edit(e.fn_span, new),))])
    if scope.look_up(name) is not None:
        fixes = [Fix("index with brackets", (Edit(e.span, f"{name}[{', '.join(texts)}]"),))] if texts else []
        return el.fail(scope, "E0125", f"`{name}` is a value, not a function", e.fn_span, "can't be called", fixes=fixes)
    if name in INSTEAD:
        return el.fail(scope, "E0102", f"no function is called `{name}`", e.fn_span, "not found", notes=[INSTEAD[name]])
    near = similar(name, known)
    if near:
        return el.fail(scope, "E0102", f"no function is called `{name}`", e.fn_span, "not found",
                       fixes=[Fix("a function with a similar name exists", (Edit(e.fn_span, near),))])
    own = listed(scope.file.fns)
    return el.fail(scope, "E0102", f"no function is called `{name}`", e.fn_span, "not found",
                   notes=[f"functions of this file: {own}"] if own else [])


def _length(el: Elaborator, scope: Scope, e: tree.Call, values: list[Value]) -> Value:
    value = values[0] if len(values) == 1 else unknown(e.span)
    size = size_text(scope, e.args[0].value, 0, value.type.dims[0]) if value.known and value.type.dims else None
    fixes = [Fix("write the size", (Edit(e.span, size),))] if size else []
    return el.fail(scope, "E0126", "there is no `len`: a size is a number with a name", e.fn_span, fixes=fixes,
                   notes=[] if size else ["name it where the tensor is made (`x: f32[n] = …`), then use `n`"])


# --- attributes ---------------------------------------------------------------------------------


def attribute(el: Elaborator, scope: Scope, e: tree.Part) -> Value | None:
    """`np.pi`, `x.shape`, `x.T`: None where this is not such a slip."""
    if isinstance(e.value, tree.Name) and e.value.id in MODULES and scope.look_up(e.value.id) is None:
        return el.fail(scope, "E0126", f"there is no module `{e.value.id}`", e.span, "not needed",
                       notes=["functions are called by their own name: `mean(x)`"])
    if e.name not in ("shape", "size", "dtype", "T", "ndim"):
        return None
    with el.quietly():
        value = el.expr(scope, e.value)
    if not value.known:
        el.expr(scope, e.value)
        return unknown(e.span)
    if e.name in [n for n, _ in value.type.parts] or e.name in (value.parts or {}):
        return None
    return _shape(el, scope, e, value)


def _shape(el: Elaborator, scope: Scope, e: tree.Part, value: Value) -> Value:
    what = el.text(e.value.span)
    if e.name == "T" and len(value.type.dims) == 2 and isinstance(e.value, (tree.Name, tree.Part)):
        fix = Fix("name the indexes", (Edit(e.span, f"[{what}[i, j] for j, i]"),))
        return el.fail(scope, "E0126", "there is no `.T`", e.span, described(scope, value.type), fixes=[fix])
    sizes = [writable_dim(scope, d) for d in value.type.dims]
    fixes = []
    if e.name in ("shape", "size") and sizes and all(sizes):
        fixes = [Fix("write the sizes", (Edit(e.span, "[" + ", ".join(s for s in sizes if s) + "]"),))]
    elif e.name == "ndim":
        fixes = [Fix("write the number", (Edit(e.span, str(len(sizes))),))]
    return el.fail(scope, "E0126", f"there is no `.{e.name}`: types and sizes are known by name", e.span,
                   type_text(scope, value.type), notes=_naming(what), fixes=fixes)


def _naming(what: str) -> list[str]:
    return [f"`{what}: u8[h, w, 3] = …` names the sizes; `h` and `w` are then numbers"]


def shape_indexed(el: Elaborator, scope: Scope, e: tree.At) -> Value | None:
    """`x.shape[0]`"""
    part = e.value
    if not isinstance(part, tree.Part) or part.name not in ("shape", "size") or len(e.indexes) != 1:
        return None
    index = e.indexes[0]
    back = isinstance(index, tree.Unary) and isinstance(index.value, tree.Number)
    with el.quietly():
        value = el.expr(scope, part.value)
    if not value.known or part.name in [n for n, _ in value.type.parts] or part.name in (value.parts or {}):
        return None
    axis: object = None
    if isinstance(index, tree.Number):
        axis = index.value
    elif back and isinstance(index, tree.Unary) and isinstance(index.value, tree.Number):
        axis = -index.value.value
    dims = value.type.dims
    size = None
    if isinstance(axis, int) and -len(dims) <= axis < len(dims):
        size = size_text(scope, part.value, axis % len(dims), dims[axis])
    fixes = [Fix("write the size", (Edit(e.span, size),))] if size else []
    return el.fail(scope, "E0126", f"there is no `.{part.name}`: a size is a number with a name", e.span,
                   type_text(scope, value.type), notes=[] if size else _naming(el.text(part.value.span)), fixes=fixes)


def no_part(el: Elaborator, scope: Scope, e: tree.Part, value: Value) -> Value:
    """`clip.rat`, or a part of something that has none."""
    names = [n for n, _ in value.type.parts] or list(value.parts or ())
    what = el.text(e.value.span)
    if names:
        near = similar(e.name, names)
        fixes = [Fix("a part with a similar name exists", (Edit(e.name_span, near),))] if near else []
        return el.fail(scope, "E0207", f"`{what}` has no part `{e.name}`", e.name_span, "not found",
                       notes=["its parts: " + ", ".join(names)], fixes=fixes)
    from .calls import known_functions

    fixes = []
    if e.name in known_functions(scope) and e.name not in DTYPES:
        fixes = [Fix("call the function", (Edit(e.span, f"{e.name}({what})"),))]
    return el.fail(scope, "E0207", f"`{what}` has no parts", Span(e.span.file, e.value.span.end, e.span.end),
                   described(scope, value.type), fixes=fixes)


# --- None, axes ---------------------------------------------------------------------------------


def compared_with_none(el: Elaborator, scope: Scope, e: tree.Compare) -> Value | None:
    """`x == None`"""
    if len(e.operands) != 2 or e.ops[0] not in ("==", "!="):
        return None
    for i, side in enumerate(e.operands):
        if isinstance(side, tree.Name) and side.id == "None" and scope.look_up("None") is None:
            other = el.text(e.operands[1 - i].span)
            new = f"missing({other})" if e.ops[0] == "==" else f"not missing({other})"
            return el.fail(scope, "E0126", "there is no `None`: a gap is asked for by `missing`", side.span,
                           fixes=[Fix("ask for it", (Edit(e.span, new),))])
    return None


def axis(el: Elaborator, scope: Scope, e: tree.Call, given: tree.Argument) -> Value:
    """`mean(x, dim=0)`"""
    first = next((a for a in e.args if a.name is None), None)
    value = el.expr(scope, first.value) if first else unknown(e.span)
    if first is None or not value.known:
        return unknown(e.span)
    fixes = []
    rank = len(value.type.dims)
    number = _axis_number(given.value)
    if number is not None and -rank <= number < rank and 1 < rank <= 4 and isinstance(first.value, (tree.Name, tree.Part)):
        names = [n for n in "ijkmnpqrs" if scope.look_up(n) is None][:rank]
        run = names[number]
        rest = [n for n in names if n != run]
        text = f"[{e.fn}({el.text(first.span)}[{', '.join(names)}] for {run}) for {', '.join(rest)}]"
        fixes = [Fix("name the indexes", (Edit(e.span, text),))]
    return el.fail(scope, "E0121", f"`{e.fn}` has no argument `{given.name}`", given.span,
                   "not one of its arguments", notes=["what it runs over is named: `sum(x[i, j] for i)`"], fixes=fixes)


def _axis_number(e: tree.Expr) -> int | None:
    match e:
        case tree.Number(value=int(n)):
            return n
        case tree.Unary(op="-", value=tree.Number(value=int(n))):
            return -n
    return None

