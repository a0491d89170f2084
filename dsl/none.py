"""`None`, which the language doesn't have: gaps are `?`, arguments are left out, axes are named indexes."""
from __future__ import annotations

from .failure import Failure
from .problems import Edit, Problem, Span

_BINDERS = "ijkmnpqrs"


def none(f: Failure) -> Problem | None:
    """The problem of the first `None` in a line (`f.at` is not looked at)."""
    for i in range(len(f.tokens)):
        if f.word(i) == "None" and f.kind(i) == "NAME" and f.word(i + 1) not in ("=", "~", ":") and f.word(i - 1) != ".":
            return _axis(f, i) or _compared(f, i) or _argument(f, i) or f.problem(
                "E0023", "there is no `None`", f.span(i), "a value is due", "", (),
                "a value with gaps has a type with `?`; `?? v` fills them",
            )
    return None


def _axis(f: Failure, i: int) -> Problem | None:
    """`x[:, None]`: named indexes, the new axis as one that is counted to 1."""
    opener = f.opener(i)
    if opener is None or f.word(opener) != "[" or f.kind(opener - 1) not in ("NAME", "RSQB", "RPAR"):
        return None
    end, first = f.closer(opener), f.postfix(opener - 1)
    inside, binders, at, names = [], [], opener + 1, iter(_BINDERS)
    used = {f.word(j) for j in range(len(f.tokens))}
    names = (n for n in _BINDERS if n not in used)
    while at < end:
        stop = f.right(at, frozenset((",",)))
        written = f.source(at, stop - 1) if stop > at else ""
        if written == "None" or written == ":":
            name = next(names, "i")
            binders.append(name if written == ":" else f"{name} < 1")
            inside += [name] if written == ":" else []
        elif written and ":" not in written and "..." not in written:
            inside.append(written)
        else:
            return f.problem("E0024", "an index can't be `None`", f.span(i), "a new axis is a named index")
        at = stop + 1
    base = f.source(first, opener - 1)
    new = f"[{base}[{', '.join(inside)}] for {', '.join(binders)}]" if inside else f"[{base} for {', '.join(binders)}]"
    return f.problem("E0024", "an index can't be `None`", f.span(i), "a new axis is a named index", "name the indexes",
                     (f.replace(first, end, new),),
                     "unlike shapes meet through named indexes: `[a[y, x, k] - b[k] for k, y, x]`")


def _compared(f: Failure, i: int) -> Problem | None:
    words = (f.word(i - 2), f.word(i - 1))
    if words == ("is", "not"):
        last, negative = i - 3, True
    elif words[1] == "is" or words[1] in ("==", "!="):
        last, negative = i - 2, words[1] == "!="
    else:
        return None
    if last < 0:
        return None
    first = f.postfix(last)
    new = f"{'not ' if negative else ''}missing({f.source(first, last)})"
    return f.problem("E0023", "there is no `None`", f.span(i), "`missing(x)` tells whether a value is there", "ask so",
                     (f.replace(first, i, new),))


def _argument(f: Failure, i: int) -> Problem | None:
    """`f(x, axis=None)`, `f(x, None)`: leave it out."""
    opener = f.opener(i)
    if opener is None or f.word(opener) != "(" or f.kind(opener - 1) != "NAME" or f.word(i + 1) not in (",", ")"):
        return None
    first = i - 2 if f.word(i - 1) == "=" else i
    if f.word(first - 1) not in ("(", ",") or (first == i and f.word(i + 1) == ","):
        return None
    start, end = f.tokens[first].start_pos, f.tokens[i].end_pos
    if f.word(first - 1) == ",":
        start = f.tokens[first - 1].start_pos
    elif f.word(i + 1) == "," and f.word(i + 2) != ")":
        end = f.tokens[i + 2].start_pos
    return f.problem("E0023", "there is no `None`", f.span(i), "an argument that isn't set is left out", "leave it out",
                     (Edit(Span(f.file, start, end), ""),))
