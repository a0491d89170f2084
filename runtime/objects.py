"""The compile cache, and machine code from it: kernel texts go in, callables come out, without numba.

An object file can do anything, so none of its bytes reaches LLVM before its HMAC verifies under the user's key
(`PIPEC_KEY`, or a file of mode 0600 made at first use). Entries are written under another name and renamed, so
processes may share the folder; one that can't be used counts as absent.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import hmac
import importlib.util
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kernels import kept
from . import elf
from .errors import SettingError
from .plan import KernelText

MAGIC = b"pipecobj1\n"
TARGETS = "targets"    # the folder of what is known of machines
CPU_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags",
              "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features")
LARGEST_OBJECT = 64 << 20
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Missing(SettingError):
    """The cache holds no object of this user and this CPU for `names`: they must be compiled."""

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        super().__init__(f"the machine code of {', '.join(self.names)} isn't in the cache `{kept.folder()}` any more: was it "
                         "emptied just now, start again")


@dataclass(frozen=True)
class Target:
    """What an object was made for and by; objects for any other target are not used."""

    triple: str
    cpu: str
    features: str
    makers: str   # versions of the tools

    def tag(self) -> bytes:
        return "\0".join((self.triple, self.cpu, self.features, self.makers)).encode()


@functools.cache
def llvm() -> Any:
    """llvmlite's binding, ready to compile for this machine."""
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def target() -> Target:
    made = _makers()
    place = _place(made)
    known = _known(place) if place is not None else None
    if known is not None:
        return Target(known[0], known[1], known[2], made)
    binding = llvm()
    found = Target(binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), made)
    if place is not None:
        _keep_known(place, (found.triple, found.cpu, found.features))
    return found


def _makers() -> str:
    """Versions of the tools, found without importing them."""
    made = [f"python {sys.version_info[0]}.{sys.version_info[1]}"]
    compiler = Path(__file__).parent.parent / "compiler"
    makers = [compiler / name for name in ("instructions.py", "intrinsics.py", "through_numba.py", "native.py", "optimise.py")]
    for tool in ("llvmlite", "numba"):
        spec = importlib.util.find_spec(tool)
        if spec is not None and spec.origin:
            makers.append(Path(spec.origin).with_name("_version.py"))
    for maker in makers:   # a change of what the names in a text mean makes other code
        with contextlib.suppress(OSError):
            made.append(hashlib.blake2b(maker.read_bytes(), digest_size=8).hexdigest())
    return ", ".join(made)


# What LLVM says of this machine is kept, since asking it takes as long as half the start of a process.


def _place(made: str) -> Path | None:
    """Where what LLVM says of this machine is kept; None where machines can't be told apart."""
    cpu = _cpu()
    name = hashlib.blake2b(f"{cpu}\0{made}".encode(), digest_size=16).hexdigest()
    return Path(kept.folder()) / TARGETS / name if cpu else None


def _cpu() -> str:
    """The system, and what it says of its first CPU; "" where that tells nothing."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = (file.read(1 << 14) or b"").partition(b"\n\n")[0].decode("utf-8", "replace")
    except OSError:
        return ""
    told = [line for line in first.split("\n") if line.partition(":")[0].strip() in CPU_FIELDS]
    features = any(line.startswith(("flags", "Features")) for line in told)
    return "\n".join((*os.uname()[2:], *told)) if features else ""


def _known(place: Path) -> list[str] | None:
    try:
        content = place.read_bytes()
        if not hmac.compare_digest(content[:32], _target_mac(place, content[32:])):
            return None
        known = content[32:].decode().split("\0")
    except (OSError, UnicodeDecodeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return known if len(known) == 3 else None


def _keep_known(place: Path, known: Sequence[str]) -> None:
    """Failing to costs time only."""
    content = "\0".join(known).encode()
    with contextlib.suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _put(place, _target_mac(place, content) + content)


def _target_mac(place: Path, content: bytes) -> bytes:
    return hmac.new(user_key(), b"pipec target\0" + place.name.encode() + content, hashlib.sha256).digest()


def key_of(text: str) -> str:
    """The name of the object for this text on this machine."""
    return hashlib.blake2b(target().tag() + b"\0\0" + text.encode(), digest_size=20).hexdigest()


def symbol_of(text: str) -> str:
    """The one visible symbol of an object; the same whatever machine made it."""
    return "pipec_" + hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


# --- the folder ---


def folder() -> Path:
    """The cache folder, made where it doesn't exist, closed to others."""
    path = Path(kept.folder())
    with _told():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say of a cache that can't be written what it is, and how to have another."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; machine code is kept there, and PIPEC_CACHE=FOLDER names another place",
                      kept.folder()) from None


def own(name: str) -> str:
    """A name in the cache for what is signed: who has another key has other files, and nobody writes over another's."""
    if not os.environ.get("PIPEC_KEY"):
        return name
    return f"{name}-{hashlib.blake2b(user_key(), digest_size=4, person=b'pipec name').hexdigest()}"


def user_key() -> bytes:
    """The key under which objects are trusted. A key file that others may read or own is refused."""
    given = os.environ.get("PIPEC_KEY")
    if given:
        return hashlib.blake2b(given.encode(), digest_size=32, person=b"pipec key").digest()
    path = folder() / "key"
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError):
            return _read_key(path)
        with _told():
            _make_key(path)
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(file.fileno())
        if stat.S_IMODE(info.st_mode) & 0o077 or info.st_uid != os.getuid():
            raise PermissionError(f"{path} must belong to you and have mode 0600: delete it, a new one is made")
        content = file.read(64)
    if len(content) != 32:
        raise PermissionError(f"{path} isn't a key: delete it, a new one is made")
    return content


def _make_key(path: Path) -> None:
    temporary = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(secrets.token_bytes(32))
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)   # unlike a rename, never replaces the key of a process that came first
    temporary.unlink()


def _path(key: str) -> Path:
    if len(key) != 40 or not all(c in "0123456789abcdef" for c in key):
        raise ValueError("not a key of the compile cache")
    return folder() / f"{own(key)}.o"


def _mac(key: str, code: bytes) -> bytes:
    signed = hmac.new(user_key(), digestmod=hashlib.sha256)
    for part in (MAGIC, key.encode(), target().tag(), code):
        signed.update(len(part).to_bytes(8, "little"))
        signed.update(part)
    return signed.digest()


def store(key: str, code: bytes) -> None:
    """Put an object into the cache. Whoever has stored some calls `caches.bound`."""
    path, content = _path(key), MAGIC + _mac(key, code) + code
    with _told():
        _put(path, content)


def _put(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def fetch(key: str) -> bytes | None:
    """The verified object, or None. A hit counts as a use."""
    path = _path(key)
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_OBJECT + 1)
    except OSError:
        return None
    head = len(MAGIC) + 32
    if len(content) <= head or len(content) > LARGEST_OBJECT or not content.startswith(MAGIC):
        return None
    code = content[head:]
    if not hmac.compare_digest(content[len(MAGIC):head], _mac(key, code)):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return code


def holds(key: str) -> bool:
    """Is there a verified object of this name."""
    return fetch(key) is not None


# --- linking ---


@functools.cache
def _jit() -> Any:
    return llvm().create_lljit_compiler()


_linked: dict[str, tuple[Any, Callable[..., None]]] = {}   # kept for the life of the process: code can't be unloaded safely


def link(key: str, code: bytes, symbol: str) -> Callable[..., None]:
    """The kernel in a verified object: `kernel(n, table, status, arena)`, all addresses, without the GIL."""
    if key not in _linked:
        library, addresses = placed(key, code, (symbol,))
        _linked[key] = (library, SIGNATURE(addresses[symbol]))
    return _linked[key][1]


def placed(key: str, code: bytes, symbols: Sequence[str]) -> tuple[Any, dict[str, int]]:
    """Where the functions of a verified object are, and what to keep as long as they are called. LLVM, which takes long to
    load, places only what `elf` doesn't understand."""
    with contextlib.suppress(elf.Unfit):
        return None, elf.load(code, symbols)
    builder = llvm().JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol in symbols:
        builder.export_symbol(symbol)
    library = builder.link(_jit(), key)
    return library, {symbol: library[symbol] for symbol in symbols}


def functions(text: str, symbols: Sequence[str]) -> tuple[Any, dict[str, int]]:
    """The same for LLVM code of our own, for this CPU. Compiled where the cache doesn't hold it, which costs time only."""
    options = {"opt": 3, "reloc": "pic", "codemodel": "default"}
    key = key_of(f"; {options}\n{text}")
    code = None
    with contextlib.suppress(OSError):
        code = fetch(key)
    if code is None:
        binding, here = llvm(), target()
        machine = binding.Target.from_triple(here.triple).create_target_machine(cpu=here.cpu, features=here.features, **options)
        module = binding.parse_assembly(text)
        module.verify()
        code = bytes(machine.emit_object(module))
        with contextlib.suppress(OSError):
            store(key, code)
    return placed(key, code, symbols)


def load(texts: Sequence[KernelText]) -> dict[str, Callable[..., None]]:
    """Kernels by name. Raises Missing for those the cache doesn't hold (verified, for this machine).

    The object is found by the text itself: what a plan says about its key is not believed.
    """
    found: dict[str, Callable[..., None]] = {}
    missing: list[str] = []
    for text in texts:
        key = key_of(text.text)
        if key in _linked:
            found[text.name] = _linked[key][1]
            continue
        code = fetch(key)
        if code is None:
            missing.append(text.name)
        else:
            found[text.name] = link(key, code, symbol_of(text.text))
    if missing:
        raise Missing(missing)
    return found
