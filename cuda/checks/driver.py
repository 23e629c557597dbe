"""Calls the CUDA driver through ctypes, with or without torch: memory, streams, events and graphs.

The module uses the primary context, as torch and kvpool do. So all three share memory and streams.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Attributes of a device that affect speed. Each of our names has the driver's number of the attribute.
ATTRIBUTES = {
    "multiprocessors": 16,
    "copy engines": 40,
    "compute capability, major": 75,
    "compute capability, minor": 76,
    "reads pageable memory": 88,
    "registered memory has the host's addresses": 91,
    "reads pageable memory through the host's tables": 100,
    "NUMA node": 134,
}

#: Signatures of the driver's functions, as in cuda.h. Device addresses are numbers, and every other
#: large argument is a handle.
_CALLS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetProcAddress_v2": (c_char_p, c_void_p, c_int, c_uint64, c_void_p),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_void_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (c_void_p, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuStreamCreateWithPriority": (c_void_p, c_uint, c_int),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
}

_NON_BLOCKING = 1
_PORTABLE_AND_MAPPED = 3


class DriverError(RuntimeError):
    """A function of the driver returned an error."""


class Driver:
    """One device of the driver. The constructor makes the device's context current in the calling thread."""

    def __init__(self, ordinal: int) -> None:
        self.path = os.environ.get("KVPOOL_LIBCUDA", "libcuda.so.1")
        self.library = ctypes.CDLL(self.path)
        for name, arguments in _CALLS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = c_int, arguments
        self.call("cuInit", 0)
        self.version = int(self.get(c_int, "cuDriverGetVersion"))
        self.device = int(self.get(c_int, "cuDeviceGet", ordinal))
        self.name = self._text("cuDeviceGetName")
        self.pci = self._text("cuDeviceGetPCIBusId")
        self.context = self.get(c_void_p, "cuDevicePrimaryCtxRetain", self.device)
        self.enter()

    def enter(self) -> None:
        """Make the device's context current in this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            DriverError: The function failed.
        """
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            text = c_char_p()
            self.library.cuGetErrorName(code, byref(text))
            raise DriverError(f"{name}: {(text.value or b'an error without a name').decode()} ({code})")

    def get(self, kind: Any, name: str, *arguments: object) -> Any:
        """Return the value that a function of the driver writes through its first argument."""
        value = kind()
        self.call(name, byref(value), *arguments)
        return value.value

    def _text(self, name: str) -> str:
        text = ctypes.create_string_buffer(256)
        self.call(name, text, 256, self.device)
        return text.value.decode()

    def has(self, name: str) -> bool:
        """Return whether the driver's library has a function of this name."""
        return hasattr(self.library, name)

    @property
    def has_batch(self) -> bool:
        """Whether the driver has ``cuMemcpyBatchAsync`` with the parameters of version 12.8."""
        found, status = c_void_p(), c_int()
        name = b"cuMemcpyBatchAsync"
        code = self.library.cuGetProcAddress_v2(name, byref(found), 12_080, 0, byref(status))
        return code == 0 and bool(found.value)

    @property
    def is_fake(self) -> bool:
        """Whether the driver is the fake driver of the tests, which runs kernels on the CPU."""
        return self.has("fake_violation")

    @property
    def violation(self) -> str:
        """The first violation of the driver's rules that the tests' fake driver found, or ""."""
        function = self.library.fake_violation
        function.restype = c_char_p
        return (function() or b"").decode()

    def attribute(self, name: str) -> int:
        """Return the value of one of ``ATTRIBUTES``, or 0 if the driver does not know the attribute."""
        try:
            return int(self.get(c_int, "cuDeviceGetAttribute", ATTRIBUTES[name], self.device))
        except DriverError:
            return 0

    @property
    def total_memory(self) -> int:
        """Number of bytes of the device's memory."""
        return int(self.get(c_size_t, "cuDeviceTotalMem_v2", self.device))

    @property
    def free_memory(self) -> int:
        """Number of free bytes of the device's memory, or all bytes if the driver does not report it."""
        if not self.has("cuMemGetInfo_v2"):
            return self.total_memory
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def alloc(self, nbytes: int) -> int:
        """Allocate memory on the device."""
        return int(self.get(c_uint64, "cuMemAlloc_v2", nbytes))

    def free(self, address: int) -> None:
        """Free memory of the device."""
        self.call("cuMemFree_v2", address)

    def host_alloc(self, nbytes: int) -> int:
        """Allocate page-locked host memory."""
        return int(self.get(c_void_p, "cuMemHostAlloc", nbytes, _PORTABLE_AND_MAPPED))

    def host_free(self, address: int) -> None:
        """Free page-locked memory."""
        self.call("cuMemFreeHost", address)

    def put(self, address: int, data: bytes) -> None:
        """Copy bytes to the device, and wait.

        Without the wait the call may return before bytes from pageable memory have arrived.
        """
        self.call("cuMemcpyHtoD_v2", address, data, len(data))
        self.call("cuCtxSynchronize")

    def take(self, address: int, nbytes: int) -> bytes:
        """Copy bytes from the device."""
        buffer = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", buffer, address, nbytes)
        return buffer.raw

    def fill(self, address: int, nbytes: int, tile: bytes) -> None:
        """Fill memory of the device with repeated copies of ``tile``."""
        done = min(len(tile), nbytes)
        self.put(address, tile[:done])
        while done < nbytes:
            part = min(done, nbytes - done)
            self.copy(address + done, address, part, 0)
            done += part
        self.call("cuCtxSynchronize")

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """Put a copy into a stream's queue."""
        self.call("cuMemcpyAsync", dst, src, nbytes, stream)

    def stream(self) -> int:
        """Create a stream that does not wait for the legacy default stream."""
        return int(self.get(c_void_p, "cuStreamCreateWithPriority", _NON_BLOCKING, 0))

    def close_stream(self, stream: int) -> None:
        """Destroy a stream after its work has ended."""
        self.synchronize(stream)
        self.call("cuStreamDestroy_v2", stream)

    def synchronize(self, stream: int) -> None:
        """Wait until the work of a stream has ended."""
        self.call("cuStreamSynchronize", stream)

    def seconds(self, work: Callable[[], object], stream: int) -> float:
        """Return the number of seconds that the work takes on a stream, measured by the device's clock."""
        start, end = self.get(c_void_p, "cuEventCreate", 0), self.get(c_void_p, "cuEventCreate", 0)
        self.call("cuEventRecord", start, stream)
        work()
        self.call("cuEventRecord", end, stream)
        self.call("cuEventSynchronize", end)
        elapsed = float(self.get(c_float, "cuEventElapsedTime", start, end)) / 1e3
        for event in (start, end):
            self.call("cuEventDestroy_v2", event)
        return elapsed
