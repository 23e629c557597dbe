"""Tests of the fake CUDA driver itself: captures and graphs."""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_int, c_uint64
from typing import TYPE_CHECKING

import pytest

from tests.transfer.fake_cuda.helpers import (
    CAPTURED_EVENT,
    CAPTURING,
    IMPLICIT,
    INVALIDATED,
    ISOLATION,
    UNJOINED,
)

if TYPE_CHECKING:
    from tests.transfer.fake_cuda.driver import Driver


@pytest.fixture
def lazy(cuda: Driver) -> Driver:
    cuda.set(lazy=1)
    return cuda


@pytest.fixture
def capture(lazy: Driver) -> tuple[Driver, int]:
    stream = lazy.stream()
    assert lazy.call("cuStreamBeginCapture_v2", stream, 0) == 0
    return lazy, stream


def test_a_batch_is_refused_during_a_capture(capture: tuple[Driver, int]) -> None:
    cuda, stream = capture
    cuda.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(c_int(2)))
    device = cuda.alloc(128)
    assert cuda.batch([(device, device + 64, 64)], stream)[0] == CAPTURING
    assert cuda.end_capture(stream)[0] == 0


@pytest.mark.parametrize("name", ["cuEventQuery", "cuEventSynchronize", "cuMemFree_v2", "cuMemAlloc_v2"])
def test_calls_that_a_capture_cannot_see_end_it(lazy: Driver, name: str) -> None:
    event, stream, device = lazy.event(), lazy.stream(), lazy.alloc(64)
    arguments: dict[str, tuple[object, ...]] = {
        "cuMemFree_v2": (device,),
        "cuMemAlloc_v2": (ctypes.byref(c_uint64()), 64),
    }
    argument = arguments.get(name, (event,))
    mode = c_int(2)  # relaxed: calls of this thread do not break captures
    for own, mine, expected in ((0, 0, CAPTURING), (1, 0, CAPTURING), (2, 0, 0), (0, 2, 0)):
        mode.value = mine
        assert lazy.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)) == 0
        assert lazy.call("cuStreamBeginCapture_v2", stream, own) == 0
        assert lazy.call(name, *argument) == expected
        assert lazy.end_capture(stream)[0] == (INVALIDATED if expected else 0)
        if name == "cuMemFree_v2" and expected == 0:
            argument = (lazy.alloc(64),)
    results: list[int] = []

    def query() -> None:
        assert lazy.call("cuCtxSetCurrent", lazy.context) == 0
        results.append(lazy.call("cuEventQuery", event))

    for own in (0, 1):  # global: other threads' captures count, too
        assert lazy.call("cuStreamBeginCapture_v2", stream, own) == 0
        thread = threading.Thread(target=query)
        thread.start()
        thread.join()
        lazy.end_capture(stream)
    assert results == [CAPTURING, 0]


def test_waits_between_captured_and_other_work(lazy: Driver) -> None:
    origin, other, inside, outside = lazy.stream(), lazy.stream(), lazy.event(), lazy.event()
    assert lazy.call("cuEventRecord", outside, other) == 0
    assert lazy.call("cuStreamBeginCapture_v2", origin, 0) == 0
    assert lazy.call("cuStreamWaitEvent", origin, outside, 0) == ISOLATION
    assert lazy.call("cuEventRecord", inside, origin) == INVALIDATED
    assert lazy.end_capture(origin)[0] == INVALIDATED
    for joins in (True, False):  # work that forks into another stream has to join again
        assert lazy.call("cuStreamBeginCapture_v2", origin, 0) == 0
        assert (
            lazy.call("cuEventRecord", inside, origin)
            == lazy.call("cuStreamWaitEvent", other, inside, 0)
            == 0
        )
        assert lazy.call("cuEventQuery", inside) == CAPTURED_EVENT
        assert lazy.capture_status(other) == 1
        assert lazy.call("cuEventRecord", outside, other) == 0
        if joins:
            assert lazy.call("cuStreamWaitEvent", origin, outside, 0) == 0
        assert lazy.end_capture(origin)[0] == (0 if joins else UNJOINED)
        assert lazy.capture_status(other) == 0


def test_the_legacy_stream_and_captures(lazy: Driver) -> None:
    assert lazy.call("cuStreamBeginCapture_v2", None, 0) == CAPTURING
    blocking, device = lazy.stream(blocking=True), lazy.alloc(64)
    assert lazy.call("cuStreamBeginCapture_v2", blocking, 0) == 0
    assert lazy.call("cuMemsetD8Async", device, 1, 64, None) == IMPLICIT
    assert lazy.end_capture(blocking)[0] == INVALIDATED
    assert lazy.call("cuStreamBeginCapture_v2", blocking, 0) == 0
    assert lazy.call("cuStreamSynchronize", blocking) == CAPTURING
    assert lazy.end_capture(blocking)[0] == INVALIDATED
