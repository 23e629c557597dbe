"""Tests observe_time with and without metrics. It refuses invalid times, and times before the latest
one.
"""

from __future__ import annotations

import math

import pytest

import kvpool
from kvpool import errors

Subject = kvpool.CacheManager | kvpool.BlockPool


@pytest.fixture(params=[kvpool.CacheManager, kvpool.BlockPool])
def kind(request: pytest.FixtureRequest) -> type[Subject]:
    """Returns a class with the method observe_time."""
    found: type[Subject] = request.param
    return found


@pytest.mark.parametrize("metrics", [False, True])
@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_what_is_no_time_is_refused(kind: type[Subject], metrics: bool, now: float) -> None:
    subject = kind(9, 4, metrics=metrics)
    subject.clock.observe(5.0)
    with pytest.raises(errors.InvalidArgumentError, match="a number of seconds"):
        subject.clock.observe(now)
    subject.clock.observe(5.0)


@pytest.mark.parametrize("metrics", [False, True])
def test_an_earlier_time_is_refused_and_changes_nothing(kind: type[Subject], metrics: bool) -> None:
    subject = kind(9, 4, metrics=metrics)
    subject.clock.observe(5.0)
    for earlier in (1.0, -5.0, math.nextafter(5.0, 0.0)):
        with pytest.raises(errors.TimeBackwardsError, match="is before 5"):
            subject.clock.observe(earlier)
    subject.clock.observe(5.0)
    subject.clock.observe(6.0)


def test_a_time_before_that_of_retention_is_refused_and_not_kept(kind: type[Subject]) -> None:
    subject = kind(9, 4, metrics=True, retention=True)
    subject.clock.advance(7.0)
    with pytest.raises(errors.TimeBackwardsError, match="is before 7"):
        subject.clock.observe(6.0)
    subject.clock.observe(7.0)
