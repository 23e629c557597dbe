"""Fixtures that several test files in this folder use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations import hicache_stand_ins

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def storage() -> Iterator[Any]:
    """Yields kvpool's storage back end for SGLang, over stand-ins of SGLang's modules."""
    with hicache_stand_ins.loaded() as found:
        yield found
