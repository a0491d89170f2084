"""Why a line can't be parsed: the mistakes people bring from Python and PyTorch, each with the edit that repairs it.

Each function looks at one kind of mistake and returns None if it isn't that one; `explain` asks them in order.
"""
from __future__ import annotations

from collections.abc import Callable

from .failure import KEYWORDS, PLACEHOLDER, Failure
from .layout import Line
from .problems import Edit, Problem, Span
from .statements import comprehension, docstring, if_statement, lambda_, loop, return_and_others, slashes

_MODULES = frozenset(
    ("np", "numpy", "torch", "math", "random", "tf", "jnp", "jax", "nn", "F", "T", "TF", "cv2", "v2", "transforms", "functional")
)
_DRAWN = {"random": "random", "rand": "uniform", "randn": "normal", "randint": "integers", "randperm": "permutation"}
_OPERATORS = frozenset(("+", "-", "*", "/", "//", "%", "^", "==", "!=", "<", "<=", ">", ">=", "and", "or", "??", "."))


def chained(f: Failure) -> Problem | None:
    """`batch(32).shuffle()`"""
    if f.rule != "stage" or f.word(f.at) != "." or f.word(f.at - 1) != ")" or f.expected != {"$END"}:
        return None
    return f.problem("E0035", "a stage has a line of its own", f.span(f.at), "stages stand below each other", "break the line",
                     (f.replace(f.at, f.at, f"\n{f.indent}"),))


def missing_comma(f: Failure) -> Problem | None:
    at = f.at
    if "COMMA" not in f.expected or f.kind(at) not in ("NAME", "INT", "FLOAT", "STRING") or f.touching(at):
        return None
    if f.opener(at) is None and f.word(0) not in ("emit", "use"):
        return None
    return f.problem("E0006", f"`{f.word(at)[:30]}` can't stand here", f.span(at), "a comma or an operator is due before it",
                     "put a comma", (f.append(at - 1, ","),))


def reserved(f: Failure) -> Problem | None:
    at = f.at
    sets = f.word(1) in ("=", ":") or (f.word(1) == "~" and f.word(0) != "where")
    if f.word(0) in KEYWORDS and sets and f.rule in ("stage", "step", "column"):
        at = 0
    elif f.word(at) not in KEYWORDS or f.expected != {"NAME"}:
        return None
    word = f.word(at)
    return f.problem("E0008", f"`{word}` is a word of the language", f.span(at), "it can't be a name", "give it another name",
                     (f.replace(at, at, f"{word}_"),))


def python_if(f: Failure) -> Problem | None:
    """`a if c else b`, `if c: a else: b`, `c ? a : b`, `elif`, a missing `then` or `else`."""
    at, word = f.at, f.word(f.at)
    if word == "if" and "IF" not in f.expected and at > 0:
        other = f.find("else", at + 1)
        first = f.left(at)
        if other is None or other == at + 1:
            return f.problem("E0022", "an `if` stands before its value", f.span(at), "write `if … then … else …`")
        end = f.right(other + 1)
        if end == other + 1:
            return None
        value, condition, rest = f.source(first, at - 1), f.source(at + 1, other - 1), f.source(other + 1, end - 1)
        return f.problem("E0022", "an `if` stands before its value", f.span(at, other), "write `if … then … else …`",
                         "put the condition first",
                         (f.replace(first, end - 1, f"if {condition} then {value} else {rest}"),))
    if word == "?":
        colon, first = f.find(":", at), f.left(at)
        if colon is None or colon == at + 1 or f.right(colon + 1) == colon + 1:
            return None
        end = f.right(colon + 1)
        new = f"if {f.source(first, at - 1)} then {f.source(at + 1, colon - 1)} else {f.source(colon + 1, end - 1)}"
        return f.problem("E0022", "a choice is written `if … then … else …`", f.span(at), "not `?` and `:`",
                         "write it out", (f.replace(first, end - 1, new),))
    if "THEN" in f.expected and at < len(f.tokens):
        if word == ":":
            return f.problem("E0022", "a `then` is missing", f.span(at), "`then` stands here", "write `then`",
                             (f.replace(at, at, " then"),))
        return f.problem("E0022", "a `then` is missing", f.span(at), "before this", "write `then`", (f.insert(at, "then "),))
    if "ELSE" in f.expected:
        if word == "elif":
            return f.problem("E0022", "`elif` is written `else if`", f.span(at), "two words", "write `else if`",
                             (f.replace(at, at, "else if"),))
        last = at - 1
        return f.problem("E0022", "an `if` needs its `else`", f.span(last), "and otherwise", "say what it is otherwise",
                         (f.append(last, " else 0"),))
    if word == ":" and f.word(at - 1) == "else":
        return f.problem("E0022", "no `:` follows `else`", f.span(at), "not needed", "leave it out", (f.replace(at, at, ""),))
    return None


def equals(f: Failure) -> Problem | None:
    at, word = f.at, f.word(f.at)
    if word == "=" and "EQUAL" not in f.expected and f.rule in ("stage", "step", "declaration") and at > 0:
        if "COLON" in f.expected or "ARROW" in f.expected:
            return None
        return f.problem("E0025", "two values are compared by `==`", f.span(at), "`=` sets a name", "write `==`",
                         (f.replace(at, at, "=="),))
    opener = f.opener(at)
    if word == ":" and opener is not None and f.word(opener) == "(" and f.word(at - 2) in ("(", ",") and f.rule != "declaration":
        edit = Edit(Span(f.file, f.tokens[at].start_pos, f.tokens[min(at + 1, len(f.tokens) - 1)].start_pos), "=")
        return f.problem("E0025", "an argument is named by `=`", f.span(at), "not by `:`", "write `=`", (edit,))
    if (word == "==" and at == 1 and f.rule == "stage") or (word == "==" and f.word(0) in ("let", "param") and at == 2):
        return f.problem("E0025", "a name is set by `=`", f.span(at), "`==` compares", "write `=`", (f.replace(at, at, "="),))
    return None


def last_colon(f: Failure) -> Problem | None:
    if f.at != len(f.tokens) - 1 or f.word(f.at) != ":" or "ARROW" in f.expected:
        return None
    return f.problem("E0026", "no line ends with `:`", f.span(f.at), "not needed", "leave it out", (f.replace(f.at, f.at, ""),))


def arrow(f: Failure) -> Problem | None:
    if "ARROW" not in f.expected:
        return None
    at, word, more = f.at, f.word(f.at), f.at + 1 < len(f.tokens)
    title, label = "a `->` is missing", "the type of the result follows"
    if at == len(f.tokens):
        edit, span = f.insert(at, f" -> {PLACEHOLDER}"), f.span(at - 1)
    elif word in (":", "=", "-", ">", "as"):
        edit, span = f.replace(at, at, " ->" + ("" if more else f" {PLACEHOLDER}")), f.span(at)
    elif word == "from":
        edit, span = f.insert(at, f"-> {PLACEHOLDER} "), f.span(at)
    else:
        edit, span = f.insert(at, "-> "), f.span(at)
    return f.problem("E0026", title, span, label, "say what it gives", (edit,))


def colon(f: Failure) -> Problem | None:
    """A type that follows its name without `:`, or no type at all."""
    if "COLON" not in f.expected or (f.word(0) not in ("fn", "extern", "pipeline") and f.rule not in ("column", "operator")):
        return None
    at, word = f.at, f.word(f.at)
    name = f.word(at - 1)
    if f.kind(at) == "NAME":
        edit, span = f.append(at - 1, ":"), f.span(at)
    elif word in ("=", "~"):
        formal = f.rule != "column"
        edit, span = f.append(at - 1, f": {PLACEHOLDER}") if formal else _colon_for(f, at), f.span(at)
    else:
        edit, span = f.append(at - 1, f": {PLACEHOLDER}"), f.span(at - 1)
    return f.problem("E0026", f"`{name}` needs `:` and a type", span, "write `name: type`", "say its type", (edit,))


def _colon_for(f: Failure, at: int) -> Edit:
    return Edit(Span(f.file, f.tokens[at - 1].end_pos, f.tokens[at].end_pos), ":")


def from_(f: Failure) -> Problem | None:
    at = f.at
    if "FROM" in f.expected and f.kind(at) == "STRING":
        return f.problem("E0026", "a `from` is missing", f.span(at), "`from` stands before this", "write `from`",
                         (f.insert(at, "from "),))
    if f.rule == "stage" and f.word(at) == "as" and f.kind(0) == "NAME":
        return f.problem("E0026", "a `from` is missing", f.span(0), "records come `from` somewhere", "write `from`",
                         (f.insert(0, "from "),))
    return None


def no_arguments(f: Failure) -> Problem | None:
    if f.word(0) == "pipeline" and f.at == 3 and f.word(2) == "(" and f.word(3) == ")":
        return f.problem("E0030", "empty brackets", f.span(2, 3), "a pipeline without arguments has none", "leave them out",
                         (f.replace(2, 3, ""),))
    return None


def comma(f: Failure) -> Problem | None:
    at = f.at
    here = f.word(at) == "," and (f.word(at - 1) in (",", "(", "[") or (f.word(0) == "emit" and at == 1))
    ends = (at == len(f.tokens) or f.word(at) in (")", "]", "=") or (f.word(at) == "for" and f.opener(at) is not None)
            or (f.word(at) == "from" and f.kind(at + 1) == "STRING"))
    if here:
        comma_at = at
    elif f.word(at - 1) == "," and ends:
        comma_at = at - 1
    else:
        return None
    return f.problem("E0030", "a comma too many", f.span(comma_at), "nothing follows", "leave it out",
                     (f.remove(comma_at, comma_at),))


def method(f: Failure) -> Problem | None:
    """`x.mean()`, `np.exp(x)`, `random.uniform(0, 1)`."""
    at = f.at
    while f.word(at) == "." and f.kind(at - 1) == "NAME" and f.kind(at + 1) == "NAME":
        at += 2
    if f.word(at) != "(" or f.kind(at - 1) != "NAME" or f.word(at - 2) != ".":
        return None
    end = f.closer(at)
    name, first = f.word(at - 1), f.postfix(at - 3)
    receiver = f.source(first, at - 3)
    if f.word(end) != ")":
        return None
    inner = f.source(at + 1, end - 1) if end > at + 1 else ""
    if receiver.split(".")[0] not in _MODULES:
        joined = f"{receiver}, {inner}" if inner else receiver
        return f.problem("E0032", f"`{name}` is a function, not a method", f.span(at - 2, at - 1), f"write `{name}(…)`",
                         "call it", (f.replace(first, end, f"{name}({joined})"),))
    drawing = "random" in receiver.split(".") or name in _DRAWN
    name = "uniform" if name in ("random", "rand") else _DRAWN.get(name, name)
    new = f"{name}({inner})" if inner or name != "uniform" else "uniform(0, 1)"
    edits = [f.replace(first, end, new)]
    if drawing and first == 2 and f.word(1) == "=":
        edits.insert(0, f.replace(1, 1, "~"))
    note = ("`~` draws: the same seed, epoch and record give the same value",) if drawing else ()
    return f.problem("E0032", f"there is no module `{receiver}`", f.span(first, at - 1), f"write `{name}(…)`",
                     "draw it" if drawing else "call it", tuple(edits), *note)


def several(f: Failure) -> Problem | None:
    """`(a, b)`, `()`, `[]`, and `a, b = f(x)`."""
    at = f.at
    opener = f.opener(at)
    if opener is not None and f.word(opener) == "(" and f.kind(opener - 1) != "NAME" and f.word(at) in (",", ")"):
        end = f.closer(opener)
        if at == opener + 1:
            return f.problem("E0033", "nothing stands in these brackets", f.span(opener, end), "a value is due")
        return f.problem("E0033", "there are no tuples", f.span(at), "an array stands in `[…]`", "write an array",
                         (f.replace(opener, opener, "["), f.replace(end, end, "]")))
    if opener is not None and f.word(opener) == "[" and f.word(at) == "]" and at == opener + 1:
        return f.problem("E0033", "an array needs a value", f.span(opener, at), "its type is that of its values")
    if opener is None and f.word(at) == "," and f.rule in ("stage", "step"):
        return _unpacked(f)
    return None


def _unpacked(f: Failure) -> Problem:
    sets = next((i for i, t in enumerate(f.tokens) if str(t) in ("=", "~")), None)
    edits: tuple[Edit, ...] = ()
    title = "a line sets one name"
    if sets is not None and sets > f.at and all(f.kind(i) == "NAME" for i in range(0, sets, 2)):
        names = [f.word(i) for i in range(0, sets, 2)]
        values, at = [], sets + 1
        while at < len(f.tokens):
            end = f.right(at, frozenset((",",)))
            values.append(f.source(at, max(end - 1, at)))
            at = end + 1
        if len(values) == len(names):
            rows = [f"{name} {f.word(sets)} {value}" for name, value in zip(names, values, strict=True)]
        else:
            whole = "_".join(names)
            rows = [f"{whole} {f.word(sets)} {', '.join(values)}", *(f"{name} = {whole}.{name}" for name in names)]
        edits = (f.replace(0, len(f.tokens) - 1, f"\n{f.indent}".join(rows)),)
    elif sets is not None:
        end = len(f.tokens) - 1
        edits = (f.insert(sets + 1, "["), f.append(end, "]"))
        title = "there are no tuples"
    return f.problem("E0033", title, f.span(f.at), "one line for each", "write it so" if edits else "", edits,
                     "`r = f(…)`, then `r.a`, for a function with several results")


def draw(f: Failure) -> Problem | None:
    """What follows `~`, and `~` where no draw can stand."""
    at, word = f.at, f.word(f.at)
    if word == "~" and "TILDE" not in f.expected and at > 0 and f.rule in ("stage", "step", "declaration"):
        if at + 1 < len(f.tokens) and f.kind(at + 1) in ("NAME", "LPAR"):
            return f.problem("E0034", "`~` stands behind the name that it draws", f.span(at), "“not” is written `not`",
                             "write `not`", (f.replace(at, at, "not " if f.touching(at + 1) else "not"),))
        return None
    tilde = next((i for i, t in enumerate(f.tokens) if str(t) == "~"), None)
    if tilde is None or at <= tilde or f.opener(tilde) is not None or f.rule not in ("stage", "step"):
        return None
    label = "`~` draws from one distribution"
    if at == len(f.tokens) and f.kind(at - 1) == "NAME" and at == tilde + 2:
        return f.problem("E0034", f"`{f.word(at - 1)}` isn't called", f.span(at - 1), label, "call it", (f.append(at - 1, "()"),))
    if at > tilde + 2 and word in _OPERATORS and f.word(at - 1) in (")", "]") and f.opener(at) is None:
        name = f.word(0)
        rest = f.source(at, len(f.tokens) - 1)
        edits = (f.replace(0, 0, f"{name}_drawn"),
                 f.replace(at - 1, len(f.tokens) - 1, f"{f.word(at - 1)}\n{f.indent}{name} = {name}_drawn {rest}"))
        return f.problem("E0034", "nothing can follow a draw", f.span(at), label, "give the draw its own line", edits)
    if at == tilde + 1 and at < len(f.tokens):
        return f.problem("E0034", "`~` needs a distribution", f.span(at, f.right(at) - 1 if f.right(at) > at else at), label,
                         "set it", (f.replace(tilde, tilde, "="),))
    return None


def stage(f: Failure) -> Problem | None:
    """A stage without its brackets."""
    if f.rule != "stage" or f.kind(0) != "NAME" or f.at != 1:
        return None
    name = f.word(0)
    if len(f.tokens) == 1:
        return f.problem("E0035", f"`{name}` isn't called", f.span(0), "a stage has brackets", "call it", (f.append(0, "()"),))
    if f.kind(1) in ("NAME", "INT", "FLOAT", "STRING") and not f.touching(1):
        end = len(f.tokens) - 1
        edits = (Edit(Span(f.file, f.tokens[0].end_pos, f.tokens[1].start_pos), "("), f.append(end, ")"))
        return f.problem("E0035", f"`{name}` isn't called", f.span(0), "a stage has brackets", "call it", edits)
    return None


def literal(f: Failure) -> Problem | None:
    """`.5`, `1.`, `0x1f`, `f"…"`."""
    at, word = f.at, f.word(f.at)
    if word == "." and f.kind(at + 1) == "INT" and f.touching(at + 1):
        return f.problem("E0036", "a number starts with a digit", f.span(at, at + 1), "a digit is due", "write a 0",
                         (f.insert(at, "0"),))
    for point in (at, at - 1):
        if f.word(point) == "." and f.kind(point - 1) == "INT" and f.touching(point):
            return f.problem("E0036", "a number doesn't end with a point", f.span(point - 1, point), "a digit is due",
                             "write a 0", (f.append(point, "0"),))
    if f.kind(at) == "NAME" and f.kind(at - 1) in ("INT", "FLOAT") and f.touching(at):
        written = f.source(at - 1, at)
        try:
            value = str(int(written, 0))
        except ValueError:
            return f.problem("E0036", f"`{written}` is no number", f.span(at - 1, at), "a name can't follow directly",
                             "multiply", (f.insert(at, " * "),))
        return f.problem("E0036", "numbers are written in tens", f.span(at - 1, at), f"this is {value}", "write it so",
                         (f.replace(at - 1, at, value),))
    if f.kind(at) == "STRING" and f.kind(at - 1) == "NAME" and f.touching(at) and len(f.word(at - 1)) <= 2:
        return f.problem("E0021", "a text has no prefix", f.span(at - 1), "`{…}` in a path works without", "leave it out",
                         (f.replace(at - 1, at - 1, ""),))
    return None


def dots(f: Failure) -> Problem | None:
    at = f.at
    opener = f.opener(at)
    if opener is None or f.word(opener) != "[":
        return None
    if f.word(at) == ":":
        return f.problem("E0037", "a slice has no step", f.span(at), "`t[a:b]` takes every place",
                         "", (), "every second: `[x[2 * i] for i < n]`")
    if f.word(at) == "...":
        return f.problem("E0037", "`...` can't index", f.span(at), "name the places", "", (),
                         "fewer indexes than dimensions give the part at that place; `...` stands last in a type")
    return None


def joined(f: Failure) -> Problem | None:
    """An expression that goes on in the next row without brackets."""
    first_of_line, line = f, f.line
    if f.at == 0 and f.word(0) in _OPERATORS and f.before is not None:
        line, last = f.before, f.tokens[-1]
        first_of_line = Failure(f.file, f.text, line, f.rule, len(line.tokens), f.expected)
        span, label = f.span(0), "a line can't start with it"
    elif f.at == len(f.tokens) and f.after is not None and _goes_on(f, f.after):
        last = f.after.tokens[-1]
        span, label = f.span(-1), "something is due behind this"
    else:
        return None
    start = first_of_line.left(len(line.tokens))
    first = line.tokens[min(start, len(line.tokens) - 1)].start_pos
    end = last.end_pos
    edits = (Edit(Span(f.file, first, first), "("), Edit(Span(f.file, end, end), ")"))
    only = "a line goes on in brackets and before `then` and `else` only"
    if line.comment is not None:
        return f.problem("E0007", only, span, label)
    return f.problem("E0007", only, span, label, "put it in brackets", edits)


def _goes_on(f: Failure, after: Line) -> bool:
    own = (len(after.tokens) > 1 and str(after.tokens[1]) in ("=", "~")) or after.first in ("emit", "where", "from")
    open_ended = str(f.tokens[-1]) in _OPERATORS or str(f.tokens[-1]) in ("=", "not", "then", "else")
    return open_ended and after.indent > 0 and not own and not after.broken


_ORDER: tuple[Callable[[Failure], Problem | None], ...] = (
    slashes, docstring, lambda_, return_and_others, if_statement, loop, comprehension, comma, reserved, equals, python_if, arrow,
    no_arguments, colon, last_colon, from_, method, several, literal, draw, dots, stage, chained, missing_comma, joined,
)  # fmt: skip

_NAMES = {
    "NAME": "a name", "STRING": "a text", "INT": "a number", "EQUAL": "`=`", "COLON": "`:`", "LPAR": "`(`", "RPAR": "`)`",
    "RSQB": "`]`", "COMMA": "`,`", "TILDE": "`~`", "ARROW": "`->`", "FROM": "`from`", "FN": "`fn`", "$END": "the end of the line",
}  # fmt: skip


def explain(f: Failure) -> Problem:
    """What is wrong with a line that can't be parsed."""
    for ask in _ORDER:
        found = ask(f)
        if found is not None:
            return found
    due = _due(f.expected)
    if f.at >= len(f.tokens):
        return f.problem("E0007", "this line ends too early", f.span(-1), f"{due} is due behind this")
    word = f.word(f.at)
    shown = word if len(word) <= 30 else word[:29] + "…"
    return f.problem("E0006", f"`{shown}` can't stand here", f.span(f.at), f"{due} is due")


def _due(expected: frozenset[str]) -> str:
    if {"NAME", "INT", "STRING"} <= expected:
        return "a value"
    named = sorted(_NAMES[e] for e in expected if e in _NAMES)
    if not named or len(expected) > 4:
        return "an operator or the end of the line" if "$END" in expected else "an operator or a closing bracket"
    return " or ".join(named)
