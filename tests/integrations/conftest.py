"""Fixtures that several test files of this folder use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations import hicache_stand_ins

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def storage() -> Iterator[Any]:
    """Yields kvpool's class that derives from SGLang's, over stand-ins of SGLang."""
    with hicache_stand_ins.loaded() as found:
        yield found
