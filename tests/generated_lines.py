"""Expressions and lines of generated programs, drawn by hypothesis: fields and their kinds go in, texts and kinds come out.

Every number a program computes is kept far inside i64, every index is provably inside or has `??`. Simple choices stand
first, so that a failure shrinks to few short lines.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from generated_data import SAFE, Kind
from generated_operators import draws_of_images, operators
from generated_texts import filled, filled_line, number_of_text, truth_of_text
from hypothesis import strategies as st
from pipec.kernels.scalar import SCALARS

FLOATS = ("0.5", "-1.5", "0.1", "3.25", "255.0", "1e-6", "1e20", "0.0")
CASTS = {"u8": 255, "i8": 128, "u16": 65535, "i16": 32768, "i32": 2**31, "u32": 2**32}
OPERATORS = {"add", "sub", "mul", "div", "floordiv", "mod", "pow", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not",
             "shift_left", "shift_right"}       # written otherwise than as calls of any args
FUNCTIONS = [s for name, s in SCALARS.items() if name not in OPERATORS]
OF_INTS = [s for s in FUNCTIONS if s.operands in ("num", "int") and s.result == "same"]
OF_FLOATS = [s for s in FUNCTIONS if s.operands in ("num", "float") and s.result == "same"]
TESTS = [s for s in FUNCTIONS if s.result == "bool"]


@dataclass
class Writer:
    """Draws the pieces of one program. `names` are the fields there are, `binders` those around the expression."""

    draw: Callable
    names: dict[str, Kind] = field(default_factory=dict)
    binders: dict[str, str] = field(default_factory=dict)     # name → its dim
    functions: dict[str, tuple[tuple[Kind, ...], Kind]] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=lambda: {"w": 5})   # greatest value of dims that aren't numbers
    batched: bool = False
    names_above: dict[str, Kind] = field(default_factory=dict)   # of `batch`
    told: set[str] = field(default_factory=set)               # binders whose range is what they index
    table: bool = False                                       # are there texts, and values that may be missing
    texts: list[str] = field(default_factory=list)            # lines of texts
    epochs: bool = False                                      # may `epoch` be read
    proved: bool = False
    made: int = 0

    def fresh(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def pick(self, choices):
        return self.draw(st.sampled_from(list(choices)))

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(0, one_in - 1)) == one_in - 1

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def most(self, dim: str) -> int:
        return int(dim) if dim.isdigit() else self.bounds[dim]

    # --- scalars ---

    def scalar(self, base: str, depth: int) -> str:
        """An expression of a scalar; integers are at most SAFE from 0."""
        match base:
            case "int":
                text, bound = self.integer(depth)
                return text if bound <= SAFE else f"({text} % 1009)"
            case "float":
                return self.real(depth)
        return self.truth(depth)

    def leaves(self, base: str) -> list[tuple[str, int]]:
        """Scalars that need no operation: fields, elements at binders or literal places; (text, bound)."""
        found = [(name, k.bound) for name, k in self.names.items() if k.base == base and not k.dims]
        for name, k in self.names.items():
            if k.base == base and k.dims and all(self.places(d) for d in k.dims):
                found.append((f"{name}[{', '.join(self.pick(self.places(d)) for d in k.dims)}]", k.bound))
        if self.table:
            found += filled(base)
        if base == "int":
            found += [("epoch", 7)] if self.epochs else []
            found += [(b, self.most(d)) for b, d in self.binders.items()]
            found += [("w", 5)] if "w" in self.bounds and not self.batched else []
        return found

    def places(self, dim: str) -> list[str]:
        """Indexes that are inside a dim without a proof of any depth."""
        bound = [b for b, d in self.binders.items()
                 if d == dim or (b not in self.told and d.isdigit() and dim.isdigit() and int(d) <= int(dim))]
        return bound + ([str(k) for k in range(min(int(dim), 2))] if dim.isdigit() else [])

    def integer(self, depth: int) -> tuple[str, int]:
        leaves = self.leaves("int")
        if depth <= 0 or self.chance(4):
            if not leaves or self.chance(4):
                value = self.number(-3, 9)
                return (str(value) if value >= 0 else f"({value})"), abs(value)
            return self.pick(leaves)
        if self.table and self.chance(6):
            return number_of_text(self, depth)
        match self.number(0, 15):
            case 0 | 1 | 2:
                op = self.pick("+-*")
                (a, p), (b, q) = self.small(depth), self.small(depth)
                return f"({a} {op} {b})", p * q if op == "*" else p + q
            case 3:
                a, p = self.integer(depth - 1)
                return f"({a} {self.pick(('//', '%'))} {self.divisor(depth)})", p + 2**20
            case 4:
                a, p = self.small(depth)
                return f"(-{a})", p
            case 5:
                a, p = self.small(depth)
                power = self.number(0, 3)
                return f"({a} % 11) ^ {power}", 11**3
            case 6 | 7:
                row = self.pick(OF_INTS)
                args = [self.small(depth) for _ in range(row.arity)]
                bound = max(q for _, q in args) if row.operands != "int" else 2**21
                return f"{row.name}({', '.join(a for a, _ in args)})", max(bound, 1)
            case 8:
                word = self.pick(CASTS)
                return f"{word}({self.scalar(self.pick(('float', 'int', 'bool')), depth - 1)})", CASTS[word]
            case 9:
                return f"(i64({self.scalar(self.pick(('float', 'bool')), depth - 1)}) % 1009)", 1009
            case 10:
                (a, p), (b, q) = self.small(depth), self.small(depth)
                return f"(if {self.truth(depth - 1)} then {a} else {b})", max(p, q)
            case 11:
                return self.reduced("int", depth)
            case 12:
                a, _ = self.small(depth)
                if self.chance(2):
                    return f"shift_right({a}, {self.pick((0, 1, 5, 62, 63, 64, 70))})", 2**20
                return f"shift_left({a} % 100, {self.number(0, 8)})", 100 * 2**8
            case 13:
                return self.placed(depth)
            case 14:
                (a, _), part = self.small(depth), self.pick(("year", "month", "day", "hour", "minute", "weekday", "week"))
                return f"({part}({a} * 86_400_123_456) % 10_000)", 10_000
        return self.guarded("int", depth) or self.pick(leaves or [("7", 7)])

    def placed(self, depth: int) -> tuple[str, int]:
        """A place that is looked for, or the sum of all that are found."""
        masks = [n for n, k in self.names.items() if k.base == "bool" and len(k.dims) == 1]
        if masks and not self.batched and self.chance(2):
            name = self.pick(masks)
            return self.pick((f"sum(indices({name}))", f"(first({name}) ?? {self.number(-1, 9)})")), 2**10
        k = self.fresh("k")
        outer = dict(self.binders)
        self.binders[k] = dim = self.pick(("3", "17", "1"))
        try:
            return f"(first({self.truth(depth - 1)} for {k} < {dim}) ?? {self.number(-1, 9)})", 17
        finally:
            self.binders = outer

    def small(self, depth: int) -> tuple[str, int]:
        """An integer whose product with another is safe."""
        text, bound = self.integer(depth - 1)
        return (text, bound) if bound <= 2**20 else (f"({text} % 1009)", 1009)

    def divisor(self, depth: int) -> str:
        if self.chance(3):
            return f"max({self.small(depth)[0]}, {self.number(1, 5)})"
        return self.pick(("2", "3", "7", "-3", "256", "1"))

    def real(self, depth: int) -> str:
        leaves = self.leaves("float")
        if depth <= 0 or self.chance(4):
            return self.pick(leaves)[0] if leaves and not self.chance(4) else self.pick(FLOATS)
        match self.number(0, 10):
            case 0 | 1 | 2:
                a, b = self.scalar("float", depth - 1), self.scalar(self.pick(("float", "int")), depth - 1)
                a, b = (b, a) if self.chance(2) else (a, b)
                return f"({a} {self.pick('+-*/')} {b})"
            case 3:
                return f"({self.scalar('int', depth - 1)} / {self.scalar('int', depth - 1)})"
            case 4 | 5:
                row = self.pick(OF_FLOATS)
                return f"{row.name}({', '.join(self.scalar('float', depth - 1) for _ in range(row.arity))})"
            case 6:
                word = self.pick(("f32", "f16", "f64", "bf16"))
                return f"{word}({self.scalar(self.pick(('float', 'int', 'bool')), depth - 1)})"
            case 7:
                then, other = self.scalar("float", depth - 1), self.scalar(self.pick(("float", "int")), depth - 1)
                return f"(if {self.truth(depth - 1)} then {then} else {other})"
            case 8:
                return self.reduced("float", depth)[0]
            case 9:
                a, b = self.scalar("float", depth - 1), self.scalar("float", depth - 1)
                return f"({a} {self.pick(('//', '%', '^'))} {b})"
        found = self.called("float", depth) or self.guarded("float", depth)
        return found if isinstance(found, str) else found[0] if found else self.pick(FLOATS)

    def truth(self, depth: int) -> str:
        leaves = self.leaves("bool")
        if depth <= 0 or self.chance(5):
            if leaves and not self.chance(4):
                return self.pick(leaves)[0]
            return f"({self.real(0)} {self.pick(('<', '<=', '>', '>=', '==', '!='))} {self.real(0)})"
        if self.table and self.chance(4):
            return truth_of_text(self, depth)
        match self.number(0, 6):
            case 0 | 1:
                base = self.pick(("int", "float"))
                a, b = self.scalar(base, depth - 1), self.scalar(base, depth - 1)
                return f"({a} {self.pick(('<', '<=', '>', '>=', '==', '!='))} {b})"
            case 2:
                return f"({self.truth(depth - 1)} {self.pick(('and', 'or'))} {self.truth(depth - 1)})"
            case 3:
                return f"(not {self.truth(depth - 1)})"
            case 4:
                row = self.pick(TESTS)
                return f"{row.name}({self.real(depth - 1)})"
            case 5:
                return self.reduced("bool", depth)[0]
        a, x, b = (self.scalar("int", depth - 1) for _ in range(3))
        return f"({a} <= {x} < {b})"

    def reduced(self, base: str, depth: int) -> tuple[str, int]:
        """A reduce over one or two new binders; (text, bound)."""
        dims = [self.pick(("3", "4", "2", "17", "1", *(["w"] if "w" in self.bounds and not self.batched else [])))
                for _ in range(1 + self.chance(4))]
        ids = [self.fresh("k") for _ in dims]
        outer = dict(self.binders)
        self.binders |= dict(zip(ids, dims))
        over = ", ".join(f"{i} < {d}" for i, d in zip(ids, dims))
        empty = any(not d.isdigit() and d not in outer.values() for d in dims)
        try:
            if base == "bool":
                return f"{self.pick(('any', 'all'))}({self.truth(depth - 2)} for {over})", 0
            kinds = ["sum", "min", "max", "prod"] + (["mean", "std", "var"] if base == "float" else ["argmax", "argmin"])
            kind = self.pick(kinds)
            if kind in ("argmax", "argmin"):
                ids = ids[:1]
                over = f"{ids[0]} < {dims[0]}"
                for extra in list(self.binders)[len(outer) + 1:]:
                    del self.binders[extra]
                empty = not dims[0].isdigit() and dims[0] not in outer.values()
                text, bound = f"{kind}({self.scalar(self.pick(('float', 'int')), depth - 2)} for {over})", 17
            elif base == "int":
                body, bound = self.small(depth - 1)
                body, bound = (f"({body} % 3)", 2**35) if kind == "prod" and len(dims) == 1 else (body, bound)
                kind = "sum" if kind == "prod" and len(dims) == 2 else kind
                text, bound = f"{kind}({body} for {over})", 2**35 if kind == "prod" else bound * 289
            else:
                text, bound = f"{kind}({self.scalar('float', depth - 2)} for {over})", 0
            may_miss = empty and kind in ("mean", "std", "var", "min", "max", "argmax", "argmin")
            return (f"({text} ?? 1)" if may_miss else text), bound
        finally:
            self.binders = outer

    def guarded(self, base: str, depth: int) -> tuple[str, int] | None:
        """`t[i] ?? v` where i may be outside."""
        tensors = [(n, k) for n, k in self.names.items() if k.base == base and k.dims]
        fields = [n for n, k in self.names.items() if k.base == "int" and not k.dims and n in ("n", "b", "big", "few")]
        if not tensors or not fields:
            return None
        name, k = self.pick(tensors)
        places = [f"{self.pick(fields)} % 11 - 2"] + [self.pick((*self.places(d), f"{self.pick(fields)} % 9 - 3"))
                                                    for d in k.dims[1:]]
        default = self.number(-2, 5)
        return f"({name}[{', '.join(places)}] ?? {default})", max(k.bound, 5)

    def called(self, base: str, depth: int) -> str | None:
        known = [(n, args) for n, (args, result) in self.functions.items() if result == Kind(base)]
        if not known:
            return None
        name, args = self.pick(known)
        words = {"float": "f32", "int": "i64", "bool": "bool"}
        given = []
        for a in args:
            if a.dims:
                fitting = [n for n, k in self.names.items() if k.base == "float" and len(k.dims) == 1 and n in ("v", "wave")]
                if not fitting:
                    return None
                given.append(self.pick(fitting))
            else:
                given.append(f"{words[a.base]}({self.scalar(a.base, depth - 1)})")
        return f"{name}({', '.join(given)})"

    # --- tensors ---

    def built(self, depth: int) -> tuple[str, Kind]:
        """`[e for i, j < n]`, with the range written or told by what is indexed."""
        base = self.pick(("int", "float", "bool"))
        outer = dict(self.binders)
        try:
            tensors = [(n, k) for n, k in self.names.items() if k.dims and len(k.dims) <= 3]
            if tensors and self.chance(2):
                name, k = self.pick(tensors)
                ids = [self.fresh("i") for _ in k.dims]
                self.binders |= dict(zip(ids, k.dims))
                self.told |= set(ids)
                element = f"{name}[{', '.join(ids)}]"
                order = self.draw(st.permutations(ids))
                dims = tuple(self.binders[i] for i in order)
                if k.base == "bool":
                    body = f"if {element} then {self.scalar(base, depth)} else {self.scalar(base, depth - 1)}"
                elif base == "bool":
                    body = f"{element} > {self.scalar(k.base, depth)}"
                else:
                    base = k.base
                    other, bound = self.small(depth) if base == "int" else (self.real(depth), 0)
                    body, k = f"{element} {self.pick('+-*')} {other}", Kind(base, dims, k.bound * max(bound, 2))
                    if k.bound > SAFE:
                        body, k = f"({body}) % 1009", Kind(base, dims, 1009)
                return f"[{body} for {', '.join(order)}]", Kind(base, dims, k.bound if base == "int" and k.dims == dims else SAFE)
            rank = 1 + self.chance(2) + self.chance(4)
            dims = tuple(self.pick(("3", "4", "2", "9", "40", "1", *self.sizes())) for _ in range(rank))
            if sum(not d.isdigit() for d in dims) > 1 or dims.count("40") > 1:
                dims = dims[:1]
            ids = [self.fresh("i") for _ in dims]
            self.binders |= dict(zip(ids, dims))
            body = self.scalar(base, depth)
            return f"[{body} for {', '.join(f'{i} < {d}' for i, d in zip(ids, dims))}]", Kind(base, dims, SAFE)
        finally:
            self.binders = outer

    def sizes(self) -> list[str]:
        """Names of numbers that may be a dim."""
        return [] if self.batched else [d for d in ("w", "size") if d in self.bounds]

    def tensor(self, depth: int) -> tuple[str, Kind]:
        tensors = [(n, k) for n, k in self.names.items() if k.dims]
        if not tensors:
            return self.built(depth)
        name, k = self.pick(tensors)
        same = [n for n, other in tensors if (other.dims, other.base) == (k.dims, k.base)]
        number = k.base != "bool"
        match self.number(0, 14):
            case 0 | 1 | 2 | 3:
                return self.built(depth)
            case 4 if number:                                     # element by element
                other = self.pick((*same, self.scalar(k.base, 1)))
                return self.kept(f"{name} {self.pick('+-')} {other}", Kind(k.base, k.dims, 2 * max(k.bound, SAFE)))
            case 5 if number:
                words = {**CASTS, "f32": 0, "f16": 0, "f64": 0, "bf16": 0}
                word = self.pick(words)
                return f"{word}({name})", Kind("float" if word[0] in "fb" else "int", k.dims, words[word])
            case 5 | 4:
                return f"if {name} then {self.scalar('float', 1)} else {self.scalar('int', 1)}", Kind("float", k.dims)
            case 6 if number:
                row = self.pick(OF_FLOATS if k.base == "float" else [s for s in OF_INTS if s.operands == "num"])
                return f"{row.name}({', '.join(self.pick(same) for _ in range(row.arity))})", k
            case 7 if number:
                masks = [n for n, other in tensors if (other.dims, other.base) == (k.dims, "bool")]
                condition = self.pick(masks) if masks else f"{name} > {self.scalar(k.base, 0)}"
                return f"if {condition} then {name} else {self.pick((*same, self.scalar(k.base, 1)))}", Kind(
                    k.base, k.dims, SAFE if k.base == "int" else 0)
            case 8 if k.dims[0].isdigit() and int(k.dims[0]) > 1 and not self.batched:       # a slice
                stop = self.number(1, int(k.dims[0]))
                start = self.number(0, stop - 1)
                return f"{name}[{start}:{stop}]", Kind(k.base, (str(stop - start), *k.dims[1:]), k.bound)
            case 9 if len(k.dims) == 1 and number and not self.batched:                     # a slice that reaches outside
                start, more = self.number(-2, 2), self.number(3, 6)
                more += int(k.dims[0]) if start >= 0 and k.dims[0].isdigit() else 0
                return f"{name}[{start}:{start + more}] ?? {self.number(0, 3)}", Kind(k.base, (str(more),), max(k.bound, 3))
            case 10 if len(k.dims) > 1 and k.dims[0].isdigit():                             # a part
                return f"{name}[{self.number(0, int(k.dims[0]) - 1)}]", Kind(k.base, k.dims[1:], k.bound)
            case 11:
                return self.operator() or self.built(depth)
            case 12 if len(k.dims) > 1 and not self.batched:                                # an element that is a tensor
                i = self.fresh("i")
                other = self.pick(("1", "2"))
                body = f"{name}[{i}]" if number and self.chance(2) else f"if {self.truth(1)} then {name}[{i}] else {name}[{i}]"
                body = f"{body} + {other}" if number and body[0] != "i" else body
                return f"[{body} for {i}]", Kind(k.base, k.dims, k.bound + 2)
            case 13:                                                                        # one of two tensors
                return f"if {self.truth(2)} then {name} else {self.pick(same)}", k
            case 14 if number and not self.batched:                                         # a table, read at a computed place
                place = f"clamp({self.small(2)[0]}, 0, 2)"
                return f"[[{self.scalar(k.base, 1)}, {self.scalar(k.base, 1)}, {self.scalar(k.base, 1)}][{place}], 1, 0]", Kind(
                    k.base, ("3",), SAFE)
        return self.built(depth)

    def kept(self, text: str, k: Kind) -> tuple[str, Kind]:
        return (text, k) if k.base != "int" or k.bound <= SAFE else (f"({text}) % 1009", Kind("int", k.dims, 1009))

    def operator(self) -> tuple[str, Kind] | None:
        """A call of an operator, or of a function of the library, with a tensor."""
        if self.batched or any(not self.names.get(n, Kind("none")).dims for n in ("v", "img", "iv", "marks", "wave")):
            return None     # left out by a stage, or one element since `each`
        return self.pick(operators(self))

    # --- lines ---

    def drawn(self) -> tuple[str, list[tuple[str, Kind]]]:
        """A line `name ~ …` and the fields it sets."""
        name = self.fresh("r")
        count = self.pick(("3", "2", "4"))
        rows: list[tuple[str, Kind]] = [
            ("uniform(0, 1)", Kind("float")), ("integers(0, 10)", Kind("int", (), 10)), ("bernoulli(0.3)", Kind("bool")),
            ("normal()", Kind("float")), ("normal(2.0, 0.5)", Kind("float")), ("log_uniform(0.1, 9.0)", Kind("float")),
            ("uniform(-2.5, 1.5)", Kind("float")), ("choice([3, 1, 4, 1, 5])", Kind("int", (), 5)),
            ("beta(0.4, 0.4)", Kind("float")),
            ("gamma(2.0)", Kind("float")),
            (f"[uniform(0, 1) for i < {count}]", Kind("float", (count,))),
            (f"[normal() for i < {count}, j < 3]", Kind("float", (count, "3"))),
            (f"[integers(-i, 2 * i + 1) for i < {count}]", Kind("int", (count,), 9)),
            ("integers(-300, 300)", Kind("int", (), 300)),
        ]
        if not self.batched and "size" in self.bounds:
            rows += [("integers(min(size, 0), size + 1)", Kind("int", (), 8)),   # never of nothing, below any `where`
                     ("[bernoulli(0.5) for i < w]", Kind("bool", ("w",))),
                     ("uniform(0, f32(n))", Kind("float")),
                     (f"permutation({count})", Kind("int", (count,), 5))]   # of a batch it would be asked to be whole
        if not self.batched and self.names.get("img", Kind("none")).dims:
            rows += draws_of_images(self)
        if "noise" in self.functions:
            rows.append((f"noise(f32({self.scalar('float', 1)}))", Kind("float")))
        text, k = self.pick(rows)
        return f"{name} ~ {text}", [(name, k)]

    def line(self, depth: int) -> tuple[str, list[tuple[str, Kind]]]:
        if self.table and self.chance(6):
            name, text, k = filled_line(self, depth)
            if k.base == "text":
                self.texts.append(name)
                return f"{name} = {text}", []
            return f"{name} = {text}", [(name, k)]
        match self.number(0, 5):
            case 0 | 1:
                base = self.pick(("int", "float", "bool"))
                name, text = self.fresh("s"), self.scalar(base, depth)
                return f"{name} = {text}", [(name, Kind(base, (), SAFE))]
            case 2:
                return self.drawn()
        name = self.fresh("t")
        text, k = self.tensor(depth)
        return f"{name} = {text}", [(name, k)]

    def proven(self) -> tuple[list[str], str, Kind]:
        """A condition, and a read that it proves to be inside: (lines, the field they set, its kind)."""
        stands, (name, dims) = self.pick(("check({})", "where {}")), self.pick((("iv", 4), ("mask", 4), ("v", 3)))
        place, made = self.fresh("k"), self.fresh("s")       # no `where` above tells of it
        condition = self.pick((f"0 <= {place} < {dims}", f"{place} >= 0 and {dims} > {place}",
                               f"not ({place} < 0 or {place} > 2)"))
        number = f"{place} = {self.pick('nb')} * {self.number(1, 9)} % 11 - {self.number(0, 5)}"
        k = self.names[name]
        return [number, stands.format(condition), f"{made} = {name}[{place}]"], made, Kind(k.base, (), k.bound)

    def add(self, lines: list[str], depth: int) -> None:
        text, made = self.line(depth)
        lines.append(text)
        self.names |= dict(made)
