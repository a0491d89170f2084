"""Errors as text on stderr, with the program's lines where they can still be read."""
from __future__ import annotations

import contextlib
import sys
import traceback

from ..dsl.problems import PipeError
from ..dsl.render import render, render_data_error, to_json
from ..runtime.errors import DataError


def report_program(error: PipeError, form: str, colour: bool) -> None:
    """All problems of a program; as JSON they go to stdout."""
    if form == "json":
        print(to_json(error.problems, error.texts))
        return
    print(render(error.problems, error.texts, color=colour), file=sys.stderr)
    count = len(error.problems)
    print(f"\n{count} problem{'s' if count > 1 else ''}; `pipec explain {error.problems[0].code}` says more", file=sys.stderr)


def data_text(error: DataError, colour: bool) -> str:
    texts = {}
    if error.where is not None:
        from ..dsl.parse import read

        with contextlib.suppress(PipeError):    # it was there when the program was checked
            texts[error.where.file] = read(error.where.file)
    return render_data_error(error, texts, colour)


def mistake_text(error: Exception) -> str:
    """What nobody foresaw, in two lines instead of a traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (f"a mistake in pipec: {type(error).__name__}: {str(error)[:300]} ({last.filename}:{last.lineno})\n"
            "please report it with the program; PIPEC_DEBUG=1 shows the whole trace")
