"""A CUDA device through CuPy, which is imported here and nowhere else; where tensors are asked for, torch's current stream and
torch's memory.
"""
from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import caches, objects
from .blocks import DTYPES, address_of
from .errors import DataError
from .landing import NAMES, Placed
from .plan import DeviceKernel

OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")   # the reference's bits
KERNEL = "\n// --- kernel ---\n"
TORCH = {"u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32", "i32": "int32", "u64": "uint64",
         "i64": "int64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "bool": "bool"}
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3


NEEDS = ("`device=\"cuda\"` needs an NVIDIA GPU, its driver, CuPy and, for tensors, a torch built for CUDA; "
         "without `device` batches are made on the CPU")
LIBRARY = ("its FFT is in the package nvidia-cufft-cu12, for CUDA 13 nvidia-cufft; `place={\"field\": \"cpu\"}` makes a field "
           "on the CPU")
NVRTC = "CUDA's run-time compiler is in the package nvidia-cuda-nvrtc-cu12, for CUDA 13 nvidia-cuda-nvrtc"


def none_there(reason: str, note: str = NEEDS) -> DataError:
    return DataError("E0850", f"no CUDA device: {reason}", notes=(note,))


@dataclass(frozen=True)
class Bytes:
    """Memory of CuPy's."""

    pointer: Any

    @property
    def address(self) -> int:
        return int(self.pointer.ptr)


@dataclass(frozen=True)
class Tensor:
    """Memory of torch's: what a loop gets is a tensor like its own, also for `record_stream` and the memory that torch counts."""

    tensor: Any

    @property
    def address(self) -> int:
        return int(self.tensor.data_ptr())


@dataclass(frozen=True)
class Point:
    event: Any

    def wait(self) -> None:
        self.event.synchronize()


@dataclass(frozen=True)
class Foreign:
    """A stream that another library made."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


class Cuda:
    """One GPU. `as_`: "torch" or "cupy", what arrays become."""

    def __init__(self, name: str, as_: str):
        """`name`: "cuda" or "cuda:N". Raises DataError E0850 where there is no such device."""
        match = re.fullmatch(r"cuda(?::(\d+))?", name)
        if match is None:
            raise ValueError(f'device={name!r}: it is "cpu", "cuda" or "cuda:N"')
        self.cupy = _cupy()
        self.torch = _torch() if as_ == "torch" else None
        number = int(match[1]) if match[1] else self._default()
        if number >= self.cupy.cuda.runtime.getDeviceCount():
            raise none_there(f"there is no GPU number {number}")
        self.number, self.as_ = number, as_
        self.last: Any = None      # torch's stream of the batch before, as CuPy's
        with self.cupy.cuda.Device(number) as device:
            self.processors = int(device.attributes["MultiProcessorCount"])
            self.uploads = self.cupy.cuda.Stream(non_blocking=True)

    def _default(self) -> int:
        return int(self.torch.cuda.current_device() if self.torch is not None else self.cupy.cuda.runtime.getDevice())

    @contextmanager
    def current(self) -> Iterator[None]:
        with self.cupy.cuda.Device(self.number):
            if self.torch is None:
                yield
                return
            stream, last = self._shared_stream(self.torch.cuda.current_stream(self.number).cuda_stream), self.last
            if last is not None and last.ptr != stream.ptr:
                stream.wait_event(last.record())      # rows of a batch that the loop began in another stream
            self.last = stream
            with stream:
                yield

    def _shared_stream(self, pointer: int) -> Any:
        """torch's stream as CuPy's."""
        made = getattr(self.cupy.cuda.Stream, "from_external", None)   # since CuPy 14
        return self.cupy.cuda.ExternalStream(pointer, self.number) if made is None else made(Foreign(pointer))

    @property
    def stream(self) -> Any:
        return self.cupy.cuda.get_current_stream()

    def pinned(self, size: int) -> NDArray[np.uint8]:
        return np.frombuffer(self.cupy.cuda.alloc_pinned_memory(max(1, size)), np.uint8, size)

    def lasting(self, size: int) -> Bytes:
        return Bytes(self.cupy.cuda.MemoryPointer(self.cupy.cuda.Memory(max(1, size)), 0))

    def memory(self, size: int) -> Bytes | Tensor:
        if self.torch is None:
            return Bytes(self.cupy.cuda.alloc(max(1, size)))
        return Tensor(self.torch.empty(max(1, size), dtype=self.torch.uint8, device=f"cuda:{self.number}"))

    def upload(self, target: int, source: NDArray[np.uint8]) -> None:
        self._copy(target, address_of(source), len(source), TO_DEVICE, self.uploads)

    def await_uploads(self) -> None:
        self.stream.wait_event(self.uploads.record())

    def send(self, target: int, source: NDArray[np.uint8]) -> None:
        self._copy(target, address_of(source), len(source), TO_DEVICE, self.stream)

    def copy(self, target: int, source: int, size: int) -> None:
        self._copy(target, source, size, ON_DEVICE, self.stream)

    def fetch(self, target: NDArray[Any], source: int) -> None:
        self._copy(address_of(target), source, target.nbytes, TO_HOST, self.stream)
        self.stream.synchronize()

    def _copy(self, target: int, source: int, size: int, kind: int, stream: Any) -> None:
        if size:
            self.cupy.cuda.runtime.memcpyAsync(target, source, size, kind, stream.ptr)

    def mark(self) -> Point:
        return Point(self.stream.record())

    def build(self, kernel: DeviceKernel) -> Sequence[Any]:
        """Compiled by NVRTC for this GPU, and kept. Not by CuPy's RawModule, which adds `-ftz=true` behind all options: what is
        too small for f32's full precision would become 0."""
        text, arch = device_text(kernel), self.cupy.cuda.Device(self.number).compute_capability
        made = "\0".join(("cuda", arch, self.cupy.__version__, *OPTIONS, text))
        key = hashlib.blake2b(made.encode(), digest_size=20).hexdigest()
        code = objects.fetch(key)
        if code is None:
            code = self._compiled(text)
            objects.store(key, code)
            caches.bound()
        module = self.cupy.cuda.function.Module()
        module.load(code)
        return [module.get_function(symbol) for symbol, _ in kernel.launches]

    def _compiled(self, text: str) -> bytes:
        try:
            code, _ = self.cupy.cuda.compiler.compile_using_nvrtc(text, options=OPTIONS)
        except Exception as error:   # CuPy's own classes, or those of the library it loads
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise none_there(f"kernels can't be compiled ({reason})", NVRTC) from None
        return code if isinstance(code, bytes) else str(code).encode()       # PTX, for a GPU that NVRTC doesn't know

    def launch(self, function: Any, blocks: tuple[int, int], threads: int, args: tuple[int, int, int, int]) -> None:
        function((*blocks, 1), (threads, 1, 1), tuple(np.int64(a) for a in args))

    def call(self, function: Any, args: Sequence[Any]) -> Placed:
        seen = [self._seen(a) if isinstance(a, Placed) else a for a in args]
        try:
            made = self.cupy.ascontiguousarray(function(self.cupy, *seen))
        except (ImportError, OSError) as error:
            raise none_there(f"a library of CUDA's can't be loaded ({str(error)[:200]})", LIBRARY) from None
        memory: Bytes | Tensor = Bytes(made.data)
        if self.torch is not None:
            memory = self.memory(made.nbytes)
            self.copy(memory.address, int(made.data.ptr), made.nbytes)
        return Placed(memory, memory.address, tuple(made.shape), NAMES[np.dtype(made.dtype)])

    def _seen(self, value: Placed) -> Any:
        """CuPy's array over memory that is held elsewhere until the call is made."""
        unowned = self.cupy.cuda.UnownedMemory(value.address, max(1, value.size), value)
        return self.cupy.ndarray(value.shape, DTYPES[value.dtype], memptr=self.cupy.cuda.MemoryPointer(unowned, 0))

    def array(self, memory: Any, address: int, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor or CuPy array over this memory; it keeps it."""
        start = address - memory.address
        if isinstance(memory, Tensor):
            size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
            return memory.tensor[start : start + size].view(getattr(self.torch, TORCH[dtype])).view(shape)
        held = np.dtype(np.int16) if dtype == "bf16" else DTYPES[dtype]    # CuPy has no bf16
        return self.cupy.ndarray(shape, held, memptr=memory.pointer + start)


def device_text(kernel: DeviceKernel) -> str:
    """A kernel's text with the names that it uses before it."""
    return (Path(__file__).parent.parent / "kernels" / "cuda.h").read_text(encoding="utf-8") + KERNEL + kernel.text


def _cupy() -> Any:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        there = importlib.util.find_spec("cupy") is not None
        reason = f"CuPy isn't usable ({str(error)[:100]})" if there else "CuPy isn't there, install pipec[cuda]"
        raise none_there(reason) from None
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:   # CuPy's own class, which is only there with CuPy
        raise none_there(f"the driver says {str(error)[:100]}") from None
    if not found:
        raise none_there("the driver finds none")
    return cupy


def _torch() -> Any:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise none_there("torch finds none; its build may be for CPUs")
    return torch
