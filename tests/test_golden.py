"""What small programs become: `golden/*.pipe.txt` holds a program, then its texts after some of the compiler's steps.

The text after a line `-- graph --` is the checked graph, after `-- after fuse --` the graph after that pass, after `-- plan --`
the plan, after `-- numba --` the kernels, after `-- cuda --` the same for a GPU. `pytest --update tests/test_golden.py` writes
what the compiler makes now; look at the difference before you commit it.
"""
from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from pipec.compiler.check import check
from pipec.compiler.compile import lowered, pass_names, transformed
from pipec.compiler.emit_cuda import device_kernel
from pipec.compiler.emit_numba import kernel_text
from pipec.compiler.graphtext import parse_graph, print_graph

FILES = sorted((Path(__file__).parent / "golden").glob("*.pipe.txt"))
HEADING = re.compile(r"^-- (.+) --\n", re.M)


def made(source: str, section: str) -> str:
    """The text of one section."""
    program = check("golden.pipe", text=source)
    match section.split():
        case ["graph"]:
            return print_graph(program.emit)
        case ["after", name] if name in pass_names() and name != "place":
            return print_graph(transformed(program.emit, until=name))
        case ["plan"]:
            shown = msgspec.structs.replace(lowered(program).plan, device=())
            return msgspec.json.format(msgspec.json.encode(shown), indent=1).decode() + "\n"
        case ["numba"]:
            return "\n".join(kernel_text(kernel).rstrip() + "\n" for kernel in lowered(program).kernels)
        case ["cuda"]:
            return "\n".join(device_kernel(kernel).text.rstrip() + "\n" for kernel in lowered(program).kernels)
    raise ValueError(f"there is no section `{section}`")


def test_there_are_programs() -> None:
    assert len(FILES) >= 6


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.split(".")[0])
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    source, *rest = HEADING.split(path.read_text(encoding="utf-8"))
    names, texts = rest[::2], rest[1::2]
    assert names, "a golden file needs a section such as `-- graph --`"
    now = [made(source, name).rstrip("\n") + "\n" for name in names]
    if request.config.getoption("--update"):
        path.write_text(source + "".join(f"-- {n} --\n{t}" for n, t in zip(names, now)), encoding="utf-8")
        return
    for name, text, kept in zip(names, now, texts, strict=True):
        assert text == kept, f"`-- {name} --` of {path.name} has changed; `pytest --update {Path(__file__).name}` rewrites it"
        if name == "graph" or name.startswith("after"):
            assert print_graph(parse_graph(text)) == text
