"""Writes artifacts, and compiles them again from their graph's text where their machine code can't be used."""
from __future__ import annotations

import json
import os
import re
import secrets
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .. import __version__
from ..dsl.problems import PipeError, Span
from ..dsl.types import Type
from ..runtime import artifact as artifacts
from ..runtime import objects
from ..runtime import plan as plans
from ..runtime.artifact import Artifact, Manifest, Unusable
from ..runtime.plan import Plan
from ..runtime.settings import ParamError, fitted, set_params
from .deep import deep
from .graph import Node, ParamInfo, Program
from .graphtext import parse_lines, print_lines
from .graphtokens import GraphTextError
from .retype import Checked, IllTyped, check_graph

MOST_PLACES = 4   # of one node


class NotAGraph(Unusable):
    code = "E0821"


def compile_file(path: str, overrides: Mapping[str, Any], run: str | None, output: str, on_device: bool = False) -> Manifest:
    """Compile a program file to an artifact, `on_device`: for loaders that ask for a device.

    Raises PipeError where it has mistakes, OSError where it can't be written.
    """
    from .check import check
    from .compile import lowered
    from .native import build

    program = check(path, overrides, run)
    compiled = lowered(program, on_device=on_device)
    return write(output, program, msgspec.structs.replace(compiled.plan, kernels=tuple(build(compiled.kernels))))


def write(output: str, program: Program, plan: Plan) -> Manifest:
    """Write the artifact of a checked program and its plan, whose objects lie in the compile cache.

    The file is there whole or not at all. Raises OSError.
    """
    graph, nodes = print_lines(program.emit)
    texts = _text_members(plan.texts)
    cuda = {f"kernels/{k.name}.cu": k.text.encode() for k in plan.device}
    kernels = tuple(artifacts.Kernel(k.name, f"kernels/{k.name}.py", f"objects/{k.name}.o", made if made in cuda else "")
                    for k in plan.kernels for made in [f"kernels/{k.name}.cu"])
    members: dict[str, bytes] = {
        artifacts.GRAPH: graph.encode(),
        artifacts.PLACES: _places(program, nodes),
        artifacts.PLAN: msgspec.msgpack.encode(msgspec.structs.replace(plan, kernels=(), texts={}, device=())),
        **{member: plan.texts[name].encode() for name, member in texts},
        **cuda,
    }
    for kernel, made in zip(plan.kernels, kernels, strict=True):
        code = objects.fetch(kernel.key)
        if code is None:
            raise objects.Missing([kernel.name])
        members |= {made.python: kernel.text.encode(), made.object: code}
    manifest = Manifest(
        format=artifacts.FORMAT, schema=artifacts.SCHEMA, version=__version__, build=artifacts.build(),
        machine=artifacts.machine(), name=plan.name, path=plan.path, seed=plan.seed, params=plan.params, texts=texts,
        kernels=kernels, hashes={name: artifacts.digest(content) for name, content in members.items()},
        fingerprint=plan.fingerprint, files=plan.files, for_device=plan.for_device)
    raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    _write(output, {artifacts.MANIFEST: raw, artifacts.SEAL: artifacts.seal_of(raw), **members})
    return manifest


def _text_members(texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A member for each file of the program, named after it."""
    found: dict[str, str] = {}
    for name in texts:
        plain = re.sub(r"[^A-Za-z0-9_.\-]", "_", os.path.basename(name)).lstrip("._-") or "program.pipe"
        member = f"program/{plain}"
        number = 2
        while member in found.values():
            member, number = f"program/{number}-{plain}", number + 1
        found[name] = member
    return tuple(found.items())


def _places(program: Program, nodes: Sequence[Node]) -> bytes:
    """For each line of the graph, the places of the program that it comes from: [file, start, end]."""
    files = {name: at for at, name in enumerate(program.texts)}
    listed = [[[files[s.file], s.start, s.end] for s in program.spans.get(n, ())[:MOST_PLACES] if s.file in files]
              for n in nodes]
    return json.dumps({"files": list(files), "lines": listed}, separators=(",", ":")).encode()


def _write(output: str, members: Mapping[str, bytes]) -> None:
    """A zip with the same bytes for the same members."""
    temporary = f"{output}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(info, content)
        os.replace(temporary, output)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


# --- compiled again -------------------------------------------------------------------------------


def program_at(path: str, settings: Mapping[str, Any], run: str | None) -> Program:
    """The checked program of a file, or of an artifact. Raises PipeError, for artifacts DataError too."""
    from .check import check

    if not artifacts.is_artifact(path):
        return check(path, settings, run)
    artifact = artifacts.opened(path, run)
    try:
        return program_of(artifact, settings)[0]
    except Unusable as reason:
        raise artifacts.refused(path, reason) from None


def made_for_device(path: str) -> bool:
    """Is this an artifact that was compiled for loaders on devices. Raises DataError."""
    return artifacts.is_artifact(path) and artifacts.Artifact(path).manifest.for_device


def program_of(artifact: Artifact, settings: Mapping[str, Any] | None = None) -> tuple[Program, Checked]:
    """The program that an artifact's graph describes, with open params set. Raises Unusable, PipeError."""
    text, texts, found = artifact.text(artifacts.GRAPH), artifact.texts(), artifact.manifest
    settled = set_params(found.params, settings or {}, "this artifact", found.path, found.seed, texts)
    try:
        nodes = parse_lines(text)
        params = tuple(_param(p, found.path) for p in settled)
        program = Program(found.name, found.path, nodes[-1], found.seed, params, texts, _spans(artifact, nodes, texts))
        return program, deep(lambda: check_graph(program.emit, params, found.seed is not None))
    except GraphTextError as error:
        raise NotAGraph(f"has a graph that can't be read ({str(error)[:200]})") from None
    except (IllTyped, ParamError) as error:
        raise NotAGraph(f"has a graph that no program has: {str(error)[:200]}") from None
    except Unusable:
        raise
    except Exception as error:   # whatever a graph does that no check foresaw, it isn't one that pipec wrote
        raise NotAGraph(f"has a graph that can't be checked ({type(error).__name__})") from None


def _param(param: plans.Param, path: str) -> ParamInfo:
    dims = (len(param.value),) if isinstance(param.value, list | tuple) else ()
    if param.value is not None:
        for value in param.value if dims else (param.value,):
            fitted(value, param.dtype)
    return ParamInfo(param.name, Type(param.dtype, dims), param.value, param.help, param.open, Span(path, 0, 0))


class _Places(msgspec.Struct):
    files: list[str]
    lines: list[list[tuple[int, int, int]]]


def _spans(artifact: Artifact, nodes: Sequence[Node], texts: Mapping[str, str]) -> dict[Node, tuple[Span, ...]]:
    try:
        places = msgspec.json.decode(artifact.member(artifacts.PLACES), type=_Places)
    except (msgspec.MsgspecError, RecursionError, Unusable):
        return {}    # messages then name the file alone
    spans: dict[Node, tuple[Span, ...]] = {}
    for n, listed in zip(nodes, places.lines):
        good = [Span(places.files[f], start, end) for f, start, end in listed[:MOST_PLACES]
                if 0 <= f < len(places.files) and 0 <= start <= end <= len(texts.get(places.files[f], ""))]
        if good:
            spans[n] = tuple(good)
    return spans


def compiled_again(artifact: Artifact, for_device: bool = False) -> Plan:
    """The plan of an artifact's graph, its objects in the compile cache. `for_device`: cut for loaders on devices.

    Raises Unusable.
    """
    from .compile import lowered
    from .native import build

    program, checked = program_of(artifact)
    try:
        compiled = lowered(program, untrusted=checked, on_device=for_device)
        return msgspec.structs.replace(compiled.plan, kernels=tuple(build(compiled.kernels)))
    except PipeError as error:
        raise NotAGraph(f"has a graph that can't be compiled: {error.problems[0].title}") from None
    except (OSError, MemoryError, ImportError):
        raise
    except Exception as error:   # as above
        raise NotAGraph(f"has a graph that can't be compiled ({type(error).__name__})") from None
