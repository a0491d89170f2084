"""The C extension for tables (`parquetpages.c`), where it is built: what it does others do too, more slowly."""
from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def extension() -> Any | None:
    """The extension, None where it isn't built."""
    try:
        return import_module(f"{__package__}._parquetpages")
    except ImportError:
        return None
