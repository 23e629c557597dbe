"""Tests of the fake CUDA driver itself: the device, its kernels and its memory."""

from __future__ import annotations

import ctypes
import random
import threading
from ctypes import c_int, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING

import pytest

from tests.transfer.fake_cuda.helpers import (
    ALREADY_REGISTERED,
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    MISALIGNED,
    NOT_INITIALIZED,
    NOT_REGISTERED,
    OUT_OF_MEMORY,
    Store,
    copy_params,
    fresh_driver,
    pattern,
    read,
    take_violation,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.transfer.fake_cuda.driver import Driver


@pytest.fixture
def bare(library: Path) -> Iterator[Driver]:
    yield from fresh_driver(library)


def test_nothing_works_before_cu_init_or_without_a_context(bare: Driver) -> None:
    value = c_uint64()
    assert bare.call("cuDeviceGet", ctypes.byref(value), 0) == NOT_INITIALIZED
    assert bare.call("cuMemAlloc_v2", ctypes.byref(value), 16) == NOT_INITIALIZED
    assert bare.call("cuInit", 1) == INVALID_VALUE
    assert bare.call("cuInit", 0) == 0
    assert bare.call("cuMemAlloc_v2", ctypes.byref(value), 16) == INVALID_CONTEXT
    context = bare.get_value(c_void_p, "cuDevicePrimaryCtxRetain", 0)
    assert bare.call("cuMemAlloc_v2", ctypes.byref(value), 16) == INVALID_CONTEXT
    assert bare.call("cuCtxSetCurrent", context + 16) == INVALID_CONTEXT
    assert bare.call("cuCtxSetCurrent", context) == 0
    assert bare.call("cuMemAlloc_v2", ctypes.byref(value), 16) == 0
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(bare.call("cuMemFree_v2", value.value)))
    thread.start()
    thread.join()
    assert results == [INVALID_CONTEXT]  # contexts are current in only one thread


def launch_random(cuda: Driver, width: int, rng: random.Random, *, device_pairs: bool, reverse: bool) -> None:
    """Makes one launch between two stores with random sizes. Compares the result with copies that are
    made in Python.
    """
    blocks, num_planes = rng.randint(2, 9), rng.randint(1, 5)
    nbytes = width * rng.randint(1, 3000 // width)
    cuda.set(reverse=reverse)
    stores: list[list[tuple[int, int]]] = []
    for seed in range(2):
        stride = nbytes + width * rng.randint(0, 3)
        size = stride * blocks
        stores.append([(cuda.put(pattern(size, seed + 10 * plane)), stride) for plane in range(num_planes)])
    sizes = [[stride * blocks for _, stride in planes] for planes in stores]
    expected = [bytearray(read(base, size)) for (base, _), size in zip(stores[1], sizes[1], strict=True)]
    targets = rng.sample(range(blocks), rng.randint(1, blocks))
    pairs = [(rng.randrange(blocks), target) for target in targets]
    if device_pairs:
        pairs += [(-1, 0), (0, -1), (-1, -1)]
    for (src, src_stride), (_, dst_stride), target in zip(*stores, expected, strict=True):
        for from_block, to_block in pairs:
            if min(from_block, to_block) >= 0:
                begin = to_block * dst_stride
                target[begin : begin + nbytes] = read(src + from_block * src_stride, nbytes)
    params = cuda.params(
        cuda.planes(stores[0]),
        cuda.planes(stores[1]),
        [] if device_pairs else pairs,
        nbytes=nbytes,
        num_planes=num_planes,
        chunk_bytes=16 * rng.randint(1, 64),
        src_blocks=blocks,
        dst_blocks=blocks,
    )
    if device_pairs:
        params.num_pairs = len(pairs)
        params.device_pairs = cuda.put(
            b"".join(n.to_bytes(8, "little", signed=True) for pair in pairs for n in pair)
        )
    assert (
        cuda.launch(width, params, cuda.stream(), grid=rng.randint(1, 40), block=32 * rng.randint(1, 16)) == 0
    )
    assert cuda.fault == ""
    assert [
        bytearray(read(base, size)) for (base, _), size in zip(stores[1], sizes[1], strict=True)
    ] == expected


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("device_pairs", [False, True])
@pytest.mark.parametrize("width", [16, 8, 4, 1])
def test_kernels_copy_what_python_copies(cuda: Driver, width: int, device_pairs: bool, reverse: bool) -> None:
    rng = random.Random(width * 4 + device_pairs * 2 + reverse)
    for _ in range(12):
        launch_random(cuda, width, rng, device_pairs=device_pairs, reverse=reverse)


def test_blocks_copied_onto_themselves_stay(cuda: Driver) -> None:
    store = Store(cuda, 4, 4096)
    before = [store.block(index) for index in range(4)]
    assert cuda.launch(16, copy_params(cuda, store, store, [(1, 1), (1, 1), (2, 2)]), cuda.stream()) == 0
    assert [store.block(index) for index in range(4)] == before


@pytest.mark.parametrize("pairs", [[(0, 1), (1, 2)], [(0, 2), (1, 2)], [(0, 1), (1, 1)]])
def test_dependent_pairs_in_one_launch_are_a_violation(cuda: Driver, pairs: list[tuple[int, int]]) -> None:
    store = Store(cuda, 4, 64)
    assert cuda.launch(16, copy_params(cuda, store, store, pairs), cuda.stream()) == 0
    assert "kernel writes" in take_violation(cuda)


@pytest.mark.parametrize(
    "fields",
    [
        {"nbytes": 40},
        {"chunk_bytes": 24},
        {"num_chunks": 2},
        {"num_pairs": 481},
        {"src_planes": 0},
        {"reserved": 1},
    ],
)
def test_wrong_parameters_are_refused(cuda: Driver, fields: dict[str, int]) -> None:
    src, dst = Store(cuda, 4, 64), Store(cuda, 4, 64)
    params = copy_params(cuda, src, dst, [(0, 0)])
    for name, value in fields.items():
        setattr(params, name, value)
    assert cuda.launch(16, params, cuda.stream()) == INVALID_VALUE
    assert "launched wrongly" in take_violation(cuda)


def test_launches_of_no_or_too_many_threads_are_refused(cuda: Driver) -> None:
    params = copy_params(cuda, Store(cuda, 1, 64), Store(cuda, 1, 64), [(0, 0)])
    stream = cuda.stream()
    assert cuda.launch(16, params, stream, grid=0) == INVALID_VALUE
    assert cuda.launch(16, params, stream, block=2048) == INVALID_VALUE
    assert cuda.launch(16, params, stream, block=544) == 701
    assert cuda.launch(16, params, stream + 16) == INVALID_HANDLE
    assert cuda.count("launches") == 0


def test_misaligned_accesses_stop_the_device(cuda: Driver) -> None:
    src, dst = Store(cuda, 4, 64), Store(cuda, 4, 64)
    src.table = cuda.planes([(src.base + 4, 64)])
    assert cuda.launch(16, copy_params(cuda, src, dst, [(0, 0)]), cuda.stream()) == 0  # told by the next call
    assert cuda.call("cuCtxSynchronize") == MISALIGNED
    assert "load from: 64 bytes" in cuda.fault


def test_guards_freed_memory_and_wrong_pointers(cuda: Driver) -> None:
    address = cuda.alloc(100)
    assert cuda.call("cuMemFree_v2", address + 4) == INVALID_VALUE
    ctypes.memset(address + 100, 0, 1)
    assert cuda.call("cuMemFree_v2", address) == 0
    assert cuda.call("cuMemFree_v2", address) == INVALID_VALUE
    assert "written around" in take_violation(cuda)
    src, dst = Store(cuda, 2, 64), Store(cuda, 2, 64)
    assert (
        cuda.call("cuMemcpyHtoD_v2", dst.base + 64, read(src.base, 65), 65) == INVALID_VALUE
    )  # beyond the end
    assert cuda.violation == ""
    assert cuda.call("cuMemcpyHtoD_v2", dst.base + 128, read(src.base, 1), 1) == INVALID_VALUE
    assert "around an allocation" in take_violation(cuda)
    src, dst = Store(cuda, 2, 64), Store(cuda, 2, 64)
    assert cuda.call("cuMemFree_v2", src.base) == 0
    assert cuda.launch(16, copy_params(cuda, src, dst, [(0, 0)]), cuda.stream()) == 0
    assert cuda.call("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert "freed memory" in take_violation(cuda)


def test_kernels_over_the_end_of_an_allocation_stop_the_device(cuda: Driver) -> None:
    src, dst = Store(cuda, 2, 64), Store(cuda, 2, 64)
    params = copy_params(cuda, src, dst, [(2, 0)])
    params.src_blocks = 3  # the launcher's limit is wrong
    assert cuda.launch(16, params, cuda.stream()) == 0
    assert cuda.call("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert "guard memory" in take_violation(cuda)


def test_registrations(cuda: Driver) -> None:
    buffer = ctypes.create_string_buffer(8 * 4096)
    base = ctypes.addressof(buffer)

    def register(begin: int, nbytes: int) -> int:
        return cuda.call("cuMemHostRegister_v2", base + begin, nbytes, 3)

    assert register(0, 0) == INVALID_VALUE
    assert register(0, 8192) == 0
    assert register(4096, 8192) == ALREADY_REGISTERED
    assert register(8192, 8192) == 0
    device = cuda.alloc(16384)
    stream = cuda.stream()
    assert cuda.call("cuMemcpyAsync", device, base, 8192, stream) == 0
    assert (
        cuda.call("cuMemcpyAsync", device, base + 4096, 8192, stream) == INVALID_VALUE
    )  # across the border of two registrations
    assert (
        cuda.call("cuMemcpyAsync", base + 12288, device, 8192, stream) == INVALID_VALUE
    )  # beyond the end of one registration
    assert cuda.batch([(device, base, 64), (device + 64, base + 8160, 64)], stream) == (INVALID_VALUE, 1)
    assert cuda.get_value(c_uint64, "cuMemHostGetDevicePointer_v2", base + 100, 0) == base + 100
    assert (
        cuda.call("cuMemHostGetDevicePointer_v2", ctypes.byref(c_uint64()), base + 16384, 0) == INVALID_VALUE
    )
    assert cuda.count("live_registrations") == 2
    assert cuda.call("cuMemHostUnregister", base + 4096) == NOT_REGISTERED
    assert cuda.call("cuMemHostUnregister", base) == cuda.call("cuMemHostUnregister", base + 8192) == 0
    cuda.set(register_limit=4096)
    assert register(0, 4096) == 0
    assert register(4096, 4097) == OUT_OF_MEMORY
    cuda.set(fail_register=801)
    assert register(8192, 4096) == 801


def test_pageable_memory_is_copied_but_not_given_to_kernels(cuda: Driver) -> None:
    buffer = ctypes.create_string_buffer(pattern(4096), 4096)
    base = ctypes.addressof(buffer)
    cuda.mark_pageable(base, 4096)
    device, stream = cuda.alloc(4096), cuda.stream()
    cuda.set(lazy=1)
    assert cuda.call("cuMemcpyAsync", device, base, 4096, stream) == 0
    ctypes.memset(base, 0, 4096)  # the call has already read it
    assert cuda.call("cuMemcpyAsync", base, device, 4096, stream) == 0
    assert buffer.raw == pattern(4096)  # ... and has already written it
    assert cuda.batch([(device, base, 64)], stream) == (INVALID_VALUE, 0)
    assert cuda.call("cuMemHostRegister_v2", base, 4096, 0) == 0
    assert cuda.batch([(device, base, 64)], stream)[0] == 0
    table, dst = cuda.planes([(base, 64)]), Store(cuda, 2, 64)
    params = cuda.params(table, dst.table, [(0, 0)], nbytes=64)
    assert cuda.launch(16, params, stream) == cuda.call("cuStreamSynchronize", stream) == 0
    assert cuda.call("cuMemHostUnregister", base) == 0
    assert cuda.launch(16, params, stream) == 0
    assert cuda.call("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS
    assert (
        cuda.launch(16, params, stream) == cuda.call("cuEventCreate", None, 0) == ILLEGAL_ADDRESS
    )  # from now on
    assert "pageable" in cuda.fault
    cuda.reset()
    cuda.mark_pageable(base, 4096)
    cuda.set(coherent=1)
    dst, table = Store(cuda, 2, 64), cuda.planes([(base, 64)])
    assert cuda.launch(16, cuda.params(table, dst.table, [(0, 0)], nbytes=64), cuda.stream()) == 0
    assert dst.block(0) == buffer.raw[:64]


def test_in_strict_mode_unknown_memory_is_pageable(cuda: Driver) -> None:
    buffer = ctypes.create_string_buffer(4096)
    base = ctypes.addressof(buffer)
    device, stream = cuda.alloc(4096), cuda.stream()
    cuda.set(strict=1)
    assert cuda.batch([(device, base, 64)], stream) == (INVALID_VALUE, 0)
    assert cuda.call("cuPointerGetAttribute", ctypes.byref(c_int()), 2, base) == INVALID_VALUE
    cuda.mark_device(base, 4096)
    assert cuda.batch([(device, base, 64)], stream)[0] == 0
    assert cuda.get_value(c_int, "cuPointerGetAttribute", 2, base + 100) == 2
    assert cuda.get_value(c_size_t, "cuPointerGetAttribute", 12, base + 100) == 4096
    assert cuda.get_value(c_int, "cuPointerGetAttribute", 2, cuda.host_alloc(64)) == 1
    cuda.unmark(base)
