"""Makes every test of this folder use the fake driver instead of a real one. So results do not depend
on the machine's devices.

A process looks for its driver only once (none, no device, too old, a lost context). Tests of these
cases start separate processes.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest

from tests.transfer.fake_cuda.build import build
from tests.transfer.fake_cuda.driver import Driver, FakeCuda
from tests.transfer.fake_cuda.helpers import ready_driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    path = build(tmp_path_factory.mktemp("libcuda"))
    os.environ["KVPOOL_LIBCUDA"] = str(path)
    return FakeCuda(path)


@pytest.fixture
def fake(fake_library: FakeCuda) -> Iterator[FakeCuda]:
    """Yields the controls of the fake driver. Fails the test if it ends with an unexpected violation of
    the driver's rules. Restores all settings.
    """
    before = fake_library.count("violations")
    yield fake_library
    fake_library.set(lazy=0)
    fake_library.run_all()
    assert fake_library.count("violations") == before, fake_library.violation
    assert fake_library.fault == ""


@pytest.fixture
def lazy(fake: FakeCuda) -> Iterator[FakeCuda]:
    """Yields the fake driver in its strictest mode. Work is delayed as long as CUDA allows,
    unregistered memory is treated as pageable, and racing copies are violations.
    """
    fake.set(strict=1, check_races=1, lazy=1, event_queries=2)
    yield fake
    fake.set(strict=0, check_races=0, lazy=0, event_queries=0)


@pytest.fixture
def driver(fake_library: FakeCuda) -> Driver:
    """Yields the driver's own calls. The device's context is current."""
    driver = Driver(fake_library.path)
    assert driver.call("cuInit", 0) == 0
    context = driver.get_value(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", 0)
    assert driver.call("cuCtxSetCurrent", context) == 0
    return driver


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns another fake driver, only for the tests of the fake driver itself."""
    return build(tmp_path_factory.mktemp("fake-cuda"))


@pytest.fixture
def cuda(library: Path) -> Iterator[Driver]:
    yield from ready_driver(library)
