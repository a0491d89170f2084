"""The documentation holds: its programs check or fail as they say, generated pages are up to date, examples are true.

A ```pipe block is a whole program, or paragraphs that are put into one: declarations before the prelude's pipeline, lines that
begin with two spaces into it. A first comment `# E0401` says which error the block must give; a block without one gives none.
"""
from __future__ import annotations

import importlib
import importlib.util
import re
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pipec.compiler import aggregates
from pipec.compiler.arguments import FROM_STAGES, SPECS
from pipec.compiler.check import check
from pipec.compiler.sources import KINDS
from pipec.dsl.explain import codes
from pipec.dsl.problems import PipeError
from pipec.kernels import elementary
from pipec.kernels.ops import OPERATORS, Registry
from pipec.kernels.random import DRAWS
from pipec.kernels.scalar import NUMPY, SCALARS
from pipec.kernels.sources import READABLE

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```pipe\n(.*?)^```", re.M | re.S)
EXPECTED = re.compile(r"# (E\d{4})")

# What fragments may use: fields of every kind, numbers and a seed. Fields that a fragment doesn't use are never read.
DECLARED = """param size = 64
param root: path = "/data"
seed 1
let MEAN = [0.5, 0.5, 0.5]
let STD = [0.25, 0.25, 0.25]
"""
SCHEMA = """schema Row
  jpg: bytes
  cls: i64
  small: u8[32, 32, 3]
  wave: f32[samples]
  counts: i32?[13] from "I{1..13}"
  words: text?
  boxes: f32[k, 4]
  kinds: i64[k]
"""
START = '  from tar("{root}/*.tar") as Row\n'


def blocks() -> list[tuple[str, str]]:
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        found += [(f"{path.name}:{text.count(chr(10), 0, m.start()) + 2}", m[1]) for m in BLOCK.finditer(text)]
    return found


def program(block: str) -> str:
    """The block as a whole program."""
    if re.search(r"^pipeline ", block, re.M):
        return block
    parts = re.split(r"\n{2,}", block.strip("\n"))
    own = "\n\n".join(p for p in parts if not is_body(p))
    body = "\n".join(p for p in parts if is_body(p))
    taken = set(re.findall(r"^(?:param|let) (\w+)|^(seed) ", own, re.M))
    names = {name for found in taken for name in found}
    kept = [d for d in DECLARED.splitlines() if not names & set(re.findall(r"\w+", d)[:2])]
    if not re.search(r"^  emit ", body, re.M):
        made = re.findall(r"^  (\w+)(?: *:[^=\n]*)? *[=~]", body, re.M) or ["cls"]
        body += f"\n  emit {', '.join(dict.fromkeys(made))}"
    start = "" if "  from " in body else START
    schema = "" if "schema Row" in own else SCHEMA
    return "\n".join([*kept, own, schema]) + f"\npipeline train\n{start}{body}\n"


def is_body(paragraph: str) -> bool:
    """Do its lines belong into a pipeline."""
    first = next((line for line in paragraph.split("\n") if not line.startswith("#")), "")
    return first.startswith("  ")


@pytest.mark.parametrize(("place", "block"), blocks(), ids=[p for p, _ in blocks()])
def test_block(place: str, block: str) -> None:
    wanted = EXPECTED.match(block)
    text = program(block)
    try:
        check("block.pipe", text=text, complete=False)
        found = []
    except PipeError as error:
        found = list(dict.fromkeys(p.code for p in error.problems))
        if not wanted:
            pytest.fail(f"{place}\n{text}\n{error}")
    assert found == ([wanted[1]] if wanted else []), f"{place}\n{text}"


def test_there_are_blocks() -> None:
    assert len(blocks()) > 40


def manual() -> str:
    return (ROOT / "docs" / "language.md").read_text(encoding="utf-8")


def test_every_stage_and_source_is_in_the_manual() -> None:
    stages, sources = (manual().split(f"\n## {title}\n")[1].split("\n## ")[0] for title in ("Stages", "Sources"))
    assert [name for name in (*SPECS, *FROM_STAGES) if not re.search(rf"`(from )?{name}\(|`{name}`", stages)] == []
    assert [kind for kind in KINDS if not re.search(rf"\b{kind}\b", sources)] == []
    assert [kind for kind in READABLE if not re.search(rf"^### .*`{kind}`", sources, re.M)] == []


def test_errors_in_the_manual_are_those_of_the_source() -> None:
    """The table of accuracies is the one that kernels/elementary.py states."""
    assert elementary.__doc__
    stated = {m[1]: (m[2], m[3]) for m in re.finditer(r"(\w+) +(\d\.\d\d) +(\d\.\d\d)", elementary.__doc__)}
    shown = {m[1]: (m[2], m[3]) for m in re.finditer(r"`(\w+)` \| (\d\.\d\d) \| (\d\.\d\d)", manual())}
    assert len(shown) > 20 and shown == stated


def test_codes_and_links_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"\bE0\d{3}\b", text)) <= set(codes()), path.name
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, heading = target.partition("#")
            page = path.parent / file if file else path
            if "://" not in target:
                assert page.exists() and (not heading or heading in headings(page)), f"{path.name}: {target}"


def headings(page: Path) -> set[str]:
    """What links may name after `#`."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in found}


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_files_that_pages_name_are_there(page: str) -> None:
    """`runtime/ring.py`, `ring.py` in a row or a paragraph about some folder, `examples/torch`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:py|c|h|pipe|lark)|(?:\w+/)+\w*)`", text))
    folders = ("", *(f"{f}/" for f in ("cli", "compiler", "dsl", "kernels", "runtime")))
    missing = {n for n in named if not any((ROOT / f"{folder}{n}").exists() for folder in folders)}
    assert len(named) > 5 and missing <= {"train.pipe", "program/", "objects/"}, missing
    for module, name in re.findall(r"`([a-z_]+)\.(?!(?:py|c|h|txt|json|pipe|msgpack)`)([A-Za-z]\w*)`", text):  # `graph.Node`
        texts = [p.read_text(encoding="utf-8") for f in folders if (p := ROOT / f"{f}{module}.py").exists()]
        assert not texts or any(re.search(rf"^(class|def) {name}\b", t, re.M) for t in texts), f"{module}.{name}"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_operators", ROOT / "docs" / "make_operators.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operators_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    made = generator()
    if request.config.getoption("--update"):
        made.TARGET.write_text(made.text(), encoding="utf-8")
    assert made.TARGET.read_text(encoding="utf-8") == made.text(), "run `python docs/make_operators.py`"


def test_what_recipes_need_is_there() -> None:
    made = generator()
    assert len(made.NEEDS.strip().split("\n")) == 64
    library = resources.files("pipec.dsl").joinpath("std.pipe").read_text(encoding="utf-8")
    known = {*re.findall(r"^fn (\w+)\(", library, re.M), *OPERATORS, *SCALARS, *DRAWS, *aggregates.KINDS, "concat", "missing"}
    named = {n for code in re.findall(r"`([^`]+)`", made.NEEDS) for n in re.findall(r"([a-z]\w*)\(", code)}
    assert named and not named - known


def numbers(args: tuple[Any, ...], operands: str) -> list[Any]:
    """The args as the function's operands meet."""
    if operands == "bool" or all(isinstance(a, bool) for a in args):
        return [np.bool_(a) for a in args]
    floats = operands == "float" or any(isinstance(a, float) for a in args)
    return [NUMPY["f32" if floats else "i64"].type(a) for a in args]


@pytest.mark.parametrize("name", SCALARS)
def test_example_of_a_scalar_function(name: str) -> None:
    scalar = SCALARS[name]
    args, wanted = scalar.example
    got = scalar.ref(*numbers(args, scalar.operands))
    assert got.shape == () and got == wanted and got.dtype.kind == np.asarray(wanted).dtype.kind


for _module in Registry.modules:
    importlib.import_module(f"pipec.kernels.{_module}")
WITH_EXAMPLES = [(name, k) for name, operator in OPERATORS.items() for k in range(len(operator.examples))]


@pytest.mark.parametrize(("name", "number"), WITH_EXAMPLES)
def test_example_of_an_operator(name: str, number: int) -> None:
    args, wanted = OPERATORS[name].examples[number]
    got = np.asarray(OPERATORS[name].ref(*args))
    assert np.array_equal(got, wanted) and got.dtype.kind == np.asarray(wanted).dtype.kind
