"""Run-time errors as text, with the program's lines where they can still be read."""
from __future__ import annotations

from ..dsl.render import render_data_error
from ..runtime.errors import DataError


def data_text(error: DataError, colour: bool) -> str:
    texts = {}
    if error.where is not None:
        from ..dsl.parse import read
        from ..dsl.problems import PipeError

        try:
            texts[error.where.file] = read(error.where.file)
        except PipeError:
            pass
    return render_data_error(error, texts, colour)
