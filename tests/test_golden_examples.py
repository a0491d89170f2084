"""What the examples become, at every level, in short: `golden/examples/NAME.txt` holds for each pipeline a line for the graph
and for each pass that changes it (how many nodes of each kind, and a hash of the text), the plan's outline, and a line
for each kernel. `pytest --update tests/test_golden_examples.py` writes what the compiler makes now; `pipec dump` shows the
whole text of any level.
"""
from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipec.cli.programs import _runnable
from pipec.compiler.check import check
from pipec.compiler.compile import lowered, passes
from pipec.compiler.emit_numba import kernel_text, walk
from pipec.compiler.graph import Node
from pipec.compiler.graph import walk as nodes
from pipec.compiler.graphtext import parse_graph, print_graph
from pipec.compiler.inward import inward
from pipec.compiler.retype import check_graph
from pipec.runtime import plan as plans

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.pipe"))


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def level(emit: Node) -> str:
    text = print_graph(emit)
    assert print_graph(parse_graph(text)) == text
    kinds = Counter(n["fn"] if n.op == "apply" else f"{n.op}.{n['op']}" if n.op == "call" else n.op for n in nodes(emit))
    most = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda k: (-k[1], k[0])))
    return f"{digest(text)} {sum(kinds.values())} nodes: {most}"


def outline(segments: tuple[plans.Segment, ...], indent: str) -> Iterator[str]:
    for s in segments:
        stages = "".join(f" {o.op}({', '.join(f'{k}={v}' for k, v in o.options.items() if v)})" for o in s.orders)
        bad = f" at_most={s.at_most}" if s.at_most is not None else ""
        inputs = ", ".join(f"{name}: {slot(s.program, at)}" for name, at in s.program.inputs)
        yield f"{indent}{s.start.kind}{stages}{bad} ({inputs})"
        for branch in s.start.inputs:
            yield from outline(branch, indent + "  | ")
        for step in s.program.steps:
            yield f"{indent}  {told(s.program, step)}"
        yield f"{indent}  gives {', '.join(f'{name}: {slot(s.program, at)}' for name, at in s.program.outputs)}"


def slot(program: plans.Program, name: str) -> str:
    s = next(s for s in program.slots if s.name == name)
    dims = ", ".join("_" if d is None else str(d) for d in s.dims)
    return s.dtype + ("?" if s.missing else "") + (f"[{dims}]" if s.dims else "")


def told(program: plans.Program, step: plans.Step) -> str:
    match step:
        case plans.RunKernel():
            reads = sorted({a.slot for a in step.args} - set(step.outputs))
            return f"kernel {step.kernel}: {', '.join(reads)} -> {', '.join(step.outputs)}"
        case plans.CallOperator():
            when = f" when {step.when}" if step.when else ""
            return f"call {step.op}{when}: {', '.join(step.args)} -> {', '.join(step.outputs)}"
        case plans.CallExtern():
            return f"extern {step.target}: {', '.join(step.args)} -> {', '.join(step.outputs)}"
        case plans.CallEach():
            return f"call {step.op} at each place: {', '.join(a.slot for a in step.args)} -> {step.output}"
    return f"{step.kind} {step.slot}"


def made(path: Path) -> str:
    """All levels of all pipelines of an example, in short."""
    out = []
    for run in _runnable(str(path)):
        program = check(str(path), {}, run)
        out += [f"== {path.name}:{run}", f"graph {level(program.emit)}"]
        emit, spans = program.emit, dict(program.spans)
        for name, apply in passes():
            before, emit = emit, apply(emit, spans)
            check_graph(emit, program.params, program.seed is not None)
            out.append(f"after {name} {'as before' if emit is before else level(emit)}")
        compiled = lowered(program)
        out += ["plan above", *outline(compiled.plan.above, "  "), "plan below", *outline(compiled.plan.below, "  ")]
        for kernel in compiled.kernels:
            kinds = Counter(type(s).__name__.lower() for s in walk(kernel.body))
            count = ", ".join(f"{c} {k}" for k, c in sorted(kinds.items(), key=lambda k: (-k[1], k[0])))
            out.append(f"numba {kernel.name} {digest(kernel_text(inward(kernel)))}: {count}")
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_golden(path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    now = made(Path("examples") / path.name)
    kept = ROOT / "tests" / "golden" / "examples" / f"{path.stem}.txt"
    if request.config.getoption("--update"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(now, encoding="utf-8")
        return
    assert kept.exists(), f"`pytest --update {Path(__file__).name}` writes it"
    assert now == kept.read_text(encoding="utf-8"), (
        f"{path.name} becomes something else now; look at it with `pipec dump`, then `pytest --update {Path(__file__).name}`")
