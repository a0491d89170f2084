"""`pipec compile`: a program as an artifact, one file that runs where it is opened without being compiled."""
from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping

from ..runtime.settings import shown
from . import UsageError, for_device, settings_of, split_file, writable


def compile(arguments: argparse.Namespace) -> int:
    """Write the artifact and say what can still be set, and what can't."""
    from ..compiler.artifact import compile_file
    from ..runtime.artifact import SUFFIX, is_artifact

    path, run = split_file(arguments.file)
    on_device = for_device(arguments.device)
    if is_artifact(path):
        raise UsageError(f"`{path}` is an artifact already: compile takes a program")
    output = arguments.output or os.path.splitext(path)[0] + (f"-{run}" if run else "") + SUFFIX
    if not output.endswith(SUFFIX):
        raise UsageError(f"`{output}`: an artifact's name ends in {SUFFIX}")
    writable(output, "a file")
    made = compile_file(path, settings_of(arguments.settings), run, output, on_device)
    kernels = f"{len(made.kernels)} kernel{'s' if len(made.kernels) != 1 else ''}"
    print(f"{output}: pipeline `{made.name}`, {kernels}, {os.path.getsize(output):,} bytes")
    if made.for_device:
        print("cut for loaders on a device; others get the same values")
    _params("open", (p.name for p in made.params if p.open))
    seed = [] if made.seed is None else [f"seed={made.seed}"]
    _params("fixed", [*seed, *(f"{p.name}={shown(p.value)}" for p in made.params if not p.open)])
    return 0


def _params(what: str, listed: Iterable[str]) -> None:
    """One line, if there is anything to say."""
    text = ", ".join(listed)
    if text:
        print(f"{what}: {text}")


def check_artifact(path: str, settings: Mapping[str, str], run: str | None, arguments: argparse.Namespace) -> int:
    """Is everything in an artifact whole, and its graph a program's; and what of it would run here."""
    from ..compiler.artifact import program_of
    from ..runtime import artifact as artifacts

    if arguments.data:
        raise UsageError(f"`{path}` is an artifact: --data goes with programs")
    found = artifacts.opened(path, run)
    try:
        for name in found.manifest.hashes:
            found.member(name)
        program_of(found, settings)
    except artifacts.Unusable as reason:
        raise artifacts.refused(path, reason) from None
    if arguments.format == "json":
        print("[]")
        return 0
    why = artifacts.unusable(found)
    print(f"{path}: fine; pipeline `{found.manifest.name}`, made by pipec {found.manifest.version}")
    print("its machine code runs here" if why is None else f"it {why}: its kernels are compiled again here")
    return 0
