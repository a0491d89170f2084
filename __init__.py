"""pipec: a compiled language for machine-learning input pipelines.

    import pipec
    for image, target in pipec.open("train.pipe", size=192):
        ...
    for image, target in pipec.attach("imagenet", batch_size=96):   # a server's, shared with others
        ...

Importing pipec is cheap: numba, torch and lark are loaded when they are first needed.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime.joining import attach as attach
    from .runtime.opening import open as open

__version__ = "0.1.0"
__all__ = ["attach", "open"]


def __getattr__(name: str) -> Any:
    if name == "open":
        from .runtime.opening import open as opened

        return opened
    if name == "attach":
        from .runtime.joining import attach

        return attach
    raise AttributeError(f"module 'pipec' has no attribute {name!r}")
