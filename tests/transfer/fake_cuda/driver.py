"""The Python interface of the fake driver: its controls for all tests, and the driver's calls for tests
of the fake driver itself.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    byref,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_longlong,
    c_size_t,
    c_ubyte,
    c_ulonglong,
    c_void_p,
)
from ctypes import c_uint as c_unsigned
from ctypes import c_uint64 as c_address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MAX_PAIRS = 480


class Plane(ctypes.Structure):
    _fields_ = (("base", c_address), ("stride", c_int64))


class Pair(ctypes.Structure):
    _fields_ = (("src", c_int32), ("dst", c_int32))


class Params(ctypes.Structure):
    """The parameters of the kernels in cuda/block_copy.cu."""

    _fields_ = (
        ("src_planes", c_address),
        ("dst_planes", c_address),
        ("nbytes", c_int64),
        ("chunk_bytes", c_int64),
        ("device_pairs", c_address),
        ("src_blocks", c_int64),
        ("dst_blocks", c_int64),
        ("status", c_address),
        ("num_planes", c_int32),
        ("num_pairs", c_int32),
        ("num_chunks", c_int32),
        ("reserved", c_int32),
        ("pairs", Pair * MAX_PAIRS),
    )


class CopyAttributes(ctypes.Structure):
    """The driver's CUmemcpyAttributes."""

    _fields_ = (
        ("order", c_int),
        ("src_type", c_int),
        ("src_id", c_int),
        ("dst_type", c_int),
        ("dst_id", c_int),
        ("flags", c_unsigned),
    )


_CONTROLS: dict[str, tuple[Any, Sequence[Any]]] = {
    "fake_clear": (None, ()),
    "fake_reset": (None, ()),
    "fake_restart": (None, ()),
    "fake_set": (c_int, (c_char_p, c_longlong)),
    "fake_get": (c_longlong, (c_char_p,)),
    "fake_count": (c_longlong, (c_char_p,)),
    "fake_violation": (c_char_p, ()),
    "fake_fault": (c_char_p, ()),
    "fake_run_all": (None, ()),
    "fake_run_one": (c_int, ()),
    "fake_run_pick": (c_int, (c_ulonglong,)),
    "fake_mark_pageable": (c_int, (c_void_p, c_size_t)),
    "fake_mark_device": (c_int, (c_void_p, c_size_t)),
    "fake_unmark": (c_int, (c_void_p,)),
    "fake_watch": (c_int, (c_void_p, c_size_t)),
    "fake_unwatch": (c_int, (c_void_p,)),
}

_CALLS: dict[str, Sequence[Any]] = {
    "cuInit": (c_unsigned,),
    "cuDriverGetVersion": (c_void_p,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
    "cuGetProcAddress_v2": (c_char_p, c_void_p, c_int, c_address, c_void_p),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_void_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (c_void_p, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxGetCurrent": (c_void_p,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuCtxGetStreamPriorityRange": (c_void_p, c_void_p),
    "cuLibraryLoadData": (c_void_p, c_void_p, c_void_p, c_void_p, c_unsigned, c_void_p, c_void_p, c_unsigned),
    "cuLibraryUnload": (c_void_p,),
    "cuLibraryGetKernel": (c_void_p, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *[c_unsigned] * 7, c_void_p, c_void_p, c_void_p),
    "cuMemcpyAsync": (c_address, c_address, c_size_t, c_void_p),
    "cuMemcpyHtoD_v2": (c_address, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_address, c_size_t),
    "cuMemcpyBatchAsync": (*[c_void_p] * 3, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_address,),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_unsigned),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_unsigned),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (c_void_p, c_void_p, c_unsigned),
    "cuPointerGetAttribute": (c_void_p, c_int, c_address),
    "cuStreamCreateWithPriority": (c_void_p, c_unsigned, c_int),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_unsigned),
    "cuStreamIsCapturing": (c_void_p, c_void_p),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuEventCreate": (c_void_p, c_unsigned),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuMemsetD8Async": (c_address, c_ubyte, c_size_t, c_void_p),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuThreadExchangeStreamCaptureMode": (c_void_p,),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
}


class FakeCuda:
    """The controls of the fake driver. A process has only one driver, so several of these objects may
    share one library.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _CONTROLS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments

    def clear(self) -> None:
        """Run delayed work, reset settings to those of the environment and counters to zero, and clear
        errors. Keep all objects.
        """
        self.library.fake_clear()

    def reset(self) -> None:
        """Do the same as ``clear``, but drop delayed work and all objects except contexts and
        libraries.
        """
        self.library.fake_reset()

    def restart(self) -> None:
        """Return to the state of a process that has not called cuInit yet."""
        self.library.fake_restart()

    def set(self, **settings: int) -> None:
        for key, value in settings.items():
            if self.library.fake_set(key.encode(), value) != 0:
                raise KeyError(key)

    def get(self, key: str) -> int:
        return int(self.library.fake_get(key.encode()))

    def count(self, key: str) -> int:
        count = int(self.library.fake_count(key.encode()))
        if count < 0:
            raise KeyError(key)
        return count

    @property
    def violation(self) -> str:
        """The first violation of the driver's rules since the last reset, or "" if there was none."""
        return str(self.library.fake_violation().decode())

    @property
    def fault(self) -> str:
        """The fault that stopped the device, or "" if there was none."""
        return str(self.library.fake_fault().decode())

    def run_all(self) -> None:
        self.library.fake_run_all()

    def run_one(self) -> bool:
        return bool(self.library.fake_run_one())

    def run_pick(self, choice: int) -> int:
        """Run one of the operations that may run now. Return how many could have been chosen."""
        return int(self.library.fake_run_pick(choice))

    def mark_pageable(self, address: int, nbytes: int) -> None:
        assert self.library.fake_mark_pageable(address, nbytes) == 0

    def mark_device(self, address: int, nbytes: int) -> None:
        assert self.library.fake_mark_device(address, nbytes) == 0

    def unmark(self, address: int) -> None:
        assert self.library.fake_unmark(address) == 0

    def watch(self, address: int, nbytes: int) -> None:
        assert self.library.fake_watch(address, nbytes) == 0

    def unwatch(self, address: int) -> None:
        assert self.library.fake_unwatch(address) == 0


class Driver(FakeCuda):
    """Calls of the driver itself, with typed arguments. They return the driver's result codes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name, arguments in _CALLS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = c_int, arguments

    def call(self, name: str, *arguments: object) -> int:
        return int(getattr(self.library, name)(*arguments))

    def get_value(self, kind: Any, name: str, *arguments: object) -> Any:
        """Return the value that a call writes through its first argument. Raise an error if the call
        fails.
        """
        value = kind()
        result = self.call(name, byref(value), *arguments)
        assert result == 0, f"{name}: {result}; {self.fault or self.violation}"
        return value.value

    def initialise(self, image: bytes) -> None:
        """Initialise the driver as a program does. Make a context current in this thread, and load
        ``kernels``, by their width in bytes.
        """
        assert self.call("cuInit", 0) == 0
        self.context = self.get_value(c_void_p, "cuDevicePrimaryCtxRetain", 0)
        assert self.call("cuCtxSetCurrent", self.context) == 0
        self.module = self.get_value(c_void_p, "cuLibraryLoadData", image, None, None, 0, None, None, 0)
        self.kernels = {
            width: self.get_value(
                c_void_p, "cuLibraryGetKernel", self.module, f"kvpool_copy_{width}".encode()
            )
            for width in (16, 8, 4, 1)
        }

    def stream(self, *, blocking: bool = False) -> int:
        return int(self.get_value(c_void_p, "cuStreamCreateWithPriority", 0 if blocking else 1, 0))

    def event(self, flags: int = 0) -> int:
        return int(self.get_value(c_void_p, "cuEventCreate", flags))

    def alloc(self, nbytes: int) -> int:
        return int(self.get_value(c_address, "cuMemAlloc_v2", nbytes))

    def host_alloc(self, nbytes: int) -> int:
        return int(self.get_value(c_void_p, "cuMemHostAlloc", nbytes, 1))

    def put(self, data: bytes) -> int:
        """Return the address of new device memory that contains these bytes."""
        address = self.alloc(len(data))
        ctypes.memmove(address, data, len(data))
        return address

    def planes(self, planes: Iterable[tuple[int, int]]) -> int:
        """Return the address of a table of planes in device memory. Each plane is a base address and a
        stride.
        """
        return self.put(b"".join(bytes(Plane(base, stride)) for base, stride in planes))

    def params(self, src: int, dst: int, pairs: Sequence[tuple[int, int]], **fields: int) -> Params:
        """Return the parameters of a launch. ``nbytes`` is required, and other fields are passed by
        name. Tables of planes and pairs are passed by value.
        """
        params = Params(src_planes=src, dst_planes=dst, num_pairs=len(pairs), num_planes=1, chunk_bytes=16384)
        params.src_blocks = params.dst_blocks = 1 << 40
        for name, value in fields.items():
            setattr(params, name, value)
        params.num_chunks = -(-params.nbytes // params.chunk_bytes)
        for index, (from_block, to_block) in enumerate(pairs):
            params.pairs[index] = Pair(from_block, to_block)
        return params

    def launch(self, width: int, params: Params, stream: int, *, grid: int = 8, block: int = 128) -> int:
        pointer = (c_void_p * 1)(ctypes.addressof(params))
        return self.call(
            "cuLaunchKernel", self.kernels[width], grid, 1, 1, block, 1, 1, 0, stream, pointer, None
        )

    def batch(
        self,
        copies: Sequence[tuple[int, int, int]],
        stream: int,
        *,
        orders: Sequence[int] = (1,),
        firsts: Sequence[int] = (0,),
    ) -> tuple[int, int]:
        """Call cuMemcpyBatchAsync with copies (dst, src, bytes). Return the result, and the index of
        the copy that failed.
        """
        count = len(copies)
        dsts, srcs = (
            (c_address * count)(*(c[0] for c in copies)),
            (c_address * count)(*(c[1] for c in copies)),
        )
        sizes, attributes = (c_size_t * count)(*(c[2] for c in copies)), (CopyAttributes * len(orders))()
        for attribute, order in zip(attributes, orders, strict=True):
            attribute.order = order
        first_copies, failed = (c_size_t * len(firsts))(*firsts), c_size_t()
        arguments = (dsts, srcs, sizes, count, attributes, first_copies, len(orders), byref(failed), stream)
        return self.call("cuMemcpyBatchAsync", *arguments), failed.value

    def capture_status(self, stream: int) -> int:
        status = c_int()
        assert self.call("cuStreamIsCapturing", stream, byref(status)) == 0
        return status.value

    def end_capture(self, stream: int) -> tuple[int, int | None]:
        """End a capture. Return the result and the graph."""
        graph = c_void_p()
        return self.call("cuStreamEndCapture", stream, byref(graph)), graph.value

    def elapsed(self, start: int, end: int) -> float:
        return float(self.get_value(c_float, "cuEventElapsedTime", start, end))


__all__ = ["CopyAttributes", "Driver", "FakeCuda", "Pair", "Params", "Plane"]
