"""Loop IR printed as CUDA C: a `Kernel` goes in, the text of its launches and what a caller has to know come out.

A kernel is one `__global__` function for each phase (`cuda_split`), called with (n, table, status, arena) like the compiled
one, except that every record has its own five numbers in `arena`: next and end address for escaping outputs, begin and end
of scratch, and, told by the kernel, where its outputs end. In a phase "one" a thread works on a record alone; in a
phase "all" the threads along x share the loops of record y. The names used are those of `kernels/cuda.h`; after
`kernels/cuda_host.h` the same text runs on the host.
"""
from __future__ import annotations

from collections.abc import Iterable

from ..runtime.plan import DeviceKernel
from . import cuda_told
from .cuda_split import ESCAPE, SCRATCH, Item, Nest, assigned_by, phases, statements, used_by
from .cuda_text import Printer, c_names, locals_of, prelude, word
from .emit_numba import argument_text, routines_of, walk
from .loops import Alloc, Argument, Fail, Kernel, Let, Store
from .routines import Routine
from .spelling import STORED


def routine_text(r: Routine) -> list[str]:
    names = c_names([r.name])
    p = Printer(names, {})
    heads = ", ".join(f"{word(v.dtype)} {names[v.name]}" for v in r.params)
    for s in r.body:
        text = p.texts([s.value])[0]
        p.put(f"const {word(s.value.dtype)} {names[s.var]} = {text};")
    p.put(f"return {p.texts([r.result])[0]};")
    return [f"static __device__ {word(r.result.dtype)} {r.name}({heads}) {{", *p.lines, "}"]


class _Phases:
    """A kernel and its phases, while they are printed."""

    def __init__(self, kernel: Kernel, taken: Iterable[str]):
        self.kernel, self.taken = kernel, tuple(taken)
        self.items, self.kinds = phases(kernel)
        self.bodies = [statements(i.stmt) for i in self.items]
        self.used = [used_by(b, i) for b, i in zip(self.bodies, self.items)]
        self.assigned = [assigned_by(b) for b in self.bodies]
        self.written = {a.name: j for j, a in enumerate(kernel.arguments) if a.writes}
        self.stored = {s.buffer for s in walk(kernel.body) if isinstance(s, Store)}
        self.allocs = {s.buffer: s for s in walk(kernel.body) if isinstance(s, Alloc)}
        self.held = {a.name: ("bool" if a.kind == "mask" else a.dtype) for a in kernel.arguments if a.kind != "size"}
        self.held |= {a.buffer: a.dtype for a in self.allocs.values()}
        own = {i.phase: k + 1 for k, i in enumerate(self.items) if i.kind != "again"}   # the last one of each phase
        self.ends = [*(own[k] for k in range(len(self.kinds) - 1)), len(self.items)]
        self.saves = self._saves()

    def _saves(self) -> dict[tuple[int, str], int]:
        """What a phase of one thread finds out and later ones need: (phase, name) → place."""
        saves: dict[tuple[int, str], int] = {}
        for k, item in enumerate(self.items):
            if item.kind != "one":
                continue
            made = self.assigned[k]
            later: set[str] = set()
            for other, used in zip(self.items[k + 1 :], self.used[k + 1 :]):
                if other.kind == "again" or other.phase != item.phase:
                    later |= used
            for name in sorted(made & later):
                if item.phase < len(self.kinds) - 1:
                    saves.setdefault((item.phase, name), len(saves))
        return saves

    def dtype(self, name: str) -> str:
        if name in (SCRATCH, ESCAPE):
            return "i64"
        if name in self.allocs:
            return ""
        return next(s.value.dtype for b in self.bodies for s in walk(b) if isinstance(s, Let) and s.var == name)

    def text(self, phase: int) -> list[str]:
        """The function of a phase: 0, the number of an error site, or -1 where memory is short."""
        p = Printer(c_names(self.taken), self.held)
        wanted = self._wanted(phase)
        used = {name for k in wanted for name in self.used[k] | self.assigned[k]}
        self._open(p, wanted, used)
        for k, item in enumerate(self.items[: self.ends[phase]]):
            if item.kind != "again" and item.phase < phase and k + 1 == self.ends[item.phase]:
                for (of, name), place in self.saves.items():
                    if of == item.phase and name in used:
                        p.put(f"{self._shown(p, name)} = *({self._pointee(name)}*)(saved + {place});")
            elif k in wanted:
                p.written = self.written if self._home(k) == phase else {}
                self._item(p, item)
        for (of, name), place in self.saves.items():
            if of == phase:
                p.put(f"*({self._pointee(name)}*)(saved + {place}) = {self._shown(p, name)};")
        if phase == len(self.kinds) - 1 and any(a.escapes for a in self.allocs.values()):
            p.put("arena[4] = escape;")
        p.put("return 0;")
        return p.lines

    def _wanted(self, phase: int) -> set[int]:
        """The statements that a phase has to do: its own, and of those that every thread does, what they need.

        A record's failures and sizes are told by the first phase whose own work comes after them.
        """
        needed: set[str] = set()
        wanted: set[int] = set()
        end = self.ends[phase]
        for k in reversed(range(end)):
            item, body = self.items[k], self.bodies[k]
            own = item.kind != "again" and item.phase == phase
            if item.kind != "again" and not own:
                continue
            tells = self._home(k) == phase and (
                any(isinstance(s, Fail) for s in walk(body)) or bool(self.assigned[k] & set(self.written)))
            keeps = any(isinstance(s, Alloc) for s in walk(body))
            if own or tells or keeps or self.assigned[k] & needed:
                wanted.add(k)
                needed |= self.used[k] | (self.assigned[k] if own else set())   # what it changes only sometimes
        return wanted

    def _home(self, k: int) -> int:
        """The first phase that comes to statement `k`."""
        return next(phase for phase, end in enumerate(self.ends) if k < end)

    def _open(self, p: Printer, wanted: set[int], used: set[str]) -> None:
        """Arguments, memory and locals of a function."""
        for j, a in enumerate(self.kernel.arguments):
            if not a.writes and a.name in used:
                p.put(self._argument(p, j, a))
        own = {s.buffer for i in self.items if isinstance(i.stmt, Nest) for s in walk(statements(i.stmt)) if isinstance(s, Alloc)}
        shared = [a for a in self.allocs.values() if a.buffer not in own]
        if any(not a.escapes for a in shared) or self.saves:
            p.put("i64 scratch = arena[2];")
            p.put("const i64 scratch_end = arena[3];")
        if any(a.escapes for a in shared):
            p.put("i64 escape = arena[0];")
            p.put("const i64 escape_end = arena[1];")
        if self.saves:
            p.put(f"if ({8 * len(self.saves) + 63} > scratch_end - scratch) return -1;")
            p.put("i64* const saved = (i64*)scratch;")
            p.put(f"scratch = scratch + {(8 * len(self.saves) + 63) // 64 * 64};")
        for alloc in shared:
            if alloc.buffer in used:
                p.put(f"{STORED.get(alloc.dtype, alloc.dtype)}* {p.names[alloc.buffer]} = 0;")
        declared: set[str] = set()
        for k, item in enumerate(self.items):
            if isinstance(item.stmt, Nest):
                continue
            for name, dtype in locals_of(self.bodies[k]):
                if (k in wanted or name in used) and name not in declared:
                    declared.add(name)
                    p.put(f"{word(dtype)} {p.names[name]} = {'false' if dtype == 'bool' else 0};")

    def _argument(self, p: Printer, j: int, a: Argument) -> str:
        if a.kind == "size":
            return f"const i64 {p.names[a.name]} = row[{j}];"
        held = ("" if a.name in self.stored else "const ") + ("u8" if a.kind == "mask" else STORED.get(a.dtype, a.dtype))
        return f"{held}* const __restrict__ {p.names[a.name]} = ({held}*)row[{j}];"

    def _item(self, p: Printer, item: Item) -> None:
        guards = " && ".join(("" if yes else "!") + p.names[name] for name, yes in item.guards)
        single = item.kind == "all" and isinstance(item.stmt, Store)
        if single:
            guards = " && ".join(filter(None, (guards, "lane == 0")))
        if guards:
            p.put(f"if ({guards}) {{")
            p.indent += 1
        if isinstance(item.stmt, Nest):
            p.nest(item.stmt)
        else:
            p.statement(item.stmt)
        if guards:
            p.indent -= 1
            p.put("}")

    def _shown(self, p: Printer, name: str) -> str:
        return {SCRATCH: "scratch", ESCAPE: "escape"}.get(name) or p.names[name]

    def _pointee(self, name: str) -> str:
        if name in self.allocs:
            held = self.allocs[name].dtype
            return f"{STORED.get(held, held)}*"
        return word(self.dtype(name))


LAUNCH = {
    "one": """\
extern "C" __global__ void {symbol}(i64 n, i64* table, i64* status, i64* arena) {{
    for (i64 r = i64(blockIdx.x) * blockDim.x + threadIdx.x; r < n; r += i64(gridDim.x) * blockDim.x)
        if (status[r] == 0) status[r] = {symbol}_record(table + {stride} * r, arena + 5 * r, 0, 1);
}}""",
    "all": """\
extern "C" __global__ void {symbol}(i64 n, i64* table, i64* status, i64* arena) {{
    const i64 lane = i64(blockIdx.x) * blockDim.x + threadIdx.x, lanes = i64(gridDim.x) * blockDim.x;
    for (i64 r = blockIdx.y; r < n; r += gridDim.y)
        if (status[r] == 0) {{
            const i64 now = {symbol}_record(table + {stride} * r, arena + 5 * r, lane, lanes);
            if (now != 0) status[r] = now;   // the same in all threads
        }}
}}"""}


def device_kernel(kernel: Kernel) -> DeviceKernel:
    """The kernel for a GPU. Equal kernels give equal texts."""
    routines = routines_of(kernel)
    name = c_names(routines)[kernel.name]
    made = _Phases(kernel, [name, *routines])
    lines = [line for r in routines.values() for line in [*routine_text(r), ""]]
    lines.append(f"// one record: {', '.join(map(argument_text, kernel.arguments))}")
    launches = []
    for k, kind in enumerate(made.kinds):
        symbol = name if len(made.kinds) == 1 else f"{name}_{k}"
        launches.append((symbol, kind))
        lines.append(f"static __device__ i64 {symbol}_record(i64* row, i64* arena, i64 lane, i64 lanes) {{")
        lines += [*made.text(k), "}", *LAUNCH[kind].format(symbol=symbol, stride=max(1, len(kernel.arguments))).split("\n"), ""]
    return DeviceKernel(
        name=kernel.name, text="\n".join(lines), launches=tuple(launches),
        scratch=cuda_told.scratch(kernel, len(made.saves)), steady=cuda_told.steady(kernel),
        outputs=cuda_told.outputs(kernel),
        sizes=tuple((a.slot, a.axis, *cuda_told.told(kernel, a)) for a in kernel.arguments if a.writes and a.kind == "size"))


__all__ = ["device_kernel", "prelude"]
