"""Common code of the tests of the fake driver."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import TYPE_CHECKING

from tests.transfer.fake_cuda.driver import Driver, Params

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FATBIN = (Path(__file__).resolve().parents[3] / "cuda" / "block_copy.fatbin").read_bytes()

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE, INVALID_CONTEXT = 1, 2, 3, 100, 201
INVALID_HANDLE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS, MISALIGNED, LAUNCH_FAILED = (
    400,
    500,
    600,
    700,
    716,
    719,
)
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
CAPTURING, INVALIDATED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT = 900, 901, 904, 905, 906, 907
STREAM_ORDER, DURING_CALL, ANY_ORDER = 1, 2, 3


def fresh_driver(library: Path) -> Iterator[Driver]:
    """Yields the driver in its state before cuInit, and restores this state after the test."""
    driver = Driver(library)
    driver.restart()
    yield driver
    driver.restart()


def ready_driver(library: Path) -> Iterator[Driver]:
    """Yields the driver with a context and the kernels. The test fails if it ends with a violation."""
    for driver in fresh_driver(library):
        driver.initialise(FATBIN)
        yield driver
        assert driver.violation == ""


def read(address: int, nbytes: int) -> bytes:
    return ctypes.string_at(address, nbytes)


def pattern(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def take_violation(cuda: Driver) -> str:
    """Returns the first violation, which the test has caused on purpose. Clears counters and objects."""
    violation = cuda.violation
    cuda.reset()
    return violation


class Store:
    """A store with one plane of device memory, for launches of the kernels."""

    def __init__(self, cuda: Driver, blocks: int, nbytes: int, seed: int = 1) -> None:
        self.base = cuda.put(pattern(blocks * nbytes, seed))
        self.table = cuda.planes([(self.base, nbytes)])
        self.blocks, self.nbytes = blocks, nbytes

    def block(self, index: int) -> bytes:
        return read(self.base + index * self.nbytes, self.nbytes)


def copy_params(cuda: Driver, src: Store, dst: Store, pairs: Sequence[tuple[int, int]]) -> Params:
    return cuda.params(
        src.table, dst.table, pairs, nbytes=src.nbytes, src_blocks=src.blocks, dst_blocks=dst.blocks
    )
