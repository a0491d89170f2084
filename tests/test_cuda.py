"""CUDA texts: run on the host through g++ they give the bits of the reference and of machine code; nvcc takes them.

Many kernels are one translation unit, and what g++ made of it is kept.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cuda_host import load, needs_compiler
from generated_data import write_data
from graphs_by_hand import defined, run
from hypothesis import HealthCheck, given, settings
from pipec.compiler import native
from pipec.compiler.check import check
from pipec.compiler.compile import _with_kernels, lowered
from pipec.compiler.cuda_split import Nest, phases
from pipec.compiler.cuda_text import _product
from pipec.compiler.emit_cuda import device_kernel, prelude
from pipec.compiler.emit_numba import kernel_text
from pipec.compiler.graph import node
from pipec.compiler.loops import Const
from pipec.dsl.types import I64, Type
from pipec.kernels.ops import OPERATORS
from pipec.kernels.scalar import SCALARS
from pipec.runtime import objects
from pipec.runtime.cuda import OPTIONS, device_text
from pipec.runtime.loader import Loader
from pipec.runtime.plan import KernelText
from programs import programs
from running import assert_same, fields_of, run_interpreted, until_failure
from test_loops import KERNELS, OUT, WHOLE, WHOLES, N, X, call, each, kernel
from test_operators import CASES, EXTRA, WORDS, ap, build, field, index, operand, parse_head, same, values

EXAMPLES_FOLDER = Path(__file__).parent.parent / "examples"
ORDERS = (False, True)   # threads one after the other, and backwards


def built(table):
    """How `graphs_by_hand.run` gets its kernels out of a table by text."""
    return lambda kernels: {k.name: table[device_kernel(k).text] for k in kernels}


class Collected(Exception):
    """Ends a run at the point where its kernels are known."""


def between(k):
    """What is known only in the midst of what one thread does, and needed by all of them afterwards."""
    found = k.let(0, "found")
    with k.loop(N, "p") as p, k.when(WHOLES[p] > 0):
        k.set(found, p)
    twice = k.let(found + found, "twice")
    row = k.scratch("i64", twice + 1)
    with k.loop(N, "p") as p:
        k.set(found, found + 1)
    k.store(row, (twice,), found)
    with k.loop(N, "p") as p:
        k.store(WHOLE, (p,), twice * found + p + row[twice])


MORE = {"between": between}


@pytest.fixture(scope="module")
def small():
    made = {name: kernel(body) for name, body in (KERNELS | MORE).items()}
    host = [load([device_kernel(k) for k in made.values()], backwards=b) for b in ORDERS]
    return {name: (k, [table[device_kernel(k).text] for table in host]) for name, k in made.items()}


@needs_compiler
@pytest.mark.parametrize("name", KERNELS | MORE)
def test_small_kernels(small, name):
    made, host = small[name]
    expected = call(objects.load(native.build([made]))["small"])
    for run_it in host:
        assert call(run_it) == expected


# --- which loops threads share ------------------------------------------------------------------------


def rows(k, width, value=1.0, place=lambda i, j, w: i * w + j):
    """out[i, j] = value, `width` to a row."""
    with k.loop(4, "i") as i:
        w = width(k, i)
        with k.loop(w, "j") as j:
            k.put(OUT, place(i, j, w), Const(value, "f32"))


def moved(k):
    """A row's width is a number that changes after it was read."""
    w = k.let(3, "w")
    before = k.let(w, "before")
    k.set(w, 5)
    with k.loop(4, "i") as i, k.loop(w, "j") as j:
        k.put(OUT, i * before + j, Const(1.0, "f32"))


def summed(k):
    """Each turn reads what the one before has written."""
    with k.loop(N - 1, "i", 1) as i:
        k.store(OUT, (i,), OUT[i - 1] + X[i])


def counted_up(k):
    total = k.let(0, "total")
    with k.loop(N, "i") as i:
        k.set(total, total + WHOLES[i])
        k.store(WHOLE, (i,), total)


def backwards(k):
    with k.loop(N, "i") as i:
        k.put(OUT, N - 1 - i, X[i])


def told(k):
    """Places that the data tells may be the same."""
    with k.loop(N, "i") as i:
        k.put(OUT, WHOLES[i] % 8, X[i])


SHARED = {   # loops → how many of them threads share
    "rows": (lambda k: rows(k, lambda k, i: Const(5, "i64")), 2),
    "rows of a size": (lambda k: rows(k, lambda k, i: N), 2),
    "columns": (lambda k: rows(k, lambda k, i: Const(5, "i64"), place=lambda i, j, w: j * 4 + i), 2),
    "one after the other": (each(lambda k, p: X[p]), 1), "backwards": (backwards, 1),
    "rows of one's own size": (lambda k: rows(k, lambda k, i: k.let(i + 2)), 0),
    "rows over one another": (lambda k: rows(k, lambda k, i: Const(5, "i64"), place=lambda i, j, w: i * 4 + j), 0),
    "all rows in one": (lambda k: rows(k, lambda k, i: Const(5, "i64"), place=lambda i, j, w: j), 0),
    "a width that changes": (moved, 0), "sums": (summed, 0), "a total": (counted_up, 0), "places of the data": (told, 0),
    "failures": (KERNELS["fail"], 0),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_loops(name):
    body, levels = SHARED[name]
    found = [i.stmt for i in phases(kernel(body))[0] if isinstance(i.stmt, Nest)]
    assert [len(n.levels) for n in found] == ([levels] if levels else [])


# --- scalar functions -------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_scalar_functions(dtype):
    """Each over numbers of all kinds, infinite ones and NaN among them."""
    xs = [values(dtype), np.roll(values(dtype), 7), np.roll(values(dtype), 19)]
    record = dict(zip("xyz", xs))
    outputs = {name: over(name, [field(f, dtype, len(xs[0])) for f in "xyz"[: s.arity]], len(xs[0]))
               for name, s in SCALARS.items() if fits(name, s, dtype)}
    assert len(outputs) > (30 if dtype[0] == "f" else 12)
    reference = defined(outputs, [record])[0]
    made = run(outputs, [record], how=lambda kernels: built(load(list(map(device_kernel, kernels))))(kernels))[0]
    for name in outputs:
        same(made[name], reference[name], name)


def fits(name, scalar, dtype):
    may_fail = dtype == "i64" and name in ("floordiv", "mod", "pow", "shift_left", "shift_right", "clamp")
    return not may_fail and scalar.operands in ("any", "num", "float" if dtype[0] == "f" else "int")


def over(name, fields, count):
    return build((count,), lambda i: ap(name, *(index(f, i) for f in fields)))


# --- operators --------------------------------------------------------------------------------------


def case(name, k):
    """Outputs and record of one example of an operator."""
    op = OPERATORS[name]
    args, _ = [*op.examples, *EXTRA.get(name, ())][k]
    result = np.asarray(op.ref(*args))
    nodes, record = [], {}
    for i, (formal, value) in enumerate(zip(parse_head(op.head).formals, args)):
        made, held = operand(f"a{i}", formal, value)
        nodes.append(made)
        if held is not None:
            record[f"a{i}"] = held
    type_ = Type(WORDS[result.dtype], tuple(result.shape)) if result.shape else I64
    return {name: node("call", *nodes, type=type_, op=name)}, record


@pytest.fixture(scope="module")
def operators():
    found = []

    def collect(kernels):
        found.extend(map(device_kernel, kernels))
        raise Collected

    for name, k in CASES:
        with pytest.raises(Collected):
            outputs, record = case(name, k)
            run(outputs, [record], how=collect)
    return [load(found, backwards=b) for b in ORDERS]


@needs_compiler
@pytest.mark.parametrize("name, k", CASES)
def test_operators(operators, name, k):
    outputs, record = case(name, k)
    reference = defined(outputs, [record])[0]
    for table in operators:
        made = run(outputs, [record], how=built(table))[0]
        same(made[name], reference[name], name)


# --- for the device ---------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here, so CUDA texts aren't compiled for a device")
def test_nvcc_takes_kernels(tmp_path):
    """Example programs' kernels, small ones and all scalar functions, in one file for the oldest GPU that nvcc 13 knows.

    PIPEC_NVCC_EXAMPLES names other examples.
    """
    kernels = [device_kernel(kernel(body)) for body in KERNELS.values()]
    for name in os.environ.get("PIPEC_NVCC_EXAMPLES", "cifar clicks").split():
        kernels += map(device_kernel, lowered(check(str(EXAMPLES_FOLDER / f"{name}.pipe"), complete=False)).kernels)
    for dtype in ("f32", "f64", "i64"):
        fields = [field(f, dtype, 8) for f in "xyz"]
        outputs = {n: over(n, fields[: s.arity], 8) for n, s in SCALARS.items() if fits(n, s, dtype)}
        with pytest.raises(Collected):
            run(outputs, [], how=lambda made: collect(made, kernels))
    source = prelude() + "".join(f"namespace text_{k} {{\n{host_free(d.text, k)}\n}}\n" for k, d in enumerate(kernels))
    (tmp_path / "all.cu").write_text(source)
    done = subprocess.run(["nvcc", "-w", "-ptx", "-arch=sm_75", "-std=c++17", "--fmad=false", "-Xptxas=-O0", "all.cu"],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    ptx = (tmp_path / "all.ptx").read_text()
    assert len(set(re.findall(r"\.entry (\w+)\(", ptx))) == sum(len(k.launches) for k in kernels)
    assert not re.search(r"\bfma\.", re.sub(r"(?s)\.func .*?^}", "", ptx, flags=re.M))   # in kernels of our own


def test_nvrtc_takes_a_kernel():
    """With the options that a run gives it."""
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    text = device_text(device_kernel(kernel(KERNELS["arithmetic"])))
    program = nvrtc.createProgram(text, "k.cu", (), ())
    nvrtc.compileProgram(program, ("--gpu-architecture=compute_80", *OPTIONS))
    assert ".entry small(" in nvrtc.getPTX(program).decode()


def collect(made, kernels):
    kernels += map(device_kernel, made)
    raise Collected


def host_free(text, k):
    """Symbols with the number of their text behind them, so that many fit one file."""
    return re.sub(r'(extern "C" __global__ void \w+)\(', rf"\1_{k}(", text)


# --- generated programs -----------------------------------------------------------------------------

EXAMPLES = int(os.environ.get("PIPEC_GENERATED_CUDA", "30"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Checked programs with what each is compiled to, all kernels in one translation unit."""
    path = tmp_path_factory.mktemp("generated") / "d.npz"
    write_data(str(path))
    texts = []

    @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
              suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(text=programs())
    def draw(text):
        texts.append(text)

    draw()
    return on_host(texts, path)


def on_host(texts, path):
    """Programs over the data at `path`, what each is compiled to, and its kernels on the host, all made at once."""
    checked = [check("p.pipe", text=text.replace("{data}", str(path)), run="p") for text in texts]
    compiled = [(program, lowered(program)) for program in checked]
    table = load([device_kernel(k) for _, c in compiled for k in c.kernels])
    return [(program, c, {k.name: table[device_kernel(k).text] for k in c.kernels}) for program, c in compiled]


@needs_compiler
def test_generated_programs(generated, monkeypatch):
    """Whole programs whose kernels all are CUDA texts on the host: the loader finds them where it looks for machine code."""
    spread = 0
    for program, compiled, host in generated:
        compare_on_host(program, compiled, host, monkeypatch)
        spread += sum("all" in dict(map(reversed, host[k.name].kernel.launches)) for k in compiled.kernels)
    assert spread > EXAMPLES // 3


def compare_on_host(program, compiled, host, monkeypatch):
    """What the loader delivers with these kernels in place of machine code is what the reference does."""
    texts = []
    for k in compiled.kernels:
        text = kernel_text(k)
        monkeypatch.setitem(objects._linked, objects.key_of(text), (None, host[k.name]))
        texts.append(KernelText(k.name, text, objects.key_of(text)))
    reference, failed = run_interpreted(program)
    with Loader(_with_kernels(compiled.plan, texts), as_="numpy", workers="threads", threads=1) as loader:
        got, code = until_failure(fields_of(batch) for batch in loader)
    assert code == failed
    assert_same(got, reference)


def test_a_product_of_sizes_is_no_int():
    assert [_product(c) for c in (["16384", "3", "224", "224"], ["3", "8"], ["n", "3", "8"], ["n", "1"], ["1"])] == [
        "2466250752ll", "24", "n * 24", "n", "1"]
