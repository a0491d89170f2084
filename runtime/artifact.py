"""Artifacts (`.pipec`): a program with its graph and machine code in one zip, which `compiler.artifact` writes.

An artifact is untrusted input. Its plan and its objects are used only where its seal verifies under the user's key and it
was made for this CPU by this version of pipec; everything else, and CUDA texts always, is made again from the graph's text.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import importlib
import os
import re
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from .. import __version__
from . import caches, objects
from .errors import DataError
from .opening import SUFFIX as SUFFIX
from .opening import is_artifact as is_artifact
from .plan import KernelText, Param, Plan
from .plancache import content_hash
from .settings import settled

FORMAT, SCHEMA = "pipec artifact", 1
MANIFEST, SEAL, GRAPH, PLACES, PLAN = "manifest.json", "seal", "graph.txt", "places.json", "plan.msgpack"
MOST_MEMBERS = 4096
LARGEST_FILE = 1 << 30
LARGEST_TOTAL = 1 << 30      # of all members, uncompressed
LARGEST_MEMBER = 64 << 20
LARGEST_MANIFEST = 8 << 20
END, LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL")   # a zip's last records
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)?")
SHOWN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]{1,500}")   # names that messages may print
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, OSError)


class Kernel(msgspec.Struct, frozen=True):
    """A kernel's name and the members that hold it; `cuda` is "" where none was made."""

    name: str
    python: str
    object: str
    cuda: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """What an artifact says of itself. `texts`: (name of a program file, member); `hashes`: member → blake2b; `for_device`: its
    plan is cut for loaders on devices."""

    format: str
    schema: int
    version: str
    build: str
    machine: str
    name: str
    path: str
    seed: int | None
    params: tuple[Param, ...]
    texts: tuple[tuple[str, str], ...]
    kernels: tuple[Kernel, ...]
    hashes: dict[str, str]
    fingerprint: str
    files: dict[str, str] = {}
    for_device: bool = False


class Unusable(Exception):
    """This member or file can't be used; the text completes "`x.pipec` …"."""

    code = "E0820"


class Artifact:
    """An artifact's members; what is read is bounded and is what the manifest says."""

    def __init__(self, path: str):
        """Raises DataError E0820 where the file is no artifact."""
        self.path = path
        try:
            self.archive = _opened(path)
            self.sizes = _members(self.archive)
            self.raw = self._bytes(MANIFEST, LARGEST_MANIFEST)
            self.seal = self._bytes(SEAL, 64) if SEAL in self.sizes else b""
            self.manifest = _manifest(self.raw, self.sizes)
        except Unusable as reason:
            raise refused(path, reason) from None

    def _bytes(self, name: str, most: int = LARGEST_MEMBER) -> bytes:
        if name not in self.sizes:
            raise Unusable(f"is no artifact: it has no `{name}`" if name == MANIFEST else f"has no `{name}`")
        if self.sizes[name] > most:
            raise Unusable(f"has a `{name}` of {self.sizes[name]:,} bytes, more than {most:,}")
        try:
            with self.archive.open(name) as member:
                content = member.read(self.sizes[name] + 1)
        except UNREADABLE as error:
            raise Unusable(f"is damaged: `{name}` can't be read ({str(error)[:100]})") from None
        if len(content) != self.sizes[name]:
            raise Unusable(f"is damaged: `{name}` is cut short")
        return content

    def member(self, name: str) -> bytes:
        """A member's bytes. Raises Unusable unless they are what the manifest says."""
        content = self._bytes(name)
        if digest(content) != self.manifest.hashes.get(name):
            raise Unusable(f"is damaged: `{name}` isn't what the manifest says")
        return content

    def text(self, name: str) -> str:
        try:
            return self.member(name).decode()
        except UnicodeDecodeError:
            raise Unusable(f"is damaged: `{name}` isn't UTF-8") from None

    def sealed(self) -> bool:
        """Was the manifest, and with its hashes everything else, signed with this user's key."""
        return hmac.compare_digest(self.seal, seal_of(self.raw))

    def texts(self) -> dict[str, str]:
        """The program's files, for messages."""
        return {name: self.text(member) for name, member in self.manifest.texts}

    def identity(self) -> str:
        """Tells artifacts apart: the hash of what hashes everything."""
        return digest(self.raw)


def refused(path: str, reason: Unusable) -> DataError:
    return DataError(reason.code, f"`{_printable(path)}` {_printable(str(reason))}", notes=(
        "pipec compile FILE.pipe -o FILE.pipec makes it again from the program",))


def _printable(text: str) -> str:
    return "".join(c if SHOWN.fullmatch(c) else "?" for c in text)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=20).hexdigest()


def seal_of(manifest: bytes) -> bytes:
    return hmac.new(objects.user_key(), b"pipec artifact\0" + manifest, hashlib.sha256).digest()


@functools.cache
def build() -> str:
    """Tells versions of what runs a plan apart, also in a checkout that is being edited."""
    root = Path(__file__).parent.parent
    made = hashlib.blake2b(digest_size=16)
    for part in ("kernels", "runtime"):
        for path in sorted((root / part).glob("*.py")):
            made.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return made.hexdigest()


def machine() -> str:
    """The CPU that objects are for."""
    t = objects.target()
    return " ".join((t.triple, t.cpu, t.features))


# --- the zip --------------------------------------------------------------------------------------


def _opened(path: str) -> zipfile.ZipFile:
    found = os.stat(path)   # OSError: of a file that can't be read, as everywhere
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise Unusable("isn't an artifact: it is no plain file")
    if found.st_size > LARGEST_FILE:
        raise Unusable("is larger than an artifact may be")
    with open(path, "rb") as file:
        try:
            _bounded(file)
            return zipfile.ZipFile(path)
        except UNREADABLE:
            raise Unusable("isn't an artifact, or is cut short") from None


def _bounded(file: BinaryIO) -> None:
    """The list of members at a zip's end is all read before any of it is looked at: it must be small, and be found where it is
    written, without a comment or the records of zips beyond 4 GB. Raises Unusable, ValueError, OSError."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LOCATOR.size - END.size))
    tail = file.read()
    mark, *_, count, listed, _, comment = END.unpack(tail[-END.size:].rjust(END.size, b"\0"))
    if mark != b"PK\5\6" or comment:
        raise ValueError("no end of a zip")
    if count > MOST_MEMBERS or listed > MOST_MEMBERS * 512 or tail.startswith(b"PK\6\7"):
        raise Unusable(f"has more than {MOST_MEMBERS:,} members")


def _members(archive: zipfile.ZipFile) -> dict[str, int]:
    """Sizes of the members, all of them plain files with plain names, all together within bounds."""
    infos = archive.infolist()
    sizes: dict[str, int] = {}
    for info in infos:
        if not NAME.fullmatch(info.filename) or len(info.filename) > 200:
            raise Unusable(f"has a member with an odd name, `{info.filename[:60]}`")
        if info.filename in sizes:
            raise Unusable(f"has two members `{info.filename}`")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Unusable(f"has a member `{info.filename}` that pipec didn't write")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise Unusable(f"has a member `{info.filename}` that is no plain file")
        sizes[info.filename] = info.file_size
    if sum(sizes.values()) > LARGEST_TOTAL:
        raise Unusable("unpacks to more than an artifact may hold")
    return sizes


def _manifest(raw: bytes, sizes: Mapping[str, int]) -> Manifest:
    try:
        head = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Unusable(f"isn't an artifact: `{MANIFEST}` can't be read") from None
    if head.get("format") != FORMAT:
        raise Unusable(f"isn't an artifact: its `{MANIFEST}` doesn't say so")
    if head.get("schema") != SCHEMA:
        raise Unusable(f"is an artifact of another kind ({str(head.get('schema'))[:20]}), "
                       f"made by pipec {str(head.get('version'))[:20]}")
    try:
        found = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unusable(f"is damaged: `{MANIFEST}` is wrong ({str(error)[:100]})") from None
    named = set(found.hashes) | {MANIFEST, SEAL}
    listed = [GRAPH, PLACES, PLAN, *(m for _, m in found.texts), *(m for k in found.kernels for m in (k.python, k.object))]
    if set(sizes) - named or not set(found.hashes) <= set(sizes) or not set(listed) <= set(found.hashes):
        raise Unusable("is damaged: its members aren't those that the manifest names")
    for text in (found.name, found.path, found.version, *(name for name, _ in found.texts), *(k.name for k in found.kernels)):
        if not SHOWN.fullmatch(text):
            raise Unusable(f"is damaged: `{MANIFEST}` has an odd name")
    return found


# --- what runs ------------------------------------------------------------------------------------


def plan_of(path: str, params: Mapping[str, Any] | None = None, run: str | None = None, trust: bool = False,
            on_device: bool = False, for_device: bool = False) -> Plan:
    """The plan that an artifact holds, its objects in the user's cache, with open params set.

    `trust`: use plan and objects though nobody known signed them. `on_device`: with CUDA texts, which are never the file's
    own: the plan is that of its graph. `for_device`: cut for loaders on devices, though the stored plan may not be.
    Raises DataError (E0820–E0823) for a file that can't be used, PipeError for params that can't be set.
    """
    artifact = opened(path, run)
    why = unusable(artifact, trust)
    for_device = for_device or artifact.manifest.for_device
    plan = None
    if why is None:
        try:
            if on_device or for_device != artifact.manifest.for_device:
                _kernels(artifact)           # most are those of its graph, which need no compiling then
            else:
                plan = _stored(artifact)
        except Unusable as reason:
            why = str(reason)
    if plan is None:
        plan = _again(artifact, why, for_device)
    _same_files(path, plan)
    return settled(plan, params or {}, "this artifact")


def _same_files(artifact: str, plan: Plan) -> None:
    """E0823 where a file that operators read doesn't hold what it held when the program was compiled."""
    for path, known in plan.files.items():
        found = content_hash(path)
        if found != known:
            what = "has changed since" if found else "isn't there, and was when"
            raise DataError("E0823", f"`{_printable(path)}` {what} `{_printable(artifact)}` was compiled", notes=(
                "what an operator reads by a path is part of the program: put the file back, or compile the program again",))


def opened(path: str, run: str | None) -> Artifact:
    """The artifact, which holds the pipeline `run` if one is named. Raises DataError."""
    artifact = Artifact(path)
    if run is not None and run != artifact.manifest.name:
        raise DataError("E0822", f"`{_printable(path)}` holds the pipeline `{artifact.manifest.name}`, not `{run}`")
    return artifact


def unusable(artifact: Artifact, trust: bool = False) -> str | None:
    """Why the stored plan and objects aren't used here; None where they are."""
    found = artifact.manifest
    if not artifact.sealed() and not trust:
        return "isn't signed with your key" if artifact.seal else "isn't signed"
    if found.version != __version__:
        return f"was made by pipec {found.version[:20]}, and this is {__version__}"
    if found.build != build():
        return "was made by other code of pipec"
    return _foreign(found.machine) if found.machine != machine() else None


def _foreign(made_for: str) -> str:
    """How the CPU that an artifact was made for differs from this one."""
    (system, cpu, features), here = ((*text.split(" "), "", "", "")[:3] for text in (made_for, machine()))
    if system != here[0]:
        return f"was made for another system ({system[:40]}, and this is {here[0]})"
    if cpu != here[1]:
        return f"was made for another CPU ({cpu[:40]}, and this is {here[1]})"
    there, own = ({f[1:] for f in text.split(",") if f.startswith("+")} for text in (features, here[2]))
    apart = [*(f"with {f[:20]}" for f in sorted(there - own)), *(f"without {f}" for f in sorted(own - there))]
    return f"was made for a CPU with other features ({', '.join(apart[:3])}{' …' if len(apart) > 3 else ''})"


def _stored(artifact: Artifact) -> Plan:
    """The plan as it is in the artifact, its objects put into the cache. Raises Unusable."""
    try:
        plan = msgspec.msgpack.decode(artifact.member(PLAN), type=Plan)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unusable(f"is damaged: its plan can't be read ({str(error)[:100]})") from None
    return msgspec.structs.replace(plan, kernels=_kernels(artifact), texts=artifact.texts(), device=())


def _kernels(artifact: Artifact) -> tuple[KernelText, ...]:
    """The kernels of the stored plan, their objects put into the cache. Raises Unusable."""
    kernels = []
    for kernel in artifact.manifest.kernels:
        text = artifact.text(kernel.python)
        key = objects.key_of(text)
        if not objects.holds(key):
            objects.store(key, artifact.member(kernel.object))
        kernels.append(KernelText(kernel.name, text, key))
    caches.bound()
    return tuple(kernels)


def _again(artifact: Artifact, why: str | None, for_device: bool) -> Plan:
    """The plan compiled from the artifact's graph, or kept from when it was. `why` the stored one isn't used, for a note."""
    from . import plancache

    kept = plancache.find_made(artifact.identity(), for_device)
    if kept is not None:
        return kept
    if why is not None:
        note(f"`{_printable(artifact.path)}` {_printable(why)}: its kernels are compiled again from its graph"
             + ("" if artifact.sealed() else "; PIPEC_KEY shares a key, --trust (trust=True) takes the file as it is"))
    compiler = importlib.import_module("pipec.compiler.artifact")
    try:
        plan: Plan = compiler.compiled_again(artifact, for_device)
    except Unusable as reason:
        raise refused(artifact.path, reason) from None
    plancache.keep_made(artifact.identity(), plan, for_device)
    return plan


def note(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):   # nobody listens
        print(f"pipec: {text}", file=sys.stderr)
