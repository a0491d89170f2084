"""What a training loop receives: arrays over the ring as tensors of the library it asked for, without a copy where that can be.

Texts and bytes stay what they are, lists are converted value by value.
"""
from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

Convert = Callable[[Any], Any]
PACKAGES = {"torch": "torch", "jax": "jax"}   # of "cupy" `device` speaks
ARRAYS = (np.ndarray, np.generic)
KINDS = ("torch", "numpy", "jax", "cupy")


def check_kind(as_: str) -> None:
    """Raise ValueError for a word that says no kind, ModuleNotFoundError where its package isn't installed."""
    if as_ not in KINDS:
        raise ValueError(f'as_={as_!r}: it is "torch", "numpy", "jax" or "cupy"')
    package = PACKAGES.get(as_)
    if package is not None and package not in sys.modules and importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f'as_="{as_}": {package} isn\'t installed here; as_="numpy" needs nothing else',
                                  name=package)


def imports(as_: str) -> threading.Thread | None:
    """Its package is being imported by this thread, which takes longer than starting a producer; None: it is there."""
    if as_ not in ("torch", "jax") or as_ in sys.modules:
        return None
    thread = threading.Thread(target=importlib.import_module, args=(PACKAGES[as_],), daemon=True)
    thread.start()
    return thread


def writes(as_: str) -> bool:
    """May loops of this kind write to what they get: torch has no read-only tensors."""
    return as_ == "torch"


def converter(as_: str) -> Convert | None:
    """Of a field of a batch as the runtime has it, None where it stays that: arrays of NumPy, and what lies on a device."""
    return {"torch": to_torch, "jax": to_jax}.get(as_)


def _array(value: Any) -> Any:
    """An array of numbers, or None for other values."""
    if not isinstance(value, ARRAYS):
        return None
    array = np.asarray(value)
    return None if array.dtype.kind == "O" else array


def to_torch(value: Any) -> Any:
    """A tensor over the same memory, copied only where that is read-only."""
    if isinstance(value, list):
        return [to_torch(v) for v in value]
    array = _array(value)
    if array is None:
        return value.item() if isinstance(value, np.ndarray) and not value.ndim else value
    import torch

    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":   # a name takes long to make
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_jax(value: Any) -> Any:
    """An array of JAX on its default device. On a CPU it lies over the same memory where that is 64-byte aligned.

    Without `jax_enable_x64` JAX has no numbers of 64 bits: f64 becomes f32, and integers those of 32 bits. Raises
    OverflowError where an integer doesn't fit.
    """
    if isinstance(value, list):
        return [to_jax(v) for v in value]
    array = _array(value)
    if array is None:
        return value
    import jax

    narrow = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    return jax.device_put(array if narrow == array.dtype else _narrowed(array, narrow))


def _narrowed(array: Any, narrow: np.dtype[Any]) -> Any:
    if narrow.kind in "iu" and array.size and (
            int(array.min()) < np.iinfo(narrow).min or int(array.max()) > np.iinfo(narrow).max):
        raise OverflowError("JAX has no integers of 64 bits here, and these don't fit 32: set jax_enable_x64, or leave the field "
                            "out")
    return array.astype(narrow)
