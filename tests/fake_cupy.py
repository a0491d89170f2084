"""As much of CuPy and torch as `runtime.cuda` asks for, with the host's memory; kernels are compiled by g++.

`Stream.from_external`, `ndarray`, `Module` and the rest take what CuPy's take, so that a call of something else fails here.
"""
from __future__ import annotations

import ctypes
import types

import numpy as np
from cuda_host import LAUNCH, library
from pipec.runtime.blocks import address_of, view
from pipec.runtime.cuda import KERNEL


class Device:
    def __init__(self, number):
        self.number, self.attributes = number, {"MultiProcessorCount": 4}
        self.compute_capability = "90"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Event:
    def synchronize(self):
        pass


class Stream:
    current: list = []  # noqa: RUF012

    def __init__(self, non_blocking=False, ptr=0):
        self.ptr = ptr

    @classmethod
    def from_external(cls, foreign):
        version, pointer = foreign.__cuda_stream__()
        assert version == 0
        return cls(ptr=pointer)

    def __enter__(self):
        Stream.current.append(self)
        return self

    def __exit__(self, *_):
        Stream.current.pop()

    def record(self, event=None):
        return event or Event()

    def wait_event(self, event):
        assert isinstance(event, Event)

    def synchronize(self):
        pass


class Memory:
    def __init__(self, size):
        self.array = np.full(size, 0xDD, np.uint8)


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, address_of(mem.array) + offset
        self.offset = offset

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.offset + offset)


class ndarray:
    def __init__(self, shape, dtype=float, memptr=None):
        self.shape, self.dtype, self.memptr = shape, np.dtype(dtype), memptr

    def get(self):
        return np.array(view(self.memptr.ptr, self.shape, self.dtype))


def compile_using_nvrtc(source, options=(), arch=None):
    """Like CuPy's, which keeps nothing and adds no option that changes values."""
    assert "--fmad=false" in options and "--ftz=false" in options and arch is None
    COMPILED.append(source)
    return source.encode(), {}


COMPILED = []


class Module:
    def load(self, code):
        self.found = library([code.decode().split(KERNEL)[1]])

    def get_function(self, name):
        address = ctypes.cast(self.found[f"{name}_0"], ctypes.c_void_p).value
        launch = LAUNCH(("pipec_launch", self.found))

        def call(grid, block, args):
            assert grid[2] == 1 and block[1:] == (1, 1) and all(type(a) is np.int64 for a in args)
            launch(address, grid[0], grid[1], block[0], False, *map(int, args))

        return call


def _copy(target, source, size, kind, stream):
    assert kind in (1, 2, 3) and isinstance(stream, int)
    ctypes.memmove(target, source, size)


def cupy(devices=1):
    runtime = types.SimpleNamespace(getDeviceCount=lambda: devices, getDevice=lambda: 0, memcpyAsync=_copy)
    cuda = types.SimpleNamespace(
        runtime=runtime, compiler=types.SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc),
        function=types.SimpleNamespace(Module=Module),
        Device=Device, Stream=Stream, Event=Event, Memory=Memory, MemoryPointer=MemoryPointer,
        alloc=lambda size: MemoryPointer(Memory(size), 0), alloc_pinned_memory=bytearray,
        get_current_stream=lambda: Stream.current[-1] if Stream.current else Stream())
    return types.SimpleNamespace(cuda=cuda, ndarray=ndarray, __version__="14.2.0")


class Torch:
    """torch whose GPU is the CPU; `stream` is what its current stream is called."""

    def __init__(self, torch):
        self.torch, self.stream = torch, 0
        self.cuda = types.SimpleNamespace(
            is_available=lambda: True, current_device=lambda: 0,
            current_stream=lambda number: types.SimpleNamespace(cuda_stream=self.stream))

    def __getattr__(self, name):
        return getattr(self.torch, name)

    def empty(self, size, dtype, device):
        assert device.startswith("cuda:")
        return self.torch.full((size,), 0xDD, dtype=dtype)
