"""Every page of an error code: its wrong program gives exactly this code, its right one none."""
from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from pipec import dsl
from pipec.dsl.explain import codes, page
from pipec.dsl.parse import parse
from pipec.dsl.problems import PipeError

HAS_CHECK = find_spec("pipec.compiler.check") is not None


def found(program: str) -> list[str]:
    """The codes of a program's problems, from the checker where it is there."""
    try:
        parse(program, "page.pipe")
        if HAS_CHECK:
            from pipec.compiler.check import check

            check("page.pipe", text=program)
    except PipeError as error:
        return [p.code for p in error.problems]
    return []


@pytest.mark.parametrize("code", codes())
def test_page(code: str):
    read = page(code)
    assert read is not None and read.title and read.rule and read.title[0] not in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert re.match(rf"# {code}: ", read.text)
    if read.program:
        assert not read.wrong and not read.right
        assert found(read.program) == []
        return
    assert read.wrong and read.right
    if code.startswith("E00") or HAS_CHECK:
        wrong = found(read.wrong)
        assert wrong and wrong[0] == code, wrong
    if code.startswith("E00"):
        parse(read.right, "page.pipe")
    else:
        assert found(read.right) == []


def test_every_code_has_a_page_and_every_page_a_code():
    root = Path(dsl.__file__).parent.parent
    sources = [p for folder in ("dsl", "kernels", "runtime", "compiler", "cli") for p in (root / folder).glob("*.py")]
    used = {code for source in sources for code in re.findall(r'"(E\d{4})"', source.read_text(encoding="utf-8"))}
    assert used - set(codes()) == set(), "reported, but without a page in dsl/pages"
    assert set(codes()) - used == set(), "a page for what nothing reports"


def test_looking_up():
    assert page("e0002 ") == page("E0002")
    assert page("E9999") is None and page("../parse") is None and page("") is None
