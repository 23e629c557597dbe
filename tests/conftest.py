"""Hypothesis profiles, and fixtures for all tests.

The profile ``fast`` is for every run. The profile ``slow`` is for ``make test-slow``
(HYPOTHESIS_PROFILE=slow), and KVPOOL_EXAMPLES=n sets its number of examples.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# A test must not fail because the machine is busy. Therefore Hypothesis has no deadline here. The report of
# the test suite shows which tests are slow.
_PATIENT = [HealthCheck.too_slow]

settings.register_profile(
    "fast",
    max_examples=50,
    stateful_step_count=50,
    suppress_health_check=_PATIENT,
    deadline=None,
    derandomize=False,
    print_blob=True,
)
settings.register_profile(
    "slow",
    max_examples=int(os.environ.get("KVPOOL_EXAMPLES", "2000")),
    stateful_step_count=120,
    suppress_health_check=_PATIENT,
    deadline=None,
    derandomize=False,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Makes threads take turns every few microseconds instead of every 5 ms, so that even short calls
    overlap.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def vllm() -> Iterator[Any]:
    """Installs stand-ins for vLLM's modules during a test."""
    from tests.integrations.fake_vllm import fake_vllm

    with fake_vllm() as package:
        yield package


@pytest.fixture
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes commands in this process write lines of 80 columns without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
