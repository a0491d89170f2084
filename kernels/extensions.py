"""The C extensions for tables (`parquetpages.c`) and sound (`sound.c`), where they are built: what they do others do too,
more slowly."""
from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def extension() -> Any | None:
    """The one for tables, None where it isn't built."""
    return built(__package__, "_parquetpages")


@cache
def sound() -> Any | None:
    """The one for sound, None where it isn't built."""
    return built(__package__, "_sound")


def built(package: str, name: str) -> Any | None:
    """An extension of a package, None where it isn't built."""
    try:
        return import_module(f"{package}.{name}")
    except ImportError:
        return None
